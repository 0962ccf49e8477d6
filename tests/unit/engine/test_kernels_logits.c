/* What is asked of a vocabulary's logits: every instruction set against plain definitions, sums and
 * races equal to the bit among the sets, none reading beyond what it was given. */
#include "engine/kernels/kernels.h"
#include "engine/kernels/uniform.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_MAX = 1100, N_BLOCKS = N_MAX / KERNELS_BLOCK + 1, ROUNDS = 400 };

static uint64_t rng_state = 5;

static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(rng_state >> 33);
}

/* n floats that end where reading faults. */
static float *logits;
static size_t map_nbytes;
static char *map;

static int make_map(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (N_MAX * sizeof *logits + page - 1) / page * page;

    (void)state;
    map_nbytes = body + page;
    map = mmap(NULL, map_nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return -1;
    logits = (float *)(void *)(map + body);
    return mprotect(map + body, page, PROT_NONE);
}

static int free_map(void **state)
{
    (void)state;
    return munmap(map, map_nbytes);
}

/* A row of n logits with ties; @masked  one in so many is minus infinity, 0: none. */
static float *random_row(size_t n, uint32_t masked)
{
    float *x = logits - n;

    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(int32_t)(rng() % 4000) / 100.0F - 25.0F;
        if (masked > 0 && rng() % masked == 0)
            x[i] = -INFINITY;
    }
    return x;
}

static void test_maxima_and_what_is_not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + rng() % N_MAX;
        float *x = random_row(n, 0), max[N_BLOCKS];
        bool spoilt = rng() % 2 == 0;

        x[rng() % n] = rng() % 2 ? -FLT_MAX : FLT_MAX;
        if (spoilt)
            x[rng() % n] = bad[rng() % 3];
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            const struct kernels *ks = kernels_get((enum kernels_isa)isa);

            if (ks == NULL)
                continue;
            assert_int_equal(ks->maxima(max, x, n), !spoilt);
            for (size_t b = 0; b * KERNELS_BLOCK < n; b++) {
                float expected = -INFINITY;

                for (size_t i = b * KERNELS_BLOCK; i < n && i < (b + 1) * KERNELS_BLOCK; i++)
                    expected = x[i] > expected ? x[i] : expected;
                assert_true(max[b] == expected);
            }
        }
    }
}

static void test_count_from(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + rng() % N_MAX;
        float *x = random_row(n, rng() % 3 * 7), least = x[rng() % n];
        uint32_t expected = 0;

        for (size_t i = 0; i < n; i++)
            expected += x[i] >= least;
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            const struct kernels *ks = kernels_get((enum kernels_isa)isa);

            if (ks != NULL)
                assert_int_equal(ks->count_from(x, least, n), expected);
        }
    }
}

static void test_exp_sum_is_exact_and_the_same_everywhere(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        static const double scales[] = {1, 0.5, 1 / 0.7, 100};
        size_t n = 1 + rng() % N_MAX;
        float *x = random_row(n, rng() % 3 * 7);
        double scale = scales[rng() % 4], shift = 15, first = 0;
        long double expected = 0;

        for (size_t i = 0; i < n; i++)
            expected += expl(fmaxl(((long double)x[i] - shift) * scale, -200));
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            const struct kernels *ks = kernels_get((enum kernels_isa)isa);
            double found;

            if (ks == NULL)
                continue;
            found = ks->exp_sum(x, shift, scale, n);
            first = isa == KERNELS_SCALAR ? found : first;
            assert_memory_equal(&found, &first, sizeof found);
        }
        assert_true(fabsl(first - expected) <= 1e-12L * expected);
    }
}

/* The order of the sum, spelled out: the lanes, then their halves. */
static void test_exp_sum_adds_in_eight_lanes(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + rng() % 60;
        const struct kernels *ks = kernels_get(KERNELS_SCALAR);
        double lanes[8] = {0}, found;
        float *x = random_row(n, 0);

        for (size_t i = 0; i < n; i++)
            lanes[i % 8] += ks->exp_sum(x + i, 10, 1, 1);
        for (size_t half = 4; half >= 1; half /= 2)
            for (size_t j = 0; j < half; j++)
                lanes[j] += lanes[j + half];
        found = ks->exp_sum(x, 10, 1, n);
        assert_memory_equal(&found, &lanes[0], sizeof found);
    }
}

static struct race run_race(const struct kernels *ks, const struct race *begin, const float *x,
                            size_t n, bool in_pieces)
{
    struct race r = *begin;

    for (size_t at = 0, here; at < n; at += here) {
        here = in_pieces ? 1 + rng() % 40 : n;
        here = here < n - at ? here : n - at;
        ks->race(&r, x + at, 1000 + (uint32_t)at, here);
    }
    return r;
}

/* Against the definition in long double; and in pieces, and by each set, the same to the bit. */
static void test_race_has_one_winner(void **state)
{
    uint32_t n_masked_all = 0;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + rng() % N_MAX;
        float *x = random_row(n, rng() % 5);
        struct race begin = {.key = uniform_key(rng(), rng()),
                             .max = 15,
                             .scale = 1.0 / (0.3 + rng() % 3),
                             .arrival = INFINITY};
        struct race first = run_race(kernels_get(KERNELS_SCALAR), &begin, x, n, false);
        long double best = INFINITY;

        for (size_t i = 0; i < n; i++) {
            long double w = expl(((long double)x[i] - begin.max) * begin.scale);
            long double u = uniform_of(begin.key, 1000 + (uint32_t)i);

            if (!isinf(x[i]))
                best = fminl(best, -logl(u) / w);
        }
        n_masked_all += isinf(best);
        assert_int_equal(isinf(first.arrival), isinf(best));
        if (!isinf(best))
            assert_true(fabsl(first.arrival - best) <= 1e-12L * best);
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            const struct kernels *ks = kernels_get((enum kernels_isa)isa);

            for (int pieces = 0; ks != NULL && pieces < 2; pieces++) {
                struct race r = run_race(ks, &begin, x, n, pieces);

                assert_memory_equal(&r, &first, sizeof r);
            }
        }
    }
    assert_true(n_masked_all > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maxima_and_what_is_not_finite),
        cmocka_unit_test(test_count_from),
        cmocka_unit_test(test_exp_sum_is_exact_and_the_same_everywhere),
        cmocka_unit_test(test_exp_sum_adds_in_eight_lanes),
        cmocka_unit_test(test_race_has_one_winner),
    };

    return cmocka_run_group_tests(tests, make_map, free_map);
}
