/* One atomic word is the gate of the pool: the number of the job, whether it is open, and how many
 * workers are inside. A worker enters by raising the count while the gate is open; the caller shuts
 * the gate when no items are left, and waits only for those inside. Both sides spin briefly (the
 * regions of one step follow each other within microseconds), then sleep. */
#include "engine/kernels/compute.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { COMPUTE_SPINS = 2000, COMPUTE_NAME_MAX = 16 };

#define GATE_INSIDE 0xffffU  /* workers inside */
#define GATE_OPEN   0x10000U /* they may enter */
#define GATE_JOB    0x20000U /* added for each job */

struct worker {
    struct compute *pool; /* borrowed */
    pthread_t thread;
    uint32_t index; /* 1 .. n_threads - 1 */
};

struct compute {
    struct mtx lock;   /* rank MTX_COMPUTE; only sleeping and waking */
    struct cnd opened; /* a worker sleeps here */
    struct cnd left;   /* the caller sleeps here */

    uint32_t n_threads;     /* immutable */
    unsigned n_spins;       /* immutable; 0 when there are fewer CPUs than threads */
    struct worker *workers; /* owned; [n_threads - 1]; immutable while they run */

    compute_fn *fn; /* the job: written by the caller while the gate is shut and empty */
    void *arg;
    uint32_t n, grain;

    /* Sequentially consistent: each side writes its own and then reads the other's, so that either
     * the sleeper is seen, or it sees the event and does not sleep. */
    atomic_uint_fast64_t gate;
    atomic_uint n_sleeping;
    atomic_bool caller_sleeps, stopping;
    atomic_uint_fast64_t next; /* first item not taken; relaxed: the gate orders the data */
};

static void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_items(struct compute *c, uint32_t thread)
{
    uint64_t first;

    while ((first = atomic_fetch_add_explicit(&c->next, c->grain, memory_order_relaxed)) < c->n) {
        uint32_t last = c->n - first < c->grain ? c->n : (uint32_t)first + c->grain;

        c->fn(c->arg, thread, (uint32_t)first, last);
    }
}

/* Is there a job that this worker has not joined? */
static bool has_new(uint64_t gate, uint64_t seen)
{
    return (gate & GATE_OPEN) != 0 && gate / GATE_JOB != seen;
}

static void sleep_until_open(struct compute *c, uint64_t seen)
{
    mtx_lock(&c->lock);
    (void)atomic_fetch_add(&c->n_sleeping, 1);
    while (!has_new(atomic_load(&c->gate), seen) && !atomic_load(&c->stopping))
        (void)cnd_wait(&c->opened, &c->lock, CLOCK_NEVER);
    (void)atomic_fetch_sub(&c->n_sleeping, 1);
    mtx_unlock(&c->lock);
}

/* Waits for a job and joins it; false when the pool stops. */
static bool job_enter(struct compute *c, uint64_t *seen)
{
    for (unsigned spins = 0; !atomic_load(&c->stopping);) {
        uint64_t gate = atomic_load(&c->gate);

        if (has_new(gate, *seen)) {
            if (atomic_compare_exchange_weak(&c->gate, &gate, gate + 1)) {
                *seen = gate / GATE_JOB;
                return true;
            }
        } else if (spins++ < c->n_spins) {
            spin_pause();
        } else {
            sleep_until_open(c, *seen);
            spins = 0;
        }
    }
    return false;
}

static void job_leave(struct compute *c)
{
    uint64_t gate = atomic_fetch_sub(&c->gate, 1);

    if ((gate & GATE_INSIDE) != 1 || !atomic_load(&c->caller_sleeps))
        return;
    mtx_lock(&c->lock);
    cnd_signal(&c->left);
    mtx_unlock(&c->lock);
}

static void *compute_worker_main(void *arg)
{
    struct worker *w = arg;
    uint64_t seen = 0;

    while (job_enter(w->pool, &seen)) {
        take_items(w->pool, w->index);
        job_leave(w->pool);
    }
    return NULL;
}

static void wait_left(struct compute *c)
{
    for (unsigned spins = 0; spins < c->n_spins; spins++) {
        if ((atomic_load(&c->gate) & GATE_INSIDE) == 0)
            return;
        spin_pause();
    }
    mtx_lock(&c->lock);
    atomic_store(&c->caller_sleeps, true);
    while ((atomic_load(&c->gate) & GATE_INSIDE) != 0)
        (void)cnd_wait(&c->left, &c->lock, CLOCK_NEVER);
    atomic_store(&c->caller_sleeps, false);
    mtx_unlock(&c->lock);
}

static void wake_workers(struct compute *c)
{
    mtx_lock(&c->lock);
    cnd_broadcast(&c->opened);
    mtx_unlock(&c->lock);
}

void compute_run(struct compute *c, uint32_t n, uint32_t grain, compute_fn *fn, void *arg)
{
    uint64_t gate;

    assert(grain >= 1);
    if (n <= grain || c->n_threads == 1) {
        if (n > 0)
            fn(arg, 0, 0, n);
        return;
    }
    c->fn = fn;
    c->arg = arg;
    c->n = n;
    c->grain = grain;
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    gate = atomic_load(&c->gate);
    assert((gate & (GATE_OPEN | GATE_INSIDE)) == 0);
    atomic_store(&c->gate, gate + GATE_JOB + GATE_OPEN);
    if (atomic_load(&c->n_sleeping) > 0)
        wake_workers(c);
    take_items(c, 0);
    (void)atomic_fetch_sub(&c->gate, GATE_OPEN);
    wait_left(c);
}

static void stop_workers(struct compute *c, uint32_t n_started)
{
    atomic_store(&c->stopping, true);
    wake_workers(c);
    for (uint32_t i = 0; i < n_started; i++)
        (void)pthread_join(c->workers[i].thread, NULL);
}

static int start_workers(struct compute *c, struct err *e)
{
    for (uint32_t i = 0; i + 1 < c->n_threads; i++) {
        char name[COMPUTE_NAME_MAX];
        int rc;

        c->workers[i] = (struct worker){.pool = c, .index = i + 1};
        rc = pthread_create(&c->workers[i].thread, NULL, compute_worker_main, &c->workers[i]);
        if (rc != 0) {
            stop_workers(c, i);
            return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start compute thread %u of %u",
                                 i + 1, c->n_threads);
        }
        (void)snprintf(name, sizeof name, "compute/%u", (i + 1U) % 1000U);
        (void)pthread_setname_np(c->workers[i].thread, name);
    }
    return 0;
}

int compute_new(struct compute **out, uint32_t n_threads, struct err *e)
{
    struct compute *c;

    if (n_threads < 1 || n_threads > COMPUTE_THREADS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "%u compute threads are not within 1..%d", n_threads,
                       COMPUTE_THREADS_MAX);
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the compute pool");
    c->workers = calloc(n_threads, sizeof *c->workers);
    if (c->workers == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %u compute threads", n_threads);
        goto err_free;
    }
    c->n_threads = n_threads;
    c->n_spins = compute_n_processors() >= n_threads ? COMPUTE_SPINS : 0;
    mtx_init(&c->lock, MTX_COMPUTE);
    cnd_init(&c->opened);
    cnd_init(&c->left);
    if (start_workers(c, e) != 0)
        goto err_fini;
    *out = c;
    return 0;

err_fini:
    cnd_fini(&c->left);
    cnd_fini(&c->opened);
    mtx_fini(&c->lock);
    free(c->workers);
err_free:
    free(c);
    return -1;
}

void compute_free(struct compute *c)
{
    if (c == NULL)
        return;
    stop_workers(c, c->n_threads - 1);
    cnd_fini(&c->left);
    cnd_fini(&c->opened);
    mtx_fini(&c->lock);
    free(c->workers);
    free(c);
}

uint32_t compute_n_threads(const struct compute *c)
{
    return c->n_threads;
}

/* With more processors than a cpu_set_t names, the call fails: counting them would not help then.
 */
uint32_t compute_n_processors(void)
{
    cpu_set_t set;
    int n;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return COMPUTE_THREADS_MAX;
    n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > COMPUTE_THREADS_MAX ? COMPUTE_THREADS_MAX : (uint32_t)n;
}

int compute_pin(struct compute *c, pthread_t caller, struct err *e)
{
    uint32_t next = 0;
    cpu_set_t all;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot tell which processors there are");
    if ((uint32_t)CPU_COUNT(&all) < c->n_threads)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%u compute threads cannot be pinned to %d processors", c->n_threads,
                       CPU_COUNT(&all));
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && next < c->n_threads; cpu++) {
        pthread_t thread = next == 0 ? caller : c->workers[next - 1].thread;
        cpu_set_t one;
        int rc;

        if (!CPU_ISSET(cpu, &all))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        rc = pthread_setaffinity_np(thread, sizeof one, &one);
        if (rc != 0)
            return err_set_errno(e, ERR_INTERNAL, "", rc,
                                 "cannot pin compute thread %u to processor %u", next, cpu);
        next++;
    }
    return 0;
}
