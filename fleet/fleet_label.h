/* Another version name for what the engines of a fleet serve already. */
#ifndef BATON_FLEET_FLEET_LABEL_H
#define BATON_FLEET_FLEET_LABEL_H

#include "base/err.h"
#include "fleet/fleet_request.h"

#include <stddef.h>
#include <stdint.h>

struct fleet_control;

/* fleet_label_all - give every engine that serves the fleet's version this one. An engine on which
 * it fails is out of step. If it fails on all, nothing changes.
 * @if_serial  0, or the serial that has to be served
 * @results    [n], owned by the caller (fleet_results_free), also on errors; NULL: no engine was
 *             asked
 * @serial     written also on errors of some engines: of what is served, which stays; 0: all failed
 * Threads: the owner of the operation lock (fleet_step_lock). Blocks: up to fleet_step_us.
 * Errors: ERR_PRECONDITION at /if_serial; ERR_UNSYNCED: no engine serves the fleet's version; an
 * engine's. */
int fleet_label_all(struct fleet_control *fc, const char *label, uint64_t if_serial,
                    struct fleet_result **results, size_t *n, uint64_t *serial, struct err *e);

#endif
