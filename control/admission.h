/* Admission: a FIFO semaphore with a bounded queue, for one class of work.
 *
 * generate and detokenize each have one of their own, so that a flood of one never starves the
 * other. `arrival` of a ticket is that of control/generations.h; 0: after every line. */
#ifndef BATON_CONTROL_ADMISSION_H
#define BATON_CONTROL_ADMISSION_H

#include "base/err.h"
#include "base/ticket_queue.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admission;

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

/* What a hold does with tickets whose requests came before it, and with the others. */
struct admission_hold {
    const struct err *refusal; /* copied: the error of tickets that enter later; NULL: they queue,
                                  up to the usual limit */
    uint64_t line;             /* a ticket with a smaller arrival number is never refused ... */
    bool grants_before;        /* ... and is granted as if there were no hold */
};

/* admission_hold - grant nothing until admission_release but what `how` says; granted permits stay.
 * Repeating replaces the hold.
 * @how  NULL: all tickets queue
 * Threads: any; no lock held. May call granted(). */
void admission_hold(struct admission *a, const struct admission_hold *how);

/* admission_release - grant again, the queued tickets first. Repeating is harmless. */
void admission_release(struct admission *a);

/* admission_on_idle - call `idle(arg)` whenever the last permit is given back: on the thread that
 * gave it back, no lock held; must not block. Call this before the first admission_enter. */
void admission_on_idle(struct admission *a, void (*idle)(void *arg), void *arg);

struct admission_stats {
    const char *name;
    size_t n_permits, n_running, n_waiting, n_queue_max;
    uint64_t n_granted, n_refused, n_cancelled;
    uint64_t wait_us_sum, wait_us_max; /* of granted tickets */
    uint64_t oldest_us;                /* when the first in the queue came; 0: it is empty */
};
void admission_stats(struct admission *a, struct admission_stats *out);

/* admission_stats_by - Blocks: until the deadline at most. Errors: of mtx_lock_by. */
int admission_stats_by(struct admission *a, uint64_t deadline_us, struct admission_stats *out,
                       struct err *e);

#endif
