/* transport/nccl_group: joining and receiving, and every way in which a join does not come to its
 * end. What goes wrong later is in test_nccl_group_faults.c. */
#include "tests/unit/transport/group_fixture.h"

#include "transport/nccl/nccl_group_priv.h"

#define SUSPECTS "did all 2 ranks join, with the same world_size, the same NCCL (here 2.28.9)"

enum { SOON_US = 300 * 1000 };

static void receive(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes)
{
    struct progress p = gfx_patient();
    struct err e = {0};

    if (gfx_receive(g, dst, nbytes, &p, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(atomic_load(&p.nbytes_done), 0);
}

/* In order, with nothing lost between them, to every rank. */
static void broadcasts_to(uint32_t n_ranks, bool warm_up)
{
    static const uint64_t sizes[] = {1, 2, 255, 4096, (1 << 17) + 1, 1 << 20, 32 << 20, 3};
    enum { N = sizeof sizes / sizeof sizes[0] };
    uint64_t dst[GFX_DEVICES] = {0}, nbytes = 0;
    struct nfx_peer p;
    struct nccl_group *g = gfx_joined(&p, NULL, n_ranks, warm_up);
    struct nccl_group_info info;

    for (uint32_t i = 0; i < N; i++)
        nfx_send(&p, sizes[i], i);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t r = 0; r < n_ranks; r++)
            dst[r] = gfx_buffer((int)r, sizes[i] + 1);
        receive(g, dst, sizes[i]);
        for (uint32_t r = 0; r < n_ranks; r++) {
            assert_int_equal(nfx_n_wrong(dst[r], sizes[i], i, 0), 0);
            assert_int_equal(nfx_n_wrong(dst[r] + sizes[i], 1, GFX_SEED_BEFORE, sizes[i]), 0);
            gfx_drop(dst[r]);
        }
        assert_int_equal(nfx_hear(&p).result, ncclSuccess);
        nbytes += sizes[i];
    }
    info = gfx_info(g);
    assert_int_equal(info.state, NCCL_GROUP_JOINED);
    assert_int_equal(info.n_broadcasts, N);
    assert_int_equal(info.nbytes_received, nbytes);
    assert_int_equal(info.world_size, n_ranks + 1);
    assert_int_equal(info.rank_offset, 1);
    assert_int_equal(info.n_ranks, n_ranks);
    assert_int_equal(info.error.code, ERR_NONE);
    nccl_group_free(g);
    assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_ABORT}).result, ncclSuccess);
    assert_int_equal(nfx_end(&p, false), 0);
}

static void test_receive_brings_every_byte_to_every_rank(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 1; n_ranks <= GFX_DEVICES; n_ranks++)
        for (int warm_up = 0; warm_up <= 1; warm_up++)
            broadcasts_to(n_ranks, warm_up != 0);
}

/* Another server's rank between the trainer and ours, or behind them. */
static void test_receive_with_ranks_elsewhere(void **state)
{
    enum { NBYTES = 100000 };
    struct nfx_peer trainer = nfx_spawn(NULL), other = nfx_spawn(NULL);
    struct nccl_group *g = gfx_group(1, 2, true);
    struct progress p = gfx_patient();
    uint64_t dst = gfx_buffer(0, NBYTES);
    ncclUniqueId id = nfx_mint(&trainer);
    struct err e = {0};

    (void)state;
    gfx_trainer_joins(&trainer, id, 3, true);
    nfx_join(&other, 3, 2, id);
    nfx_tell(&other, (struct nfx_command){.what = NFX_WARM});
    assert_int_equal(nccl_group_join(g, gfx_id(&id), &p, &e), 0);
    nfx_send(&trainer, NBYTES, 5);
    nfx_send(&other, NBYTES, 5);
    receive(g, &dst, NBYTES);
    assert_int_equal(nfx_n_wrong(dst, NBYTES, 5, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(nfx_hear(&other).result, ncclSuccess);
    nccl_group_free(g);
    (void)nfx_end(&trainer, true);
    (void)nfx_end(&other, true);
    gfx_drop(dst);
}

/* As in NCCL: none of it reaches the trainer. */
static void test_receive_of_nothing_is_no_broadcast(void **state)
{
    uint64_t n = nfx_counts().n_broadcasts, dst = gfx_buffer(0, 10);
    struct nfx_peer p;
    struct nccl_group *g = gfx_joined(&p, NULL, 1, false);

    (void)state;
    receive(g, &dst, 0);
    assert_int_equal(nfx_counts().n_broadcasts, n);
    assert_int_equal(gfx_info(g).n_broadcasts, 0);
    nfx_send(&p, 10, 3);
    receive(g, &dst, 10);
    assert_int_equal(nfx_n_wrong(dst, 10, 3, 0), 0);
    nccl_group_free(g);
    (void)nfx_end(&p, true);
    gfx_drop(dst);
}

static size_t n_threads_named(const char *name)
{
    DIR *dir = opendir("/proc/self/task");
    char path[512], comm[32];
    struct dirent *entry;
    size_t n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        FILE *f;
        (void)snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        f = fopen(path, "re");
        if (f == NULL)
            continue;
        if (fgets(comm, sizeof comm, f) != NULL && strcspn(comm, "\n") == strlen(name) &&
            strncmp(comm, name, strlen(name)) == 0)
            n++;
        (void)fclose(f);
    }
    (void)closedir(dir);
    return n;
}

static void test_new_starts_named_threads_and_free_ends_them(void **state)
{
    struct nccl_group *g = gfx_group(2, 1, true);
    struct progress p = gfx_patient();
    uint64_t dst[2] = {1, 1};
    struct err e = {0};

    (void)state;
    assert_true(n_threads_named("nccl-0") > 0); /* a driver's threads inherit the name */
    assert_true(n_threads_named("nccl-1") > 0);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_JOINING);
    assert_string_equal(nccl_group_state_name(NCCL_GROUP_JOINING), "joining");
    assert_int_equal(gfx_receive(g, dst, 1, &p, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_string_equal(e.msg, "the NCCL group has not been joined yet");
    nccl_group_free(g);
    assert_int_equal(n_threads_named("nccl-0") + n_threads_named("nccl-1"), 0);
    nccl_group_free(NULL);
}

/* A failed join, until nothing of it is left. @world_size  the trainer's; 0: it does not come */
static void join_in_vain(const struct nfx_peer *peer, int world_size, uint64_t within_us,
                         struct err *e)
{
    struct nccl_group *g = gfx_group(1, 1, true);
    ncclUniqueId id = nfx_mint(peer);
    struct progress p;
    uint64_t dst = 1;
    struct err again = {0};

    if (world_size > 0)
        gfx_trainer_joins(peer, id, world_size, true);
    p = gfx_within(within_us);
    assert_int_equal(nccl_group_join(g, gfx_id(&id), &p, e), -1);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_FAILED);
    assert_string_equal(gfx_info(g).error.msg, e->msg);
    assert_int_equal(nfx_counts().n_comms, 0); /* before free */
    assert_int_equal(gfx_receive(g, &dst, 1, &p, &again), -1);
    assert_int_equal(again.code, ERR_CONFLICT);
    assert_non_null(strstr(again.msg, "the NCCL group has failed: "));
    err_clear(&again);
    assert_int_equal(nccl_group_join(g, gfx_id(&id), &p, &again), -1);
    assert_int_equal(again.code, ERR_CONFLICT);
    nccl_group_free(g);
}

static void test_join_ends_where_nccl_hangs(void **state)
{
    static const struct {
        const char *what, *env;
        int world_size; /* the trainer's */
    } rows[] = {
        {"the trainer does not come", NULL, 0},
        {"it has another world", NULL, 3},
        {"its NCCL_CUMEM_ENABLE differs", "NCCL_CUMEM_ENABLE=0", 2},
        {"its init hangs", "FAKENCCL_HANG_INIT=1", 2},
        {"it refuses", "FAKENCCL_REFUSE_JOIN=1", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nfx_peer p = nfx_spawn(rows[i].env);
        struct err e = {0};

        join_in_vain(&p, rows[i].world_size, SOON_US, &e);
        if (e.code != ERR_TIMEOUT || strstr(e.msg, SUSPECTS) == NULL ||
            strstr(e.msg, "NCCL_CUMEM_ENABLE (here not set)?") == NULL)
            fail_msg("%s: %s", rows[i].what, e.msg);
        (void)nfx_end(&p, true);
    }
}

struct warm_up {
    const struct nccl_group *g;
    struct progress *p;
};

/* Asked by the thread that joins, as is the deadline: this comes as soon as the sum is waited for.
 */
static bool expire_in_warm_up(void *arg)
{
    struct warm_up *w = arg;

    if (w->g->what == REQUEST_WARM_UP)
        w->p->deadline_us = clock_now_us();
    return false;
}

/* It joins, and then does not take part in the sum: vLLM's do, torch's do not. */
static void test_join_ends_where_no_warm_up_comes(void **state)
{
    struct nccl_group *g = gfx_group(2, 1, true);
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    struct progress wait = gfx_patient();
    struct warm_up w = {g, &wait};
    struct err e = {0};

    (void)state;
    wait.gone = expire_in_warm_up;
    wait.gone_arg = &w;
    gfx_trainer_joins(&p, id, 3, false);
    assert_int_equal(nccl_group_join(g, gfx_id(&id), &wait, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "the warm-up of the NCCL group did not complete"));
    nccl_group_free(g);
    (void)nfx_end(&p, true);
}

static void test_join_tells_both_versions(void **state)
{
    struct nfx_peer p = nfx_spawn("FAKENCCL_VERSION=22803");
    struct err e = {0};

    (void)state;
    join_in_vain(&p, 2, (uint64_t)NFX_PATIENCE_S * GFX_SECOND_US, &e);
    assert_int_equal(e.code, ERR_NCCL);
    assert_non_null(strstr(e.msg, "rank 1 of 2 (cuda:0, NCCL 2.28.9): "));
    assert_non_null(strstr(e.msg, "rank 0 version 22803 rank 1 version 22809"));
    (void)nfx_end(&p, true);
}

/* An id whose process is gone, which NCCL tries again and again; and one that is none. */
static void test_join_of_nobody(void **state)
{
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);

    (void)state;
    (void)nfx_end(&p, true);
    for (int i = 0; i < 2; i++) {
        struct nccl_group *g = gfx_group(2, 1, false);
        struct progress wait = i == 0 ? gfx_within(SOON_US) : gfx_patient();
        struct err e = {0};

        assert_int_equal(nccl_group_join(g, gfx_id(&id), &wait, &e), -1);
        assert_int_equal(e.code, i == 0 ? ERR_TIMEOUT : ERR_NCCL);
        nccl_group_free(g);
        memset(&id, 0xaa, sizeof id);
    }
}

static bool is_gone(void *arg)
{
    (void)arg;
    return nfx_counts().n_comms == 2; /* every rank is in NCCL's init */
}

/* Each in the middle of a join that would never end. */
static void test_join_gives_up_when_asked(void **state)
{
    static const struct {
        void (*act)(struct gfx_watch *w);
        enum err_code code;
        const char *msg;
    } rows[] = {
        {gfx_act_stop, ERR_CONFLICT, "stopped while the NCCL group was joined"},
        {gfx_act_leave, ERR_CONFLICT, "left by a test"},
        {NULL, ERR_GONE, "the client disconnected while the NCCL group was joined"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nccl_group *g = gfx_group(2, 1, false);
        struct nfx_peer peer = nfx_spawn(NULL);
        ncclUniqueId id = nfx_mint(&peer);
        struct progress p = gfx_patient();
        struct gfx_watch w = {.when = gfx_when_comms, .act = rows[i].act, .g = g, .p = &p, .n = 2};
        struct err e = {0};

        if (rows[i].act != NULL)
            gfx_watch_start(&w);
        else
            p.gone = is_gone;
        assert_int_equal(nccl_group_join(g, gfx_id(&id), &p, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        assert_string_equal(e.msg, rows[i].msg);
        assert_int_equal(nfx_counts().n_comms, 0);
        if (rows[i].act != NULL)
            gfx_watch_end(&w);
        nccl_group_free(g);
        (void)nfx_end(&peer, true);
    }
}

/* The first cause stays, and nothing is waited for. */
static void test_leave_at_any_time(void **state)
{
    struct nccl_group *g = gfx_group(2, 1, false);
    struct progress p = gfx_patient();
    uint8_t id[NCCL_ID_NBYTES] = {0};
    struct nfx_peer peer;
    struct err e = {0};

    (void)state;
    nccl_group_leave(g, "before it began");
    nccl_group_leave(g, "and again");
    assert_int_equal(nccl_group_join(g, id, &p, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_string_equal(e.msg, "the NCCL group has failed: before it began");
    nccl_group_free(g);
    g = gfx_joined(&peer, NULL, 2, true);
    nccl_group_leave(g, "while nothing happened");
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_FAILED);
    assert_string_equal(gfx_info(g).error.msg, "while nothing happened");
    NFX_UNTIL(nfx_counts().n_comms == 0); /* without free, or anybody's waiting */
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
}

static void test_join_only_once(void **state)
{
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 1, false);
    struct progress p = gfx_patient();
    uint8_t id[NCCL_ID_NBYTES] = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(nccl_group_join(g, id, &p, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_JOINED);
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GFX_TEST(test_receive_brings_every_byte_to_every_rank),
        GFX_TEST(test_receive_with_ranks_elsewhere),
        GFX_TEST(test_receive_of_nothing_is_no_broadcast),
        GFX_TEST(test_new_starts_named_threads_and_free_ends_them),
        GFX_TEST(test_join_ends_where_nccl_hangs),
        GFX_TEST(test_join_ends_where_no_warm_up_comes),
        GFX_TEST(test_join_tells_both_versions),
        GFX_TEST(test_join_of_nobody),
        GFX_TEST(test_join_gives_up_when_asked),
        GFX_TEST(test_leave_at_any_time),
        GFX_TEST(test_join_only_once),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
