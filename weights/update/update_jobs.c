/* The jobs of the worker: a chunk, a finish, the reply to a repeated chunk, the memory of an
 * aborted session.
 *
 * A thread that ends a session only decides it and asks a running fill to stop. The staging belongs
 * to the worker, which frees it in the session's dispose job. So a caller never waits for a copy,
 * and memory that a copy still writes to is never freed. */
#include "base/clock.h"
#include "memory/device.h"
#include "weights/update/update_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { AHEAD_SPIN_US = 2000, AHEAD_NAP_NS = 50000 };

/* The last step of every job that has a waiting caller. The source is closed first: a body's
 * source reads from the request that `done` answers. */
static void job_answer(struct updates *u, struct update_job *job, const struct err *e)
{
    update_done_fn *done = job->done;
    void *done_arg = job->done_arg;
    struct session *s = job->session, *to_free;
    struct update_info info;

    job_free(job);
    mtx_lock(&u->lock);
    s->n_jobs--;
    session_renew_locked(u, s, 0);
    session_info_locked(u, s, &info);
    to_free = session_unref_locked(s);
    mtx_unlock(&u->lock);
    session_free(to_free);
    updates_changed(u);
    done(done_arg, &info, e);
}

/* A failure on the worker ends the session. If the session has already ended, the reply has that
 * error instead. */
static void end_failed(struct updates *u, struct session *s, struct err *e)
{
    struct session *to_free = NULL;
    struct update_info info;
    bool ended;

    mtx_lock(&u->lock);
    s->running = NULL;
    ended = session_ended(s);
    if (ended) {
        err_clear(e);
        (void)session_answer_ended(s, e);
    } else {
        to_free = session_end_locked(u, s, UPDATE_ABORTED, e);
        session_info_locked(u, s, &info);
    }
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (!ended)
        updates_ended(u, &info);
}

/* Begins a phase, unless the session ended while the job was queued. */
static int job_enter_phase(struct updates *u, struct update_job *job, enum update_phase phase,
                           struct err *e)
{
    struct session *s = job->session;
    int rc = 0;

    mtx_lock(&u->lock);
    if (u->stopping && !session_ended(s))
        rc = err_set(e, ERR_DRAINING, "", "the server is stopping");
    else if (session_ended(s))
        rc = session_answer_ended(s, e);
    if (rc == 0) {
        s->phase = phase;
        s->running = job;
        job->began_us = clock_now_us();
        job->progress.deadline_us = clock_after_us(u->cfg.receive_timeout_us);
        memcpy(job->label,
               job->chunk != NULL && job->chunk->label[0] != '\0' ? job->chunk->label : s->label,
               sizeof job->label);
    }
    mtx_unlock(&u->lock);
    if (rc == 0)
        updates_changed(u);
    return rc;
}

static int ensure_staging(struct updates *u, struct session *s, const struct progress *p,
                          struct err *e)
{
    struct staging_cfg cfg = {
        .partial = s->partial, .commit_id = s->commit_id, .base_serial = s->base.serial};

    mtx_lock(&u->lock);
    cfg.sharded = s->sharded;
    mtx_unlock(&u->lock);
    if (s->staging != NULL) {
        s->staging->sharded = cfg.sharded; /* a later chunk may have made it so */
        return 0;
    }
    if (digests_take(s, u->model_spec, e) != 0)
        return -1;
    return store_stage(u->cfg.store, &cfg, clock_after_us(u->cfg.pin_timeout_us), &p->stop,
                       &s->staging, e);
}

/* Were checksums of bytes on GPUs computed on the host, because the GPU has no kernels? */
static bool sums_on_host(const struct updates *u, const struct update_chunk *c)
{
    bool sums = c->checksums != NULL;

    if (c->source->ops->fill != NULL)
        return false;
    for (uint32_t r = 0; c->ranks != NULL && r < c->n_ranks; r++)
        sums = sums || c->ranks[r].checksums != NULL;
    return sums && !device_has_kernels(store_device(u->cfg.store, 0));
}

static void count_mappings_locked(struct session *s)
{
    if (s->scope != NULL)
        s->scope->ops->counts(s->scope, &s->mappings);
}

/* A chunk of an ended session that has begun still writes to its memory. */
static void drop_begun(struct updates *u, const struct session *s)
{
    if (u->begun != NULL && u->begun->session == s)
        chunk_drop(u->begun);
}

/* The end of an update: objects shared by its sources are no longer needed. */
static void close_scope(struct updates *u, struct session *s)
{
    struct source_scope *scope = s->scope;

    if (scope == NULL)
        return;
    scope->ops->close(scope);
    mtx_lock(&u->lock);
    s->scope = NULL;
    s->mappings.n_closed = s->mappings.n_opened;
    s->mappings.n_mapped = 0;
    mtx_unlock(&u->lock);
}

/* A trainer may send it once, and mean it again in its next update. */
static void keep_list_locked(struct session *s, const struct update_chunk *c)
{
    if (source_group(c->source) == 0)
        return;
    tensor_list_unref(s->group_list);
    s->group_list = tensor_list_ref(c->tensor_list);
    s->group = source_group(c->source);
}

/* Records the result of a fill. An abort that came meanwhile takes precedence over any result. */
static void settle_chunk(struct updates *u, struct update_job *job, struct err *e)
{
    struct session *s = job->session;
    uint64_t spent;
    bool fatal = false;

    mtx_lock(&u->lock);
    s->running = NULL;
    count_mappings_locked(s);
    s->source = job->chunk->source->ops->name;
    s->on_gpu = s->on_gpu || job->chunk->source->ops->fill == NULL;
    s->host_sums = s->host_sums || sums_on_host(u, job->chunk);
    spent = clock_now_us() - job->began_us;
    s->receive_us += spent;
    u->stats.receive_us += spent;
    if (session_ended(s)) {
        err_clear(e);
        (void)session_answer_ended(s, e);
    } else if (e->code != ERR_NONE) {
        fatal = s->one_shot;
        senders_refuse_locked(u, s, job, e);
        if (!fatal)
            tensor_states_release_locked(u, s, job);
    } else {
        tensor_states_arrive_locked(u, s, job);
        senders_arrive_locked(u, s, job);
        session_remember_locked(s, &job->key);
        keep_list_locked(s, job->chunk);
        non_finite_join(&s->non_finite, &job->non_finite);
        s->nbytes_sent += chunk_nbytes_sent(job->chunk, s->n_ranks);
        u->stats.nbytes_received += chunk_nbytes_sent(job->chunk, s->n_ranks);
        if (job->chunk->label[0] != '\0')
            memcpy(s->label, job->chunk->label, sizeof s->label);
    }
    mtx_unlock(&u->lock);
    if (fatal)
        end_failed(u, s, e);
}

static void settle_commit_locked(struct session *s, const struct store_stats *stats)
{
    s->serial = stats->serial;
    memcpy(s->label, stats->label, sizeof s->label);
    s->n_arrived = stats->n_updated; /* tied names may have brought some */
    s->n_claimed = s->n_arrived;
}

/* From here on an abort is too late, and is refused. */
static int pass_point_of_no_return(struct updates *u, struct update_job *job, char *label,
                                   struct err *e)
{
    struct session *s = job->session;
    uint64_t spent = clock_now_us() - job->began_us;
    int rc = 0;

    mtx_lock(&u->lock);
    s->verify_us += spent;
    u->stats.verify_us += spent;
    if (session_ended(s)) {
        rc = session_answer_ended(s, e);
    } else {
        s->committing = true;
        job->began_us = clock_now_us();
        memcpy(label, s->label, sizeof s->label);
    }
    mtx_unlock(&u->lock);
    return rc;
}

/* Is there a tensor with tied names of which none has arrived? */
static bool lacks_tied_name_locked(struct updates *u, const struct session *s)
{
    const struct model_spec *m = u->model_spec;

    for (uint32_t i = 0; i < m->n_aliases; i++)
        if (m->aliases[i].kind == ALIAS_TIED &&
            tensor_states_lack_locked(s, m->aliases[i].targets[0], TENSOR_NAMED))
            return true;
    return false;
}

/* A trainer that misses the reply to the bucket that completed an auto-commit update sends it
 * again, and would begin another update with it. */
static void remember_closing_locked(struct updates *u, const struct update_job *job,
                                    uint64_t serial)
{
    const struct session *s = job->session;

    u->closing = (struct closing){0};
    if (!s->auto_commit || job->kind != JOB_CHUNK ||
        s->nbytes_done <= chunk_nbytes(job->chunk, s->n_ranks))
        return;
    u->closing.key = job->key;
    u->closing.serial = serial;
    memcpy(u->closing.label, job->chunk->label, sizeof u->closing.label);
}

static int job_commit(struct updates *u, struct update_job *job, struct err *e)
{
    struct session *s = job->session, *to_free = NULL;
    struct change_report *report, *old_report = NULL;
    char label[VERSION_LABEL_MAX + 1];
    struct store_stats stats;
    struct update_info info;
    uint64_t spent;
    int rc;

    if (pass_point_of_no_return(u, job, label, e) != 0)
        return -1;
    drop_begun(u,
               s); /* an auto-commit session commits once it is covered, even with chunks queued */
    changes_prepare(u, s, label, &report);
    rc = store_commit(u->cfg.store, s->staging, label, &stats, e);
    close_scope(u, s);
    mtx_lock(&u->lock);
    spent = clock_now_us() - job->began_us;
    s->commit_us += spent;
    u->stats.commit_us += spent;
    s->committing = false;
    s->running = NULL;
    if (rc == 0) {
        s->staging = NULL;
        u->late_serial = s->auto_commit && lacks_tied_name_locked(u, s) ? stats.serial : 0;
        remember_closing_locked(u, job, stats.serial);
        settle_commit_locked(s, &stats);
        senders_keep_locked(u, s);
        old_report = changes_commit_locked(u, s, report, &stats);
        to_free = session_end_locked(u, s, UPDATE_COMMITTED, NULL);
        session_info_locked(u, s, &info);
    }
    mtx_unlock(&u->lock);
    session_free(to_free);
    free(rc == 0 ? old_report : report);
    if (rc == 0) {
        changes_log(u, s, report);
        updates_ended(u, &info);
    }
    return rc;
}

/* Has each rank of the trainer that was declared sent something? */
static int prove_senders(struct updates *u, struct session *s, struct err *e)
{
    int rc;

    mtx_lock(&u->lock);
    rc = senders_check_locked(u, s, e);
    mtx_unlock(&u->lock);
    return rc;
}

/* Adds to the error what is known of the rank that should have brought the missing tensors. */
static int explain_missing(struct updates *u, struct session *s, struct err *e)
{
    const char *first;

    if (e->code != ERR_INCOMPLETE)
        return -1;
    mtx_lock(&u->lock);
    if (!session_ended(s) && tensor_states_missing_locked(u, s, &first, 1) > 0)
        senders_explain_locked(u, s, s->missing_from, e);
    mtx_unlock(&u->lock);
    return -1;
}

/* A verified update stays verified until the lease ends; a GPU may still be lost. */
static int job_prove(struct updates *u, struct update_job *job, struct err *e)
{
    struct session *s = job->session;
    struct update_info info;

    if (s->proven && job->n_sums == 0)
        return session_prove_devices(s, e);
    if (prove_senders(u, s, e) != 0)
        return -1;
    if (session_prove(s, job, u->model_spec, e) != 0)
        return explain_missing(u, s, e);
    s->proven = true;
    mtx_lock(&u->lock);
    session_info_locked(u, s, &info);
    mtx_unlock(&u->lock);
    updates_log(&info);
    return 0;
}

static int settle_verified(struct updates *u, struct update_job *job, struct err *e)
{
    struct session *s = job->session;
    uint64_t spent = clock_now_us() - job->began_us;
    int rc = 0;

    close_scope(u, s); /* no chunk is accepted any more: trainers may free their memory */
    mtx_lock(&u->lock);
    s->running = NULL;
    s->verify_us += spent;
    u->stats.verify_us += spent;
    if (session_ended(s))
        rc = session_answer_ended(s, e);
    else
        s->phase = UPDATE_VERIFIED;
    mtx_unlock(&u->lock);
    return rc;
}

/* Verifies, and commits unless the job is only to verify. A failure aborts the update, and the old
 * version continues to be served. */
static void job_finish(struct updates *u, struct update_job *job, struct err *e)
{
    struct device *device = store_device(u->cfg.store, 0);

    if (job_enter_phase(u, job, UPDATE_VERIFYING, e) != 0)
        return;
    if (job->n_sums > 0 && device != NULL && !device_has_kernels(device)) {
        mtx_lock(&u->lock);
        job->session->host_sums = true;
        mtx_unlock(&u->lock);
    }
    if (job_prove(u, job, e) != 0 ||
        (job->prove_only ? settle_verified(u, job, e) : job_commit(u, job, e)) != 0)
        end_failed(u, job->session, e);
}

/* Is an auto-commit session complete? Tied names do not count: their target may still arrive. */
static bool session_covered(struct updates *u, struct session *s)
{
    bool yes;

    mtx_lock(&u->lock);
    yes = !session_ended(s) && s->auto_commit && !s->partial &&
          s->n_arrived == u->model_spec->tensor_list->n_tensors;
    mtx_unlock(&u->lock);
    return yes;
}

/* Ends a session that brought nothing new, with the served version as its result. */
static void end_as_served(struct updates *u, struct session *s, const struct version *served,
                          struct err *e)
{
    struct session *to_free = NULL;
    struct update_info info;
    int rc = 0;

    drop_begun(u, s);
    close_scope(u, s);
    session_drop_ties(s, 0);
    store_abort(u->cfg.store, s->staging);
    s->staging = NULL;
    mtx_lock(&u->lock);
    if (session_ended(s)) {
        rc = session_answer_ended(s, e);
    } else {
        s->serial = served->serial;
        (void)snprintf(s->label, sizeof s->label, "%s", served->label);
        to_free = session_end_locked(u, s, UPDATE_COMMITTED, NULL);
        session_info_locked(u, s, &info);
    }
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (rc == 0)
        updates_ended(u, &info);
}

/* State dicts of tied models often have the tied name last. Then all served tensors precede it, an
 * auto-commit session has been committed, and the name opens another session. If its bytes are
 * equal to the served ones, it belongs to that commit: left open, the session would wait for a
 * whole model. */
static void settle_late_tie(struct updates *u, struct session *s, struct err *e)
{
    const struct version *served;
    struct err none = {0};

    if (!s->auto_commit || u->late_serial == 0 || !session_only_ties(s) ||
        store_pin(u->cfg.store, &served, &none) != 0)
        return;
    if (served->serial != u->late_serial)
        u->late_serial = 0;
    else if (ties_compare_served(s, served, e) != 0)
        end_failed(u, s, e);
    else
        end_as_served(u, s, served, e);
    store_unpin(u->cfg.store, served);
}

/* Begins to move a chunk's bytes. Returns 1 with SOURCE_TRY if not all could be begun. */
static int job_begin(struct updates *u, struct update_job *job, enum source_wait wait,
                     struct err *e)
{
    if (ensure_staging(u, job->session, &job->progress, e) != 0)
        return -1;
    return chunk_begin(job->session, job, &u->cfg, wait, e);
}

/* The next job, if it is a chunk of the same update whose bytes a GPU can copy meanwhile. It stays
 * in the queue, whose head only this thread takes. A chunk that is received does not begin early:
 * a rank that enters a collective stays in it. */
static struct update_job *next_to_begin(struct updates *u, const struct session *s)
{
    struct update_job *next;
    bool fit;

    mtx_lock(&u->lock);
    next = u->queue;
    fit = next != NULL && next->kind == JOB_CHUNK && next->session == s && !session_ended(s) &&
          next->chunk->source->ops->map != NULL;
    if (fit)
        next->progress.deadline_us = clock_after_us(u->cfg.receive_timeout_us);
    mtx_unlock(&u->lock);
    return fit ? next : NULL;
}

/* While the GPU copies this chunk, the next one is mapped and queued after it. An error of the
 * next one is reported when it is run. */
static void begin_ahead(struct updates *u, struct update_job *job)
{
    struct update_job *next;

    if (u->begun != NULL || job->chunk->source->ops->map == NULL)
        return;
    next = next_to_begin(u, job->session);
    if (next == NULL)
        return;
    u->begun = next;
    (void)job_begin(u, next, SOURCE_TRY, &next->ahead);
}

/* The next request may arrive while this one's bytes are being copied. Copying a bucket takes less
 * time than a sleep may overrun, so a short wait spins. */
static void begin_ahead_while_copying(struct updates *u, struct update_job *job)
{
    uint64_t spin_until_us = clock_after_us(AHEAD_SPIN_US);
    struct timespec nap = {0, AHEAD_NAP_NS};

    begin_ahead(u, job);
    while (u->begun == NULL && chunk_copying(job)) {
        if (clock_passed(spin_until_us))
            (void)nanosleep(&nap, NULL);
        begin_ahead(u, job);
    }
}

static int move_chunk(struct updates *u, struct update_job *job, struct err *e)
{
    if (job->ahead.code != ERR_NONE) {
        *e = job->ahead;
        return -1;
    }
    if (job_begin(u, job, SOURCE_WAIT, e) != 0)
        return -1;
    begin_ahead_while_copying(u, job);
    return chunk_end(job->session, job, e);
}

/* After a request that may have committed an update. */
static void report_commit(struct updates *u, const struct session *s, struct err *e)
{
    uint64_t serial = 0;

    if (e->code != ERR_NONE || u->cfg.on_commit == NULL)
        return;
    mtx_lock(&u->lock);
    if (s->phase == UPDATE_COMMITTED)
        serial = s->serial;
    mtx_unlock(&u->lock);
    if (serial > 0)
        (void)u->cfg.on_commit(u->cfg.commit_arg, serial, e);
}

void job_run_chunk(struct updates *u, struct update_job *job)
{
    struct session *s = job->session;
    struct err e = {0};

    if (u->begun == job)
        u->begun = NULL;
    if (job_enter_phase(u, job, UPDATE_RECEIVING, &e) == 0) {
        (void)move_chunk(u, job, &e);
        chunk_drop(job); /* a chunk that failed half-way must hold nothing any more */
        settle_chunk(u, job, &e);
        if (e.code == ERR_NONE && (s->one_shot || session_covered(u, s)))
            job_finish(u, job, &e);
        else if (e.code == ERR_NONE)
            settle_late_tie(u, s, &e);
    }
    chunk_drop(job);
    report_commit(u, job->session, &e);
    job_answer(u, job, &e);
}

void job_run_finish(struct updates *u, struct update_job *job)
{
    struct err e = {0};

    job_finish(u, job, &e);
    mtx_lock(&u->lock);
    job->session->finishing = false;
    mtx_unlock(&u->lock);
    report_commit(u, job->session, &e);
    job_answer(u, job, &e);
}

void job_run_answer(struct updates *u, struct update_job *job)
{
    struct err e = {0};

    report_commit(u, job->session, &e);
    job_answer(u, job, &e);
}

/* Frees what an aborted session held. Its chunk that has begun is dropped first, because it still
 * writes there. */
void job_run_dispose(struct updates *u, struct update_job *job)
{
    struct session *s = job->session, *to_free;

    drop_begun(u, s);
    close_scope(u, s);
    session_drop_ties(s, 0);
    store_abort(u->cfg.store, s->staging);
    s->staging = NULL;
    mtx_lock(&u->lock);
    u->n_disposing--;
    s->n_jobs--;
    to_free = session_unref_locked(s);
    mtx_unlock(&u->lock);
    session_free(to_free);
    updates_changed(u);
}
