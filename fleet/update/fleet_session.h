/* One weight update of the whole fleet: which engines take part, the state of each, and what
 * follows from their replies. No I/O and no lock in these functions: the thread that runs a step
 * owns the session.
 *
 * Two kinds of engine take part (fleet/update/fleet_part.h). Two-phase engines (batons) verify what
 * they got and serve it only after the commit call: either all of them commit, or none does. The
 * others overwrite the weights that they serve, so each is paused from its first byte to the end of
 * the update, and one that does not get to the end is fenced. */
#ifndef BATON_FLEET_UPDATE_FLEET_SESSION_H
#define BATON_FLEET_UPDATE_FLEET_SESSION_H

#include "base/err.h"
#include "base/lease_timer.h"
#include "base/net/actor.h"
#include "fleet/api/api_object.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_result.h"
#include "fleet/members/fleet.h"
#include "fleet/update/fleet_coverage.h"
#include "fleet/update/fleet_part.h"
#include "weights/update/update.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert((int)API_VERSION_MAX > (int)VERSION_LABEL_MAX,
               "a name of ours is told from a longer one");

/* Written under the lock of the fleet's control. Only the owner of the operation lock starts it,
 * prepares it and ends it; a request of the update writes what it brings (label, selector, lease),
 * and that it is under way. */
struct fleet_session {
    unsigned n_refs;
    char id[UPDATE_ID_MAX + 1];
    enum update_phase phase;
    bool auto_commit, anonymous, partial, sharded;
    uint64_t handoff;     /* of this server itself: no client can end it; the serial of the version
                             in its store. 0: of a client */
    bool repair;          /* of an engine that lacks the fleet's version */
    const bool *given_up; /* atomic, borrowed: its requests end once it is true; NULL: never */
    bool starting;        /* the engines have yet to start it */
    bool prepare_begun;   /* engines that overwrite their weights are paused, or are being paused */
    bool pausing;         /* that has been sent to them, or is about to be */
    bool prepared;        /* they are paused, have the dirty marker, and have started */
    char label[VERSION_LABEL_MAX + 1];
    /* Static: from the start, or from the first request that names one; NULL: none does. */
    const char *selector;
    struct lease_timer lease;
    struct actor actor; /* that started it */
    const char *source; /* static: of its last tensors; or NULL */
    uint64_t began_us;  /* and time spent in each phase: */
    uint64_t receive_us, verify_us;
    uint64_t receiving_since_us;  /* while n_running > 0 */
    uint64_t committing_since_us; /* 0: not yet */
    unsigned n_running;           /* requests with tensors that are under way */
    bool sending;                 /* one of them owns the parts */
    const void *sender;           /* while `sending`: workers_self of the last one that began */
    uint64_t n_received; /* accepted tensors; a request whose tensors are not read here counts 1 */
    uint64_t serial;     /* of the fleet; 0 until it is committed */
    struct err error;    /* the reason of the abort */
    struct err refused;  /* of tensors that have yet to come again; clean: there are none */
    struct fleet_coverage *coverage; /* owned */
    struct api_object
        *list; /* one reference: of the last accepted request by a group, until the end; or NULL */
    uint64_t list_began_us;    /* of that group; NULL list and not 0: no memory for it */
    struct api_object *report; /* one reference; the last description of its own update by a
                       two-phase engine; without such engines the coverage (fleet_coverage.h) */
    size_t n_parts;
    bool listed; /* in fleet_control.ended, whose reference refers to no engine */
    struct fleet_part parts[];
};

/* fleet_session_new - allocate a session with n_parts zeroed parts. Errors: ERR_NO_MEMORY. */
int fleet_session_new(struct fleet_session **out, size_t n_parts, struct err *e);

/* fleet_session_ref, fleet_session_unref - accept NULL; under the lock. A session that has ended,
 * and which nothing uses any more but the list of those that can be shown, refers to no engine:
 * these may leave. */
struct fleet_session *fleet_session_ref(struct fleet_session *s); /* returns it */
void fleet_session_unref(struct fleet_session *s);

bool fleet_session_is_open(const struct fleet_session *s);

/* fleet_session_has_part - does an engine of this kind take part (and is not out)? */
bool fleet_session_has_part(const struct fleet_session *s, bool two_phase);

/* fleet_session_overwrites - is there a part, out or not, whose engine overwrites its weights? */
bool fleet_session_overwrites(const struct fleet_session *s);

/* fleet_session_has_quorum - can it still be committed? That needs every two-phase part, and at
 * least min_ready parts in all. Parts of removed engines count for neither. */
bool fleet_session_has_quorum(const struct fleet_session *s, size_t min_ready);

enum session_verdict {
    VERDICT_CONTINUE,
    VERDICT_RETRY, /* no engine accepted the tensors: they may be sent again */
    VERDICT_ABORT  /* engines differ now, or too few are left */
};

/* fleet_session_apply_results - apply the results of a request with tensors.
 * @results  in the order of `parts` [results->n], indexes of s->parts
 * @repeats  the same request may be sent again to an engine that accepted it
 * After part_send of each. A removed engine that fails is dropped, and does not stop the others. */
enum session_verdict fleet_session_apply_results(struct fleet_session *s,
                                                 const struct fleet_results *results,
                                                 const size_t *parts, size_t min_ready,
                                                 bool repeats);

/* fleet_client_error - an engine's error, for our client: an ERR_NOT_FOUND that blames no member is
 * about the engine, not about what the client named, and becomes ERR_UPSTREAM. @e  clean; set */
void fleet_client_error(const struct err *why, struct err *e);

/* fleet_session_cause_error - the error for the client: of the parts that are out, the first
 * refusal, else the first failure; removed engines have no say. @e  clean; set */
void fleet_session_cause_error(const struct fleet_session *s, size_t min_ready, struct err *e);

/* fleet_lease_expired_locked - has the lease of an open update ended, with no request under way? A
 * hand-off has none. */
bool fleet_lease_expired_locked(const struct fleet_session *s);

#endif
