/* transport/nccl_group, with several broadcasts under way: each rank enters the next while the one
 * before it has not come, and whatever ends one of them ends all. */
#include "tests/unit/transport/group_fixture.h"

#include "transport/nccl/nccl_group_priv.h"

enum {
    AHEAD = 10,
    NBYTES = 100000, /* of each of them */
    TINY_N = 5000,
    SOON_US = 300 * 1000,
    ABORT_US = 500 * 1000,
    ROUNDS = 30
};

/* AHEAD places on each rank, of NBYTES. */
struct memory {
    uint64_t dst[GFX_DEVICES];
};

static struct memory memory_new(void)
{
    struct memory m;

    for (int i = 0; i < GFX_DEVICES; i++)
        m.dst[i] = gfx_buffer(i, (uint64_t)AHEAD * NBYTES);
    return m;
}

static void memory_drop(const struct memory *m)
{
    for (int i = 0; i < GFX_DEVICES; i++)
        gfx_drop(m->dst[i]);
}

/* What is written there now stays, whatever the trainer does until it is ended. */
static void check_nothing_writes(const struct memory *m, struct nfx_peer *peer)
{
    uint64_t nbytes = (uint64_t)AHEAD * NBYTES;
    uint8_t *bytes = malloc(nbytes);

    assert_non_null(bytes);
    for (uint64_t i = 0; i < nbytes; i++)
        bytes[i] = nfx_byte(9, i);
    for (int i = 0; i < GFX_DEVICES; i++)
        assert_int_equal(nfx.cu.memcpy_htod(m->dst[i], bytes, nbytes), CUDA_SUCCESS);
    (void)nfx_end(peer, true);
    for (int i = 0; i < GFX_DEVICES; i++)
        assert_int_equal(nfx_n_wrong(m->dst[i], nbytes, 9, 0), 0);
    free(bytes);
}

/* Place i of all. */
static int post(struct nccl_group *g, const struct memory *m, uint32_t i, struct err *e)
{
    uint64_t dst[GFX_DEVICES];

    for (int r = 0; r < GFX_DEVICES; r++)
        dst[r] = m->dst[r] + (uint64_t)i * NBYTES;
    return nccl_group_post(g, dst, NBYTES, e);
}

static void post_all(struct nccl_group *g, const struct memory *m)
{
    struct err e = {0};

    for (uint32_t i = 0; i < AHEAD; i++)
        if (post(g, m, i, &e) != 0)
            fail_msg("%s", e.msg);
}

static void check_came(const struct memory *m, uint32_t i)
{
    for (int r = 0; r < GFX_DEVICES; r++)
        assert_int_equal(nfx_n_wrong(m->dst[r] + (uint64_t)i * NBYTES, NBYTES, i, 0), 0);
}

/* The first opens the links, which needs both sides; then all others are on the streams, and it is
 * the trainer who is waited for. */
static void test_all_are_entered_before_the_first_has_come(void **state)
{
    struct memory m = memory_new();
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, true);
    struct progress p = gfx_patient();
    struct err e = {0};

    (void)state;
    post_all(g, &m);
    nfx_send(&peer, NBYTES, 0);
    assert_int_equal(nccl_group_receive(g, &p, &e), 0);
    check_came(&m, 0);
    NFX_UNTIL(nfx.n_queued() == 2 * (AHEAD - 1));
    for (uint32_t i = 1; i < AHEAD; i++) {
        assert_int_equal(gfx_info(g).n_broadcasts, i);
        nfx_send(&peer, NBYTES, i);
        assert_int_equal(nccl_group_receive(g, &p, &e), 0);
        check_came(&m, i);
        assert_int_equal(nfx.n_queued(), 2 * (AHEAD - 1 - i));
    }
    assert_int_equal(gfx_info(g).nbytes_received, AHEAD * NBYTES);
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    memory_drop(&m);
}

/* More than there is room for in the ring, of every small size, nothing among them; handed over in
 * their order. The trainer is told one at a time: what it is told lies in a pipe. */
static void test_thousands_of_tiny_ones(void **state)
{
    uint64_t base[GFX_DEVICES], at = 0, came = 0;
    struct nfx_peer peer;
    struct nccl_group *g;
    struct progress p = gfx_patient();
    uint32_t n_received = 0, n_sent = 0;
    struct err e = {0};

    (void)state;
    for (int r = 0; r < GFX_DEVICES; r++)
        base[r] = gfx_buffer(r, (uint64_t)TINY_N * 7);
    g = gfx_joined(&peer, NULL, 2, false);
    for (uint32_t i = 0; i < TINY_N + SOURCE_POSTED_MAX; i++) {
        uint64_t dst[GFX_DEVICES] = {base[0] + at, base[1] + at};

        if (i < TINY_N) {
            assert_int_equal(nccl_group_post(g, dst, i % 7, &e), 0);
            if (i % 7 > 0) {
                nfx_send(&peer, i % 7, i);
                n_sent++;
            }
            at += i % 7;
        }
        if (i + 1 < SOURCE_POSTED_MAX || n_received == TINY_N)
            continue;
        if (nccl_group_receive(g, &p, &e) != 0)
            fail_msg("%u: %s", (unsigned)n_received, e.msg);
        for (int r = 0; r < GFX_DEVICES && n_received % 7 > 0; r++)
            assert_int_equal(nfx_n_wrong(base[r] + came, n_received % 7, n_received, 0), 0);
        if (n_received % 7 > 0)
            assert_int_equal(nfx_hear(&peer).result, ncclSuccess);
        came += n_received++ % 7;
    }
    assert_int_equal(n_received, TINY_N);
    assert_int_equal(gfx_info(g).n_broadcasts, n_sent);
    assert_int_equal(gfx_info(g).nbytes_received, at);
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    for (int r = 0; r < GFX_DEVICES; r++)
        gfx_drop(base[r]);
}

/* The trainer stalls, or dies, in any of them: what had come is received, the next tells why, and
 * then nothing writes to any of the rest. */
static void stall_in(uint32_t at, bool sockets)
{
    struct memory m = memory_new();
    char env[64];
    struct nfx_peer peer;
    struct nccl_group *g;
    struct progress p = gfx_patient();
    struct err e = {0}, again = {0};

    (void)snprintf(env, sizeof env, "FAKENCCL_%s_AFTER_BYTES=%u", sockets ? "DIE" : "STALL",
                   (unsigned)(at * NBYTES + NBYTES / 2));
    (void)setenv("FAKENCCL_TRANSPORT", sockets ? "socket" : "p2p", 1);
    g = gfx_joined(&peer, env, 2, false);
    (void)unsetenv("FAKENCCL_TRANSPORT");
    post_all(g, &m);
    for (uint32_t i = 0; i <= at; i++)
        nfx_send(&peer, NBYTES, i);
    for (uint32_t i = 0; i < at && !sockets; i++) {
        if (nccl_group_receive(g, &p, &e) != 0)
            fail_msg("%s", e.msg);
        check_came(&m, i);
    }
    p = sockets ? gfx_patient() : gfx_within(SOON_US);
    while (nccl_group_receive(g, &p, &e) == 0) /* a peer that is gone is seen at any time */
        assert_true(sockets && gfx_info(g).n_broadcasts <= at);
    assert_int_equal(e.code, sockets ? ERR_NCCL : ERR_TIMEOUT);
    assert_int_equal(nfx_counts().n_comms, 0);
    assert_int_equal(nfx.n_queued(), 0);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_FAILED);
    assert_int_equal(post(g, &m, 0, &again), -1);
    assert_int_equal(again.code, ERR_CONFLICT);
    assert_non_null(strstr(again.msg, "the NCCL group has failed: "));
    check_nothing_writes(&m, &peer);
    nccl_group_free(g);
    memory_drop(&m);
}

static void test_any_of_them_may_not_come(void **state)
{
    static const uint32_t rows[] = {0, 1, AHEAD / 2, AHEAD - 1};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int sockets = 0; sockets < 2; sockets++)
            stall_in(rows[i], sockets != 0);
}

/* Left while all are under way, and nobody waits: whoever posts next is told why, when nothing
 * writes any more. Later ones are refused. */
static void test_post_tells_of_a_failure(void **state)
{
    struct memory m = memory_new();
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, "FAKENCCL_STALL_AFTER_BYTES=1000", 2, false);
    struct err e = {0}, again = {0};

    (void)state;
    nfx_send(&peer, NBYTES, 0);
    post_all(g, &m);
    NFX_UNTIL(nfx.n_queued() == 2 * AHEAD);
    nccl_group_leave(g, "left by a test");
    assert_int_equal(post(g, &m, 0, &e), -1);
    assert_string_equal(e.msg, "left by a test");
    assert_int_equal(nfx_counts().n_comms, 0);
    assert_int_equal(nfx.n_queued(), 0);
    assert_int_equal(post(g, &m, 0, &again), -1);
    assert_string_equal(again.msg, "the NCCL group has failed: left by a test");
    check_nothing_writes(&m, &peer);
    nccl_group_free(g);
    memory_drop(&m);
}

/* What came before the group failed has come. */
static void test_what_had_come_is_received_after_a_failure(void **state)
{
    struct memory m = memory_new();
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
    struct progress p = gfx_patient();
    struct err e = {0};

    (void)state;
    post_all(g, &m);
    for (uint32_t i = 0; i < 3; i++)
        nfx_send(&peer, NBYTES, i);
    NFX_UNTIL(atomic_load(&g->n_landed) == 3);
    nccl_group_leave(g, "left by a test");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(nccl_group_receive(g, &p, &e), 0);
        check_came(&m, i);
    }
    assert_int_equal(nccl_group_receive(g, &p, &e), -1);
    assert_string_equal(e.msg, "left by a test");
    assert_int_equal(gfx_info(g).n_broadcasts, 3);
    assert_int_equal(gfx_info(g).nbytes_received, 3 * NBYTES);
    check_nothing_writes(&m, &peer);
    nccl_group_free(g);
    memory_drop(&m);
}

/* All are posted, and some received; the error is the first cause. Returns how many came. */
static uint32_t receive_all(struct nccl_group *g, const struct memory *m, const struct progress *p,
                            struct err *e)
{
    uint32_t n = 0, n_posted = 0;

    while (n < AHEAD && e->code == ERR_NONE) {
        if (n_posted < AHEAD && post(g, m, n_posted, e) == 0) {
            n_posted++;
        } else if (e->code == ERR_NONE && nccl_group_receive(g, p, e) == 0) {
            check_came(m, n);
            n++;
        }
    }
    assert_true((n == AHEAD) == (e->code == ERR_NONE));
    return n;
}

/* One group, of which the nth call of that name fails; how many came. */
static uint32_t live_until(const struct memory *m, const char *call, bool of_driver, int nth,
                           struct err *e)
{
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
    struct progress p = gfx_patient();
    uint32_t n;

    if (of_driver) {
        atomic_store(&gfx_nth, nth);
        gfx_told = call;
    } else {
        nfx.let_fail(call, (uint64_t)nth);
    }
    for (uint32_t i = 0; i < AHEAD; i++)
        nfx_send(&peer, NBYTES, i);
    n = receive_all(g, m, &p, e);
    gfx_told = NULL;
    nfx.let_fail(NULL, 0);
    assert_int_equal(gfx_info(g).n_broadcasts, n);
    assert_int_equal(gfx_info(g).state, n == AHEAD ? NCCL_GROUP_JOINED : NCCL_GROUP_FAILED);
    assert_int_equal(nfx_counts().n_comms, n == AHEAD ? 2 : 0);
    if (n < AHEAD)
        check_nothing_writes(m, &peer);
    else
        (void)nfx_end(&peer, true);
    nccl_group_free(g);
    gfx_nothing_left_but_memory();
    return n;
}

static void test_each_call_fails(void **state)
{
    static const struct {
        const char *call, *told;
        bool of_driver;
    } rows[] = {
        {"ncclBroadcast", "ncclBroadcast", false},
        {"ncclCommGetAsyncError", "ncclCommGetAsyncError", false},
        {"event_record", "cuEventRecord", true},
        {"event_query", "cuEventQuery", true},
    };
    struct memory m = memory_new();

    (void)state;
    for (int async = 0; async < 2; async++) {
        (void)setenv("FAKENCCL_FAIL_ASYNC", async ? "1" : "0", 1);
        for (size_t i = 0; i < (async ? 1 : sizeof rows / sizeof rows[0]); i++) {
            for (int nth = 1; nth <= 2 * AHEAD; nth += 3) {
                struct err e = {0};

                (void)live_until(&m, rows[i].call, rows[i].of_driver, nth, &e);
                if (e.code != (rows[i].of_driver ? ERR_CUDA : ERR_NCCL) ||
                    strstr(e.msg, rows[i].told) == NULL)
                    fail_msg("%s, %d: %s", rows[i].call, nth, e.msg);
            }
        }
    }
    (void)unsetenv("FAKENCCL_FAIL_ASYNC");
    memory_drop(&m);
}

/* Every one of the events that a rank needs. */
static void test_open_without_an_event(void **state)
{
    const struct nccl_group_cfg cfg = {
        .nccl = &nfx.nccl, .devices = gfx.devices, .n_ranks = 2, .world_size = 3, .rank_offset = 1};
    int rc = -1;

    (void)state;
    for (int nth = 1; rc != 0; nth++) {
        struct nccl_group *g = NULL;
        struct progress p = gfx_patient();
        struct err e = {0};

        gfx_told = "event_create";
        atomic_store(&gfx_nth, nth);
        assert_int_equal(nccl_group_new(&g, &cfg, &e), 0);
        rc = nccl_group_open(g, &p, &e);
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_CUDA);
        assert_true((rc == 0) == (nth > 2 * SOURCE_POSTED_MAX));
        nccl_group_free(g);
        gfx_told = NULL;
        gfx_nothing_left_but_memory();
    }
}

/* xorshift: the same points each time, as far as timing allows. */
static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % below;
}

/* Left, stopped, or its trainer killed, when so many bytes have moved. */
static void test_ends_at_random_points(void **state)
{
    static void (*const acts[])(struct gfx_watch *) = {gfx_act_leave, gfx_act_stop, gfx_act_kill};
    struct memory m = memory_new();
    uint64_t seed = 20260713;
    unsigned n_whole = 0, n_came = 0;

    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool kills = round % 3 == 2;
        struct nfx_peer peer;
        struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
        struct progress p = kills ? gfx_within(SOON_US) : gfx_patient();
        struct gfx_watch w = {.when = gfx_when_nbytes,
                              .act = acts[round % 3],
                              .g = g,
                              .p = &p,
                              .peer = &peer,
                              .n = nfx_counts().nbytes + draw(&seed, 2 * (AHEAD - 1) * NBYTES)};
        struct err e = {0};
        uint32_t n;

        gfx_watch_start(&w);
        for (uint32_t i = 0; i < AHEAD - 1; i++) /* the last never comes */
            nfx_send(&peer, NBYTES, i);
        n = receive_all(g, &m, &p, &e);
        gfx_watch_end(&w);
        n_whole += n == AHEAD - 1;
        n_came += n;
        if (e.code != (kills ? ERR_TIMEOUT : ERR_CONFLICT))
            fail_msg("round %u: %s", round, e.msg);
        assert_int_equal(nfx.n_queued(), 0);
        check_nothing_writes(&m, &peer);
        nccl_group_free(g);
        gfx_nothing_left_but_memory();
    }
    print_message("%u came before %u ends, all in %u\n", n_came, (unsigned)ROUNDS, n_whole);
    assert_true(n_came > 0 && n_whole < ROUNDS);
    memory_drop(&m);
}

/* The last of the tests: from here on no abort sticks any more. */
static void test_an_abort_that_sticks_is_told_once(void **state)
{
    struct memory m = memory_new();
    struct nfx_peer peer;
    struct nccl_group *g;
    struct progress p;
    struct err e = {0}, again = {0};

    (void)state;
    gfx.stuck = true;
    gfx_abort_timeout_us = ABORT_US;
    (void)setenv("FAKENCCL_ABORT_STICKS", "1", 1);
    g = gfx_joined(&peer, "FAKENCCL_STALL_AFTER_BYTES=150000", 2, false);
    (void)unsetenv("FAKENCCL_ABORT_STICKS");
    post_all(g, &m);
    for (uint32_t i = 0; i < 2; i++)
        nfx_send(&peer, NBYTES, i);
    p = gfx_patient();
    assert_int_equal(nccl_group_receive(g, &p, &e), 0);
    check_came(&m, 0);
    p = gfx_within(SOON_US);
    assert_int_equal(nccl_group_receive(g, &p, &e), -1);
    assert_non_null(
        strstr(e.msg, "must be restarted; the cause was: a broadcast of 100000 bytes "));
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_STUCK);
    assert_int_equal(post(g, &m, 0, &again), -1);
    assert_int_equal(again.code, ERR_CONFLICT);
    nccl_group_free(g);
    assert_int_equal(nfx_counts().n_comms, 2);
    nfx.release_aborts();
    NFX_UNTIL(nfx_counts().n_comms == 0);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
    (void)nfx_end(&peer, true);
    memory_drop(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GFX_TEST(test_all_are_entered_before_the_first_has_come),
        GFX_TEST(test_thousands_of_tiny_ones),
        GFX_TEST(test_any_of_them_may_not_come),
        GFX_TEST(test_post_tells_of_a_failure),
        GFX_TEST(test_what_had_come_is_received_after_a_failure),
        GFX_TEST(test_each_call_fails),
        GFX_TEST(test_open_without_an_event),
        GFX_TEST(test_ends_at_random_points),
        GFX_TEST(test_an_abort_that_sticks_is_told_once),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
