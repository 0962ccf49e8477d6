/* Another version name for what the engines of a fleet serve already. */
#ifndef BATON_FLEET_ASK_FLEET_LABEL_H
#define BATON_FLEET_ASK_FLEET_LABEL_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

struct fleet_label_request {
    const char *label;   /* borrowed */
    uint64_t if_serial;  /* 0, or the serial that has to be served */
    bool abort_requests; /* right before engines are asked */
    /* Records the name before any engine is asked; if it fails, none is. NULL: it is recorded
     * nowhere but at the engines. */
    int (*record)(void *arg, struct err *e);
    void *arg;
};

/* fleet_label_all - give every engine that serves the fleet's version this one. Each is read first:
 * one that reports another version, or does not answer, may have been restarted since its last
 * probe, or changed by another client; it is not asked. It is then out of step, and so is an engine
 * on which it fails. If it fails on all, nothing changes, unless the name was recorded: then all
 * are out of step.
 * @results  in: zeroed; also on errors, unless no engine was asked, or the answers are lost
 * @serial   written also on errors of engines: of what is served, which stays; 0: nothing was
 *           changed
 * Threads: the owner of the operation lock (fleet_step_lock). Blocks: up to twice fleet_step_us,
 * with abort_requests FLEET_CACHE_US more. Errors: ERR_PRECONDITION at /if_serial; ERR_UNSYNCED: no
 * engine serves the fleet's version; record's; an engine's (fleet_results_done). */
int fleet_label_all(struct fleet_control *fc, const struct fleet_label_request *req,
                    struct fleet_results *results, uint64_t *serial, struct err *e);

#endif
