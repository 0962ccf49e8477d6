/* Pause. Any pause of ours will do, whatever its mode; one of others is left alone, but for a
 * request of a client. A sleep will not do: the engine would run once it is woken, whatever it has.
 *
 * A resume must not come too early at an engine that overwrites its weights: it needs whole
 * weights that the fleet has or had, its own update closed, its label, and an attempt to empty its
 * caches. Only an attempt: an SGLang may refuse while it holds requests, which end by the resume.
 */
#include "tests/unit/fleet/model/aspects_priv.h"

static struct step close_gate(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    bool for_part = w->pause == GATE_RUNNING && part_overwrites(e);
    bool ready = have->sleep.weights == SLEEP_AWAKE && (have->label.read || have->label.no_route) &&
                 packing_next(e, w).is == STEP_SAME;

    if (gate_is_closed(have->pause))
        return step_same();
    if (for_part && e->part->goal > GOAL_PREPARED)
        return step_stuck(REASON_PART_FAILED);
    if (for_part && !ready)
        return step_blocked(); /* it goes on generating until all is ready */
    return step_call((struct call){.request = REQUEST_PAUSE, .mode = want_gate(e, w)});
}

static struct step open_gate(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    bool overwrites = !upstream_caps(e->kind)->two_phase;

    if (have->pause == GATE_RUNNING || have->pause == GATE_NOT_OURS)
        return step_same();
    if (!overwrites)
        return step_call((struct call){.request = REQUEST_RESUME});
    if (have->weights.state == WEIGHTS_TORN)
        return step_stuck(REASON_FENCED);
    if (have->weights.state == WEIGHTS_SERIAL && have->weights.serial > w->version.serial)
        return step_stuck(REASON_OTHER_WEIGHTS); /* the update that brought them failed */
    if (own_next(e, w).is != STEP_SAME || label_read_next(e, w).is != STEP_SAME ||
        label_set_next(e, w).is != STEP_SAME)
        return step_blocked();
    if (have->caches.tried != have->caches.needed)
        return step_blocked();
    return step_call((struct call){.request = REQUEST_RESUME});
}

struct step pause_next(const struct engine_now *e, const struct wants *w)
{
    return want_gate(e, w) == GATE_RUNNING ? open_gate(e, w) : close_gate(e, w);
}

bool pause_out(const struct engine_now *e, const struct wants *w)
{
    return want_gate(e, w) != GATE_RUNNING ||
           (e->have->pause != GATE_RUNNING && e->have->pause != GATE_NOT_OURS);
}
