/* The last updates and errors. Both tables are small and bounded: they are searched and moved as
 * arrays, under one lock, by requests that failed and updates that ended. */
#include "control/history.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "control/metrics.h"

#include <stdlib.h>
#include <string.h>

struct history {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct update_record updates[HISTORY_UPDATES_MAX]; /* [n_updates], oldest first */
    size_t n_updates;
    struct error_record errors[HISTORY_ERRORS_MAX]; /* [n_errors], last seen longest ago first */
    size_t n_errors;

    struct metrics *metrics; /* borrowed; immutable */
};

const char *update_outcome_name(enum update_outcome outcome)
{
    static const char *const names[] = {[OUTCOME_COMMITTED] = "committed",
                                        [OUTCOME_ABORTED] = "aborted",
                                        [OUTCOME_REFUSED] = "refused"};

    return names[outcome];
}

int history_new(struct history **out, struct metrics *metrics, struct err *e)
{
    struct history *h = calloc(1, sizeof *h);

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the history of updates");
    mtx_init(&h->lock, MTX_LEAF);
    h->metrics = metrics;
    *out = h;
    return 0;
}

void history_free(struct history *h)
{
    if (h == NULL)
        return;
    mtx_fini(&h->lock);
    free(h);
}

/* updates */

static const char *history_text_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static void log_update(const struct update_record *u)
{
    static const char *const events[] = {[OUTCOME_COMMITTED] = "update.committed",
                                         [OUTCOME_ABORTED] = "update.aborted",
                                         [OUTCOME_REFUSED] = "update.refused"};
    struct log_rec r;

    log_begin(&r, u->outcome == OUTCOME_COMMITTED ? LOG_INFO : LOG_WARN, events[u->outcome]);
    log_str(&r, "update_id", history_text_or_null(u->update_id));
    log_str(&r, "weight_version", history_text_or_null(u->weight_version));
    log_str(&r, "route", u->route);
    if (u->error.code != ERR_NONE)
        log_err(&r, &u->error);
    log_actor(&r, &u->actor);
    if (u->serial > 0)
        log_u64(&r, "serial", u->serial);
    log_str(&r, "source", u->source);
    if (u->base.unchecked)
        log_str(&r, "base", "unchecked");
    log_u64(&r, "nbytes", u->nbytes);
    if (u->outcome != OUTCOME_REFUSED) {
        log_u64(&r, "n_tensors", u->n_tensors);
        log_u64(&r, "n_checksums", u->n_checksums);
        log_ms(&r, "wait_ms", u->times.wait_us);
        log_ms(&r, "receive_ms", u->times.receive_us);
        log_ms(&r, "verify_ms", u->times.proof_us);
        log_ms(&r, "commit_ms", u->times.commit_us);
    }
    if (u->changes.known) {
        log_u64(&r, "n_changed", u->changes.n[CHANGE_CHANGED]);
        log_u64(&r, "n_unchanged", u->changes.n[CHANGE_UNCHANGED]);
    }
    log_ms(&r, "duration_ms", u->times.whole_us);
    log_str(&r, "coverage", u->coverage);
    if (u->n_upstreams > 0)
        log_u64(&r, "upstreams", u->n_upstreams);
    log_event(&r);
}

static uint64_t wait_of(const struct update_times *t)
{
    uint64_t busy = t->receive_us + t->proof_us + t->commit_us;

    return t->whole_us > busy ? t->whole_us - busy : 0;
}

/* A trainer that retries must not push the updates before it out of the table. */
static bool is_repeated(const struct update_record *last, const struct update_record *u)
{
    return u->outcome == OUTCOME_REFUSED && last->outcome == OUTCOME_REFUSED &&
           u->route == last->route && u->error.code == last->error.code &&
           strcmp(u->error.field, last->error.field) == 0 &&
           strcmp(u->actor.key, last->actor.key) == 0;
}

static void keep_update_locked(struct history *h, const struct update_record *u)
{
    struct update_record *last = h->n_updates > 0 ? &h->updates[h->n_updates - 1] : NULL;
    uint64_t n = 1;

    if (last != NULL && is_repeated(last, u)) {
        n = last->n + 1;
        h->n_updates--;
    } else if (h->n_updates == HISTORY_UPDATES_MAX) {
        memmove(&h->updates[0], &h->updates[1], sizeof h->updates - sizeof h->updates[0]);
        h->n_updates--;
    }
    h->updates[h->n_updates] = *u;
    h->updates[h->n_updates++].n = n;
}

void history_add_update(struct history *h, const struct update_record *r)
{
    struct update_record u = *r;

    u.ended_at_us = clock_wall_us();
    u.times.wait_us = wait_of(&u.times);
    log_update(&u);
    metrics_update(h->metrics, &u);
    mtx_lock(&h->lock);
    keep_update_locked(h, &u);
    mtx_unlock(&h->lock);
    if (u.outcome == OUTCOME_ABORTED)
        history_add_error(h, u.route, &u.error);
}

size_t history_updates(struct history *h, struct update_record *out)
{
    size_t n;

    mtx_lock(&h->lock);
    n = h->n_updates;
    memcpy(out, h->updates, n * sizeof *out);
    mtx_unlock(&h->lock);
    return n;
}

/* errors */

/* The record of this code and route, or a fresh one instead of the first; moved to the end. */
static struct error_record *error_place_locked(struct history *h, const char *route,
                                               enum err_code code)
{
    struct error_record found = {.code = code, .route = route};
    size_t i = 0;

    while (i < h->n_errors && (h->errors[i].code != code || h->errors[i].route != route))
        i++;
    if (i < h->n_errors)
        found = h->errors[i];
    else if (h->n_errors < HISTORY_ERRORS_MAX)
        i = h->n_errors++;
    else
        i = 0;
    memmove(&h->errors[i], &h->errors[i + 1], (h->n_errors - 1 - i) * sizeof h->errors[0]);
    h->errors[h->n_errors - 1] = found;
    return &h->errors[h->n_errors - 1];
}

static void put_error_event(const char *route, const struct err *e, uint64_t n)
{
    struct log_rec r;

    log_begin(&r, LOG_DEBUG, "error"); /* the line of the request has the same */
    log_str(&r, "route", route);
    log_err(&r, e);
    log_u64(&r, "count", n);
    log_event(&r);
}

void history_add_error(struct history *h, const char *route, const struct err *e)
{
    uint64_t now = clock_wall_us(), n;
    struct error_record *r;
    bool tell;

    mtx_lock(&h->lock);
    r = error_place_locked(h, route, e->code);
    if (r->n++ == 0)
        r->first_at_us = now;
    r->last_at_us = now;
    memcpy(r->param, e->field, sizeof r->param);
    memcpy(r->message, e->msg, sizeof r->message);
    n = r->n;
    tell = now - r->event_at_us >= HISTORY_ERROR_EVENT_US;
    if (tell)
        r->event_at_us = now;
    mtx_unlock(&h->lock);
    if (tell)
        put_error_event(route, e, n);
}

size_t history_errors(struct history *h, struct error_record *out)
{
    size_t n;

    mtx_lock(&h->lock);
    n = h->n_errors;
    memcpy(out, h->errors, n * sizeof *out);
    mtx_unlock(&h->lock);
    return n;
}
