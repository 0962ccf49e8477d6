/* What requests may contain: areal. See handlers/rows/member.h. */
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/rows/rows.h"

const struct member areal_disk_members[] = {
    {"model_path", M_STRING, .flags = M_REQUIRED, .ours = "path"},
    {"load_format", M_STRING, .def = "auto", M_WORDS("auto", "safetensors")},
    {"abort_all_requests", M_BOOL, .def = "false", .ours = "abort_requests"},
    {"weight_version", M_STRING, .ours = M_SAME},
    {0},
};

const struct member areal_group_members[] = {
    {"master_address", M_STRING, .ours = M_SAME},
    {"master_port", M_STRING | M_INT, .ours = M_SAME},
    {"rank_offset", M_INT, .ours = M_SAME},
    {"world_size", M_INT, .ours = M_SAME},
    {"backend", M_STRING, M_WORDS("nccl")},
    {"group_name", M_STRING, .ours = M_SAME},
    {0},
};

const struct member areal_meta_members[] = {
    {"names", M_ARRAY, .ours = M_SAME, .items = M_STRING, .flags = M_REQUIRED},
    {"dtypes", M_ARRAY, .ours = M_SAME, .items = M_STRING, .flags = M_REQUIRED},
    {"shapes", M_ARRAY, .ours = M_SAME, .items = M_INTS, .flags = M_REQUIRED},
    {"group_name", M_STRING, .ours = M_SAME},
    {0},
};

const struct member areal_lora_members[] = {
    {"lora_model_path", M_STRING, .flags = M_REQUIRED, .ours = "lora_path"},
    {"lora_name", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"lora_int_id", .type = M_INT},
    {"base_model_name", .type = M_STRING},
    {"load_format", .type = M_STRING},
    {"abort_all_requests", .type = M_BOOL},
    {0},
};

const struct member areal_lora_tensors_members[] = {
    {"names", M_ARRAY, .ours = M_SAME, .items = M_STRING, .flags = M_REQUIRED},
    {"dtypes", M_ARRAY, .ours = M_SAME, .items = M_STRING, .flags = M_REQUIRED},
    {"shapes", M_ARRAY, .ours = M_SAME, .items = M_INTS, .flags = M_REQUIRED},
    {"group_name", M_STRING, .ours = M_SAME},
    {"lora_name", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"lora_int_id", .type = M_INT},
    {"lora_rank", M_INT, .ours = "adapter_config/r"},
    {"lora_alpha", M_INT, .ours = "adapter_config/lora_alpha"},
    {"lora_bias", M_STRING, .ours = "adapter_config/bias"},
    {"base_model_name", .type = M_STRING},
    {"lora_target_modules", M_ARRAY | M_STRING, .items = M_STRING,
     .ours = "adapter_config/target_modules"},
    {0},
};
