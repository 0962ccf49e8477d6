/* --on-update finish in front of engines that overwrite what they serve: no reply that this server
 * forwards crosses an update. */
#ifndef BATON_FLEET_UPDATE_FLEET_DRAIN_H
#define BATON_FLEET_UPDATE_FLEET_DRAIN_H

#include "fleet/update/fleet_fanout.h"
#include "fleet/update/fleet_session.h"

struct fleet_control;

/* fleet_drain_parts - wait until the engines that are about to be paused run none of the generate
 * requests of this server. New ones wait for a permit since s->prepare_begun. Ends early when the
 * update is closed, or a trainer pauses: what it keeps goes on after the update. Does nothing
 * without --on-update finish.
 * @late  out: parts whose requests have not ended within half of --update-timeout
 * Threads: the one that sends tensors; no lock held. Blocks: that long. */
void fleet_drain_parts(struct fleet_control *fc, struct fleet_session *s, struct part_set *late);

/* fleet_drain_pauses - the pauses before the first byte: `wait` where the engine can wait, after a
 * drain; `abort` for parts in `late`; else `keep`. @out  [s->n_parts] */
void fleet_drain_pauses(struct fleet_control *fc, const struct fleet_session *s,
                        const struct part_set *late, struct api_pause *out);

/* fleet_drain_note_overwrites - the parts are paused: what they have made was made by the version
 * before (fleet_note_overwrite). Blocks: up to a second for the ends of replies that were aborted
 * just now. */
void fleet_drain_note_overwrites(struct fleet_control *fc, const struct fleet_session *s,
                                 const struct part_set *late);

#endif
