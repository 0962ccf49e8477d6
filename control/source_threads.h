/* The threads of requests that wait for a trainer, a disk or a client longer than a control thread
 * may: updates over ZeroMQ sockets (handlers/update/zmq_request.h), each from its first message to
 * its last, and pulls (handlers/update/pull.h); in a second pool, whose jobs hold no thread while
 * they wait, those that send files of versions (handlers/weights/weights_file.c). */
#ifndef BATON_CONTROL_SOURCE_THREADS_H
#define BATON_CONTROL_SOURCE_THREADS_H

#include "base/err.h"
#include "base/jobs/workers.h"

#include <stdbool.h>

struct source_threads;

enum {
    SOURCE_THREADS_MAX = 4, /* threads, and updates and pulls under way or ending */
    FILE_THREADS = 2,
    FILE_SENDS_MAX = 64 /* files, or ranges of them, that are being sent */
};

/* source_threads_new - start the threads.
 * @cfg  n_queue_max is the bound of what is under way or ending
 * Errors: ERR_NO_MEMORY; those of workers_new. */
int source_threads_new(struct source_threads **out, const struct workers_cfg *cfg, struct err *e);

/* source_threads_stop - abort what is under way and join the threads; later requests are
 * ERR_DRAINING. Repeating is harmless.
 * Threads: the owner's, before the updates stop. Blocks: for one copy at most, and for
 * ZMQ_LINGER_MS. */
void source_threads_stop(struct source_threads *t);
void source_threads_free(struct source_threads *t); /* stops first; accepts NULL */

/* source_threads_post - run the job; it ends with source_threads_end. With as many threads as jobs,
 * none waits in the queue while its trainer waits for it.
 * Threads: any. Blocks: no.
 * Errors: ERR_OVERLOADED (the bound), ERR_DRAINING: the job does not run. */
int source_threads_post(struct source_threads *t, struct job *job, struct err *e);
void source_threads_end(struct source_threads *t); /* the last that a job calls */

/* source_threads_stopping - a running job has to end soon. Threads: any. */
bool source_threads_stopping(const struct source_threads *t);

#endif
