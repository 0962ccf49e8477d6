/* Shared by store.c, store_sleep.c and staging.c; some functions are for the update worker only. */
#ifndef BATON_WEIGHTS_STORE_STORE_PRIV_H
#define BATON_WEIGHTS_STORE_STORE_PRIV_H

#include "base/mtx.h"
#include "weights/store/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* A checksum: the first thread that needs it computes it for all. */
struct sum_slot {
    atomic_uchar state; /* SUM_*; READY is released after `sum` was written, and acquired before */
    struct checksum sum;
};
enum { SUM_EMPTY, SUM_WRITING, SUM_READY };

struct version_owned {
    struct version version; /* first; immutable once published */
    struct view *views;     /* owned; [n_places][n_tensors]; each holds a reference to its slab,
                               if it has one yet */
    struct sum_slot *sums;  /* owned; [n_tensors] */
    uint32_t n_tensors, n_places;
    uint64_t refs; /* guarded by the store's lock, as the next member */
    struct version_owned *next_retired;
};

struct label_kept {
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
};

struct place {
    struct device *device;   /* borrowed; NULL: host memory */
    struct slab_pool *slabs; /* owned */
};

/* The weights of a sleeping store in host memory, if the store has no place there. */
struct host_backup {
    struct slab *slab; /* counted */
    uint64_t *offsets; /* owned; [n_tensors] */
};

struct store {
    struct mtx lock;    /* rank MTX_STORE; guards down to the blank line */
    struct cnd changed; /* state, pins or live versions changed */
    enum store_state state;
    struct version_owned *current;  /* counted; NULL until the first commit */
    struct version_owned *retired;  /* owned: without readers, to be freed by store_reap */
    uint32_t n_live;                /* versions not freed yet; the staging is not one */
    bool staging_open;              /* true also during a sleep or wake */
    bool publishing;                /* a commit or a label is being recorded and published */
    uint32_t n_awaiting;            /* threads that wait for readers to unpin */
    struct host_backup host_backup; /* used only by the thread that set staging_open */
    uint64_t serial;                /* of the last commit */
    uint64_t n_commits, committed_at_us;
    struct label_kept labels[STORE_LABELS_KEPT]; /* ring, by serial */
    uint64_t content_serial;                     /* of which `content` is; 0: not known */
    char content[STORE_CONTENT_LEN + 1];

    /* Immutable once anything can be committed. */
    char unsynced_why[ERR_MSG_MAX]; /* why nothing is served yet; "": nothing was ever committed */
    struct model_spec *model_spec;  /* owned */
    struct store_journal journal;
    struct place places[STORE_PLACES_MAX];
    uint32_t n_places, n_ranks;
    struct slab_pool *scratch; /* host memory; the host place's, or owned where there is none */
    uint32_t n_versions_max;
    bool in_host_memory;
    uint8_t *owners; /* owned; [n_tensors] ranks; NULL: every rank keeps every tensor */
};

enum { STAGING_HOLES_MAX = 16, STORE_PUBLISH_WAIT_US = 60000000 };

/* A GPU's part of a whole update. If more than STAGING_HOLES_MAX holes arise, the memory of the
 * others is not used again until the staging ends. */
struct staging_whole {
    struct slab *slab;    /* counted; NULL until the first staging_memory */
    uint64_t nbytes, end; /* the next staging_memory begins at `end` or later */
    struct staging_hole {
        uint64_t offset, nbytes;
    } holes[STAGING_HOLES_MAX]; /* given back, with others in use behind them */
    uint32_t n_holes;
};

/* At how many places a tensor arrived, and how many of these are ranks. */
struct spread {
    uint8_t n_places, n_ranks;
};
_Static_assert(STORE_PLACES_MAX <= UINT8_MAX, "places can be counted");

/* Update worker only, except `store` and what its lock guards. */
struct staging {
    struct store *store; /* borrowed */
    bool partial, sharded;
    struct version_owned *base; /* counted: predecessor of a partial update, or NULL */
    struct version_owned *next; /* owned: what commit publishes */
    bool *arrived;              /* owned; [n_places][n_tensors] */
    struct spread *spread;      /* owned; [n_tensors] */
    uint32_t n_arrived;         /* tensors that arrived anywhere */
    uint32_t n_whole;           /* tensors that arrived at every rank */
    struct staging_whole whole[STORE_DEVICES_MAX];
};

void version_free(struct version_owned *v); /* unrefs its slabs; accepts NULL; no lock held */

/* A version without bytes, with one reference; NULL: no memory. */
struct version_owned *store_version_new(const struct store *s);

/* Copy a tensor's view in one place, its checksum if known, or both and the views of all places; of
 * slabs they take references. `to` is not published yet: no other thread reads its slots. */
void version_share_view(struct version_owned *to, const struct version_owned *from, uint32_t place,
                        uint32_t index);
void version_share_sum(struct version_owned *to, const struct version_owned *from, uint32_t index);
void version_share(struct version_owned *to, const struct version_owned *from, uint32_t index);

/* Why no version can be pinned in the present state, which is not STORE_READY. Returns -1. */
int store_refuse_state_locked(const struct store *s, struct err *e);

/* The view of a tensor in a place. */
struct view *version_view(const struct version_owned *v, uint32_t place, uint32_t index);

/* Reserves memory for one version, or for the share of it, on a GPU, for the next update. Errors:
 * ERR_NO_STAGING (only if the store has no other rank, or shards versions), ERR_CUDA. */
int store_reserve_whole(const struct store *s, uint32_t place, struct err *e);

/* Waits for `changed`, for a short time only, because setting *stop does not signal it. Returns
 * false when *stop is set or the deadline has passed. */
bool store_wait_slice_locked(struct store *s, uint64_t deadline_us, const atomic_bool *stop);

void host_backup_fini(struct host_backup *b); /* accepts a zeroed one */

/* Drops one reference; the last one frees the version, outside the lock. */
void store_version_drop(struct store *s, struct version_owned *v);

/* Adds to an ERR_NO_STAGING of a place which option would need less memory there. */
void store_explain_room(const struct store *s, uint32_t place, struct err *e);

/* How many tensors a GPU keeps of each version, and their bytes. */
uint32_t store_n_kept(const struct store *s, uint32_t place);
uint64_t store_kept_nbytes(const struct store *s, uint32_t place);

/* Bytes of the one slab that a whole update takes on a GPU: of what the GPU keeps, with padding to
 * align each bucket. */
uint64_t store_whole_nbytes(const struct store *s, uint32_t place);

/* Read, write or sum bytes at an address of a place. Threads: any, no lock held. Errors:
 * ERR_CUDA. */
int place_read(const struct store *s, uint32_t place, void *out, uint64_t addr, uint64_t nbytes,
               struct err *e);
int place_write(const struct store *s, uint32_t place, uint64_t addr, const void *from,
                uint64_t nbytes, struct err *e);
int place_sum(const struct store *s, uint32_t place, uint64_t addr, uint64_t nbytes,
              struct checksum *out, struct err *e);

/* Waits until only the served version is alive. Returns false if *stop is set or the deadline
 * passes first. */
bool store_wait_drained(struct store *s, uint64_t deadline_us, const atomic_bool *stop);

/* [n_tensors]: which tensors arrived in a place. */
const bool *staging_arrivals(const struct staging *g, uint32_t place);

/* The rank that has the bytes of tensor `index` which arrived at `rank`: its owner, if the store is
 * sharded and they are not at `rank` itself. */
uint32_t staging_keeper(const struct staging *g, uint32_t rank, uint32_t index);

/* Address of the bytes that tensor `index` will have in a place if this staging is committed now; 0
 * if it will have none there. */
uint64_t staging_effective(const struct staging *g, uint32_t place, uint32_t index);

/* The first tensor that arrived on some ranks only, although each rank must be complete; or
 * TENSOR_LIST_NO_TENSOR. */
uint32_t staging_uneven(const struct staging *g);

/* staging_carry - at the commit of a partial update: copy tensors that it did not bring, where they
 * keep less than half of an older slab, or on a GPU where a whole version would not fit beside this
 * one otherwise. Writes their views; other tensors have none after it either. Where there is no
 * memory for it, a copy fails, takes longer than a minute, or has not the base's known checksum, it
 * does nothing but say so in the log.
 * Blocks: until the copies are done. Errors: ERR_CUDA (a copy failed, and its GPU is lost). */
int staging_carry(struct staging *g, struct err *e);

void staging_free(struct staging *g);

#endif
