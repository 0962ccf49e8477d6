/* A slab: one block of host memory that holds a bucket. Counted: versions share slabs. */
#ifndef BATON_WEIGHTS_SLAB_H
#define BATON_WEIGHTS_SLAB_H

#include "base/err.h"

#include <stdint.h>

struct slab_pool;

struct slab {
    void *base;      /* page aligned */
    uint64_t nbytes; /* usable */
};

/* A pool keeps freed slabs for the next update, because fresh pages cost more than the copy.
 * @nbytes_max   bound on live bytes (staging and served together); UINT64_MAX for none
 * @nbytes_idle  bound on the bytes kept idle */
int slab_pool_new(struct slab_pool **out, uint64_t nbytes_max, uint64_t nbytes_idle, struct err *e);
void slab_pool_free(struct slab_pool *p); /* every slab must be back; accepts NULL */

/* slab_pool_check - could `nbytes` more be had now? (--max-weight-bytes, MemAvailable, the cgroup)
 * Errors: ERR_NO_STAGING: needed, available, and which bound refuses. */
int slab_pool_check(struct slab_pool *p, uint64_t nbytes, struct err *e);

/* slab_new - one slab with one reference; contents undefined. Errors: ERR_NO_STAGING.
 * Threads: any; takes MTX_LEAF. Blocks: no (pages come on first touch). */
int slab_new(struct slab **out, struct slab_pool *p, uint64_t nbytes, struct err *e);
struct slab *slab_ref(struct slab *s);
void slab_unref(struct slab *s); /* accepts NULL; the last one gives it back to the pool */

struct slab_stats {
    uint64_t nbytes_live, nbytes_idle;
    uint64_t n_live;
};
void slab_pool_stats(struct slab_pool *p, struct slab_stats *out);

#endif
