/* The sampler against the definitions: a sorted list, long doubles, and the exact distribution. */
#include "tests/unit/take_logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 16, N_DRAWS = 100000 };

/* Two ties, one far below. */
static const float logits16[VOCAB] = {0.5F,  2.0F, -1.0F, 2.0F,  1.25F, -0.5F, 0.5F,  0.0F,
                                      -8.0F, 3.0F, 1.0F,  -2.5F, 0.75F, 1.25F, -3.0F, 0.25F};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

static struct gen_params params_of(float temperature, float top_p, int32_t top_k, float min_p)
{
    struct gen_params p;

    gen_params_init(&p);
    p.temperature = temperature;
    p.top_p = top_p;
    p.top_k = top_k;
    p.min_p = min_p;
    return p;
}

static struct sampler *make(uint32_t vocab_size)
{
    struct sampler *s = NULL;
    struct err e = {0};

    assert_int_equal(sampler_new(&s, vocab_size, &e), 0);
    return s;
}

static struct sampler_row row_of(const float *logits, uint32_t n)
{
    struct sampler_row row;

    assert_true(measure_row(&row, logits, n, 1));
    return row;
}

static void test_row_refuses_what_is_not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (uint32_t at = 0; at < VOCAB; at++) {
            struct sampler_row row;
            float logits[VOCAB];

            memcpy(logits, logits16, sizeof logits);
            logits[at] = bad[i];
            assert_false(measure_row(&row, logits, VOCAB, 1));
        }
}

static void test_logprob_is_log_softmax(void **state)
{
    struct sampler_row row = row_of(logits16, VOCAB);
    long double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += expl((long double)logits16[i]);
    for (uint32_t i = 0; i < VOCAB; i++)
        assert_float_equal(sampler_logprob(&row, i), (float)((long double)logits16[i] - logl(sum)),
                           1e-7F);
}

/* How many of the sixteen are not less. */
static uint32_t count_from(float logit)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        n += logits16[i] >= logit;
    return n;
}

static void test_temper_divides_the_logits(void **state)
{
    static const struct {
        float asked, counts; /* as */
    } rows[] = {{0.5F, 0.5F}, {2.0F, 2.0F}, {0.0F, 1.0F}, {0.001F, 0.01F}, {1.0F, 1.0F}};

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct sampler_row row;
        long double sum = 0;

        assert_true(measure_row(&row, logits16, VOCAB, rows[r].asked));
        for (uint32_t i = 0; i < VOCAB; i++)
            sum += expl((long double)logits16[i] / (long double)rows[r].counts);
        for (uint32_t i = 0; i < VOCAB; i++) {
            assert_float_equal(
                sampler_logprob(&row, i),
                (float)((long double)logits16[i] / (long double)rows[r].counts - logl(sum)), 1e-4F);
            assert_int_equal(sampler_rank(&row, i), count_from(logits16[i]));
        }
    }
}

static void test_logprob_has_a_floor_and_no_infinity(void **state)
{
    static const float logits[] = {3e38F, -3e38F, 0.0F, 3e38F};
    struct sampler_row row = row_of(logits, 4);

    (void)state;
    assert_float_equal(sampler_logprob(&row, 0), -logf(2.0F), 1e-6F);
    assert_true(sampler_logprob(&row, 1) == SAMPLER_LOGPROB_MIN);
    assert_true(sampler_logprob(&row, 2) == SAMPLER_LOGPROB_MIN);
    assert_int_equal(sampler_rank(&row, 2), 4);
}

static void test_rank_counts_ties(void **state)
{
    struct sampler_row row = row_of(logits16, VOCAB);

    (void)state;
    assert_int_equal(sampler_rank(&row, 9), 1);
    assert_int_equal(sampler_rank(&row, 1), 3);
    assert_int_equal(sampler_rank(&row, 3), 3);
    assert_int_equal(sampler_rank(&row, 8), VOCAB);
}

struct entry {
    float logit;
    uint32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Few distinct values, so that ties cross the end of the list. */
static void test_top_equals_a_sort(void **state)
{
    enum { N = 300 };
    uint64_t seed = 7;

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t n = 1 + (uint32_t)(next_random(&seed) % N), k;
        struct gen_top top[N + 10];
        struct entry sorted[N];
        float logits[N];
        struct sampler_row row;

        for (uint32_t i = 0; i < n; i++) {
            logits[i] = (float)(next_random(&seed) % 40) / 4.0F;
            sorted[i] = (struct entry){logits[i], i};
        }
        qsort(sorted, n, sizeof *sorted, by_logit);
        row = row_of(logits, n);
        k = (uint32_t)(next_random(&seed) % (round % 2 == 0 ? 21 : N + 10));
        assert_int_equal(sampler_top(&row, k, top), k < n ? k : n);
        for (uint32_t i = 0; i < k && i < n; i++) {
            assert_int_equal(top[i].id, sorted[i].id);
            assert_true(top[i].logprob == sampler_logprob(&row, top[i].id));
            assert_int_equal(top[i].rank, sampler_rank(&row, top[i].id));
        }
    }
}

static void test_greedy_takes_the_lowest_of_equal_ids(void **state)
{
    struct gen_params p = params_of(0, 1, 0, 0);
    static const uint32_t masked[] = {9, 1};
    struct sampler_draw d = {.params = &p};
    struct sampler_row row = row_of(logits16, VOCAB);
    struct sampler *s = make(VOCAB);
    uint32_t id = 99;

    (void)state;
    assert_true(sampler_pick(s, &row, &d, &id));
    assert_int_equal(id, 9);
    d.masked = masked;
    d.n_masked = 1;
    assert_true(sampler_pick(s, &row, &d, &id));
    assert_int_equal(id, 1);
    d.n_masked = 2;
    p.temperature = 9e-6F;
    assert_true(sampler_pick(s, &row, &d, &id));
    assert_int_equal(id, 3);
    sampler_free(s);
}

static void test_pick_refuses_when_all_is_masked(void **state)
{
    static const uint32_t masked[] = {0, 1, 2, 1};
    struct gen_params p = params_of(0, 1, 0, 0);
    struct sampler_draw d = {.params = &p, .masked = masked, .n_masked = 4};
    struct sampler_row row = row_of(logits16, 3);
    struct sampler *s = make(3);
    uint32_t id = 99;

    (void)state;
    assert_false(sampler_pick(s, &row, &d, &id));
    p.temperature = 1;
    assert_false(sampler_pick(s, &row, &d, &id));
    assert_int_equal(id, 99);
    sampler_free(s);
}

static void test_small_temperatures_count_as_a_hundredth(void **state)
{
    struct gen_params least = params_of(0.01F, 1, 0, 0), less = params_of(1e-7F, 1, 0, 0);
    static const float close[] = {0.0F, 0.01F, 0.005F, -0.01F};
    struct sampler_draw d = {.params = &least}, d2 = {.params = &less};
    struct sampler_row row = row_of(close, 4);
    struct sampler *s = make(4);
    uint32_t n_not_best = 0;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t id, id2;

        d.index = d2.index = i;
        assert_true(sampler_pick(s, &row, &d, &id) && sampler_pick(s, &row, &d2, &id2));
        assert_int_equal(id, id2);
        n_not_best += id != 1;
    }
    assert_in_range(n_not_best, 300, 900); /* e^0 + e^-.5 + ...: it is a draw, not greedy */
    sampler_free(s);
}

/* The definition: a full sort, ascending, as in the reference. */
static void exact(const struct gen_params *p, const float *logits, const bool *masked, double *prob)
{
    struct entry sorted[VOCAB];
    double w[VOCAB], sum = 0, below = 0, max = -INFINITY;
    bool keep[VOCAB];
    uint32_t n = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        if (!masked[i])
            max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < VOCAB; i++) {
        w[i] = exp(((double)logits[i] - max) / (double)p->temperature);
        keep[i] = !masked[i] && w[i] >= (double)p->min_p;
        if (keep[i])
            sorted[n++] = (struct entry){logits[i], i};
    }
    qsort(sorted, n, sizeof *sorted, by_logit);
    for (uint32_t i = 0; i < n; i++)
        if (p->top_k > 0 && i >= (uint32_t)p->top_k && sorted[i].logit < sorted[p->top_k - 1].logit)
            keep[sorted[i].id] = false;
    for (uint32_t i = 0; i < n; i++)
        sum += keep[sorted[i].id] ? w[sorted[i].id] : 0;
    for (uint32_t i = n; i-- > 1;)
        if (keep[sorted[i].id]) {
            below += w[sorted[i].id];
            keep[sorted[i].id] = below > (1 - (double)p->top_p) * sum;
        }
    sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += keep[i] ? w[i] : 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        prob[i] = keep[i] ? w[i] / sum : 0;
}

/* Chi-square over its degrees of freedom, as a number of standard deviations (Wilson-Hilferty).
 * A token of probability 0 that came makes it infinite. */
static double deviation(const uint32_t *count, const double *prob)
{
    double x = 0, df = -1, third;

    for (uint32_t i = 0; i < VOCAB; i++) {
        double expected = prob[i] * N_DRAWS;

        if (expected <= 0) {
            if (count[i] > 0)
                return INFINITY;
            continue;
        }
        x += (count[i] - expected) * (count[i] - expected) / expected;
        df++;
    }
    if (df <= 0)
        return 0;
    third = 2 / (9 * df);
    return (cbrt(x / df) - (1 - third)) / sqrt(third);
}

static void draw(const struct gen_params *p, const bool *masked, bool by_seed, uint32_t *count)
{
    struct gen_params mine = *p;
    struct sampler_draw d = {.params = &mine};
    struct sampler_row row = row_of(logits16, VOCAB);
    struct sampler *s = make(VOCAB);
    uint32_t ids[VOCAB], id;

    for (uint32_t i = 0; i < VOCAB; i++)
        if (masked[i])
            ids[d.n_masked++] = i;
    d.masked = ids;
    memset(count, 0, VOCAB * sizeof *count);
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        mine.seed = by_seed ? i : 42;
        d.index = by_seed ? 3 : i;
        assert_true(sampler_pick(s, &row, &d, &id));
        count[id]++;
    }
    sampler_free(s);
}

static const struct {
    const char *name;
    float temperature, top_p;
    int32_t top_k;
    float min_p;
    uint32_t n_masked; /* the lowest ids */
    uint32_t n_kept;   /* tokens that can come */
} rules[] = {
    {"plain", 1, 1, 0, 0, 0, 16},
    {"hot", 2.5F, 1, -1, 0, 0, 16},
    {"cold", 0.3F, 1, 0, 0, 0, 16},
    {"top_k", 1, 1, 5, 0, 0, 5},
    {"top_k with a tie at the threshold", 1, 1, 2, 0, 0, 3},
    {"top_k of all", 1, 1, 16, 0, 0, 16},
    {"top_k of one", 1, 1, 1, 0, 0, 1},
    {"top_p", 1, 0.8F, 0, 0, 0, 6},
    {"top_p of nearly nothing", 1, 1e-6F, 0, 0, 0, 1},
    {"top_p of nearly all", 1, 0.9999F, 0, 0, 0, 15},
    {"min_p", 1, 1, 0, 0.1F, 0, 7},
    {"min_p of all", 1, 1, 0, 1.0F, 0, 1},
    {"top_k, then top_p of what is left", 1, 0.7F, 4, 0, 0, 3},
    {"all of them, warm", 1.7F, 0.9F, 9, 0.2F, 0, 8},
    {"masked", 1, 1, 0, 0, 10, 6},
    {"masked, top_p", 0.8F, 0.9F, 0, 0, 4, 5},
};

static void test_draws_follow_the_exact_distribution(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct gen_params p = params_of(rules[i].temperature, rules[i].top_p, rules[i].top_k,
                                        rules[i].min_p);
        bool masked[VOCAB] = {false};
        uint32_t count[VOCAB], n_kept = 0;
        double prob[VOCAB];

        for (uint32_t k = 0; k < rules[i].n_masked; k++)
            masked[k] = true;
        exact(&p, logits16, masked, prob);
        for (uint32_t k = 0; k < VOCAB; k++)
            n_kept += prob[k] > 0;
        for (int by_seed = 0; by_seed < 2; by_seed++) {
            draw(&p, masked, by_seed, count);
            if (deviation(count, prob) > 4.5 || n_kept != rules[i].n_kept)
                fail_msg("%s, by %s: %u tokens can come, %g standard deviations", rules[i].name,
                         by_seed ? "seed" : "index", n_kept, deviation(count, prob));
        }
    }
}

/* The helper above is worth something only if it sees a wrong distribution. */
static void test_deviation_sees_a_wrong_temperature(void **state)
{
    struct gen_params p = params_of(1.1F, 1, 0, 0), right = params_of(1, 1, 0, 0);
    bool masked[VOCAB] = {false};
    uint32_t count[VOCAB];
    double prob[VOCAB];

    (void)state;
    draw(&p, masked, false, count);
    exact(&right, logits16, masked, prob);
    assert_true(deviation(count, prob) > 8);
}

/* Sharp logits let the race skip most tokens: the answer must be that of the full race. */
static void test_draws_do_not_depend_on_what_was_filtered(void **state)
{
    enum { N = 512 };
    struct gen_params open = params_of(1, 1, 0, 0), closed = params_of(1, 1, N - 1, 1e-30F);
    struct sampler_draw d = {.params = &open}, d2 = {.params = &closed};
    struct sampler *s = make(N);
    float logits[N];
    uint64_t seed = 3;

    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        struct sampler_row row;
        uint32_t id, id2;

        for (uint32_t k = 0; k < N; k++)
            logits[k] = (float)(next_random(&seed) % 20000) / 1000.0F;
        logits[N - 1] = -60.0F; /* the one that top_k drops */
        row = row_of(logits, N);
        d.index = d2.index = i;
        open.seed = closed.seed = i * 77;
        assert_true(sampler_pick(s, &row, &d, &id) && sampler_pick(s, &row, &d2, &id2));
        assert_int_equal(id, id2);
    }
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_refuses_what_is_not_finite),
        cmocka_unit_test(test_logprob_is_log_softmax),
        cmocka_unit_test(test_temper_divides_the_logits),
        cmocka_unit_test(test_logprob_has_a_floor_and_no_infinity),
        cmocka_unit_test(test_rank_counts_ties),
        cmocka_unit_test(test_top_equals_a_sort),
        cmocka_unit_test(test_greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(test_pick_refuses_when_all_is_masked),
        cmocka_unit_test(test_small_temperatures_count_as_a_hundredth),
        cmocka_unit_test(test_draws_follow_the_exact_distribution),
        cmocka_unit_test(test_deviation_sees_a_wrong_temperature),
        cmocka_unit_test(test_draws_do_not_depend_on_what_was_filtered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
