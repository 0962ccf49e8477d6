/* The count of open jobs is the bound. */
#include "control/source_threads.h"

#include <stdatomic.h>
#include <stdlib.h>

struct source_threads {
    struct workers *workers; /* owned */
    const char *name;        /* static, immutable as the next */
    size_t n_max;
    atomic_uint n_open; /* relaxed: a bound */
    atomic_bool stop;   /* relaxed: each job checks it in every slice */
};

int source_threads_new(struct source_threads **out, const struct workers_cfg *cfg, struct err *e)
{
    struct source_threads *t = calloc(1, sizeof *t);

    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for threads of updates");
    if (workers_new(&t->workers, cfg, e) != 0) {
        free(t);
        return -1;
    }
    t->name = cfg->name;
    t->n_max = cfg->n_queue_max;
    *out = t;
    return 0;
}

void source_threads_stop(struct source_threads *t)
{
    atomic_store_explicit(&t->stop, true, memory_order_relaxed);
    workers_stop(t->workers);
}

void source_threads_free(struct source_threads *t)
{
    if (t == NULL)
        return;
    source_threads_stop(t);
    workers_free(t->workers);
    free(t);
}

int source_threads_post(struct source_threads *t, struct job *job, struct err *e)
{
    unsigned n = atomic_fetch_add_explicit(&t->n_open, 1, memory_order_relaxed);

    if (n >= t->n_max)
        (void)err_set(e, ERR_OVERLOADED, "",
                      "%u requests on the threads '%s' (updates over sockets and pulls: source, "
                      "files of weights: file) are under way or ending; the limit is %zu",
                      n, t->name, t->n_max);
    else if (workers_post(t->workers, job, WORKERS_NORMAL, e) == 0)
        return 0;
    source_threads_end(t);
    return -1;
}

void source_threads_end(struct source_threads *t)
{
    (void)atomic_fetch_sub_explicit(&t->n_open, 1, memory_order_relaxed);
}

bool source_threads_stopping(const struct source_threads *t)
{
    return atomic_load_explicit(&t->stop, memory_order_relaxed);
}
