/* Whether an engine is in rotation, that is, whether it gets requests; and if not, why.
 *
 * Several things can be wrong with an engine at the same time, and each ends on its own: a fenced
 * engine that restarts is down and fenced, and is still fenced when it answers again. So there is a
 * set of reasons, each with its own text. The set is derived (reasons_derive) from what is known of
 * the engine and from what the fleet serves; nothing else takes an engine out of rotation. The
 * state that users see is that of the gravest reason.
 *
 * The progress of an update at an engine is kept elsewhere (fleet/update/fleet_part.h): the engine
 * stays in rotation unless the update fails there. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_STATE_H
#define BATON_FLEET_MEMBERS_UPSTREAM_STATE_H

enum upstream_state {
    UPSTREAM_JOINING, /* it has not answered yet */
    UPSTREAM_SERVING,
    UPSTREAM_NOT_READY, /* it reports that it cannot serve */
    UPSTREAM_UNSYNCED,  /* its weights, adapters, pause or sleep differ from those of the others */
    UPSTREAM_DOWN,      /* it does not answer any more */
    UPSTREAM_AUTH_FAILED, /* it rejects our key */
    UPSTREAM_FENCED,      /* only an update or a resync ends this */
    UPSTREAM_REMOVED,     /* not configured any more; requests that run there may finish */
    UPSTREAM_STATES
};

/* What keeps an engine out of rotation; the gravest first. upstream_state.c has a row for each. */
enum upstream_reason {
    REASON_REMOVED,
    REASON_BROKEN,  /* a change of its weights failed, or an earlier server left one unfinished,
                       or they were found wrong: until an update that succeeds there */
    REASON_DROPPED, /* its weights were */
    REASON_SLEEP_MISSED,  /* or a wake, by one that hides whether it sleeps: until an update or a
                             resync */
    REASON_AUTH_PROBE,    /* it rejects our key for probes */
    REASON_AUTH_REQUEST,  /* ... for requests of clients */
    REASON_NEVER_REACHED, /* it has not answered since it was added */
    REASON_DOWN,
    REASON_ASLEEP,        /* it may be, and the others are awake */
    REASON_NOT_RESUMED,   /* the others were, and it may still be paused */
    REASON_OTHER_WEIGHTS, /* not the fleet's version, or not known */
    REASON_PAUSE_MISSED,  /* the others are quiesced (by a pause or a sleep), and it may not be:
                             until they resume */
    REASON_PROBES_FAIL,   /* FLEET_PROBE_FAILURES_MAX in a row, though it answers clients: so its
                             version is not known */
    REASON_ADAPTERS,      /* it lacks adapters, or has stale caches */
    REASON_NOT_READY, /* it reports that it cannot serve: it starts, drains, or has no weights */
    UPSTREAM_REASONS
};

/* Sets of reasons. */
#define REASON_BIT(reason) (1u << (reason))
#define OUT_FENCES                                                                                 \
    (REASON_BIT(REASON_BROKEN) | REASON_BIT(REASON_DROPPED) | REASON_BIT(REASON_SLEEP_MISSED))
#define OUT_AUTH          (REASON_BIT(REASON_AUTH_PROBE) | REASON_BIT(REASON_AUTH_REQUEST))
#define OUT_UNREACHABLE   (REASON_BIT(REASON_NEVER_REACHED) | REASON_BIT(REASON_DOWN))
#define OUT_WRONG_WEIGHTS (OUT_FENCES | REASON_BIT(REASON_OTHER_WEIGHTS))
#define OUT_STANDS_STILL  (REASON_BIT(REASON_ASLEEP) | REASON_BIT(REASON_NOT_RESUMED))
#define OUT_UNRELIABLE    (OUT_UNREACHABLE | OUT_WRONG_WEIGHTS) /* replies may be wrong */

struct fleet;
struct upstream;

/* reasons_derive - why the engine is out of rotation, as a set of bits. Pure. The fleet's lock is
 * held. */
unsigned reasons_derive(const struct fleet *f, const struct upstream *u);

/* upstream_state_of - the state that users see for a set.
 * upstream_state_name - static: "serving", "not_ready", "unsynced", "fenced", "refused", "down",
 * "unknown", "removed". */
enum upstream_state upstream_state_of(unsigned out);
const char *upstream_reason_name(enum upstream_reason reason); /* static: "pause_missed" */
const char *upstream_state_name(enum upstream_state state);

#endif
