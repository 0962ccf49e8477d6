/* Sessions that a request can name: the open one, and the last that ended; and what the steps of an
 * update ask of a session, under the lock. */
#include "fleet/update/fleet_update_priv.h"

#include "base/log.h"

#include <string.h>

struct fleet_session *fleet_open_session(struct fleet_control *fc)
{
    struct fleet_session *s;

    mtx_lock(&fc->lock);
    s = fc->session;
    if (s != NULL)
        s->n_refs++;
    mtx_unlock(&fc->lock);
    return s;
}

bool fleet_update_lease(struct fleet_control *fc, uint64_t *left_us)
{
    bool open;

    mtx_lock(&fc->lock);
    open = fc->session != NULL;
    if (open)
        *left_us = lease_timer_left_us(&fc->session->lease);
    mtx_unlock(&fc->lock);
    return open;
}

void fleet_unref(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    fleet_session_unref(s);
    mtx_unlock(&fc->lock);
}

static struct fleet_session *find_locked(struct fleet_control *fc, const char *id)
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
    struct fleet_session *s;

    mtx_lock(&fc->lock);
    s = find_locked(fc, id);
    if (s != NULL)
        s->n_refs++;
    mtx_unlock(&fc->lock);
    if (s == NULL)
        return err_set(e, ERR_NOT_FOUND, "/update_id", "there is no update '%.60s'", id);
    *out = s;
    return 0;
}

bool fleet_update_is_open(struct fleet_control *fc, const struct fleet_session *s)
{
    bool open;

    mtx_lock(&fc->lock);
    open = fleet_session_is_open(s);
    mtx_unlock(&fc->lock);
    return open;
}

bool fleet_has_quorum(struct fleet_control *fc, const struct fleet_session *s)
{
    size_t min_ready = fleet_min_ready(fc);
    bool has_quorum;

    mtx_lock(&fc->lock);
    has_quorum = fleet_session_has_quorum(s, min_ready);
    mtx_unlock(&fc->lock);
    return has_quorum;
}

void fleet_set_cause(struct fleet_control *fc, const struct fleet_session *s, struct err *e)
{
    size_t min_ready = fleet_min_ready(fc);

    mtx_lock(&fc->lock);
    fleet_session_cause_error(s, min_ready, e);
    mtx_unlock(&fc->lock);
}

int fleet_refuse_closed(const struct fleet_session *s, struct err *e)
{
    if (s->error.code != ERR_NONE)
        return err_set(e, ERR_ENDED, "", "update %s was aborted: %.350s", s->id, s->error.msg);
    return err_set(e, ERR_ENDED, "", "update %s is %s", s->id, update_phase_name(s->phase));
}

void fleet_session_set_report(struct fleet_session *s, const struct fleet_result *results, size_t n)
{
    json_t *report = NULL;

    for (size_t i = 0; report == NULL && i < n; i++)
        if (results[i].outcome == FLEET_OK && results[i].text != NULL)
            report = json_loadb(results[i].text, results[i].text_len, 0, NULL);
    if (!json_is_object(report)) {
        json_decref(report);
        return;
    }
    json_decref(s->report);
    s->report = report;
}

void part_drop_failed(struct fleet_part *p, const struct fleet_result *result)
{
    if (!result_ok(result))
        part_drop(p, result->outcome, result->status, &result->why);
}

void fleet_fence_parts(struct fleet_control *fc, struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];
        struct err why;
        bool torn;

        mtx_lock(&fc->lock);
        torn = p->state == PART_IN_DOUBT ||
               (!fleet_session_is_open(s) &&
                (p->state == PART_RECEIVING || p->state == PART_DIRTY));
        why = p->why;
        mtx_unlock(&fc->lock);
        if (!torn)
            continue;
        if (why.code == ERR_NONE)
            (void)err_set(&why, ERR_UNSYNCED, "", "update %s ended before its weights were whole",
                          s->id);
        fleet_fence(fleet_of(fc), p->upstream, &why);
    }
}

void fleet_log_ended(const struct fleet_session *s, size_t n_done)
{
    struct log_rec r;

    log_begin(&r, s->phase == UPDATE_COMMITTED ? LOG_INFO : LOG_WARN,
              s->phase == UPDATE_COMMITTED ? "fleet.committed" : "fleet.aborted");
    log_str(&r, "update_id", s->id);
    log_str(&r, "weight_version", s->label);
    log_u64(&r, "serial", s->serial);
    log_u64(&r, "upstreams", n_done);
    log_str(&r, "coverage", s->phase == UPDATE_COMMITTED ? fleet_coverage_name(s) : NULL);
    log_str(&r, "error", s->error.code != ERR_NONE ? s->error.msg : NULL);
    log_event(&r);
}

void fleet_close_session(struct fleet_control *fc, struct fleet_session *s, const struct err *why)
{
    mtx_lock(&fc->lock);
    s->error = *why;
    s->phase = why->code == ERR_NONE ? UPDATE_COMMITTED : UPDATE_ABORTED;
    if (fc->session == s) {
        fleet_session_unref(fc->ended[FLEET_ENDED_SESSIONS_MAX - 1]);
        memmove(&fc->ended[1], &fc->ended[0], sizeof fc->ended - sizeof fc->ended[0]);
        fc->ended[0] = s;
        fc->session = NULL;
        upstreams_release_indexes(fc->upstreams);
    }
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
}
