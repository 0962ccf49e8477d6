/* What follows for one engine's part in an update. */
#include "fleet/update/fleet_part.h"

#include <assert.h>

void part_set_result(struct fleet_part *p, enum fleet_outcome end, int status,
                     const struct err *why)
{
    p->outcome = end;
    p->status = status;
    p->why = *why;
}

void part_send(struct fleet_part *p)
{
    assert(!p->out && p->weights != PART_NEW);
    p->weights_sent = p->weights;
    if (!p->two_phase)
        p->weights = PART_TORN;
}

void part_not_taken(struct fleet_part *p)
{
    p->weights = p->weights_sent;
}

void part_finish(struct fleet_part *p)
{
    assert(!p->out && p->weights == (p->two_phase ? PART_AS_BEFORE : PART_TORN));
    p->weights = PART_NEW;
}

void part_drop(struct fleet_part *p, enum fleet_outcome end, int status, const struct err *why)
{
    p->out = true;
    if (p->weights == PART_NEW && !p->two_phase)
        p->weights = PART_TORN;
    part_set_result(p, end, status, why);
}

void part_drop_failed(struct fleet_part *p, const struct fleet_result *result)
{
    if (!result_ok(result))
        part_drop(p, result->outcome, result->status, &result->why);
}

void part_note_same(struct fleet_part *p, bool whatever)
{
    p->incarnation.n_failures = p->asked.n_failures;
    p->incarnation.synced = p->asked.synced;
    if (whatever)
        p->incarnation.incarnation = p->asked.incarnation;
}

void part_set_in_doubt(struct fleet_part *p, const struct err *why)
{
    p->weights = PART_TORN;
    if (!p->out || p->why.code == ERR_NONE)
        p->why = *why;
}
