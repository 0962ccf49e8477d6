/* What the canaries or checksums of engines that serve one version say about each of them. A pure
 * function: nothing is sent, no lock. */
#ifndef BATON_FLEET_PROOF_PROOF_VERDICT_H
#define BATON_FLEET_PROOF_PROOF_VERDICT_H

#include "fleet/api/upstream_api.h"

#include <stdbool.h>
#include <stddef.h>

enum proof_state {
    PROOF_UNPROVEN,   /* its answer, or that of engines to compare it with, has not come yet */
    PROOF_PROVEN,     /* finite; with other engines: equal to what most of them answered */
    PROOF_NOT_FINITE, /* faulty */
    PROOF_DIFFERS,    /* faulty if most engines agree with each other and not with it */
    PROOF_UNKNOWN,    /* the engine cannot be asked */
    PROOF_STATES
};

/* proof_state_name - static: "unproven", "proven", "not_finite", "differs", "unknown". */
const char *proof_state_name(enum proof_state state);

struct proof_verdict {
    enum proof_state state;
    bool faulty;     /* it must not serve */
    size_t n_others; /* engines with which it was compared */
    double distance; /* from what most engines answered; without a majority: the largest from any */
};

/* How far two answers are from each other. 0: equal. Negative: they cannot be compared. Symmetric.
 */
typedef double proof_distance_fn(const void *arg, size_t a, size_t b);

/* proof_judge - judge n engines.
 * A majority is more than half of the comparable engines whose value is there or pending, and at
 * least two that agree. Without one nobody is faulty: a person decides. One engine alone is proven
 * by a finite value.
 * @answers    [n], n <= FLEET_MAX
 * @tolerance  two answers agree if their distance is not larger
 * @distance   called for engines with API_ANSWER_VALUE only
 * @out        [n] */
void proof_judge(const enum api_answer *answers, size_t n, double tolerance,
                 proof_distance_fn *distance, const void *arg, struct proof_verdict *out);

#endif
