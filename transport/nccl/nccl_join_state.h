/* The states of one join of a trainer's group (transport/nccl/nccl_join.h).
 *
 *     CONNECTING --> COUNTED --> JOINED
 *          \____________|___________/
 *                       v
 *                    ENDING --> CLOSING --> OVER
 *
 * With a unique id in the invitation there is no store, and so no COUNTED. The joiner may find that
 * it was counted, or has joined, after the end was decided: the join then still ends. Each change
 * is a row of the table in nccl_join_state.c; join_move asserts that there is one. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_JOIN_STATE_H
#define BATON_TRANSPORT_NCCL_NCCL_JOIN_STATE_H

#include <stdbool.h>

enum join_state {
    JOIN_CONNECTING, /* in the rendezvous, or in NCCL's init */
    JOIN_COUNTED,    /* counted in the trainer's store; waits for the id and the other ranks */
    JOIN_JOINED,
    JOIN_ENDING,  /* it failed or was left: no new source is opened */
    JOIN_CLOSING, /* the group is closed as soon as no call uses it */
    JOIN_OVER,    /* nothing is left but the outcome */
    JOIN_STATES
};

enum join_event {
    JOIN_ON_COUNTED,
    JOIN_ON_JOINED,
    JOIN_ON_END,   /* a failure, or a request to leave */
    JOIN_ON_CLOSE, /* the joiner has ended; the supervisor takes the group down */
    JOIN_ON_OVER,
    JOIN_EVENTS
};

/* join_move - the event happened. Asserts that the table has it. */
void join_move(enum join_state *state, enum join_event event);

/* join_has_ended - was the end decided? */
static inline bool join_has_ended(enum join_state state)
{
    return state >= JOIN_ENDING;
}

#endif
