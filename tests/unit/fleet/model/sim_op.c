/* Operations of the simulated loop: doubt, sent, executed or not, answered or not; and what must
 * hold when one is sent. */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <stdio.h>
#include <string.h>

static bool excludes(enum engine_request a, enum engine_request b)
{
    bool gate_a = a <= REQUEST_RESUME, gate_b = b <= REQUEST_RESUME;
    bool load_a = a == REQUEST_LOAD || a == REQUEST_UNLOAD;
    bool load_b = b == REQUEST_LOAD || b == REQUEST_UNLOAD;

    if (a == b)
        return true;
    if (gate_a || gate_b || a == REQUEST_PROVE || b == REQUEST_PROVE)
        return false;
    return !(load_a && b == REQUEST_TENSORS) && !(load_b && a == REQUEST_TENSORS);
}

static bool is_prepared_truly(const struct sim_engine *e)
{
    return e->d.own_open &&
           (e->d.kind == UPSTREAM_BATON || (!double_runs(&e->d) && label_is_marker(e->d.label)));
}

/* Rules between engines: no byte before all are prepared, no resume before all have ended. */
static void check_barriers(struct sim *s, const struct sim_engine *e, const struct call *call)
{
    for (int i = 0; i < SIM_ENGINES; i++) {
        const struct sim_engine *o = &s->engines[i];

        if (o == e || !o->is_used || o->part.goal == GOAL_NONE || o->part.update != e->part.update)
            continue;
        if (call->request == REQUEST_TENSORS && call->number == 1 && o->known == o->d.process &&
            !is_prepared_truly(o))
            sim_violate(s, "I8: a byte before all are prepared");
        if (call->request == REQUEST_RESUME && e->part.goal == GOAL_RELEASED &&
            o->part.goal == GOAL_FINISHED)
            sim_violate(s, "I8: a resume before all have ended");
    }
}

static bool is_in_doubt(const struct engine_have *h, const struct call *call, bool two_phase)
{
    switch (call->request) {
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        return h->pause == GATE_UNKNOWN;
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        return !(call->sleep_of & SLEEP_OF_WEIGHTS) || h->sleep.weights == SLEEP_UNKNOWN;
    case REQUEST_SET_LABEL:
        return !h->label.read;
    case REQUEST_START:
    case REQUEST_CLOSE:
        return h->own.state == OWN_UNKNOWN;
    case REQUEST_FINISH:
        return h->own.state == OWN_UNKNOWN && h->weights.state != WEIGHTS_SERIAL;
    case REQUEST_TENSORS:
        return two_phase || h->weights.state == WEIGHTS_TORN;
    case REQUEST_LOAD:
    case REQUEST_UNLOAD:
        return h->adapters[call->adapter].state == ADAPTER_UNKNOWN;
    default:
        return true;
    }
}

static bool ends_what_was_begun(const struct sim_engine *e, enum engine_request request)
{
    return e->part.goal != GOAL_NONE ||
           !(request == REQUEST_PAUSE || request == REQUEST_SLEEP || request == REQUEST_LOAD ||
             request == REQUEST_UNLOAD || request == REQUEST_START || request == REQUEST_PROVE ||
             request == REQUEST_REPAIR);
}

static void check_call(struct sim *s, struct sim_engine *e, const struct call *call)
{
    uint32_t under_way = sim_under_way(e);

    for (unsigned r = 0; r < REQUESTS; r++)
        if ((under_way >> r & 1) && excludes(r, call->request))
            sim_violate(s, "I6: two requests that exclude each other");
    if (e->removed && !ends_what_was_begun(e, call->request))
        sim_violate(s, "I15: a removed engine gets something new");
    if (call->request == REQUEST_RESUME && e->skipped_reset && e->d.kind != UPSTREAM_BATON)
        sim_violate(s, "I8: resumed before its caches were tried");
    if (call->request == REQUEST_TENSORS || call->request == REQUEST_RESET_PREFIX)
        e->skipped_reset = call->request == REQUEST_TENSORS;
    check_barriers(s, e, call);
}

static void log_call(struct sim *s, enum engine_request request, bool together)
{
    size_t len = strlen(s->log);

    (void)snprintf(s->log + len, sizeof s->log - len, "%c%s", together ? '+' : ' ',
                   engine_request_name(request));
}

static void prepare_call(struct sim *s, struct sim_engine *e, struct sim_op *op, size_t k)
{
    struct call *call = &op->calls[k];
    struct engine_have known = e->have;

    if (call->label != NULL) {
        (void)snprintf(op->text, sizeof op->text, "%s", call->label);
        call->label = op->text;
    }
    have_doubt(&e->have, e->d.kind, call, &op->before[k]);
    if (s->broken == BROKEN_DOUBT)
        e->have = known;
    if (!is_in_doubt(&e->have, call, e->d.kind == UPSTREAM_BATON))
        sim_violate(s, "I2: a fact is known while a request changes it");
    e->sent |= 1u << call->request;
    if (call->request == REQUEST_PAUSE)
        e->d.paused_by_other = false; /* ours replaces it, or may have */
    if (call->request == REQUEST_TENSORS && s->broken != BROKEN_TWICE)
        e->part.n_sent++;
}

void sim_op_start(struct sim *s, struct sim_engine *e, const struct plan *plan)
{
    struct sim_op *op = NULL;

    for (int i = 0; i < SIM_OPS && op == NULL; i++)
        op = e->ops[i].is_used ? NULL : &e->ops[i];
    if (op == NULL) {
        sim_violate(s, "too many operations");
        return;
    }
    memset(op, 0, sizeof *op);
    op->aspect = plan->aspect;
    op->process = e->known;
    op->target = e->d.process;
    op->update = e->part.update;
    op->serial = (int)e->part.serial;
    op->n_calls = plan->step.n_calls;
    memcpy(op->calls, plan->step.calls, sizeof op->calls);
    op->execute_us = s->now_us + 1 + sim_random(s, 50) * MS;
    op->end_us = op->execute_us + sim_random(s, 50) * MS;
    for (size_t k = 0; k < op->n_calls; k++) {
        check_call(s, e, &op->calls[k]);
        log_call(s, op->calls[k].request, k > 0);
    }
    for (size_t k = 0; k < op->n_calls; k++)
        prepare_call(s, e, op, k);
    op->is_used = true;
}

static enum sim_fault draw_fault(struct sim *s)
{
    unsigned drawn = sim_random(s, 1000);

    if (s->forces_fault) {
        s->forces_fault = false;
        return s->forced;
    }
    return drawn < SIM_FAULTS * s->faults ? drawn / s->faults : SIM_FAULTS;
}

static void execute_call(struct sim *s, struct sim_engine *e, struct sim_op *op, size_t k)
{
    enum sim_fault fault = draw_fault(s);
    const char *bad = NULL;

    op->answers[k] = ANSWER_LOST;
    if ((op->calls[k].request == REQUEST_TENSORS || op->calls[k].request == REQUEST_SET_LABEL) &&
        op->process != e->d.process)
        e->stray = e->d.process;
    if (fault == FAULT_REFUSED || fault == FAULT_UNSENT) {
        op->answers[k] = fault == FAULT_REFUSED ? ANSWER_REFUSED : ANSWER_UNSENT;
        return;
    }
    if (s->broken == BROKEN_VERIFY && op->calls[k].request == REQUEST_FINISH)
        e->d.own_open = true; /* a release that needs no start */
    if (fault != FAULT_LOST && fault != FAULT_RESTARTED)
        op->answers[k] = double_execute(&e->d, &op->calls[k], op->update, op->serial,
                                        &op->replies[k], &bad);
    if (bad != NULL && op->process == e->d.process)
        sim_violate(s, bad);
    if (op->replies[k].label != NULL) {
        (void)snprintf(op->label, sizeof op->label, "%s", op->replies[k].label);
        op->replies[k].label = op->label;
    }
    if (fault < SIM_FAULTS)
        op->answers[k] = ANSWER_LOST;
    if (fault == FAULT_RESTARTED || fault == FAULT_RESTARTED_EXECUTED)
        sim_restart(s, e);
    else if (fault < SIM_FAULTS)
        op->end_us += 5 * S; /* its deadline */
}

static void op_execute(struct sim *s, struct sim_engine *e, struct sim_op *op)
{
    op->is_executed = true;
    for (size_t k = 0; k < op->n_calls; k++) {
        if (!sim_is_up(s, e) || op->target != e->d.process)
            op->answers[k] = ANSWER_LOST; /* its connection is closed */
        else
            execute_call(s, e, op, k);
    }
}

/* A pause and a resume that were under way together leave the gate unknown. */
static void mark_overlaps(struct sim_engine *e, struct sim_op *ended)
{
    for (int i = 0; i < SIM_OPS && ended->calls[0].request <= REQUEST_RESUME; i++)
        if (e->ops[i].is_used && e->ops[i].calls[0].request <= REQUEST_RESUME)
            e->ops[i].replies[0].overlapped = ended->replies[0].overlapped = true;
}

static void end_of_part(struct sim *s, struct sim_engine *e, const struct call *call,
                        enum answer answer)
{
    bool once = call->request == REQUEST_TENSORS || call->request == REQUEST_FINISH ||
                call->request == REQUEST_VERIFY;

    if (e->part.goal == GOAL_NONE || !once)
        return;
    if (answer == ANSWER_GOOD && s->broken == BROKEN_TWICE && call->request == REQUEST_TENSORS)
        e->part.n_sent++;
    if (answer == ANSWER_GOOD)
        e->part.verified |= call->request == REQUEST_VERIFY;
    else if (s->broken != BROKEN_TWICE)
        sim_part_failed(s, e);
}

static void op_end(struct sim *s, struct sim_engine *e, struct sim_op *op)
{
    bool passed = true;

    op->is_used = false;
    if (!sim_is_up(s, e)) {
        e->reachable = e->serves = false;
        e->was_down = true;
    }
    mark_overlaps(e, op);
    for (size_t k = 0; k < op->n_calls; k++) {
        passed = passed && op->answers[k] >= ANSWER_NOTHING;
        if (op->process != e->known && s->broken != BROKEN_ANSWER)
            continue;
        have_answer(&e->have, e->d.kind, &op->calls[k], op->answers[k], &op->before[k],
                    &op->replies[k]);
        if (op->update == e->part.update)
            end_of_part(s, e, &op->calls[k], op->answers[k]);
    }
    if (op->replies[0].overlapped ||
        (op->calls[0].request == REQUEST_READ_SLEEP && e->have.sleep.weights < SLEEP_AWAKE))
        passed = false;
    if (passed)
        retry_clear(&e->retry[op->aspect]);
    else
        aspect_failed(&e->retry[op->aspect], op->aspect);
    if (!passed && s->broken == BROKEN_DUE)
        e->retry[op->aspect].due_us = UINT64_MAX;
    sim_see_report(e);
}

void sim_ops_hear(struct sim *s, struct sim_engine *e)
{
    for (int k = 0; k < SIM_OPS; k++) {
        struct sim_op *op = &e->ops[k];

        if (op->is_used && !op->is_executed && op->execute_us <= s->now_us)
            op_execute(s, e, op);
        if (op->is_used && op->is_executed && op->end_us <= s->now_us)
            op_end(s, e, op);
    }
}
