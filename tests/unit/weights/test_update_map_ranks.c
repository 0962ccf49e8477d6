/* weights/update_map: ranks that get different things, and what must hold before they are one
 * version; and served GPU memory that is overwritten in place. */
#include "tests/unit/weights/map_fixture.h"

static struct mfx_lib lib;

static const struct gpus_cfg pairs[] = {{.n_devices = 2}, {.n_devices = 2, .mirror = true}};

static struct tensor_list *none_or_tensor_list(unsigned mask)
{
    return mask != 0 ? fx_tensor_list_of(mask) : NULL;
}

/* A chunk that brings each rank the tensors of its mask. */
static struct update_chunk *masked(struct gpus *g, const char *id, const unsigned *masks,
                                   struct mfx_cfg cfg)
{
    struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {0};

    for (unsigned r = 0; r < g->n_devices; r++)
        tensor_lists[r] = none_or_tensor_list(masks[r]);
    return mfx_ranked(g, id, tensor_lists, cfg);
}

static enum err_code send_masks(struct gpus *g, const char *id, unsigned first, unsigned second,
                                unsigned step)
{
    const unsigned masks[MFX_RANKS_MAX] = {first, second};

    return mfx_send(g, masked(g, id, masks, MFX_STEP(step)));
}

static struct update_info start_sharded(struct gpus *g)
{
    return start(&g->b, (struct update_start){.sharded = true});
}

/* Rank 0 holds 0x07, rank 1 the rest and `both`. */
static void serve_sharded(struct gpus *g, unsigned both, unsigned step)
{
    struct update_info info = start_sharded(g);

    assert_int_equal(send_masks(g, info.id, 0x07, (FX_ALL & ~0x07U) | both, step), ERR_NONE);
    assert_int_equal(finish(&g->b, info.id, ""), ERR_NONE);
}

/* own tensor lists */

static void test_each_rank_has_its_own_order(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        for (unsigned step = 1; step <= FX_N; step++) {
            struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {0};
            struct mfx_cfg cfg = MFX_STEP(step);

            for (unsigned r = 0; r < g.n_devices; r++) {
                const struct fx_tensor *tensors[FX_N];

                for (unsigned i = 0; i < FX_N; i++)
                    tensors[i] = &fx_model[(i * (r + 1) + step * r) % FX_N];
                tensor_lists[r] = fx_tensor_list(tensors, FX_N);
            }
            cfg.n_each = step % 4;
            assert_int_equal(mfx_send(&g, mfx_ranked(&g, "", tensor_lists, cfg)), ERR_NONE);
            assert_int_equal(g.b.answer.info.n_tensors_done, FX_N);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

static uint64_t nbytes_of_model(void)
{
    unsigned char unused[FX_NBYTES_MAX];
    uint64_t nbytes = 0;

    for (unsigned i = 0; i < FX_N; i++)
        nbytes += fx_bytes(fx_model[i].name, 0, unused);
    return nbytes;
}

/* Ranks with tensor lists of their own may bring the same: the host's copy is made once. */
static void test_host_copy_is_made_of_one_rank(void **state)
{
    static const unsigned both[] = {FX_ALL, FX_ALL}, some[] = {0x0f, FX_ALL & ~0x05U};
    uint64_t copied[4][2]; /* by k: without the copy on the host, and with; by step */

    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        struct gpus g;

        gpus_open(&g, &lib, pairs[k % 2]);
        for (unsigned step = 1; step < 3; step++) {
            struct update_info info = start(&g.b, (struct update_start){.sharded = k >= 2});
            struct update_chunk *c = masked(&g, info.id, k < 2 ? both : some, MFX_STEP(step));
            struct fakecuda_counts before, after;

            lib.counts(&before);
            assert_int_equal(mfx_send(&g, c), ERR_NONE);
            lib.counts(&after);
            copied[k][step - 1] = after.nbytes_copied - before.nbytes_copied;
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_held(&g, k < 2 ? both : some, step);
        }
        gpus_close(&g);
    }
    for (unsigned k = 0; k < 4; k += 2)
        for (unsigned step = 0; step < 2; step++)
            assert_int_equal(copied[k + 1][step] - copied[k][step], nbytes_of_model());
}

/* Nobody sent checksums and every length is right: only the GPUs beside each other tell. */
static void test_ranks_with_lists_of_their_own_hold_the_same(void **state)
{
    static const unsigned masks[] = {FX_ALL, FX_ALL};

    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        bool in_session = k % 2 == 1, sharded = k >= 2;
        struct mfx_cfg cfg = MFX_STEP(2);
        struct update_info info = {0};
        struct update_chunk *c;
        struct gpus g;

        gpus_open(&g, &lib, pairs[1]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        if (in_session)
            info = start(&g.b, (struct update_start){.sharded = sharded});
        cfg.corrupt_rank = 1;
        cfg.corrupt_at = 3;
        c = masked(&g, info.id, masks, cfg);
        c->sharded = sharded;
        assert_int_equal(mfx_send(&g, c), in_session ? ERR_NONE : ERR_MISMATCH);
        if (in_session)
            assert_int_equal(finish(&g.b, info.id, ""), ERR_MISMATCH);
        assert_non_null(strstr(g.b.answer.e.msg, "cuda:1"));
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

static void test_replicated_rank_lacks_a_tensor(void **state)
{
    (void)state;
    for (unsigned w = 0; w < 2; w++) {
        const unsigned lacking[MFX_RANKS_MAX] = {FX_ALL, FX_ALL & ~4U};
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, pairs[w]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        assert_int_equal(refused(&g.b, masked(&g, "", lacking, MFX_STEP(2))).code, ERR_INCOMPLETE);
        for (int late = 0; late < 2; late++) {
            info = start(&g.b, (struct update_start){0});
            assert_int_equal(send_masks(&g, info.id, FX_ALL, FX_ALL & ~4U, 2), ERR_NONE);
            assert_int_equal(g.b.answer.info.n_missing, 1);
            assert_string_equal(g.b.answer.info.missing[0], fx_model[2].name);
            if (late) /* the other rank may get it in a chunk of its own */
                assert_int_equal(send_masks(&g, info.id, 0, 4, 2), ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), late ? ERR_NONE : ERR_INCOMPLETE);
            mfx_assert_step(&g, late ? 2 : 1);
        }
        gpus_close(&g);
    }
}

static void test_sharded_ranks_together_are_complete(void **state)
{
    (void)state;
    for (unsigned w = 0; w < 2; w++) {
        const unsigned masks[] = {0x07, FX_ALL & ~0x07U}, overlap[] = {0x07, FX_ALL & ~0x03U};
        struct update_info info;
        struct update_chunk *c;
        struct gpus g;

        gpus_open(&g, &lib, pairs[w]);
        serve_sharded(&g, 0, 1);
        mfx_assert_held(&g, masks, 1);
        serve_sharded(&g, 4, 2);
        mfx_assert_held(&g, overlap, 2);
        c = masked(&g, "", masks, MFX_STEP(3)); /* by itself too */
        c->sharded = true;
        assert_int_equal(mfx_send(&g, c), ERR_NONE);
        mfx_assert_held(&g, masks, 3);
        info = start_sharded(&g);
        assert_int_equal(send_masks(&g, info.id, 0x03, FX_ALL & ~0x07U, 4), ERR_NONE);
        assert_int_equal(g.b.answer.info.n_missing, 1);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_INCOMPLETE);
        assert_non_null(strstr(g.b.answer.e.msg, fx_model[2].name));
        mfx_assert_held(&g, masks, 3);
        assert_int_equal(mfx_push(&g, 5), ERR_NONE); /* and all to all again */
        mfx_assert_step(&g, 5);
        gpus_close(&g);
    }
}

static void test_three_ranks_one_without_anything(void **state)
{
    const unsigned masks[MFX_RANKS_MAX] = {0x70, 0, 0x0f};

    (void)state;
    for (int mirror = 0; mirror < 2; mirror++) {
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 3, .mirror = mirror != 0});
        info = start_sharded(&g);
        assert_int_equal(mfx_send(&g, masked(&g, info.id, masks, MFX_STEP(1))), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_held(&g, masks, 1);
        gpus_close(&g);
    }
}

/* What stood before the tensor that was refused may come again, to every rank. */
static void test_a_refused_chunk_claims_nothing(void **state)
{
    static const struct fx_tensor *const list[] = {&fx_model[4], &fx_model[5], &fx_model[0]};

    (void)state;
    for (unsigned ranked = 0; ranked < 2; ranked++) {
        struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {0};
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, pairs[0]);
        info = start(&g.b, (struct update_start){0});
        assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x0f), MFX_STEP(1))),
                         ERR_NONE);
        tensor_lists[0] = fx_tensor_list(list, 2);
        tensor_lists[1] = fx_tensor_list(list, 3);
        assert_int_equal(refused(&g.b, ranked
                                           ? mfx_ranked(&g, info.id, tensor_lists, MFX_STEP(1))
                                           : mfx_chunk(&g, info.id, tensor_lists[1], MFX_STEP(1)))
                             .code,
                         ERR_PRECONDITION);
        if (!ranked)
            tensor_list_unref(tensor_lists[0]);
        assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(0x70), MFX_STEP(1))),
                         ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

static void add_origins(struct update_chunk *c)
{
    c->n_origins = 2;
    c->origins = calloc(c->n_origins, sizeof *c->origins);
    assert_non_null(c->origins);
    c->origins[0] = (struct chunk_origin){.rank = 0, .at = "/first"};
    c->origins[1] = (struct chunk_origin){.rank = 1, .at = "/second"};
}

/* Only the second rank has bit 1: a chunk for all is refused, and one of lists where it says so. */
static void test_what_any_rank_has_is_refused(void **state)
{
    const unsigned both[MFX_RANKS_MAX] = {0x02, 0x06};
    struct update_info info;
    struct update_chunk *c;
    struct gpus g;
    struct err e;

    (void)state;
    gpus_open(&g, &lib, pairs[0]);
    info = start(&g.b, (struct update_start){0});
    assert_int_equal(send_masks(&g, info.id, 0x01, 0x03, 1), ERR_NONE);
    e = refused(&g.b, mfx_chunk(&g, info.id, fx_tensor_list_of(0x02), MFX_STEP(1)));
    assert_int_equal(e.code, ERR_PRECONDITION);
    c = masked(&g, info.id, both, MFX_STEP(1));
    add_origins(c);
    e = refused(&g.b, c);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/second/names/0");
    assert_int_equal(send_masks(&g, info.id, 0x7e, 0x7c, 1), ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 1);
    gpus_close(&g);
}

/* partial */

static void test_partial_replicated_must_come_to_every_rank(void **state)
{
    (void)state;
    for (unsigned w = 0; w < 2; w++) {
        const struct update_start partial = {.partial = true};
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, pairs[w]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        info = start(&g.b, partial);
        assert_int_equal(send_masks(&g, info.id, 0x11, 0x10, 2), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_INCOMPLETE);
        assert_non_null(strstr(g.b.answer.e.msg, fx_model[0].name));
        mfx_assert_step(&g, 1);
        info = start(&g.b, partial);
        assert_int_equal(send_masks(&g, info.id, 0x11, 0x10, 2), ERR_NONE);
        assert_int_equal(send_masks(&g, info.id, 0x6e, 0x6f, 2), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_step(&g, 2);
        gpus_close(&g);
    }
}

/* A tensor that goes to another rank leaves the one that had it. */
static void test_partial_sharded_keeps_the_rest(void **state)
{
    (void)state;
    for (unsigned w = 0; w < 2; w++) {
        const struct update_start partial = {.partial = true, .sharded = true};
        const unsigned masks[] = {0x06, FX_ALL & ~0x06U};
        const struct version *v = NULL;
        struct update_info info;
        struct err e = {0};
        struct gpus g;

        gpus_open(&g, &lib, pairs[w]);
        serve_sharded(&g, 0, 1);
        info = start(&g.b, partial);
        assert_int_equal(send_masks(&g, info.id, 0x02, 0x41, 2), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        assert_int_equal(store_pin(g.b.store, &v, &e), 0);
        for (uint32_t i = 0; i < FX_N; i++) {
            bool fresh = (0x43 & 1U << i) != 0;

            for (uint32_t p = 0; p < store_n_places(g.b.store); p++) {
                bool held = p >= 2 || (masks[p] & 1U << i) != 0;

                assert_true((v->places[p][i].slab != NULL) == held);
                if (!held)
                    continue;
                mfx_assert_view(&g, v, p, i, fresh ? 2 : 1);
                assert_int_equal(v->places[p][i].serial, fresh ? 2 : 1);
            }
        }
        store_unpin(g.b.store, v);
        gpus_close(&g);
    }
}

/* The tied name on one rank, its target on another: the ends of a pipeline. */
static void test_tied_name_on_another_rank_must_agree(void **state)
{
    const struct fx_tensor *rest[FX_N];

    (void)state;
    for (int i = 1; i < FX_N; i++)
        rest[i - 1] = &fx_model[i];
    rest[FX_N - 1] = &fx_lm_head;
    for (unsigned k = 0; k < 8; k++) {
        struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {0};
        bool swap = (k & 1) != 0, lies = (k & 2) != 0;
        struct mfx_cfg cfg = MFX_STEP(2);
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, pairs[k / 4]);
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        tensor_lists[swap] = fx_tensor_list_of(1);
        tensor_lists[!swap] = fx_tensor_list(rest, FX_N);
        cfg.corrupt_rank = !swap;
        cfg.corrupt_at = lies ? FX_N - 1 : -1;
        info = start_sharded(&g);
        assert_int_equal(mfx_send(&g, mfx_ranked(&g, info.id, tensor_lists, cfg)), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), lies ? ERR_MISMATCH : ERR_NONE);
        assert_int_equal(mfx_info(&g).serial, lies ? 1 : 2);
        if (lies)
            mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

/* in place */

static int open_lib(void **state)
{
    (void)state;
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_has_its_own_order),
        cmocka_unit_test(test_host_copy_is_made_of_one_rank),
        cmocka_unit_test(test_ranks_with_lists_of_their_own_hold_the_same),
        cmocka_unit_test(test_replicated_rank_lacks_a_tensor),
        cmocka_unit_test(test_sharded_ranks_together_are_complete),
        cmocka_unit_test(test_three_ranks_one_without_anything),
        cmocka_unit_test(test_a_refused_chunk_claims_nothing),
        cmocka_unit_test(test_what_any_rank_has_is_refused),
        cmocka_unit_test(test_partial_replicated_must_come_to_every_rank),
        cmocka_unit_test(test_partial_sharded_keeps_the_rest),
        cmocka_unit_test(test_tied_name_on_another_rank_must_agree),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
