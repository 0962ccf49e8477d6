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

static void push(const struct mtx *m)
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

    push(m);
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
}

void cnd_fini(struct cnd *c)
{
    int rc = pthread_cond_destroy(&c->c);

    assert(rc == 0);
    (void)rc;
}

void cnd_signal(struct cnd *c)
{
    (void)pthread_cond_signal(&c->c);
}

void cnd_broadcast(struct cnd *c)
{
    (void)pthread_cond_broadcast(&c->c);
}

bool cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us)
{
    struct timespec ts;
    int rc;

    mtx_assert_held(m);
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
