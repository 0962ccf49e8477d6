/* One request to several engines at the same time, and the result of each. */
#ifndef BATON_FLEET_CALLS_FLEET_REQUEST_H
#define BATON_FLEET_CALLS_FLEET_REQUEST_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_result.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

/* How long one engine may take. */
enum {
    FLEET_STEP_US = 30000000,   /* a pause, a resume, the start of its own update */
    FLEET_ABORT_US = 10000000,  /* the abort of its update */
    FLEET_QUERY_US = 10000000,  /* a query of its state */
    FLEET_CONFIG_US = 30000000, /* of its configuration: a vLLM inspects its host before the first
                                   reply */
    FLEET_CACHE_US = 60000000,  /* a reset of its caches, an abort of its requests */
    FLEET_SLEEP_US = 300000000, /* a sleep or a wake: weights to or from host memory */
    FLEET_LATE_US = 2000000,    /* after the engines that are enough (--min-ready) */
    FLEET_GRACE_US = 2000000    /* added where the request itself gives the engine a timeout */
};

struct fleet_target {
    struct upstream *upstream;   /* borrowed: of a list, a result or a part that the caller has */
    enum api_op op;              /* of fleet_requests; else the argument's */
    const struct api_args *args; /* borrowed, those of the operation; NULL: it has none */
    uint64_t timeout_us;         /* 0: the argument's */
    struct api_context ctx;
    bool until_down;      /* stop waiting when the engine goes down: FLEET_UNKNOWN, ERR_UNSYNCED */
    const bool *given_up; /* atomic: and when this becomes true; NULL: never */
    uint64_t late_us;     /* and so long after n_enough others have answered well: FLEET_UNKNOWN,
                             ERR_UNSYNCED; 0: never */
    size_t n_enough;
    uint64_t given_up_us; /* given_up counts so long after the start only */
    /* Called as soon as its result is known, while the others may be under way: on the calling
     * thread, without a lock. The text may be moved out. NULL: none */
    void (*answered)(void *arg, struct fleet_result *result);
    void *arg;
};

/* fleet_request - send an operation to each target, and wait for the last reply. All requests are
 * made before the first is sent. They are part of the calling thread's trace (base/net/trace.h).
 * @targets  [n], n <= FLEET_MAX
 * @out      [n], in the order of `targets`; in: zeroed; written on success
 * Threads: those that may wait for engines; no lock held. Blocks: up to timeout_us.
 * Errors: api_make_request's, ERR_NO_MEMORY: nothing was sent; ERR_DRAINING: the engines may have
 *         processed it. */
int fleet_request(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                  size_t n, uint64_t timeout_us, struct fleet_results *out, struct err *e);

/* fleet_tell - the same, where the caller does the same whatever they reply: what the replies say
 * of the engines is noted. */
static inline void fleet_tell(struct fleet_control *fc, enum api_op op,
                              const struct fleet_target *targets, size_t n, uint64_t timeout_us)
{
    fleet_results_auto results = {0};
    struct err ignored = {0};

    (void)fleet_request(fc, op, targets, n, timeout_us, &results, &ignored);
}

/* fleet_requests - the same with an operation for each target, of which several may be at one
 * upstream: they reach it in any order. Any n. */
int fleet_requests(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                   uint64_t timeout_us, struct fleet_results *out, struct err *e);

/* fleet_query - the same with a query of an engine's state. */
int fleet_query(struct fleet_control *fc, enum api_query q, const struct fleet_target *targets,
                size_t n, uint64_t timeout_us, struct fleet_results *out, struct err *e);

/* fleet_validate - can the request be made for each target? Nothing is sent.
 * Errors: api_make_request's. */
int fleet_validate(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                   size_t n, struct err *e);

/* fleet_step_us - FLEET_STEP_US, or the time of a step of an update (fleet_update_us) if that is
 * shorter. */
uint64_t fleet_step_us(struct fleet_control *fc);

/* fleet_request_all - the same request to every engine that answers.
 * @args  borrowed; @out  as fleet_request's
 * Errors: fleet_reachable_quorum's; fleet_request's. */
int fleet_request_all(struct fleet_control *fc, enum api_op op, const struct api_args *args,
                      uint64_t timeout_us, struct fleet_results *out, struct err *e);

/* fleet_abort_all_requests - abort what waits for a permit here, and what runs on the engines that
 * answer; failures are ignored.
 * Threads and blocking as fleet_request: up to FLEET_CACHE_US. */
void fleet_abort_all_requests(struct fleet_control *fc);

#endif
