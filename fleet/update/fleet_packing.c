/* How tensors are packed: vLLM says it when a transfer is set up, or, before 0.27 and 0.28, in each
 * update. A trainer of either age may stand in front of engines of either. */
#include "fleet/update/fleet_run.h"

#include "handlers/body.h"
#include "handlers/packed_words.h"

#include <stdio.h>

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
}

/* As a server with GPUs of its own has it (update_nccl.c). */
static int of_group(const struct wire_packing *g, json_t *body, struct err *e)
{
    bool sized = body_given(body, "sizes") != NULL;
    struct packed_words words;

    if (!g->packed)
        return 0;
    if (packed_parse(&words, body, e) != 0)
        return -1;
    if (!words.said && sized)
        return err_set(e, ERR_BAD_REQUEST, "/sizes",
                       "the group was joined with packed, which is many broadcasts, and packed "
                       "with sizes is one of all: say packed here too, or leave sizes out");
    if ((words.said && !words.packed) ||
        (words.said && (sized || words.bucket_nbytes != 0 || g->bucket_nbytes == 0)))
        return 0;
    if (fleet_put(body, "packed", json_true()) != 0 ||
        (words.bucket_nbytes == 0 && g->bucket_nbytes != 0 &&
         fleet_put(body, "bucket_nbytes", json_integer((json_int_t)g->bucket_nbytes)) != 0))
        return no_memory(e);
    return 0;
}

static bool by_handles(const json_t *body)
{
    return body_given(body, "ipc_handles_pickled") != NULL ||
           body_given(body, "ipc_handles") != NULL;
}

int fleet_inherit_packing(struct fleet_control *fc, json_t *body, struct err *e)
{
    struct fleet_handles handles;
    const struct fleet_group *group;
    struct wire_packing packing = {0};

    mtx_lock(&fc->lock);
    group = fleet_group_locked(fc, json_string_value(body_given(body, "group_name")));
    if (group != NULL)
        packing = group->packing;
    handles = fc->handles;
    mtx_unlock(&fc->lock);
    if (body_given(body, "transport") != NULL)
        return of_group(&packing, body, e);
    if (!by_handles(body) || !handles.on || body_given(body, "packed") != NULL)
        return 0;
    return fleet_put(body, "packed", json_boolean(handles.packed)) == 0 ? 0 : no_memory(e);
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
    bool packed = false;
    json_t *init;
    int rc;

    if (!by_handles(body))
        return 0;
    if (body_bool(&packed, body, "", "packed", e) != 0)
        return -1;
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
