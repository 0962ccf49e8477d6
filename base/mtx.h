/* Mutexes that know their place in the lock order.
 *
 * A thread only takes a rank above the highest it holds, and unlocks in reverse order; mtx_lock
 * asserts both, so the order is executed, not documented. Two locks of one rank are never held
 * together. Condition variables wait on the monotonic clock. */
#ifndef BATON_BASE_MTX_H
#define BATON_BASE_MTX_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum mtx_rank {
    MTX_LIFE = 10,         /* control/pause_controller: which pause there is */
    MTX_UPDATES = 20,      /* weights/update: sessions, job queue; fleet: its session and pause */
    MTX_TRANSFER = 25,     /* control/weight_transfer: which group there is */
    MTX_STORE = 30,        /* weights/store: current version, slab pool */
    MTX_HTTP_REQUEST = 40, /* http/http_request: one request; callbacks run under it */
    MTX_PROXY = 42,        /* fleet/proxy: which loops there are */
    MTX_GENERATIONS = 43,  /* control/generations: which ones there are */
    MTX_GENERATION = 45,   /* handlers/generate: one running generate, its stream buffer */
    MTX_ADMISSION = 50,    /* control/admission: permits and FIFO; fleet/members: which serve */
    MTX_ENGINE = 60,       /* engine/scheduler: inbox of the step loop */
    MTX_ADAPTERS = 65,     /* engine/lora: which adapters there are, what uses them */
    MTX_LOOP = 75,         /* base/loop: posted functions */
    MTX_COMPUTE = 80,      /* engine/kernels: compute pool */
    MTX_LEAF = 85,         /* takes nothing else, calls nothing else */
    MTX_EVENTS = 88,       /* base/events: the ring of state changes */
    MTX_LOG = 90,
    MTX_WORKERS = 95 /* base/workers: job queue; it is taken to wake a job, whatever is held */
};

struct mtx {
    pthread_mutex_t m;
    enum mtx_rank rank;
};

/* A job that waits for a condition, and holds no thread meanwhile (base/jobs/workers.h). */
struct waiter {
    void (*wake)(struct waiter *w); /* the condition was signalled. Any thread; must not block */

    struct waiter *next, **prev_next; /* of the condition; prev_next is NULL while in no list */
};

/* How the jobs of one thread wait without it. */
struct waiting {
    struct waiter *(*begin)(void *arg); /* a job is about to wait. NULL: it keeps the thread */
    void (*wait)(void *arg, struct waiter *w, uint64_t deadline_us); /* until woken, or then */
    void *arg;
};

struct cnd {
    pthread_cond_t c;
    atomic_uint n_waiters;
    struct waiter *first, **tail; /* guarded by a lock of mtx.c; the longest first */
};

/* mtx_init - Threads: before any other use. Cannot fail. */
void mtx_init(struct mtx *m, enum mtx_rank rank);
void mtx_fini(struct mtx *m);
void mtx_lock(struct mtx *m);
void mtx_unlock(struct mtx *m);

/* mtx_lock_by - take it if it is free by then: for what must not wait for a thread that hangs.
 * @deadline_us  of base/clock.h; CLOCK_NEVER: as mtx_lock
 * Errors: ERR_TIMEOUT: it was not; the message names the thread that has it. */
int mtx_lock_by(struct mtx *m, uint64_t deadline_us, struct err *e);

/* mtx_auto - the type of a lock that is held to the end of the block:
 *     mtx_auto held = mtx_hold(&fc->lock); */
#define mtx_auto __attribute__((cleanup(mtx_end_hold))) struct mtx *
static inline struct mtx *mtx_hold(struct mtx *m)
{
    mtx_lock(m);
    return m;
}

static inline void mtx_end_hold(struct mtx **m)
{
    mtx_unlock(*m);
}

/* mtx_assert_held - assert that the calling thread holds `m` as its innermost lock. */
void mtx_assert_held(const struct mtx *m);

/* mtx_assert_none - assert that the calling thread holds no lock (before anything that blocks). */
void mtx_assert_none(void);

/* mtx_rank_name - static: "MTX_LIFE". */
const char *mtx_rank_name(enum mtx_rank rank);

enum { MTX_DEPTH_MAX = 8, MTX_THREAD_NAME_MAX = 16 };

/* One thread that has taken a lock or waited on a condition, as it is at that moment. */
struct mtx_thread {
    char name[MTX_THREAD_NAME_MAX]; /* that of pthread_setname_np */
    int tid;                        /* as the kernel has it */
    size_t n_held;
    enum mtx_rank held[MTX_DEPTH_MAX]; /* the lowest first */
    uint64_t since_us;   /* when it began to wait for what the next two say; 0: it does not wait */
    enum mtx_rank waits; /* for a lock of this rank, or on a condition that is changed under it */
    bool on_condition;
    char owner[MTX_THREAD_NAME_MAX]; /* of the lock that it waits for; "": not known, or nobody */
};

/* mtx_threads - all of them, in the order in which they began. What they do meanwhile is not
 * stopped, so that two threads may be seen at different moments.
 * @out  [cap]. Returns: how many there are, also those beyond `cap`.
 * Threads: any. Blocks: no; takes no lock of this kind. */
size_t mtx_threads(struct mtx_thread *out, size_t cap);

void cnd_init(struct cnd *c);
void cnd_fini(struct cnd *c);
void cnd_signal(struct cnd *c);
void cnd_broadcast(struct cnd *c);

/* cnd_wait - wait on `c`, holding `m` as the innermost lock; spurious wake-ups happen.
 * @deadline_us  of base/clock.h; CLOCK_NEVER waits without one
 * Returns: false when the deadline passed, true otherwise. */
bool cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us);

/* cnd_set_waiting - from now on cnd_wait on this thread waits so. NULL: it blocks the thread.
 * @how  borrowed until the next call */
void cnd_set_waiting(const struct waiting *how);

#endif
