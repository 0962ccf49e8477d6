/* What requests may contain: vllm. See handlers/rows/member.h. */
#include "handlers/compat/vllm/dialect_vllm.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"

const struct member vllm_init_info_rows[] = {
    {"master_address", M_STRING, .flags = WITH_GROUP, .ours = M_SAME},
    {"master_port", M_INT, .flags = WITH_GROUP, .ours = M_SAME},
    {"rank_offset", M_INT, .flags = WITH_GROUP, .ours = M_SAME},
    {"world_size", M_INT, .flags = WITH_GROUP, .ours = M_SAME},
    {"nccl_unique_id_b64", M_STRING, .flags = WITH_GROUP | M_BASE64, .ours = "nccl_unique_id"},
    {"packed", M_BOOL, .flags = WITH_HANDLES, .def = "false", .ours = M_SAME,
     .doc = "Default for updates"},
    {"packed_buffer_size_bytes", M_INT, .ours = M_SAME,
     .doc = "With packed and a group; else ignored"},
    {"packed_num_buffers", M_INT, .ours = M_SAME, .doc = "With packed and a group; else ignored"},
    {0},
};

const struct member vllm_update_info_rows[] = {
    {"names", M_ARRAY, .items = M_STRING, .flags = OF_LIST, .ours = M_SAME},
    {"dtype_names", M_ARRAY, .items = M_STRING, .flags = OF_LIST, .ours = M_SAME},
    {"shapes", M_ARRAY, .items = M_INTS, .flags = OF_LIST, .ours = M_SAME},
    {"packed", M_BOOL, .ours = M_SAME},
    {"packed_buffer_size_bytes", M_INT, .flags = WITH_GROUP, .ours = M_SAME,
     .doc = "With packed and a group; else ignored"},
    {"packed_num_buffers", M_INT, .doc = "Ignored"},
    {"sizes", M_ARRAY, .items = M_INT | M_NULL, .flags = WITH_HANDLES, .ours = M_SAME},
    {"tensor_sizes", M_ARRAY, .items = M_INT, .flags = WITH_HANDLES, .ours = M_SAME},
    {"ipc_handles", M_MAP, .items = M_OBJECT, .flags = WITH_HANDLES, .of = ipc_handle_rows,
     .ours = M_SAME},
    {"ipc_handles_pickled", M_STRING, .flags = WITH_HANDLES | M_BASE64, .ours = M_SAME,
     .doc = "As vLLM's trainers send it: a pickle that is read and never executed"},
    {"metadata_by_gpu", M_MAP, .items = M_OBJECT, .flags = WITH_HANDLES, .of = per_gpu_rows,
     .ours = M_SAME},
    {"num_updates_list", M_ARRAY, .items = M_INT, .flags = WITH_GROUP | OF_PATCHES, .ours = M_SAME,
     .doc = DOC_PATCHES},
    {"update_kind", M_STRING, .doc = "Of vLLM 0.24 to 0.26: dense"},
    {"is_checkpoint_format", M_BOOL, .doc = "Of vLLM 0.20; ignored: names and shapes show it"},
    {"", M_ROWS_OF(no_members), .ours = "buckets"}, /* a list's entries */
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
    {"request_ids", M_ARRAY, .ours = M_SAME, .items = M_STRING, .max = 65536, .doc = "Empty: all"},
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
    {"weight_version", M_STRING, .ours = M_SAME, .min = 1, .max = 256},
    {0},
};

const struct member vllm_label_members[] = {
    {"new_version", M_STRING, .min = 1, .max = 256, .flags = M_REQUIRED, .doc = DOC_LABEL,
     .ours = "weight_version"},
    {0},
};

const struct member vllm_checker_members[] = {
    {"action", M_STRING, .ours = M_SAME, .flags = M_REQUIRED,
     M_WORDS("checksum", "compare", "reset")},
    {"baseline", M_MAP, .ours = M_SAME, .items = M_STRING, .doc = "With compare"},
    {0},
};
