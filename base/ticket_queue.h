/* Tickets for permits: a FIFO of those that wait, and a count of those that were granted. The owner
 * (control/admission.c, fleet/members/fleet_permits.c) decides which ticket gets a permit, and
 * when; its lock guards the queue and the tickets. */
#ifndef BATON_BASE_TICKET_QUEUE_H
#define BATON_BASE_TICKET_QUEUE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_GRANTED };

/* Embedded in its owner; a permit is a granted ticket until it is given back. */
struct ticket {
    /* Called once when the permit is granted: within the call that asks for it, or later on a
     * thread that makes one free. No lock held; must not block (post to a pool). The ticket may be
     * freed as soon as it was called. */
    void (*granted)(void *arg);
    void *arg;
    uint64_t arrival;   /* number of its request; 0: none */
    uint64_t queued_us; /* when it asked, if the owner says so */

    /* Of the queue. */
    struct ticket *next, **prev_next;
    enum ticket_state state;
};

struct ticket_queue {
    struct ticket *head, **tail;
    size_t n_waiting, n_running;
    uint64_t n_refused, n_cancelled; /* n_refused: counted by the owner */
};

static inline void ticket_queue_init(struct ticket_queue *q)
{
    *q = (struct ticket_queue){.tail = &q->head};
}

/* ticket_queue_append - an idle ticket waits behind all others. */
static inline void ticket_queue_append(struct ticket_queue *q, struct ticket *t)
{
    assert(t->state == TICKET_IDLE);
    t->state = TICKET_QUEUED;
    t->next = NULL;
    t->prev_next = q->tail;
    *q->tail = t;
    q->tail = &t->next;
    q->n_waiting++;
}

static inline void ticket_queue_remove(struct ticket_queue *q, struct ticket *t)
{
    assert(t->state == TICKET_QUEUED);
    t->state = TICKET_IDLE;
    *t->prev_next = t->next;
    if (t->next != NULL)
        t->next->prev_next = t->prev_next;
    else
        q->tail = t->prev_next;
    q->n_waiting--;
}

/* ticket_queue_cancel - it waits no more. Returns false if it does not wait: it was granted. */
static inline bool ticket_queue_cancel(struct ticket_queue *q, struct ticket *t)
{
    if (t->state != TICKET_QUEUED)
        return false;
    ticket_queue_remove(q, t);
    q->n_cancelled++;
    return true;
}

/* ticket_queue_grant - an idle or a waiting ticket has a permit until ticket_queue_leave. */
static inline void ticket_queue_grant(struct ticket_queue *q, struct ticket *t)
{
    if (t->state == TICKET_QUEUED)
        ticket_queue_remove(q, t);
    t->state = TICKET_GRANTED;
    q->n_running++;
}

static inline void ticket_queue_leave(struct ticket_queue *q, struct ticket *t)
{
    assert(t->state == TICKET_GRANTED && q->n_running > 0);
    t->state = TICKET_IDLE;
    q->n_running--;
}

#endif
