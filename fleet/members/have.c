/* One switch for the doubt and one for the answers, so that an operation without a line in either
 * is seen. What was unknown before a refusal stays so. */
#include "fleet/members/have.h"

#include <assert.h>

void have_init(struct engine_have *have)
{
    *have = (struct engine_have){.gate = GATE_NOT_OURS, .own = OWN_NOT_OURS};
}

void have_seen(struct engine_have *have, uint64_t gate_change)
{
    have->gate_asked = have->gate_asked && have->gate_change != gate_change;
}

void have_reset(struct engine_have *have, bool certain)
{
    if (have->own == OWN_OPEN)
        have->own = OWN_UNKNOWN;
    if (have->gate_asked)
        have->gate = GATE_UNKNOWN;
    else if (certain)
        have->gate = GATE_RUNNING;
    else if (have->gate == GATE_PAUSED)
        have->gate = GATE_UNKNOWN;
}

static void doubt_gate(struct engine_have *have)
{
    have->gate = GATE_UNKNOWN;
    have->gate_asked = true;
    have->gate_change++;
    have->gate_calls_overlap = have->n_gate_calls++ > 0;
}

void have_doubt(struct engine_have *have, enum api_op op, struct have_before *before)
{
    before->gate = have->gate;
    before->own = have->own;
    switch (op) {
    case API_PAUSE:
    case API_RESUME:
        doubt_gate(have);
        break;
    case API_START_UPDATE:
    case API_FINISH_UPDATE:
    case API_ABORT_UPDATE:
        have->own = OWN_UNKNOWN;
        break;
    default:
        break;
    }
}

static void answer_gate(struct engine_have *have, enum gate_fact now,
                        const struct have_before *before, enum have_answer answer, bool same)
{
    assert(have->n_gate_calls > 0);
    have->n_gate_calls--;
    have->gate_change++;
    if (!same || have->gate_calls_overlap)
        return;
    if (answer == HAVE_GOOD)
        have->gate = now;
    if (have->gate == GATE_RUNNING) /* and so does a process that was started since */
        have->gate_asked = false;
    else if (answer == HAVE_REFUSED)
        have->gate = before->gate;
}

static void answer_own(struct engine_have *have, enum own_fact now,
                       const struct have_before *before, enum have_answer answer, bool same)
{
    if (same && answer != HAVE_LOST)
        have->own = answer == HAVE_GOOD ? now : before->own;
}

void have_answer(struct engine_have *have, enum api_op op, const struct have_before *before,
                 enum have_answer answer, bool same)
{
    switch (op) {
    case API_PAUSE:
        answer_gate(have, GATE_PAUSED, before, answer, same);
        break;
    case API_RESUME:
        answer_gate(have, GATE_RUNNING, before, answer, same);
        break;
    case API_START_UPDATE:
        answer_own(have, OWN_OPEN, before, answer, same);
        break;
    case API_FINISH_UPDATE:
    case API_ABORT_UPDATE:
        answer_own(have, OWN_CLOSED, before, answer, same);
        break;
    default:
        break;
    }
}
