/* How handles are packed, which vLLM since 0.27 accepts only when its transfer is set up. What a
 * request leaves out was added before (handlers/fleet/packing.c). */
#include "fleet/update/fleet_update_priv.h"

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
}

static bool is_given(const json_t *body, const char *member)
{
    const json_t *value = json_object_get(body, member);

    return value != NULL && !json_is_null(value);
}

struct packing_request {
    struct fleet_control *fc;
    enum fleet_packing_state now;
    size_t n_asked;
};

/* An engine that accepts the packing only when a transfer is set up, and has not got it in this
 * update. */
static bool needs_packing(const struct fleet_part *p, const void *arg)
{
    const struct packing_request *t = arg;
    struct upstream_endpoint at;
    struct upstream_info info;

    upstreams_get(t->fc->upstreams, p->upstream, &at);
    fleet_info(fleet_of(t->fc), p->upstream, &info);
    return part_needs_start(p) && part_takes_part(p) && p->packing != t->now &&
           api_packs_handles_at_init(at.kind, info.report.release);
}

static void on_packing_set(struct fleet_part *p, size_t part, struct fleet_result *results,
                           void *arg)
{
    struct packing_request *t = arg;

    (void)part;
    t->n_asked++;
    if (result_ok(results))
        p->packing = t->now;
    part_drop_failed(p, results);
}

/* An engine that was not told takes handles for unpacked, also after a restart; one that an earlier
 * server has told keeps that. */
int fleet_send_packing(struct fleet_control *fc, struct fleet_session *s, const json_t *body,
                       struct err *e)
{
    struct packing_request t = {.fc = fc};
    struct fanout f = {
        .op = API_INIT_TRANSFER, .select = needs_packing, .on_result = on_packing_set, .arg = &t};
    bool packed = json_is_true(json_object_get(body, "packed"));
    json_t *init;
    int rc;

    if (!is_given(body, "ipc_handles_pickled") && !is_given(body, "ipc_handles"))
        return 0;
    t.now = packed ? FLEET_PACKED : FLEET_UNPACKED;
    init = json_pack("{s:s, s:b}", "transport", "ipc", "packed", (int)packed);
    if (init == NULL)
        return no_memory(e);
    f.body = init;
    rc = fanout_apply(fc, s, &f, e);
    json_decref(init);
    if (rc != 0)
        return -1;
    if (t.n_asked == 0 || fleet_has_quorum(fc, s))
        return 0;
    fleet_set_cause(fc, s, e);
    return -1;
}
