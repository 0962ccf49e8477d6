/* One engine's part in an update of the fleet: a state, and the few facts beside it that do not
 * follow from the state.
 *
 * The state answers one question: what does this engine serve, and does it still take part?
 *
 *                    takes part                        is out
 *     what it served before the update:  CLEAN         DROPPED
 *     its first tensors are on the way:  RECEIVING
 *     maybe half of the update:          DIRTY         IN_DOUBT
 *     the new version:                   FINISHED      STUCK
 *
 * An engine in two phases (a baton) proves what it got and serves it only when it is told to: it is
 * never RECEIVING, DIRTY or IN_DOUBT. The others overwrite what they serve, so from the first
 * tensor on an engine is whole only at its end. Only one move leads from maybe changed back to
 * CLEAN: its first tensors did not get in. What is out stays out.
 *
 * Each move is a row of the table in fleet_part.c; part_apply asserts that there is one.
 *
 * Ownership: the state, and the facts after it, are written with the lock of the fleet's control,
 * by the holder of the operation lock (a step of an update, or an abort: fleet_step_lock,
 * fleet_abort_lock) or by the one request that brings tensors (fleet_session.sending). */
#ifndef BATON_FLEET_UPDATE_FLEET_PART_H
#define BATON_FLEET_UPDATE_FLEET_PART_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/fleet_request.h"
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
    PART_IN_DOUBT,    /* to be fenced */
    PART_NOT_RESUMED, /* it did not resume: fenced */
    PART_STATES
};

enum part_event {
    PART_ON_SEND,          /* tensors are about to be sent to it */
    PART_ON_ACCEPTED,      /* it took some of them, or may have */
    PART_ON_REFUSED,       /* they did not get in */
    PART_ON_DOUBT,         /* it may not be as it was, though no tensor came */
    PART_ON_FAILURE,       /* a step failed there, or what it said of its end was not so */
    PART_ON_FINISH,        /* it said that it serves the new version */
    PART_ON_RESUME_FAILED, /* it should have gone on, and did not */
    PART_EVENTS
};

/* What it was when the update began. */
enum part_before {
    PART_WAS_IN_STEP,
    PART_WAS_UNDECIDED,   /* out of rotation: no version was decided for the fleet */
    PART_WAS_OUT_OF_STEP, /* with what the others served */
    PART_WAS_FENCED
};

/* An update of its own, which tensors belong to. */
enum part_update {
    PART_UPDATE_CLOSED,
    PART_UPDATE_OPEN, /* it, or maybe it, was told to start, and not yet to finish */
    PART_UPDATE_NONE  /* it knows of no start */
};

enum fleet_packing_state { FLEET_PACKING_UNKNOWN, FLEET_UNPACKED, FLEET_PACKED };

/* By which process an upstream can be told from the one that answers under its name later. */
struct fleet_incarnation {
    char process[FLEET_LABEL_MAX + 1]; /* "": it does not say */
    uint64_t n_failures;
    bool synced;
};

struct fleet_part {
    size_t upstream; /* immutable since the update began, and so are the next four */
    bool two_phase;
    bool no_process_id; /* it names not its process, but the update (update_id) that it had last */
    bool first_update;  /* it had none from here before */
    enum part_before before;

    enum part_state state;            /* written by part_apply alone */
    enum part_update own_update;      /* which a start and an end without tensors do not change */
    bool may_have_marker;             /* it is, or may be, named FLEET_DIRTY_MARKER and our id */
    bool paused;                      /* it stands still for this update */
    enum fleet_packing_state packing; /* of handles, in this update */
    struct fleet_incarnation incarnation; /* when it got its first tensors, or was told to finish */
    char old_label[API_VERSION_MAX + 1];  /* its own word before it was marked; "": none */
    char reported_label[API_VERSION_MAX + 1]; /* the same, when it was asked last */
    char update_id[API_UPDATE_ID_MAX + 1];    /* of its own update, or what it is marked by */
    enum fleet_outcome outcome;               /* of the last step */
    int status;
    struct err why;         /* of its failure */
    struct err cache_error; /* why its caches could not be emptied; clean: they were */
};

/* part_set_result - what the last step came to there. */
void part_set_result(struct fleet_part *p, enum fleet_outcome end, int status,
                     const struct err *why);

/* part_transition - the table: where an event leads. False: it cannot happen there. */
bool part_transition(bool two_phase, enum part_state from, enum part_event event,
                     enum part_state *to);

/* part_apply - the event happened. Asserts that the table has it. */
void part_apply(struct fleet_part *p, enum part_event event);

/* part_takes_part - is it not out?
 * part_is_unchanged - does it serve what it did before the update?
 * part_needs_start - is it told to start and to finish each update, as far as is known? */
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
