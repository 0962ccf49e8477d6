/* Which version is the fleet's before its first update, who is trusted, and what is told of it. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static void heard(struct fleet *f, const char *const labels[N])
{
    for (size_t i = 0; i < N; i++)
        report_ok(f, i, "p", labels[i]);
}

static void all_say(struct fleet *f, const struct upstream_report *report)
{
    for (size_t i = 0; i < N; i++)
        fleet_probe_ok(f, i, report);
}

static void states(struct fleet *f, const char *const wanted[N])
{
    for (size_t i = 0; i < N; i++)
        assert_string_equal(state(f, i), wanted[i]);
}

static void refused(struct fleet *f, const char *says)
{
    struct asker a;
    struct err e = {0};

    make_asker(&a, "");
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UNSYNCED);
    if (strstr(e.msg, says) == NULL)
        fail_msg("refused with '%s', not with '%s'", e.msg, says);
}

#define EACH(...) ((const char *const[N]){__VA_ARGS__})

static void test_most_upstreams_have_the_version(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    struct fleet_stats s;
    struct err e = {0};

    (void)cmocka_state;
    report_ok(f, 0, "p", "old");
    report_ok(f, 1, "p", "new");
    report_ok(f, 2, "p", "new"); /* the last one may still be of the old one */
    refused(f, "1 upstreams have not answered; of the others: 'new' at 2, 'old' at 1");
    assert_true(fleet_version_undecided(f, &e));
    fail_request(f, 3, false); /* not within its first time */
    states(f, EACH("unsynced", "serving", "serving", "unknown"));
    err_clear(&e);
    assert_false(fleet_version_undecided(f, &e));
    report_ok(f, 3, "p", "old"); /* it is decided once */
    states(f, EACH("unsynced", "serving", "serving", "unsynced"));
    report_ok(f, 0, "p", "new"); /* whoever has caught up by itself is welcome */
    assert_string_equal(state(f, 0), "serving");
    fleet_stats(f, &s);
    assert_string_equal(s.label, "new");
    assert_int_equal(s.serial, 0);
    report_ok(f, 1, "q", "old"); /* restarted, and behind */
    assert_string_equal(state(f, 1), "unsynced");
    assert_int_equal(left[1], 1);
    fleet_free(f);
}

/* All of them agree, and have half of the same update. */
static void test_an_unfinished_update_is_no_version(void **cmocka_state)
{
    const struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct upstream_info info;
    struct err e = {0};

    (void)cmocka_state;
    all_say(f, &report);
    states(f, EACH("fenced", "fenced", "fenced", "fenced"));
    fleet_info(f, 0, &info);
    assert_non_null(strstr(
        info.error.msg, "an update of it never ended (weight_version 'baton:unfinished:upd-1')"));
    heard(f, EACH("v", "v", "v", "v")); /* somebody else named it: that says nothing */
    states(f, EACH("fenced", "fenced", "fenced", "fenced"));
    assert_int_equal(fleet_may_resync(f, 0, &e), -1);
    assert_int_equal(fleet_commit_version(f, "w", done, NULL), 1);
    heard(f, EACH("w", "w", "w", "w"));
    states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
}

/* One that we have given up before anything came of it leaves all as it was: what was heard in it,
 * and what was asked in it, says nothing; nor is it the version of the most. */
static void test_an_update_of_ours_that_was_given_up_is_not_unfinished(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    struct fleet_stats s;

    (void)cmocka_state;
    heard(f, EACH("v", "v", "v", "v"));
    for (int round = 0; round < 2; round++) {
        fleet_set_updating(f, true);
        report.is_stale = false;
        all_say(f, &report);
        fleet_set_updating(f, false);
        fleet_stats(f, &s);
        assert_string_equal(s.label, "v");
        report.is_stale = true;
        all_say(f, &report);
        states(f, EACH("serving", "serving", "serving", "serving"));
        heard(f, EACH("v", "v", "v", "v"));
        states(f, EACH("serving", "serving", "serving", "serving"));
    }
    fleet_free(f);
}

/* It says so while we are at it, and when it was asked before the end. */
static void test_an_update_of_ours_is_not_unfinished(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct err e = {0};

    (void)cmocka_state;
    heard(f, EACH("v", "v", "v", "v"));
    fleet_set_updating(f, true);
    all_say(f, &report);
    states(f, EACH("serving", "serving", "serving", "serving"));
    assert_int_equal(fleet_commit_version(f, "w", done, NULL), 1);
    report.is_stale = true;
    all_say(f, &report);
    states(f, EACH("serving", "serving", "serving", "serving"));
    report.is_stale = false;
    assert_int_equal(fleet_resync(f, 0, &report, &e), -1);
    assert_non_null(strstr(e.msg, "never ended"));
    fleet_free(f);
}

/* Not what it says since, which follows from that. */
static void test_why_one_is_fenced_stays_known(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct upstream_info info;
    struct err why = {0};

    (void)cmocka_state;
    heard(f, EACH("v", "v", "v", "v"));
    assert_int_equal(fleet_commit_version(f, "w", done, NULL), 1);
    (void)err_set(&why, ERR_UPSTREAM, "", "it ran out of memory");
    fleet_fence(f, 0, &why);
    heard(f, EACH(FLEET_DIRTY_MARKER "upd-1", "x", "w", "w"));
    states(f, EACH("fenced", "unsynced", "serving", "serving"));
    fleet_info(f, 0, &info);
    assert_string_equal(info.error.msg, "it ran out of memory");
    fleet_free(f);
}

static void test_no_name_is_a_version_too(void **cmocka_state)
{
    struct fleet *f = fleet_of(N), *g = fleet_of(N);

    (void)cmocka_state;
    heard(f, EACH("", "", "", "v"));
    states(f, EACH("serving", "serving", "serving", "unsynced"));
    heard(g, EACH("v", "v", "", "v"));
    states(g, EACH("serving", "serving", "unsynced", "serving"));
    fleet_free(f);
    fleet_free(g);
}

static void test_without_a_majority_nobody_serves(void **cmocka_state)
{
    struct fleet *f = fleet_of(N), *g = fleet_of(N);
    struct err e = {0};

    (void)cmocka_state;
    heard(f, EACH("a", "b", "a", "b"));
    states(f, EACH("unsynced", "unsynced", "unsynced", "unsynced"));
    refused(f,
            "at least 2 (--min-ready): 'a' at 2, 'b' at 2; push an update, or resync an upstream "
            "that has the right weights (/v1/upstreams/resync)");
    heard(g, EACH("a", "b", "", "c"));
    refused(g, "(no label) at 1");
    /* Somebody who knows says which. */
    assert_int_equal(vouch(f, 1, "b", &e), 0);
    states(f, EACH("unsynced", "serving", "unsynced", "serving"));
    assert_int_equal(vouch(f, 0, "a", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    /* An update needs no version before it. */
    (void)fleet_commit_version(g, "d", (const bool[]){true, true, true, true}, NULL);
    states(g, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
    fleet_free(g);
}

static void test_a_version_that_nobody_can_have_is_given_up(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);

    (void)cmocka_state;
    heard(f, EACH("a", "a", "a", "b"));
    for (size_t i = 0; i < 3; i++)
        fail_request(f, i, true);
    assert_string_equal(state(f, 3), "unsynced"); /* they may come back */
    report_ok(f, 0, "q", "b");
    report_ok(f, 1, "q", "b");
    states(f, EACH("unsynced", "unsynced", "down", "unsynced"));
    report_ok(f, 2, "q", "b");
    states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
}

/* What is no version of those that serve decides nothing. */
static void test_who_cannot_serve_has_no_vote(void **cmocka_state)
{
    struct upstream_report starts = {.process = "p", .not_ready = "no_weights"};
    struct upstream_report late = {.process = "p", .label = "b", .is_stale = true};
    struct fleet *f = fleet_of(N);

    (void)cmocka_state;
    fleet_probe_ok(f, 0, &starts);
    fleet_probe_ok(f, 1, &starts);
    report_ok(f, 2, "p", "a");
    fleet_probe_ok(f, 3, &late); /* asked before something changed: it is asked again */
    states(f, EACH("not_ready", "not_ready", "unsynced", "unsynced"));
    report_ok(f, 3, "p", "a");
    states(f, EACH("not_ready", "not_ready", "serving", "serving"));
    report_ok(f, 0, "p", "b");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_probe_ok(f, 2, &late); /* says nothing against it */
    assert_string_equal(state(f, 2), "serving");
    fleet_free(f);
}

static void test_another_process_must_say_what_it_has(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    assert_true(fleet_check_process(f, 0, "p"));
    assert_false(fleet_check_process(f, 0, "q"));
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 0, "q", "");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

/* Whoever takes an update names itself when that starts: what answers later is the same, or not. */
static void test_who_took_an_update_is_in_step(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    (void)fleet_commit_version(f, "v6", (const bool[FLEET_MAX]){true, true}, NULL);
    assert_false(fleet_check_process(f, 0, "q"));
    assert_string_equal(state(f, 0), "unsynced");
    assert_true(fleet_check_process(f, 0, "q"));
    assert_string_equal(state(f, 0), "unsynced");
    (void)fleet_commit_version(f, "v7", (const bool[FLEET_MAX]){true, true}, NULL);
    report_ok(f, 0, "q", "v7");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "r", "v7"); /* restarted after it */
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 1, "p", "v7");
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

/* What it answered to the end of an update is what it says, until it is asked again. */
static void test_who_said_its_new_version_is_not_asked_for_it(void **cmocka_state)
{
    static const bool done[FLEET_MAX] = {true, true, false}, named[FLEET_MAX] = {true, false, true};
    static const char *const says[] = {"v1", "", "v0"};
    struct fleet *f = fleet_alive(3);
    struct upstream_report late = {.process = "p", .label = "v0", .is_stale = true};
    struct upstream_info info;

    (void)cmocka_state;
    for (size_t i = 0; i < 3; i++)
        report_ok(f, i, "p", "v0");
    (void)fleet_commit_version(f, "v1", done, named);
    fleet_probe_ok(f, 0, &late); /* asked before */
    for (size_t i = 0; i < 3; i++) {
        fleet_info(f, i, &info);
        assert_string_equal(info.report.label, says[i]);
    }
    fleet_free(f);
}

/* Labels are not judged while an update is under way; that another process answers is seen. */
static void test_a_restart_within_an_update_is_out(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    struct upstream_info info;

    (void)cmocka_state;
    report_ok(f, 0, "p", "a");
    report_ok(f, 1, "p", "a");
    fleet_set_updating(f, true);
    report_ok(f, 0, "p", "half-way");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "q", "b");
    assert_string_equal(state(f, 0), "unsynced");
    assert_string_equal(state(f, 1), "serving");
    fleet_info(f, 0, &info);
    assert_non_null(strstr(info.error.msg, "restarted"));
    fleet_set_updating(f, false);
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 0, "q", "a");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

/* Whoever configures it again does not make its weights whole. */
static void test_who_is_added_again_stays_fenced(void **cmocka_state)
{
    static const char *const names[] = {"http://a", "http://b"};
    struct fleet *f = fleet_alive_named(names, 2);
    struct err why = {0};

    (void)cmocka_state;
    (void)err_set(&why, ERR_UNSYNCED, "", "half of an update is in it");
    fleet_fence(f, 1, &why);
    fleet_remove(f, 1);
    fleet_add(f, 1, "http://b");
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "fenced");
    (void)fleet_commit_version(f, "d", (const bool[FLEET_MAX]){true, true}, NULL);
    assert_string_equal(state(f, 1), "serving");
    fleet_fence(f, 1, &why);
    fleet_remove(f, 1);
    fleet_add(f, 1, "http://c"); /* another has nothing of it */
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "unsynced");
    fleet_free(f);
}

/* Whoever did not hear that all stand still would be the only one that does not. */
static void test_who_was_not_told_to_stand_still_waits(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct upstream_info info;

    (void)cmocka_state;
    fail_request(f, 3, true);
    fleet_quiesce(f, true, 1);
    states(f, EACH("serving", "serving", "serving", "down"));
    report_ok(f, 3, "p", "");
    report_ok(f, 2, "q", "");
    states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    fleet_info(f, 2, &info);
    assert_non_null(strstr(info.error.msg, "when they resume"));
    fleet_confirm_quiesced(f, 2, info.incarnation - 1); /* the process before */
    states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    fleet_confirm_quiesced(f, 2, info.incarnation);
    states(f, EACH("serving", "serving", "serving", "unsynced"));
    report_ok(f, 2, "r", "");
    states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    fleet_quiesce(f, false, 3);
    states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_info(f, 2, &info);
    assert_int_equal(info.error.code, ERR_NONE);
    fleet_quiesce(f, true, 2); /* of before */
    report_ok(f, 2, "s", "");
    assert_string_equal(state(f, 2), "serving");
    fleet_free(f);
}

/* keys and silence */

static void refuse_key(struct fleet *f, size_t i, enum fleet_auth what)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM_KEY, "", "it refuses the key");
    fleet_auth_failed(f, i, what, &why);
}

static void test_who_refuses_our_key_gets_nothing(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct asker a, b;
    struct err e = {0};

    (void)cmocka_state;
    while (enter(f, &a, "") != 0)
        fleet_permit_release(f, &a.ticket);
    refuse_key(f, 0, FLEET_AUTH_REQUEST);
    assert_string_equal(state(f, 0), "refused");
    assert_int_equal(left[0], 0); /* what runs there may end */
    report_ok(f, 0, "p", "");     /* that it talks about itself was never the question */
    fleet_info(f, 0, &info);
    assert_true(info.alive && info.request_auth_failed);
    assert_int_equal(info.error.code, ERR_UPSTREAM_KEY);
    assert_int_equal(enter(f, &b, ""), 1);
    fleet_permit_release(f, &b.ticket);
    refuse_key(f, 1, FLEET_AUTH_PROBE);
    fleet_info(f, 1, &info);
    assert_false(info.alive);
    make_asker(&b, "");
    assert_int_equal(fleet_permit_acquire(f, &b.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UPSTREAM_KEY);
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "serving");
    fleet_auth_ok(f, 0);
    assert_string_equal(state(f, 0), "serving");
    fleet_info(f, 0, &info);
    assert_int_equal(info.error.code, ERR_NONE);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

/* What is wrong with one that takes our key again is something else. */
static void test_a_key_that_is_taken_again_is_no_reason(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct upstream_info info;

    (void)cmocka_state;
    refuse_key(f, 0, FLEET_AUTH_PROBE);
    report_ok(f, 0, "p", "b");
    fleet_info(f, 0, &info);
    assert_string_equal(upstream_state_name(info.state), "unsynced");
    assert_non_null(strstr(info.error.msg, "it serves version 'b'"));
    (void)fleet_commit_version(f, "d", (const bool[FLEET_MAX]){false, true, true, true}, NULL);
    refuse_key(f, 0, FLEET_AUTH_PROBE);
    report_ok(f, 0, "p", "b");
    fleet_info(f, 0, &info);
    assert_string_equal(upstream_state_name(info.state), "unsynced");
    assert_null(strstr(info.error.msg, "key"));
    assert_int_equal(info.error.code, ERR_UNSYNCED);
    fleet_free(f);
}

/* It answers clients, so that it never misses three times in a row. */
static void test_who_never_says_what_it_serves_leaves(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct asker a;
    struct err why = {0};

    (void)cmocka_state;
    (void)err_set(&why, ERR_ENGINE, "", "it answered /metrics with 500");
    for (int i = 0; i < FLEET_PROBE_FAILURES_MAX; i++) {
        assert_string_equal(state(f, 0), "serving");
        while (enter(f, &a, "") != 0)
            fleet_permit_release(f, &a.ticket);
        fleet_probe_failed(f, 0, false, &why);
        a.ticket.responded = true;
        fleet_permit_release(f, &a.ticket);
    }
    assert_string_equal(state(f, 0), "unsynced");
    fleet_info(f, 0, &info);
    assert_non_null(strstr(info.error.msg, "10 probes in a row failed"));
    assert_non_null(strstr(info.error.msg, "with 500"));
    assert_int_equal(info.n_failures, FLEET_PROBE_FAILURES_MAX);
    assert_int_equal(left[0], 0);
    report_ok(f, 0, "p", "");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

/* what is told */

static void test_each_change_of_a_state_is_told(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);

    (void)cmocka_state;
    report_ok(f, 0, "p", "v"); /* that nothing is decided yet is no news */
    assert_int_equal(n_changes, 0);
    report_ok(f, 1, "p", "v");
    assert_int_equal(n_changes, 2);
    assert_string_equal(upstream_state_name(changes[0].from), "unknown");
    assert_string_equal(upstream_state_name(changes[0].to), "serving");
    assert_string_equal(changes[1].label, "v");
    report_ok(f, 1, "p", "v");
    fail_request(f, 1, false);
    assert_int_equal(n_changes, 2);
    fail_request(f, 1, true);
    assert_int_equal(n_changes, 3);
    assert_int_equal(changes[2].upstream, 1);
    assert_string_equal(upstream_state_name(changes[2].from), "serving");
    assert_string_equal(upstream_state_name(changes[2].to), "down");
    assert_string_equal(changes[2].why.msg, "nobody is there");
    report_ok(f, 0, "p", "w");
    assert_string_equal(upstream_state_name(changes[3].to), "unsynced");
    assert_string_equal(changes[3].why.msg, "it serves version 'w', the fleet 'v'");
    fleet_free(f);
}

static void test_who_flaps_is_told_of_so_often_and_no_more(void **cmocka_state)
{
    struct fleet *f = fleet_of(1);

    (void)cmocka_state;
    for (int i = 0; i < 3 * FLEET_REPORTS_MAX; i++) {
        report_ok(f, 0, "p", "");
        fail_request(f, 0, true);
    }
    assert_int_equal(n_changes, FLEET_REPORTS_MAX);
    for (int i = 0; i < FLEET_REPORTS_MAX; i++)
        assert_int_equal(changes[i].is_last, i == FLEET_REPORTS_MAX - 1);
    fleet_free(f);
}

/* What is named by who was put into step, or changed since it was asked, is right. */
static void test_an_answer_names_what_the_fleet_serves(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    uint64_t epoch = fleet_weights_epoch(f);

    (void)cmocka_state;
    assert_true(fleet_may_report_version(f, "any", epoch)); /* none is decided */
    heard(f, EACH("old", "old", "old", "old"));
    assert_true(fleet_may_report_version(f, "old", epoch));
    assert_false(fleet_may_report_version(f, "base", epoch));
    fleet_set_updating(f, true);
    assert_true(fleet_may_report_version(f, FLEET_DIRTY_MARKER "x", fleet_weights_epoch(f)));
    assert_true(fleet_may_report_version(f, "new", fleet_weights_epoch(f)));
    epoch = fleet_weights_epoch(f);
    (void)fleet_commit_version(f, "new", done, NULL);
    assert_true(fleet_may_report_version(f, "old", epoch)); /* asked before */
    assert_false(fleet_may_report_version(f, "old", fleet_weights_epoch(f)));
    assert_false(fleet_may_report_version(f, "", fleet_weights_epoch(f)));
    assert_true(fleet_may_report_version(f, "new", fleet_weights_epoch(f)));
    fleet_free(f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_most_upstreams_have_the_version),
        cmocka_unit_test(test_an_unfinished_update_is_no_version),
        cmocka_unit_test(test_an_update_of_ours_is_not_unfinished),
        cmocka_unit_test(test_an_update_of_ours_that_was_given_up_is_not_unfinished),
        cmocka_unit_test(test_why_one_is_fenced_stays_known),
        cmocka_unit_test(test_no_name_is_a_version_too),
        cmocka_unit_test(test_without_a_majority_nobody_serves),
        cmocka_unit_test(test_a_version_that_nobody_can_have_is_given_up),
        cmocka_unit_test(test_who_cannot_serve_has_no_vote),
        cmocka_unit_test(test_another_process_must_say_what_it_has),
        cmocka_unit_test(test_who_took_an_update_is_in_step),
        cmocka_unit_test(test_who_said_its_new_version_is_not_asked_for_it),
        cmocka_unit_test(test_a_restart_within_an_update_is_out),
        cmocka_unit_test(test_who_is_added_again_stays_fenced),
        cmocka_unit_test(test_who_was_not_told_to_stand_still_waits),
        cmocka_unit_test(test_who_refuses_our_key_gets_nothing),
        cmocka_unit_test(test_a_key_that_is_taken_again_is_no_reason),
        cmocka_unit_test(test_who_never_says_what_it_serves_leaves),
        cmocka_unit_test(test_each_change_of_a_state_is_told),
        cmocka_unit_test(test_an_answer_names_what_the_fleet_serves),
        cmocka_unit_test(test_who_flaps_is_told_of_so_often_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
