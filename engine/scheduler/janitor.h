/* Frees what the step loop is done with, on a thread of its own: giving memory back to the system
 * may take longer than a step, and no token should wait for it. With a sequence goes its hold on an
 * adapter, and with the last hold an old revision. */
#ifndef BATON_ENGINE_SCHEDULER_JANITOR_H
#define BATON_ENGINE_SCHEDULER_JANITOR_H

#include "base/err.h"
#include "engine/scheduler/sequence.h"
#include "weights/store/store.h"

struct janitor;

/* janitor_new - start the thread. @store  borrowed; outlives it. Errors: ERR_NO_MEMORY,
 * ERR_INTERNAL (no thread). */
int janitor_new(struct janitor **out, struct store *store, struct err *e);
void janitor_free(struct janitor *j); /* when all is freed; accepts NULL */

/* janitor_bury - free a sequence (seq_free). No allocation; takes a leaf lock, then MTX_WORKERS. */
void janitor_bury(struct janitor *j, struct seq *q);

/* janitor_reap - call store_reap. The same. */
void janitor_reap(struct janitor *j);

#endif
