/* An engine that may lack adapters of the fleet is out of rotation. */
#include "tests/unit/fleet/upstream_fleet_world.h"

static struct fleet *new_fleet(void)
{
    struct fleet_cfg cfg = {
        .n_upstreams = 2, .n_permits = {1, 1}, .n_queue_max = {1, 1}, .min_ready = 1};
    struct fleet *f = NULL;
    struct err e = {0};

    assert_int_equal(fleet_new(&f, &cfg, &e), 0);
    return f;
}

static struct upstream_info info_of(struct fleet *f, size_t i)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, i), &info);
    return info;
}

static void check(struct fleet *f, uint64_t incarnation, uint64_t change, const char *missing)
{
    struct err why = {0};

    if (missing != NULL)
        (void)err_set(&why, ERR_UNSYNCED, "", "%s", missing);
    fleet_set_missing_adapters(f, engine_at(f, 0),
                               &(struct fleet_adapter_check){
                                   .incarnation = incarnation, .change = change, .missing = &why});
}

static void test_new_process_waits_for_its_adapter_check(void **state)
{
    struct fleet *f = new_fleet();
    uint64_t incarnation;

    (void)state;
    report_ok(f, 0, "p1", "v");
    report_ok(f, 1, "q1", "v");
    assert_true(fleet_serves(f, engine_at(f, 0)));
    fleet_require_adapters(f);
    assert_true(fleet_serves(f, engine_at(f, 0))); /* there were no adapters before */
    incarnation = info_of(f, 0).incarnation;
    report_ok(f, 0, "p2", "v");
    assert_false(fleet_serves(f, engine_at(f, 0)));
    assert_true(fleet_serves(f, engine_at(f, 1)));
    assert_string_equal(upstream_state_name(info_of(f, 0).state), "unsynced");
    assert_non_null(strstr(info_of(f, 0).error.why.msg, "restarted"));
    check(f, incarnation, 1, NULL); /* of the process before */
    assert_false(fleet_serves(f, engine_at(f, 0)));
    check(f, info_of(f, 0).incarnation, 1, "it lacks 'x'");
    assert_false(fleet_serves(f, engine_at(f, 0)));
    report_ok(f, 0, "p2", "v");
    assert_string_equal(info_of(f, 0).error.why.msg, "it lacks 'x'");
    check(f, info_of(f, 0).incarnation, 2, NULL);
    assert_true(fleet_serves(f, engine_at(f, 0)));
    assert_int_equal(info_of(f, 0).error.why.code, ERR_NONE);
    fleet_free(f);
}

static void test_older_adapter_check_is_ignored(void **state)
{
    struct fleet *f = new_fleet();
    uint64_t incarnation;

    (void)state;
    report_ok(f, 0, "p1", "v");
    report_ok(f, 1, "q1", "v");
    fleet_require_adapters(f);
    incarnation = info_of(f, 0).incarnation;
    check(f, incarnation, 5, "it lacks 'x'");
    check(f, incarnation, 4, NULL);
    assert_false(fleet_serves(f, engine_at(f, 0)));
    check(f, incarnation, 5, NULL);
    assert_true(fleet_serves(f, engine_at(f, 0)));
    fleet_free(f);
}

/* Neither an update nor a resync gives it the adapters that it lacks. */
static void test_weights_do_not_replace_adapters(void **state)
{
    struct fleet *f = new_fleet();
    const bool done[FLEET_MAX] = {true, true};
    struct upstream_report report = {.process = "p1", .label = "w"};
    struct err e = {0};

    (void)state;
    report_ok(f, 0, "p1", "v");
    report_ok(f, 1, "q1", "v");
    fleet_require_adapters(f);
    check(f, info_of(f, 0).incarnation, 1, "it lacks 'x'");
    (void)commit(f, "w", 0, done, NULL);
    assert_false(fleet_serves(f, engine_at(f, 0)));
    assert_true(info_of(f, 0).synced && info_of(f, 0).missing_adapters);
    assert_string_equal(info_of(f, 0).error.why.msg, "it lacks 'x'");
    assert_int_equal(fleet_resync(f, engine_at(f, 0), &report, &e), 0);
    assert_false(fleet_serves(f, engine_at(f, 0)));
    fleet_free(f);
}

/* It changes for another engine at the index, and for a restart that only the label shows. */
static void test_incarnation_never_repeats(void **state)
{
    struct fleet *f = new_fleet();
    const bool done[FLEET_MAX] = {true, true};
    uint64_t incarnation;

    (void)state;
    fleet_require_adapters(f);
    report_ok(f, 0, "", "v");
    report_ok(f, 1, "q1", "v");
    (void)commit(f, "w", 0, done, NULL);
    report_ok(f, 0, "", "w");
    assert_true(fleet_serves(f, engine_at(f, 0)));
    incarnation = info_of(f, 0).incarnation;
    report_ok(f, 0, "", "default");
    assert_true(info_of(f, 0).incarnation > incarnation && info_of(f, 0).missing_adapters);
    incarnation = info_of(f, 0).incarnation;
    fleet_remove(f, engine_at(f, 0));
    add_again(f, 0);
    assert_true(info_of(f, 0).incarnation > incarnation && info_of(f, 0).missing_adapters);
    fleet_free(f);
}

/* The reasons end in each order. */
static void test_engine_serves_when_the_last_reason_has_ended(void **state)
{
    enum { ADAPTERS, FENCED, PAUSE, KEY, N_REASONS };
    const bool done[FLEET_MAX] = {true, true};
    struct err why = {0}, key = {0};

    (void)state;
    (void)err_set(&why, ERR_UNSYNCED, "", "half of an update is in it");
    (void)err_set(&key, ERR_UPSTREAM_KEY, "", "it refuses the key");
    for (int first = 0; first < N_REASONS; first++) {
        struct fleet *f = new_fleet();

        report_ok(f, 0, "p1", "v");
        report_ok(f, 1, "q1", "v");
        fleet_require_adapters(f);
        fleet_quiesce(f, true, 1);
        report_ok(f, 0, "p2", "w");
        fleet_fence(f, engine_at(f, 0), &why);
        fleet_auth_failed(f, engine_at(f, 0), FLEET_AUTH_REQUEST, &key);
        for (int k = 0; k < N_REASONS; k++) {
            assert_false(fleet_serves(f, engine_at(f, 0)));
            assert_int_not_equal(info_of(f, 0).error.why.code, ERR_NONE);
            switch ((first + k) % N_REASONS) {
            case ADAPTERS:
                check(f, info_of(f, 0).incarnation, 1, NULL);
                break;
            case FENCED: /* and unsynced */
                (void)commit(f, "x", 0, done, NULL);
                break;
            case PAUSE:
                fleet_quiesce(f, false, 2);
                break;
            default:
                fleet_auth_ok(f, engine_at(f, 0));
            }
            report_ok(f, 0, "p2", "x");
        }
        assert_true(fleet_serves(f, engine_at(f, 0)));
        assert_string_equal(upstream_state_name(info_of(f, 0).state), "serving");
        assert_int_equal(info_of(f, 0).error.why.code, ERR_NONE);
        fleet_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_process_waits_for_its_adapter_check),
        cmocka_unit_test(test_older_adapter_check_is_ignored),
        cmocka_unit_test(test_weights_do_not_replace_adapters),
        cmocka_unit_test(test_incarnation_never_repeats),
        cmocka_unit_test(test_engine_serves_when_the_last_reason_has_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
