/* An SGLang as an upstream. What a request cannot express for it is refused by the member that asks
 * for it, never left out. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <string.h>

/* The first release, as 0.5.N, whose flattened buckets may have several dtypes. */
enum { SGLANG_MINOR = 5, SGLANG_MIXES_DTYPES = 6, SGLANG_BEGINS = 21 };

/* the transfer */

static int sglang_init_transfer(const struct api_draft *d)
{
    json_t *body;

    if (d->args->join->by_handles)
        return api_send_nothing(d); /* handles need no group */
    body = api_pick(d->own, "master_address master_port world_size rank_offset group_name");
    return api_set_body(d, api_with_rank(api_with_text(body, "backend", "nccl"), d->ctx));
}

static int sglang_shutdown_transfer(const struct api_draft *d)
{
    return api_set_body(d, api_with_text(json_object(), "group_name", d->ctx->group_name));
}

/* updates */

/* Since 0.5.21. Without a selector it means all: the model and its draft model. */
static int sglang_start_update(const struct api_draft *d)
{
    return api_set_body(d, api_with_text(json_object(), "selector", d->args->selector));
}

/* Its version is the one that it serves until the update gives it its own: an SGLang that reports
 * this one has received all tensors since. It flushes nothing, whatever the trainer asked for: an
 * older SGLang that holds requests does not survive a flush that fails, and the caches of all
 * upstreams are reset at the end of the update. */
static json_t *update_body(const struct api_draft *d, const char *members)
{
    json_t *body = api_with_text(api_pick(d->own, members), "weight_version", d->ctx->update_id);

    return api_with(body, "flush_cache", json_false());
}

static int update_from_disk(const struct api_draft *d)
{
    if (d->ctx->has_begun) /* its end would process a second time what has been processed */
        return err_set(d->e, ERR_BAD_REQUEST, "/path",
                       "sglang upstreams load files only in an update without tensors: finish the "
                       "open update first");
    (void)api_set_path(d->out, "/update_weights_from_disk");
    return api_set_body(d, update_body(d, "path=model_path weight_version"));
}

/* Tensors in Python's serialized form, which describe themselves. */
static int update_from_tensors(const struct api_draft *d)
{
    json_t *body = update_body(d, "serialized_named_tensors serialized_format=load_format "
                                  "weight_version selector");

    /* What "target" is called before 0.5.21. Tensors of a group mean it there without a member. */
    if (strcmp(api_text(d->own, "selector", ""), "target") == 0)
        body = api_with(body, "disable_draft_model", json_true());
    (void)api_set_path(d->out, "/update_weights_from_tensor");
    return api_set_body(d, body);
}

/* One broadcast of all tensors back to back is a flattened bucket there. */
static int choose_load_format(const struct api_draft *d, const char **load_format)
{
    const json_t *bucket = json_object_get(d->own, "bucket_nbytes");
    bool whole = api_has(d->own, "sizes") || json_integer_value(bucket) == INT64_MAX;

    if (!json_is_true(json_object_get(d->own, "packed")))
        return api_has(d->own, "bucket_nbytes")
                   ? err_set(d->e, ERR_BAD_REQUEST, "/bucket_nbytes",
                             "bucket_nbytes is allowed only with packed")
                   : 0;
    if (!whole)
        return err_set(
            d->e, ERR_BAD_REQUEST, "/packed",
            "sglang upstreams receive one broadcast for each tensor, or one for all: send "
            "sizes, or leave packed out");
    *load_format = "flattened_bucket";
    return 0;
}

/* It may be in several groups, and exits if it is in none of that name. */
static int update_from_group(const struct api_draft *d)
{
    const char *load_format = NULL;
    json_t *body;

    if (choose_load_format(d, &load_format) != 0)
        return -1;
    body = update_body(d, "names dtypes dtype_names=dtypes shapes group_name weight_version "
                          "selector");
    body = api_with_text(body, "group_name", d->ctx->group_name);
    return api_set_body(d, api_with_text(body, "load_format", load_format));
}

static int sglang_update_weights(const struct api_draft *d)
{
    if (api_has(d->own, "serialized_named_tensors"))
        return update_from_tensors(d);
    if (api_has(d->own, "path"))
        return update_from_disk(d);
    return update_from_group(d);
}

/* The end of an update takes no version. If none has begun there, only the version is left to set.
 */
static int sglang_finish_update(const struct api_draft *d)
{
    if (d->ctx->has_begun)
        return api_set_body(d, json_object());
    if (d->args->label == NULL)
        return api_send_nothing(d);
    (void)api_set_path(d->out, "/update_weight_version");
    return api_set_version(d);
}

/* pause, sleep, caches */

/* It cannot wait for running requests. "in_place" holds them, and a resume continues them. */
static int sglang_pause(const struct api_draft *d)
{
    enum lifecycle_pause mode = d->args->pause->mode;

    if (api_check_pause(d) != 0)
        return -1;
    if (mode == PAUSE_WAIT)
        return err_set(
            d->e, ERR_BAD_REQUEST, "/mode",
            "sglang upstreams cannot wait for running requests: pause with keep or abort");
    return api_set_body(d, json_pack("{s:s}", "mode", mode == PAUSE_KEEP ? "in_place" : "abort"));
}

static int sglang_tags(const struct api_draft *d)
{
    const struct api_sleep *sleep = d->args->sleep;
    json_t *tags = api_tags(d), *body = json_object();

    if (d->own == NULL && sleep != NULL && !sleep->weights && !sleep->kv) {
        json_decref(body);
        return api_send_nothing(d);
    }
    return api_set_body(d, tags != NULL ? api_with(body, "tags", tags) : body);
}

/* One at a time, by the rid that its client gave it. */
static int sglang_abort_requests(const struct api_draft *d)
{
    const char *const *ids = d->args->ids;

    if (d->args->all)
        return api_set_body(d, json_pack("{s:b}", "abort_all", 1));
    if (d->args->n_ids == 0)
        return api_send_nothing(d);
    if (d->args->n_ids > 1 || ids[0] == NULL || ids[0][0] == '\0')
        return err_set(d->e, ERR_BAD_REQUEST, "/request_ids",
                       "sglang upstreams abort one request at a time, by its rid: send one id");
    return api_set_body(d, json_pack("{s:s}", "rid", ids[0]));
}

/* replies */

static void sglang_read_status(struct upstream_report *out, const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    api_copy_text(out->label, json_object_get(reply, "weight_version"));
}

static int64_t sglang_n_ranks(const json_t *reply)
{
    uint64_t tp = api_positive(json_object_get(reply, "tp_size"));
    uint64_t pp = api_positive(json_object_get(reply, "pp_size"));
    uint64_t dp = api_positive(json_object_get(reply, "dp_size"));
    int64_t n = (int64_t)(tp * (pp > 0 ? pp : 1) * (dp > 0 ? dp : 1));

    return n > 0 ? n : -1;
}

/* What means the same in a vLLM's configuration: its replicas, and that it can join a trainer's
 * group, which is all that it can do. */
static json_t *sglang_config(const json_t *reply)
{
    uint64_t dp = api_positive(json_object_get(reply, "dp_size"));

    if (!json_is_object(reply))
        return NULL;
    return json_pack("{s:{s:I}, s:{s:s}}", "parallel_config", "data_parallel_size",
                     (json_int_t)(dp > 0 ? dp : 1), "weight_transfer_config", "backend", "nccl");
}

/* {"meta_info": {"input_token_logprobs": [[null, 17, null], [-1.5, 42, null]]}}; a value that is
 * not finite is null. If the first token's is asked for too, the prefix cache is not used
 * [srt/managers/schedule_batch.py, _compute_max_prefix_len]. */
static const json_t *sglang_canary_value(const json_t *reply, size_t i)
{
    const json_t *all = api_at(reply, "/meta_info/input_token_logprobs");

    return json_array_size(all) == API_CANARY_IDS ? json_array_get(json_array_get(all, i + 1), 0)
                                                  : NULL;
}

/* {"ranks": [{"checksums": {NAME: HASH}, "parallelism_info": {…}}]}. Ranks have parameters of the
 * same name. Their order is not defined; which rank it is follows from its place in the group,
 * since 0.5.23 a list: of the model, and of each that drafts, of the same rank. */
static json_t *sglang_checksums(const json_t *reply)
{
    const json_t *ranks = json_object_get(reply, "ranks"), *rank;
    json_t *all = json_array_size(ranks) > 0 ? json_object() : NULL;
    size_t i;

    json_array_foreach(ranks, i, rank)
    {
        const json_t *info = json_object_get(rank, "parallelism_info"),
                     *place = json_is_array(info) ? json_array_get(info, 0) : info;
        json_t *sums = json_object_get(rank, "checksums"), *sum;
        const char *name;

        json_object_foreach(sums, name, sum)
        {
            json_t *key = json_sprintf("%s%srank %" JSON_INTEGER_FORMAT "/%s",
                                       api_text(place, "role", ""),
                                       api_has(place, "role") ? " " : "",
                                       json_integer_value(json_object_get(place, "rank")), name);

            (void)json_object_set(all, json_string_value(key), sum);
            json_decref(key);
        }
    }
    return all;
}

/* It has one status for every error [srt/lora/lora_registry.py, unregister;
 * srt/managers/tokenizer_control_mixin.py, unload_lora_adapter]. */
static bool sglang_adapter_is_absent(const char *name, int status, const json_t *reply)
{
    static const char before[] = "LoRA with name ", behind[] = " does not exist";
    const char *message = api_text(reply, "error_message", "");
    const char *at = strstr(message, before);
    size_t len = strlen(name);

    if (status != 400)
        return status == 404;
    if (at == NULL)
        return strstr(message, "LoRA is not enabled") != NULL;
    at += sizeof before - 1;
    return strncmp(at, name, len) == 0 && strncmp(at + len, behind, sizeof behind - 1) == 0;
}

/* A flattened bucket of several dtypes: before, elements were counted, and converted. */
static void sglang_read_release(struct api_release *out, const char *release)
{
    unsigned major = 0, minor = 0, patch = 0;

    if (release == NULL || sscanf(release, "%3u.%4u.%4u", &major, &minor, &patch) != 3 ||
        major > 0 || minor > SGLANG_MINOR ||
        (minor == SGLANG_MINOR && patch >= SGLANG_MIXES_DTYPES))
        return;
    out->refuses_windows = "--stage host needs SGLang 0.5.6 or newer: an older one has no buckets "
                           "of several dtypes; update it, or give a GPU, as in --stage cuda:0";
}

/* Is it a release that processes no weights at the end of an update of tensors? Not known of what
 * was built between releases. */
static bool sglang_ends_nothing(const char *release)
{
    unsigned minor = 0, patch = 0;

    return sscanf(release, "0.%4u.%4u", &minor, &patch) == 2 && strstr(release, "dev") == NULL &&
           minor > 0 && minor <= SGLANG_MINOR && (minor < SGLANG_MINOR || patch < SGLANG_BEGINS);
}

/* @words  between spaces; NULL: it must be null */
static bool is_one_of(const json_t *value, const char *words)
{
    char word[API_WORD_MAX];

    while (json_is_string(value) && (words = api_next_word(word, words)) != NULL)
        if (strcmp(word, json_string_value(value)) == 0)
            return true;
    return json_is_null(value) && words == NULL;
}

static int refuse_partial(const char *what, const json_t *is, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "",
                   "processes all its weights at the end of an update, and nothing shows that this "
                   "keeps those that a partial one does not bring: its %s is %.100s; send all "
                   "tensors",
                   what, json_is_string(is) ? json_string_value(is) : "unknown or unsuitable");
}

/* In these models linear layers and embeddings process their weights only on a CPU or an NPU, or if
 * they are quantized; nothing else does. Left out are experts: environment variables that it does
 * not report have them shuffled or interleaved. Source: 0.5.21 to 0.5.23, srt/layers/quantization/
 * unquant.py, process_weights_after_loading. A quantized checkpoint is not in its own configuration
 * [srt/configs/model_config.py, _verify_quantization]. */
static int sglang_check_partial(bool by_path, const json_t *reply, const json_t *model,
                                struct err *e)
{
    static const char dense[] = "LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM "
                                "Qwen3ForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM "
                                "Glm4ForCausalLM";
    static const struct {
        const char *member, *is;
    } plain[] = {{"quantization", NULL},
                 {"modelopt_quant", NULL},
                 {"device", "cuda"},
                 {"load_format", "auto safetensors dummy"},
                 {"model_impl", "auto sglang"},
                 {"json_model_override_args", "{}"},
                 {"speculative_algorithm", NULL}};
    const json_t *all = json_object_get(model, "architectures"), *name = json_array_get(all, 0);

    if (!by_path && sglang_ends_nothing(api_text(reply, "version", "")))
        return 0;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        const json_t *value = json_object_get(reply, plain[i].member);

        if (!is_one_of(value, plain[i].is))
            return refuse_partial(plain[i].member, value, e);
    }
    if (model == NULL)
        return refuse_partial("model's config.json (in its directory, or --model)", NULL, e);
    if (api_has(model, "quantization_config") || api_has(model, "compression_config"))
        return refuse_partial("quantization_config", NULL, e);
    return json_array_size(all) == 1 && is_one_of(name, dense)
               ? 0
               : refuse_partial("architecture", name, e);
}

/* An exception in a rank ends the whole engine (run_scheduler_process in managers/scheduler.py, in
 * 0.5.6 and in 0.5.16), so an error is answered before the ranks have the request. If they report
 * one, the answer has "success". A gateway may answer 408, 499 or above 500 while they are at work.
 */
static bool sglang_has_mapped_nothing(int status, const json_t *reply)
{
    return json_object_get(reply, "success") == NULL && status >= 400 && status <= 500 &&
           status != 408 && status != 499;
}

int api_read_bucket_ranks(struct api_bucket_ranks *out, const char *text, size_t len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    uint64_t pp = api_positive(json_object_get(reply, "pp_size"));

    *out = (struct api_bucket_ranks){.n_entries = api_positive(json_object_get(reply, "tp_size")),
                                     .n_stages = pp > 0 ? pp : 1};
    (void)snprintf(out->release, sizeof out->release, "%s", api_text(reply, "version", ""));
    return out->n_entries > 0 ? 0
                              : err_set(e, ERR_UNREADABLE, "",
                                        "its reply to %s does not say how many ranks it has",
                                        sglang_api.queries[API_GET_RANKS].path);
}

/* It proves nothing, and cannot abort an update. The older paths are those of before 2026; for some
 * of them newer releases log a warning, and of /get_weight_version they say only that it is gone.
 */
const struct upstream_api sglang_api = {
    .name = "sglang",
    .wrong_kind_hint = "; if it is not an SGLang, configure it as URL,vllm or URL,baton",
    .caps = {.reply_names_version = true,
             .finish_takes_no_version = true,
             .retracts_requests = true,
             .hides_pause = true,
             .aborts_one_request = true,
             .joins_many_groups = true},
    .ops =
        {
            [API_INIT_TRANSFER] = {"POST", "/init_weights_update_group", sglang_init_transfer,
                                   "nccl_unique_id"},
            [API_SHUTDOWN_TRANSFER] = {"POST", "/destroy_weights_update_group",
                                       sglang_shutdown_transfer},
            [API_START_UPDATE] = {"POST", "/begin_weight_update", sglang_start_update,
                                  "trainer_ranks"},
            [API_UPDATE_WEIGHTS] =
                {"POST", "/update_weights_from_distributed", sglang_update_weights,
                 "shm ipc_handles ipc_handles_pickled buckets plan_id per_gpu checksums "
                 "metadata_by_gpu packed_buffer_size_bytes expected_digest chunk_id trainer_rank",
                 ": they accept tensors over NCCL, serialized_named_tensors or a path"},
            [API_FINISH_UPDATE] = {"POST", "/end_weight_update", sglang_finish_update, "checksums"},
            [API_PAUSE] = {"POST", "/pause_generation", sglang_pause},
            [API_RESUME] = {"POST", "/continue_generation", .body = "{}"},
            [API_SLEEP] = {"POST", "/release_memory_occupation", sglang_tags},
            [API_WAKE] = {"POST", "/resume_memory_occupation", sglang_tags},
            [API_RESET_PREFIX_CACHE] = {"POST", "/flush_cache", .body = "{}"},
            [API_RESET_STORAGE_CACHE] = {"POST", "/hicache/storage-backend/clear"},
            [API_RETRACT_REQUESTS] = {"POST", "/pause_generation",
                                      .body = "{\"mode\":\"retract\"}"},
            [API_ABORT_REQUESTS] = {"POST", "/abort_request", sglang_abort_requests},
            [API_LOAD_ADAPTER] = {"POST", "/load_lora_adapter", api_load_adapter},
            [API_UNLOAD_ADAPTER] = {"POST", "/unload_lora_adapter", api_unload_adapter},
            [API_PUT_TENSOR_LIST] = {NULL, NULL, api_refuse_tensor_list},
            [API_SET_VERSION] = {"POST", "/update_weight_version", api_set_version},
        },
    .queries =
        {
            [API_GET_STATUS] = {"GET", "/model_info", .older = "/get_model_info"},
            [API_GET_VERSION] = {"GET", "/model_info", .older = "/get_model_info"},
            [API_GET_RANKS] = {"GET", "/server_info", .older = "/get_server_info"},
            [API_GENERATE_TOKEN] = {"POST", "/v1/completions", .body = API_ONE_TOKEN},
            [API_GENERATE_CANARY] = {"POST", "/generate",
                                     .body = "{\"input_ids\":" API_CANARY_PROMPT
                                             ",\"sampling_params\":{\"max_new_tokens\":1,"
                                             "\"temperature\":0},\"return_logprob\":true,"
                                             "\"logprob_start_len\":0}"},
            [API_GET_CHECKSUMS] = {"POST", "/weights_checker", .body = "{\"action\":\"checksum\"}"},
            [API_GET_CONFIG] = {"GET", "/server_info", .older = "/get_server_info"},
        },
    .read_status = sglang_read_status,
    .version_at = "/weight_version",
    .n_ranks = sglang_n_ranks,
    .canary_value = sglang_canary_value,
    .checksums = sglang_checksums,
    .checksum_place_end = '/',
    .config = sglang_config,
    .model_at = "/model_path",
    .check_partial = sglang_check_partial,
    .check_done = api_check_success,
    .adapter_is_absent = sglang_adapter_is_absent,
    .read_release = sglang_read_release,
    .has_mapped_nothing = sglang_has_mapped_nothing,
};
