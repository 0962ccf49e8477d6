/* The threads that load adapters.
 *
 * A load reads files, memory or a body, and may wait for a trainer that still writes. It runs on
 * threads of its own, so that neither an update nor a pause waits for it.
 *
 *     NEW --post--> QUEUED --start--> RUNNING --end--> LOADED, UNCHANGED, FAILED
 *                                     |    ^
 *                                   wait  start
 *                                     v    |
 *                                    WAITING
 *
 * Each change is a row of the table in lora_loads.c; lora_move asserts that there is one. A load
 * belongs to one thread at a time: to the one that posts it, then to the one that runs it. */
#ifndef BATON_CONTROL_LORA_LOADS_H
#define BATON_CONTROL_LORA_LOADS_H

#include "base/err.h"
#include "base/jobs/workers.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LORA_THREADS = 4,
    LORA_OPEN_MAX = 256 /* loads of one pool that are under way or queued */
};

struct lora_loads;

/* lora_loads_new - start the threads. Errors: those of workers_new. */
int lora_loads_new(struct lora_loads **out, struct err *e);
void lora_loads_stop(struct lora_loads *l); /* ends loads soon, answers them, joins; repeatable */
void lora_loads_free(struct lora_loads *l); /* stops first; accepts NULL */

/* Loads by handles run one after the other: two at once would open one trainer's handle twice.
 * Loads by the group have a thread of their own, so that a load which holds the group never waits
 * for other loads. */
enum lora_pool { LORA_POOL_HOST, LORA_POOL_HANDLES, LORA_POOL_GROUP, LORA_POOL_COUNT };

enum lora_state {
    LORA_NEW,
    LORA_QUEUED,
    LORA_RUNNING,
    LORA_WAITING, /* for a trainer that still writes: queued once more */
    LORA_LOADED,
    LORA_UNCHANGED, /* it was loaded already */
    LORA_FAILED,
    LORA_STATES
};

enum lora_event {
    LORA_ON_POST,
    LORA_ON_START,
    LORA_ON_WAIT,
    LORA_ON_LOADED,
    LORA_ON_UNCHANGED,
    LORA_ON_FAILED
};

/* One load; embedded in what it is a load of. Zeroed, then `run`, `arg` and `pool` are set. */
struct lora_job {
    void (*run)(void *arg); /* on a thread of the pool, no lock held; ends by lora_loads_again or
                               lora_loads_end */
    void *arg;
    enum lora_pool pool;

    enum lora_state state; /* written by lora_move alone */
    struct job job;        /* of the pool */
};

/* lora_loads_post - run a NEW job on a thread of its pool; it ends with lora_loads_end.
 * Errors: ERR_OVERLOADED (LORA_OPEN_MAX), those of workers_post; the job is NEW still. */
int lora_loads_post(struct lora_loads *l, struct lora_job *job, struct err *e);

/* lora_loads_again - from within the job: run it once more, after those that are queued now. A load
 * that waits for a trainer waits so without a thread; otherwise a few of them would block all
 * others. The job is no longer the caller's.
 * Errors: none while the job runs on a thread of its pool; it is RUNNING still. */
int lora_loads_again(struct lora_loads *l, struct lora_job *job, struct err *e);

/* lora_loads_stopping - true (relaxed) once running loads have to end. */
const atomic_bool *lora_loads_stopping(const struct lora_loads *l);

/* lora_loads_end - from within the job: it is over. @how  LORA_ON_LOADED, LORA_ON_UNCHANGED or
 * LORA_ON_FAILED */
void lora_loads_end(struct lora_loads *l, struct lora_job *job, enum lora_event how);

struct lora_stats {
    uint64_t n_ended[LORA_STATES]; /* totals, of the last three states */
    size_t n_queued;               /* on all threads */
};
void lora_stats(struct lora_loads *l, struct lora_stats *out); /* any thread */

#endif
