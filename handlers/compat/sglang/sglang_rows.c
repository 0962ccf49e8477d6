/* What requests may contain: sglang. See handlers/rows/member.h. */
#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/rows/rows.h"

const struct member sglang_group_members[] = {
    {"master_address", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"master_port", M_INT | M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"rank_offset", M_INT, .ours = M_SAME, .min = 1, .flags = M_REQUIRED},
    {"world_size", M_INT, .ours = M_SAME, .min = 2, .flags = M_REQUIRED},
    {"group_name", M_STRING, .ours = M_SAME, .def = "weight_update_group"},
    {"backend", M_STRING, M_WORDS("nccl")},
    {"pp_rank", M_ANY, .doc = "Of trainers with several groups"},
    {0},
};

const struct member sglang_leave_members[] = {
    {"group_name", M_STRING, .ours = M_SAME},
    {0},
};

const struct member sglang_begin_members[] = {
    {"selector", M_STRING, .ours = M_SAME, M_WORDS("all", "target"), .doc = DOC_SELECTOR},
    {0},
};

const struct member sglang_distributed_members[] = {
    {"names", M_ARRAY, .ours = M_SAME, .items = M_STRING},
    {"dtypes", M_ARRAY, .ours = M_SAME, .items = M_STRING},
    {"shapes", M_ARRAY, .ours = M_SAME, .items = M_INTS},
    {"group_name", M_STRING, .ours = M_SAME, .doc = "400 unless it is the name of the group"},
    {"flush_cache", .type = M_BOOL},
    {"abort_all_requests", M_BOOL, .def = "false",
     .doc = "As abort_requests of update, at each request in which it is true",
     .ours = "abort_requests"},
    {"weight_version", M_STRING, .ours = M_SAME},
    {"load_format", M_STRING, M_WORDS("flattened_bucket")},
    {"torch_empty_cache", .type = M_BOOL},
    {"selector", M_STRING, .ours = M_SAME, M_WORDS("all", "target"), .doc = DOC_SELECTOR},
    {0},
};

const struct member sglang_disk_members[] = {
    {"model_path", M_STRING, .flags = M_REQUIRED, .doc = "Beneath a root of --allow-path",
     .ours = "path"},
    {"load_format", M_STRING, M_WORDS("auto", "safetensors")},
    {"abort_all_requests", M_BOOL, .def = "false", .ours = "abort_requests"},
    {"weight_version", M_STRING, .ours = M_SAME},
    {"is_async", .type = M_BOOL},
    {"torch_empty_cache", .type = M_BOOL},
    {"keep_pause", M_BOOL, .doc = "Ignored: a pause always stays in force"},
    {"recapture_cuda_graph", .type = M_BOOL},
    {"token_step", .type = M_INT},
    {"flush_cache", .type = M_BOOL},
    {"manifest", M_ANY, .doc = "A manifest is refused"},
    {0},
};

const struct member sglang_pull_members[] = {
    {"local_checkpoint_dir", M_STRING, .min = 1, .flags = M_REQUIRED, .ours = "name",
     .doc =
         "A name only: nothing is written there. /update_weights_from_disk with it as model_path "
         "serves what was pulled"},
    {"source_dir", M_STRING, .min = 1, .flags = M_REQUIRED, .ours = "source",
     .doc = "The directory with weight_v000001 and so on, beneath a root of --allow-path"},
    {"target_version", M_INT, .flags = M_REQUIRED, .ours = "version",
     .doc = "0 begins a run: the model that the server started with must be served"},
    {0},
};

const struct member sglang_ipc_members[] = {
    {"zmq_handles", M_MAP, .ours = M_SAME, .items = M_STRING, .max = 64, .flags = M_REQUIRED,
     .doc = "GPU's UUID -> address: ipc://@NAME (an abstract socket), or ipc:///PATH beneath "
            "--allow-path. The listening process must run as this server's user or as root, unless "
            "this server is root."},
    {"flush_cache", M_BOOL, .doc = "Ignored: caches belong to a version"},
    {"weight_version", M_STRING, .ours = M_SAME},
    {"torch_empty_cache", M_BOOL, .doc = "Ignored"},
    {0},
};

const struct member sglang_checker_members[] = {
    {"action", M_STRING, .ours = M_SAME, .def = "checksum",
     M_WORDS("checksum", "snapshot", "reset_tensors", "compare")},
    {"allow_quant_error", .type = M_BOOL},
    {"skip_tensor_list", M_ARRAY, .items = M_STRING, .ours = "skip"},
    {"selector", M_STRING, M_WORDS("all", "target"), .doc = DOC_SELECTOR},
    {0},
};

const struct member sglang_label_members[] = {
    {"new_version", M_STRING, .min = 1, .max = 256, .flags = M_REQUIRED, .doc = DOC_LABEL,
     .ours = "weight_version"},
    {"abort_all_requests", M_BOOL,
     .doc =
         "Of SGLang's clients: true ends every generation, and the reply has success and message",
     .ours = "abort_requests"},
    {0},
};

const struct member sglang_tensor_members[] = {
    {"serialized_named_tensors", M_ARRAY, .ours = M_SAME, .items = M_STRING, .min = 1, .max = 64,
     .flags = M_REQUIRED | M_BASE64, .doc = DOC_NAMED_TENSORS},
    {"load_format", M_STRING, M_WORDS("direct", "flattened_bucket"), .ours = "serialized_format"},
    {"flush_cache", .type = M_BOOL},
    {"abort_all_requests", M_BOOL, .def = "false",
     .doc = "As abort_requests of update, at each request in which it is true",
     .ours = "abort_requests"},
    {"weight_version", M_STRING, .ours = M_SAME},
    {"disable_draft_model", .type = M_BOOL},
    {"torch_empty_cache", .type = M_BOOL},
    {"selector", M_STRING, .ours = M_SAME, M_WORDS("all", "target"), .doc = DOC_SELECTOR},
    {0},
};

const struct member sglang_pause_members[] = {
    {"mode", M_STRING, .def = "abort", M_WORDS("abort", "retract", "in_place")},
    {0},
};

const struct member sglang_continue_members[] = {
    {"torch_empty_cache", .type = M_BOOL},
    {0},
};

const struct member sglang_memory_members[] = {
    {"tags", M_ARRAY, .ours = M_SAME, .items = M_STRING,
     M_WORDS("weights", "kv_cache", "cuda_graph"), .doc = "default: all"},
    {0},
};

const struct member sglang_abort_members[] = {
    {"rid", M_STRING, .doc = "The complete id of a request", .ours = "request_ids/0"},
    {"abort_all", M_BOOL, .def = "false", .ours = "all"},
    {"abort_message", .type = M_STRING},
    {0},
};

const struct member sglang_lora_members[] = {
    {"lora_name", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"lora_path", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"pinned", M_BOOL, .ours = M_SAME, .def = "false"},
    {"lora_id", M_ANY, .doc = "Ignored"},
    {"load_inplace", M_BOOL, .doc = "Ignored: an adapter of that name is always replaced"},
    {0},
};

const struct member sglang_lora_unload_members[] = {
    {"lora_name", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"lora_id", M_ANY, .doc = "Ignored"},
    {"lora_int_id", M_ANY, .doc = "Ignored"},
    {0},
};

const struct member sglang_lora_tensors_members[] = {
    {"lora_name", .type = M_STRING},
    {"config_dict", .type = M_OBJECT},
    {"serialized_tensors", .type = M_STRING},
    {"serialized_named_tensors", M_ARRAY, .items = M_STRING},
    {"pinned", .type = M_BOOL},
    {"added_tokens_config", .type = M_OBJECT},
    {"lora_id", .type = M_ANY},
    {"load_format", .type = M_STRING},
    {0},
};

const struct member sglang_info_query[] = {
    {"config_format", M_STRING, .flags = M_QUERY, .def = "text", M_WORDS("text", "json"),
     .doc = "The form of vllm_config. As json: model_config {model, max_model_len, dtype (such as "
            "torch.bfloat16: that of most bytes of the weights), logprobs_mode, max_logprobs}, "
            "parallel_config, lora_config {max_lora_rank, max_loras}, weight_transfer_config "
            "{backend: nccl or ipc}, null where no trainer's GPU can send weights. In front of "
            "engines: each member has the value that all engines that answer share, else null, and "
            "unknown {member: reason}"},
    {0},
};

const struct member sglang_loads_query[] = {
    {"include", M_STRING, .flags = M_QUERY, .doc = "Accepted; changes nothing"},
    {"dp_rank", M_INT, .flags = M_QUERY, .doc = "Accepted; changes nothing"},
    {"format", M_STRING, .flags = M_QUERY, .doc = "Accepted; changes nothing"},
    {0},
};
