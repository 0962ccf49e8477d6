/* memory/device over the fake: changes of few units, against delta_apply. The kernels themselves
 * are compared with it in tests/gpu. */
#include "tests/unit/memory/device_fixture.h"
#include "tests/unit/scatter_cases.h"

enum { ROUNDS = 6, WORLD = 16 << 20, PART_MAX = 200 << 10 };

static void test_scatter_makes_what_delta_apply_makes(void **state)
{
    struct device *d = device_of(&whole);
    struct slab_memory memory = device_memory(d);
    struct scatter_world w;
    struct slab_pool *pool;
    struct err e = {0};

    (void)state;
    ok(slab_pool_new(&pool, &memory, UINT64_MAX, 0, &e), &e);
    ok(scatter_world_open(&w, d, pool, WORLD, PART_MAX, &e), &e);
    for (int i = 0; i < ROUNDS; i++)
        if (scatter_round(&w, &e) != 0)
            fail_msg("%s%s", w.why, e.msg);
    assert_true(w.n_good > 100 && w.n_bad > 20);
    scatter_world_close(&w);
    slab_pool_free(pool);
    device_free(d);
}

/* Behind a copy, in the order of the calls. */
static void test_scatter_follows_what_was_queued(void **state)
{
    struct device_made made;
    struct device_batch *b;
    struct err e = {0};
    struct arena a;
    struct device_piece base;
    struct scatter_piece piece;

    (void)state;
    arena_open(&a, &whole, 5);
    b = batch_of(a.d);
    base = (struct device_piece){a.w.src, a.w.dst, ARENA / 2, DTYPE_NONE};
    piece = (struct scatter_piece){.copy = {.src = a.w.dst, .dst = a.w.dst, .nbytes = ARENA / 4},
                                   .values = a.w.src + ARENA / 2,
                                   .n_values = ARENA / 4,
                                   .kind = SCATTER_ALL,
                                   .unit = 1};
    ok(device_batch_copy(b, &base, 1, NULL, &e), &e);
    ok(device_batch_scatter(b, &piece, 1, &made, &e), &e);
    ok(device_batch_scatter(b, NULL, 0, NULL, &e), &e);
    wait_for(b);
    assert_false(made.suspect || made.refused);
    device_batch_free(b);
    memcpy(a.w.host_dst, a.w.host_src, ARENA / 2);
    for (size_t i = 0; i < ARENA / 4; i++)
        a.w.host_dst[i] ^= a.w.host_src[ARENA / 2 + i];
    arena_assert(&a);
    arena_close(&a);
}

static void test_scatter_reports_every_failure(void **state)
{
    struct scatter_piece piece = {.unit = 2, .kind = SCATTER_GAP, .n_values = 3};
    struct device_made made;
    struct err e = {0};
    struct arena a;
    int n_failed = 0;

    (void)state;
    arena_open(&a, &whole, 5);
    piece.copy = (struct copy_sum_piece){.src = a.w.dst, .dst = a.w.dst, .nbytes = 18};
    piece.positions = piece.values = a.w.src;
    for (uint64_t nth = 1; nth <= 10; nth++) {
        struct device_batch *b = batch_of(a.d);

        whole.fail_nth(nth);
        n_failed += device_batch_scatter(b, &piece, 1, &made, &e) != 0;
        whole.fail_nth(0);
        err_clear(&e);
        device_batch_free(b);
    }
    assert_in_range(n_failed, 7, 9); /* push, upload, four launches, download, record */
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEVICE_TEST(test_scatter_makes_what_delta_apply_makes),
        DEVICE_TEST(test_scatter_follows_what_was_queued),
        DEVICE_TEST(test_scatter_reports_every_failure),
    };

    return run_device_tests(tests, sizeof tests / sizeof tests[0]);
}
