/* The state behind control/pause_controller.h, and the functions that its files share. */
#ifndef BATON_CONTROL_PAUSE_CONTROLLER_PRIV_H
#define BATON_CONTROL_PAUSE_CONTROLLER_PRIV_H

#include "base/mtx.h"
#include "control/pause_controller.h"

#include <pthread.h>

struct pause_controller {
    struct mtx lock;    /* rank MTX_LIFE; guards down to the blank line */
    struct cnd changed; /* busy became false, or admission idle */
    bool busy;          /* a pause, resume, sleep or wake is under way */
    struct pause pause;
    struct pause_controller_wait *waits;
    bool admission_held; /* a pause holds admission */
    uint64_t line;       /* of generations_draw_line: which requests came before the pause; of the
                            operation under way */
    bool frozen;         /* a pause with keep has frozen the engine */

    struct mtx wakeup_lock; /* rank MTX_LEAF; guards the next two */
    struct cnd wakeup;
    bool woken, stopping;

    struct pause_controller_cfg cfg; /* immutable */
    pthread_t thread;                /* the owner's, like the next */
    bool joined;
};

/* pause_controller_begin - wait until no operation is under way, then begin one.
 * pause_controller_end - end it, and wake the thread. */
void pause_controller_begin(struct pause_controller *g);
void pause_controller_end(struct pause_controller *g);

/* pause_controller_apply_admission - hold admission as the pause requires, or open it. Within an
 * operation only. */
void pause_controller_apply_admission(struct pause_controller *g);

/* pause_controller_idle - no generation has a permit, and none of those that came before the line
 * is going to get one. */
bool pause_controller_idle(const struct pause_controller *g);

/* pause_controller_take_waits_locked - take all waiting requests from the list, each with that
 * error.
 * pause_controller_answer - call their done. No lock held. */
struct pause_controller_wait *pause_controller_take_waits_locked(struct pause_controller *g,
                                                                 const struct err *why);
void pause_controller_answer(struct pause_controller *g, struct pause_controller_wait *all);

/* pause_controller_lift - let generation run; within an operation only. @why  the error of requests
 * that wait for the pause. Returns: was it paused? */
bool pause_controller_lift(struct pause_controller *g, const char *why);

#endif
