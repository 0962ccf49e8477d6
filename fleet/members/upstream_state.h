/* Whether an engine is in rotation, that is, whether it gets requests; and if not, why.
 *
 * Several things can be wrong with an engine at the same time, and each ends on its own: a fenced
 * engine that restarts is down and fenced, and is still fenced when it answers again. So the state
 * of an engine is kept as the set of the reasons that keep it out of rotation. Each event adds
 * reasons to the set, or removes some, by a row of the table in upstream_state.c;
 * upstream_state_apply asserts that there is such a row. The state that users see follows from the
 * set: that of the gravest reason in it.
 *
 * The progress of an update at an engine is kept elsewhere (fleet/update/fleet_part.h): the engine
 * stays in rotation unless the update fails there. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_STATE_H
#define BATON_FLEET_MEMBERS_UPSTREAM_STATE_H

#include <stdbool.h>

enum upstream_state {
    UPSTREAM_JOINING, /* it has not answered yet */
    UPSTREAM_SERVING,
    UPSTREAM_NOT_READY,   /* it reports that it cannot serve */
    UPSTREAM_UNSYNCED,    /* its weights, adapters or pause differ from those of the others */
    UPSTREAM_DOWN,        /* it does not answer any more */
    UPSTREAM_AUTH_FAILED, /* it rejects our key */
    UPSTREAM_FENCED,      /* only an update or a resync ends this */
    UPSTREAM_REMOVED,     /* not configured any more; requests that run there may finish */
    UPSTREAM_STATES
};

/* What keeps an engine out of rotation: bits of a set. */
enum upstream_out_reason {
    OUT_NEVER_REACHED = 1 << 0, /* at most one of this and OUT_DOWN */
    OUT_DOWN = 1 << 1,
    OUT_OTHER_WEIGHTS = 1 << 2, /* not the fleet's version, or not known */
    OUT_UPDATE_FAILED = 1 << 3, /* a fence; at most one of this and the next two */
    OUT_SLEEP_MISSED = 1 << 4,  /* unreachable when the others were put to sleep: it is awake */
    OUT_WAKE_MISSED = 1 << 5,   /* unreachable when the others were woken: it may sleep */
    OUT_AUTH_PROBE = 1 << 7,    /* it rejects our key for probes */
    OUT_AUTH_REQUEST = 1 << 8,  /* it rejects our key for requests of clients */
    OUT_REMOVED = 1 << 9,
    /* These are derived from other members (fleet_out_reasons); no event changes them. */
    OUT_PROBES_FAIL = 1 << 10, /* too many status probes in a row have failed */
    OUT_ADAPTERS = 1 << 11,    /* it lacks adapters, or may */
    OUT_NOT_READY = 1 << 12,
    OUT_PAUSE_MISSED = 1 << 6, /* the others are quiesced, and it may not be */

    OUT_UNREACHABLE = OUT_NEVER_REACHED | OUT_DOWN,
    OUT_FENCES = OUT_UPDATE_FAILED | OUT_SLEEP_MISSED | OUT_WAKE_MISSED,
    OUT_AUTH = OUT_AUTH_PROBE | OUT_AUTH_REQUEST,
    OUT_UNRELIABLE = OUT_UNREACHABLE | OUT_OTHER_WEIGHTS | OUT_FENCES, /* replies may be wrong */
    OUT_JOINED = OUT_NEVER_REACHED | OUT_OTHER_WEIGHTS                 /* a new engine */
};

/* Kinds of reasons that have one text together; the gravest first. */
enum upstream_why {
    WHY_FENCED,
    WHY_KEY_PROBE,
    WHY_KEY_REQUEST,
    WHY_WEIGHTS,
    WHY_PAUSE,
    WHY_ADAPTERS,
    WHY_NOT_READY,
    UPSTREAM_WHYS
};

enum upstream_event {
    UPSTREAM_ON_PROBE_OK,
    UPSTREAM_ON_CONNECTION_REFUSED,
    UPSTREAM_ON_DOWN,                /* FLEET_FAILURES_DOWN failures in a row */
    UPSTREAM_ON_PROBE_AUTH_FAILED,   /* our key was rejected for a probe */
    UPSTREAM_ON_REQUEST_AUTH_FAILED, /* our key was rejected for a request of a client */
    UPSTREAM_ON_REQUEST_AUTH_OK,
    UPSTREAM_ON_SYNCED,       /* it has the fleet's version */
    UPSTREAM_ON_UNSYNCED,     /* it has another version, or may have */
    UPSTREAM_ON_SLEEP_MISSED, /* the others were put to sleep */
    UPSTREAM_ON_WAKE_MISSED,  /* the others were woken */
    UPSTREAM_ON_SLEEP,        /* it was put to sleep with the others */
    UPSTREAM_ON_WAKE,         /* it was woken with the others */
    UPSTREAM_ON_UPDATE_FAILED,
    UPSTREAM_ON_UPDATED,  /* it has the new version */
    UPSTREAM_ON_RESYNCED, /* an operator declares that its weights are right */
    UPSTREAM_ON_REMOVED,
    UPSTREAM_EVENTS
};

/* upstream_state_next - look up what an event makes of a set. Returns: false if the event cannot
 * happen there. */
bool upstream_state_next(unsigned from, enum upstream_event event, unsigned *to);

/* upstream_state_apply - change the set by an event. Asserts that the table has the event, and that
 * the result has at most one of each exclusive group. */
void upstream_state_apply(unsigned *out, enum upstream_event event);

/* upstream_state_of - the state that users see for a set.
 * upstream_state_name - static: "serving", "not_ready", "unsynced", "fenced", "refused", "down",
 * "unknown", "removed". */
enum upstream_state upstream_state_of(unsigned out);
const char *upstream_state_name(enum upstream_state state);

#endif
