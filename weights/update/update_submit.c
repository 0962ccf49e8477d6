/* Submission of chunks: matched against the model spec, claimed, queued. Repeated chunks are
 * recognised.
 *
 * Checks that depend only on the chunk and the model spec are made before the lock is taken: a
 * tensor list may have a hundred thousand names. */
#include "weights/update/update_priv.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void update_chunk_free(struct update_chunk *c)
{
    if (c == NULL)
        return;
    source_close(c->source);
    tensor_list_unref(c->tensor_list);
    free(c->checksums);
    free(c->has_checksum);
    for (uint32_t r = 0; c->ranks != NULL && r < c->n_ranks; r++) {
        tensor_list_unref(c->ranks[r].tensor_list);
        free(c->ranks[r].checksums);
        free(c->ranks[r].has_checksum);
    }
    free(c->ranks);
    free(c->origins);
    free(c);
}

static int refuse_underway(const char *chunk_id, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "/chunk_id",
                   "chunk '%s' is still being received; send it again when that has ended",
                   chunk_id);
}

/* The queued or running job with the same session and chunk id, if there is one. */
static const struct update_job *underway_locked(const struct updates *u, const struct session *s,
                                                const struct chunk_key *key)
{
    if (s->running != NULL && s->running->kind == JOB_CHUNK &&
        chunk_key_same_id(&s->running->key, key))
        return s->running;
    for (const struct update_job *j = u->queue; j != NULL; j = j->next)
        if (j->session == s && j->kind == JOB_CHUNK && chunk_key_same_id(&j->key, key))
            return j;
    return NULL;
}

/* A repeated chunk becomes a job that only replies. */
static int recognise_locked(struct updates *u, struct session *s, struct update_job *job,
                            struct err *e)
{
    const struct update_job *other = underway_locked(u, s, &job->key);
    const struct chunk_key *known = other != NULL ? &other->key
                                                  : session_recall_locked(s, &job->key);

    if (known != NULL && !chunk_key_equal(known, &job->key))
        return err_set(e, ERR_PRECONDITION, "/chunk_id",
                       "chunk '%s' was sent before with another tensor list or other checksums",
                       job->key.id);
    if (other != NULL)
        return refuse_underway(job->key.id, e);
    if (known != NULL)
        job->kind = JOB_ANSWER;
    return 0;
}

/* A broadcast brings the same bytes to every rank, so it says not which of them shall keep what; in
 * a sharded store each tensor has its owner. */
static int check_placement(const struct updates *u, const struct session *s,
                           const struct update_job *job, struct err *e)
{
    const struct source_ops *ops = job->chunk->source->ops;

    if (ops->receive == NULL || job->chunk->sent != NULL || !s->sharded || s->n_ranks == 1 ||
        store_sharded(u->cfg.store))
        return 0;
    return err_set(e, ERR_PRECONDITION, "/placement",
                   "%s brings every tensor to all %u ranks: an update with placement \"sharded\" "
                   "takes its tensors from elsewhere",
                   ops->name, s->n_ranks);
}

/* An auto-commit update consists of all buckets since the last one. Buckets of two training steps
 * in it would make a version that no trainer ever had. So two signs of that are checked: the
 * version that buckets name, and an update that begins with the bucket that ended the last one. */
static int check_auto_commit_locked(struct updates *u, struct session *s,
                                    const struct update_job *job, struct err *e)
{
    const char *label = job->chunk->label;

    if (!s->auto_commit)
        return 0;
    if (s->nbytes_accepted == 0 && u->closing.serial != 0 && strcmp(u->closing.label, label) == 0 &&
        chunk_key_same_tensors(&u->closing.key, &job->key))
        return err_set(e, ERR_CONFLICT, "/names",
                       "these tensors were the last of the update that is now served as version "
                       "%llu, and repeated tensors cannot be told from new ones: name each "
                       "update's weight_version, or continue generation before the next",
                       (unsigned long long)u->closing.serial);
    if (s->nbytes_accepted > 0 && s->label[0] != '\0' && label[0] != '\0' &&
        strcmp(s->label, label) != 0)
        return err_set(e, ERR_CONFLICT, "/weight_version",
                       "update %s has tensors of version '%.64s' and is not complete; these are of "
                       "'%.64s': continue generation, which ends it, then send all of them",
                       s->id, s->label, label);
    return 0;
}

/* Ranks of a trainer run by themselves: one that is a step ahead would make a version of two steps,
 * and nothing else shows it if each tensor comes from one rank. */
static int check_rank_version(const struct session *s, const struct update_job *job, struct err *e)
{
    const char *label = job->chunk->label;

    if (!job->chunk->has_trainer_rank || s->label[0] == '\0' || label[0] == '\0' ||
        strcmp(s->label, label) == 0)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/weight_version",
                   "update %s is of version '%.64s', but trainer rank %u sends tensors of '%.64s': "
                   "all ranks send those of one version; abort the update if its name is wrong",
                   s->id, s->label, job->chunk->trainer_rank, label);
}

/* Sets the version of the session now, because later requests are checked against it while this one
 * is queued. */
static void set_label_locked(struct session *s, const struct update_job *job)
{
    if ((s->auto_commit || job->chunk->has_trainer_rank) && job->chunk->label[0] != '\0')
        memcpy(s->label, job->chunk->label, sizeof s->label);
}

/* Ranks, and the buckets of an auto-commit update, have to agree: their labels are compared. */
static void prefer_session_label_locked(const struct session *s, struct update_chunk *c)
{
    if (c->label_of_file && s->label[0] != '\0' && !s->auto_commit && !c->has_trainer_rank)
        c->label[0] = '\0';
}

static int submit_to_session_locked(struct updates *u, const char *id, struct update_job *job,
                                    struct err *e)
{
    struct session *s = session_find_locked(u, id);

    if (s == NULL)
        return update_not_found(id, e);
    if (s->phase == UPDATE_ABORTED)
        return session_refuse_ended(s, e);
    if (s->one_shot)
        return err_set(e, ERR_ENDED, "/update_id",
                       "update %s is one request: it accepts no more tensors", s->id);
    if (recognise_locked(u, s, job, e) != 0)
        return -1;
    if (job->kind == JOB_CHUNK) {
        if (session_ended(s))
            return session_refuse_ended(s, e);
        if (s->phase == UPDATE_VERIFIED)
            return err_set(e, ERR_ENDED, "/update_id",
                           "update %s is verified and accepts no more tensors: finish or abort it",
                           s->id);
        if (s->finishing)
            return err_set(e, ERR_CONFLICT, "/update_id", "update %s is being finished", s->id);
        prefer_session_label_locked(s, job->chunk);
        if (check_placement(u, s, job, e) != 0 || check_auto_commit_locked(u, s, job, e) != 0 ||
            senders_take_locked(u, s, job, e) != 0)
            return -1;
        if (check_rank_version(s, job, e) != 0 || tensor_states_take_locked(u, s, job, e) != 0) {
            senders_refuse_locked(u, s, job, e);
            return -1;
        }
        if (job->uneven && s->anonymous && !s->auto_commit && !s->sharded)
            tensor_states_shard_locked(u, s);
        set_label_locked(s, job);
    }
    update_queue_locked(u, s, job);
    return 0;
}

/* The session of a one-shot update that is repeated, for its reply. Only an update that names its
 * version can be told from the next step's update of the same tensors. */
static struct session *find_repeated_one_shot_locked(struct updates *u,
                                                     const struct update_job *job)
{
    const char *label = job->chunk->label;

    if (label[0] == '\0')
        return NULL;
    for (struct session *s = u->live; s != NULL; s = s->next)
        if (s->one_shot && chunk_key_equal(&s->key, &job->key) && strcmp(s->label, label) == 0)
            return s;
    for (uint32_t i = 0; i < UPDATE_ENDED_KEPT; i++) {
        struct session *s = u->ended[i];

        if (s != NULL && s->one_shot && s->phase == UPDATE_COMMITTED &&
            chunk_key_equal(&s->key, &job->key) && strcmp(s->label, label) == 0)
            return s;
    }
    return NULL;
}

/* A whole update that cannot cover the model spec is refused with the missing tensors, before any
 * byte moves. An update that differs between ranks is checked by the states of its tensors: a
 * tensor missing on one rank may be intended for another. */
static int update_submit_check_whole(const struct updates *u, const struct update_job *job,
                                     struct err *e)
{
    struct update_chunk *c = job->chunk;
    const struct tensor_list *tensor_list = u->model_spec->tensor_list;

    if (c->update_id[0] != '\0' || c->partial || c->ranks != NULL)
        return 0;
    if (layout_coverage(job_layout(job, 0), u->model_spec, c->tensor_list, c->missing,
                        UPDATE_MISSING_MAX, &c->n_missing, e) != 0) {
        chunk_refield(c, 0, e);
        return -1;
    }
    if (c->n_missing == 0)
        return 0;
    return err_set(e, ERR_INCOMPLETE, "/names",
                   "%u of %u tensors are missing, '%.*s' first; send \"partial\": true to keep the "
                   "served ones",
                   c->n_missing, tensor_list->n_tensors, utf8_cut_name(c->missing[0]),
                   c->missing[0]);
}

static int check_covers_locked(struct updates *u, struct session *s, const struct update_job *job,
                               struct err *e)
{
    const struct tensor_list *tensor_list = u->model_spec->tensor_list;
    uint32_t n_missing = 0, first = 0;

    if (s->partial ||
        job->chunk->ranks == NULL) /* update_submit_check_whole has checked the others */
        return 0;
    tensor_states_tie_locked(u, s, job);
    for (uint32_t i = tensor_list->n_tensors; i > 0; i--) {
        if (!tensor_states_lack_locked(s, i - 1, TENSOR_QUEUED | TENSOR_ARRIVED | TENSOR_TIED))
            continue;
        first = i - 1;
        n_missing++;
    }
    if (n_missing == 0)
        return 0;
    (void)err_set(e, ERR_INCOMPLETE, "/names", "%u of %u tensors are missing, '%.*s' first",
                  n_missing, tensor_list->n_tensors,
                  utf8_cut_name(tensor_list->tensors[first].name),
                  tensor_list->tensors[first].name);
    senders_explain_locked(u, s, first, e);
    return -1;
}

static int submit_one_shot_locked(struct updates *u, struct session *fresh, struct update_job *job,
                                  const struct err *no_room, struct err *e)
{
    struct session *same = find_repeated_one_shot_locked(u, job);

    if (same != NULL && !session_ended(same))
        return refuse_underway(job->key.id, e);
    if (same != NULL) {
        job->kind = JOB_ANSWER;
        update_queue_locked(u, same, job);
        return 0;
    }
    if (u->open != NULL && !u->open->yields)
        return update_refuse_open(u, u->open, e);
    if (check_placement(u, fresh, job, e) != 0 || senders_take_locked(u, fresh, job, e) != 0 ||
        tensor_states_take_locked(u, fresh, job, e) != 0 ||
        check_covers_locked(u, fresh, job, e) != 0)
        return -1;
    if (no_room->code != ERR_NONE && !update_frees_locked(u)) {
        *e = *no_room;
        return -1;
    }
    session_begin_locked(u, fresh);
    update_queue_locked(u, fresh, job);
    return 0;
}

static struct session *session_of_chunk(struct updates *u, const struct update_job *job,
                                        struct err *e)
{
    struct session *s = session_new(u, e);

    if (s == NULL)
        return NULL;
    s->one_shot = true;
    s->partial = job->chunk->partial;
    s->sharded = job->chunk->sharded;
    s->convert = job->chunk->convert;
    s->base = job->chunk->base;
    s->key = job->key;
    s->actor = job->chunk->actor;
    memcpy(s->label, job->chunk->label, sizeof s->label);
    if (job->chunk->commit_id[0] != '\0')
        memcpy(s->commit_id, job->chunk->commit_id, sizeof s->commit_id);
    return s;
}

static int submit_one_shot(struct updates *u, struct update_job *job, struct err *e)
{
    struct store_info base;
    struct err no_room = {0};
    struct session *s, *to_free = NULL;
    struct update_info gone;
    bool gave_way;
    int rc;

    store_info(u->cfg.store, &base);
    if (update_check_base(&base, job->chunk->partial, &job->chunk->base, e) != 0)
        return -1;
    update_check_job_memory(u, &base, job, &no_room);
    s = session_of_chunk(u, job, e);
    if (s == NULL)
        return -1;
    mtx_lock(&u->lock);
    rc = update_check_queue_locked(u, e);
    gave_way = rc == 0 && update_give_way_locked(u, &to_free, &gone);
    if (rc == 0)
        rc = submit_one_shot_locked(u, s, job, &no_room, e);
    if (rc == 0 && job->session == s)
        s = NULL; /* no longer owned here */
    mtx_unlock(&u->lock);
    session_free(to_free);
    if (gave_way)
        updates_ended(u, &gone);
    session_free(s);
    return rc;
}

static int submit_to_session(struct updates *u, struct update_job *job, struct err *e)
{
    int rc;

    mtx_lock(&u->lock);
    rc = update_check_queue_locked(u, e);
    if (rc == 0)
        rc = submit_to_session_locked(u, job->chunk->update_id, job, e);
    mtx_unlock(&u->lock);
    return rc;
}

/* Does the update that this chunk belongs to convert? */
static bool chunk_converts(struct updates *u, const struct update_chunk *c)
{
    const struct session *s;
    bool yes = c->convert;

    if (c->update_id[0] == '\0')
        return yes;
    mtx_lock(&u->lock);
    s = session_find_locked(u, c->update_id);
    if (s != NULL)
        yes = yes || s->convert;
    mtx_unlock(&u->lock);
    return yes;
}

/* A list that does not match the model is refused before its session is looked up. */
static void refuse_layout(struct updates *u, const struct update_job *job, const struct err *e)
{
    struct session *s;

    mtx_lock(&u->lock);
    s = session_find_locked(u, job->chunk->update_id);
    if (s != NULL && !session_ended(s)) {
        struct err ignored = {0};

        if (senders_take_locked(u, s, job, &ignored) == 0)
            senders_refuse_locked(u, s, job, e);
    }
    mtx_unlock(&u->lock);
}

int updates_submit(struct updates *u, struct update_chunk *c, struct err *e)
{
    struct update_job *job = calloc(1, sizeof *job);
    int rc;

    assert(c->tensor_list != NULL && c->source != NULL && c->done != NULL);
    assert(c->ranks == NULL || c->source->ops->map != NULL);
    assert(c->source->ops->fill != NULL || store_device(u->cfg.store, 0) != NULL);
    if (job == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
    job->kind = JOB_CHUNK;
    job->chunk = c;
    job->done = c->done;
    job->done_arg = c->done_arg;
    atomic_init(&job->progress.tensor, PROGRESS_NO_TENSOR);
    job->progress.gone = c->gone;
    job->progress.gone_arg = c->done_arg;
    chunk_key_make(&job->key, c, store_n_ranks(u->cfg.store));
    rc = job_layouts_make(job, u, chunk_converts(u, c), e);
    if (rc != 0)
        refuse_layout(u, job, e);
    if (rc == 0)
        job->uneven = tensor_states_uneven(job, store_n_ranks(u->cfg.store),
                                           u->model_spec->tensor_list->n_tensors);
    if (rc == 0)
        rc = update_submit_check_whole(u, job, e);
    if (rc == 0)
        rc = c->update_id[0] == '\0' ? submit_one_shot(u, job, e) : submit_to_session(u, job, e);
    if (rc != 0) {
        job->chunk = NULL; /* still the caller's */
        job_free(job);
        return -1;
    }
    updates_changed(u);
    return 0;
}
