/* One copy, made under the lock of the control plane alone. */
#include "fleet/fleet_state.h"

#include "fleet/calls/fleet_priv.h"

#include <string.h>

static void copy_update(const struct fleet_session *s, struct fleet_state *out)
{
    memcpy(out->update.id, s->id, sizeof out->update.id);
    memcpy(out->update.label, s->label, sizeof out->update.label);
    out->update.phase = s->phase;
    out->update.handoff = s->handoff != 0;
    out->update.repair = s->repair;
    out->update.n_running = s->n_running;
    out->update.n_received = s->n_received;
    out->update.began_us = s->began_us;
    out->update.lease_left_us = lease_timer_left_us(&s->lease);
    out->update.n_engines = s->n_parts;
    out->update.actor = s->actor;
}

int fleet_state_by(struct fleet_control *fc, uint64_t deadline_us, struct fleet_state *out,
                   struct err *e)
{
    const struct fleet_session *s;

    if (mtx_lock_by(&fc->lock, deadline_us, e) != 0)
        return -1;
    *out = (struct fleet_state){.locks = fc->locks, .pause = fc->pause, .sleep = fc->sleep};
    s = fc->session != NULL ? fc->session : fc->starting;
    if (s != NULL)
        copy_update(s, out);
    mtx_unlock(&fc->lock);
    return 0;
}
