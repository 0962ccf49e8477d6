/* Weights. The only requests that may neither be repeated nor be sent from unknown: twice the same
 * tensors would count twice, and a finish would make half of an update look whole. */
#include "tests/unit/fleet/model/aspects_priv.h"

#include <string.h>

static bool has_marker(const struct engine_now *e)
{
    const struct engine_have *have = e->have;
    bool known = have->label.read ||
                 (e->part->goal == GOAL_SENT && upstream_caps(e->kind)->status_names_process);

    return have->label.no_route || (known && strcmp(have->label.text, e->part->marker) == 0);
}

/* Does it take part, known in all that the update rests on? */
static bool may_change(const struct engine_now *e)
{
    const struct engine_have *have = e->have;

    if (!own_is_of_part(e) || have->sleep.weights != SLEEP_AWAKE)
        return false;
    return !part_overwrites(e) || (gate_is_closed(have->pause) && has_marker(e));
}

static struct step send_next(const struct engine_now *e, const struct wants *w)
{
    const struct part_want *p = e->part;

    if (p->n_sent >= p->n_wanted)
        return step_same();
    if (p->groups & ~e->have->groups)
        return step_stuck(REASON_PART_FAILED); /* it is not in the trainer's group */
    if (label_read_next(e, w).is == STEP_CALL)
        return step_blocked();
    if (!may_change(e))
        return step_stuck(REASON_PART_FAILED);
    return step_call((struct call){.request = REQUEST_TENSORS, .number = p->n_sent + 1});
}

static struct step verify_next(const struct engine_now *e)
{
    if (!upstream_caps(e->kind)->two_phase || e->part->verified)
        return step_same();
    return own_is_of_part(e) ? step_call((struct call){.request = REQUEST_VERIFY})
                             : step_stuck(REASON_PART_FAILED);
}

static struct step finish_next(const struct engine_now *e)
{
    const struct engine_have *have = e->have;
    struct step step;

    if (have->weights.state == WEIGHTS_SERIAL && have->weights.serial == e->part->serial)
        return step_same();
    if (!may_change(e) || e->part->n_sent == 0)
        return step_stuck(REASON_PART_FAILED);
    step = step_call((struct call){
        .request = REQUEST_FINISH, .label = e->part->label, .serial = e->part->serial});
    caches_add(e, &step);
    return step;
}

static enum reason reason_of(const struct engine_have *have)
{
    if (have->weights.state == WEIGHTS_WRONG)
        return REASON_WRONG;
    return is_fenced(have) ? REASON_FENCED : REASON_OTHER_WEIGHTS;
}

static struct step repair_next(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;

    if (!w->version.decided)
        return step_stuck(REASON_NO_VERSION);
    if (serves_version(e, w))
        return step_same();
    if (have->weights.state == WEIGHTS_UNKNOWN)
        return have->label.no_route ? step_stuck(REASON_OTHER_WEIGHTS) : step_blocked();
    if (e->part->goal == GOAL_OPENED)
        return step_stuck(REASON_UPDATE);
    if (e->part->goal != GOAL_NONE || !w->stage)
        return step_stuck(reason_of(have));
    if (w->sleep == WANT_ASLEEP)
        return step_stuck(REASON_ASLEEP);
    if (sleep_next(e, w).is != STEP_SAME)
        return sleep_next(e, w).is == STEP_STUCK ? step_stuck(REASON_SLEEP_UNKNOWN)
                                                 : step_blocked();
    return step_call((struct call){.request = REQUEST_REPAIR, .serial = w->version.serial});
}

struct step weights_next(const struct engine_now *e, const struct wants *w)
{
    switch (e->part->goal) {
    case GOAL_PREPARED:
        return step_same();
    case GOAL_SENT:
        return send_next(e, w);
    case GOAL_VERIFIED:
        return verify_next(e);
    case GOAL_FINISHED:
        return finish_next(e);
    default:
        return repair_next(e, w);
    }
}

bool weights_out(const struct engine_now *e, const struct wants *w)
{
    return !serves_version(e, w);
}
