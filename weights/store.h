/* The store: which weights are served. Stage, commit and abort are the only verbs that change it.
 *
 * A version is immutable: a table from the manifest's tensors to views into slabs. Readers (engine
 * steps, downloads) pin the version they start on; a commit publishes the next by one pointer
 * store, and the last reader of the old one hands its slabs back. The exception is in_place: the
 * served slabs are overwritten while nobody may pin, and a failure leaves the store inconsistent
 * until a whole update succeeds. */
#ifndef BATON_WEIGHTS_STORE_H
#define BATON_WEIGHTS_STORE_H

#include "base/err.h"
#include "weights/checksum.h"
#include "weights/manifest.h"
#include "weights/slab.h"

#include <stdbool.h>
#include <stdint.h>

enum { VERSION_LABEL_MAX = 256 };

/* One tensor of a version. */
struct view {
    const void *data;  /* aligned for its dtype; in slab */
    struct slab *slab; /* counted by the version */
    uint64_t serial;   /* of the version that brought these bytes */
};

struct version {
    uint64_t serial;                    /* 1, 2, ...: only ever grows within a boot */
    char label[VERSION_LABEL_MAX + 1];  /* the trainer's name for it */
    uint64_t nbytes;
    const struct view *views;           /* [manifest->plan->n_tensors], same indexes */
};

enum store_state { STORE_UNSYNCED, STORE_READY, STORE_IN_PLACE, STORE_INCONSISTENT };

struct store;

struct store_cfg {
    struct manifest *manifest; /* moved in */
    uint32_t n_versions_max;   /* live versions, the staging one counted; >= 2 */
    uint64_t nbytes_max;       /* of slabs; UINT64_MAX for none */
};

int store_new(struct store **out, const struct store_cfg *cfg, struct err *e);
void store_free(struct store *s); /* no pins, no staging left; accepts NULL */
const struct manifest *store_manifest(const struct store *s); /* borrowed, immutable */
struct slab_pool *store_slabs(struct store *s);               /* borrowed */

/* store_pin - the version to read now, kept alive until store_unpin.
 * Threads: any; takes MTX_STORE briefly.
 * Errors: ERR_UNSYNCED, ERR_INCONSISTENT, ERR_CONFLICT (an in_place update is writing). */
int store_pin(struct store *s, const struct version **out, struct err *e);
void store_unpin(struct store *s, const struct version *v); /* accepts NULL */

/* store_wait_pinnable - wait until store_pin could work or the state is one that only an update
 * can leave. Blocks up to the deadline. Returns true when pinnable. */
bool store_wait_pinnable(struct store *s, uint64_t deadline_us);

/* A staging: the views of the version to be. Owned by the update worker. */
struct staging;

struct staging_cfg {
    bool in_place; /* overwrite the served slabs */
    bool partial;  /* untouched tensors are shared with the predecessor */
};

/* store_stage - begin. One at a time.
 * @deadline_us  in_place: how long to wait for pins to be let go; staged: for a version to be
 *               freed when n_versions_max live
 * Errors: ERR_CONFLICT (another staging is open; too many live versions; readers did not let go),
 *         ERR_UNSYNCED (partial, but nothing to build on), ERR_INCONSISTENT (partial after a failed
 *         in_place). in_place on success sets STORE_IN_PLACE: nothing can be pinned.
 *         in_place without a served version falls back to staged (nothing to overwrite). */
int store_stage(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                struct staging **out, struct err *e);
bool staging_in_place(const struct staging *g);

/* staging_slab - memory for one bucket, if the machine has it. @out one reference, the caller's:
 * views made from it hold their own. Errors: ERR_NO_STAGING. */
int staging_slab(struct staging *g, uint64_t nbytes, struct slab **out, struct err *e);

/* staging_view - staged: where tensor `index` lies. Replaces nothing: a tensor arrives once.
 * A misaligned `data` is copied to an aligned place first.
 * Errors: ERR_CONFLICT at /names (already arrived in this update), ERR_NO_STAGING. */
int staging_view(struct staging *g, uint32_t index, struct slab *slab, const void *data,
                 struct err *e);

/* staging_target - in_place: the writable bytes of tensor `index`; marks it arrived at
 * staging_arrived. From the first call on, failing leaves the store inconsistent. */
void *staging_target(struct staging *g, uint32_t index);
int staging_arrived(struct staging *g, uint32_t index, struct err *e);

bool staging_has(const struct staging *g, uint32_t index);
/* staging_data - readable bytes of a tensor that arrived. */
const void *staging_data(const struct staging *g, uint32_t index);

/* staging_missing - how many tensors of the manifest have not arrived; the first `cap` indexes. */
uint32_t staging_missing(const struct staging *g, uint32_t *out, uint32_t cap);

struct store_stats {
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
    uint64_t nbytes;
    uint32_t n_updated; /* tensors that this commit brought */
    uint32_t n_live;    /* versions alive after it */
};

/* store_commit - make the staging the version that is served; consumes it on success.
 * @label  borrowed, copied; "" becomes "serial-<n>": new weights never carry an old name
 * Errors: ERR_INCOMPLETE  not partial and something is missing (names the first, counts the rest),
 *                         or partial and nothing arrived
 *         After an error the staging stands and the old version serves. */
int store_commit(struct store *s, struct staging *g, const char *label, struct store_stats *stats,
                 struct err *e);

/* store_abort - drop the staging (accepts NULL). A written in_place staging leaves
 * STORE_INCONSISTENT, an untouched one STORE_READY. */
void store_abort(struct store *s, struct staging *g);

/* store_set_label - rename what is served (same bytes, same serial); readers that pinned it before
 * keep the name they saw. Errors: ERR_UNSYNCED, ERR_INCONSISTENT, ERR_CONFLICT (an in_place update
 * is writing), ERR_NO_MEMORY. */
int store_set_label(struct store *s, const char *label, struct err *e);

struct store_info {
    enum store_state state;
    uint64_t serial; /* 0 when unsynced */
    char label[VERSION_LABEL_MAX + 1];
    uint64_t nbytes;
    uint32_t n_live;
    uint64_t committed_at_us; /* monotonic; 0 when never */
    uint64_t n_commits;
};
void store_info(struct store *s, struct store_info *out); /* any thread */
const char *store_state_name(enum store_state state);

/* store_label_of - the label that the commit of `serial` got, if it is among the last
 * STORE_LABELS_KEPT commits. @out [VERSION_LABEL_MAX + 1]. Returns false when it is forgotten. */
enum { STORE_LABELS_KEPT = 64 };
bool store_label_of(struct store *s, uint64_t serial, char *out);

/* store_checksum - checksum of one tensor of a pinned version; computed once, then remembered. */
struct checksum store_checksum(struct store *s, const struct version *v, uint32_t index);

#endif
