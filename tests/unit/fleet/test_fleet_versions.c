/* What a fleet has served since a permit was granted. */
#include "tests/unit/fleet/upstream_fleet_world.h"

#include "base/clock.h"

#include <pthread.h>

static const bool both[FLEET_MAX] = {true, true};

static void update(struct fleet *f, const char *label)
{
    fleet_set_updating(f, true);
    fleet_note_overwrite(f, engine_at(f, 0));
    (void)commit(f, label, 0, both, both);
}

static void test_a_reply_that_no_update_touched_is_of_one_version(void **state)
{
    struct fleet *f = fleet_alive_named(NULL, 2);
    struct fleet_versions v;
    struct requester a;

    (void)state;
    update(f, "step-1");
    (void)acquire(f, &a, "");
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(v.one && v.complete && v.n == 1 && v.items[0].serial == 1);
    assert_string_equal(a.ticket.served.label, "step-1");
    fleet_note_overwrite(f, engine_at(f, 1 - a.got)); /* of the other engine */
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(v.one);
    fleet_set_updating(f, true); /* nothing is overwritten yet */
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(v.one && !v.last_is_unknown);
    fleet_set_updating(f, false);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

/* An engine of which no reply names the process or the version. */
static void test_another_process_may_have_made_it(void **state)
{
    struct upstream_report report = {.label = "step-1", .process = "2"};
    struct fleet *f = fleet_alive_named(NULL, 1);
    struct fleet_versions v;
    struct requester a;

    (void)state;
    update(f, "step-1");
    (void)acquire(f, &a, "");
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(v.one);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(!v.one && v.n == 1);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

static void test_an_update_that_has_not_ended_is_the_unknown_last_one(void **state)
{
    struct fleet *f = fleet_alive_named(NULL, 1);
    struct fleet_versions v;
    struct requester a;

    (void)state;
    update(f, "step-1");
    (void)acquire(f, &a, "");
    fleet_set_updating(f, true);
    fleet_note_overwrite(f, engine_at(f, 0));
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(!v.one && v.last_is_unknown && !v.complete && v.n == 1);
    (void)commit(f, "step-2", 0, both, both);
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(!v.one && !v.last_is_unknown && v.complete && v.n == 2);
    assert_int_equal(v.items[1].serial, 2);
    assert_string_equal(v.items[1].label, "step-2");
    (void)name_them(f, "better", both);
    fleet_versions_since(f, &a.ticket, &v);
    assert_true(v.n == 3 && v.items[2].serial == 2);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

static void test_after_too_many_versions_the_newest_are_kept(void **state)
{
    struct fleet *f = fleet_alive_named(NULL, 1);
    struct fleet_versions v;
    struct requester a;
    char label[32];

    (void)state;
    update(f, "step-1");
    (void)acquire(f, &a, "");
    for (int i = 2; i <= 2 + FLEET_VERSIONS_MAX; i++) {
        (void)snprintf(label, sizeof label, "step-%d", i);
        update(f, label);
        fleet_versions_since(f, &a.ticket, &v);
        assert_int_equal(v.complete, i <= 1 + FLEET_VERSIONS_MAX);
        assert_int_equal(v.items[0].serial, 1);
        assert_int_equal(v.items[v.n - 1].serial, i);
    }
    assert_int_equal(v.n, 1 + FLEET_VERSIONS_MAX);
    fleet_permit_release(f, &a.ticket);
    fleet_free(f);
}

struct idle_wait {
    struct fleet *f;
    bool idle;
};

static void *await_idle(void *arg)
{
    struct idle_wait *w = arg;

    w->idle = fleet_await_idle(w->f, engine_at(w->f, 0), CLOCK_NEVER);
    return NULL;
}

static void test_an_engine_is_idle_when_its_last_permit_is_back(void **state)
{
    struct fleet *f = fleet_alive_named(NULL, 1);
    struct idle_wait w = {.f = f};
    struct requester a, b;
    pthread_t thread;

    (void)state;
    update(f, "step-1");
    assert_true(fleet_await_idle(f, engine_at(f, 0), CLOCK_NEVER));
    (void)acquire(f, &a, "");
    (void)acquire(f, &b, "");
    assert_false(fleet_await_idle(f, engine_at(f, 0), clock_after_us(1000)));
    assert_int_equal(pthread_create(&thread, NULL, await_idle, &w), 0);
    fleet_permit_release(f, &a.ticket);
    assert_false(fleet_await_idle(f, engine_at(f, 0), clock_after_us(1000)));
    fleet_permit_release(f, &b.ticket);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(w.idle);
    fleet_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reply_that_no_update_touched_is_of_one_version),
        cmocka_unit_test(test_another_process_may_have_made_it),
        cmocka_unit_test(test_an_update_that_has_not_ended_is_the_unknown_last_one),
        cmocka_unit_test(test_after_too_many_versions_the_newest_are_kept),
        cmocka_unit_test(test_an_engine_is_idle_when_its_last_permit_is_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
