/* The rows of the table: what each aspect comes to, and whether it keeps an engine out of rotation.
 */
#ifndef BATON_TESTS_MODEL_ASPECTS_PRIV_H
#define BATON_TESTS_MODEL_ASPECTS_PRIV_H

#include "tests/unit/fleet/model/aspects.h"

/* next: what has to be sent, or why nothing is. out: it is not known to be as wanted. */
typedef struct step aspect_next_fn(const struct engine_now *e, const struct wants *w);
typedef bool aspect_out_fn(const struct engine_now *e, const struct wants *w);

struct aspect_row {
    aspect_next_fn *next;
    aspect_out_fn *out;              /* NULL: it never keeps an engine out */
    uint64_t delay_us, delay_max_us; /* between attempts */
};

aspect_next_fn sleep_next, packing_next, label_read_next, pause_next, label_set_next, own_next,
    weights_next, caches_next, adapters_next, proof_next;
aspect_out_fn sleep_out, pause_out, label_out, own_out, weights_out, caches_out, adapters_out;

/* caches_add - add the requests that empty its caches, as far as they may be sent together. */
void caches_add(const struct engine_now *e, struct step *step);

/* own_is_of_part - has it started the open update? */
bool own_is_of_part(const struct engine_now *e);

static inline struct step step_same(void)
{
    return (struct step){.is = STEP_SAME};
}

/* Another aspect has to be driven first. */
static inline struct step step_blocked(void)
{
    return (struct step){.is = STEP_BLOCKED, .why = REASON_DRIVEN};
}

static inline struct step step_stuck(enum reason why)
{
    return (struct step){.is = STEP_STUCK, .why = why};
}

static inline struct step step_call(struct call call)
{
    return (struct step){.is = STEP_CALL, .why = REASON_DRIVEN, .calls = {call}, .n_calls = 1};
}

#endif
