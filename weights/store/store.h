/* The store: which weights are served. Stage, commit and abort are the only verbs that change it.
 *
 * Weights are in one or more places: in host memory, or on GPUs, one rank each. With GPUs, a second
 * copy may be kept in host memory for an engine that computes there (the mirror). A commit
 * publishes a version in all its places at once.
 *
 * A version is immutable: a table from the model spec's tensors to views into slabs. Readers
 * (engine steps, downloads) pin the version they start on; a commit publishes the next by one
 * pointer store, and the last reader of the old one hands its slabs back.
 *
 * A store can be put to sleep. Level 1 moves the weights on GPUs to host memory; level 2 frees all
 * weights. No version can be pinned until a wake (level 1) or a whole update (level 2). */
#ifndef BATON_WEIGHTS_STORE_STORE_H
#define BATON_WEIGHTS_STORE_STORE_H

#include "base/err.h"
#include "base/id.h"
#include "memory/checksum.h"
#include "memory/slab.h"
#include "weights/model_spec.h"
#include "weights/version_label.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct device;

enum {
    STORE_DEVICES_MAX = 64,
    STORE_PLACES_MAX = STORE_DEVICES_MAX + 1,
    STORE_CONTENT_LEN = 64 /* SHA-256 in hex */
};

/* One tensor of a version in one place. */
struct view {
    union {
        const void *data; /* host memory: aligned for its dtype; in slab */
        uint64_t addr;    /* any memory */
    };
    struct slab *slab; /* counted by the version; NULL: a sharded rank that lacks this tensor */
    uint64_t serial;   /* of the version that brought these bytes */
};

struct version {
    uint64_t serial;            /* 1, 2, ...: only ever grows within a boot */
    char commit_id[ID_LEN + 1]; /* random: which commit made it, also after a restart that restores
                                   it, and under another label */
    struct version_label *name; /* counted: results may keep it longer than the version */
    const char *label;          /* the text of `name`: the trainer's name for it */
    uint64_t nbytes;
    const struct view *views; /* in host memory: [model_spec->tensor_list->n_tensors], same indexes;
                                 NULL when the store keeps none there */
    const struct view *places[STORE_PLACES_MAX]; /* [n_tensors] each; the host's too */
};

enum store_state {
    STORE_UNSYNCED,
    STORE_READY,
    STORE_ASLEEP, /* kept in host memory */
    STORE_DROPPED,
    STORE_STATE_COUNT
};

struct store;

/* What is called when a version is published: by a commit, or by a new label. One publication at a
 * time, on the thread that publishes, no lock held. */
struct store_journal {
    /* Just before: the version has its serial, label and bytes, and is not served yet. May block on
     * a disk. After an error nothing is published. NULL: none. */
    int (*before)(void *arg, struct store *s, const struct version *next, struct err *e);
    void (*after)(void *arg); /* it is served now; must not block; NULL: none */
    void *arg;
};

struct store_cfg {
    struct model_spec *model_spec; /* moved in */
    uint32_t n_versions_max;       /* live versions, the staging one counted; >= 2 */
    uint64_t nbytes_max;           /* of the slabs of each place; UINT64_MAX for none */
    struct device *const *devices; /* [n_devices] borrowed, outlive the store; each is a rank, on
                                      which store_new reserves memory for one version if it can;
                                      with host_memory for two */
    uint32_t n_devices;            /* 0: the host is the only rank */
    bool mirror;                   /* with devices: keep a copy in page-locked host memory too */
    bool sharded;                  /* each device keeps only the tensors that it owns (store_owner);
                                      with several devices, and not with `mirror`, `host_memory` */
    bool host_memory;              /* the devices' ranks are in page-locked host memory, which they
                                      access by the same addresses; not with `mirror`, and such a
                                      store is never put to sleep */
    struct store_journal journal;  /* zeroed: none */
};

/* store_new - Errors: ERR_NO_MEMORY, ERR_NO_STAGING (the only device has no memory for one version,
 * or, `sharded`, one of them none for its share; with several devices that keep whole versions this
 * is no error, because a trainer may give each a part of them), ERR_CUDA. Blocks: while devices
 * allocate. */
int store_new(struct store **out, const struct store_cfg *cfg, struct err *e);
void store_free(struct store *s); /* no pins, no staging left; accepts NULL */

/* store_continue - the serials of an earlier process: the next commit gets `serial` + 1.
 * @unsynced_why  what is answered instead of "no weights have been committed yet"; "": that
 * Threads: the one that starts the server, while no update can be queued. */
void store_continue(struct store *s, uint64_t serial, const char *unsynced_why);

const struct model_spec *store_model_spec(const struct store *s); /* borrowed, immutable */

/* Places, immutable. The ranks come first: the devices, or the host alone; then the mirror. */
uint32_t store_n_ranks(const struct store *s);
uint32_t store_n_places(const struct store *s);
bool store_has_host(const struct store *s);
bool store_in_host_memory(const struct store *s); /* are the ranks there? Those of GPUs may be */
uint32_t store_host_place(const struct store *s); /* only if it has one */
bool store_sharded(const struct store *s);        /* does each device keep only what it owns? */
/* store_owner - the rank that keeps tensor `index`; only if store_sharded. */
uint32_t store_owner(const struct store *s, uint32_t index);
struct device *store_device(const struct store *s, uint32_t place); /* NULL: host memory */
struct slab_pool *store_slabs(struct store *s, uint32_t place);     /* borrowed */

/* store_pin - the version to read now, kept alive until store_unpin.
 * Threads: any; takes MTX_STORE briefly.
 * Errors: ERR_UNSYNCED, ERR_ASLEEP (also when dropped). */
int store_pin(struct store *s, const struct version **out, struct err *e);
void store_unpin(struct store *s, const struct version *v); /* accepts NULL */

/* store_pin_again - one more store_unpin for a version that the caller has pinned. */
void store_pin_again(struct store *s, const struct version *v);

/* store_reader_awaited - should the holder of a long pin unpin it soon? True while an update waits
 * for its memory or a sleep for its end, and once the version was renamed. Any thread. */
bool store_reader_awaited(struct store *s, const struct version *v);

/* store_unpin_deferred - store_unpin for a thread that must not wait for memory to be freed.
 * Returns true when the version has no reader left: a thread must then call store_reap soon. */
bool store_unpin_deferred(struct store *s, const struct version *v);

/* store_reap - free the versions that store_unpin_deferred left without readers; they count as
 * alive until then. Any thread. */
void store_reap(struct store *s);

/* store_wait_pinnable - wait while the store is asleep or its weights are dropped, until the
 * deadline at most. Returns true if store_pin works now; false at once if no weights were ever
 * committed. */
bool store_wait_pinnable(struct store *s, uint64_t deadline_us);

/* A staging: the views of the version to be. Owned by the update worker. */
struct staging;

struct staging_cfg {
    bool partial;          /* untouched tensors are shared with the predecessor */
    bool sharded;          /* the ranks together must be complete, not each by itself */
    const char *commit_id; /* [ID_LEN], of the version; NULL: a new one */
    uint64_t base_serial;  /* what must be served: the staging builds on it; 0: whatever is */
};

/* store_stage - begin. One at a time.
 * @deadline_us  how long to wait for a version to be freed when n_versions_max live
 * @stop         fails with ERR_CONFLICT soon after it is set; NULL: never
 * Errors: ERR_CONFLICT (another staging is open; too many live versions; level 1 sleep; stopped),
 *         ERR_PRECONDITION (at /base_version: another version is served than `base_serial`; until
 *         the staging ends no other one can be committed),
 *         ERR_UNSYNCED, ERR_ASLEEP (partial, but nothing to build on), ERR_NO_MEMORY. */
int store_stage(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                const atomic_bool *stop, struct staging **out, struct err *e);

/* staging_slab, store_scratch - take scratch memory of the host. @out one reference, the caller's.
 * Errors: ERR_NO_STAGING. */
int staging_slab(struct staging *g, uint64_t nbytes, struct slab **out, struct err *e);
int store_scratch(struct store *s, uint64_t nbytes, struct slab **out, struct err *e);

/* Memory for a chunk in a place. */
struct staging_memory {
    struct slab *slab; /* one reference, the holder's; NULL: none */
    uint64_t offset;   /* in the slab; a multiple of STAGING_ALIGN */
    uint64_t nbytes;
};
enum { STAGING_ALIGN = 256 };

/* staging_memory - take memory for one bucket. In a whole update on a GPU it is part of the one
 * slab that the store reserved; else it is a slab of its own. Views made in it hold the slab
 * themselves. Errors: ERR_NO_STAGING. */
int staging_memory(struct staging *g, uint32_t place, uint64_t nbytes, struct staging_memory *out,
                   struct err *e);
/* staging_memory_return - give back the memory of a failed chunk. `g` NULL: the staging has ended.
 */
void staging_memory_return(struct staging *g, uint32_t place, struct staging_memory *room);

/* staging_view - set where tensor `index` is in a place. Replaces nothing: a tensor arrives once.
 * @addr  aligned for its dtype, in slab
 * Errors: ERR_PRECONDITION at /names (already arrived in this update). */
int staging_view(struct staging *g, uint32_t place, uint32_t index, struct slab *slab,
                 uint64_t addr, struct err *e);

/* Where a tensor of the model spec is in a staging_memory, and which part brought it. */
struct dst_slot {
    uint32_t index; /* of the tensor */
    uint32_t part;  /* the caller's; not read here */
    uint64_t offset;
};

/* staging_views - staging_view of many tensors of one slab, each at `addr` + `offset`. None of them
 * may have arrived in the place, and each must be aligned for its dtype. */
void staging_views(struct staging *g, uint32_t place, const struct dst_slot *dst_slots, size_t n,
                   struct slab *slab, uint64_t addr);

bool staging_has(const struct staging *g, uint32_t place, uint32_t index);

/* staging_missing - count the tensors of the model spec that have not arrived on every rank
 * (sharded, or store_sharded: on any rank). @out receives the first `cap` indexes. */
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
 *                         or partial and nothing arrived, or a tensor arrived on some ranks only
 *                         and the staging is not sharded
 *         ERR_CUDA        partial, and a GPU is lost
 *         ERR_NOT_RECORDED, and what the journal's `before` fails with
 *         After an error the staging remains and the old version is served. */
int store_commit(struct store *s, struct staging *g, const char *label, struct store_stats *stats,
                 struct err *e);

/* store_abort - drop the staging (accepts NULL). */
void store_abort(struct store *s, struct staging *g);

/* store_set_label - rename what is served (same bytes, same serial); readers that pinned it before
 * keep the name they saw.
 * @if_serial  rename only if this serial is served; 0: rename any
 * @serial     the serial that was renamed; written on success only
 * Blocks: on the journal, if there is one.
 * Errors: ERR_UNSYNCED, ERR_ASLEEP, ERR_PRECONDITION (at /if_serial: another serial is served),
 * ERR_NO_MEMORY, ERR_NOT_RECORDED. */
int store_set_label(struct store *s, const char *label, uint64_t if_serial, uint64_t *serial,
                    struct err *e);

/* Bytes that the pools of a sleeping store returned to the system or the driver. */
struct store_slept {
    uint64_t nbytes_device, nbytes_host; /* of weights */
    uint64_t nbytes_ready;               /* of memory that was reserved for updates */
    uint64_t nbytes_kept;                /* kept in host memory for the wake */
};

/* store_sleep - free the GPU memory of the weights.
 * @level        1: keep the weights in host memory (those already there do not move); 2: drop them
 * @deadline_us  how long to wait for an open staging to end and for readers to unpin
 * Repeating is harmless, and so is level 1 after level 2. Without weights, the memory reserved for
 * updates is freed and the state does not change.
 * Threads: any, no lock held; one sleep, wake or update at a time, and each waits for the one
 * before it. Blocks: until readers have unpinned and the bytes are copied.
 * Errors: ERR_CONFLICT (an update is still staged; readers did not unpin),
 *         ERR_NO_STAGING (no host memory), ERR_CUDA, ERR_NO_MEMORY. After an error nothing has
 *         changed. */
int store_sleep(struct store *s, int level, uint64_t deadline_us, struct store_slept *out,
                struct err *e);

/* store_wake - serve weights that sleep at level 1 again, under the same serial and label. After
 * level 2, reserve GPU memory for the whole update that must follow.
 * @deadline_us  how long to wait for an open staging to end
 * @nbytes       bytes allocated on GPUs
 * Repeating is harmless. Threads, blocks: as store_sleep.
 * Errors: ERR_CONFLICT (an update is still staged), ERR_NO_STAGING, ERR_CUDA, ERR_NO_MEMORY. After
 *         an error the store is still asleep. */
int store_wake(struct store *s, uint64_t deadline_us, uint64_t *nbytes, struct err *e);

struct store_info {
    enum store_state state;
    uint64_t serial;            /* 0 when unsynced */
    char commit_id[ID_LEN + 1]; /* "" when unsynced */
    char label[VERSION_LABEL_MAX + 1];
    uint64_t nbytes;
    uint32_t n_live;
    uint64_t committed_at_us; /* monotonic; 0 when never */
    uint64_t n_commits;
    char content[STORE_CONTENT_LEN + 1]; /* as noted; "": not known */
};

/* store_note_content - the digest of a version's weights (weights/state/version_content.h) is known
 * now; that of the latest version is kept. Threads: any. */
void store_note_content(struct store *s, uint64_t serial, const char *content);
void store_info(struct store *s, struct store_info *out); /* any thread */

/* store_info_by - Blocks: until the deadline at most. Errors: of mtx_lock_by; *out untouched. */
int store_info_by(struct store *s, uint64_t deadline_us, struct store_info *out, struct err *e);

/* store_readable - would store_pin succeed now? Any thread. Errors: as store_pin. */
int store_readable(struct store *s, struct err *e);
const char *store_state_name(enum store_state state);

/* store_label_of - the label that the commit of `serial` got, if it is among the last
 * STORE_LABELS_KEPT commits. @out [VERSION_LABEL_MAX + 1]. Returns false if it is not. */
enum { STORE_LABELS_KEPT = 64 };
bool store_label_of(struct store *s, uint64_t serial, char *out);

/* store_checksum - checksum of one tensor of a pinned version; computed once, then remembered. On
 * the host's copy if there is one, else on the first rank that has it. Errors: ERR_CUDA. */
int store_checksum(struct store *s, const struct version *v, uint32_t index, struct checksum *out,
                   struct err *e);

/* store_read - bytes [offset, offset + nbytes) of a tensor of a pinned version, into host memory.
 * Threads: any, no lock held. Errors: ERR_CUDA. */
int store_read(struct store *s, const struct version *v, uint32_t index, uint64_t offset,
               uint64_t nbytes, void *out, struct err *e);

/* store_place_name - "host" or "cuda:0". */
const char *store_place_name(const struct store *s, uint32_t place);

#endif
