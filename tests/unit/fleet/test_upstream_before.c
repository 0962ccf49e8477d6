/* fleet/members: permits of requests that came before a pause, and of those that come in one. */
#include "tests/unit/fleet/upstream_fleet_world.h"

#include "base/clock.h"

static void settle_and_release(struct fleet *f, struct requester *a)
{
    fleet_settle(f, &a->ticket);
    fleet_settle(f, &a->ticket); /* repeating is harmless */
    fleet_permit_release(f, &a->ticket);
}

/* Those that came before have their permits, and are waited for; those that came since wait. */
static void test_permits_of_those_before_the_line(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester runs[PERMITS], before, since;
    uint64_t now_us = clock_now_us();

    (void)cmocka_state;
    for (size_t i = 0; i < PERMITS; i++)
        assert_int_equal(acquire(f, &runs[i], ""), 0);
    assert_int_equal(acquire(f, &before, ""), NO_ENGINE);
    assert_int_equal(fleet_await_before(f, now_us), 0); /* there is no line */
    fleet_draw_line(f, true, true);
    assert_int_equal(acquire(f, &since, ""), NO_ENGINE);
    assert_int_equal(fleet_await_before(f, now_us), PERMITS + 1);
    for (size_t i = 0; i < PERMITS; i++)
        settle_and_release(f, &runs[i]);
    assert_int_equal(before.n_granted, 1);
    assert_int_equal(since.n_granted, 0); /* although permits are free */
    assert_int_equal(fleet_await_before(f, now_us), 1);
    settle_and_release(f, &before);
    assert_int_equal(fleet_await_before(f, CLOCK_NEVER), 0);
    fleet_release_since(f);
    assert_int_equal(since.n_granted, 1);
    settle_and_release(f, &since);
    fleet_free(f);
}

/* What is aborted is granted no more, also as a retry. What was sent is cut only when told. */
static void test_permits_of_those_aborted(void **cmocka_state)
{
    struct fleet *f = fleet_alive(1);
    struct requester runs[PERMITS], before, since;
    struct err e = {0};

    (void)cmocka_state;
    for (size_t i = 0; i < PERMITS; i++)
        assert_int_equal(acquire(f, &runs[i], ""), 0);
    assert_int_equal(acquire(f, &before, ""), NO_ENGINE);
    fleet_draw_line(f, true, true);
    assert_int_equal(acquire(f, &since, ""), NO_ENGINE);
    assert_int_equal(fleet_abort_queued(f, false), 1);
    assert_int_equal(fleet_abort_queued(f, false), 0); /* no other one */
    assert_true(fleet_is_aborted(f, &before.ticket, false));
    assert_false(fleet_is_aborted(f, &runs[0].ticket, true));
    assert_false(fleet_is_aborted(f, &since.ticket, false));
    fleet_permit_release(f, &runs[0].ticket);
    assert_int_equal(before.n_granted, 0);
    assert_int_equal(fleet_permit_acquire(f, &runs[0].ticket, &e), -1);
    assert_int_equal(e.code, ERR_ABORTED);
    fleet_cut_aborted(f);
    assert_true(fleet_is_aborted(f, &runs[1].ticket, true));
    assert_true(fleet_permit_cancel(f, &before.ticket));
    fleet_settle(f, &before.ticket);
    fleet_settle(f, &runs[0].ticket);
    for (size_t i = 1; i < PERMITS; i++)
        settle_and_release(f, &runs[i]);
    assert_int_equal(fleet_await_before(f, CLOCK_NEVER), 0);
    fleet_draw_line(f, false, true); /* the same pause again */
    assert_int_equal(fleet_abort_queued(f, false), 0);
    assert_int_equal(fleet_abort_queued(f, true), 1); /* without a pause */
    assert_true(fleet_permit_cancel(f, &since.ticket));
    fleet_settle(f, &since.ticket);
    fleet_release_since(f);
    fleet_free(f);
}

/* Only a baton keeps back itself what arrives while it is paused. */
static void test_generates_are_held_but_for_batons(void **cmocka_state)
{
    static const char *const names[] = {"u://baton", "u://vllm"};
    const struct err none = {0};
    struct requester a[2 * PERMITS];
    uint64_t number;
    bool optional;
    struct fleet *f;

    (void)cmocka_state;
    ((struct upstream_config *)(uintptr_t)config_of("u://vllm"))->kind = UPSTREAM_VLLM;
    ((struct upstream_config *)(uintptr_t)config_of("u://baton"))->kind = UPSTREAM_BATON;
    f = fleet_alive_named(names, 2);
    (void)commit(f, "v", 0, (const bool[]){true, true}, NULL);
    number = fleet_caches_begin(f, engine_at(f, 1), CACHES_AS_BEFORE, &optional);
    fleet_caches_end(f, engine_at(f, 1), number, &none);
    fleet_set_still(f, &(struct fleet_still){.holds_generates = true, .order = 1});
    for (size_t i = 0; i < 2 * PERMITS; i++)
        assert_int_equal(acquire(f, &a[i], ""), i < PERMITS ? 0 : NO_ENGINE);
    fleet_set_still(f, &(struct fleet_still){.order = 2});
    for (size_t i = 0; i < 2 * PERMITS; i++) {
        assert_int_equal(a[i].got, i >= PERMITS);
        fleet_permit_release(f, &a[i].ticket);
    }
    fleet_free(f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permits_of_those_before_the_line),
        cmocka_unit_test(test_permits_of_those_aborted),
        cmocka_unit_test(test_generates_are_held_but_for_batons),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
