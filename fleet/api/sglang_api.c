/* The requests of an SGLang. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <string.h>

static int sglang_init(struct api_request *out, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    static const struct api_member pairs[] = {
        {"master_address", "master_address"}, {"master_port", "master_port"},
        {"world_size", "world_size"},         {"rank_offset", "rank_offset"},
        {"group_name", "group_name"},         {0}};
    static const char *const unknown[] = {"nccl_unique_id", NULL};
    json_t *body;

    if (api_refuse(native, unknown, "sglang", e) != 0)
        return -1;
    if (strcmp(api_text(native, "transport", "nccl"), "ipc") == 0)
        return 0; /* handles need no group */
    body = api_pick(native, pairs);
    if (body == NULL || api_set_text(body, "backend", "nccl") != 0 ||
        (about->has_rank_offset &&
         json_object_set_new(body, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
             0)) {
        json_decref(body);
        return api_no_memory(e);
    }
    return api_set_body(out, "/init_weights_update_group", body, e);
}

/* Since 0.5.18. One that says nothing of a selector means all: the model and its drafter. */
static int sglang_begin(struct api_request *out, const json_t *native, struct err *e)
{
    static const struct api_member pairs[] = {{"selector", "selector"}, {0}};

    return api_set_body(out, "/begin_weight_update", api_pick(native, pairs), e);
}

/* As the version that it serves until the update has its name: whoever tells that one has all that
 * came since. Steals body. */
static json_t *marked(json_t *body, const struct api_context *about)
{
    return api_with_text(body, "weight_version", about->update_id);
}

/* Whatever its trainer asked for: where requests are held an older one does not survive a flush
 * that fails, and all are told to flush at the end of the update. Steals body. */
static json_t *unflushed(json_t *body)
{
    if (body == NULL || json_object_set_new(body, "flush_cache", json_false()) == 0)
        return body;
    json_decref(body);
    return NULL;
}

static int sglang_from_disk(struct api_request *out, const json_t *native,
                            const struct api_context *about, struct err *e)
{
    static const struct api_member pairs[] = {
        {"path", "model_path"}, {"weight_version", "weight_version"}, {0}};

    if (about->has_begun) /* its end would process what has been processed already */
        return err_set(e, ERR_BAD_REQUEST, "/path",
                       "sglang upstreams take files in an update of their own: end the one that "
                       "has begun with tensors first");
    return api_set_body(out, "/update_weights_from_disk",
                        unflushed(marked(api_pick(native, pairs), about)), e);
}

/* One broadcast of all tensors back to back is what it calls flattened. */
static int sglang_cut(const json_t *native, const char **load_format, struct err *e)
{
    const json_t *bucket = json_object_get(native, "bucket_nbytes");
    bool whole = api_has(native, "sizes") || json_integer_value(bucket) == INT64_MAX;

    if (!json_is_true(json_object_get(native, "packed")))
        return api_has(native, "bucket_nbytes")
                   ? err_set(e, ERR_BAD_REQUEST, "/bucket_nbytes", "bucket_nbytes goes with packed")
                   : 0;
    if (!whole)
        return err_set(e, ERR_BAD_REQUEST, "/packed",
                       "sglang upstreams receive one broadcast for each tensor, or one of all: "
                       "send sizes, or no packed");
    *load_format = "flattened_bucket";
    return 0;
}

/* Tensors that say themselves what they are. */
static int sglang_from_tensor(struct api_request *out, const json_t *native,
                              const struct api_context *about, struct err *e)
{
    static const struct api_member pairs[] = {
        {"serialized_named_tensors", "serialized_named_tensors"},
        {"serialized_format", "load_format"},
        {"weight_version", "weight_version"},
        {"selector", "selector"},
        {0}};

    json_t *body = unflushed(marked(api_pick(native, pairs), about));

    /* What selector target is called before 0.5.18; of a group's tensors it is what these mean. */
    if (body != NULL && strcmp(api_text(native, "selector", ""), "target") == 0 &&
        json_object_set_new(body, "disable_draft_model", json_true()) != 0) {
        json_decref(body);
        body = NULL;
    }
    return api_set_body(out, "/update_weights_from_tensor", body, e);
}

/* It may be in several groups, and ends where it is in none of that name. */
static int sglang_update(struct api_request *out, const json_t *native,
                         const struct api_context *about, struct err *e)
{
    static const struct api_member pairs[] = {
        {"names", "names"},           {"dtypes", "dtypes"},
        {"dtype_names", "dtypes"},    {"shapes", "shapes"},
        {"group_name", "group_name"}, {"weight_version", "weight_version"},
        {"selector", "selector"},     {0}};
    static const char *const unknown[] = {"shm",
                                          "ipc_handles",
                                          "ipc_handles_pickled",
                                          "buckets",
                                          "plan_id",
                                          "per_gpu",
                                          "checksums",
                                          "metadata_by_gpu",
                                          "packed_buffer_size_bytes",
                                          "expected_digest",
                                          "chunk_id",
                                          NULL};
    const char *load_format = NULL;
    json_t *body;

    if (api_refuse_instead(native, unknown, "sglang",
                           ": they take tensors over NCCL, serialized_named_tensors or a path",
                           e) != 0)
        return -1;
    if (api_has(native, "serialized_named_tensors"))
        return sglang_from_tensor(out, native, about, e);
    if (api_has(native, "path"))
        return sglang_from_disk(out, native, about, e);
    if (sglang_cut(native, &load_format, e) != 0)
        return -1;
    body = unflushed(marked(api_pick(native, pairs), about));
    body = api_with_text(body, "group_name", about->group_name);
    return api_set_body(out, "/update_weights_from_distributed",
                        api_with_text(body, "load_format", load_format), e);
}

/* The end of an update takes no name. Where none has begun, the name is all that is left. */
static int sglang_finish(struct api_request *out, const json_t *native,
                         const struct api_context *about, struct err *e)
{
    static const char *const unknown[] = {"checksums", NULL};

    if (api_refuse(native, unknown, "sglang", e) != 0)
        return -1;
    if (about->has_begun)
        return api_set_body(out, "/end_weight_update", json_object(), e);
    if (!api_has(native, "weight_version"))
        return 0;
    return api_set_version(out, native, e);
}

/* It cannot wait for what runs; what is frozen goes on. */
static int sglang_pause(struct api_request *out, const json_t *native, struct err *e)
{
    const char *mode = api_text(native, "mode", "keep");

    if (api_check_word(mode, api_pause_modes, "/mode", e) != 0 ||
        api_refuse_reject(native, "sglang", e) != 0)
        return -1;
    if (strcmp(mode, "wait") == 0)
        return err_set(e, ERR_BAD_REQUEST, "/mode",
                       "sglang upstreams cannot wait for what runs: pause with keep or abort");
    return api_set_body(
        out, "/pause_generation",
        json_pack("{s:s}", "mode", strcmp(mode, "keep") == 0 ? "in_place" : "abort"), e);
}

static int sglang_memory(struct api_request *out, const char *path, const json_t *native,
                         struct err *e)
{
    static const struct api_member pairs[] = {{"tags", "tags"}, {0}};

    return api_set_body(out, path, api_pick(native, pairs), e);
}

/* One at a time, by the rid that its client gave it. */
static int sglang_abort_requests(struct api_request *out, const json_t *native, struct err *e)
{
    const json_t *ids = json_object_get(native, "request_ids");
    const char *rid = json_string_value(json_array_get(ids, 0));

    if (!api_has(native, "request_ids"))
        return api_set_body(out, "/abort_request", json_pack("{s:b}", "abort_all", 1), e);
    if (json_array_size(ids) == 0)
        return 0;
    if (json_array_size(ids) > 1 || rid == NULL || rid[0] == '\0')
        return err_set(e, ERR_BAD_REQUEST, "/request_ids",
                       "sglang upstreams abort one request at a time, by its rid");
    return api_set_body(out, "/abort_request", json_pack("{s:s}", "rid", rid), e);
}

int sglang_make_request(struct api_request *out, enum api_op op, const json_t *native,
                        const struct api_context *about, struct err *e)
{
    switch (op) {
    case API_INIT_TRANSFER:
        return sglang_init(out, native, about, e);
    case API_SHUTDOWN_TRANSFER:
        return api_set_body(out, "/destroy_weights_update_group",
                            api_with_text(json_object(), "group_name", about->group_name), e);
    case API_START_UPDATE:
        return sglang_begin(out, native, e);
    case API_UPDATE_WEIGHTS:
        return sglang_update(out, native, about, e);
    case API_FINISH_UPDATE:
        return sglang_finish(out, native, about, e);
    case API_PAUSE:
        return sglang_pause(out, native, e);
    case API_RESUME:
        return api_set_body(out, "/continue_generation", json_object(), e);
    case API_SLEEP:
        return sglang_memory(out, "/release_memory_occupation", native, e);
    case API_WAKE:
        return sglang_memory(out, "/resume_memory_occupation", native, e);
    case API_RESET_PREFIX_CACHE:
        return api_set_body(out, "/flush_cache", json_object(), e);
    case API_RESET_STORAGE_CACHE:
        return api_set_path(out, "POST", "/hicache/storage-backend/clear");
    case API_RETRACT_REQUESTS:
        return api_set_body(out, "/pause_generation", json_pack("{s:s}", "mode", "retract"), e);
    case API_ABORT_REQUESTS:
        return sglang_abort_requests(out, native, e);
    case API_LOAD_ADAPTER:
        return api_load_adapter(out, "/load_lora_adapter", "sglang", native, false, e);
    case API_UNLOAD_ADAPTER:
        return api_unload_adapter(out, "/unload_lora_adapter", native, e);
    case API_PUT_TENSOR_LIST:
        return api_refuse_tensor_list("sglang", e);
    case API_SET_VERSION:
        return api_set_version(out, native, e);
    default: /* it proves nothing, and aborts nothing */
        return 0;
    }
}
