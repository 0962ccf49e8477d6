/* weights/update_fill on GPUs: what a source writes into host memory reaches every GPU, through the
 * host's copy or, where there is none, through a bounded piece of host memory. */
#include "tests/unit/weights/map_fixture.h"

static struct mfx_lib lib;

static enum err_code host_send(struct gpus *g, const char *id, struct tensor_list *tensor_list,
                               struct fx_source_cfg cfg)
{
    submit(&g->b, chunk_of(&g->b, id, tensor_list, cfg));
    return fx_await(&g->b.answer);
}

static void test_whole_and_chunked_updates_arrive(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(push(&g.b, 1, "one"), ERR_NONE);
        mfx_assert_step(&g, 1);
        for (unsigned step = 2; step < 6; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});

            assert_int_equal(send_mask(&g.b, info.id, 0x2c, step), ERR_NONE);
            assert_int_equal(send_mask(&g.b, info.id, 0x53, step), ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* One update of both kinds of sources. */
static void test_host_and_gpu_sources_mix(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned step = 1; step < 5; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});

            assert_int_equal(send_mask(&g.b, info.id, 0x15, step), ERR_NONE);
            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x6a), MFX_STEP(step))),
                ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* Fused, tied and ignored names; wide: all in F32. */
static struct tensor_list *named_tensor_list(bool wide)
{
    struct fx_tensor tensors[] = {fx_model[5], fx_lm_head,  fx_qkv,     fx_old_scale,
                                  fx_model[6], fx_model[0], fx_model[4]};
    const struct fx_tensor *at[sizeof tensors / sizeof tensors[0]];

    for (unsigned i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (wide && tensors[i].dtype == DTYPE_BF16)
            tensors[i].dtype = DTYPE_F32;
        at[i] = &tensors[i];
    }
    return fx_tensor_list(at, sizeof tensors / sizeof tensors[0]);
}

static void test_names_and_dtypes_of_the_trainer(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(push(&g.b, 1, ""), ERR_NONE);
        for (unsigned k = 0; k < 2; k++) {
            struct update_start req = {.convert = k != 0};
            struct update_info info = start(&g.b, req);
            struct fx_source_cfg lie = FX_STEP(2 + k);
            struct update_chunk *c;

            lie.corrupt_at = 1; /* the tied name */
            assert_int_equal(host_send(&g, info.id, named_tensor_list(req.convert), lie),
                             ERR_MISMATCH);
            c = chunk_of(&g.b, info.id, named_tensor_list(req.convert), FX_STEP(2 + k));
            give_checksums(c, 2 + k);
            submit(&g.b, c);
            assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
            assert_false(g.b.answer.info.host_sums); /* of bytes that lie on the host anyway */
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, 2 + k);
        }
        gpus_close(&g);
    }
}

/* A tied name from the host before its target comes from a GPU, of another rank than the first. */
static void test_tied_name_from_the_host_must_agree_with_a_gpu(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};

    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {NULL, fx_tensor_list_of(FX_ALL)};
        bool mirror = (k & 1) != 0, lies = (k & 2) != 0;
        struct update_info info;
        enum err_code got;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .mirror = mirror});
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        info = start(&g.b, (struct update_start){.sharded = true});
        assert_int_equal(host_send(&g, info.id, fx_tensor_list(head, 1), FX_STEP(lies ? 3 : 2)),
                         ERR_NONE);
        got = mfx_send(&g, mfx_ranked(&g, info.id, tensor_lists, MFX_STEP(2)));
        if (got == ERR_NONE) /* at the latest */
            got = finish(&g.b, info.id, "");
        else
            mfx_abort(&g, info.id);
        assert_int_equal(got, lies ? ERR_MISMATCH : ERR_NONE);
        assert_int_equal(mfx_info(&g).serial, lies ? 1 : 2);
        gpus_close(&g);
    }
}

static void test_failures_leave_the_old_version(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(push(&g.b, 1, ""), ERR_NONE);
        for (int i = 0; i < FX_N; i++) {
            struct fx_source_cfg cfg = FX_STEP(2);
            struct update_chunk *c;

            cfg.fail_at = i;
            assert_int_equal(host_send(&g, "", fx_tensor_list_of(FX_ALL), cfg), ERR_UNREADABLE);
            cfg.fail_at = -1;
            cfg.corrupt_at = i;
            c = chunk_of(&g.b, "", fx_tensor_list_of(FX_ALL), cfg);
            give_checksums(c, 2);
            submit(&g.b, c);
            assert_int_equal(fx_await(&g.b.answer), ERR_CHECKSUM);
            mfx_assert_step(&g, 1);
        }
        gpus_close(&g);
    }
}

/* larger than the bounce buffer */

enum { MIB = 1 << 20, BIG_N = 5, WORD = 8 };
static const uint64_t big_nbytes[BIG_N] = {3, 30 * MIB, 66 * MIB, 30 * MIB + 8, 5 * MIB};

/* A source whose every word says where it stands. */
static void big_words(uint64_t *out, uint64_t n, uint32_t tensor, unsigned step)
{
    for (uint64_t k = 0; k < n; k++)
        out[k] = (k << 16 | tensor << 8 | step) * UINT64_C(0x9e3779b97f4a7c15);
}

static int big_fill(struct source *src, const struct tensor_list *tensor_list, uint32_t first,
                    uint32_t n, void *dst, struct progress *p, struct err *e)
{
    unsigned step = ((struct fx_source *)src)->cfg.step;
    char *at = dst;
    uint64_t *words = malloc(66 * MIB + WORD);

    if (words == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a test");
    for (uint32_t i = first; i < first + n; i++) {
        uint64_t nbytes = tensor_list->tensors[i].nbytes;

        big_words(words, nbytes / WORD + 1, i, step);
        memcpy(at, words, nbytes);
        at += nbytes;
        (void)atomic_fetch_add(&p->nbytes_done, nbytes);
    }
    free(words);
    return 0;
}

static struct tensor_list *big_tensor_list(void)
{
    static const char *const names[BIG_N] = {"three", "a", "larger", "b", "c"};
    struct fx_tensor tensors[BIG_N];
    const struct fx_tensor *at[BIG_N];

    for (unsigned i = 0; i < BIG_N; i++) {
        tensors[i] = (struct fx_tensor){names[i], i == 0 ? DTYPE_U8 : DTYPE_I32, 1, {0}};
        tensors[i].shape[0] = big_nbytes[i] / dtype_nbytes(tensors[i].dtype);
        at[i] = &tensors[i];
    }
    return fx_tensor_list(at, BIG_N);
}

static void big_assert(struct gpus *g, unsigned step)
{
    const struct version *v = NULL;
    uint64_t *want = malloc(66 * MIB + WORD), *is = malloc(66 * MIB + WORD);
    struct err e = {0};

    assert_non_null(want);
    assert_non_null(is);
    assert_int_equal(store_pin(g->b.store, &v, &e), 0);
    for (uint32_t i = 0; i < BIG_N; i++) {
        big_words(want, big_nbytes[i] / WORD + 1, i, step);
        for (uint32_t p = 0; p < store_n_places(g->b.store); p++) {
            assert_int_equal(v->places[p][i].addr % 4 != 0 && i > 0, 0);
            assert_int_equal(place_read(g->b.store, p, is, v->places[p][i].addr, big_nbytes[i], &e),
                             0);
            assert_memory_equal(is, want, big_nbytes[i]);
        }
    }
    store_unpin(g->b.store, v);
    free(want);
    free(is);
}

static void big(bool mirror)
{
    static const struct source_ops ops = {.name = "big", .fill = big_fill, .close = fx_close};
    struct gpus_cfg world = {.n_devices = 1, .mirror = mirror};
    struct store_slept slept;
    struct err e = {0};
    struct gpus g;

    assert_int_equal(model_spec_new(&world.model_spec, big_tensor_list(), NULL, 0, &e), 0);
    gpus_open(&g, &lib, world);
    for (unsigned step = 1; step < 3; step++) {
        struct update_info info;
        struct update_chunk *c;
        struct slab_stats st;

        if (step > 1) /* there is no room for two */
            assert_int_equal(store_sleep(g.b.store, 2, CLOCK_NEVER, &slept, &e), 0);
        info = start(&g.b, (struct update_start){0});
        c = chunk_of(&g.b, info.id, big_tensor_list(), FX_STEP(step));
        c->source->ops = &ops;
        submit(&g.b, c);
        assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        big_assert(&g, step);
        if (mirror)
            continue;
        slab_pool_stats(g.b.store->scratch, &st);
        assert_int_equal(st.nbytes_live, 0);
        assert_int_equal(st.nbytes_idle, 66 * MIB); /* the largest tensor, not the whole */
    }
    gpus_close(&g);
}

static void test_more_than_the_bounce_holds(void **state)
{
    (void)state;
    big(false);
    big(true);
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
        cmocka_unit_test(test_whole_and_chunked_updates_arrive),
        cmocka_unit_test(test_host_and_gpu_sources_mix),
        cmocka_unit_test(test_names_and_dtypes_of_the_trainer),
        cmocka_unit_test(test_tied_name_from_the_host_must_agree_with_a_gpu),
        cmocka_unit_test(test_failures_leave_the_old_version),
        cmocka_unit_test(test_more_than_the_bounce_holds),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
