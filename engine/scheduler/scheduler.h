/* Continuous batching: which sequences run, and what one step of the model computes for them.
 *
 * A step takes one row for each sequence that decodes, then prompt chunks, first come first served,
 * up to n_rows_max rows. A sequence is admitted when the KV of its worst case can be reserved and
 * fewer than n_running_max run; until then it waits, in FIFO order, and nobody passes it.
 *
 * Most sequences read the version that is served when the step begins. One that finishes on the
 * version it began with has it pinned, and the rows of each version are computed by themselves. So
 * an update never waits for a sequence but for room: --max-versions bounds how many are alive, and
 * whoever holds an old one goes on to its end.
 *
 * A turn allocates and frees nothing: that is done by whoever submits, and by the free_queue.
 *
 * Everything here is of the engine thread. It calls the sinks, with no lock held, between steps. */
#ifndef BATON_ENGINE_SCHEDULER_SCHEDULER_H
#define BATON_ENGINE_SCHEDULER_SCHEDULER_H

#include "base/err.h"
#include "engine/engine.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"
#include "engine/scheduler/free_queue.h"
#include "engine/scheduler/sequence.h"
#include "weights/store/store.h"

#include <stdint.h>

struct scheduler;

struct scheduler_cfg {
    struct store *store;     /* borrowed */
    struct model *model;     /* borrowed; made for n_rows_max rows; its threads choose tokens too */
    struct kv_pool *kv;      /* borrowed */
    struct free_queue *free_queue; /* borrowed */
    uint32_t vocab_size;
    uint32_t n_running_max; /* 1..n_rows_max, so that whoever prefills always gets a row */
    uint32_t n_rows_max;
    /* Called before the `done` of a sequence, when it is in no count any more. May take locks. */
    void (*retire)(void *arg, struct seq *q);
    void *retire_arg;
};

/* scheduler_new - allocate all that steps need. Errors: ERR_NO_MEMORY. */
int scheduler_new(struct scheduler **out, const struct scheduler_cfg *cfg, struct err *e);
void scheduler_free(struct scheduler *s); /* accepts NULL; nothing may run or wait */

/* scheduler_push - the sequence waits from now on; owned by the scheduler. */
void scheduler_push(struct scheduler *s, struct seq *q);

/* scheduler_reap - end every sequence whose `cancelled` is set, with GEN_ABORT. */
void scheduler_reap(struct scheduler *s);

/* scheduler_abort - end every sequence, with GEN_ABORT. */
void scheduler_abort(struct scheduler *s);

/* scheduler_freeze - no turn comes for a while. Recomputes that held a version, so that commits
 * could not hold them up, let it go: else an update meanwhile would find no room for one more. */
void scheduler_freeze(struct scheduler *s);

/* scheduler_kv_release - no sequence has KV until scheduler_kv_restore, which comes before the next
 * turn; those that run feed all their tokens again then. Returns: kv_pool_release's. */
uint64_t scheduler_kv_release(struct scheduler *s);
void scheduler_kv_restore(struct scheduler *s);

/* scheduler_kv_forget - those that run feed all their tokens again; their room stays theirs. */
void scheduler_kv_forget(struct scheduler *s);

enum scheduler_turn {
    SCHEDULER_IDLE,    /* nothing runs or waits */
    SCHEDULER_STEPPED, /* one step was computed, or sequences ended: turn again */
    SCHEDULER_FROZEN   /* the weights are asleep: wait until the store can be pinned */
};

/* scheduler_turn - admit, pin, compute one step, unpin, report. While the weights are asleep only
 * sequences that hold a version go on. */
enum scheduler_turn scheduler_turn(struct scheduler *s);

/* scheduler_stats - counters and gauges; heartbeat_us is not touched. */
void scheduler_stats(const struct scheduler *s, struct engine_stats *out);

#endif
