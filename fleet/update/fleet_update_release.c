/* Engines that were paused for an update are resumed: those that did not get any of it, and at the
 * end those that have all of it. */
#include "fleet/update/fleet_update_priv.h"

#include <assert.h>

/* A trainer's own pause or sleep outlasts the update. */
static bool may_resume(struct fleet_control *fc)
{
    bool on;

    mtx_lock(&fc->lock);
    on = !pause_is_held(&fc->pause) && !fc->sleep.weights && !fc->sleep.kv;
    mtx_unlock(&fc->lock);
    return on;
}

struct release_filter {
    struct fleet_control *fc;
    bool dropped; /* only engines that are out */
};

/* Batons are paused by trainers only. */
static bool may_be_paused(const struct fleet_part *p)
{
    return !p->two_phase && upstream_may_be_paused(p->upstream);
}

/* Paused for the update, and unchanged. An engine that is fenced, or was before, stays paused. */
static bool is_unchanged_paused(const struct fleet_part *p, const void *arg)
{
    const struct release_filter *l = arg;

    return may_be_paused(p) && part_is_unchanged(p) && p->before != PART_WAS_FENCED &&
           !(l->dropped && part_takes_part(p)) && !fleet_gate_is_kept(l->fc, p->upstream);
}

static bool is_finished_paused(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && may_be_paused(p);
}

static void on_resumed(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    (void)arg;
    if (result_ok(result) || !part_takes_part(p))
        return;
    part_apply(p, PART_ON_RESUME_FAILED);
    part_set_result(p, result->outcome, result->status, &result->why);
}

/* If a trainer pauses the fleet meanwhile, its resume will resume these engines too.
 * @select  the engines */
static void resume_parts(struct fleet_control *fc, struct fleet_session *s,
                         bool (*select)(const struct fleet_part *p, const void *arg),
                         struct release_filter *l)
{
    const struct fanout f = {.op = API_RESUME,
                             .select = select,
                             .on_result = on_resumed,
                             .arg = l,
                             .fence_failed = true};
    struct err ignored = {0};
    struct fleet_batch b;

    if (fanout_select(fc, s, &f, &b) == 0 ||
        !fleet_pause_lock_unless_pausing(fc, "the end of an update"))
        return; /* they are resumed later (fleet/want/fleet_gate.c) */
    if (may_resume(fc))
        (void)fanout_apply(fc, s, &f, &ignored);
    fleet_pause_unlock(fc);
}

void fleet_release_finished(struct fleet_control *fc, struct fleet_session *s)
{
    struct release_filter all = {.fc = fc};

    if (may_resume(fc))
        resume_parts(fc, s, is_finished_paused, &all);
}

/* An engine that was started and got no tensors gets a finish without a version, which changes
 * nothing. A start whose answer was lost may not have been executed; then there is nothing to
 * finish. An SGLang without an open update, since it was restarted, answers 400. */
static void on_closed(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    bool none_open = p->no_process_id && result->outcome == FLEET_REFUSED && result->status == 400;
    bool doubtful = !part_takes_part(p) && p->outcome == FLEET_UNKNOWN;

    (void)part;
    (void)arg;
    if (result_ok(result) || none_open || (doubtful && result->outcome == FLEET_REFUSED))
        p->own_update = PART_UPDATE_CLOSED;
    else
        part_apply(p, PART_ON_DOUBT);
}

/* An engine that was started and will not be finished is closed if it got no tensors. An SGLang
 * that answers is closed also if it got some: it is fenced, and its next update may be one of
 * files, which does not close an open one. */
static bool must_close(const struct fleet_part *p, const void *arg)
{
    const struct release_filter *l = arg;
    bool answers = p->outcome != FLEET_UNKNOWN && p->outcome != FLEET_UNSENT;

    if ((l->dropped && part_takes_part(p)) || p->state == PART_FINISHED ||
        p->state == PART_NOT_RESUMED)
        return false;
    return part_needs_start(p) && p->own_update == PART_UPDATE_OPEN &&
           (part_is_unchanged(p) || (p->no_process_id && answers));
}

void fleet_release_unchanged(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct release_filter l = {.fc = fc, .dropped = dropped};
    const struct fanout close = {
        .op = API_FINISH_UPDATE, .select = must_close, .on_result = on_closed, .arg = &l};
    struct err ignored = {0};

    assert(fleet_owns_update_lock(fc));
    (void)fanout_apply(fc, s, &close, &ignored);
    fleet_clear_dirty_markers(fc, s, dropped);
    if (s->pausing)
        resume_parts(fc, s, is_unchanged_paused, &l);
    fleet_fence_parts(fc, s);
}
