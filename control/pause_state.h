/* The record of a pause: its state, its mode, its owner and its lease. A server with its own engine
 * has one (control/pause_controller.h), and a server in front of a fleet has one
 * (fleet/want/fleet_pause.c).
 *
 *     OFF --request--> PENDING --acknowledge--> HELD --request--> REPLACING --acknowledge--> HELD
 *
 * A pause is PENDING until all that it waits for has stopped. While an acknowledged pause is being
 * replaced by another one, the state is REPLACING: the values are those of the new pause, and if it
 * is given up, generation stays paused. A resume ends every state. A resume that takes time (a
 * fleet) is RESUMING meanwhile; one that comes while the first pause is pending ends it at once,
 * and the pause finds out when its engines have answered.
 *
 * Each change of the state is a row of the table in pause_state.c; pause_move asserts that there is
 * one. The owner of the record guards it with its lock. */
#ifndef BATON_CONTROL_PAUSE_STATE_H
#define BATON_CONTROL_PAUSE_STATE_H

#include "base/lease_timer.h"
#include "control/histogram.h"
#include "control/lifecycle.h"

#include <stdbool.h>
#include <stdint.h>

enum { PAUSE_OWNER_MAX = 64, PAUSE_LEASE_S_MAX = 3600, PAUSE_TIMEOUT_S_MAX = 3600 };

enum pause_state {
    PAUSE_OFF,
    PAUSE_PENDING,   /* requested, not acknowledged yet */
    PAUSE_HELD,      /* acknowledged */
    PAUSE_REPLACING, /* acknowledged, and another pause is pending */
    PAUSE_RESUMING,  /* acknowledged, and a resume is under way */
    PAUSE_STATES
};

enum pause_event {
    PAUSE_ON_REQUEST,
    PAUSE_ON_ACKNOWLEDGE,   /* all has stopped */
    PAUSE_ON_GIVE_UP,       /* no request waits for the pause that replaces an acknowledged one */
    PAUSE_ON_RESUME,        /* a resume has begun */
    PAUSE_ON_RESUME_FAILED, /* no engine was asked to resume */
    PAUSE_ON_RESUMED,       /* generation runs */
    PAUSE_EVENTS
};

struct pause_request {
    enum lifecycle_pause mode; /* not PAUSE_NONE */
    bool reject;               /* refuse new generations, instead of queueing them */
    uint32_t lease_s;   /* 0: none, else up to PAUSE_LEASE_S_MAX, from the acknowledgement on */
    uint32_t timeout_s; /* 1..PAUSE_TIMEOUT_S_MAX: longest wait for the acknowledgement */
    char owner[PAUSE_OWNER_MAX + 1];
};

struct pause {
    enum pause_state state;    /* written by pause_move alone */
    enum lifecycle_pause mode; /* PAUSE_NONE: off */
    bool reject;
    char owner[PAUSE_OWNER_MAX + 1]; /* "": off */
    uint64_t since_us;               /* monotonic; of the request that paused generation */
    int64_t since_wall_s;
    struct lease_timer lease;      /* runs while HELD and RESUMING */
    struct lease_timer held_lease; /* of the pause that was acknowledged last */

    uint64_t epoch;                           /* counts every pause and resume */
    uint64_t n_aborted;                       /* generations, by the last pause */
    uint64_t n_pauses, n_expired, paused_us;  /* totals; paused_us without the current pause */
    uint64_t n_ended[HISTOGRAM_N_BOUNDS + 1]; /* pauses, by duration: buckets of histogram_times */
    uint64_t ended_us;                        /* sum of their durations */
};

/* pause_init - off, with all counters 0. */
void pause_init(struct pause *p);

/* pause_begins_anew - does a pause with that mode cover what came since generation was paused? The
 * first one does; one with abort does, unless it repeats one, as to renew its lease. One with wait
 * that follows another does not: what waits for the end of a pause must not run. */
bool pause_begins_anew(const struct pause *before, enum lifecycle_pause mode);

/* pause_set - PAUSE_ON_REQUEST: take the values of the request. Its lease does not run yet.
 * @before  what pause_undo restores */
void pause_set(struct pause *p, const struct pause_request *req, struct pause *before);

/* pause_undo - the pause requested last could not be carried out: restore what was before it. The
 * epoch goes on, as after a pause and its end. */
void pause_undo(struct pause *p, const struct pause *before);

/* pause_acknowledge - PAUSE_ON_ACKNOWLEDGE: the lease starts, unless it runs already. */
void pause_acknowledge(struct pause *p);

/* pause_give_up - PAUSE_ON_GIVE_UP: the pause acknowledged before remains, with the mode of the new
 * one, and with its own lease if the new one has none. */
void pause_give_up(struct pause *p);

/* pause_begin_resume - PAUSE_ON_RESUME. A pending pause with none before it is off at once.
 * pause_fail_resume - PAUSE_ON_RESUME_FAILED: still paused, and the lease runs if there is one.
 * pause_lift - PAUSE_ON_RESUMED: off, whatever it was. */
void pause_begin_resume(struct pause *p);
void pause_fail_resume(struct pause *p);
void pause_lift(struct pause *p);

/* pause_is_pending - does a request wait for the acknowledgement?
 * pause_is_held - was a pause acknowledged, and not lifted since? */
static inline bool pause_is_pending(const struct pause *p)
{
    return p->state == PAUSE_PENDING || p->state == PAUSE_REPLACING;
}

static inline bool pause_is_held(const struct pause *p)
{
    return p->state == PAUSE_HELD || p->state == PAUSE_REPLACING || p->state == PAUSE_RESUMING;
}

/* pause_total_us - time spent paused, with the current pause. */
uint64_t pause_total_us(const struct pause *p);

/* pause_state_name - static: "off", "pending", "held", "replacing", "resuming". */
const char *pause_state_name(enum pause_state state);

#endif
