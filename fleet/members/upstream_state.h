/* Whether an upstream engine gets requests, and if not, why.
 *
 * Several things can be wrong with an engine at the same time, and each ends by itself: one that
 * restarts while it is fenced is down and fenced, and still fenced when it answers again. So what
 * is kept of an engine is the set of what keeps it out of rotation. Each event adds to the set, or
 * takes away from it, by a row of the table in upstream_state.c; upstream_move asserts that there
 * is one. The state that is shown follows from the set: the gravest of what is in it.
 *
 * While an update is under way, what it does at an engine is a state of the update
 * (fleet/update/fleet_part.h): the engine stays in rotation unless that fails. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_STATE_H
#define BATON_FLEET_MEMBERS_UPSTREAM_STATE_H

#include <stdbool.h>

enum upstream_state {
    UPSTREAM_JOINING, /* it has not answered yet */
    UPSTREAM_SERVING,
    UPSTREAM_NOT_READY,   /* it says that it would serve nobody */
    UPSTREAM_OUT_OF_STEP, /* its weights, adapters or pause are not what the others have */
    UPSTREAM_DOWN,        /* it does not answer any more */
    UPSTREAM_KEY_REFUSED, /* it does not take our key */
    UPSTREAM_FENCED,      /* only an update or a resync makes it good */
    UPSTREAM_REMOVED,     /* it is no longer configured; what runs there may end */
    UPSTREAM_STATES
};

/* What keeps an engine out of rotation: bits of a set. */
enum upstream_out {
    OUT_NEVER_ANSWERED = 1 << 0, /* of this and the next at most one */
    OUT_NO_ANSWER = 1 << 1,
    OUT_OTHER_WEIGHTS = 1 << 2, /* not the fleet's version, or nobody knows */
    OUT_UPDATE_FAILED = 1 << 3, /* a fence; of this and the next two at most one */
    OUT_SLEEP_MISSED = 1 << 4,  /* it was away when the others were put to sleep: it is awake */
    OUT_WAKE_MISSED = 1 << 5,   /* ... when they were woken: it may sleep */
    OUT_PAUSE_MISSED = 1 << 6,  /* the others stand still, and it may not have been told */
    OUT_KEY_STATUS = 1 << 7,    /* it refuses our key for questions about itself */
    OUT_KEY_WORK = 1 << 8,      /* ... for what clients want */
    OUT_REMOVED = 1 << 9,
    /* These three follow from what else is known of it, and no event changes them. */
    OUT_SILENT = 1 << 10,   /* too many questions in a row without an answer */
    OUT_ADAPTERS = 1 << 11, /* it lacks some, or may */
    OUT_NOT_READY = 1 << 12,

    OUT_UNREACHED = OUT_NEVER_ANSWERED | OUT_NO_ANSWER,
    OUT_FENCES = OUT_UPDATE_FAILED | OUT_SLEEP_MISSED | OUT_WAKE_MISSED,
    OUT_KEY = OUT_KEY_STATUS | OUT_KEY_WORK,
    OUT_UNSOUND = OUT_UNREACHED | OUT_OTHER_WEIGHTS | OUT_FENCES, /* what runs there may be wrong */
    OUT_JOINED = OUT_NEVER_ANSWERED | OUT_OTHER_WEIGHTS           /* a new one */
};

enum upstream_event {
    UPSTREAM_ON_ANSWER,         /* it answered a question about itself */
    UPSTREAM_ON_NO_LISTENER,    /* a connection was refused */
    UPSTREAM_ON_NO_ANSWER,      /* FLEET_MISSES_DOWN times in a row */
    UPSTREAM_ON_STATUS_REFUSED, /* our key, for a question about itself */
    UPSTREAM_ON_WORK_REFUSED,   /* our key, for what a client wants */
    UPSTREAM_ON_WORK_ADMITTED,
    UPSTREAM_ON_IN_STEP,     /* it has the fleet's version */
    UPSTREAM_ON_OUT_OF_STEP, /* it has another, or may have */
    UPSTREAM_ON_PAUSE_MISSED,
    UPSTREAM_ON_PAUSE_TOLD,   /* it was told, or the others go on */
    UPSTREAM_ON_SLEEP_MISSED, /* the others sleep */
    UPSTREAM_ON_WAKE_MISSED,  /* the others were woken */
    UPSTREAM_ON_SLEEP,        /* it was put to sleep with the others */
    UPSTREAM_ON_WAKE,         /* it was woken with the others */
    UPSTREAM_ON_UPDATE_FAILED,
    UPSTREAM_ON_UPDATED,  /* it has taken the new version */
    UPSTREAM_ON_RESYNCED, /* somebody vouches for it */
    UPSTREAM_ON_REMOVED,
    UPSTREAM_EVENTS
};

/* upstream_next - the table: what an event makes of a set. False: it cannot happen there. */
bool upstream_next(unsigned from, enum upstream_event event, unsigned *to);

/* upstream_move - the event happened. Asserts that the table has it, and what comes of it. */
void upstream_move(unsigned *out, enum upstream_event event);

/* upstream_state_of - what is shown of a set.
 * upstream_state_name - static: "serving", "not_ready", "unsynced", "fenced", "refused", "down",
 * "unknown", "removed". */
enum upstream_state upstream_state_of(unsigned out);
const char *upstream_state_name(enum upstream_state state);

#endif
