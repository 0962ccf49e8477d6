/* Loading and unloading an adapter on every engine of a fleet: on all of them, or on none.
 *
 * A load that fails on some engines is undone where the adapter was new. One that replaced an
 * adapter cannot be undone: the engines on which it failed are asked again, and get no requests
 * before they have it (fleet/want/fleet_reconcile.h). */
#ifndef BATON_FLEET_ASK_FLEET_LORA_LOAD_H
#define BATON_FLEET_ASK_FLEET_LORA_LOAD_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

struct fleet_lora_request {
    const char *name, *path; /* borrowed; path NULL: the tensors come with the request */
    bool in_place;           /* may replace an adapter of that name */
    uint64_t timeout_us;     /* of one engine */
};

/* What the engines replied. */
struct fleet_lora_reply {
    struct fleet_results results; /* owned: fleet_results_fini */
    uint64_t revision;            /* of the fleet's adapter */
};

/* fleet_lora_load - load an adapter on every engine that answers.
 * @native  the client's body
 * @reply   zeroed; also set on errors, as far as engines were asked
 * Threads: the owner of the operation lock (fleet/calls/fleet_locks.h). Blocks: up to timeout_us
 * and the times of three more requests to the engines. Errors: ERR_BAD_REQUEST (the adapter exists
 * and in_place is false), ERR_CONFLICT (too many adapters), ERR_UNSYNCED (fewer than --min-ready
 * engines answer), ERR_NO_MEMORY; an engine's; ERR_NOT_FOUND where an engine answers 404. */
int fleet_lora_load(struct fleet_control *fc, const struct fleet_lora_request *req,
                    struct api_object *native, struct fleet_lora_reply *reply, struct err *e);

/* fleet_lora_unload - unload it from every engine that answers; an engine that does not have it
 * counts as unloaded. Engines on which it fails are asked again, unless it failed on all.
 * Arguments, threads and errors as fleet_lora_load's; ERR_NOT_FOUND at /lora_name: neither the
 * fleet nor an engine has it. Blocks: up to FLEET_CACHE_US, and the reset of caches. */
int fleet_lora_unload(struct fleet_control *fc, const char *name, struct api_object *native,
                      struct fleet_lora_reply *reply, struct err *e);

#endif
