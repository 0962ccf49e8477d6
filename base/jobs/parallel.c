/* Threads of their own for each loop: it takes milliseconds at least, and nothing has to be sized,
 * shared or stopped. */
#include "base/jobs/parallel.h"

#include "base/mtx.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

struct parallel {
    parallel_fn *fn; /* immutable, as all down to the blank line */
    void *arg;
    uint64_t n;

    atomic_uint_fast64_t next; /* relaxed, as those below: only their values count */
    atomic_uint n_threads;     /* that have begun */
    atomic_bool failed;        /* a hint to stop early */

    struct mtx lock;  /* rank MTX_LEAF; guards down to the end */
    uint64_t bad_at;  /* the lowest that failed, UINT64_MAX for none */
    struct err error; /* of that */
};

static void parallel_fail(struct parallel *p, uint64_t i, const struct err *e)
{
    mtx_lock(&p->lock);
    if (i < p->bad_at) {
        p->bad_at = i;
        p->error = *e;
    }
    mtx_unlock(&p->lock);
    atomic_store_explicit(&p->failed, true, memory_order_relaxed);
}

static void *parallel_main(void *arg)
{
    struct parallel *p = arg;
    unsigned thread = atomic_fetch_add_explicit(&p->n_threads, 1, memory_order_relaxed);
    uint64_t i;

    while (!atomic_load_explicit(&p->failed, memory_order_relaxed) &&
           (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n) {
        struct err e = {0};

        if (p->fn(p->arg, thread, i, &e) != 0)
            parallel_fail(p, i, &e);
    }
    return NULL;
}

/* Threads besides the caller's. */
static unsigned threads_for(uint64_t n, uint64_t nbytes)
{
    uint64_t most = nbytes / PARALLEL_NBYTES;
    long n_cpus;

    if (most > n)
        most = n;
    if (most < 2)
        return 0;
    n_cpus = sysconf(_SC_NPROCESSORS_ONLN); /* reads a file */
    if (n_cpus > PARALLEL_THREADS_MAX)
        n_cpus = PARALLEL_THREADS_MAX;
    if (n_cpus < 2)
        return 0;
    return (most < (uint64_t)n_cpus ? (unsigned)most : (unsigned)n_cpus) - 1;
}

int parallel_run(parallel_fn *fn, void *arg, uint64_t n, uint64_t nbytes, const char *name,
                 struct err *e)
{
    struct parallel p = {.fn = fn, .arg = arg, .n = n, .bad_at = UINT64_MAX};
    pthread_t threads[PARALLEL_THREADS_MAX];
    unsigned n_threads = 0, want = threads_for(n, nbytes);

    mtx_assert_none();
    mtx_init(&p.lock, MTX_LEAF);
    while (n_threads < want && pthread_create(&threads[n_threads], NULL, parallel_main, &p) == 0)
        (void)pthread_setname_np(threads[n_threads++], name);
    (void)parallel_main(&p);
    while (n_threads > 0)
        (void)pthread_join(threads[--n_threads], NULL);
    mtx_fini(&p.lock);
    if (p.bad_at == UINT64_MAX)
        return 0;
    *e = p.error;
    return -1;
}
