/* Groups of this process's devices with a trainer in another (nccl_fixture.h), over a driver whose
 * calls can be told to fail by name. After each test nothing is left. */
#ifndef BATON_TESTS_UNIT_TRANSPORT_GROUP_FIXTURE_H
#define BATON_TESTS_UNIT_TRANSPORT_GROUP_FIXTURE_H

#include "tests/unit/nccl_fixture.h"

#include "base/clock.h"
#include "base/log.h"
#include "transport/nccl/nccl_group.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { GFX_DEVICES = 2, GFX_SECOND_US = 1000000, GFX_SEED_BEFORE = 77 };

/* Row: field, arguments, how they are passed on, is it a release (which is done all the same). */
#define GFX_CALLS(X)                                                                               \
    X(ctx_push_current, (CUcontext ctx), (ctx), false)                                             \
    X(ctx_pop_current, (CUcontext * ctx), (ctx), true)                                             \
    X(stream_create, (CUstream * stream, unsigned flags), (stream, flags), false)                  \
    X(stream_destroy, (CUstream stream), (stream), true)                                           \
    X(stream_query, (CUstream stream), (stream), false)                                            \
    X(event_create, (CUevent * event, unsigned flags), (event, flags), false)                      \
    X(event_destroy, (CUevent event), (event), true)                                               \
    X(event_record, (CUevent event, CUstream stream), (event, stream), false)                      \
    X(event_query, (CUevent event), (event), false)                                                \
    X(mem_alloc, (CUdeviceptr * dev, size_t nbytes), (dev, nbytes), false)                         \
    X(mem_free, (CUdeviceptr dev), (dev), true)                                                    \
    X(memcpy_htod_async, (CUdeviceptr dst, const void *src, size_t nbytes, CUstream stream),       \
      (dst, src, nbytes, stream), false)

/* The nth call of that field fails. */
static _Atomic(const char *) gfx_told;
static atomic_int gfx_nth;

static inline bool gfx_strikes(const char *field)
{
    const char *told = atomic_load(&gfx_told);

    return told != NULL && strcmp(told, field) == 0 && atomic_fetch_sub(&gfx_nth, 1) == 1;
}

/* While it is set, calls of that field do not come back, as of a GPU that hangs. */
static _Atomic(const char *) gfx_hangs;
static atomic_uint gfx_n_hanging;

static inline void gfx_hang(const char *field)
{
    const struct timespec pause = {0, 1000000};
    const char *which;

    if ((which = atomic_load(&gfx_hangs)) == NULL || strcmp(which, field) != 0)
        return;
    atomic_fetch_add(&gfx_n_hanging, 1);
    while (atomic_load(&gfx_hangs) != NULL)
        (void)nanosleep(&pause, NULL);
    atomic_fetch_sub(&gfx_n_hanging, 1);
}

#define X(field, args, pass, release)                                                              \
    static inline CUresult gfx_##field args                                                        \
    {                                                                                              \
        CUresult result = CUDA_ERROR_UNKNOWN;                                                      \
        bool strikes = gfx_strikes(#field);                                                        \
        gfx_hang(#field);                                                                          \
        if (release || !strikes)                                                                   \
            result = nfx.cu.field pass;                                                            \
        return strikes ? CUDA_ERROR_UNKNOWN : result;                                              \
    }
GFX_CALLS(X)
#undef X

struct gfx {
    struct cu_api cu; /* the driver, that fails when told */
    struct device *devices[GFX_DEVICES];
    fakecuda_counts_fn *cuda_counts;
    bool stuck;                  /* a group was: the devices are in use to the end of the process */
    struct fakecuda_counts cuda; /* before the test, and so are those below */
    struct fakenccl_counts nccl;
    size_t n_fds, n_threads;
};

static struct gfx gfx;

static inline size_t gfx_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    assert_int_equal(closedir(dir), 0);
    return n;
}

static inline int gfx_open(void **state)
{
    struct cuda_device about[CUDA_DEVICES_MAX];
    struct err e = {0};
    size_t n;

    (void)state;
    if (!nfx_open() || !nfx_bind(nfx.cu.lib, &gfx.cuda_counts, "fakecuda_counts") ||
        cuda_devices(&nfx.cu, about, &n, &e) != 0 || n != GFX_DEVICES)
        return -1;
    gfx.cu = nfx.cu;
#define X(field, args, pass, release) gfx.cu.field = gfx_##field;
    GFX_CALLS(X)
#undef X
    for (int i = 0; i < GFX_DEVICES; i++)
        if (device_new(&gfx.devices[i], &gfx.cu, &about[i], &e) != 0)
            return -1;
    return 0;
}

static inline int gfx_close(void **state)
{
    (void)state;
    for (int i = 0; i < GFX_DEVICES && !gfx.stuck; i++)
        device_free(gfx.devices[i]);
    if (!gfx.stuck)
        nfx_close();
    return 0;
}

static inline int gfx_begin(void **state)
{
    (void)state;
    gfx.cuda_counts(&gfx.cuda);
    gfx.nccl = nfx_counts();
    gfx.n_fds = gfx_entries("/proc/self/fd");
    gfx.n_threads = gfx_entries("/proc/self/task");
    return 0;
}

/* But for what the test holds itself. Threads that have ended may be seen a little longer. */
static inline void gfx_nothing_left_but_memory(void)
{
    struct fakecuda_counts cuda;
    struct fakenccl_counts nccl = nfx_counts();

    gfx.cuda_counts(&cuda);
    assert_int_equal(cuda.n_streams, gfx.cuda.n_streams);
    assert_int_equal(cuda.n_events, gfx.cuda.n_events);
    assert_int_equal(nccl.n_comms, 0);
    assert_int_equal(nccl.n_jobs, 0);
    assert_int_equal(nccl.n_sockets, gfx.nccl.n_sockets);
    assert_int_equal(nccl.n_hung, 0);
    assert_int_equal(nccl.n_races, 0);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
}

static inline void gfx_nothing_left(void)
{
    struct fakecuda_counts cuda;

    gfx_nothing_left_but_memory();
    gfx.cuda_counts(&cuda);
    assert_int_equal(cuda.n_allocations, gfx.cuda.n_allocations);
    assert_int_equal(cuda.nbytes, gfx.cuda.nbytes);
    assert_int_equal(gfx_entries("/proc/self/fd"), gfx.n_fds);
}

static inline int gfx_end(void **state)
{
    (void)state;
    gfx_nothing_left();
    return 0;
}

#define GFX_TEST(name) cmocka_unit_test_setup_teardown(name, gfx_begin, gfx_end)

/* A thread that was left to itself is buried by the next one to end, under locks of libc's that the
 * sanitizer does not see. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:_dl_deallocate_tls\n";
}

/* Runs them, or the other process. */
static inline int gfx_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    struct err e = {0};
    int n_failed;

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "peer") == 0)
        return nfx_peer_main();
    if (log_open(STDERR_FILENO, LOG_ERROR + 1, &e) != 0)
        return 1;
    n_failed = _cmocka_run_group_tests("nccl", tests, n, gfx_open, gfx_close);
    log_close();
    return n_failed;
}

/* Memory on device i with the bytes of a seed that no trainer sends. */
static inline uint64_t gfx_buffer(int i, uint64_t nbytes)
{
    CUdeviceptr dev = 0;
    CUcontext was;

    assert_int_equal(nfx.cu.ctx_push_current(nfx.ctx[i]), CUDA_SUCCESS);
    assert_true(nfx_fill(&dev, nbytes, GFX_SEED_BEFORE));
    assert_int_equal(nfx.cu.ctx_pop_current(&was), CUDA_SUCCESS);
    return dev;
}

static inline void gfx_drop(uint64_t dev)
{
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
}

static inline struct progress gfx_within(uint64_t us)
{
    struct progress p = {0};

    p.deadline_us = clock_after_us(us);
    return p;
}

static inline struct progress gfx_patient(void)
{
    return gfx_within((uint64_t)NFX_PATIENCE_S * GFX_SECOND_US);
}

/* Of the groups that are made from now on; 0: the product's. */
static uint64_t gfx_abort_timeout_us;

/* Ranks 1 and on of a world that has `n_others` ranks elsewhere. */
static inline struct nccl_group *gfx_group(uint32_t n_ranks, uint32_t n_others, bool warm_up)
{
    const struct nccl_group_cfg cfg = {.nccl = &nfx.nccl,
                                       .devices = gfx.devices,
                                       .n_ranks = n_ranks,
                                       .world_size = n_ranks + n_others,
                                       .rank_offset = 1,
                                       .warm_up = warm_up,
                                       .abort_timeout_us = gfx_abort_timeout_us};
    struct progress wait = gfx_patient();
    struct nccl_group *g = NULL;
    struct err e = {0};

    if (nccl_group_new(&g, &cfg, &e) != 0 || nccl_group_open(g, &wait, &e) != 0)
        fail_msg("%s", e.msg);
    return g;
}

static inline const uint8_t *gfx_id(const ncclUniqueId *id)
{
    return (const uint8_t *)id->internal;
}

/* The trainer: rank 0 of that world. What it answers is heard later. */
static inline void gfx_trainer_joins(const struct nfx_peer *p, ncclUniqueId id, int world_size,
                                     bool warm_up)
{
    nfx_join(p, world_size, 0, id);
    if (warm_up)
        nfx_tell(p, (struct nfx_command){.what = NFX_WARM});
}

/* A trainer, and a group that has joined it. */
static inline struct nccl_group *gfx_joined(struct nfx_peer *p, const char *env, uint32_t n_ranks,
                                            bool warm_up)
{
    struct nccl_group *g = gfx_group(n_ranks, 1, warm_up);
    struct progress wait = gfx_patient();
    struct err e = {0};
    ncclUniqueId id;

    *p = nfx_spawn(env);
    id = nfx_mint(p);
    gfx_trainer_joins(p, id, (int)n_ranks + 1, warm_up);
    if (nccl_group_join(g, gfx_id(&id), &wait, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(nfx_hear(p).result, ncclSuccess);
    if (warm_up) {
        struct nfx_answer a = nfx_hear(p);
        assert_int_equal(a.result, ncclSuccess);
        assert_true(a.sum == 1.0F); /* ours are 0 */
    }
    return g;
}

/* One broadcast, waited for. */
static inline int gfx_receive(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes,
                              const struct progress *p, struct err *e)
{
    if (nccl_group_post(g, dst, nbytes, e) != 0)
        return -1;
    return nccl_group_receive(g, p, e);
}

static inline struct nccl_group_info gfx_info(struct nccl_group *g)
{
    struct nccl_group_info info;

    nccl_group_info(g, &info);
    return info;
}

/* Leaves, stops or kills as soon as a condition holds, from a thread of its own. */
struct gfx_watch {
    bool (*when)(const struct gfx_watch *w);
    void (*act)(struct gfx_watch *w);
    struct nccl_group *g;
    struct progress *p;
    struct nfx_peer *peer;
    uint64_t n; /* for `when` */
    atomic_bool quit;
    pthread_t thread;
};

static inline void *gfx_watch_main(void *arg)
{
    struct gfx_watch *w = arg;

    while (!atomic_load(&w->quit)) {
        if (w->when(w)) {
            w->act(w);
            break;
        }
        (void)sched_yield();
    }
    return NULL;
}

static inline void gfx_watch_start(struct gfx_watch *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, gfx_watch_main, w), 0);
}

static inline void gfx_watch_end(struct gfx_watch *w)
{
    atomic_store(&w->quit, true);
    assert_int_equal(pthread_join(w->thread, NULL), 0);
}

static inline bool gfx_when_comms(const struct gfx_watch *w)
{
    return nfx_counts().n_comms >= w->n;
}

static inline bool gfx_when_calls(const struct gfx_watch *w)
{
    return nfx_counts().n_calls >= w->n;
}

static inline bool gfx_when_hanging(const struct gfx_watch *w)
{
    return atomic_load(&gfx_n_hanging) >= w->n;
}

static inline bool gfx_when_nbytes(const struct gfx_watch *w)
{
    return nfx_counts().nbytes >= w->n;
}

static inline void gfx_act_leave(struct gfx_watch *w)
{
    nccl_group_leave(w->g, "left by a test");
}

static inline void gfx_act_stop(struct gfx_watch *w)
{
    atomic_store(&w->p->stop, true);
}

static inline void gfx_act_kill(struct gfx_watch *w)
{
    (void)kill(w->peer->pid, SIGKILL);
}

#endif
