/* What store.c and staging.c share, and what the update worker alone may ask for. */
#ifndef BATON_WEIGHTS_STORE_PRIV_H
#define BATON_WEIGHTS_STORE_PRIV_H

#include "base/mtx.h"
#include "weights/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* A checksum that whoever needs it first leaves for the others. */
struct sum_slot {
    atomic_uchar state; /* SUM_*; READY is released after `sum` was written, and acquired before */
    struct checksum sum;
};
enum { SUM_EMPTY, SUM_WRITING, SUM_READY };

struct version_owned {
    struct version version; /* first; immutable once published */
    struct view *views;     /* owned; each holds a reference to its slab, or has none yet */
    struct sum_slot *sums;  /* owned; [n_tensors] */
    uint32_t n_tensors;
    uint64_t refs; /* guarded by the store's lock */
};

struct label_kept {
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
};

struct store {
    struct mtx lock;    /* rank MTX_STORE; guards down to the blank line */
    struct cnd changed; /* state, pins or live versions changed */
    enum store_state state;
    struct version_owned *current; /* counted; NULL until the first commit */
    uint32_t n_live;               /* versions not freed yet; the staging is not one */
    bool staging_open;
    uint64_t serial; /* of the last commit */
    uint64_t n_commits, committed_at_us;
    struct label_kept labels[STORE_LABELS_KEPT]; /* ring, by serial */

    struct manifest *manifest; /* owned; immutable */
    struct slab_pool *slabs;   /* owned */
    uint32_t n_versions_max;   /* immutable */
};

/* Update worker only, but for `store` and what it guards. */
struct staging {
    struct store *store; /* borrowed */
    bool in_place, partial;
    bool was_inconsistent;      /* before it began: an abort leaves it so */
    bool dirty;                 /* in_place: a served byte may have changed */
    struct version_owned *base; /* counted: predecessor of in_place or partial, or NULL */
    struct version_owned *next; /* owned: what commit publishes */
    bool *arrived;              /* owned; [n_tensors] */
    uint32_t n_arrived;
    struct slab *side; /* where misaligned tensors are moved to, or NULL */
    uint64_t side_nbytes_used;
};

struct version_owned *version_new(uint32_t n_tensors);
void version_free(struct version_owned *v); /* lets its slabs go; accepts NULL; no lock held */

/* Drops one reference; the last one frees the version, outside the lock. */
void store_version_drop(struct store *s, struct version_owned *v);

/* Copies a view, and its checksum when known; takes a reference to its slab. */
void version_share(struct version_owned *to, const struct version_owned *from, uint32_t index);

/* store_stage, that gives up with ERR_CONFLICT soon after *stop is set (NULL: never). */
int store_stage_until(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                      const atomic_bool *stop, struct staging **out, struct err *e);

/* Waits until no version but the served one is alive; false when *stop is set or the deadline
 * passes first. */
bool store_wait_drained(struct store *s, uint64_t deadline_us, const atomic_bool *stop);

/* in_place: may a served byte have changed? */
bool staging_dirty(const struct staging *g);

/* in_place: where tensor `index` lies. Looking is not writing: staging_target says that it will be
 * written. */
char *staging_place(const struct staging *g, uint32_t index);

/* Staged: takes a view back, as if the tensor had not arrived. */
void staging_forget(struct staging *g, uint32_t index);

/* The bytes that tensor `index` will have when this staging is committed; NULL if it has none. */
const void *staging_effective(const struct staging *g, uint32_t index);

#endif
