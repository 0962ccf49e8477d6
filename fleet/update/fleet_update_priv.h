/* What the steps of an update share. */
#ifndef BATON_FLEET_UPDATE_FLEET_UPDATE_PRIV_H
#define BATON_FLEET_UPDATE_FLEET_UPDATE_PRIV_H

#include "fleet/update/fleet_fanout.h"

bool fleet_update_is_open(struct fleet_control *fc, const struct fleet_session *s);
bool fleet_has_quorum(struct fleet_control *fc, const struct fleet_session *s); /* by --min-ready */
int fleet_refuse_closed(const struct fleet_session *s, struct err *e);

/* fleet_session_set_report - what the first of those that told something of their update told. With
 * the lock, or before others know of the session. */
void fleet_session_set_report(struct fleet_session *s, const struct fleet_result *results,
                              size_t n);

/* fleet_close_session - it has ended, and is not the open one any more. No lock held.
 * @why  clean: committed
 * fleet_log_ended - after that. @n_done  upstreams that serve it */
void fleet_close_session(struct fleet_control *fc, struct fleet_session *s, const struct err *why);
void fleet_log_ended(const struct fleet_session *s, size_t n_done);

/* fleet_abort_with_lock - abort it, in a step or while it is ending: it ends, what may be half of
 * it is fenced, the rest goes on. Blocks. */
void fleet_abort_with_lock(struct fleet_control *fc, struct fleet_session *s,
                           const struct err *why);

/* part_drop_failed - it takes no part any more, unless it did what it was asked. With the lock. */
void part_drop_failed(struct fleet_part *p, const struct fleet_result *results);

/* fleet_must_start_parts - is one not told to start yet that has to be before it gets these
 * tensors? fleet_start_parts - tells them; drops those that refuse. One that may have an update
 * open that did not end is told to end that first. In a turn; they stand still. Blocks. Errors:
 * fleet_request's; ERR_NO_MEMORY. */
bool fleet_must_start_parts(struct fleet_control *fc, const struct fleet_session *s,
                            const json_t *tensors);
int fleet_start_parts(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                      struct err *e);

/* fleet_set_cause - the error that a client is told of what failed at the parts that are out.
 * @e  clean; set. No lock held. */
void fleet_set_cause(struct fleet_control *fc, const struct fleet_session *s, struct err *e);

/* fleet_release_unchanged - let go on what stands still for the update and is unchanged, having
 * closed what was started there and given it its name again. What fails is fenced, and what was
 * fenced stands still. In a turn.
 * @dropped  only those that are out */
void fleet_release_unchanged(struct fleet_control *fc, struct fleet_session *s, bool dropped);

/* fleet_release_finished - let go on what has the new version. What fails is fenced. In a turn. */
void fleet_release_finished(struct fleet_control *fc, struct fleet_session *s);

/* fleet_fence_parts - those that are in doubt; after the end of the update also those that are
 * dirty. No lock held. */
void fleet_fence_parts(struct fleet_control *fc, struct fleet_session *s);

/* fleet_set_dirty_markers - names those that overwrite what they serve by FLEET_DIRTY_MARKER and
 * our id, of which each tells first what it is named; drops whom it fails at. Whose answer was lost
 * is in doubt. In a turn. Blocks. Errors: fleet_request's. */
int fleet_set_dirty_markers(struct fleet_control *fc, struct fleet_session *s, struct err *e);

/* fleet_clear_dirty_markers - gives those that are unchanged the name that they had, if they still
 * have ours. What fails, and what was bad before, is in doubt. In a turn. Blocks.
 * @dropped  only those that are out */
void fleet_clear_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool dropped);

/* fleet_check_dirty_markers - drops those whose process is not the one that was marked, and that
 * took what came so far, or that somebody else has changed: they tell of another update, or do not
 * answer. Fences those of them that are in doubt. No lock held. Blocks.
 * @all  also those that are known by more than their mark: before they are told to finish
 * Errors: too few are left; fleet_query's. */
int fleet_check_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool all,
                              struct err *e);

/* fleet_label_parts - of those that have finished: sees that they have the name of the new version,
 * and gives it to those that kept ours, since their end of an update takes none. Drops, and fences,
 * whom it fails at, and what has another name: that is not what was sent. In a turn. Blocks. */
void fleet_label_parts(struct fleet_control *fc, struct fleet_session *s);

/* fleet_recover - what may have an update open that nobody here knows is asked, and told to abort
 * it. Before a start. In a turn. Blocks. */
void fleet_recover(struct fleet_control *fc, struct fleet_session *s);

/* fleet_abort_parts - tell those in two phases that it is over. */
void fleet_abort_parts(struct fleet_control *fc, struct fleet_session *s, const char *reason);

#endif
