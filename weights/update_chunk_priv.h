/* One chunk on its way in, as update_chunk.c, update_fill.c and update_map.c share it. */
#ifndef BATON_WEIGHTS_UPDATE_CHUNK_PRIV_H
#define BATON_WEIGHTS_UPDATE_CHUNK_PRIV_H

#include "weights/device.h"
#include "weights/update_priv.h"

/* What comes for one rank. */
struct rank_fill {
    const struct plan *plan;          /* borrowed; NULL: nothing */
    const struct layout *layout;      /* borrowed */
    const struct checksum *checksums; /* borrowed; [n_tensors] or NULL */
    const bool *has_checksum;         /* borrowed; [n_tensors]; NULL: all, if there are any */
    struct staging_room room;         /* staged; of the rank's place */
    struct staging_room mirror;       /* staged; of the host's copy */
    bool mirrored;                    /* its tensors go to the host's copy too */

    /* Mapped chunks. */
    struct device_batch *batch; /* owned */
    struct checksum *sums;      /* owned; [n_tensors] of what came, or NULL */
    uint32_t next;              /* the first tensor whose copy is not queued */
};

enum { MIRRORS_NONE = STORE_DEVICES_MAX };

/* Worker only. */
struct fill {
    struct update_job *job;  /* borrowed */
    struct session *session; /* borrowed */
    struct staging *staging; /* borrowed; dangles once the session has ended */
    struct store *store;     /* borrowed */
    const struct manifest *m;
    struct source *source; /* borrowed */
    uint64_t pin_deadline_us;
    bool joined;
    uint32_t n_ties;        /* of the session before this chunk */
    struct slab *scratch;   /* host memory for one tensor as it came, or NULL */
    struct slab *converted; /* the same as it will be, or NULL */
    unsigned char *mirrors; /* owned; [n_tensors] of the manifest: the rank from which the host's
                               copy takes each, or MIRRORS_NONE; NULL: every rank gets the same */
    uint32_t n_ranks;
    struct rank_fill ranks[]; /* [n_ranks] */
};

/* A room in a place: where targets lie. */
struct spot {
    uint32_t place;
    const struct staging_room *room;
};

static inline struct spot spot_of_rank(const struct fill *f, uint32_t rank)
{
    return (struct spot){rank, &f->ranks[rank].room};
}

static inline struct spot spot_of_mirror(const struct fill *f, uint32_t rank)
{
    return (struct spot){store_host_place(f->store), &f->ranks[rank].mirror};
}

/* Where target k of a part lies or will lie; 0: in place, and that rank has no such tensor. */
uint64_t spot_target(const struct fill *f, struct spot at, const struct part *part, uint32_t k);

/* The slab that it lies in: one copy never reaches into two, even where they are neighbours. */
const struct slab *spot_slab(const struct fill *f, struct spot at, const struct part *part,
                             uint32_t k);

/* In place: from here on the bytes that a part brings may be written where they are served. */
void fill_touch(struct fill *f, uint32_t place, const struct part *part);

/* Does the host's copy take target `index` from this rank? The first that brings it gives it. */
bool fill_mirrors(const struct fill *f, uint32_t rank, uint32_t index);

static inline const struct tensor_spec *target_spec(const struct fill *f, uint32_t index)
{
    return &f->m->plan->tensors[index];
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

/* Keeps the bytes of a tied name, in a slab that is moved in, until they can be compared. */
int fill_keep_tie(struct fill *f, uint32_t place, bool everywhere, const struct tensor_spec *t,
                  const struct alias *alias, struct slab *slab, struct err *e);

#endif
