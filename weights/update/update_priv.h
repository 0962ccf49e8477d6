/* Shared by update*.c: sessions, the jobs of the worker, and the layout of a chunk. */
#ifndef BATON_WEIGHTS_UPDATE_UPDATE_PRIV_H
#define BATON_WEIGHTS_UPDATE_UPDATE_PRIV_H

#include "base/lease_timer.h"
#include "base/mtx.h"
#include "weights/model_spec.h"
#include "weights/store/store_priv.h"
#include "weights/update/list_cache.h"
#include "weights/update/update.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How the bytes of one incoming tensor become weights. */
enum part_how {
    PART_DIRECT,   /* as they are */
    PART_CONVERT,  /* into another dtype */
    PART_TIED,     /* another name of a tensor: compared with that tensor */
    PART_IGNORED,  /* read, compared with the derived values, dropped */
    PART_REPEATED, /* another rank of the trainer sent it before: compared with that, dropped */
    PART_ELSEWHERE /* another GPU keeps it, which gets it by the same chunk: dropped */
};

struct part {
    struct model_spec_match match;
    enum part_how how;
    uint32_t n_breaks; /* how many parts up to this one do not begin where the part before them
                          ends in a staged chunk, with their bytes unchanged */
    uint32_t sent_by;  /* REPEATED: the rank of the trainer that sent it before */
    uint64_t offset;   /* DIRECT, CONVERT: in the slab of a staged chunk */
};

/* Where the tensors of one rank's list go. Depends only on the tensor list, the model spec and
 * `convert`, so it can be cached with the tensor list. Counted; immutable once made. */
struct layout {
    struct part *parts;         /* owned; [n_tensors] of the chunk's tensor list */
    struct dst_slot *dst_slots; /* owned; [n_dst_slots] all kept tensors, in the parts' order */
    size_t n_dst_slots;
    bool ties;               /* has a part with a tied name */
    uint64_t nbytes_kept;    /* slab of a staged chunk */
    uint64_t nbytes_largest; /* of the tensors, as sent and as kept */

    atomic_uint refs; /* relaxed up, acq_rel down: the last holder sees all writes of the others */
};

/* Identifies a chunk, to recognize a repeated one. */
struct chunk_key {
    char id[UPDATE_CHUNK_ID_MAX + 1]; /* "": not given, equal to no other */
    char digest[TENSOR_LIST_DIGEST_LEN + 1];
    uint32_t trainer_rank; /* each numbers its own chunks; UPDATE_TRAINER_RANKS_MAX: not given */
    struct checksum sums;  /* over the checksums that came with it */
};

/* A checksum given to finish. */
struct finish_sum {
    uint32_t index;            /* of the model spec's tensor list, or TENSOR_LIST_NO_TENSOR */
    const struct alias *alias; /* of the model spec, or NULL */
    struct checksum sum;
    uint32_t i; /* its place in the request */
};

enum job_kind { JOB_CHUNK, JOB_FINISH, JOB_ANSWER, JOB_DISPOSE };

struct session;

struct update_job {
    enum job_kind kind;         /* immutable, and so are those down to the blank line */
    struct session *session;    /* counted */
    struct update_chunk *chunk; /* owned; CHUNK, and ANSWER to a repeated one */
    struct layout **layouts;    /* owned, and counted; CHUNK: [1], or [n_ranks] if ranks get
                                   different lists; NULL for a rank that gets nothing */
    uint32_t n_layouts;
    struct chunk_key key;    /* CHUNK */
    struct finish_sum *sums; /* owned; FINISH */
    uint32_t n_sums;
    bool prove_only;      /* FINISH: no commit */
    bool uneven;          /* CHUNK: tensor_states_uneven */
    update_done_fn *done; /* NULL for DISPOSE */
    void *done_arg;

    struct fill *fill;                  /* owned; worker only; NULL until it has begun */
    struct non_finite_names non_finite; /* worker only: found in the chunk */
    char label[VERSION_LABEL_MAX + 1];  /* worker only, for messages: the chunk's, or the session's
                                           when the job began; "" = none yet */
    struct err ahead;                   /* worker only: why beginning ahead failed */

    struct update_job *next;  /* guarded by the updates' lock */
    uint64_t began_us;        /* guarded by the updates' lock; 0 while queued */
    struct progress progress; /* worker only; its atomic members: any thread */
};

/* The state of each tensor of the model spec. */
enum {
    TENSOR_QUEUED = 1,
    TENSOR_ARRIVED = 2,
    TENSOR_TIED = 4, /* a tied name of it arrived before the tensor itself */
    TENSOR_MINE = 8,
    TENSOR_NAMED = 16 /* a tied name of it arrived */
};

/* Bytes that arrived under a tied name before their target. */
struct tie {
    const struct alias *alias; /* of the model spec */
    struct slab *slab;         /* counted; host memory */
    const void *data;          /* in slab, in the target's dtype */
    uint32_t place;            /* whose target it is compared with */
    bool everywhere;           /* it arrived for all places, not only for that rank */
};

struct session {
    atomic_uint_fast64_t n_checksums; /* relaxed: a counter */

    /* Guarded by the updates' lock. */
    uint32_t refs;
    struct session *next; /* of updates.live */
    enum update_phase phase;
    char label[VERSION_LABEL_MAX + 1];
    struct source_counts mappings;
    bool on_gpu, host_sums;
    struct lease_timer lease; /* a one-shot session has none */
    uint32_t n_jobs;          /* queued or running; the lease does not run out meanwhile */
    bool finishing;           /* a finish is queued or running */
    bool sharded;             /* the ranks together must be complete, not each by itself */
    bool committing;          /* too late to abort */
    struct update_job *running;
    unsigned char *tensor_states; /* owned; [n_tensors][n_ranks] TENSOR_*; NULL once ended */
    bool *counted;                /* owned; [n_tensors] in n_claimed; NULL once ended */
    uint32_t n_arrived, n_claimed;
    uint32_t n_here;          /* arrived, also under a tied name; never decreases */
    uint32_t missing_from;    /* all tensors before this one have arrived */
    uint64_t nbytes_claimed;  /* of the model spec */
    uint64_t nbytes_accepted; /* as sent, of all chunks that have not failed */
    uint64_t nbytes_done;     /* as sent, of the chunks that arrived */
    uint64_t nbytes_sent;     /* the same; of a delta: of its parts */
    uint64_t serial;
    uint64_t receive_us, verify_us, commit_us;
    uint64_t ended_us;              /* 0 until then */
    const char *source;             /* static, or NULL */
    struct tensor_list *group_list; /* one reference: of the last chunk by a group; or NULL */
    uint64_t group;                 /* that group */
    struct err error;
    struct non_finite_names non_finite;
    struct change_counts changes; /* once committed */
    uint32_t n_missing;           /* once ended */
    const char *missing[UPDATE_MISSING_MAX];
    struct chunk_key *answers; /* owned; ring of the chunks that arrived */
    uint32_t n_answers, answers_cap, answers_at;
    struct chunk_key key;          /* one-shot: its chunk */
    struct update_sender *senders; /* owned; [UPDATE_SENDERS_MAX]; NULL: ranks are not told apart */
    uint32_t n_senders;
    uint16_t *brought_by; /* owned; [n_tensors] which sender + 1 brought it, or is about to, or 0;
                             with senders */
    struct err refusal;   /* of a sender's last request */

    /* Immutable once a job is queued (updates_build_on); the lock guards them until then. */
    struct update_base base;
    bool partial;

    /* Immutable. */
    char id[UPDATE_ID_MAX + 1];
    char commit_id[ID_LEN + 1]; /* of the version that it makes: the random part of `id`, or that of
                                   a version that is restored */
    uint64_t began_us;
    struct actor actor;
    bool one_shot; /* a one-shot update */
    bool auto_commit, anonymous, yields, convert;
    uint32_t n_ranks;
    uint32_t n_trainer_ranks; /* each must send something; 0: not known */

    /* Worker only. */
    bool proven;                /* since its last chunk */
    struct staging *staging;    /* owned; NULL until the first chunk runs */
    struct source_scope *scope; /* owned; NULL until a source makes it */
    struct tie *ties;           /* owned */
    uint32_t n_ties, ties_cap;
    struct replica *replicas; /* owned; [n_ranks][n_tensors]; NULL until lists differ by rank */
    struct digest *digests; /* owned; [n_tensors]; NULL until the first chunk, and once committed */

    struct update_job dispose; /* queued once, when the session is aborted */
};

/* The last bucket of a committed auto-commit update that had several; kept until another commit, or
 * until generation continues. */
struct closing {
    struct chunk_key key;
    char label[VERSION_LABEL_MAX + 1];
    uint64_t serial; /* of the update that it completed; 0: there is none */
};

struct updates {
    struct mtx lock; /* rank MTX_UPDATES; guards down to the blank line */
    struct cnd work; /* a job was queued, or stopping */
    struct cnd tick; /* a lease changed, or stopping */
    struct update_job *queue, **queue_tail;
    uint32_t n_queued;
    struct session *live;                     /* all sessions that have not ended; counted */
    struct session *open;                     /* the one that is not one-shot, or NULL */
    struct session *ended[UPDATE_ENDED_KEPT]; /* counted; ring */
    uint32_t ended_at;
    uint32_t n_disposing; /* aborted sessions which still hold memory until the worker frees it */
    bool stopping;
    struct updates_stats stats;
    struct closing closing;
    struct update_sender *last_senders; /* owned; of the last whole update that was committed */
    uint16_t *last_brought_by;          /* owned; NULL: not known */
    struct change_report *report; /* counted; of the last commit; NULL: no version was before it */

    struct {                    /* worker only: of the last commit */
        struct digest *digests; /* owned; [n_tensors]; NULL: there was none */
        uint64_t serial;
    } served;
    struct update_job *begun; /* worker only: the queued job that was begun ahead, or NULL */
    uint64_t late_serial;     /* worker only: serial of the last commit if an auto-commit one
                                 made it while a tied name was missing; else 0 */
    struct updates_cfg cfg;   /* immutable */
    const struct model_spec *model_spec; /* borrowed from the store; immutable */
    struct list_cache *lists;            /* owned; immutable */
    pthread_t worker, watchdog;          /* owner only */
    bool stopped;                        /* owner only: both have been joined */
};

/* update.c */

int update_not_found(const char *id, struct err *e);
int update_refuse_open(struct updates *u, struct session *s, struct err *e); /* locked */

/* Aborts the open session if it yields. It does not if it is being committed: what begins now
 * follows it. Returns whether it did: then *to_free is as of session_end_locked, and updates_ended
 * is due. */
bool update_give_way_locked(struct updates *u, struct session **to_free, struct update_info *ended);
/* Are there weights that a partial update can build on? The worker checks again when it stages. */
int update_check_base(const struct store_info *info, bool partial, const struct update_base *base,
                      struct err *e);
/* Leaves `e` clean if the memory is free, or soon will be. No lock held. */
void update_check_job_memory(struct updates *u, const struct store_info *base,
                             const struct update_job *job, struct err *e);
/* Will memory in use now be freed before the worker begins the next update? */
bool update_frees_locked(const struct updates *u);
int update_check_queue_locked(const struct updates *u, struct err *e);
void update_queue_locked(struct updates *u, struct session *s, struct update_job *job);

/* update_session.c. Functions named _locked require the updates' lock. */

struct session *session_new(const struct updates *u, struct err *e);
void session_ref_locked(struct session *s);
/* Drops one reference; returns the session if the caller has to session_free it, else NULL. */
struct session *session_unref_locked(struct session *s);
void session_free(struct session *s); /* accepts NULL */

/* By id, live or ended; NULL if there is none. Not counted. */
struct session *session_find_locked(struct updates *u, const char *id);
static inline bool session_ended(const struct session *s)
{
    return s->phase == UPDATE_COMMITTED || s->phase == UPDATE_ABORTED;
}
void session_begin_locked(struct updates *u, struct session *s);

/* Ends it. UPDATE_ABORTED: `why` becomes its error, a running fill is asked to stop, and the worker
 * frees the staging. Returns a session to session_free outside the lock, or NULL. */
struct session *session_end_locked(struct updates *u, struct session *s, enum update_phase phase,
                                   const struct err *why);
void session_info_locked(struct updates *u, struct session *s, struct update_info *out);
void session_renew_locked(struct updates *u, struct session *s, uint32_t lease_s);

/* ERR_ENDED for a new call on an ended session; the message says how it ended. */
int session_refuse_ended(const struct session *s, struct err *e);
/* The answer to a call that was queued when the session was aborted. */
int session_answer_ended(const struct session *s, struct err *e);

/* Marks the tensors that a chunk will bring. Those that another rank of the trainer has sent become
 * PART_REPEATED. After an error nothing is marked.
 * Errors: ERR_PRECONDITION (already arrived), ERR_CONFLICT (on the way), ERR_BAD_REQUEST (twice in
 * this chunk), ERR_NO_MEMORY. */
int tensor_states_take_locked(struct updates *u, struct session *s, struct update_job *job,
                              struct err *e);
void tensor_states_arrive_locked(struct updates *u, struct session *s,
                                 const struct update_job *job);
void tensor_states_release_locked(struct updates *u, struct session *s,
                                  const struct update_job *job);

/* Has tensor `index` arrived on each of these ranks, or is it on the way? */
bool tensor_states_has_locked(const struct session *s, uint32_t index, uint32_t first_rank,
                              uint32_t n_ranks);
/* Does a chunk bring some ranks other tensors than others? In another order, they are the same. */
bool tensor_states_uneven(const struct update_job *job, uint32_t n_ranks, uint32_t n_tensors);
/* From now on the ranks together must be complete, not each by itself. */
void tensor_states_shard_locked(struct updates *u, struct session *s);

void tensor_states_tie_locked(struct updates *u, struct session *s, const struct update_job *job);
/* Does tensor `index` lack these states on a rank where it must have them? */
bool tensor_states_lack_locked(const struct session *s, uint32_t index, unsigned mask);
/* Returns how many tensors are missing, and the names of the first `cap` of them, borrowed from the
 * model spec. */
uint32_t tensor_states_missing_locked(struct updates *u, struct session *s, const char **out,
                                      uint32_t cap);

/* update_senders.c: which rank brought what.
 *
 * senders_declare: so many ranks of a trainer will send tensors. Errors: ERR_NO_MEMORY.
 * senders_take_locked: a chunk's senders; after an error nothing is counted. Errors:
 * ERR_BAD_REQUEST at /trainer_rank, ERR_NO_MEMORY.
 * senders_arrive_locked, senders_refuse_locked: count a chunk that arrived, record that one was
 * refused.
 * senders_check_locked: has each rank sent something? Errors: ERR_INCOMPLETE.
 * senders_explain_locked: append to `e` what is known of the rank that should have brought a
 * tensor. @missing  the first one that is missing, or TENSOR_LIST_NO_TENSOR
 * senders_keep_locked: the session is committed; the next one is compared with it. */
int senders_declare(const struct updates *u, struct session *s, uint32_t n, struct err *e);
int senders_take_locked(struct updates *u, struct session *s, const struct update_job *job,
                        struct err *e);
/* senders_repeats_locked: makes the parts that another rank of the trainer has sent, or is about to
 * send, PART_REPEATED. Errors: ERR_NO_MEMORY.
 * senders_queue_locked, senders_release_locked: the chunk is about to bring its tensors; no more.
 */
int senders_repeats_locked(struct updates *u, const struct session *s, struct update_job *job,
                           struct err *e);
void senders_queue_locked(const struct updates *u, struct session *s, const struct update_job *job);
void senders_release_locked(struct session *s, const struct update_job *job);
void senders_arrive_locked(const struct updates *u, struct session *s,
                           const struct update_job *job);
void senders_refuse_locked(const struct updates *u, struct session *s, const struct update_job *job,
                           const struct err *why);
int senders_check_locked(struct updates *u, struct session *s, struct err *e);
void senders_explain_locked(const struct updates *u, const struct session *s, uint32_t missing,
                            struct err *e);
void senders_keep_locked(struct updates *u, struct session *s);
void senders_info_locked(const struct session *s, struct update_info *out);

void chunk_key_make(struct chunk_key *out, const struct update_chunk *c, uint32_t n_ranks);
bool chunk_key_equal(const struct chunk_key *a, const struct chunk_key *b);
bool chunk_key_same_tensors(const struct chunk_key *a, const struct chunk_key *b);
void session_remember_locked(struct session *s, const struct chunk_key *key);
const struct chunk_key *session_recall_locked(const struct session *s,
                                              const struct chunk_key *like);
/* Have both the same chunk id, of the same rank? */
bool chunk_key_same_id(const struct chunk_key *a, const struct chunk_key *b);

/* updates_changed calls cfg.on_change, updates_ended calls cfg.on_end; updates_log logs that a
 * session was started, or is proven. No lock held. */
void updates_changed(struct updates *u);
void updates_ended(struct updates *u, const struct update_info *info);
void updates_log(const struct update_info *info);

/* update_jobs.c: each runs one job on the worker, replies, and frees it. No lock held. */
void job_run_chunk(struct updates *u, struct update_job *job);
void job_run_finish(struct updates *u, struct update_job *job);
void job_run_answer(struct updates *u, struct update_job *job);
void job_run_dispose(struct updates *u,
                     struct update_job *job); /* part of its session: not freed */

/* update_worker.c */

void *update_worker_main(void *arg);
void *update_watchdog_main(void *arg);
void job_queue_locked(struct updates *u, struct update_job *job);
void job_queue_first_locked(struct updates *u, struct update_job *job);
void job_free(struct update_job *job); /* not of a dispose; accepts NULL */

/* update_layout.c: what a chunk will bring, computed before any byte moves. Pure. */

/* The tensors of the model spec that a part brings; none for an ignored name. */
static inline const uint32_t *match_targets(const struct model_spec_match *m, uint32_t *n)
{
    if (m->alias == NULL) {
        *n = 1;
        return &m->index;
    }
    *n = m->alias->kind == ALIAS_FUSED ? m->alias->n_targets : 0;
    return m->alias->targets;
}

/* Matches a tensor list. Errors: ERR_MISMATCH, ERR_NO_MEMORY. */
/* The tensors that a part adds: those that it brings, but none if it is compared or dropped. */
static inline const uint32_t *part_targets(const struct part *part, uint32_t *n)
{
    const uint32_t *targets = match_targets(&part->match, n);

    if (part->how == PART_REPEATED || part->how == PART_ELSEWHERE)
        *n = 0;
    return targets;
}

int layout_make(struct layout **out, const struct model_spec *m,
                const struct tensor_list *tensor_list, bool convert, struct err *e);
/* A copy in which some parts are PART_REPEATED.
 * @sent_by  [n_tensors] the rank of the trainer that sent a part before; TENSOR_LIST_NO_TENSOR:
 * none did Errors: ERR_NO_MEMORY. */
int layout_repeating(struct layout **out, const struct layout *l, const struct model_spec *m,
                     const struct tensor_list *tensor_list, const uint32_t *sent_by, struct err *e);
/* A copy for one rank of a sharded store: parts of which it keeps nothing are PART_ELSEWHERE. A
 * part of which it keeps a piece is copied whole; only the piece is served there.
 * @keepers  [n_tensors of the model spec] the rank that keeps a tensor; LAYOUT_KEEP_ALL: every rank
 *           to which it comes
 * Errors: ERR_NO_MEMORY. */
enum { LAYOUT_KEEP_ALL = UINT8_MAX };
int layout_share(struct layout **out, const struct layout *l, const struct model_spec *m,
                 const struct tensor_list *tensor_list, const uint8_t *keepers, uint32_t rank,
                 struct err *e);
void layout_unref(struct layout *l); /* accepts NULL */

/* Are parts [first, first + n) contiguous in a staged chunk, with their bytes unchanged? n > 0. */
bool layout_in_one(const struct layout *l, uint32_t first, uint32_t n);

/* Matches a chunk's tensor lists. Errors: ERR_MISMATCH, ERR_NO_MEMORY. */
int job_layouts_make(struct update_job *job, struct updates *u, bool convert, struct err *e);
void job_layouts_free(struct update_job *job);

/* tensor_list_coverage (weights/update/coverage.h) of a tensor list that already has a layout. */
int layout_coverage(const struct layout *l, const struct model_spec *m,
                    const struct tensor_list *tensor_list, const char **missing, uint32_t cap,
                    uint32_t *n_missing, struct err *e);

/* What a rank gets: its tensor list (NULL: nothing) and its layout. */
const struct tensor_list *chunk_tensor_list(const struct update_chunk *c, uint32_t rank);
const struct layout *job_layout(const struct update_job *job, uint32_t rank);
uint64_t chunk_nbytes(const struct update_chunk *c,
                      uint32_t n_ranks); /* as sent, each tensor list once */
/* The same; of a delta: of its parts. */
static inline uint64_t chunk_nbytes_sent(const struct update_chunk *c, uint32_t n_ranks)
{
    return c->sent != NULL ? c->sent->tensor_list->nbytes : chunk_nbytes(c, n_ranks);
}

/* Follows what is said of a tensor that a delta made and whose checksum is another. */
#define UPDATE_OTHER_BASE                                                                          \
    "; the delta was made from another base, or is damaged: send the whole model"

/* update_finite.c */

void non_finite_join(struct non_finite_names *to, const struct non_finite_names *from);

/* update_changes.c: digests of the tensors that arrive, and what a commit changes. Worker only. */

int digests_take(struct session *s, const struct model_spec *m, struct err *e); /* ERR_NO_MEMORY */
/* digest_set - the checksum of tensor `index` of the model spec, as it will be served. */
void digest_set(struct session *s, uint32_t index, const struct checksum *sum);
/* changes_prepare - compare a staging that is proven with the version before. *out is NULL if there
 * was none, or no memory (logged). */
void changes_prepare(const struct updates *u, struct session *s, const char *label,
                     struct change_report **out);
/* changes_commit_locked - the staging was committed: its digests and its report become those of the
 * last commit. Returns a report to free(). */
struct change_report *changes_commit_locked(struct updates *u, struct session *s,
                                            struct change_report *report,
                                            const struct store_stats *stats);
/* changes_log - log the warnings of a report, once, after changes_commit_locked. No lock held. */
void changes_log(struct updates *u, const struct session *s, struct change_report *report);

/* update_fill.c: chunks whose source writes into host memory. Worker only, no lock. */

int chunk_fill(struct fill *f, struct err *e);

/* update_map.c: chunks whose source shows where the bytes lie on GPUs. */

/* Queues the copies. 1: not ready yet, with SOURCE_TRY; call again. */
int chunk_map_begin(struct fill *f, enum source_wait wait, struct err *e);
/* Is a chunk that has begun still being copied? Never blocks; false also after an error. */
bool chunk_copying(struct update_job *job);
/* Waits for the copies, then converts and compares the other tensors. */
int chunk_map_end(struct fill *f, struct err *e);

/* update_recv.c: chunks whose source receives into GPU memory itself. */

/* Does what can fail, before the first bucket is posted. Errors: ERR_NO_MEMORY, ERR_CUDA. */
int chunk_recv_begin(struct fill *f, struct err *e);
/* Receives all buckets, and waits until they are copied and checked. @e is clean. */
int chunk_recv(struct fill *f, struct err *e);

/* update_chunk.c: one chunk from its first byte to its place in the staging. Worker only. */

/* Begins to move a chunk's bytes, if they can move while the worker does other work. Returns 1,
 * only with SOURCE_TRY, if not all could begin. */
int chunk_begin(struct session *s, struct update_job *job, const struct updates_cfg *cfg,
                enum source_wait wait, struct err *e);

/* Moves the rest, verifies all, and adds it to the session's staging. After an error the staging is
 * unchanged. Either way the job has no fill any more. */
int chunk_end(struct session *s, struct update_job *job, struct err *e);

/* Cancels a chunk that was begun: nothing writes any more. Accepts a job that was not begun. */
void chunk_drop(struct update_job *job);

/* update_prove.c */

/* Compares the ties whose target has arrived, in the staging or in this chunk. */
int ties_compare(struct fill *f, struct session *s, struct err *e);
void ties_drop_compared(struct session *s);
int tie_push(struct session *s, const struct tie *tie, struct err *e);
void session_drop_ties(struct session *s, uint32_t n_kept);

/* Did the session bring only tied or ignored names? */
bool session_only_ties(const struct session *s);
/* Compares the bytes of all ties with the served ones. Errors: ERR_MISMATCH, ERR_CUDA. */
int ties_compare_served(const struct session *s, const struct version *served, struct err *e);

/* Errors: ERR_MISMATCH (ranks got different bytes for one tensor). */
int replicas_prove(const struct session *s, struct err *e);

/* The checks of finish: ties, completeness, checksums. Worker only, no lock. */
int session_prove(struct session *s, const struct update_job *job, const struct model_spec *m,
                  struct err *e);

/* Fails if a GPU was lost after the bytes arrived. Worker only, no lock. */
int session_prove_devices(const struct session *s, struct err *e);
int stop_check(const struct progress *p, struct err *e);

#endif
