/* transport/nccl_join: from an invitation to a group and its end, whoever brings that about. */
#include "tests/unit/group_fixture.h"

#include "tests/fakes/tcpstore_server.h"
#include "transport/nccl_join.h"

#include <errno.h>

enum {
    SECONDS = 1000 * 1000,
    NBYTES = 1000,
    TENSORS = 3,
    SOON_US = 300 * 1000,
    N_CALLOCS = 12, /* more than there are */
    N_THREADS = 8
};

void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);

/* Calls of all threads until the one that fails; far below 0: none does. */
static atomic_int callocs_left = INT32_MIN / 2, threads_left = INT32_MIN / 2;

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return atomic_fetch_sub(&callocs_left, 1) == 0 ? NULL : __real_calloc(n, nbytes);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    return atomic_fetch_sub(&threads_left, 1) == 0 ? EAGAIN
                                                   : __real_pthread_create(thread, attr, fn, arg);
}

/* Whoever invited. */
struct inviter {
    atomic_int n_answers, n_gone;
    struct nccl_join_info info;
    struct err e;
    struct nccl_join_stats stats;
};

static void answered(void *arg, const struct nccl_join_info *info, const struct err *e)
{
    struct inviter *i = arg;

    i->info = *info;
    i->e = *e;
    atomic_fetch_add(&i->n_answers, 1);
}

static void gone(void *arg)
{
    struct inviter *i = arg;

    atomic_fetch_add(&i->n_gone, 1);
}

static const struct err *await(struct inviter *i)
{
    NFX_UNTIL(atomic_load(&i->n_answers) > 0);
    return &i->e;
}

static struct nccl_join_cfg invitation(struct inviter *i, enum nccl_form form)
{
    return (struct nccl_join_cfg){
        .group = {.nccl = &nfx.nccl,
                  .devices = gfx.devices,
                  .n_ranks = 1,
                  .world_size = 2,
                  .rank_offset = 1,
                  .warm_up = form != NCCL_FORM_TORCH},
        .version = 22809,
        .form = form,
        .host = "127.0.0.1",
        .group_name = "G",
        .timeout_us = (uint64_t)NFX_PATIENCE_S * SECONDS,
        .first_collective_us = (uint64_t)NFX_PATIENCE_S * SECONDS,
        .stats = &i->stats,
        .answer = answered,
        .answer_arg = i,
    };
}

static struct nccl_join *begin(const struct nccl_join_cfg *cfg)
{
    struct nccl_join *j = NULL;
    struct err e = {0};

    if (nccl_join_new(&j, cfg, &e) != 0)
        fail_msg("%s", e.msg);
    return j;
}

static struct nccl_join_info info_of(struct nccl_join *j)
{
    struct nccl_join_info info;

    nccl_join_info(j, &info);
    return info;
}

static bool leave(struct nccl_join *j, const char *why, struct inviter *i)
{
    struct err e = {0};

    (void)err_set(&e, ERR_CONFLICT, "", "%s", why);
    return nccl_join_leave(j, &e, i != NULL ? gone : NULL, i);
}

/* By its id, with a trainer. */
static struct nccl_join *joined(struct nfx_peer *p, struct inviter *i)
{
    struct nccl_join_cfg cfg = invitation(i, NCCL_FORM_ID);
    struct nccl_join *j;
    ncclUniqueId id;

    *p = nfx_spawn(NULL);
    id = nfx_mint(p);
    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    gfx_trainer_joins(p, id, 2, true);
    j = begin(&cfg);
    if (await(i)->code != ERR_NONE)
        fail_msg("%s", i->e.msg);
    for (int k = 0; k < 2; k++)
        assert_int_equal(nfx_hear(p).result, ncclSuccess);
    return j;
}

static struct plan *plan_new(void)
{
    const uint64_t nbytes = NBYTES;
    struct plan_builder *b = NULL;
    struct plan *plan = NULL;
    struct err e = {0};
    char name[16];

    assert_int_equal(plan_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(plan_builder_add(b, name, DTYPE_U8, &nbytes, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(plan_builder_finish(b, &plan, &e), 0);
    return plan;
}

/* One broadcast for each tensor; NULL with e set when that is refused. */
static struct source *source_of(struct nccl_join *j, bool sure, struct err *e)
{
    struct plan *plan = plan_new();
    struct packed_chunks chunks = {0};
    struct source *s = NULL;
    int rc;

    assert_int_equal(packed_chunks_each(&chunks, plan, e), 0);
    rc = nccl_join_source_new(&s, j, plan, &chunks, sure, e);
    plan_unref(plan);
    assert_null(chunks.chunks);
    assert_true((rc == 0) == (s != NULL) && (rc == 0) == (e->code == ERR_NONE));
    return s;
}

static struct source *source_new(struct nccl_join *j)
{
    struct err e = {0};
    struct source *s = source_of(j, false, &e);

    if (s == NULL)
        fail_msg("%s", e.msg);
    return s;
}

static void refused(struct nccl_join *j, bool sure, const char *why)
{
    struct err e = {0};

    assert_null(source_of(j, sure, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    if (strstr(e.msg, why) == NULL)
        fail_msg("'%s' is not in: %s", why, e.msg);
}

/* Tensors [0, n), of seeds 0 and on. */
static void receive(struct source *s, struct nfx_peer *p, uint32_t n)
{
    uint64_t dst = gfx_buffer(0, NBYTES);
    struct progress wait = gfx_patient();
    struct err e = {0};

    for (uint32_t i = 0; i < n; i++)
        nfx_send(p, NBYTES, i);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(s->ops->bucket(s, i), 1);
        if (s->ops->receive(s, i, 1, &dst, &wait, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(nfx_n_wrong(dst, NBYTES, i, 0), 0);
        assert_int_equal(nfx_hear(p).result, ncclSuccess);
    }
    gfx_drop(dst);
}

static void receive_fails(struct source *s, struct progress *p, enum err_code code, const char *why)
{
    uint64_t dst = gfx_buffer(0, NBYTES);
    struct err e = {0};

    assert_int_equal(s->ops->receive(s, 0, 1, &dst, p, &e), -1);
    assert_int_equal(e.code, code);
    if (strstr(e.msg, why) == NULL)
        fail_msg("'%s' is not in: %s", why, e.msg);
    assert_false(s->ops->stuck(s));
    gfx_drop(dst);
}

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

/* What was not received may still come. */
static void test_source_closed_half_way_ends_the_join(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p;
    struct nccl_join *j = joined(&p, &i);
    struct source *s = source_new(j);

    (void)state;
    receive(s, &p, 2);
    source_close(s);
    refused(j, true, "after 2 of its 3 tensors");
    NFX_UNTIL(nfx_counts().n_comms == 0);
    assert_int_equal(info_of(j).state, NCCL_GROUP_FAILED);
    nccl_join_free(j);
    assert_int_equal(i.stats.n_failed, 1);
    (void)nfx_end(&p, true);
}

static void test_receive_that_fails_ends_the_join(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p;
    struct nccl_join *j = joined(&p, &i);
    struct source *s = source_new(j), *queued = source_new(j);
    struct progress soon = gfx_within(SOON_US), patient = gfx_patient();

    (void)state;
    receive_fails(s, &soon, ERR_TIMEOUT, "the group has failed: another is needed");
    receive_fails(queued, &patient, ERR_TIMEOUT, "at the deadline");
    refused(j, true, "at the deadline");
    assert_false(info_of(j).error.code == ERR_NONE);
    source_close(s);
    source_close(queued);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
}

/* While nothing is under way; while somebody receives; twice; when it is over. */
static void test_leave_tells_why_and_when_nothing_is_left(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p;
    struct nccl_join *j = joined(&p, &i);
    struct source *s = source_new(j);
    struct progress patient = gfx_patient();

    (void)state;
    assert_true(leave(j, "enough", &i));
    assert_true(leave(j, "twice", NULL));
    receive_fails(s, &patient, ERR_CONFLICT, "enough");
    assert_int_equal(atomic_load(&i.n_gone), 0); /* the source is open */
    source_close(s);
    NFX_UNTIL(atomic_load(&i.n_gone) == 1);
    assert_false(leave(j, "late", &i));
    refused(j, true, "enough");
    assert_int_equal(i.n_answers, 1);
    nccl_join_free(j);
    assert_int_equal(i.n_gone, 1);
    assert_int_equal(i.stats.n_failed, 0);
    (void)nfx_end(&p, true);
}

/* Before it has joined: whoever invited is told, once nothing is left. */
static void test_leave_before_it_has_joined(void **state)
{
    struct inviter i = {0};
    struct nfx_peer p = nfx_spawn(NULL);
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j;

    (void)state;
    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    j = begin(&cfg);
    refused(j, true, "still being joined");
    NFX_UNTIL(nfx_counts().n_comms == 1);
    (void)leave(j, "no longer wanted", NULL);
    assert_int_equal(await(&i)->code, ERR_CONFLICT);
    assert_non_null(strstr(i.e.msg, "no longer wanted"));
    assert_int_equal(nfx_counts().n_comms, 0);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
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

/* A store in a thread of the test, with the trainer's own count. */
static struct store_server *store_of(struct nccl_join_cfg *cfg)
{
    struct store_server *store = store_server_new(STORE_LIBUV);

    (void)store_server_add(store, "init/", 1);
    cfg->port = store_server_port(store);
    return store;
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
    assert_true(i.info.counted);
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
    receive_fails(s, &soon, ERR_TIMEOUT, "had not formed its group 'G'");
    atomic_store(&stopped.stop, true);
    receive_fails(s, &stopped, ERR_CONFLICT, "aborted");
    source_close(s);
    assert_int_equal(info_of(j).state, NCCL_GROUP_JOINING);
    refused(j, false, "was refused or given up");
    nccl_join_free(j);
    store_server_free(store);
}

/* The trainer's process ends: seen in every stage, by the store's connection alone. */
static void test_store_that_hangs_up_ends_the_join(void **state)
{
    struct inviter i = {0}, k = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_TORCH);
    struct store_server *store = store_of(&cfg);
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j = begin(&cfg);
    struct progress patient = gfx_patient();
    struct source *s;

    (void)state;
    store_server_await_waiters(store, 1);
    assert_int_equal(await(&i)->code, ERR_NONE);
    s = source_new(j);
    store_server_drop(store);
    receive_fails(s, &patient, ERR_UNREADABLE, "hung up");
    source_close(s);
    nccl_join_free(j);

    cfg.answer_arg = &k;
    cfg.stats = &k.stats;
    j = begin(&cfg);
    nfx_join(&p, 2, 0, id);
    store_server_set(store, "/G/G//cuda//0", id.internal, sizeof id.internal);
    NFX_UNTIL(info_of(j).state == NCCL_GROUP_JOINED);
    s = source_new(j);
    store_server_drop(store);
    receive_fails(s, &patient, ERR_UNREADABLE, "hung up");
    source_close(s);
    NFX_UNTIL(k.stats.n_failed == 1);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
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

/* From the invitation to the source of an update; 0 when all of it went well. */
static int go_through(struct plan *plan)
{
    struct inviter i = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
    struct nfx_peer p = nfx_spawn(NULL);
    struct packed_chunks chunks = {0};
    struct source *s = NULL;
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j = NULL;
    struct err e = {0};
    int rc = packed_chunks_each(&chunks, plan, &e);

    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    gfx_trainer_joins(&p, id, 2, true);
    if (rc == 0)
        rc = nccl_join_new(&j, &cfg, &e);
    assert_true((rc == 0) == (j != NULL) && (rc == 0) == (e.code == ERR_NONE));
    if (rc == 0)
        rc = await(&i)->code == ERR_NONE ? 0 : -1;
    if (rc == 0)
        rc = nccl_join_source_new(&s, j, plan, &chunks, false, &e);
    source_close(s);
    nccl_join_free(j);
    packed_chunks_fini(&chunks);
    (void)nfx_end(&p, true);
    return rc;
}

static void test_each_allocation_and_each_thread_fails(void **state)
{
    struct plan *plan = plan_new();
    int n_failed = 0;

    (void)state;
    for (int n = 0; n < N_CALLOCS; n++) {
        atomic_store(&callocs_left, n);
        n_failed += go_through(plan) != 0;
        atomic_store(&callocs_left, INT32_MIN / 2);
        gfx_nothing_left_but_memory();
    }
    assert_in_range(n_failed, 4, N_CALLOCS - 1);
    n_failed = 0;
    for (int n = 0; n < N_THREADS; n++) {
        atomic_store(&threads_left, n);
        n_failed += go_through(plan) != 0;
        atomic_store(&threads_left, INT32_MIN / 2);
        gfx_nothing_left_but_memory();
    }
    assert_in_range(n_failed, 3, N_THREADS - 1); /* keeper, joiner, the rank's */
    plan_unref(plan);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        GFX_TEST(test_join_by_id_and_receive),
        GFX_TEST(test_source_closed_half_way_ends_the_join),
        GFX_TEST(test_receive_that_fails_ends_the_join),
        GFX_TEST(test_leave_tells_why_and_when_nothing_is_left),
        GFX_TEST(test_leave_before_it_has_joined),
        GFX_TEST(test_next_takes_the_previous_down),
        GFX_TEST(test_torch_is_answered_before_it_has_joined),
        GFX_TEST(test_receive_does_not_wait_for_ever_for_a_torch_group),
        GFX_TEST(test_store_that_hangs_up_ends_the_join),
        GFX_TEST(test_what_is_in_the_store_is_no_id),
        GFX_TEST(test_addresses_that_are_not_allowed),
        GFX_TEST(test_each_allocation_and_each_thread_fails),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
