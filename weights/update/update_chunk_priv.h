/* The state of one chunk that is being received, shared by update_chunk.c, update_copies.c,
 * update_fill.c, update_map.c and update_recv.c. */
#ifndef BATON_WEIGHTS_UPDATE_UPDATE_CHUNK_PRIV_H
#define BATON_WEIGHTS_UPDATE_UPDATE_CHUNK_PRIV_H

#include "memory/device.h"
#include "weights/update/update_priv.h"

/* Received buckets whose tensors do not stay where they arrive pass through two bounce buffers by
 * turns: one is emptied while the other one is filled. Buckets of which a rank keeps nothing are
 * all received in a third one, each over the one before it. */
enum { BOUNCES_MAX = 2, BOUNCE_DROPPED = BOUNCES_MAX, BOUNCE_NONE };
struct bounce_buffer {
    struct slab *slab;          /* one reference; in the rank's place; NULL: not needed */
    struct device_batch *batch; /* owned; the copies that empty it */
};

/* The part of a chunk for one rank. */
struct rank_fill {
    const struct tensor_list *tensor_list; /* borrowed; NULL: the rank gets no tensors */
    const struct layout *layout;           /* borrowed */
    struct layout *share; /* counted; the same, in a sharded store; NULL: the job's is used */
    const struct checksum *checksums; /* borrowed; [n_tensors] or NULL */
    const bool *has_checksum;         /* borrowed; [n_tensors]; NULL: all, if `checksums` is set */
    struct staging_memory room;       /* staging in the rank's place */
    struct staging_memory mirror;     /* staging in the host backup */
    bool mirrored;                    /* its tensors are also copied to the host backup */

    /* mapped and received chunks */
    struct device_batch *batch; /* owned */
    struct device_made *made;   /* owned; [n_tensors] results for the received tensors, or NULL */
    uint32_t next;              /* the first tensor without a queued copy */

    /* received chunks */
    struct bounce_buffer bounces[BOUNCE_DROPPED + 1];
    uint32_t n_bounces;        /* number of bounce buffers that are emptied */
    uint32_t bounce_posted;    /* the buffer that was posted last */
    uint32_t n_bounces_posted; /* posted buffers whose bucket has not arrived; they arrive in the
                                  order of posting */
    uint32_t bounce, bucket; /* of the last received bucket: its bounce buffer, or BOUNCE_NONE if it
                                stays where it arrived; its first tensor */
};

/* A bucket that was posted and has not arrived. */
struct posted {
    uint32_t first, n;
    uint8_t bounces[STORE_DEVICES_MAX]; /* of each rank; BOUNCE_NONE: it arrives where it stays */
};

enum { MIRRORS_NONE = STORE_DEVICES_MAX };

/* Worker only. */
struct fill {
    struct update_job *job;  /* borrowed */
    struct session *session; /* borrowed */
    struct staging *staging; /* borrowed; invalid once the session has ended */
    struct store *store;     /* borrowed */
    const struct model_spec *m;
    struct source *source; /* borrowed */
    uint64_t pin_deadline_us;
    bool joined;
    bool stuck;             /* received chunks: their memory may still be written to at any time */
    uint32_t n_ties;        /* of the session, before this chunk */
    struct slab *scratch;   /* host memory for one tensor as received, or NULL */
    struct slab *converted; /* host memory for it as served, or NULL */
    struct slab *
        *tied; /* received chunks: owned; [n_tied] for tied names that have not arrived, or NULL */
    uint32_t n_tied;
    struct posted posted[SOURCE_POSTED_MAX]; /* received chunks: a ring, the oldest at i_posted */
    uint32_t i_posted, n_posted;
    unsigned char
        *mirrors; /* owned; [n_tensors] of the model spec: the rank from which the host backup takes
                     each, or MIRRORS_NONE; NULL: all ranks get the same tensors */
    enum non_finite_policy non_finite;
    struct piece_sum *sums; /* owned; [n_tensors] of the tensor list, for sources that fill */
    atomic_uchar *marks;    /* owned; the same: findings of values that are not finite, relaxed;
                               NULL: values are not checked */
    uint32_t n_ranks;
    const struct layout *common; /* borrowed; where all ranks get the same: what the chunk brings,
                                    whichever ranks keep it */
    struct rank_fill ranks[];    /* [n_ranks] */
};

/* Staging memory in a place, which contains the targets. */
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

/* dst_region_target - the address of target k of a part. */
uint64_t dst_region_target(const struct fill *f, struct dst_region at, const struct part *part,
                           uint32_t k);

/* fill_mirrors - does the host backup take target `index` from this rank? The first rank that
 * brings it provides it. */
bool fill_mirrors(const struct fill *f, uint32_t rank, uint32_t index);

static inline const struct tensor_spec *target_spec(const struct fill *f, uint32_t index)
{
    return &f->m->tensor_list->tensors[index];
}

/* Is the checksum of tensor i made where it arrives? One that another rank keeps is summed where
 * its bytes may be others: a broadcast brings the same to all. */
static inline bool rank_sums(const struct fill *f, uint32_t rank, uint32_t i)
{
    return f->source->ops->map != NULL || f->ranks[rank].layout->parts[i].how != PART_ELSEWHERE;
}

/* Is there a checksum for tensor i? */
static inline bool rank_has_sum(const struct rank_fill *r, uint32_t i)
{
    return r->checksums != NULL && (r->has_checksum == NULL || r->has_checksum[i]);
}

int fill_verify(const struct fill *f, uint32_t rank, uint32_t i, const struct checksum *found,
                struct err *e);

/* fill_scratch, fill_converted - host memory for a tensor as received, and as served. */
int fill_scratch(struct fill *f, void **out, struct err *e);
int fill_converted(struct fill *f, void **out, struct err *e);

/* update_pieces.c: fill tensors [first, first + n) at dst by the source, and look at all of them on
 * the way. Errors: the source's, ERR_NO_MEMORY. */
int pieces_fill(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e);
struct checksum pieces_sum(const struct fill *f, uint32_t i); /* of a filled tensor, as sent */
/* May it have values that are not finite? finite_check_filled decides. */
bool pieces_suspect(const struct fill *f, uint32_t i);

/* update_changes.c: the digests of part i, which pieces_fill has filled and which is at `bytes`, or
 * of all parts of a rank that GPUs have copied, if they are served as they arrived. Of ranks that
 * bring the same tensor, the first one's counts. */
void digests_set_filled(struct fill *f, uint32_t i, const char *bytes);
void digests_set_copied(const struct fill *f, uint32_t rank);
/* The digests of a chunk that failed: its tensors may come again, from a source of other bytes. */
void digests_forget(const struct fill *f);

/* update_finite.c: values that are not finite. The policy decides whether they are an error
 * (ERR_NON_FINITE at /names/<i>), are recorded in the job and logged, or are not checked for.
 *
 * finite_is_checked: does the check apply to tensor i of a rank?
 * finite_check_filled: evaluate the findings of pieces_fill on tensor i, which is at `bytes`.
 * finite_check_host: check tensor i of a rank, as received, in host memory.
 * finite_check_converted: check the converted tensor, or a part of it.
 * finite_copied: the dtype for the check in the GPU's copy and checksum, DTYPE_NONE for no check.
 * finite_check_copied: check the tensor in host memory, at the addresses it was copied to. */
bool finite_is_checked(const struct rank_fill *r, uint32_t i);
int finite_check_filled(const struct fill *f, uint32_t i, const void *bytes, struct err *e);
int finite_check_host(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                      struct err *e);
int finite_check_converted(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                           const struct tensor_spec *to, struct err *e);
enum dtype finite_copied(const struct fill *f, uint32_t rank, uint32_t i);
int finite_check_copied(struct fill *f, uint32_t rank, uint32_t i, struct err *e);

/* update_fill.c: fill_land - a tensor that is the same for all ranks is at `from` in host memory
 * and cannot be served as it is: convert it into every place (CONVERT), or compare it (IGNORED). */
int fill_land(struct fill *f, uint32_t i, const void *from, struct err *e);

/* update_prove.c: repeat_compare - compare a part that another rank of the trainer sent before with
 * what has arrived in a place. @from  as received, in host memory
 * Errors: ERR_MISMATCH at /names/<i>, ERR_CONFLICT (it has not arrived), ERR_CUDA, ERR_NO_MEMORY.
 */
int repeat_compare(struct fill *f, uint32_t rank, uint32_t place, uint32_t i, const void *from,
                   struct err *e);

/* The place whose comparison is valid for all places, when a tied name arrived on every rank. */
static inline uint32_t fill_tied_place(const struct fill *f)
{
    return store_has_host(f->store) ? store_host_place(f->store) : 0;
}

/* fill_keep_tie - keep the bytes of a tied name, tensor i of a rank, until they can be compared.
 * The slab is moved in. */
int fill_keep_tie(struct fill *f, uint32_t rank, uint32_t i, uint32_t place, bool everywhere,
                  struct slab *slab, struct err *e);

/* update_copies.c: copies queued on GPUs */

/* Tensors [first, first + n) of a rank. */
struct span {
    uint32_t rank, first, n;
};

/* One side of a copy: an address, and the allocation that contains it. */
struct end {
    uint64_t addr, block;
};

/* The address at which tensor i of a rank arrived. */
typedef struct end arrived_at_fn(const struct fill *f, uint32_t rank, uint32_t i);

struct end dst_region_end(const struct fill *f, struct dst_region at, const struct part *part,
                          uint32_t k);

/* span_place - the address of a span that is contiguous on its rank, unchanged; or 0. */
uint64_t span_place(const struct fill *f, struct span span);

/* span_copy - queue the copies of DIRECT tensors, and the checksums of all tensors if the rank
 * needs checksums. If a span arrived where it stays, only the checksums. Errors: ERR_CUDA,
 * ERR_NO_MEMORY: some may be queued. */
int span_copy(const struct fill *f, struct span span, struct device_batch *b, arrived_at_fn *came,
              struct err *e);

/* span_mirror - queue the copies from the rank's place to the host backup, after those that fill
 * the place. */
int span_mirror(const struct fill *f, struct span span, struct device_batch *b, struct err *e);

/* update_replicas.c: replicas_wanted - do ranks get different lists, so that tensors they share
 * must be compared? The checksums of such a chunk are recorded once it has arrived, and finish
 * compares them. replicas_need - is tensor i, which another rank keeps, compared by a checksum that
 * its copy has not made? replicas_note records it, as served;
 * replicas_sum_pieces, after the copies, those of a fused tensor's pieces. Errors: ERR_CUDA. */
bool replicas_wanted(const struct fill *f);
bool replicas_need(const struct fill *f, uint32_t rank, uint32_t i);
int replicas_sum_pieces(const struct fill *f, uint32_t rank, uint32_t i, struct err *e);
void replicas_note(const struct fill *f, uint32_t rank, uint32_t index, const struct checksum *sum);
int replicas_prepare(struct fill *f, struct err *e); /* Errors: ERR_NO_MEMORY */
void replicas_record(const struct fill *f, uint32_t rank);

/* rank_prepare - create the batch and the memory for checksums, which all tensors of a delta get:
 * its bytes were made here, and nobody else has looked at them. Repeating is harmless. Errors:
 * ERR_CUDA, ERR_NO_MEMORY. */
int rank_prepare(struct fill *f, uint32_t rank, struct err *e);
/* rank_verify - compare the checksums with the given ones, and check tensors for values that are
 * not finite. Errors: ERR_CHECKSUM, ERR_NON_FINITE, ERR_CUDA, ERR_NO_MEMORY. */
int rank_verify(struct fill *f, uint32_t rank, struct err *e);

/* update_recv.c: chunk_recv_take - allocate memory on the GPUs and the host that a received chunk
 * needs beside its staging. After an error nothing is held. Errors: ERR_NO_STAGING, ERR_NO_MEMORY,
 * ERR_CUDA. */
int chunk_recv_take(struct fill *f, struct err *e);
void chunk_recv_give(struct fill *f); /* no copy may use it any more; repeating is harmless */

#endif
