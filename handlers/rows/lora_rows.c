/* What requests may contain: lora. See handlers/rows/member.h. */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/rows/lora_request.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"
#include "handlers/update_members.h"
#include "weights/tensor_list.h"

const struct member lora_load_members[] = {
    {"lora_name", M_STRING, M_IN(struct lora_load_request, name), .min = 1, .max = 256,
     .flags = M_QUERY | M_REQUIRED,
     .doc = "Bytes of UTF-8 without control characters; not the base model's name"},
    {"lora_path", M_STRING, .flags = IS_SOURCE, M_IN(struct lora_load_request, path),
     .doc = "A directory beneath an --allow-path: absolute, or relative to the first of them"},
    {"load_inplace", M_BOOL, M_IN(struct lora_load_request, in_place), .flags = M_QUERY,
     .def = "true", .doc = "false: a loaded name is a 400, as in vLLM"},
    {"pinned", M_BOOL, M_IN(struct lora_load_request, pinned), .flags = M_QUERY, .def = "false",
     .doc = "Shown in the list; nothing is evicted in either case"},
    {"if_revision", M_INT, M_IN(struct lora_load_request, if_revision),
     M_GIVEN(struct lora_load_request, if_revision_given), .flags = M_QUERY, .min = 0,
     .doc =
         "409 unless the name is at this revision, both now and when the load ends; 0: not loaded. "
         "Numbers begin anew with the server: if_digest tells what is loaded"},
    {"if_digest", M_STRING, M_IN(struct lora_load_request, if_digest), .check = digest_check,
     .flags = M_QUERY, .min = TENSOR_LIST_DIGEST_LEN, .max = TENSOR_LIST_DIGEST_LEN,
     .doc = "409 unless the revision of the name has this digest, both now and when the load ends"},
    {"delta", M_BOOL, M_IN(struct lora_load_request, delta), .flags = M_QUERY, .def = "false",
     .doc = "The tensors are parts of a delta of the revision with the digest if_digest, which it "
            "needs; those that no part names keep their bytes (docs/delta.md)"},
    {"allow_partial", M_BOOL, M_IN(struct lora_load_request, allow_partial), .flags = M_QUERY,
     .def = "false"},
    /* The default is less than the 30 s that clients of SGLang and prime-rl wait, so that they
     * receive the error. */
    {"timeout_s", M_INT, M_IN(struct lora_load_request, timeout_s),
     M_GIVEN(struct lora_load_request, timeout_given), .flags = M_QUERY, .min = 0, .max = 3600,
     .def = "20",
     .doc = "Limit of the whole load, from the call on. If absent, the wait for a lora_path that "
            "does not exist is 5 s"},
    {"", M_ROWS_OF(tensor_list_rows)},
    {"checksums", M_ARRAY, .flags = OF_LIST, .items = M_STRING | M_NULL},
    {"shm", M_OBJECT | M_ARRAY, .flags = IS_SOURCE, .items = M_OBJECT, .of = shm_rows},
    {"", M_ROWS_OF(memory_rows)},
    {"buckets", M_ARRAY, .flags = IS_SOURCE, .items = M_OBJECT, .min = 1, .max = 4096,
     .of = bucket_rows},
    {"", M_ROWS_OF(broadcast_rows)},
    {"adapter_config", M_OBJECT, .flags = OF_LIST | M_QUERY,
     .doc = "adapter_config.json, with every source but lora_path. The tensors have PEFT's names: "
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
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

const struct member lora_file_query[] = {
    {"revision", M_INT, M_IN(struct lora_file_request, revision), .flags = M_QUERY, .min = 1,
     .doc = "409 unless the name is at this revision"},
    {0},
};
