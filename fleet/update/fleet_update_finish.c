/* How an update of the fleet is finished: verified by all engines that can, then served by all. */
#include "fleet/update/fleet_update_priv.h"
#include "fleet/want/fleet_cache.h"

#include "base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* verify */

/* A repeated finish. One that was not handed over may be by now. Returns: 1: it is committed. */
static int repeat_finish_locked(struct fleet_control *fc, const struct fleet_session *s,
                                struct err *e)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    if (s->error.code == ERR_NONE || (stats.ready && stats.serial == s->serial))
        return 1;
    *e = s->error;
    return -1;
}

/* @phase  out: the phase before. Returns: 1 if the update is already committed, and this is a
 *         repeated request. */
static int finish_begin(struct fleet_control *fc, struct fleet_session *s, bool commit,
                        enum update_phase *phase, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    *phase = s->phase;
    if (s->phase == UPDATE_COMMITTED && commit)
        return repeat_finish_locked(fc, s, e);
    if (!fleet_session_is_open(s))
        return fleet_refuse_closed(s, e);
    if (s->n_running > 0)
        return err_set(e, ERR_CONFLICT, "",
                       "%u requests of update %s are still under way: wait for their replies, then "
                       "send this again",
                       s->n_running, s->id);
    s->phase = UPDATE_VERIFYING;
    return 0;
}

static bool is_to_verify(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && !p->out;
}

static void on_verified(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    p->outcome = result->outcome;
    p->status = result->status;
    part_drop_failed(p, result);
}

static int verify_parts(struct fleet_control *fc, struct fleet_session *s,
                        const struct api_args *args, struct err *e)
{
    const struct fanout f = {.op = API_VERIFY_UPDATE,
                             .args = args,
                             .timeout_us = fleet_update_us(fc),
                             .select = is_to_verify,
                             .on_result = on_verified};

    if (s->n_received == 0)
        return err_set(e, ERR_INCOMPLETE, "",
                       "no tensor of the model arrived in this update: send some before its end");
    if (fanout_apply(fc, s, &f, e) < 0 || fleet_require_quorum(fc, s, e) != 0)
        return -1;
    return fleet_coverage_verify(fc, s, e);
}

/* commit */

static void fleet_update_finish_set_label(struct fleet_control *fc, struct fleet_session *s,
                                          const char *label)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    mtx_lock(&fc->lock);
    if (*label != '\0')
        (void)snprintf(s->label, sizeof s->label, "%s", label);
    else if (s->label[0] == '\0')
        (void)snprintf(s->label, sizeof s->label, "serial-%" PRIu64, stats.serial + 1);
    mtx_unlock(&fc->lock);
}

static bool is_to_finish(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return !p->out;
}

/* A baton's process is recorded right before its finish is sent. */
static void expect_finish(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        if (s->parts[i].two_phase && !s->parts[i].out)
            fleet_incarnation_of(fc, s->parts[i].upstream, &s->parts[i].incarnation);
        s->parts[i].label_read = false;
    }
    mtx_unlock(&fc->lock);
}

static void on_finished(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    p->outcome = result->outcome;
    p->status = result->status;
    if (result_ok(result))
        part_finish(p);
    p->committed = p->two_phase && result->outcome == FLEET_REFUSED &&
                   api_is_committed(result->text, result->text_len);
    part_drop_failed(p, result);
}

/* A baton serves the version once it has finished. One that may have missed a pause, or a resume,
 * gets that first. */
static void serve_baton(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p)
{
    if (!p->two_phase)
        return;
    fleet_switch_now(fc, s);
    if (p->before == PART_WAS_IN_STEP)
        fleet_switch_confirm(fc, s, p);
}

static int send_finish(struct fleet_control *fc, struct fleet_session *s, struct fanout_with *with,
                       struct err *e)
{
    const struct api_args args = {.label = s->label};
    const struct fanout f = {.op = API_FINISH_UPDATE,
                             .args = &args,
                             .timeout_us = fleet_update_us(fc),
                             .select = is_to_finish,
                             .on_result = on_finished,
                             .arg = fc,
                             .then = serve_baton,
                             .fence_failed = true,
                             .with = with};

    expect_finish(fc, s);
    return fanout_apply(fc, s, &f, e) < 0 ? -1 : 0;
}

/* The finish, and the new version where the finish takes none. Caches are emptied at the same time:
 * the engines stand still for this. */
static int finish_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fanout_with first = {0}, second = {0};
    struct fleet_resets resets;
    struct err why = {0};
    int rc;

    fleet_reset_parts_begin(&resets, fc, s);
    first.targets = resets.targets;
    first.n = resets.n_targets;
    rc = send_finish(fc, s, &first, e);
    fleet_resets_apply(&resets, &first.results, e);
    fleet_results_fini(&first.results);
    second.targets = resets.targets;
    second.n = resets.n_targets;
    if (rc == 0)
        fleet_set_new_labels(fc, s, false, &second, &why);
    fleet_reset_parts_end(&resets, s, &second.results, rc == 0 ? &why : e);
    fleet_results_fini(&second.results);
    return rc;
}

static bool may_have_missed_pause(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return part_has_finished(p) && p->two_phase && p->before != PART_WAS_IN_STEP;
}

/* The caller holds the pause lock. Engines that overwrite their weights are paused now, and are
 * resumed with the others. */
static int align_pauses_with_lock(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fanout f = {.select = may_have_missed_pause};
    struct api_pause asked;
    const struct api_args args = {.pause = &asked};
    struct pause pause;

    mtx_lock(&fc->lock);
    pause = fc->pause;
    mtx_unlock(&fc->lock);
    asked = (struct api_pause){.mode = pause.mode, .reject = pause.reject};
    f.fence_failed = pause_is_held(&pause);
    f.op = pause_is_held(&pause) ? API_PAUSE : API_RESUME;
    f.on_result = pause_is_held(&pause) ? NULL : fleet_on_resumed;
    f.args = pause_is_held(&pause) ? &args : NULL;
    return fanout_apply(fc, s, &f, e) < 0 ? -1 : 0;
}

/* A baton that was out of rotation when the update started may have missed a pause, or a resume. */
static int align_pauses(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    bool missed = false;
    int rc;

    for (size_t i = 0; i < s->n_parts; i++)
        missed = missed || may_have_missed_pause(&s->parts[i], NULL);
    if (!missed)
        return 0;
    if (fleet_pause_lock(fc, "the end of an update", e) != 0)
        return -1;
    rc = align_pauses_with_lock(fc, s, e);
    fleet_pause_unlock(fc);
    return rc;
}

/* Fewer than --min-ready engines finished and run. Those that do serve the new version; batons that
 * have committed it, and not handed it over, and those that failed to resume, serve it later. With
 * them there may be enough. */
static int fleet_update_finish_refuse_too_few(const struct fleet_session *s, size_t min_ready,
                                              struct err *e)
{
    struct err cause = {0};

    fleet_session_cause_error(s, min_ready, &cause);
    if (fleet_session_n_finished(s, true) >= min_ready)
        return err_set(e, ERR_NOT_HANDED_OVER, "",
                       "the version is committed, and upstreams that do not serve it yet get there "
                       "by themselves (do not send it again): %.330s",
                       cause.msg);
    *e = cause;
    if (e->code != ERR_UPSTREAM_TIMEOUT)
        e->code = ERR_UPSTREAM;
    return -1;
}

/* Engines are resumed before their versions are compared once more: what they hold runs on, and new
 * requests wait until that of an engine has ended. What it finds takes the engine out, not the
 * version back.
 * Returns: -1 with e set also if fewer than --min-ready engines finished. The update is committed
 * then if the error is ERR_NOT_HANDED_OVER; else it is still open. */
static int serve_version(struct fleet_control *fc, struct fleet_session *s, const char *label,
                         struct err *e)
{
    const struct err none = {0};
    struct err ignored = {0};
    size_t n_done, min_ready;
    int rc;

    fleet_update_finish_set_label(fc, s, label);
    if (!s->repair)
        fleet_switch_begin(fc, s);
    mtx_lock(&fc->lock);
    s->committing_since_us = clock_now_us();
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc); /* new requests wait for that switch only */
    rc = finish_parts(fc, s, e);
    if (rc == 0)
        rc = align_pauses(fc, s, e);
    fleet_switch_now(fc, s);
    fleet_release_finished(fc, s);
    fleet_set_new_labels(fc, s, true, NULL, &ignored);
    mtx_lock(&fc->lock);
    min_ready = fleet_session_min_ready_locked(fc, s);
    mtx_unlock(&fc->lock);
    n_done = fleet_switch_end(fc, s);
    if (rc == 0 && n_done < min_ready)
        rc = fleet_update_finish_refuse_too_few(s, min_ready, e);
    if (rc != 0 && e->code != ERR_NOT_HANDED_OVER)
        return -1;
    fleet_coverage_commit(fc, s);
    fleet_keep_list(fc, s->list, s->list_began_us);
    fleet_close_session(fc, s, rc == 0 ? &none : e);
    fleet_release_finished(fc, s); /* a trainer's resume since the first has passed them by */
    fleet_end_release(fc);
    fleet_report_ended(fc, s, n_done);
    return rc;
}

static void log_proven(const struct fleet_session *s)
{
    struct log_rec r;

    log_begin(&r, LOG_DEBUG, "update.proven");
    log_str(&r, "update_id", s->id);
    log_event(&r);
}

static int finish_with_lock(struct fleet_control *fc, struct fleet_session *s, const char *label,
                            struct api_object *checksums, bool commit, struct err *e)
{
    const struct api_args args = {.native = checksums};
    enum update_phase phase;
    uint64_t verify_began_us;
    int rc;

    assert(fleet_owns_update_lock(fc));
    rc = finish_begin(fc, s, commit, &phase, e);

    if (rc != 0)
        return rc > 0 ? 0 : -1;
    /* If one engine's API cannot express the finish, no engine gets one. */
    if (fanout_validate(fc, s, API_FINISH_UPDATE, &args, e) != 0) {
        mtx_lock(&fc->lock);
        s->phase = phase;
        mtx_unlock(&fc->lock);
        return -1;
    }
    verify_began_us = clock_now_us();
    rc = verify_parts(fc, s, &args, e);
    mtx_lock(&fc->lock);
    s->verify_us += clock_now_us() - verify_began_us;
    mtx_unlock(&fc->lock);
    if (rc == 0)
        log_proven(s);
    if (rc == 0 && commit) {
        fleet_release_unchanged(fc, s, true);
        rc = fleet_check_dirty_markers(fc, s, true, e);
        if (rc == 0)
            rc = fleet_drop_restarted(fc, s, e);
    }
    if (rc == 0 && commit)
        rc = serve_version(fc, s, label, e);
    if (rc != 0 && !fleet_update_is_open(fc, s))
        return -1;
    if (rc != 0) {
        fleet_abort_with_lock(fc, s, e);
        fleet_release_finished(fc, s);
        return -1;
    }
    if (!commit) {
        mtx_lock(&fc->lock);
        s->phase = UPDATE_VERIFIED;
        lease_timer_renew(&s->lease);
        mtx_unlock(&fc->lock);
    }
    return 0;
}

int fleet_finish_update(struct fleet_control *fc, struct fleet_session *s, const char *label,
                        struct api_object *checksums, bool commit, struct err *e)
{
    int rc;

    if (fleet_step_lock(fc, NULL, "the end of an update", e) != 0)
        return -1;
    rc = finish_with_lock(fc, s, label, checksums, commit, e);
    fleet_op_unlock(fc);
    return rc;
}

int fleet_commit_open_update(struct fleet_control *fc, const char *label,
                             struct fleet_session **out, struct err *e)
{
    struct fleet_session *s = fleet_open_session(fc);
    int rc;

    *out = NULL;
    if (s == NULL)
        return 0;
    if (!s->auto_commit) {
        fleet_unref(fc, s);
        return 0;
    }
    rc = fleet_finish_update(fc, s, label, NULL, true, e);
    *out = s;
    return rc;
}
