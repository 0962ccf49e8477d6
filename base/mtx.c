/* Ranked mutexes over pthreads. Each thread has a record of what it holds and waits for, which
 * others may read at any time: it is written with relaxed stores, and tells of a thread that hangs.
 */
#include "base/mtx.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <time.h>
#include <unistd.h>

enum { MTX_POLL_US = 1000 }; /* mtx_lock_by looks again */

/* Written by its thread alone, but for the links. */
struct record {
    _Atomic(const struct mtx *) held[MTX_DEPTH_MAX]; /* never dereferenced by other threads */
    atomic_int ranks[MTX_DEPTH_MAX];
    atomic_int n_held;
    _Atomic(const struct mtx *) waits; /* NULL: for none, or on a condition */
    atomic_int waits_rank;
    atomic_bool on_condition;
    atomic_uint_fast64_t since_us; /* 0: it does not wait */

    pthread_t thread; /* immutable while it is linked, and so is the next one */
    int tid;
    bool linked;                      /* of the thread itself */
    struct record *next, **prev_next; /* guarded by records_lock */
};

static _Thread_local struct record own;

/* Held for a walk through the list only, by code that calls nothing that blocks. */
static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static struct record *records, **records_tail = &records;
static pthread_once_t records_once = PTHREAD_ONCE_INIT;
static pthread_key_t records_key; /* its destructor unlinks a thread that ends */

static void unlink_record(void *arg)
{
    struct record *r = arg;

    (void)pthread_mutex_lock(&records_lock);
    *r->prev_next = r->next;
    if (r->next != NULL)
        r->next->prev_next = r->prev_next;
    else
        records_tail = r->prev_next;
    (void)pthread_mutex_unlock(&records_lock);
    r->linked = false;
}

static void make_key(void)
{
    (void)pthread_key_create(&records_key, unlink_record);
}

static void link_record(void)
{
    (void)pthread_once(&records_once, make_key);
    if (pthread_setspecific(records_key, &own) != 0)
        return; /* no memory: the thread is not seen */
    own.thread = pthread_self();
    own.tid = gettid();
    own.linked = true;
    (void)pthread_mutex_lock(&records_lock);
    own.next = NULL;
    own.prev_next = records_tail;
    *records_tail = &own;
    records_tail = &own.next;
    (void)pthread_mutex_unlock(&records_lock);
}

#define STORE(member, value) atomic_store_explicit(&(member), (value), memory_order_relaxed)
#define LOAD(member)         atomic_load_explicit(&(member), memory_order_relaxed)

/* @m  NULL: on a condition */
static void begin_wait(const struct mtx *m, enum mtx_rank rank)
{
    STORE(own.waits, m);
    STORE(own.waits_rank, (int)rank);
    STORE(own.on_condition, m == NULL);
    STORE(own.since_us, clock_now_us());
}

static void end_wait(void)
{
    STORE(own.since_us, 0);
    STORE(own.waits, NULL);
}

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

/* The highest that the thread holds; NULL: none. */
static const struct mtx *innermost(void)
{
    int n = LOAD(own.n_held);

    return n > 0 ? LOAD(own.held[n - 1]) : NULL;
}

static void mtx_check_order(const struct mtx *m)
{
    assert(LOAD(own.n_held) < MTX_DEPTH_MAX);
    assert(innermost() == NULL || innermost()->rank < m->rank);
    (void)m;
}

static void mtx_push_held(const struct mtx *m)
{
    int n = LOAD(own.n_held);

    STORE(own.held[n], m);
    STORE(own.ranks[n], (int)m->rank);
    STORE(own.n_held, n + 1);
    if (!own.linked)
        link_record();
}

static void pop(const struct mtx *m)
{
    assert(innermost() == m);
    STORE(own.n_held, LOAD(own.n_held) - 1);
    (void)m;
}

static bool try_lock(struct mtx *m)
{
    int rc = pthread_mutex_trylock(&m->m);

    assert(rc == 0 || rc == EBUSY);
    return rc == 0;
}

static void lock_contended(struct mtx *m)
{
    int rc;

    if (!own.linked)
        link_record();
    begin_wait(m, m->rank);
    rc = pthread_mutex_lock(&m->m);
    end_wait();
    assert(rc == 0);
    (void)rc;
}

void mtx_lock(struct mtx *m)
{
    mtx_check_order(m);
    if (!try_lock(m))
        lock_contended(m);
    mtx_push_held(m);
}

void mtx_unlock(struct mtx *m)
{
    int rc;

    assert(innermost() == m);
    rc = pthread_mutex_unlock(&m->m);
    assert(rc == 0);
    (void)rc;
    pop(m); /* compares the address: the mutex may be gone */
}

void mtx_assert_held(const struct mtx *m)
{
    assert(innermost() == m);
    (void)m;
}

void mtx_assert_none(void)
{
    assert(innermost() == NULL);
}

/* what threads hold and wait for */

const char *mtx_rank_name(enum mtx_rank rank)
{
#define NAME(rank)                                                                                 \
    {                                                                                              \
        rank, #rank                                                                                \
    }
    static const struct {
        enum mtx_rank rank;
        const char *name;
    } names[] = {NAME(MTX_LIFE),        NAME(MTX_UPDATES),      NAME(MTX_TRANSFER),
                 NAME(MTX_STORE),       NAME(MTX_HTTP_REQUEST), NAME(MTX_PROXY),
                 NAME(MTX_GENERATIONS), NAME(MTX_GENERATION),   NAME(MTX_ADMISSION),
                 NAME(MTX_ENGINE),      NAME(MTX_ADAPTERS),     NAME(MTX_LOOP),
                 NAME(MTX_COMPUTE),     NAME(MTX_LEAF),         NAME(MTX_EVENTS),
                 NAME(MTX_LOG),         NAME(MTX_WORKERS)};
#undef NAME

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].rank == rank)
            return names[i].name;
    return "";
}

static bool record_has(const struct record *r, const struct mtx *m)
{
    int n = LOAD(r->n_held);

    for (int i = 0; i < n && i < MTX_DEPTH_MAX; i++)
        if (LOAD(r->held[i]) == m)
            return true;
    return false;
}

/* The thread cannot end: it waits for records_lock then. */
static void name_locked(const struct record *r, char *name)
{
    if (pthread_getname_np(r->thread, name, MTX_THREAD_NAME_MAX) != 0)
        name[0] = '\0';
}

static void owner_locked(const struct mtx *m, char *name)
{
    name[0] = '\0';
    for (const struct record *r = records; r != NULL; r = r->next)
        if (record_has(r, m))
            name_locked(r, name);
}

static void thread_locked(const struct record *r, struct mtx_thread *out)
{
    const struct mtx *waits = LOAD(r->waits);
    int n = LOAD(r->n_held);

    *out = (struct mtx_thread){.tid = r->tid,
                               .since_us = LOAD(r->since_us),
                               .waits = (enum mtx_rank)LOAD(r->waits_rank),
                               .on_condition = LOAD(r->on_condition)};
    name_locked(r, out->name);
    for (int i = 0; i < n && i < MTX_DEPTH_MAX; i++)
        out->held[out->n_held++] = (enum mtx_rank)LOAD(r->ranks[i]);
    if (out->since_us != 0 && waits != NULL)
        owner_locked(waits, out->owner);
}

size_t mtx_threads(struct mtx_thread *out, size_t cap)
{
    size_t n = 0;

    (void)pthread_mutex_lock(&records_lock);
    for (const struct record *r = records; r != NULL; r = r->next) {
        if (n < cap)
            thread_locked(r, &out[n]);
        n++;
    }
    (void)pthread_mutex_unlock(&records_lock);
    return n;
}

static int refuse_locked(const struct mtx *m, struct err *e)
{
    char owner[MTX_THREAD_NAME_MAX];

    (void)pthread_mutex_lock(&records_lock);
    owner_locked(m, owner);
    (void)pthread_mutex_unlock(&records_lock);
    return err_set(e, ERR_TIMEOUT, "", "%s is locked by %s", mtx_rank_name(m->rank),
                   owner[0] != '\0' ? owner : "a thread that is not known");
}

int mtx_lock_by(struct mtx *m, uint64_t deadline_us, struct err *e)
{
    const struct timespec poll = {.tv_nsec = MTX_POLL_US * 1000L};

    if (deadline_us == CLOCK_NEVER) {
        mtx_lock(m);
        return 0;
    }
    mtx_check_order(m);
    while (!try_lock(m)) {
        if (clock_passed(deadline_us))
            return refuse_locked(m, e);
        (void)nanosleep(&poll, NULL);
    }
    mtx_push_held(m);
    return 0;
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

    pop(m);
    begin_wait(NULL, m->rank);
    if (deadline_us == CLOCK_NEVER) {
        rc = pthread_cond_wait(&c->c, &m->m);
    } else {
        ts.tv_sec = (time_t)(deadline_us / 1000000U);
        ts.tv_nsec = (long)(deadline_us % 1000000U) * 1000L;
        rc = pthread_cond_timedwait(&c->c, &m->m, &ts);
    }
    end_wait();
    mtx_push_held(m);
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
