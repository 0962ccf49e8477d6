/* weights/update_map and update_prove: checksums of what came from GPUs, made there or here. */
#include "tests/unit/weights/map_fixture.h"

static struct mfx_lib libs[2]; /* with kernels, and without */

/* Which tensors of a chunk say their checksum: half of them, and every one but an empty few. */
static void say_some(bool **has, uint32_t n, unsigned every)
{
    *has = calloc(n, sizeof **has);
    assert_non_null(*has);
    for (uint32_t i = 0; i < n; i++)
        (*has)[i] = i % every != 0;
}

/* Buckets of a request: each pointer leads to its own list of names. */
static void say_origins(struct update_chunk *c, uint32_t rank, const char *prefix, uint32_t n_each)
{
    uint32_t n = c->ranks != NULL ? c->ranks[rank].tensor_list->n_tensors
                                  : c->tensor_list->n_tensors;

    c->origins = realloc(c->origins, (c->n_origins + n) * sizeof *c->origins);
    assert_non_null(c->origins);
    for (uint32_t first = 0; first < n; first += n_each) {
        struct chunk_origin *o = &c->origins[c->n_origins++];

        *o = (struct chunk_origin){.rank = rank, .first = first};
        (void)snprintf(o->at, sizeof o->at, "%s/%u", prefix, first / n_each);
    }
}

static struct update_chunk *summed_chunk(struct gpus *g, struct mfx_cfg cfg)
{
    struct update_chunk *c = mfx_chunk(g, "", fx_tensor_list_of(FX_ALL), cfg);

    c->checksums = mfx_sums(c->tensor_list, cfg.step);
    say_origins(c, 0, "/buckets", 2);
    return c;
}

static void wrong_sum_is_refused(struct gpus *g, unsigned i, int rank, bool scattered)
{
    struct mfx_cfg cfg = MFX_STEP(2);
    char field[32];

    cfg.n_each = 2;
    cfg.scattered = scattered;
    cfg.corrupt_at = (int)i;
    cfg.corrupt_rank = rank;
    assert_int_equal(mfx_send(g, summed_chunk(g, cfg)), ERR_CHECKSUM);
    (void)snprintf(field, sizeof field, "/buckets/%u/checksums/%u", i / 2, i % 2);
    assert_string_equal(g->b.answer.e.field, field);
    assert_non_null(strstr(g->b.answer.e.msg, fx_model[i].name));
    mfx_assert_step(g, 1);
}

static void test_checksums_of_a_chunk(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct gpus g;
        struct mfx_cfg cfg = MFX_STEP(1);

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        if (k % 2 == 1)
            assert_false(device_has_kernels(g.devices[0]));
        for (unsigned n_each = 0; n_each < 4; n_each++) {
            cfg.n_each = n_each;
            cfg.scattered = n_each % 2 != 0;
            assert_int_equal(mfx_send(&g, summed_chunk(&g, cfg)), ERR_NONE);
            assert_int_equal(g.b.answer.info.host_sums, !device_has_kernels(g.devices[0]));
            mfx_assert_step(&g, 1);
        }
        for (unsigned i = 0; i < FX_N; i++)
            for (int rank = -1; rank < (int)g.n_devices; rank++)
                wrong_sum_is_refused(&g, i, rank, i % 2 != 0);
        gpus_close(&g);
    }
}

static void test_only_what_has_a_checksum_is_checked(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct gpus g;
        struct mfx_cfg cfg = MFX_STEP(1);
        struct update_chunk *c;

        gpus_open(&g, &libs[k], (struct gpus_cfg){.n_devices = 2, .mirror = true});
        for (unsigned i = 0; i < FX_N; i++) {
            cfg.corrupt_at = (int)i;
            cfg.corrupt_rank = 1;
            c = summed_chunk(&g, cfg);
            say_some(&c->has_checksum, FX_N, 2);
            assert_int_equal(mfx_send(&g, c), i % 2 != 0 ? ERR_CHECKSUM : ERR_NONE);
        }
        gpus_close(&g);
    }
}

/* Each rank its own tensor list: the pointer leads into the list of the rank whose bytes are wrong.
 */
static void test_checksums_of_ranks_with_their_own_tensor_lists(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct gpus g;

        gpus_open(&g, &libs[k], (struct gpus_cfg){.n_devices = 2, .mirror = k != 0});
        for (unsigned i = 0; i <= FX_N; i++) {
            const struct fx_tensor *turned[FX_N];
            struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {0};
            struct mfx_cfg cfg = MFX_STEP(1 + (i < FX_N));
            struct update_chunk *c;
            char field[64];

            for (unsigned t = 0; t < FX_N; t++)
                turned[t] = &fx_model[FX_N - 1 - t];
            tensor_lists[0] = fx_tensor_list_of(FX_ALL);
            tensor_lists[1] = fx_tensor_list(turned, FX_N);
            cfg.corrupt_rank = 1;
            cfg.corrupt_at = i < FX_N ? (int)i : -1;
            c = mfx_ranked(&g, "", tensor_lists, cfg);
            for (uint32_t r = 0; r < 2; r++) {
                c->ranks[r].checksums = mfx_sums(tensor_lists[r], cfg.step);
                say_origins(c, r, r == 0 ? "/per_gpu/a" : "/per_gpu/b", 3);
            }
            assert_int_equal(mfx_send(&g, c), i < FX_N ? ERR_CHECKSUM : ERR_NONE);
            (void)snprintf(field, sizeof field, "/per_gpu/b/%u/checksums/%u", i / 3, i % 3);
            assert_string_equal(g.b.answer.e.field, i < FX_N ? field : "");
        }
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

/* finish */

enum { N_SAID = FX_N + 2 };

static void say_all(struct update_checksum *out, unsigned step)
{
    static const char *const aliases[] = {"lm_head.weight", "layers.0.qkv"};
    unsigned char sent[FX_NBYTES_MAX];

    for (unsigned i = 0; i < N_SAID; i++) {
        out[i].name = i < FX_N ? fx_model[i].name : aliases[i - FX_N];
        out[i].sum = checksum_of(sent, fx_bytes(out[i].name, step, sent));
    }
}

static enum err_code finish_said(struct gpus *g, const char *id, const struct update_checksum *said)
{
    struct err e = {0};

    assert_int_equal(updates_finish(g->b.updates, id, "", said, N_SAID, fx_done, &g->b.answer, &e),
                     0);
    return fx_await(&g->b.answer);
}

static void test_checksums_at_finish_are_of_every_place(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct update_checksum said[N_SAID];
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        say_all(said, 1);
        info = start(&g.b, (struct update_start){0});
        assert_int_equal(
            mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(1))), ERR_NONE);
        assert_int_equal(finish_said(&g, info.id, said), ERR_NONE);
        assert_int_equal(g.b.answer.info.host_sums, !device_has_kernels(g.devices[0]));
        mfx_assert_step(&g, 1);
        say_all(said, 2);
        for (int rank = 0; rank < (int)g.n_devices; rank++) {
            struct mfx_cfg lie = MFX_STEP(2);
            unsigned i = (unsigned)rank * 3;

            lie.corrupt_at = (int)i; /* embed, v, last */
            lie.corrupt_rank = rank;
            info = start(&g.b, (struct update_start){0});
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), lie)),
                             ERR_NONE);
            if (!mfx_holds(g.b.store, NULL, (uint32_t)rank, i)) { /* the lie is not kept */
                mfx_abort(&g, info.id);
                continue;
            }
            assert_int_equal(finish_said(&g, info.id, said), ERR_CHECKSUM);
            assert_non_null(strstr(g.b.answer.e.field, fx_model[i].name));
            if (store_n_places(g.b.store) > 1)
                assert_non_null(strstr(g.b.answer.e.msg, device_name(g.devices[rank])));
            assert_int_equal(g.b.answer.info.phase, UPDATE_ABORTED);
            mfx_assert_step(&g, 1);
        }
        gpus_close(&g);
    }
}

/* Only the fused name is said: on each rank its pieces are summed as one. */
static void test_checksum_of_a_fused_name_at_finish(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct update_checksum said[N_SAID];
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        say_all(said, 2);
        for (int i = 0; i < N_SAID; i++)
            said[i] = said[FX_N + 1];
        for (int rank = -1; rank < (int)g.n_devices; rank++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct mfx_cfg cfg = MFX_STEP(2);
            bool seen;

            cfg.corrupt_rank = rank;
            cfg.corrupt_at = rank < 0 ? -1 : 3; /* v */
            assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), cfg)),
                             ERR_NONE);
            seen = rank >= 0 && mfx_holds(g.b.store, NULL, (uint32_t)rank, 3);
            assert_int_equal(finish_said(&g, info.id, said), seen ? ERR_CHECKSUM : ERR_NONE);
            mfx_assert_step(&g, 2);
        }
        gpus_close(&g);
    }
}

/* What a reader asks for later, kept by the version. */
static void test_checksum_of_what_is_served(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        unsigned char want[FX_NBYTES_MAX];
        const struct version *v = NULL;
        struct checksum sum;
        struct err e = {0};
        struct gpus g;

        gpus_open(&g, &libs[k % 2], mfx_worlds[k / 2]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        assert_int_equal(store_pin(g.b.store, &v, &e), 0);
        for (uint32_t i = 0; i < FX_N; i++) {
            assert_int_equal(store_checksum(g.b.store, v, i, &sum, &e), 0);
            assert_true(
                checksum_equal(sum, checksum_of(want, fx_bytes(fx_model[i].name, 1, want))));
        }
        store_unpin(g.b.store, v);
        gpus_close(&g);
    }
}

/* A chunk that failed took no tensor: nothing that was computed of its bytes belongs to those that
 * come later, of which a GPU makes no checksum. */
static void test_failed_chunk_leaves_no_checksum(void **state)
{
    const struct fx_source_cfg failing[] = {
        {.step = 2, .fail_at = FX_N - 1, .corrupt_at = -1},
        {.step = 2, .fail_at = -1, .corrupt_at = -1, .short_by_one = true},
    };

    (void)state;
    for (unsigned k = 0; k < 2 * MFX_WORLDS; k++) {
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &libs[0], mfx_worlds[k / 2]);
        assert_int_equal(push(&g.b, 1, "one"), ERR_NONE);
        info = start(&g.b, (struct update_start){0});
        submit(&g.b, chunk_of(&g.b, info.id, fx_tensor_list_of(FX_ALL), failing[k % 2]));
        assert_int_equal(fx_await(&g.b.answer), ERR_UNREADABLE);
        assert_int_equal(
            mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(3))), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, "two"), ERR_NONE);
        assert_int_equal(g.b.answer.info.changes.n[CHANGE_NOT_COMPARED], FX_N);
        mfx_assert_step(&g, 3);
        gpus_close(&g); /* compares the checksums that were kept with the bytes */
    }
}

/* Numbers that are not finite: seen in the pass that sums, whatever it is that makes the sums. */

/* The model; or, in the other order, with q, k and v in one. */
static struct tensor_list *finite_tensor_list(bool fused)
{
    const struct fx_tensor *tensors[] = {&fx_model[6], &fx_model[5], &fx_model[4], &fx_qkv,
                                         &fx_model[0]};

    return fused ? fx_tensor_list(tensors, 5) : fx_tensor_list_of(FX_ALL);
}

static void send_nan(struct gpus *g, struct tensor_list *tensor_list, uint32_t i, unsigned round,
                     enum non_finite_policy policy)
{
    const struct update_info *info = &g->b.answer.info;
    bool finite = tensor_list->tensors[i].dtype == DTYPE_U8, summed = round % 3 != 0;
    bool refused = !finite && summed && policy == NON_FINITE_REFUSE;
    struct mfx_cfg cfg = MFX_STEP(2);
    struct update_chunk *c;
    char field[32];

    mfx_nan = tensor_list->tensors[i].name;
    cfg.n_each = round % 4;
    cfg.scattered = round / 4 % 2 != 0;
    c = mfx_chunk(g, "", tensor_list_ref(tensor_list), cfg);
    c->checksums = summed ? mfx_sums(tensor_list, cfg.step) : NULL;
    assert_int_equal(mfx_send(g, c), refused ? ERR_NON_FINITE : ERR_NONE);
    (void)snprintf(field, sizeof field, "/names/%u", i);
    assert_string_equal(g->b.answer.e.field, refused ? field : "");
    assert_int_equal(refused, strstr(g->b.answer.e.msg, mfx_nan) != NULL);
    assert_int_equal(refused, strstr(g->b.answer.e.msg, "NaN at index") != NULL);
    assert_int_equal(info->non_finite.n, !finite && summed && policy == NON_FINITE_WARN);
    if (info->non_finite.n > 0)
        assert_string_equal(info->non_finite.names[0], mfx_nan);
    mfx_nan = NULL;
    if (refused)
        mfx_assert_step(g, 1);
}

static void test_numbers_that_are_not_finite(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 12; k++) {
        struct gpus_cfg cfg = mfx_worlds[k / 6 * (MFX_WORLDS - 1)];
        struct gpus g;

        cfg.non_finite = (enum non_finite_policy)(k % 3);
        gpus_open(&g, &libs[k / 3 % 2], cfg);
        for (unsigned fused = 0; fused < 2; fused++) {
            struct tensor_list *tensor_list = finite_tensor_list(fused != 0);

            for (unsigned round = 0; round < 6; round++) {
                for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
                    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
                    send_nan(&g, tensor_list, i, round, cfg.non_finite);
                }
            }
            tensor_list_unref(tensor_list);
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
        cmocka_unit_test(test_checksums_of_a_chunk),
        cmocka_unit_test(test_only_what_has_a_checksum_is_checked),
        cmocka_unit_test(test_checksums_of_ranks_with_their_own_tensor_lists),
        cmocka_unit_test(test_checksums_at_finish_are_of_every_place),
        cmocka_unit_test(test_checksum_of_a_fused_name_at_finish),
        cmocka_unit_test(test_checksum_of_what_is_served),
        cmocka_unit_test(test_failed_chunk_leaves_no_checksum),
        cmocka_unit_test(test_numbers_that_are_not_finite),
    };

    return cmocka_run_group_tests(tests, open_libs, NULL);
}
