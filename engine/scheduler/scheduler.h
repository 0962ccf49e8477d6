/* Continuous batching: which sequences run, and what one step of the model computes for them.
 *
 * A step takes one row for each sequence that decodes, then prompt chunks, first come first served,
 * up to n_rows_max rows. A sequence is admitted when the KV of its worst case can be reserved and
 * fewer than n_running_max run; until then it waits, in FIFO order, and no other overtakes it. It
 * takes over KV of the same tokens, weights, adapter and salt, and also waits while another
 * sequence computes it: the samples of a prompt compute it once.
 *
 * Most sequences read the version that is served when the step begins. A sequence that finishes on
 * the version that it began with pins that version, and the rows of each version are computed
 * separately. An update therefore waits for a sequence only when the memory for one more version is
 * missing: --max-versions limits how many are alive, and a sequence keeps an old one to its end.
 *
 * A turn neither allocates nor frees: the submitting thread allocates, and the free_queue frees.
 *
 * Threads: everything here is called by the engine thread only. It calls the sinks between steps,
 * with no lock held. */
#ifndef BATON_ENGINE_SCHEDULER_SCHEDULER_H
#define BATON_ENGINE_SCHEDULER_SCHEDULER_H

#include "base/err.h"
#include "engine/gen.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"
#include "engine/scheduler/free_queue.h"
#include "engine/scheduler/sequence.h"
#include "weights/store/store.h"

#include <stdint.h>

struct scheduler;

struct scheduler_cfg {
    struct store *store; /* borrowed */
    struct model *model; /* borrowed; made for n_rows_max rows; its threads choose tokens too */
    struct kv_pool *kv;  /* borrowed */
    struct free_queue *free_queue; /* borrowed */
    uint32_t vocab_size;
    uint32_t n_running_max; /* 1..n_rows_max, so that a prefill always gets a row */
    uint32_t n_rows_max;
    bool shares_kv; /* sequences use KV of each other, and of those that have ended */
    /* Called before the `done` of a sequence, once no counter counts it. May take locks. */
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

/* scheduler_freeze - no turn follows for a while. Sequences with `recompute` that pinned a version,
 * so that commits could not delay them for ever, unpin it: otherwise an update in the meantime
 * could not get memory for one more version. */
void scheduler_freeze(struct scheduler *s);

/* scheduler_kv_release - forget and give all KV back until scheduler_kv_restore, which must be
 * called before the next turn; running sequences then feed all their tokens again. Returns: as
 * kv_pool_release. */
uint64_t scheduler_kv_release(struct scheduler *s);
void scheduler_kv_restore(struct scheduler *s);

/* scheduler_kv_forget - no sequence takes over KV that is there now.
 * @running  running sequences feed all their tokens again */
void scheduler_kv_forget(struct scheduler *s, bool running);

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
