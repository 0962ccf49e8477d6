/* The requests of a vLLM. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <string.h>

enum { VLLM_BUCKET_NBYTES = 1 << 30 }; /* of a packed broadcast, where nobody says it */

static uint64_t bucket_of(const json_t *native)
{
    const json_t *bucket = json_object_get(native, "bucket_nbytes");

    if (!json_is_integer(bucket))
        bucket = json_object_get(native, "packed_buffer_size_bytes");
    return json_is_integer(bucket) ? (uint64_t)json_integer_value(bucket) : 0;
}

static bool says(const json_t *native, const char *member)
{
    return json_is_true(json_object_get(native, member));
}

/* What its init_info says of packing, where its release takes it there. NULL: no memory. Steals
 * info. */
static json_t *vllm_packing(json_t *info, const json_t *native)
{
    static const struct api_member pairs[] = {{"packed", "packed"}, {0}};
    static const struct api_member buffers[] = {
        {"bucket_nbytes", "packed_buffer_size_bytes"},
        {"packed_buffer_size_bytes", "packed_buffer_size_bytes"},
        {"packed_num_buffers", "packed_num_buffers"},
        {0}};
    json_t *packed = api_pick(native, pairs), *sizes = api_pick(native, buffers);

    if (info == NULL || packed == NULL || sizes == NULL || json_object_update(info, packed) != 0 ||
        (says(native, "packed") && json_object_update(info, sizes) != 0)) {
        json_decref(info);
        info = NULL;
    }
    json_decref(packed);
    json_decref(sizes);
    return info;
}

/* Of handles there is no group, and no buffer of ours. */
static json_t *vllm_init_handles(const json_t *native, const struct api_context *about)
{
    static const struct api_member packed[] = {{"packed", "packed"}, {0}}, none[] = {{0}};

    return api_pick(native, vllm_has(about->release, VLLM_PACKS_HANDLES_AT_INIT) ? packed : none);
}

static json_t *vllm_init_group(const json_t *native, const struct api_context *about)
{
    static const struct api_member pairs[] = {{"master_address", "master_address"},
                                              {"master_port", "master_port"},
                                              {"world_size", "world_size"},
                                              {"rank_offset", "rank_offset"},
                                              {"nccl_unique_id", "nccl_unique_id_b64"},
                                              {0}};
    json_t *info = api_pick(native, pairs);

    if (info != NULL && about->has_rank_offset &&
        json_object_set_new(info, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
            0) {
        json_decref(info);
        return NULL;
    }
    return vllm_has(about->release, VLLM_PACKS_GROUP_AT_INIT) ? vllm_packing(info, native) : info;
}

static int vllm_init(struct api_request *out, const json_t *native, const struct api_context *about,
                     struct err *e)
{
    static const char *const unknown[] = {"group_name", NULL}, *const id[] = {"nccl_unique_id",
                                                                              NULL};
    bool handles = strcmp(api_text(native, "transport", "nccl"), "ipc") == 0;
    json_t *info;

    if (api_refuse(native, unknown, "vllm", e) != 0 ||
        (!vllm_has(about->release, VLLM_TAKES_UNIQUE_ID) &&
         api_refuse(native, id, "vllm (before 0.30)", e) != 0))
        return -1;
    if (json_is_false(json_object_get(native, "warm_up")))
        return err_set(e, ERR_BAD_REQUEST, "/warm_up",
                       "vllm upstreams always begin with an all-reduce: leave warm_up out");
    info = handles ? vllm_init_handles(native, about) : vllm_init_group(native, about);
    return api_set_body(out, "/init_weight_transfer_engine",
                        info != NULL ? json_pack("{s:o}", "init_info", info) : NULL, e);
}

static int vllm_start(struct api_request *out, const json_t *native, struct err *e)
{
    static const char *const unknown[] = {"partial", "convert", NULL};

    if (api_refuse(native, unknown, "vllm", e) != 0)
        return -1;
    return api_set_body(out, "/start_weight_update", json_pack("{s:b}", "is_checkpoint_format", 1),
                        e);
}

/* With sizes all is one broadcast, which has no bound. */
static uint64_t vllm_bound(const json_t *native)
{
    uint64_t bucket = bucket_of(native);

    if (bucket != 0)
        return bucket;
    return api_has(native, "sizes") ? INT64_MAX : VLLM_BUCKET_NBYTES;
}

/* It cuts all that comes by its group in one way. */
static int check_group_packs(const json_t *native, const struct api_context *about, struct err *e)
{
    uint64_t of_group = about->group.bucket_nbytes != 0 ? about->group.bucket_nbytes
                                                        : VLLM_BUCKET_NBYTES;
    bool packed = says(native, "packed");

    if (packed == about->group.packed && (!packed || vllm_bound(native) == of_group))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/packed",
                   "vllm %s is told how tensors are packed when its group is formed, and was told "
                   "%s: say packed and bucket_nbytes (packed_buffer_size_bytes) there, as here",
                   about->release != NULL && about->release[0] != '\0' ? about->release
                                                                       : "of an unknown release",
                   about->group.packed ? "otherwise" : "nothing of it");
}

/* Before, each update says it; a bound beside what is not packed is nobody's. */
static json_t *vllm_say_packing(json_t *info, const json_t *native)
{
    if (info == NULL || !says(native, "packed"))
        return info;
    if (json_object_set_new(info, "packed", json_true()) == 0 &&
        (!api_has(native, "transport") || (bucket_of(native) == 0 && !api_has(native, "sizes")) ||
         json_object_set_new(info, "packed_buffer_size_bytes",
                             json_integer((json_int_t)vllm_bound(native))) == 0))
        return info;
    json_decref(info);
    return NULL;
}

static int vllm_update(struct api_request *out, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    static const struct api_member pairs[] = {{"names", "names"},
                                              {"dtypes", "dtype_names"},
                                              {"dtype_names", "dtype_names"},
                                              {"shapes", "shapes"},
                                              {"tensor_sizes", "tensor_sizes"},
                                              {"ipc_handles_pickled", "ipc_handles_pickled"},
                                              {0}};
    static const char *const unknown[] = {"shm",
                                          "path",
                                          "ipc_handles",
                                          "buckets",
                                          "plan_id",
                                          "per_gpu",
                                          "checksums",
                                          "metadata_by_gpu",
                                          "expected_digest",
                                          "serialized_named_tensors",
                                          "chunk_id",
                                          "group_name",
                                          NULL};
    bool group = api_has(native, "transport");
    bool said_before = vllm_has(about->release,
                                group ? VLLM_PACKS_GROUP_AT_INIT : VLLM_PACKS_HANDLES_AT_INIT);
    json_t *info;

    if (api_refuse_instead(native, unknown, "vllm",
                           ": they take tensors over NCCL, or ipc_handles_pickled", e) != 0 ||
        (said_before && group && check_group_packs(native, about, e) != 0))
        return -1;
    info = api_pick(native, pairs);
    if (!said_before)
        info = vllm_say_packing(info, native);
    return api_set_body(out, "/update_weights",
                        info != NULL ? json_pack("{s:o}", "update_info", info) : NULL, e);
}

static int vllm_finish(struct api_request *out, const json_t *native, struct err *e)
{
    static const struct api_member pairs[] = {{"weight_version", "weight_version"}, {0}};
    static const char *const unknown[] = {"checksums", NULL};

    if (api_refuse(native, unknown, "vllm", e) != 0)
        return -1;
    return api_set_body(out, "/finish_weight_update", api_pick(native, pairs), e);
}

static int vllm_pause(struct api_request *out, const json_t *native, struct err *e)
{
    const char *mode = api_text(native, "mode", "keep");

    if (api_check_word(mode, api_pause_modes, "/mode", e) != 0 ||
        api_refuse_reject(native, "vllm", e) != 0)
        return -1;
    (void)api_set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/pause?mode=%s&clear_cache=false", mode);
    return 0;
}

static int vllm_reset(struct api_request *out, const json_t *native)
{
    bool running = says(native, "running"), external = says(native, "external");

    (void)api_set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/reset_prefix_cache%s%s%s%s",
                   running || external ? "?" : "", running ? "reset_running_requests=true" : "",
                   running && external ? "&" : "", external ? "reset_external=true" : "");
    return 0;
}

/* Its sleep knows no parts, its wake does, and since 0.31 there is a word for the KV cache alone.
 */
static int vllm_sleep(struct api_request *out, const json_t *native,
                      const struct api_context *about, struct err *e)
{
    const json_t *level = json_object_get(native, "level"), *tags = json_object_get(native, "tags");
    const char *tag = json_string_value(json_array_get(tags, 0));

    if (json_array_size(tags) == 1 && tag != NULL && strcmp(tag, "kv_cache") == 0 &&
        vllm_has(about->release, VLLM_RELEASES_KV))
        return api_set_path(out, "POST", "/release_kv_cache_memory");
    if (json_array_size(tags) == 1)
        return err_set(e, ERR_BAD_REQUEST, "/tags",
                       "vllm upstreams sleep as a whole: leave tags out, and wake them by parts");
    (void)api_set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/sleep?level=%" JSON_INTEGER_FORMAT,
                   json_is_integer(level) ? json_integer_value(level) : 1);
    return 0;
}

static int vllm_wake(struct api_request *out, const json_t *native, struct err *e)
{
    static const char *const known[] = {"weights", "kv_cache", NULL};
    const json_t *tags = json_object_get(native, "tags"), *tag;
    size_t i, len = (size_t)snprintf(out->path, sizeof out->path, "/wake_up");

    out->method = "POST";
    if (json_array_size(tags) > 2)
        return err_set(e, ERR_BAD_REQUEST, "/tags", "there are two tags: weights, kv_cache");
    json_array_foreach(tags, i, tag)
    {
        const char *word = json_is_string(tag) ? json_string_value(tag) : "";

        if (api_check_word(word, known, "/tags", e) != 0)
            return -1;
        len += (size_t)snprintf(out->path + len, sizeof out->path - len, "%ctags=%s",
                                i == 0 ? '?' : '&', word);
    }
    return 0;
}

int vllm_make_request(struct api_request *out, enum api_op op, const json_t *native,
                      const struct api_context *about, struct err *e)
{
    static const struct api_member ids[] = {{"request_ids", "request_ids"}, {0}};

    switch (op) {
    case API_INIT_TRANSFER:
        return vllm_init(out, native, about, e);
    case API_SHUTDOWN_TRANSFER:
        return vllm_has(about->release, VLLM_SHUTS_TRANSFER_DOWN)
                   ? api_set_path(out, "POST", "/shutdown_weight_transfer_engine")
                   : 0; /* it had no word for it */
    case API_START_UPDATE:
        return vllm_start(out, native, e);
    case API_UPDATE_WEIGHTS:
        return vllm_update(out, native, about, e);
    case API_FINISH_UPDATE:
        return vllm_finish(out, native, e);
    case API_PAUSE:
        return vllm_pause(out, native, e);
    case API_RESUME:
        return api_set_path(out, "POST", "/resume");
    case API_SLEEP:
        return vllm_sleep(out, native, about, e);
    case API_WAKE:
        return vllm_wake(out, native, e);
    case API_RESET_PREFIX_CACHE:
        return vllm_reset(out, native);
    case API_RESET_ENCODER_CACHE:
        return api_set_path(out, "POST", "/reset_encoder_cache");
    case API_ABORT_REQUESTS:
        if (api_has(native, "request_ids") &&
            json_array_size(json_object_get(native, "request_ids")) == 0)
            return 0; /* an empty list is all of them, there */
        return api_set_body(out, "/abort_requests", api_pick(native, ids), e);
    case API_LOAD_ADAPTER:
        return api_load_adapter(out, "/v1/load_lora_adapter", "vllm", native, true, e);
    case API_UNLOAD_ADAPTER:
        return api_unload_adapter(out, "/v1/unload_lora_adapter", native, e);
    case API_PUT_TENSOR_LIST:
        return api_refuse_tensor_list("vllm", e);
    case API_SET_VERSION:
        return api_set_version(out, native, e);
    default: /* it proves nothing, and aborts nothing */
        return 0;
    }
}
