/* The control plane of a fleet, composed: its state, and the timer by which it looks at its engines
 * and leases. */
#ifndef BATON_FLEET_FLEET_ROOT_H
#define BATON_FLEET_FLEET_ROOT_H

#include "fleet/calls/fleet_control.h"

/* fleet_control_new - after upstreams_new. Errors: ERR_NO_MEMORY. */
int fleet_control_new(struct fleet_control **out, const struct fleet_control_cfg *cfg,
                      struct err *e);

/* fleet_control_watch - at the start, and at once when other upstreams are configured: from now on
 * engines get what they lack before they get requests, and leases end. Threads: any; no lock held.
 */
void fleet_control_watch(struct fleet_control *fc);

/* fleet_control_free - after upstreams_stop, when all executors have stopped. Accepts NULL. */
void fleet_control_free(struct fleet_control *fc);

#endif
