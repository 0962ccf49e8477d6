/* weights/update_map: where bytes go that come from GPUs, in every place where they are served. */
#include "tests/unit/weights/map_fixture.h"

static struct mfx_lib lib;

/* buckets */

static void test_buckets_of_any_size_arrive(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;
        unsigned step = 0;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned n_each = 0; n_each < 4; n_each++) {
            for (int scattered = 0; scattered < 2; scattered++) {
                struct mfx_cfg cfg = MFX_STEP(++step);

                cfg.n_each = n_each;
                cfg.scattered = scattered != 0;
                assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", fx_tensor_list_of(FX_ALL), cfg)),
                                 ERR_NONE);
                mfx_assert_step(&g, step);
                assert_int_equal(mfx_info(&g).serial, step);
                assert_int_equal(g.b.answer.info.mappings.n_mapped, 0);
                assert_int_equal(g.b.answer.info.mappings.n_closed,
                                 g.b.answer.info.mappings.n_opened);
                assert_true(g.b.answer.info.mappings.n_opened >= g.n_devices);
                assert_false(g.b.answer.info.host_sums);
            }
        }
        gpus_close(&g);
    }
}

static void test_chunks_of_a_session_arrive(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned step = 1; step < 4; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct mfx_cfg cfg = MFX_STEP(step);

            cfg.n_each = step;
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x15), cfg)),
                             ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, 3);
            assert_int_equal(g.b.answer.info.n_missing, FX_N - 3);
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x0a), cfg)),
                             ERR_NONE);
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x60), cfg)),
                             ERR_NONE);
            if (step > 1)
                mfx_assert_step(&g, step - 1);
            assert_int_equal(finish(&g.b, info.id, "new"), ERR_NONE);
            mfx_assert_step(&g, step);
            assert_string_equal(mfx_info(&g).label, "new");
        }
        gpus_close(&g);
    }
}

/* `bias` has 3 bytes: wherever it stands, what follows is misaligned as it comes. */
static void test_misaligned_views_are_moved(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned turn = 0; turn < FX_N; turn++) {
            const struct fx_tensor *tensors[FX_N];
            struct mfx_cfg cfg = MFX_STEP(turn + 1);

            for (unsigned i = 0; i < FX_N; i++)
                tensors[i] = &fx_model[(i + turn) % FX_N];
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", fx_tensor_list(tensors, FX_N), cfg)),
                             ERR_NONE);
            mfx_assert_step(&g, turn + 1);
        }
        gpus_close(&g);
    }
}

static const struct fx_tensor hollow[] = {
    {"empty.first", DTYPE_F32, 2, {0, 4}}, {"bias", DTYPE_U8, 1, {3}},
    {"empty.rows", DTYPE_BF16, 2, {4, 0}}, {"norm.weight", DTYPE_F32, 1, {8}},
    {"empty.last", DTYPE_F32, 1, {0}},
};
enum { HOLLOW_N = sizeof hollow / sizeof hollow[0] };

static struct tensor_list *hollow_tensor_list(unsigned mask)
{
    const struct fx_tensor *tensors[HOLLOW_N];
    uint32_t n = 0;

    for (unsigned i = 0; i < HOLLOW_N; i++)
        if (mask & 1U << i)
            tensors[n++] = &hollow[i];
    return fx_tensor_list(tensors, n);
}

static void hollow_send(struct gpus *g, const char *id, unsigned mask, struct mfx_cfg cfg,
                        bool summed)
{
    struct update_chunk *c = mfx_chunk(g, id, hollow_tensor_list(mask), cfg);

    if (summed)
        c->checksums = mfx_sums(c->tensor_list, cfg.step);
    assert_int_equal(mfx_send(g, c), ERR_NONE);
}

static void test_empty_tensors_arrive(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus_cfg world = mfx_worlds[w];
        struct gpus g;
        struct err e = {0};

        assert_int_equal(model_spec_new(&world.model_spec, hollow_tensor_list(0x1f), NULL, 0, &e),
                         0);
        gpus_open(&g, &lib, world);
        for (unsigned k = 0; k < 8; k++) {
            struct mfx_cfg cfg = MFX_STEP(k + 1);
            struct update_info info;

            cfg.scattered = (k & 1) != 0;
            cfg.n_each = k / 4;
            if ((k & 2) == 0) {
                hollow_send(&g, "", 0x1f, cfg, k > 3);
            } else { /* a chunk that has no bytes at all, one that ends in nothing */
                info = start(&g.b, (struct update_start){0});
                hollow_send(&g, info.id, 0x05, cfg, k > 3);
                hollow_send(&g, info.id, 0x1a, cfg, k > 3);
                assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            }
            mfx_assert_step(&g, k + 1);
        }
        gpus_close(&g);
    }
}

/* Each chunk begins aligned: together they take more than the slab that was kept for a whole. */
static void test_more_chunks_than_the_slab_foresees(void **state)
{
    enum { N = 40 };
    struct fx_tensor tiny[N];
    const struct fx_tensor *all[N];
    char names[N][16];
    struct gpus_cfg world = {.n_devices = 2, .mirror = true};
    struct update_info info;
    struct gpus g;
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "made.%u", i);
        tiny[i] = (struct fx_tensor){names[i], DTYPE_F32, 1, {1}};
        all[i] = &tiny[i];
    }
    assert_int_equal(model_spec_new(&world.model_spec, fx_tensor_list(all, N), NULL, 0, &e), 0);
    gpus_open(&g, &lib, world);
    assert_true(store_whole_nbytes(g.b.store, 0) < (uint64_t)N * STAGING_ALIGN);
    for (unsigned step = 1; step < 4; step++) {
        info = start(&g.b, (struct update_start){0});
        for (unsigned i = 0; i < N; i++)
            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list(&all[i], 1), MFX_STEP(step))),
                ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_step(&g, step);
    }
    gpus_close(&g);
}

/* other names, other dtypes */

static void convert_in(struct gpus *g, unsigned step, struct mfx_cfg cfg)
{
    struct update_start req = {.convert = true};
    struct update_info info = start(&g->b, req);
    struct update_chunk *c = mfx_chunk(g, info.id, mfx_wide_tensor_list(), cfg);
    uint64_t nbytes = c->tensor_list->nbytes;

    c->checksums = mfx_sums(c->tensor_list, step); /* of the bytes as sent */
    assert_int_equal(mfx_send(g, c), ERR_NONE);
    assert_int_equal(g->b.answer.info.nbytes_done, nbytes);
    assert_int_equal(g->b.answer.info.host_sums, !device_has_kernels(g->devices[0]));
    assert_int_equal(finish(&g->b, info.id, ""), ERR_NONE);
    mfx_assert_step(g, step);
}

static void test_convert_fused_tied_and_ignored_names(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;
        struct mfx_cfg cfg = MFX_STEP(2);

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        assert_int_equal(refused(&g.b, mfx_chunk(&g, "", mfx_wide_tensor_list(), cfg)).code,
                         ERR_MISMATCH);
        convert_in(&g, 2, cfg);
        cfg.step = 3;
        cfg.n_each = 1;
        convert_in(&g, 3, cfg);
        cfg.step = 4;
        cfg.scattered = true;
        convert_in(&g, 4, cfg);
        gpus_close(&g);
    }
}

static void test_fused_names_are_taken_apart(void **state)
{
    static const struct fx_tensor *const tensors[] = {&fx_old_scale, &fx_model[6], &fx_qkv,
                                                      &fx_model[0],  &fx_model[5], &fx_model[4]};

    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned k = 0; k < 4; k++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct update_chunk *c;

            for (unsigned i = 0; i < FX_N; i++)
                assert_int_equal(
                    mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(1U << i), MFX_STEP(9))),
                    ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            info = start(&g.b, (struct update_start){0});
            c = mfx_chunk(&g, info.id, fx_tensor_list(tensors, 6), MFX_STEP(k));
            if (k % 2 != 0)
                c->checksums = mfx_sums(c->tensor_list, k);
            assert_int_equal(mfx_send(&g, c), ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, k);
        }
        gpus_close(&g);
    }
}

static void test_tied_name_must_agree_on_every_rank(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (int before = 0; before < 2; before++) {
            struct mfx_cfg lie = MFX_STEP(2);

            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, "", mfx_tied_tensor_list(before), MFX_STEP(1))),
                ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, FX_N);
            lie.corrupt_at = before ? 0 : FX_N;
            for (unsigned r = 0; r < g.n_devices; r++) {
                lie.corrupt_rank = (int)r;
                assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", mfx_tied_tensor_list(before), lie)),
                                 ERR_MISMATCH);
                assert_non_null(strstr(g.b.answer.e.msg, "lm_head.weight"));
            }
            mfx_assert_step(&g, 1);
        }
        gpus_close(&g);
    }
}

static void tied_in_another_chunk(struct gpus *g, bool first, int lying_rank)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    struct update_info info = start(&g->b, (struct update_start){0});
    struct mfx_cfg cfg = MFX_STEP(1);
    bool lies = lying_rank >= 0, at_once;

    cfg.corrupt_rank = lying_rank;
    cfg.corrupt_at = lies ? 0 : -1;
    if (!first)
        assert_int_equal(mfx_send(g, mfx_chunk(g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(1))),
                         ERR_NONE);
    /* Against an earlier target the chunk fails, against a later one its chunk does. */
    /* In a sharded store one copy is kept, and the ranks' are compared at once. */
    at_once = store_sharded(g->b.store);
    assert_int_equal(mfx_send(g, mfx_chunk(g, info.id, fx_tensor_list(head, 1), cfg)),
                     (!first || at_once) && lies ? ERR_MISMATCH : ERR_NONE);
    if (first && !(at_once && lies))
        assert_int_equal(mfx_send(g, mfx_chunk(g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(1))),
                         lies ? ERR_MISMATCH : ERR_NONE);
    if (lies)
        mfx_abort(g, info.id);
    else
        assert_int_equal(finish(&g->b, info.id, ""), ERR_NONE);
    if (mfx_info(g).serial > 0)
        mfx_assert_step(g, 1);
}

static void test_tied_name_in_another_chunk_must_agree(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (int first = 0; first < 2; first++)
            for (int rank = -1; rank < (int)g.n_devices; rank++)
                tied_in_another_chunk(&g, first != 0, rank);
        gpus_close(&g);
    }
}

static void test_tied_name_alone_brings_its_target(void **state)
{
    const struct fx_tensor *tensors[FX_N];

    (void)state;
    for (int i = 1; i < FX_N; i++)
        tensors[i] = &fx_model[i];
    tensors[0] = &fx_lm_head;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(
            mfx_send(&g, mfx_chunk(&g, "", fx_tensor_list(tensors, FX_N), MFX_STEP(1))), ERR_NONE);
        mfx_assert_step(&g, 1);
        for (unsigned step = 2; step < 4; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});

            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list(tensors, FX_N), MFX_STEP(step))),
                ERR_NONE);
            assert_int_equal(g.b.answer.info.n_missing, 0);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, FX_N);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* Ranks that get different bytes for a target that none of them got by name. */
static void test_tied_name_alone_must_agree_across_ranks(void **state)
{
    const struct fx_tensor *tensors[FX_N];

    (void)state;
    for (int i = 1; i < FX_N; i++)
        tensors[i] = &fx_model[i];
    tensors[0] = &fx_lm_head;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;
        struct mfx_cfg lie = MFX_STEP(2);

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        lie.corrupt_at = 0;
        lie.corrupt_rank = 1;
        if (g.n_devices > 1)
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", fx_tensor_list(tensors, FX_N), lie)),
                             ERR_MISMATCH);
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
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
        cmocka_unit_test(test_buckets_of_any_size_arrive),
        cmocka_unit_test(test_chunks_of_a_session_arrive),
        cmocka_unit_test(test_misaligned_views_are_moved),
        cmocka_unit_test(test_empty_tensors_arrive),
        cmocka_unit_test(test_more_chunks_than_the_slab_foresees),
        cmocka_unit_test(test_convert_fused_tied_and_ignored_names),
        cmocka_unit_test(test_fused_names_are_taken_apart),
        cmocka_unit_test(test_tied_name_must_agree_on_every_rank),
        cmocka_unit_test(test_tied_name_in_another_chunk_must_agree),
        cmocka_unit_test(test_tied_name_alone_brings_its_target),
        cmocka_unit_test(test_tied_name_alone_must_agree_across_ranks),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
