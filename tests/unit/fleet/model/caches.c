/* Caches: what an engine computed with weights, or an adapter, that it has no more. What an SGLang
 * evicts from its memory may be written to its storage, so that is emptied last. Batons empty
 * theirs by themselves. */
#include "tests/unit/fleet/model/aspects_priv.h"

void caches_add(const struct engine_now *e, struct step *step)
{
    const struct cache_facts *c = &e->have->caches;

    if (have_caches_emptied(e->have, e->kind))
        return;
    if (e->kind == UPSTREAM_SGLANG && c->emptied == c->needed) {
        step->calls[step->n_calls++] = (struct call){.request = REQUEST_RESET_STORAGE};
        return;
    }
    step->calls[step->n_calls++] = (struct call){.request = REQUEST_RESET_PREFIX};
    if (e->kind == UPSTREAM_VLLM)
        step->calls[step->n_calls++] = (struct call){.request = REQUEST_RESET_ENCODER};
}

/* While an update holds it, the finish brings them along, and what failed is tried again after it.
 */
struct step caches_next(const struct engine_now *e, const struct wants *w)
{
    struct step step = {.is = STEP_CALL, .why = REASON_DRIVEN};
    const struct engine_have *have = e->have;

    (void)w;
    if (have_caches_emptied(have, e->kind) || part_holds(e))
        return step_same();
    if (have->weights.state == WEIGHTS_TORN)
        return step_stuck(REASON_FENCED); /* an update changes them again */
    caches_add(e, &step);
    return step;
}

bool caches_out(const struct engine_now *e, const struct wants *w)
{
    (void)w;
    return !have_caches_emptied(e->have, e->kind);
}
