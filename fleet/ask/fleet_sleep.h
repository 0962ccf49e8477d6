/* Sleep and wake of all engines of a fleet. Neither can be undone everywhere (dropped weights are
 * lost), so an engine on which it fails is fenced. */
#ifndef BATON_FLEET_ASK_FLEET_SLEEP_H
#define BATON_FLEET_ASK_FLEET_SLEEP_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

struct fleet_sleep_request {
    int level;        /* of a sleep of the weights: 1 in host memory, 2 dropped; 0: a wake */
    bool weights, kv; /* what sleeps, or wakes */
};

/* fleet_sleep_all - put every engine that answers to sleep.
 * fleet_wake_all - wake them.
 * An engine that does not answer is fenced until a resync or an update; an engine whose weights
 * were dropped until a whole update. If all engines refuse, nothing changes.
 * @native   the client's body; NULL: none
 * @results  in: zeroed; also on errors, unless no engine was asked
 * Threads: the owner of the operation lock (fleet/calls/fleet_locks.h). Blocks: up to
 * FLEET_SLEEP_US. Errors: ERR_CONFLICT: an update is open (a wake of the KV cache: one that keeps
 * engines paused);
 * ERR_UNSYNCED: fewer than --min-ready engines answer; an engine's. */
int fleet_sleep_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                    struct api_object *native, struct fleet_results *results, struct err *e);
int fleet_wake_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                   struct api_object *native, struct fleet_results *results, struct err *e);

#endif
