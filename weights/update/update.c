/* The public calls on updates. Each checks, and then queues a job or returns the state, without
 * waiting.
 *
 * Checks that depend only on the request and the model spec are made before the lock is taken.
 * Checks that depend on other updates are made under the lock, together with the claim. */
#include "weights/update/update.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "weights/update/update_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int start_threads(struct updates *u, struct err *e)
{
    int rc = pthread_create(&u->worker, NULL, update_worker_main, u);

    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread of updates");
    rc = pthread_create(&u->watchdog, NULL, update_watchdog_main, u);
    if (rc != 0) {
        mtx_lock(&u->lock);
        u->stopping = true;
        cnd_broadcast(&u->work);
        mtx_unlock(&u->lock);
        (void)pthread_join(u->worker, NULL);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread of leases");
    }
    (void)pthread_setname_np(u->worker, "update");
    (void)pthread_setname_np(u->watchdog, "leases");
    return 0;
}

int updates_new(struct updates **out, const struct updates_cfg *cfg, struct err *e)
{
    struct updates *u = calloc(1, sizeof *u);

    if (u == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for updates");
    u->model_spec = store_model_spec(cfg->store);
    if (list_cache_new(&u->lists, u->model_spec, e) != 0) {
        free(u);
        return -1;
    }
    mtx_init(&u->lock, MTX_UPDATES);
    cnd_init(&u->work);
    cnd_init(&u->tick);
    u->queue_tail = &u->queue;
    u->cfg = *cfg;
    if (start_threads(u, e) != 0) {
        cnd_fini(&u->tick);
        cnd_fini(&u->work);
        mtx_fini(&u->lock);
        list_cache_free(u->lists);
        free(u);
        return -1;
    }
    *out = u;
    return 0;
}

/* A session that is already committing is not stopped: it ends by itself. */
static struct session *next_to_stop_locked(struct updates *u)
{
    struct session *s = u->live;

    while (s != NULL && s->committing)
        s = s->next;
    return s;
}

void updates_stop(struct updates *u)
{
    struct err why = {0};
    struct update_info info;
    struct session *s, *to_free;

    if (u->stopped)
        return;
    u->stopped = true;
    (void)err_set(&why, ERR_DRAINING, "", "the server is stopping");
    mtx_lock(&u->lock);
    u->stopping = true;
    while ((s = next_to_stop_locked(u)) != NULL) {
        to_free = session_end_locked(u, s, UPDATE_ABORTED, &why);
        session_info_locked(u, s, &info);
        mtx_unlock(&u->lock);
        session_free(to_free);
        updates_ended(u, &info);
        mtx_lock(&u->lock);
    }
    cnd_broadcast(&u->work);
    cnd_broadcast(&u->tick);
    mtx_unlock(&u->lock);
    (void)pthread_join(u->worker, NULL);
    (void)pthread_join(u->watchdog, NULL);
}

void updates_free(struct updates *u)
{
    if (u == NULL)
        return;
    updates_stop(u);
    assert(u->live == NULL && u->queue == NULL);
    for (uint32_t i = 0; i < UPDATE_ENDED_KEPT; i++)
        if (u->ended[i] != NULL)
            session_free(session_unref_locked(u->ended[i]));
    list_cache_free(u->lists);
    free(u->last_senders);
    free(u->last_brought_by);
    free(u->report);
    free(u->served.digests);
    cnd_fini(&u->tick);
    cnd_fini(&u->work);
    mtx_fini(&u->lock);
    free(u);
}

struct list_cache *updates_lists(struct updates *u)
{
    return u->lists;
}

/* free memory */

bool update_frees_locked(const struct updates *u)
{
    mtx_assert_held(&u->lock);
    return u->live != NULL || u->n_disposing > 0;
}

static bool update_frees(struct updates *u)
{
    bool yes;

    mtx_lock(&u->lock);
    yes = update_frees_locked(u);
    mtx_unlock(&u->lock);
    return yes;
}

/* A version or an update that is being freed returns its memory soon: the worker waits for it, so
 * a lack of memory is no error. */
static void ignore_memory_being_freed(const struct store_info *base, bool freeing, struct err *e)
{
    if (e->code == ERR_NO_STAGING && (base->n_live > 1 || freeing))
        err_clear(e);
}

/* The error of a place names only what it lacks now. */
static void explain_no_room(const struct store *s, uint32_t place, struct err *e)
{
    unsigned long long nbytes = store_kept_nbytes(s, place);
    struct err why;

    store_explain_room(s, place, e);
    why = *e;
    if (why.code != ERR_NO_STAGING)
        return;
    err_clear(e);
    (void)err_set(e, why.code, why.field,
                  "%.200s; %s has %llu bytes, and an update needs room for two, %llu, until "
                  "it is committed: free memory or raise that bound, spread the model over more "
                  "GPUs, or let the weights sleep at level 2 before a whole update",
                  why.msg, store_sharded(s) ? "its share of a version" : "a version", nbytes,
                  2 * nbytes);
}

/* The bytes that a whole update takes in a place. */
static uint64_t whole_nbytes(const struct store *s, uint32_t place)
{
    return store_device(s, place) != NULL ? store_whole_nbytes(s, place)
                                          : s->model_spec->tensor_list->nbytes;
}

/* The spread of a sharded model over ranks is known only when its chunks arrive, but for one whose
 * tensors have owners. */
static bool takes_whole(const struct store *s, uint32_t place, bool sharded)
{
    return !sharded || s->n_ranks == 1 || store_sharded(s) || store_device(s, place) == NULL;
}

/* Sets `e` unless the memory is free, or will be soon. No lock held. */
static void update_check_memory(struct updates *u, const struct store_info *base, bool sharded,
                                struct err *e)
{
    struct store *s = u->cfg.store;
    bool freeing = update_frees(
        u); /* checked before the memory, because the update may end between the two */

    for (uint32_t p = 0; p < store_n_places(s) && e->code == ERR_NONE; p++)
        if (takes_whole(s, p, sharded) &&
            slab_pool_check(store_slabs(s, p), whole_nbytes(s, p), e) != 0)
            explain_no_room(s, p, e);
    ignore_memory_being_freed(base, freeing, e);
}

/* The bytes of a chunk that a place keeps, if it comes to all ranks. */
static uint64_t update_kept_nbytes(const struct store *s, const struct layout *l, uint32_t place)
{
    uint64_t nbytes = 0;

    if (!store_sharded(s))
        return l->nbytes_kept;
    for (size_t i = 0; i < l->n_dst_slots; i++)
        if (store_owner(s, l->dst_slots[i].index) == place)
            nbytes += s->model_spec->tensor_list->tensors[l->dst_slots[i].index].nbytes;
    return nbytes;
}

void update_check_job_memory(struct updates *u, const struct store_info *base,
                             const struct update_job *job, struct err *e)
{
    struct store *s = u->cfg.store;
    bool freeing = update_frees(u);

    for (uint32_t p = 0; p < store_n_places(s) && e->code == ERR_NONE; p++) {
        const struct layout *l = job_layout(job, p < store_n_ranks(s) ? p : 0);

        if (l != NULL && l->n_dst_slots > 0 &&
            slab_pool_check(store_slabs(s, p), update_kept_nbytes(s, l, p), e) != 0)
            explain_no_room(s, p, e);
    }
    ignore_memory_being_freed(base, freeing, e);
}

uint32_t updates_room(struct updates *u, const struct update_info *info, struct update_room *out)
{
    struct store *s = u->cfg.store;

    for (uint32_t p = 0; p < store_n_places(s); p++) {
        bool takes = !info->partial && takes_whole(s, p, info->sharded);

        out[p].place = store_place_name(s, p);
        out[p].nbytes_needed = takes ? whole_nbytes(s, p) : 0;
        out[p].nbytes_available = slab_pool_room(store_slabs(s, p)).nbytes;
    }
    return store_n_places(s);
}

/* start */

int update_refuse_open(struct updates *u, struct session *s, struct err *e)
{
    struct update_info info;

    session_info_locked(u, s, &info);
    return err_set(e, ERR_CONFLICT, "",
                   "update %s is open (%s, its lease ends in %.1f s): finish or abort it first "
                   "('baton abort --update' aborts it)",
                   s->id, update_phase_name(s->phase), (double)info.lease_left_us / 1e6);
}

bool update_give_way_locked(struct updates *u, struct session **to_free, struct update_info *ended)
{
    struct session *s = u->open;
    struct err why = {0};

    if (s == NULL || !s->yields || s->committing)
        return false;
    (void)err_set(&why, ERR_CONFLICT, "", "another update began, to which this one gives way");
    *to_free = session_end_locked(u, s, UPDATE_ABORTED, &why);
    session_info_locked(u, s, ended);
    return true;
}

static int check_idle_locked(struct updates *u, struct err *e)
{
    if (u->stopping)
        return err_set(e, ERR_DRAINING, "", "the server is stopping");
    for (struct session *s = u->live; s != NULL; s = s->next)
        if (!s->yields)
            return update_refuse_open(u, s, e);
    return 0;
}

/* Checks the state of the store; the worker checks again when it stages. */
static int refuse_base(const struct store_info *info, const struct update_base *base, struct err *e)
{
    if (info->state == STORE_UNSYNCED || info->state == STORE_DROPPED)
        return err_set(e, ERR_PRECONDITION, "/base_version",
                       "the update builds on version '%.128s', and no weights are served: send the "
                       "whole model",
                       base->label);
    return err_set(e, ERR_PRECONDITION, "/base_version",
                   "the update builds on version '%.128s', and '%.128s' (serial %llu) is served: "
                   "send what changed since that, or the whole model",
                   base->label, info->label, (unsigned long long)info->serial);
}

int update_base_find(struct store *s, const char *label, const char *update_id,
                     struct update_base *out, struct err *e)
{
    char made_by[UPDATE_ID_MAX + 1];
    struct update_base base = {0};
    struct store_info info;

    (void)snprintf(base.label, sizeof base.label, "%s", label);
    store_info(s, &info);
    if (info.state == STORE_UNSYNCED || info.state == STORE_DROPPED ||
        strcmp(info.label, label) != 0)
        return refuse_base(&info, &base, e);
    (void)snprintf(made_by, sizeof made_by, UPDATE_ID_PREFIX "%s", info.commit_id);
    if (update_id != NULL && strcmp(update_id, made_by) != 0)
        return err_set(e, ERR_PRECONDITION, "/base_update_id",
                       "the update builds on version '%.128s' of update %.40s, and what is served "
                       "under that label was made by update %s (serial %llu): send the whole model",
                       label, update_id, made_by, (unsigned long long)info.serial);
    base.serial = info.serial;
    *out = base;
    return 0;
}

int update_check_base(const struct store_info *info, bool partial, const struct update_base *base,
                      struct err *e)
{
    if (info->state == STORE_ASLEEP)
        return err_set(e, ERR_CONFLICT, "",
                       "the weights are asleep; wake them first, or drop them with sleep at level "
                       "2");
    if (partial && (info->state == STORE_UNSYNCED || info->state == STORE_DROPPED))
        return err_set(e, ERR_UNSYNCED, "/partial",
                       "a partial update needs weights to build on, and none are committed");
    return base->serial == 0 || base->serial == info->serial ? 0 : refuse_base(info, base, e);
}

static struct session *session_of_start(struct updates *u, const struct update_start *req,
                                        struct err *e)
{
    struct session *s = session_new(u, e);

    if (s == NULL)
        return NULL;
    s->partial = req->partial;
    s->sharded = req->sharded;
    s->convert = req->convert;
    s->base = req->base;
    s->auto_commit = req->auto_commit;
    s->anonymous = req->anonymous || req->auto_commit;
    s->yields = req->yields;
    s->actor = req->actor;
    memcpy(s->label, req->label, sizeof s->label);
    lease_timer_set(&s->lease, req->lease_s);
    lease_timer_renew(&s->lease);
    if (senders_declare(u, s, req->trainer_ranks, e) == 0)
        return s;
    session_free(s);
    return NULL;
}

int updates_start(struct updates *u, const struct update_start *req, struct update_info *out,
                  struct err *e)
{
    struct store_info base;
    struct err no_room = {0};
    struct session *s, *to_free = NULL;
    struct update_info gone;
    bool gave_way;
    int rc;

    assert(req->lease_s >= 1 && req->lease_s <= UPDATE_LEASE_S_MAX);
    assert(req->trainer_ranks <= UPDATE_TRAINER_RANKS_MAX);
    store_info(u->cfg.store, &base);
    if (update_check_base(&base, req->partial, &req->base, e) != 0)
        return -1;
    if (!req->partial)
        update_check_memory(u, &base, req->sharded, &no_room);
    s = session_of_start(u, req, e);
    if (s == NULL)
        return -1;
    mtx_lock(&u->lock);
    gave_way = update_give_way_locked(u, &to_free, &gone);
    rc = check_idle_locked(
        u,
        e); /* before memory is checked: an open update is the usual reason for a lack of memory */
    if (rc == 0 && no_room.code != ERR_NONE && !update_frees_locked(u)) {
        *e = no_room;
        rc = -1;
    }
    if (rc == 0) {
        session_begin_locked(u, s);
        session_info_locked(u, s, out);
    }
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (gave_way)
        updates_ended(u, &gone);
    if (rc != 0) {
        session_free(s);
        return -1;
    }
    updates_log(out);
    updates_changed(u);
    return 0;
}

static int build_on_locked(struct updates *u, const char *id, const struct update_base *base,
                           struct err *e)
{
    struct session *s = session_find_locked(u, id);

    if (s == NULL)
        return update_not_found(id, e);
    if (session_ended(s))
        return session_refuse_ended(s, e);
    if (s->phase != UPDATE_OPEN || s->n_jobs > 0 || s->auto_commit || s->base.serial != 0)
        return err_set(e, ERR_CONFLICT, "",
                       "update %s was begun with whole tensors, and patches of tensors need one of "
                       "their own",
                       s->id);
    s->partial = true;
    s->base = *base;
    return 0;
}

int updates_build_on(struct updates *u, const char *id, const struct update_base *base,
                     struct err *e)
{
    struct store_info served;
    int rc;

    store_info(u->cfg.store, &served);
    if (update_check_base(&served, true, base, e) != 0)
        return -1;
    mtx_lock(&u->lock);
    rc = build_on_locked(u, id, base, e);
    mtx_unlock(&u->lock);
    return rc;
}

/* shared with update_submit.c */

int update_not_found(const char *id, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/update_id", "there is no update '%.40s'", id);
}

/* Can one more job be queued? */
int update_check_queue_locked(const struct updates *u, struct err *e)
{
    if (u->stopping)
        return err_set(e, ERR_DRAINING, "", "the server is stopping");
    if (u->n_queued >= UPDATE_QUEUE_MAX)
        return err_set(e, ERR_OVERLOADED, "", "%u jobs of updates are queued, which is the limit",
                       u->n_queued);
    return 0;
}

void update_queue_locked(struct updates *u, struct session *s, struct update_job *job)
{
    job->session = s;
    session_ref_locked(s);
    session_renew_locked(u, s, 0);
    job_queue_locked(u, job);
}

/* finish */

static bool is_ignored(const struct model_spec *m, const char *name)
{
    struct tensor_spec t = {.name = name, .dtype = DTYPE_F32};
    struct model_spec_match match;
    struct err none = {0};

    return model_spec_match(m, &t, true, 0, &match, &none) == 0 && match.alias != NULL &&
           match.alias->kind == ALIAS_IGNORED;
}

static int resolve_sum(struct finish_sum *out, const struct model_spec *m,
                       const struct update_checksum *given, struct err *e)
{
    char field[ERR_FIELD_MAX];

    out->sum = given->sum;
    out->index = tensor_list_find(m->tensor_list, given->name);
    if (out->index != TENSOR_LIST_NO_TENSOR)
        return 0;
    for (uint32_t i = 0; i < m->n_aliases; i++) {
        if (strcmp(m->aliases[i].name, given->name) == 0) {
            out->alias = &m->aliases[i];
            return 0;
        }
    }
    (void)snprintf(field, sizeof field, "/checksums/%.*s", utf8_cut_name(given->name), given->name);
    return err_set(e, ERR_MISMATCH, field, "the model has no tensor '%.*s'",
                   utf8_cut_name(given->name), given->name);
}

static int resolve_sums(struct update_job *job, const struct model_spec *m,
                        const struct update_checksum *given, uint32_t n, struct err *e)
{
    if (n == 0)
        return 0;
    job->sums = calloc(n, sizeof *job->sums);
    if (job->sums == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u checksums", n);
    for (uint32_t i = 0; i < n; i++) {
        if (is_ignored(m, given[i].name))
            continue; /* derived by the model: no tensor is served under this name */
        if (resolve_sum(&job->sums[job->n_sums], m, &given[i], e) != 0)
            return -1;
        job->n_sums++;
    }
    return 0;
}

static int finish_locked(struct updates *u, struct session *s, const char *label,
                         struct update_job *job, struct err *e)
{
    if (s->phase == UPDATE_ABORTED)
        return session_refuse_ended(s, e);
    if (s->phase == UPDATE_COMMITTED) {
        job->kind = JOB_ANSWER;
        update_queue_locked(u, s, job);
        return 0;
    }
    if (s->finishing)
        return err_set(e, ERR_CONFLICT, "/update_id", "update %s is being finished already", s->id);
    if (s->n_jobs > 0)
        return err_set(e, ERR_CONFLICT, "/update_id",
                       "%u chunks of update %s are still being received", s->n_jobs, s->id);
    if (label[0] != '\0')
        (void)snprintf(s->label, sizeof s->label, "%s", label);
    s->finishing = true;
    update_queue_locked(u, s, job);
    return 0;
}

static struct update_job *finish_job(update_done_fn *done, void *done_arg, struct err *e)
{
    struct update_job *job = calloc(1, sizeof *job);

    if (job == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to finish the update");
        return NULL;
    }
    job->kind = JOB_FINISH;
    job->done = done;
    job->done_arg = done_arg;
    return job;
}

/* @job  owned by this function; NULL: there was no memory for it */
static int queue_finish(struct updates *u, const char *id, const char *label,
                        const struct update_checksum *checksums, uint32_t n_checksums,
                        struct update_job *job, struct err *e)
{
    struct session *s;
    int rc;

    if (job == NULL)
        return -1;
    if (resolve_sums(job, u->model_spec, checksums, n_checksums, e) != 0) {
        job_free(job);
        return -1;
    }
    mtx_lock(&u->lock);
    s = session_find_locked(u, id);
    rc = update_check_queue_locked(u, e);
    if (rc == 0)
        rc = s == NULL ? update_not_found(id, e) : finish_locked(u, s, label, job, e);
    mtx_unlock(&u->lock);
    if (rc != 0) {
        job_free(job);
        return -1;
    }
    updates_changed(u);
    return 0;
}

int updates_finish(struct updates *u, const char *id, const char *label,
                   const struct update_checksum *checksums, uint32_t n_checksums,
                   update_done_fn *done, void *done_arg, struct err *e)
{
    struct update_job *job = finish_job(done, done_arg, e);

    return queue_finish(u, id, label, checksums, n_checksums, job, e);
}

int updates_verify(struct updates *u, const char *id, const struct update_checksum *checksums,
                   uint32_t n_checksums, update_done_fn *done, void *done_arg, struct err *e)
{
    struct update_job *job = finish_job(done, done_arg, e);

    if (job != NULL)
        job->prove_only = true;
    return queue_finish(u, id, "", checksums, n_checksums, job, e);
}

int updates_commit_auto(struct updates *u, update_done_fn *done, void *done_arg, struct err *e)
{
    struct update_job *job = finish_job(done, done_arg, e);
    struct update_info none = {0};
    struct err clean = {0};
    bool open;
    int rc = 0;

    if (job == NULL)
        return -1;
    mtx_lock(&u->lock);
    open = u->open != NULL && u->open->auto_commit;
    u->closing = (struct closing){0}; /* the trainer that continues has had the reply */
    if (open)
        rc = update_check_queue_locked(u, e);
    if (open && rc == 0)
        rc = finish_locked(u, u->open, "", job, e);
    mtx_unlock(&u->lock);
    if (!open || rc != 0)
        job_free(job);
    if (!open)
        done(done_arg, &none, &clean);
    else if (rc == 0)
        updates_changed(u);
    return rc;
}

/* abort, renew, get */

static int abort_locked(struct updates *u, struct session *s, const struct err *why,
                        struct session **to_free, bool *changed, struct err *e)
{
    if (s->phase == UPDATE_ABORTED)
        return 0;
    if (s->phase == UPDATE_COMMITTED)
        return session_refuse_ended(s, e);
    if (s->committing)
        return err_set(e, ERR_CONFLICT, "/update_id", "update %s is being committed", s->id);
    *to_free = session_end_locked(u, s, UPDATE_ABORTED, why);
    *changed = true;
    return 0;
}

int updates_abort(struct updates *u, const char *id, const char *reason, struct update_info *out,
                  struct err *e)
{
    struct err why = {0};

    (void)err_set(&why, ERR_CONFLICT, "", "aborted on request%s%.256s",
                  reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
    return updates_fail(u, id, &why, out, e);
}

int updates_fail(struct updates *u, const char *id, const struct err *why, struct update_info *out,
                 struct err *e)
{
    struct session *s, *to_free = NULL;
    bool changed = false;
    int rc;

    mtx_lock(&u->lock);
    s = session_find_locked(u, id);
    rc = s == NULL ? update_not_found(id, e) : abort_locked(u, s, why, &to_free, &changed, e);
    if (rc == 0)
        session_info_locked(u, s, out);
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (changed) {
        updates_ended(u, out);
        updates_changed(u);
    }
    return rc;
}

bool updates_abort_unused(struct updates *u, const struct actor *actor, const char *reason)
{
    struct session *s, *to_free = NULL;
    struct update_info info;
    struct err why = {0}, ignored = {0};
    bool changed = false;

    (void)err_set(&why, ERR_CONFLICT, "", "aborted on request: %.256s", reason);
    mtx_lock(&u->lock);
    s = u->open;
    if (s != NULL && s->phase == UPDATE_OPEN && s->n_jobs == 0 && s->anonymous &&
        actor_is_same_host(&s->actor, actor) &&
        abort_locked(u, s, &why, &to_free, &changed, &ignored) == 0)
        session_info_locked(u, s, &info);
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (changed) {
        updates_ended(u, &info);
        updates_changed(u);
    }
    return changed;
}

int updates_renew(struct updates *u, const char *id, uint32_t lease_s, struct update_info *out,
                  struct err *e)
{
    struct session *s;
    int rc = 0;

    assert(lease_s <= UPDATE_LEASE_S_MAX);
    mtx_lock(&u->lock);
    s = session_find_locked(u, id);
    if (s == NULL)
        rc = update_not_found(id, e);
    else if (session_ended(s))
        rc = session_refuse_ended(s, e);
    if (rc == 0) {
        session_renew_locked(u, s, lease_s);
        session_info_locked(u, s, out);
    }
    mtx_unlock(&u->lock);
    return rc;
}

int updates_get(struct updates *u, const char *id, struct update_info *out, struct err *e)
{
    struct session *s;
    int rc = 0;

    mtx_lock(&u->lock);
    s = session_find_locked(u, id);
    if (s == NULL)
        rc = update_not_found(id, e);
    else
        session_info_locked(u, s, out);
    mtx_unlock(&u->lock);
    return rc;
}

int updates_current_by(struct updates *u, uint64_t deadline_us, struct update_info *out,
                       struct err *e)
{
    struct session *s;

    if (mtx_lock_by(&u->lock, deadline_us, e) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    s = u->open;
    for (struct session *l = u->live; s == NULL && l != NULL; l = l->next)
        if (l->running != NULL || l->next == NULL) /* the list is newest first */
            s = l;
    if (s != NULL)
        session_info_locked(u, s, out);
    mtx_unlock(&u->lock);
    return 0;
}

void updates_current(struct updates *u, struct update_info *out)
{
    (void)updates_current_by(u, CLOCK_NEVER, out, NULL);
}

void updates_stats(struct updates *u, struct updates_stats *out)
{
    mtx_lock(&u->lock);
    *out = u->stats;
    mtx_unlock(&u->lock);
}
