/* Deferred free: a thread of its own frees what the step loop no longer needs. Giving memory back
 * to the system may take longer than a step, and no token should wait for it. Freeing a sequence
 * also drops its reference to an adapter; the last reference frees an old revision. */
#ifndef BATON_ENGINE_SCHEDULER_FREE_QUEUE_H
#define BATON_ENGINE_SCHEDULER_FREE_QUEUE_H

#include "base/err.h"
#include "engine/scheduler/sequence.h"
#include "weights/store/store.h"

struct free_queue;

/* free_queue_new - start the thread. @store  borrowed; outlives it. Errors: ERR_NO_MEMORY,
 * ERR_INTERNAL (no thread). */
int free_queue_new(struct free_queue **out, struct store *store, struct err *e);
void free_queue_free(struct free_queue *j); /* frees all that is queued first; accepts NULL */

/* free_queue_add - free a sequence (seq_free). No allocation; takes a leaf lock, then MTX_WORKERS.
 */
void free_queue_add(struct free_queue *j, struct seq *q);

/* free_queue_reap - call store_reap on the thread. Allocation and locks: as free_queue_add. */
void free_queue_reap(struct free_queue *j);

#endif
