/* Every generation that is under way, from before it queues for its permit until it is freed: so
 * that some or all can be aborted. */
#ifndef BATON_CONTROL_GENERATIONS_H
#define BATON_CONTROL_GENERATIONS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct generation;
struct generations;

/* A generation's place among them; zeroed, it has none. Guarded by their lock. */
struct generations_link {
    struct generation *next, **prev_next;
};

int generations_new(struct generations **out, struct err *e); /* ERR_NO_MEMORY */
void generations_free(struct generations *gs);                /* empty; accepts NULL */

/* Accept NULL, which keeps none. remove: repeating is harmless. */
void generations_add(struct generations *gs, struct generation *g);
void generations_remove(struct generations *gs, struct generation *g);

/* generations_abort - end them soon, with the tokens that they have. Those that queue for a permit
 * end without any.
 * @ids  request ids, [n_ids], or those of single sequences; sorted in place; NULL: all
 * Returns: how many requests, and sequences of others. Threads: any. Takes MTX_GENERATIONS, then
 * MTX_GENERATION and what that takes. Blocks: no. */
uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids);

/* generations_abort_granted - the same for those that have a permit; the queue stays. */
uint32_t generations_abort_granted(struct generations *gs);

/* generations_cut - generation_cut for each: the server stops. Before the pool that tells. */
void generations_cut(struct generations *gs);

#endif
