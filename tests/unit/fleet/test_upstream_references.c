/* An engine ends when nothing refers to it any more: neither a list, nor a permit, nor anything
 * else. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static unsigned n_ended; /* engines that have ended */

static void count_ended(struct fleet_engine *control)
{
    (void)control;
    n_ended++;
}

/* A fleet of which the first engine was removed; its end is counted. */
static struct fleet *fleet_without_the_first(struct upstream **first)
{
    static char control; /* what it is does not matter */
    struct fleet *f = fleet_alive(2);

    n_ended = 0;
    *first = engine_at(f, 0);
    upstream_set_control(*first, (struct fleet_engine *)(void *)&control, count_ended);
    fleet_remove(f, *first);
    return f;
}

static void test_removed_engine_stays_in_the_list(void **state)
{
    struct upstream *first;
    struct fleet *f = fleet_without_the_first(&first);

    (void)state;
    add_new(f, "http://c", NULL);
    assert_int_equal(n_engines(f), 3);
    add_again(f, 0);
    assert_ptr_equal(engine_at(f, 0), first);
    assert_int_equal(n_ended, 0);
    fleet_free(f);
    assert_int_equal(n_ended, 1);
}

static void test_engine_ends_with_the_last_list_that_has_it(void **state)
{
    struct upstream *first;
    struct fleet *f = fleet_without_the_first(&first);
    struct upstream_list *before = fleet_list(f);

    (void)state;
    assert_true(upstream_is_idle(first));
    add_new(f, "http://c", first);
    assert_int_equal(n_engines(f), 2);
    assert_string_equal(upstream_name(engine_at(f, 1)), "http://c");
    assert_int_equal(before->n, 2);
    assert_ptr_equal(before->items[0], first);
    assert_int_equal(n_ended, 0);
    upstream_list_unref(before);
    assert_int_equal(n_ended, 1);
    fleet_free(f);
}

/* A reference keeps it from leaving the list, unless it is a loose one. */
static void test_engine_ends_with_its_last_reference(void **state)
{
    struct upstream *first;
    struct fleet *f = fleet_without_the_first(&first);

    (void)state;
    (void)upstream_ref(first);
    assert_false(upstream_is_idle(first));
    upstream_loosen(first);
    assert_true(upstream_is_idle(first));
    add_new(f, "http://c", first);
    assert_int_equal(n_ended, 0);
    upstream_unref_loose(first);
    assert_int_equal(n_ended, 1);
    fleet_free(f);
}

static void test_permit_refers_to_its_engine(void **state)
{
    struct fleet *f = fleet_alive(1);
    struct upstream *only = engine_at(f, 0);
    struct requester a;

    (void)state;
    assert_int_equal(acquire(f, &a, ""), 0);
    fleet_remove(f, only);
    assert_false(upstream_is_idle(only));
    fleet_permit_release(f, &a.ticket);
    assert_null(a.ticket.upstream);
    assert_true(upstream_is_idle(only));
    fleet_free(f);
}

/* Also if it is reliable again by the time that anybody looks. */
static void test_what_ran_at_a_lost_engine_is_lost(void **state)
{
    struct fleet *f = fleet_alive(1);
    struct requester before, after;

    (void)state;
    (void)acquire(f, &before, "");
    assert_false(fleet_is_lost(&before.ticket));
    fail_request(f, 0, true);
    report_ok(f, 0, "p", "");
    assert_int_equal(acquire(f, &after, ""), 0);
    assert_true(fleet_is_lost(&before.ticket));
    assert_false(fleet_is_lost(&after.ticket));
    fleet_permit_release(f, &before.ticket);
    fleet_permit_release(f, &after.ticket);
    fleet_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_engine_stays_in_the_list),
        cmocka_unit_test(test_engine_ends_with_the_last_list_that_has_it),
        cmocka_unit_test(test_engine_ends_with_its_last_reference),
        cmocka_unit_test(test_permit_refers_to_its_engine),
        cmocka_unit_test(test_what_ran_at_a_lost_engine_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
