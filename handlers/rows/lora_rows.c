/* What requests may contain: lora. See handlers/rows/member.h. */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/rows/lora_request.h"
#include "handlers/rows/rows.h"

const struct member lora_load_members[] = {
    {"lora_name", M_STRING, M_IN(struct lora_load_request, name), .min = 1, .max = 256,
     .flags = M_QUERY | M_REQUIRED,
     .doc = "Bytes of UTF-8 without control characters; not the base model's name"},
    {"lora_path", M_STRING, .source = LORA_PATH, M_IN(struct lora_load_request, path),
     .doc = "A directory beneath an --allow-path: absolute, or relative to the first of them"},
    {"load_inplace", M_BOOL, M_IN(struct lora_load_request, in_place), .flags = M_QUERY,
     .def = "true", .doc = "false: a loaded name is a 400, as in vLLM"},
    {"pinned", M_BOOL, M_IN(struct lora_load_request, pinned), .flags = M_QUERY, .def = "false",
     .doc = "Shown in the list; nothing is evicted in either case"},
    {"if_revision", M_INT, M_IN(struct lora_load_request, if_revision),
     M_GIVEN(struct lora_load_request, if_revision_given), .flags = M_QUERY, .min = 0,
     .doc =
         "409 unless the name is at this revision, both now and when the load ends; 0: not loaded"},
    {"allow_partial", M_BOOL, M_IN(struct lora_load_request, allow_partial), .flags = M_QUERY,
     .def = "false"},
    /* The default is less than the 30 s that clients of SGLang and prime-rl wait, so that they
     * receive the error. */
    {"timeout_s", M_INT, M_IN(struct lora_load_request, timeout_s),
     M_GIVEN(struct lora_load_request, timeout_given), .flags = M_QUERY, .min = 0, .max = 3600,
     .def = "20",
     .doc = "Limit of the whole load, from the call on. If absent, the wait for a lora_path that "
            "does not exist is 5 s"},
    {"names", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_STRING,
     .doc = "PEFT's names: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
    {"dtypes", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_STRING},
    {"dtype_names", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_STRING,
     .doc = "Another name of dtypes"},
    {"shapes", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_INTS},
    {"sizes", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_INT | M_NULL,
     .doc = "Elements of each tensor"},
    {"packed", M_BOOL, .goes_with = LORA_TENSORS,
     .doc = "As in update: must agree with the form of shm and of the handles"},
    {"checksums", M_ARRAY, .goes_with = LORA_TENSORS, .items = M_STRING | M_NULL},
    {"shm", M_OBJECT | M_ARRAY, .source = LORA_SHM, .items = M_OBJECT, .of = shm_rows},
    {"ipc_handles", M_MAP, .source = LORA_HANDLES, .items = M_OBJECT, .min = 1, .max = 64,
     .of = ipc_handle_rows,
     .doc = "CUDA IPC handles of one packed bucket on each GPU, with its tensors back to back. The "
            "length of the bucket is exactly that of its names, dtypes and shapes."},
    {"ipc_handles_pickled", M_STRING, .source = LORA_HANDLES, .flags = M_BASE64,
     .doc = "CUDA IPC handles as torch trainers send them: a pickle (protocol 4 or 5) in base64, "
            "which is read and never executed. A dict of GPU UUID to export is one packed bucket "
            "on each GPU; one of uint8, without per_gpu, may be longer than the tensors of this "
            "request. A list of such dicts has one handle for each tensor."},
    {"tensor_sizes", M_ARRAY, .goes_with = LORA_GPUS, .items = M_INT,
     .doc = "Bytes of each tensor, beside handles only"},
    {"per_gpu", M_MAP, .goes_with = LORA_GPUS, .items = M_OBJECT, .min = 1, .max = 64,
     .of = per_gpu_rows,
     .doc =
         "The tensors of each GPU's bucket, if they differ between GPUs: the bytes of a GPU are "
         "sliced by its own list only. The request may also have names, dtypes and shapes (SkyRL "
         "sends those of rank 0), which are then not used. Each GPU that is the source of a rank "
         "of this server must be listed. `metadata_by_gpu` is another name of `per_gpu`."},
    {"metadata_by_gpu", M_MAP, .goes_with = LORA_GPUS, .items = M_OBJECT, .min = 1, .max = 64,
     .of = per_gpu_rows,
     .doc =
         "The tensors of each GPU's bucket, if they differ between GPUs: the bytes of a GPU are "
         "sliced by its own list only. The request may also have names, dtypes and shapes (SkyRL "
         "sends those of rank 0), which are then not used. Each GPU that is the source of a rank "
         "of this server must be listed. `metadata_by_gpu` is another name of `per_gpu`."},
    {"buckets", M_ARRAY, .source = LORA_BUCKETS, .items = M_OBJECT, .min = 1, .max = 4096,
     .of = bucket_rows},
    {"transport", M_STRING, .source = LORA_NCCL, M_WORDS("nccl"),
     .doc = "The group broadcasts the tensors; this and the next four members are as in update"},
    {"expected_digest", M_STRING, .goes_with = LORA_NCCL, .min = 64, .max = 64},
    {"bucket_nbytes", M_INT, .goes_with = LORA_NCCL, .min = 1},
    {"packed_buffer_size_bytes", M_INT, .goes_with = LORA_NCCL, .min = 1},
    {"group_name", M_STRING, .goes_with = LORA_NCCL},
    {"adapter_config", M_OBJECT, .goes_with = LORA_TENSORS, .flags = M_QUERY,
     .doc = "adapter_config.json, with every source but lora_path"},
    {"is_3d_lora_weight", M_BOOL, M_IN(struct lora_load_request, three_d),
     .doc = "Accepted unless it is true"},
    {"lora_int_id", M_ANY, .doc = "vLLM's clients send it; ignored"},
    {"base_model_name", M_ANY, .doc = "vLLM's clients send it; ignored"},
    {0},
};

const struct member lora_unload_members[] = {
    {"lora_name", M_STRING, M_IN(struct lora_unload_request, name), .flags = M_REQUIRED},
    {"lora_int_id", M_INT, M_IN(struct lora_unload_request, number),
     .doc = "Of other servers; ignored"},
    {0},
};
