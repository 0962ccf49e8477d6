/* fleet/members: what was asked of an earlier process, or is told of another version. */
#include "tests/unit/fleet/upstream_fleet_world.h"

/* An answer that comes late may be of a process that has ended since. */
static void test_an_earlier_process_is_not_taken_for_the_next(void **cmocka_state)
{
    struct fleet *f = fleet_alive(2);
    struct upstream_info info;
    uint64_t sent;

    (void)cmocka_state;
    (void)commit(f, "v6", 0, (const bool[FLEET_MAX]){true, true}, NULL);
    sent = incarnation(f, 0);
    report_ok(f, 0, "q", "");
    assert_false(fleet_check_process(f, engine_at(f, 0), sent, "p"));
    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(info.report.process, "q");
    assert_true(fleet_check_process(f, engine_at(f, 0), sent, "q"));
    fleet_free(f);
}

/* What was asked before it was restarted says nothing of the process that a probe has found since.
 */
static void test_a_resync_by_an_earlier_report_is_refused(void **cmocka_state)
{
    const struct upstream_report report = {.process = "p", .label = "v6"};
    struct fleet *f = fleet_alive(2);
    struct upstream_info before;
    struct err e = {0};

    (void)cmocka_state;
    (void)commit(f, "v6", 0, (const bool[FLEET_MAX]){true, true}, NULL);
    fleet_info(f, engine_at(f, 0), &before);
    report_ok(f, 0, "q", "v6");
    assert_int_equal(fleet_resync(f, engine_at(f, 0), &before, &report, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_string_equal(state(f, 0), "unsynced");
    fleet_free(f);
}

/* A client has paused it; the resume of the process before says nothing of that. */
static void test_a_late_resume_does_not_release_the_next_process(void **cmocka_state)
{
    struct upstream_report report = {.process = "p", .held = "paused"};
    struct fleet *f = fleet_alive(2);
    struct have_before before;
    struct upstream_info info;

    (void)cmocka_state;
    for (int other = 0; other < 2; other++) {
        fleet_probe_ok(f, engine_at(f, 0), &report);
        fleet_doubt(f, engine_at(f, 0), API_RESUME, NULL, &before);
        if (other)
            memcpy(report.process, "q", sizeof "q");
        fleet_probe_ok(f, engine_at(f, 0), &report);
        fleet_answer(f, engine_at(f, 0), API_RESUME, NULL, &before, HAVE_GOOD, NULL);
        fleet_info(f, engine_at(f, 0), &info);
        assert_int_equal(info.report.held != NULL, other);
    }
    fleet_free(f);
}

/* An update sets a marker, and a name at its end. What else is reported is another client's. */
static void test_another_version_during_an_update_is_unsynced(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);

    (void)cmocka_state;
    report_ok(f, 0, "p", "a");
    report_ok(f, 1, "p", "a");
    fleet_begin_naming(f);
    report_ok(f, 0, "p", "b");
    assert_string_equal(state(f, 0), "serving");
    fleet_set_updating(f, false);
    report_ok(f, 0, "p", "a");
    fleet_set_updating(f, true);
    report_ok(f, 0, "p", FLEET_DIRTY_MARKER "1");
    report_ok(f, 1, "p", "b");
    assert_string_equal(state(f, 0), "serving");
    assert_string_equal(state(f, 1), "unsynced");
    fleet_set_updating(f, false);
    assert_string_equal(state(f, 1), "unsynced");
    fleet_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_earlier_process_is_not_taken_for_the_next),
        cmocka_unit_test(test_a_resync_by_an_earlier_report_is_refused),
        cmocka_unit_test(test_a_late_resume_does_not_release_the_next_process),
        cmocka_unit_test(test_another_version_during_an_update_is_unsynced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
