/* Update sessions: their start and end, the chunks that they have received, and the info that is
 * reported of them. The states of their tensors are in update_states.c. */
#include "base/clock.h"
#include "base/log.h"
#include "weights/update/update_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *update_phase_name(enum update_phase phase)
{
    switch (phase) {
    case UPDATE_NONE:
        return "none";
    case UPDATE_OPEN:
        return "open";
    case UPDATE_RECEIVING:
        return "receiving";
    case UPDATE_VERIFYING:
        return "verifying";
    case UPDATE_VERIFIED:
        return "verified";
    case UPDATE_COMMITTED:
        return "committed";
    case UPDATE_ABORTED:
        return "aborted";
    }
    return "unknown";
}

struct session *session_new(const struct updates *u, struct err *e)
{
    uint32_t n = u->model_spec->tensor_list->n_tensors, n_ranks = store_n_ranks(u->cfg.store);
    struct session *s = calloc(1, sizeof *s);
    char id[ID_LEN + 1];

    if (s != NULL)
        s->tensor_states = calloc((size_t)n * n_ranks, 1);
    if (s != NULL)
        s->counted = calloc(n, sizeof *s->counted);
    if (s == NULL || s->tensor_states == NULL || s->counted == NULL) {
        if (s != NULL) {
            free(s->tensor_states);
            free(s->counted);
        }
        free(s);
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for an update of %u tensors", n);
        return NULL;
    }
    id_make(id);
    (void)snprintf(s->id, sizeof s->id, UPDATE_ID_PREFIX "%s", id);
    memcpy(s->commit_id, id, sizeof s->commit_id);
    s->phase = UPDATE_OPEN;
    s->began_us = clock_now_us();
    s->n_ranks = n_ranks;
    lease_timer_set(&s->lease, 0);
    s->dispose.kind = JOB_DISPOSE;
    s->dispose.session = s;
    return s;
}

void session_ref_locked(struct session *s)
{
    s->refs++;
}

struct session *session_unref_locked(struct session *s)
{
    assert(s->refs > 0);
    return --s->refs == 0 ? s : NULL;
}

void session_free(struct session *s)
{
    if (s == NULL)
        return;
    assert(s->staging == NULL && s->scope == NULL && s->n_ties == 0);
    free(s->tensor_states);
    free(s->counted);
    free(s->answers);
    free(s->ties);
    free(s->replicas);
    free(s->senders);
    free(s->brought_by);
    free(s->digests);
    tensor_list_unref(s->group_list);
    free(s);
}

struct session *session_find_locked(struct updates *u, const char *id)
{
    for (struct session *s = u->live; s != NULL; s = s->next)
        if (strcmp(s->id, id) == 0)
            return s;
    for (uint32_t i = 0; i < UPDATE_ENDED_KEPT; i++)
        if (u->ended[i] != NULL && strcmp(u->ended[i]->id, id) == 0)
            return u->ended[i];
    return NULL;
}

void session_begin_locked(struct updates *u, struct session *s)
{
    session_ref_locked(s);
    s->next = u->live;
    u->live = s;
    if (!s->one_shot)
        u->open = s;
    u->stats.n_started++;
    cnd_signal(&u->tick);
}

void session_renew_locked(struct updates *u, struct session *s, uint32_t lease_s)
{
    if (s->one_shot || session_ended(s))
        return;
    lease_timer_extend(&s->lease, lease_s);
    cnd_signal(&u->tick);
}

int session_refuse_ended(const struct session *s, struct err *e)
{
    if (s->phase == UPDATE_COMMITTED)
        return err_set(e, ERR_ENDED, "/update_id",
                       "update %s is committed as '%.128s': start another, or finish it again for "
                       "the same answer",
                       s->id, s->label);
    return err_set(e, ERR_ENDED, "/update_id", "update %s is aborted (%.300s): start another",
                   s->id, s->error.msg);
}

int session_answer_ended(const struct session *s, struct err *e)
{
    if (s->phase == UPDATE_ABORTED && s->error.code == ERR_DRAINING)
        return err_set(e, ERR_DRAINING, "", "update %s was aborted: %s", s->id, s->error.msg);
    if (s->phase == UPDATE_ABORTED) /* a one-shot update sent again is another */
        return err_set(e, s->one_shot ? ERR_CONFLICT : ERR_ENDED, "/update_id",
                       "update %s was aborted: %s", s->id, s->error.msg);
    return err_set(e, ERR_ENDED, "/update_id", "update %s was committed before this chunk", s->id);
}

/* end */

static void session_unlink_locked(struct updates *u, struct session *s)
{
    struct session **at = &u->live;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->next = NULL;
    if (u->open == s)
        u->open = NULL;
}

/* One of the queued chunks may have begun already. */
static void session_stop_queued_locked(struct updates *u, const struct session *s)
{
    for (struct update_job *j = u->queue; j != NULL; j = j->next)
        if (j->session == s)
            atomic_store_explicit(&j->progress.stop, true, memory_order_relaxed);
}

struct session *session_end_locked(struct updates *u, struct session *s, enum update_phase phase,
                                   const struct err *why)
{
    struct session *oldest = u->ended[u->ended_at];

    mtx_assert_held(&u->lock);
    assert(!session_ended(s));
    if (phase == UPDATE_COMMITTED) {
        u->stats.n_committed++;
    } else {
        s->n_missing = tensor_states_missing_locked(u, s, s->missing, UPDATE_MISSING_MAX);
        s->error = *why;
        u->stats.n_aborted++;
        if (s->running != NULL)
            atomic_store_explicit(&s->running->progress.stop, true, memory_order_relaxed);
        session_stop_queued_locked(u, s);
        session_ref_locked(s);
        u->n_disposing++;
        job_queue_first_locked(u, &s->dispose);
    }
    s->phase = phase;
    s->ended_us = clock_now_us();
    free(s->tensor_states);
    free(s->counted);
    free(s->brought_by);
    s->brought_by = NULL;
    s->tensor_states = NULL;
    s->counted = NULL;
    session_unlink_locked(u, s); /* the reference moves from the list to the ring */
    u->ended[u->ended_at] = s;
    u->ended_at = (u->ended_at + 1) % UPDATE_ENDED_KEPT;
    cnd_signal(&u->tick);
    return oldest != NULL ? session_unref_locked(oldest) : NULL;
}

/* repeated chunks */

/* Position-weighted, like the checksum itself: a swap is detected, also between ranks. */
static void key_add_sums(struct chunk_key *out, uint32_t rank,
                         const struct tensor_list *tensor_list, const struct checksum *sums,
                         const bool *has)
{
    for (uint32_t i = 0; sums != NULL && i < tensor_list->n_tensors; i++) {
        if (has != NULL && !has[i])
            continue;
        out->sums.a += (sums[i].a * (i + 1) + sums[i].b) * (rank + 1);
        out->sums.b += (sums[i].b * (i + 1) + i + 1) * (rank + 1);
    }
}

static void key_add_rank(struct chunk_key *out, uint32_t rank, const struct chunk_rank *r)
{
    struct checksum digest;

    if (r->tensor_list == NULL)
        return;
    digest = checksum_of(r->tensor_list->digest, TENSOR_LIST_DIGEST_LEN);
    out->sums.a += digest.a * (rank + 1);
    out->sums.b += digest.b * (rank + 1);
    key_add_sums(out, rank, r->tensor_list, r->checksums, r->has_checksum);
}

void chunk_key_make(struct chunk_key *out, const struct update_chunk *c, uint32_t n_ranks)
{
    memset(out, 0, sizeof *out);
    (void)snprintf(out->id, sizeof out->id, "%s", c->chunk_id);
    (void)snprintf(out->digest, sizeof out->digest, "%s", c->tensor_list->digest);
    out->trainer_rank = c->has_trainer_rank ? c->trainer_rank : UPDATE_TRAINER_RANKS_MAX;
    if (c->sent != NULL)
        key_add_rank(out, 0, c->sent);
    if (c->ranks == NULL)
        key_add_sums(out, 0, c->tensor_list, c->checksums, c->has_checksum);
    for (uint32_t r = 0; c->ranks != NULL && r < n_ranks; r++)
        key_add_rank(out, r, &c->ranks[r]);
}

bool chunk_key_same_id(const struct chunk_key *a, const struct chunk_key *b)
{
    return a->id[0] != '\0' && a->trainer_rank == b->trainer_rank && strcmp(a->id, b->id) == 0;
}

bool chunk_key_equal(const struct chunk_key *a, const struct chunk_key *b)
{
    return chunk_key_same_id(a, b) && chunk_key_same_tensors(a, b);
}

bool chunk_key_same_tensors(const struct chunk_key *a, const struct chunk_key *b)
{
    return strcmp(a->digest, b->digest) == 0 && checksum_equal(a->sums, b->sums);
}

/* If one is forgotten (no memory, or the oldest of too many), a repeated chunk gets the error that
 * its tensors have already arrived. */
void session_remember_locked(struct session *s, const struct chunk_key *key)
{
    if (key->id[0] == '\0')
        return;
    if (s->n_answers == s->answers_cap && s->answers_cap < UPDATE_CHUNKS_KEPT) {
        uint32_t cap = s->answers_cap == 0 ? 16 : s->answers_cap * 2;
        struct chunk_key *grown = realloc(s->answers, cap * sizeof *grown);

        if (grown == NULL)
            return;
        s->answers = grown;
        s->answers_cap = cap;
        s->answers_at = s->n_answers;
    }
    s->answers[s->answers_at] = *key;
    s->answers_at = (s->answers_at + 1) % s->answers_cap;
    if (s->n_answers < s->answers_cap)
        s->n_answers++;
}

const struct chunk_key *session_recall_locked(const struct session *s, const struct chunk_key *like)
{
    for (uint32_t i = 0; i < s->n_answers; i++)
        if (chunk_key_same_id(&s->answers[i], like))
            return &s->answers[i];
    return NULL;
}

/* the info of a session */

static uint64_t lease_left(const struct updates *u, const struct session *s)
{
    struct lease_timer bound = s->lease;

    if (session_ended(s))
        return 0;
    if (s->one_shot) /* no lease: its chunk's deadline bounds it */
        bound.end_us = s->running != NULL && s->running->kind == JOB_CHUNK
                           ? s->running->progress.deadline_us
                           : clock_after_us(u->cfg.receive_timeout_us);
    else if (s->n_jobs > 0) /* the lease is renewed when the jobs end */
        return (uint64_t)s->lease.length_s * 1000000;
    return lease_timer_left_us(&bound);
}

/* Time until the server aborts the running job. */
static uint64_t deadline_left(const struct updates *u, const struct session *s)
{
    uint64_t now = clock_now_us();

    if (s->running == NULL || session_ended(s))
        return lease_left(u, s);
    return s->running->progress.deadline_us > now ? s->running->progress.deadline_us - now : 0;
}

static void info_running(const struct session *s, struct update_info *out)
{
    const struct update_job *job = s->running;
    uint64_t spent = clock_now_us() - job->began_us;
    const struct tensor_list *tensor_list;
    uint64_t i, n_done;

    if (job->kind == JOB_FINISH || s->phase == UPDATE_VERIFYING) {
        out->verify_us += s->phase == UPDATE_VERIFYING ? spent : 0;
        return;
    }
    if (job->kind != JOB_CHUNK || s->phase != UPDATE_RECEIVING)
        return;
    tensor_list = job->chunk->tensor_list;
    out->receive_us += spent;
    out->nbytes_done += atomic_load_explicit(&job->progress.nbytes_done, memory_order_relaxed);
    i = atomic_load_explicit(&job->progress.tensor, memory_order_relaxed);
    if (i == PROGRESS_NO_TENSOR) /* the job waits for memory, and no byte was requested */
        return;
    if (i >= tensor_list->n_tensors)
        i = tensor_list->n_tensors - 1;
    (void)snprintf(out->tensor, sizeof out->tensor, "%s", tensor_list->tensors[i].name);
    n_done = out->n_tensors_done + i;
    out->n_tensors_done = (uint32_t)(n_done < out->n_tensors_total ? n_done : out->n_tensors_total);
}

/* Bytes as sent, of the chunks so far, and the bytes that a whole update still lacks. */
static uint64_t nbytes_total(const struct updates *u, const struct session *s)
{
    if (s->phase == UPDATE_COMMITTED)
        return s->nbytes_done;
    if (s->partial)
        return s->nbytes_accepted;
    return s->nbytes_accepted + (u->model_spec->tensor_list->nbytes - s->nbytes_claimed);
}

void session_info_locked(struct updates *u, struct session *s, struct update_info *out)
{
    mtx_assert_held(&u->lock);
    memset(out, 0, sizeof *out);
    memcpy(out->id, s->id, sizeof out->id);
    out->phase = s->phase;
    out->partial = s->partial;
    out->sharded = s->sharded;
    out->by_owner = store_sharded(u->cfg.store);
    out->mappings = s->mappings;
    out->on_gpu = s->on_gpu;
    out->host_sums = s->host_sums;
    out->auto_commit = s->auto_commit;
    out->yields = s->yields;
    out->anonymous = s->anonymous;
    memcpy(out->label, s->label, sizeof out->label);
    out->serial = s->serial;
    out->nbytes_staging = s->partial ? s->nbytes_claimed : u->model_spec->tensor_list->nbytes;
    out->nbytes_done = s->nbytes_done;
    out->nbytes_total = nbytes_total(u, s);
    out->nbytes_sent = s->nbytes_sent;
    out->base = s->base;
    out->n_tensors_total = s->partial ? s->n_claimed : u->model_spec->tensor_list->n_tensors;
    out->n_tensors_done = s->n_arrived;
    out->lease_left_us = lease_left(u, s);
    out->deadline_left_us = deadline_left(u, s);
    out->n_missing = tensor_states_missing_locked(u, s, out->missing, UPDATE_MISSING_MAX);
    out->non_finite = s->non_finite;
    out->n_checksums = atomic_load_explicit(&s->n_checksums, memory_order_relaxed);
    senders_info_locked(s, out);
    out->changes = s->changes;
    out->receive_us = s->receive_us;
    out->verify_us = s->verify_us;
    out->commit_us = s->commit_us;
    out->whole_us = (s->ended_us > 0 ? s->ended_us : clock_now_us()) - s->began_us;
    out->source = s->source;
    out->group_list = s->phase == UPDATE_COMMITTED ? s->group_list : NULL;
    out->group = s->group;
    out->actor = s->actor;
    out->error = s->error;
    if (s->running != NULL && !session_ended(s))
        info_running(s, out);
}

void updates_changed(struct updates *u)
{
    mtx_assert_none();
    if (u->cfg.on_change != NULL)
        u->cfg.on_change(u->cfg.arg);
}

void updates_log(const struct update_info *info)
{
    struct log_rec r;

    if (info->phase == UPDATE_VERIFYING)
        log_begin(&r, LOG_DEBUG, "update.proven");
    else
        log_begin(&r, LOG_INFO, "update.started");
    log_str(&r, "update_id", info->id);
    log_str(&r, "weight_version", info->label[0] != '\0' ? info->label : NULL);
    log_actor(&r, &info->actor);
    log_event(&r);
}

void updates_ended(struct updates *u, const struct update_info *info)
{
    mtx_assert_none();
    if (u->cfg.on_end != NULL)
        u->cfg.on_end(u->cfg.end_arg, info);
}
