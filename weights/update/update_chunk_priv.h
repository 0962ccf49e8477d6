/* One chunk on its way in, as update_chunk.c, update_copies.c, update_fill.c, update_map.c and
 * update_recv.c share it. */
#ifndef BATON_WEIGHTS_UPDATE_UPDATE_CHUNK_PRIV_H
#define BATON_WEIGHTS_UPDATE_UPDATE_CHUNK_PRIV_H

#include "memory/device.h"
#include "weights/update/update_priv.h"

/* Received buckets that do not come to lie where they stay pass through two of these in turn: one
 * is emptied while the other one is filled. */
enum { BOUNCES_MAX = 2, BOUNCE_NONE = BOUNCES_MAX };
struct bounce_buffer {
    struct slab *slab;          /* counted; of the rank's place; NULL: none is needed */
    struct device_batch *batch; /* owned; what empties it */
};

/* What comes for one rank. */
struct rank_fill {
    const struct tensor_list *tensor_list; /* borrowed; NULL: nothing */
    const struct layout *layout;           /* borrowed */
    const struct checksum *checksums;      /* borrowed; [n_tensors] or NULL */
    const bool *has_checksum;              /* borrowed; [n_tensors]; NULL: all, if there are any */
    struct staging_memory room;            /* of the rank's place */
    struct staging_memory mirror;          /* of the host's copy */
    bool mirrored;                         /* its tensors go to the host's copy too */

    /* Mapped and received chunks. */
    struct device_batch *batch; /* owned */
    struct device_made *made;   /* owned; [n_tensors] of what came, or NULL */
    uint32_t next;              /* the first tensor of which nothing is queued */

    /* Received chunks. */
    struct bounce_buffer bounces[BOUNCES_MAX];
    uint32_t n_bounces;        /* so many there are */
    uint32_t bounce_posted;    /* the one that a bucket was posted to last */
    uint32_t n_bounces_posted; /* so many that have not come: posted in turn, and come in turn */
    uint32_t bounce, bucket;   /* of the bucket that came last: its bounce buffer, or BOUNCE_NONE if
                                it stays where it is; its first tensor */
};

/* A bucket that has been posted and has not come. */
struct posted {
    uint32_t first, n;
    uint8_t bounces[STORE_DEVICES_MAX]; /* of each rank; BOUNCE_NONE: it comes to where it stays */
};

enum { MIRRORS_NONE = STORE_DEVICES_MAX };

/* Worker only. */
struct fill {
    struct update_job *job;  /* borrowed */
    struct session *session; /* borrowed */
    struct staging *staging; /* borrowed; dangles once the session has ended */
    struct store *store;     /* borrowed */
    const struct model_spec *m;
    struct source *source; /* borrowed */
    uint64_t pin_deadline_us;
    bool joined;
    bool stuck;             /* received chunks: something may write to their rooms for ever */
    uint32_t n_ties;        /* of the session before this chunk */
    struct slab *scratch;   /* host memory for one tensor as it came, or NULL */
    struct slab *converted; /* the same as it will be, or NULL */
    struct slab **tied; /* received chunks: owned; [n_tied] for tied names yet to come, or NULL */
    uint32_t n_tied;
    struct posted posted[SOURCE_POSTED_MAX]; /* received chunks: a ring, the oldest at i_posted */
    uint32_t i_posted, n_posted;
    unsigned char *mirrors; /* owned; [n_tensors] of the model spec: the rank from which the host's
                               copy takes each, or MIRRORS_NONE; NULL: every rank gets the same */
    enum non_finite_policy non_finite;
    atomic_uchar *marks; /* owned; [n_tensors] of the tensor list, of sources that fill: what was
                            seen of each, relaxed; NULL: nobody has looked */
    uint32_t n_ranks;
    struct rank_fill ranks[]; /* [n_ranks] */
};

/* A room in a place: where targets lie. */
struct dst_region {
    uint32_t place;
    const struct staging_memory *room;
};

static inline struct dst_region dst_region_of_rank(const struct fill *f, uint32_t rank)
{
    return (struct dst_region){rank, &f->ranks[rank].room};
}

static inline struct dst_region dst_region_of_mirror(const struct fill *f, uint32_t rank)
{
    return (struct dst_region){store_host_place(f->store), &f->ranks[rank].mirror};
}

/* Where target k of a part will lie. */
uint64_t dst_region_target(const struct fill *f, struct dst_region at, const struct part *part,
                           uint32_t k);

/* Does the host's copy take target `index` from this rank? The first that brings it gives it. */
bool fill_mirrors(const struct fill *f, uint32_t rank, uint32_t index);

static inline const struct tensor_spec *target_spec(const struct fill *f, uint32_t index)
{
    return &f->m->tensor_list->tensors[index];
}

/* Is there a checksum for tensor i? */
static inline bool rank_has_sum(const struct rank_fill *r, uint32_t i)
{
    return r->checksums != NULL && (r->has_checksum == NULL || r->has_checksum[i]);
}

int fill_verify(const struct fill *f, uint32_t rank, uint32_t i, const struct checksum *found,
                struct err *e);

/* Host memory for a tensor: as it came, and as it will be. */
int fill_scratch(struct fill *f, void **out, struct err *e);
int fill_converted(struct fill *f, void **out, struct err *e);

/* update_finite.c: numbers that are not finite. By the policy they are an error (ERR_NON_FINITE at
 * /names/<i>), noted in the job and logged, or not looked for.
 *
 * finite_fill: the source's fill of tensors [first, first + n) at dst, and a look at all of it;
 * finite_check_filled: what was seen of one of them, which lies at `bytes`.
 * finite_check_host: looks at tensor i of a rank, as it came, in host memory.
 * finite_check_converted: looks at what became of it, or of a part of it.
 * finite_copied: the dtype as which a GPU looks at what it copies and sums, DTYPE_NONE if at
 * nothing; finite_check_copied: looks at it in host memory, at the places that it was copied to. */
int finite_fill(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e);
int finite_check_filled(const struct fill *f, uint32_t i, const void *bytes, struct err *e);
int finite_check_host(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                      struct err *e);
int finite_check_converted(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                           const struct tensor_spec *to, struct err *e);
enum dtype finite_copied(const struct fill *f, uint32_t rank, uint32_t i);
int finite_check_copied(struct fill *f, uint32_t rank, uint32_t i, struct err *e);

/* Of what is the same for every rank: a tensor that came to `from` in host memory and cannot be
 * served as it is goes to every place (CONVERT), or is compared (IGNORED). update_fill.c */
int fill_land(struct fill *f, uint32_t i, const void *from, struct err *e);

/* The place that stands for all of them when a tied name came to every rank. */
static inline uint32_t fill_tied_place(const struct fill *f)
{
    return store_has_host(f->store) ? store_host_place(f->store) : 0;
}

/* Keeps the bytes of a tied name, tensor i of a rank, in a slab that is moved in, until they can be
 * compared. */
int fill_keep_tie(struct fill *f, uint32_t rank, uint32_t i, uint32_t place, bool everywhere,
                  struct slab *slab, struct err *e);

/* update_copies.c: what is queued on GPUs. */

/* Tensors [first, first + n) of a rank. */
struct span {
    uint32_t rank, first, n;
};

/* One side of a copy: an address, and the allocation that it lies in. */
struct end {
    uint64_t addr, block;
};

/* Where tensor i of a rank came. */
typedef struct end came_fn(const struct fill *f, uint32_t rank, uint32_t i);

struct end dst_region_end(const struct fill *f, struct dst_region at, const struct part *part,
                          uint32_t k);

/* Where all of a span lies back to back on its rank, as it comes; or 0. */
uint64_t span_place(const struct fill *f, struct span span);

/* Queues the copies of what is DIRECT, and the sums of everything if the rank wants sums; where a
 * span came to where it stays, only those. Errors: ERR_CUDA, ERR_NO_MEMORY: some may be queued. */
int span_copy(const struct fill *f, struct span span, struct device_batch *b, came_fn *came,
              struct err *e);

/* From the rank's place to the host's copy, behind the copies that bring it there. */
int span_mirror(const struct fill *f, struct span span, struct device_batch *b, struct err *e);

/* update_replicas.c. Do ranks get different lists, so that what they share has to be compared? The
 * sums of such a chunk's tensors are remembered once it has arrived, and compared by finish. */
bool replicas_wanted(const struct fill *f);
int replicas_prepare(struct fill *f, struct err *e); /* Errors: ERR_NO_MEMORY */
void replicas_record(const struct fill *f, uint32_t rank);

/* A batch, and room for the sums. Repeating is harmless. Errors: ERR_CUDA, ERR_NO_MEMORY. */
int rank_prepare(struct fill *f, uint32_t rank, struct err *e);
/* The sums against those that were said, and a look at what is suspect. Errors: ERR_CHECKSUM,
 * ERR_NON_FINITE, ERR_CUDA, ERR_NO_MEMORY. */
int rank_verify(struct fill *f, uint32_t rank, struct err *e);

/* update_recv.c: memory on the GPUs and the host that a received chunk needs beside its rooms.
 * After an error nothing is held. Errors: ERR_NO_STAGING, ERR_NO_MEMORY, ERR_CUDA. */
int chunk_recv_take(struct fill *f, struct err *e);
void chunk_recv_give(struct fill *f); /* nothing uses it any more; repeating is harmless */

#endif
