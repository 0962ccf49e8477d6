/* The table of reasons and events, against the rows below, in every set that an engine can reach.
 */
#include "fleet/members/upstream_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SETS = 1 << 13, STORED = (OUT_PROBES_FAIL - 1) & ~OUT_PAUSE_MISSED };

#define ON(event) (1u << UPSTREAM_ON_##event)

static const struct row {
    unsigned out;
    const char *name;
    unsigned added_by, taken_by; /* sets of events */
} rows[] = {
    {OUT_NEVER_REACHED, "never answered", 0, ON(PROBE_OK) | ON(DOWN)},
    {OUT_DOWN, "no answer", ON(CONNECTION_REFUSED) | ON(DOWN), ON(PROBE_OK)},
    {OUT_OTHER_WEIGHTS, "other weights", ON(UNSYNCED), ON(SYNCED) | ON(UPDATED) | ON(RESYNCED)},
    {OUT_UPDATE_FAILED, "update failed", ON(UPDATE_FAILED), ON(UPDATED)},
    {OUT_SLEEP_MISSED, "sleep missed", ON(SLEEP_MISSED) | ON(WAKE),
     ON(SLEEP) | ON(UPDATE_FAILED) | ON(UPDATED) | ON(RESYNCED)},
    {OUT_WAKE_MISSED, "wake missed", ON(WAKE_MISSED) | ON(SLEEP),
     ON(WAKE) | ON(UPDATE_FAILED) | ON(UPDATED) | ON(RESYNCED)},
    {OUT_AUTH_PROBE, "key, status", ON(PROBE_AUTH_FAILED), ON(PROBE_OK)},
    {OUT_AUTH_REQUEST, "key, work", ON(REQUEST_AUTH_FAILED), ON(REQUEST_AUTH_OK) | ON(RESYNCED)},
    {OUT_REMOVED, "removed", ON(REMOVED), 0},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Every set that events lead to, from that of a new engine. */
static bool reached[SETS];

static void reach(unsigned from)
{
    reached[from] = true;
    for (int event = 0; event < UPSTREAM_EVENTS; event++) {
        unsigned to = from;

        if (upstream_state_next(from, (enum upstream_event)event, &to) && !reached[to])
            reach(to);
    }
}

static int set_up(void **state)
{
    (void)state;
    memset(reached, 0, sizeof reached);
    reach(OUT_JOINED);
    return 0;
}

static void check_move(unsigned from, unsigned to, int event)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *r = &rows[i];
        bool was = (from & r->out) != 0, is = (to & r->out) != 0;

        if ((!was && is && (r->added_by & 1u << event) == 0) ||
            (was && !is && (r->taken_by & 1u << event) == 0))
            fail_msg("event %d from %#x to %#x: '%s'", event, from, to, r->name);
    }
}

static void test_upstream_state_next_changes_only_what_the_rows_say(void **state)
{
    (void)state;
    for (unsigned from = 0; from < SETS; from++)
        for (int event = 0; event < UPSTREAM_EVENTS && reached[from]; event++) {
            unsigned to = from;

            if (upstream_state_next(from, (enum upstream_event)event, &to))
                check_move(from, to, event);
        }
}

/* Each event of a row changes some set. */
static void test_upstream_state_next_makes_each_change_of_the_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        unsigned adds = 0, takes = 0;

        for (unsigned from = 0; from < SETS; from++)
            for (int event = 0; event < UPSTREAM_EVENTS && reached[from]; event++) {
                unsigned to = from;

                if (!upstream_state_next(from, (enum upstream_event)event, &to))
                    continue;
                adds |= (to & ~from & rows[i].out) != 0 ? 1u << event : 0;
                takes |= (from & ~to & rows[i].out) != 0 ? 1u << event : 0;
            }
        assert_int_equal(adds, rows[i].added_by);
        assert_int_equal(takes, rows[i].taken_by);
    }
}

static bool cannot_happen(unsigned from, int event)
{
    switch (event) {
    case UPSTREAM_ON_SYNCED:
    case UPSTREAM_ON_REMOVED:
        return (from & OUT_REMOVED) != 0;
    case UPSTREAM_ON_RESYNCED:
        return (from & (OUT_REMOVED | OUT_UPDATE_FAILED)) != 0;
    default:
        return false;
    }
}

static void test_upstream_state_next_has_no_other_gaps(void **state)
{
    (void)state;
    for (unsigned from = 0; from < SETS; from++)
        for (int event = 0; event < UPSTREAM_EVENTS && reached[from]; event++) {
            unsigned to = 0;

            assert_int_equal(upstream_state_next(from, (enum upstream_event)event, &to),
                             !cannot_happen(from, event));
        }
}

static bool at_most_one(unsigned set)
{
    return (set & (set - 1)) == 0;
}

static void test_upstream_state_next_keeps_one_reason_of_a_group(void **state)
{
    (void)state;
    for (unsigned set = 0; set < SETS; set++) {
        if (!reached[set])
            continue;
        assert_true(at_most_one(set & OUT_UNREACHABLE));
        assert_true(at_most_one(set & OUT_FENCES));
        assert_int_equal(set & ~(unsigned)STORED, 0);
    }
}

static void test_upstream_state_next_waits_for_an_engine_that_starts(void **state)
{
    unsigned out = OUT_JOINED;

    (void)state;
    upstream_state_apply(&out, UPSTREAM_ON_CONNECTION_REFUSED);
    assert_int_equal(upstream_state_of(out), UPSTREAM_JOINING);
    upstream_state_apply(&out, UPSTREAM_ON_DOWN);
    assert_int_equal(upstream_state_of(out), UPSTREAM_DOWN);
    upstream_state_apply(&out, UPSTREAM_ON_PROBE_OK);
    assert_int_equal(upstream_state_of(out), UPSTREAM_UNSYNCED);
    upstream_state_apply(&out, UPSTREAM_ON_UPDATED);
    assert_int_equal(upstream_state_of(out), UPSTREAM_SERVING);
    upstream_state_apply(&out, UPSTREAM_ON_CONNECTION_REFUSED);
    assert_int_equal(upstream_state_of(out), UPSTREAM_DOWN);
}

/* The kind of its fence follows its sleep state, but not if an update failed there. */
static void test_upstream_state_next_follows_the_sleep_of_a_fenced_engine(void **state)
{
    unsigned out = OUT_SLEEP_MISSED;

    (void)state;
    upstream_state_apply(&out, UPSTREAM_ON_SLEEP);
    assert_int_equal(out, OUT_WAKE_MISSED);
    upstream_state_apply(&out, UPSTREAM_ON_WAKE);
    assert_int_equal(out, OUT_SLEEP_MISSED);
    upstream_state_apply(&out, UPSTREAM_ON_UPDATE_FAILED);
    upstream_state_apply(&out, UPSTREAM_ON_WAKE_MISSED);
    upstream_state_apply(&out, UPSTREAM_ON_SLEEP);
    assert_int_equal(out, OUT_UPDATE_FAILED);
}

static const char *shown(unsigned out)
{
    if (out & OUT_REMOVED)
        return "removed";
    if (out & (OUT_UPDATE_FAILED | OUT_SLEEP_MISSED | OUT_WAKE_MISSED))
        return "fenced";
    if (out & (OUT_AUTH_PROBE | OUT_AUTH_REQUEST))
        return "refused";
    if (out & OUT_NEVER_REACHED)
        return "unknown";
    if (out & OUT_DOWN)
        return "down";
    if (out & (OUT_OTHER_WEIGHTS | OUT_PAUSE_MISSED | OUT_PROBES_FAIL | OUT_ADAPTERS))
        return "unsynced";
    return out & OUT_NOT_READY ? "not_ready" : "serving";
}

static void test_upstream_state_of_shows_the_gravest(void **state)
{
    (void)state;
    for (unsigned out = 0; out < SETS; out++)
        assert_string_equal(upstream_state_name(upstream_state_of(out)), shown(out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upstream_state_next_changes_only_what_the_rows_say),
        cmocka_unit_test(test_upstream_state_next_makes_each_change_of_the_rows),
        cmocka_unit_test(test_upstream_state_next_has_no_other_gaps),
        cmocka_unit_test(test_upstream_state_next_keeps_one_reason_of_a_group),
        cmocka_unit_test(test_upstream_state_next_waits_for_an_engine_that_starts),
        cmocka_unit_test(test_upstream_state_next_follows_the_sleep_of_a_fenced_engine),
        cmocka_unit_test(test_upstream_state_of_shows_the_gravest),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
