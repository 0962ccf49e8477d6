/* transport/nccl_group, when something is wrong: trainers that die, stall or send less; every call
 * of NCCL and of the driver failed by name; ends at random points; aborts that do not come back. */
#include "tests/unit/transport/group_fixture.h"

#include <errno.h>

enum {
    NBYTES = 600000,
    DIES_AT = 200000,
    SOON_US = 300 * 1000,
    ABORT_US = 500 * 1000,
    ROUNDS = 200
};

void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);

/* Calls of this thread until the one that fails; -1: none does. */
static _Thread_local int callocs_left = -1, threads_left = -1;

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return callocs_left >= 0 && callocs_left-- == 0 ? NULL : __real_calloc(n, nbytes);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    return threads_left >= 0 && threads_left-- == 0 ? EAGAIN
                                                    : __real_pthread_create(thread, attr, fn, arg);
}

/* Two ranks' memory. */
struct memory {
    uint64_t dst[GFX_DEVICES];
};

static struct memory memory_new(void)
{
    struct memory m;

    for (int i = 0; i < GFX_DEVICES; i++)
        m.dst[i] = gfx_buffer(i, NBYTES);
    return m;
}

static void memory_drop(const struct memory *m)
{
    for (int i = 0; i < GFX_DEVICES; i++)
        gfx_drop(m->dst[i]);
}

/* What is written there now stays, whatever the peer does until it is ended. */
static void check_nothing_writes(const struct memory *m, struct nfx_peer *peer)
{
    static uint8_t bytes[NBYTES];

    for (uint64_t i = 0; i < NBYTES; i++)
        bytes[i] = nfx_byte(9, i);
    for (int i = 0; i < GFX_DEVICES; i++)
        assert_int_equal(nfx.cu.memcpy_htod(m->dst[i], bytes, NBYTES), CUDA_SUCCESS);
    if (peer != NULL)
        (void)nfx_end(peer, true);
    for (int i = 0; i < GFX_DEVICES; i++)
        assert_int_equal(nfx_n_wrong(m->dst[i], NBYTES, 9, 0), 0);
}

static void check_another_group_works(const struct memory *m)
{
    struct nfx_peer p;
    struct nccl_group *g = gfx_joined(&p, NULL, 2, true);
    struct progress wait = gfx_patient();
    struct err e = {0};

    nfx_send(&p, NBYTES, 4);
    if (gfx_receive(g, m->dst, NBYTES, &wait, &e) != 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < GFX_DEVICES; i++)
        assert_int_equal(nfx_n_wrong(m->dst[i], NBYTES, 4, 0), 0);
    nccl_group_free(g);
    (void)nfx_end(&p, true);
}

struct trouble {
    const char *what, *env;
    bool sends, dies_before, sockets;
    enum err_code code;
};

static void check_trouble(const struct trouble *t)
{
    struct memory m = memory_new();
    struct nccl_group *g;
    struct nfx_peer peer;
    struct progress p;
    struct err e = {0};

    (void)setenv("FAKENCCL_TRANSPORT", t->sockets ? "socket" : "p2p", 1);
    g = gfx_joined(&peer, t->env, 2, true);
    if (t->dies_before)
        (void)nfx_end(&peer, true);
    if (t->sends)
        nfx_send(&peer, NBYTES, 6);
    p = t->code == ERR_TIMEOUT ? gfx_within(SOON_US) : gfx_patient();
    assert_int_equal(gfx_receive(g, m.dst, NBYTES, &p, &e), -1);
    if (e.code != t->code)
        fail_msg("%s: %s", t->what, e.msg);
    assert_int_equal(nfx_counts().n_comms, 0);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_FAILED);
    assert_int_equal(gfx_info(g).n_broadcasts, 0);
    check_nothing_writes(&m, t->dies_before ? NULL : &peer);
    nccl_group_free(g);
    (void)unsetenv("FAKENCCL_TRANSPORT");
    check_another_group_works(&m);
    memory_drop(&m);
}

static void test_receive_ends_when_the_trainer_fails(void **state)
{
    static const struct trouble rows[] = {
        {"it sends nothing", NULL, false, false, false, ERR_TIMEOUT},
        {"it is dead, over links of GPUs", NULL, false, true, false, ERR_TIMEOUT},
        {"it is dead, over sockets", NULL, false, true, true, ERR_NCCL},
        {"it dies, over links of GPUs", "FAKENCCL_DIE_AFTER_BYTES=200000", true, false, false,
         ERR_TIMEOUT},
        {"it dies, over sockets", "FAKENCCL_DIE_AFTER_BYTES=200000", true, false, true, ERR_NCCL},
        {"it stalls", "FAKENCCL_STALL_AFTER_BYTES=200000", true, false, false, ERR_TIMEOUT},
        {"it sends less", "FAKENCCL_SHORT=1", true, false, false, ERR_TIMEOUT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_trouble(&rows[i]);
}

static void test_receive_says_what_was_missing(void **state)
{
    struct memory m = memory_new();
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, true);
    struct progress p = gfx_within(SOON_US);
    struct err e = {0}, again = {0};

    (void)state;
    assert_int_equal(gfx_receive(g, m.dst, NBYTES, &p, &e), -1);
    assert_string_equal(e.msg, "a broadcast of 600000 bytes did not complete before the deadline");
    p = gfx_patient();
    assert_int_equal(gfx_receive(g, m.dst, NBYTES, &p, &again), -1);
    assert_int_equal(again.code, ERR_CONFLICT);
    assert_non_null(strstr(again.msg, e.msg));
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    memory_drop(&m);
}

/* In the middle of the bytes, and while the call is not yet on the stream. */
static void test_receive_gives_up_when_asked(void **state)
{
    static const struct {
        void (*act)(struct gfx_watch *w);
        bool sends;
        const char *msg;
    } rows[] = {
        {gfx_act_stop, true, "stopped while the trainer's broadcast was received"},
        {gfx_act_stop, false, "stopped while the trainer's broadcast was received"},
        {gfx_act_leave, true, "left by a test"},
        {gfx_act_leave, false, "left by a test"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct memory m = memory_new();
        struct nfx_peer peer;
        struct nccl_group *g = gfx_joined(&peer, "FAKENCCL_STALL_AFTER_BYTES=200000", 2, false);
        struct fakenccl_counts now = nfx_counts();
        struct progress p = gfx_patient();
        struct gfx_watch w = {.when = rows[i].sends ? gfx_when_nbytes : gfx_when_calls,
                              .act = rows[i].act,
                              .g = g,
                              .p = &p,
                              .n = rows[i].sends ? now.nbytes + 1 : now.n_calls + 10};
        struct err e = {0};

        if (rows[i].sends)
            nfx_send(&peer, NBYTES, 6);
        gfx_watch_start(&w);
        assert_int_equal(gfx_receive(g, m.dst, NBYTES, &p, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        assert_string_equal(e.msg, rows[i].msg);
        assert_int_equal(nfx_counts().n_comms, 0);
        gfx_watch_end(&w);
        check_nothing_writes(&m, &peer);
        nccl_group_free(g);
        memory_drop(&m);
    }
}

/* From the threads to the end: a join with its sum, and two broadcasts. */
static int go_through(const struct memory *m, struct err *e)
{
    const struct nccl_group_cfg cfg = {.nccl = &nfx.nccl,
                                       .devices = gfx.devices,
                                       .n_ranks = 2,
                                       .world_size = 3,
                                       .rank_offset = 1,
                                       .warm_up = true};
    struct progress p = gfx_patient();
    struct nfx_peer peer = nfx_spawn(NULL);
    struct nccl_group *g = NULL;
    ncclUniqueId id = nfx_mint(&peer);
    int rc = nccl_group_new(&g, &cfg, e);

    assert_true((rc == 0) == (g != NULL));
    if (rc == 0) {
        gfx_trainer_joins(&peer, id, 3, true);
        for (uint32_t i = 0; i < 2; i++)
            nfx_send(&peer, NBYTES, i);
        rc = nccl_group_open(g, &p, e);
        if (rc == 0)
            rc = nccl_group_join(g, gfx_id(&id), &p, e);
    }
    for (uint32_t i = 0; i < 2 && rc == 0; i++) {
        rc = gfx_receive(g, m->dst, NBYTES, &p, e);
        for (int r = 0; r < GFX_DEVICES && rc == 0; r++)
            assert_int_equal(nfx_n_wrong(m->dst[r], NBYTES, i, 0), 0);
    }
    assert_true((rc == 0) == (e->code == ERR_NONE));
    if (g != NULL) { /* no later than the error */
        assert_int_equal(nfx_counts().n_comms, rc == 0 ? 2 : 0);
        assert_int_equal(gfx_info(g).state, rc == 0 ? NCCL_GROUP_JOINED : NCCL_GROUP_FAILED);
    }
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    return rc;
}

static void test_each_nccl_call_fails(void **state)
{
    static const struct {
        const char *call;
        int n;          /* the first so many of them, one after the other */
        bool is_called; /* the message names it */
        bool can_be_async;
    } rows[] = {
        {"ncclGetVersion", 1, true, false},        {"ncclCommInitRankConfig", 2, true, true},
        {"ncclCommGetAsyncError", 8, true, false}, {"ncclAllReduce", 2, true, true},
        {"ncclBroadcast", 4, true, true},          {"ncclCommAbort", 2, false, false},
    };
    struct memory m = memory_new();

    (void)state;
    for (int async = 0; async <= 1; async++) {
        (void)setenv("FAKENCCL_FAIL_ASYNC", async ? "1" : "0", 1);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            for (int n = 1; n <= rows[i].n && (!async || rows[i].can_be_async); n++) {
                struct err e = {0};
                int rc;

                nfx.let_fail(rows[i].call, (uint64_t)n);
                rc = go_through(&m, &e);
                nfx.let_fail(NULL, 0);
                if ((rc != 0) != rows[i].is_called || (rc != 0 && e.code != ERR_NCCL) ||
                    (rc != 0 && strstr(e.msg, rows[i].call) == NULL))
                    fail_msg("%s, %d%s: %s", rows[i].call, n, async ? ", async" : "", e.msg);
                gfx_nothing_left_but_memory();
            }
        }
    }
    (void)unsetenv("FAKENCCL_FAIL_ASYNC");
    memory_drop(&m);
}

static void test_each_driver_call_fails(void **state)
{
    static const struct {
        const char *field, *call;
        int n;
        bool tells; /* a release has nobody to tell */
    } rows[] = {
        {"ctx_push_current", "cuCtxPushCurrent", 2, true},
        {"stream_create", "cuStreamCreate", 2, true},
        {"event_create", "cuEventCreate", 2, true},
        {"mem_alloc", "cuMemAlloc", 2, true},
        {"memcpy_htod_async", "cuMemcpyHtoDAsync", 2, true},
        {"event_record", "cuEventRecord", 6, true},
        {"event_query", "cuEventQuery", 6, true},
        {"mem_free", "", 2, false},
        {"stream_query", "", 2, false},
        {"event_destroy", "", 2, false},
        {"stream_destroy", "", 2, false},
        {"ctx_pop_current", "", 2, false},
    };
    struct memory m = memory_new();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int n = 1; n <= rows[i].n; n++) {
            struct err e = {0};
            int rc;

            gfx_told = rows[i].field;
            atomic_store(&gfx_nth, n);
            rc = go_through(&m, &e);
            gfx_told = NULL;
            if (atomic_load(&gfx_nth) > 0 || (rc != 0) != rows[i].tells ||
                (rc != 0 && (e.code != ERR_CUDA || strstr(e.msg, rows[i].call) == NULL)))
                fail_msg("%s, %d: %s", rows[i].field, n, e.msg);
            gfx_nothing_left_but_memory();
        }
    }
    memory_drop(&m);
}

static void test_new_without_memory_or_threads(void **state)
{
    struct memory m = memory_new();
    int rc = -1;

    (void)state;
    for (int n = 0; rc != 0; n++) {
        struct err e = {0};

        callocs_left = n;
        rc = go_through(&m, &e);
        callocs_left = -1;
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_NO_MEMORY);
        assert_true(n < 10);
    }
    for (int n = 0; n < 2; n++) {
        struct err e = {0};

        threads_left = n;
        assert_int_equal(go_through(&m, &e), -1);
        threads_left = -1;
        assert_int_equal(e.code, ERR_INTERNAL);
    }
    memory_drop(&m);
}

/* xorshift: the same points each time, as far as timing allows. */
static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % below;
}

/* How many calls, and how long, a round takes that nobody ends. */
struct course {
    uint64_t n_calls, us;
};

struct tally {
    unsigned n_whole, n_in_join, n_in_receive;
};

/* One life of a group that is ended somewhere; 4 broadcasts if it is not. */
static void live_once(const struct memory *m, const struct course *course, unsigned round,
                      uint64_t *seed, struct tally *tally)
{
    static void (*const acts[])(struct gfx_watch *) = {gfx_act_leave, gfx_act_stop, gfx_act_kill};
    bool by_deadline = round % 4 == 3;
    struct nfx_peer peer = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&peer);
    struct nccl_group *g = gfx_group(2, 1, true);
    struct progress p = gfx_within(by_deadline ? draw(seed, course->us + 1) : course->us * 4);
    struct gfx_watch w = {.when = gfx_when_calls,
                          .act = by_deadline ? NULL : acts[round % 4],
                          .g = g,
                          .p = &p,
                          .peer = &peer,
                          .n = nfx_counts().n_calls + draw(seed, course->n_calls + 1)};
    struct err e = {0};
    int rc;

    gfx_trainer_joins(&peer, id, 3, true);
    for (uint32_t i = 0; i < 4; i++)
        nfx_send(&peer, NBYTES / 4 * (i + 1), i);
    if (!by_deadline)
        gfx_watch_start(&w);
    rc = nccl_group_join(g, gfx_id(&id), &p, &e);
    tally->n_in_join += rc != 0;
    for (uint32_t i = 0; i < 4 && rc == 0; i++) {
        rc = gfx_receive(g, m->dst, NBYTES / 4 * (i + 1), &p, &e);
        tally->n_in_receive += rc != 0;
        for (int r = 0; r < GFX_DEVICES && rc == 0; r++)
            assert_int_equal(nfx_n_wrong(m->dst[r], NBYTES / 4 * (i + 1), i, 0), 0);
    }
    tally->n_whole += rc == 0;
    if (rc != 0 && e.code != ERR_CONFLICT && e.code != ERR_TIMEOUT)
        fail_msg("round %u: %s", round, e.msg);
    if (!by_deadline)
        gfx_watch_end(&w);
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    gfx_nothing_left_but_memory();
}

static void test_ends_at_random_points(void **state)
{
    struct memory m = memory_new();
    uint64_t began_us = clock_now_us(), n_calls = nfx_counts().n_calls, seed = 20240607;
    struct course course;
    struct tally tally = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(go_through(&m, &e), 0);
    course = (struct course){nfx_counts().n_calls - n_calls, clock_now_us() - began_us};
    for (unsigned round = 0; round < ROUNDS; round++)
        live_once(&m, &course, round, &seed, &tally);
    print_message("%u whole, %u ended in join, %u in receive\n", tally.n_whole, tally.n_in_join,
                  tally.n_in_receive);
    assert_int_equal(tally.n_whole + tally.n_in_join + tally.n_in_receive, ROUNDS);
    assert_true(tally.n_in_join > 0 && tally.n_in_receive > 0);
    memory_drop(&m);
}

/* Before anybody has been asked to come. What does not come back is STUCK. */
static void test_a_gpu_that_hangs(void **state)
{
    static const struct {
        const char *call;
        void (*act)(struct gfx_watch *w); /* NULL: the deadline comes */
        const char *msg;
    } rows[] = {
        {"stream_create", NULL, "the GPUs of the NCCL group did not respond before the deadline"},
        {"ctx_push_current", gfx_act_stop, "stopped while the NCCL group was joined"},
        {"event_create", gfx_act_leave, "left by a test"},
    };
    const struct nccl_group_cfg cfg = {.nccl = &nfx.nccl,
                                       .devices = gfx.devices,
                                       .n_ranks = 2,
                                       .world_size = 3,
                                       .rank_offset = 1,
                                       .abort_timeout_us = SOON_US};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct progress p = rows[i].act != NULL ? gfx_patient() : gfx_within(GFX_SECOND_US);
        struct gfx_watch w = {.when = gfx_when_hanging, .act = rows[i].act, .p = &p, .n = 2};
        struct nccl_group_info info;
        struct nccl_group *g = NULL;
        struct err e = {0};

        atomic_store(&gfx_hangs, rows[i].call);
        assert_int_equal(nccl_group_new(&g, &cfg, &e), 0);
        w.g = g;
        if (w.act != NULL)
            gfx_watch_start(&w);
        assert_int_equal(nccl_group_open(g, &p, &e), -1);
        assert_non_null(strstr(e.msg, rows[i].msg));
        if (w.act != NULL) {
            gfx_watch_end(&w);
            assert_int_equal(e.code, ERR_NCCL);
            assert_non_null(strstr(e.msg, "must be restarted"));
            nccl_group_end(g, &info);
            assert_int_equal(info.state, NCCL_GROUP_STUCK);
        }
        nccl_group_free(g);
        atomic_store(&gfx_hangs, NULL);
        NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
    }
}

/* All is quiet, but the GPU does not take back what it gave: the devices are in use. */
static void test_a_gpu_that_hangs_at_the_end(void **state)
{
    struct nccl_group_info info;
    struct nfx_peer peer;
    struct nccl_group *g;

    (void)state;
    gfx_abort_timeout_us = SOON_US;
    g = gfx_joined(&peer, NULL, 2, false);
    gfx_abort_timeout_us = 0;
    atomic_store(&gfx_hangs, "event_destroy");
    nccl_group_end(g, &info);
    assert_int_equal(info.state, NCCL_GROUP_STUCK);
    NFX_UNTIL(nfx_counts().n_comms == 0);
    NFX_UNTIL(atomic_load(&gfx_n_hanging) == 2);
    nccl_group_free(g);
    atomic_store(&gfx_hangs, NULL);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
    (void)nfx_end(&peer, true);
}

static void *run_free(void *arg)
{
    nccl_group_free(arg);
    return NULL;
}

/* The last of the tests: from here on no abort sticks any more. Three groups at once: one in a
 * receive, one that was left, one that is freed. */
static void test_an_abort_that_sticks_is_told(void **state)
{
    struct memory m = memory_new();
    struct nccl_group *in_receive, *left, *freed;
    struct nfx_peer peers[3];
    struct progress p;
    pthread_t thread;
    uint64_t began_us;
    struct err e = {0};

    (void)state;
    gfx.stuck = true;
    gfx_abort_timeout_us = ABORT_US;
    (void)setenv("FAKENCCL_ABORT_STICKS", "1", 1);
    in_receive = gfx_joined(&peers[0], NULL, 2, false);
    left = gfx_joined(&peers[1], NULL, 1, false);
    freed = gfx_joined(&peers[2], NULL, 1, false);
    (void)unsetenv("FAKENCCL_ABORT_STICKS");
    began_us = clock_now_us();
    nccl_group_leave(left, "left by a test");
    assert_int_equal(pthread_create(&thread, NULL, run_free, freed), 0);
    p = gfx_within(SOON_US);
    assert_int_equal(gfx_receive(in_receive, m.dst, NBYTES, &p, &e), -1);
    assert_true(clock_now_us() - began_us >= SOON_US + ABORT_US); /* it was given its time */
    assert_int_equal(e.code, ERR_NCCL);
    assert_string_equal(e.msg, "aborting the NCCL group did not end within 0.5 s and may never: "
                               "this server must be restarted; the cause was: a broadcast of "
                               "600000 bytes did not complete before the deadline");
    assert_int_equal(gfx_info(in_receive).state, NCCL_GROUP_STUCK);
    assert_string_equal(gfx_info(in_receive).error.msg, e.msg);
    assert_int_equal(gfx_info(left).state, NCCL_GROUP_STUCK); /* nobody waited there */
    assert_non_null(strstr(gfx_info(left).error.msg, "the cause was: left by a test"));
    nccl_group_free(in_receive); /* these do not wait for what is stuck */
    nccl_group_free(left);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(nfx_counts().n_comms, 4);
    nfx.release_aborts(); /* they come back to memory that is theirs */
    NFX_UNTIL(nfx_counts().n_comms == 0);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
    for (int i = 0; i < 3; i++)
        (void)nfx_end(&peers[i], true);
    memory_drop(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GFX_TEST(test_receive_ends_when_the_trainer_fails),
        GFX_TEST(test_receive_says_what_was_missing),
        GFX_TEST(test_receive_gives_up_when_asked),
        GFX_TEST(test_each_nccl_call_fails),
        GFX_TEST(test_each_driver_call_fails),
        GFX_TEST(test_new_without_memory_or_threads),
        GFX_TEST(test_ends_at_random_points),
        GFX_TEST(test_a_gpu_that_hangs),
        GFX_TEST(test_a_gpu_that_hangs_at_the_end),
        GFX_TEST(test_an_abort_that_sticks_is_told),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
