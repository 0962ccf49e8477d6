/* Which version is the fleet's, which engines are synced, and which state changes are reported. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static void report_labels(struct fleet *f, const char *const labels[N])
{
    for (size_t i = 0; i < n_engines(f); i++)
        report_ok(f, i, "p", labels[i]);
}

static void report_all(struct fleet *f, const struct upstream_report *report)
{
    for (size_t i = 0; i < N; i++)
        fleet_probe_ok(f, engine_at(f, i), report);
}

static void assert_states(struct fleet *f, const char *const wanted[N])
{
    for (size_t i = 0; i < N; i++)
        assert_string_equal(state(f, i), wanted[i]);
}

static void assert_unsynced(struct fleet *f, const char *wanted)
{
    struct requester a;
    struct err e = {0};

    make_requester(f, &a, "");
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UNSYNCED);
    if (strstr(e.msg, wanted) == NULL)
        fail_msg("refused with '%s', not with '%s'", e.msg, wanted);
}

#define EACH(...) ((const char *const[N]){__VA_ARGS__})

static void test_first_version_is_that_of_most_engines(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    struct fleet_stats s;
    struct err e = {0};

    (void)cmocka_state;
    report_ok(f, 0, "p", "old");
    report_ok(f, 1, "p", "new");
    report_ok(f, 2, "p", "new"); /* the last engine may still have the old one */
    assert_unsynced(f, "1 upstreams have not answered; of the others: 'new' at 2, 'old' at 1");
    assert_true(fleet_version_undecided(f, &e));
    fail_request(f, 3, false); /* its first probe failed */
    assert_states(f, EACH("unsynced", "serving", "serving", "unknown"));
    err_clear(&e);
    assert_false(fleet_version_undecided(f, &e));
    report_ok(f, 3, "p", "old"); /* it is decided once */
    assert_states(f, EACH("unsynced", "serving", "serving", "unsynced"));
    report_ok(f, 0, "p", "new"); /* an engine that has caught up is synced */
    assert_string_equal(state(f, 0), "serving");
    fleet_stats(f, &s);
    assert_string_equal(s.label, "new");
    assert_int_equal(s.serial, 0);
    report_ok(f, 1, "q", "old"); /* restarted, and behind */
    assert_string_equal(state(f, 1), "unsynced");
    assert_int_equal(n_lost(f, 1), 1);
    fleet_free(f);
}

/* All engines have the marker of the same update. */
static void test_dirty_marker_is_no_version(void **cmocka_state)
{
    const struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct upstream_error errors[UPSTREAM_ERRORS_MAX];
    struct upstream_info info;
    struct err e = {0};

    (void)cmocka_state;
    report_all(f, &report);
    assert_states(f, EACH("fenced", "fenced", "fenced", "fenced"));
    assert_int_equal(fleet_errors(f, engine_at(f, 0), errors), 1); /* its fence says it all */
    fleet_info(f, engine_at(f, 0), &info);
    assert_non_null(
        strstr(info.error.why.msg,
               "an update of it never ended (weight_version 'baton:unfinished:upd-1')"));
    report_labels(f, EACH("v", "v", "v", "v")); /* another label proves nothing */
    assert_states(f, EACH("fenced", "fenced", "fenced", "fenced"));
    assert_int_equal(fleet_may_resync(f, engine_at(f, 0), &e), -1);
    assert_int_equal(commit(f, "w", 0, done, NULL), 1);
    report_labels(f, EACH("w", "w", "w", "w"));
    assert_states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
}

/* After an update that was aborted before its first byte nothing has changed: reports and probes
 * from that time do not count, and its marker is not taken for a version. */
static void test_marker_of_our_aborted_update_fences_nothing(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    struct fleet_stats s;

    (void)cmocka_state;
    report_labels(f, EACH("v", "v", "v", "v"));
    for (int round = 0; round < 2; round++) {
        fleet_set_updating(f, true);
        report.is_stale = false;
        report_all(f, &report);
        fleet_set_updating(f, false);
        fleet_stats(f, &s);
        assert_string_equal(s.label, "v");
        report.is_stale = true;
        report_all(f, &report);
        assert_states(f, EACH("serving", "serving", "serving", "serving"));
        report_labels(f, EACH("v", "v", "v", "v"));
        assert_states(f, EACH("serving", "serving", "serving", "serving"));
    }
    fleet_free(f);
}

/* The engine reports the marker during the update, and in a probe that was sent before its end. */
static void test_marker_of_our_running_update_fences_nothing(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct err e = {0};

    (void)cmocka_state;
    report_labels(f, EACH("v", "v", "v", "v"));
    fleet_set_updating(f, true);
    report_all(f, &report);
    assert_states(f, EACH("serving", "serving", "serving", "serving"));
    assert_int_equal(commit(f, "w", 0, done, NULL), 1);
    report.is_stale = true;
    report_all(f, &report);
    assert_states(f, EACH("serving", "serving", "serving", "serving"));
    report.is_stale = false;
    assert_int_equal(resync(f, 0, report.label, &e), -1);
    assert_non_null(strstr(e.msg, "never ended"));
    fleet_free(f);
}

/* From before the first is told to finish each gets generates once it is known to have the version;
 * what it runs meanwhile goes on. */
static void test_version_switches_engine_by_engine(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    struct upstream *parts[] = {engine_at(f, 0), engine_at(f, 1), engine_at(f, 2)};
    struct requester waits, next;

    (void)cmocka_state;
    report_labels(f, EACH("v", "v", "v", "v"));
    fleet_begin_switch(f, parts, 3);
    fleet_confirm_version(f, parts[0], true); /* too early: its version is not the fleet's */
    assert_int_equal(acquire(f, &waits, ""), NO_ENGINE);
    assert_int_equal(fleet_switch_version(f, "w", 0), 1);
    assert_states(f, EACH("serving", "serving", "serving", "unsynced"));
    assert_int_equal(waits.got, NO_ENGINE);
    fleet_confirm_version(f, parts[1], true);
    assert_int_equal(waits.got, 1);
    assert_string_equal(waits.ticket.served.label, "w");
    assert_true(acquire(f, &next, "") == 1 && n_lost(f, 0) == 0);
    fleet_set_updating(f, false); /* the others did not finish */
    assert_states(f, EACH("unsynced", "serving", "unsynced", "unsynced"));
    fleet_permit_release(f, &waits.ticket);
    fleet_permit_release(f, &next.ticket);
    fleet_free(f);
}

/* A later report follows from the failure and does not replace its reason. */
static void test_reason_of_a_fence_is_kept(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    struct upstream_info info;
    struct err why = {0};

    (void)cmocka_state;
    report_labels(f, EACH("v", "v", "v", "v"));
    assert_int_equal(commit(f, "w", 0, done, NULL), 1);
    (void)err_set(&why, ERR_UPSTREAM, "", "it ran out of memory");
    fleet_fence(f, engine_at(f, 0), &why);
    report_labels(f, EACH(FLEET_DIRTY_MARKER "upd-1", "x", "w", "w"));
    assert_states(f, EACH("fenced", "unsynced", "serving", "serving"));
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(info.error.why.msg, "it ran out of memory");
    fleet_free(f);
}

static void test_empty_label_counts_as_a_version(void **cmocka_state)
{
    struct fleet *f = fleet_of(N), *g = fleet_of(N);

    (void)cmocka_state;
    report_labels(f, EACH("", "", "", "v"));
    assert_states(f, EACH("serving", "serving", "serving", "unsynced"));
    report_labels(g, EACH("v", "v", "", "v"));
    assert_states(g, EACH("serving", "serving", "unsynced", "serving"));
    fleet_free(f);
    fleet_free(g);
}

static void test_no_engine_serves_without_a_majority(void **cmocka_state)
{
    struct fleet *f = fleet_of(N), *g = fleet_of(N);
    struct err e = {0};

    (void)cmocka_state;
    report_labels(f, EACH("a", "b", "a", "b"));
    assert_states(f, EACH("unsynced", "unsynced", "unsynced", "unsynced"));
    assert_unsynced(
        f, "at least 2 (--min-ready): 'a' at 2, 'b' at 2; push an update, or resync an upstream "
           "that has the right weights (/v1/upstreams/resync)");
    report_labels(g, EACH("a", "b", "", "c"));
    assert_unsynced(g, "(no label) at 1");
    /* An operator decides it by a resync. */
    assert_int_equal(resync(f, 1, "b", &e), 0);
    assert_states(f, EACH("unsynced", "serving", "unsynced", "serving"));
    assert_int_equal(resync(f, 0, "a", &e), -1);
    assert_int_equal(e.code, ERR_NEEDS_UPDATE);
    /* An update needs no version before it. */
    (void)commit(g, "d", 0, (const bool[]){true, true, true, true}, NULL);
    assert_states(g, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
    fleet_free(g);
}

static void test_version_that_no_engine_can_have_is_dropped(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);

    (void)cmocka_state;
    report_labels(f, EACH("a", "a", "a", "b"));
    for (size_t i = 0; i < 3; i++)
        fail_request(f, i, true);
    assert_string_equal(state(f, 3), "unsynced"); /* they may come back with that version */
    report_ok(f, 0, "q", "b");
    report_ok(f, 1, "q", "b");
    assert_states(f, EACH("unsynced", "unsynced", "down", "unsynced"));
    report_ok(f, 2, "q", "b");
    assert_states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_free(f);
}

static void test_engine_that_is_not_ready_does_not_count_for_the_version(void **cmocka_state)
{
    struct upstream_report starts = {.process = "p", .not_ready = "no_weights"};
    struct upstream_report late = {.process = "p", .label = "b", .is_stale = true};
    struct fleet *f = fleet_of(N);

    (void)cmocka_state;
    fleet_probe_ok(f, engine_at(f, 0), &starts);
    fleet_probe_ok(f, engine_at(f, 1), &starts);
    report_ok(f, 2, "p", "a");
    fleet_probe_ok(f, engine_at(f, 3), &late); /* a stale report: its label is ignored */
    assert_states(f, EACH("not_ready", "not_ready", "unsynced", "unsynced"));
    report_ok(f, 3, "p", "a");
    assert_states(f, EACH("not_ready", "not_ready", "serving", "serving"));
    report_ok(f, 0, "p", "b");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_probe_ok(f, engine_at(f, 2), &late); /* does not count against it */
    assert_string_equal(state(f, 2), "serving");
    fleet_free(f);
}

static void test_new_process_must_report_its_version(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    assert_true(fleet_check_process(f, engine_at(f, 0), incarnation(f, 0), "p"));
    assert_false(fleet_check_process(f, engine_at(f, 0), incarnation(f, 0), "q"));
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 0, "q", "");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

/* The process that starts an update is recorded, so a later reply shows whether it is the same. */
static void test_process_that_took_an_update_is_synced(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    (void)commit(f, "v6", 0, (const bool[FLEET_MAX]){true, true}, NULL);
    assert_false(fleet_check_process(f, engine_at(f, 0), incarnation(f, 0), "q"));
    assert_string_equal(state(f, 0), "unsynced");
    assert_true(fleet_check_process(f, engine_at(f, 0), incarnation(f, 0), "q"));
    assert_string_equal(state(f, 0), "unsynced");
    (void)commit(f, "v7", 0, (const bool[FLEET_MAX]){true, true}, NULL);
    report_ok(f, 0, "q", "v7");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "r", "v7"); /* restarted after it */
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 1, "p", "v7");
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

/* The label that it reported at the end of an update is kept until the next probe. */
static void test_commit_keeps_labels_that_engines_reported(void **cmocka_state)
{
    static const bool done[FLEET_MAX] = {true, true, false}, named[FLEET_MAX] = {true, false, true};
    static const char *const wanted[] = {"v1", "", "v0"};
    struct fleet *f = fleet_alive(3);
    struct upstream_report late = {.process = "p", .label = "v0", .is_stale = true};
    struct upstream_info info;

    (void)cmocka_state;
    for (size_t i = 0; i < 3; i++)
        report_ok(f, i, "p", "v0");
    (void)commit(f, "v1", 0, done, named);
    fleet_probe_ok(f, engine_at(f, 0), &late); /* sent before the commit */
    for (size_t i = 0; i < 3; i++) {
        fleet_info(f, engine_at(f, i), &info);
        assert_string_equal(info.report.label, wanted[i]);
    }
    fleet_free(f);
}

/* Markers are not compared during an update, but a restart is noticed. */
static void test_restart_during_an_update_is_unsynced(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    struct upstream_info info;

    (void)cmocka_state;
    report_ok(f, 0, "p", "a");
    report_ok(f, 1, "p", "a");
    fleet_set_updating(f, true);
    report_ok(f, 0, "p", FLEET_DIRTY_MARKER "1");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "q", "b");
    assert_string_equal(state(f, 0), "unsynced");
    assert_string_equal(state(f, 1), "serving");
    fleet_info(f, engine_at(f, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "restarted"));
    fleet_set_updating(f, false);
    assert_string_equal(state(f, 0), "unsynced");
    report_ok(f, 0, "q", "a");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

/* Adding it again does not repair its weights. */
static void test_engine_added_again_stays_fenced(void **cmocka_state)
{
    static const char *const names[] = {"http://a", "http://b"};
    struct fleet *f = fleet_alive_named(names, 2);
    struct err why = {0};

    (void)cmocka_state;
    (void)err_set(&why, ERR_UNSYNCED, "", "half of an update is in it");
    fleet_fence(f, engine_at(f, 1), &why);
    fleet_remove(f, engine_at(f, 1));
    add_again(f, 1);
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "fenced");
    (void)commit(f, "d", 0, (const bool[FLEET_MAX]){true, true}, NULL);
    assert_string_equal(state(f, 1), "serving");
    fleet_fence(f, engine_at(f, 1), &why);
    fleet_remove(f, engine_at(f, 1));
    add_new(f, "http://c", engine_at(f, 1)); /* another engine is not fenced */
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "unsynced");
    fleet_free(f);
}

/* It would be the only engine that is not paused. */
static void test_engine_that_missed_the_pause_waits(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct upstream_info info;

    (void)cmocka_state;
    fail_request(f, 3, true);
    quiesce(f, true, 1);
    assert_states(f, EACH("serving", "serving", "serving", "down"));
    report_ok(f, 3, "p", "");
    report_ok(f, 2, "q", "");
    assert_states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    fleet_info(f, engine_at(f, 2), &info);
    assert_non_null(strstr(info.error.why.msg, "when they resume"));
    fleet_confirm_quiesced(f, engine_at(f, 2), info.incarnation - 1); /* the process before */
    assert_states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    fleet_confirm_quiesced(f, engine_at(f, 2), info.incarnation);
    assert_states(f, EACH("serving", "serving", "serving", "unsynced"));
    report_ok(f, 2, "r", "");
    assert_states(f, EACH("serving", "serving", "unsynced", "unsynced"));
    quiesce(f, false, 3);
    assert_states(f, EACH("serving", "serving", "serving", "serving"));
    fleet_info(f, engine_at(f, 2), &info);
    assert_int_equal(info.error.why.code, ERR_NONE);
    quiesce(f, true, 2); /* an older call */
    report_ok(f, 2, "s", "");
    assert_string_equal(state(f, 2), "serving");
    fleet_free(f);
}

static void reject_key(struct fleet *f, size_t i, enum fleet_auth what)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM_KEY, "", "it refuses the key");
    fleet_auth_failed(f, engine_at(f, i), what, &why);
}

static void test_engine_that_rejects_our_key_gets_no_requests(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct requester a, b;
    struct err e = {0};

    (void)cmocka_state;
    while (acquire(f, &a, "") != 0)
        fleet_permit_release(f, &a.ticket);
    reject_key(f, 0, FLEET_AUTH_REQUEST);
    assert_string_equal(state(f, 0), "refused");
    assert_int_equal(n_lost(f, 0), 0); /* requests there may finish */
    report_ok(f, 0, "p", "");          /* a status probe does not clear it */
    fleet_info(f, engine_at(f, 0), &info);
    assert_true(info.alive && info.request_auth_failed);
    assert_int_equal(info.error.why.code, ERR_UPSTREAM_KEY);
    assert_int_equal(acquire(f, &b, ""), 1);
    fleet_permit_release(f, &b.ticket);
    reject_key(f, 1, FLEET_AUTH_PROBE);
    fleet_info(f, engine_at(f, 1), &info);
    assert_false(info.alive);
    make_requester(f, &b, "");
    assert_int_equal(fleet_permit_acquire(f, &b.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UPSTREAM_KEY);
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "serving");
    fleet_auth_ok(f, engine_at(f, 0));
    assert_string_equal(state(f, 0), "serving");
    fleet_info(f, engine_at(f, 0), &info);
    assert_int_equal(info.error.why.code, ERR_NONE);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

/* What is said is what matters there: to a client that no engine serves, the key that all of them
 * refuse; of a request that is cut, what made its engine unreliable. */
static void test_the_reason_that_matters(void **state)
{
    struct err torn = {.code = ERR_UPSTREAM, .msg = "it took half of an update"}, e = {0};
    struct fleet *f = fleet_of(1);
    struct requester a;

    (void)state;
    report_ok(f, 0, "p0", "v1");
    (void)commit(f, "v2", 0, (const bool[FLEET_MAX]){true}, NULL);
    reject_key(f, 0, FLEET_AUTH_REQUEST);
    report_ok(f, 0, "p1", "v1"); /* another process */
    fleet_why_unreliable(f, engine_at(f, 0), &e);
    assert_non_null(strstr(e.msg, "it was restarted"));
    fleet_fence(f, engine_at(f, 0), &torn);
    fleet_why_unreliable(f, engine_at(f, 0), &e);
    assert_string_equal(e.msg, torn.msg);
    err_clear(&e);
    make_requester(f, &a, "");
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UPSTREAM_KEY);
    assert_non_null(strstr(e.msg, "it refuses the key"));
    fleet_free(f);
}

static void test_accepted_key_clears_its_error(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct upstream_info info;

    (void)cmocka_state;
    reject_key(f, 0, FLEET_AUTH_PROBE);
    report_ok(f, 0, "p", "b");
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(upstream_state_name(info.state), "unsynced");
    assert_non_null(strstr(info.error.why.msg, "it serves version 'b'"));
    (void)commit(f, "d", 0, (const bool[FLEET_MAX]){false, true, true, true}, NULL);
    reject_key(f, 0, FLEET_AUTH_PROBE);
    report_ok(f, 0, "p", "b");
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(upstream_state_name(info.state), "unsynced");
    assert_null(strstr(info.error.why.msg, "key"));
    assert_int_equal(info.error.why.code, ERR_UNSYNCED);
    fleet_free(f);
}

/* It answers clients, so it never fails FLEET_FAILURES_DOWN times in a row. */
static void test_engine_whose_probes_fail_leaves_rotation(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct requester a;
    struct err why = {0};

    (void)cmocka_state;
    (void)err_set(&why, ERR_UPSTREAM, "", "it answered /metrics with 500");
    for (int i = 0; i < FLEET_PROBE_FAILURES_MAX; i++) {
        assert_string_equal(state(f, 0), "serving");
        while (acquire(f, &a, "") != 0)
            fleet_permit_release(f, &a.ticket);
        fleet_probe_failed(f, engine_at(f, 0), false, &why);
        a.ticket.responded = true;
        fleet_permit_release(f, &a.ticket);
    }
    assert_string_equal(state(f, 0), "unsynced");
    fleet_info(f, engine_at(f, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "10 probes in a row failed"));
    assert_non_null(strstr(info.error.why.msg, "with 500"));
    assert_int_equal(info.n_failures, FLEET_PROBE_FAILURES_MAX);
    assert_int_equal(n_lost(f, 0), 0);
    report_ok(f, 0, "p", "");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

static void test_state_changes_are_reported(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);

    (void)cmocka_state;
    report_ok(f, 0, "p", "v"); /* not reported while the version is not decided */
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
    assert_string_equal(upstream_state_name(changes[2].from), "serving");
    assert_string_equal(upstream_state_name(changes[2].to), "down");
    assert_string_equal(changes[2].why.msg, "connection refused");
    report_ok(f, 0, "p", "w");
    assert_string_equal(upstream_state_name(changes[3].to), "unsynced");
    assert_string_equal(changes[3].why.msg, "it serves version 'w', the fleet 'v'");
    fleet_free(f);
}

static void test_state_reports_of_a_flapping_engine_are_limited(void **cmocka_state)
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

/* A version that changed after the request was sent is accepted, too. */
static void test_may_report_version_accepts_the_fleets_version_only(void **cmocka_state)
{
    struct fleet *f = fleet_of(N);
    bool done[FLEET_MAX] = {true, true, true, true};
    uint64_t epoch = fleet_weights_epoch(f);

    (void)cmocka_state;
    assert_true(fleet_may_report_version(f, "any", epoch)); /* none is decided */
    report_labels(f, EACH("old", "old", "old", "old"));
    assert_true(fleet_may_report_version(f, "old", epoch));
    assert_false(fleet_may_report_version(f, "base", epoch));
    fleet_set_updating(f, true);
    assert_true(fleet_may_report_version(f, FLEET_DIRTY_MARKER "x", fleet_weights_epoch(f)));
    assert_true(fleet_may_report_version(f, "new", fleet_weights_epoch(f)));
    epoch = fleet_weights_epoch(f);
    (void)commit(f, "new", 0, done, NULL);
    assert_true(fleet_may_report_version(f, "old", epoch)); /* sent before the commit */
    assert_false(fleet_may_report_version(f, "old", fleet_weights_epoch(f)));
    assert_false(fleet_may_report_version(f, "", fleet_weights_epoch(f)));
    assert_true(fleet_may_report_version(f, "new", fleet_weights_epoch(f)));
    fleet_free(f);
}

static void report_update(struct fleet *f, size_t i, const char *process, const char *label,
                          const char *update_id)
{
    struct upstream_report report;

    memset(&report, 0, sizeof report);
    (void)snprintf(report.process, sizeof report.process, "%s", process);
    (void)snprintf(report.label, sizeof report.label, "%s", label);
    (void)snprintf(report.update_id, sizeof report.update_id, "%s", update_id);
    fleet_probe_ok(f, engine_at(f, i), &report);
}

/* Two engines; the second failed to finish its update "u2" of version "b". */
static struct fleet *fleet_with_late_engine(void)
{
    struct fleet *f = fleet_of(2);
    struct err why = {0};

    report_update(f, 0, "p", "a", "");
    report_update(f, 1, "q", "a", "");
    (void)err_set(&why, ERR_UPSTREAM, "", "it answered 502");
    fleet_fence(f, engine_at(f, 1), &why);
    (void)commit(f, "b", 0, (const bool[FLEET_MAX]){true}, NULL);
    fleet_expect_update(f, engine_at(f, 0), "u1");
    fleet_expect_update(f, engine_at(f, 1), "u2");
    return f;
}

/* Only the update that the engine has proven, under the fleet's label, shows that it has the
 * version; after a restart too. */
static void test_engine_that_ends_its_update_late_is_synced(void **cmocka_state)
{
    static const char *const wrong[][2] = {{"a", "u0"}, {"a", "u2"}, {"b", ""}, {"b", "u1"}};
    struct fleet *f = fleet_with_late_engine();

    (void)cmocka_state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        report_update(f, 1, "q", wrong[i][0], wrong[i][1]);
        assert_string_equal(state(f, 1), "fenced");
    }
    report_update(f, 1, "q", "b", "u2");
    assert_string_equal(state(f, 1), "serving");
    report_update(f, 1, "r", "b", "");
    assert_string_equal(state(f, 1), "unsynced");
    report_update(f, 1, "r", "b", "u2");
    assert_string_equal(state(f, 1), "serving");
    (void)commit(f, "b", 0, (const bool[FLEET_MAX]){true}, NULL);
    report_update(f, 1, "r", "b", "u2"); /* the same label, another version */
    assert_string_equal(state(f, 1), "unsynced");
    fleet_free(f);
}

/* A repair marks the engine by a label; that is no sign of a restart. */
static void test_label_of_a_fenced_engine_is_not_compared(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    const bool both[FLEET_MAX] = {true, true};
    struct upstream_info info;
    struct err why = {0};

    (void)cmocka_state;
    report_ok(f, 0, "", "a");
    report_ok(f, 1, "", "a");
    (void)commit(f, "b", 0, both, both);
    (void)err_set(&why, ERR_UPSTREAM, "", "its weights were dropped");
    fleet_fence(f, engine_at(f, 1), &why);
    report_ok(f, 1, "", FLEET_DIRTY_MARKER "repair");
    fleet_info(f, engine_at(f, 1), &info);
    assert_true(info.synced && info.fenced);
    (void)repair(f, "b", (const bool[FLEET_MAX]){false, true}, both);
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

static void test_update_of_another_client_is_noticed(void **cmocka_state)
{
    struct fleet *f = fleet_with_late_engine();
    struct upstream_info info;

    (void)cmocka_state;
    report_update(f, 0, "p", "b", "u1");
    assert_string_equal(state(f, 0), "serving");
    report_update(f, 0, "p", "b", "u9");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_info(f, engine_at(f, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "another client (u9)"));
    fleet_free(f);
}

/* The hand-off of one version may be repeated after it failed; then one is larger by more. */
static void test_version_of_a_hand_off_has_the_serial_of_the_store(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    const bool one[FLEET_MAX] = {true}, both[FLEET_MAX] = {true, true};
    const uint64_t serials[] = {7, 7, 9};
    struct upstream_info info;
    struct fleet_stats s;

    (void)cmocka_state;
    report_labels(f, EACH("old", "old"));
    for (size_t i = 0; i < sizeof serials / sizeof serials[0]; i++) {
        assert_int_equal(commit(f, "v", serials[i], i == 0 ? one : both, NULL), serials[i]);
        fleet_stats(f, &s);
        assert_int_equal(s.serial, serials[i]);
        assert_string_equal(state(f, 1), i == 0 ? "unsynced" : "serving");
        fleet_info(f, engine_at(f, 0), &info);
        assert_int_equal(info.serial, serials[i]);
    }
    fleet_free(f);
}

/* A server that repairs an engine itself asks nobody to push. */
static void test_message_names_the_remedy_that_fits(void **cmocka_state)
{
    const struct upstream_report report = {.process = "p", .label = FLEET_DIRTY_MARKER "upd-1"};
    struct fleet_cfg cfg = {.n_upstreams = 1,
                            .configs = usual_configs,
                            .n_permits = {1, 1},
                            .n_queue_max = {1, 1},
                            .min_ready = 1};

    (void)cmocka_state;
    for (int staged = 0; staged < 2; staged++) {
        struct upstream_info info;
        struct err e = {0};
        struct fleet *f;

        cfg.staged = staged != 0;
        assert_int_equal(fleet_new(&f, &cfg, &e), 0);
        fleet_probe_ok(f, engine_at(f, 0), &report);
        fleet_info(f, engine_at(f, 0), &info);
        assert_int_equal(fleet_may_resync(f, engine_at(f, 0), &e), -1);
        assert_non_null(strstr(info.error.why.msg, fleet_remedy(f)));
        assert_non_null(strstr(e.msg, fleet_remedy(f)));
        assert_int_equal(strstr(e.msg, "push") == NULL, staged);
        fleet_free(f);
    }
}

static bool may_name(struct fleet *f, size_t i, const char *label)
{
    return fleet_may_name(f, engine_at(f, i), label);
}

/* One that serves the fleet's version under an earlier name of it may be given the last one, unless
 * another client has named it since, or it is another process. */
static void test_an_earlier_name_may_be_changed(void **cmocka_state)
{
    struct fleet *f = fleet_alive(3);
    struct err why = {0}, none = {0};
    struct upstream_info info;

    (void)cmocka_state;
    (void)commit(f, "a", 0, (const bool[]){true, true, true}, NULL);
    (void)name_them(f, "b", (const bool[]){true, false, false});
    (void)name_them(f, "c", (const bool[]){true, false, false});
    assert_false(may_name(f, 0, "c"));
    assert_true(may_name(f, 1, "a") && may_name(f, 1, "c") && !may_name(f, 1, "b"));
    report_ok(f, 1, "p", "a");
    assert_string_equal(state(f, 1), "unsynced");
    assert_true(fleet_needs(f, engine_at(f, 1), NEED_NAME));
    fleet_named(f, engine_at(f, 1), "b", &none); /* not the last one any more */
    assert_string_equal(state(f, 1), "unsynced");
    (void)err_set(&why, ERR_UPSTREAM, "", "it is busy");
    fleet_named(f, engine_at(f, 1), "c", &why);
    fleet_info(f, engine_at(f, 1), &info);
    assert_non_null(strstr(info.error.why.msg, "last error: it is busy"));
    fleet_named(f, engine_at(f, 1), "c", &none);
    assert_string_equal(state(f, 1), "serving");
    report_ok(f, 1, "p", "a"); /* another client's */
    assert_false(may_name(f, 1, "a"));
    report_ok(f, 2, "p", "other");
    assert_false(may_name(f, 2, "other") || may_name(f, 2, "a"));
    assert_false(fleet_needs(f, engine_at(f, 2), NEED_NAME));
    (void)commit(f, "d", 0, (const bool[]){true, true, true}, NULL);
    (void)name_them(f, "e", (const bool[]){true, false, false});
    report_ok(f, 1, "p", "e"); /* it took it, and the answer was lost */
    assert_string_equal(state(f, 1), "serving");
    report_ok(f, 2, "another", "d");
    assert_false(may_name(f, 2, "d"));
    fleet_free(f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_version_is_that_of_most_engines),
        cmocka_unit_test(test_dirty_marker_is_no_version),
        cmocka_unit_test(test_marker_of_our_running_update_fences_nothing),
        cmocka_unit_test(test_marker_of_our_aborted_update_fences_nothing),
        cmocka_unit_test(test_version_switches_engine_by_engine),
        cmocka_unit_test(test_reason_of_a_fence_is_kept),
        cmocka_unit_test(test_empty_label_counts_as_a_version),
        cmocka_unit_test(test_no_engine_serves_without_a_majority),
        cmocka_unit_test(test_version_that_no_engine_can_have_is_dropped),
        cmocka_unit_test(test_engine_that_is_not_ready_does_not_count_for_the_version),
        cmocka_unit_test(test_new_process_must_report_its_version),
        cmocka_unit_test(test_process_that_took_an_update_is_synced),
        cmocka_unit_test(test_commit_keeps_labels_that_engines_reported),
        cmocka_unit_test(test_restart_during_an_update_is_unsynced),
        cmocka_unit_test(test_engine_added_again_stays_fenced),
        cmocka_unit_test(test_engine_that_ends_its_update_late_is_synced),
        cmocka_unit_test(test_label_of_a_fenced_engine_is_not_compared),
        cmocka_unit_test(test_update_of_another_client_is_noticed),
        cmocka_unit_test(test_version_of_a_hand_off_has_the_serial_of_the_store),
        cmocka_unit_test(test_message_names_the_remedy_that_fits),
        cmocka_unit_test(test_engine_that_missed_the_pause_waits),
        cmocka_unit_test(test_engine_that_rejects_our_key_gets_no_requests),
        cmocka_unit_test(test_the_reason_that_matters),
        cmocka_unit_test(test_accepted_key_clears_its_error),
        cmocka_unit_test(test_engine_whose_probes_fail_leaves_rotation),
        cmocka_unit_test(test_state_changes_are_reported),
        cmocka_unit_test(test_may_report_version_accepts_the_fleets_version_only),
        cmocka_unit_test(test_state_reports_of_a_flapping_engine_are_limited),
        cmocka_unit_test(test_an_earlier_name_may_be_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
