/* weights/device over the fake: copies and sums against a model in host memory, with and without
 * kernels; waiting; memory. */
#include "tests/unit/memory/device_fixture.h"

enum { BUCKETS = 57 };

static void test_device_new_describes_itself(void **state)
{
    struct device *d = device_of(&whole), *slow = device_of(&plain);
    uint64_t now = 0, total = 0;
    struct err e = {0};

    (void)state;
    assert_string_equal(device_name(d), "cuda:0");
    assert_string_equal(device_about(d)->uuid, whole.devices[0].uuid);
    assert_true(device_has_kernels(d));
    assert_false(device_has_kernels(slow));
    assert_true(device_can_reach(d, NULL));
    assert_true(device_can_reach(d, &whole.devices[0]));
    assert_true(device_can_reach(d, &whole.devices[1]));
    ok(device_room(d, &now, &total, &e), &e);
    assert_true(now == total && total == whole.devices[0].nbytes_total);
    whole.fail_nth(1);
    assert_false(device_can_reach(d, &whole.devices[1]));
    whole.fail_nth(0);
    device_free(d);
    device_free(slow);
    device_free(NULL);
}

/* A driver that refuses the image leaves a device that sums on the host. */
static void test_device_new_goes_on_without_kernels(void **state)
{
    struct err e = {0};
    int n_without = 0;

    (void)state;
    for (uint64_t nth = 1; nth <= 10; nth++) {
        struct device *d = NULL;

        whole.fail_nth(nth);
        if (device_new(&d, &whole.cu, &whole.devices[0], &e) == 0)
            n_without += !device_has_kernels(d);
        whole.fail_nth(0);
        device_free(d);
        err_clear(&e);
    }
    assert_int_equal(n_without, 5); /* cuModuleLoadData, and cuModuleGetFunction four times */
}

/* As many are suspect as not, about. */
static void make_finite(struct arena *a)
{
    struct err e = {0};

    pieces_fill_finite(&a->w, a->w.host_src, ARENA, 30);
    pieces_fill_finite(&a->w, a->w.host_dst, ARENA, 30);
    ok(device_write(a->d, a->w.src, a->w.host_src, ARENA, &e), &e);
    ok(device_write(a->d, a->w.dst, a->w.host_dst, ARENA, &e), &e);
}

static void copies_are_the_models(struct fake_lib *f, bool summed, uint64_t seed)
{
    static struct device_piece pieces[PIECES_MAX];
    static struct device_made sums[PIECES_MAX];
    struct err e = {0};
    struct arena a;

    arena_open(&a, f, seed);
    for (int round = 0; round < 12; round++) {
        struct device_batch *b = batch_of(a.d);
        uint32_t n;

        if (round == 4)
            make_finite(&a);
        n = pieces_make(&a.w, pieces, round % 3 == 0 ? 10 : PIECES_MAX);
        memset(sums, 0x77, sizeof sums);
        ok(device_batch_copy(b, pieces, n, summed ? sums : NULL, &e), &e);
        wait_for(b);
        for (uint32_t i = 0; summed && i < n; i++) {
            assert_true(checksum_equal(sums[i].sum, pieces_sum(&a.w, &pieces[i])));
            assert_int_equal(sums[i].suspect,
                             pieces_suspect(&a.w, &pieces[i], device_has_kernels(a.d)));
        }
        device_batch_free(b);
        arena_assert(&a);
    }
    arena_close(&a);
}

static void test_device_batch_copy_moves_and_sums_every_byte(void **state)
{
    (void)state;
    copies_are_the_models(&whole, true, 11);
    copies_are_the_models(&whole, false, 12);
    copies_are_the_models(&plain, true, 13);
    copies_are_the_models(&plain, false, 14);
}

static void test_device_batch_copy_launches_once_for_many(void **state)
{
    struct device_piece pieces[17];
    struct device_made sums[17];
    struct err e = {0};
    struct arena a;
    struct device_batch *b;
    uint64_t before;

    (void)state;
    arena_open(&a, &whole, 5);
    b = batch_of(a.d);
    before = counts_of(&whole).n_launches;
    for (uint64_t i = 0; i < 17; i++)
        pieces[i] = (struct device_piece){a.w.src + i * 100, a.w.dst + i * 100, i * 3, DTYPE_NONE};
    ok(device_batch_copy(b, pieces, 0, NULL, &e), &e);
    ok(device_batch_copy(b, pieces, 16, NULL, &e), &e);
    assert_int_equal(counts_of(&whole).n_launches, before);
    ok(device_batch_copy(b, pieces, 17, NULL, &e), &e);
    assert_int_equal(counts_of(&whole).n_launches, before + 1);
    ok(device_batch_copy(b, pieces, 17, sums, &e), &e);
    assert_int_equal(counts_of(&whole).n_launches, before + 2);
    ok(device_batch_copy(b, pieces, 1, sums, &e), &e); /* of no bytes: nothing to launch */
    assert_int_equal(counts_of(&whole).n_launches, before + 2);
    wait_for(b);
    assert_true(sums[0].sum.a == 0 && sums[0].sum.b == 0);
    device_batch_free(b);
    device_batch_free(NULL);
    arena_close(&a);
}

/* Longer than what one poll reads back, and not of whole words. */
static void sums_are_the_models(struct fake_lib *f)
{
    struct checksum sum = {0};
    struct err e = {0};
    struct arena a;

    arena_open(&a, f, 21);
    for (uint64_t skip = 0; skip < 4; skip++) {
        ok(device_sum(a.d, a.w.src + skip, ARENA - 2 * skip, &sum, &e), &e);
        assert_true(checksum_equal(sum, checksum_of(a.w.host_src + skip, ARENA - 2 * skip)));
    }
    ok(device_sum(a.d, a.w.src, 0, &sum, &e), &e);
    assert_true(sum.a == 0 && sum.b == 0);
    arena_assert(&a);
    arena_close(&a);
}

static void test_device_sum_is_the_checksum(void **state)
{
    (void)state;
    sums_are_the_models(&whole);
    sums_are_the_models(&plain);
}

/* Without kernels, a poll gives back control before all is read. */
static void test_device_batch_poll_reads_back_in_parts(void **state)
{
    struct device_piece piece;
    struct device_made sums[3];
    struct err e = {0};
    struct arena a;
    struct device_batch *b;
    int rc, n_polls = 0;

    (void)state;
    arena_open(&a, &plain, 22);
    b = batch_of(a.d);
    piece = (struct device_piece){a.w.src, a.w.dst, ARENA - 1, DTYPE_NONE};
    for (int i = 0; i < 3; i++)
        ok(device_batch_copy(b, &piece, 1, &sums[i], &e), &e);
    while ((rc = device_batch_poll(b, &e)) == 0)
        n_polls++;
    assert_int_equal(rc, 1);
    assert_true(n_polls >= 2);
    for (int i = 0; i < 3; i++)
        assert_true(checksum_equal(sums[i].sum, checksum_of(a.w.host_src, ARENA - 1)));
    device_batch_free(b);
    arena_close(&a);
}

static void test_device_batch_wait_ends_early_when_told(void **state)
{
    struct progress late = {0}, stopped = patient();
    struct device_piece piece;
    struct device_made made = {.sum = {1, 2}};
    struct err e = {0};
    struct arena a;
    struct device_batch *b;

    (void)state;
    arena_open(&a, &whole, 31);
    b = batch_of(a.d);
    piece = (struct device_piece){a.w.src + 1, a.w.dst, 5000, DTYPE_NONE};
    memcpy(a.w.host_dst, a.w.host_src + 1, 5000);
    whole.hold(true);
    ok(device_batch_copy(b, &piece, 1, &made, &e), &e);
    assert_int_equal(device_batch_poll(b, &e), 0);
    late.deadline_us = clock_after_us(5000);
    assert_int_equal(device_batch_wait(b, &late, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    err_clear(&e);
    atomic_store(&stopped.stop, true);
    assert_int_equal(device_batch_wait(b, &stopped, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    assert_true(made.sum.a == 1 && made.sum.b == 2);
    whole.hold(false);
    wait_for(b);
    assert_true(checksum_equal(made.sum, checksum_of(a.w.host_dst, 5000)));
    assert_int_equal(device_batch_poll(b, &e), 1);
    device_batch_free(b);
    arena_assert(&a);
    arena_close(&a);
}

/* Freed in the middle: the bytes are there when it returns, and the sums' place is not touched. */
static void test_device_batch_free_waits_for_the_gpu(void **state)
{
    struct device_piece piece;
    struct device_made made = {.sum = {1, 2}};
    struct err e = {0};
    struct arena a;
    struct device_batch *b;

    (void)state;
    arena_open(&a, &whole, 32);
    b = batch_of(a.d);
    piece = (struct device_piece){a.w.src, a.w.dst, ARENA, DTYPE_NONE};
    memcpy(a.w.host_dst, a.w.host_src, ARENA);
    ok(device_batch_copy(b, &piece, 1, &made, &e), &e);
    device_batch_free(b);
    assert_true(made.sum.a == 1 && made.sum.b == 2);
    arena_assert(&a);
    arena_close(&a);
}

static void test_device_batch_orders_what_is_queued(void **state)
{
    struct device_piece piece;
    struct slab_memory memory;
    struct slab_pool *pool;
    struct err e = {0};
    struct slab *host;
    struct arena a;
    struct device_batch *b;
    char word[8] = "pageable", back[8];

    (void)state;
    arena_open(&a, &whole, 33);
    memory = device_pinned_memory(a.d);
    ok(slab_pool_new(&pool, &memory, UINT64_MAX, 0, &e), &e);
    ok(slab_new(&host, pool, ARENA, &e), &e);
    b = batch_of(a.d);
    memcpy(host->base, a.w.host_dst, ARENA);
    piece = (struct device_piece){a.w.dst, a.w.src, ARENA, DTYPE_NONE};
    ok(device_batch_from_host(b, a.w.dst, host->base, ARENA, &e), &e);
    ok(device_batch_copy(b, &piece, 1, NULL, &e), &e);
    ok(device_batch_from_host(b, a.w.dst, word, sizeof word, &e), &e);
    ok(device_batch_to_host(b, host->base, a.w.src, ARENA, &e), &e);
    ok(device_batch_to_host(b, back, a.w.dst, sizeof back, &e), &e);
    ok(device_batch_to_host(b, NULL, 0, 0, &e), &e);
    wait_for(b);
    assert_memory_equal(host->base, a.w.host_dst, ARENA);
    assert_memory_equal(back, word, sizeof back);
    device_batch_free(b);
    slab_unref(host);
    slab_pool_free(pool);
    arena_close(&a);
}

/* The first update finds its tables; the second asks the driver for no memory and no events. */
static void test_a_steady_update_allocates_nothing(void **state)
{
    static struct device_piece pieces[PIECES_MAX];
    static struct device_made sums[2][PIECES_MAX];
    struct fakecuda_counts before, after;
    struct err e = {0};
    struct arena a;

    (void)state;
    arena_open(&a, &whole, 41);
    before = counts_of(&whole);
    for (int round = 0; round < 2; round++) {
        struct device_batch *b[2] = {batch_of(a.d), batch_of(a.d)};

        before = round == 0 ? before : counts_of(&whole);
        for (int i = 0; i < BUCKETS; i++) {
            uint32_t n = pieces_make(&a.w, pieces, PIECES_MAX);

            ok(device_batch_copy(b[i % 2], pieces, n, sums[i % 2], &e), &e);
            wait_for(b[i % 2]);
        }
        device_batch_free(b[0]);
        device_batch_free(b[1]);
        after = counts_of(&whole);
        assert_true(after.n_host_blocks_made - before.n_host_blocks_made <= (round == 0 ? 2 : 0));
        assert_true(after.n_allocations_made - before.n_allocations_made <= (round == 0 ? 2 : 0));
        assert_true(after.n_events_made - before.n_events_made <= (round == 0 ? 2 : 0));
    }
    assert_int_equal(after.n_launches - before.n_launches, BUCKETS);
    arena_close(&a);
}

static void test_device_memory_says_what_is_missing(void **state)
{
    struct device *d = device_of(&whole);
    struct slab_memory memory = device_memory(d);
    uint64_t total = device_about(d)->nbytes_total;
    struct slab *s = NULL, *other = NULL;
    struct memory_room room;
    struct slab_pool *pool;
    struct err e = {0};

    (void)state;
    ok(slab_pool_new(&pool, &memory, UINT64_MAX, 0, &e), &e);
    ok(slab_new(&s, pool, total / 2 + 1, &e), &e);
    assert_int_equal(s->addr % DEVICE_ALIGN, 0);
    room = slab_pool_room(pool);
    assert_string_equal(room.bound, "the memory of cuda:0");
    assert_true(room.nbytes < total / 2);
    ok(slab_pool_check(pool, room.nbytes, &e), &e);
    assert_int_equal(slab_pool_check(pool, room.nbytes + 1, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "the memory of cuda:0"));
    err_clear(&e);
    assert_int_equal(slab_new(&other, pool, total / 2 + 1, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "cuda:0 are needed"));
    assert_null(other);
    slab_unref(s);
    slab_pool_free(pool);
    device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEVICE_TEST(test_device_new_describes_itself),
        DEVICE_TEST(test_device_new_goes_on_without_kernels),
        DEVICE_TEST(test_device_batch_copy_moves_and_sums_every_byte),
        DEVICE_TEST(test_device_batch_copy_launches_once_for_many),
        DEVICE_TEST(test_device_sum_is_the_checksum),
        DEVICE_TEST(test_device_batch_poll_reads_back_in_parts),
        DEVICE_TEST(test_device_batch_wait_ends_early_when_told),
        DEVICE_TEST(test_device_batch_free_waits_for_the_gpu),
        DEVICE_TEST(test_device_batch_orders_what_is_queued),
        DEVICE_TEST(test_a_steady_update_allocates_nothing),
        DEVICE_TEST(test_device_memory_says_what_is_missing),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    (void)setenv("FAKECUDA_MEMORY", "67108864", 1);
    return run_device_tests(tests, sizeof tests / sizeof tests[0]);
}
