/* transport/nccl_join: how a join ends, whoever brings that about, and what is told of it. */
#include "tests/unit/transport/join_fixture.h"

#include <errno.h>
#include <sched.h>

enum {
    ROUNDS = 40,
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
    receive_fails(s, &soon, ERR_TIMEOUT, "the group has failed: join a new one");
    receive_fails(queued, &patient, ERR_TIMEOUT, "before the deadline");
    refused(j, true, "before the deadline");
    assert_false(info_of(j).error.code == ERR_NONE);
    source_close(s);
    source_close(queued);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
}

/* The group has failed, and who receives by it has not come to that: its ring is still that
 * receiver's, so nobody else gets to it. */
static void test_a_group_that_failed_takes_nobody_in(void **state)
{
    uint64_t dst = gfx_buffer(0, NBYTES);
    struct progress patient = gfx_patient();
    struct inviter i = {0};
    struct err e = {0};
    struct nccl_join *j;
    struct nfx_peer p;
    struct source *s;

    (void)state;
    (void)setenv("FAKENCCL_TRANSPORT", "socket", 1);
    j = joined(&p, &i);
    (void)unsetenv("FAKENCCL_TRANSPORT");
    s = source_new(j);
    receive(s, &p, 1);
    assert_int_equal(s->ops->post(s, 1, 1, &dst, &patient, &e), 0);
    NFX_UNTIL(nfx.n_queued() == 1);
    (void)nfx_end(&p, true);
    NFX_UNTIL(info_of(j).error.code != ERR_NONE);
    refused(j, true, "the group has failed");
    assert_int_equal(s->ops->receive(s, &patient, &e), -1);
    assert_int_equal(e.code, ERR_NCCL);
    assert_non_null(strstr(e.msg, "the group has failed: join a new one"));
    source_close(s);
    nccl_join_free(j);
    assert_int_equal(i.stats.n_failed, 1);
    gfx_drop(dst);
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
    while (leave(j, "again, while it ends", NULL))
        (void)sched_yield();
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
    receive_fails(s, &patient, ERR_UNREADABLE, "closed the connection");
    receive_fails(s, &patient, ERR_UNREADABLE, "the group has failed"); /* again */
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
    receive_fails(s, &patient, ERR_UNREADABLE, "closed the connection");
    source_close(s);
    NFX_UNTIL(k.stats.n_failed == 1);
    nccl_join_free(j);
    (void)nfx_end(&p, true);
    store_server_free(store);
}

/* Left as soon as it has joined: told the one or the other, and never that it has joined when it is
 * over. */
static void test_an_answer_is_never_of_a_group_that_is_over(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct inviter i = {0};
        struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
        struct nfx_peer p = nfx_spawn(NULL);
        ncclUniqueId id = nfx_mint(&p);
        struct nccl_join *j;

        memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
        gfx_trainer_joins(&p, id, 2, true);
        j = begin(&cfg);
        while (i.stats.n_joined == 0)
            (void)sched_yield();
        for (int k = 0; k < round * 20; k++)
            (void)sched_yield();
        (void)leave(j, "enough", NULL);
        (void)await(&i);
        assert_int_equal(i.info.state,
                         i.e.code == ERR_NONE ? NCCL_GROUP_JOINED : NCCL_GROUP_FAILED);
        assert_int_equal(i.info.error.code, i.e.code);
        nccl_join_free(j);
        assert_int_equal(i.n_answers, 1);
        (void)nfx_end(&p, true);
    }
}

/* From the invitation to the source of an update; 0 when all of it went well. */
static int go_through(struct tensor_list *tensor_list)
{
    struct inviter i = {0};
    struct nccl_join_cfg cfg = invitation(&i, NCCL_FORM_ID);
    struct nfx_peer p = nfx_spawn(NULL);
    struct packed_chunks chunks = {0};
    struct source *s = NULL;
    ncclUniqueId id = nfx_mint(&p);
    struct nccl_join *j = NULL;
    struct err e = {0};
    int rc = packed_chunks_each(&chunks, tensor_list, &e);

    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    gfx_trainer_joins(&p, id, 2, true);
    if (rc == 0)
        rc = nccl_join_new(&j, &cfg, &e);
    assert_true((rc == 0) == (j != NULL) && (rc == 0) == (e.code == ERR_NONE));
    if (rc == 0)
        rc = await(&i)->code == ERR_NONE ? 0 : -1;
    if (rc == 0)
        rc = nccl_join_source_new(&s, j, tensor_list, &chunks, false, &e);
    source_close(s);
    nccl_join_free(j);
    packed_chunks_fini(&chunks);
    (void)nfx_end(&p, true);
    return rc;
}

static void test_each_allocation_and_each_thread_fails(void **state)
{
    struct tensor_list *tensor_list = tensor_list_new();
    int n_failed = 0;

    (void)state;
    for (int n = 0; n < N_CALLOCS; n++) {
        atomic_store(&callocs_left, n);
        n_failed += go_through(tensor_list) != 0;
        atomic_store(&callocs_left, INT32_MIN / 2);
        gfx_nothing_left_but_memory();
    }
    assert_in_range(n_failed, 4, N_CALLOCS - 1);
    n_failed = 0;
    for (int n = 0; n < N_THREADS; n++) {
        atomic_store(&threads_left, n);
        n_failed += go_through(tensor_list) != 0;
        atomic_store(&threads_left, INT32_MIN / 2);
        gfx_nothing_left_but_memory();
    }
    assert_in_range(n_failed, 3, N_THREADS - 1); /* supervisor, joiner, the rank's */
    tensor_list_unref(tensor_list);
}

/* The last: an abort that sticks is told once, and neither the next join nor the one after it goes
 * where it sticks. */
static void test_after_an_abort_that_sticks_nothing_is_joined(void **state)
{
    struct inviter i = {0}, second = {0}, third = {0};
    struct nfx_peer p;
    struct nccl_join_cfg cfg;
    struct nccl_join *j;

    (void)state;
    gfx.stuck = true;
    gfx_abort_timeout_us = SOON_US;
    (void)setenv("FAKENCCL_ABORT_STICKS", "1", 1);
    j = joined(&p, &i);
    (void)unsetenv("FAKENCCL_ABORT_STICKS");
    cfg = invitation(&second, NCCL_FORM_ID);
    cfg.previous = j;
    j = begin(&cfg);
    cfg = invitation(&third, NCCL_FORM_ID);
    cfg.previous = j;
    j = begin(&cfg);
    (void)await(&second); /* by the third, that takes its place, or as the third */
    assert_true(second.e.code == ERR_CONFLICT || second.e.code == ERR_NCCL);
    assert_int_equal(await(&third)->code, ERR_NCCL);
    assert_non_null(strstr(third.e.msg, "must be restarted"));
    assert_int_equal(third.info.state, NCCL_GROUP_STUCK);
    assert_int_equal(nfx_counts().n_comms, 1);
    nccl_join_free(j);
    assert_int_equal(i.n_stuck + second.n_stuck + third.n_stuck, 1);
    nfx.release_aborts();
    NFX_UNTIL(nfx_counts().n_comms == 0);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
    (void)nfx_end(&p, true);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        GFX_TEST(test_source_closed_half_way_ends_the_join),
        GFX_TEST(test_receive_that_fails_ends_the_join),
        GFX_TEST(test_a_group_that_failed_takes_nobody_in),
        GFX_TEST(test_leave_tells_why_and_when_nothing_is_left),
        GFX_TEST(test_leave_before_it_has_joined),
        GFX_TEST(test_store_that_hangs_up_ends_the_join),
        GFX_TEST(test_an_answer_is_never_of_a_group_that_is_over),
        GFX_TEST(test_each_allocation_and_each_thread_fails),
        GFX_TEST(test_after_an_abort_that_sticks_nothing_is_joined),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
