/* Which engine has which adapter, which task it needs next, and which adapter keeps it out of
 * rotation. */
#include "fleet/calls/fleet_adapters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum fleet_has NONE = FLEET_HAS_NONE, OTHER = FLEET_HAS_OTHER, THIS = FLEET_HAS_THIS;

enum { N = 3 };

static struct fleet_engine_adapters engines[N];

static struct fleet_adapters three(void)
{
    struct fleet_adapters fa = {0};

    memset(engines, 0, sizeof engines);
    for (size_t i = 0; i < N; i++)
        fleet_adapters_join(&fa, &engines[i]);
    return fa;
}

/* What three engines were found to have. */
static bool has(enum fleet_has a, enum fleet_has b, enum fleet_has c)
{
    engines[0].found = (uint8_t)a;
    engines[1].found = (uint8_t)b;
    engines[2].found = (uint8_t)c;
    return true;
}

static uint64_t put(struct fleet_adapters *fa, const char *name, bool again, bool took)
{
    struct fleet_adapter_source from = {.name = name, .load = again ? strdup("{}") : NULL};
    struct err e = {0};

    assert_true(took);
    assert_int_equal(fleet_adapters_reserve(fa, name, &e), 0);
    return fleet_adapters_put(fa, &from);
}

static uint64_t remove_it(struct fleet_adapters *fa, const char *name, bool left)
{
    assert_true(left);
    return fleet_adapters_remove(fa, name);
}

/* The next task of engine i, which ends with `then`. */
static void task(struct fleet_adapters *fa, size_t i, const char *name, enum fleet_has then)
{
    struct fleet_adapter_task f;

    assert_int_equal(fleet_adapters_begin_task(fa, &engines[i], &f), 1);
    assert_string_equal(f.name, name);
    fleet_adapters_end_task(fa, &engines[i], &f, then);
}

static void assert_blocked(const struct fleet_adapters *fa, bool a, bool b, bool c)
{
    assert_int_equal(fleet_adapters_blocking(fa, &engines[0]) != NULL, a);
    assert_int_equal(fleet_adapters_blocking(fa, &engines[1]) != NULL, b);
    assert_int_equal(fleet_adapters_blocking(fa, &engines[2]) != NULL, c);
}

static void test_adapters_are_lost_with_the_process(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    assert_int_equal(put(&fa, "x", true, has(THIS, THIS, THIS)), 1);
    assert_blocked(&fa, false, false, false);
    assert_false(fleet_adapters_has_task(&fa, &engines[1]));
    fleet_adapters_set_incarnation(&fa, &engines[1], 1, true);
    assert_blocked(&fa, false, true, false);
    assert_true(fleet_adapters_is_missing(&fa.list[0], &engines[1]));
    task(&fa, 1, "x", THIS);
    assert_blocked(&fa, false, false, false);
    fleet_adapters_set_incarnation(&fa, &engines[1], 1, true); /* the same */
    assert_false(fleet_adapters_has_task(&fa, &engines[1]));
    fleet_adapters_fini(&fa);
}

/* It was lost while a load was under way: which came first is unknown. */
static void test_lost_during_a_load_is_loaded_again(void **state)
{
    struct fleet_adapters fa = three();
    struct fleet_adapter_task f;

    (void)state;
    (void)put(&fa, "x", true, has(THIS, NONE, THIS));
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_true(has(THIS, NONE, THIS));
    fleet_adapters_set_has(&fa, "x");
    fleet_adapters_end_task(&fa, &engines[1], &f, THIS);
    assert_blocked(&fa, false, true, false);
    task(&fa, 1, "x", THIS);
    assert_blocked(&fa, false, false, false);
    fleet_adapters_fini(&fa);
}

static void test_without_its_request_it_waits_for_the_trainer(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    (void)put(&fa, "x", false, has(THIS, THIS, THIS));
    fleet_adapters_set_incarnation(&fa, &engines[1], 1, true);
    assert_blocked(&fa, false, true, false);
    assert_false(fleet_adapters_has_task(&fa, &engines[1]));
    assert_int_equal(put(&fa, "x", false, has(THIS, THIS, THIS)), 2);
    assert_blocked(&fa, false, false, false);
    fleet_adapters_set_incarnation(&fa, &engines[0], 1, true);
    fleet_adapters_set_incarnation(&fa, &engines[1], 2, true);
    assert_blocked(&fa, true, true, false);
    fleet_adapters_set_incarnation(&fa, &engines[2], 1,
                                   true); /* no engine has it any more: all are alike */
    assert_blocked(&fa, false, false, false);
    assert_true(fleet_adapters_is_missing(&fa.list[0], &engines[2]));
    fleet_adapters_fini(&fa);
}

/* One on which the load failed may have the revision before, and must not serve it when no engine
 * has this one any more: it is unloaded there. */
static void test_without_its_request_an_old_one_is_unloaded(void **state)
{
    struct fleet_adapters fa = three();
    struct fleet_adapter_task f;

    (void)state;
    (void)put(&fa, "x", false, has(THIS, OTHER, NONE));
    assert_blocked(&fa, false, true, true);
    assert_false(fleet_adapters_has_task(&fa, &engines[1])); /* a trainer may load it again */
    fleet_adapters_set_incarnation(&fa, &engines[0], 1, true);
    assert_blocked(&fa, false, true, false);
    assert_false(fleet_adapters_has_task(&fa, &engines[0]));
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_null(f.load);
    fleet_adapters_end_task(&fa, &engines[1], &f, NONE);
    assert_blocked(&fa, false, false, false);
    assert_non_null(fleet_adapters_find(&fa, "x"));
    fleet_adapters_fini(&fa);
}

static void test_refused_by_all_keeps_none_out(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    (void)put(&fa, "x", true, has(THIS, NONE, NONE));
    (void)put(&fa, "y", true, has(THIS, NONE, THIS));
    task(&fa, 1, "x", FLEET_HAS_REFUSED);
    task(&fa, 1, "y", THIS); /* one that it has not refused comes first */
    assert_true(fleet_adapters_has_task(&fa, &engines[1]));
    assert_blocked(&fa, false, true, true);
    fleet_adapters_set_incarnation(&fa, &engines[0], 1, true);
    assert_blocked(&fa, true, false, true);
    task(&fa, 2, "x", THIS);
    assert_blocked(&fa, true, true, false);
    fleet_adapters_fini(&fa);
}

static void test_unloaded_where_it_may_still_be(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    (void)put(&fa, "x", true, has(THIS, THIS, NONE));
    assert_int_equal(remove_it(&fa, "x", has(NONE, OTHER, NONE)), 1);
    assert_null(fleet_adapters_find(&fa, "x"));
    assert_blocked(&fa, false, true, false);
    assert_false(fleet_adapters_is_missing(&fa.list[0], &engines[1]));
    task(&fa, 1, "x", OTHER);
    assert_blocked(&fa, false, true, false);
    task(&fa, 1, "x", NONE);
    assert_blocked(&fa, false, false, false);
    assert_int_equal(fa.n, 0);
    assert_int_equal(remove_it(&fa, "y", has(NONE, NONE, NONE)), 0);
    assert_int_equal(fa.n, 0);
    assert_int_equal(remove_it(&fa, "y", has(OTHER, NONE, NONE)), 0);
    fleet_adapters_set_incarnation(&fa, &engines[0], 1, true); /* it was lost with its process */
    assert_int_equal(fa.n, 0);
    fleet_adapters_fini(&fa);
}

/* Results of an older load, of an older process, and of an adapter that was unloaded meanwhile. */
static void test_late_results_are_not_trusted(void **state)
{
    struct fleet_adapters fa = three();
    struct fleet_adapter_task f;

    (void)state;
    (void)put(&fa, "x", true, has(THIS, NONE, THIS));
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_int_equal(put(&fa, "x", true, has(THIS, THIS, THIS)), 2);
    assert_blocked(&fa, false, true, false);
    fleet_adapters_end_task(&fa, &engines[1], &f, THIS);
    assert_blocked(&fa, false, true, false);
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_true(f.may_have);
    fleet_adapters_set_incarnation(&fa, &engines[1], 7, true);
    fleet_adapters_end_task(&fa, &engines[1], &f, THIS);
    assert_blocked(&fa, false, true, false);
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_int_equal(remove_it(&fa, "x", has(NONE, NONE, NONE)), 2);
    assert_int_equal(fa.n, 1);
    fleet_adapters_end_task(&fa, &engines[1], &f, THIS);
    assert_blocked(&fa, false, true, false);
    assert_int_equal(fleet_adapters_begin_task(&fa, &engines[1], &f), 1);
    assert_null(f.load);
    fleet_adapters_end_task(&fa, &engines[1], &f, NONE);
    assert_int_equal(fa.n, 0);
    fleet_adapters_fini(&fa);
}

/* A restarted engine that does not report its process may have kept what it had. */
static void test_an_unnamed_process_may_have_kept_it(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    (void)put(&fa, "x", true, has(THIS, THIS, NONE));
    fleet_adapters_set_incarnation(&fa, &engines[1], 1, false);
    fleet_adapters_set_incarnation(&fa, &engines[2], 1, false);
    assert_int_equal(engines[1].at[fa.list[0].slot].has, OTHER);
    assert_int_equal(engines[2].at[fa.list[0].slot].has, NONE);
    (void)remove_it(&fa, "x", has(NONE, OTHER, NONE));
    fleet_adapters_set_incarnation(&fa, &engines[1], 2, false);
    assert_blocked(&fa, false, true, false);
    fleet_adapters_fini(&fa);
}

/* It keeps its adapters, and may be added again; meanwhile it keeps no other out. */
static void test_a_removed_engine_may_have_kept_it(void **state)
{
    struct fleet_adapters fa = three();

    (void)state;
    (void)put(&fa, "x", false, has(THIS, THIS, NONE));
    fleet_adapters_set_incarnation(&fa, &engines[1], FLEET_REMOVED, false);
    assert_blocked(&fa, false, true, true);
    fleet_adapters_find_has(&fa, "x");
    assert_true(fleet_adapters_any_found(&fa));
    assert_false(has(NONE, OTHER, NONE) && fleet_adapters_any_found(&fa));
    (void)remove_it(&fa, "x", has(NONE, OTHER, NONE));
    assert_blocked(&fa, false, true, false);
    fleet_adapters_find_has(&fa, "x");
    assert_int_equal(engines[1].found, OTHER);
    fleet_adapters_set_incarnation(&fa, &engines[1], 7, false); /* it is back */
    assert_blocked(&fa, false, true, false);
    task(&fa, 1, "x", NONE);
    assert_int_equal(fa.n, 0);
    fleet_adapters_find_has(&fa, "x");
    assert_int_equal(engines[1].found, NONE);
    fleet_adapters_fini(&fa);
}

/* The limit is not used up by what engines had that never return. */
static void test_reserve_forgets_what_removed_engines_had(void **state)
{
    struct fleet_adapters fa = three();
    struct err e = {0};
    char name[16];

    (void)state;
    for (int i = 0; i < FLEET_ADAPTERS_MAX; i++) {
        (void)snprintf(name, sizeof name, "x%d", i);
        (void)put(&fa, name, true, has(THIS, THIS, THIS));
    }
    fleet_adapters_set_incarnation(&fa, &engines[1], FLEET_REMOVED, false);
    for (int i = 9; i > 6; i--) {
        (void)snprintf(name, sizeof name, "x%d", i);
        (void)remove_it(&fa, name, has(NONE, OTHER, i == 9 ? OTHER : NONE));
    }
    assert_int_equal(fa.n, FLEET_ADAPTERS_MAX);
    assert_int_equal(put(&fa, "more", true, has(THIS, NONE, THIS)), 1); /* for x8 */
    assert_int_equal(put(&fa, "most", true, has(THIS, NONE, THIS)), 1); /* for x7 */
    assert_int_equal(fleet_adapters_reserve(&fa, "x9", &e), 0);         /* a member may have it */
    assert_int_equal(fleet_adapters_reserve(&fa, "x8", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    fleet_adapters_fini(&fa);
}

static void test_reserve_refuses_beyond_the_limit(void **state)
{
    struct fleet_adapters fa = three();
    struct err e = {0};
    char name[16];

    (void)state;
    for (int i = 0; i < FLEET_ADAPTERS_MAX; i++) {
        (void)snprintf(name, sizeof name, "x%d", i);
        (void)put(&fa, name, false, has(THIS, THIS, THIS));
    }
    assert_int_equal(fleet_adapters_reserve(&fa, "x7", &e), 0);
    assert_int_equal(fleet_adapters_reserve(&fa, "more", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(remove_it(&fa, "x7", has(NONE, NONE, NONE)), 1);
    err_clear(&e);
    assert_int_equal(fleet_adapters_reserve(&fa, "more", &e), 0);
    fleet_adapters_fini(&fa);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_are_lost_with_the_process),
        cmocka_unit_test(test_lost_during_a_load_is_loaded_again),
        cmocka_unit_test(test_without_its_request_it_waits_for_the_trainer),
        cmocka_unit_test(test_without_its_request_an_old_one_is_unloaded),
        cmocka_unit_test(test_refused_by_all_keeps_none_out),
        cmocka_unit_test(test_unloaded_where_it_may_still_be),
        cmocka_unit_test(test_late_results_are_not_trusted),
        cmocka_unit_test(test_an_unnamed_process_may_have_kept_it),
        cmocka_unit_test(test_a_removed_engine_may_have_kept_it),
        cmocka_unit_test(test_reserve_forgets_what_removed_engines_had),
        cmocka_unit_test(test_reserve_refuses_beyond_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
