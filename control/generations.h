/* Every generation that is under way, from before it queues for its permit until it is freed: so
 * that some or all can be aborted. */
#ifndef BATON_CONTROL_GENERATIONS_H
#define BATON_CONTROL_GENERATIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admission;
struct generations;
struct ticket;

/* How one ends before its time. Called with MTX_GENERATIONS held; take MTX_GENERATION and what that
 * takes; do not block. */
struct generations_ops {
    /* End soon with the tokens that it has, or without any if it queues for its permit. false when
     * it has ended or was aborted before. */
    bool (*abort)(void *arg);
    /* The same for what the ids name: all of it, or some of its sequences.
     * @ids  [n_ids], sorted by strcmp
     * Returns: 1 for all of it, else how many sequences. */
    uint32_t (*abort_named)(void *arg, const char *const *ids, size_t n_ids);
    void (*cut)(void *arg); /* wait no longer for a client that does not read */
};

/* A generation's place among them; zeroed, it has none. */
struct generations_entry {
    const struct generations_ops *ops; /* immutable while it is among them, and so are the next */
    void *arg;
    struct ticket *ticket; /* for its permit */

    struct generations_entry *next, **prev_next; /* guarded by their lock */
};

int generations_new(struct generations **out, struct err *e); /* ERR_NO_MEMORY */
void generations_free(struct generations *gs);                /* empty; accepts NULL */

/* Accept NULL, which keeps none. remove: repeating is harmless. */
void generations_add(struct generations *gs, struct generations_entry *g);
void generations_remove(struct generations *gs, struct generations_entry *g);

/* generations_abort - end them soon, with the tokens that they have. Those that queue for a permit
 * end without any.
 * @ids  request ids, [n_ids], or those of single sequences; sorted in place; NULL: all
 * Returns: how many requests, and sequences of others. Threads: any. Takes MTX_GENERATIONS, then
 * MTX_GENERATION and what that takes. Blocks: no. */
uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids);

/* generations_abort_granted - the same for those that have a permit of `a`; the queue stays. */
uint32_t generations_abort_granted(struct generations *gs, struct admission *a);

/* generations_cut - wait no longer for clients that do not read: the server stops. To be called
 * before the pool stops that writes to them. */
void generations_cut(struct generations *gs);

#endif
