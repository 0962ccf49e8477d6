/* Where tensor bytes come from, without knowing from where: transport/ has one file for each.
 *
 * A source is used by the update worker only, one call at a time, no lock held. */
#ifndef BATON_WEIGHTS_SOURCE_H
#define BATON_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "weights/plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct source;

/* What a running fill tells and is told. Written by the worker; read by anyone. */
struct progress {
    atomic_uint_fast64_t nbytes_done; /* relaxed: a gauge */
    atomic_uint_fast32_t tensor;      /* relaxed: index in the plan of the tensor being filled */
    atomic_bool stop;                 /* relaxed: asks the fill to fail soon (within 100 ms) */
    uint64_t deadline_us;             /* immutable during a fill */
};

/* progress_check - to be called between pieces of at most SOURCE_PIECE_NBYTES.
 * Errors: ERR_TIMEOUT (deadline passed), ERR_CONFLICT (the update was aborted). */
int progress_check(const struct progress *p, struct err *e);

enum { SOURCE_PIECE_NBYTES = 8 << 20 };

struct source_ops {
    const char *name; /* as in the request: "shm", "path", "body" */

    /* Fills exactly tensors [first, first + n) of the plan, packed, at dst (host memory, any
     * alignment). Called with ascending, non-overlapping ranges. Adds to p->nbytes_done. After a
     * failure the content of dst is undefined.
     * Errors: ERR_UNREADABLE (shrunk, closed, short: names the tensor), ERR_TIMEOUT, ERR_CONFLICT
     * (stopped), ERR_GONE. */
    int (*fill)(struct source *s, const struct plan *plan, uint32_t first, uint32_t n, void *dst,
                struct progress *p, struct err *e);

    /* After the last fill: are there bytes left that nobody declared? May be NULL. */
    int (*finish)(struct source *s, struct progress *p, struct err *e);

    void (*close)(struct source *s); /* accepts NULL; frees; cannot fail */
};

/* Embedded as the first member of every source. */
struct source {
    const struct source_ops *ops;
};

static inline void source_close(struct source *s)
{
    if (s != NULL)
        s->ops->close(s);
}

#endif
