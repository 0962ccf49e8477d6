/* Updates of a store in which each GPU keeps its share of a version. What the suites beside it do
 * in all kinds of stores is not repeated here. */
#include "tests/unit/weights/recv_fixture.h"

static struct mfx_lib lib;

static const struct gpus_cfg worlds[] = {{.n_devices = 2, .sharded = true},
                                         {.n_devices = 3, .sharded = true}};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* A chunk that brings each rank the tensors of its mask. */
static struct update_chunk *masked(struct gpus *g, const char *id, const unsigned *masks,
                                   struct mfx_cfg cfg)
{
    struct tensor_list *lists[MFX_RANKS_MAX] = {0};

    for (unsigned r = 0; r < g->n_devices; r++)
        lists[r] = masks[r] != 0 ? fx_tensor_list_of(masks[r]) : NULL;
    return mfx_ranked(g, id, lists, cfg);
}

static unsigned owned_mask(struct gpus *g, uint32_t rank)
{
    unsigned mask = 0;

    for (uint32_t i = 0; i < FX_N; i++)
        mask |= store_owner(g->b.store, i) == rank ? 1U << i : 0;
    return mask;
}

static uint64_t nbytes_live(struct gpus *g, uint32_t rank)
{
    struct slab_stats st;

    slab_pool_stats(store_slabs(g->b.store, rank), &st);
    return st.nbytes_live + st.nbytes_idle;
}

/* The largest allocation of a pool beside the versions is the driver's granule. */
static void test_each_gpu_has_memory_for_its_share(void **state)
{
    enum { GRANULE = 2 << 20, LARGE = 16 << 20, N = 4 };
    struct fx_tensor large[N];
    const struct fx_tensor *tensors[N];

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        large[i] = (struct fx_tensor){i == 0   ? "a"
                                      : i == 1 ? "b"
                                      : i == 2 ? "c"
                                               : "d",
                                      DTYPE_U8,
                                      1,
                                      {LARGE}};
        tensors[i] = &large[i];
    }
    for (unsigned spread = 0; spread < 2; spread++) {
        struct gpus_cfg world = {.n_devices = 2, .sharded = spread != 0};
        struct err e = {0};
        struct gpus g;

        assert_int_equal(model_spec_new(&world.model_spec, fx_tensor_list(tensors, N), NULL, 0, &e),
                         0);
        gpus_open(&g, &lib, world);
        for (unsigned step = 1; step < 4; step++) {
            struct rfx_cfg cfg = RFX_STEP(step);

            cfg.n_each = 1;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", fx_tensor_list(tensors, N), cfg)),
                             ERR_NONE);
        }
        for (uint32_t r = 0; r < 2; r++)
            if (spread) /* two shares, and one bucket of the other's */
                assert_true(nbytes_live(&g, r) <= 5 * (uint64_t)LARGE + 4 * GRANULE);
            else
                assert_true(nbytes_live(&g, r) >= 8 * (uint64_t)LARGE);
        gpus_close(&g);
    }
}

/* Of each GPU what it will take: its share, also if the trainer's lists are by GPU. */
static void test_room_is_said_in_shares(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++)
        for (unsigned by_gpu = 0; by_gpu < 2; by_gpu++) {
            struct update_start req = {.lease_s = LEASE_S, .sharded = by_gpu != 0};
            struct update_room rooms[STORE_PLACES_MAX];
            struct update_info info;
            struct hog hog;
            unsigned long long share;
            char words[128];
            struct err e = {0};
            struct gpus g;

            gpus_open(&g, &lib, worlds[w]);
            assert_int_equal(mfx_push(&g, 1), ERR_NONE);
            share = store_kept_nbytes(g.b.store, 1);
            (void)snprintf(words, sizeof words,
                           "its share of a version has %llu bytes, and an update needs room for "
                           "two, %llu,",
                           share, 2 * share);
            hog_take(&hog, g.devices[1], 0);
            assert_int_equal(updates_start(g.b.updates, &req, &info, &e), -1);
            assert_int_equal(e.code, ERR_NO_STAGING);
            if (strstr(e.msg, words) == NULL)
                fail_msg("'%s' does not say '%s'", e.msg, words);
            hog_give(&hog);

            info = start(&g.b, req);
            assert_int_equal(updates_room(g.b.updates, &info, rooms), g.n_devices);
            for (uint32_t r = 0; r < g.n_devices; r++)
                assert_int_equal(rooms[r].nbytes_needed, store_whole_nbytes(g.b.store, r));
            mfx_abort(&g, info.id);
            gpus_close(&g);
        }
}

/* The owner keeps what several ranks bring; a tensor that does not come to its owner stays where it
 * came. */
static void test_lists_by_rank_are_kept_by_owners(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        unsigned all[] = {FX_ALL, FX_ALL, FX_ALL}, turned[MFX_RANKS_MAX];
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, worlds[w]);
        assert_int_equal(mfx_send(&g, masked(&g, "", all, MFX_STEP(1))), ERR_NONE);
        mfx_assert_step(&g, 1);
        for (uint32_t r = 0; r < g.n_devices; r++)
            turned[r] = owned_mask(&g, (r + 1) % g.n_devices);
        info = start(&g.b, (struct update_start){.sharded = true});
        assert_int_equal(mfx_send(&g, masked(&g, info.id, turned, MFX_STEP(2))), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_held(&g, turned, 2);
        assert_int_equal(mfx_push(&g, 3), ERR_NONE);
        mfx_assert_step(&g, 3);
        gpus_close(&g);
    }
}

/* Tensors of two GPUs by turns, in a file or body: what is adjacent where it stays is not where it
 * came from. */
static void test_turns_of_owners_arrive_from_a_file(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        unsigned step = 0;
        struct gpus g;

        gpus_open(&g, &lib, worlds[w]);
        for (unsigned first = 0; first < FX_N; first++) {
            for (unsigned second = 0; second < FX_N; second++) {
                unsigned order[FX_N] = {first, 0, second}, n = 3;
                const struct fx_tensor *tensors[FX_N];

                if (first == 0 || second == 0 || first == second)
                    continue;
                for (unsigned i = 1; i < FX_N; i++)
                    if (i != first && i != second)
                        order[n++] = i;
                for (unsigned i = 0; i < FX_N; i++)
                    tensors[i] = &fx_model[order[i]];
                step++;
                submit(&g.b, chunk_of(&g.b, "", fx_tensor_list(tensors, FX_N), FX_STEP(step)));
                assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
                mfx_assert_step(&g, step);
            }
        }
        gpus_close(&g);
    }
}

/* A tied name and its target on another GPU than the owner: no second copy is made. */
static void test_tied_name_away_from_its_owner(void **state)
{
    static const struct fx_tensor *const tied[] = {&fx_model[0], &fx_lm_head}, *const alone[] = {
                                                                                   &fx_lm_head};
    const unsigned held[] = {FX_ALL & ~1U, 1};

    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        bool lies = turn % 2 != 0, whole = turn < 2; /* else its target comes in a later chunk */
        struct tensor_list *lists[MFX_RANKS_MAX] = {
            fx_tensor_list_of(held[0]), whole ? fx_tensor_list(tied, 2) : fx_tensor_list(alone, 1)};
        struct mfx_cfg cfg = MFX_STEP(1);
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, worlds[0]);
        info = start(&g.b, (struct update_start){.sharded = true});
        cfg.corrupt_rank = 1;
        cfg.corrupt_at = !lies ? -1 : whole ? 1 : 0;
        assert_int_equal(mfx_send(&g, mfx_ranked(&g, info.id, lists, cfg)), ERR_NONE);
        if (!whole) {
            const unsigned target[] = {0, 1};

            assert_int_equal(mfx_send(&g, masked(&g, info.id, target, MFX_STEP(1))), ERR_NONE);
        }
        assert_int_equal(finish(&g.b, info.id, ""), lies ? ERR_MISMATCH : ERR_NONE);
        if (!lies)
            mfx_assert_held(&g, held, 1);
        gpus_close(&g);
    }
}

/* What came to another GPU than its owner is served, not what the owner had before. */
static void test_partial_update_of_another_gpu_is_served(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        for (unsigned i = 0; i < FX_N; i++) {
            unsigned masks[MFX_RANKS_MAX] = {0};
            struct update_info info;
            const struct version *v = NULL;
            struct err e = {0};
            struct gpus g;
            uint32_t at;

            gpus_open(&g, &lib, worlds[w]);
            assert_int_equal(mfx_push(&g, 1), ERR_NONE);
            at = (store_owner(g.b.store, i) + 1) % g.n_devices;
            masks[at] = 1U << i;
            info = start(&g.b, (struct update_start){.partial = true, .sharded = true});
            assert_int_equal(mfx_send(&g, masked(&g, info.id, masks, MFX_STEP(2))), ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            assert_int_equal(store_pin(g.b.store, &v, &e), 0);
            mfx_assert_view(&g, v, at, i, 2);
            assert_null(v->places[store_owner(g.b.store, i)][i].slab);
            store_unpin(g.b.store, v);
            gpus_close(&g);
        }
    }
}

/* A wrong copy is found although it would not be kept: as it came, and converted. */
static void test_lists_by_rank_are_compared(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, worlds[w]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        for (unsigned k = 0; k < 2 * FX_N * worlds[w].n_devices; k++) {
            struct tensor_list *lists[MFX_RANKS_MAX] = {0};
            bool wide = k % 2 != 0;
            struct mfx_cfg cfg = MFX_STEP(2);
            struct update_info info;
            struct update_chunk *c;

            for (unsigned r = 0; r < g.n_devices; r++)
                lists[r] = wide ? mfx_wide_tensor_list() : fx_tensor_list_of(FX_ALL);
            cfg.corrupt_rank = (int)(k / 2 / FX_N);
            cfg.corrupt_at = (int)(k / 2 % FX_N);
            info = start(&g.b, (struct update_start){.convert = wide});
            c = mfx_ranked(&g, info.id, lists, cfg);
            if (wide && (cfg.corrupt_at == 2 || cfg.corrupt_at == 3)) {
                update_chunk_free(c); /* the tied and the ignored name: compared otherwise */
            } else if (mfx_send(&g, c) == ERR_NONE) {
                assert_int_equal(finish(&g.b, info.id, ""), ERR_MISMATCH);
                assert_non_null(strstr(g.b.answer.e.msg, "has other bytes on"));
            } else { /* the target of the tied name, where it is kept */
                assert_int_equal(g.b.answer.e.code, ERR_MISMATCH);
                assert_true(wide && cfg.corrupt_at == 0 && cfg.corrupt_rank == 0);
                mfx_abort(&g, info.id);
            }
            if (wide && (cfg.corrupt_at == 2 || cfg.corrupt_at == 3))
                mfx_abort(&g, info.id);
            mfx_assert_step(&g, 1);
        }
        gpus_close(&g);
    }
}

/* A broadcast needs no list by rank there. */
static void test_a_broadcast_is_taken_with_placement(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        for (unsigned n_each = 0; n_each <= FX_N; n_each++) {
            struct rfx_cfg cfg = RFX_STEP(n_each + 1);
            struct update_chunk *c;
            struct gpus g;

            gpus_open(&g, &lib, worlds[w]);
            cfg.n_each = n_each;
            c = rfx_chunk(&g, "", rfx_tensor_list(), cfg);
            c->sharded = true;
            assert_int_equal(mfx_send(&g, c), ERR_NONE);
            mfx_assert_step(&g, n_each + 1);
            gpus_close(&g);
        }
    }
}

/* Two ranks of a trainer send the same: the second is compared with what the owner has. */
static void test_repeated_tensors_are_compared_at_the_owner(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORLDS; w++) {
        for (int lie = -1; lie < FX_N; lie++) {
            struct update_start req = {.trainer_ranks = 2};
            struct update_info info;
            struct gpus g;

            gpus_open(&g, &lib, worlds[w]);
            info = start(&g.b, req);
            for (uint32_t rank = 0; rank < 2; rank++) {
                struct mfx_cfg cfg = MFX_STEP(1);
                struct update_chunk *c;

                cfg.corrupt_at = rank == 1 ? lie : -1;
                c = mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), cfg);
                c->has_trainer_rank = true;
                c->trainer_rank = rank;
                assert_int_equal(mfx_send(&g, c), rank == 1 && lie >= 0 ? ERR_MISMATCH : ERR_NONE);
            }
            if (lie >= 0)
                mfx_abort(&g, info.id);
            else
                assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            if (lie < 0)
                mfx_assert_step(&g, 1);
            gpus_close(&g);
        }
    }
}

/* A store of whole versions says which option needs less memory. */
static void test_lack_of_memory_names_the_option(void **state)
{
    struct device *devices[2];
    struct store_cfg cfg = {
        .n_versions_max = 2, .nbytes_max = 1, .devices = devices, .n_devices = 2};
    struct staging_memory room;
    struct staging *g;
    struct store *s;
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(device_new(&devices[i], &lib.cu, &lib.about[i], &e), 0);
    cfg.model_spec = fx_model_spec();
    assert_int_equal(store_new(&s, &cfg, &e), 0); /* a warning */
    assert_int_equal(store_stage(s, &(struct staging_cfg){0}, CLOCK_NEVER, NULL, &g, &e), 0);
    assert_int_equal(staging_memory(g, 0, 8, &room, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "--placement sharded"));
    store_abort(s, g);
    store_free(s);
    err_clear(&e);
    cfg.model_spec = fx_model_spec();
    cfg.sharded = true; /* there is no smaller choice */
    assert_int_equal(store_new(&s, &cfg, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_null(strstr(e.msg, "--placement sharded"));
    for (unsigned i = 0; i < 2; i++)
        device_free(devices[i]);
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
        cmocka_unit_test(test_each_gpu_has_memory_for_its_share),
        cmocka_unit_test(test_room_is_said_in_shares),
        cmocka_unit_test(test_lists_by_rank_are_kept_by_owners),
        cmocka_unit_test(test_turns_of_owners_arrive_from_a_file),
        cmocka_unit_test(test_tied_name_away_from_its_owner),
        cmocka_unit_test(test_partial_update_of_another_gpu_is_served),
        cmocka_unit_test(test_lists_by_rank_are_compared),
        cmocka_unit_test(test_a_broadcast_is_taken_with_placement),
        cmocka_unit_test(test_repeated_tensors_are_compared_at_the_owner),
        cmocka_unit_test(test_lack_of_memory_names_the_option),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
