/* Engines that were paused for an update are resumed: those that did not get any of it, and at the
 * end those that have all of it. */
#include "fleet/update/fleet_update_priv.h"

#include <assert.h>

/* A trainer's own pause or sleep outlasts the update. */
static bool may_resume(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return !pause_is_held(&fc->pause) && !fc->sleep.weights && !fc->sleep.kv;
}

/* Batons are paused by trainers only. */
static bool may_be_paused(const struct fleet_part *p)
{
    return !p->two_phase && upstream_may_be_paused(p->upstream);
}

/* Paused for the update, and unchanged. @arg  bool: only engines that are out. An engine that is
 * fenced, or was before, stays paused. One that may hang is resumed by fleet/want/fleet_gate.c. */
static bool is_unchanged_paused(const struct fleet_part *p, const void *arg)
{
    const bool *dropped = arg;

    return may_be_paused(p) && part_is_unchanged(p) && p->before != PART_WAS_FENCED &&
           (p->out || !*dropped) && !part_may_hang(p) &&
           upstream_have(p->upstream).weights.fault == FAULT_NONE;
}

static bool is_finished_paused(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return part_has_finished(p) && may_be_paused(p);
}

void fleet_on_resumed(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    if (result_ok(result) || p->out)
        return;
    p->out = !part_has_finished(p);
    part_set_result(p, result->outcome, result->status, &result->why);
}

/* If a trainer pauses the fleet meanwhile, its resume will resume these engines too.
 * @select  the engines */
static void resume_parts(struct fleet_control *fc, struct fleet_session *s,
                         bool (*select)(const struct fleet_part *p, const void *arg), bool *dropped)
{
    const struct fanout f = {
        .op = API_RESUME, .select = select, .on_result = fleet_on_resumed, .arg = dropped};
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
    if (may_resume(fc))
        resume_parts(fc, s, is_finished_paused, NULL);
}

/* Is this how an engine refuses an end, if it has nothing to end? vLLM answers 500, SGLang 400, and
 * one that has no start 404. Another refusal may be that of a proxy, or of a key. */
static bool says_none_open(const struct fleet_part *p, const struct fleet_result *result)
{
    return (result->outcome == FLEET_REFUSED && (result->status == 400 || result->status == 500)) ||
           (p->no_process_id && fleet_result_lacks_route(result));
}

/* An engine that was started and got no tensors gets a finish without a version, which changes
 * nothing. A start whose answer was lost, or was an error, may not have been executed; then there
 * is nothing to finish, which its refusal says but does not prove: the next update closes it first.
 * An SGLang without an open update, since it was restarted, answers 400. */
static void on_closed(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    bool refused = says_none_open(p, result);
    bool none_open = p->no_process_id && refused && result->status == 400;
    bool doubtful = p->own_update != PART_UPDATE_OPEN || (p->out && p->outcome == FLEET_UNKNOWN);
    struct err other = {0};

    (void)arg;
    if (result_ok(result) && p->own_update != PART_UPDATE_OPEN && !p->closes_any)
        (void)err_set(&other, ERR_UNSYNCED, "",
                      "it had an update open, and refused to start one: that may have been another "
                      "client's, with a part of its tensors");
    if (other.code != ERR_NONE || (!result_ok(result) && !none_open && !(doubtful && refused))) {
        part_set_in_doubt(p, other.code != ERR_NONE ? &other : &result->why);
        return;
    }
    p->own_update = PART_UPDATE_CLOSED;
    if (result_ok(result) || none_open)
        upstream_note_closed(p->upstream);
}

/* Was it started, or may it have been, as an error of its own (5xx) does not tell? */
static bool may_be_started(const struct fleet_part *p)
{
    enum own_fact own = upstream_have(p->upstream).own;

    return p->own_update == PART_UPDATE_OPEN || own == OWN_UNKNOWN || own == OWN_OPEN;
}

/* An engine that was started and will not be finished is closed if it got no tensors. An SGLang
 * that answers is closed also if it got some: it is fenced, and its next update may be one of
 * files, which does not close an open one. */
static bool must_close(const struct fleet_part *p, const void *arg)
{
    const bool *dropped = arg;
    bool answers = p->outcome != FLEET_UNKNOWN && p->outcome != FLEET_UNSENT;

    if ((*dropped && !p->out) || p->weights == PART_NEW)
        return false;
    return part_needs_start(p) && may_be_started(p) &&
           (part_is_unchanged(p) || (p->no_process_id && answers));
}

void fleet_release_unchanged(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    const struct fanout close = {.op = API_FINISH_UPDATE,
                                 .select = must_close,
                                 .on_result = on_closed,
                                 .arg = &dropped,
                                 .has_begun = true,
                                 .fail_each = true};
    struct err ignored = {0};

    assert(fleet_owns_update_lock(fc));
    (void)fanout_apply(fc, s, &close, &ignored);
    fleet_clear_dirty_markers(fc, s, dropped);
    if (s->pausing)
        resume_parts(fc, s, is_unchanged_paused, &dropped);
    fleet_fence_parts(fc, s);
}
