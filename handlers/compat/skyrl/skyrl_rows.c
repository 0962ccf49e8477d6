/* What requests may contain: skyrl. See handlers/rows/member.h. */
#include "handlers/compat/skyrl/dialect_skyrl.h"
#include "handlers/rows/rows.h"

const struct member skyrl_rpc_members[] = {
    {"method", M_STRING, .flags = M_REQUIRED},
    {"kwargs", .type = M_OBJECT},
    {"args", M_ARRAY, .doc = "Empty, except for update_weights_from_ipc"},
    {"timeout", M_NUMBER,
     .doc = "Seconds, for the whole of update_weights_from_ipc. Ignored for other methods, to "
            "which --update-timeout applies",
     .ours = "timeout_ms"},
    {0},
};

const struct member skyrl_lora_members[] = {
    {"lora_name", M_STRING, .flags = M_REQUIRED},
    {"lora_path", M_STRING, .flags = M_REQUIRED, .doc = "Beneath a root of --allow-path"},
    {0},
};

const struct member skyrl_generate_members[] = {
    {"token_ids", M_ARRAY, .items = M_INT, .flags = M_REQUIRED},
    {"sampling_params", M_OBJECT, .doc = "As /inference/v1/generate; `n` is 1"},
    {"cache_salt", .type = M_STRING},
    {"model", .type = M_STRING},
    {"features", .type = M_ANY},
    {0},
};

const struct member skyrl_session_query[] = {
    {"session_id", M_STRING, .flags = M_QUERY},
    {0},
};

const struct member skyrl_fetch_members[] = {
    {"target_version", .type = M_INT},
    {"sync_dir", .type = M_STRING},
    {"uri", .type = M_STRING},
    {0},
};
