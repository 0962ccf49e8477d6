/* Partial updates where there is room for two versions: what they do not bring must not keep the
 * memory of older versions. On stores of every kind, over libfakecuda.so. */
#include "tests/unit/weights/gpus_fixture.h"

enum { N = 12, LARGE = 1 << 20, SMALL = 5000, N_STEPS = 4, N_CALLS = 24 };
enum { ALL = (1 << N) - 1, NO_NORMS = ALL & ~0x801, MOST = ALL & ~0x7 };
enum { SLACK = 6 << 20 }; /* GPUs give memory in granules of 2 MiB */

static struct mfx_lib lib;

/* The first and the last are small. */
static uint64_t nbytes_of(uint32_t i)
{
    return i == 0 || i == N - 1 ? SMALL + i : LARGE;
}

static struct model_spec *model(void)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *list = NULL;
    struct model_spec *m = NULL;
    struct err e = {0};
    char name[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t shape[1] = {nbytes_of(i)};

        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, shape, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    assert_int_equal(model_spec_new(&m, list, NULL, 0, &e), 0);
    return m;
}

struct world {
    struct store *s;
    struct device *devices[MFX_RANKS_MAX];
    unsigned n_devices;
    struct hog hogs[MFX_RANKS_MAX];
    unsigned steps[N]; /* which step's bytes each tensor must have */
    unsigned n_commits;
    uint64_t fail_nth; /* call of the driver in the commits; 0: none */
};

/* Room for `n_versions`: of each GPU's memory, and of the host's where versions are there. */
static void world_open(struct world *w, const struct gpus_cfg *want, unsigned n_versions)
{
    struct store_cfg cfg = {.model_spec = model(),
                            .n_versions_max = 3,
                            .nbytes_max = UINT64_MAX,
                            .devices = w->devices,
                            .n_devices = want->n_devices,
                            .mirror = want->mirror,
                            .host_memory = want->host_memory,
                            .sharded = want->sharded};
    struct err e = {0};

    *w = (struct world){.n_devices = want->n_devices};
    if (want->n_devices == 0)
        cfg.nbytes_max = n_versions * ((N - 2) * LARGE + UINT64_C(4) * SMALL);
    for (unsigned i = 0; i < w->n_devices; i++)
        assert_int_equal(device_new(&w->devices[i], &lib.cu, &lib.about[i], &e), 0);
    assert_int_equal(store_new(&w->s, &cfg, &e), 0);
    for (unsigned i = 0; i < w->n_devices; i++) {
        struct slab_stats st;

        slab_pool_stats(store_slabs(w->s, i), &st); /* one version is reserved */
        if (!want->host_memory)
            hog_take(&w->hogs[i], w->devices[i], (n_versions - 1) * st.nbytes_idle + SLACK);
    }
}

static void world_close(struct world *w)
{
    store_free(w->s);
    for (unsigned i = 0; i < w->n_devices; i++) {
        hog_give(&w->hogs[i]);
        device_free(w->devices[i]);
    }
}

static bool is_kept(const struct world *w, uint32_t place, uint32_t i)
{
    return !store_sharded(w->s) || store_owner(w->s, i) == place;
}

static void bytes_of(uint32_t i, unsigned step, unsigned char *out)
{
    uint64_t word = (step * UINT64_C(13) + i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    for (uint64_t k = 0; k < nbytes_of(i); k += sizeof word, word += k)
        memcpy(out + k, &word, nbytes_of(i) - k < sizeof word ? nbytes_of(i) - k : sizeof word);
}

/* Brings the tensors of `mask` to a place, in one slab. Returns 0, or the error. */
static enum err_code bring(struct world *w, struct staging *g, uint32_t place, unsigned mask,
                           unsigned step)
{
    static unsigned char bytes[LARGE];
    struct staging_memory room;
    uint64_t nbytes = 0, at;
    struct err e = {0};

    for (uint32_t i = 0; i < N; i++)
        if (mask & 1U << i && is_kept(w, place, i))
            nbytes += nbytes_of(i);
    if (nbytes == 0)
        return ERR_NONE;
    if (staging_memory(g, place, nbytes, &room, &e) != 0)
        return e.code;
    at = room.slab->addr + room.offset;
    for (uint32_t i = 0; i < N; i++) {
        if (!(mask & 1U << i) || !is_kept(w, place, i))
            continue;
        bytes_of(i, step, bytes);
        assert_int_equal(place_write(w->s, place, at, bytes, nbytes_of(i), &e), 0);
        assert_int_equal(staging_view(g, place, i, room.slab, at, &e), 0);
        at += nbytes_of(i);
    }
    slab_unref(room.slab);
    return ERR_NONE;
}

/* Updates the tensors of `mask`. Returns the error of the memory. */
static enum err_code update(struct world *w, unsigned mask)
{
    struct staging_cfg cfg = {.partial = mask != ALL};
    unsigned step = w->n_commits + 1;
    struct store_stats stats;
    struct staging *g = NULL;
    struct err e = {0};

    assert_int_equal(store_stage(w->s, &cfg, 0, NULL, &g, &e), 0);
    for (uint32_t p = 0; p < store_n_places(w->s); p++) {
        enum err_code code = bring(w, g, p, mask, step);

        if (code != ERR_NONE) {
            store_abort(w->s, g);
            return code;
        }
    }
    lib.fail_nth(w->fail_nth);
    assert_int_equal(store_commit(w->s, g, "", &stats, &e), 0);
    lib.fail_nth(0);
    w->n_commits++;
    for (uint32_t i = 0; i < N; i++)
        w->steps[i] = mask & 1U << i ? step : w->steps[i];
    return ERR_NONE;
}

static void assert_bytes(struct world *w, const struct version *v, const unsigned *steps)
{
    static unsigned char want[LARGE], is[LARGE];
    struct checksum sum, of_want;
    struct err e = {0};

    for (uint32_t i = 0; i < N; i++) {
        bytes_of(i, steps[i], want);
        of_want = checksum_of(want, nbytes_of(i));
        assert_int_equal(store_checksum(w->s, v, i, &sum, &e), 0);
        assert_true(checksum_equal(sum, of_want));
        for (uint32_t p = 0; p < store_n_places(w->s); p++) {
            if (!is_kept(w, p, i))
                continue;
            assert_int_equal(v->places[p][i].serial, steps[i]);
            assert_int_equal(place_read(w->s, p, is, v->places[p][i].addr, nbytes_of(i), &e), 0);
            assert_memory_equal(is, want, nbytes_of(i));
        }
    }
}

static void assert_all(struct world *w)
{
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(w->s, &v, &e), 0);
    assert_bytes(w, v, w->steps);
    store_unpin(w->s, v);
}

/* Live bytes of a place, in those of all tensors that it keeps. */
static double versions_in(const struct world *w, uint32_t place)
{
    struct slab_stats st;

    slab_pool_stats(store_slabs(w->s, place), &st);
    return (double)st.nbytes_live / (double)store_whole_nbytes(w->s, place);
}

static const struct gpus_cfg host = {.n_devices = 0};

/* A chain of updates of the tensors of each mask in turn. */
static void chain(const struct gpus_cfg *want, const unsigned *masks, unsigned n)
{
    struct world w;

    world_open(&w, want, 2);
    assert_int_equal(update(&w, ALL), ERR_NONE);
    for (unsigned k = 0; k < N_STEPS; k++) {
        assert_int_equal(update(&w, masks[k % n]), ERR_NONE);
        assert_all(&w);
    }
    assert_int_equal(update(&w, ALL), ERR_NONE);
    assert_all(&w);
    for (uint32_t p = 0; p < store_n_places(w.s); p++)
        assert_true(versions_in(&w, p) < 1.5);
    world_close(&w);
}

static void test_a_chain_never_brings_a_few(void **state)
{
    static const unsigned masks[] = {NO_NORMS};

    (void)state;
    chain(&host, masks, 1);
    for (unsigned k = 0; k < MFX_WORLDS; k++)
        chain(&mfx_worlds[k], masks, 1);
}

/* 70 %, always others. */
static void test_a_chain_brings_most_in_turn(void **state)
{
    static const unsigned masks[] = {ALL & ~0x00e, ALL & ~0x070, ALL & ~0x380};

    (void)state;
    chain(&host, masks, 3);
    chain(&mfx_worlds[0], masks, 3);
    chain(&mfx_worlds[1], masks, 3);
}

/* Whatever each one brings: the next one fits, and so does all. */
static void test_a_chain_brings_anything(void **state)
{
    struct world w;

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        unsigned draw = 7 + k;

        world_open(&w, &mfx_worlds[k], 2);
        assert_int_equal(update(&w, ALL), ERR_NONE);
        for (unsigned step = 0; step < 16; step++) {
            unsigned mask;

            draw = draw * 1103515245 + 12345;
            mask = (draw >> 8 & ALL) & (draw & 64 ? draw >> 16 : ALL);
            assert_int_equal(update(&w, mask != 0 ? mask : 1U << step % N), ERR_NONE);
            assert_all(&w);
            if (step % 8 == 7)
                assert_int_equal(update(&w, ALL), ERR_NONE);
        }
        for (uint32_t i = 0; i < N; i += 4) {
            assert_int_equal(update(&w, 1U << i), ERR_NONE);
            assert_int_equal(update(&w, ALL), ERR_NONE);
        }
        assert_all(&w);
        world_close(&w);
    }
}

static void test_what_is_mostly_used_is_shared(void **state)
{
    const struct version *old = NULL, *new = NULL;
    struct world w;
    struct err e = {0};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        world_open(&w, &mfx_worlds[k], 3);
        assert_int_equal(update(&w, ALL), ERR_NONE);
        assert_int_equal(store_pin(w.s, &old, &e), 0);
        assert_int_equal(update(&w, 1U << 3), ERR_NONE);
        assert_int_equal(store_pin(w.s, &new, &e), 0);
        for (uint32_t p = 0; p < store_n_places(w.s); p++)
            for (uint32_t i = 0; i < N; i++)
                assert_int_equal(new->places[p][i].addr == old->places[p][i].addr, i != 3);
        store_unpin(w.s, new);
        store_unpin(w.s, old);
        assert_all(&w);
        world_close(&w);
    }
}

/* A reader keeps the version before; nothing of it changes. */
static void test_a_reader_keeps_its_version(void **state)
{
    unsigned steps[N];
    const struct version *old = NULL;
    struct world w;
    struct err e = {0};

    (void)state;
    for (unsigned k = 0; k < MFX_WORLDS; k++) {
        world_open(&w, &mfx_worlds[k], 2);
        assert_int_equal(update(&w, ALL), ERR_NONE);
        memcpy(steps, w.steps, sizeof steps);
        assert_int_equal(store_pin(w.s, &old, &e), 0);
        assert_int_equal(update(&w, NO_NORMS), ERR_NONE);
        assert_bytes(&w, old, steps);
        assert_all(&w);
        store_unpin(w.s, old);
        assert_int_equal(update(&w, NO_NORMS), ERR_NONE);
        assert_all(&w);
        world_close(&w);
    }
}

/* Are the tensors that MOST does not bring shared? */
static bool shares(const struct gpus_cfg *want, bool hogged, uint64_t fail_nth)
{
    const struct version *old = NULL, *new = NULL;
    struct hog hog = {0};
    struct world w;
    struct err e = {0};
    bool shared;

    world_open(&w, want, 2);
    assert_int_equal(update(&w, ALL), ERR_NONE);
    assert_int_equal(store_pin(w.s, &old, &e), 0);
    if (hogged)
        hog_take(&hog, w.devices[0], 10 << 20); /* what it brings */
    w.fail_nth = fail_nth;
    assert_int_equal(update(&w, MOST), ERR_NONE);
    w.fail_nth = 0;
    hog_give(&hog);
    assert_int_equal(store_pin(w.s, &new, &e), 0);
    shared = new->places[0][0].addr == old->places[0][0].addr;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(new->places[0][i].addr == old->places[0][i].addr, shared);
    store_unpin(w.s, new);
    store_unpin(w.s, old);
    assert_all(&w);
    world_close(&w);
    return shared;
}

/* Bytes that are not what they were when they were summed are shared as they are, and the log says
 * so: what is served does not change. */
static void test_what_differs_is_not_served(void **state)
{
    const struct gpus_cfg *const kinds[] = {&host, &mfx_worlds[0]};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        const struct version *old = NULL, *new = NULL;
        unsigned char byte = 0;
        struct checksum sum;
        struct err e = {0};
        struct world w;

        world_open(&w, kinds[k], 2);
        assert_int_equal(update(&w, ALL), ERR_NONE);
        assert_int_equal(store_pin(w.s, &old, &e), 0);
        assert_int_equal(store_checksum(w.s, old, 1, &sum, &e), 0);
        assert_int_equal(place_read(w.s, 0, &byte, old->places[0][1].addr, 1, &e), 0);
        byte ^= 1;
        assert_int_equal(place_write(w.s, 0, old->places[0][1].addr, &byte, 1, &e), 0);
        assert_int_equal(update(&w, MOST), ERR_NONE);
        assert_int_equal(store_pin(w.s, &new, &e), 0);
        for (uint32_t i = 0; i < 3; i++)
            assert_ptr_equal(new->places[0][i].addr, old->places[0][i].addr);
        store_unpin(w.s, new);
        store_unpin(w.s, old);
        world_close(&w);
    }
}

/* A commit does not fail for want of memory, or of a copy. */
static void test_what_cannot_be_copied_is_shared(void **state)
{
    unsigned n_shared = 0;

    (void)state;
    assert_false(shares(&mfx_worlds[0], false, 0));
    assert_true(shares(&mfx_worlds[0], true, 0));
    for (uint64_t nth = 1; nth <= N_CALLS; nth++)
        n_shared += shares(&mfx_worlds[0], false, nth);
    assert_true(n_shared >= 3); /* the memory, the copies, the wait */
}

static CUresult lost_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **params, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)params, (void)extra;
    return CUDA_ERROR_UNKNOWN;
}

static CUresult lost_query(CUstream stream)
{
    (void)stream;
    return CUDA_ERROR_UNKNOWN;
}

/* Nothing is committed that a GPU has lost. */
static void test_a_lost_gpu_fails_the_commit(void **state)
{
    struct staging_cfg cfg = {.partial = true};
    const struct cu_api api = lib.cu;
    struct store_stats stats;
    struct staging *g = NULL;
    struct err e = {0};
    struct world w;

    (void)state;
    world_open(&w, &mfx_worlds[0], 2);
    assert_int_equal(update(&w, ALL), ERR_NONE);
    assert_int_equal(store_stage(w.s, &cfg, 0, NULL, &g, &e), 0);
    assert_int_equal(bring(&w, g, 0, MOST, 2), ERR_NONE);
    lib.cu.launch_kernel = lost_kernel;
    lib.cu.stream_query = lost_query;
    assert_int_equal(store_commit(w.s, g, "", &stats, &e), -1);
    assert_int_equal(e.code, ERR_CUDA);
    lib.cu = api;
    store_abort(w.s, g);
    assert_all(&w);
    world_close(&w);
}

static int open_lib(void **state)
{
    (void)state;
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chain_never_brings_a_few),
        cmocka_unit_test(test_a_chain_brings_most_in_turn),
        cmocka_unit_test(test_a_chain_brings_anything),
        cmocka_unit_test(test_what_is_mostly_used_is_shared),
        cmocka_unit_test(test_what_differs_is_not_served),
        cmocka_unit_test(test_a_reader_keeps_its_version),
        cmocka_unit_test(test_what_cannot_be_copied_is_shared),
        cmocka_unit_test(test_a_lost_gpu_fails_the_commit),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
