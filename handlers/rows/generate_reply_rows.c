/* What replies contain: generations, caches and adapters. The rows only describe: what may be long
 * is written as text (handlers/json_put.h). See handlers/rows/member.h. */
#include "handlers/rows/reply_rows.h"

#define DOC_EXPERTS_NPY                                                                            \
    "null unless the request asked for it, or --return-routed-experts is vllm: base64 of a "       \
    ".npy file, [rows, layers of the model, experts of a token], uint8, or uint16 for more "       \
    "than 256 experts; layers without experts are zeros; rows as in RoutedExperts"

const struct member span_reply[] = {
    {.name = "version", .type = M_STRING},
    {.name = "start", .type = M_INT},
    {.name = "end", .type = M_INT},
    {.name = "serial", .type = M_INT},
    {0},
};

const struct member relayed_span_reply[] = {
    {"version", M_STRING | M_NULL, .flags = M_REQUIRED},
    {"start", M_INT | M_NULL, .flags = M_REQUIRED},
    {"end", M_INT | M_NULL, .flags = M_REQUIRED},
    {"serial", M_INT | M_NULL, .flags = M_REQUIRED},
    {"exact", M_BOOL, .flags = M_REQUIRED},
    {0},
};

const struct member adapter_used_reply[] = {
    {.name = "name", .type = M_STRING},
    {"revision", M_INT | M_NULL, .doc = "null if no token was made"},
    {0},
};

static const struct member replay_block_rows[] = {
    {"data", M_STRING, .flags = M_BASE64, .doc = "little-endian, C order"},
    {"shape", M_ARRAY, .items = M_INT, .min = 3, .max = 3,
     .doc = "[positions of the rank, sparse layers of the stage, experts of a token]"},
    {"dtype", M_STRING, M_WORDS("uint8", "int16", "int32")},
    {.name = "pipeline_rank", .type = M_INT},
    {.name = "context_rank", .type = M_INT},
    {"layers", M_ARRAY, .items = M_INT, .doc = "numbers of the model's layers, from 0"},
    {0},
};

static const struct member routed_experts_rows[] = {
    {"data", M_STRING, .flags = M_REQUIRED,
     .doc = "base64, little-endian, C order; ids of experts, best first"},
    {"shape", M_ARRAY, .items = M_INT, .min = 3, .max = 3, .flags = M_REQUIRED,
     .doc = "rows, layers, experts of a token"},
    {"dtype", M_STRING, M_WORDS("uint8", "int16", "int32", "uint16"), .flags = M_REQUIRED,
     .doc = "the smallest of uint8, int16 and int32 that holds the ids; prime-rl's form: uint8, or "
            "uint16 for more than 256 experts"},
    {"start", M_INT, .flags = M_REQUIRED,
     .doc = "position of the first row: routed_experts_prompt_start"},
    {"layers", M_ARRAY, .items = M_INT, .doc = "which layers of the model have experts, from 0"},
    {0},
};

static const struct member generated_choice_rows[] = {
    {"index", M_INT, .flags = M_REQUIRED},
    {"token_ids", M_ARRAY, .items = M_INT, .flags = M_REQUIRED},
    {"finish_reason", M_STRING | M_NULL, M_WORDS("stop", "length", "abort", "error"),
     .flags = M_REQUIRED},
    {.name = "stop_reason", .type = M_INT | M_STRING | M_NULL},
    {"logprobs", M_OBJECT | M_NULL,
     .doc = "content: one {token, token_id, logprob, rank, top_logprobs} for each token"},
    {"routed_experts", M_OBJECT | M_STRING | M_NULL, .of = routed_experts_rows,
     .doc = "null unless the request asked for it; in a stream in the last event of a choice. Row"
            " i is of the token at position start + i of prompt and output together: the routing "
            "with which the token after it was made, so that the version of that token is the "
            "row's. The last token has none. /v1/generate: this object. /inference/v1/generate: "
            "base64 of vLLM's .npy, [rows, layers of the model, experts of a token], dense layers"
            " with zeros; or with --return-routed-experts prime-rl this object without `layers`, "
            "dense layers with zeros"},
    {"replay_blocks", M_ARRAY, .items = M_OBJECT, .of = replay_block_rows,
     .doc = "With replay_layout, in a stream in the last event: a block for each pair of pipeline"
            " rank and context rank, those of pipeline rank 0 first"},
    {.name = "sampling_mask", .type = M_NULL},
    {"weight_versions", M_ARRAY, .items = M_OBJECT, .of = span_reply, .flags = M_REQUIRED},
    {0},
};

const struct member generated_reply[] = {
    {.name = "request_id", .type = M_STRING},
    {.name = "boot_id", .type = M_STRING},
    {"model", M_STRING, .doc = "As the request named it"},
    {"adapter", M_OBJECT | M_NULL, .of = adapter_used_reply},
    {"created", M_INT, .doc = "Seconds since 1970"},
    {"choices", M_ARRAY, .items = M_OBJECT, .of = generated_choice_rows},
    {"output_mode", M_STRING, .def = "tokens"},
    {.name = "prompt_logprobs", .type = M_ARRAY | M_NULL},
    {.name = "prompt_token_id_logprobs", .type = M_NULL},
    {"prompt_token_ids", M_ARRAY | M_NULL, .items = M_INT,
     .doc = "With return_token_ids; in a stream in the first event"},
    {.name = "mm_placeholders", .type = M_NULL},
    {.name = "kv_transfer_params", .type = M_NULL},
    {.name = "ec_transfer_params", .type = M_NULL},
    {.name = "metrics", .type = M_NULL},
    {.name = "usage", .type = M_OBJECT},
    {0},
};

static const struct member completion_choice_rows[] = {
    {.name = "index", .type = M_INT},
    {.name = "text", .type = M_STRING},
    {.name = "finish_reason", .type = M_STRING | M_NULL},
    {.name = "stop_reason", .type = M_INT | M_STRING | M_NULL},
    {.name = "logprobs", .type = M_OBJECT | M_NULL},
    {"token_ids", M_ARRAY | M_NULL, .doc = "With return_token_ids"},
    {"prompt_token_ids", M_ARRAY | M_NULL, .doc = "With return_token_ids"},
    {.name = "prompt_logprobs", .type = M_ARRAY | M_NULL},
    {"routed_experts", M_STRING | M_NULL, .doc = DOC_EXPERTS_NPY},
    {"weight_versions", M_ARRAY, .items = M_OBJECT, .of = span_reply},
    {0},
};

const struct member completion_reply[] = {
    {.name = "id", .type = M_STRING},
    {"object", M_STRING, .def = "text_completion"},
    {.name = "service_tier", .type = M_NULL},
    {"system_fingerprint", M_STRING, .doc = "The build: baton- and its version"},
    {.name = "boot_id", .type = M_STRING},
    {"created", M_INT, .doc = "Seconds since 1970"},
    {"model", M_STRING, .doc = "As the request named it"},
    {"adapter", M_OBJECT | M_NULL, .of = adapter_used_reply},
    {"choices", M_ARRAY, .items = M_OBJECT, .of = completion_choice_rows},
    {.name = "kv_transfer_params", .type = M_NULL},
    {.name = "ec_transfer_params", .type = M_NULL},
    {.name = "metrics", .type = M_NULL},
    {.name = "usage", .type = M_OBJECT},
    {0},
};

static const struct member message_rows[] = {
    {.name = "role", .type = M_STRING},
    {.name = "content", .type = M_STRING},
    {.name = "refusal", .type = M_NULL},
    {.name = "annotations", .type = M_NULL},
    {.name = "audio", .type = M_NULL},
    {.name = "function_call", .type = M_NULL},
    {.name = "reasoning", .type = M_NULL},
    {"tool_calls", M_ARRAY, .doc = "Empty"},
    {0},
};

static const struct member chat_choice_rows[] = {
    {.name = "index", .type = M_INT},
    {"message", M_OBJECT, .of = message_rows},
    {.name = "finish_reason", .type = M_STRING | M_NULL},
    {.name = "stop_reason", .type = M_STRING | M_INT | M_NULL},
    {.name = "logprobs", .type = M_OBJECT | M_NULL},
    {"routed_experts", M_STRING | M_NULL, .doc = DOC_EXPERTS_NPY},
    {"token_ids", M_ARRAY | M_NULL, .items = M_INT},
    {"weight_versions", M_ARRAY, .items = M_OBJECT, .of = span_reply},
    {0},
};

const struct member chat_reply[] = {
    {.name = "id", .type = M_STRING},
    {"object", M_STRING, .def = "chat.completion"},
    {.name = "service_tier", .type = M_NULL},
    {.name = "system_fingerprint", .type = M_STRING},
    {.name = "created", .type = M_INT},
    {.name = "model", .type = M_STRING},
    {.name = "boot_id", .type = M_STRING},
    {"prompt_token_ids", M_ARRAY | M_NULL, .items = M_INT, .doc = "With return_token_ids"},
    {"prompt_text", M_STRING | M_NULL,
     .doc = "With return_prompt_text: what the chat template made; in a stream in the first event"},
    {.name = "prompt_logprobs", .type = M_NULL},
    {.name = "kv_transfer_params", .type = M_NULL},
    {.name = "ec_transfer_params", .type = M_NULL},
    {.name = "metrics", .type = M_NULL},
    {"choices", M_ARRAY, .items = M_OBJECT, .of = chat_choice_rows},
    {.name = "usage", .type = M_OBJECT},
    {0},
};

static const struct member meta_info_rows[] = {
    {.name = "id", .type = M_STRING},
    {"finish_reason", M_OBJECT | M_NULL,
     .doc = "{type: stop, matched: the stop string or the token}, {type: length, length}, or "
            "{type: abort, message, status_code: null, err_type: null} with \"Abort before "
            "prefill\" if there is no token, else \"Aborted\"; null while it runs"},
    {.name = "prompt_tokens", .type = M_INT},
    {.name = "completion_tokens", .type = M_INT},
    {"cached_tokens", M_INT, .doc = "Tokens of the prompt whose KV was there already"},
    {.name = "cached_tokens_details", .type = M_NULL},
    {.name = "dp_rank", .type = M_NULL},
    {"num_retractions", M_INT, .def = "0"},
    {"reasoning_tokens", M_INT, .def = "0"},
    {"e2e_latency", M_NUMBER,
     .doc = "Seconds from the request to the end of the sequence, with its last event"},
    {"weight_version", M_STRING | M_NULL,
     .doc = "That of the newest token; before the first token, the served version"},
    {"weight_versions", M_ARRAY, .items = M_OBJECT, .of = span_reply,
     .doc = "With the last event of a sequence"},
    {"adapter", M_OBJECT | M_NULL, .of = adapter_used_reply},
    {.name = "boot_id", .type = M_STRING},
    {"output_token_logprobs", M_ARRAY, .doc = "[logprob, id, text or null] for each token"},
    {"output_token_logprobs_length", M_INT, .doc = "How many these are"},
    {"output_top_logprobs", M_ARRAY, .doc = "for each token a list of such triples"},
    {.name = "input_token_logprobs", .type = M_ARRAY},
    {.name = "input_top_logprobs", .type = M_ARRAY},
    {0},
};

const struct member sglang_generated_reply[] = {
    {.name = "text", .type = M_STRING},
    {"output_ids", M_ARRAY, .items = M_INT},
    {"meta_info", M_OBJECT, .of = meta_info_rows},
    {0},
};

const struct member sglang_load_reply[] = {
    {"dp_rank", M_INT, .def = "0"},
    {"num_running_reqs", M_INT, .doc = "Generations with a permit, frozen or not"},
    {.name = "num_waiting_reqs", .type = M_INT},
    {"num_reqs", M_INT, .doc = "The sum of both"},
    {"num_total_reqs", M_INT, .doc = "As num_reqs"},
    {"num_tokens", M_INT | M_NULL, .doc = "Tokens in the KV cache; null in front of engines"},
    {"num_used_tokens", M_INT | M_NULL, .doc = "As num_tokens"},
    {.name = "max_total_num_tokens", .type = M_INT | M_NULL},
    {"token_usage", M_NUMBER | M_NULL, .doc = "Of both"},
    {0},
};

const struct member chat_rendered_reply[] = {
    {.name = "request_id", .type = M_STRING},
    {.name = "model", .type = M_STRING},
    {"token_ids", M_ARRAY, .items = M_INT},
    {.name = "features", .type = M_NULL},
    {.name = "sampling_params", .type = M_OBJECT},
    {.name = "stream", .type = M_BOOL},
    {.name = "stream_options", .type = M_OBJECT | M_NULL},
    {.name = "cache_salt", .type = M_STRING | M_NULL},
    {"priority", M_INT, .def = "0"},
    {.name = "kv_transfer_params", .type = M_NULL},
    {0},
};

const struct member unloaded_adapter_reply[] = {
    {"status", M_STRING, .def = "ok"},
    {.name = "lora_name", .type = M_STRING},
    {"revision", M_INT, .doc = "The last loaded revision"},
    {"n_users", M_INT, .doc = "Requests that still use this or an older revision"},
    {"loaded_adapters", M_MAP, .items = M_STRING | M_NULL, .doc = DOC_LOADED_ADAPTERS},
    {0},
};

const struct member cache_reset_reply[] = {
    {.name = "reset", .type = M_BOOL},
    {.name = "prefix_cache", .type = M_NULL},
    {.name = "entries_dropped", .type = M_INT},
    {.name = "message", .type = M_STRING},
    {0},
};
