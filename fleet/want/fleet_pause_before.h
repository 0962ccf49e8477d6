/* The requests that came before a trainer's pause of a fleet, and that no engine is known to have:
 * they wait for a permit here, or are on the way. The pause covers them as an engine's pause covers
 * what is in the engine. */
#ifndef BATON_FLEET_WANT_FLEET_PAUSE_BEFORE_H
#define BATON_FLEET_WANT_FLEET_PAUSE_BEFORE_H

#include "base/err.h"
#include "control/pause_state.h"

#include <stddef.h>
#include <stdint.h>

struct api_args;
struct fleet_control;

/* fleet_cover_queued - do here what the pause does, before it is sent to the engines: `abort` ends
 * what has no permit; `wait` lets what came before have its permits, and waits until it is in an
 * engine or has ended, unless the engines are paused or asleep already, or an update holds them.
 * Requests that come later wait here until fleet_release_since. The caller owns the pause lock.
 * @before     the pause before
 * @n_aborted  how many were aborted
 * Blocks: with wait, until the deadline.
 * Errors: ERR_TIMEOUT; ERR_CONFLICT: it was resumed; ERR_DRAINING; those of
 * fleet_reachable_quorum and fleet_validate. */
int fleet_cover_queued(struct fleet_control *fc, const struct pause_request *req,
                       const struct pause *before, const struct api_args *args,
                       uint64_t deadline_us, size_t *n_aborted, struct err *e);

/* fleet_end_aborted - the engines have taken a pause with abort: wait until what they have aborted
 * is answered, and end what still has no reply, because it came to its engine after the pause.
 * Blocks: while replies come, and a few seconds more. */
void fleet_end_aborted(struct fleet_control *fc);

#endif
