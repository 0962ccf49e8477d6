/* The transitions of one engine's part in an update. An event without a row cannot happen. */
#include "fleet/update/fleet_part.h"

#include <assert.h>

#define BIT(x) (1u << (x))

enum {
    TWO_PHASE = BIT(true),
    OVERWRITES = BIT(false),

    CHANGING = BIT(PART_RECEIVING) | BIT(PART_DIRTY)
};

struct part_rule {
    unsigned kinds, from; /* bit sets */
    enum part_event event;
    enum part_state to;
};

static const struct part_rule rules[] = {
    /* tensors */
    {OVERWRITES, BIT(PART_CLEAN), PART_ON_SEND, PART_RECEIVING},
    {OVERWRITES, BIT(PART_DIRTY), PART_ON_SEND, PART_DIRTY},
    {OVERWRITES, CHANGING, PART_ON_ACCEPTED, PART_DIRTY},
    {OVERWRITES, BIT(PART_RECEIVING), PART_ON_REFUSED, PART_CLEAN},
    {OVERWRITES, BIT(PART_DIRTY), PART_ON_REFUSED, PART_DIRTY},

    /* a request whose effect is unknown */
    {OVERWRITES, BIT(PART_CLEAN) | CHANGING, PART_ON_DOUBT, PART_DIRTY},
    {OVERWRITES, BIT(PART_DROPPED) | BIT(PART_IN_DOUBT), PART_ON_DOUBT, PART_IN_DOUBT},

    /* A failure of an engine that is out changes nothing. */
    {TWO_PHASE | OVERWRITES, BIT(PART_CLEAN) | BIT(PART_DROPPED), PART_ON_FAILURE, PART_DROPPED},
    {OVERWRITES, CHANGING | BIT(PART_IN_DOUBT), PART_ON_FAILURE, PART_IN_DOUBT},

    /* the end */
    {TWO_PHASE, BIT(PART_CLEAN), PART_ON_FINISH, PART_FINISHED},
    {OVERWRITES, BIT(PART_DIRTY), PART_ON_FINISH, PART_FINISHED},
    {TWO_PHASE, BIT(PART_FINISHED), PART_ON_FAILURE, PART_DROPPED},
    {OVERWRITES, BIT(PART_FINISHED), PART_ON_FAILURE, PART_IN_DOUBT},
    {OVERWRITES, BIT(PART_FINISHED), PART_ON_RESUME_FAILED, PART_NOT_RESUMED},
    {OVERWRITES, BIT(PART_CLEAN), PART_ON_RESUME_FAILED, PART_DROPPED},
};

void part_set_result(struct fleet_part *p, enum fleet_outcome end, int status,
                     const struct err *why)
{
    p->outcome = end;
    p->status = status;
    p->why = *why;
}

bool part_transition(bool two_phase, enum part_state from, enum part_event event,
                     enum part_state *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct part_rule *r = &rules[i];

        if ((r->kinds & BIT(two_phase)) == 0 || (r->from & BIT(from)) == 0 || r->event != event)
            continue;
        *to = r->to;
        return true;
    }
    return false;
}

void part_apply(struct fleet_part *p, enum part_event event)
{
    enum part_state to = p->state;
    bool allowed = part_transition(p->two_phase, p->state, event, &to);

    assert(allowed);
    (void)allowed;
    p->state = to;
}
