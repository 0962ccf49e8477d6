/* A fixed pool of threads with two FIFO lanes, of which one is bounded.
 *
 * The urgent lane is served first; it is for work that an already admitted request waits for. Jobs
 * are embedded in their owners, so posting cannot fail for lack of memory.
 *
 * In a pool of jobs that wait (cnd_wait), one that does holds no thread: its stack is left, its
 * thread takes other jobs, and goes on with it when it was woken. It is always the same thread; so
 * thread-local variables may be changed by the jobs that ran meanwhile, and a job that blocks its
 * thread otherwise, as on a disk, keeps others waiting: it belongs into another pool
 * (workers_call). */
#ifndef BATON_BASE_WORKERS_H
#define BATON_BASE_WORKERS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct workers;

/* One piece of work, embedded in its owner, which may free it once `run` has begun. */
struct job {
    void (*run)(void *arg); /* on a worker thread, no lock held */
    void *arg;
    struct job *next; /* of the pool while queued, and so is the next one */
    uint64_t queued_us;
};

/* WORKERS_PRIOR: the urgent lane, for a request that ends what others wait for: with a bound too.
 */
enum workers_lane { WORKERS_NORMAL, WORKERS_URGENT, WORKERS_PRIOR };

struct workers_cfg {
    const char *name;   /* thread names: "<name>/<i>", cut at 15 bytes */
    size_t n_threads;   /* >= 1 */
    size_t n_queue_max; /* of the normal lane; twice as many of WORKERS_PRIOR, and any number else.
                           Jobs that wait count, too */
    bool waits;         /* a job that waits holds no thread */
};

/* workers_new - start the threads (stack 1 MiB or more: jansson recurses).
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL (a thread could not start); *out untouched. */
int workers_new(struct workers **out, const struct workers_cfg *cfg, struct err *e);

/* workers_stop - run what is queued, then join the threads. Later posts to other lanes than the
 * urgent one are refused. Urgent posts are refused only after the last thread has found nothing to
 * do, so an urgent job that a job of the pool posts still runs. Threads: the owner's, none of the
 * pool's. Blocks until the last job has returned. */
void workers_stop(struct workers *w);
void workers_free(struct workers *w); /* stops first; accepts NULL */

/* workers_post - queue a job.
 * Threads: any; takes MTX_WORKERS. Blocks: no.
 * Errors:  ERR_OVERLOADED  too many are queued or wait, and the lane has a bound
 *          ERR_DRAINING    the pool is stopping
 *          After an error the job was not queued and will not run. */
int workers_post(struct workers *w, struct job *job, enum workers_lane lane, struct err *e);

/* workers_call - have `run` called by a thread of the pool, and wait for its end; if the pool is
 * stopping, by this one. For what blocks, from a job of a pool of jobs that wait.
 * Threads: none of this pool's. Blocks: until it has ended. */
void workers_call(struct workers *w, void (*run)(void *arg), void *arg);

/* workers_queued - jobs in both lanes, for gauges. workers_waiting - jobs that wait without a
 * thread. */
size_t workers_queued(struct workers *w);
size_t workers_waiting(struct workers *w);

struct workers_info {
    size_t n_threads, n_idle;       /* of the latter: those that wait for a job */
    size_t n_queued, n_waiting;     /* in both lanes; jobs that wait without a thread */
    uint64_t queued_us, waiting_us; /* since when the oldest of them is; 0: there is none */
};

/* workers_info_by - Blocks: until the deadline at most. Errors: of mtx_lock_by; *out untouched. */
int workers_info_by(struct workers *w, uint64_t deadline_us, struct workers_info *out,
                    struct err *e);

/* workers_self - what identifies the job that runs now, or the thread, if it is none's of a pool:
 * other jobs that run or wait at the same time have another.
 * workers_local - one pointer of it, for base/net/trace.c; NULL when a job begins. */
const void *workers_self(void);
void **workers_local(void);

#endif
