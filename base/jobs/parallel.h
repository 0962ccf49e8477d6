/* A loop that the caller shares with a few more threads: for moving bytes, which one core does more
 * slowly than memory allows. */
#ifndef BATON_BASE_PARALLEL_H
#define BATON_BASE_PARALLEL_H

#include "base/err.h"

#include <stdint.h>

enum {
    PARALLEL_THREADS_MAX = 4,  /* the caller's counted */
    PARALLEL_NBYTES = 32 << 20 /* to move, for each thread; less is not worth one */
};

/* @thread  below PARALLEL_THREADS_MAX: no two calls with the same one are at the same time */
typedef int parallel_fn(void *arg, unsigned thread, uint64_t i, struct err *e);

/* parallel_run - call fn for each of [0, n), in ascending order.
 * @nbytes  that all of them move: says how many threads are worth it
 * @name    of the threads, at most 15 bytes
 * Threads: any, no lock held. Blocks: until all calls have returned; the threads have ended then.
 * If one cannot be created, fewer do the work. Errors: that of the lowest i whose call failed.
 * Those below it were all called; of those above it, some. */
int parallel_run(parallel_fn *fn, void *arg, uint64_t n, uint64_t nbytes, const char *name,
                 struct err *e);

#endif
