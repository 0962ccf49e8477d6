/* control/pause_controller: which requests a pause or a sleep covers. */
#include "tests/unit/control/pause_controller_world.h"

/* A request as a handler of generates has it: in the list, and with a ticket. */
struct request {
    struct generations_entry entry;
    struct ticket ticket;
    struct bed *bed;
    bool granted, aborted;
};

static bool request_abort(void *arg)
{
    struct request *r = arg;

    if (r->aborted)
        return false;
    r->aborted = true;
    (void)admission_cancel(r->bed->cfg.generate, &r->ticket);
    return true;
}

static void request_granted(void *arg)
{
    ((struct request *)arg)->granted = true;
}

/* It is in the list, and has yet to be tokenized. */
static void request_come(struct request *r, struct bed *b)
{
    static const struct generations_ops ops = {.abort = request_abort};
    uint64_t arrival = generations_arrive(b->cfg.generations);

    *r = (struct request){.bed = b, .entry = {.ops = &ops, .arg = r, .arrival = arrival}};
    generations_add(b->cfg.generations, &r->entry);
    generations_parsed(b->cfg.generations, arrival);
}

static enum err_code request_enter(struct request *r)
{
    struct err e = {0};

    r->ticket = (struct ticket){.granted = request_granted, .arg = r, .arrival = r->entry.arrival};
    (void)admission_enter(r->bed->cfg.generate, &r->ticket, &e);
    return e.code;
}

static void request_end(struct request *r)
{
    if (r->granted)
        admission_leave(r->bed->cfg.generate, &r->ticket);
    generations_remove(r->bed->cfg.generations, &r->entry);
}

enum { RUNS = 4, REQUESTS = 7 }; /* bed_open's permits; the last one of `r` is being tokenized */

static void requests_come(struct request r[REQUESTS], struct bed *b)
{
    for (unsigned i = 0; i < REQUESTS; i++) {
        request_come(&r[i], b);
        if (i < REQUESTS - 1)
            assert_int_equal(request_enter(&r[i]), ERR_NONE);
        assert_true(r[i].granted == (i < RUNS));
    }
}

/* wait: those that queue or are on their way get their permits and are waited for; what comes later
 * is refused, and has no permit before the resume. */
static void test_wait_covers_those_without_a_permit(void **state)
{
    struct pause_request req = {
        .mode = PAUSE_WAIT, .reject = true, .timeout_s = PAUSE_TIMEOUT_S_MAX};
    struct request r[REQUESTS], late;
    struct pause_controller_info info;
    struct err e = {0};
    struct asker a;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&a, &b);
    requests_come(r, &b);
    assert_int_equal(ask_for(&b, &a, &req, "a", &info, &e), 1);
    request_come(&late, &b);
    assert_int_equal(request_enter(&late), ERR_PAUSED);
    request_end(&late);
    for (unsigned i = 0; i < REQUESTS - 1; i++)
        request_end(&r[i]);
    pause_controller_info(b.pause_controller, &info);
    assert_int_equal(info.n_running + info.n_waiting, 0);
    assert_false(info.acknowledged); /* one is not tokenized yet */
    assert_true(asker_waits(&a));
    assert_int_equal(request_enter(&r[REQUESTS - 1]), ERR_NONE);
    assert_true(r[REQUESTS - 1].granted);
    request_end(&r[REQUESTS - 1]);
    assert_int_equal(asker_result(&a), ERR_NONE);
    assert_true(a.info.acknowledged);
    asker_fini(&a);
    bed_close(&b);
}

/* abort: all of them end; what is not tokenized yet is aborted too. A pause that repeats it leaves
 * those alone that came since. */
static void test_abort_covers_those_without_a_permit(void **state)
{
    struct request r[REQUESTS], late, unread = {0};
    struct pause_controller_info info;
    struct err e = {0};
    struct asker a;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&a, &b);
    requests_come(r, &b);
    unread.entry.arrival = generations_arrive(b.cfg.generations);
    assert_int_equal(ask(&b, &a, PAUSE_ABORT, "a", 0, &info, &e), 1);
    request_come(&late, &b);
    assert_int_equal(request_enter(&late), ERR_NONE);
    for (unsigned i = 0; i < REQUESTS; i++) {
        assert_true(r[i].aborted);
        request_end(&r[i]);
    }
    assert_int_equal(asker_result(&a), ERR_NONE);
    assert_int_equal(a.info.pause.n_aborted, REQUESTS);
    assert_int_equal(ask(&b, NULL, PAUSE_ABORT, "again", 1, &info, &e), 0);
    assert_int_equal(info.n_waiting, 1);
    assert_false(late.aborted);
    generations_parsed(b.cfg.generations, unread.entry.arrival);
    (void)pause_controller_resume(b.pause_controller, &info);
    assert_true(late.granted);
    request_end(&late);
    asker_fini(&a);
    bed_close(&b);
}

/* After keep: wait leaves those alone that came since, abort does not. */
static void test_the_next_pause_after_keep(void **state)
{
    struct request before, since;
    struct pause_controller_info info;
    struct err e = {0};
    struct asker a;
    struct bed b;

    (void)state;
    bed_open(&b);
    asker_init(&a, &b);
    request_come(&before, &b);
    assert_int_equal(ask(&b, NULL, PAUSE_KEEP, "keep", 0, &info, &e), 0);
    request_come(&since, &b);
    assert_int_equal(request_enter(&since), ERR_NONE);
    assert_int_equal(request_enter(&before), ERR_NONE);
    assert_false(before.granted);
    assert_int_equal(ask(&b, &a, PAUSE_WAIT, "wait", 0, &info, &e), 1);
    assert_true(before.granted && !since.granted);
    request_end(&before);
    assert_int_equal(asker_result(&a), ERR_NONE);
    assert_int_equal(ask(&b, NULL, PAUSE_ABORT, "abort", 0, &info, &e), 0);
    assert_true(since.aborted && !since.granted);
    assert_int_equal(info.pause.n_aborted, 1);
    request_end(&since);
    asker_fini(&a);
    bed_close(&b);
}

/* Without a pause a sleep aborts all of them; in one it leaves alone what the pause holds. */
static void test_sleep_aborts_those_without_a_permit(void **state)
{
    struct request r[REQUESTS], since;
    struct pause_controller_slept slept;
    struct pause_controller_info info;
    struct err e = {0};
    struct bed b;

    (void)state;
    bed_open(&b);
    b.still.meanwhile = come_meanwhile;
    b.still.arg = &b;
    requests_come(r, &b);
    for (unsigned i = 0; i < RUNS; i++)
        request_end(&r[i]);
    for (unsigned i = RUNS; i < REQUESTS - 1; i++)
        assert_true(r[i].granted); /* nothing is paused */
    for (unsigned i = RUNS; i < REQUESTS - 1; i++)
        request_end(&r[i]);
    assert_int_equal(pause_controller_sleep(b.pause_controller, 1, PAUSE_KV, &slept, &e), 0);
    assert_int_equal(slept.n_aborted, 1);
    assert_true(r[REQUESTS - 1].aborted);
    request_end(&r[REQUESTS - 1]);
    assert_true(b.holds); /* came_meanwhile's */
    end_one(&b);
    b.holds = false;
    assert_int_equal(ask(&b, NULL, PAUSE_WAIT, "wait", 0, &info, &e), 0);
    request_come(&since, &b);
    assert_int_equal(request_enter(&since), ERR_NONE);
    assert_int_equal(pause_controller_sleep(b.pause_controller, 1, PAUSE_KV, &slept, &e), 0);
    assert_int_equal(slept.n_aborted, 0);
    assert_false(since.aborted);
    assert_true(admission_cancel(b.cfg.generate, &since.ticket));
    request_end(&since);
    assert_true(admission_cancel(b.cfg.generate, &b.running));
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wait_covers_those_without_a_permit),
        cmocka_unit_test(test_abort_covers_those_without_a_permit),
        cmocka_unit_test(test_the_next_pause_after_keep),
        cmocka_unit_test(test_sleep_aborts_those_without_a_permit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
