/* What the control plane of a fleet is doing, for a server that may hang. */
#ifndef BATON_FLEET_FLEET_STATE_H
#define BATON_FLEET_FLEET_STATE_H

#include "control/pause_state.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "weights/update/update.h"

struct fleet_state {
    struct fleet_locks locks;
    struct pause pause;
    struct fleet_sleep sleep;
    struct {
        char id[UPDATE_ID_MAX + 1]; /* "": none is open */
        enum update_phase phase;
        char label[VERSION_LABEL_MAX + 1];
        bool handoff, repair;
        unsigned n_running; /* requests with tensors */
        uint64_t n_received, began_us, lease_left_us;
        size_t n_engines;
        struct actor actor;
    } update;
};

/* fleet_state_by - Threads: any. Blocks: until the deadline at most. Errors: of mtx_lock_by; *out
 * untouched. */
int fleet_state_by(struct fleet_control *fc, uint64_t deadline_us, struct fleet_state *out,
                   struct err *e);

#endif
