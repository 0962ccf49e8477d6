/* The events of an upstream engine and what they change. What is not a row cannot happen. */
#include "fleet/members/upstream_state.h"

#include <assert.h>
#include <stddef.h>

struct rule {
    enum upstream_event event;
    unsigned needs,
        bars; /* it applies to sets with one of these (0: any), and with none of those */
    unsigned adds, takes;
};

/* Of one event the first row that applies. */
static const struct rule rules[] = {
    /* does it answer? */
    {UPSTREAM_ON_ANSWER, 0, 0, 0, OUT_UNREACHED | OUT_KEY_STATUS},
    {UPSTREAM_ON_NO_LISTENER, OUT_NEVER_ANSWERED, 0, 0, 0}, /* it may still be starting */
    {UPSTREAM_ON_NO_LISTENER, 0, OUT_NEVER_ANSWERED, OUT_NO_ANSWER, 0},
    {UPSTREAM_ON_NO_ANSWER, 0, 0, OUT_NO_ANSWER, OUT_NEVER_ANSWERED},

    /* does it take our key? */
    {UPSTREAM_ON_STATUS_REFUSED, 0, 0, OUT_KEY_STATUS, 0},
    {UPSTREAM_ON_WORK_REFUSED, 0, 0, OUT_KEY_WORK, 0},
    {UPSTREAM_ON_WORK_ADMITTED, 0, 0, 0, OUT_KEY_WORK},

    /* What runs at one that is removed ends on the version that it began with, unless that is lost
     * with its process. */
    {UPSTREAM_ON_IN_STEP, 0, OUT_REMOVED, 0, OUT_OTHER_WEIGHTS},
    {UPSTREAM_ON_OUT_OF_STEP, 0, 0, OUT_OTHER_WEIGHTS, 0},

    {UPSTREAM_ON_PAUSE_MISSED, 0, 0, OUT_PAUSE_MISSED, 0},
    {UPSTREAM_ON_PAUSE_TOLD, 0, 0, 0, OUT_PAUSE_MISSED},

    /* A fence stays until its cause is made good: what was missed after it changes nothing. What it
     * does with the others afterwards is known, but not that it has their weights. */
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
     OUT_FENCES | OUT_OTHER_WEIGHTS | OUT_KEY_WORK},

    {UPSTREAM_ON_REMOVED, 0, OUT_REMOVED, OUT_REMOVED, 0},
};

/* The gravest first. */
static const struct {
    unsigned any;
    enum upstream_state state;
} shown[] = {
    {OUT_REMOVED, UPSTREAM_REMOVED},
    {OUT_FENCES, UPSTREAM_FENCED},
    {OUT_KEY, UPSTREAM_KEY_REFUSED},
    {OUT_NEVER_ANSWERED, UPSTREAM_JOINING},
    {OUT_NO_ANSWER, UPSTREAM_DOWN},
    {OUT_OTHER_WEIGHTS | OUT_PAUSE_MISSED | OUT_SILENT | OUT_ADAPTERS, UPSTREAM_OUT_OF_STEP},
    {OUT_NOT_READY, UPSTREAM_NOT_READY},
};

bool upstream_next(unsigned from, enum upstream_event event, unsigned *to)
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

void upstream_move(unsigned *out, enum upstream_event event)
{
    bool allowed = upstream_next(*out, event, out);

    assert(allowed);
    assert(at_most_one(*out & OUT_UNREACHED) && at_most_one(*out & OUT_FENCES));
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
        [UPSTREAM_NOT_READY] = "not_ready", [UPSTREAM_OUT_OF_STEP] = "unsynced",
        [UPSTREAM_DOWN] = "down",           [UPSTREAM_KEY_REFUSED] = "refused",
        [UPSTREAM_FENCED] = "fenced",       [UPSTREAM_REMOVED] = "removed",
    };

    return names[state];
}
