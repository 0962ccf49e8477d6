/* weights/update_recv: where buckets go that their source writes into GPU memory itself. */
#include "tests/unit/weights/recv_fixture.h"

static struct mfx_lib libs[2]; /* with kernels, and without */

static void test_buckets_of_any_size_arrive(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;
        unsigned step = 0;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        for (unsigned n_each = 0; n_each <= FX_N; n_each++) {
            struct rfx_cfg cfg = RFX_STEP(++step);

            cfg.n_each = n_each;
            assert_int_equal(rfx_push(&g, cfg), ERR_NONE);
            mfx_assert_step(&g, step);
            assert_int_equal(mfx_info(&g).serial, step);
            assert_int_equal(g.b.answer.info.mappings.n_opened, 0);
            assert_false(g.b.answer.info.host_sums);
        }
        gpus_close(&g);
    }
}

/* `bias` has 3 bytes: wherever it stands, what follows in its bucket is misaligned as it comes. */
static void test_misaligned_buckets_are_moved(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        for (unsigned turn = 0; turn < 4 * FX_N; turn++) {
            const struct fx_tensor *tensors[FX_N];
            struct rfx_cfg cfg = RFX_STEP(turn + 1);

            for (unsigned i = 0; i < FX_N; i++)
                tensors[i] = &fx_model[(i + turn) % FX_N];
            cfg.n_each = turn / FX_N;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", fx_tensor_list(tensors, FX_N), cfg)),
                             ERR_NONE);
            mfx_assert_step(&g, turn + 1);
        }
        gpus_close(&g);
    }
}

static void test_chunks_of_a_session_arrive(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[w]);
        for (unsigned step = 1; step < 4; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct rfx_cfg cfg = RFX_STEP(step);

            cfg.n_each = step;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list_of(0x15), cfg)),
                             ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, 3);
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list_of(0x0a), cfg)),
                             ERR_NONE);
            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x60), MFX_STEP(step))),
                ERR_NONE);
            if (step > 1)
                mfx_assert_step(&g, step - 1);
            assert_int_equal(finish(&g.b, info.id, "new"), ERR_NONE);
            assert_int_equal(g.n_listed, 2); /* whatever came last in other ways */
            assert_int_equal(g.group, RFX_GROUP);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

static void test_partial_updates_keep_the_rest(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[w]);
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        for (unsigned i = 0; i < FX_N; i++) {
            struct update_start req = {.partial = true};
            struct update_info info = start(&g.b, req);
            const struct version *v = NULL;
            struct err e = {0};

            assert_int_equal(
                mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list_of(1U << i), RFX_STEP(2))),
                ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            assert_int_equal(store_pin(g.b.store, &v, &e), 0);
            for (uint32_t p = 0; p < store_n_places(g.b.store); p++)
                for (uint32_t t = 0; t < FX_N; t++)
                    if (mfx_holds(g.b.store, NULL, p, t))
                        mfx_assert_view(&g, v, p, t, t <= i ? 2 : 1);
                    else
                        assert_null(v->places[p][t].slab);
            store_unpin(g.b.store, v);
        }
        gpus_close(&g);
    }
}

/* in place of what will be served */

/* What the driver has copied since: to the host, and out of bounce buffers. */
static void assert_copied(struct gpus *g, const struct fakecuda_counts *before, uint64_t nbytes,
                          uint64_t nbytes_bounces)
{
    struct fakecuda_counts now;

    g->lib->counts(&now);
    assert_int_equal(now.nbytes_copied - before->nbytes_copied, nbytes + nbytes_bounces);
    assert_int_equal(now.n_launches, before->n_launches);
    if (nbytes_bounces == 0 && !store_sharded(g->b.store)) /* there, for dropped buckets */
        assert_int_equal(now.n_allocations_made, before->n_allocations_made);
}

static void test_nothing_is_copied_that_lies_where_it_stays(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[w]);
        for (unsigned step = 1; step < 20; step++) {
            uint64_t nbytes = mfx_worlds[w].mirror
                                  ? store_model_spec(g.b.store)->tensor_list->nbytes
                                  : 0;
            const struct version *v = NULL;
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(step);
            struct fakecuda_counts before;
            struct err e = {0};

            cfg.group = &group;
            cfg.n_each = step % 7;
            g.lib->counts(&before);
            assert_int_equal(rfx_push(&g, cfg), ERR_NONE);
            /* Both versions have memory by now. A bucket that several ranks share is copied. */
            if (step > 2 && (!mfx_worlds[w].sharded || cfg.n_each == 1))
                assert_copied(&g, &before, nbytes, 0);
            assert_int_equal(store_pin(g.b.store, &v, &e), 0);
            for (unsigned r = 0; r < g.n_devices; r++)
                if (!mfx_worlds[w].sharded)
                    assert_int_equal(group.dst[0][r], v->places[r][0].addr);
                else if (cfg.n_each == 1)
                    assert_int_equal(group.dst[0][r] == v->places[r][0].addr, r == 0);
            store_unpin(g.b.store, v);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

static void test_only_what_is_misaligned_is_copied(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct gpus g;
        struct tensor_list *tensor_list = fx_tensor_list_of(FX_ALL);
        uint64_t nbytes = tensor_list->tensors[FX_N - 1].nbytes +
                          tensor_list->tensors[FX_N - 2].nbytes;

        gpus_open(&g, &libs[k], (struct gpus_cfg){.n_devices = 2});
        for (unsigned step = 1; step < 6; step++) {
            struct fakecuda_counts before;
            struct rfx_cfg cfg = RFX_STEP(step);

            cfg.n_each = FX_N - 2;
            g.lib->counts(&before);
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg)),
                             ERR_NONE);
            if (step > 2)
                assert_copied(&g, &before, 0, nbytes * g.n_devices);
            mfx_assert_step(&g, step);
        }
        tensor_list_unref(tensor_list);
        gpus_close(&g);
    }
}

/* Empty tensors, and buckets that are nothing but empty. */
static void test_empty_tensors_arrive(void **state)
{
    static const struct fx_tensor hollow[] = {
        {"empty.first", DTYPE_F32, 2, {0, 4}}, {"bias", DTYPE_U8, 1, {3}},
        {"empty.rows", DTYPE_BF16, 2, {4, 0}}, {"norm.weight", DTYPE_F32, 1, {8}},
        {"empty.last", DTYPE_F32, 1, {0}},
    };
    const struct fx_tensor *tensors[5];

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        tensors[i] = &hollow[i];
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus_cfg world = mfx_worlds[w];
        struct gpus g;
        struct err e = {0};

        assert_int_equal(model_spec_new(&world.model_spec, fx_tensor_list(tensors, 5), NULL, 0, &e),
                         0);
        gpus_open(&g, &libs[w % 2], world);
        for (unsigned step = 1; step < 12; step++) {
            struct rfx_cfg cfg = RFX_STEP(step);
            struct update_chunk *c;

            cfg.n_each = step % 6;
            c = rfx_chunk(&g, "", fx_tensor_list(tensors, 5), cfg);
            if (step > 5)
                c->checksums = mfx_sums(c->tensor_list, step);
            assert_int_equal(mfx_send(&g, c), ERR_NONE);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* other names, other dtypes */

static void convert_in(struct gpus *g, struct rfx_cfg cfg)
{
    struct update_start req = {.convert = true};
    struct update_info info = start(&g->b, req);
    struct update_chunk *c = rfx_chunk(g, info.id, mfx_wide_tensor_list(), cfg);
    uint64_t nbytes = c->tensor_list->nbytes;

    c->checksums = mfx_sums(c->tensor_list, cfg.step); /* of the bytes as sent */
    assert_int_equal(mfx_send(g, c), ERR_NONE);
    assert_int_equal(g->b.answer.info.nbytes_done, nbytes);
    assert_int_equal(g->b.answer.info.host_sums, !device_has_kernels(g->devices[0]));
    assert_int_equal(finish(&g->b, info.id, ""), ERR_NONE);
    mfx_assert_step(g, cfg.step);
}

static void test_convert_fused_tied_and_ignored_names(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        assert_int_equal(refused(&g.b, rfx_chunk(&g, "", mfx_wide_tensor_list(), RFX_STEP(2))).code,
                         ERR_MISMATCH);
        for (unsigned step = 2; step < 10; step++) {
            struct rfx_cfg cfg = RFX_STEP(step);

            cfg.n_each = step / 2 - 1;
            convert_in(&g, cfg);
        }
        gpus_close(&g);
    }
}

static void test_tied_name_must_agree(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[w]);
        for (unsigned k = 0; k < 6; k++) {
            bool before = k % 2 != 0;
            struct rfx_cfg cfg = RFX_STEP(1);

            cfg.n_each = k / 2;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", mfx_tied_tensor_list(before), cfg)),
                             ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, FX_N);
            cfg.step = 2;
            cfg.corrupt_at = before ? 0 : FX_N;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", mfx_tied_tensor_list(before), cfg)),
                             ERR_MISMATCH);
            assert_non_null(strstr(g.b.answer.e.msg, "lm_head.weight"));
            mfx_assert_step(&g, 1);
        }
        gpus_close(&g);
    }
}

/* The target comes under its other name only: every place gets it. */
static void test_tied_name_alone_brings_its_target(void **state)
{
    const struct fx_tensor *tensors[FX_N];

    (void)state;
    for (int i = 1; i < FX_N; i++)
        tensors[i] = &fx_model[i];
    tensors[0] = &fx_lm_head;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[w]);
        for (unsigned step = 1; step < 5; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct rfx_cfg cfg = RFX_STEP(step);

            cfg.n_each = step % 2;
            assert_int_equal(
                mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list(tensors, FX_N), cfg)), ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* checksums */

static void test_checksums_of_every_rank(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        for (unsigned turn = 0; turn < 4 * (FX_N + 1); turn++) {
            unsigned i = turn % (FX_N + 1); /* FX_N: none is wrong */
            bool moved = turn / (FX_N + 1) % 2 != 0;
            struct rfx_cfg cfg = RFX_STEP(i == FX_N ? 1 + turn : 2);
            unsigned serving = turn < FX_N ? 0
                                           : turn / (FX_N + 1) * (FX_N + 1) + (i == FX_N) * FX_N;
            struct rfx_group group = {0};
            struct update_chunk *c;
            char field[32];

            cfg.n_each = turn / 16 * 2;
            cfg.corrupt_at = i < FX_N ? (int)i : -1;
            cfg.corrupt_rank = (int)(turn % g.n_devices);
            if (i < FX_N && mfx_worlds[k / 2].sharded) /* wrong where it is kept */
                cfg.corrupt_rank = (int)store_owner(g.b.store, moved || i < 5 ? i : 11 - i);
            cfg.group = &group;
            c = rfx_chunk(&g, "", moved ? fx_tensor_list_of(FX_ALL) : rfx_tensor_list(), cfg);
            c->checksums = mfx_sums(c->tensor_list, cfg.step);
            (void)snprintf(field, sizeof field, "/checksums/%u", i);
            assert_int_equal(mfx_send(&g, c), i < FX_N ? ERR_CHECKSUM : ERR_NONE);
            assert_string_equal(g.b.answer.e.field, i < FX_N ? field : "");
            assert_int_equal(g.b.answer.info.host_sums, !device_has_kernels(g.devices[0]));
            assert_int_equal(group.n_whole, 1); /* the sender was not left alone with the rest */
            if (i == FX_N)
                mfx_assert_step(&g, 1 + turn);
            else if (serving > 0)
                mfx_assert_step(&g, serving);
        }
        gpus_close(&g);
    }
}

/* A received bucket too is looked at in the pass that makes its sums. */
static void test_numbers_that_are_not_finite(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        for (unsigned turn = 0; turn < 4 * FX_N; turn++) {
            struct tensor_list *tensor_list = turn / FX_N % 2 != 0 ? fx_tensor_list_of(FX_ALL)
                                                                   : rfx_tensor_list();
            const struct tensor_spec *t = &tensor_list->tensors[turn % FX_N];
            bool refused = t->dtype != DTYPE_U8;
            struct rfx_cfg cfg = RFX_STEP(refused ? 2 : 1);
            struct rfx_group group = {0};
            struct update_chunk *c;
            char field[32];

            cfg.n_each = turn / 16 * 2;
            cfg.group = &group;
            c = rfx_chunk(&g, "", tensor_list, cfg);
            mfx_nan = t->name;
            c->checksums = mfx_sums(tensor_list, cfg.step);
            (void)snprintf(field, sizeof field, "/names/%u", turn % FX_N);
            assert_int_equal(mfx_send(&g, c), refused ? ERR_NON_FINITE : ERR_NONE);
            mfx_nan = NULL;
            assert_string_equal(g.b.answer.e.field, refused ? field : "");
            assert_int_equal(group.n_whole, 1);
            assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        }
        gpus_close(&g);
    }
}

static int open_libs(void **state)
{
    (void)state;
    mfx_lib_open(&libs[0], FAKECUDA);
    mfx_lib_open(&libs[1], FAKECUDA_WITHOUT_KERNELS);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets_of_any_size_arrive),
        cmocka_unit_test(test_misaligned_buckets_are_moved),
        cmocka_unit_test(test_chunks_of_a_session_arrive),
        cmocka_unit_test(test_partial_updates_keep_the_rest),
        cmocka_unit_test(test_nothing_is_copied_that_lies_where_it_stays),
        cmocka_unit_test(test_only_what_is_misaligned_is_copied),
        cmocka_unit_test(test_empty_tensors_arrive),
        cmocka_unit_test(test_convert_fused_tied_and_ignored_names),
        cmocka_unit_test(test_tied_name_must_agree),
        cmocka_unit_test(test_tied_name_alone_brings_its_target),
        cmocka_unit_test(test_checksums_of_every_rank),
        cmocka_unit_test(test_numbers_that_are_not_finite),
    };

    return cmocka_run_group_tests(tests, open_libs, NULL);
}
