/* The facts of an engine's process: what a request makes unknown, and what makes it known again. */
#include "fleet/members/have.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct engine_have have;
static struct have_before before;

static int setup(void **state)
{
    (void)state;
    have_init(&have);
    return 0;
}

static void ask(enum api_op op, enum have_answer answer)
{
    enum gate_fact gate = have.gate;

    have_doubt(&have, op, NULL, &before);
    assert_int_equal(have.gate, op == API_RESUME && gate == GATE_NOT_RESUMED ? gate : GATE_UNKNOWN);
    have_answer(&have, op, NULL, &before, answer, true);
}

static void test_only_an_answer_makes_it_known(void **state)
{
    (void)state;
    assert_int_equal(have.gate, GATE_NOT_OURS);
    ask(API_PAUSE, HAVE_REFUSED);
    assert_int_equal(have.gate, GATE_NOT_OURS);
    ask(API_PAUSE, HAVE_GOOD);
    assert_int_equal(have.gate, GATE_PAUSED);
    ask(API_PAUSE, HAVE_BROKE);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_PAUSE, HAVE_LOST);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_RESUME, HAVE_GOOD);
    assert_int_equal(have.gate, GATE_RUNNING);
}

static void test_a_resume_that_fails_leaves_it_paused_until_one_succeeds(void **state)
{
    static const enum have_answer fails[] = {HAVE_REFUSED, HAVE_UNSENT, HAVE_BROKE, HAVE_LOST};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        have_init(&have);
        ask(API_RESUME, i % 2 == 0 ? HAVE_REFUSED : HAVE_UNSENT); /* it was not paused */
        assert_int_equal(have.gate, GATE_NOT_OURS);
        ask(API_PAUSE, HAVE_GOOD);
        ask(API_RESUME, fails[i]);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        for (size_t k = 0; k < 4; k++)
            ask(API_RESUME, fails[k]);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        ask(API_PAUSE, HAVE_REFUSED);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        ask(API_RESUME, HAVE_GOOD);
        assert_int_equal(have.gate, GATE_RUNNING);
        ask(API_PAUSE, HAVE_BROKE);
        ask(API_RESUME, HAVE_REFUSED);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        have_seen(&have, have.change);
        have_reset(&have, false);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        have_reset(&have, true);
        assert_int_equal(have.gate, GATE_RUNNING);
    }
}

static void test_other_operations_leave_it(void **state)
{
    const struct api_args none = {0};

    (void)state;
    ask(API_PAUSE, HAVE_GOOD);
    for (int op = 0; op < API_OPS; op++) {
        if (op == API_PAUSE || op == API_RESUME)
            continue;
        have_doubt(&have, (enum api_op)op, &none, &before);
        assert_int_equal(have.gate, GATE_PAUSED);
        have_answer(&have, (enum api_op)op, &none, &before, HAVE_LOST, true);
        assert_int_equal(have.gate, GATE_PAUSED);
    }
}

/* A resume that overtakes a pause: which of them the engine did last is not known. */
static void test_two_that_overlap_leave_it_unknown(void **state)
{
    struct have_before pause, resume;

    (void)state;
    have_doubt(&have, API_PAUSE, NULL, &pause);
    have_doubt(&have, API_RESUME, NULL, &resume);
    have_answer(&have, API_RESUME, NULL, &resume, HAVE_GOOD, true);
    have_answer(&have, API_PAUSE, NULL, &pause, HAVE_GOOD, true);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_RESUME, HAVE_GOOD);
    assert_int_equal(have.gate, GATE_RUNNING);
}

static void test_an_answer_of_the_process_before_says_nothing(void **state)
{
    (void)state;
    have_doubt(&have, API_PAUSE, NULL, &before);
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_UNKNOWN); /* the new one may execute it */
    have_answer(&have, API_PAUSE, NULL, &before, HAVE_GOOD, false);
    assert_int_equal(have.gate, GATE_UNKNOWN);
}

/* The new process may have got what was sent since the one before was last seen. */
static void test_another_process_runs_if_nothing_was_sent_to_it(void **state)
{
    uint64_t asked;

    (void)state;
    ask(API_PAUSE, HAVE_GOOD);
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_PAUSE, HAVE_GOOD);
    asked = have.change;
    have_seen(&have, asked - 1); /* by a probe that was sent before */
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_PAUSE, HAVE_GOOD);
    have_seen(&have, have.change);
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_RUNNING);
    ask(API_RESUME, HAVE_GOOD); /* at whichever process, it runs */
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_RUNNING);
    have_doubt(&have, API_PAUSE, NULL, &before);
    have_seen(&have, have.change); /* the pause may come to the next one */
    have_answer(&have, API_PAUSE, NULL, &before, HAVE_GOOD, true);
    have_reset(&have, true);
    assert_int_equal(have.gate, GATE_UNKNOWN);
}

/* It may be the same process, or have been paused at the same time. */
static void test_a_resume_that_fails_after_all_is_not_forgotten(void **state)
{
    static const enum have_answer fails[] = {HAVE_REFUSED, HAVE_UNSENT, HAVE_BROKE, HAVE_LOST};
    struct have_before pause;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        have_init(&have);
        ask(API_PAUSE, HAVE_GOOD);
        have_doubt(&have, API_RESUME, NULL, &before);
        have_reset(&have, false);
        assert_int_equal(have.gate, GATE_UNKNOWN);
        have_answer(&have, API_RESUME, NULL, &before, fails[i], false);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        ask(API_RESUME, HAVE_GOOD);
        have_doubt(&have, API_PAUSE, NULL, &pause);
        have_doubt(&have, API_RESUME, NULL, &before);
        have_answer(&have, API_RESUME, NULL, &before, fails[i], true);
        have_answer(&have, API_PAUSE, NULL, &pause, HAVE_GOOD, true);
        assert_int_equal(have.gate, GATE_NOT_RESUMED);
        ask(API_RESUME, HAVE_GOOD);
        assert_int_equal(have.gate, GATE_RUNNING);
    }
}

static void test_one_that_may_be_another_keeps_what_is_so_in_both(void **state)
{
    (void)state;
    have_reset(&have, false);
    assert_int_equal(have.gate, GATE_NOT_OURS);
    ask(API_RESUME, HAVE_GOOD);
    have_reset(&have, false);
    assert_int_equal(have.gate, GATE_RUNNING);
    ask(API_PAUSE, HAVE_GOOD);
    have_seen(&have, have.change);
    have_reset(&have, false);
    assert_int_equal(have.gate, GATE_UNKNOWN);
    ask(API_RESUME, HAVE_BROKE);
    assert_int_equal(have.gate, GATE_NOT_RESUMED);
    have_reset(&have, false); /* the resume was sent since a report: it may be paused still */
    assert_int_equal(have.gate, GATE_NOT_RESUMED);
}

/* A baton's own update: after which calls, in order (s(tart), f(inish), a(bort); capitals: refused,
 * the answer of `x` is lost, p: another process), it may be open. */
static void test_own_update_is_closed_only_by_an_answer(void **state)
{
    static const struct {
        const char *calls;
        enum own_fact own;
    } rows[] = {
        {"", OWN_NOT_OURS},  {"S", OWN_NOT_OURS}, {"s", OWN_OPEN},     {"sf", OWN_CLOSED},
        {"sF", OWN_OPEN},    {"sa", OWN_CLOSED},  {"sA", OWN_OPEN},    {"sx", OWN_UNKNOWN},
        {"x", OWN_UNKNOWN},  {"xA", OWN_UNKNOWN}, {"xa", OWN_CLOSED},  {"sp", OWN_UNKNOWN},
        {"p", OWN_NOT_OURS}, {"sfp", OWN_CLOSED}, {"xp", OWN_UNKNOWN}, {"saS", OWN_CLOSED},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)setup(state);
        for (const char *c = rows[i].calls; *c != '\0'; c++) {
            enum api_op op = strchr("sSx", *c) != NULL  ? API_START_UPDATE
                             : strchr("fF", *c) != NULL ? API_FINISH_UPDATE
                                                        : API_ABORT_UPDATE;

            if (*c == 'p') {
                have_reset(&have, true);
                continue;
            }
            have_doubt(&have, op, NULL, &before);
            assert_int_equal(have.own, OWN_UNKNOWN);
            have_answer(&have, op, NULL, &before,
                        *c == 'x'                   ? HAVE_LOST
                        : strchr("SFA", *c) != NULL ? HAVE_REFUSED
                                                    : HAVE_GOOD,
                        true);
        }
        if (have.own != rows[i].own)
            fail_msg("'%s': %d", rows[i].calls, (int)have.own);
    }
    (void)setup(state);
    have_doubt(&have, API_START_UPDATE, NULL, &before);
    have_reset(&have, true);
    have_answer(&have, API_START_UPDATE, NULL, &before, HAVE_GOOD, false);
    assert_int_equal(have.own, OWN_UNKNOWN); /* the new one may execute it */
}

/* ---- sleep ---- */

static void assert_sleep(enum sleep_fact weights, enum sleep_fact kv)
{
    assert_int_equal(have.sleep.weights, weights);
    assert_int_equal(have.sleep.kv, kv);
}

/* @weights, @kv  what is to sleep or to wake */
static void change(enum api_op op, bool weights, bool kv, enum have_answer answer)
{
    const struct api_sleep asked = {.level = op == API_SLEEP, .weights = weights, .kv = kv};
    const struct api_args args = {.sleep = &asked};

    have_doubt(&have, op, &args, &before);
    have_answer(&have, op, &args, &before, answer, true);
}

static void test_a_sleep_is_known_by_its_answer(void **state)
{
    (void)state;
    assert_sleep(SLEEP_NOT_OURS, SLEEP_NOT_OURS);
    have_doubt(&have, API_SLEEP, NULL, &before); /* of all */
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
    have_answer(&have, API_SLEEP, NULL, &before, HAVE_REFUSED, true);
    assert_sleep(SLEEP_NOT_OURS, SLEEP_NOT_OURS);
    change(API_SLEEP, false, true, HAVE_GOOD);
    assert_sleep(SLEEP_NOT_OURS, SLEEP_ASLEEP);
    change(API_SLEEP, true, false, HAVE_LOST);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_ASLEEP);
    change(API_WAKE, true, true, HAVE_GOOD);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE);
    change(API_SLEEP, true, true, HAVE_GOOD);
    change(API_WAKE, true, false, HAVE_REFUSED);
    assert_sleep(SLEEP_ASLEEP, SLEEP_ASLEEP);
    change(API_WAKE, true, false, HAVE_BROKE); /* it may be awake all the same */
    assert_sleep(SLEEP_UNKNOWN, SLEEP_ASLEEP);
    change(API_WAKE, true, false, HAVE_REFUSED);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_ASLEEP);
    change(API_WAKE, true, false, HAVE_GOOD);
    assert_sleep(SLEEP_AWAKE, SLEEP_ASLEEP);
    assert_int_equal(have.weights.fault, FAULT_NONE);
}

static const struct api_sleep all_of_it = {.weights = true, .kv = true};

/* An earlier server may have put it to sleep; not if it was away for a sleep of this one. */
static void test_one_that_misses_a_wake_may_sleep(void **state)
{
    (void)state;
    change(API_WAKE, true, false, HAVE_REFUSED);
    assert_sleep(SLEEP_NOT_OURS, SLEEP_NOT_OURS);
    have_missed_sleep(&have, true, &all_of_it);
    have_missed_sleep(&have, false, &all_of_it);
    assert_sleep(SLEEP_NOT_OURS, SLEEP_NOT_OURS);
    assert_int_equal(have.weights.fault, FAULT_SLEEP_MISSED); /* the first one */
    have_init(&have);
    have_missed_sleep(&have, false, &all_of_it);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
    change(API_WAKE, true, true, HAVE_GOOD);
    have_missed_sleep(&have, false, &all_of_it);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE); /* it was woken since, and not put to sleep */
}

static void test_another_process_is_awake_if_nothing_was_sent_to_it(void **state)
{
    (void)state;
    change(API_SLEEP, true, true, HAVE_GOOD);
    have_seen(&have, have.change);
    have_reset(&have, false); /* it may be the same */
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
    have_reset(&have, true);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE);
    change(API_SLEEP, false, true, HAVE_GOOD);
    have_reset(&have, false);
    assert_sleep(SLEEP_AWAKE, SLEEP_UNKNOWN);
    have_seen(&have, have.change);
    have_reset(&have, true);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE);
    change(API_SLEEP, true, true, HAVE_GOOD);
    have_reset(&have, true);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
    change(API_WAKE, true, true, HAVE_GOOD);
    have_reset(&have, true);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE);
    have_doubt(&have, API_SLEEP, NULL, &before);
    have_reset(&have, true);
    have_answer(&have, API_SLEEP, NULL, &before, HAVE_GOOD, false);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
}

static void test_a_token_shows_that_it_is_awake(void **state)
{
    uint64_t asked;

    (void)state;
    change(API_WAKE, true, true, HAVE_LOST);
    have_found_awake(&have, have.change);
    assert_sleep(SLEEP_AWAKE, SLEEP_AWAKE);
    change(API_SLEEP, true, true, HAVE_LOST);
    asked = have.change;
    have_doubt(&have, API_SLEEP, NULL, &before);
    have_found_awake(&have, asked);
    assert_sleep(SLEEP_UNKNOWN, SLEEP_UNKNOWN);
    have_answer(&have, API_SLEEP, NULL, &before, HAVE_GOOD, true);
    have_found_awake(&have, asked);
    assert_sleep(SLEEP_ASLEEP, SLEEP_ASLEEP);
}

/* ---- weights ---- */

static void test_a_fault_outlives_the_process(void **state)
{
    const struct api_sleep asked = {.level = 2, .weights = true};
    const struct api_args args = {.sleep = &asked};

    (void)state;
    have_version(&have, 3);
    have_doubt(&have, API_SLEEP, &args, &before);
    have_answer(&have, API_SLEEP, &args, &before, HAVE_LOST, true);
    assert_int_equal(have.weights.fault, FAULT_NONE);
    have_doubt(&have, API_SLEEP, &args, &before);
    have_answer(&have, API_SLEEP, &args, &before, HAVE_GOOD, true);
    assert_true(have_is_broken(&have) && !have.weights.fault_is_older);
    assert_int_equal(have.weights.fault, FAULT_DROPPED);
    assert_int_equal(have.weights.state, WEIGHTS_SERIAL);
    have_missed_sleep(&have, false, &all_of_it);
    have_reset(&have, true);
    assert_true(have_is_broken(&have) && have.weights.fault_is_older);
    assert_int_equal(have.weights.fault, FAULT_DROPPED);
    assert_int_equal(have.weights.state, WEIGHTS_OTHER);
    have_version(&have, 4);
    assert_int_equal(have.weights.fault, FAULT_NONE);
}

/* What refuses a wake as unknown may be on the way to an engine that has shown that it can sleep.
 */
static void test_what_may_lack_a_wake_does_not_sleep(void **state)
{
    (void)state;
    assert_true(have_may_lack_wake(&have)); /* it has told nothing */
    have_told(&have, have.change, false);
    assert_true(have_may_lack_wake(&have));
    have_doubt(&have, API_SLEEP, NULL, &before);
    have_told(&have, have.change, false); /* it has not executed that yet */
    have_answer(&have, API_SLEEP, NULL, &before, HAVE_LOST, true);
    assert_false(have_may_lack_wake(&have));
    have_told(&have, have.change - 1, false); /* by a probe that was sent before */
    have_told(&have, have.change, true);
    change(API_WAKE, true, true, HAVE_REFUSED);
    assert_false(have_may_lack_wake(&have));
    have_told(&have, have.change, false);
    change(API_WAKE, true, true, HAVE_REFUSED);
    assert_true(have_may_lack_wake(&have));
    change(API_SLEEP, true, true, HAVE_GOOD);
    have_told(&have, have.change, false);
    assert_false(have_may_lack_wake(&have)); /* it has slept */
    have_reset(&have, true);
    assert_true(have_may_lack_wake(&have));
}

static struct adapter_have adapter;

static void begin_adapter(enum api_op op, uint32_t number, struct have_before *its)
{
    const struct api_args args = {.name = "x", .number = number};

    *its = (struct have_before){.adapter = &adapter, .keyed_by_name = true};
    have_doubt(&have, op, &args, its);
    assert_int_equal(adapter.has, ADAPTER_UNKNOWN);
}

static void end_adapter(enum api_op op, uint32_t number, const struct have_before *its,
                        enum have_answer answer, bool same)
{
    const struct api_args args = {.name = "x", .number = number};

    have_answer(&have, op, &args, its, answer, same);
}

static void ask_adapter(enum api_op op, uint32_t number, enum have_answer answer)
{
    begin_adapter(op, number, &before);
    end_adapter(op, number, &before, answer, true);
}

static void test_an_adapter_is_known_by_its_answer(void **state)
{
    struct have_before other;

    (void)state;
    adapter = (struct adapter_have){.has = ADAPTER_NONE};
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_REFUSED);
    assert_true(adapter.has == ADAPTER_NONE && adapter.refused == 7);
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_GOOD);
    assert_int_equal(adapter.has, 7);
    ask_adapter(API_UNLOAD_ADAPTER, 8, HAVE_REFUSED);
    assert_int_equal(adapter.has, 7);
    ask_adapter(API_LOAD_ADAPTER, 9, HAVE_LOST);
    assert_int_equal(adapter.has, ADAPTER_UNKNOWN);
    ask_adapter(API_UNLOAD_ADAPTER, 9, HAVE_GOOD);
    assert_int_equal(adapter.has, ADAPTER_NONE);
    begin_adapter(API_LOAD_ADAPTER, 10, &before);
    begin_adapter(API_LOAD_ADAPTER, 11, &other); /* which came last is not known */
    end_adapter(API_LOAD_ADAPTER, 11, &other, HAVE_GOOD, true);
    end_adapter(API_LOAD_ADAPTER, 10, &before, HAVE_GOOD, true);
    assert_int_equal(adapter.has, ADAPTER_UNKNOWN);
    begin_adapter(API_LOAD_ADAPTER, 12, &before);
    have_reset_adapter(&adapter, true); /* which may have executed it */
    end_adapter(API_LOAD_ADAPTER, 12, &before, HAVE_GOOD, false);
    assert_int_equal(adapter.has, ADAPTER_UNKNOWN);
    have_reset_adapter(&adapter, true);
    assert_int_equal(adapter.has, ADAPTER_NONE);
    ask_adapter(API_LOAD_ADAPTER, 13, HAVE_GOOD);
    have_reset_adapter(&adapter, false); /* it may be the same process */
    assert_true(adapter.has == ADAPTER_UNKNOWN && adapter.settled == ADAPTER_UNKNOWN);
}

/* One that was not sent says nothing of the adapter, and one that another adapter of the name was
 * in the way of says it of that one. */
static void test_only_a_load_that_nothing_was_in_the_way_of_is_refused(void **state)
{
    (void)state;
    adapter = (struct adapter_have){.has = ADAPTER_NONE};
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_UNSENT);
    assert_true(adapter.has == ADAPTER_NONE && adapter.refused == 0);
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_LOST);
    ask_adapter(API_LOAD_ADAPTER, 8, HAVE_REFUSED);
    assert_true(adapter.has == ADAPTER_UNKNOWN && adapter.refused == 0);
    begin_adapter(API_LOAD_ADAPTER, 8, &before);
    before.replaces = true;
    end_adapter(API_LOAD_ADAPTER, 8, &before, HAVE_REFUSED, true);
    assert_true(adapter.has == ADAPTER_UNKNOWN && adapter.refused == 8);
    ask_adapter(API_UNLOAD_ADAPTER, 8, HAVE_GOOD);
    ask_adapter(API_LOAD_ADAPTER, 9, HAVE_REFUSED);
    assert_true(adapter.has == ADAPTER_NONE && adapter.refused == 9);
}

/* A load replaces what the caches know by name only; so does one whose answer is lost, at whichever
 * process. What an unload leaves in them cannot be read before the next load. */
static void test_a_load_makes_caches_stale(void **state)
{
    (void)state;
    adapter = (struct adapter_have){.has = ADAPTER_NONE};
    assert_true(have_caches_are_stale(&have)); /* never emptied by this server */
    have.caches.emptied = have.caches.changes;
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_REFUSED);
    ask_adapter(API_LOAD_ADAPTER, 7, HAVE_UNSENT);
    ask_adapter(API_UNLOAD_ADAPTER, 8, HAVE_GOOD);
    have_caches_settle(&have);
    assert_false(have_caches_are_stale(&have));
    for (int lost = 0; lost < 2; lost++) {
        ask_adapter(API_LOAD_ADAPTER, 7, lost ? HAVE_LOST : HAVE_GOOD);
        assert_false(have_caches_are_stale(&have)); /* its sender may empty them */
        have_caches_settle(&have);
        assert_true(have_caches_are_stale(&have) && have_may_lack_reset_route(&have));
        have.caches.emptied = have.caches.changes;
    }
    (void)have_caches_changed(&have, true);
    assert_false(have_may_lack_reset_route(&have));
    have_reset(&have, true);
    assert_true(have_caches_are_stale(&have) && have_may_lack_reset_route(&have));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_only_an_answer_makes_it_known, setup),
        cmocka_unit_test_setup(test_a_resume_that_fails_leaves_it_paused_until_one_succeeds, setup),
        cmocka_unit_test_setup(test_other_operations_leave_it, setup),
        cmocka_unit_test_setup(test_two_that_overlap_leave_it_unknown, setup),
        cmocka_unit_test_setup(test_an_answer_of_the_process_before_says_nothing, setup),
        cmocka_unit_test_setup(test_another_process_runs_if_nothing_was_sent_to_it, setup),
        cmocka_unit_test_setup(test_a_resume_that_fails_after_all_is_not_forgotten, setup),
        cmocka_unit_test_setup(test_one_that_may_be_another_keeps_what_is_so_in_both, setup),
        cmocka_unit_test_setup(test_own_update_is_closed_only_by_an_answer, setup),
        cmocka_unit_test_setup(test_a_sleep_is_known_by_its_answer, setup),
        cmocka_unit_test_setup(test_one_that_misses_a_wake_may_sleep, setup),
        cmocka_unit_test_setup(test_another_process_is_awake_if_nothing_was_sent_to_it, setup),
        cmocka_unit_test_setup(test_a_token_shows_that_it_is_awake, setup),
        cmocka_unit_test_setup(test_a_fault_outlives_the_process, setup),
        cmocka_unit_test_setup(test_what_may_lack_a_wake_does_not_sleep, setup),
        cmocka_unit_test_setup(test_an_adapter_is_known_by_its_answer, setup),
        cmocka_unit_test_setup(test_only_a_load_that_nothing_was_in_the_way_of_is_refused, setup),
        cmocka_unit_test_setup(test_a_load_makes_caches_stale, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
