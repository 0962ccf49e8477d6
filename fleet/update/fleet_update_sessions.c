/* Sessions that a request can name: the open one, and the last that ended; and what the steps of an
 * update ask of a session, under the lock. */
#include "fleet/update/fleet_update_priv.h"

#include "control/history.h"

#include <stdio.h>
#include <string.h>

struct fleet_session *fleet_open_session(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_ref(fc->session);
}

struct fleet_session *fleet_shown_session(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_ref(fc->session != NULL ? fc->session : fc->starting);
}

bool fleet_update_lease(struct fleet_control *fc, uint64_t *left_us)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (fc->session == NULL)
        return false;
    *left_us = lease_timer_left_us(&fc->session->lease);
    return true;
}

void fleet_unref(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    fleet_session_unref(s);
    mtx_unlock(&fc->lock);
}

static struct fleet_session *sessions_find_locked(struct fleet_control *fc, const char *id)
{
    if (fc->session != NULL && strcmp(fc->session->id, id) == 0)
        return fc->session;
    for (size_t i = 0; i < FLEET_ENDED_SESSIONS_MAX; i++)
        if (fc->ended[i] != NULL && strcmp(fc->ended[i]->id, id) == 0)
            return fc->ended[i];
    return NULL;
}

int fleet_find_update(struct fleet_control *fc, const char *id, struct fleet_session **out,
                      struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_session *s = sessions_find_locked(fc, id);

    if (s == NULL)
        return err_set(e, ERR_NOT_FOUND, "/update_id", "there is no update '%.60s'", id);
    *out = fleet_session_ref(s);
    return 0;
}

bool fleet_update_is_open(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_is_open(s);
}

bool fleet_update_has_engine(struct fleet_control *fc, const struct fleet_session *s,
                             struct upstream *upstream)
{
    mtx_auto held = mtx_hold(&fc->lock);

    for (size_t i = 0; i < s->n_parts && fleet_session_is_open(s); i++)
        if (s->parts[i].upstream == upstream && !s->parts[i].out)
            return true;
    return false;
}

size_t fleet_session_min_ready_locked(struct fleet_control *fc, struct fleet_session *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        s->parts[i].removed = s->parts[i].removed || upstream_is_removed(s->parts[i].upstream);
        n += !s->parts[i].removed;
    }
    return s->repair ? 1 : upstreams_n_needed(fc->upstreams, n);
}

bool fleet_has_quorum(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_has_quorum(s, fleet_session_min_ready_locked(fc, s));
}

int fleet_require_quorum(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    if (fleet_has_quorum(fc, s))
        return 0;
    mtx_lock(&fc->lock);
    fleet_session_cause_error(s, fleet_session_min_ready_locked(fc, s), e);
    mtx_unlock(&fc->lock);
    return -1;
}

int fleet_refuse_handoff(const struct fleet_session *s, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "",
                   "this server is handing version '%.100s' to its upstreams: try again", s->label);
}

int fleet_refuse_closed(const struct fleet_session *s, struct err *e)
{
    if (s->phase == UPDATE_ABORTED && s->error.code != ERR_NONE)
        return err_set(e, ERR_ENDED, "", "update %s was aborted: %.350s", s->id, s->error.msg);
    return err_set(e, ERR_ENDED, "", "update %s is %s", s->id, update_phase_name(s->phase));
}

static bool is_two_phase(const struct fleet_session *s, struct upstream *upstream)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].upstream == upstream)
            return s->parts[i].two_phase;
    return false;
}

void fleet_session_set_report(struct fleet_session *s, const struct fleet_results *results)
{
    struct api_object *weakest = NULL;

    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];
        struct api_object *report = NULL;

        if (r->outcome == FLEET_OK && r->text != NULL && is_two_phase(s, r->upstream))
            report = api_object_parse(r->text, r->text_len);
        if (report != NULL && (weakest == NULL || fleet_coverage_is_weaker(report, weakest))) {
            api_object_unref(weakest);
            weakest = api_object_ref(report);
        }
        api_object_unref(report);
    }
    if (weakest == NULL)
        return;
    api_object_unref(s->report);
    s->report = weakest;
}

/* It was removed while the update was open, and got all of it; the fleet did not, and it is a
 * member again. */
static bool has_more_locked(const struct fleet_session *s, const struct fleet_part *p)
{
    return s->phase == UPDATE_ABORTED && s->serial == 0 && !s->repair && p->removed &&
           part_has_finished(p) && !upstream_is_removed(p->upstream);
}

void fleet_fence_parts(struct fleet_control *fc, struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];
        struct err why;
        bool torn;

        mtx_lock(&fc->lock);
        torn = (p->weights == PART_TORN && (p->out || !fleet_session_is_open(s))) ||
               has_more_locked(s, p);
        why = p->why;
        mtx_unlock(&fc->lock);
        if (!torn)
            continue;
        if (why.code == ERR_NONE && fc->cfg.store != NULL)
            (void)err_set(&why, ERR_UNSYNCED, "",
                          "the hand-off ended before its weights were whole: it is repeated");
        else if (why.code == ERR_NONE)
            (void)err_set(&why, ERR_UNSYNCED, "", "update %s ended before its weights were whole",
                          s->id);
        fleet_fence(fleet_of(fc), p->upstream, &why);
    }
}

/* A request that was given up may still be ending. */
void fleet_report_ended(struct fleet_control *fc, const struct fleet_session *s, size_t n_done)
{
    struct history *history = fc->cfg.history;
    uint64_t now = clock_now_us();
    struct update_record r;
    bool committed;

    mtx_lock(&fc->lock);
    committed = s->phase == UPDATE_COMMITTED;
    r = (struct update_record){
        .outcome = committed ? OUTCOME_COMMITTED : OUTCOME_ABORTED,
        .serial = s->serial,
        .nbytes = api_report_count(s->report, "nbytes_done"),
        .n_tensors = (uint32_t)api_report_count(s->report, "n_tensors_done"),
        .n_checksums = api_report_count(s->report, "n_checksums"),
        .n_upstreams = (uint32_t)n_done,
        .source = s->source,
        .coverage = committed ? fleet_coverage_name(s) : NULL,
        .times = {.receive_us = s->receive_us,
                  .proof_us = s->verify_us,
                  .commit_us = s->committing_since_us > 0 ? now - s->committing_since_us : 0,
                  .whole_us = now - s->began_us},
        .error = s->error,
        .actor = s->actor,
    };
    mtx_unlock(&fc->lock);
    (void)snprintf(r.update_id, sizeof r.update_id, "%s", s->id);
    (void)snprintf(r.weight_version, sizeof r.weight_version, "%s", s->label);
    if (history == NULL)
        return;
    if (s->handoff == 0)
        history_add_update(history, &r);
    /* The update that it hands over has been counted. */
    if (s->error.code != ERR_NONE && (s->handoff != 0 || committed))
        history_add_error(history, NULL, &s->error);
}

/* One that fails in the call by which its trainer ends it has no rest. */
static void note_cut_off_locked(struct fleet_control *fc, struct fleet_session *s, bool aborted)
{
    bool cut = aborted && s->coverage != NULL &&
               (s->phase == UPDATE_OPEN || s->phase == UPDATE_RECEIVING);

    if (s->anonymous)
        fc->cut_off = cut ? s : NULL;
}

void fleet_end_release(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    fc->releasing = NULL;
    mtx_unlock(&fc->lock);
}

/* Until the engines that may have part of the update are fenced, the session keeps them from a
 * resume by the trainer (fleet_engine_is_held_locked). */
void fleet_close_session(struct fleet_control *fc, struct fleet_session *s, const struct err *why)
{
    bool committed = why->code == ERR_NONE || why->code == ERR_NOT_HANDED_OVER;

    mtx_lock(&fc->lock);
    note_cut_off_locked(fc, s, !committed);
    s->error = *why;
    api_object_unref(s->list); /* 16 sessions that ended are kept */
    s->list = NULL;
    s->phase = committed ? UPDATE_COMMITTED : UPDATE_ABORTED;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_fence_parts(fc, s);
    mtx_lock(&fc->lock);
    if (fc->session == s) {
        if (fc->cut_off == fc->ended[FLEET_ENDED_SESSIONS_MAX - 1])
            fc->cut_off = NULL;
        if (fc->ended[FLEET_ENDED_SESSIONS_MAX - 1] != NULL)
            fc->ended[FLEET_ENDED_SESSIONS_MAX - 1]->listed = false;
        fleet_session_unref(fc->ended[FLEET_ENDED_SESSIONS_MAX - 1]);
        memmove(&fc->ended[1], &fc->ended[0], sizeof fc->ended - sizeof fc->ended[0]);
        fc->ended[0] = s;
        s->listed = true;
        fc->session = NULL;
        fc->releasing = s;
    }
    mtx_unlock(&fc->lock);
}
