/* transport/nccl_join: from an invitation to a group, in each form. How it ends is in
 * test_nccl_join_ends.c. */
#include "tests/unit/transport/join_fixture.h"

static void test_join_by_id_and_receive(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p;
    struct nccl_join *j = joined(&p, &i);
    struct source *s = source_new(j);
    struct nccl_join_info info = info_of(j);

    (void)state;
    assert_int_equal(i.info.state, NCCL_GROUP_JOINED);
    assert_int_equal(info.state, NCCL_GROUP_JOINED);
    assert_int_equal(info.n_users, 1);
    assert_int_equal(info.trainer_version, 22809);
    assert_string_equal(info.master, "");
    assert_memory_equal(info.bootstrap, "127.0.0.1:", 10);
    receive(s, &p, TENSORS);
    source_close(s);
    assert_int_equal(i.stats.n_broadcasts, TENSORS);
    assert_int_equal(i.stats.nbytes_received, TENSORS * NBYTES);
    source_close(source_new(j)); /* nothing is in doubt, until this is closed */
    refused(j, false, "expected_digest");
    s = source_of(j, true, &(struct err){0});
    receive(s, &p, TENSORS);
    source_close(s);
    nccl_join_free(j);
    assert_int_equal(i.stats.n_failed, 0);
    assert_int_equal(i.n_answers, 1);
    (void)nfx_end(&p, true);
}

static bool has_list(struct nccl_join *j)
{
    struct tensor_list *list = NULL;
    struct err e = {0};
    bool has = nccl_join_list(j, &list, &e) == 0;

    assert_int_equal(e.code, has ? ERR_NONE : ERR_BAD_REQUEST);
    assert_true(!has || list->n_tensors == TENSORS);
    tensor_list_unref(list);
    return has;
}

/* The list of a commit, if it is of this group. */
static void test_join_keeps_the_last_list(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p;
    struct nccl_join *j = joined(&p, &i);
    struct tensor_list *list = tensor_list_new();
    struct source *s;
    uint64_t group;

    (void)state;
    s = source_new(j);
    receive(s, &p, TENSORS);
    group = s->ops->group(s);
    source_close(s);
    assert_false(has_list(j));
    nccl_join_keep_list(j, list, group - 1);
    assert_false(has_list(j));
    nccl_join_keep_list(j, list, group);
    nccl_join_keep_list(j, list, group);
    assert_true(has_list(j));
    tensor_list_unref(list);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
}

/* Which is said before anything of a list that was never received. */
static void left(struct nccl_join *j)
{
    struct tensor_list *list = NULL;
    struct err e = {0}, other = {0};

    assert_null(source_of(j, true, &e));
    assert_int_equal(e.code, ERR_GROUP_LEFT);
    assert_int_equal(nccl_join_list(j, &list, &other), -1);
    assert_int_equal(other.code, ERR_GROUP_LEFT);
}

/* A trainer that does not wait for the answer may be in its broadcast: it learns of the end. */
static void test_join_ends_if_refused(void **state)
{
    for (int by_close = 0; by_close < 2; by_close++) {
        struct inviter i = {0};
        struct nfx_peer p = nfx_spawn(NULL);
        ncclUniqueId id = nfx_mint(&p);
        struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
        struct nccl_join *j;
        struct source *s;

        (void)state;
        memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
        cfg.ends_if_refused = true;
        gfx_trainer_joins(&p, id, 2, true);
        j = begin(&cfg);
        assert_int_equal(await(&i)->code, ERR_NONE);
        for (int k = 0; k < 2; k++)
            assert_int_equal(nfx_hear(&p).result, ncclSuccess);
        s = source_new(j);
        assert_false(nccl_join_doubt(j, 1)); /* of a request that came before the join */
        if (by_close == 0) {
            assert_true(nccl_join_doubt(j, clock_now_us())); /* of another, while this receives */
            assert_int_equal(info_of(j).error.code, ERR_NONE);
            receive(s, &p, TENSORS);
        }
        source_close(s); /* by_close: it was refused before its first post */
        assert_int_equal(info_of(j).error.code, ERR_GROUP_LEFT);
        left(j);
        nccl_join_free(j);
        (void)nfx_end(&p, true);
    }
}

/* A torch group is joined by its first collective, which is the refused update's broadcast. */
static void test_torch_join_ends_if_refused_before_it_has_joined(void **state)
{
    struct inviter i = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_TORCH);
    struct store_server *store = store_of(&cfg);
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j;

    (void)state;
    cfg.ends_if_refused = true;
    j = begin(&cfg);
    assert_int_equal(await(&i)->code, ERR_NONE);
    assert_true(nccl_join_doubt(j, clock_now_us()));
    left(j);
    assert_int_equal(info_of(j).state, NCCL_GROUP_JOINING);
    nfx_join(&p, 2, 0, id);
    store_server_set(store, "/G/G//cuda//0", id.internal, sizeof id.internal);
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    NFX_UNTIL(info_of(j).error.code == ERR_GROUP_LEFT);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
    store_server_free(store);
}

static void test_next_takes_the_previous_down(void **state)
{
    struct inviter first = {0}, second = {0};
    struct nfx_peer p, q = nfx_spawn(NULL);
    struct nccl_join *j = joined(&p, &first);
    struct nccl_join_cfg cfg = invitation(&second, NCCL_FORM_ID);
    ncclUniqueId id = nfx_mint(&q);

    (void)state;
    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    cfg.previous = j;
    gfx_trainer_joins(&q, id, 2, true);
    j = begin(&cfg);
    assert_int_equal(await(&second)->code, ERR_NONE);
    assert_int_equal(nfx_counts().n_comms, 1);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
    (void)nfx_end(&q, true);
}

static void test_torch_is_answered_before_it_has_joined(void **state)
{
    struct inviter i = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_TORCH);
    struct store_server *store = store_of(&cfg);
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j = begin(&cfg);
    struct source *s;

    (void)state;
    assert_int_equal(await(&i)->code, ERR_NONE);
    assert_int_equal(i.info.state, NCCL_GROUP_JOINING);
    assert_int_equal(store_server_add(store, "init/", 0), 2);
    s = source_new(j);
    store_server_await_waiters(store, 1);
    nfx_join(&p, 2, 0, id);
    store_server_set(store, "/G/G//cuda//0", id.internal, sizeof id.internal);
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    receive(s, &p, TENSORS);
    source_close(s);
    assert_int_equal(info_of(j).state, NCCL_GROUP_JOINED);
    assert_int_equal(atomic_load(&i.n_answers), 1);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
    store_server_free(store);
}

/* A source that waits for the trainer's first collective: its own deadline, its own stop. */
static void test_receive_does_not_wait_for_ever_for_a_torch_group(void **state)
{
    struct inviter i = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_TORCH);
    struct store_server *store = store_of(&cfg);
    struct nccl_join *j = begin(&cfg);
    struct progress soon = gfx_within(SOON_US), stopped = gfx_patient();
    struct source *s;

    (void)state;
    assert_int_equal(await(&i)->code, ERR_NONE);
    s = source_new(j);
    receive_fails(s, &soon, ERR_TIMEOUT, "did not form its group 'G'");
    atomic_store(&stopped.stop, true);
    receive_fails(s, &stopped, ERR_CONFLICT, "aborted");
    source_close(s); /* it was asked for: even a trainer that waits to be asked may send it now */
    refused(j, true, "after 0 of its 3 tensors");
    assert_int_equal(info_of(j).state, NCCL_GROUP_FAILED);
    nccl_join_free(j);
    store_server_free(store);
}

static void test_what_is_in_the_store_is_no_id(void **state)
{
    static const struct {
        enum nccl_form form;
        const char *key;
    } rows[] = {{NCCL_FORM_STORE, "/broadcast_from/0/0"}, {NCCL_FORM_TORCH, "/G/G//cuda//0"}};

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct inviter i = {0};
        struct nccl_join_cfg cfg = invitation(&i, rows[r].form);
        struct store_server *store = store_of(&cfg);
        struct nccl_join *j;

        store_server_set(store, rows[r].key, "nonsense", 8);
        j = begin(&cfg);
        NFX_UNTIL(info_of(j).state == NCCL_GROUP_FAILED);
        assert_int_equal(info_of(j).error.code, ERR_UNREADABLE);
        assert_non_null(strstr(info_of(j).error.msg, "2.28.9"));
        (void)await(&i);
        assert_string_equal(info_of(j).bootstrap, "");
        nccl_join_free(j);
        store_server_free(store);
    }
}

/* NCCL's own numbers, of whoever it met: where that can only be the trainer, its version is known.
 */
static void test_versions_are_told_in_words(void **state)
{
    static const struct {
        const char *seen;
        uint32_t world_size;
        const char *told;
        int trainer_version;
    } rows[] = {
        {"handshake", 2, "(NCCL 2.28.9 here, the trainer's is 2.28.3)", 22803},
        {"handshake", 3, "(NCCL 2.28.9 here, another rank's is 2.28.3)", 0},
        {"table", 2, "(NCCL 2.28.9 here, the trainer's is 2.28.3)", 22803},
        {"table", 3, "(NCCL 2.28.9 here, the trainer's is 2.28.3)", 22803},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct inviter i = {0};
        struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
        struct nfx_peer p = nfx_spawn("FAKENCCL_VERSION=22803"), other = nfx_spawn(NULL);
        ncclUniqueId id = nfx_mint(&p);
        struct nccl_join *j;

        memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
        cfg.group.world_size = rows[r].world_size;
        (void)setenv("FAKENCCL_MISMATCH", rows[r].seen, 1);
        gfx_trainer_joins(&p, id, (int)rows[r].world_size, true);
        if (rows[r].world_size == 3)
            nfx_join(&other, 3, 2, id);
        j = begin(&cfg);
        assert_int_equal(await(&i)->code, ERR_NCCL);
        (void)unsetenv("FAKENCCL_MISMATCH");
        if (strstr(i.e.msg, rows[r].told) == NULL)
            fail_msg("'%s' is not in: %s", rows[r].told, i.e.msg);
        assert_int_equal(i.info.trainer_version, rows[r].trainer_version);
        assert_int_equal(info_of(j).trainer_version, rows[r].trainer_version);
        nccl_join_free(j);
        (void)nfx_end(&p, true);
        (void)nfx_end(&other, true);
    }
}

/* Neither the store nor what an id points at. */
static void test_addresses_that_are_not_allowed(void **state)
{
    struct cidr_list allow = {0};
    struct inviter i = {0}, k = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_STORE);
    struct store_server *store = store_of(&cfg);
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    struct err e = {0};
    struct nccl_join *j;

    (void)state;
    assert_int_equal(cidr_list_add(&allow, "192.0.2.0/24", "", &e), 0);
    cfg.allow = &allow;
    j = begin(&cfg);
    assert_int_equal(await(&i)->code, ERR_FORBIDDEN);
    assert_int_equal(store_server_add(store, "init/", 0), 1);
    nccl_join_free(j);
    cfg = invitation(&k, NCCL_FORM_ID);
    cfg.allow = &allow;
    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    j = begin(&cfg);
    assert_int_equal(await(&k)->code, ERR_FORBIDDEN);
    assert_string_equal(k.e.field, "/nccl_unique_id");
    nccl_join_free(j);
    (void)nfx_end(&p, true);
    store_server_free(store);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        GFX_TEST(test_join_by_id_and_receive),
        GFX_TEST(test_join_keeps_the_last_list),
        GFX_TEST(test_join_ends_if_refused),
        GFX_TEST(test_torch_join_ends_if_refused_before_it_has_joined),
        GFX_TEST(test_next_takes_the_previous_down),
        GFX_TEST(test_torch_is_answered_before_it_has_joined),
        GFX_TEST(test_receive_does_not_wait_for_ever_for_a_torch_group),
        GFX_TEST(test_what_is_in_the_store_is_no_id),
        GFX_TEST(test_versions_are_told_in_words),
        GFX_TEST(test_addresses_that_are_not_allowed),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
