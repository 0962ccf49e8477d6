/* What gate.c and gate_sleep.c share. */
#ifndef BATON_CONTROL_GATE_PRIV_H
#define BATON_CONTROL_GATE_PRIV_H

#include "base/mtx.h"
#include "control/gate.h"

#include <pthread.h>

struct gate {
    struct mtx lock;      /* rank MTX_LIFE; guards down to the blank line */
    struct cnd changed;   /* busy became false, or admission idle */
    bool busy;            /* a pause, resume, sleep or wake is under way */
    struct gate_info now; /* lease_left_us and acknowledged are put in when asked for */
    uint64_t until_us;    /* of the lease; CLOCK_NEVER: none */
    struct gate_wait *waits;
    bool shut;   /* admission's doors, by a pause */
    bool frozen; /* the engine, by a pause with keep */
    bool stands; /* a pause was acknowledged and not lifted since; under which lease: */
    uint32_t stood_lease_s;
    uint64_t stood_until_us;

    struct mtx bell_lock; /* rank MTX_LEAF; guards the next two */
    struct cnd bell;
    bool rung, stopping;

    struct gate_cfg cfg; /* immutable */
    pthread_t thread;    /* the owner's, as the next */
    bool joined;
};

/* gate_begin - wait for operations under way; this is one from now on, until gate_end. */
void gate_begin(struct gate *g);
void gate_end(struct gate *g);

/* gate_doors - admission as the pause says, or open. Within an operation. */
void gate_doors(struct gate *g);

/* gate_idle - no generation has a permit. */
bool gate_idle(const struct gate *g);

#endif
