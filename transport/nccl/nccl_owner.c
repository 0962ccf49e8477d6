/* The owner threads of a group's ranks: each makes all calls on its communicator, including the
 * abort.
 *
 * The first failure, on any rank, ends all ranks alike: each owner aborts its communicator, waits
 * until all have done so, waits until its stream is done, and only then reports that nothing
 * writes any more. */
#include "base/clock.h"
#include "base/log.h"
#include "transport/nccl/nccl_group_priv.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { TIMER_SLACK_NS = 1000 }; /* keeps short sleeps short */

/* The owner's copy of a request. */
struct order {
    enum request what;
    uint8_t id[NCCL_ID_NBYTES];
};

/* Waits for the next request. False: the group has failed. */
static bool next_order(struct member *m, uint64_t *n_seen, struct order *out)
{
    struct nccl_group *g = m->g;
    uint64_t since_us = clock_now_us();
    bool more;

    while (atomic_load_explicit(&g->n_requests, memory_order_relaxed) == *n_seen &&
           !atomic_load_explicit(&g->give_up, memory_order_relaxed) &&
           clock_now_us() - since_us < GROUP_SPIN_US)
        (void)sched_yield();
    mtx_lock(&g->lock);
    while (!group_failed_locked(g) && g->n_requests == *n_seen)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    more = !group_failed_locked(g);
    if (more) {
        *n_seen = g->n_requests;
        out->what = g->what;
        memcpy(out->id, g->id, sizeof out->id);
    }
    mtx_unlock(&g->lock);
    return more;
}

/* Takes the next posted broadcast that this rank has not entered. */
static bool take_posted(struct member *m, uint64_t *dst, uint64_t *nbytes)
{
    struct nccl_group *g = m->g;
    uint64_t slot = m->n_taken % SOURCE_POSTED_MAX;

    if (atomic_load_explicit(&g->n_posted, memory_order_relaxed) == m->n_taken)
        return false;
    mtx_lock(&g->lock);
    *dst = g->dst[slot * g->n_ranks + m->i];
    *nbytes = g->nbytes[slot];
    mtx_unlock(&g->lock);
    m->n_taken++;
    return true;
}

/* Counts broadcasts that have arrived on this rank, and then those that have arrived on all. */
static void count_landed(struct member *m, uint64_t n)
{
    struct nccl_group *g = m->g;
    uint64_t least;

    mtx_lock(&g->lock);
    m->n_landed += n;
    least = m->n_landed;
    for (uint32_t i = 0; i < g->n_ranks; i++)
        if (g->members[i].n_landed < least)
            least = g->members[i].n_landed;
    if (least > g->n_landed) {
        atomic_store_explicit(&g->n_landed, least, memory_order_relaxed);
        cnd_broadcast(&g->changed);
    }
    mtx_unlock(&g->lock);
}

/* Enters broadcasts as they are posted, until all of them have arrived. Returns 1 when the group
 * gives up. */
static int enter_posted(struct member *m, struct err *e)
{
    uint64_t since_us = clock_now_us(), dst, nbytes;

    for (;;) {
        bool more = take_posted(m, &dst, &nbytes);
        uint64_t n = m->rank.n_landed;
        int rc = more ? communicator_enter(&m->rank, dst, nbytes, e) : 0;

        if (rc != 0 || communicator_update(&m->rank, e) != 0)
            return rc != 0 ? rc : -1;
        n = m->rank.n_landed - n;
        if (n > 0)
            count_landed(m, n);
        if (!more && m->rank.n_landed == m->rank.n_entered)
            return 0;
        if (atomic_load_explicit(&m->g->give_up, memory_order_relaxed))
            return 1;
        if (more || n > 0)
            since_us = clock_now_us();
        else
            communicator_pause(since_us);
    }
}

static int run_order(struct member *m, const struct order *o, struct err *e)
{
    switch (o->what) {
    case REQUEST_OPEN:
        return communicator_open(&m->rank, m->g->warm_up, e);
    case REQUEST_JOIN:
        return communicator_join(&m->rank, o->id, e);
    case REQUEST_WARM_UP:
        return communicator_warm_up(&m->rank, e);
    case REQUEST_RECEIVE:
        return enter_posted(m, e);
    }
    abort();
}

/* Every error of a rank names the rank and the version of NCCL. */
static void name_rank(const struct member *m, const struct err *cause, struct err *e)
{
    (void)err_set(e, cause->code, cause->field, "rank %d of %d (%s, NCCL %s): %s", m->rank.rank,
                  m->rank.world_size, device_name(m->rank.device), m->g->version, cause->msg);
}

static void member_serve(struct member *m)
{
    struct nccl_group *g = m->g;
    uint64_t n_seen = 0;
    struct order o;

    while (next_order(m, &n_seen, &o)) {
        struct err cause = {0}, e = {0};
        int rc = run_order(m, &o, &cause);

        if (rc < 0)
            name_rank(m, &cause, &e);
        mtx_lock(&g->lock);
        if (rc < 0)
            group_fail_locked(g, &e);
        else if (rc == 0 && o.what != REQUEST_RECEIVE && --g->n_pending == 0)
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
    log_event(&r);
}

/* Waits until the communicators of all ranks are aborted: until then kernels of this one may run.
 */
static void await_all_aborted(struct nccl_group *g)
{
    mtx_lock(&g->lock);
    g->n_aborted++;
    cnd_broadcast(&g->changed);
    while (g->n_aborted < g->n_threads)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    mtx_unlock(&g->lock);
}

/* The end of a rank. No caller may wait for it any more. */
static void close_rank(struct member *m)
{
    struct nccl_group *g = m->g;
    uint64_t since_us = clock_now_us();

    if (m->rank.comm != NULL) {
        communicator_abort(&m->rank);
        log_abort(m, clock_now_us() - since_us);
    }
    await_all_aborted(g);
    since_us = clock_now_us();
    while (!communicator_is_quiet(&m->rank))
        communicator_pause(since_us);
    mtx_lock(&g->lock);
    g->n_quiet++;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
    communicator_close(&m->rank);
    mtx_lock(&g->lock);
    g->n_ended++;
    m->ended = true;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
}

void *owner_main(void *arg)
{
    struct member *m = arg;
    struct nccl_group *g = m->g;

    (void)prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS, 0, 0, 0);
    member_serve(m);
    close_rank(m);
    group_unref(g);
    return NULL;
}
