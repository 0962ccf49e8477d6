/* What requests may contain: areal. See handlers/rows/member.h. */
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/rows/rows.h"

const struct member areal_disk_members[] = {
    {"model_path", M_STRING, .flags = M_REQUIRED, .ours = "path"},
    {"load_format", M_STRING, .def = "auto", M_WORDS("auto", "safetensors")},
    {"abort_all_requests", M_BOOL, .def = "false", .ours = "abort_requests"},
    {0},
};

const struct member areal_group_members[] = {
    {"master_address", .type = M_STRING},
    {"master_port", .type = M_STRING | M_INT},
    {"rank_offset", .type = M_INT},
    {"world_size", .type = M_INT},
    {"backend", M_STRING, M_WORDS("nccl")},
    {"group_name", .type = M_STRING},
    {0},
};

const struct member areal_meta_members[] = {
    {"names", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED},
    {"dtypes", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED},
    {"shapes", M_ARRAY, .items = M_INTS, .flags = M_REQUIRED},
    {"group_name", .type = M_STRING},
    {0},
};

const struct member areal_lora_members[] = {
    {"lora_model_path", M_STRING, .flags = M_REQUIRED, .ours = "lora_path"},
    {"lora_name", M_STRING, .flags = M_REQUIRED},
    {"lora_int_id", .type = M_INT},
    {"base_model_name", .type = M_STRING},
    {"load_format", .type = M_STRING},
    {"abort_all_requests", .type = M_BOOL},
    {0},
};

const struct member areal_lora_tensors_members[] = {
    {"names", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED},
    {"dtypes", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED},
    {"shapes", M_ARRAY, .items = M_INTS, .flags = M_REQUIRED},
    {"group_name", .type = M_STRING},
    {"lora_name", M_STRING, .flags = M_REQUIRED},
    {"lora_int_id", .type = M_INT},
    {"lora_rank", M_INT, .ours = "adapter_config/r"},
    {"lora_alpha", M_INT, .ours = "adapter_config/lora_alpha"},
    {"lora_bias", M_STRING, .ours = "adapter_config/bias"},
    {"base_model_name", .type = M_STRING},
    {"lora_target_modules", M_ARRAY | M_STRING, .items = M_STRING,
     .ours = "adapter_config/target_modules"},
    {0},
};
