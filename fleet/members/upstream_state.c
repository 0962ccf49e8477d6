/* The events of an engine and what they change. An event without a row cannot happen. */
#include "fleet/members/upstream_state.h"

#include <assert.h>
#include <stddef.h>

struct rule {
    enum upstream_event event;
    unsigned needs,
        bars; /* applies to sets with any of `needs` (0: all sets) and with none of `bars` */
    unsigned adds, takes;
};

/* The first row of the event that applies is used. */
static const struct rule rules[] = {
    /* does it answer? */
    {UPSTREAM_ON_PROBE_OK, 0, 0, 0, OUT_UNREACHABLE | OUT_AUTH_PROBE},
    {UPSTREAM_ON_CONNECTION_REFUSED, OUT_NEVER_REACHED, 0, 0, 0}, /* it may still be starting */
    {UPSTREAM_ON_CONNECTION_REFUSED, 0, OUT_NEVER_REACHED, OUT_DOWN, 0},
    {UPSTREAM_ON_DOWN, 0, 0, OUT_DOWN, OUT_NEVER_REACHED},

    /* does it accept our key? */
    {UPSTREAM_ON_PROBE_AUTH_FAILED, 0, 0, OUT_AUTH_PROBE, 0},
    {UPSTREAM_ON_REQUEST_AUTH_FAILED, 0, 0, OUT_AUTH_REQUEST, 0},
    {UPSTREAM_ON_REQUEST_AUTH_OK, 0, 0, 0, OUT_AUTH_REQUEST},

    /* Requests at a removed engine finish on the version that they began with, unless its process
     * ends. */
    {UPSTREAM_ON_SYNCED, 0, OUT_REMOVED, 0, OUT_OTHER_WEIGHTS},
    {UPSTREAM_ON_UNSYNCED, 0, 0, OUT_OTHER_WEIGHTS, 0},

    /* A fence stays until its cause is repaired; what the engine misses later does not change it.
     * If it is put to sleep or woken with the others later, its sleep state is known, but not
     * whether it has their weights. */
    {UPSTREAM_ON_SLEEP_MISSED, 0, OUT_FENCES, OUT_SLEEP_MISSED, 0},
    {UPSTREAM_ON_SLEEP_MISSED, OUT_FENCES, 0, 0, 0},
    {UPSTREAM_ON_WAKE_MISSED, 0, OUT_FENCES, OUT_WAKE_MISSED, 0},
    {UPSTREAM_ON_WAKE_MISSED, OUT_FENCES, 0, 0, 0},
    {UPSTREAM_ON_SLEEP, OUT_SLEEP_MISSED | OUT_WAKE_MISSED, 0, OUT_WAKE_MISSED, OUT_SLEEP_MISSED},
    {UPSTREAM_ON_SLEEP, 0, OUT_SLEEP_MISSED | OUT_WAKE_MISSED, 0, 0},
    {UPSTREAM_ON_WAKE, OUT_SLEEP_MISSED | OUT_WAKE_MISSED, 0, OUT_SLEEP_MISSED, OUT_WAKE_MISSED},
    {UPSTREAM_ON_WAKE, 0, OUT_SLEEP_MISSED | OUT_WAKE_MISSED, 0, 0},
    {UPSTREAM_ON_UPDATE_FAILED, 0, 0, OUT_UPDATE_FAILED, OUT_SLEEP_MISSED | OUT_WAKE_MISSED},
    {UPSTREAM_ON_UPDATED, 0, 0, 0, OUT_FENCES | OUT_OTHER_WEIGHTS},
    {UPSTREAM_ON_RESYNCED, 0, OUT_UPDATE_FAILED | OUT_REMOVED, 0,
     OUT_FENCES | OUT_OTHER_WEIGHTS | OUT_AUTH_REQUEST},

    {UPSTREAM_ON_REMOVED, 0, OUT_REMOVED, OUT_REMOVED, 0},
};

/* The gravest reason first. */
static const struct {
    unsigned any;
    enum upstream_state state;
} shown[] = {
    {OUT_REMOVED, UPSTREAM_REMOVED},
    {OUT_FENCES, UPSTREAM_FENCED},
    {OUT_AUTH, UPSTREAM_AUTH_FAILED},
    {OUT_NEVER_REACHED, UPSTREAM_JOINING},
    {OUT_DOWN, UPSTREAM_DOWN},
    {OUT_OTHER_WEIGHTS | OUT_PAUSE_MISSED | OUT_PROBES_FAIL | OUT_ADAPTERS, UPSTREAM_UNSYNCED},
    {OUT_NOT_READY, UPSTREAM_NOT_READY},
};

bool upstream_state_next(unsigned from, enum upstream_event event, unsigned *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct rule *r = &rules[i];

        if (r->event != event || (r->needs != 0 && (from & r->needs) == 0) || (from & r->bars) != 0)
            continue;
        *to = (from & ~r->takes) | r->adds;
        return true;
    }
    return false;
}

static bool at_most_one(unsigned set)
{
    return (set & (set - 1)) == 0;
}

void upstream_state_apply(unsigned *out, enum upstream_event event)
{
    bool allowed = upstream_state_next(*out, event, out);

    assert(allowed);
    assert(at_most_one(*out & OUT_UNREACHABLE) && at_most_one(*out & OUT_FENCES));
}

enum upstream_state upstream_state_of(unsigned out)
{
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        if (out & shown[i].any)
            return shown[i].state;
    return UPSTREAM_SERVING;
}

const char *upstream_state_name(enum upstream_state state)
{
    static const char *const names[UPSTREAM_STATES] = {
        [UPSTREAM_JOINING] = "unknown",     [UPSTREAM_SERVING] = "serving",
        [UPSTREAM_NOT_READY] = "not_ready", [UPSTREAM_UNSYNCED] = "unsynced",
        [UPSTREAM_DOWN] = "down",           [UPSTREAM_AUTH_FAILED] = "refused",
        [UPSTREAM_FENCED] = "fenced",       [UPSTREAM_REMOVED] = "removed",
    };

    return names[state];
}
