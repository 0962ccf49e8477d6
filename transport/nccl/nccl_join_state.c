/* The moves of a join. What is not a row cannot happen. */
#include "transport/nccl/nccl_join_state.h"

#include <assert.h>
#include <stddef.h>

#define BIT(x) (1u << (x))

static const struct {
    unsigned from; /* set */
    enum join_event event;
    enum join_state to;
} rules[] = {
    {BIT(JOIN_CONNECTING), JOIN_ON_COUNTED, JOIN_COUNTED},
    {BIT(JOIN_ENDING), JOIN_ON_COUNTED, JOIN_ENDING},
    {BIT(JOIN_CONNECTING) | BIT(JOIN_COUNTED), JOIN_ON_JOINED, JOIN_JOINED},
    {BIT(JOIN_ENDING), JOIN_ON_JOINED, JOIN_ENDING},
    {BIT(JOIN_CONNECTING) | BIT(JOIN_COUNTED) | BIT(JOIN_JOINED), JOIN_ON_END, JOIN_ENDING},
    {BIT(JOIN_ENDING), JOIN_ON_CLOSE, JOIN_CLOSING},
    /* ENDING: no group was made. */
    {BIT(JOIN_ENDING) | BIT(JOIN_CLOSING), JOIN_ON_OVER, JOIN_OVER},
};

/* The state after an event. False: the event cannot happen there. */
static bool join_next(enum join_state from, enum join_event event, enum join_state *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((rules[i].from & BIT(from)) == 0 || rules[i].event != event)
            continue;
        *to = rules[i].to;
        return true;
    }
    return false;
}

void join_move(enum join_state *state, enum join_event event)
{
    bool allowed = join_next(*state, event, state);

    assert(allowed);
    (void)allowed;
}
