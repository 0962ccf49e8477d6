/* Admission: a FIFO semaphore with a bounded queue, for one class of work.
 *
 * generate and detokenize each have one of their own, so that a flood of one never starves the
 * other. A ticket is embedded in its owner; a permit is a granted ticket until it is left. */
#ifndef BATON_CONTROL_ADMISSION_H
#define BATON_CONTROL_ADMISSION_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admission;

struct ticket {
    /* Called once when the permit is granted: by admission_enter itself, or later by the thread
     * that gives a permit back. No lock held; must not block (post to a pool). */
    void (*granted)(void *arg);
    void *arg;

    /* Of the admission. */
    struct ticket *next, **prev_next;
    uint64_t queued_us;
    int state;
    bool drains; /* granted although admission is held */
};

/* admission_new - @name is static, for messages and metrics ("generate"). */
int admission_new(struct admission **out, const char *name, size_t n_permits, size_t n_queue_max,
                  struct err *e);
void admission_free(struct admission *a); /* nothing queued or granted; accepts NULL */

/* admission_enter - take a permit now (granted() runs before this returns), or queue.
 * Errors: ERR_OVERLOADED (queue full; the message has how many run and wait), ERR_DRAINING. */
int admission_enter(struct admission *a, struct ticket *t, struct err *e);

/* admission_cancel - take a queued ticket out. Returns false when it was already granted. O(1). */
bool admission_cancel(struct admission *a, struct ticket *t);

/* admission_leave - give a granted permit back; the next in line is granted. */
void admission_leave(struct admission *a, struct ticket *t);

void admission_close(struct admission *a); /* from now on enter is ERR_DRAINING */

/* admission_hold - grant nothing until admission_release; granted permits stay.
 * @refusal  NULL: new tickets queue, up to the usual limit; else admission_enter fails with this
 *           error (copied). Repeating replaces the refusal.
 * @drain    the tickets that wait for lack of permits now are still granted, in their order; those
 *           that an earlier hold keeps are not. Repeating with false ends it. */
void admission_hold(struct admission *a, const struct err *refusal, bool drain);

/* admission_release - grant again, the queued tickets first. Repeating is harmless. */
void admission_release(struct admission *a);

/* admission_on_idle - call `idle(arg)` whenever the last permit is given back and no ticket is left
 * that admission_hold still grants: on the thread that gave it back, or took the ticket out; it may
 * hold locks of any rank. Must not block. Call this before the first admission_enter. */
void admission_on_idle(struct admission *a, void (*idle)(void *arg), void *arg);

struct admission_stats {
    const char *name;
    size_t n_permits, n_running, n_waiting, n_queue_max;
    size_t n_draining; /* of those that wait: granted although admission is held */
    uint64_t n_granted, n_refused, n_cancelled;
    uint64_t wait_us_sum, wait_us_max; /* of granted tickets */
};
void admission_stats(struct admission *a, struct admission_stats *out);

#endif
