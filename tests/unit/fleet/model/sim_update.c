/* An update of the simulated fleet: phases with barriers. A phase sets the goal of each part; it
 * ends when each part has reached the goal or is out. What a part that is out still needs, the loop
 * does. */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <stdio.h>
#include <string.h>

static const enum part_goal goals[] = {
    [PHASE_STARTING] = GOAL_OPENED,    [PHASE_OPEN] = GOAL_OPENED,
    [PHASE_PREPARING] = GOAL_PREPARED, [PHASE_SENDING] = GOAL_SENT,
    [PHASE_VERIFYING] = GOAL_VERIFIED, [PHASE_FINISHING] = GOAL_FINISHED,
    [PHASE_RELEASING] = GOAL_RELEASED, [PHASE_ABORTING] = GOAL_ABORTED};

static bool is_part(const struct sim_engine *e)
{
    return e->is_used && e->part.goal != GOAL_NONE;
}

static bool two_phase(const struct sim_engine *e)
{
    return upstream_caps(e->d.kind)->two_phase;
}

/* Without one of the engines that commit together, none of them does. */
void sim_part_failed(struct sim *s, struct sim_engine *e)
{
    s->update.misses_baton |= two_phase(e) && !e->removed && is_part(e);
    e->part.goal = GOAL_NONE;
}

static void set_phase(struct sim *s, enum sim_phase phase)
{
    s->update.phase = phase;
    s->update.end_us = s->now_us + (phase == PHASE_ABORTING ? 3 * S : 30 * S);
    for (int i = 0; i < SIM_ENGINES; i++) {
        struct sim_engine *e = &s->engines[i];

        if (!is_part(e))
            continue;
        e->part.goal = goals[phase];
        e->part.n_wanted = s->update.n_wanted;
        if (phase == PHASE_PREPARING && !two_phase(e))
            e->have.label.read = false; /* before the pause it is known anew */
        e->reading_again = false;
    }
}

static void begin_part(struct sim *s, struct sim_engine *e)
{
    struct sim_update *u = &s->update;

    e->part = (struct part_want){.goal = GOAL_OPENED,
                                 .update = u->number,
                                 .serial = (uint64_t)u->serial,
                                 .marker = u->marker,
                                 .label = u->label,
                                 .packing = sim_random(s, 2) ? 0 : u->number,
                                 .groups = 1};
}

/* The trainer joins again what it sees not to be in its group: most of the time. */
static void join_group(struct sim *s, struct sim_engine *e)
{
    if (!sim_is_up(s, e) || !e->reachable || e->known != e->d.process || sim_random(s, 8) == 0)
        return;
    e->d.in_group = true;
    e->have.groups |= 1;
}

static void begin(struct sim *s, int serial, bool repair, unsigned n_chunks)
{
    struct sim_update *u = &s->update;

    *u = (struct sim_update){
        .number = ++s->n_updates, .serial = serial, .repair = repair, .n_chunks = n_chunks};
    (void)snprintf(u->marker, sizeof u->marker, "%s%d", FLEET_DIRTY_MARKER, (int)u->number);
    if (repair)
        (void)snprintf(u->label, sizeof u->label, "%.*s", SIM_LABEL_MAX - 1, s->w.version.label);
    else
        (void)snprintf(u->label, sizeof u->label, "v%d", serial);
}

bool sim_start(struct sim *s, unsigned n_chunks)
{
    if (s->update.phase != PHASE_NONE || s->w.sleep != WANT_AWAKE)
        return false;
    begin(s, s->last_serial + 1, false, n_chunks);
    s->last_serial++;
    for (int i = 0; i < SIM_ENGINES; i++) {
        struct sim_engine *e = &s->engines[i];

        if (!e->is_used || e->removed || !e->reachable)
            continue;
        join_group(s, e);
        begin_part(s, e);
    }
    set_phase(s, PHASE_STARTING);
    return true;
}

/* The hand-off needs no group of the trainer. */
void sim_begin_repair(struct sim *s, struct sim_engine *e)
{
    begin(s, (int)s->w.version.serial, true, 1);
    begin_part(s, e);
    e->part.groups = 0;
    e->d.in_group = true;
    s->n_repairs++;
    set_phase(s, PHASE_STARTING);
}

void sim_abort(struct sim *s)
{
    if (s->update.phase == PHASE_NONE || s->update.phase >= PHASE_FINISHING)
        return;
    set_phase(s, PHASE_ABORTING);
    s->n_aborted++;
    if (s->broken == BROKEN_SERIAL && s->w.version.serial > 1)
        s->w.version.serial--;
}

/* ---- barriers ---- */

static bool has_version(const struct sim *s, const struct sim_engine *e)
{
    const struct engine_have *h = &e->have;

    return h->weights.state == WEIGHTS_SERIAL && h->weights.serial == (uint64_t)s->update.serial &&
           (two_phase(e) || h->label.no_route ||
            (h->label.read && strcmp(h->label.text, s->update.label) == 0));
}

static bool is_prepared(const struct sim *s, const struct sim_engine *e)
{
    struct engine_have seen;
    const struct engine_have *h = &seen;

    sim_see(s, e, &seen);
    return h->own.state == OWN_OPEN && h->own.update == e->part.update &&
           h->sleep.weights == SLEEP_AWAKE &&
           (two_phase(e) || (gate_is_closed(h->pause) && h->label.read &&
                             strcmp(h->label.text, e->part.marker) == 0));
}

/* After the resume the label is read once more. */
static bool is_confirmed(struct sim_engine *e)
{
    if (two_phase(e))
        return true;
    if (!e->reading_again && e->have.pause == GATE_RUNNING) {
        e->reading_again = true;
        e->have.label.read = false;
        return false;
    }
    return e->have.label.read &&
           (e->reading_again || gate_is_closed(e->have.pause) || e->have.pause == GATE_NOT_OURS);
}

static bool has_reached(struct sim *s, struct sim_engine *e)
{
    switch (s->update.phase) {
    case PHASE_STARTING:
        return !two_phase(e) || e->have.own.state == OWN_OPEN;
    case PHASE_PREPARING:
        return is_prepared(s, e);
    case PHASE_SENDING:
        return e->part.n_sent == e->part.n_wanted && !sim_has_op(e, REQUEST_TENSORS);
    case PHASE_VERIFYING:
        return s->broken == BROKEN_VERIFY ||
               (two_phase(e) ? e->part.verified : e->have.label.read && is_prepared(s, e));
    case PHASE_FINISHING:
        return has_version(s, e) && !sim_has_op(e, REQUEST_FINISH);
    case PHASE_RELEASING:
        return is_confirmed(e);
    case PHASE_ABORTING:
        return e->have.own.state != OWN_OPEN && e->have.own.state != OWN_UNKNOWN;
    default:
        return true;
    }
}

/* A part is out when it cannot reach its goal, or has not in time. */
static bool is_out(struct sim *s, struct sim_engine *e)
{
    struct plan plan;

    if (!e->reachable || s->now_us >= s->update.end_us)
        return true;
    return !sim_plan(s, e, sim_under_way(e), &plan) && plan.step.is == STEP_STUCK &&
           plan.step.why == REASON_PART_FAILED && s->update.phase < PHASE_RELEASING;
}

static unsigned n_parts(const struct sim *s)
{
    unsigned n = 0;

    for (int i = 0; i < SIM_ENGINES; i++)
        n += is_part(&s->engines[i]) && !s->engines[i].removed;
    return n;
}

/* The version is the fleet's from the first baton that has committed it, or else from the end of
 * all on: before any engine is resumed. */
static void switch_version(struct sim *s)
{
    if (s->update.switched || s->update.repair)
        return;
    s->update.switched = true;
    s->w.version.decided = true;
    s->w.version.serial = (uint64_t)s->update.serial;
    (void)snprintf(s->w.version.label, sizeof s->w.version.label, "%s", s->update.label);
    s->w.proof++;
    s->n_committed++;
}

static void leave_early(struct sim *s, struct sim_engine *e)
{
    if (s->broken == BROKEN_PREPARED && s->update.phase == PHASE_PREPARING) {
        e->part.goal = GOAL_SENT;
        e->part.n_wanted = 1;
    } else if (s->broken == BROKEN_ENDED && s->update.phase == PHASE_FINISHING) {
        e->part.goal = GOAL_RELEASED;
    }
}

/* Returns: has each part that is left reached its goal? */
static bool is_passed(struct sim *s)
{
    bool passed = true;

    for (int i = 0; i < SIM_ENGINES; i++) {
        struct sim_engine *e = &s->engines[i];

        if (!is_part(e))
            continue;
        if (has_reached(s, e)) {
            leave_early(s, e);
            if (s->update.phase == PHASE_FINISHING && two_phase(e) && s->broken != BROKEN_SWITCH)
                switch_version(s);
            if (s->update.phase >= PHASE_RELEASING)
                e->part.goal = GOAL_NONE; /* it is let go */
        } else if (is_out(s, e)) {
            sim_part_failed(s, e);
        } else {
            passed = false;
        }
    }
    return passed;
}

static void end_update(struct sim *s)
{
    for (int i = 0; i < SIM_ENGINES; i++)
        s->engines[i].part.goal = GOAL_NONE;
    if (s->broken == BROKEN_SWITCH && s->update.phase == PHASE_RELEASING)
        switch_version(s);
    s->update.phase = PHASE_NONE;
}

static void next_phase(struct sim *s)
{
    struct sim_update *u = &s->update;

    if (u->phase >= PHASE_RELEASING) {
        end_update(s);
    } else if ((n_parts(s) == 0 && !u->switched) ||
               (u->misses_baton && u->phase < PHASE_FINISHING)) {
        set_phase(s, PHASE_ABORTING);
    } else if (u->phase == PHASE_SENDING && u->n_wanted < u->n_chunks) {
        u->n_wanted++;
        set_phase(s, PHASE_SENDING);
    } else if (u->phase == PHASE_FINISHING) {
        if (s->broken != BROKEN_SWITCH)
            switch_version(s);
        set_phase(s, PHASE_RELEASING);
    } else {
        u->n_wanted += u->phase == PHASE_PREPARING;
        set_phase(s, u->phase + 1);
    }
}

void sim_update_advance(struct sim *s)
{
    if (s->update.phase != PHASE_NONE && is_passed(s))
        next_phase(s);
}
