/* SGLang's routes for information about the server, made from the status. */
#include "handlers/compat/sglang/dialect_sglang.h"

#include "base/json_parse.h"

#include "memory/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* status[section][member]; borrowed; NULL if one is missing. */
static json_t *status_member(const json_t *status, const char *section, const char *member)
{
    return json_object_get(json_object_get(status, section), member);
}

/* Weights without a label, and no weights, are "default" in SGLang. */
static const char *version_of(const json_t *status)
{
    const char *label = json_string_value(status_member(status, "weights", "weight_version"));

    return label != NULL ? label : "default";
}

static const char *path_of(const json_t *status)
{
    const char *path = json_string_value(status_member(status, "model", "path"));

    return path != NULL ? path : "";
}

static const char *name_of(const json_t *status)
{
    const char *name = json_string_value(status_member(status, "model", "name"));

    return name != NULL ? name : "";
}

static json_int_t n_ranks(const json_t *status)
{
    return (json_int_t)json_array_size(status_member(status, "cuda", "ranks"));
}

/* In front of a fleet an engine without a GPU counts as one rank. */
static json_int_t n_gpus(const json_t *status)
{
    const json_t *n = status_member(status, "cuda", "n_gpus");

    return json_is_integer(n) ? json_integer_value(n) : n_ranks(status);
}

int sglang_model_response(json_t **reply, const struct http_request *x)
{
    const json_t *s = *reply;

    (void)x;
    return dialect_replace(
        reply,
        json_pack("{s:s, s:s, s:s, s:b, s:n, s:s, s:s, s:n, s:n, s:s, s:b, s:b}", "model_path",
                  path_of(s), "served_model_name", name_of(s), "tokenizer_path", path_of(s),
                  "is_generation", json_is_object(json_object_get(s, "engine")),
                  "preferred_sampling_params", "weight_version", version_of(s), "load_format",
                  "auto", "reasoning_parser", "tool_call_parser", "disaggregation_mode", "null",
                  "has_image_understanding", 0, "has_audio_understanding", 0));
}

int sglang_version_response(json_t **reply, const struct http_request *x)
{
    const char *version = version_of(*reply);

    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "weight_version", version));
}

/* Running counts requests with a permit, frozen ones too; waiting counts those that queue for one.
 */
static json_t *load_json(const json_t *status)
{
    const json_t *generate = status_member(status, "admission", "generate");
    json_int_t running = json_integer_value(json_object_get(generate, "running"));
    json_int_t waiting = json_integer_value(json_object_get(generate, "waiting"));
    json_t *used = status_member(status, "engine", "kv_tokens_used"); /* null: not known */
    json_t *max = status_member(status, "engine", "kv_tokens_max");

    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:O?, s:O?, s:O?, s:o}", "dp_rank", 0,
                     "num_running_reqs", running, "num_waiting_reqs", waiting, "num_reqs",
                     running + waiting, "num_total_reqs", running + waiting, "num_tokens", used,
                     "num_used_tokens", used, "max_total_num_tokens", max, "token_usage",
                     json_integer_value(max) > 0 ? json_real((double)json_integer_value(used) /
                                                             (double)json_integer_value(max))
                                                 : json_null());
}

int sglang_load_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("[o]", load_json(*reply)));
}

int sglang_loads_response(json_t **reply, const struct http_request *x)
{
    json_t *load = load_json(*reply), *made = json_deep_copy_all(load);
    json_t *version = json_object_get(*reply, "version");

    (void)x;
    if (made == NULL || json_object_set_new(made, "loads", json_pack("[o]", load)) != 0 ||
        json_object_set_new(made, "dp_rank_count", json_integer(1)) != 0 ||
        json_object_set(made, "version", version) != 0) {
        json_decref(made);
        return -1;
    }
    return dialect_replace(reply, made);
}

/* internal_states: the state of one SGLang scheduler. */
static json_t *internal_json(const json_t *status)
{
    json_t *state = load_json(status);

    if (state == NULL ||
        json_object_set_new(state, "weight_version", json_string(version_of(status))) != 0) {
        json_decref(state);
        return NULL;
    }
    return json_pack("[o]", state);
}

/* The dtype as vLLM prints it ("torch.bfloat16"); null if it is not known. New. */
static json_t *dtype_json(const json_t *status)
{
    const char *name = json_string_value(status_member(status, "weights", "dtype"));

    return name != NULL ? json_sprintf("torch.%s", dtype_torch_name(dtype_parse(name)))
                        : json_null();
}

/* null: adapters cannot be loaded. New. */
static json_t *lora_json(const json_t *status)
{
    const json_t *adapters = json_object_get(status, "adapters");

    if (!json_is_object(adapters))
        return json_null();
    return json_pack("{s:O, s:O}", "max_lora_rank", json_object_get(adapters, "max_lora_rank"),
                     "max_loras", json_object_get(adapters, "max_loras"));
}

/* How a trainer can send weights from GPU memory; null: it cannot. New. */
static json_t *sglang_transfer_json(const json_t *status)
{
    if (n_ranks(status) == 0)
        return json_null();
    return json_pack("{s:s}", "backend",
                     json_is_true(status_member(status, "nccl", "available")) ? "nccl" : "ipc");
}

/* In front of engines, their configuration replaces ours. Steals `ours`; NULL if there is no
 * memory. The ranks are divided equally among data-parallel replicas. */
static json_t *config_of_upstreams(json_t *ours, const json_t *status)
{
    json_t *theirs = json_object_get(status, "vllm_config");
    json_t *parallel = json_object_get(ours, "parallel_config");
    json_int_t ranks = json_integer_value(json_object_get(parallel, "tensor_parallel_size")), dp;

    if (!json_is_object(theirs))
        return ours;
    if (json_object_update_recursive(ours, theirs) != 0) {
        json_decref(ours);
        return NULL;
    }
    dp = json_integer_value(json_object_get(parallel, "data_parallel_size"));
    if (dp > 1 && ranks % dp == 0)
        (void)json_object_set_new(parallel, "tensor_parallel_size", json_integer(ranks / dp));
    return ours;
}

/* vLLM's configuration: text, or an object with ?config_format=json. */
static json_t *vllm_json(const json_t *status, const struct http_request *x)
{
    const char *format = http_request_query(x, "config_format");
    json_int_t max_len = json_integer_value(status_member(status, "model", "max_model_len"));
    json_int_t ranks = n_ranks(status);

    if (format == NULL || strcmp(format, "json") != 0)
        return json_sprintf("model='%s', max_seq_len=%lld, tensor_parallel_size=%lld, "
                            "pipeline_parallel_size=1",
                            path_of(status), (long long)max_len,
                            (long long)(ranks > 0 ? ranks : 1));
    return config_of_upstreams(
        json_pack("{s:{s:s, s:I, s:o, s:O?, s:O?}, s:{s:I, s:i, s:i}, s:o, s:o}", "model_config",
                  "model", path_of(status), "max_model_len", max_len, "dtype", dtype_json(status),
                  "logprobs_mode", status_member(status, "engine", "logprobs_mode"), "max_logprobs",
                  status_member(status, "engine", "max_logprobs"), "parallel_config",
                  "tensor_parallel_size", ranks > 0 ? ranks : 1, "pipeline_parallel_size", 1,
                  "data_parallel_size", 1, "lora_config", lora_json(status),
                  "weight_transfer_config", sglang_transfer_json(status)),
        status);
}

/* The address by which the client reaches this server, as Miles expects it: --listen may be any
 * address of the host. `port` is null if the request does not name it. */
static int add_address(json_t *reply, const char *host)
{
    const char *end = strrchr(host, ':');
    char *rest;
    unsigned long port;

    if (end == NULL || strchr(end, ']') != NULL)
        return json_object_update_new(reply, json_pack("{s:s, s:n}", "host", host, "port"));
    port = strtoul(end + 1, &rest, 10);
    return json_object_update_new(
        reply, json_pack("{s:s%, s:o}", "host", host, (size_t)(end - host), "port",
                         rest > end + 1 ? json_integer((json_int_t)port) : json_null()));
}

/* The number of the first GPU that has weights; of a server without one 0, SGLang's default. */
static int base_gpu(const json_t *status)
{
    const json_t *first = json_array_get(status_member(status, "cuda", "ranks"), 0);
    const char *place = json_string_value(json_object_get(first, "place"));
    int id = 0;

    return place != NULL && sscanf(place, "cuda:%d", &id) == 1 ? id : 0;
}

/* Adapters of this server; null in front of engines, unless they report them. */
static int add_lora_args(json_t *reply, const json_t *status)
{
    const json_t *adapters = json_object_get(status, "adapters");
    json_t *max = json_object_get(adapters, "max_loras");

    return json_object_update_new(
        reply, json_pack("{s:o, s:O?, s:O?, s:O?}", "enable_lora",
                         adapters == NULL ? json_null() : json_boolean(json_is_object(adapters)),
                         "max_lora_rank", json_object_get(adapters, "max_lora_rank"),
                         "max_loras_per_batch", max, "max_loaded_loras", max));
}

/* The server arguments that slime and Miles compare with their own, with their true values here. */
static int add_args(json_t *reply, const json_t *status)
{
    const char *dtype = json_string_value(status_member(status, "weights", "dtype"));
    json_t *args = json_object_get(status, "server_args");

    if (dtype != NULL &&
        json_object_set_new(reply, "dtype", json_string(dtype_torch_name(dtype_parse(dtype)))) != 0)
        return -1;
    if (json_object_update_new(reply, json_pack("{s:i, s:i, s:i, s:i, s:i}", "nnodes", 1,
                                                "node_rank", 0, "gpu_id_step", 1, "base_gpu_id",
                                                base_gpu(status), "ep_size", 1)) != 0)
        return -1;
    if (add_lora_args(reply, status) != 0)
        return -1;
    return args == NULL ? 0 : json_object_update(reply, args);
}

/* Trainers compute the ranks of a group from these: each GPU is one rank. A server without GPUs
 * counts as one rank, although it cannot join a group. */
int sglang_server_response(json_t **reply, const struct http_request *x)
{
    const json_t *s = *reply;
    json_int_t ranks = n_ranks(s), size = ranks > 0 ? ranks : 1;
    json_t *max_len = status_member(s, "model", "max_model_len");

    json_t *made = json_pack(
        "{s:s, s:s, s:s, s:O?, s:I, s:i, s:i, s:I, s:I, s:s, s:n, s:b, s:s, s:o, s:O, "
        "s:O, s:o, s:{}, s:{}}",
        "model_path", path_of(s), "tokenizer_path", path_of(s), "served_model_name", name_of(s),
        "context_length", max_len, "tp_size", size, "pp_size", 1, "dp_size", 1, "num_gpus",
        n_gpus(s), "world_size", size, "disaggregation_mode", "null",
        "disaggregation_bootstrap_port", "encoder_only", 0, "weight_version", version_of(s),
        "internal_states", internal_json(s), "version", json_object_get(s, "version"), "boot_id",
        json_object_get(s, "boot_id"), "vllm_config", vllm_json(s, x), "vllm_env", "system_env");

    if (made == NULL || add_address(made, x->host) != 0 || add_args(made, s) != 0) {
        json_decref(made);
        return -1;
    }
    return dialect_replace(reply, made);
}
