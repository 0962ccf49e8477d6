/* The owner threads of a group's ranks, and those who wait for them.
 *
 * A request is left under the lock for every rank at once; who left it waits, and looks at its
 * deadline and stop there. Owners look only at `give_up`, never at what a caller lent them: a
 * caller may be gone when an owner comes back from a call that took too long.
 *
 * The first failure, whoever finds it, ends all ranks alike: each owner aborts its communicator,
 * waits until all have, sees its stream done, and only then says that nothing writes any more. */
#include "transport/nccl_group.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "driver/nccl_info.h"
#include "transport/nccl_rank.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    LOOK_US = 10 * 1000,   /* between two looks at a caller's stop */
    NEXT_SPIN_US = 200,    /* an update's next broadcast comes at once */
    TIMER_SLACK_NS = 1000, /* of owners: short sleeps are to be short */
    THREAD_NAME_MAX = 16
};

enum request { REQUEST_OPEN, REQUEST_JOIN, REQUEST_WARM_UP, REQUEST_RECEIVE };

/* A request as its owner takes it along. */
struct order {
    enum request what;
    uint8_t id[NCCL_ID_NBYTES];
    uint64_t dst, nbytes;
};

struct member {
    struct nccl_group *g; /* counted while the thread runs */
    uint32_t i;           /* immutable */
    bool ended;           /* under the group's lock: nothing of the devices is used any more */
    pthread_t thread;     /* of new and free */
    struct nrank rank;    /* the owner's */
};

struct nccl_group {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* anything of what follows */
    enum nccl_group_state state;
    struct err error;              /* the first cause; clean while there is none */
    uint64_t abort_deadline_us;    /* once failed */
    enum request what;             /* the last request */
    uint8_t id[NCCL_ID_NBYTES];    /* its id */
    uint64_t *dst, nbytes;         /* its dst, owned [n_ranks] */
    uint32_t n_pending;            /* ranks that are not done with it */
    uint32_t n_threads, n_aborted; /* started; whose communicator is no more */
    uint32_t n_quiet, n_ended;     /* ... whose stream is done; which use their device no more */
    bool join_called;
    uint64_t nbytes_received, n_broadcasts;

    const struct nccl_api *nccl; /* borrowed; it and all below are immutable after new */
    uint32_t n_ranks, world_size, rank_offset;
    bool warm_up;
    char version[NCCL_VERSION_TEXT_MAX];
    struct member *members; /* owned; [n_ranks] */

    atomic_uint_fast64_t n_requests; /* written under the lock; relaxed elsewhere: a hint to look */
    atomic_bool give_up;             /* as above: set when failed */
    atomic_uint n_refs;              /* of the caller and of each thread */
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

static bool failed_locked(const struct nccl_group *g)
{
    mtx_assert_held(&g->lock);
    return g->state == NCCL_GROUP_FAILED || g->state == NCCL_GROUP_STUCK;
}

/* The first cause wins. */
static void fail_locked(struct nccl_group *g, const struct err *cause)
{
    if (failed_locked(g))
        return;
    g->state = NCCL_GROUP_FAILED;
    g->error = *cause;
    g->abort_deadline_us = clock_after_us(NCCL_ABORT_TIMEOUT_US);
    atomic_store_explicit(&g->give_up, true, memory_order_relaxed);
    cnd_broadcast(&g->changed);
}

/* Judges the aborts by the clock; true for the one who finds out, who must log it. */
static bool find_stuck_locked(struct nccl_group *g)
{
    struct err cause = g->error;

    if (g->state != NCCL_GROUP_FAILED || g->n_quiet == g->n_threads ||
        !clock_passed(g->abort_deadline_us))
        return false;
    g->state = NCCL_GROUP_STUCK;
    err_clear(&g->error);
    (void)err_set(&g->error, ERR_NCCL, "",
                  "aborting the NCCL group did not end within %d s and may never: this server must "
                  "be restarted; the cause was: %.300s",
                  NCCL_ABORT_TIMEOUT_US / 1000000, cause.msg);
    return true;
}

static void log_stuck(const struct err *e)
{
    struct log_rec r;

    log_begin(&r, LOG_ERROR, "nccl.stuck");
    log_err(&r, e);
    log_end(&r);
}

static void group_unref(struct nccl_group *g)
{
    if (atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    cnd_fini(&g->changed);
    mtx_fini(&g->lock);
    free(g->members);
    free(g->dst);
    free(g);
}

/* The owner. */

/* The next request, or false when the group has failed. */
static bool next_order(struct member *m, uint64_t *n_seen, struct order *out)
{
    struct nccl_group *g = m->g;
    uint64_t since_us = clock_now_us();
    bool more;

    while (atomic_load_explicit(&g->n_requests, memory_order_relaxed) == *n_seen &&
           !atomic_load_explicit(&g->give_up, memory_order_relaxed) &&
           clock_now_us() - since_us < NEXT_SPIN_US)
        (void)sched_yield();
    mtx_lock(&g->lock);
    while (!failed_locked(g) && g->n_requests == *n_seen)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    more = !failed_locked(g);
    if (more) {
        *n_seen = g->n_requests;
        *out = (struct order){.what = g->what, .dst = g->dst[m->i], .nbytes = g->nbytes};
        memcpy(out->id, g->id, sizeof out->id);
    }
    mtx_unlock(&g->lock);
    return more;
}

static int carry_out(struct member *m, const struct order *o, struct err *e)
{
    switch (o->what) {
    case REQUEST_OPEN:
        return nrank_open(&m->rank, m->g->warm_up, e);
    case REQUEST_JOIN:
        return nrank_join(&m->rank, o->id, e);
    case REQUEST_WARM_UP:
        return nrank_warm_up(&m->rank, e);
    case REQUEST_RECEIVE:
        return nrank_receive(&m->rank, o->dst, o->nbytes, e);
    }
    abort();
}

/* Every error of a rank says which, and which NCCL this is. */
static void name_rank(const struct member *m, const struct err *cause, struct err *e)
{
    (void)err_set(e, cause->code, cause->field, "rank %d of %d (%s, NCCL %s): %s", m->rank.rank,
                  m->rank.world_size, device_name(m->rank.device), m->g->version, cause->msg);
}

static void serve(struct member *m)
{
    struct nccl_group *g = m->g;
    uint64_t n_seen = 0;
    struct order o;

    while (next_order(m, &n_seen, &o)) {
        struct err cause = {0}, e = {0};
        int rc = carry_out(m, &o, &cause);

        if (rc < 0)
            name_rank(m, &cause, &e);
        mtx_lock(&g->lock);
        if (rc < 0)
            fail_locked(g, &e);
        else if (rc == 0 && --g->n_pending == 0)
            cnd_broadcast(&g->changed);
        mtx_unlock(&g->lock);
        if (rc != 0)
            return;
    }
}

static void log_abort(const struct member *m, uint64_t us)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "nccl.abort");
    log_str(&r, "device", device_name(m->rank.device));
    log_u64(&r, "rank", (uint64_t)m->rank.rank);
    log_ms(&r, "took", us);
    log_end(&r);
}

/* Until all ranks' communicators are no more: kernels of this one may run as long. */
static void meet_aborted(struct nccl_group *g)
{
    mtx_lock(&g->lock);
    g->n_aborted++;
    cnd_broadcast(&g->changed);
    while (g->n_aborted < g->n_threads)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    mtx_unlock(&g->lock);
}

/* The end of a rank. Nobody may be waiting for it any more. */
static void wind_up(struct member *m)
{
    struct nccl_group *g = m->g;
    uint64_t since_us = clock_now_us();

    if (m->rank.comm != NULL) {
        nrank_abort(&m->rank);
        log_abort(m, clock_now_us() - since_us);
    }
    meet_aborted(g);
    since_us = clock_now_us();
    while (!nrank_is_quiet(&m->rank))
        nrank_pause(since_us);
    mtx_lock(&g->lock);
    g->n_quiet++;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
    nrank_close(&m->rank);
    mtx_lock(&g->lock);
    g->n_ended++;
    m->ended = true;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
}

static void *owner_main(void *arg)
{
    struct member *m = arg;
    struct nccl_group *g = m->g;

    (void)prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS, 0, 0, 0);
    serve(m);
    wind_up(m);
    group_unref(g);
    return NULL;
}

/* Those who wait. */

/* A deadline has passed. What hangs says nothing: these are the usual reasons. */
static int late(const struct nccl_group *g, struct err *e)
{
    const char *cumem = getenv("NCCL_CUMEM_ENABLE");

    if (g->what == REQUEST_OPEN)
        return err_set(e, ERR_CUDA, "", "the GPUs of the NCCL group did not answer within %d s",
                       NCCL_ABORT_TIMEOUT_US / 1000000);
    if (g->what == REQUEST_RECEIVE)
        return err_set(e, ERR_TIMEOUT, "",
                       "a broadcast of %llu bytes had not come to its end at the deadline",
                       (unsigned long long)g->nbytes);
    return err_set(e, ERR_TIMEOUT, "",
                   "%s of the NCCL group did not end before the deadline: did all %u ranks come, "
                   "with the same world_size, the same NCCL (here %s) and the same "
                   "NCCL_CUMEM_ENABLE (here %.16s)?",
                   g->what == REQUEST_JOIN ? "joining" : "the warm-up", (unsigned)g->world_size,
                   g->version, cumem != NULL ? cumem : "not set");
}

/* Has the caller had enough? No lock held: `gone` may take one. */
static int look(const struct nccl_group *g, const struct progress *p, struct err *e)
{
    const char *what = g->what == REQUEST_RECEIVE ? "the trainer's broadcast was received"
                                                  : "the NCCL group was joined";

    if (atomic_load_explicit(&p->stop, memory_order_relaxed))
        return err_set(e, ERR_CONFLICT, "", "stopped while %s", what);
    if (clock_passed(p->deadline_us))
        return late(g, e);
    if (p->gone != NULL && p->gone(p->gone_arg))
        return err_set(e, ERR_GONE, "", "the client went away while %s", what);
    return 0;
}

/* Until every rank is done with the request, or one has failed, or the caller gives up. */
static void watch_locked(struct nccl_group *g, const struct progress *p)
{
    while (g->n_pending > 0 && !failed_locked(g)) {
        struct err e = {0};
        uint64_t until_us;

        mtx_unlock(&g->lock);
        (void)look(g, p, &e);
        until_us = clock_after_us(LOOK_US);
        mtx_lock(&g->lock);
        if (g->n_pending == 0 || failed_locked(g))
            return;
        if (e.code != ERR_NONE)
            fail_locked(g, &e);
        else
            (void)cnd_wait(&g->changed, &g->lock,
                           p->deadline_us < until_us ? p->deadline_us : until_us);
    }
}

/* Leaves a request with every rank and waits. After a failure: until nothing writes any more, or
 * the group is stuck. */
static int perform_locked(struct nccl_group *g, enum request what, const struct progress *p,
                          struct err *e)
{
    bool stuck;

    assert(g->n_pending == 0);
    g->what = what;
    g->n_pending = g->n_ranks;
    (void)atomic_fetch_add_explicit(&g->n_requests, 1, memory_order_relaxed);
    cnd_broadcast(&g->changed);
    watch_locked(g, p);
    if (g->n_pending == 0)
        return 0;
    while (g->n_quiet < g->n_threads && cnd_wait(&g->changed, &g->lock, g->abort_deadline_us))
        ;
    stuck = find_stuck_locked(g);
    *e = g->error;
    if (stuck) {
        mtx_unlock(&g->lock);
        log_stuck(e);
        mtx_lock(&g->lock);
    }
    return -1;
}

/* The members; n_ranks threads, or an error and fewer. */
static int start(struct nccl_group *g, const struct nccl_group_cfg *cfg, struct err *e)
{
    char name[THREAD_NAME_MAX];

    for (uint32_t i = 0; i < g->n_ranks; i++) {
        struct member *m = &g->members[i];
        int rc;

        *m = (struct member){.g = g, .i = i};
        m->rank = (struct nrank){.nccl = g->nccl,
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
    g->dst = calloc(cfg->n_ranks, sizeof *g->dst);
    if (g->members == NULL || g->dst == NULL)
        goto no_memory;
    mtx_init(&g->lock, MTX_LEAF);
    cnd_init(&g->changed);
    g->nccl = cfg->nccl;
    g->n_ranks = cfg->n_ranks;
    g->world_size = cfg->world_size;
    g->rank_offset = cfg->rank_offset;
    g->warm_up = cfg->warm_up;
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
    struct progress p = {.deadline_us = clock_after_us(NCCL_ABORT_TIMEOUT_US)};
    struct nccl_group *g;
    int code = 0, rc;

    assert(cfg->world_size >= 2 && cfg->world_size <= NCCL_WORLD_MAX);
    assert(cfg->n_ranks >= 1 && cfg->n_ranks < cfg->world_size);
    assert(cfg->rank_offset >= 1 && cfg->rank_offset <= cfg->world_size - cfg->n_ranks);
    if (nccl_try(cfg->nccl, cfg->nccl->get_version(&code), "ncclGetVersion", e) != 0 ||
        group_alloc(&g, cfg, e) != 0)
        return -1;
    nccl_version_text(g->version, code);
    if (start(g, cfg, e) != 0)
        goto err_free;
    mtx_lock(&g->lock);
    rc = perform_locked(g, REQUEST_OPEN, &p, e);
    mtx_unlock(&g->lock);
    if (rc != 0)
        goto err_free;
    *out = g;
    return 0;

err_free:
    nccl_group_free(g);
    return -1;
}

/* What a call finds that comes too late. */
static int refuse_locked(const struct nccl_group *g, struct err *e)
{
    if (failed_locked(g))
        return err_set(e, ERR_CONFLICT, "", "the NCCL group is no more: %.400s", g->error.msg);
    return err_set(e, ERR_CONFLICT, "", "the NCCL group %s",
                   g->join_called ? "is being joined, or was joined before"
                                  : "has not been joined yet");
}

static int join_locked(struct nccl_group *g, const uint8_t id[NCCL_ID_NBYTES],
                       const struct progress *p, struct err *e)
{
    if (failed_locked(g) || g->join_called)
        return refuse_locked(g, e);
    g->join_called = true;
    memcpy(g->id, id, sizeof g->id);
    if (perform_locked(g, REQUEST_JOIN, p, e) != 0 ||
        (g->warm_up && perform_locked(g, REQUEST_WARM_UP, p, e) != 0))
        return -1;
    if (failed_locked(g))
        return refuse_locked(g, e);
    g->state = NCCL_GROUP_JOINED;
    return 0;
}

int nccl_group_join(struct nccl_group *g, const uint8_t id[NCCL_ID_NBYTES],
                    const struct progress *p, struct err *e)
{
    int rc;

    mtx_assert_none();
    mtx_lock(&g->lock);
    rc = join_locked(g, id, p, e);
    mtx_unlock(&g->lock);
    return rc;
}

static int receive_locked(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes,
                          const struct progress *p, struct err *e)
{
    if (g->state != NCCL_GROUP_JOINED)
        return refuse_locked(g, e);
    if (nbytes == 0)
        return 0;
    memcpy(g->dst, dst, g->n_ranks * sizeof g->dst[0]);
    g->nbytes = nbytes;
    if (perform_locked(g, REQUEST_RECEIVE, p, e) != 0)
        return -1;
    g->nbytes_received += nbytes;
    g->n_broadcasts++;
    return 0;
}

int nccl_group_receive(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes,
                       const struct progress *p, struct err *e)
{
    int rc;

    mtx_assert_none();
    mtx_lock(&g->lock);
    rc = receive_locked(g, dst, nbytes, p, e);
    mtx_unlock(&g->lock);
    return rc;
}

void nccl_group_leave(struct nccl_group *g, const char *why)
{
    struct err e = {0};

    (void)err_set(&e, ERR_CONFLICT, "", "%s", why);
    mtx_lock(&g->lock);
    fail_locked(g, &e);
    mtx_unlock(&g->lock);
}

void nccl_group_info(struct nccl_group *g, struct nccl_group_info *out)
{
    bool stuck;

    mtx_lock(&g->lock);
    stuck = find_stuck_locked(g);
    *out = (struct nccl_group_info){.state = g->state,
                                    .world_size = g->world_size,
                                    .rank_offset = g->rank_offset,
                                    .n_ranks = g->n_ranks,
                                    .nbytes_received = g->nbytes_received,
                                    .n_broadcasts = g->n_broadcasts,
                                    .error = g->error};
    mtx_unlock(&g->lock);
    if (stuck)
        log_stuck(&out->error);
}

/* Until they have come to their end, or are late; how many threads there are. */
static uint32_t end_threads(struct nccl_group *g)
{
    struct err e = {0};
    uint32_t n;
    bool stuck;

    mtx_lock(&g->lock);
    while (g->n_ended < g->n_threads && cnd_wait(&g->changed, &g->lock, g->abort_deadline_us))
        ;
    stuck = find_stuck_locked(g);
    e = g->error;
    n = g->n_threads;
    mtx_unlock(&g->lock);
    if (stuck)
        log_stuck(&e);
    return n;
}

void nccl_group_free(struct nccl_group *g)
{
    uint32_t n;

    if (g == NULL)
        return;
    nccl_group_leave(g, "the NCCL group is no longer needed");
    n = end_threads(g);
    for (uint32_t i = 0; i < n; i++) {
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
