/* The threads that load adapters.
 *
 * A load reads files, memory or a body, and may wait for a trainer that still writes. It runs on
 * threads of its own, so that neither an update nor a pause waits for it. */
#ifndef BATON_CONTROL_LORA_LOADS_H
#define BATON_CONTROL_LORA_LOADS_H

#include "base/err.h"
#include "base/workers.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LORA_THREADS = 4,
    LORA_OPEN_MAX = 256 /* loads of one lane that are under way or queued */
};

struct lora_loads;

/* lora_loads_new - start the threads. Errors: those of workers_new. */
int lora_loads_new(struct lora_loads **out, struct err *e);
void lora_loads_stop(struct lora_loads *l); /* ends loads soon, answers them, joins; repeatable */
void lora_loads_free(struct lora_loads *l); /* stops first; accepts NULL */

/* Loads by handles run one after the other: two at once would open one trainer's handle twice.
 * Loads by the group have a thread of their own, so that a load which holds the group never waits
 * for other loads. */
enum lora_lane { LORA_LANE_HOST, LORA_LANE_HANDLES, LORA_LANE_GROUP, LORA_LANE_COUNT };

/* lora_loads_post - run the job on a thread of the lane; it ends with lora_loads_end.
 * Errors: ERR_OVERLOADED (LORA_OPEN_MAX), those of workers_post. */
int lora_loads_post(struct lora_loads *l, struct job *job, enum lora_lane lane, struct err *e);

/* lora_loads_again - from within the job: run it once more, after those that are queued now. A load
 * that waits for a trainer waits so without a thread; otherwise a few of them would block all
 * others.
 * Errors: none while the job runs on a thread of its lane. */
int lora_loads_again(struct lora_loads *l, struct job *job, enum lora_lane lane, struct err *e);

/* lora_loads_stopping - true (relaxed) once running loads have to end. */
const atomic_bool *lora_loads_stopping(const struct lora_loads *l);

enum lora_ended { LORA_LOADED, LORA_UNCHANGED, LORA_FAILED, LORA_ENDED_COUNT };

/* lora_loads_end - record how a posted job ended. Threads: any. */
void lora_loads_end(struct lora_loads *l, enum lora_lane lane, enum lora_ended how);

struct lora_stats {
    uint64_t n_ended[LORA_ENDED_COUNT]; /* totals */
    size_t n_queued;                    /* on all threads */
};
void lora_stats(struct lora_loads *l, struct lora_stats *out); /* any thread */

#endif
