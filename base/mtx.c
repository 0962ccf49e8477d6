/* Ranked mutexes over pthreads. Each thread keeps the stack of ranks that it holds. */
#include "base/mtx.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

enum { MTX_DEPTH_MAX = 8 };

static _Thread_local const struct mtx *held[MTX_DEPTH_MAX];
static _Thread_local int n_held;

void mtx_init(struct mtx *m, enum mtx_rank rank)
{
    int rc = pthread_mutex_init(&m->m, NULL);

    assert(rc == 0);
    (void)rc;
    m->rank = rank;
}

void mtx_fini(struct mtx *m)
{
    int rc = pthread_mutex_destroy(&m->m);

    assert(rc == 0);
    (void)rc;
}

static void mtx_push_held(const struct mtx *m)
{
    assert(n_held < MTX_DEPTH_MAX);
    assert(n_held == 0 || held[n_held - 1]->rank < m->rank);
    held[n_held++] = m;
}

static void pop(const struct mtx *m)
{
    assert(n_held > 0 && held[n_held - 1] == m);
    n_held--;
    (void)m;
}

void mtx_lock(struct mtx *m)
{
    int rc;

    mtx_push_held(m);
    rc = pthread_mutex_lock(&m->m);
    assert(rc == 0);
    (void)rc;
}

void mtx_unlock(struct mtx *m)
{
    int rc;

    pop(m);
    rc = pthread_mutex_unlock(&m->m);
    assert(rc == 0);
    (void)rc;
}

void mtx_assert_held(const struct mtx *m)
{
    assert(n_held > 0 && held[n_held - 1] == m);
    (void)m;
}

void mtx_assert_none(void)
{
    assert(n_held == 0);
}

void cnd_init(struct cnd *c)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    assert(rc == 0);
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    assert(rc == 0);
    rc = pthread_cond_init(&c->c, &attr);
    assert(rc == 0);
    (void)rc;
    (void)pthread_condattr_destroy(&attr);
    atomic_init(&c->n_waiters, 0);
    c->first = NULL;
    c->tail = &c->first;
}

void cnd_fini(struct cnd *c)
{
    int rc = pthread_cond_destroy(&c->c);

    assert(rc == 0);
    (void)rc;
}

/* jobs that wait without a thread */

/* One lock for the lists of all conditions: few jobs wait. It is held while one is woken, so that a
 * job whose deadline comes at the same moment does not go on, and end, before that. */
static pthread_mutex_t waiters_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local const struct waiting *waiting;

void cnd_set_waiting(const struct waiting *how)
{
    waiting = how;
}

static void link_waiter(struct cnd *c, struct waiter *w)
{
    (void)pthread_mutex_lock(&waiters_lock);
    w->next = NULL;
    w->prev_next = c->tail;
    *c->tail = w;
    c->tail = &w->next;
    (void)atomic_fetch_add(&c->n_waiters, 1);
    (void)pthread_mutex_unlock(&waiters_lock);
}

static void unlink_locked(struct cnd *c, struct waiter *w)
{
    *w->prev_next = w->next;
    if (w->next != NULL)
        w->next->prev_next = w->prev_next;
    else
        c->tail = w->prev_next;
    w->prev_next = NULL;
    (void)atomic_fetch_sub(&c->n_waiters, 1);
}

/* Returns: was it woken? */
static bool unlink_waiter(struct cnd *c, struct waiter *w)
{
    bool woken;

    (void)pthread_mutex_lock(&waiters_lock);
    woken = w->prev_next == NULL;
    if (!woken)
        unlink_locked(c, w);
    (void)pthread_mutex_unlock(&waiters_lock);
    return woken;
}

/* Returns: was there one? */
static bool wake_waiters(struct cnd *c, bool all)
{
    bool any = false;

    (void)pthread_mutex_lock(&waiters_lock);
    while (c->first != NULL && (all || !any)) {
        struct waiter *w = c->first;

        unlink_locked(c, w);
        w->wake(w);
        any = true;
    }
    (void)pthread_mutex_unlock(&waiters_lock);
    return any;
}

/* A waiter is in the list before it releases the mutex under which the condition is changed. */
static bool has_waiters(struct cnd *c)
{
    return atomic_load_explicit(&c->n_waiters, memory_order_relaxed) > 0;
}

static bool wait_without_thread(struct cnd *c, struct mtx *m, struct waiter *w,
                                uint64_t deadline_us)
{
    bool woken;

    link_waiter(c, w);
    mtx_unlock(m);
    mtx_assert_none();
    waiting->wait(waiting->arg, w, deadline_us);
    woken = unlink_waiter(c, w);
    mtx_lock(m);
    return woken;
}

/* waiting */

void cnd_signal(struct cnd *c)
{
    if (!has_waiters(c) || !wake_waiters(c, false))
        (void)pthread_cond_signal(&c->c);
}

void cnd_broadcast(struct cnd *c)
{
    if (has_waiters(c))
        (void)wake_waiters(c, true);
    (void)pthread_cond_broadcast(&c->c);
}

static bool wait_as_thread(struct cnd *c, struct mtx *m, uint64_t deadline_us)
{
    struct timespec ts;
    int rc;

    if (deadline_us == CLOCK_NEVER) {
        rc = pthread_cond_wait(&c->c, &m->m);
        assert(rc == 0);
        return true;
    }
    ts.tv_sec = (time_t)(deadline_us / 1000000U);
    ts.tv_nsec = (long)(deadline_us % 1000000U) * 1000L;
    rc = pthread_cond_timedwait(&c->c, &m->m, &ts);
    assert(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}

bool cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us)
{
    struct waiter *w = waiting != NULL ? waiting->begin(waiting->arg) : NULL;

    mtx_assert_held(m);
    return w != NULL ? wait_without_thread(c, m, w, deadline_us)
                     : wait_as_thread(c, m, deadline_us);
}
