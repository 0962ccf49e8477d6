/* Update sessions: start -> receive... -> finish | abort, and the worker that drives them.
 *
 * One update is open at a time. A session lives only while its owner uses or renews it (the
 * lease; looking at it with updates_get is no use). All bytes move on one worker thread; every
 * call here only checks, queues or asks, and returns at once. An update that fails in any way
 * leaves the version that served serving.
 *
 * A chunk that fails leaves its session open, and its tensors count as not arrived: it may be sent
 * again, under the same chunk_id too. The exception: a whole update by itself ends with its only
 * chunk.
 *
 * A tied name is compared with its target, at the latest by finish; where its target does not come
 * at all, it brings the target's bytes. One that comes when an implicit session has been committed
 * without it is compared with what that committed; the session that it opened ends as that one.
 *
 * An implicit session takes only chunks that can be of one step: those that name a version name the
 * same, and the first is not what completed the one before (sent again, for want of an answer),
 * unless it names another version or updates_commit_implicit was called since. */
#ifndef BATON_WEIGHTS_UPDATE_UPDATE_H
#define BATON_WEIGHTS_UPDATE_UPDATE_H

#include "base/err.h"
#include "base/id.h"
#include "memory/checksum.h"
#include "memory/non_finite.h"
#include "weights/source.h"
#include "weights/store/store.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    UPDATE_ID_MAX = 40, /* "upd-" + ID_LEN */
    UPDATE_CHUNK_ID_MAX = 128,
    UPDATE_MISSING_MAX = 32,   /* names listed in a reply; the rest is counted */
    UPDATE_NON_FINITE_MAX = 32, /* so too, of tensors that are not finite */
    UPDATE_ENDED_KEPT = 16,    /* ended sessions that GET still shows */
    UPDATE_CHUNKS_KEPT = 4096, /* answers kept for repeated chunks, a session */
    UPDATE_QUEUE_MAX = 1024,   /* chunks and whole updates that wait for the worker */
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

/* Tensors that hold what is not finite: the first UPDATE_NON_FINITE_MAX that were seen. */
struct non_finite_names {
    uint32_t n;
    const char *names[UPDATE_NON_FINITE_MAX]; /* borrowed from the model spec, which outlives all */
};

struct update_info {
    char id[UPDATE_ID_MAX + 1];
    enum update_phase phase;
    bool partial, sharded, implicit, unnamed;
    struct source_counts mappings;      /* of trainers' memory, by this update */
    bool on_gpu;                        /* something came that lay on GPUs, or came there */
    bool host_sums;                     /* checksums of GPU memory were computed on the host */
    char label[VERSION_LABEL_MAX + 1];  /* wanted; after commit: what it got */
    uint64_t serial;                    /* after commit, else 0 */
    uint64_t nbytes_staging; /* what staging takes: model spec bytes, of the chunks so far
                                if partial */
    uint64_t nbytes_done, nbytes_total; /* as sent: of the chunks so far and, unless partial, what
                                           the model spec lacks beside them */
    uint32_t n_tensors_done, n_tensors_total;
    char tensor[TENSOR_LIST_NAME_LEN_MAX + 1]; /* being received now, "" if none */
    uint64_t lease_left_us;             /* until the lease ends, a whole one while chunks are under
                                           way; 0 once ended */
    uint64_t deadline_left_us;          /* until the server itself ends what is under way: the
                                           running chunk, else the lease; 0 once ended */
    uint32_t n_missing;                 /* of the model spec; 0 if partial */
    const char *missing[UPDATE_MISSING_MAX]; /* borrowed from the model spec, which outlives all */
    struct non_finite_names non_finite;        /* of the chunks that arrived; NON_FINITE_WARN */
    uint64_t receive_us, verify_us, commit_us; /* time spent so far in each phase */
    struct err error;                          /* why it was aborted; clean otherwise */
};

struct updates;

struct updates_cfg {
    struct store *store;          /* borrowed */
    uint64_t receive_timeout_us;  /* longest single chunk */
    uint64_t pin_timeout_us;      /* how long the first chunk waits for a version to be freed */
    enum non_finite_policy non_finite; /* what is done about numbers that are not finite, in what
                                          comes to host memory */
    void (*on_change)(void *arg); /* any state change; no lock held; may be NULL */
    void *arg;
};

int updates_new(struct updates **out, const struct updates_cfg *cfg, struct err *e);

/* updates_stop - abort what is open, answer what is queued with ERR_DRAINING, join the threads.
 * Every call stays allowed; those that would change something are ERR_DRAINING. Repeating is
 * harmless. Threads: the owner's. Blocks: until the running fill has noticed (100 ms). */
void updates_stop(struct updates *u);
void updates_free(struct updates *u); /* stops first; accepts NULL */

struct update_start {
    bool partial, convert;
    bool sharded;  /* the ranks together must be complete, not each by itself */
    bool unnamed;  /* opened by a dialect, whose requests do not name it */
    bool implicit; /* opened by a dialect's first bucket: commits by itself when covered */
    char label[VERSION_LABEL_MAX + 1];
    uint32_t lease_s; /* 1..UPDATE_LEASE_S_MAX */
};

/* updates_start - open a session.
 * Errors: ERR_CONFLICT    one is open: its id, phase and lease are in the message
 *         ERR_NO_STAGING  staging would not fit
 *         ERR_UNSYNCED    partial without a base
 *         ERR_DRAINING, ERR_NO_MEMORY
 *         Nothing changes on an error. Blocks: no: staging begins with the first chunk, on the
 *         worker. */
int updates_start(struct updates *u, const struct update_start *req, struct update_info *out,
                  struct err *e);

/* What staging takes in one place, and what there is. */
struct update_room {
    const char *place; /* "host", "cuda:0"; static for the store's life */
    uint64_t nbytes_needed, nbytes_available;
};

/* updates_room - for an update that has just started: of each place. @out [STORE_PLACES_MAX]
 * Returns: how many. Threads: any, no lock held. */
uint32_t updates_room(struct updates *u, const struct update_info *info, struct update_room *out);

/* What the worker hands back. `e` is clean on success. Called once, on the worker thread (or on
 * the caller's before updates_submit returns -1: never). No lock held; must not block. */
typedef void update_done_fn(void *arg, const struct update_info *info, const struct err *e);

/* What one rank gets of a chunk, where ranks get different things. */
struct chunk_rank {
    struct tensor_list *tensor_list; /* owned: one reference; NULL: nothing for this rank */
    struct checksum *checksums; /* owned; [n_tensors] or NULL */
    bool *has_checksum;         /* owned; [n_tensors] or NULL */
};

/* Where tensors stood in the request, for the pointers in errors: those from `first` on stood at
 * <at>/names/0 and so on. */
struct chunk_origin {
    uint32_t rank; /* of chunk_rank; 0 when every rank gets the same */
    uint32_t first;
    char at[72]; /* "/buckets/3", "/per_gpu/<uuid>", "/buckets/3/per_gpu/<uuid>" */
};

/* One request's tensors on their way in: a bucket, or several one after the other. */
struct update_chunk {
    char update_id[UPDATE_ID_MAX + 1];      /* "" = a whole update by itself: received, verified and
                                               committed before `done`; several queue up */
    char chunk_id[UPDATE_CHUNK_ID_MAX + 1]; /* "" = none */
    bool partial;                           /* of a whole update by itself */
    bool convert;                      /* of a whole update; in a session: for this chunk too */
    char label[VERSION_LABEL_MAX + 1]; /* "" = not said */
    bool sharded;                      /* of a whole update by itself */
    struct tensor_list *tensor_list;   /* owned: one reference; with `ranks`: of the first that
                            has one */
    struct chunk_rank *ranks;          /* owned; [n_ranks], or NULL: each gets `tensor list` */
    uint32_t n_ranks;                  /* store_n_ranks, with `ranks` */
    struct chunk_origin *origins;      /* owned; by rank, then first; or NULL: /names/<i> */
    uint32_t n_origins;
    struct source *source;      /* owned */
    struct checksum *checksums; /* owned; [n_tensors] or NULL */
    bool *has_checksum;         /* owned; [n_tensors] or NULL */
    bool (*gone)(void *arg);    /* has the sender given up? Asked on the worker, with done_arg,
                                   after the last byte: what it no longer answers for is not
                                   taken, since it may reuse its memory. NULL: never */
    update_done_fn *done;
    void *done_arg;

    uint32_t n_missing; /* written where updates_submit answers ERR_INCOMPLETE */
    const char *missing[UPDATE_MISSING_MAX]; /* the first of them; borrowed from the model spec */
};
void update_chunk_free(struct update_chunk *c); /* accepts NULL; closes the source */

/* chunk_refield - "/names/7" of a rank's tensor list becomes where that stood in the request. */
void chunk_refield(const struct update_chunk *c, uint32_t rank, struct err *e);

/* updates_submit - check a chunk against the model spec and queue it; moved in on success only. The
 * source of a chunk that differs from rank to rank is one that maps (weights/source.h).
 * A chunk_id that arrived before in this session, with the same tensor list and checksums, is
 * answered again: success, and the session as it is now; nothing is read from the source. A failed
 * chunk is not remembered. Whole updates by themselves are remembered only if they name their
 * version (label): without it, the next step's update of the same tensors could pass for a repeated
 * one. `done` brings, beside what the source says: ERR_CHECKSUM at /checksums/<i> (of the bytes as
 * sent), ERR_NON_FINITE at /names/<i>, ERR_MISMATCH (a tied name differs), ERR_NO_STAGING,
 * ERR_CONFLICT (aborted meanwhile, why; readers did not let go), ERR_DRAINING.
 * Errors: ERR_NOT_FOUND   no such update_id
 *         ERR_ENDED       it has ended: how is in the message
 *         ERR_CONFLICT    update_id "" while a session is open; at /names/<i> a tensor that already
 *                         arrived; at /chunk_id one that is still under way, or came before with
 *                         another tensor list; at /placement a source that gives every rank the
 * same, in an update that shards the model over several ERR_BAD_REQUEST at /names/<i>: two names of
 * the tensor list bring the same tensor ERR_MISMATCH    as model_spec_match ERR_INCOMPLETE
 * update_id "", not partial, and names of the model spec are missing; if each rank gets the same,
 * c->n_missing and c->missing say which ERR_UNSYNCED  update_id "", partial, without a base
 *         ERR_NO_STAGING, ERR_OVERLOADED (UPDATE_QUEUE_MAX), ERR_DRAINING, ERR_NO_MEMORY
 *         After an error nothing was received and the chunk is still the caller's. */
int updates_submit(struct updates *u, struct update_chunk *c, struct err *e);

struct update_checksum {
    const char *name;
    struct checksum sum;
};

/* updates_finish - prove the whole and commit, on the worker; then `done`.
 * @label      overrides the session's unless ""
 * @checksums  borrowed, copied; a name of the model spec or an alias; over the bytes as served
 *             (after conversion). Ignored names are not served and not checked.
 * Errors: ERR_NOT_FOUND, ERR_ENDED (aborted),
 *         ERR_CONFLICT (chunks are still queued, or it is being finished),
 *         ERR_MISMATCH at /checksums/<name> (unknown name).
 *         `done` may bring ERR_INCOMPLETE (info->missing) or ERR_CHECKSUM: the update is then
 *         aborted and the old version serves. Finishing a committed update again gives the first
 *         answer again. */
int updates_finish(struct updates *u, const char *id, const char *label,
                   const struct update_checksum *checksums, uint32_t n_checksums,
                   update_done_fn *done, void *done_arg, struct err *e);

/* updates_verify - all of finish but the commit: the update is then UPDATE_VERIFIED, as long as its
 * lease holds, and finish has only to publish it. So that several servers can commit together, or
 * none of them. Nothing of a trainer's memory is mapped any more when `done` is called without an
 * error. Arguments, errors and what `done` may bring: as updates_finish; what cannot be proven
 * aborts the update. Verifying again is harmless. */
int updates_verify(struct updates *u, const char *id, const struct update_checksum *checksums,
                   uint32_t n_checksums, update_done_fn *done, void *done_arg, struct err *e);

/* updates_abort - end a session; a running fill is asked to stop, and the worker gives the memory
 * back; chunks under way are answered with ERR_CONFLICT. Repeating is harmless. Blocks: no.
 * Errors: ERR_NOT_FOUND, ERR_ENDED (committed), ERR_CONFLICT (being committed right now). */
int updates_abort(struct updates *u, const char *id, const char *reason, struct update_info *out,
                  struct err *e);

/* updates_renew - make the lease end `lease_s` from now, and be that long from then on (0: its own
 * length). Errors: ERR_NOT_FOUND, ERR_ENDED. */
int updates_renew(struct updates *u, const char *id, uint32_t lease_s, struct update_info *out,
                  struct err *e);

/* updates_get - one session, open or among the last ended. Errors: ERR_NOT_FOUND. */
int updates_get(struct updates *u, const char *id, struct update_info *out, struct err *e);

/* updates_current - the open session, or phase UPDATE_NONE. */
void updates_current(struct updates *u, struct update_info *out);

/* updates_commit_implicit - a dialect's resume or continue: commit an open implicit session.
 * Returns 0 and calls `done` at once, on the caller's thread, with UPDATE_NONE when there is none.
 * Errors: ERR_CONFLICT (chunks are still queued). */
int updates_commit_implicit(struct updates *u, update_done_fn *done, void *done_arg, struct err *e);

/* updates_lists - the lists that came before; as long as `u`. Threads: any. */
struct list_cache *updates_lists(struct updates *u);

struct updates_stats {
    uint64_t n_started, n_committed, n_aborted, nbytes_received;
    uint64_t receive_us, verify_us, commit_us;
};
void updates_stats(struct updates *u, struct updates_stats *out);

#endif
