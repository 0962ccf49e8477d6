/* The checks of a preflight: each adds an entry {check, ok, message, place} to the report. */
#ifndef BATON_HANDLERS_UPDATE_PREFLIGHT_CHECKS_H
#define BATON_HANDLERS_UPDATE_PREFLIGHT_CHECKS_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct app;

struct preflight_report {
    json_t *checks;
    bool failed, no_memory;
};

/* The content of a request: handles, or the finding that they are of a kind that cannot be
 * opened. */
struct preflight_req {
    struct ipc_handles handles;
    bool expandable;
    bool pickled;
    char why[ERR_MSG_MAX]; /* of expandable */
};

/* Threads: any; the caller's thread opens and closes a handle on a GPU. */

/* Of the server: CUDA, and the devices of its weights. */
void preflight_check_host(struct preflight_report *r, const struct app *app);

/* Of the trainer's allocator. */
void preflight_check_allocator(struct preflight_report *r, const struct preflight_req *req);

/* Of one rank: would the handles `h` feed it? One of them is opened and closed. */
void preflight_check_rank(struct preflight_report *r, const struct app *app,
                          const struct ipc_handles *h, uint32_t rank);

/* Instead of preflight_check_rank, without handles that can be opened, or without GPUs. */
void preflight_check_without_gpu(struct preflight_report *r, const struct preflight_req *req);

#endif
