/* How handles are packed, which vLLM since 0.27 accepts only when its transfer is set up. What a
 * request leaves out was added before (handlers/fleet/packing.c). */
#include "fleet/update/fleet_update_priv.h"

struct packing_request {
    struct fleet_control *fc;
    enum fleet_packing_state now;
};

/* An engine that accepts the packing only when a transfer is set up, and has not got it in this
 * update. */
static bool needs_packing(const struct fleet_part *p, const void *arg)
{
    const struct packing_request *t = arg;
    struct upstream_info info;

    fleet_info(fleet_of(t->fc), p->upstream, &info);
    return part_needs_start(p) && !p->out && p->packing != t->now &&
           api_release_of(upstream_kind(p->upstream), info.report.release).packs_handles_at_init;
}

static void on_packing_set(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    const struct packing_request *t = arg;

    if (result_ok(result))
        p->packing = t->now;
    part_drop_failed(p, result);
}

/* An engine that was not told takes handles for unpacked, also after a restart; one that an earlier
 * server has told keeps that. */
int fleet_send_packing(struct fleet_control *fc, struct fleet_session *s,
                       const struct api_tensors *tensors, struct err *e)
{
    const struct api_join join = {
        .by_handles = true, .packed_given = true, .packed = tensors->packed};
    const struct api_args args = {.join = &join};
    struct packing_request t = {.fc = fc, .now = tensors->packed ? FLEET_PACKED : FLEET_UNPACKED};
    const struct fanout f = {.op = API_INIT_TRANSFER,
                             .args = &args,
                             .select = needs_packing,
                             .on_result = on_packing_set,
                             .arg = &t,
                             .before_bytes = true};
    int n = tensors->by_handles ? fanout_apply(fc, s, &f, e) : 0;

    return n > 0 ? fleet_require_quorum(fc, s, e) : n;
}
