/* Pause and resume of all engines (fleet/want/fleet_pause.h).
 *
 * Requests that came before a pause, and that no engine is known to have, wait for a permit here,
 * or are on the way. The pause covers them as an engine's pause covers what is in the engine.
 * Rejected: to send them on to the engines before their pause, and to leave them to those: none
 * says when a request has come, and each has its own limit. */
#include "fleet/calls/fleet_priv.h"

#include "base/log.h"

#include <assert.h>

enum {
    BEFORE_POLL_US = 100000, /* while it waits it sees a resume so soon */
    BEFORE_CUT_US =
        2000000, /* after an abort, without another reply: what has none came too late */
    PAUSE_GRACE_US = 300000, /* after the timeout of its request a pause still takes replies */
    PAUSE_UNDO_US = 300000,  /* and then waits so long for engines that it resumes */
    RESUME_DOWN_US = 1000000 /* for an engine that is down: nobody waits for it */
};

/* False: a resume has ended the pause. */
static bool is_pending(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return pause_is_pending(&fc->pause);
}

static int refuse_overtaken(struct err *e)
{
    return err_set(e, ERR_CONFLICT, "", "generation was resumed before the pause took effect");
}

/* While a resume is under way no pause begins. */
static int begin_pause(struct fleet_control *fc, const struct pause_request *req,
                       struct pause *before, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (fc->locks.n_resumes > 0)
        return refuse_overtaken(e);
    pause_set(&fc->pause, req, before);
    return 0;
}

/* Returns false: a resume has ended it. */
static bool acknowledge_pause(struct fleet_control *fc, uint64_t n_aborted)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (!pause_is_pending(&fc->pause))
        return false;
    fc->pause.n_aborted = n_aborted;
    pause_acknowledge(&fc->pause);
    return true;
}

/* The pause failed: the one before it is in force again, unless a resume has ended it. */
static void restore_pause(struct fleet_control *fc, const struct pause *before)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (pause_is_pending(&fc->pause))
        pause_undo(&fc->pause, before);
}

/* what came before a pause */

/* May what came before run at all? Not once an update holds it back, which waits for the pause. */
static bool engines_run(struct fleet_control *fc, const struct pause *before)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return !pause_is_held(before) && !fc->sleep.weights && !fc->sleep.kv &&
           !(fc->session != NULL && fc->session->prepare_begun);
}

static int await_before(struct fleet_control *fc, const struct pause *before, uint64_t deadline_us,
                        struct err *e)
{
    struct fleet *f = fleet_of(fc);
    size_t n = 1;

    while (n > 0 && engines_run(fc, before)) {
        uint64_t poll_us = clock_after_us(BEFORE_POLL_US);

        n = fleet_await_before(f, poll_us < deadline_us ? poll_us : deadline_us);
        if (!is_pending(fc))
            return refuse_overtaken(e);
        if (n > 0 && fleet_is_closed(f))
            return err_set(e, ERR_DRAINING, "", "the server is draining: generation is not paused");
        if (n > 0 && clock_passed(deadline_us))
            return err_set(e, ERR_TIMEOUT, "",
                           "%zu requests that came before the pause wait here for an upstream, or "
                           "run and have sent nothing yet; generation is not paused",
                           n);
    }
    return 0;
}

/* Could the pause be sent? */
static int check_engines(struct fleet_control *fc, const struct api_args *args, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    size_t n;

    return fleet_reachable_quorum(fc, all, args, targets, &n, e) == 0
               ? fleet_validate(fc, API_PAUSE, targets, n, e)
               : -1;
}

/* Does here what the pause does, before it is sent to the engines: `abort` ends what has no permit;
 * `wait` lets what came before have its permits, and waits until it is in an engine or has ended,
 * unless the engines are paused or asleep already, or an update holds them. Requests that come
 * later wait here until fleet_release_since.
 * @before     the pause before
 * @n_aborted  how many were aborted */
static int cover_queued(struct fleet_control *fc, const struct pause_request *req,
                        const struct pause *before, const struct api_args *args,
                        uint64_t deadline_us, size_t *n_aborted, struct err *e)
{
    struct fleet *f = fleet_of(fc);

    if (check_engines(fc, args, e) != 0)
        return -1;
    fleet_draw_line(f, pause_begins_anew(before, req->mode), req->mode != PAUSE_KEEP);
    if (req->mode == PAUSE_ABORT)
        *n_aborted = fleet_abort_queued(f, false);
    return req->mode == PAUSE_WAIT ? await_before(fc, before, deadline_us, e) : 0;
}

/* The engines have taken a pause with abort: waits until what they have aborted is answered, and
 * ends what still has no reply, because it came to its engine after the pause. */
static void end_aborted(struct fleet_control *fc)
{
    struct fleet *f = fleet_of(fc);
    size_t last, n = fleet_await_before(f, clock_now_us());

    do {
        last = n;
        n = fleet_await_before(f, clock_after_us(BEFORE_CUT_US));
    } while (n > 0 && n < last && !fleet_is_closed(f));
    if (n == 0)
        return;
    fleet_cut_aborted(f);
    (void)fleet_await_before(f, clock_after_us(BEFORE_CUT_US));
}

/* pause */

/* Resume the engines that paused, or may have; not those that the open update keeps paused. One
 * that fails, or does not answer in time, gets it later (fleet/want/fleet_gate.c). */
static void resume_paused(struct fleet_control *fc, const struct fleet_results *results)
{
    struct fleet_target targets[FLEET_MAX];
    size_t n_targets = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];

        if (fleet_result_may_have_run(r) && !fleet_engine_is_held_locked(fc, r->upstream) &&
            !fleet_gate_is_kept(fc, r->upstream))
            targets[n_targets++] = (struct fleet_target){.upstream = r->upstream};
    }
    mtx_unlock(&fc->lock);
    fleet_tell(fc, API_RESUME, targets, n_targets, PAUSE_UNDO_US);
}

/* Engines that went down meanwhile count as down before. */
static void drop_down(struct fleet_results *results)
{
    struct fleet_result *r = results->list;
    size_t n_kept = 0;

    for (size_t i = 0; i < results->n; i++)
        if (r[i].outcome == FLEET_UNKNOWN && r[i].why.code == ERR_UNSYNCED)
            fleet_result_fini(&r[i]);
        else
            r[n_kept++] = r[i];
    results->n = n_kept;
}

/* What a pause is carried out with. */
struct pausing {
    const struct api_args *args;
    bool was_held; /* the fleet was paused before: it stays paused if this fails */
    bool aborts;
    size_t n_aborted; /* here */
};

static int evaluate_pause(struct fleet_control *fc, const struct fleet_results *results,
                          const struct pausing *p, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results);
    bool overtaken = !is_pending(fc), enough = results->n >= fleet_min_ready(fc);

    if (!overtaken && cause == NULL && enough) {
        if (p->aborts)
            end_aborted(fc);
        if (acknowledge_pause(fc, p->n_aborted + fleet_results_sum(results, "aborted")))
            return 0;
        overtaken = true;
    }
    if (overtaken) {
        resume_paused(fc, results);
        return refuse_overtaken(e);
    }
    if (cause != NULL && p->aborts)
        (void)fleet_results_done(results, e);
    else if (cause != NULL)
        *e = cause->why;
    else
        (void)err_set(e, ERR_UNSYNCED, "",
                      "%zu upstreams paused, --min-ready is %zu: the others went down before they "
                      "replied; generation continues as before",
                      results->n, fleet_min_ready(fc));
    if (p->n_aborted > 0)
        fleet_error_after_change(e);
    if (!p->was_held)
        resume_paused(fc, results);
    return -1;
}

static uint64_t left_us(uint64_t deadline_us)
{
    uint64_t now_us = clock_now_us();

    return deadline_us > now_us ? deadline_us - now_us : 0;
}

/* Engines that stand still with part of an update, or with what was left of one, would run on with
 * it in a pause that waits for what they run. Theirs is one that keeps.
 * @keep  for them */
static void keep_unwhole(struct fleet_control *fc, struct fleet_target *targets, size_t n,
                         const struct api_args *keep)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct upstream_info info;

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        if (!upstream_caps_of(targets[i].upstream)->two_phase &&
            (have_is_broken(&info.have) || fleet_engine_is_held_locked(fc, targets[i].upstream)))
            targets[i].args = keep;
    }
}

static int pause_engines(struct fleet_control *fc, uint64_t deadline_us, const struct pausing *p,
                         struct fleet_results *results, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    const struct api_pause pause = {.mode = PAUSE_KEEP, .reject = p->args->pause->reject};
    const struct api_args keep = {.native = p->args->native, .pause = &pause};
    size_t n;
    int rc;

    if (fleet_reachable_quorum(fc, all, p->args, targets, &n, e) != 0)
        return -1;
    if (p->args->pause->mode == PAUSE_WAIT)
        keep_unwhole(fc, targets, n, &keep);
    for (size_t i = 0; i < n; i++)
        targets[i].until_down = true;
    fleet_suspend_generation_probes(fc, true);
    rc = fleet_request(fc, API_PAUSE, targets, n, left_us(deadline_us) + PAUSE_GRACE_US, results,
                       e);
    if (rc == 0) {
        drop_down(results);
        rc = evaluate_pause(fc, results, p, e);
    }
    fleet_suspend_generation_probes(fc, false);
    return rc;
}

/* As the pause controller of a server with weights of its own logs it. */
static void log_pause(struct fleet_control *fc, const char *event, const struct pause *p)
{
    struct log_rec r;
    uint64_t epoch;

    mtx_lock(&fc->lock);
    epoch = fc->pause.epoch;
    mtx_unlock(&fc->lock);
    log_begin(&r, LOG_INFO, event);
    log_str(&r, "mode", lifecycle_pause_name(p->mode));
    log_str(&r, "owner", p->owner);
    log_u64(&r, "epoch", epoch);
    log_event(&r);
}

int fleet_pause_all(struct fleet_control *fc, const struct pause_request *req, uint64_t deadline_us,
                    struct api_object *native, struct fleet_results *results, struct err *e)
{
    const struct api_pause asked = {.mode = req->mode, .reject = req->reject};
    const struct api_args args = {.native = native, .pause = &asked};
    struct pausing p = {.args = &args, .aborts = req->mode == PAUSE_ABORT};
    struct pause before, now;
    int rc;

    assert(fleet_owns_pause_lock(fc));
    if (begin_pause(fc, req, &before, e) != 0)
        return -1;
    p.was_held = pause_is_held(&before);
    rc = cover_queued(fc, req, &before, &args, deadline_us, &p.n_aborted, e);
    if (rc == 0) {
        fleet_proof_hold(fc, NULL);
        fleet_proof_await(fc);
        rc = pause_engines(fc, deadline_us, &p, results, e);
        fleet_proof_release(fc, NULL);
    }
    fleet_release_since(fleet_of(fc));
    if (rc == 0) {
        fleet_get_pause(fc, &now);
        log_pause(fc, "pause", &now);
        return 0;
    }
    restore_pause(fc, &before);
    return -1;
}

void fleet_get_pause(struct fleet_control *fc, struct pause *out)
{
    mtx_auto held = mtx_hold(&fc->lock);

    *out = fc->pause;
    out->paused_us = pause_total_us(&fc->pause);
}

bool fleet_is_paused(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return pause_is_held(&fc->pause);
}

static size_t select_resumable(struct fleet_control *fc, const struct upstream_list *all,
                               struct fleet_target *targets)
{
    struct fleet_target alive[FLEET_MAX];
    size_t n = fleet_reachable(fc, all, NULL, alive), n_targets = 0;
    mtx_auto held = mtx_hold(&fc->lock);

    for (size_t i = 0; i < n; i++)
        if (!fleet_engine_is_held_locked(fc, alive[i].upstream) &&
            !fleet_gate_is_kept(fc, alive[i].upstream))
            targets[n_targets++] = alive[i];
    return n_targets;
}

/* Engines that the open update keeps paused are resumed at its end, unless a trainer pauses then.
 */
static bool note_resume(struct fleet_control *fc)
{
    struct pause before;
    bool was;

    mtx_lock(&fc->lock);
    before = fc->pause;
    was = pause_is_held(&fc->pause);
    pause_lift(&fc->pause);
    mtx_unlock(&fc->lock);
    if (was)
        log_pause(fc, "resume", &before);
    return was;
}

static void note_resume_failed(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    pause_fail_resume(&fc->pause);
}

/* An engine that an earlier server left paused, and that does not report it, is down because it
 * makes no token for a probe. Its reply does not matter: the next probe finds out what the resume
 * did. */
static void resume_down(struct fleet_control *fc, const struct upstream_list *all)
{
    struct fleet_target targets[FLEET_MAX];
    struct upstream_info info;
    size_t n_targets = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++) {
        fleet_info(fleet_of(fc), all->items[i], &info);
        if (!info.removed && upstream_caps_of(all->items[i])->hides_pause && !info.alive &&
            !info.fenced && info.probe_ok_us != 0 &&
            !fleet_engine_is_held_locked(fc, all->items[i]))
            targets[n_targets++] = (struct fleet_target){.upstream = all->items[i]};
    }
    mtx_unlock(&fc->lock);
    fleet_tell(fc, API_RESUME, targets, n_targets, RESUME_DOWN_US);
}

int fleet_resume_all(struct fleet_control *fc, bool expired, struct fleet_results *results,
                     bool *was, struct err *e)
{
    upstream_list_auto *all = NULL;
    struct fleet_target targets[FLEET_MAX];
    size_t n;
    int rc;

    if (fleet_resume_lock(fc, expired, e) != 0)
        return -1;
    all = upstreams_list(fc->upstreams);
    n = select_resumable(fc, all, targets);
    rc = fleet_request(fc, API_RESUME, targets, n, FLEET_STEP_US, results, e);
    if (rc == 0) {
        *was = note_resume(fc);
        resume_down(fc, all);
    } else {
        note_resume_failed(fc);
    }
    fleet_resume_unlock(fc);
    return rc;
}
