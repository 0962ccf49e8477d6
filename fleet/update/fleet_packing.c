/* How handles are packed, which a vLLM since 0.27 takes only when its transfer is set up. What a
 * request does not say of it is added before (handlers/fleet/fleet_packing.c). */
#include "fleet/update/fleet_run.h"

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
}

static bool is_given(const json_t *body, const char *member)
{
    const json_t *value = json_object_get(body, member);

    return value != NULL && !json_is_null(value);
}

struct telling {
    struct fleet_control *fc;
    enum fleet_packed now;
    size_t n_asked;
};

/* One that takes it only when a transfer is set up, and was not told so in this update. */
static bool is_to_tell(const struct fleet_part *p, const void *arg)
{
    const struct telling *t = arg;
    struct upstream_info info;

    fleet_info(fleet_of(t->fc), p->upstream, &info);
    return part_begins(p) && part_takes_part(p) && p->told_packed != t->now &&
           vllm_has(info.saw.release, VLLM_PACKS_HANDLES_AT_INIT);
}

static void take_told(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct telling *t = arg;

    (void)part;
    t->n_asked++;
    if (said_good(said))
        p->told_packed = t->now;
    part_drop_failed(p, said);
}

/* An engine that nobody told takes them for not packed, one that was started anew too; and one that
 * was told by another server, before this one was started, as it was told then. */
int fleet_tell_packed(struct fleet_control *fc, struct fleet_session *s, const json_t *body,
                      struct err *e)
{
    struct telling t = {.fc = fc};
    struct fanout f = {.op = WIRE_INIT, .select = is_to_tell, .on_result = take_told, .arg = &t};
    bool packed = json_is_true(json_object_get(body, "packed"));
    json_t *init;
    int rc;

    if (!is_given(body, "ipc_handles_pickled") && !is_given(body, "ipc_handles"))
        return 0;
    t.now = packed ? FLEET_PACKED : FLEET_NOT_PACKED;
    init = json_pack("{s:s, s:b}", "transport", "ipc", "packed", (int)packed);
    if (init == NULL)
        return no_memory(e);
    f.body = init;
    rc = fanout_apply(fc, s, &f, e);
    json_decref(init);
    if (rc != 0)
        return -1;
    if (t.n_asked == 0 || fleet_stands(fc, s))
        return 0;
    fleet_tell_cause(fc, s, e);
    return -1;
}
