/* What pause_controller.c and pause_controller_sleep.c share. */
#ifndef BATON_CONTROL_PAUSE_CONTROLLER_PRIV_H
#define BATON_CONTROL_PAUSE_CONTROLLER_PRIV_H

#include "base/mtx.h"
#include "control/pause_controller.h"

#include <pthread.h>

struct pause_controller {
    struct mtx lock;                  /* rank MTX_LIFE; guards down to the blank line */
    struct cnd changed;               /* busy became false, or admission idle */
    bool busy;                        /* a pause, resume, sleep or wake is under way */
    struct pause_controller_info now; /* lease_left_us and acknowledged are put in when asked for */
    uint64_t until_us;                /* of the lease; CLOCK_NEVER: none */
    struct pause_controller_wait *waits;
    bool shut;   /* admission's listeners, by a pause */
    bool frozen; /* the engine, by a pause with keep */
    bool stands; /* a pause was acknowledged and not lifted since; under which lease: */
    uint32_t stood_lease_s;
    uint64_t stood_until_us;

    struct mtx wakeup_lock; /* rank MTX_LEAF; guards the next two */
    struct cnd wakeup;
    bool rung, stopping;

    struct pause_controller_cfg cfg; /* immutable */
    pthread_t thread;                /* the owner's, as the next */
    bool joined;
};

/* pause_controller_begin - wait for operations under way; this is one from now on, until
 * pause_controller_end. */
void pause_controller_begin(struct pause_controller *g);
void pause_controller_end(struct pause_controller *g);

/* pause_controller_apply_admission - admission as the pause says, or open. Within an operation. */
void pause_controller_apply_admission(struct pause_controller *g);

/* pause_controller_idle - no generation has a permit. */
bool pause_controller_idle(const struct pause_controller *g);

#endif
