/* Which thread owns the update lock: that of a step or of an abort, and no other; and what a pause
 * and a resume do to each other. */
#include "fleet/calls/fleet_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
    fc->locks.op.operation = NULL; /* as fleet_op_unlock, which needs a fleet */
    assert_false(fleet_owns_update_lock(fc));
}

static void test_fleet_owns_update_lock_in_an_abort(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_false(fleet_owns_op_lock(fc));
    assert_int_equal(fleet_op_lock(fc, NULL, "a sleep", &e), 0);
    assert_true(fleet_owns_op_lock(fc));
    assert_false(fleet_owns_pause_lock(fc));
    assert_false(fleet_owns_update_lock(fc));
    assert_int_equal(fleet_abort_lock(fc, "an abort", &e), 0);
    assert_true(fleet_owns_update_lock(fc));
    assert_false(has_elsewhere(fc));
    fc->locks.op.operation = NULL;
    fc->locks.abort.operation = NULL;
    assert_false(fleet_owns_update_lock(fc));
}

static void test_fleet_abort_lock_waits_for_steps_only(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_int_equal(fleet_op_lock(fc, NULL, "a sleep", &e), 0);
    assert_int_equal(fleet_abort_lock(fc, "an abort", &e), 0);
    fc->locks.abort.operation = NULL;
    fc->locks.op.kind = FLEET_LOCK_STEP;
    assert_int_equal(fleet_abort_lock(fc, "an abort", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "a sleep is under way at the upstreams, for "));
}

static void test_fleet_resume_lock_overtakes_a_trainers_pause(void **state)
{
    struct fleet_control *fc = *state;
    const struct pause_request req = {.mode = PAUSE_WAIT, .owner = "trainer"};
    struct pause before;
    struct err e = {0};

    assert_int_equal(fleet_trainer_pause_lock(fc, NULL, FLEET_OP_WAIT_US, &e), 0);
    assert_true(fleet_owns_pause_lock(fc));
    pause_set(&fc->pause, &req, &before);
    assert_false(fleet_pause_lock_unless_pausing(fc, "a step"));
    assert_int_equal(fleet_resume_lock(fc, false, &e), 0);
    assert_false(pause_is_pending(&fc->pause));
    fc->locks.pause.operation = NULL;
    fc->locks.n_resumes--;
    assert_int_equal(fleet_pause_lock(fc, "a step", &e), 0);
}

/* A lease that ended resumes only the pause that it belongs to. */
static void test_fleet_resume_lock_of_a_lease_refuses_a_renewed_pause(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    fc->pause.lease.end_us = clock_after_us(FLEET_OP_WAIT_US);
    assert_int_equal(fleet_resume_lock(fc, true, &e), -1);
    assert_string_equal(e.msg, "the pause was renewed");
    assert_int_equal(fc->locks.n_resumes, 0);
    fc->pause.lease.end_us = 0;
    err_clear(&e);
    assert_int_equal(fleet_resume_lock(fc, true, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fleet_owns_update_lock_in_a_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_owns_update_lock_in_an_abort, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_abort_lock_waits_for_steps_only, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fleet_resume_lock_overtakes_a_trainers_pause, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fleet_resume_lock_of_a_lease_refuses_a_renewed_pause,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
