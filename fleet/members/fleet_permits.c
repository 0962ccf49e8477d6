/* Which engine gets the next request. There is one queue each for generate and text. When a permit
 * is released or an engine enters rotation, permits are granted to the first tickets in the queue,
 * one at a time and without the lock: a ticket may be freed as soon as its `granted` is called. */
#include "base/clock.h"
#include "fleet/members/fleet_priv.h"

#include <assert.h>
#include <string.h>

uint64_t fleet_affinity(const char *session)
{
    uint64_t hash = 0;

    if (*session == '\0')
        return 0;
    for (; *session != '\0'; session++)
        hash = fleet_hash_mix(hash ^ (uint8_t)*session);
    return hash != 0 ? hash : 1;
}

/* A search for an engine, in one queue. */
struct search {
    const struct fleet *f;
    const struct fleet_ticket *t;
    size_t n_open; /* upstreams in rotation */
    size_t n_outstanding;
    bool avoid;
};

/* While the version switches, an engine gets generates from its own confirmation on: what it makes
 * before may be of either version, and the others may have shown the new one. Only a baton, which
 * is two-phase, keeps back itself what arrives while it is paused. */
static bool is_gated(const struct fleet *f, const struct upstream *u)
{
    return (f->switching && u->switching != SWITCH_CONFIRMED) ||
           (f->still.holds_generates && !upstream_caps_of(u)->two_phase);
}

static bool has_free_permit(const struct search *s, size_t i)
{
    const struct upstream *u = s->f->list->items[i];
    enum fleet_queue queue = s->t->queue;

    return fleet_in_rotation(u) && u->n_outstanding[queue] < s->f->cfg.n_permits[queue] &&
           !(queue == FLEET_GENERATE && is_gated(s->f, u)) &&
           !(s->avoid && s->t->avoid == u->number);
}

/* The session's own engine, unless it has more than its share. */
static bool find_by_affinity(const struct search *s, size_t *out)
{
    size_t share = (s->n_outstanding + 1) * FLEET_LOAD_PERCENT;
    uint64_t best = 0;
    bool found = false;

    for (size_t i = 0; i < s->f->list->n; i++) {
        uint64_t score = fleet_hash_mix(s->t->affinity ^ s->f->list->items[i]->hash);

        if (!has_free_permit(s, i) || (found && score <= best))
            continue;
        /* at most ceil(share / n_open), with this request */
        if (s->f->list->items[i]->n_outstanding[s->t->queue] * 100 * s->n_open >= share)
            continue;
        best = score;
        *out = i;
        found = true;
    }
    return found;
}

static bool find_least_loaded(const struct search *s, size_t *out)
{
    size_t n = s->f->list->n, best = SIZE_MAX;

    for (size_t k = 0; k < n; k++) {
        size_t i = (s->f->next_upstream + k) % n;

        if (!has_free_permit(s, i) || s->f->list->items[i]->n_outstanding[s->t->queue] >= best)
            continue;
        best = s->f->list->items[i]->n_outstanding[s->t->queue];
        *out = i;
    }
    return best != SIZE_MAX;
}

/* An engine with a free permit. The engine to avoid is taken if it is the only one in rotation. */
static bool find_engine_locked(const struct fleet *f, const struct fleet_ticket *t, size_t *out)
{
    struct search s = {.f = f, .t = t, .avoid = t->avoid != 0};

    for (size_t i = 0; i < f->list->n; i++) {
        s.n_open += fleet_in_rotation(f->list->items[i]);
        s.n_outstanding += f->list->items[i]->n_outstanding[t->queue];
    }
    if (t->affinity != 0 && find_by_affinity(&s, out))
        return true;
    if (find_least_loaded(&s, out))
        return true;
    s.avoid = false;
    return t->avoid != 0 && s.n_open == 1 && find_least_loaded(&s, out);
}

static void fleet_permits_grant_locked(struct fleet *f, struct fleet_ticket *t, size_t at)
{
    struct upstream *u = f->list->items[at];

    ticket_queue_grant(&f->queues[t->queue], &t->ticket);
    t->upstream = upstream_ref(u);
    t->n_lost = atomic_load_explicit(&u->n_lost, memory_order_relaxed);
    u->n_outstanding[t->queue]++;
    u->n_granted++;
    t->served.serial = f->serial;
    memcpy(t->served.label, f->label, sizeof f->label);
    t->n_named = f->n_named;
    t->n_overwrites = u->n_overwrites;
    t->incarnation = u->incarnation;
    t->granted_us = clock_now_us();
    f->next_upstream = (at + 1) % f->list->n;
}

/* The first queued ticket that an engine can take. If there is none for a ticket, there is none for
 * those behind it either, unless the ticket avoids an engine or is kept. */
static struct fleet_ticket *first_grantable_locked(const struct fleet *f,
                                                   const struct ticket_queue *q, size_t *at)
{
    for (struct ticket *next = q->head; next != NULL; next = next->next) {
        struct fleet_ticket *t = (struct fleet_ticket *)next;

        if (fleet_is_kept_locked(f, t))
            continue;
        if (find_engine_locked(f, t, at))
            return t;
        if (t->avoid == 0)
            break;
    }
    return NULL;
}

/* Returns: false if no ticket was granted. */
static bool grant_first(struct fleet *f, enum fleet_queue queue)
{
    struct ticket_queue *q = &f->queues[queue];
    void (*granted)(void *arg) = NULL;
    struct fleet_ticket *t;
    void *arg = NULL;
    size_t at = 0;

    mtx_lock(&f->lock);
    t = first_grantable_locked(f, q, &at);
    if (t != NULL) {
        fleet_permits_grant_locked(f, t, at);
        granted = t->ticket.granted;
        arg = t->ticket.arg;
    }
    mtx_unlock(&f->lock);
    if (granted != NULL)
        granted(arg);
    return granted != NULL;
}

void fleet_grant_all(struct fleet *f)
{
    for (enum fleet_queue queue = FLEET_GENERATE; queue < FLEET_QUEUES; queue++)
        while (grant_first(f, queue))
            continue;
}

/* Do all configured engines reject our key? */
static bool all_auth_failed_locked(const struct fleet *f, const struct upstream **first)
{
    size_t n = 0;

    for (size_t i = f->list->n; i-- > 0;) {
        const struct upstream *u = f->list->items[i];

        if (upstream_is_removed(u))
            continue;
        if (!fleet_is_out(u, OUT_AUTH))
            return false;
        *first = u;
        n++;
    }
    return n > 0;
}

static bool is_empty_locked(const struct fleet *f)
{
    for (size_t i = 0; i < f->list->n; i++)
        if (!upstream_is_removed(f->list->items[i]))
            return false;
    return true;
}

/* Why no engine serves: the error of the first engine that has one, unless the version is not
 * decided. */
static int set_unsynced_error_locked(const struct fleet *f, struct err *e)
{
    struct upstream_error error;
    const struct upstream *first = NULL;

    if (is_empty_locked(f))
        return err_set(e, ERR_UNSYNCED, "",
                       "there is no upstream: add one by POST /v1/upstreams, or to --upstream-file "
                       "and send SIGHUP");
    if (all_auth_failed_locked(f, &first))
        return err_set(e, ERR_UPSTREAM_KEY, "", "no upstream serves; %.200s: %.250s",
                       upstream_name(first), fleet_key_error_of(first)->msg);
    if (fleet_version_undecided_locked(f, e))
        return -1;
    for (size_t i = 0; i < f->list->n; i++) {
        const struct upstream *u = f->list->items[i];

        fleet_error_of(u, &error);
        if (!upstream_is_removed(u) && error.why.code != ERR_NONE)
            return err_set(e, ERR_UNSYNCED, "", "no upstream serves; %.200s: %.250s",
                           upstream_name(u), error.why.msg);
    }
    return err_set(e, ERR_UNSYNCED, "", "no upstream serves: none has answered yet");
}

bool fleet_any_serving_locked(const struct fleet *f)
{
    for (size_t i = 0; i < f->list->n; i++)
        if (fleet_in_rotation(f->list->items[i]))
            return true;
    return false;
}

int fleet_permit_acquire(struct fleet *f, struct fleet_ticket *t, struct err *e)
{
    struct ticket_queue *q = &f->queues[t->queue];
    bool granted = false;
    size_t at = 0;
    int rc = 0;

    mtx_lock(&f->lock);
    assert(t->ticket.state == TICKET_IDLE);
    t->ticket.queued_us = clock_now_us();
    if (f->closed)
        rc = err_set(e, ERR_DRAINING, "", "the server is draining: no new requests are accepted");
    else if (!fleet_any_serving_locked(f))
        rc = set_unsynced_error_locked(f, e);
    else if (fleet_arrive_locked(f, t, e) != 0)
        rc = -1;
    else if (!fleet_is_kept_locked(f, t) && first_grantable_locked(f, q, &at) == NULL &&
             find_engine_locked(f, t, &at))
        granted = true; /* no queued ticket can be granted now */
    else if (q->n_waiting >= f->cfg.n_queue_max[t->queue])
        rc = err_set(e, ERR_OVERLOADED, "", "the queue is full: %zu requests run and %zu wait",
                     q->n_running, q->n_waiting);
    else
        ticket_queue_append(q, &t->ticket);
    if (granted)
        fleet_permits_grant_locked(f, t, at);
    q->n_refused += rc != 0;
    mtx_unlock(&f->lock);
    /* A queued ticket may be granted and freed by now: do not touch it any more. */
    if (granted)
        t->ticket.granted(t->ticket.arg);
    return rc;
}

bool fleet_permit_cancel(struct fleet *f, struct fleet_ticket *t)
{
    bool queued;

    mtx_lock(&f->lock);
    queued = ticket_queue_cancel(&f->queues[t->queue], &t->ticket);
    mtx_unlock(&f->lock);
    return queued;
}

void fleet_permit_release(struct fleet *f, struct fleet_ticket *t)
{
    enum fleet_queue queue = t->queue;
    struct upstream *u = t->upstream;
    bool waiting;

    mtx_lock(&f->lock);
    ticket_queue_leave(&f->queues[queue], &t->ticket);
    u->n_outstanding[queue]--;
    if (t->responded) {
        u->n_failures_in_row = 0;
        fleet_clear_failure_locked(u);
    }
    if (f->n_idle_waits > 0 && u->n_outstanding[FLEET_GENERATE] == 0)
        cnd_broadcast(&f->idle);
    waiting = f->queues[queue].head != NULL;
    t->upstream = NULL;
    mtx_unlock(&f->lock);
    upstream_unref(u);
    if (waiting)
        (void)grant_first(f, queue);
}

bool fleet_serves(struct fleet *f, struct upstream *u)
{
    bool serves;

    mtx_lock(&f->lock);
    serves = fleet_in_rotation(u);
    mtx_unlock(&f->lock);
    return serves;
}

void fleet_permits_close(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->closed = true;
    cnd_broadcast(&f->before_settled);
    mtx_unlock(&f->lock);
}

bool fleet_is_closed(struct fleet *f)
{
    bool closed;

    mtx_lock(&f->lock);
    closed = f->closed;
    mtx_unlock(&f->lock);
    return closed;
}
