/* What requests may contain: vllm. See handlers/rows/member.h. */
#include "handlers/compat/vllm/dialect_vllm.h"
#include "handlers/rows/rows.h"

const struct member vllm_init_info_rows[] = {
    {"master_address", .type = M_STRING},
    {"master_port", .type = M_INT},
    {"rank_offset", .type = M_INT},
    {"world_size", .type = M_INT},
    {"nccl_unique_id_b64", M_STRING, .flags = M_BASE64},
    {"packed", M_BOOL, .def = "false"},
    {"packed_buffer_size_bytes", M_INT, .doc = "Ignored unless packed"},
    {"packed_num_buffers", M_INT, .doc = "Accepted; changes nothing"},
    {0},
};

const struct member vllm_update_info_rows[] = {
    {"names", M_ARRAY, .items = M_STRING},
    {"dtype_names", M_ARRAY, .items = M_STRING},
    {"shapes", M_ARRAY, .items = M_INTS},
    {"packed", .type = M_BOOL},
    {"packed_buffer_size_bytes", .type = M_INT},
    {"metadata_by_gpu", M_MAP, .items = M_OBJECT, .min = 1, .max = 64, .of = per_gpu_rows,
     .doc =
         "The tensors of each GPU's bucket, if they differ between GPUs: the bytes of a GPU are "
         "sliced by its own list only. The request may also have names, dtypes and shapes (SkyRL "
         "sends those of rank 0), which are then not used. Each GPU that is the source of a rank "
         "of this server must be listed. `metadata_by_gpu` is another name of `per_gpu`."},
    {"tensor_sizes", M_ARRAY, .items = M_INT, .doc = "Bytes"},
    {"sizes", M_ARRAY, .items = M_INT, .doc = "Elements"},
    {"ipc_handles", .type = M_OBJECT},
    {"ipc_handles_pickled", M_STRING, .flags = M_BASE64},
    {0},
};

const struct member vllm_pause_query[] = {
    {"mode", M_STRING, .flags = M_QUERY, .def = "abort", M_WORDS("abort", "wait", "keep")},
    {"clear_cache", M_BOOL, .flags = M_QUERY,
     .doc = "Changes nothing: no cache outlives its weights"},
    {"wait_for_inflight_requests", M_BOOL, .flags = M_QUERY, .doc = "true: mode is wait"},
    {0},
};

const struct member vllm_sleep_members[] = {
    {"level", M_INT, .min = 1, .max = 2},
    {"tags", M_ARRAY | M_STRING | M_INT, .items = M_STRING, M_WORDS("weights", "kv_cache"),
     .doc = "An integer stands for all"},
    {0},
};

const struct member vllm_sleep_query[] = {
    {"level", M_INT, .flags = M_QUERY, .max = 2, .def = "1"},
    {"tags", M_ARRAY, .items = M_STRING, .flags = M_QUERY, M_WORDS("weights", "kv_cache"),
     .doc = "One tag in each; default: all"},
    {"mode", M_STRING, .flags = M_QUERY, M_WORDS("abort"), .doc = "As a pause's"},
    {0},
};

const struct member vllm_wake_members[] = {
    {"tags", M_ARRAY | M_STRING | M_INT, .items = M_STRING, M_WORDS("weights", "kv_cache"),
     .doc = "An integer stands for all"},
    {0},
};

const struct member vllm_wake_query[] = {
    {"tags", M_ARRAY, .items = M_STRING, .flags = M_QUERY, M_WORDS("weights", "kv_cache"),
     .doc = "One tag in each; default: all"},
    {0},
};

const struct member vllm_reset_members[] = {
    {"reset_running_requests", M_BOOL, .ours = "running"},
    {"reset_external", M_BOOL, .ours = "external"},
    {0},
};

const struct member vllm_reset_query[] = {
    {"reset_running_requests", M_BOOL, .flags = M_QUERY},
    {"reset_external", M_BOOL, .flags = M_QUERY},
    {0},
};

const struct member vllm_abort_members[] = {
    {"request_ids", M_ARRAY, .items = M_STRING, .max = 65536, .flags = M_REQUIRED,
     .doc = "Empty: all"},
    {0},
};

const struct member vllm_world_query[] = {
    {"include_dp", M_BOOL, .flags = M_QUERY, .doc = "Accepted; changes nothing"},
    {0},
};

const struct member vllm_init_members[] = {
    {"init_info", M_OBJECT, .flags = M_REQUIRED | M_OPEN, .of = vllm_init_info_rows},
    {0},
};

const struct member vllm_start_members[] = {
    {"is_checkpoint_format", .type = M_BOOL},
    {"include_draft", M_BOOL, .doc = "true is refused: a drafter is not updated"},
    {0},
};

const struct member vllm_update_members[] = {
    {"update_info", M_OBJECT | M_ARRAY, .items = M_OBJECT, .flags = M_OPEN,
     .of = vllm_update_info_rows},
    {0},
};

const struct member vllm_finish_members[] = {
    {"weight_version", M_STRING, .min = 1, .max = 256},
    {0},
};

const struct member vllm_label_members[] = {
    {"new_version", M_STRING, .min = 1, .max = 256, .flags = M_REQUIRED,
     .doc = "The trainer's own name for these weights. It must not begin with baton:unfinished:, "
            "which marks updates that have not ended",
     .ours = "weight_version"},
    {0},
};

const struct member vllm_checker_members[] = {
    {"action", M_STRING, .flags = M_REQUIRED, M_WORDS("checksum", "compare", "reset")},
    {"baseline", M_MAP, .items = M_STRING, .doc = "With compare"},
    {0},
};
