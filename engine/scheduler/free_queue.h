/* Deferred free: what the step loop is done with is freed on a thread of its own, since giving
 * memory back to the system may take longer than a step, and no token should wait for it. With a
 * sequence goes its reference to an adapter, and with the last reference an old revision. */
#ifndef BATON_ENGINE_SCHEDULER_FREE_QUEUE_H
#define BATON_ENGINE_SCHEDULER_FREE_QUEUE_H

#include "base/err.h"
#include "engine/scheduler/sequence.h"
#include "weights/store/store.h"

struct free_queue;

/* free_queue_new - start the thread. @store  borrowed; outlives it. Errors: ERR_NO_MEMORY,
 * ERR_INTERNAL (no thread). */
int free_queue_new(struct free_queue **out, struct store *store, struct err *e);
void free_queue_free(struct free_queue *j); /* when all is freed; accepts NULL */

/* free_queue_add - free a sequence (seq_free). No allocation; takes a leaf lock, then MTX_WORKERS.
 */
void free_queue_add(struct free_queue *j, struct seq *q);

/* free_queue_reap - call store_reap. The same. */
void free_queue_reap(struct free_queue *j);

#endif
