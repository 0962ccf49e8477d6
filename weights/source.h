/* The interface of a source of tensor bytes; transport/ implements one for each transport.
 *
 * There are three kinds. The first writes the bytes into host memory itself (fill). The second only
 * makes them readable on the GPUs where they are (map, at), and the worker queues the copies: so
 * copies, sums and their order are in one place, and the next bucket is mapped while the last one
 * is copied. The third writes whole buckets into GPU memory itself (post, receive), directly to
 * their final address if they can stay there unchanged; several buckets are in flight at once, so
 * that no time is lost between two.
 *
 * One thread uses a source, one call at a time, no lock held: the update worker, or the thread that
 * copies an adapter or checks the first weights in host memory (weights/update/host_copy.h). */
#ifndef BATON_WEIGHTS_SOURCE_H
#define BATON_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

struct source;
struct device_made; /* memory/device.h */

enum {
    SOURCE_PIECE_NBYTES = 8 << 20,
    SOURCE_REPORT_NBYTES = 256 << 10, /* reported at once: fits in a processor's cache */
    SOURCE_POSTED_MAX = 16 /* buckets of the third kind in flight; they need no memory of their own,
                              and a small one takes less time than waking a thread */
};

/* State that the sources of one update share: mappings that stay open, exports that have been
 * counted down. The update owns it, and closes it at its end, when all sources that joined are
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

/* Whether map waits for a bucket that is not ready yet. */
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

    /* The second kind has these five, and no fill.
     *
     * join: joins the update's scope, or makes it if *scope is NULL. Called once, first.
     *
     * map: makes tensors [first, first + *n) of rank `rank` readable on that rank's GPU: one
     * bucket, at least one tensor. Called with ascending `first` for each rank. Returns: 0; 1 if it
     * is not ready yet, only with SOURCE_TRY (nothing is lost: call again); -1 with ERR_BAD_REQUEST
     * (the bucket is shorter than declared: names it), ERR_CUDA, ERR_GONE (its process has died),
     * ERR_TIMEOUT, ERR_CONFLICT (stopped), ERR_NO_MEMORY.
     *
     * at: the address of tensor i's bytes on that GPU; after map, until release.
     *
     * block: identifies the allocation that holds tensor i's bytes: one copy never spans two
     * allocations, even if they are adjacent.
     *
     * release: gives up its mappings and counts exports down. Called once after join, when nothing
     * reads any more, whether the copies succeeded or not; also if join or map failed.
     * Errors: ERR_GONE (an exporter has died meanwhile: what was copied may be torn). */
    int (*join)(struct source *s, struct source_scope **scope, struct err *e);
    int (*map)(struct source *s, uint32_t rank, uint32_t first, enum source_wait wait,
               const struct progress *p, uint32_t *n, struct err *e);
    uint64_t (*at)(const struct source *s, uint32_t rank, uint32_t i);
    uint64_t (*block)(const struct source *s, uint32_t rank, uint32_t i);
    int (*release)(struct source *s, struct err *e);

    /* The third kind has these four, and none of the above. Every rank gets the same bytes.
     *
     * bucket: how many tensors from `first` on form one bucket, packed; at least one.
     *
     * post: from now on the bucket may be written to dst[r] on each rank r ([n_ranks], copied).
     * Called for every bucket in order, while fewer than SOURCE_POSTED_MAX are posted and not
     * received. Does not wait for the bucket; the first call may wait for a sender.
     *
     * receive: blocks until the oldest bucket that is posted and not received has arrived. The
     * caller counts its bytes in p.
     *
     * Errors of both: ERR_TIMEOUT, ERR_CONFLICT (stopped, the group was left), ERR_GONE, ERR_NCCL,
     * ERR_CUDA. After an error neither is called again, and nothing writes to a posted bucket any
     * more, unless `stuck` is true.
     *
     * stuck: called after such an error: may something still write, at any later time, to a bucket
     * that is posted and not received? That memory must then not be used again, nor freed. */
    uint32_t (*bucket)(const struct source *s, uint32_t first);
    int (*post)(struct source *s, uint32_t first, uint32_t n, const uint64_t *dst,
                struct progress *p, struct err *e);
    int (*receive)(struct source *s, struct progress *p, struct err *e);
    bool (*stuck)(const struct source *s);

    /* made: what a source of the third kind itself made of the tensors that were received on a
     * rank: [n_tensors], owned by the source, sums and checks for numbers that are not finite
     * included. NULL: the worker makes it. */
    const struct device_made *(*made)(const struct source *s, uint32_t rank);

    /* share: of a source that makes tensors of what another one brings: the scope of the update,
     * for that one. Called before all others, if the source is an update's. NULL: it has
     * none. */
    void (*share)(struct source *s, struct source_scope **scope);

    /* group: identifies the group whose broadcasts a source of the third kind receives; not 0.
     * NULL: none. */
    uint64_t (*group)(const struct source *s);

    /* Called after the last fill or receive: fails if there are bytes that the request did not
     * declare. May be NULL. */
    int (*finish)(struct source *s, struct progress *p, struct err *e);

    void (*close)(struct source *s); /* accepts NULL; frees; cannot fail */
};

/* Embedded as the first member of every source. */
struct source {
    const struct source_ops *ops;
};

static inline uint64_t source_group(const struct source *s)
{
    return s != NULL && s->ops->group != NULL ? s->ops->group(s) : 0;
}

static inline void source_close(struct source *s)
{
    if (s != NULL)
        s->ops->close(s);
}

#endif
