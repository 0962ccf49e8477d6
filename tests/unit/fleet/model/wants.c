#include "tests/unit/fleet/model/wants.h"

#include <string.h>

bool part_holds(const struct engine_now *e)
{
    return e->part->goal >= GOAL_PREPARED && e->part->goal <= GOAL_FINISHED;
}

bool part_overwrites(const struct engine_now *e)
{
    return part_holds(e) && !upstream_caps(e->kind)->two_phase;
}

bool is_fenced(const struct engine_have *have)
{
    return have->weights.state == WEIGHTS_TORN || have->weights.state == WEIGHTS_WERE_DROPPED ||
           have->weights.state == WEIGHTS_WRONG;
}

enum gate_fact want_gate(const struct engine_now *e, const struct wants *w)
{
    if (w->pause != GATE_RUNNING)
        return w->pause;
    if (part_overwrites(e) || (w->pauses_fenced && is_fenced(e->have)))
        return GATE_KEPT;
    return GATE_RUNNING;
}

bool serves_version(const struct engine_now *e, const struct wants *w)
{
    return w->version.decided && e->have->weights.state == WEIGHTS_SERIAL &&
           e->have->weights.serial == w->version.serial;
}

void wants_of_removed(struct wants *out, const struct wants *w)
{
    *out = *w;
    out->pause = GATE_RUNNING;
    out->sleep = WANT_WEIGHTS; /* neither put to sleep nor woken further than its weights */
    out->pauses_fenced = out->stage = false;
    out->proof = 0;
    out->n_adapters = 0;
}

/* Torn weights keep the marker: it tells the next server so, too. */
static const char *label_without_part(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    if (serves_version(e, w))
        return w->version.label;
    if (have->weights.state == WEIGHTS_TORN || have->weights.state == WEIGHTS_UNKNOWN)
        return NULL;
    if (label_is_marker(have->label.text) && have->label.old[0] != '\0')
        return have->label.old;
    return NULL;
}

const char *want_label(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    if (!part_holds(e))
        return label_without_part(e, w);
    if (!part_overwrites(e))
        return NULL; /* its finish gives it one */
    if (e->part->goal == GOAL_FINISHED && have->weights.state == WEIGHTS_SERIAL &&
        have->weights.serial == e->part->serial)
        return e->part->label;
    return e->part->marker;
}
