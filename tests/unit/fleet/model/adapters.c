/* Adapters, one at a time, in the order of the fleet's list. */
#include "tests/unit/fleet/model/aspects_priv.h"

static bool has(const struct adapter_have *have, const struct adapter_want *want)
{
    if (want->revision == 0)
        return have->state == ADAPTER_NONE || have->state == ADAPTER_REFUSED;
    return have->state == ADAPTER_THIS && have->revision == want->revision;
}

/* What may be there under this name is unloaded first, where a load does not replace it. */
static struct call call_for(const struct engine_now *e, const struct wants *w, size_t i)
{
    const struct adapter_have *have = &e->have->adapters[i];
    uint32_t revision = w->adapters[i].revision;
    bool none = have->state == ADAPTER_NONE || have->state == ADAPTER_REFUSED;

    if (revision == 0 || (!none && !upstream_caps(e->kind)->replaces_adapters))
        return (struct call){.request = REQUEST_UNLOAD, .adapter = i};
    return (struct call){.request = REQUEST_LOAD, .adapter = i, .revision = revision};
}

struct step adapters_next(const struct engine_now *e, const struct wants *w)
{
    for (size_t i = 0; i < w->n_adapters; i++) {
        if (has(&e->have->adapters[i], &w->adapters[i]))
            continue;
        if (part_overwrites(e))
            return step_stuck(REASON_UPDATE);
        if (w->sleep != WANT_AWAKE)
            return step_stuck(REASON_ASLEEP);
        if (e->have->sleep.weights == SLEEP_UNKNOWN || e->have->sleep.weights == SLEEP_ASLEEP)
            return sleep_next(e, w).is == STEP_STUCK ? step_stuck(REASON_SLEEP_UNKNOWN)
                                                     : step_blocked();
        return step_call(call_for(e, w, i));
    }
    return step_same();
}

/* One that no engine could load keeps none out; one that was removed does until it is gone. */
bool adapters_out(const struct engine_now *e, const struct wants *w)
{
    for (size_t i = 0; i < w->n_adapters; i++)
        if (!has(&e->have->adapters[i], &w->adapters[i]) &&
            (w->adapters[i].required || w->adapters[i].revision == 0))
            return true;
    return false;
}
