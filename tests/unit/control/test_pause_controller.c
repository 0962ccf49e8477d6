/* control/pause_controller: pauses that are replaced, refused, given up or end by themselves, over
 * an engine that freezes when the test lets it. */
#include "tests/unit/control/pause_controller_world.h"

/* The pause is gone first, and what was frozen goes on after that. */
static void await_lifted(struct bed *b)
{
    struct pause_controller_info info;

    do
        pause_controller_info(b->pause_controller, &info);
    while ((info.pause.mode != PAUSE_NONE || atomic_load(&b->still.frozen)) && usleep(1000) == 0);
}

/* "Nothing has changed then." */
static void test_keep_that_cannot_freeze_changes_nothing(void **state)
{
    struct pause_controller_info before, after;
    struct err e = {0};
    struct bed b;

    (void)state;
    bed_open(&b);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "first", 3600, &before, &e), 0);
    pause_controller_info(b.pause_controller, &before);
    atomic_store(&b.still.refuses, true);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "second", 0, &after, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    pause_controller_info(b.pause_controller, &after);
    assert_int_equal(after.pause.mode, PAUSE_KEEP);
    assert_string_equal(after.pause.owner, "first");
    assert_true(after.acknowledged);
    assert_int_equal(after.pause.lease.length_s, 3600);
    assert_true(after.pause.lease.end_us == before.pause.lease.end_us); /* not renewed */
    assert_true(after.pause.epoch > before.pause.epoch);
    assert_int_equal(after.pause.n_pauses, 1);
    assert_true(pause_controller_resume(b.pause_controller, &after));
    err_clear(&e);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "third", 0, &after, &e), -1);
    pause_controller_info(b.pause_controller, &after);
    assert_int_equal(after.pause.mode, PAUSE_NONE);
    run_one(&b); /* its listeners are open */
    end_one(&b);
    bed_close(&b);
}

/* ... and whoever waits for the pause before it is neither told that it was displaced, nor kept
 * from having its lease begin. */
static void test_keep_that_cannot_freeze_displaces_nobody(void **state)
{
    struct pause_controller_info info;
    struct err e = {0};
    struct asker first;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&first, &b);
    run_one(&b);
    assert_int_equal(ask(&b, &first, PAUSE_WAIT, "first", 1, &info, &e), 1);
    atomic_store(&b.still.refuses, true);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "second", 0, &info, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_true(asker_waits(&first));
    pause_controller_info(b.pause_controller, &info);
    assert_false(info.acknowledged);
    end_one(&b);
    assert_int_equal(asker_result(&first), ERR_NONE);
    assert_int_equal(first.info.pause.mode, PAUSE_WAIT);
    assert_string_equal(first.info.pause.owner, "first");
    assert_true(first.info.acknowledged);
    assert_true(lease_timer_left_us(&first.info.pause.lease) <= 1000000);
    await_lifted(&b); /* by its lease */
    asker_fini(&first);
    bed_close(&b);
}

static void test_keep_that_freezes_displaces_those_that_wait(void **state)
{
    struct pause_controller_info info;
    struct err e = {0};
    struct asker first;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&first, &b);
    run_one(&b);
    assert_int_equal(ask(&b, &first, PAUSE_WAIT, "first", 0, &info, &e), 1);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "second", 0, &info, &e), 0);
    assert_true(info.acknowledged);
    assert_int_equal(asker_result(&first), ERR_CONFLICT);
    end_one(&b);
    pause_controller_info(b.pause_controller, &info);
    assert_string_equal(info.pause.owner, "second");
    asker_fini(&first);
    bed_close(&b);
}

/* A pause that takes another's place and is given up before it is acknowledged leaves generation
 * paused; but not for ever, if either had a lease. */
static void test_a_lease_outlives_whoever_gives_up(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 3; turn++) {
        uint32_t theirs = turn == 0 ? 3600 : turn == 1 ? 1 : 0, own = turn == 0 ? 1 : 0;
        struct pause_controller_info info;
        struct err e = {0};
        struct asker second;
        struct bed b;

        bed_open(&b);
        asker_init(&second, &b);
        run_one(&b);
        assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "first", theirs, &info, &e), 0);
        assert_int_equal(ask(&b, &second, PAUSE_WAIT, "second", own, &info, &e), 1);
        pause_controller_info(b.pause_controller, &info);
        assert_true(lease_timer_left_us(&info.pause.lease) ==
                    CLOCK_NEVER); /* it is not acknowledged yet */
        leave(&b, &second);
        assert_int_equal(asker_result(&second), ERR_GONE);
        pause_controller_info(b.pause_controller, &info);
        if (turn == 2) {
            assert_int_equal(info.pause.mode, PAUSE_WAIT); /* neither had one */
            assert_true(lease_timer_left_us(&info.pause.lease) == CLOCK_NEVER);
        } else {
            assert_true(info.pause.mode == PAUSE_NONE ||
                        lease_timer_left_us(&info.pause.lease) <= 1000000);
            await_lifted(&b);
        }
        end_one(&b);
        asker_fini(&second);
        bed_close(&b);
    }
}

/* Of two that wait, the later one's lease begins when the pause is acknowledged, also if the later
 * one has gone; the earlier one's wait is not cut short. */
static void test_two_that_wait(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct asker first, second;
        struct pause_controller_info info;
        struct err e = {0};
        struct bed b;

        bed_open(&b);
        asker_init(&first, &b);
        asker_init(&second, &b);
        run_one(&b);
        assert_int_equal(ask(&b, &first, PAUSE_WAIT, "first", 0, &info, &e), 1);
        assert_int_equal(ask(&b, &second, PAUSE_ABORT, "second", 1, &info, &e), 1);
        if (turn == 1) {
            leave(&b, &second);
            assert_int_equal(asker_result(&second), ERR_GONE);
            pause_controller_info(b.pause_controller, &info);
            assert_int_equal(info.pause.mode, PAUSE_ABORT);
            assert_true(lease_timer_left_us(&info.pause.lease) == CLOCK_NEVER);
            assert_true(asker_waits(&first));
        }
        end_one(&b);
        assert_int_equal(asker_result(&first), ERR_NONE);
        assert_int_equal(asker_result(&second), turn == 0 ? ERR_NONE : ERR_GONE);
        assert_true(first.info.acknowledged);
        assert_int_equal(first.info.n_running, 0);
        await_lifted(&b);
        asker_fini(&first);
        asker_fini(&second);
        bed_close(&b);
    }
}

/* The lease of the pause that stands holds through any number of those that wait and give up. */
static void test_a_lease_outlives_all_that_give_up(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct asker askers[2];
        struct pause_controller_info info;
        struct err e = {0};
        struct bed b;

        bed_open(&b);
        run_one(&b);
        assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "stands", 60, &info, &e), 0);
        for (unsigned i = 0; i < 2; i++) {
            asker_init(&askers[i], &b);
            assert_int_equal(ask(&b, &askers[i], PAUSE_WAIT, "waits", 0, &info, &e), 1);
        }
        for (unsigned i = 0; i < 2; i++) {
            leave(&b, &askers[i ^ turn]);
            assert_int_equal(asker_result(&askers[i ^ turn]), ERR_GONE);
        }
        pause_controller_info(b.pause_controller, &info);
        assert_int_equal(info.pause.mode, PAUSE_WAIT);
        assert_int_equal(info.pause.lease.length_s, 60);
        assert_true(lease_timer_left_us(&info.pause.lease) <= 60000000);
        end_one(&b);
        for (unsigned i = 0; i < 2; i++)
            asker_fini(&askers[i]);
        bed_close(&b);
    }
}

/* Pauses that nobody was ever told of end with the last that gives up, whichever that is; nobody
 * would know that they have to be resumed. */
static void test_no_pause_is_left_by_those_that_give_up(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct asker askers[2], *leaves = &askers[turn], *stays = &askers[1 - turn];
        struct pause_controller_info info;
        struct err e = {0};
        struct bed b;

        bed_open(&b);
        run_one(&b);
        for (unsigned i = 0; i < 2; i++) {
            struct pause_request req = {.mode = PAUSE_WAIT, .timeout_s = i == turn ? 60 : 2};

            asker_init(&askers[i], &b);
            assert_int_equal(ask_for(&b, &askers[i], &req, "waits", &info, &e), 1);
        }
        leave(&b, leaves);
        assert_int_equal(asker_result(leaves), ERR_GONE);
        assert_int_equal(asker_result(stays), ERR_TIMEOUT);
        assert_non_null(strstr(stays->error.msg, "generation is not paused"));
        pause_controller_info(b.pause_controller, &info);
        assert_int_equal(info.pause.mode, PAUSE_NONE);
        end_one(&b);
        run_one(&b); /* the listeners are open */
        end_one(&b);
        asker_fini(leaves);
        asker_fini(stays);
        bed_close(&b);
    }
}

/* A pause that stands is acknowledged when what it promises is so: a thaw that was asked for and
 * given up has undone what keep had promised. */
static void test_acknowledged_is_so(void **state)
{
    static const struct pause_request short_one = {.mode = PAUSE_WAIT, .timeout_s = 1};
    struct pause_controller_info info;
    struct err e = {0};
    struct asker second;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&second, &b);
    run_one(&b);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "first", 0, &info, &e), 0);
    assert_true(info.acknowledged);
    assert_int_equal(info.n_running, 1);
    assert_int_equal(ask_for(&b, &second, &short_one, "second", &info, &e), 1);
    assert_int_equal(asker_result(&second), ERR_TIMEOUT);
    assert_non_null(strstr(second.error.msg, "stays paused"));
    pause_controller_info(b.pause_controller, &info);
    assert_int_equal(info.pause.mode, PAUSE_WAIT);
    assert_false(atomic_load(&b.still.frozen));
    assert_false(info.acknowledged); /* one runs */
    end_one(&b);
    pause_controller_info(b.pause_controller, &info);
    assert_true(info.acknowledged);
    asker_fini(&second);
    bed_close(&b);
}

/* While the step that was under way goes on, the status does not say that all is still. */
static void test_keep_is_acknowledged_when_it_has_frozen(void **state)
{
    struct pause_controller_info info;
    struct err e = {0};
    struct bed b;

    (void)state;
    bed_open(&b);
    run_one(&b);
    b.still.pause_controller = &b.pause_controller;
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "first", 0, &info, &e), 0);
    assert_true(info.acknowledged);
    assert_int_equal(b.still.seen.pause.mode, PAUSE_KEEP);
    assert_false(b.still.seen.acknowledged);
    end_one(&b);
    bed_close(&b);
}

/* Its client goes, its time is over, another resumes, the server ends: an answer each time. */
static void test_every_wait_is_answered(void **state)
{
    static const enum err_code codes[] = {ERR_GONE, ERR_CONFLICT, ERR_DRAINING, ERR_NONE};

    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        struct pause_controller_info info;
        struct err e = {0};
        struct asker a;
        struct bed b;

        bed_open(&b);
        asker_init(&a, &b);
        run_one(&b);
        assert_int_equal(ask(&b, &a, how % 2 == 0 ? PAUSE_WAIT : PAUSE_ABORT, "a", 0, &info, &e),
                         1);
        assert_true(asker_waits(&a));
        if (how == 0) {
            leave(&b, &a);
        } else if (how == 1) {
            assert_true(pause_controller_resume(b.pause_controller, &info));
        } else if (how == 2) {
            life_set(&b.life, LIFE_DRAINING);
            pause_controller_drain(b.pause_controller);
        } else {
            end_one(&b);
        }
        assert_int_equal(asker_result(&a), codes[how]);
        pause_controller_info(b.pause_controller, &info);
        assert_int_equal(info.pause.mode, how == 3 ? PAUSE_ABORT : PAUSE_NONE);
        if (how == 2) {
            assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "late", 0, &info, &e), -1);
            assert_int_equal(e.code, ERR_DRAINING);
        }
        if (how != 3)
            end_one(&b);
        asker_fini(&a);
        bed_close(&b);
    }
}

/* A lease that ends while a sleep is under way ends the pause when that is over, and not before. */
static void test_a_lease_ends_while_a_sleep_runs(void **state)
{
    struct lifecycle_state is;
    struct pause_controller_slept slept;
    struct pause_controller_info info;
    struct err e = {0};
    struct bed b;

    (void)state;
    bed_open(&b);
    run_one(&b);
    b.still.pause_controller = &b.pause_controller;
    b.still.outlasts = true;
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "short", 2, &info, &e), 0);
    assert_int_equal(pause_controller_sleep(b.pause_controller, 1, PAUSE_KV, &slept, &e), 0);
    assert_int_equal(slept.nbytes_kv, 1);
    assert_int_equal(slept.n_aborted, 0); /* it is frozen, and stays */
    await_lifted(&b);
    pause_controller_info(b.pause_controller, &info);
    assert_int_equal(info.pause.n_expired, 1);
    end_one(&b);
    pause_controller_state(b.pause_controller, &is);
    assert_int_equal(is.pause, PAUSE_NONE);
    assert_true(is.kv_released);
    bed_close(&b);
}

/* Who comes while memory is given back meets what lacks it, and is not let in before. */
static void test_sleep_shuts_the_doors(void **state)
{
    struct pause_controller_slept slept;
    struct err e = {0};
    struct bed b;

    (void)state;
    bed_open(&b);
    b.still.meanwhile = come_meanwhile;
    b.still.arg = &b;
    assert_int_equal(pause_controller_sleep(b.pause_controller, 1, PAUSE_KV, &slept, &e), 0);
    assert_true(b.holds); /* the engine's to refuse */
    end_one(&b);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_that_cannot_freeze_changes_nothing),
        cmocka_unit_test(test_keep_that_cannot_freeze_displaces_nobody),
        cmocka_unit_test(test_keep_that_freezes_displaces_those_that_wait),
        cmocka_unit_test(test_a_lease_outlives_whoever_gives_up),
        cmocka_unit_test(test_two_that_wait),
        cmocka_unit_test(test_a_lease_outlives_all_that_give_up),
        cmocka_unit_test(test_no_pause_is_left_by_those_that_give_up),
        cmocka_unit_test(test_acknowledged_is_so),
        cmocka_unit_test(test_keep_is_acknowledged_when_it_has_frozen),
        cmocka_unit_test(test_every_wait_is_answered),
        cmocka_unit_test(test_a_lease_ends_while_a_sleep_runs),
        cmocka_unit_test(test_sleep_shuts_the_doors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
