/* Update sessions: start -> receive... -> finish | abort, and the worker that drives them.
 *
 * One update is open at a time. A session stays open only while its owner uses or renews it (the
 * lease; updates_get does not renew it). All bytes move on one worker thread; every call here only
 * checks, queues or reads state, and returns at once. If an update fails in any way, the served
 * version stays served.
 *
 * A chunk that fails leaves its session open, and its tensors count as not arrived: it may be sent
 * again, also under the same chunk_id. The exception is a one-shot update, which ends with its only
 * chunk.
 *
 * A tensor that another rank of the trainer has sent (trainer_rank) is compared with that and
 * dropped. A request for it that comes while the other one is being received fails if that fails.
 *
 * A tied name is compared with its target, at the latest by finish; if its target is not sent at
 * all, the tied name brings the target's bytes. A tied name that arrives after its auto-commit
 * session was committed is compared with the committed bytes; the session that it opened ends like
 * that one.
 *
 * An auto-commit session accepts only chunks that can belong to one training step. All chunks that
 * name a version must name the same one. The first chunk must not be the one that completed the
 * session before (a retry whose answer was lost), unless it names another version or
 * updates_commit_auto was called since. */
#ifndef BATON_WEIGHTS_UPDATE_UPDATE_H
#define BATON_WEIGHTS_UPDATE_UPDATE_H

#include "base/err.h"
#include "base/id.h"
#include "base/net/actor.h"
#include "memory/checksum.h"
#include "memory/non_finite.h"
#include "weights/source.h"
#include "weights/store/store.h"
#include "weights/tensor_list.h"
#include "weights/update/changes.h"

#include <stdbool.h>
#include <stdint.h>

#define UPDATE_ID_PREFIX "upd-" /* of an update's id; that of its version's commit follows */

enum {
    UPDATE_ID_MAX = 40, /* UPDATE_ID_PREFIX + ID_LEN */
    UPDATE_CHUNK_ID_MAX = 128,
    UPDATE_MISSING_MAX = 32,    /* names listed in a reply; others are only counted */
    UPDATE_NON_FINITE_MAX = 32, /* the same, for tensors with values that are not finite */
    UPDATE_ENDED_KEPT = 16,     /* ended sessions that GET still shows */
    UPDATE_CHUNKS_KEPT = 4096,  /* answers kept for repeated chunks, a session */
    UPDATE_QUEUE_MAX = 1024,    /* chunks and one-shot updates that wait for the worker */
    UPDATE_TRAINER_RANKS_MAX = 256,
    UPDATE_SENDERS_MAX = UPDATE_TRAINER_RANKS_MAX + STORE_DEVICES_MAX,
    UPDATE_LEASE_S_DEFAULT = 60,
    UPDATE_LEASE_S_MAX = 3600
};

enum update_phase {
    UPDATE_NONE,      /* no such update */
    UPDATE_OPEN,      /* started, nothing received */
    UPDATE_RECEIVING, /* bytes are or were moving */
    UPDATE_VERIFYING, /* finish or verify is checking */
    UPDATE_VERIFIED,  /* proven, and not yet served; takes no more chunks */
    UPDATE_COMMITTED,
    UPDATE_ABORTED
};
const char *update_phase_name(enum update_phase phase);

/* Tensors with values that are not finite: the first UPDATE_NON_FINITE_MAX that were found. */
struct non_finite_names {
    uint32_t n;
    const char *names[UPDATE_NON_FINITE_MAX]; /* borrowed from the model spec, which lives longer */
};

/* What one rank has brought: a rank of the trainer, as its requests name it, or a rank of this
 * server whose GPU's handles had a tensor list of their own. */
struct update_sender {
    const char *place; /* of the rank of this server, static for the store's life; NULL: it is a
                          rank of the trainer */
    const char *gpu;   /* its UUID, borrowed from the device; NULL likewise */
    uint32_t rank;
    uint32_t n_tensors; /* that arrived, as sent */
    uint64_t nbytes;
    enum err_code refused; /* why its last request was refused; ERR_NONE: it was not */
};

/* The version that must be served when an update begins to build on it. */
struct update_base {
    uint64_t serial;                   /* 0: whatever is served */
    char label[VERSION_LABEL_MAX + 1]; /* as its client named it: for replies */
    bool delta;                        /* the requests bring parts of a delta (weights/delta/) */
    bool unchecked;                    /* that they belong to this version is their trainer's word:
                                          they name none */
};

struct update_info {
    char id[UPDATE_ID_MAX + 1];
    enum update_phase phase;
    bool partial, sharded, auto_commit, anonymous, yields;
    bool by_owner; /* each GPU keeps its share (store_sharded); `sharded` says that the trainer's
                      lists are by rank */
    struct source_counts mappings;      /* of trainers' memory, made by this update */
    bool on_gpu;                        /* a chunk came from GPU memory, or into GPU memory */
    bool host_sums;                     /* checksums of GPU memory were computed on the host */
    char label[VERSION_LABEL_MAX + 1];  /* requested; after commit: the label it got */
    uint64_t serial;                    /* after commit, else 0 */
    uint64_t nbytes_staging;            /* size of the staging: the model spec; partial: the chunks
                                           so far */
    uint64_t nbytes_done, nbytes_total; /* as sent: the chunks so far; the total of a whole update
                                           adds what is still missing. Of a delta: of the tensors
                                           that it makes */
    uint64_t nbytes_sent;               /* of the chunks that arrived; of a delta: of its parts */
    struct update_base base;
    uint32_t n_tensors_done, n_tensors_total;
    char tensor[TENSOR_LIST_NAME_LEN_MAX + 1]; /* being received now, "" if none */
    uint64_t lease_left_us;    /* until the lease ends; the whole lease while chunks are
                                  queued or running; 0 once ended */
    uint64_t deadline_left_us; /* until the server gives up the running chunk, or, if none
                                  runs, until the lease ends; 0 once ended */
    uint32_t n_missing;        /* of the model spec; 0 if partial */
    const char *missing[UPDATE_MISSING_MAX]; /* borrowed from the model spec, which outlives all */
    struct non_finite_names non_finite;      /* of the chunks that arrived; NON_FINITE_WARN */
    uint32_t n_senders;                      /* 0: requests do not tell ranks apart */
    struct update_sender senders[UPDATE_SENDERS_MAX];
    uint64_t n_checksums; /* of the trainer, that were compared with the bytes: for each request and
                             each GPU, and by finish. 0: no byte is proven to be the trainer's */
    struct change_counts changes;              /* after commit */
    uint64_t receive_us, verify_us, commit_us; /* time spent so far in each phase */
    uint64_t whole_us;  /* since the update was started or queued, until its end */
    const char *source; /* static; of its last chunk, as struct source_ops has it; or NULL */
    struct tensor_list *group_list; /* after commit: of its last request by a group, borrowed for
                                       on_end; or NULL */
    uint64_t group;                 /* that group, as struct source_ops has it */
    struct actor actor;             /* that started it */
    struct err error;               /* why it was aborted; clean otherwise */
};

struct updates;

struct updates_cfg {
    struct store *store;         /* borrowed */
    uint64_t receive_timeout_us; /* longest single chunk */
    uint64_t pin_timeout_us;     /* how long the first chunk waits for a version to be freed */
    enum non_finite_policy non_finite; /* policy for values that are not finite */
    void (*on_change)(void *arg);      /* any state change; no lock held; may be NULL */
    void *arg;
    /* An update has ended. No lock held; must not block; may be NULL. */
    void (*on_end)(void *end_arg, const struct update_info *info);
    void *end_arg;
    /* A request's update was committed, and the request is about to be answered; an error becomes
     * its answer, and the version stays committed. On the worker, no lock held; may block. NULL:
     * none. */
    int (*on_commit)(void *commit_arg, uint64_t serial, struct err *e);
    void *commit_arg;
};

int updates_new(struct updates **out, const struct updates_cfg *cfg, struct err *e);

/* updates_stop - abort open sessions, answer queued chunks with ERR_DRAINING, join the threads.
 * Every call stays allowed; those that would change something fail with ERR_DRAINING. Repeating is
 * harmless. Threads: the owner's. Blocks: until the running fill sees the stop (100 ms). */
void updates_stop(struct updates *u);
void updates_free(struct updates *u); /* stops first; accepts NULL */

/* update_base_find - the served version, if its label is `label`.
 * @update_id  of the update that made it: a label may be given to other bytes. NULL: any
 * Threads: any, no lock held.
 * Errors: ERR_PRECONDITION at /base_version (another one is served, or none), /base_update_id
 *         (another update made it); the message names both. *out is untouched. */
int update_base_find(struct store *s, const char *label, const char *update_id,
                     struct update_base *out, struct err *e);

struct update_start {
    bool partial, convert;
    struct update_base base; /* with `delta` also partial, and not convert */
    bool sharded;            /* the ranks together must be complete, not each by itself */
    bool anonymous;   /* opened by a dialect whose requests carry no update_id; no member of them
                         says `sharded`: a chunk that brings ranks different tensors does */
    bool auto_commit; /* opened by a dialect's first bucket: commits by itself when covered */
    bool yields; /* no trainer's: any other update that begins aborts it, or follows its commit */
    uint32_t trainer_ranks; /* so many ranks of the trainer send tensors, each names itself; 0: not
                               known; at most UPDATE_TRAINER_RANKS_MAX */
    char label[VERSION_LABEL_MAX + 1];
    uint32_t lease_s;   /* 1..UPDATE_LEASE_S_MAX */
    struct actor actor; /* for the log */
};

/* updates_start - open a session. One that yields is aborted by it.
 * Errors: ERR_CONFLICT    one is open: its id, phase and lease are in the message
 *         ERR_NO_STAGING  staging would not fit
 *         ERR_UNSYNCED    partial without a base
 *         ERR_PRECONDITION at /base_version: another version is served than `base` (also of the
 *                         first chunk, if a commit came in between)
 *         ERR_DRAINING, ERR_NO_MEMORY
 *         Nothing changes on an error. Blocks: no: staging begins with the first chunk, on the
 *         worker. */
int updates_start(struct updates *u, const struct update_start *req, struct update_info *out,
                  struct err *e);

/* updates_build_on - make a delta of an update that was started without a base: the first of its
 * requests shows that it is one. From then on it is partial.
 * Errors: ERR_NOT_FOUND, ERR_ENDED; ERR_CONFLICT (a request brought whole tensors before; it
 * commits by itself; the weights are asleep); ERR_UNSYNCED; ERR_PRECONDITION at /base_version:
 * another version is served. */
int updates_build_on(struct updates *u, const char *id, const struct update_base *base,
                     struct err *e);

/* Memory that a staging needs in one place, and free memory there. */
struct update_room {
    const char *place; /* "host", "cuda:0"; static for the store's life */
    uint64_t nbytes_needed, nbytes_available;
};

/* updates_room - needed and free memory of each place, for an update that has just started.
 * @out  [STORE_PLACES_MAX]
 * Returns: the number of places. Threads: any, no lock held. */
uint32_t updates_room(struct updates *u, const struct update_info *info, struct update_room *out);

/* Called once with the result, on the worker thread; `e` is clean on success. Never called if
 * updates_submit returned -1. No lock held; must not block. */
typedef void update_done_fn(void *arg, const struct update_info *info, const struct err *e);

/* What one rank gets of a chunk, where ranks get different things. */
struct chunk_rank {
    struct tensor_list *tensor_list; /* owned: one reference; NULL: nothing for this rank */
    struct checksum *checksums;      /* owned; [n_tensors] or NULL */
    bool *has_checksum;              /* owned; [n_tensors] or NULL */
};

/* Where tensors were in the request, for the JSON pointers in errors: those from `first` on were at
 * <at>/names/0 and so on. */
struct chunk_origin {
    uint32_t rank; /* of chunk_rank; 0 when every rank gets the same */
    uint32_t first;
    char at[72]; /* "/buckets/3", "/per_gpu/<uuid>", "/buckets/3/per_gpu/<uuid>" */
};

/* One request's tensors on their way in: a bucket, or several one after the other. */
struct update_chunk {
    char update_id[UPDATE_ID_MAX + 1];      /* "" = a one-shot update: received, verified and
                                               committed before `done`; several may be queued */
    char chunk_id[UPDATE_CHUNK_ID_MAX + 1]; /* "" = none */
    bool partial;                           /* one-shot update only */
    bool convert;                           /* one-shot update; in a session: for this chunk too */
    char label[VERSION_LABEL_MAX + 1];      /* "" = not given */
    bool label_of_file;                     /* `label` is what its file says: the session's, if it
                                               has one, goes before it */
    char commit_id[ID_LEN + 1];             /* of the version that a one-shot update restores, or
                                               "": a new version */
    struct update_base base;                /* one-shot update only */
    const struct chunk_rank *sent;          /* a delta: the parts, from which `source` makes the
                                               tensors of `tensor_list`; borrowed from the source.
                                               NULL: tensor_list is what is sent */
    const uint32_t *sent_at;                /* with `sent`: [n_tensors] of tensor_list: a part of
                                               each, for the field of errors; borrowed likewise */
    bool sharded;                           /* one-shot update only */
    bool has_trainer_rank;                  /* sessions only */
    uint32_t trainer_rank;                  /* below UPDATE_TRAINER_RANKS_MAX */
    struct tensor_list *tensor_list; /* owned: one reference; with `ranks`: the list of the first
                                        rank that has one */
    struct chunk_rank *ranks;        /* owned; [n_ranks], or NULL: each gets `tensor_list` */
    uint32_t n_ranks;                /* store_n_ranks, with `ranks` */
    struct chunk_origin *origins;    /* owned; by rank, then first; or NULL: /names/<i> */
    uint32_t n_origins;
    struct source *source;      /* owned */
    struct checksum *checksums; /* owned; [n_tensors] or NULL */
    bool *has_checksum;         /* owned; [n_tensors] or NULL */
    bool (*gone)(void *arg);    /* has the sender given up? Called on the worker, with done_arg,
                                   after the last byte. If so, the chunk is refused, because the
                                   sender may have reused its memory. NULL: never */
    update_done_fn *done;
    void *done_arg;
    struct actor actor; /* one-shot update only: for the log */

    uint32_t refused_rank; /* written by chunk_refield: its `rank` + 1, or 0 */
    uint32_t n_missing;    /* written when updates_submit fails with ERR_INCOMPLETE */
    const char *missing[UPDATE_MISSING_MAX]; /* the first of them; borrowed from the model spec */
};
void update_chunk_free(struct update_chunk *c); /* accepts NULL; closes the source */

/* chunk_refield - replace "/names/7" of a rank's tensor list by its JSON pointer in the request. */
void chunk_refield(struct update_chunk *c, uint32_t rank, struct err *e);

/* updates_submit - check a chunk against the model spec and queue it; moved in on success only. If
 * the chunk differs from rank to rank, its source must be one that maps (weights/source.h).
 *
 * A repeated chunk is answered again: if its chunk_id arrived before in this session, with the same
 * tensor list and checksums, the answer is success and the session as it is now, and nothing is
 * read from the source. A failed chunk is not remembered. A one-shot update is remembered only if
 * it names its version (label): without a label, the next step's update of the same tensors would
 * look like a repeated one.
 *
 * `done` may bring, besides the source's errors: ERR_CHECKSUM at /checksums/<i> (of the bytes as
 * sent), ERR_NON_FINITE at /names/<i>, ERR_MISMATCH (a tied name differs; at /names/<i>: from what
 * another rank of the trainer has sent), ERR_NO_STAGING,
 * ERR_ENDED (the update was aborted, and why; of a one-shot update ERR_CONFLICT), ERR_CONFLICT
 * (readers did not unpin), ERR_DRAINING.
 * Errors: ERR_NOT_FOUND    no such update_id
 *         ERR_ENDED        the session has ended, or is verified; the message says how
 *         ERR_CONFLICT     update_id "" while a session is open; at /names/<i>, /chunk_id: the
 *                          tensor, the chunk, is being received
 *         ERR_PRECONDITION which no repetition changes: at /names/<i>: the tensor has already
 *                          arrived; at /chunk_id: that chunk arrived with another tensor list; at
 *                          /weight_version: a rank names another than the update; at
 *                          /placement: the source gives every rank the same bytes, but the update
 *                          shards the model over several ranks
 *         ERR_BAD_REQUEST  at /names/<i>: two names of the tensor list bring the same tensor; at
 *                          /trainer_rank: it is not one of those that the session was started for
 *         ERR_MISMATCH     as model_spec_match
 *         ERR_INCOMPLETE   update_id "", not partial, and names of the model spec are missing; if
 *                          all ranks get the same, c->n_missing and c->missing list them
 *         ERR_UNSYNCED     update_id "", partial, and no weights to build on
 *         ERR_NO_STAGING, ERR_OVERLOADED (UPDATE_QUEUE_MAX), ERR_DRAINING, ERR_NO_MEMORY
 *         After an error nothing was received and the chunk is still the caller's. */
int updates_submit(struct updates *u, struct update_chunk *c, struct err *e);

struct update_checksum {
    const char *name;
    struct checksum sum;
};

/* updates_finish - verify the whole update and commit it, on the worker; then call `done`.
 * @label      overrides the session's unless ""
 * @checksums  borrowed, copied; a name of the model spec or an alias; over the bytes as served, or,
 * of a tensor that was widened by model_spec_hold, as sent (after conversion). Ignored names are
 * not served and not checked. Errors: ERR_NOT_FOUND, ERR_ENDED (aborted), ERR_CONFLICT (chunks are
 * still queued, or it is being finished), ERR_MISMATCH at /checksums/<name> (unknown name). `done`
 * may bring ERR_INCOMPLETE (info->missing; or a rank of the trainer has sent nothing:
 * info->senders) or ERR_CHECKSUM: the update is then aborted and the old version stays served.
 * Finishing a committed update again gives the first answer again. */
int updates_finish(struct updates *u, const char *id, const char *label,
                   const struct update_checksum *checksums, uint32_t n_checksums,
                   update_done_fn *done, void *done_arg, struct err *e);

/* updates_verify - all of finish except the commit: the update is then UPDATE_VERIFIED until its
 * lease ends, and finish only has to publish it. This lets several servers commit together or not
 * at all. When `done` is called without an error, no memory of a trainer is mapped any more.
 * Arguments, errors and the errors of `done`: as updates_finish; a failed check aborts the update.
 * Verifying again is harmless. */
int updates_verify(struct updates *u, const char *id, const struct update_checksum *checksums,
                   uint32_t n_checksums, update_done_fn *done, void *done_arg, struct err *e);

/* updates_abort - abort a session: a running fill is asked to stop, the worker frees the memory,
 * and queued or running chunks are answered with ERR_ENDED. Repeating is harmless. Blocks: no.
 * Errors: ERR_NOT_FOUND, ERR_ENDED (committed), ERR_CONFLICT (being committed right now). */
int updates_abort(struct updates *u, const char *id, const char *reason, struct update_info *out,
                  struct err *e);

/* updates_fail - the same, for the reason `why`, which becomes the update's error. */
int updates_fail(struct updates *u, const char *id, const struct err *why, struct update_info *out,
                 struct err *e);

/* updates_abort_unused - abort the open session if its client's requests do not name it, it was
 * started from the same host, and no chunk has come, queued ones included. Returns whether it did.
 */
bool updates_abort_unused(struct updates *u, const struct actor *actor, const char *reason);

/* updates_renew - end the lease `lease_s` seconds from now, and keep that length for later renewals
 * (0: the length it has). Errors: ERR_NOT_FOUND, ERR_ENDED. */
int updates_renew(struct updates *u, const char *id, uint32_t lease_s, struct update_info *out,
                  struct err *e);

/* updates_get - one session: open, or one of the last that ended. Errors: ERR_NOT_FOUND. */
int updates_get(struct updates *u, const char *id, struct update_info *out, struct err *e);

/* updates_current - the open session, or phase UPDATE_NONE.
 * updates_current_by - Blocks: until the deadline at most. Errors: of mtx_lock_by; *out untouched.
 */
void updates_current(struct updates *u, struct update_info *out);
int updates_current_by(struct updates *u, uint64_t deadline_us, struct update_info *out,
                       struct err *e);

/* updates_commit_auto - a dialect's resume or continue: commit an open auto-commit session.
 * Returns 0 and calls `done` at once, on the caller's thread, with UPDATE_NONE when there is none.
 * Errors: ERR_CONFLICT (chunks are still queued). */
int updates_commit_auto(struct updates *u, update_done_fn *done, void *done_arg, struct err *e);

/* updates_changes - what the last commit changed, kept until updates_changes_unref; NULL: there was
 * no version before it. Threads: any. */
const struct change_report *updates_changes(struct updates *u);
void updates_changes_unref(struct updates *u,
                           const struct change_report *report); /* accepts NULL */

/* updates_lists - the cache of tensor lists; lives as long as `u`. Threads: any. */
struct list_cache *updates_lists(struct updates *u);

struct updates_stats {
    uint64_t n_started, n_committed, n_aborted, nbytes_received;
    uint64_t receive_us, verify_us, commit_us;
    struct change_counts changes; /* of the last commit */
    uint64_t n_change_warnings[CHANGE_WARNING_COUNT];
};
void updates_stats(struct updates *u, struct updates_stats *out);

#endif
