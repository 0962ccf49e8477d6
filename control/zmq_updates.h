/* The threads of updates over ZeroMQ sockets (handlers/update/update_zmq.h). Each thread has one
 * request from its first message to its last. */
#ifndef BATON_CONTROL_ZMQ_UPDATES_H
#define BATON_CONTROL_ZMQ_UPDATES_H

#include "base/err.h"
#include "base/jobs/workers.h"

#include <stdbool.h>

struct zmq_updates;

enum { ZMQ_UPDATES_MAX = 4 }; /* threads, and requests under way or ending */

/* zmq_updates_new - start the threads. Errors: ERR_NO_MEMORY; those of workers_new. */
int zmq_updates_new(struct zmq_updates **out, struct err *e);

/* zmq_updates_stop - abort what is under way and join the threads; later requests are ERR_DRAINING.
 * Repeating is harmless. Threads: the owner's, before the updates stop. Blocks: for one copy at
 * most, and for ZMQ_LINGER_MS. */
void zmq_updates_stop(struct zmq_updates *z);
void zmq_updates_free(struct zmq_updates *z); /* stops first; accepts NULL */

/* zmq_updates_post - run the job on a thread of its own; it ends with zmq_updates_end. No job waits
 * in the queue while its trainer waits for it: there are as many threads as jobs.
 * Threads: any. Blocks: no. Errors: ERR_OVERLOADED (ZMQ_UPDATES_MAX), ERR_DRAINING: the job does
 * not run. */
int zmq_updates_post(struct zmq_updates *z, struct job *job, struct err *e);
void zmq_updates_end(struct zmq_updates *z); /* the last that a job calls */

/* zmq_updates_stopping - a running job has to end soon. Threads: any. */
bool zmq_updates_stopping(const struct zmq_updates *z);

#endif
