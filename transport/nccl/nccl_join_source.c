/* The source of one request: it wraps the group's own source, waits for a trainer that has yet to
 * form its group, and ends the join after a failure. */
#include "base/clock.h"
#include "transport/nccl/nccl_join_priv.h"

#include <stdlib.h>

enum { POLL_US = 50 * 1000 }; /* interval of the checks of a stop */

struct join_source {
    struct source source;
    struct nccl_join *join;          /* this source is counted in its n_users */
    struct source *group;            /* owned; the group's source */
    struct tensor_list *tensor_list; /* owned: one reference */
    uint32_t n_received;             /* worker only: tensors received, in order */
    bool asked; /* worker only: a post was called, so the trainer may have been told to send */
};

static struct join_source *of(struct source *s)
{
    return (struct join_source *)s;
}

static int refuse_left(struct err *e)
{
    return err_set(
        e, ERR_GROUP_LEFT, "",
        "an update was refused or aborted before its broadcast was entered; " NCCL_GROUP_LEFT);
}

/* Was it left for a refused update, or will it be? */
static bool is_left_locked(const struct nccl_join *j)
{
    return join_has_ended(j->state) ? j->end.code == ERR_GROUP_LEFT
                                    : j->cfg.ends_if_refused && j->doubt;
}

void join_leave_if_refused_locked(struct nccl_join *j, uint32_t n_own)
{
    struct err why = {0};

    if (!is_left_locked(j) || j->state != JOIN_JOINED || j->n_users > n_own)
        return;
    (void)refuse_left(&why);
    join_end_locked(j, &why);
}

static int refuse_failed(const struct err *cause, struct err *e)
{
    return err_set(e, cause->code, cause->field, "%.400s; the group has failed: join a new one",
                   cause->msg);
}

/* Waits a short time. Returns: 0 joined; 1 not yet; -1. */
static int join_check(struct nccl_join *j, struct err *e)
{
    uint64_t until_us = clock_after_us(POLL_US);
    int rc = 0;

    mtx_lock(&j->lock);
    if (j->state < JOIN_JOINED)
        (void)cnd_wait(&j->changed, &j->lock, until_us);
    if (join_has_ended(j->state))
        rc = refuse_failed(&j->end, e);
    else if (j->state != JOIN_JOINED)
        rc = 1;
    mtx_unlock(&j->lock);
    return rc;
}

static int refuse_late(const struct nccl_join *j, struct err *e)
{
    if (e->code != ERR_TIMEOUT)
        return -1;
    err_clear(e);
    return err_set(e, ERR_TIMEOUT, "",
                   "the trainer did not form its group '%.80s' before the update's deadline; its "
                   "first collective does that",
                   j->group_name);
}

/* Waits until the group is joined: then the collective may be entered. */
static int await_joined(struct nccl_join *j, const struct progress *p, struct err *e)
{
    int rc;

    while ((rc = join_check(j, e)) == 1)
        if (progress_check(p, e) != 0)
            return refuse_late(j, e);
    return rc;
}

/* The error of a receive that failed. Ends the join if the group has failed. */
static int source_error(struct join_source *s, struct err *e)
{
    struct nccl_join *j = s->join;
    struct nccl_group_info group;
    struct err cause;

    nccl_group_info(j->group, &group); /* allowed for a user of the join */
    mtx_lock(&j->lock);
    if (group.state != NCCL_GROUP_JOINED)
        join_end_locked(j, e);
    cause = join_has_ended(j->state) && group.state != NCCL_GROUP_STUCK ? j->end : *e;
    mtx_unlock(&j->lock);
    err_clear(e);
    if (group.state == NCCL_GROUP_JOINED)
        return err_set(e, cause.code, cause.field, "%.480s", cause.msg);
    return refuse_failed(&cause, e);
}

void nccl_join_keep_list(struct nccl_join *j, struct tensor_list *list, uint64_t group)
{
    if (j->begun_us != group)
        return;
    mtx_lock(&j->lock);
    tensor_list_unref(j->kept);
    j->kept = tensor_list_ref(list);
    mtx_unlock(&j->lock);
}

static int check_ended_locked(const struct nccl_join *j, struct err *e)
{
    if (is_left_locked(j))
        return refuse_left(e);
    if (join_has_ended(j->state))
        return err_set(e, ERR_CONFLICT, "", "the group has failed: %.400s; join a new group",
                       j->end.msg);
    return 0;
}

int nccl_join_list(struct nccl_join *j, struct tensor_list **out, struct err *e)
{
    int rc;

    mtx_lock(&j->lock);
    rc = check_ended_locked(j, e);
    if (rc == 0 && j->kept == NULL)
        rc = err_set(e, ERR_BAD_REQUEST, "/names", TENSOR_LIST_NONE_BEFORE);
    if (rc == 0)
        *out = tensor_list_ref(j->kept);
    mtx_unlock(&j->lock);
    return rc;
}

/* Counts the oldest posted broadcast: they arrive in order. */
static void nccl_join_source_count_received(struct join_source *s)
{
    uint32_t first = s->n_received, n = s->group->ops->bucket(s->group, first);
    const struct tensor_spec *t = s->tensor_list->tensors, *last = &t[first + n - 1];
    struct nccl_join_stats *stats = s->join->cfg.stats;
    uint64_t nbytes = last->offset + last->nbytes - t[first].offset;

    s->n_received = first + n;
    atomic_fetch_add_explicit(&stats->n_broadcasts, nbytes > 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->nbytes_received, nbytes, memory_order_relaxed);
}

static int join_source_post(struct source *base, uint32_t first, uint32_t n, const uint64_t *dst,
                            struct progress *p, struct err *e)
{
    struct join_source *s = of(base);

    s->asked = true;
    if (await_joined(s->join, p, e) != 0)
        return -1;
    return s->group->ops->post(s->group, first, n, dst, p, e) != 0 ? source_error(s, e) : 0;
}

static int join_source_receive(struct source *base, struct progress *p, struct err *e)
{
    struct join_source *s = of(base);

    if (s->group->ops->receive(s->group, p, e) != 0)
        return source_error(s, e);
    nccl_join_source_count_received(s);
    return 0;
}

static uint32_t join_source_bucket(const struct source *base, uint32_t first)
{
    const struct source *group = ((const struct join_source *)base)->group;

    return group->ops->bucket(group, first);
}

static bool join_source_stuck(const struct source *base)
{
    const struct source *group = ((const struct join_source *)base)->group;

    return group->ops->stuck(group);
}

static uint64_t join_source_group(const struct source *base)
{
    return ((const struct join_source *)base)->join->begun_us;
}

static int join_source_finish(struct source *base, struct progress *p, struct err *e)
{
    struct source *group = of(base)->group;

    return group->ops->finish != NULL ? group->ops->finish(group, p, e) : 0;
}

/* @n_own  sources of the refused update: others may be receiving */
static void doubt(struct nccl_join *j, uint32_t n_own)
{
    mtx_lock(&j->lock);
    j->doubt = true;
    join_leave_if_refused_locked(j, n_own);
    mtx_unlock(&j->lock);
}

/* Tensors that were not received may still arrive, before the next broadcast of the trainer. */
static void check_unreceived(const struct join_source *s)
{
    struct err why = {0};

    if (s->n_received == s->tensor_list->n_tensors)
        return;
    if (!s->asked) {
        doubt(s->join, 1);
        return;
    }
    (void)err_set(
        &why, ERR_CONFLICT, "",
        "an update ended after %u of its %u tensors, and the trainer may have sent the others",
        (unsigned)s->n_received, (unsigned)s->tensor_list->n_tensors);
    join_end(s->join, &why);
}

static void remove_user(struct nccl_join *j)
{
    mtx_lock(&j->lock);
    j->n_users--;
    join_leave_if_refused_locked(j, 0);
    cnd_broadcast(&j->changed);
    mtx_unlock(&j->lock); /* from here on the supervisor may free the join */
}

static void join_source_close(struct source *base)
{
    struct join_source *s = of(base);

    if (s == NULL)
        return;
    check_unreceived(s);
    source_close(s->group);
    tensor_list_unref(s->tensor_list);
    remove_user(s->join);
    free(s);
}

static const struct source_ops join_source_ops = {
    .name = "nccl",
    .bucket = join_source_bucket,
    .post = join_source_post,
    .receive = join_source_receive,
    .stuck = join_source_stuck,
    .group = join_source_group,
    .finish = join_source_finish,
    .close = join_source_close,
};

bool nccl_join_left(struct nccl_join *j)
{
    bool left;

    mtx_lock(&j->lock);
    left = is_left_locked(j);
    mtx_unlock(&j->lock);
    return left;
}

bool nccl_join_doubt(struct nccl_join *j, uint64_t sent_us)
{
    if (j->begun_us > sent_us)
        return false;
    doubt(j, 0);
    return nccl_join_left(j);
}

/* A source may wait for a group that is not joined yet only if it is a torch group whose ranks are
 * counted. */
static int add_user_locked(struct nccl_join *j, bool sure, struct err *e)
{
    if (check_ended_locked(j, e) != 0)
        return -1;
    if (j->state != JOIN_JOINED && !(j->cfg.form == NCCL_FORM_TORCH && j->state == JOIN_COUNTED))
        return err_set(e, ERR_CONFLICT, "", "the group is still being joined");
    if (j->doubt && !sure)
        return err_set(
            e, ERR_CONFLICT, "",
            "an update was refused or aborted before its broadcast was entered; if its trainer "
            "sent it nevertheless, its bytes arrive next: join a new group, or send "
            "expected_digest, which promises that the trainer broadcasts only accepted updates");
    j->n_users++;
    return 0;
}

static int add_user(struct nccl_join *j, bool sure, struct err *e)
{
    int rc;

    mtx_lock(&j->lock);
    rc = add_user_locked(j, sure, e);
    mtx_unlock(&j->lock);
    return rc;
}

/* A source of a failed group may not have noticed that yet, and then the join has not ended:
 * another user would be in the group at the same time. */
static void end_with_group(struct nccl_join *j)
{
    struct nccl_join_info info;

    nccl_join_info(j, &info);
    if (info.error.code != ERR_NONE)
        join_end(j, &info.error);
}

int nccl_join_source_new(struct source **out, struct nccl_join *j, struct tensor_list *tensor_list,
                         struct packed_chunks *chunks, bool sure, struct err *e)
{
    struct join_source *s;

    end_with_group(j);
    if (add_user(j, sure, e) != 0)
        goto err_chunks_fini;
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to receive a broadcast");
        goto err_drop_user;
    }
    *s = (struct join_source){
        .source = {&join_source_ops}, .join = j, .tensor_list = tensor_list_ref(tensor_list)};
    if (nccl_source_new(&s->group, j->group, tensor_list, chunks, e) != 0)
        goto err_free;
    *out = &s->source;
    return 0;

err_free:
    tensor_list_unref(s->tensor_list);
    free(s);
err_drop_user:
    remove_user(j);
err_chunks_fini:
    packed_chunks_fini(chunks);
    return -1;
}
