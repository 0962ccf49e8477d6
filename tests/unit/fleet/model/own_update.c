/* The engine's own update, and its set-up for handles. One that may be open is closed before
 * another is started. One of others is closed by a start only, which is a client's request.
 *
 * An engine whose weights are torn is not told to end its update: a vLLM would serve them. That
 * waits for the next update, which overwrites them all. */
#include "tests/unit/fleet/model/aspects_priv.h"

bool own_is_of_part(const struct engine_now *e)
{
    return e->have->own.state == OWN_NO_ROUTE ||
           (e->have->own.state == OWN_OPEN && e->have->own.update == e->part->update);
}

static bool has_label(const struct engine_now *e, const struct wants *w)
{
    return label_read_next(e, w).is == STEP_SAME && label_set_next(e, w).is == STEP_SAME;
}

static struct step start(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    if (own_is_of_part(e))
        return step_same();
    if (e->part->goal > GOAL_PREPARED)
        return step_stuck(REASON_PART_FAILED);
    if (part_overwrites(e) && !(gate_is_closed(have->pause) && has_label(e, w)))
        return step_blocked(); /* the marker comes first */
    if (have->own.state != OWN_CLOSED)
        return step_call((struct call){.request = REQUEST_CLOSE});
    return step_call((struct call){.request = REQUEST_START, .update = e->part->update});
}

struct step own_next(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    bool two_phase = upstream_caps(e->kind)->two_phase;

    if (e->part->goal == GOAL_FINISHED)
        return step_same(); /* the finish ends it */
    if (part_holds(e) || (e->part->goal == GOAL_OPENED && two_phase))
        return start(e, w);
    if (have->own.state != OWN_OPEN && have->own.state != OWN_UNKNOWN)
        return step_same();
    if (have->weights.state == WEIGHTS_TORN && !two_phase)
        return step_stuck(REASON_FENCED);
    return step_call((struct call){.request = REQUEST_CLOSE});
}

bool own_out(const struct engine_now *e, const struct wants *w)
{
    (void)w;
    return !upstream_caps(e->kind)->two_phase &&
           (e->have->own.state == OWN_OPEN || e->have->own.state == OWN_UNKNOWN);
}

struct step packing_next(const struct engine_now *e, const struct wants *w)
{
    (void)w;
    if (e->part->goal != GOAL_PREPARED || !upstream_caps(e->kind)->keeps_handle_setup ||
        e->part->packing == 0 || e->have->packing == e->part->packing)
        return step_same();
    if (e->have->sleep.weights != SLEEP_AWAKE)
        return step_blocked();
    return step_call((struct call){.request = REQUEST_PACKING, .number = e->part->packing});
}
