/* Which experts a row gets, and their weights, where the answer is known without a model. */
#include "engine/model/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_MAX = 16, K_MAX = 6 };

struct chosen {
    uint16_t ids[K_MAX];
    float weights[K_MAX];
};

static struct chosen choose(const struct model_experts *ex, const float *logits, const float *bias)
{
    struct chosen c;
    float scores[N_MAX];

    router_choose(ex, logits, bias, scores, c.ids, c.weights);
    return c;
}

static void assert_ids(const struct chosen *c, const uint16_t *ids, uint32_t k)
{
    assert_memory_equal(c->ids, ids, k * sizeof *ids);
}

static void assert_near(float found, double expected)
{
    assert_true(fabs((double)found - expected) < 1e-6);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void test_softmax_is_over_all_or_over_the_chosen(void **state)
{
    const float logits[] = {1, 3, 2, 0};
    struct model_experts ex = {.n = 4, .n_per_token = 2};
    double all = exp(1) + exp(3) + exp(2) + exp(0), two = exp(3) + exp(2);
    struct chosen c = choose(&ex, logits, NULL);

    (void)state;
    assert_ids(&c, (const uint16_t[]){1, 2}, 2);
    assert_near(c.weights[0], exp(3) / all);
    ex.normalize = true;
    c = choose(&ex, logits, NULL);
    assert_near(c.weights[1], exp(2) / two);
}

static void test_of_equal_scores_the_lower_id(void **state)
{
    const float flat[8] = {0}, steps[] = {1, 2, 1, 2, 0, 2, 1, 0};
    struct model_experts ex = {.n = 8, .n_per_token = 5};
    struct chosen c = choose(&ex, flat, NULL);

    (void)state;
    assert_ids(&c, (const uint16_t[]){0, 1, 2, 3, 4}, 5);
    c = choose(&ex, steps, NULL);
    assert_ids(&c, (const uint16_t[]){1, 3, 5, 0, 2}, 5);
    ex = (struct model_experts){
        .n = 8, .n_per_token = 3, .sigmoid = true, .n_groups = 4, .n_groups_kept = 2, .scale = 1};
    c = choose(&ex, flat, flat); /* of equal groups the first ones */
    assert_ids(&c, (const uint16_t[]){0, 1, 2}, 3);
}

/* The bias decides which experts, and has no part in their weights. */
static void test_bias_is_for_the_choice_alone(void **state)
{
    const float logits[] = {0.5F, 0.25F, -0.5F, -1}, bias[] = {0, 0, 1, 0};
    struct model_experts ex = {.n = 4,
                               .n_per_token = 2,
                               .sigmoid = true,
                               .n_groups = 1,
                               .n_groups_kept = 1,
                               .scale = 2.5F};
    struct chosen c = choose(&ex, logits, bias);

    (void)state;
    assert_ids(&c, (const uint16_t[]){2, 0}, 2);
    assert_near(c.weights[0], 2.5 * sigmoid(-0.5));
    assert_near(c.weights[1], 2.5 * sigmoid(0.5));
    ex.normalize = true;
    c = choose(&ex, logits, bias);
    assert_near(c.weights[0], 2.5 * sigmoid(-0.5) / (sigmoid(-0.5) + sigmoid(0.5)));
}

/* A group counts by its two best: group 1 has the best expert, and is dropped. */
static void test_groups_are_kept_by_their_two_best(void **state)
{
    const float logits[] = {1, 1, -4, 2, -4, -4, 0.5F, 0.9F, -4}, none[9] = {0};
    struct model_experts ex = {
        .n = 9, .n_per_token = 4, .sigmoid = true, .n_groups = 3, .n_groups_kept = 2, .scale = 1};
    struct chosen c = choose(&ex, logits, none);

    (void)state;
    assert_ids(&c, (const uint16_t[]){0, 1, 7, 6}, 4);
}

/* An expert of a dropped group does not come back when a kept one scores below 0. */
static void test_dropped_groups_stay_dropped_below_zero(void **state)
{
    const float logits[] = {0, 0, 0, 0}, bias[] = {-2, -1, -3, -3};
    struct model_experts ex = {.n = 4,
                               .n_per_token = 2,
                               .sigmoid = true,
                               .n_groups = 2,
                               .n_groups_kept = 1,
                               .scale = 1,
                               .normalize = true};
    struct chosen c = choose(&ex, logits, bias);

    (void)state;
    assert_ids(&c, (const uint16_t[]){1, 0}, 2);
    assert_near(c.weights[0], 0.5);
}

/* Float32 decides: this bias would be rounded away in bfloat16. */
static void test_a_bias_finer_than_bfloat16_decides(void **state)
{
    const float logits[] = {0, 0}, bias[] = {1, 1.0009765625F};
    struct model_experts ex = {
        .n = 2, .n_per_token = 1, .sigmoid = true, .n_groups = 1, .n_groups_kept = 1, .scale = 1};
    struct chosen c = choose(&ex, logits, bias);

    (void)state;
    assert_int_equal(c.ids[0], 1);
}

static void test_logits_that_are_not_finite_give_each_expert_once(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, NAN, 1, NAN};
    struct model_experts ex = {
        .n = 6, .n_per_token = 4, .sigmoid = true, .n_groups = 3, .n_groups_kept = 2, .scale = 1};

    (void)state;
    for (int sigmoid_too = 0; sigmoid_too < 2; sigmoid_too++) {
        bool seen[6] = {false};
        struct chosen c;

        ex.sigmoid = sigmoid_too != 0;
        c = choose(&ex, bad, bad);
        for (int i = 0; i < 4; i++) {
            assert_true(c.ids[i] < 6 && !seen[c.ids[i]]);
            seen[c.ids[i]] = true;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax_is_over_all_or_over_the_chosen),
        cmocka_unit_test(test_of_equal_scores_the_lower_id),
        cmocka_unit_test(test_bias_is_for_the_choice_alone),
        cmocka_unit_test(test_groups_are_kept_by_their_two_best),
        cmocka_unit_test(test_dropped_groups_stay_dropped_below_zero),
        cmocka_unit_test(test_a_bias_finer_than_bfloat16_decides),
        cmocka_unit_test(test_logits_that_are_not_finite_give_each_expert_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
