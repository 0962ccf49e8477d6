/* There is one group at a time. A new join first leaves the previous group: it takes it over and
 * waits for its end on a thread of its own, so no request waits here. */
#include "control/weight_transfer.h"

#include "base/mtx.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(x) (1u << (x))

/*     NONE --join--> GROUP --leave--> LEAVING --join--> GROUP
 *
 * A join replaces the group there is. Each change is a row of `rules`, and asserted. */
enum transfer_state {
    TRANSFER_NONE,    /* no group was joined */
    TRANSFER_GROUP,   /* it is being joined, is joined, or has failed: its own state says which */
    TRANSFER_LEAVING, /* it was left by a request, and may not have ended yet */
    TRANSFER_STOPPED,
    TRANSFER_STATES
};

enum transfer_event { TRANSFER_ON_JOIN, TRANSFER_ON_LEAVE, TRANSFER_ON_STOP };

struct weight_transfer {
    struct mtx lock;             /* rank MTX_TRANSFER; guards down to the blank line */
    enum transfer_state state;   /* written by transfer_move_locked alone */
    struct nccl_join *join;      /* owned; NULL in TRANSFER_NONE and TRANSFER_STOPPED. One that has
                                    failed is kept, so that status and requests get its error */
    struct nccl_packing packing; /* of the group */
    struct {
        uint64_t serial; /* on which its trainer's next patches build; 0: on none that is known */
        char update_id[UPDATE_ID_MAX + 1]; /* of the update that has brought patches; "": none */
    } chain;
    struct err stuck; /* clean unless an abort of NCCL did not return */

    struct weight_transfer_cfg cfg; /* immutable */
    struct nccl_join_stats stats;
};

static const struct {
    unsigned from; /* set */
    enum transfer_event event;
    enum transfer_state to;
} rules[] = {
    {BIT(TRANSFER_NONE) | BIT(TRANSFER_GROUP) | BIT(TRANSFER_LEAVING), TRANSFER_ON_JOIN,
     TRANSFER_GROUP},
    {BIT(TRANSFER_GROUP), TRANSFER_ON_LEAVE, TRANSFER_LEAVING},
    {BIT(TRANSFER_STATES) - 1, TRANSFER_ON_STOP, TRANSFER_STOPPED},
};

/* The state after an event. False: it cannot happen there. */
static bool weight_transfer_next(enum transfer_state from, enum transfer_event event,
                                 enum transfer_state *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((rules[i].from & BIT(from)) == 0 || rules[i].event != event)
            continue;
        *to = rules[i].to;
        return true;
    }
    return false;
}

static void transfer_move_locked(struct weight_transfer *t, enum transfer_event event)
{
    bool allowed = weight_transfer_next(t->state, event, &t->state);

    mtx_assert_held(&t->lock);
    assert(allowed);
    (void)allowed;
}

static bool has_group_locked(const struct weight_transfer *t)
{
    return t->state == TRANSFER_GROUP;
}

int weight_transfer_new(struct weight_transfer **out, const struct weight_transfer_cfg *cfg,
                        struct err *e)
{
    struct weight_transfer *t = calloc(1, sizeof *t);

    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the weight transfer");
    mtx_init(&t->lock, MTX_TRANSFER);
    t->cfg = *cfg;
    *out = t;
    return 0;
}

void weight_transfer_stop(struct weight_transfer *t)
{
    struct nccl_join *join;
    struct err why = {0};
    bool leave;

    (void)err_set(&why, ERR_DRAINING, "", "the server is stopping");
    mtx_lock(&t->lock);
    leave = has_group_locked(t);
    join = t->join;
    t->join = NULL;
    transfer_move_locked(t, TRANSFER_ON_STOP);
    mtx_unlock(&t->lock);
    if (leave)
        (void)nccl_join_leave(join, &why, NULL, NULL);
    nccl_join_free(join);
}

void weight_transfer_free(struct weight_transfer *t)
{
    if (t == NULL)
        return;
    weight_transfer_stop(t);
    mtx_fini(&t->lock);
    free(t);
}

bool weight_transfer_live(struct weight_transfer *t, struct err *why)
{
    bool live;

    mtx_lock(&t->lock);
    live = t->stuck.code == ERR_NONE;
    if (!live)
        *why = t->stuck;
    mtx_unlock(&t->lock);
    return live;
}

bool weight_transfer_info(struct weight_transfer *t, struct nccl_join_info *info)
{
    bool some;

    mtx_lock(&t->lock);
    some = has_group_locked(t);
    if (some)
        nccl_join_info(t->join, info);
    mtx_unlock(&t->lock);
    return some;
}

const char *weight_transfer_state(struct weight_transfer *t)
{
    struct nccl_join_info info;

    return weight_transfer_info(t, &info) ? nccl_group_state_name(info.state) : "none";
}

const struct nccl_join_stats *weight_transfer_stats(const struct weight_transfer *t)
{
    return &t->stats;
}

const struct weight_transfer_cfg *weight_transfer_config(const struct weight_transfer *t)
{
    return &t->cfg;
}

int weight_transfer_able(const struct weight_transfer *t, struct err *e)
{
    if (t->cfg.n_devices == 0)
        return err_set(e, ERR_NO_GPU, "",
                       "the weights of this server are in host memory, and NCCL needs GPUs: start "
                       "it with --device cuda:0");
    if (!t->cfg.nccl->available)
        return err_set(e, ERR_NO_NCCL, "",
                       "this server has no NCCL: %.300s; --nccl-library names the file, preferably "
                       "that of the trainer",
                       t->cfg.nccl->reason);
    return 0;
}

static int refuse_stopped(struct err *e)
{
    return err_set(e, ERR_DRAINING, "", "the server is stopping");
}

/* NCCL's broadcasts carry no identity: with two receivers at a time, no one could tell whose bytes
 * come first. */
static int check_alone_locked(struct weight_transfer *t, struct err *e)
{
    struct nccl_join_info info;

    nccl_join_info(t->join, &info);
    if (info.n_users == 0 || info.error.code != ERR_NONE)
        return 0;
    return err_set(e, ERR_CONFLICT, "/transport",
                   "another request receives by the group: send the next one after its reply");
}

/* Bytes of one group received under names of another would be silently wrong. */
static int check_name_locked(struct weight_transfer *t, const char *name, struct err *e)
{
    struct nccl_join_info info;

    if (name == NULL)
        return 0;
    nccl_join_info(t->join, &info);
    if (strcmp(info.group_name, name) == 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "/group_name",
                   "the joined group is '%.64s', and this request is for '%.64s': there is one "
                   "group at a time, and a new join replaces it",
                   info.group_name, name);
}

static void tell_left(struct err *e)
{
    if (e->code != ERR_GROUP_LEFT)
        err_append(e, "; " NCCL_GROUP_LEFT);
}

void weight_transfer_doubt(struct weight_transfer *t, const char *group_name, uint64_t sent_us,
                           struct err *e)
{
    struct nccl_join_info info;
    struct err other = {0};

    mtx_lock(&t->lock);
    if (has_group_locked(t) && check_name_locked(t, group_name, &other) == 0) {
        nccl_join_info(t->join, &info);
        if (info.begun_us <= sent_us)
            memset(&t->chain, 0, sizeof t->chain);
        if (nccl_join_doubt(t->join, sent_us))
            tell_left(e);
    }
    mtx_unlock(&t->lock);
}

void weight_transfer_tell(struct weight_transfer *t, uint64_t group, struct err *e)
{
    struct nccl_join_info info;

    mtx_lock(&t->lock);
    if (has_group_locked(t)) {
        nccl_join_info(t->join, &info);
        if (info.begun_us == group)
            memset(&t->chain, 0, sizeof t->chain);
        if (info.begun_us == group && nccl_join_left(t->join))
            tell_left(e);
    }
    mtx_unlock(&t->lock);
}

static int refuse_groupless_locked(const struct weight_transfer *t, struct err *e)
{
    return t->state == TRANSFER_STOPPED ? refuse_stopped(e)
                                        : err_set(e, ERR_CONFLICT, "/transport",
                                                  "there is no group to receive from; POST "
                                                  "/v1/weight_transfer/init joins one");
}

static int refuse_chain(const struct weight_transfer *t, uint64_t serial, struct err *e)
{
    static const char why[] = "patches hold only what changed since their trainer's last update";
    static const char what[] = "send the whole model, then join a new group for the next patches";

    if (t->chain.serial != 0 && serial != 0)
        return err_set(e, ERR_PRECONDITION, "",
                       "%s, and version %llu, which is served, came in another way after version "
                       "%llu of this group: %s",
                       why, (unsigned long long)serial, (unsigned long long)t->chain.serial, what);
    return err_set(e, ERR_PRECONDITION, "",
                   "%s, and what this group brought last is not served as a version: an update "
                   "that was refused or not finished, or an adapter: %s",
                   why, what);
}

static int chain_begin_locked(struct weight_transfer *t, uint64_t serial, const char *update_id,
                              struct err *e)
{
    if (serial == 0 || t->chain.serial != serial)
        return refuse_chain(t, serial, e);
    t->chain.serial = 0;
    (void)snprintf(t->chain.update_id, sizeof t->chain.update_id, "%s", update_id);
    return 0;
}

/* Locks if it returns 0: there is a group. */
static int transfer_lock_group(struct weight_transfer *t, struct err *e)
{
    if (weight_transfer_able(t, e) != 0)
        return -1;
    mtx_lock(&t->lock);
    if (has_group_locked(t))
        return 0;
    (void)refuse_groupless_locked(t, e);
    mtx_unlock(&t->lock);
    return -1;
}

int weight_transfer_chain(struct weight_transfer *t, uint64_t serial, const char *update_id,
                          struct err *e)
{
    int rc = 0;

    if (transfer_lock_group(t, e) != 0)
        return -1;
    if (strcmp(t->chain.update_id, update_id) != 0)
        rc = chain_begin_locked(t, serial, update_id, e);
    mtx_unlock(&t->lock);
    return rc;
}

void weight_transfer_committed(struct weight_transfer *t, const struct update_info *info)
{
    struct nccl_join_info joined;

    mtx_lock(&t->lock);
    if (has_group_locked(t) && info->group != 0) {
        nccl_join_info(t->join, &joined);
        if (joined.begun_us == info->group &&
            (!info->partial || strcmp(t->chain.update_id, info->id) == 0)) {
            t->chain.serial = info->serial;
            t->chain.update_id[0] = '\0';
        }
        if (!info->base.delta)
            nccl_join_keep_list(t->join, info->group_list, info->group);
    }
    mtx_unlock(&t->lock);
}

int weight_transfer_list(struct weight_transfer *t, struct tensor_list **out,
                         const char *group_name, struct err *e)
{
    int rc;

    *out = NULL;
    if (transfer_lock_group(t, e) != 0)
        return -1;
    rc = check_name_locked(t, group_name, e);
    if (rc == 0)
        rc = nccl_join_list(t->join, out, e);
    mtx_unlock(&t->lock);
    return rc;
}

void weight_transfer_packing(struct weight_transfer *t, struct nccl_packing *out)
{
    mtx_lock(&t->lock);
    *out = has_group_locked(t) ? t->packing : (struct nccl_packing){0};
    mtx_unlock(&t->lock);
}

/* Tensors packed as for another group would be received under wrong names. */
static int check_packing_locked(const struct weight_transfer *t, const struct nccl_packing *p,
                                struct err *e)
{
    if (p == NULL ||
        (p->packed == t->packing.packed && p->bucket_nbytes == t->packing.bucket_nbytes))
        return 0;
    return err_set(e, ERR_CONFLICT, "/transport",
                   "another group was joined while this request was read: send it again");
}

static int source_locked(struct weight_transfer *t, struct source **out,
                         struct tensor_list *tensor_list, struct packed_chunks *chunks,
                         const char *name, const struct nccl_packing *packing, bool sure,
                         struct err *e)
{
    if (has_group_locked(t) && check_name_locked(t, name, e) == 0 &&
        check_packing_locked(t, packing, e) == 0 && check_alone_locked(t, e) == 0) {
        t->chain.serial = 0;
        return nccl_join_source_new(out, t->join, tensor_list, chunks, sure, e);
    }
    packed_chunks_fini(chunks);
    return has_group_locked(t) ? -1 : refuse_groupless_locked(t, e);
}

int weight_transfer_source(struct weight_transfer *t, struct source **out,
                           struct tensor_list *tensor_list, struct packed_chunks *chunks,
                           const char *group_name, const struct nccl_packing *packing, bool sure,
                           struct err *e)
{
    int rc = weight_transfer_able(t, e);

    if (rc != 0) {
        packed_chunks_fini(chunks);
        return -1;
    }
    mtx_lock(&t->lock);
    rc = source_locked(t, out, tensor_list, chunks, group_name, packing, sure, e);
    mtx_unlock(&t->lock);
    return rc;
}

static void on_stuck(void *arg, const struct err *why)
{
    struct weight_transfer *t = arg;

    mtx_lock(&t->lock);
    t->stuck = *why;
    mtx_unlock(&t->lock);
}

/* Can a new group replace the current one? */
static int check_replaceable_locked(struct weight_transfer *t, struct err *e)
{
    struct nccl_join_info info;

    if (t->state == TRANSFER_STOPPED)
        return refuse_stopped(e);
    if (t->stuck.code != ERR_NONE) {
        *e = t->stuck;
        return -1;
    }
    if (!has_group_locked(t))
        return 0;
    nccl_join_info(t->join, &info);
    if (info.n_users == 0 || info.error.code != ERR_NONE)
        return 0;
    return err_set(e, ERR_CONFLICT, "",
                   "an update receives by the current group; wait until it ends, or leave the "
                   "group by DELETE /v1/weight_transfer");
}

static int weight_transfer_join_locked(struct weight_transfer *t, const struct nccl_join_cfg *given,
                                       struct err *e)
{
    struct nccl_join_cfg cfg = *given;
    struct nccl_join *j;

    if (check_replaceable_locked(t, e) != 0)
        return -1;
    cfg.group.nccl = &t->cfg.nccl->api;
    cfg.group.devices = t->cfg.devices;
    cfg.group.n_ranks = t->cfg.n_devices;
    cfg.version = t->cfg.nccl->version_code;
    cfg.allow = t->cfg.allow;
    cfg.stats = &t->stats;
    cfg.stuck = on_stuck;
    cfg.stuck_arg = t;
    cfg.previous = t->join;
    if (nccl_join_new(&j, &cfg, e) != 0)
        return -1;
    t->join = j;
    transfer_move_locked(t, TRANSFER_ON_JOIN);
    return 0;
}

int weight_transfer_join(struct weight_transfer *t, const struct nccl_join_cfg *invitation,
                         const struct nccl_packing *packing, uint64_t serial, struct err *e)
{
    int rc;

    mtx_lock(&t->lock);
    rc = weight_transfer_join_locked(t, invitation, e);
    if (rc == 0) {
        t->packing = *packing;
        memset(&t->chain, 0, sizeof t->chain);
        t->chain.serial = serial;
    }
    mtx_unlock(&t->lock);
    return rc;
}

static int weight_transfer_leave_locked(struct weight_transfer *t, const char *name,
                                        void (*left)(void *arg), void *arg, struct err *e)
{
    struct err why = {0};

    if (!has_group_locked(t))
        return 0;
    if (check_name_locked(t, name, e) != 0)
        return -1;
    (void)err_set(&why, ERR_CONFLICT, "", "the group was left on request");
    transfer_move_locked(t, TRANSFER_ON_LEAVE);
    return nccl_join_leave(t->join, &why, left, arg) ? 1 : 0;
}

int weight_transfer_leave(struct weight_transfer *t, const char *group_name,
                          void (*left)(void *arg), void *arg, struct err *e)
{
    int rc;

    mtx_lock(&t->lock);
    rc = weight_transfer_leave_locked(t, group_name, left, arg, e);
    mtx_unlock(&t->lock);
    return rc;
}
