/* A FIFO semaphore over intrusive tickets.
 *
 * Invariant: a ticket waits only while every permit is taken, or while a hold keeps it. A free
 * permit goes directly to the first ticket in the queue that no hold keeps, so no ticket overtakes
 * another of its kind. Rejected: a condition variable for each waiter, which would need a thread
 * for each. */
#include "control/admission.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <stdlib.h>

struct admission {
    struct mtx lock; /* rank MTX_ADMISSION; guards down to the blank line */
    struct ticket_queue queue;
    uint64_t n_granted, wait_us_sum, wait_us_max;
    bool closed, held;
    struct admission_hold hold; /* while held */
    struct err refusal;         /* hold.refusal; clean: NULL */

    const char *name; /* static; immutable, like all members below */
    size_t n_permits, n_queue_max;
    void (*idle)(void *arg); /* may be NULL */
    void *idle_arg;
};

int admission_new(struct admission **out, const char *name, size_t n_permits, size_t n_queue_max,
                  struct err *e)
{
    struct admission *a = calloc(1, sizeof *a);

    assert(n_permits >= 1);
    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the %s admission", name);
    mtx_init(&a->lock, MTX_ADMISSION);
    ticket_queue_init(&a->queue);
    a->name = name;
    a->n_permits = n_permits;
    a->n_queue_max = n_queue_max;
    *out = a;
    return 0;
}

void admission_free(struct admission *a)
{
    if (a == NULL)
        return;
    assert(a->queue.n_running == 0 && a->queue.n_waiting == 0);
    mtx_fini(&a->lock);
    free(a);
}

static void admission_grant_locked(struct admission *a, struct ticket *t)
{
    uint64_t wait_us = clock_now_us() - t->queued_us;

    ticket_queue_grant(&a->queue, t);
    a->n_granted++;
    a->wait_us_sum += wait_us;
    if (wait_us > a->wait_us_max)
        a->wait_us_max = wait_us;
}

static bool came_before(const struct admission *a, const struct ticket *t)
{
    return t->arrival != 0 && t->arrival < a->hold.line;
}

static bool admission_is_kept(const struct admission *a, const struct ticket *t)
{
    return a->held && !(a->hold.grants_before && came_before(a, t));
}

/* The first ticket in the queue that no hold keeps. */
static struct ticket *first_locked(const struct admission *a)
{
    struct ticket *t = a->held && !a->hold.grants_before ? NULL : a->queue.head;

    while (t != NULL && admission_is_kept(a, t))
        t = t->next;
    return t;
}

int admission_enter(struct admission *a, struct ticket *t, struct err *e)
{
    enum { GRANTED, QUEUED, CLOSED, FULL, HELD } what;
    size_t n_running, n_waiting;
    struct err refusal;

    mtx_lock(&a->lock);
    assert(t->state == TICKET_IDLE);
    t->queued_us = clock_now_us();
    if (a->closed) {
        what = CLOSED;
    } else if (a->held && a->refusal.code != ERR_NONE && !came_before(a, t)) {
        a->queue.n_refused++;
        refusal = a->refusal;
        what = HELD;
    } else if (!admission_is_kept(a, t) && first_locked(a) == NULL &&
               a->queue.n_running < a->n_permits) {
        admission_grant_locked(a, t);
        what = GRANTED;
    } else if (a->queue.n_waiting < a->n_queue_max) {
        ticket_queue_append(&a->queue, t);
        what = QUEUED;
    } else {
        a->queue.n_refused++;
        what = FULL;
    }
    n_running = a->queue.n_running;
    n_waiting = a->queue.n_waiting;
    mtx_unlock(&a->lock);

    /* A queued ticket may already be granted and freed: it must not be accessed any more. */
    if (what == GRANTED)
        t->granted(t->arg);
    if (what == FULL)
        return err_set(e, ERR_OVERLOADED, "", "%s is full: %zu run and %zu wait", a->name,
                       n_running, n_waiting);
    if (what == HELD) {
        *e = refusal;
        return -1;
    }
    if (what == CLOSED)
        return err_set(e, ERR_DRAINING, "", "the server is draining: no new %s", a->name);
    return 0;
}

bool admission_cancel(struct admission *a, struct ticket *t)
{
    bool queued;

    mtx_lock(&a->lock);
    queued = ticket_queue_cancel(&a->queue, t);
    mtx_unlock(&a->lock);
    return queued;
}

/* Grants the first ticket in the queue that no hold keeps, if a permit is free. One at a time: a
 * ticket may be freed as soon as its owner was notified. Returns: false if none was granted.
 * @leaver  gives its permit back before; NULL: none
 * @idle    whether no permit is taken */
static bool grant_next(struct admission *a, struct ticket *leaver, bool *idle)
{
    struct ticket *next = NULL;
    void (*granted)(void *arg) = NULL;
    void *arg = NULL;

    mtx_lock(&a->lock);
    if (leaver != NULL)
        ticket_queue_leave(&a->queue, leaver);
    if (a->queue.n_running < a->n_permits)
        next = first_locked(a);
    if (next != NULL) {
        admission_grant_locked(a, next);
        granted = next->granted;
        arg = next->arg;
    }
    *idle = a->queue.n_running == 0;
    mtx_unlock(&a->lock);
    if (granted != NULL)
        granted(arg);
    return granted != NULL;
}

void admission_leave(struct admission *a, struct ticket *t)
{
    bool idle;

    (void)grant_next(a, t, &idle);
    if (idle && a->idle != NULL)
        a->idle(a->idle_arg);
}

static void grant_all(struct admission *a)
{
    bool idle;

    while (grant_next(a, NULL, &idle))
        continue;
}

void admission_hold(struct admission *a, const struct admission_hold *how)
{
    mtx_lock(&a->lock);
    a->held = true;
    a->hold = how != NULL ? *how : (struct admission_hold){0};
    a->refusal = a->hold.refusal != NULL ? *a->hold.refusal : (struct err){0};
    a->hold.refusal = NULL;
    mtx_unlock(&a->lock);
    grant_all(a);
}

void admission_release(struct admission *a)
{
    mtx_lock(&a->lock);
    a->held = false;
    mtx_unlock(&a->lock);
    grant_all(a);
}

void admission_on_idle(struct admission *a, void (*idle)(void *arg), void *arg)
{
    a->idle = idle;
    a->idle_arg = arg;
}

void admission_close(struct admission *a)
{
    mtx_lock(&a->lock);
    a->closed = true;
    mtx_unlock(&a->lock);
}

int admission_stats_by(struct admission *a, uint64_t deadline_us, struct admission_stats *out,
                       struct err *e)
{
    if (mtx_lock_by(&a->lock, deadline_us, e) != 0)
        return -1;
    *out = (struct admission_stats){
        .name = a->name,
        .n_permits = a->n_permits,
        .n_running = a->queue.n_running,
        .n_waiting = a->queue.n_waiting,
        .n_queue_max = a->n_queue_max,
        .n_granted = a->n_granted,
        .n_refused = a->queue.n_refused,
        .n_cancelled = a->queue.n_cancelled,
        .wait_us_sum = a->wait_us_sum,
        .wait_us_max = a->wait_us_max,
        .oldest_us = a->queue.head != NULL ? a->queue.head->queued_us : 0,
    };
    mtx_unlock(&a->lock);
    return 0;
}

void admission_stats(struct admission *a, struct admission_stats *out)
{
    (void)admission_stats_by(a, CLOCK_NEVER, out, NULL);
}
