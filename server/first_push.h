/* The first weights: committed by the update path, as all later ones are. */
#ifndef BATON_SERVER_FIRST_PUSH_H
#define BATON_SERVER_FIRST_PUSH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct update_chunk;
struct updates;

/* first_push - submit the chunk and wait until the worker has answered (bounded by its own
 * deadlines). A signal that ends the process stops the updates and is raised again.
 * @chunk         moved in, also on failure; done and done_arg are set here
 * @ended_within  wait up to timeout_us: has such a signal arrived?
 * Threads: main. Blocks. Errors: those of updates_submit and of the update. */
int first_push(struct updates *updates, struct update_chunk *chunk,
               bool (*ended_within)(uint64_t timeout_us), struct err *e);

#endif
