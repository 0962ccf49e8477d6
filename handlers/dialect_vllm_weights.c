/* vLLM's control routes: weights. Of all its generations: what was added or dropped between them
 * may be there or not. None names its update: each means the one that is open. */
#include "handlers/dialect_vllm.h"

#include "handlers/body.h"
#include "handlers/update_parts.h"

#include <stdio.h>
#include <string.h>

const char *const vllm_world_query[] = {"include_dp", NULL};
const char *const vllm_init_members[] = {"init_info", NULL};
const char *const vllm_start_members[] = {"is_checkpoint_format", "include_draft", NULL};
const char *const vllm_update_members[] = {"update_info", NULL};
const char *const vllm_finish_members[] = {"weight_version", NULL};
const char *const vllm_label_members[] = {"new_version", NULL};
const char *const vllm_checker_members[] = {"action", "baseline", NULL};

static int put_message(json_t **reply, const char *message)
{
    return dialect_put(reply, json_pack("{s:s}", "message", message));
}

/* One rank for each GPU that holds the weights; a server without any is one. */
int vllm_world_size_out(json_t **reply, const struct exchange *x)
{
    const json_t *ranks = json_object_get(json_object_get(*reply, "cuda"), "ranks");
    size_t n = json_array_size(ranks);

    (void)x;
    return dialect_put(reply, json_pack("{s:I}", "world_size", (json_int_t)(n > 0 ? n : 1)));
}

/* The object `member` of the body, which is required. */
/* @ours  the native route, which whoever left its /v1 away meant */
static int info_of(const json_t **out, const json_t *body, const char *member, const char *ours,
                   struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (body_given(body, member) != NULL)
        return body_object(out, body, "", member, e);
    (void)snprintf(field, sizeof field, "/%s", member);
    return err_set(
        e, ERR_BAD_REQUEST, field,
        "%s is missing, it is required: this route takes vLLM's form; POST this server's "
        "own to %s",
        member, ours);
}

/* Nothing on NCCL's wire says how tensors travel, and a group does not remember it: a trainer that
 * says so only here would be received wrong. */
static int check_not_packed(const json_t *info, struct err *e)
{
    bool packed = false;

    if (body_bool(&packed, info, "/init_info", "packed", e) != 0)
        return -1;
    if (!packed)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/init_info/packed",
                   "packed is said in each update_info, not when the group is formed; without it "
                   "each tensor is a broadcast of its own");
}

/* Which backend a trainer has shows in what it says: of handles nothing has to be set up. */
int vllm_init_in(json_t **body, const struct exchange *x, struct err *e)
{
    static const struct dialect_member members[] = {{"master_address", "master_address"},
                                                    {"master_port", "master_port"},
                                                    {"rank_offset", "rank_offset"},
                                                    {"world_size", "world_size"},
                                                    {NULL, NULL}};
    const json_t *info = NULL;
    bool group = false;

    (void)x;
    if (info_of(&info, *body, "init_info", "/v1/weight_transfer/init", e) != 0)
        return -1;
    if (body_given(info, "base_model_path") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/init_info/base_model_path",
                       "updates by deltas of a checkpoint are not supported; send the weights by "
                       "ipc or nccl");
    for (const struct dialect_member *m = members; m->theirs != NULL; m++)
        group = group || body_given(info, m->theirs) != NULL;
    if ((group && check_not_packed(info, e) != 0) || dialect_keep(body, info, members, e) != 0)
        return -1;
    return dialect_set(*body, "transport", json_string(group ? "nccl" : "ipc"), e);
}

int vllm_init_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return put_message(reply, "Weight transfer initialized");
}

static int refuse_draft(const char *field, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field,
                   "there is no drafter whose weights could be updated: this server does not "
                   "decode speculatively");
}

/* In which layout the tensors come shows in their names and shapes, which are checked. */
int vllm_start_in(json_t **body, const struct exchange *x, struct err *e)
{
    bool draft = false, format = true;

    (void)x;
    if (body_bool(&draft, *body, "", "include_draft", e) != 0 ||
        body_bool(&format, *body, "", "is_checkpoint_format", e) != 0)
        return -1;
    if (draft)
        return refuse_draft("/include_draft", e);
    (void)json_object_clear(*body);
    return dialect_set(*body, "lease_s", json_integer(UPDATE_UNNAMED_LEASE_S), e);
}

int vllm_start_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return put_message(reply, "Weight update started");
}

int vllm_draft_in(json_t **body, const struct exchange *x, struct err *e)
{
    (void)body;
    (void)x;
    return refuse_draft("", e);
}

static int keep_handles(json_t **body, const json_t *info, struct err *e)
{
    static const struct dialect_member members[] = {{"names", "names"},
                                                    {"dtype_names", "dtype_names"},
                                                    {"shapes", "shapes"},
                                                    {"sizes", "sizes"},
                                                    {"tensor_sizes", "tensor_sizes"},
                                                    {"packed", "packed"},
                                                    {"ipc_handles", "ipc_handles"},
                                                    {"ipc_handles_pickled", "ipc_handles_pickled"},
                                                    {NULL, NULL}};

    return dialect_keep(body, info, members, e);
}

/* vLLM's trainers state the size of a packed buffer also when they do not pack. */
static int keep_broadcasts(json_t **body, const json_t *info, struct err *e)
{
    static const struct dialect_member members[] = {
        {"names", "names"},
        {"dtype_names", "dtype_names"},
        {"shapes", "shapes"},
        {"packed", "packed"},
        {"packed_buffer_size_bytes", "packed_buffer_size_bytes"},
        {NULL, NULL}};
    bool packed = false;

    if (body_bool(&packed, info, "/update_info", "packed", e) != 0 ||
        dialect_keep(body, info, members, e) != 0)
        return -1;
    if (!packed)
        (void)json_object_del(*body, "packed_buffer_size_bytes");
    return dialect_set(*body, "transport", json_string("nccl"), e);
}

int vllm_update_in(json_t **body, const struct exchange *x, struct err *e)
{
    const json_t *info = NULL;

    (void)x;
    if (info_of(&info, *body, "update_info", "/v1/update_weights", e) != 0)
        return -1;
    if (body_given(info, "target_version") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/update_info/target_version",
                       "updates by deltas of a checkpoint are not supported; send the weights by "
                       "ipc or nccl");
    if (body_given(info, "ipc_handles") != NULL || body_given(info, "ipc_handles_pickled") != NULL)
        return keep_handles(body, info, e);
    return keep_broadcasts(body, info, e);
}

int vllm_update_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return put_message(reply, "Weights updated");
}

int vllm_finish_in(json_t **body, const struct exchange *x, struct err *e)
{
    static const struct dialect_member members[] = {{"weight_version", "weight_version"},
                                                    {NULL, NULL}};

    (void)x;
    return dialect_keep(body, *body, members, e);
}

int vllm_finish_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return put_message(reply, "Weight update finished");
}

int vllm_label_in(json_t **body, const struct exchange *x, struct err *e)
{
    static const struct dialect_member members[] = {{"new_version", "weight_version"},
                                                    {NULL, NULL}};

    (void)x;
    if (body_required(*body, "", "new_version", e) != 0)
        return -1;
    return dialect_keep(body, *body, members, e);
}

int vllm_label_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return dialect_put(reply, json_pack("{s:b, s:O}", "success", 1, "new_version",
                                        json_object_get(*reply, "weight_version")));
}

/* null: nothing has been committed, or it was dropped. */
int vllm_info_out(json_t **reply, const struct exchange *x)
{
    json_t *label = json_object_get(json_object_get(*reply, "weights"), "weight_version");

    (void)x;
    return dialect_put(reply, label == NULL ? json_pack("{s:n}", "weight_version")
                                            : json_pack("{s:O}", "weight_version", label));
}

/* vLLM's own clients leave no baseline beside checksum; others send null. */
int vllm_checker_in(json_t **body, const struct exchange *x, struct err *e)
{
    static const struct dialect_member members[] = {
        {"action", "action"}, {"baseline", "baseline"}, {NULL, NULL}};
    const char *action = NULL;

    (void)x;
    if (body_str(&action, *body, "", "action", e) != 0 ||
        dialect_keep(body, *body, members, e) != 0)
        return -1;
    if (action != NULL && strcmp(action, "compare") != 0)
        (void)json_object_del(*body, "baseline");
    return 0;
}

/* vLLM overwrites the weights with noise, so that a later comparison proves that all came anew.
 * Here they are dropped: that proves as much, and noise is never served. */
int vllm_reset_weights_in(json_t **body, const struct exchange *x, struct err *e)
{
    (void)x;
    (void)json_object_clear(*body);
    if (dialect_set(*body, "level", json_integer(2), e) != 0)
        return -1;
    return dialect_set(*body, "tags", json_pack("[s]", "weights"), e);
}

int vllm_reset_weights_out(json_t **reply, const struct exchange *x)
{
    (void)x;
    return dialect_put(reply, json_pack("{s:s}", "status", "reset"));
}
