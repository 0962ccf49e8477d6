/* Stores on GPUs of libfakecuda.so, and what the sources of a test saw. */
#ifndef BATON_TESTS_GPUS_FIXTURE_H
#define BATON_TESTS_GPUS_FIXTURE_H

#include "memory/device.h"
#include "tests/fakes/libcuda/fakecuda.h"
#include "tests/unit/update_fixture.h"
#include "weights/store/store_priv.h"

#include <dlfcn.h>

enum { MFX_RANKS_MAX = 3, MFX_LOG_CAP = 4096 };

/* The driver. */

struct mfx_lib {
    struct cu_api cu;
    fakecuda_counts_fn *counts;
    fakecuda_fail_nth_fn *fail_nth;
    fakecuda_hold_fn *hold;
    struct cuda_device about[CUDA_DEVICES_MAX];
    size_t n;
};

static inline void mfx_bind(struct mfx_lib *lib, void *to, const char *name)
{
    void *at = dlsym(lib->cu.lib, name);

    assert_non_null(at);
    memcpy(to, &at, sizeof at);
}

/* The fake looks at its environment once: set what differs before the first call. */
static inline void mfx_lib_open(struct mfx_lib *lib, const char *path)
{
    struct err e = {0};

    if (lib->n > 0)
        return;
    assert_int_equal(setenv("FAKECUDA_DEVICES", "3", 1), 0);
    assert_int_equal(cu_load(&lib->cu, path, &e), 0);
    assert_int_equal(lib->cu.init(0), CUDA_SUCCESS);
    mfx_bind(lib, &lib->counts, "fakecuda_counts");
    mfx_bind(lib, &lib->fail_nth, "fakecuda_fail_nth");
    mfx_bind(lib, &lib->hold, "fakecuda_hold");
    assert_int_equal(cuda_devices(&lib->cu, lib->about, &lib->n, &e), 0);
    assert_int_equal(lib->n, MFX_RANKS_MAX);
}

/* What the sources of a test saw. */
struct mfx_watch {
    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    struct cnd changed;
    char log[MFX_LOG_CAP]; /* J0 joined, M0 mapped, R0 released, C0 closed, A0 answered, S scope */
    unsigned n_joined, n_released, n_sources, n_closed, n_scopes, n_scopes_closed;
    unsigned n_wrong;
    bool held; /* the test holds the GPUs: nothing that they read may be released */
};

static inline void mfx_log(struct mfx_watch *w, char what, int who)
{
    size_t len;

    mtx_lock(&w->lock);
    len = strlen(w->log);
    if (len + 8 < sizeof w->log)
        (void)snprintf(w->log + len, sizeof w->log - len, who < 0 ? "%c" : "%c%d", what, who);
    cnd_broadcast(&w->changed);
    mtx_unlock(&w->lock);
}

/* Seen on the worker, where a test cannot fail: told now, counted at the end. */
static inline void mfx_must(struct mfx_watch *w, bool good, const char *what)
{
    if (good)
        return;
    print_error("wrong: %s\n", what);
    mtx_lock(&w->lock);
    w->n_wrong++;
    mtx_unlock(&w->lock);
}

static inline void mfx_count(struct mfx_watch *w, unsigned *n)
{
    mtx_lock(&w->lock);
    (*n)++;
    mtx_unlock(&w->lock);
}

static inline bool mfx_held(struct mfx_watch *w)
{
    bool held;

    mtx_lock(&w->lock);
    held = w->held;
    mtx_unlock(&w->lock);
    return held;
}

static inline void mfx_await_log(struct mfx_watch *w, const char *what)
{
    mtx_lock(&w->lock);
    while (strstr(w->log, what) == NULL)
        (void)cnd_wait(&w->changed, &w->lock, CLOCK_NEVER);
    mtx_unlock(&w->lock);
}

static inline void mfx_assert_log(struct mfx_watch *w, const char *want)
{
    char log[MFX_LOG_CAP];

    mtx_lock(&w->lock);
    memcpy(log, w->log, sizeof log);
    mtx_unlock(&w->lock);
    assert_string_equal(log, want);
}

/* The store. */

struct gpus_cfg {
    unsigned n_devices;
    bool mirror, host_memory, sharded;
    struct model_spec *model_spec; /* moved in; NULL: fx_model_spec */
    uint64_t receive_us;           /* 0: RECEIVE_US */
    enum non_finite_policy non_finite;
};

struct gpus {
    struct bench b; /* first */
    struct mfx_lib *lib;
    struct device *devices[MFX_RANKS_MAX];
    unsigned n_devices;
    struct mfx_watch watch;
    struct fakecuda_counts before;
    uint32_t
        n_listed; /* tensors in the last ended update's list of a group; read after its answer */
    uint64_t group;
};

static inline void gpus_ended(void *gpus, const struct update_info *info)
{
    struct gpus *g = gpus;

    mtx_lock(&g->watch.lock);
    g->n_listed = info->group_list != NULL ? info->group_list->n_tensors : 0;
    g->group = info->group;
    mtx_unlock(&g->watch.lock);
}

static inline void gpus_open(struct gpus *g, struct mfx_lib *lib, struct gpus_cfg want)
{
    struct store_cfg store_cfg = {.n_versions_max = 3,
                                  .nbytes_max = UINT64_MAX,
                                  .devices = g->devices,
                                  .n_devices = want.n_devices,
                                  .mirror = want.mirror,
                                  .host_memory = want.host_memory,
                                  .sharded = want.sharded};
    struct updates_cfg cfg = {.receive_timeout_us = RECEIVE_US,
                              .pin_timeout_us = RECEIVE_US,
                              .non_finite = want.non_finite,
                              .on_change = on_change,
                              .arg = &g->b,
                              .on_end = gpus_ended,
                              .end_arg = g};
    struct err e = {0};

    memset(g, 0, sizeof *g);
    g->lib = lib;
    g->n_devices = want.n_devices;
    lib->counts(&g->before);
    mtx_init(&g->b.lock, MTX_LEAF);
    cnd_init(&g->b.changed);
    mtx_init(&g->watch.lock, MTX_LEAF);
    cnd_init(&g->watch.changed);
    fx_answer_init(&g->b.answer);
    for (unsigned i = 0; i < want.n_devices; i++)
        assert_int_equal(device_new(&g->devices[i], &lib->cu, &lib->about[i], &e), 0);
    store_cfg.model_spec = want.model_spec != NULL ? want.model_spec : fx_model_spec();
    if (want.receive_us != 0)
        cfg.receive_timeout_us = want.receive_us;
    assert_int_equal(store_new(&g->b.store, &store_cfg, &e), 0);
    cfg.store = g->b.store;
    assert_int_equal(updates_new(&g->b.updates, &cfg, &e), 0);
}

/* Every source was released and closed, every scope closed, and the driver has everything back. */
static inline void gpus_close(struct gpus *g)
{
    struct mfx_watch *w = &g->watch;
    struct fakecuda_counts after;

    assert_digests(g->b.store, g->b.updates, UINT32_MAX);
    updates_free(g->b.updates);
    store_free(g->b.store);
    for (unsigned i = 0; i < g->n_devices; i++)
        device_free(g->devices[i]);
    assert_int_equal(w->n_wrong, 0);
    assert_int_equal(w->n_joined, w->n_released);
    assert_int_equal(w->n_sources, w->n_closed);
    assert_int_equal(w->n_scopes, w->n_scopes_closed);
    g->lib->counts(&after);
    assert_int_equal(after.n_allocations, g->before.n_allocations);
    assert_int_equal(after.n_host_blocks, g->before.n_host_blocks);
    assert_int_equal(after.n_streams, g->before.n_streams);
    assert_int_equal(after.n_events, g->before.n_events);
    assert_int_equal(after.n_contexts, g->before.n_contexts);
    assert_int_equal(after.n_modules, g->before.n_modules);
    fx_answer_fini(&g->b.answer);
    cnd_fini(&w->changed);
    mtx_fini(&w->lock);
    cnd_fini(&g->b.changed);
    mtx_fini(&g->b.lock);
}

static inline void gpus_hold(struct gpus *g, bool hold)
{
    mtx_lock(&g->watch.lock);
    g->watch.held = hold;
    mtx_unlock(&g->watch.lock);
    g->lib->hold(hold);
}

/* Every kind of store on GPUs. */
static const struct gpus_cfg mfx_worlds[] = {
    {.n_devices = 1},
    {.n_devices = 1, .mirror = true},
    {.n_devices = 1, .host_memory = true},
    {.n_devices = 2},
    {.n_devices = 2, .mirror = true},
    {.n_devices = 3},
    {.n_devices = 3, .mirror = true},
    {.n_devices = 2, .sharded = true},
    {.n_devices = 3, .sharded = true},
};
enum { MFX_WORLDS = sizeof mfx_worlds / sizeof mfx_worlds[0] };

/* Takes what is left of a GPU. */
enum { HOG_NBYTES = 1 << 20, HOGS_MAX = 300 };
struct hog {
    struct slab_memory memory;
    uint64_t at[HOGS_MAX];
    unsigned n;
};

static inline void hog_take(struct hog *h, struct device *d, uint64_t nbytes_left)
{
    uint64_t now, total;
    struct err e = {0};

    h->memory = device_memory(d);
    for (h->n = 0; device_room(d, &now, &total, &e) == 0 && now >= nbytes_left + HOG_NBYTES;
         h->n++) {
        assert_true(h->n < HOGS_MAX);
        assert_int_equal(h->memory.take(h->memory.arg, HOG_NBYTES, &h->at[h->n], &e), 0);
    }
}

static inline void hog_give(struct hog *h)
{
    while (h->n > 0)
        h->memory.give(h->memory.arg, h->at[--h->n], HOG_NBYTES);
}

#endif
