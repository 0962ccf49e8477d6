/* What replies contain: the served weights, and checks. See handlers/rows/member.h. */
#include "handlers/rows/reply_rows.h"
#include "handlers/update_json.h"
#include "weights/store/leases.h"

static const struct member handle_slab_rows[] = {
    {"handle", M_STRING, .min = 88, .max = 88, .flags = M_BASE64, .doc = "cudaIpcMemHandle_t"},
    {"nbytes", M_INT,
     .doc = "From the start of the opened allocation to the end of the weights in it"},
    {0},
};

static const struct member handle_device_rows[] = {
    {.name = "place", .type = M_STRING},
    {.name = "uuid", .type = M_STRING},
    {"slabs", M_ARRAY, .items = M_OBJECT, .of = handle_slab_rows},
    {"slab", M_ARRAY, .items = M_INT | M_NULL, .doc = "Aligned with names: the index in slabs"},
    {"offset", M_ARRAY, .items = M_INT | M_NULL,
     .doc = "Aligned with names: bytes from the start of the opened allocation"},
    {0},
};

const struct member handles_reply[] = {
    {"lease_id", M_STRING, .flags = M_REQUIRED},
    {"lease_s", M_INT, .flags = M_REQUIRED},
    {.name = "boot_id", .type = M_STRING},
    {"weight_version", M_STRING, .flags = M_REQUIRED},
    {"serial", M_INT, .flags = M_REQUIRED},
    {.name = "plan_digest", .type = M_STRING},
    {"nbytes", M_INT, .doc = "Bytes of one whole version"},
    {"placement", M_STRING, M_WORDS("replicated", "sharded")},
    {"devices", M_ARRAY, .items = M_OBJECT, .of = handle_device_rows, .flags = M_REQUIRED,
     .doc = "By rank"},
    {"names", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED},
    {"dtypes", M_ARRAY, .items = M_STRING, .flags = M_REQUIRED, .doc = "torch's names"},
    {"shapes", M_ARRAY, .items = M_INTS, .flags = M_REQUIRED},
    {"aliases", M_MAP, .items = M_STRING},
    {0},
};

const struct member lease_reply[] = {
    {"lease_id", M_STRING, M_IN(struct lease_info, id)},
    {"lease_s", M_INT, M_IN(struct lease_info, timer.length_s)},
    {"weight_version", M_STRING, M_IN(struct lease_info, label)},
    {"serial", M_INT, M_IN(struct lease_info, serial)},
    {.name = "served", .type = M_BOOL},
    {0},
};

const struct member file_lease_reply[] = {
    {"lease_id", M_STRING, .flags = M_REQUIRED},
    {"lease_s", M_INT, .flags = M_REQUIRED},
    {.name = "boot_id", .type = M_STRING},
    {"weight_version", M_STRING, .flags = M_REQUIRED},
    {"serial", M_INT, .flags = M_REQUIRED},
    {.name = "plan_digest", .type = M_STRING},
    {"digest", M_STRING,
     .doc =
         "SHA-256 over plan_digest and the checksum of each tensor, in the order of the file, in "
         "hexadecimal"},
    {"nbytes", M_INT, .flags = M_REQUIRED, .doc = "Bytes of the file"},
    {.name = "n_tensors", .type = M_INT},
    {"adapters", M_ARRAY, .items = M_OBJECT, .of = valid_adapter_reply,
     .doc = "Loaded now: GET /v1/lora_adapters/{name}"},
    {0},
};

static const struct member tensor_rows[] = {
    {.name = "name", .type = M_STRING},
    {.name = "dtype", .type = M_STRING},
    {"shape", M_ARRAY, .items = M_INT},
    {.name = "nbytes", .type = M_INT},
    {.name = "checksum", .type = M_STRING | M_NULL},
    {"version", M_STRING | M_NULL, .doc = "Label of the version with which these bytes arrived"},
    {.name = "serial", .type = M_INT},
    {0},
};

const struct member weights_reply[] = {
    {.name = "weight_version", .type = M_STRING},
    {.name = "serial", .type = M_INT},
    {.name = "boot_id", .type = M_STRING},
    {.name = "plan_digest", .type = M_STRING},
    {.name = "nbytes", .type = M_INT},
    {.name = "n_tensors", .type = M_INT},
    {"tensors", M_ARRAY, .items = M_OBJECT, .of = tensor_rows},
    {0},
};

static const struct member equal_to_rows[] = {
    {.name = "name", .type = M_STRING},
    {"in", M_STRING, M_WORDS("version_before", "this_version")},
    {0},
};

static const struct member tensor_diff_rows[] = {
    {.name = "name", .type = M_STRING},
    {"change", M_STRING, M_WORDS("changed", "unchanged", "not_sent", "not_compared")},
    {.name = "newly_unchanged", .type = M_BOOL},
    {"equal_to", M_OBJECT | M_NULL, .of = equal_to_rows,
     .doc = "Another tensor with the same bytes"},
    {0},
};

const struct member weights_diff_reply[] = {
    {"weight_version", M_STRING | M_NULL, .flags = M_REQUIRED,
     .doc = "The label that the last commit got"},
    {"serial", M_INT | M_NULL, .flags = M_REQUIRED},
    {"changes", M_OBJECT | M_NULL, .of = changes_reply, .flags = M_REQUIRED},
    {"n_tensors", M_INT, .flags = M_REQUIRED, .doc = "All that the query asks for, on all pages"},
    {"tensors", M_ARRAY, .items = M_OBJECT, .of = tensor_diff_rows, .flags = M_REQUIRED,
     .doc = "In the order of the model"},
    {"next_offset", M_INT | M_NULL, .flags = M_REQUIRED, .doc = "null: these are the last ones"},
    {0},
};

static const struct member preflight_check_rows[] = {
    {"check", M_STRING, .flags = M_REQUIRED,
     M_WORDS("cuda", "device", "allocator", "uuid", "mig", "pid_namespace", "ref_counter",
             "peer_access", "open", "event")},
    {"ok", M_BOOL | M_NULL, .flags = M_REQUIRED},
    {"message", M_STRING, .flags = M_REQUIRED},
    {"place", M_STRING | M_NULL, .flags = M_REQUIRED,
     .doc = "The rank that was checked, such as cuda:0; null: all"},
    {0},
};

const struct member preflight_reply[] = {
    {"ok", M_BOOL, .flags = M_REQUIRED,
     .doc = "No check failed; a handle of a tensor without elements fails, since nothing can be "
            "opened"},
    {"checks", M_ARRAY, .items = M_OBJECT, .of = preflight_check_rows, .flags = M_REQUIRED},
    {0},
};

const struct member plan_reply[] = {
    {"plan_id", M_STRING,
     .doc = "SHA-256 over the lines name TAB dtype TAB shape, in the order sent; plan_digest "
            "elsewhere is in the model's order"},
    {.name = "n_tensors", .type = M_INT},
    {.name = "nbytes", .type = M_INT},
    {.name = "covers_manifest", .type = M_BOOL},
    {.name = "n_missing", .type = M_INT},
    {"missing", M_ARRAY, .items = M_STRING, .max = UPDATE_MISSING_MAX},
    {0},
};

const struct member weights_checked_reply[] = {
    {"algorithm", M_STRING, .def = "sha256"},
    {.name = "weight_version", .type = M_STRING | M_NULL},
    {.name = "serial", .type = M_INT | M_NULL},
    {"checksums", M_MAP, .items = M_STRING},
    {.name = "n_tensors", .type = M_INT},
    {.name = "match", .type = M_BOOL},
    {"mismatches", M_ARRAY, .items = M_STRING},
    {"n_compared", M_INT, .doc = "With compare: tensors that were; `match` is about these"},
    {"n_skipped", M_INT, .doc = "With compare: tensors that skip left out"},
    {0},
};
