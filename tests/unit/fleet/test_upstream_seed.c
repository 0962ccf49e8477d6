/* fleet/members: an engine that has read its weights from another one. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static void report_seed(struct fleet *f, size_t i, const char *process, const char *label,
                        uint64_t serial, const char *digest)
{
    struct upstream_report report;

    memset(&report, 0, sizeof report);
    (void)snprintf(report.process, sizeof report.process, "%s", process);
    (void)snprintf(report.label, sizeof report.label, "%s", label);
    (void)snprintf(report.digest, sizeof report.digest, "%s", digest);
    report.serial = serial;
    fleet_probe_ok(f, engine_at(f, i), &report);
}

/* Only what another engine serves now, by its digest, under the fleet's label, is the fleet's
 * version. */
static void test_engine_that_was_seeded_is_synced(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    struct err why = {0};

    (void)cmocka_state;
    report_ok(f, 0, "p", "a");
    report_ok(f, 1, "q", "a");
    (void)err_set(&why, ERR_UPSTREAM, "", "it answered 502");
    fleet_fence(f, engine_at(f, 1), &why); /* it failed to finish its update */
    (void)commit(f, "b", 0, (const bool[FLEET_MAX]){true}, NULL);
    report_seed(f, 1, "q2", "b", 1, "d1"); /* nothing is known of p's yet */
    assert_string_equal(state(f, 1), "fenced");
    report_seed(f, 0, "p", "b", 5, "");
    report_seed(f, 1, "q2", "b", 1, "");
    assert_string_equal(state(f, 1), "fenced");
    report_seed(f, 0, "p", "b", 5, "d1");
    report_seed(f, 1, "q2", "b", 1, "d0");
    assert_string_equal(state(f, 1), "fenced");
    report_seed(f, 1, "q2", "a", 1, "d1");
    assert_string_equal(state(f, 1), "fenced");
    report_seed(f, 1, "q2", "b", 1, "d1");
    assert_string_equal(state(f, 1), "serving");

    /* Another version under the same label: the digest before is of other weights. */
    (void)commit(f, "b", 0, (const bool[FLEET_MAX]){true}, NULL);
    report_seed(f, 1, "q2", "b", 1, "d1");
    assert_string_equal(state(f, 1), "unsynced");
    report_seed(f, 0, "p", "b", 6, "d2");
    report_seed(f, 1, "q2", "b", 1, "d1");
    assert_string_equal(state(f, 1), "unsynced");
    report_seed(f, 1, "q2", "b", 2, "d2");
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

/* What an engine said before it got the version is of other weights, whenever the answer comes. */
static void test_digest_from_before_a_version_does_not_prove_it(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    struct upstream *first = engine_at(f, 0);
    struct upstream_report late = {
        .process = "p", .label = "b", .digest = "d1", .serial = 5, .is_stale = true};

    (void)cmocka_state;
    report_seed(f, 0, "p", "b", 5, "d1");
    report_seed(f, 1, "q", "b", 5, "d1");
    (void)commit(f, "b", 0, (const bool[FLEET_MAX]){true}, NULL);
    fleet_probe_ok(f, first, &late);
    report_seed(f, 1, "q", "b", 5, "d1");
    assert_string_equal(state(f, 1), "unsynced");

    fleet_begin_switch(f, &first, 1);
    (void)fleet_switch_version(f, "b", 0);
    fleet_confirm_version(f, first, true);
    report_seed(f, 0, "p", "b", 5, "d1");
    fleet_set_updating(f, false);
    report_seed(f, 1, "q", "b", 5, "d1");
    assert_string_equal(state(f, 1), "unsynced");
    report_seed(f, 0, "p", "b", 6, "d2");
    report_seed(f, 1, "q", "b", 6, "d2");
    assert_string_equal(state(f, 1), "serving");
    fleet_free(f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_that_was_seeded_is_synced),
        cmocka_unit_test(test_digest_from_before_a_version_does_not_prove_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
