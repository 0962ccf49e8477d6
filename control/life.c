/* Life cycle of the process: one word that only moves forward. */
#include "control/life.h"

#include "base/clock.h"

#include <assert.h>

void life_init(struct life *l)
{
    id_make(l->boot_id);
    l->started_us = clock_now_us();
    l->started_wall_s = clock_wall_s();
    atomic_init(&l->state, LIFE_STARTING);
}

enum life_state life_state(const struct life *l)
{
    return (enum life_state)atomic_load_explicit(&l->state, memory_order_acquire);
}

void life_set(struct life *l, enum life_state state)
{
    int was = atomic_exchange_explicit(&l->state, (int)state, memory_order_release);

    assert(was < (int)state);
    (void)was;
}

const char *life_state_name(enum life_state state)
{
    switch (state) {
    case LIFE_STARTING:
        return "starting";
    case LIFE_SERVING:
        return "serving";
    case LIFE_LEAVING:
        return "leaving";
    case LIFE_DRAINING:
        break;
    }
    return "draining";
}
