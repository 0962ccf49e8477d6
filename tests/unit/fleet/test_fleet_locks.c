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
    return fleet_owns_update_lock(arg) ? arg : NULL;
}

static bool has_elsewhere(struct fleet_control *fc)
{
    void *has = NULL;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, ask_elsewhere, fc), 0);
    assert_int_equal(pthread_join(thread, &has), 0);
    return has != NULL;
}

static void test_fleet_owns_update_lock_in_a_step(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_false(fleet_owns_update_lock(fc));
    assert_int_equal(fleet_step_lock(fc, NULL, "a step", &e), 0);
    assert_true(fleet_owns_update_lock(fc));
    assert_false(has_elsewhere(fc));
    fc->busy = NULL; /* as fleet_op_unlock, which needs a fleet */
    assert_false(fleet_owns_update_lock(fc));
}

static void test_fleet_owns_update_lock_in_an_abort(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_int_equal(fleet_op_lock(fc, NULL, "a sleep", &e), 0);
    assert_false(fleet_owns_update_lock(fc));
    assert_int_equal(fleet_abort_lock(fc, "an abort", &e), 0);
    assert_true(fleet_owns_update_lock(fc));
    assert_false(has_elsewhere(fc));
    fc->busy = NULL;
    fc->ending = NULL;
    assert_false(fleet_owns_update_lock(fc));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fleet_owns_update_lock_in_a_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_owns_update_lock_in_an_abort, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
