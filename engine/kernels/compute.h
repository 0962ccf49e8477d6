/* The compute pool: a loop over rows, shared among a fixed set of threads and the caller.
 *
 * Which thread runs which part is left to chance; nothing computed may depend on it. The
 * caller does not wait for a worker that has not started in time, so that a busy machine costs
 * speed but never stalls a step. */
#ifndef BATON_ENGINE_KERNELS_COMPUTE_H
#define BATON_ENGINE_KERNELS_COMPUTE_H

#include "base/err.h"

#include <pthread.h>
#include <stdint.h>

enum { COMPUTE_THREADS_MAX = 256 };

struct compute;

/* compute_new - start the workers.
 * @n_threads  the caller counted; 1..COMPUTE_THREADS_MAX
 * Errors: ERR_BAD_REQUEST (n_threads out of range), ERR_NO_MEMORY, ERR_INTERNAL (no thread). */
int compute_new(struct compute **out, uint32_t n_threads, struct err *e);
void compute_free(struct compute *c); /* joins the workers; accepts NULL */
uint32_t compute_n_threads(const struct compute *c);

/* compute_pin - tie `caller`, which will call compute_run, and each worker to a processor of its
 * own, in the order of those that this process may use.
 * Errors: ERR_BAD_REQUEST (more threads than processors), ERR_INTERNAL. */
int compute_pin(struct compute *c, pthread_t caller, struct err *e);

/* compute_n_processors - how many this process may use; 1..COMPUTE_THREADS_MAX. */
uint32_t compute_n_processors(void);

/* Runs items [first, last) on thread `thread` (0 is the caller, below compute_n_threads). */
typedef void compute_fn(void *arg, uint32_t thread, uint32_t first, uint32_t last);

/* compute_run - run fn over [0, n) in parts of `grain` items (the last may be shorter).
 * Returns when all are done; what they wrote is then visible to the caller.
 * Threads: one caller at a time, no lock held; takes MTX_COMPUTE briefly. */
void compute_run(struct compute *c, uint32_t n, uint32_t grain, compute_fn *fn, void *arg);

#endif
