/* What requests may contain: skyrl. See handlers/rows/member.h. */
#include "handlers/compat/skyrl/dialect_skyrl.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"

const struct member skyrl_rpc_members[] = {
    {"method", M_STRING, .flags = M_REQUIRED},
    {"kwargs", M_OBJECT, .doc = "By the method, such as {\"update_info\": {…}}"},
    {"args", M_ARRAY, .doc = "Empty, except for update_weights_from_ipc"},
    {"timeout", M_NUMBER,
     .doc = "Seconds, for the whole of update_weights_from_ipc. Ignored for other methods, to "
            "which --update-timeout applies",
     .ours = "timeout_ms"},
    {0},
};

const struct member skyrl_lora_members[] = {
    {"lora_name", M_STRING, .ours = M_SAME, .flags = M_REQUIRED},
    {"lora_path", M_STRING, .ours = M_SAME, .flags = M_REQUIRED,
     .doc = "Beneath a root of --allow-path"},
    {0},
};

const struct member skyrl_generate_members[] = {
    {"token_ids", M_ARRAY, .ours = M_SAME, .items = M_INT, .flags = M_REQUIRED},
    {"sampling_params", M_OBJECT, .ours = M_SAME, .doc = "As /inference/v1/generate; `n` is 1"},
    {"cache_salt", M_STRING, .ours = M_SAME},
    {"model", M_STRING, .ours = M_SAME},
    {"features", M_ANY, .ours = M_SAME},
    {0},
};

const struct member skyrl_session_query[] = {
    {"session_id", M_STRING, .flags = M_QUERY},
    {0},
};

const struct member skyrl_fetch_members[] = {
    {"target_version", M_INT, .flags = M_REQUIRED, .ours = "version"},
    {"sync_dir", M_STRING, .ours = "source",
     .doc = "The directory with delta-00000001 and so on, beneath a root of --allow-path; default: "
            "that of uri. Or a URL beneath a --fetch-prefix, as gs://bucket/run"},
    {"uri", M_STRING, .doc = "The directory of the target; 400 if it is not one of sync_dir"},
    {0},
};

/* init_info and update_info of deltas. */
const struct member skyrl_deltas_rows[] = {
    {"base_model_path", M_STRING, .ours = "base", .flags = M_REQUIRED,
     .doc = "If it is a path beneath a root of --allow-path, and there, its model must be served; "
            "else the weights that the server started with, and the reply says so"},
    {"local_checkpoint_dir", M_STRING, .doc = "Nothing is written there"},
    {"cloud_download_workers", .type = M_INT},
    {"checkpoint_load_format", .type = M_STRING},
    {"multi_thread_safetensors_max_workers", .type = M_INT},
    {0},
};

const struct member skyrl_deltas_members[] = {
    {"init_info", M_OBJECT, .flags = M_REQUIRED | M_OPEN, .of = skyrl_deltas_rows},
    {0},
};

const struct member skyrl_reload_rows[] = {
    {"target_version", M_INT, .flags = M_REQUIRED, .ours = "version"},
    {"version", M_INT, .doc = "The same"},
    {"sync_dir", M_STRING, .ours = "name", .doc = "As /fetch_weights has had it"},
    {"uri", .type = M_STRING},
    {0},
};

const struct member skyrl_reload_members[] = {
    {"update_info", M_OBJECT, .flags = M_REQUIRED | M_OPEN, .of = skyrl_reload_rows},
    {0},
};

/* update_info of update_weights_ipc (WITH_HANDLES) and of update_weights_nccl (WITH_GROUP). */
const struct member skyrl_info_rows[] = {
    {"names", M_ARRAY, .items = M_STRING, .flags = WITH_HANDLES | WITH_GROUP, .ours = M_SAME},
    {"dtype_names", M_ARRAY, .items = M_STRING, .flags = WITH_HANDLES | WITH_GROUP, .ours = M_SAME},
    {"dtypes", M_ARRAY, .items = M_STRING, .flags = WITH_HANDLES | WITH_GROUP, .ours = M_SAME},
    {"shapes", M_ARRAY, .items = M_INTS, .flags = WITH_HANDLES | WITH_GROUP, .ours = M_SAME},
    {"sizes", M_ARRAY, .items = M_INT | M_NULL, .flags = WITH_HANDLES, .ours = M_SAME},
    {"tensor_sizes", M_ARRAY, .items = M_INT, .flags = WITH_HANDLES, .ours = M_SAME},
    {"packed", M_BOOL, .flags = WITH_HANDLES | WITH_GROUP, .ours = M_SAME},
    {"packed_buffer_size_bytes", M_INT, .flags = WITH_GROUP, .ours = M_SAME},
    {"num_updates_list", M_ARRAY, .items = M_INT, .flags = WITH_HANDLES | WITH_GROUP,
     .ours = M_SAME},
    {"metadata_by_gpu", M_MAP, .items = M_OBJECT, .flags = WITH_HANDLES, .ours = M_SAME},
    {"ipc_handles_pickled", M_STRING, .flags = WITH_HANDLES | M_BASE64, .ours = M_SAME},
    {0},
};

/* kwargs of skyrl_finish_weight_update. */
const struct member skyrl_finish_rows[] = {
    {"weight_version", M_STRING, .ours = M_SAME},
    {0},
};

/* kwargs of skyrl_wake_for_weight_sync. */
const struct member skyrl_wake_rows[] = {
    {"tags", M_ARRAY, .items = M_STRING, .ours = M_SAME},
    {0},
};
