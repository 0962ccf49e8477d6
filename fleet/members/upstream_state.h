/* Whether an upstream engine gets requests, and if not, why.
 *
 * Several things can be wrong with an engine at the same time, and each ends by itself: one that
 * restarts while it is fenced is down and fenced, and still fenced when it answers again. So what
 * is kept of an engine is the set of what keeps it out of rotation. Each event adds to the set, or
 * takes away from it, by a row of the table in upstream_state.c; upstream_state_apply asserts that
 * there is one. The state that is shown follows from the set: the gravest of what is in it.
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
    UPSTREAM_UNSYNCED,    /* its weights, adapters or pause are not what the others have */
    UPSTREAM_DOWN,        /* it does not answer any more */
    UPSTREAM_AUTH_FAILED, /* it does not take our key */
    UPSTREAM_FENCED,      /* only an update or a resync makes it good */
    UPSTREAM_REMOVED,     /* it is no longer configured; what runs there may end */
    UPSTREAM_STATES
};

/* What keeps an engine out of rotation: bits of a set. */
enum upstream_out_reason {
    OUT_NEVER_REACHED = 1 << 0, /* of this and the next at most one */
    OUT_DOWN = 1 << 1,
    OUT_OTHER_WEIGHTS = 1 << 2, /* not the fleet's version, or nobody knows */
    OUT_UPDATE_FAILED = 1 << 3, /* a fence; of this and the next two at most one */
    OUT_SLEEP_MISSED = 1 << 4,  /* it was away when the others were put to sleep: it is awake */
    OUT_WAKE_MISSED = 1 << 5,   /* ... when they were woken: it may sleep */
    OUT_PAUSE_MISSED = 1 << 6,  /* the others stand still, and it may not have been told */
    OUT_AUTH_PROBE = 1 << 7,    /* it refuses our key for questions about itself */
    OUT_AUTH_REQUEST = 1 << 8,  /* ... for what clients want */
    OUT_REMOVED = 1 << 9,
    /* These three follow from what else is known of it, and no event changes them. */
    OUT_PROBES_FAIL = 1 << 10, /* too many questions in a row without an answer */
    OUT_ADAPTERS = 1 << 11,    /* it lacks some, or may */
    OUT_NOT_READY = 1 << 12,

    OUT_UNREACHABLE = OUT_NEVER_REACHED | OUT_DOWN,
    OUT_FENCES = OUT_UPDATE_FAILED | OUT_SLEEP_MISSED | OUT_WAKE_MISSED,
    OUT_AUTH = OUT_AUTH_PROBE | OUT_AUTH_REQUEST,
    OUT_UNRELIABLE = OUT_UNREACHABLE | OUT_OTHER_WEIGHTS |
                     OUT_FENCES,                       /* what runs there may be wrong */
    OUT_JOINED = OUT_NEVER_REACHED | OUT_OTHER_WEIGHTS /* a new one */
};

enum upstream_event {
    UPSTREAM_ON_PROBE_OK,            /* it answered a question about itself */
    UPSTREAM_ON_CONNECTION_REFUSED,  /* a connection was refused */
    UPSTREAM_ON_DOWN,                /* FLEET_FAILURES_DOWN times in a row */
    UPSTREAM_ON_PROBE_AUTH_FAILED,   /* our key, for a question about itself */
    UPSTREAM_ON_REQUEST_AUTH_FAILED, /* our key, for what a client wants */
    UPSTREAM_ON_REQUEST_AUTH_OK,
    UPSTREAM_ON_SYNCED,   /* it has the fleet's version */
    UPSTREAM_ON_UNSYNCED, /* it has another, or may have */
    UPSTREAM_ON_PAUSE_MISSED,
    UPSTREAM_ON_PAUSE_CLEARED, /* it was told, or the others go on */
    UPSTREAM_ON_SLEEP_MISSED,  /* the others sleep */
    UPSTREAM_ON_WAKE_MISSED,   /* the others were woken */
    UPSTREAM_ON_SLEEP,         /* it was put to sleep with the others */
    UPSTREAM_ON_WAKE,          /* it was woken with the others */
    UPSTREAM_ON_UPDATE_FAILED,
    UPSTREAM_ON_UPDATED,  /* it has taken the new version */
    UPSTREAM_ON_RESYNCED, /* somebody vouches for it */
    UPSTREAM_ON_REMOVED,
    UPSTREAM_EVENTS
};

/* upstream_state_next - the table: what an event makes of a set. False: it cannot happen there. */
bool upstream_state_next(unsigned from, enum upstream_event event, unsigned *to);

/* upstream_state_apply - the event happened. Asserts that the table has it, and what comes of it.
 */
void upstream_state_apply(unsigned *out, enum upstream_event event);

/* upstream_state_of - what is shown of a set.
 * upstream_state_name - static: "serving", "not_ready", "unsynced", "fenced", "refused", "down",
 * "unknown", "removed". */
enum upstream_state upstream_state_of(unsigned out);
const char *upstream_state_name(enum upstream_state state);

#endif
