/* weights/update_recv: buckets that are posted before those ahead of them have come, and what
 * becomes of them when something fails meanwhile. Logs as in test_update_recv_ends.c. */
#include "tests/unit/weights/recv_fixture.h"

enum { SMALL_N = 40, PAIRS = 6 };

static struct mfx_lib lib;

/* Floats, of which any bucket comes to where it stays; or one of 3 bytes in front of each, and no
 * pair of them does. */
static struct tensor_list *small_tensor_list(bool pairs)
{
    struct fx_tensor made[SMALL_N];
    const struct fx_tensor *tensors[SMALL_N];
    char names[SMALL_N][16];
    unsigned n = pairs ? 2 * PAIRS : SMALL_N;

    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "made.%02u", i);
        made[i] = pairs && i % 2 == 0 ? (struct fx_tensor){names[i], DTYPE_U8, 1, {3}}
                                      : (struct fx_tensor){names[i], DTYPE_F32, 2, {4, 16}};
        tensors[i] = &made[i];
    }
    return fx_tensor_list(tensors, n);
}

static void open_of(struct gpus *g, struct gpus_cfg world, bool pairs)
{
    struct err e = {0};

    assert_int_equal(model_spec_new(&world.model_spec, small_tensor_list(pairs), NULL, 0, &e), 0);
    gpus_open(g, &lib, world);
}

static void log_clear(struct gpus *g)
{
    mtx_lock(&g->watch.lock);
    memset(g->watch.log, 0, sizeof g->watch.log);
    mtx_unlock(&g->watch.lock);
}

/* As many as may be at first, and then one for each that has come. */
static void assert_all_ahead(struct gpus *g)
{
    char log[512] = "";
    size_t len = 0;

    for (int i = 0; i < SMALL_N + SOURCE_POSTED_MAX; i++) {
        if (i < SMALL_N)
            len += (size_t)snprintf(log + len, sizeof log - len, "P%d", i);
        if (i + 1 >= SOURCE_POSTED_MAX && i + 1 - SOURCE_POSTED_MAX < SMALL_N)
            len += (size_t)snprintf(log + len, sizeof log - len, "V%d", i + 1 - SOURCE_POSTED_MAX);
    }
    (void)snprintf(log + len, sizeof log - len, "C");
    mfx_assert_log(&g->watch, log);
}

static void test_what_stays_is_posted_ahead(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        open_of(&g, mfx_worlds[w], false);
        for (unsigned step = 1; step < 5; step++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(step);
            struct update_chunk *c;

            cfg.n_each = 1;
            cfg.group = &group;
            c = rfx_chunk(&g, info.id, small_tensor_list(false), cfg);
            if (step % 2 != 0)
                c->checksums = mfx_sums(c->tensor_list, step);
            log_clear(&g);
            assert_int_equal(mfx_send(&g, c), ERR_NONE);
            assert_all_ahead(&g);
            assert_int_equal(group.n_ahead, SOURCE_POSTED_MAX);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

/* Any bucket, waited for or posted, whatever is under way: what serves stays, and the chunk may be
 * sent again. */
static void test_any_bucket_may_fail(void **state)
{
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        int n = pairs ? PAIRS : SMALL_N;
        struct update_info info;
        struct gpus g;

        open_of(&g, (struct gpus_cfg){.n_devices = 2, .mirror = true}, pairs);
        assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", small_tensor_list(pairs), RFX_STEP(1))),
                         ERR_NONE);
        info = start(&g.b, (struct update_start){0});
        for (int at = 0; at < 2 * n; at++) {
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(2);
            struct update_chunk *c;

            cfg.n_each = 1 + (unsigned)pairs;
            *(at < n ? &cfg.fail_at : &cfg.fail_post_at) = at % n;
            cfg.fail_code = at % 2 != 0 ? ERR_NCCL : ERR_GONE;
            cfg.group = &group;
            c = rfx_chunk(&g, info.id, small_tensor_list(pairs), cfg);
            c->checksums = mfx_sums(c->tensor_list, 2);
            assert_int_equal(mfx_send(&g, c), cfg.fail_code);
            assert_string_equal(g.b.answer.e.msg, "the sender died");
            assert_int_equal(group.n_torn, at != n); /* nothing was posted there */
            mfx_assert_step(&g, 1);
        }
        assert_int_equal(
            mfx_send(&g, rfx_chunk(&g, info.id, small_tensor_list(pairs), RFX_STEP(2))), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_step(&g, 2);
        gpus_close(&g);
    }
}

static bool is_among(uint64_t at, unsigned rank, const struct rfx_group *lost)
{
    bool yes = false;

    for (unsigned k = 0; k < lost->n_buckets; k++)
        yes = yes || at == lost->dst[k][rank];
    return yes;
}

/* An abort that does not come back, with a bucket under way in each bounce buffer: nothing comes to
 * lie in either of them any more. */
static void test_memory_of_all_that_was_posted_goes_to_nobody(void **state)
{
    (void)state;
    for (int by_post = 0; by_post < 2; by_post++) {
        struct rfx_group lost = {0};
        struct rfx_cfg cfg = RFX_STEP(2);
        struct update_info info;
        struct gpus g;

        open_of(&g, (struct gpus_cfg){.n_devices = 2}, true);
        for (unsigned i = 0; i < 2;
             i++) /* both versions have their memory, and so have bounce buffers */
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", small_tensor_list(true), RFX_STEP(1))),
                             ERR_NONE);
        info = start(&g.b, (struct update_start){0});
        cfg.n_each = 2;
        cfg.fail_at = by_post ? -1 : 0;
        cfg.fail_post_at = by_post ? 2 : -1;
        cfg.fail_code = ERR_NCCL;
        cfg.stuck = true;
        cfg.group = &lost;
        assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, small_tensor_list(true), cfg)),
                         ERR_NCCL);
        assert_int_equal(lost.n_buckets, BOUNCES_MAX);
        mfx_abort(&g, info.id);
        for (unsigned step = 3; step < 7; step++) {
            struct rfx_group group = {0};

            cfg = RFX_STEP(step);
            cfg.n_each = 2;
            cfg.group = &group;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, "", small_tensor_list(true), cfg)),
                             ERR_NONE);
            for (unsigned k = 0; k < group.n_buckets; k++)
                for (unsigned r = 0; r < g.n_devices && !by_post; r++)
                    assert_false(is_among(group.dst[k][r], r, &lost));
            mfx_assert_step(&g, step);
        }
        /* By then the first of them had come, and its bounce buffer was free. */
        g.before.n_allocations += g.n_devices * (by_post ? 1U : BOUNCES_MAX);
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
        cmocka_unit_test(test_what_stays_is_posted_ahead),
        cmocka_unit_test(test_any_bucket_may_fail),
        cmocka_unit_test(test_memory_of_all_that_was_posted_goes_to_nobody),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
