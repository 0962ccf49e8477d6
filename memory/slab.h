/* A slab: one block of memory, of the host or of one GPU, that holds buckets. Counted: versions
 * share slabs. */
#ifndef BATON_MEMORY_SLAB_H
#define BATON_MEMORY_SLAB_H

#include "base/err.h"
#include "memory/memory.h"

#include <stdint.h>

struct slab_pool;

struct slab {
    union {
        void *base;    /* host memory: page aligned */
        uint64_t addr; /* any memory: the same as a number; a GPU's is not for the host to touch */
    };
    uint64_t nbytes; /* usable */
};

/* Where a pool's memory comes from. Calls may block and take no lock of the pool's. */
struct slab_memory {
    /* Whole granules. Errors: ERR_NO_STAGING (there is no such memory now), ERR_CUDA. */
    int (*take)(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e);
    void (*give)(void *arg, uint64_t addr, uint64_t nbytes);
    /* How much could be taken now, and what bounds it. */
    struct memory_room (*room)(void *arg);
    uint64_t granule_nbytes; /* > 0 */
    void *arg;
};

/* A pool keeps freed slabs for the next update, because fresh pages cost more than the copy.
 * @memory       copied; NULL for this process's ordinary memory
 * @nbytes_max   bound on live bytes (staging and served together); UINT64_MAX for none
 * @nbytes_idle  bound on the bytes kept idle */
int slab_pool_new(struct slab_pool **out, const struct slab_memory *memory, uint64_t nbytes_max,
                  uint64_t nbytes_idle, struct err *e);
void slab_pool_free(struct slab_pool *p); /* every slab must be back; accepts NULL */

/* slab_pool_check - could `nbytes` more be had now? (--max-weight-bytes, MemAvailable, the cgroup,
 * the GPU) Errors: ERR_NO_STAGING: needed, available, and which bound refuses. */
int slab_pool_check(struct slab_pool *p, uint64_t nbytes, struct err *e);

/* slab_pool_room - how many bytes slab_pool_check would accept now, and what bounds them. */
struct memory_room slab_pool_room(struct slab_pool *p);

/* slab_new - one slab with one reference; contents undefined. Errors: ERR_NO_STAGING, ERR_CUDA.
 * Threads: any; takes MTX_LEAF. Blocks: as its memory does (the host's: no, pages come on first
 * touch). */
int slab_new(struct slab **out, struct slab_pool *p, uint64_t nbytes, struct err *e);
struct slab *slab_ref(struct slab *s);
void slab_unref(struct slab *s); /* accepts NULL; the last one gives it back to the pool */
/* The same of `n` references at once: a version's views are a hundred thousand of one slab. */
void slab_ref_many(struct slab *s, size_t n);
void slab_unref_many(struct slab *s, size_t n); /* accepts NULL */

/* slab_quarantine - something may write to it for ever: once the last reference is gone, its memory
 * is neither used again nor given back. Repeating is harmless. Threads: any that holds a reference.
 */
void slab_quarantine(struct slab *s);

/* slab_pool_trim - give the idle slabs back. Returns: how many bytes. Threads: any. Blocks: as its
 * memory does. */
uint64_t slab_pool_trim(struct slab_pool *p);

struct slab_stats {
    uint64_t nbytes_live, nbytes_idle;
    uint64_t n_live;
};
void slab_pool_stats(struct slab_pool *p, struct slab_stats *out);

#endif
