/* The threads of updates over ZeroMQ sockets (handlers/update/zmq_request.h). Each thread has one
 * request from its first message to its last. */
#ifndef BATON_CONTROL_ZMQ_THREADS_H
#define BATON_CONTROL_ZMQ_THREADS_H

#include "base/err.h"
#include "base/jobs/workers.h"

#include <stdbool.h>

struct zmq_threads;

enum { ZMQ_THREADS_MAX = 4 }; /* threads, and requests under way or ending */

/* zmq_threads_new - start the threads. Errors: ERR_NO_MEMORY; those of workers_new. */
int zmq_threads_new(struct zmq_threads **out, struct err *e);

/* zmq_threads_stop - abort what is under way and join the threads; later requests are ERR_DRAINING.
 * Repeating is harmless. Threads: the owner's, before the updates stop. Blocks: for one copy at
 * most, and for ZMQ_LINGER_MS. */
void zmq_threads_stop(struct zmq_threads *z);
void zmq_threads_free(struct zmq_threads *z); /* stops first; accepts NULL */

/* zmq_threads_post - run the job on a thread of its own; it ends with zmq_threads_end. No job waits
 * in the queue while its trainer waits for it: there are as many threads as jobs.
 * Threads: any. Blocks: no. Errors: ERR_OVERLOADED (ZMQ_THREADS_MAX), ERR_DRAINING: the job does
 * not run. */
int zmq_threads_post(struct zmq_threads *z, struct job *job, struct err *e);
void zmq_threads_end(struct zmq_threads *z); /* the last that a job calls */

/* zmq_threads_stopping - a running job has to end soon. Threads: any. */
bool zmq_threads_stopping(const struct zmq_threads *z);

#endif
