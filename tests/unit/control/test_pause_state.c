/* control/pause_state: the table of moves, and what holds in every state that can be reached. */
#include "control/pause_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum pause_state; '-' is no move. */
static const char letters[PAUSE_STATES + 1] = "ophrz";

/* From each state. */
static const char *const rows[PAUSE_EVENTS] = {
    [PAUSE_ON_REQUEST] = "pprr-", [PAUSE_ON_ACKNOWLEDGE] = "-hhh-",   [PAUSE_ON_GIVE_UP] = "--hh-",
    [PAUSE_ON_RESUME] = "oozzz",  [PAUSE_ON_RESUME_FAILED] = "o-h-h", [PAUSE_ON_RESUMED] = "ooooo",
};

static const struct pause_request leased = {.mode = PAUSE_WAIT, .lease_s = 60, .owner = "leased"},
                                  plain = {.mode = PAUSE_KEEP, .reject = true, .owner = "plain"};

/* One of the calls that change a pause; false: it is not allowed in that state. */
static bool apply(struct pause *p, int call)
{
    static const enum pause_event events[] = {
        PAUSE_ON_REQUEST, PAUSE_ON_REQUEST, PAUSE_ON_REQUEST,       PAUSE_ON_ACKNOWLEDGE,
        PAUSE_ON_GIVE_UP, PAUSE_ON_RESUME,  PAUSE_ON_RESUME_FAILED, PAUSE_ON_RESUMED};
    const char to = rows[events[call]][p->state];
    struct pause before;

    if (to == '-')
        return false;
    switch (call) {
    case 0:
        pause_set(p, &leased, &before);
        break;
    case 1:
        pause_set(p, &plain, &before);
        break;
    case 2:
        pause_set(p, &plain, &before);
        pause_undo(p, &before);
        assert_int_equal(p->state, before.state);
        assert_int_equal(p->epoch, before.epoch + 2);
        return true;
    case 3:
        pause_acknowledge(p);
        break;
    case 4:
        pause_give_up(p);
        break;
    case 5:
        pause_begin_resume(p);
        break;
    case 6:
        pause_fail_resume(p);
        break;
    default:
        pause_lift(p);
    }
    assert_int_equal(letters[p->state], to);
    return true;
}

enum { N_CALLS = 8, DEPTH = 6 };

/* Off means that nothing of a pause is left; a pause has a mode and an owner; a lease never runs
 * for a pause that was not acknowledged, and does run for one that was. */
static void check(const struct pause *p)
{
    bool off = p->state == PAUSE_OFF;

    assert_true(off == (p->mode == PAUSE_NONE));
    assert_true(off == (p->owner[0] == '\0'));
    assert_true(!off || (!p->reject && p->lease.length_s == 0 && p->held_lease.length_s == 0));
    assert_false(off && (pause_is_held(p) || pause_is_pending(p)));
    assert_true(p->lease.length_s > 0 || !lease_timer_runs(&p->lease));
    if (off || pause_is_pending(p))
        assert_false(lease_timer_runs(&p->lease));
    else if (p->state == PAUSE_HELD)
        assert_true(lease_timer_runs(&p->lease) == (p->lease.length_s > 0));
    assert_true(p->n_pauses <= p->epoch);
}

static void walk(const struct pause *from, unsigned depth, unsigned *reached)
{
    *reached |= 1u << from->state;
    for (int call = 0; call < N_CALLS && depth > 0; call++) {
        struct pause p = *from;

        if (!apply(&p, call))
            continue;
        assert_true(p.epoch >= from->epoch);
        check(&p);
        walk(&p, depth - 1, reached);
    }
}

static void test_every_reachable_pause_is_consistent(void **state)
{
    unsigned reached = 0;
    struct pause p;

    (void)state;
    pause_init(&p);
    check(&p);
    walk(&p, DEPTH, &reached);
    assert_int_equal(reached, (1u << PAUSE_STATES) - 1);
}

/* The pause that replaces another one has no lease: after it was given up the other's lease goes on
 * from where it was. */
static void test_pause_give_up_falls_back_on_the_acknowledged_lease(void **state)
{
    struct pause before, p;
    uint64_t end_us;

    (void)state;
    pause_init(&p);
    pause_set(&p, &leased, &before);
    pause_acknowledge(&p);
    end_us = p.lease.end_us;
    pause_set(&p, &plain, &before);
    assert_int_equal(p.state, PAUSE_REPLACING);
    pause_give_up(&p);
    assert_int_equal(p.state, PAUSE_HELD);
    assert_string_equal(p.owner, "plain");
    assert_int_equal(p.lease.length_s, 60);
    assert_true(p.lease.end_us == end_us);
}

/* A resume that comes while a pause is pending ends it at once, so that the pause can find out. */
static void test_pause_begin_resume_ends_a_pending_pause(void **state)
{
    struct pause before, p;

    (void)state;
    pause_init(&p);
    pause_set(&p, &plain, &before);
    pause_begin_resume(&p);
    assert_int_equal(p.state, PAUSE_OFF);
    assert_false(pause_is_pending(&p));
    pause_lift(&p);
    assert_int_equal(p.epoch, 2);
}

/* A pause is counted once, when it ends, with its whole duration. */
static void test_pause_counts_durations_of_those_that_ended(void **state)
{
    size_t minute = histogram_index(histogram_times, 31000000);
    struct pause before, p;

    (void)state;
    pause_init(&p);
    pause_set(&p, &plain, &before);
    pause_undo(&p, &before); /* there was none */
    pause_set(&p, &plain, &before);
    p.since_us -= 31000000;
    pause_acknowledge(&p);
    pause_set(&p, &plain, &before); /* a part of the same pause */
    pause_acknowledge(&p);
    assert_int_equal(p.n_ended[minute], 0);
    pause_begin_resume(&p);
    pause_lift(&p);
    pause_lift(&p);
    assert_int_equal(p.n_ended[minute], 1);
    assert_in_range(p.ended_us, 31000000, 60000000);
    assert_int_equal(p.ended_us, p.paused_us);
    for (size_t i = 0; i <= HISTOGRAM_N_BOUNDS; i++)
        assert_int_equal(p.n_ended[i], i == minute ? 1 : 0);
}

static void test_pause_state_name_has_all(void **state)
{
    (void)state;
    for (int s = 0; s < PAUSE_STATES; s++)
        assert_non_null(pause_state_name((enum pause_state)s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_reachable_pause_is_consistent),
        cmocka_unit_test(test_pause_give_up_falls_back_on_the_acknowledged_lease),
        cmocka_unit_test(test_pause_begin_resume_ends_a_pending_pause),
        cmocka_unit_test(test_pause_counts_durations_of_those_that_ended),
        cmocka_unit_test(test_pause_state_name_has_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
