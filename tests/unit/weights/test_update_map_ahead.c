/* weights/update_worker and update_map: chunks that are begun while the one before is copied, and
 * whatever may end them half-way. The logs are those of map_fixture.h: J0 joined, M0 mapped, N0 not
 * yet, X0 stopped while it was mapped, R0 released, C0 closed, A0 answered, S the scope closed. */
#include "tests/unit/weights/map_fixture.h"

#include <pthread.h>

static struct mfx_lib lib;

enum { LANE_N = 3 };

struct reply {
    struct fx_answer answer;
    struct mfx_watch *watch;
    int id;
};

static void reply_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct reply *r = arg;

    mfx_log(r->watch, 'A', r->id);
    fx_done(&r->answer, info, e);
}

/* Chunks of one session that are queued before the first of them is mapped. */
struct lane {
    struct gpus g; /* first */
    struct update_info info;
    struct reply replies[LANE_N];
    struct fx_pause_controller pause_controller;
    bool holds; /* the GPUs copy nothing once all chunks are queued */
};

static void lane_open(struct lane *l, struct gpus_cfg world)
{
    gpus_open(&l->g, &lib, world);
    l->holds = false;
    assert_int_equal(mfx_push(&l->g, 9), ERR_NONE);
    memset(l->g.watch.log, 0, sizeof l->g.watch.log);
}

static void lane_close(struct lane *l)
{
    gpus_close(&l->g);
}

static void lane_start(struct lane *l, struct update_start req)
{
    fx_pause_controller_init(&l->pause_controller);
    for (int i = 0; i < LANE_N; i++) {
        fx_answer_init(&l->replies[i].answer);
        l->replies[i].watch = &l->g.watch;
        l->replies[i].id = i;
    }
    l->info = start(&l->g.b, req);
}

static void lane_end(struct lane *l)
{
    fx_pause_controller_fini(&l->pause_controller);
    for (int i = 0; i < LANE_N; i++) {
        assert_int_equal(l->replies[i].answer.n, 0); /* none came twice */
        fx_answer_fini(&l->replies[i].answer);
    }
    memset(l->g.watch.log, 0, sizeof l->g.watch.log);
}

/* @plans moved in; the first one's map waits until all are queued, and the GPUs held if wanted */
static void lane_queue(struct lane *l, struct tensor_list *const *tensor_lists,
                       const struct mfx_cfg *cfgs, int n)
{
    for (int i = 0; i < n; i++) {
        struct mfx_cfg cfg = cfgs[i];
        struct update_chunk *c;

        cfg.id = i;
        if (i == 0)
            cfg.pause_controller = &l->pause_controller;
        c = mfx_chunk(&l->g, l->info.id, tensor_lists[i], cfg);
        c->done = reply_done;
        c->done_arg = &l->replies[i];
        submit(&l->g.b, c);
    }
    if (l->holds)
        gpus_hold(&l->g, true);
    fx_pause_controller_open(&l->pause_controller);
}

static const unsigned thirds[LANE_N] = {0x0a, 0x51, 0x24};

static void lane_queue_thirds(struct lane *l, const struct mfx_cfg *cfgs)
{
    struct tensor_list *tensor_lists[LANE_N];

    for (int i = 0; i < LANE_N; i++)
        tensor_lists[i] = fx_tensor_list_of(thirds[i]);
    lane_queue(l, tensor_lists, cfgs, LANE_N);
}

static enum err_code lane_await(struct lane *l, int i)
{
    return fx_await(&l->replies[i].answer);
}

static void lane_await_all(struct lane *l, enum err_code want)
{
    for (int i = 0; i < LANE_N; i++)
        assert_int_equal(lane_await(l, i), want);
}

static unsigned lane_n_answers(struct lane *l)
{
    unsigned n = 0;

    for (int i = 0; i < LANE_N; i++) {
        mtx_lock(&l->replies[i].answer.lock);
        n += l->replies[i].answer.n;
        mtx_unlock(&l->replies[i].answer.lock);
    }
    return n;
}

#define THREE(a)                                                                                   \
    {                                                                                              \
        a, a, a                                                                                    \
    }

static void test_next_is_mapped_while_the_first_is_copied(void **state)
{
    const struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));
    struct lane l;

    (void)state;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1});
    lane_start(&l, (struct update_start){0});
    l.holds = true;
    lane_queue_thirds(&l, cfgs);
    mfx_await_log(&l.g.watch, "M1");
    mfx_assert_log(&l.g.watch, "J0M0J1M1");
    assert_int_equal(lane_n_answers(&l), 0);
    gpus_hold(&l.g, false);
    lane_await_all(&l, ERR_NONE);
    mfx_assert_step(&l.g, 9);
    assert_int_equal(finish(&l.g.b, l.info.id, ""), ERR_NONE);
    mfx_assert_log(&l.g.watch, "J0M0J1M1R0C0A0J2M2R1C1A1R2C2A2S");
    mfx_assert_step(&l.g, 1);
    lane_end(&l);
    lane_close(&l);
}

static void test_chunks_begun_ahead_arrive_everywhere(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct lane l;

        lane_open(&l, mfx_worlds[w]);
        for (unsigned step = 1; step < 5; step++) {
            struct mfx_cfg cfg = MFX_STEP(step);

            cfg.n_each = step - 1;
            cfg.n_not_ready = step == 4 ? 2 : 0;
            lane_start(&l, (struct update_start){0});
            l.holds = true;
            lane_queue_thirds(&l, (const struct mfx_cfg[LANE_N])THREE(cfg));
            mfx_await_log(&l.g.watch, cfg.n_not_ready > 0 ? "N1" : "M1");
            gpus_hold(&l.g, false);
            lane_await_all(&l, ERR_NONE);
            assert_int_equal(finish(&l.g.b, l.info.id, ""), ERR_NONE);
            mfx_assert_step(&l.g, step);
            lane_end(&l);
        }
        lane_close(&l);
    }
}

/* What is not ready yet is asked again when nothing else is to do, from where it stopped. */
static void test_not_ready_is_asked_again(void **state)
{
    struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));
    struct lane l;

    (void)state;
    cfgs[1].n_each = 2;
    cfgs[1].n_not_ready = 1;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1});
    for (int from = 0; from < 2; from++) {
        cfgs[1].not_ready_at = from;
        lane_start(&l, (struct update_start){0});
        lane_queue_thirds(&l, cfgs);
        lane_await_all(&l, ERR_NONE);
        assert_int_equal(finish(&l.g.b, l.info.id, ""), ERR_NONE);
        mfx_assert_log(&l.g.watch, from == 0 ? "J0M0J1N1R0C0A0M1M1J2M2R1C1A1R2C2A2S"
                                             : "J0M0J1M1N1R0C0A0M1J2M2R1C1A1R2C2A2S");
        mfx_assert_step(&l.g, 1);
        lane_end(&l);
    }
    lane_close(&l);
}

/* ends */

static void test_abort_lets_go_of_what_was_begun(void **state)
{
    const struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));

    struct lane l;

    (void)state;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1, .mirror = true});
    lane_start(&l, (struct update_start){0});
    l.holds = true;
    lane_queue_thirds(&l, cfgs);
    mfx_await_log(&l.g.watch, "M1");
    mfx_abort(&l.g, l.info.id);
    mfx_assert_log(&l.g.watch, "J0M0J1M1"); /* the GPU still reads */
    gpus_hold(&l.g, false);
    lane_await_all(&l, ERR_ENDED);
    mfx_assert_log(&l.g.watch, "J0M0J1M1R0C0A0R1SC1A1C2A2");
    mfx_await_log(&l.g.watch, "S");
    lane_end(&l);
    mfx_assert_step(&l.g, 9);
    assert_int_equal(mfx_push(&l.g, 2), ERR_NONE);
    mfx_assert_step(&l.g, 2);
    lane_close(&l);
}

static void *stop_main(void *arg)
{
    updates_stop(arg);
    return NULL;
}

static void test_stop_lets_go_of_what_was_begun(void **state)
{
    struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));
    struct fx_pause_controller second;
    pthread_t stopper;
    struct lane l;

    (void)state;
    fx_pause_controller_init(&second);
    cfgs[1].n_each = 2;
    cfgs[1].pause_controller = &second;
    cfgs[1].pause_controller_at = 1;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1});
    lane_start(&l, (struct update_start){0});
    l.holds = true;
    lane_queue_thirds(&l, cfgs);
    fx_pause_controller_await(&second);
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, l.g.b.updates), 0);
    mfx_await_log(&l.g.watch, "X1");
    mfx_assert_log(&l.g.watch, "J0M0J1M1X1");
    assert_int_equal(lane_n_answers(&l), 0);
    gpus_hold(&l.g, false);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    lane_await_all(&l, ERR_DRAINING);
    mfx_assert_log(&l.g.watch, "J0M0J1M1X1R0C0A0R1SC1A1C2A2");
    mfx_assert_step(&l.g, 9);
    lane_end(&l);
    fx_pause_controller_fini(&second);
    lane_close(&l);
}

/* Nothing else than the clock can show that a lease does not run while its chunks are under way. */
static void assert_lives_until(struct lane *l, uint64_t deadline_us)
{
    mtx_lock(&l->g.b.lock);
    while (!clock_passed(deadline_us))
        (void)cnd_wait(&l->g.b.changed, &l->g.b.lock, deadline_us);
    mtx_unlock(&l->g.b.lock);
    assert_int_equal(updates_get(l->g.b.updates, l->info.id, &l->info, &(struct err){0}), 0);
    assert_int_equal(l->info.phase, UPDATE_RECEIVING);
}

static void test_lease_ends_after_what_was_begun(void **state)
{
    const struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));
    struct err e = {0};
    struct lane l;

    (void)state;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1});
    lane_start(&l, (struct update_start){.lease_s = LEASE_S});
    l.holds = true;
    lane_queue_thirds(&l, cfgs);
    mfx_await_log(&l.g.watch, "M1");
    assert_int_equal(updates_renew(l.g.b.updates, l.info.id, 1, &l.info, &e), 0);
    assert_lives_until(&l, clock_after_us(1200000));
    gpus_hold(&l.g, false);
    lane_await_all(&l, ERR_NONE);
    await_phase(&l.g.b, l.info.id, UPDATE_ABORTED);
    mfx_await_log(&l.g.watch, "S");
    mfx_assert_log(&l.g.watch, "J0M0J1M1R0C0A0J2M2R1C1A1R2C2A2S");
    mfx_assert_step(&l.g, 9);
    lane_end(&l);
    lane_close(&l);
}

/* A session that commits by itself once it is covered, while a chunk without new tensors was begun
 * behind the last one that was needed. */
static void test_commit_lets_go_of_what_was_begun(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    const struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));

    struct tensor_list *tensor_lists[2];
    struct lane l;

    (void)state;
    lane_open(&l, (struct gpus_cfg){.n_devices = 1, .mirror = true});
    tensor_lists[0] = fx_tensor_list_of(FX_ALL);
    tensor_lists[1] = fx_tensor_list(head, 1);
    lane_start(&l, (struct update_start){.auto_commit = true});
    l.holds = true;
    lane_queue(&l, tensor_lists, cfgs, 2);
    mfx_await_log(&l.g.watch, "M1");
    gpus_hold(&l.g, false);
    assert_int_equal(lane_await(&l, 0), ERR_NONE);
    assert_int_equal(l.replies[0].answer.info.phase, UPDATE_COMMITTED);
    assert_int_equal(lane_await(&l, 1), ERR_ENDED);
    mfx_assert_log(&l.g.watch, "J0M0J1M1R0R1SC0A0C1A1");
    mfx_assert_step(&l.g, 1);
    lane_end(&l);
    lane_close(&l);
}

/* failures */

/* One of the three fails, is sent again, and the update is whole. */
static void fail_one(struct lane *l, int which, struct mfx_cfg failing, enum err_code want)
{
    struct mfx_cfg cfgs[LANE_N] = THREE(MFX_STEP(1));

    cfgs[which] = failing;
    lane_start(l, (struct update_start){0});
    lane_queue_thirds(l, cfgs);
    for (int i = 0; i < LANE_N; i++)
        assert_int_equal(lane_await(l, i), i == which ? want : ERR_NONE);
    assert_int_equal(l->replies[which].answer.info.phase, UPDATE_RECEIVING);
    assert_int_equal(mfx_send(&l->g, mfx_chunk(&l->g, l->info.id, fx_tensor_list_of(thirds[which]),
                                               MFX_STEP(1))),
                     ERR_NONE);
    assert_int_equal(finish(&l->g.b, l->info.id, ""), ERR_NONE);
    mfx_assert_step(&l->g, 1);
    lane_end(l);
    assert_int_equal(mfx_push(&l->g, 9), ERR_NONE);
}

static void test_failed_chunk_may_be_sent_again(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct lane l;

        lane_open(&l, mfx_worlds[w]);
        for (int which = 0; which < LANE_N; which++) {
            struct mfx_cfg cfg = MFX_STEP(2);

            cfg.fail_release = 1;
            fail_one(&l, which, cfg, ERR_GONE);
            cfg.fail_release = 0;
            cfg.fail_join = true;
            fail_one(&l, which, cfg, ERR_NO_MEMORY);
            cfg.fail_join = false;
            cfg.n_each = 1;
            for (int at = 0; at < 2 * (int)l.g.n_devices; at++) {
                cfg.fail_map = at;
                fail_one(&l, which, cfg, ERR_GONE);
            }
        }
        lane_close(&l);
    }
}

static bool always_gone(void *arg)
{
    (void)arg;
    return true;
}

static void test_client_that_went_away_is_not_taken(void **state)
{
    struct update_info info;
    struct update_chunk *c;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .mirror = true});
    info = start(&g.b, (struct update_start){0});
    c = mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(2));
    c->gone = always_gone;
    assert_int_equal(mfx_send(&g, c), ERR_GONE);
    assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(1))),
                     ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 1);
    gpus_close(&g);
}

/* A chunk that fails after it was begun ahead takes back its own ties, not those of the chunk that
 * ended meanwhile. */
static void test_tie_survives_the_failure_of_a_later_chunk(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};

    (void)state;
    for (unsigned lies = 0; lies < 2; lies++) {
        struct mfx_cfg cfgs[LANE_N] = {MFX_STEP(1 + lies), MFX_STEP(1), MFX_STEP(1)};
        struct tensor_list *tensor_lists[LANE_N];
        struct lane l;

        lane_open(&l, (struct gpus_cfg){.n_devices = 2});
        tensor_lists[0] = fx_tensor_list(head, 1);
        tensor_lists[1] = fx_tensor_list_of(2);
        tensor_lists[2] = fx_tensor_list_of(FX_ALL & ~2U);
        cfgs[1].fail_release = 1;
        lane_start(&l, (struct update_start){0});
        lane_queue(&l, tensor_lists, cfgs, LANE_N);
        assert_int_equal(lane_await(&l, 0), ERR_NONE);
        assert_int_equal(lane_await(&l, 1), ERR_GONE);
        assert_int_equal(lane_await(&l, 2), lies ? ERR_MISMATCH : ERR_NONE);
        mfx_abort(&l.g, l.info.id);
        mfx_await_log(&l.g.watch, "S");
        lane_end(&l);
        mfx_assert_step(&l.g, 9);
        lane_close(&l);
    }
}

static void test_map_that_never_comes_times_out(void **state)
{
    struct mfx_cfg cfg = MFX_STEP(1);
    struct fx_pause_controller pause_controller;
    struct gpus g;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .receive_us = 30000});
    cfg.pause_controller = &pause_controller;
    cfg.pause_controller_at = 1;
    assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", fx_tensor_list_of(FX_ALL), cfg)), ERR_TIMEOUT);
    assert_int_equal(mfx_info(&g).state, STORE_UNSYNCED);
    gpus_close(&g);
    fx_pause_controller_fini(&pause_controller);
}

static int open_lib(void **state)
{
    (void)state;
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_is_mapped_while_the_first_is_copied),
        cmocka_unit_test(test_chunks_begun_ahead_arrive_everywhere),
        cmocka_unit_test(test_not_ready_is_asked_again),
        cmocka_unit_test(test_abort_lets_go_of_what_was_begun),
        cmocka_unit_test(test_stop_lets_go_of_what_was_begun),
        cmocka_unit_test(test_lease_ends_after_what_was_begun),
        cmocka_unit_test(test_commit_lets_go_of_what_was_begun),
        cmocka_unit_test(test_failed_chunk_may_be_sent_again),
        cmocka_unit_test(test_client_that_went_away_is_not_taken),
        cmocka_unit_test(test_tie_survives_the_failure_of_a_later_chunk),
        cmocka_unit_test(test_map_that_never_comes_times_out),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
