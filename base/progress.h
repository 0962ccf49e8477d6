/* Progress of a long copy, and the reasons for which it ends early: a stop, a deadline, a client
 * that disconnected. */
#ifndef BATON_BASE_PROGRESS_H
#define BATON_BASE_PROGRESS_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_NO_TENSOR UINT32_MAX

/* Written by the thread that copies; read by any. */
struct progress {
    atomic_uint_fast64_t nbytes_done; /* relaxed: a gauge */
    atomic_uint_fast32_t tensor;      /* relaxed: index in its list of the tensor being filled;
                                         PROGRESS_NO_TENSOR before the first */
    atomic_bool stop;                 /* relaxed: asks the copy to fail soon (within 100 ms) */
    uint64_t deadline_us;             /* immutable during a copy, and so are those below */
    bool (*gone)(void *arg);          /* has the client disconnected? NULL: never */
    void *gone_arg;
    /* Called with the bytes just written, while they are in a cache: pieces in any order, from
     * several threads, each byte once; again if it is written again, and then all are looked at
     * at the end. NULL: not called. */
    void (*came)(void *arg, const void *at, uint64_t nbytes);
    void *came_arg;
};

static inline void progress_came(const struct progress *p, const void *at, uint64_t nbytes)
{
    if (p->came != NULL && nbytes > 0)
        p->came(p->came_arg, at, nbytes);
}

/* progress_check - must the copy end now? Call it between pieces of some MiB.
 * Errors: ERR_TIMEOUT (deadline passed), ERR_CONFLICT (the update was aborted), ERR_GONE. */
int progress_check(const struct progress *p, struct err *e);

#endif
