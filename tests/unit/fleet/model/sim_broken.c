/* Rules that are broken on purpose. What the table sees passes through sim_see: there a rule is
 * broken by a wrong fact, which does what a forgotten condition would do. */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <stdio.h>

const char *sim_broken_text(enum sim_broken broken)
{
    static const char *const texts[SIM_BROKEN] = {
#define X(constant, noticed, text) [constant] = text,
        SIM_BROKEN_LIST(X)
#undef X
    };

    return texts[broken];
}

const char *sim_broken_noticed(enum sim_broken broken)
{
    static const char *const noticed_by[SIM_BROKEN] = {
#define X(constant, noticed, text) [constant] = noticed,
        SIM_BROKEN_LIST(X)
#undef X
    };

    return noticed_by[broken];
}

static void lie_about_label(const struct sim *s, const struct sim_engine *e, struct engine_have *h)
{
    bool holds = e->part.goal >= GOAL_PREPARED && e->part.goal <= GOAL_VERIFIED;
    const char *label = e->part.marker;

    if (s->broken == BROKEN_RESUME_LABEL && e->part.goal == GOAL_NONE)
        label = s->w.version.label;
    else if (s->broken == BROKEN_VERIFY && e->part.goal >= GOAL_VERIFIED &&
             e->part.goal <= GOAL_FINISHED)
        label = h->label.text;
    else if (s->broken != BROKEN_MARKER || !holds)
        return;
    if (label != h->label.text)
        (void)snprintf(h->label.text, sizeof h->label.text, "%s", label);
    h->label.read = true;
}

static void lie_about_torn(struct engine_have *h)
{
    h->weights.state = WEIGHTS_OTHER;
    h->label.old[0] = '\0'; /* so that the marker stays */
}

static void lie_about_part(const struct sim *s, const struct sim_engine *e, struct engine_have *h)
{
    if (s->broken == BROKEN_ASLEEP)
        h->sleep.weights = SLEEP_AWAKE;
    if (s->broken == BROKEN_RUNNING)
        h->pause = GATE_KEPT;
    if (s->broken == BROKEN_OWN && e->part.goal < GOAL_FINISHED) {
        h->own.state = OWN_OPEN;
        h->own.update = e->part.update;
    }
}

/* What the table sees: the facts, but for a broken rule. */
void sim_see(const struct sim *s, const struct sim_engine *e, struct engine_have *out)
{
    struct engine_now now = sim_now(e);

    *out = e->have;
    lie_about_label(s, e, out);
    if (s->broken == BROKEN_SWITCH && e->part.goal == GOAL_RELEASED)
        out->weights.serial = s->w.version.serial; /* else it would not be resumed */
    if (part_holds(&now))
        lie_about_part(s, e, out);
    else if (s->broken == BROKEN_TORN && out->weights.state == WEIGHTS_TORN)
        out->weights.state = WEIGHTS_OTHER;
    else if (s->broken == BROKEN_TORN_MARKED && out->weights.state == WEIGHTS_TORN)
        lie_about_torn(out);
    else if (s->broken == BROKEN_RESUME_OWN && out->own.state != OWN_NOT_OURS)
        out->own.state = OWN_CLOSED;
    else if (s->broken == BROKEN_RESUME_CACHES)
        out->caches.tried = out->caches.emptied = out->caches.second = out->caches.needed;
    if (s->broken == BROKEN_WAKE && out->sleep.weights == SLEEP_UNKNOWN)
        out->sleep.weights = out->sleep.kv = SLEEP_ASLEEP;
    if (s->broken == BROKEN_OTHERS && out->pause == GATE_NOT_OURS)
        out->pause = GATE_UNKNOWN;
}

/* Row by row: what a broken rotation does not look at. */
unsigned sim_out(const struct sim *s, const struct sim_engine *e)
{
    static const unsigned forgotten[SIM_BROKEN] = {
        [BROKEN_OUT_REACH] = ASPECTS_OUT_REACH,
        [BROKEN_OUT_SLEEP] = 1u << ASPECT_SLEEP | ASPECTS_OUT_REACH,
        [BROKEN_OUT_PAUSE] = 1u << ASPECT_PAUSE | ASPECTS_OUT_REACH,
        [BROKEN_OUT_LABEL] = 1u << ASPECT_LABEL_READ,
        [BROKEN_OUT_WEIGHTS] = 1u << ASPECT_WEIGHTS,
        [BROKEN_OUT_CACHES] = 1u << ASPECT_CACHES,
        [BROKEN_OUT_ADAPTERS] = 1u << ASPECT_ADAPTERS};
    struct engine_now now = sim_now(e);
    unsigned forgets = forgotten[s->broken];
    struct wants w;

    if (s->broken == BROKEN_OUT_FINISH && e->part.goal == GOAL_FINISHED)
        forgets = ASPECTS_OUT_PART | 1u << ASPECT_WEIGHTS | 1u << ASPECT_LABEL_READ;
    sim_wants(s, e, &w);
    return (aspects_out(&now, &w) & ~forgets) | (e->removed ? ASPECTS_OUT_REACH : 0);
}
