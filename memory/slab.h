/* A slab: one block of memory, of the host or of one GPU, that holds buckets. Slabs are
 * reference-counted, because versions share them. */
#ifndef BATON_MEMORY_SLAB_H
#define BATON_MEMORY_SLAB_H

#include "base/err.h"
#include "memory/memory.h"

#include <stdint.h>

struct slab_pool;

struct slab {
    union {
        void *base;    /* host memory: page aligned */
        uint64_t addr; /* any memory: the same as a number; the host must not access a GPU's */
    };
    uint64_t nbytes; /* usable */
};

/* The source of a pool's memory. The callbacks may block and take no lock of the pool. */
struct slab_memory {
    /* Allocate whole granules. Errors: ERR_NO_STAGING (not enough memory now), ERR_CUDA. */
    int (*take)(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e);
    void (*give)(void *arg, uint64_t addr, uint64_t nbytes);
    /* How much could be allocated now, and what limits it. */
    struct memory_room (*room)(void *arg);
    uint64_t granule_nbytes; /* > 0 */
    void *arg;
};

/* A pool keeps freed slabs for the next update, because new pages cost more than the copy.
 * @memory       copied; NULL for this process's ordinary memory
 * @nbytes_max   bound on live bytes (staging and served together); UINT64_MAX for none
 * @nbytes_idle  bound on the bytes kept idle */
int slab_pool_new(struct slab_pool **out, const struct slab_memory *memory, uint64_t nbytes_max,
                  uint64_t nbytes_idle, struct err *e);
void slab_pool_free(struct slab_pool *p); /* every slab must be released; accepts NULL */

/* slab_pool_check - could `nbytes` more be allocated now, within --max-weight-bytes, MemAvailable,
 * the control group and the GPU's memory?
 * Errors: ERR_NO_STAGING, with the bytes needed and available, and the bound. */
int slab_pool_check(struct slab_pool *p, uint64_t nbytes, struct err *e);

/* slab_pool_room - how many bytes slab_pool_check would accept now, and what limits them. */
struct memory_room slab_pool_room(struct slab_pool *p);

/* slab_new - one slab with one reference; contents undefined. Errors: ERR_NO_STAGING, ERR_CUDA.
 * Threads: any; takes MTX_LEAF. Blocks: as its memory does (the host's: no; pages are allocated at
 * the first access). */
int slab_new(struct slab **out, struct slab_pool *p, uint64_t nbytes, struct err *e);
struct slab *slab_ref(struct slab *s);
void slab_unref(struct slab *s); /* accepts NULL; the last reference returns it to the pool */
/* The same for `n` references at once: a version has up to a hundred thousand views of one slab. */
void slab_ref_many(struct slab *s, size_t n);
void slab_unref_many(struct slab *s, size_t n); /* accepts NULL */

/* slab_quarantine - mark a slab to which a copy may write at any later time: once the last
 * reference is dropped, its memory is neither used again nor returned. Repeating is harmless.
 * Threads: any that holds a reference. */
void slab_quarantine(struct slab *s);

/* slab_pool_trim - return the idle slabs to the system. Returns the number of bytes. Threads: any.
 * Blocks: as its memory does. */
uint64_t slab_pool_trim(struct slab_pool *p);

struct slab_stats {
    uint64_t nbytes_live, nbytes_idle;
    uint64_t n_live;
};
void slab_pool_stats(struct slab_pool *p, struct slab_stats *out);

#endif
