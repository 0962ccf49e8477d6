/* What must hold after each turn. The truth is in the doubles; what the fleet believes does not
 * count. A restart that no probe has noticed yet is nobody's fault. */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <stdlib.h>
#include <string.h>

static bool overwrites(const struct sim_engine *e)
{
    return !upstream_caps(e->d.kind)->two_phase;
}

static void check_served(struct sim *s, const struct sim_engine *e)
{
    const struct sim_double *d = &e->d;

    s->n_served++;
    if (sim_has_op(e, REQUEST_FINISH))
        sim_violate(s, "I17: an engine that ends an update is in rotation");
    if (!s->w.version.decided || d->weights != (int)s->w.version.serial)
        sim_violate(s, "I4: an engine in rotation has other weights than the fleet");
    if (strcmp(d->label, s->w.version.label) != 0)
        sim_violate(s, "I4: an engine in rotation reports another version");
    if (!double_runs(d))
        sim_violate(s, "I4: an engine in rotation does not run");
    if (overwrites(e) && (d->stale || d->stale_second))
        sim_violate(s, "I4: an engine in rotation has stale caches");
    if (overwrites(e) && d->own_open)
        sim_violate(s, "I4: an engine in rotation has an update open");
    for (int i = 0; i < SIM_ADAPTERS; i++)
        if (s->adapters[i].required && d->adapters[i] != s->adapters[i].revision)
            sim_violate(s, "I4: an engine in rotation has another adapter");
    if (sim_under_way(e) & (1u << REQUEST_SLEEP | 1u << REQUEST_PAUSE))
        sim_violate(s, "I4: an engine that is being paused or put to sleep is in rotation");
}

/* Tokens of a version come after it is the fleet's. Tensors that reach a process which restarted
 * since it was last seen change weights that run; it is fenced once it is seen. */
static void check_running(struct sim *s, const struct sim_engine *e)
{
    if (!overwrites(e) || !double_runs(&e->d) || e->stray == e->d.process)
        return;
    if (e->d.weights == SIM_TORN)
        sim_violate(s, "I8: torn weights run");
    if (e->d.weights > (int)s->w.version.serial)
        sim_violate(s, "I9: an engine runs a version that is not the fleet's yet");
}

/* What an engine reports is what it has: another server would believe it. */
static void check_label(struct sim *s, const struct sim_engine *e)
{
    const struct sim_double *d = &e->d;

    if (!overwrites(e) || e->stray == d->process || label_is_marker(d->label))
        return;
    if (d->weights == SIM_TORN)
        sim_violate(s, "I14: torn weights have no marker");
    if (d->label[0] == 'v' && d->weights != SIM_DROPPED && d->weights != atoi(d->label + 1))
        sim_violate(s, "I14: the label is that of other weights");
}

/* What differs is under way, due, or has a reason that a person can act on. */
static void check_driven(struct sim *s, struct sim_engine *e)
{
    struct plan plan;

    if (sim_under_way(e) != 0 || e->removed)
        return;
    if (sim_plan(s, e, 0, &plan))
        sim_violate(s, "I11: due, and not sent");
    else if (plan.aspect != ASPECTS && plan.due_us == UINT64_MAX && plan.step.is != STEP_STUCK)
        sim_violate(s, "I11: nothing is under way or due, and there is no reason");
}

void sim_check(struct sim *s)
{
    if (s->w.version.serial < s->highest)
        sim_violate(s, "I9: the register went back");
    s->highest = s->w.version.serial;
    for (int i = 0; i < SIM_ENGINES && s->violation == NULL; i++) {
        struct sim_engine *e = &s->engines[i];

        if (!e->is_used || !sim_is_up(s, e) || e->known != e->d.process)
            continue;
        if (sim_out(s, e) == 0)
            check_served(s, e);
        check_running(s, e);
        check_label(s, e);
        check_driven(s, e);
    }
}
