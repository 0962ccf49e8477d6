/* Where tensor bytes come from, without knowing from where: transport/ has one file for each.
 *
 * Three kinds. One writes the bytes into host memory itself (fill). The second only makes them
 * readable where they lie on GPUs (map, at), and the worker queues the copies: so copies, sums and
 * their order are in one place, and the next bucket is mapped while the last one is copied. The
 * third writes whole buckets into GPU memory itself (post, receive), in place wherever they may lie
 * there as they come; several are under way at once, so that nothing idles between two.
 *
 * A source is used by the update worker only, one call at a time, no lock held. */
#ifndef BATON_WEIGHTS_SOURCE_H
#define BATON_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

struct source;

enum {
    SOURCE_PIECE_NBYTES = 8 << 20,
    SOURCE_CAME_NBYTES = 256 << 10, /* to be told of at once: what a processor's cache holds */
    SOURCE_POSTED_MAX =
        16 /* buckets of the third kind that are under way; none needs memory of its
              own, and the smallest are over in less time than waking a thread takes */
};

/* What the sources of one update keep for each other: mappings that stay open, exports that have
 * been counted down. The update owns it and closes it at its end, when all that joined are
 * released. Worker only. */
struct source_scope;

struct source_counts {
    uint64_t n_opened, n_closed, n_mapped; /* mappings of foreign memory: ever, ever, now */
};

struct source_scope_ops {
    void (*counts)(const struct source_scope *scope, struct source_counts *out);
    void (*close)(struct source_scope *scope); /* unmaps everything; cannot fail */
};

struct source_scope {
    const struct source_scope_ops *ops;
};

static inline void source_scope_close(struct source_scope *scope)
{
    if (scope != NULL)
        scope->ops->close(scope);
}

/* Whether map waits for what is not ready yet. */
enum source_wait { SOURCE_WAIT, SOURCE_TRY };

struct source_ops {
    const char *name; /* as in the request: "shm", "path", "body" */

    /* Fills exactly tensors [first, first + n) of the tensor list, packed, at dst (host memory, any
     * alignment). Called with ascending, non-overlapping ranges. Adds to p->nbytes_done. After a
     * failure the content of dst is undefined.
     * Errors: ERR_UNREADABLE (shrunk, closed, short: names the tensor), ERR_TIMEOUT, ERR_CONFLICT
     * (stopped), ERR_GONE. */
    int (*fill)(struct source *s, const struct tensor_list *tensor_list, uint32_t first, uint32_t n,
                void *dst, struct progress *p, struct err *e);

    /* The other kind has these five, and no fill.
     *
     * join: takes part in the update's scope, or makes it (*scope NULL). Called once, first.
     *
     * map: makes tensors [first, first + *n) of rank `rank` readable on that rank's GPU: one
     * bucket, at least one tensor. Called with ascending `first` for each rank. Returns: 0; 1 if it
     * is not ready yet, only with SOURCE_TRY (nothing is lost: call again); -1 with ERR_BAD_REQUEST
     * (the bucket is shorter than it was said to be: names it), ERR_CUDA, ERR_GONE (its process has
     * died), ERR_TIMEOUT, ERR_CONFLICT (stopped), ERR_NO_MEMORY.
     *
     * at: the address of tensor i's bytes on that GPU; after map, until release.
     *
     * block: names the allocation that tensor i's bytes lie in: one copy never reaches into two,
     * even where they are neighbours.
     *
     * release: nothing reads any more, whether the copies succeeded or not: lets go of mappings and
     * counts exports down. Called once after join, also if that or map failed.
     * Errors: ERR_GONE (an exporter has died meanwhile: what was copied may be torn). */
    int (*join)(struct source *s, struct source_scope **scope, struct err *e);
    int (*map)(struct source *s, uint32_t rank, uint32_t first, enum source_wait wait,
               const struct progress *p, uint32_t *n, struct err *e);
    uint64_t (*at)(const struct source *s, uint32_t rank, uint32_t i);
    uint64_t (*block)(const struct source *s, uint32_t rank, uint32_t i);
    int (*release)(struct source *s, struct err *e);

    /* The third kind has these four, and none of the others'. Every rank gets the same bytes.
     *
     * bucket: how many tensors from `first` on come in one piece, packed; at least one.
     *
     * post: that bucket may come to dst[r] on each rank r ([n_ranks], copied) from now on. Called
     * for every bucket in order, while fewer than SOURCE_POSTED_MAX are posted and not received.
     * Does not wait for the bucket; the first may wait until there is a sender at all.
     *
     * receive: blocks until the oldest bucket that was posted and not received is there. Counting
     * in p is left to the caller.
     *
     * Errors of both: ERR_TIMEOUT, ERR_CONFLICT (stopped, the group was left), ERR_GONE, ERR_NCCL,
     * ERR_CUDA. After one neither is called again, and nothing writes to any bucket that was posted
     * any more, unless it is stuck.
     *
     * stuck: asked after such an error: may something write for ever where a bucket was posted to
     * and not received? Then that memory must not be used again, nor given back. */
    uint32_t (*bucket)(const struct source *s, uint32_t first);
    int (*post)(struct source *s, uint32_t first, uint32_t n, const uint64_t *dst,
                struct progress *p, struct err *e);
    int (*receive)(struct source *s, struct progress *p, struct err *e);
    bool (*stuck)(const struct source *s);

    /* After the last fill or receive: is there something that nobody declared? May be NULL. */
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
