/* A vLLM as an upstream. What a request cannot express for it is refused by the member that asks
 * for it, never left out. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <string.h>

/* Since these minor releases (0.MINOR) vLLM has what the name says. Packing is declared in each
 * update before, and when the transfer is set up since. */
enum {
    VLLM_COPIES_PACKED_HANDLES = 24,
    VLLM_PACKS_HANDLES_AT_INIT = 27,
    VLLM_PACKS_GROUP_AT_INIT = 28,
    VLLM_LOADS_THROUGH_LORA = 28,
    VLLM_TAKES_UNIQUE_ID = 30,
    VLLM_RELEASES_KV = 31,
    VLLM_SHUTS_TRANSFER_DOWN = 32
};

enum { VLLM_BUCKET_NBYTES = 1 << 30 }; /* of a packed broadcast, if no request says it */

static void vllm_read_release(struct api_release *out, const char *release)
{
    out->packs_handles_at_init = vllm_has(release, VLLM_PACKS_HANDLES_AT_INIT);
    out->renames_for_lora = !vllm_has(release, VLLM_LOADS_THROUGH_LORA);
    if (!vllm_has(release, VLLM_COPIES_PACKED_HANDLES))
        out->refuses_windows = "--stage host needs vLLM 0.24 or newer: an older one still reads a "
                               "window after it has answered; update it, or give a GPU, as in "
                               "--stage cuda:0";
}

static bool is_on(const json_t *native, const char *member)
{
    return json_is_true(json_object_get(native, member));
}

/* the transfer */

/* 0: the request does not say it. */
static uint64_t vllm_api_bucket_nbytes(const json_t *native)
{
    const json_t *bucket = json_object_get(native, "bucket_nbytes");

    if (!json_is_integer(bucket))
        bucket = json_object_get(native, "packed_buffer_size_bytes");
    return json_is_integer(bucket) ? (uint64_t)json_integer_value(bucket) : 0;
}

/* Adds how tensors are packed to init_info. Steals info; NULL: no memory. */
static json_t *with_init_packing(json_t *info, const json_t *native)
{
    static const char how[] = "packed bucket_nbytes=packed_buffer_size_bytes "
                              "packed_buffer_size_bytes packed_num_buffers";
    json_t *packing = api_pick(native, is_on(native, "packed") ? how : "packed");

    if (packing != NULL && json_object_update_new(info, packing) == 0)
        return info;
    json_decref(info);
    return NULL;
}

/* IPC handles need no group, and no buffer of ours. */
static json_t *handles_init_info(const struct api_draft *d)
{
    const struct api_join *join = d->args->join;

    if (!join->packed_given || !vllm_has(d->ctx->release, VLLM_PACKS_HANDLES_AT_INIT))
        return json_object();
    return json_pack("{s:b}", "packed", (int)join->packed);
}

static json_t *group_init_info(const struct api_draft *d)
{
    json_t *info = api_pick(d->own, "master_address master_port world_size rank_offset "
                                    "nccl_unique_id=nccl_unique_id_b64");

    info = api_with_rank(info, d->ctx);
    return vllm_has(d->ctx->release, VLLM_PACKS_GROUP_AT_INIT) ? with_init_packing(info, d->own)
                                                               : info;
}

static int vllm_init_transfer(const struct api_draft *d)
{
    if (!vllm_has(d->ctx->release, VLLM_TAKES_UNIQUE_ID) && api_has(d->own, "nccl_unique_id"))
        return err_set(d->e, ERR_BAD_REQUEST, "/nccl_unique_id",
                       "vllm (before 0.30) upstreams do not support nccl_unique_id");
    if (json_is_false(json_object_get(d->own, "warm_up")))
        return err_set(d->e, ERR_BAD_REQUEST, "/warm_up",
                       "vllm upstreams always start with an all-reduce: leave warm_up out");
    return api_set_body(
        d, json_pack("{s:o}", "init_info",
                     d->args->join->by_handles ? handles_init_info(d) : group_init_info(d)));
}

static int vllm_shutdown_transfer(const struct api_draft *d)
{
    return vllm_has(d->ctx->release, VLLM_SHUTS_TRANSFER_DOWN) ? 0 : api_send_nothing(d);
}

/* updates */

/* With sizes all tensors are one broadcast, which has no bound. */
static uint64_t broadcast_nbytes_max(const json_t *native)
{
    uint64_t bucket = vllm_api_bucket_nbytes(native);

    if (bucket != 0)
        return bucket;
    return api_has(native, "sizes") ? INT64_MAX : VLLM_BUCKET_NBYTES;
}

/* All that comes through its group is cut as was declared when the group was formed. */
static int check_group_packing(const struct api_draft *d)
{
    const struct api_context *ctx = d->ctx;
    uint64_t of_group = ctx->group.bucket_nbytes != 0 ? ctx->group.bucket_nbytes
                                                      : VLLM_BUCKET_NBYTES;
    bool packed = is_on(d->own, "packed");

    if (packed == ctx->group.packed && (!packed || broadcast_nbytes_max(d->own) == of_group))
        return 0;
    return err_set(
        d->e, ERR_BAD_REQUEST, "/packed",
        "vllm %s takes how tensors are packed when its group is formed, and there %s: send "
        "packed and bucket_nbytes (packed_buffer_size_bytes) to the init as in the update",
        ctx->release != NULL && ctx->release[0] != '\0' ? ctx->release : "of an unknown release",
        ctx->group.packed ? "other values were sent" : "packed was not sent");
}

/* Adds how tensors are packed to update_info, for releases that take it there; a bucket size only
 * if they are packed. Steals info; NULL: no memory. */
static json_t *with_update_packing(json_t *info, const json_t *native)
{
    bool has_bound = vllm_api_bucket_nbytes(native) != 0 || api_has(native, "sizes");

    if (!is_on(native, "packed"))
        return info;
    info = api_with(info, "packed", json_true());
    if (!api_has(native, "transport") || !has_bound)
        return info;
    return api_with(info, "packed_buffer_size_bytes",
                    json_integer((json_int_t)broadcast_nbytes_max(native)));
}

static int vllm_update_weights(const struct api_draft *d)
{
    static const char members[] = "names dtypes=dtype_names dtype_names shapes tensor_sizes "
                                  "ipc_handles_pickled";
    bool group = api_has(d->own, "transport");
    bool packs_at_init = vllm_has(d->ctx->release,
                                  group ? VLLM_PACKS_GROUP_AT_INIT : VLLM_PACKS_HANDLES_AT_INIT);
    json_t *info;

    if (packs_at_init && group && check_group_packing(d) != 0)
        return -1;
    info = vllm_with_names(api_pick(d->own, members), d->ctx->names);
    if (!packs_at_init)
        info = with_update_packing(info, d->own);
    return api_set_body(d, json_pack("{s:o}", "update_info", info));
}

static int vllm_finish_update(const struct api_draft *d)
{
    return api_set_body(d, api_with_text(json_object(), "weight_version", d->args->label));
}

/* pause, sleep, caches */

static int vllm_pause(const struct api_draft *d)
{
    if (api_check_pause(d) != 0)
        return -1;
    (void)snprintf(d->out->path, sizeof d->out->path, "/pause?mode=%s&clear_cache=false",
                   lifecycle_pause_name(d->args->pause->mode));
    return 0;
}

/* Its sleep takes no tags; since 0.31 another route releases the KV cache alone. */
static int vllm_sleep(const struct api_draft *d)
{
    json_auto_t *tags = api_tags(d);
    const char *tag = json_string_value(json_array_get(tags, 0));
    bool one = json_array_size(tags) == 1, kv = tag != NULL && strcmp(tag, "kv_cache") == 0;

    if (one && kv && vllm_has(d->ctx->release, VLLM_RELEASES_KV))
        return api_set_path(d->out, "/release_kv_cache_memory");
    if (one)
        return err_set(
            d->e, ERR_BAD_REQUEST, "/tags",
            "vllm upstreams release everything, or since 0.31 kv_cache alone: leave tags "
            "out, and send them to wake");
    (void)snprintf(d->out->path, sizeof d->out->path, "/sleep?level=%d",
                   d->args->sleep != NULL ? d->args->sleep->level : 1);
    return 0;
}

static int vllm_wake(const struct api_draft *d)
{
    json_auto_t *tags = api_tags(d);
    char *path = d->out->path;
    size_t i, len = strlen(path);
    const json_t *tag;

    if (json_array_size(tags) > 2)
        return err_set(d->e, ERR_BAD_REQUEST, "/tags",
                       "expected at most two tags: weights, kv_cache");
    json_array_foreach(tags, i, tag)
    {
        const char *word = json_is_string(tag) ? json_string_value(tag) : "";

        if (strcmp(word, "weights") != 0 && strcmp(word, "kv_cache") != 0) /* it is put in a path */
            return err_set(d->e, ERR_BAD_REQUEST, "/tags",
                           "'%.32s' is not one of weights, kv_cache", word);
        len += (size_t)snprintf(path + len, API_PATH_MAX - len, "%ctags=%s", i == 0 ? '?' : '&',
                                word);
    }
    return 0;
}

static int vllm_reset_prefix_cache(const struct api_draft *d)
{
    bool running = d->args->running, external = d->args->external;

    (void)snprintf(d->out->path, sizeof d->out->path, "/reset_prefix_cache%s%s%s%s",
                   running || external ? "?" : "", running ? "reset_running_requests=true" : "",
                   running && external ? "&" : "", external ? "reset_external=true" : "");
    return 0;
}

/* An empty list means all requests there: none is sent. */
static int vllm_abort_requests(const struct api_draft *d)
{
    if (api_has(d->own, "request_ids") &&
        json_array_size(json_object_get(d->own, "request_ids")) == 0)
        return api_send_nothing(d);
    return api_set_body(d, api_pick(d->own, "request_ids"));
}

/* replies */

/* The value of the first line that begins with this. Returns: its bytes; 0: there is none. */
static int first_metric(const char **value, const char *text, size_t len, const char *begin)
{
    const char *at = memmem(text, len, begin, strlen(begin)), *end;

    if (at == NULL)
        return 0;
    end = memchr(at + 1, '\n', len - (size_t)(at + 1 - text));
    *value = end != NULL ? memrchr(at, ' ', (size_t)(end - at)) : NULL;
    if (*value == NULL || end - ++*value > FLEET_LABEL_MAX / 2)
        return 0;
    return (int)(end - *value);
}

/* From its metrics: when the process began, and when it made one of its counters. Python's client
 * of Prometheus always exports the first, to 0.01 s, which engines that are started together may
 * have in common; and the second to a microsecond, unless PROMETHEUS_DISABLE_CREATED_SERIES is set.
 */
static void vllm_read_status(struct upstream_report *out, const char *text, size_t len)
{
    const char *began = NULL, *made = NULL;
    static const char lora[] = "vllm:lora_requests_info"; /* made with --enable-lora only */
    int n_began = first_metric(&began, text, len, "\nprocess_start_time_seconds ");
    int n_made = first_metric(&made, text, len, "\nvllm:num_preemptions_created{");

    out->has_lora = memmem(text, len, lora, sizeof lora - 1) != NULL;
    if (n_began == 0)
        return;
    (void)snprintf(out->process, sizeof out->process, "%.*s", n_began, began);
    if (n_made > 0)
        (void)snprintf(out->identity, sizeof out->identity, "%.*s %.*s", n_began, began, n_made,
                       made);
}

static int64_t vllm_n_ranks(const json_t *reply)
{
    json_int_t n = json_integer_value(json_object_get(reply, "world_size"));

    return n > 0 ? n : -1;
}

/* Many releases reply alike when nothing was reset, but never when they were asked to preempt
 * running requests. */
static bool vllm_reset_is_proven(const struct api_args *args, const json_t *reply)
{
    return args->running || json_is_true(json_object_get(reply, "success"));
}

/* {"choices": [{"prompt_logprobs": [null, {"42": {"logprob": -1.5}, "7": {}}]}]}. A request for
 * them reads no prefix cache [v1/core/kv_cache_manager.py, get_computed_blocks]. */
static const json_t *vllm_canary_value(const json_t *reply, size_t i)
{
    const json_t *all = api_at(reply, "/choices/0/prompt_logprobs");
    char at[32];

    (void)snprintf(at, sizeof at, "/%zu/%d/logprob", i + 1, api_canary_ids[i + 1]);
    return json_array_size(all) == API_CANARY_IDS ? api_at(all, at) : NULL;
}

/* Its encoder of replies refuses NaN, which 0.32 answers with 400. */
static bool vllm_says_not_finite(const char *text, size_t len)
{
    static const char words[] = "Out of range float values are not JSON compliant";

    return memmem(text, len, words, sizeof words - 1) != NULL;
}

/* {"checksums": {"dp0:pp0:pcp0:tp0:NAME": SHA-256}}, of all ranks. */
static json_t *vllm_checksums(const json_t *reply)
{
    return json_incref(json_object_get(reply, "checksums"));
}

/* It proves nothing, and cannot abort an update. */
const struct upstream_api vllm_api = {
    .name = "vllm",
    .wrong_kind_hint = "; if it is not a vLLM, configure it as URL,sglang or URL,baton",
    .caps = {.status_names_process = true,
             .replaces_adapters = true,
             .caches_by_adapter_name = true,
             .waits_in_pause = true,
             .wakes_twice = true,
             .keeps_handle_setup = true},
    .ops =
        {
            [API_INIT_TRANSFER] = {"POST", "/init_weight_transfer_engine", vllm_init_transfer,
                                   "group_name"},
            [API_SHUTDOWN_TRANSFER] = {"POST", "/shutdown_weight_transfer_engine",
                                       vllm_shutdown_transfer},
            [API_START_UPDATE] = {"POST", "/start_weight_update",
                                  .body = "{\"is_checkpoint_format\":true}",
                                  .refuses = "partial convert trainer_ranks"},
            [API_UPDATE_WEIGHTS] = {"POST", "/update_weights", vllm_update_weights,
                                    "shm path ipc_handles buckets plan_id per_gpu checksums "
                                    "metadata_by_gpu expected_digest "
                                    "serialized_named_tensors chunk_id group_name trainer_rank",
                                    ": they accept tensors over NCCL, or ipc_handles_pickled"},
            [API_FINISH_UPDATE] = {"POST", "/finish_weight_update", vllm_finish_update,
                                   "checksums"},
            [API_PAUSE] = {"POST", "/pause", vllm_pause},
            [API_RESUME] = {"POST", "/resume"},
            [API_SLEEP] = {"POST", "/sleep", vllm_sleep},
            [API_WAKE] = {"POST", "/wake_up", vllm_wake},
            [API_RESET_PREFIX_CACHE] = {"POST", "/reset_prefix_cache", vllm_reset_prefix_cache},
            [API_RESET_ENCODER_CACHE] = {"POST", "/reset_encoder_cache"},
            [API_ABORT_REQUESTS] = {"POST", "/abort_requests", vllm_abort_requests},
            [API_LOAD_ADAPTER] = {"POST", "/v1/load_lora_adapter", api_load_adapter},
            [API_UNLOAD_ADAPTER] = {"POST", "/v1/unload_lora_adapter", api_unload_adapter},
            [API_PUT_TENSOR_LIST] = {NULL, NULL, api_refuse_tensor_list},
            [API_SET_VERSION] = {"POST", "/update_weight_version", api_set_version},
        },
    .queries =
        {
            [API_GET_STATUS] = {"GET", "/metrics"},
            [API_GET_PROBE_VERSION] = {"GET", "/weight_info"},
            [API_GET_VERSION] = {"GET", "/weight_info"},
            [API_GET_RANKS] = {"GET", "/get_world_size"},
            [API_GENERATE_TOKEN] = {"POST", "/v1/completions", .body = API_ONE_TOKEN},
            [API_GENERATE_CANARY] = {"POST", "/v1/completions",
                                     .body = "{\"prompt\":" API_CANARY_PROMPT
                                             ",\"max_tokens\":1,\"temperature\":0,"
                                             "\"prompt_logprobs\":1}"},
            [API_GET_CHECKSUMS] = {"POST", "/weight_checker", .body = "{\"action\":\"checksum\"}"},
            [API_GET_RELEASE] = {"GET", "/version"},
            [API_GET_PAUSED] = {"GET", "/is_paused"},
            [API_GET_ASLEEP] = {"GET", "/is_sleeping"},
            [API_GET_CONFIG] = {"GET", "/server_info?config_format=json"},
        },
    .read_status = vllm_read_status,
    .version_at = "/weight_version",
    .n_ranks = vllm_n_ranks,
    .canary_value = vllm_canary_value,
    .says_not_finite = vllm_says_not_finite,
    .checksums = vllm_checksums,
    .checksum_place_end = ':',
    .config = api_vllm_config,
    .model_at = "/vllm_config/model_config/model",
    .check_done = api_check_success,
    .reset_is_proven = vllm_reset_is_proven,
    .read_release = vllm_read_release,
    .names_for_lora = vllm_names_for_lora,
};
