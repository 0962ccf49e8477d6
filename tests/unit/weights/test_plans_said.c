/* Plans that came in words: how many of them are remembered, and which. */
#include "tests/unit/update_fixture.h"
#include "weights/update/update_priv.h"

#include <stdio.h>

/* Tensors t.<first> and so on; nothing asks the model about them here. */
static struct plan *plan_from(uint32_t first, uint32_t n)
{
    struct plan_builder *b;
    struct plan *p;
    uint64_t one = 1;
    char name[24];
    struct err e = {0};

    assert_int_equal(plan_builder_new(&b, &e), 0);
    assert_int_equal(plan_builder_reserve(b, n, &e), 0);
    for (uint32_t i = first; i < first + n; i++) {
        (void)snprintf(name, sizeof name, "t.%u", (unsigned)i);
        assert_int_equal(plan_builder_add(b, name, DTYPE_U8, &one, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(plan_builder_finish(b, &p, &e), 0);
    return p;
}

/* Is an equal one remembered? If not, this one is from now on. */
static bool keep(struct bench *b, uint32_t first, uint32_t n)
{
    struct plan *mine = plan_from(first, n), *kept = updates_said_keep(b->updates, plan_ref(mine));
    bool known = kept != mine;

    assert_string_equal(kept->digest, mine->digest);
    assert_null(updates_plan_get(b->updates, mine->digest)); /* it has no id */
    plan_unref(kept);
    plan_unref(mine);
    return known;
}

static void test_said_plans_are_known_again(void **state)
{
    struct bench b;

    (void)state;
    bench_open(&b);
    for (uint32_t i = 0; i < UPDATE_SAID_MAX; i++)
        assert_false(keep(&b, i, 2));
    for (uint32_t i = 0; i < UPDATE_SAID_MAX; i++)
        assert_true(keep(&b, i, 2));
    assert_false(keep(&b, 0, 3)); /* in the place of the one used longest ago */
    assert_true(keep(&b, 1, 2));
    assert_false(keep(&b, 0, 2));
    bench_close(&b);
}

static void test_said_plans_are_bounded_by_their_tensors(void **state)
{
    enum { MANY = UPDATE_SAID_TENSORS_MAX / 2 };
    struct bench b;

    (void)state;
    bench_open(&b);
    assert_false(keep(&b, 0, MANY));
    assert_false(keep(&b, 1, MANY));
    assert_true(keep(&b, 0, MANY)); /* as many as may be */
    assert_false(keep(&b, 0, 1));
    assert_true(keep(&b, 0, MANY));
    assert_false(keep(&b, 1, MANY)); /* had to go */
    bench_close(&b);
}

static void test_a_said_plan_over_the_bound_stays_alone(void **state)
{
    struct bench b;

    (void)state;
    bench_open(&b);
    assert_false(keep(&b, 0, 1));
    assert_false(keep(&b, 0, UPDATE_SAID_TENSORS_MAX + 1));
    assert_true(keep(&b, 0, UPDATE_SAID_TENSORS_MAX + 1));
    assert_false(keep(&b, 0, 1));
    bench_close(&b);
}

/* Is it remembered what this part makes? If not, `joined` is from now on. */
static bool join(struct bench *b, uint32_t part, struct plan *joined)
{
    struct plan *parts[] = {plan_from(part, 1)}, *kept = updates_joined_get(b->updates, parts, 1);
    bool known = kept != NULL;

    if (!known)
        updates_joined_put(b->updates, parts, 1, joined);
    plan_unref(kept);
    plan_unref(parts[0]);
    return known;
}

static void test_joined_plans_are_bounded_by_their_tensors(void **state)
{
    struct bench b;
    struct plan *half = plan_from(0, UPDATE_JOINED_TENSORS_MAX / 2), *one = plan_from(0, 1);

    (void)state;
    bench_open(&b);
    assert_false(join(&b, 0, half));
    assert_false(join(&b, 1, half));
    assert_true(join(&b, 0, half)); /* as many as may be */
    assert_false(join(&b, 2, one));
    assert_true(join(&b, 0, half) && join(&b, 2, one));
    assert_false(join(&b, 1, half)); /* had to go */
    plan_unref(half);
    plan_unref(one);
    bench_close(&b);
}

/* Once for a plan, for those that convert and for those that do not, as long as it is kept. */
static void test_how_a_said_plan_lands_is_kept(void **state)
{
    struct bench b;
    struct plan *plan, *again;
    struct layout *l[3];
    struct err e = {0};

    (void)state;
    bench_open(&b);
    plan = updates_said_keep(b.updates, fx_plan_of(FX_ALL));
    again = updates_said_keep(b.updates, fx_plan_of(FX_ALL));
    assert_ptr_equal(again, plan);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(plan_layout(b.updates, plan, i == 1, &l[i], &e), 0);
    assert_ptr_equal(l[0], l[2]);
    assert_ptr_not_equal(l[0], l[1]);
    for (unsigned i = 0; i < 3; i++)
        layout_unref(l[i]);
    plan_unref(plan);
    plan_unref(again);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_said_plans_are_known_again),
        cmocka_unit_test(test_said_plans_are_bounded_by_their_tensors),
        cmocka_unit_test(test_a_said_plan_over_the_bound_stays_alone),
        cmocka_unit_test(test_joined_plans_are_bounded_by_their_tensors),
        cmocka_unit_test(test_how_a_said_plan_lands_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
