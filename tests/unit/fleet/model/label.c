/* The label that an engine reports: read, and set. From before the first byte of an update to its
 * end it is the marker of that update, so that a restart, another client and a crash of this server
 * can be seen. A label is not set before the one that is there was read. */
#include "tests/unit/fleet/model/aspects_priv.h"

#include <string.h>

/* While an update holds it, a label is read when a process may have been replaced: before the
 * pause, before what arrived counts, and before each further chunk where no reply names the
 * process. */
static bool part_needs_label(const struct engine_now *e)
{
    switch (e->part->goal) {
    case GOAL_PREPARED:
    case GOAL_VERIFIED:
    case GOAL_FINISHED:
        return true;
    case GOAL_SENT:
        return !upstream_caps(e->kind)->status_names_process;
    default:
        return false;
    }
}

struct step label_read_next(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    (void)w;
    if (have->label.no_route || (have->label.read && have->weights.state != WEIGHTS_UNKNOWN))
        return step_same();
    if (part_holds(e) && (upstream_caps(e->kind)->two_phase || !part_needs_label(e)))
        return step_same();
    return step_call((struct call){.request = REQUEST_READ_LABEL});
}

/* The marker is set in an engine that stands still: its replies name the version of each token. */
static bool may_set(const struct engine_now *e)
{
    if (!part_overwrites(e) || e->part->goal == GOAL_FINISHED)
        return true;
    return gate_is_closed(e->have->pause);
}

struct step label_set_next(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    const char *label = want_label(e, w);
    struct step step;

    if (label == NULL || have->label.no_route || strcmp(label, have->label.text) == 0)
        return step_same();
    if (label == e->part->marker && e->part->goal > GOAL_PREPARED)
        return step_stuck(REASON_PART_FAILED); /* another client, or another process */
    if (!have->label.read || !may_set(e))
        return step_blocked();
    step = step_call((struct call){.request = REQUEST_SET_LABEL, .label = label});
    if (e->part->goal == GOAL_FINISHED && e->kind == UPSTREAM_SGLANG &&
        have->caches.emptied == have->caches.needed && have->caches.second != have->caches.needed)
        step.calls[step.n_calls++] = (struct call){.request = REQUEST_RESET_STORAGE};
    return step;
}

bool label_out(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    return !have->label.no_route &&
           (!have->label.read || strcmp(have->label.text, w->version.label) != 0);
}
