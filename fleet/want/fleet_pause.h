/* The trainer's pause of a fleet, and its end.
 *
 * A resume does not wait for a pause that still waits for running generations: a trainer that gave
 * up on that pause must be able to resume at once. The pause then undoes itself. */
#ifndef BATON_FLEET_WANT_FLEET_PAUSE_H
#define BATON_FLEET_WANT_FLEET_PAUSE_H

#include "base/err.h"
#include "control/pause_state.h"
#include "fleet/calls/fleet_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

/* fleet_get_pause - a copy of the pause as it is now, paused_us with the current one. Threads: any;
 * no lock held. */
void fleet_get_pause(struct fleet_control *fc, struct pause *out);

/* fleet_is_paused - has a trainer paused the fleet? Threads: any. */
bool fleet_is_paused(struct fleet_control *fc);

/* fleet_pause_all - pause every reachable engine, and what has come to none yet. Requests aborted
 * stay aborted if it fails. The caller owns the pause lock (fleet_trainer_pause_lock; asserted). If
 * an engine fails, the engines that did pause are resumed, unless the fleet was paused before: then
 * they stay paused, and the pause before is in force again. If a resume arrives meanwhile, they are
 * resumed. An engine that goes down meanwhile is not waited for, and is paused when it is back. One
 * that does not answer its resume in time gets it later.
 * @deadline_us  base/clock.h; engines that have not answered by then fail the pause
 * @native   the client's body, for batons; NULL: none
 * @results  in: zeroed; also on failure, unless nothing was sent
 * Blocks: until the deadline and less than a second more.
 * Errors: fleet_reachable_quorum's, fleet_validate's, fleet_request's, an engine's; ERR_UNSYNCED:
 * too many engines went down meanwhile; ERR_CONFLICT: it was resumed; ERR_TIMEOUT: with `wait`,
 * what came before the pause has not come to an engine; ERR_DRAINING. */
int fleet_pause_all(struct fleet_control *fc, const struct pause_request *req, uint64_t deadline_us,
                    struct api_object *native, struct fleet_results *results, struct err *e);

/* fleet_resume_all - resume every reachable engine but those that the open update keeps paused and
 * those that are fenced because they have part of an update. An engine that fails is out of
 * rotation, and is asked again until it has resumed (fleet/want/fleet_gate.c).
 * @expired  the lease of the pause ended. ERR_CONFLICT if it was renewed meanwhile.
 * @results  in: zeroed; written on success
 * @was      was the fleet paused?
 * Blocks: for fleet_resume_lock, then up to FLEET_STEP_US twice. Errors: fleet_resume_lock's,
 * fleet_request's. */
int fleet_resume_all(struct fleet_control *fc, bool expired, struct fleet_results *results,
                     bool *was, struct err *e);

#endif
