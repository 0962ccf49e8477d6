/* Whose the operation lock of updates is: a step's, or an abort's; no other turn's, no other
 * thread's. */
#include "fleet/fleet_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int setup(void **state)
{
    struct fleet_control *fc = calloc(1, sizeof *fc);

    assert_non_null(fc);
    mtx_init(&fc->lock, MTX_UPDATES);
    cnd_init(&fc->changed);
    *state = fc;
    return 0;
}

static int teardown(void **state)
{
    struct fleet_control *fc = *state;

    cnd_fini(&fc->changed);
    mtx_fini(&fc->lock);
    free(fc);
    return 0;
}

static void *ask_elsewhere(void *arg)
{
    return fleet_has_op(arg) ? arg : NULL;
}

static bool has_elsewhere(struct fleet_control *fc)
{
    void *has = NULL;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, ask_elsewhere, fc), 0);
    assert_int_equal(pthread_join(thread, &has), 0);
    return has != NULL;
}

static void test_fleet_has_op_of_a_step(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_false(fleet_has_op(fc));
    assert_int_equal(fleet_step(fc, NULL, "a step", &e), 0);
    assert_true(fleet_has_op(fc));
    assert_false(has_elsewhere(fc));
    fc->busy = NULL; /* as fleet_turn_end, which needs a fleet */
    assert_false(fleet_has_op(fc));
}

static void test_fleet_has_op_of_an_abort(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_int_equal(fleet_turn(fc, NULL, "a sleep", &e), 0);
    assert_false(fleet_has_op(fc));
    assert_int_equal(fleet_ending(fc, "an abort", &e), 0);
    assert_true(fleet_has_op(fc));
    assert_false(has_elsewhere(fc));
    fc->busy = NULL;
    fc->ending = NULL;
    assert_false(fleet_has_op(fc));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fleet_has_op_of_a_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_has_op_of_an_abort, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
