/* Which engine gets the next request, and which gets none. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static void test_fleet_serves_once_enough_engines_answer(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    struct fleet_stats s;
    struct requester a;
    struct err e = {0};

    (void)cmocka_state;
    make_requester(f, &a, "");
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_int_equal(e.code, ERR_UNSYNCED);
    assert_string_equal(state(f, 0), "unknown");
    report_ok(f, 1, "p", "");
    err_clear(&e);
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_non_null(strstr(e.msg, "1 upstreams have not answered"));
    fleet_stats(f, &s);
    assert_false(s.ready);
    report_ok(f, 0, "p", "");
    fleet_stats(f, &s);
    assert_true(s.ready);
    assert_in_range(acquire(f, &a, ""), 0, 1);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

static void test_permit_acquire_takes_the_least_loaded_in_turn(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct requester a[N * PERMITS];
    size_t n_each[N] = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < N * PERMITS; i++) {
        n_each[acquire(f, &a[i], "")]++;
        for (size_t k = 0; k < N; k++)
            assert_in_range(n_each[k], (i + 1) / N, (i + 1) / N + 1);
    }
    for (size_t i = 0; i < N * PERMITS; i++)
        fleet_permit_release(f, &a[i].ticket);
    fleet_free(f);
}

static void test_permit_acquire_queues_in_order_then_is_overloaded(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester a[PERMITS + QUEUE], more;
    struct err e = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < PERMITS + QUEUE; i++)
        assert_int_equal(acquire(f, &a[i], ""), i < PERMITS ? 0 : NO_ENGINE);
    make_requester(f, &more, "");
    assert_int_equal(fleet_permit_acquire(f, &more.ticket, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    assert_true(fleet_permit_cancel(f, &a[PERMITS].ticket));
    assert_false(fleet_permit_cancel(f, &a[0].ticket));
    for (size_t i = 0; i < PERMITS + QUEUE; i++) {
        if (i == PERMITS)
            continue;
        assert_int_equal(a[i].n_granted, 1);
        fleet_permit_release(f, &a[i].ticket);
    }
    fleet_free(f);
}

static void test_queues_have_separate_permits(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester a[PERMITS], text;
    struct err e = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < PERMITS; i++)
        (void)acquire(f, &a[i], "");
    make_requester(f, &text, "");
    text.ticket.queue = FLEET_TEXT;
    assert_int_equal(fleet_permit_acquire(f, &text.ticket, &e), 0);
    assert_int_equal(text.got, 0);
    fleet_permit_release(f, &text.ticket);
    for (size_t i = 0; i < PERMITS; i++)
        fleet_permit_release(f, &a[i].ticket);
    fleet_free(f);
}

static void test_session_keeps_its_engine_within_its_share(void **cmocka_state)
{
    struct fleet *f = fleet_alive(N);
    struct requester a, busy[2];
    char session[16];
    size_t moved = 0, n_each[N] = {0};

    (void)cmocka_state;
    for (int i = 0; i < 200; i++) {
        size_t first;

        (void)snprintf(session, sizeof session, "s-%d", i);
        first = acquire(f, &a, session);
        fleet_permit_release(f, &a.ticket);
        n_each[first]++;
        assert_int_equal(acquire(f, &a, session), first);
        fleet_permit_release(f, &a.ticket);
    }
    for (size_t k = 0; k < N; k++)
        assert_in_range(n_each[k], 25, 85);
    /* Without one of them, only its own sessions move. */
    for (int i = 0; i < 200; i++) {
        size_t first, then;

        (void)snprintf(session, sizeof session, "s-%d", i);
        first = acquire(f, &a, session);
        fleet_permit_release(f, &a.ticket);
        fail_request(f, 2, true);
        then = acquire(f, &a, session);
        fleet_permit_release(f, &a.ticket);
        assert_true(first == 2 || then == first);
        moved += first != then;
        report_ok(f, 2, "p", "");
    }
    assert_int_equal(moved, n_each[2]);
    /* Two requests of one session at a time: the second would exceed the share. */
    assert_int_not_equal(acquire(f, &busy[0], "s-1"), acquire(f, &busy[1], "s-1"));
    fleet_permit_release(f, &busy[0].ticket);
    fleet_permit_release(f, &busy[1].ticket);
    fleet_free(f);
}

static void test_permit_acquire_avoids_the_failed_engine(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct requester a;
    struct err e = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < 4; i++) {
        make_requester(f, &a, "");
        a.ticket.avoid = upstream_number(engine_at(f, 1));
        assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), 0);
        assert_int_equal(a.got, 0);
        fleet_permit_release(f, &a.ticket);
    }
    fail_request(f, 0, true);
    make_requester(f, &a, "");
    a.ticket.avoid = upstream_number(engine_at(f, 1));
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), 0);
    assert_int_equal(a.got, 1);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

static void test_failures_take_an_engine_down_and_a_probe_restores_it(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester a[PERMITS + 1];

    (void)cmocka_state;
    for (size_t i = 0; i < PERMITS + 1; i++)
        (void)acquire(f, &a[i], "");
    for (int i = 0; i < FLEET_FAILURES_DOWN; i++) {
        assert_string_equal(state(f, 0), "serving");
        fail_request(f, 0, false);
    }
    assert_string_equal(state(f, 0), "down");
    assert_int_equal(n_lost(f, 0), 1);
    fleet_permit_release(f, &a[0].ticket); /* a free permit, but no engine in rotation */
    assert_int_equal(a[PERMITS].n_granted, 0);
    report_ok(f, 0, "p", "");
    assert_string_equal(state(f, 0), "serving");
    assert_int_equal(a[PERMITS].n_granted, 1);
    for (size_t i = 1; i < PERMITS + 1; i++)
        fleet_permit_release(f, &a[i].ticket);
    fleet_free(f);
}

static void test_restarted_engine_is_unsynced_after_the_first_update(void **cmocka_state)
{
    const bool all[2] = {true, true};
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    report_ok(f, 0, "p2", "");
    assert_string_equal(state(f, 0), "serving"); /* before the first update */
    assert_int_equal(commit(f, "step-1", 0, all, NULL), 1);
    report_ok(f, 0, "p2", "step-1");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "p3", "step-1");
    assert_string_equal(state(f, 0), "unsynced");
    assert_int_equal(n_lost(f, 0), 1);
    report_ok(f, 1, "p", "other");
    assert_string_equal(state(f, 1), "unsynced");
    assert_int_equal(commit(f, "step-2", 0, all, NULL), 2);
    assert_string_equal(state(f, 0), "serving");
    assert_string_equal(state(f, 1), "serving");
    /* An engine that reports no process is not synced after it was down. */
    report_ok(f, 1, "", "");
    assert_string_equal(state(f, 1), "serving");
    fail_request(f, 1, true);
    report_ok(f, 1, "", "");
    assert_string_equal(state(f, 1), "unsynced");
    fleet_free(f);
}

static void test_fence_holds_until_an_update_succeeds(void **cmocka_state)
{
    const bool first[2] = {true, false}, both[2] = {true, true};
    struct fleet *f = fleet_alive(2);
    struct err why = {0}, e = {0};

    (void)cmocka_state;
    (void)err_set(&why, ERR_UPSTREAM, "", "it answered 500 in mid-update");
    fleet_fence(f, engine_at(f, 1), &why);
    assert_string_equal(state(f, 1), "fenced");
    assert_int_equal(resync(f, 1, "", &e), -1);
    assert_int_equal(e.code, ERR_NEEDS_UPDATE);
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "fenced");
    (void)commit(f, "a", 0, first, NULL);
    assert_string_equal(state(f, 0), "serving");
    assert_string_equal(state(f, 1), "fenced");
    (void)commit(f, "b", 0, both, NULL);
    assert_string_equal(state(f, 1), "serving");
    (void)commit(f, "c", 0, first, NULL);
    assert_string_equal(state(f, 1), "unsynced");
    err_clear(&e);
    assert_int_equal(resync(f, 1, "b", &e), -1);
    assert_int_equal(e.code, ERR_NEEDS_UPDATE); /* a resync that is sent again fails again */
    assert_non_null(strstr(e.msg, "serves version 'b', and the fleet 'c': push an update"));
    err_clear(&e);
    assert_int_equal(resync(f, 1, "c", &e), 0);
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

/* A ticket that avoids an engine waits for another one; those behind it need not wait. */
static void test_ticket_that_avoids_an_engine_delays_no_other(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct requester busy[2 * PERMITS], picky, next, late;
    struct err e = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < 2 * PERMITS; i++)
        (void)acquire(f, &busy[i], "");
    make_requester(f, &picky, "");
    picky.ticket.avoid = upstream_number(engine_at(f, busy[0].got));
    assert_int_equal(fleet_permit_acquire(f, &picky.ticket, &e), 0);
    assert_int_equal(acquire(f, &next, ""), NO_ENGINE);
    fleet_permit_release(f, &busy[0].ticket);
    assert_int_equal(picky.n_granted, 0);
    assert_int_equal(next.got, busy[0].got);
    fleet_permit_release(f, &next.ticket);
    assert_int_equal(acquire(f, &late, ""), busy[0].got);
    fleet_permit_release(f, &busy[1].ticket);
    assert_int_equal(picky.got, busy[1].got);
    fleet_permit_release(f, &late.ticket);
    fleet_permit_release(f, &picky.ticket);
    for (size_t i = 2; i < 2 * PERMITS; i++)
        fleet_permit_release(f, &busy[i].ticket);
    fleet_free(f);
}

static void test_left_rotation_reports_that_no_engine_serves(void **cmocka_state)
{
    struct upstream_report starts = {.not_ready = "starting"};
    struct fleet *f = fleet_alive(2);

    (void)cmocka_state;
    fleet_probe_ok(f, engine_at(f, 0), &starts);
    assert_int_equal(n_left, 0);
    fleet_probe_ok(f, engine_at(f, 1), &starts);
    assert_int_equal(n_left, 1);
    report_ok(f, 1, "", "");
    fleet_remove(f, engine_at(f, 0));
    assert_int_equal(n_left, 1);
    fleet_remove(f, engine_at(f, 1));
    assert_int_equal(n_left, 2);
    assert_int_equal(n_lost(f, 0) + n_lost(f, 1), 0); /* requests there may finish */
    fleet_free(f);
}

/* A removed engine gets no requests and does not take part in updates. left_rotation is called for
 * it only when its requests cannot finish any more. */
static void test_requests_at_a_removed_engine_may_finish(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct requester a[3];
    struct err e = {0};

    (void)cmocka_state;
    while (acquire(f, &a[0], "") != 0)
        fleet_permit_release(f, &a[0].ticket);
    fleet_remove(f, engine_at(f, 0));
    assert_string_equal(state(f, 0), "removed");
    assert_int_equal(acquire(f, &a[1], ""), 1);
    assert_int_equal(acquire(f, &a[2], ""), 1);
    assert_int_equal(resync(f, 0, "", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    (void)commit(f, "v", 0, (const bool[]){false, true}, NULL);
    assert_int_equal(n_lost(f, 0), 0);
    fail_request(f, 0, true);
    assert_int_equal(n_lost(f, 0), 1);
    fleet_info(f, engine_at(f, 0), &info);
    assert_int_equal(info.n_outstanding[FLEET_GENERATE], 1);
    for (size_t i = 0; i < 3; i++)
        fleet_permit_release(f, &a[i].ticket);
    fleet_free(f);
}

/* The version of an engine that is added later is not known, even if it was a member before. */
static void test_engine_added_after_an_update_is_unsynced(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct fleet_stats s;
    struct err e = {0};

    (void)cmocka_state;
    add_new(f, "http://b:1", NULL);
    assert_string_equal(state(f, 1), "unknown");
    report_ok(f, 1, "p", "v");
    assert_string_equal(state(f, 1), "unsynced");
    report_ok(f, 1, "p", "");
    assert_string_equal(state(f, 1), "serving"); /* before the first update its report is enough */
    (void)commit(f, "v", 0, (const bool[]){true, true}, NULL);
    add_new(f, "http://c:1", NULL);
    report_ok(f, 2, "p", "v");
    assert_string_equal(state(f, 2), "unsynced");
    assert_int_equal(resync(f, 2, "v", &e), 0);
    assert_string_equal(state(f, 2), "serving");
    fleet_remove(f, engine_at(f, 1));
    add_again(f, 1);
    assert_string_equal(state(f, 1), "unknown");
    report_ok(f, 1, "p", "v");
    assert_string_equal(state(f, 1), "unsynced");
    fleet_stats(f, &s);
    assert_int_equal(s.n_upstreams, 3);
    assert_int_equal(s.n_serving, 2);
    fleet_set_min_ready(f, 3);
    fleet_stats(f, &s);
    assert_false(s.ready);
    fleet_free(f);
}

/* It gets no requests, and those that run there may finish. */
static void test_engine_that_is_not_ready_gets_no_requests(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .not_ready = "non_finite_logits"};
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    struct requester a, b;

    (void)cmocka_state;
    while (acquire(f, &a, "") != 0)
        fleet_permit_release(f, &a.ticket);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_string_equal(state(f, 0), "not_ready");
    fleet_info(f, engine_at(f, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "non_finite_logits"));
    assert_int_equal(info.error.why.code, ERR_LOGITS);
    assert_int_equal(n_lost(f, 0), 0);
    assert_int_equal(acquire(f, &b, ""), 1);
    fleet_permit_release(f, &b.ticket);
    report_ok(f, 0, "p", "");
    assert_string_equal(state(f, 0), "serving");
    fleet_probe_ok(f, engine_at(f, 0), &report);
    (void)commit(f, "v", 0, (const bool[]){true, true}, NULL); /* it has weights now */
    assert_string_equal(state(f, 0), "serving");
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

static void test_labels_are_not_compared_during_an_update(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    uint64_t epoch = fleet_weights_epoch(f);
    struct upstream_info info;

    (void)cmocka_state;
    fleet_set_updating(f, true);
    add_new(f, "http://c:1", NULL);
    report_ok(f, 2, "r", "");
    fleet_info(f, engine_at(f, 2), &info);
    assert_non_null(strstr(info.error.why.msg, "not compared"));
    (void)commit(f, "v1", 0, (const bool[]){true, true, false}, NULL);
    assert_true(fleet_weights_epoch(f) != epoch);
    fleet_begin_naming(f);
    report_ok(f, 0, "p", "v2"); /* it has the new version already */
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 1, "q", "v1"); /* a restart is noticed */
    assert_string_equal(state(f, 1), "unsynced");
    epoch = fleet_weights_epoch(f);
    fleet_set_updating(f, false);
    assert_true(fleet_weights_epoch(f) != epoch);
    report_ok(f, 0, "p", "v2");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_free(f);
}

/* A probe may have been answered with the dirty marker while the engine was repaired. */
static void test_a_repair_outdates_earlier_probes(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_report report = {.label = FLEET_DIRTY_MARKER "x", .process = "p"};
    struct err why = {0};
    uint64_t epoch;

    (void)cmocka_state;
    (void)commit(f, "v1", 0, (const bool[]){true, true}, NULL);
    (void)err_set(&why, ERR_UPSTREAM, "", "it failed");
    fleet_fence(f, engine_at(f, 1), &why);
    epoch = fleet_weights_epoch(f);
    (void)repair(f, "v1", (const bool[]){false, true}, (const bool[]){false, false});
    report.is_stale = fleet_weights_epoch(f) != epoch;
    fleet_probe_ok(f, engine_at(f, 1), &report);
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

/* It read the marker while the update ran, and is stored after the update was given up. */
static void test_probe_of_an_update_that_was_given_up(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct upstream_report report = {.label = FLEET_DIRTY_MARKER "upd-1"};

    (void)cmocka_state;
    (void)commit(f, "v1", 0, (const bool[]){true}, NULL);
    fleet_set_updating(f, true);
    report.sent_epoch = fleet_weights_epoch(f);
    fleet_set_updating(f, false);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_string_equal(state(f, 0), "serving");
    report.sent_epoch = fleet_weights_epoch(f);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_string_equal(state(f, 0), "fenced");
    fleet_free(f);
}

static void test_set_label_syncs_no_other_engine(void **cmocka_state)
{
    struct fleet *f = fleet_alive(3);

    (void)cmocka_state;
    (void)commit(f, "v1", 0, (const bool[]){true, true, false}, NULL);
    fleet_set_updating(f, true);
    assert_int_equal(name_them(f, "v1b", (const bool[]){true, false, false}), 1);
    assert_string_equal(state(f, 0), "serving");
    assert_string_equal(state(f, 1), "unsynced"); /* it did not take the label */
    assert_string_equal(state(f, 2), "unsynced"); /* a label syncs no engine */
    report_ok(f, 0, "p", "v1b");
    assert_string_equal(state(f, 0), "serving");
    report_ok(f, 0, "p", "v1");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_free(f);
}

/* The engine of a session depends on the engines' names, not on their order or on this process. */
static void test_session_affinity_depends_on_names_only(void **cmocka_state)
{
    static const char *const names[] = {"http://a:1", "http://b:1", "http://c:1"};
    static const char *const turned[] = {"http://c:1", "http://a:1", "http://b:1"};
    struct fleet *f = fleet_alive_named(names, 3), *g = fleet_alive_named(turned, 3);
    char session[32];
    struct requester a;

    (void)cmocka_state;
    for (int i = 0; i < 50; i++) {
        size_t at, there;

        (void)snprintf(session, sizeof session, "session-%d", i);
        at = acquire(f, &a, session);
        fleet_permit_release(f, &a.ticket);
        there = acquire(g, &a, session);
        fleet_permit_release(g, &a.ticket);
        assert_string_equal(names[at], turned[there]);
    }
    fleet_free(f);
    fleet_free(g);
}

static void test_permit_acquire_fails_after_close(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester a;
    struct err e = {0};

    (void)cmocka_state;
    fleet_permits_close(f);
    make_requester(f, &a, "");
    assert_int_equal(fleet_permit_acquire(f, &a.ticket, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    fleet_free(f);
}

/* A random walk; the invariants are checked after each step. */
struct walk {
    struct fleet *f;
    struct requester a[32];
    bool in[32]; /* queued or granted */
    uint32_t seed;
};

static uint32_t draw(struct walk *w, uint32_t n)
{
    w->seed = w->seed * 1664525 + 1013904223;
    return (w->seed >> 16) % n;
}

static void move_ticket(struct walk *w)
{
    static const char *const sessions[] = {"", "x", "y", "z"};
    uint32_t k = draw(w, 32);
    struct err e = {0};

    if (!w->in[k]) {
        make_requester(w->f, &w->a[k], sessions[draw(w, 4)]);
        w->in[k] = fleet_permit_acquire(w->f, &w->a[k].ticket, &e) == 0;
    } else if (w->a[k].n_granted > 0) {
        fleet_permit_release(w->f, &w->a[k].ticket);
        w->in[k] = false;
    } else {
        assert_true(fleet_permit_cancel(w->f, &w->a[k].ticket));
        w->in[k] = false;
    }
}

static void move_upstream(struct walk *w)
{
    static const char *const processes[] = {"p", "p", "p", "q", ""};
    bool done[N];
    uint32_t i = draw(w, N), what = draw(w, 8);
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM, "", "so it goes");
    for (size_t k = 0; k < N; k++)
        done[k] = draw(w, 4) != 0;
    if (what < 4)
        report_ok(w->f, i, processes[draw(w, 5)], "");
    else if (what < 6)
        fail_request(w->f, i, draw(w, 2) == 0);
    else if (what == 6)
        fleet_fence(w->f, engine_at(w->f, i), &why);
    else
        (void)commit(w->f, "v", 0, done, NULL);
}

static void check(struct walk *w)
{
    size_t n_held[N] = {0}, n_waiting = 0, n_serving = 0, n_free = 0;
    struct fleet_stats s;

    for (size_t k = 0; k < 32; k++) {
        if (!w->in[k])
            continue;
        assert_in_range(w->a[k].n_granted, 0, 1);
        if (w->a[k].n_granted > 0)
            n_held[w->a[k].got]++;
        else
            n_waiting++;
    }
    for (size_t i = 0; i < N; i++) {
        struct upstream_info info;
        bool serves;

        fleet_info(w->f, engine_at(w->f, i), &info);
        serves = strcmp(upstream_state_name(info.state), "serving") == 0;
        assert_int_equal(info.n_outstanding[FLEET_GENERATE], n_held[i]);
        assert_true(n_held[i] <= PERMITS);
        assert_true(serves == (info.alive && info.synced && !info.fenced));
        n_serving += serves;
        n_free += serves ? PERMITS - n_held[i] : 0;
    }
    fleet_stats(w->f, &s);
    assert_int_equal(s.n_waiting[FLEET_GENERATE], n_waiting);
    assert_int_equal(s.n_serving, n_serving);
    assert_true(n_waiting == 0 || n_free == 0); /* no request waits while a permit is free */
}

static void test_invariants_hold_in_a_random_walk(void **cmocka_state)
{
    struct walk w = {.f = fleet_alive(N), .seed = 20261121};

    (void)cmocka_state;
    for (int step = 0; step < 20000; step++) {
        if (draw(&w, 3) != 0)
            move_ticket(&w);
        else
            move_upstream(&w);
        check(&w);
    }
    for (size_t k = 0; k < 32; k++)
        if (w.in[k] && !fleet_permit_cancel(w.f, &w.a[k].ticket))
            fleet_permit_release(w.f, &w.a[k].ticket);
    fleet_free(w.f);
}

/* While an engine does not answer, that is its error; then it is the error from before again. */
static void test_probe_ok_clears_the_missing_answer_only(void **state)
{
    struct fleet *f = fleet_of(2);
    struct err late = {.code = ERR_TIMEOUT, .msg = "late"};
    struct err torn = {.code = ERR_UPSTREAM, .msg = "it took half of an update"};
    struct upstream_info info;
    struct requester a;

    (void)state;
    report_ok(f, 0, "p0", "v1");
    report_ok(f, 1, "p1", "v1");
    fleet_fence(f, engine_at(f, 0), &torn);
    for (int i = 0; i < 25; i++)
        for (size_t u = 0; u < 2; u++)
            fleet_probe_failed(f, engine_at(f, u), false, &late);
    for (size_t u = 0; u < 2; u++) {
        fleet_info(f, engine_at(f, u), &info);
        assert_non_null(strstr(info.error.why.msg, "25 probes in a row failed; late"));
        assert_true(info.error.wall_s > 0);
        report_ok(f, u, u == 0 ? "p0" : "p1", "v1");
    }
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(info.error.why.msg, torn.msg); /* an answer does not clear this */
    assert_true(info.error.wall_s > 0);
    fleet_info(f, engine_at(f, 1), &info);
    assert_int_equal(info.error.why.code, ERR_NONE);
    assert_int_equal(info.error.wall_s, 0);
    fleet_request_failed(f, engine_at(f, 1), false, &late); /* cleared by a reply to a client */
    fleet_info(f, engine_at(f, 1), &info);
    assert_string_equal(info.error.why.msg, "late");
    assert_int_equal(acquire(f, &a, ""), 1);
    a.ticket.responded = true;
    fleet_permit_release(f, &a.ticket);
    fleet_info(f, engine_at(f, 1), &info);
    assert_int_equal(info.error.why.code, ERR_NONE);
    fleet_free(f);
}

static void assert_errors(struct fleet *f, const char *const *messages, size_t n)
{
    struct upstream_error errors[UPSTREAM_ERRORS_MAX];
    struct upstream_info info;

    assert_int_equal(fleet_errors(f, engine_at(f, 0), errors), n);
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(info.error.why.msg, n > 0 ? messages[0] : "");
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(errors[i].why.msg, messages[i]);
        assert_true(errors[i].wall_s > 0);
    }
}

/* Each error goes with its reason, and none hides another: when the key is right again, the fence
 * has the text that it had. */
static void test_each_reason_has_its_error(void **state)
{
    static const char torn[] = "it took half of an update", key[] = "it refused the key",
                      late[] = "late", not_ready[] = "it is not ready: draining";
    struct upstream_report report = {.process = "p0", .label = "v1", .not_ready = "draining"};
    struct err e = {.code = ERR_UPSTREAM};
    struct fleet *f = fleet_of(2);

    (void)state;
    report_ok(f, 0, "p0", "v1");
    report_ok(f, 1, "p1", "v1");
    assert_errors(f, NULL, 0);
    (void)snprintf(e.msg, sizeof e.msg, "%s", torn);
    fleet_fence(f, engine_at(f, 0), &e);
    e.code = ERR_UPSTREAM_KEY;
    (void)snprintf(e.msg, sizeof e.msg, "%s", key);
    fleet_auth_failed(f, engine_at(f, 0), FLEET_AUTH_REQUEST, &e);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_errors(f, (const char *const[]){torn, key, not_ready}, 3);
    e.code = ERR_TIMEOUT;
    (void)snprintf(e.msg, sizeof e.msg, "%s", late);
    fleet_request_failed(f, engine_at(f, 0), false, &e);
    assert_errors(f, (const char *const[]){torn, key, not_ready, late}, 4);
    fleet_request_failed(f, engine_at(f, 0), true, &e); /* refused: it is down */
    assert_errors(f, (const char *const[]){late, torn, key, not_ready}, 4);
    fleet_why_unreliable(f, engine_at(f, 0), &e);
    assert_string_equal(e.msg, late);
    fleet_auth_ok(f, engine_at(f, 0));
    report_ok(f, 0, "p0", "v1");
    assert_errors(f, (const char *const[]){torn}, 1);
    (void)commit(f, "v2", 0, (const bool[FLEET_MAX]){true}, NULL);
    assert_errors(f, NULL, 0);
    fleet_free(f);
}

static void report_identity(struct fleet *f, size_t i, const char *identity)
{
    struct upstream_report report = {0};

    (void)snprintf(report.process, sizeof report.process, "%s", identity);
    (void)snprintf(report.identity, sizeof report.identity, "%s", identity);
    fleet_probe_ok(f, engine_at(f, i), &report);
}

static void assert_error(struct fleet *f, size_t i, const char *message)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, i), &info);
    assert_string_equal(info.error.why.msg, message);
    assert_false(info.alive);
}

/* The one that joined first serves, whichever answers first and whatever its index is. */
static void test_one_process_serves_under_one_url(void **cmocka_state)
{
    struct fleet *f = fleet_with((const char *const[]){"u://a", "u://b", "u://c"}, 3);
    struct err e = {0};

    (void)cmocka_state;
    fleet_set_min_ready(f, 1);
    report_identity(f, 1, "p");
    report_identity(f, 2, "q");
    assert_string_equal(state(f, 1), "serving");
    report_identity(f, 0, "p");
    assert_string_equal(state(f, 0), "serving");
    assert_string_equal(state(f, 1), "down"); /* at once: it had answered */
    assert_error(f, 1, "it is the same process as u://a: remove one of the two");
    assert_int_equal(resync(f, 1, "", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    for (int i = 0; i < FLEET_FAILURES_DOWN; i++)
        report_identity(f, 1, "p");
    assert_string_equal(state(f, 1), "down");
    fleet_remove(f, engine_at(f, 0));
    report_identity(f, 1, "p");
    assert_string_equal(state(f, 1), "serving");
    add_again(f, 0);
    report_identity(f, 0, "p");
    assert_string_equal(state(f, 1), "serving");
    assert_error(f, 0, "it is the same process as u://b: remove one of the two");
    report_identity(f, 1, "r"); /* restarted: another process */
    report_identity(f, 0, "p");
    assert_string_equal(state(f, 0), "serving");
    fleet_free(f);
}

static void test_own_process_never_serves(void **cmocka_state)
{
    static const char itself[] = "it is this server itself: remove it";
    struct fleet_cfg cfg = {.n_upstreams = 2,
                            .configs = usual_configs,
                            .n_permits = {PERMITS, 1},
                            .n_queue_max = {QUEUE, QUEUE},
                            .min_ready = 1,
                            .boot_id = "own"};
    struct fleet *f = NULL;
    struct err e = {0};

    (void)cmocka_state;
    assert_int_equal(fleet_new(&f, &cfg, &e), 0);
    assert_false(fleet_reject_alias(f, engine_at(f, 0), ""));
    assert_false(fleet_reject_alias(f, engine_at(f, 0), "other"));
    assert_true(fleet_reject_alias(f, engine_at(f, 1), "own"));
    assert_error(f, 1, itself);
    report_identity(f, 0, "other");
    assert_string_equal(state(f, 0), "serving");
    report_identity(f, 0, "own"); /* its port is ours by now */
    assert_string_equal(state(f, 0), "down");
    assert_error(f, 0, itself);
    assert_int_equal(resync(f, 0, "", &e), -1);
    assert_string_equal(e.msg, itself);
    assert_int_equal(e.code, ERR_PRECONDITION); /* no repetition changes it */
    fleet_free(f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_ok_clears_the_missing_answer_only),
        cmocka_unit_test(test_each_reason_has_its_error),
        cmocka_unit_test(test_one_process_serves_under_one_url),
        cmocka_unit_test(test_own_process_never_serves),
        cmocka_unit_test(test_fleet_serves_once_enough_engines_answer),
        cmocka_unit_test(test_permit_acquire_takes_the_least_loaded_in_turn),
        cmocka_unit_test(test_permit_acquire_queues_in_order_then_is_overloaded),
        cmocka_unit_test(test_queues_have_separate_permits),
        cmocka_unit_test(test_session_keeps_its_engine_within_its_share),
        cmocka_unit_test(test_permit_acquire_avoids_the_failed_engine),
        cmocka_unit_test(test_failures_take_an_engine_down_and_a_probe_restores_it),
        cmocka_unit_test(test_restarted_engine_is_unsynced_after_the_first_update),
        cmocka_unit_test(test_fence_holds_until_an_update_succeeds),
        cmocka_unit_test(test_ticket_that_avoids_an_engine_delays_no_other),
        cmocka_unit_test(test_left_rotation_reports_that_no_engine_serves),
        cmocka_unit_test(test_requests_at_a_removed_engine_may_finish),
        cmocka_unit_test(test_engine_added_after_an_update_is_unsynced),
        cmocka_unit_test(test_engine_that_is_not_ready_gets_no_requests),
        cmocka_unit_test(test_labels_are_not_compared_during_an_update),
        cmocka_unit_test(test_a_repair_outdates_earlier_probes),
        cmocka_unit_test(test_probe_of_an_update_that_was_given_up),
        cmocka_unit_test(test_set_label_syncs_no_other_engine),
        cmocka_unit_test(test_session_affinity_depends_on_names_only),
        cmocka_unit_test(test_permit_acquire_fails_after_close),
        cmocka_unit_test(test_invariants_hold_in_a_random_walk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
