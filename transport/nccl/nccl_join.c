/* The life of a join. Only its supervisor creates, leaves and frees the group, closes the store,
 * and answers. All other threads change the state, or set the error that ends the join, and wake
 * the supervisor.
 *
 * Rejected: one thread for everything. Inside NCCL's init it could not notice that the trainer's
 * store closed the connection, which is the only sign of a trainer that died. */
#include "base/clock.h"
#include "base/log.h"
#include "transport/nccl/nccl_join_priv.h"

#include "driver/nccl_info.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WATCH_US = 100 * 1000,       /* interval of the checks of the store's connection */
    VERSION_COMPARED_MIN = 22304 /* from 2.23.4 on, ranks of different versions cannot join */
};

void join_end_locked(struct nccl_join *j, const struct err *why)
{
    mtx_assert_held(&j->lock);
    if (join_has_ended(j->state))
        return;
    join_move(&j->state, JOIN_ON_END);
    j->end = *why;
    atomic_store_explicit(&j->progress.stop, true, memory_order_relaxed);
    cnd_broadcast(&j->changed);
}

void join_end(struct nccl_join *j, const struct err *why)
{
    mtx_lock(&j->lock);
    join_end_locked(j, why);
    mtx_unlock(&j->lock);
}

/* the joiner */

static void join_reach(struct nccl_join *j, enum join_event event)
{
    mtx_lock(&j->lock);
    join_move(&j->state, event);
    cnd_broadcast(&j->changed);
    mtx_unlock(&j->lock);
}

static int find_id(struct nccl_join *j, struct err *e)
{
    struct tcpstore *store;

    if (j->cfg.form == NCCL_FORM_ID) {
        memcpy(j->id, j->cfg.id, sizeof j->id);
        return 0;
    }
    if (rendezvous_count(&store, j, e) != 0)
        return -1;
    mtx_lock(&j->lock);
    j->store = store;
    mtx_unlock(&j->lock);
    if (j->cfg.form == NCCL_FORM_TORCH)
        j->progress.deadline_us = clock_after_us(j->cfg.first_collective_us);
    join_reach(j, JOIN_ON_COUNTED);
    return rendezvous_id(j->id, j, store, e);
}

static void publish_id(struct nccl_join *j)
{
    char text[CIDR_ADDR_TEXT_CAP];

    mtx_lock(&j->lock);
    j->has_id = true;
    mtx_unlock(&j->lock);
    log_event_line(LOG_INFO, "nccl.join",
                   "joining %u ranks, from rank %u on; the trainer's NCCL is at %s",
                   (unsigned)j->cfg.group.world_size, (unsigned)j->cfg.group.rank_offset,
                   nccl_id_addr_text(j->id, text));
}

static int nccl_join_group(struct nccl_join *j, struct err *e)
{
    if (nccl_group_open(j->group, &j->progress, e) != 0 || find_id(j, e) != 0 ||
        rendezvous_allow(j->id, j, e) != 0)
        return -1;
    publish_id(j);
    if (j->cfg.form == NCCL_FORM_TORCH)
        j->progress.deadline_us = clock_after_us(j->cfg.timeout_us);
    return nccl_group_join(j->group, j->id, &j->progress, e);
}

/* The number after `before`; 0 if there is none. */
static int number_after(const char *msg, const char *before)
{
    const char *at = strstr(msg, before);

    return at != NULL ? (int)strtol(at + strlen(before), NULL, 10) : 0;
}

/* The version of another rank, as NCCL's message of a mismatch has it: "... rank 0 version 22809
 * rank 1 version 22803", where rank 0 is the trainer; or "... with remote peer ADDRESS (local:
 * 22803, remote 22809)", which is the trainer if there is no other rank. */
static int version_in_message(const struct nccl_join *j, const char *msg, bool *is_trainer)
{
    int version = number_after(msg, "rank 0 version ");

    *is_trainer = version > 0 || j->cfg.group.world_size - j->cfg.group.n_ranks == 1;
    return version > 0 ? version : number_after(msg, ", remote ");
}

/* Adds both versions to the message, unless it has them. Returns the trainer's version, or 0. */
static int nccl_join_add_versions(const struct nccl_join *j, struct err *e)
{
    char ours[NCCL_VERSION_TEXT_MAX], theirs[NCCL_VERSION_TEXT_MAX];
    struct err cause = *e;
    bool is_trainer;
    int version = version_in_message(j, cause.msg, &is_trainer);

    nccl_version_text(ours, j->cfg.version);
    nccl_version_text(theirs, version);
    if (theirs[0] == '\0' && strstr(cause.msg, ours) != NULL)
        return 0;
    err_clear(e);
    (void)err_set(e, cause.code, cause.field, "%.430s (NCCL %s here%s%s)", cause.msg, ours,
                  theirs[0] == '\0' ? ""
                  : is_trainer      ? ", the trainer's is "
                                    : ", another rank's is ",
                  theirs);
    return theirs[0] != '\0' && is_trainer ? version : 0;
}

static void *joiner_main(void *arg)
{
    struct nccl_join *j = arg;
    struct err e = {0};
    int trainer = 0;

    if (nccl_join_group(j, &e) == 0) {
        if (j->cfg.version >= VERSION_COMPARED_MIN)
            trainer = j->cfg.version;
        atomic_fetch_add_explicit(&j->cfg.stats->n_joined, 1, memory_order_relaxed);
    } else {
        trainer = nccl_join_add_versions(j, &e);
    }
    mtx_lock(&j->lock);
    j->trainer_version = trainer;
    if (e.code == ERR_NONE)
        join_move(&j->state, JOIN_ON_JOINED);
    else
        join_end_locked(j, &e);
    join_leave_if_refused_locked(j, 0);
    cnd_broadcast(&j->changed);
    mtx_unlock(&j->lock);
    return NULL;
}

/* the supervisor */

/* Answers that the group was joined. If it has failed or was left meanwhile, sets the end instead,
 * and the answer is that error. */
static bool answer_joined(struct nccl_join *j)
{
    static const struct err none = {0};
    struct nccl_join_info info;

    nccl_join_info(j, &info);
    if (info.error.code == ERR_NONE)
        j->cfg.answer(j->cfg.answer_arg, &info, &none);
    else
        join_end(j, &info.error);
    return info.error.code == ERR_NONE;
}

static bool answer_due_locked(const struct nccl_join *j)
{
    return !j->answered && (j->state == JOIN_JOINED ||
                            (j->state == JOIN_COUNTED && j->cfg.form == NCCL_FORM_TORCH));
}

static void nccl_join_check_store(struct nccl_join *j, const struct tcpstore *store)
{
    struct err why = {0};

    if (!tcpstore_closed(store))
        return;
    (void)err_set(&why, ERR_UNREADABLE, "",
                  "the trainer's store at %s closed the connection: its process has ended",
                  j->master);
    join_end(j, &why);
}

/* Waits for the end of the join; answers the inviter and watches the store meanwhile. */
static void supervise(struct nccl_join *j)
{
    mtx_lock(&j->lock);
    while (!join_has_ended(j->state)) {
        const struct tcpstore *store = j->store;
        bool due = answer_due_locked(j), done;

        mtx_unlock(&j->lock);
        done = due && answer_joined(j);
        if (store != NULL)
            nccl_join_check_store(j, store);
        mtx_lock(&j->lock);
        j->answered = j->answered || done;
        if (!join_has_ended(j->state) && !answer_due_locked(j))
            (void)cnd_wait(&j->changed, &j->lock,
                           j->store != NULL ? clock_after_us(WATCH_US) : CLOCK_NEVER);
    }
    mtx_unlock(&j->lock);
}

static void log_end_of(const struct nccl_join *j)
{
    struct log_rec r;

    log_begin(&r, j->left ? LOG_INFO : LOG_WARN, "nccl.ended");
    log_str(&r, "stuck", j->last.state == NCCL_GROUP_STUCK ? "yes" : NULL);
    log_u64(&r, "bytes_received", j->last.nbytes_received);
    log_u64(&r, "broadcasts", j->last.n_broadcasts);
    log_err(&r, &j->end);
    log_event(&r);
}

/* Ends the group when no source and no pin uses it any more. */
static void drop_group(struct nccl_join *j)
{
    struct nccl_group_info last;

    mtx_lock(&j->lock);
    join_move(&j->state, JOIN_ON_CLOSE);
    while (j->n_users > 0 || j->n_pins > 0)
        (void)cnd_wait(&j->changed, &j->lock, CLOCK_NEVER);
    mtx_unlock(&j->lock);
    nccl_group_end(j->group, &last);
    nccl_group_free(j->group);
    mtx_lock(&j->lock);
    j->last = last;
    mtx_unlock(&j->lock);
    if (last.state == NCCL_GROUP_STUCK && j->cfg.stuck != NULL)
        j->cfg.stuck(j->cfg.stuck_arg, &last.error);
}

/* The end of the join: answers the inviter if it still waits, and calls `gone`. */
static void join_settle(struct nccl_join *j)
{
    struct nccl_join_info info;
    void (*gone)(void *arg);
    bool answered;

    tcpstore_close(j->store);
    log_end_of(j);
    if (!j->left)
        atomic_fetch_add_explicit(&j->cfg.stats->n_failed, 1, memory_order_relaxed);
    mtx_lock(&j->lock);
    j->group = NULL;
    j->store = NULL;
    join_move(&j->state, JOIN_ON_OVER);
    gone = j->gone;
    answered = j->answered;
    j->answered = true;
    mtx_unlock(&j->lock);
    if (!answered) {
        nccl_join_info(j, &info);
        j->cfg.answer(j->cfg.answer_arg, &info, &j->end);
    }
    if (gone != NULL)
        gone(j->gone_arg);
}

static int nccl_join_make_group(struct nccl_join *j, struct err *e)
{
    struct nccl_group *group;

    if (nccl_group_new(&group, &j->cfg.group, e) != 0)
        return -1;
    mtx_lock(&j->lock);
    j->group = group;
    mtx_unlock(&j->lock);
    return 0;
}

static int start_joiner(struct nccl_join *j, pthread_t *joiner, struct err *e)
{
    int rc = pthread_create(joiner, NULL, joiner_main, j);

    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start a thread to join the group");
    (void)pthread_setname_np(*joiner, "nccl-join");
    return 0;
}

static bool join_ended(struct nccl_join *j)
{
    bool yes;

    mtx_lock(&j->lock);
    yes = join_has_ended(j->state);
    mtx_unlock(&j->lock);
    return yes;
}

/* The group, from its creation to its end. */
static void run_group(struct nccl_join *j)
{
    struct err e = {0};
    pthread_t joiner;
    bool joins;

    if (nccl_join_make_group(j, &e) != 0) {
        join_end(j, &e);
        return;
    }
    joins = start_joiner(j, &joiner, &e) == 0;
    if (!joins)
        join_end(j, &e);
    supervise(j);
    nccl_group_leave(j->group, j->end.msg); /* the joiner may wait in the group */
    if (joins)
        (void)pthread_join(joiner, NULL);
    drop_group(j);
}

static void join_destroy(struct nccl_join *j)
{
    tensor_list_unref(j->kept);
    cnd_fini(&j->changed);
    mtx_fini(&j->lock);
    free(j);
}

/* Leaves the join, waits until nothing of it is left, and frees it. Returns: is an abort of it
 * stuck? */
static bool take_down(struct nccl_join *j)
{
    struct err why = {0};
    bool stuck;

    (void)err_set(&why, ERR_CONFLICT, "", "another group replaces this one");
    (void)nccl_join_leave(j, &why, NULL, NULL);
    (void)pthread_join(j->supervisor, NULL);
    stuck = j->last.state == NCCL_GROUP_STUCK;
    join_destroy(j);
    return stuck;
}

/* A GPU on which an abort is stuck is not used again: this join fails, and so does a later one. */
static void refuse_after_stuck(struct nccl_join *j)
{
    struct err why = {0};

    (void)err_set(
        &why, ERR_NCCL, "",
        "aborting the previous group did not end and may never: this server must be restarted");
    mtx_lock(&j->lock);
    j->last.state = NCCL_GROUP_STUCK;
    join_end_locked(j, &why);
    mtx_unlock(&j->lock);
}

static void *supervisor_main(void *arg)
{
    struct nccl_join *j = arg;

    if (j->cfg.previous != NULL && take_down(j->cfg.previous))
        refuse_after_stuck(j);
    j->cfg.previous = NULL;
    j->progress.deadline_us = clock_after_us(j->cfg.timeout_us);
    if (!join_ended(j))
        run_group(j);
    join_settle(j);
    return NULL;
}

/* The inviter's client disconnected before the answer. Under the request's lock. */
static void on_inviter_disconnected(void *arg)
{
    struct err why = {0};

    (void)err_set(&why, ERR_GONE, "", "the client disconnected before the group was joined");
    join_end(arg, &why);
}

static void copy_cfg(struct nccl_join *j, const struct nccl_join_cfg *cfg)
{
    j->cfg = *cfg;
    j->last = (struct nccl_group_info){
        .state = NCCL_GROUP_JOINING,
        .world_size = cfg->group.world_size,
        .rank_offset = cfg->group.rank_offset,
        .n_ranks = cfg->group.n_ranks,
    };
    if (cfg->form == NCCL_FORM_ID)
        return;
    (void)snprintf(j->host, sizeof j->host, "%s", cfg->host);
    (void)snprintf(j->master, sizeof j->master, strchr(j->host, ':') != NULL ? "[%s]:%u" : "%s:%u",
                   j->host, (unsigned)cfg->port);
    if (cfg->form == NCCL_FORM_TORCH)
        (void)snprintf(j->group_name, sizeof j->group_name, "%s", cfg->group_name);
}

int nccl_join_new(struct nccl_join **out, const struct nccl_join_cfg *cfg, struct err *e)
{
    struct nccl_join *j = calloc(1, sizeof *j);
    int rc;

    if (j == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to join a group");
    copy_cfg(j, cfg);
    j->begun_us = clock_now_us();
    mtx_init(&j->lock, MTX_LEAF);
    cnd_init(&j->changed);
    if (cfg->x != NULL) /* must precede the supervisor, which answers */
        http_request_on_disconnect(cfg->x, on_inviter_disconnected, j);
    rc = pthread_create(&j->supervisor, NULL, supervisor_main, j);
    if (rc != 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", rc,
                            "cannot start a thread to supervise the group");
        goto err_destroy;
    }
    (void)pthread_setname_np(j->supervisor, "nccl-keep");
    atomic_fetch_add_explicit(&cfg->stats->n_begun, 1, memory_order_relaxed);
    *out = j;
    return 0;

err_destroy:
    if (cfg->x != NULL)
        http_request_on_disconnect(cfg->x, NULL, NULL);
    join_destroy(j);
    return -1;
}

bool nccl_join_leave(struct nccl_join *j, const struct err *why, void (*gone)(void *arg),
                     void *gone_arg)
{
    bool over;

    mtx_lock(&j->lock);
    if (!join_has_ended(j->state))
        j->left = true;
    join_end_locked(j, why);
    over = j->state == JOIN_OVER;
    if (gone != NULL && !over) {
        assert(j->gone == NULL);
        j->gone = gone;
        j->gone_arg = gone_arg;
    }
    mtx_unlock(&j->lock);
    return !over;
}

void nccl_join_free(struct nccl_join *j)
{
    if (j != NULL)
        (void)take_down(j);
}

/* The group's info, or the last info of a group that is closing or freed. */
static void group_info(struct nccl_join *j, struct nccl_group_info *out)
{
    struct nccl_group *group = NULL;

    mtx_lock(&j->lock);
    if (j->state < JOIN_CLOSING)
        group = j->group;
    if (group != NULL)
        j->n_pins++;
    else
        *out = j->last;
    mtx_unlock(&j->lock);
    if (group == NULL)
        return;
    nccl_group_info(group, out);
    mtx_lock(&j->lock);
    j->n_pins--;
    cnd_broadcast(&j->changed);
    mtx_unlock(&j->lock);
}

void nccl_join_info(struct nccl_join *j, struct nccl_join_info *out)
{
    struct nccl_group_info group;

    group_info(j, &group);
    memset(out, 0, sizeof *out);
    out->form = j->cfg.form;
    out->world_size = j->cfg.group.world_size;
    out->rank_offset = j->cfg.group.rank_offset;
    out->n_ranks = j->cfg.group.n_ranks;
    out->nbytes_received = group.nbytes_received;
    out->n_broadcasts = group.n_broadcasts;
    out->begun_us = j->begun_us;
    out->ends_if_refused = j->cfg.ends_if_refused;
    memcpy(out->master, j->master, sizeof out->master);
    memcpy(out->group_name, j->group_name, sizeof out->group_name);
    mtx_lock(&j->lock);
    out->n_users = j->n_users;
    out->trainer_version = j->trainer_version;
    out->error = j->end;
    if (j->has_id)
        (void)nccl_id_addr_text(j->id, out->bootstrap);
    out->state = join_has_ended(j->state)  ? NCCL_GROUP_FAILED
                 : j->state == JOIN_JOINED ? NCCL_GROUP_JOINED
                                           : NCCL_GROUP_JOINING;
    mtx_unlock(&j->lock);
    if (group.state == NCCL_GROUP_STUCK || (group.state == NCCL_GROUP_FAILED && !out->error.code)) {
        out->state = group.state;
        if (group.error.code != ERR_NONE)
            out->error = group.error;
    }
}
