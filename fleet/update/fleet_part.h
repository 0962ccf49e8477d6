/* One engine's part in an update of the fleet: a state, and the few facts that do not follow from
 * the state.
 *
 * The state says what the engine serves, and whether it still takes part:
 *
 *                                        takes part    is out
 *     what it served before the update:  CLEAN         DROPPED
 *     its first tensors were sent:       RECEIVING
 *     maybe half of the update:          DIRTY         IN_DOUBT
 *     the new version:                   FINISHED      NOT_RESUMED
 *
 * A two-phase engine (a baton) verifies the tensors that it got, and serves them only when it is
 * told to finish: it is never RECEIVING, DIRTY or IN_DOUBT. The other kinds overwrite the weights
 * that they serve, so from the first tensor to the end of the update their weights are not whole.
 * Only one transition leads back to CLEAN: the first tensors were not accepted. An engine that is
 * out stays out.
 *
 * Every transition is a row of the table in fleet_part.c; part_apply asserts that there is one.
 *
 * Ownership: the state, and the members after it, are written under the lock of the fleet's
 * control, by the owner of the operation lock (fleet_step_lock) or of the abort lock
 * (fleet_abort_lock), or by the one request that sends tensors (fleet_session.sending). */
#ifndef BATON_FLEET_UPDATE_FLEET_PART_H
#define BATON_FLEET_UPDATE_FLEET_PART_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_result.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum part_state {
    PART_CLEAN,
    PART_RECEIVING,
    PART_DIRTY,
    PART_FINISHED,
    PART_DROPPED,
    PART_IN_DOUBT,    /* it has to be fenced */
    PART_NOT_RESUMED, /* it finished, and its resume failed: fenced */
    PART_STATES
};

enum part_event {
    PART_ON_SEND,          /* tensors are about to be sent */
    PART_ON_ACCEPTED,      /* it accepted some of them, or may have */
    PART_ON_REFUSED,       /* it accepted none of them */
    PART_ON_DOUBT,         /* it may have changed, though no tensor was sent */
    PART_ON_FAILURE,       /* a step failed, or its version is not the expected one */
    PART_ON_FINISH,        /* it reports that it serves the new version */
    PART_ON_RESUME_FAILED, /* it did not resume */
    PART_EVENTS
};

/* The engine's state when the update started. */
enum part_before {
    PART_WAS_IN_STEP,
    PART_WAS_UNDECIDED,   /* out of rotation: the fleet had no version yet */
    PART_WAS_OUT_OF_STEP, /* with the version that the others served */
    PART_WAS_FENCED
};

/* The update that the engine itself keeps, to which tensors belong. */
enum part_update {
    PART_UPDATE_CLOSED,
    PART_UPDATE_OPEN, /* it was, or may have been, told to start, and not yet to finish */
    PART_UPDATE_NONE  /* it has no route to start one */
};

enum fleet_packing_state { FLEET_PACKING_UNKNOWN, FLEET_UNPACKED, FLEET_PACKED };

/* What tells an engine's process from a later one at the same address. */
struct fleet_incarnation {
    char process[FLEET_LABEL_MAX + 1]; /* "": it does not name its process */
    uint64_t incarnation;              /* of upstream_info */
    uint64_t n_failures;
    bool synced;
};

struct fleet_part {
    struct upstream *upstream; /* a reference; immutable since the update started, and so are the
                                  next five */
    bool two_phase;
    bool no_process_id; /* it does not name its process; its version names the update (update_id)
                           instead */
    bool finish_takes_no_label; /* the end of its own update takes no version */
    bool first_update;          /* this server has not updated it before */
    enum part_before before;

    enum part_state state;       /* written by part_apply only */
    enum part_update own_update; /* a start and a finish without tensors change nothing there */
    bool may_have_marker;        /* its version is, or may be, our dirty marker */
    bool removed;   /* its engine was seen removed: it still gets the update, and counts
                       for nothing; an engine that is added again is another one */
    bool committed; /* it has committed the update, though its finish failed: the
                       engines behind it lack the version so far */
    enum fleet_packing_state packing; /* of handles, as sent to it in this update */
    enum api_names names;             /* of its parameters */
    bool names_known;                 /* it was asked; else they are plain */
    struct fleet_incarnation
        incarnation; /* when its first tensors were sent, or its finish was sent */
    char old_label[API_VERSION_MAX +
                   1]; /* the version that it reported before it was marked; "": none */
    char reported_label[API_VERSION_MAX + 1]; /* the version that it reported last */
    char update_id[API_UPDATE_ID_MAX + 1];    /* of its own update; else its dirty marker */
    enum fleet_outcome outcome;               /* of the last step */
    int status;
    struct err why;         /* why it failed */
    struct err cache_error; /* why its caches were not emptied; clean: they were */
};

/* part_set_result - record the result of the last step. */
void part_set_result(struct fleet_part *p, enum fleet_outcome end, int status,
                     const struct err *why);

/* part_transition - look an event up in the table. Returns: false: it cannot happen in that
 * state. */
bool part_transition(bool two_phase, enum part_state from, enum part_event event,
                     enum part_state *to);

/* part_apply - change the state by an event. Asserts that the table has the transition. */
void part_apply(struct fleet_part *p, enum part_event event);

/* part_takes_part - is it not out?
 * part_is_unchanged - does it serve what it served before the update?
 * part_needs_start - has it to be told to start and to finish an update, as far as is known? */
static inline bool part_takes_part(const struct fleet_part *p)
{
    return p->state <= PART_FINISHED;
}

static inline bool part_is_unchanged(const struct fleet_part *p)
{
    return p->state == PART_CLEAN || p->state == PART_DROPPED;
}

static inline bool part_needs_start(const struct fleet_part *p)
{
    return !p->two_phase && p->own_update != PART_UPDATE_NONE;
}

#endif
