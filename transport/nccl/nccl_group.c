/* The callers' side of a group: they post requests to the owner threads and wait. Also the states
 * of the group. */
#include "base/clock.h"
#include "base/log.h"
#include "transport/nccl/nccl_group_priv.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_US = 10 * 1000, /* interval of the checks of a caller's stop */
    CLOSE_PEERS_AFTER_US = 300 *
                           1000, /* after the abort began; libnccl itself checks every 500 ms */
    THREAD_NAME_MAX = 16
};

const char *nccl_group_state_name(enum nccl_group_state state)
{
    static const char *const names[] = {
        [NCCL_GROUP_JOINING] = "joining",
        [NCCL_GROUP_JOINED] = "joined",
        [NCCL_GROUP_FAILED] = "failed",
        [NCCL_GROUP_STUCK] = "stuck",
    };

    return names[state];
}

/* The table of moves: can a group come from one state to the other? */
static bool nccl_group_next(enum nccl_group_state from, enum nccl_group_state to)
{
    static const unsigned comes_from[] = {
        [NCCL_GROUP_JOINED] = 1u << NCCL_GROUP_JOINING,
        [NCCL_GROUP_FAILED] = 1u << NCCL_GROUP_JOINING | 1u << NCCL_GROUP_JOINED,
        [NCCL_GROUP_STUCK] = 1u << NCCL_GROUP_FAILED,
    };

    return (comes_from[to] & 1u << from) != 0;
}

static void group_move_locked(struct nccl_group *g, enum nccl_group_state to)
{
    mtx_assert_held(&g->lock);
    assert(nccl_group_next(g->state, to));
    g->state = to;
}

bool group_failed_locked(const struct nccl_group *g)
{
    mtx_assert_held(&g->lock);
    return g->state == NCCL_GROUP_FAILED || g->state == NCCL_GROUP_STUCK;
}

/* The first cause wins. */
void group_fail_locked(struct nccl_group *g, const struct err *cause)
{
    if (group_failed_locked(g))
        return;
    group_move_locked(g, NCCL_GROUP_FAILED);
    g->error = *cause;
    g->abort_deadline_us = clock_after_us(g->abort_timeout_us);
    atomic_store_explicit(&g->give_up, true, memory_order_relaxed);
    cnd_broadcast(&g->changed);
}

/* Sets STUCK if the time for aborts is over. @n_done  threads that have reached the awaited point
 */
static void find_stuck_locked(struct nccl_group *g, uint32_t n_done)
{
    struct err cause = g->error;

    if (g->state != NCCL_GROUP_FAILED || n_done == g->n_threads ||
        !clock_passed(g->abort_deadline_us))
        return;
    group_move_locked(g, NCCL_GROUP_STUCK);
    err_clear(&g->error);
    (void)err_set(&g->error, ERR_NCCL, "",
                  "aborting the NCCL group did not end within %g s and may never: this server must "
                  "be restarted; the cause was: %.300s",
                  (double)g->abort_timeout_us / 1e6, cause.msg);
}

/* Releases the lock while it writes to the log. */
static void log_stuck_locked(struct nccl_group *g)
{
    struct err e = g->error;
    struct log_rec r;

    if (g->state != NCCL_GROUP_STUCK || g->stuck_logged)
        return;
    g->stuck_logged = true;
    mtx_unlock(&g->lock);
    log_begin(&r, LOG_ERROR, "nccl.stuck");
    log_err(&r, &e);
    log_event(&r);
    mtx_lock(&g->lock);
}

void group_unref(struct nccl_group *g)
{
    if (atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    cnd_fini(&g->changed);
    mtx_fini(&g->lock);
    free(g->members);
    free(g->dst);
    free(g);
}

/* The error of a deadline that has passed. A peer that hangs gives no reason: the message names
 * the usual ones. */
static int set_timeout_error(const struct nccl_group *g, struct err *e)
{
    const char *cumem = getenv("NCCL_CUMEM_ENABLE");

    if (g->what == REQUEST_OPEN)
        return err_set(e, ERR_TIMEOUT, "",
                       "the GPUs of the NCCL group did not respond before the deadline");
    if (g->what == REQUEST_RECEIVE)
        return err_set(e, ERR_TIMEOUT, "",
                       "a broadcast of %llu bytes did not complete before the deadline",
                       (unsigned long long)g->nbytes[g->n_received % SOURCE_POSTED_MAX]);
    return err_set(
        e, ERR_TIMEOUT, "",
        "%s of the NCCL group did not complete before the deadline: did all %u ranks join, with "
        "the same world_size, the same NCCL (here %s) and the same NCCL_CUMEM_ENABLE (here %.16s)?",
        g->what == REQUEST_JOIN ? "joining" : "the warm-up", (unsigned)g->world_size, g->version,
        cumem != NULL ? cumem : "not set");
}

/* Does the caller want to stop waiting? No lock held: `gone` may take one. */
static int check_caller(const struct nccl_group *g, const struct progress *p, struct err *e)
{
    const char *what = g->what == REQUEST_RECEIVE ? "the trainer's broadcast was received"
                                                  : "the NCCL group was joined";

    if (atomic_load_explicit(&p->stop, memory_order_relaxed))
        return err_set(e, ERR_CONFLICT, "", "stopped while %s", what);
    if (clock_passed(p->deadline_us))
        return set_timeout_error(g, e);
    if (p->gone != NULL && p->gone(p->gone_arg))
        return err_set(e, ERR_GONE, "", "the client disconnected while %s", what);
    return 0;
}

/* Has every rank completed the awaited request? */
static bool is_done_locked(const struct nccl_group *g)
{
    return g->what == REQUEST_RECEIVE ? g->n_landed > g->n_received : g->n_pending == 0;
}

/* Waits until every rank is done, one has failed, or the caller gives up, which fails the group. */
static void watch_locked(struct nccl_group *g, const struct progress *p)
{
    while (!is_done_locked(g) && !group_failed_locked(g)) {
        struct err e = {0};
        uint64_t until_us;

        mtx_unlock(&g->lock);
        (void)check_caller(g, p, &e);
        until_us = clock_after_us(POLL_US);
        mtx_lock(&g->lock);
        if (is_done_locked(g) || group_failed_locked(g))
            return;
        if (e.code != ERR_NONE)
            group_fail_locked(g, &e);
        else
            (void)cnd_wait(&g->changed, &g->lock,
                           p->deadline_us < until_us ? p->deadline_us : until_us);
    }
}

/* Aborts that take long wait for peers: shuts down the peers' connections. Releases the lock
 * meanwhile. */
static void close_peers_locked(struct nccl_group *g)
{
    struct log_rec r;
    unsigned n;

    if (g->peers_closed || g->n_aborted == g->n_threads)
        return;
    g->peers_closed = true;
    mtx_unlock(&g->lock);
    n = nccl_sockets_close_peers(&g->sockets);
    log_begin(&r, LOG_WARN, "nccl.close_peers");
    log_u64(&r, "connections", n);
    log_end(&r);
    mtx_lock(&g->lock);
}

/* Waits until all threads of a failed group have reached the point counted by `n`, or the time for
 * aborts is over. */
static void await_end_locked(struct nccl_group *g, const uint32_t *n)
{
    uint64_t late_us = g->abort_deadline_us - g->abort_timeout_us + CLOSE_PEERS_AFTER_US;

    while (*n < g->n_threads && cnd_wait(&g->changed, &g->lock, late_us))
        ;
    if (*n < g->n_threads)
        close_peers_locked(g);
    while (*n < g->n_threads && cnd_wait(&g->changed, &g->lock, g->abort_deadline_us))
        ;
}

/* The error of a failed group. Waits until nothing writes any more, or the group is stuck. */
static int end_call_locked(struct nccl_group *g, struct err *e)
{
    await_end_locked(g, &g->n_quiet);
    find_stuck_locked(g, g->n_quiet);
    *e = g->error;
    log_stuck_locked(g);
    return -1;
}

/* Posts a request to every rank. */
static void post_request_locked(struct nccl_group *g, enum request what)
{
    g->what = what;
    (void)atomic_fetch_add_explicit(&g->n_requests, 1, memory_order_relaxed);
    cnd_broadcast(&g->changed);
}

/* Posts a request to every rank and waits. After a failure: waits until nothing writes any more,
 * or the group is stuck. */
static int perform_locked(struct nccl_group *g, enum request what, const struct progress *p,
                          struct err *e)
{
    assert(g->n_pending == 0);
    g->n_pending = g->n_ranks;
    post_request_locked(g, what);
    watch_locked(g, p);
    return g->n_pending == 0 ? 0 : end_call_locked(g, e);
}

/* Starts n_ranks threads, or fails with fewer started. */
static int group_start(struct nccl_group *g, const struct nccl_group_cfg *cfg, struct err *e)
{
    char name[THREAD_NAME_MAX];

    for (uint32_t i = 0; i < g->n_ranks; i++) {
        struct member *m = &g->members[i];
        int rc;

        *m = (struct member){.g = g, .i = i};
        m->rank = (struct communicator){.nccl = g->nccl,
                                        .device = cfg->devices[i],
                                        .give_up = &g->give_up,
                                        .rank = (int)(g->rank_offset + i),
                                        .world_size = (int)g->world_size};
        (void)atomic_fetch_add_explicit(&g->n_refs, 1, memory_order_relaxed);
        rc = pthread_create(&m->thread, NULL, owner_main, m);
        if (rc != 0) {
            (void)atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_relaxed);
            return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start thread %u of NCCL ranks",
                                 (unsigned)i);
        }
        mtx_lock(&g->lock);
        g->n_threads++;
        mtx_unlock(&g->lock);
        (void)snprintf(name, sizeof name, "nccl-%u", (unsigned)i);
        (void)pthread_setname_np(m->thread, name);
    }
    return 0;
}

/* A group without threads. */
static int group_alloc(struct nccl_group **out, const struct nccl_group_cfg *cfg, struct err *e)
{
    struct nccl_group *g = calloc(1, sizeof *g);

    if (g == NULL)
        goto no_memory;
    g->members = calloc(cfg->n_ranks, sizeof *g->members);
    g->dst = calloc((size_t)SOURCE_POSTED_MAX * cfg->n_ranks, sizeof *g->dst);
    if (g->members == NULL || g->dst == NULL)
        goto no_memory;
    mtx_init(&g->lock, MTX_LEAF);
    cnd_init(&g->changed);
    g->nccl = cfg->nccl;
    g->n_ranks = cfg->n_ranks;
    g->world_size = cfg->world_size;
    g->rank_offset = cfg->rank_offset;
    g->warm_up = cfg->warm_up;
    g->abort_timeout_us = cfg->abort_timeout_us > 0 ? cfg->abort_timeout_us : NCCL_ABORT_TIMEOUT_US;
    nccl_sockets_enter(&g->sockets);
    atomic_init(&g->n_refs, 1);
    *out = g;
    return 0;

no_memory:
    if (g != NULL) {
        free(g->members);
        free(g->dst);
    }
    free(g);
    return err_set(e, ERR_NO_MEMORY, "", "no memory for an NCCL group of %u ranks here",
                   (unsigned)cfg->n_ranks);
}

int nccl_group_new(struct nccl_group **out, const struct nccl_group_cfg *cfg, struct err *e)
{
    struct nccl_group *g;
    int code = 0;

    assert(cfg->world_size >= 2 && cfg->world_size <= NCCL_WORLD_MAX);
    assert(cfg->n_ranks >= 1 && cfg->n_ranks < cfg->world_size);
    assert(cfg->rank_offset >= 1 && cfg->rank_offset <= cfg->world_size - cfg->n_ranks);
    if (nccl_try(cfg->nccl, cfg->nccl->get_version(&code), "ncclGetVersion", e) != 0 ||
        group_alloc(&g, cfg, e) != 0)
        return -1;
    nccl_version_text(g->version, code);
    if (group_start(g, cfg, e) != 0) {
        nccl_group_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

/* The error of a call in a state that does not allow it. */
static int nccl_group_refuse_locked(const struct nccl_group *g, struct err *e)
{
    if (group_failed_locked(g))
        return err_set(e, ERR_CONFLICT, "", "the NCCL group has failed: %.400s", g->error.msg);
    return err_set(e, ERR_CONFLICT, "", "the NCCL group %s",
                   g->join_called ? "is being joined, or was joined before"
                                  : "has not been joined yet");
}

int nccl_group_open(struct nccl_group *g, const struct progress *p, struct err *e)
{
    int rc;

    mtx_assert_none();
    mtx_lock(&g->lock);
    assert(g->n_requests == 0);
    rc = group_failed_locked(g) ? nccl_group_refuse_locked(g, e)
                                : perform_locked(g, REQUEST_OPEN, p, e);
    mtx_unlock(&g->lock);
    return rc;
}

static int nccl_group_join_locked(struct nccl_group *g, const uint8_t id[NCCL_ID_NBYTES],
                                  const struct progress *p, struct err *e)
{
    if (group_failed_locked(g) || g->join_called)
        return nccl_group_refuse_locked(g, e);
    assert(g->n_requests > 0); /* opened */
    g->join_called = true;
    memcpy(g->id, id, sizeof g->id);
    if (perform_locked(g, REQUEST_JOIN, p, e) != 0)
        return -1;
    if (g->warm_up && perform_locked(g, REQUEST_WARM_UP, p, e) != 0)
        return -1;
    if (group_failed_locked(g))
        return nccl_group_refuse_locked(g, e);
    group_move_locked(g, NCCL_GROUP_JOINED);
    return 0;
}

int nccl_group_join(struct nccl_group *g, const uint8_t id[NCCL_ID_NBYTES],
                    const struct progress *p, struct err *e)
{
    int rc;

    mtx_assert_none();
    mtx_lock(&g->lock);
    rc = nccl_group_join_locked(g, id, p, e);
    mtx_unlock(&g->lock);
    return rc;
}

/* After a failure the posted broadcasts get its error once, and later posts are refused. */
static int post_locked(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes, struct err *e)
{
    uint64_t n = g->n_posted, slot = n % SOURCE_POSTED_MAX;

    if (g->state != NCCL_GROUP_JOINED && (g->n_received == n || !group_failed_locked(g)))
        return nccl_group_refuse_locked(g, e);
    if (g->state != NCCL_GROUP_JOINED) {
        g->n_received = n;
        return end_call_locked(g, e);
    }
    assert(n - g->n_received < SOURCE_POSTED_MAX);
    memcpy(&g->dst[slot * g->n_ranks], dst, g->n_ranks * sizeof g->dst[0]);
    g->nbytes[slot] = nbytes;
    atomic_store_explicit(&g->n_posted, n + 1, memory_order_relaxed);
    post_request_locked(g, REQUEST_RECEIVE);
    return 0;
}

int nccl_group_post(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes, struct err *e)
{
    int rc;

    mtx_assert_none();
    mtx_lock(&g->lock);
    rc = post_locked(g, dst, nbytes, e);
    mtx_unlock(&g->lock);
    return rc;
}

static int receive_locked(struct nccl_group *g, const struct progress *p, struct err *e)
{
    uint64_t nbytes = g->nbytes[g->n_received % SOURCE_POSTED_MAX];

    assert(g->n_posted > g->n_received);
    watch_locked(g, p);
    if (!is_done_locked(g)) {
        g->n_received = g->n_posted;
        return end_call_locked(g, e);
    }
    g->n_received++;
    g->nbytes_received += nbytes;
    g->n_broadcasts += nbytes > 0;
    return 0;
}

/* Polls without the lock, for the time of a small broadcast. */
static void await_landing(const struct nccl_group *g, uint64_t n)
{
    uint64_t since_us = clock_now_us();

    while (atomic_load_explicit(&g->n_landed, memory_order_relaxed) <= n &&
           !atomic_load_explicit(&g->give_up, memory_order_relaxed) &&
           clock_now_us() - since_us < GROUP_SPIN_US)
        (void)sched_yield();
}

int nccl_group_receive(struct nccl_group *g, const struct progress *p, struct err *e)
{
    int rc;

    mtx_assert_none();
    await_landing(g, g->n_received); /* n_received is written by this thread only */
    mtx_lock(&g->lock);
    rc = receive_locked(g, p, e);
    mtx_unlock(&g->lock);
    return rc;
}

void nccl_group_leave(struct nccl_group *g, const char *why)
{
    struct err e = {0};

    (void)err_set(&e, ERR_CONFLICT, "", "%s", why);
    mtx_lock(&g->lock);
    group_fail_locked(g, &e);
    mtx_unlock(&g->lock);
}

static void nccl_group_fill_info_locked(const struct nccl_group *g, struct nccl_group_info *out)
{
    *out = (struct nccl_group_info){.state = g->state,
                                    .world_size = g->world_size,
                                    .rank_offset = g->rank_offset,
                                    .n_ranks = g->n_ranks,
                                    .nbytes_received = g->nbytes_received,
                                    .n_broadcasts = g->n_broadcasts,
                                    .error = g->error};
}

void nccl_group_info(struct nccl_group *g, struct nccl_group_info *out)
{
    mtx_lock(&g->lock);
    find_stuck_locked(g, g->n_quiet);
    nccl_group_fill_info_locked(g, out);
    mtx_unlock(&g->lock);
}

void nccl_group_end(struct nccl_group *g, struct nccl_group_info *out)
{
    nccl_group_leave(g, "the NCCL group is no longer needed");
    mtx_lock(&g->lock);
    await_end_locked(g, &g->n_ended);
    find_stuck_locked(g, g->n_ended);
    log_stuck_locked(g);
    nccl_group_fill_info_locked(g, out);
    mtx_unlock(&g->lock);
}

void nccl_group_free(struct nccl_group *g)
{
    struct nccl_group_info info;

    if (g == NULL)
        return;
    nccl_group_end(g, &info);
    for (uint32_t i = 0; i < g->n_threads; i++) {
        bool ended;

        mtx_lock(&g->lock);
        ended = g->members[i].ended;
        mtx_unlock(&g->lock);
        if (ended)
            (void)pthread_join(g->members[i].thread, NULL);
        else
            (void)pthread_detach(g->members[i].thread);
    }
    group_unref(g);
}
