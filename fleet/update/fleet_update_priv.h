/* What the steps of an update share. "Operation lock" is the lock of a step or of an abort
 * (fleet/calls/fleet_locks.h). */
#ifndef BATON_FLEET_UPDATE_FLEET_UPDATE_PRIV_H
#define BATON_FLEET_UPDATE_FLEET_UPDATE_PRIV_H

#include "fleet/update/fleet_fanout.h"

/* fleet_session_min_ready_locked - how many engines must get the version for the update to be
 * committed: --min-ready, or one for a repair. An engine that joined after the start takes no part,
 * so without --min-ready it is all parts. First the parts of engines that were removed are marked:
 * they do not count, neither here nor for the quorum. */
size_t fleet_session_min_ready_locked(struct fleet_control *fc, struct fleet_session *s);

/* fleet_has_quorum - fleet_session_has_quorum, with --min-ready.
 * fleet_require_quorum - the same; -1 with the error for the client, from the parts that are out.
 * @e  clean. No lock held. */
bool fleet_has_quorum(struct fleet_control *fc, struct fleet_session *s);
int fleet_require_quorum(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_refuse_handoff - ERR_CONFLICT: a hand-off of this server is under way. Returns -1. */
int fleet_refuse_handoff(const struct fleet_session *s, struct err *e);
int fleet_refuse_closed(const struct fleet_session *s, struct err *e);

/* fleet_session_set_report - of the replies that describe an engine's own update, keep the one that
 * promises least. The caller holds the lock of the fleet's control, or nobody else knows the
 * session yet. */
void fleet_session_set_report(struct fleet_session *s, const struct fleet_results *results);

/* fleet_close_session - end a session, and fence the engines that may have part of it; then it is
 * not the open one any more. No lock held.
 * @why  clean or ERR_NOT_HANDED_OVER: it is committed; else the reason why it is aborted
 * Its engines stay paused until it has put back what it took from them: fleet_end_release.
 * fleet_report_ended - log and keep the end, after that; of a hand-off only an error, since its
 * update ended in the store, and the hand-off logs its own end. @n_done  engines that serve the new
 * version */
void fleet_end_release(struct fleet_control *fc);
void fleet_close_session(struct fleet_control *fc, struct fleet_session *s, const struct err *why);
void fleet_report_ended(struct fleet_control *fc, const struct fleet_session *s, size_t n_done);

/* fleet_abort_with_lock - abort an update: close the session, fence the engines that may have half
 * of it, resume the others. The caller owns the operation lock. Blocks: up to the time of a few
 * steps. */
void fleet_abort_with_lock(struct fleet_control *fc, struct fleet_session *s,
                           const struct err *why);

/* fleet_on_resumed - of a fanout: one that has the new version keeps it if its resume fails. It is
 * out of rotation, and is asked again (fleet/want/fleet_gate.c). */
void fleet_on_resumed(struct fleet_part *p, struct fleet_result *result, void *arg);

/* fleet_wake_parts - wake engines that may have missed the last wake, since tensors that come while
 * the weights are asleep make them crash, and drop those that refuse. An SGLang, which a second
 * wake ends, is woken if it is known to sleep, and dropped if it may. The caller owns the operation
 * lock. Blocks: up to FLEET_SLEEP_US. Errors: fleet_request's; ERR_NO_MEMORY. */
int fleet_wake_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_drain_parts - wait until the engines that are about to be paused run none of the generate
 * requests of this server. New ones wait for a permit since s->prepare_begun. Ends early when the
 * update is closed, or a trainer pauses: what it keeps goes on after the update. Does nothing
 * without --on-update finish.
 * Parts whose requests have not ended within half of --update-timeout drain late.
 * Threads: the one that sends tensors; no lock held. Blocks: that long. */
void fleet_drain_parts(struct fleet_control *fc, struct fleet_session *s);

/* fleet_drain_pause - the pause before the first byte: `wait` where the engine can wait, after a
 * drain; `abort` if it drains late; else `keep`. Static. */
const struct api_pause *fleet_drain_pause(struct fleet_control *fc, const struct fleet_part *p);

/* fleet_drain_note_overwrites - the parts are paused: what they have made was made by the version
 * before (fleet_note_overwrite). Blocks: up to a second for the ends of replies that were aborted
 * just now. */
void fleet_drain_note_overwrites(struct fleet_control *fc, const struct fleet_session *s);

/* fleet_must_start_parts - has an engine to be told to start before it gets these tensors?
 * fleet_start_parts - tell those engines to start, and drop the ones that refuse. An engine that
 * may still have an earlier update open gets a finish for that first. The caller owns the operation
 * lock, and the engines are paused. Blocks: up to the time of three steps. Errors: fleet_request's;
 * ERR_NO_MEMORY. */
bool fleet_must_start_parts(struct fleet_control *fc, const struct fleet_session *s,
                            const struct api_tensors *tensors);
int fleet_start_parts(struct fleet_control *fc, struct fleet_session *s,
                      const struct api_tensors *tensors, struct err *e);

/* fleet_read_configs - ask the engines that may call their parameters otherwise than a checkpoint
 * does, once in each update, and drop those that do not say, or whose names are not known; and, in
 * a partial update, those that may change what it does not bring (api_check_partial). The caller
 * sends tensors.
 * @by_path  files
 * Blocks: up to FLEET_CONFIG_US. Errors: too few engines are left; fleet_query's. */
int fleet_read_configs(struct fleet_control *fc, struct fleet_session *s, bool by_path,
                       struct err *e);

/* fleet_release_unchanged - for engines that are paused for the update and unchanged: close their
 * own updates, restore their versions, and resume them. An engine on which that fails is fenced. An
 * engine that was fenced before stays paused. The caller owns the operation lock.
 * @dropped  only engines that are out */
void fleet_release_unchanged(struct fleet_control *fc, struct fleet_session *s, bool dropped);

/* fleet_release_finished - resume the engines that serve the new version. One that fails is fenced.
 * The caller owns the operation lock. */
void fleet_release_finished(struct fleet_control *fc, struct fleet_session *s);

/* fleet_fence_parts - fence the torn engines that are out, or all after the end of the session.
 * No lock held. */
void fleet_fence_parts(struct fleet_control *fc, struct fleet_session *s);

/* fleet_drop_without_base - of a partial update: drop the engines that have lost the fleet's
 * version since it started, as they were restarted: it brings only a part of the next one. Before
 * the first byte. No lock held. Errors: too few engines are left. */
int fleet_drop_without_base(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_read_old_labels - read the version of each engine that overwrites its weights and has no
 * marker yet, right before it is paused. An engine on which that fails is dropped.
 * One that reports another version than the fleet's has no part in a partial update, and is
 * dropped. fleet_set_dirty_markers - once they are paused, replace it by the dirty marker:
 * FLEET_DIRTY_MARKER and the update's id. An engine on which that fails is dropped; one whose
 * answer was lost is torn. One that reported no version can have no marker.
 * The caller owns the operation lock. Blocks: up to the time of a step. Errors: fleet_request's. */
int fleet_read_old_labels(struct fleet_control *fc, struct fleet_session *s, struct err *e);
int fleet_set_dirty_markers(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_clear_dirty_markers - give unchanged engines their old versions back, if they still have
 * our marker. An engine on which that fails, and one that was out of step before, is in doubt. The
 * caller owns the operation lock. Blocks: up to twice FLEET_ABORT_US.
 * @dropped  only engines that are out */
void fleet_clear_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool dropped);

/* fleet_check_dirty_markers - drop the engines that no longer have our marker: they were restarted,
 * or somebody else changed them. Engines that do not answer are dropped too. Those of them that are
 * in doubt are fenced. No lock held. Blocks: up to the time of a step.
 * @all  also engines that name their process: right before their finish is sent
 * Errors: too few engines are left; fleet_query's. */
int fleet_check_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool all,
                              struct err *e);

/* fleet_drop_restarted - drop the engines whose process is another one than the one that was
 * prepared, and fence them: the new one runs and has no marker, so tensors would change what it
 * serves, a finish would name it, and nothing would show either. One that may be another one is
 * asked for our marker, or for its process if it has none; one that tells neither is dropped. No
 * lock held. Blocks: up to the time of two steps, if any may be another one.
 * Errors: as fleet_check_dirty_markers. */
int fleet_drop_restarted(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_set_new_labels - give the new version to engines that finished by a request which takes no
 * version and still report our marker. One on which that fails, or that reports anything else, is
 * dropped and fenced. The caller owns the operation lock. Blocks: up to the time of three steps.
 * @resumed  after the resume, and all engines: only some releases are known to need it, and these
 *           get it before the resume
 * @with     sent with the new version; NULL: nothing
 * @why      clean; set: nothing was sent */
void fleet_set_new_labels(struct fleet_control *fc, struct fleet_session *s, bool resumed,
                          struct fanout_with *with, struct err *why);

/* The switch of the fleet's version (fleet_begin_switch). The caller owns the operation lock; no
 * mutex is held. In a repair the others serve the version already, and only the end counts.
 * fleet_switch_begin - the parts are about to finish.
 * fleet_switch_now - some have, or have committed the version, unless it has switched already.
 * fleet_switch_confirm - the engine has the new version, unless it did not finish, is out, or was
 *     restarted: from now on it gets requests.
 * fleet_fence_restarted - one that has finished, and may have been restarted since, is out and
 *     fenced: its new process does not have the update.
 * fleet_switch_end - the rest. Returns: how many serve the version.
 * fleet_session_n_finished - the same, without removed ones. @committed  with those that will serve
 *     it later: when they are resumed, and batons */
void fleet_switch_begin(struct fleet_control *fc, struct fleet_session *s);
void fleet_switch_now(struct fleet_control *fc, struct fleet_session *s);
void fleet_switch_confirm(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p);
void fleet_fence_restarted(struct fleet_control *fc, struct fleet_part *p);
size_t fleet_switch_end(struct fleet_control *fc, struct fleet_session *s);
size_t fleet_session_n_finished(const struct fleet_session *s, bool committed);

/* fleet_abort_parts - tell two-phase engines that their own updates, of which the ids are known,
 * are aborted. @reason  NULL: none */
void fleet_abort_parts(struct fleet_control *fc, struct fleet_session *s, const char *reason);

#endif
