/* Proof: an engine that serves is asked whether it serves what it got. */
#include "tests/unit/fleet/model/aspects_priv.h"

struct step proof_next(const struct engine_now *e, const struct wants *w)
{
    if (e->have->proof >= w->proof || upstream_caps(e->kind)->two_phase || aspects_out(e, w) != 0)
        return step_same();
    return step_call((struct call){.request = REQUEST_PROVE, .number = w->proof});
}
