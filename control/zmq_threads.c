/* The pool has as many threads as it takes jobs; the count of open jobs is the bound. */
#include "control/zmq_threads.h"

#include <stdatomic.h>
#include <stdlib.h>

struct zmq_threads {
    struct workers *workers; /* owned */
    atomic_uint n_open;      /* relaxed: a bound */
    atomic_bool stop;        /* relaxed: each job checks it in every slice */
};

int zmq_threads_new(struct zmq_threads **out, struct err *e)
{
    struct workers_cfg cfg = {"zmq", ZMQ_THREADS_MAX, ZMQ_THREADS_MAX, false};
    struct zmq_threads *z = calloc(1, sizeof *z);

    if (z == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for updates over sockets");
    if (workers_new(&z->workers, &cfg, e) != 0) {
        free(z);
        return -1;
    }
    *out = z;
    return 0;
}

void zmq_threads_stop(struct zmq_threads *z)
{
    atomic_store_explicit(&z->stop, true, memory_order_relaxed);
    workers_stop(z->workers);
}

void zmq_threads_free(struct zmq_threads *z)
{
    if (z == NULL)
        return;
    zmq_threads_stop(z);
    workers_free(z->workers);
    free(z);
}

int zmq_threads_post(struct zmq_threads *z, struct job *job, struct err *e)
{
    unsigned n = atomic_fetch_add_explicit(&z->n_open, 1, memory_order_relaxed);

    if (n >= ZMQ_THREADS_MAX)
        (void)err_set(e, ERR_OVERLOADED, "",
                      "%u updates over sockets are under way or ending; the limit is %d", n,
                      ZMQ_THREADS_MAX);
    else if (workers_post(z->workers, job, WORKERS_NORMAL, e) == 0)
        return 0;
    zmq_threads_end(z);
    return -1;
}

void zmq_threads_end(struct zmq_threads *z)
{
    (void)atomic_fetch_sub_explicit(&z->n_open, 1, memory_order_relaxed);
}

bool zmq_threads_stopping(const struct zmq_threads *z)
{
    return atomic_load_explicit(&z->stop, memory_order_relaxed);
}
