/* Updates of a fleet, as handlers use them: start one, send tensors, finish or abort it; what a
 * request changes of a session, under the lock of the fleet's control.
 *
 * Threads: those that may wait for engines; no lock held. */
#ifndef BATON_FLEET_UPDATE_FLEET_UPDATE_H
#define BATON_FLEET_UPDATE_FLEET_UPDATE_H

#include "base/err.h"
#include "fleet/update/fleet_session.h"

#include <stdbool.h>
#include <stdint.h>

struct fleet_control;
struct http_request;

struct fleet_update_request {
    struct http_request *x;    /* whose client waits for the operation lock; or NULL */
    const char *label;         /* "": none */
    struct api_object *native; /* of our own start; NULL: no client sent one */
    const char *selector;      /* static, or NULL */
    bool auto_commit, anonymous, partial, sharded;
    bool convert; /* tell engines that convert only if asked to */
    bool repair;  /* only `upstream` takes part, which is out of rotation because of its weights; it
                     gets the fleet's version, and the others go on */
    struct upstream *upstream; /* of a repair */
    const bool *given_up; /* of a repair, atomic, borrowed until it has ended: once it is true, no
                             reply is waited for; NULL: never */
    uint64_t handoff; /* of this server itself (fleet/handoff/): the serial of the version in its
                         store, which is the fleet's then. No client can end it, and it is refused
                         also while weights are asleep at level 2: an engine that was not woken has
                         no memory for them. 0: of a client */
    uint32_t lease_s;
    struct actor actor; /* for the log */
};

/* fleet_start_update - open an update. Blocks: for the operation lock, then up to the time of a
 * step.
 * @out      one reference
 * @replies  in: zeroed; on some errors what each engine replied
 * Errors: fleet_step_lock's; ERR_CONFLICT: one is open, or no engine needs the repair;
 * ERR_ASLEEP; ERR_UNSYNCED: too few engines; an engine's. */
int fleet_start_update(struct fleet_control *fc, const struct fleet_update_request *req,
                       struct fleet_session **out, struct fleet_results *replies, struct err *e);

struct fleet_tensors {
    struct api_args args; /* with `tensors`; the client's body is without update_id, weight_version,
                             chunk_id, abort_requests */
    const struct api_args *of; /* [s->n_parts], borrowed: by part, of the same tensors, where it
                                  is not `args`; without `tensors`: `args`. NULL: `args` for all */
    struct err list_error;     /* why a list of names that the client sent is no list; clean: it is
                                  one, or it sent none */
    bool *mapped; /* [s->n_parts], of false: set for parts that may have mapped the memory which
                     their bodies name, or may yet. NULL: not needed */
    const char *source; /* static: how the bytes are sent, as struct source_ops names it */
    bool by_group, abort_requests;
};

/* fleet_send_tensors - send tensors to all engines that take part. Blocks: up to the time of a step
 * for each step. Errors: an engine's, ERR_CONFLICT, ERR_ENDED. The update may have been aborted. */
int fleet_send_tensors(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_tensors *t, struct err *e);

/* fleet_drop_engine - an engine cannot take the version: it is out of the update, and fenced if
 * tensors were sent to it. Without enough engines the update is aborted.
 * @why  names the engine
 * Blocks: for the end of a request that sends tensors; as fleet_abort_update_wait.
 * Errors: as fleet_send_tensors.
 * fleet_update_has_engine - is the update open, and does the engine take part? */
int fleet_drop_engine(struct fleet_control *fc, struct fleet_session *s, struct upstream *upstream,
                      const struct err *why, struct err *e);
bool fleet_update_has_engine(struct fleet_control *fc, const struct fleet_session *s,
                             struct upstream *upstream);

/* fleet_finish_update - verify, and commit if asked.
 * @checksums  of our own finish, in the client's body; NULL: none
 * Errors: fleet_step_lock's; an engine's; ERR_CONFLICT, ERR_ENDED, ERR_INCOMPLETE. The update is
 * aborted then, unless it could not be finished now at all (a lock, a phase, a request that an
 * engine's API cannot express). ERR_NOT_HANDED_OVER: it is committed, also at batons whose engines
 * lack it so far and without which fewer than --min-ready have it; the same again until they do. */
int fleet_finish_update(struct fleet_control *fc, struct fleet_session *s, const char *label,
                        struct api_object *checksums, bool commit, struct err *e);

/* fleet_commit_open_update - finish the auto-commit update that is open, if there is one.
 * @out  one reference, also on failure; NULL: there is none. Errors: as fleet_finish_update. */
int fleet_commit_open_update(struct fleet_control *fc, const char *label,
                             struct fleet_session **out, struct err *e);

/* fleet_abort_start - if the update of this id is starting, end that: it does not wait for engines
 * any more, and fails, unless it was over just then and the update is open (fleet_find_update).
 * @out  one reference, to show: what there was of it; NULL: it was not starting
 * Blocks: up to FLEET_ABORT_WAIT_US. Errors: ERR_CONFLICT: engines that started it are still told
 * to abort it. */
int fleet_abort_start(struct fleet_control *fc, const char *id, struct fleet_session **out,
                      struct err *e);

/* fleet_abort_update - abort, for its trainer: waits only FLEET_ABORT_WAIT_US for a step under way.
 * fleet_abort_update_wait - the same, after a failure: waits as long as an operation.
 * Errors: ERR_CONFLICT: the lock was not free in time; ERR_ENDED: it is committed. */
int fleet_abort_update(struct fleet_control *fc, struct fleet_session *s, const struct err *why,
                       struct err *e);
int fleet_abort_update_wait(struct fleet_control *fc, struct fleet_session *s,
                            const struct err *why, struct err *e);

/* fleet_abort_update_at_stop - abort the update that is open, since this server ends: engines would
 * keep their parts of it until their leases end. Logs an engine that cannot be reached.
 * Blocks: as fleet_abort_update. */
void fleet_abort_update_at_stop(struct fleet_control *fc);

/* fleet_renew_update - extend its lease, and those of the batons' own updates.
 * @lease_s  0: as before. Blocks: up to FLEET_QUERY_US. Errors: ERR_ENDED, ERR_NO_MEMORY, an
 * engine's: the fleet's own lease is extended all the same. */
int fleet_renew_update(struct fleet_control *fc, struct fleet_session *s, uint64_t lease_s,
                       struct err *e);

/* fleet_abort_unused_update - abort the open update if its trainer cannot name it and is at the
 * host of `actor`, and no tensors have come and none are under way. Returns: was there one? Blocks:
 * as fleet_abort_update_wait. */
bool fleet_abort_unused_update(struct fleet_control *fc, const struct actor *actor);

/* ---- sessions ---- */

/* fleet_find_update - a reference to the session of that id, open or ended.
 * Errors: ERR_NOT_FOUND. */
int fleet_find_update(struct fleet_control *fc, const char *id, struct fleet_session **out,
                      struct err *e);
/* fleet_open_session - a reference to the open one, or NULL. */
struct fleet_session *fleet_open_session(struct fleet_control *fc);
/* fleet_shown_session - a reference to the open one, else to a copy of the one that is starting, or
 * NULL. It is for descriptions only. */
struct fleet_session *fleet_shown_session(struct fleet_control *fc);
/* fleet_update_lease - is an update open, and how long is its lease still? CLOCK_NEVER while a
 * request of it is under way. @left_us  set if it is open */
bool fleet_update_lease(struct fleet_control *fc, uint64_t *left_us);
void fleet_unref(struct fleet_control *fc, struct fleet_session *s); /* accepts NULL */

bool fleet_update_is_open(struct fleet_control *fc, const struct fleet_session *s);

/* fleet_check_no_update - ERR_CONFLICT while an update is open.
 * @prepared_only  only if engines that overwrite what they serve were prepared for it */
int fleet_check_no_update(struct fleet_control *fc, bool prepared_only, struct err *e);

/* fleet_update_set_label - a request named the version. Requests of an auto-commit update must name
 * the same one; a session that takes no more tensors keeps its label.
 * @label  NULL: it named none. Errors: ERR_CONFLICT at /weight_version. */
int fleet_update_set_label(struct fleet_control *fc, struct fleet_session *s, const char *label,
                           struct err *e);

/* fleet_update_set_selector - a request named how tensors are selected.
 * @selector  static; NULL: it named none. Errors: ERR_CONFLICT, or of a session that requests name
 * ERR_PRECONDITION, at /selector. */
int fleet_update_set_selector(struct fleet_control *fc, struct fleet_session *s,
                              const char *selector, struct err *e);

/* fleet_update_was_refused - were tensors refused that have yet to come again? Then a trainer that
 * aborts it does so because of that. @why  set to the error, or clean */
bool fleet_update_was_refused(struct fleet_control *fc, const struct fleet_session *s,
                              struct err *why);

/* fleet_update_is_covered - an auto-commit update: did the engines that count tensors receive all
 * of them, and is no request under way? */
bool fleet_update_is_covered(struct fleet_control *fc, const struct fleet_session *s);

/* fleet_update_is_other_version - an auto-commit update of engines that do not count tensors: does
 * this label name the next version, so that this one is complete? @label  NULL: no */
bool fleet_update_is_other_version(struct fleet_control *fc, const struct fleet_session *s,
                                   const char *label);

/* fleet_begin_push - a request came that trainers send before or after a push, and never within: a
 * pause, a resume, a sleep, a wake, a start, a new group. The tensors that follow are none of the
 * push before (struct fleet_cut_off). Threads: any; no lock held. */
void fleet_begin_push(struct fleet_control *fc);

/* fleet_update_is_empty - an update that its trainer cannot name: did no tensors arrive, and is no
 * request under way? */
bool fleet_update_is_empty(struct fleet_control *fc, const struct fleet_session *s);

/* fleet_update_copy - a copy to read without the lock, of which nothing is sent: it knows its
 * engines by their numbers. fleet_unref frees it. NULL: no memory. */
struct fleet_session *fleet_update_copy(struct fleet_control *fc, const struct fleet_session *s);

#endif
