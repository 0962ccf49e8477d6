/* What requests about updates, and about the group that brings them, may contain. See
 * handlers/rows/member.h. */
#include "fleet/want/fleet_group_join.h"
#include "handlers/control_plane.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"
#include "handlers/update_members.h"
#include "transport/nccl/nccl_id.h"
#include "transport/nccl/nccl_join.h"
#include "transport/nixl/nixl_wire.h"
#include "transport/shm.h"
#include "weights/tensor_list.h"
#include "weights/update/update.h"

const struct member shm_rows[] = {
    {"name", M_STRING, M_IN(struct shm_range, name), .flags = M_REQUIRED,
     .doc = "A name for shm_open"},
    {"offset", M_INT, M_IN(struct shm_range, offset), .def = "0"},
    {"nbytes", M_INT, M_IN(struct shm_range, nbytes), .flags = M_REQUIRED},
    {0},
};

const struct member ipc_handle_rows[] = {
    {"handle", M_STRING, .min = 88, .max = 88, .flags = M_REQUIRED | M_BASE64,
     .doc = "cudaIpcMemHandle_t"},
    {"offset", M_INT, .min = 0, .flags = M_REQUIRED,
     .doc = "Offset of the bucket in the exported allocation"},
    {"nbytes", M_INT, .min = 0, .flags = M_REQUIRED,
     .doc = "The length that names, dtypes and shapes give"},
    {"event", M_STRING, .min = 88, .max = 88, .flags = M_BASE64,
     .doc = "cudaIpcEventHandle_t to wait for before reading"},
    {0},
};

/* The columns of a list of tensors, which handlers/tensor_list_json.c reads. */
const struct member tensor_list_rows[] = {
    {"names", M_ARRAY, .flags = OF_LIST, .items = M_STRING},
    {"dtypes", M_ARRAY, .flags = OF_LIST, .items = M_STRING,
     .doc = "`bfloat16`, `torch.bfloat16` and `BF16` are one"},
    {"dtype_names", M_ARRAY, .flags = OF_LIST, .items = M_STRING, .doc = "Another name of dtypes"},
    {"shapes", M_ARRAY, .flags = OF_LIST, .items = M_INTS},
    {"sizes", M_ARRAY, .flags = OF_LIST, .items = M_INT | M_NULL, .doc = "Elements of each tensor"},
    {0},
};

const struct member per_gpu_rows[] = {
    {"", M_ROWS_OF(tensor_list_rows)},
    {"checksums", M_ARRAY, .items = M_STRING | M_NULL},
    {0},
};

/* The handles of the memory of tensors. */
const struct member memory_rows[] = {
    {"ipc_handles", M_MAP, .flags = IS_SOURCE, .items = M_OBJECT, .min = 1, .max = 64,
     .of = ipc_handle_rows,
     .doc = "CUDA IPC handles of one packed bucket on each GPU, with its tensors back to back. The "
            "length of the bucket is exactly that of its names, dtypes and shapes."},
    {"ipc_handles_pickled", M_STRING, .flags = IS_SOURCE | M_BASE64,
     .doc = "CUDA IPC handles as torch trainers send them: a pickle (protocol 4 or 5) in base64, "
            "which is read and never executed. A dict of GPU UUID to export is one packed bucket "
            "on each GPU; one of uint8, without per_gpu, may be longer than the tensors of this "
            "request. A list of such dicts has one handle for each tensor."},
    {"tensor_sizes", M_ARRAY, .flags = OF_LIST | OF_ONE_LIST | WITH_HANDLES, .items = M_INT,
     .doc = "Bytes of each tensor, beside handles only"},
    {"per_gpu", M_MAP, .flags = OF_LIST | WITH_HANDLES, .items = M_OBJECT, .min = 1, .max = 64,
     .of = per_gpu_rows, .doc = DOC_PER_GPU},
    {"metadata_by_gpu", M_MAP, .flags = OF_LIST | WITH_HANDLES, .items = M_OBJECT, .min = 1,
     .max = 64, .of = per_gpu_rows, .doc = DOC_PER_GPU},
    {0},
};

/* A list of tensors, and the handles of their memory: of a body, or of one of its buckets. */
const struct member handles_rows[] = {
    {"", M_ROWS_OF(tensor_list_rows)},
    {"checksums", M_ARRAY, .flags = OF_LIST | OF_ONE_LIST, .items = M_STRING | M_NULL,
     .doc = "32 hex digits each, see docs/protocol.md"},
    {"plan_id", M_STRING, .flags = OF_LIST | OF_ONE_LIST,
     .doc = "Instead of names, dtypes, shapes and sizes. With transport nccl `last` is the list of "
            "the last update by the group that was committed; 400 if there was none since the "
            "group was joined"},
    {"", M_ROWS_OF(memory_rows)},
    {0},
};

const struct member bucket_rows[] = {
    {"", M_ROWS_OF(handles_rows)},
    {"packed", M_BOOL, .doc = "Must agree with the form of the handles"},
    {"rank", M_INT, .min = 0,
     .doc =
         "The only rank of this server (`cuda.ranks` of its status) that reads this bucket, from "
         "its own GPU's handle; without it, every rank whose GPU has a handle. In buckets only"},
    {0},
};

/* How the tensors of the group's broadcasts are packed. */
const struct member packing_rows[] = {
    {"packed", M_BOOL, .flags = OF_LIST | WITH_PACKING, M_IN(struct packing_request, packed),
     M_GIVEN(struct packing_request, packed_given),
     .doc = "Must agree with the form of shm or of the handles; with nccl, how it is broadcast"},
    {"bucket_nbytes", M_INT, .flags = WITH_GROUP, M_IN(struct packing_request, bucket_nbytes),
     .min = 1, .doc = "With nccl and packed: vLLM's bound of a broadcast, without sizes"},
    {"packed_buffer_size_bytes", M_INT, .flags = WITH_GROUP,
     M_IN(struct packing_request, buffer_nbytes), .min = 1, .doc = "Another name of bucket_nbytes"},
    {0},
};

/* What the trainer's group broadcasts. */
const struct member broadcast_rows[] = {
    {"transport", M_STRING, .flags = IS_SOURCE, M_IN(struct broadcast_request, transport),
     .check = broadcast_check, M_WORDS("nccl", "nixl"),
     .doc = "nccl: the group broadcasts the tensors. nixl: this server reads them out of the "
            "memory of the trainer's agents; in updates of a server with --nixl-library"},
    {"expected_digest", M_STRING, .flags = WITH_GROUP, M_IN(struct broadcast_request, digest),
     .min = TENSOR_LIST_DIGEST_LEN, .max = TENSOR_LIST_DIGEST_LEN, .check = digest_check,
     .doc = "With nccl: the plan's SHA-256 as `plans` returns it; a different digest is a 409 "
            "before anything is received"},
    {"", M_ROWS_IN(packing_rows, struct broadcast_request, packing)},
    {"group_name", M_STRING, .flags = WITH_GROUP, M_IN(struct broadcast_request, group_name),
     .doc = "With nccl: 409 unless a group with this name was joined; default: the group joined "
            "last. In front of SGLang the name of a group that was joined without one is "
            "weight_update_group"},
    {0},
};

const struct member nixl_agent_rows[] = {
    {"name", M_STRING, M_IN(struct nixl_agent_request, name), .flags = M_REQUIRED, .min = 1,
     .max = NIXL_NAME_LEN_MAX,
     .doc = "Unlike that of any agent before it: with an id of its process"},
    {"metadata", M_STRING, M_IN(struct nixl_agent_request, metadata),
     .flags = M_REQUIRED | M_BASE64,
     .doc = "What its get_agent_metadata() returned after the memory was registered"},
    {"device_id", M_INT, M_IN(struct nixl_agent_request, device),
     M_GIVEN(struct nixl_agent_request, device_given),
     .doc = "Its shards without `mem` are VRAM of this GPU; without it they are DRAM"},
    {0},
};

const struct member nixl_shard_rows[] = {
    {"agent", M_INT, M_IN(struct nixl_shard_request, agent), .flags = M_REQUIRED,
     .doc = "Index in `agents`"},
    {"mem", M_STRING, M_IN(struct nixl_shard_request, mem),
     M_GIVEN(struct nixl_shard_request, mem_given), M_WORDS("DRAM", "VRAM")},
    {"device", M_INT, M_IN(struct nixl_shard_request, device),
     M_GIVEN(struct nixl_shard_request, device_given),
     .doc = "As the memory was registered: the GPU's ordinal in the trainer's process"},
    {"offset", M_INT, M_IN(struct nixl_shard_request, offset), .flags = M_REQUIRED,
     .doc = "Of its first element in the tensor, flat"},
    {"numel", M_INT, M_IN(struct nixl_shard_request, numel), .flags = M_REQUIRED},
    {"addr", M_INT, M_IN(struct nixl_shard_request, addr), .flags = M_REQUIRED},
    {0},
};

/* What is read by NIXL out of the trainer's memory. */
const struct member nixl_rows[] = {
    {"agents", M_ARRAY, .flags = WITH_NIXL, M_IN(struct nixl_request, agents), .items = M_OBJECT,
     .min = 1, .max = NIXL_AGENTS_MAX, .of = nixl_agent_rows,
     .doc = "With nixl: the trainer's NIXL agents that have the tensors' memory registered"},
    {"shards", M_ARRAY, .flags = WITH_NIXL, M_IN(struct nixl_request, shards), .items = M_ARRAY,
     .doc = "With nixl: for each tensor a list of its shards {agent, mem, device, offset, numel, "
            "addr}, flat ranges of its elements that together tile it exactly once"},
    {"shard_table", M_OBJECT | M_ARRAY, .flags = WITH_NIXL, M_IN(struct nixl_request, shard_table),
     .items = M_OBJECT,
     .doc = "With nixl, instead of agents, shards and names: a manifest of ModelExpress "
            "(`mx.reshard.shard_table.v1`) as it is, or a list of them. Digests in it are not "
            "checked"},
    {"unchecked", M_BOOL, .flags = WITH_NIXL, M_IN(struct nixl_request, unchecked), .def = "false",
     .doc = "With nixl: take tensors without `checksums`. Bytes that the trainer changes while "
            "they are read are then not noticed"},
    {0},
};

const struct member selector_rows[] = {
    {"selector", M_STRING, M_IN(struct selector_request, selector), .check = selector_check,
     M_WORDS("all", "target"), .doc = DOC_SELECTOR},
    {0},
};

const struct member update_start_members[] = {
    {"weight_version", M_STRING, M_IN(struct update_start_request, label), .check = label_check,
     .min = 1, .max = VERSION_LABEL_MAX, .doc = DOC_LABEL},
    {"partial", M_BOOL, M_IN(struct update_start_request, partial),
     M_GIVEN(struct update_start_request, partial_given), .def = "false",
     .doc = "Tensors that are not sent keep their values; in front of a fleet only engines that "
            "serve the fleet's version take part, and vLLM accepts no partial update"},
    {"convert", M_BOOL, M_IN(struct update_start_request, convert), .def = "false",
     .doc = "Convert a float dtype that differs from the model's"},
    {"base_version", M_STRING, M_IN(struct update_start_request, base_version), .min = 1,
     .max = VERSION_LABEL_MAX, .doc = DOC_BASE_VERSION},
    {"base_update_id", M_STRING, M_IN(struct update_start_request, base_update_id),
     .check = update_id_check, .doc = DOC_BASE_UPDATE_ID},
    {"delta", M_BOOL, M_IN(struct update_start_request, delta), .def = "false", .doc = DOC_DELTA},
    {"placement", M_STRING, M_IN(struct update_start_request, placement), .def = "replicated",
     M_WORDS("replicated", "sharded"), .doc = DOC_PLACEMENT},
    {"", M_ROWS_IN(selector_rows, struct update_start_request, selector)},
    {"lease_s", M_INT, M_IN(struct update_start_request, lease_s), .min = 1,
     .max = UPDATE_LEASE_S_MAX, .def = "60",
     .doc = "seconds; each request of the session renews it, and its end aborts the session"},
    {"trainer_ranks", M_INT, M_IN(struct update_start_request, trainer_ranks), .min = 1,
     .max = UPDATE_TRAINER_RANKS_MAX,
     .doc = "So many ranks of the trainer send tensors: each request names its `trainer_rank`, and "
            "the finish fails if one of them has sent none. Not with vLLM or SGLang engines"},
    {0},
};

const struct member update_members[] = {
    {"update_id", M_STRING, M_IN(struct update_request, update_id), .check = update_id_check,
     .flags = M_QUERY, .doc = "Of the session; without it the request is a whole update"},
    {"chunk_id", M_STRING, M_IN(struct update_request, chunk_id), .check = chunk_id_check,
     .flags = M_QUERY, .min = 1, .max = UPDATE_CHUNK_ID_MAX},
    {"weight_version", M_STRING, M_IN(struct update_request, label), .check = label_check,
     .flags = WITH_PULLED | M_QUERY, .min = 1, .max = VERSION_LABEL_MAX, .doc = DOC_LABEL},
    {"partial", M_BOOL, M_IN(struct update_request, partial),
     M_GIVEN(struct update_request, partial_given), .flags = AT_START | M_QUERY, .def = "false"},
    {"convert", M_BOOL, M_IN(struct update_request, convert),
     M_GIVEN(struct update_request, convert_given), .flags = AT_START | M_QUERY, .def = "false"},
    {"base_version", M_STRING, M_IN(struct update_request, base_version),
     .flags = AT_START | M_QUERY, .min = 1, .max = VERSION_LABEL_MAX, .doc = DOC_BASE_VERSION},
    {"base_update_id", M_STRING, M_IN(struct update_request, base_update_id),
     .check = update_id_check, .flags = AT_START | M_QUERY, .doc = DOC_BASE_UPDATE_ID},
    {"delta", M_BOOL, M_IN(struct update_request, delta),
     M_GIVEN(struct update_request, delta_given), .flags = AT_START | M_QUERY, .def = "false",
     .doc = DOC_DELTA},
    {"abort_requests", M_BOOL, M_IN(struct update_request, abort_requests), .flags = WITH_PULLED,
     .def = "false",
     .doc = "End every generation, with its tokens so far, after the request has been checked"},
    {"placement", M_STRING, .flags = AT_START, M_IN(struct update_request, placement),
     M_GIVEN(struct update_request, placement_given), .def = "replicated",
     M_WORDS("replicated", "sharded"), .doc = DOC_PLACEMENT},
    {"trainer_rank", M_INT, M_IN(struct update_request, trainer_rank),
     M_GIVEN(struct update_request, trainer_rank_given), .flags = M_QUERY, .min = 0,
     .max = UPDATE_TRAINER_RANKS_MAX - 1,
     .doc = "Which rank of the trainer sends this, in a session: the replies count what each has "
            "brought (`senders`), and each numbers its chunks by itself. A tensor that another "
            "rank has sent is compared with that: other bytes are a 422 (`manifest_mismatch`)"},
    {"", M_ROWS_IN(selector_rows, struct update_request, selector)},
    {"shm", M_OBJECT | M_ARRAY, .flags = IS_SOURCE, .items = M_OBJECT, .of = shm_rows,
     .doc = "POSIX shared memory; one object for a packed bucket, or a list with one range for "
            "each tensor"},
    {"path", M_STRING, .flags = IS_SOURCE | WITH_PULLED, M_IN(struct update_request, path),
     .doc = "A safetensors file, or a directory with model.safetensors or an index (400 if it has "
            "both, and the index does not name that file), beneath an --allow-path; links with a "
            "relative path that stay beneath it are followed, as in the cache of huggingface_hub. "
            "422 if its length, mtime or ctime changes while it is read; a writer through mmap may "
            "change bytes before either time does: only checksums detect that"},
    {"", M_ROWS_OF(handles_rows)},
    {"buckets", M_ARRAY, .flags = IS_SOURCE, .items = M_OBJECT, .min = 1, .max = 4096,
     .of = bucket_rows,
     .doc = "Several buckets in one request; the next is mapped while the one before is copied. "
            "The members that describe a bucket are then inside it, and not beside `buckets`. A "
            "rank gets each tensor from one bucket only. An element that is null is skipped."},
    {"serialized_named_tensors", M_ARRAY, .items = M_STRING, .min = 1, .max = 64,
     .flags = IS_SOURCE | M_BASE64, .doc = DOC_NAMED_TENSORS},
    {"serialized_format", M_STRING, M_IN(struct update_request, format), .flags = WITH_PICKLES,
     M_WORDS("direct", "flattened_bucket"),
     .doc = "Beside serialized_named_tensors, for SGLang upstreams, which require it. The embedded "
            "engine detects the form from the pickles"},
    {"", M_ROWS_OF(broadcast_rows)},
    {"num_updates_list", M_ARRAY, M_IN(struct update_request, n_updates), .items = M_INT,
     .flags = WITH_GROUP, .doc = DOC_PATCHES},
    {"", M_ROWS_OF(nixl_rows)},
    {0},
};

/* The end of a session that requests do not name. */
const struct member update_end_rows[] = {
    {"weight_version", M_STRING, M_IN(struct update_end_request, label),
     .check = label_or_none_check, .max = VERSION_LABEL_MAX, .doc = DOC_LABEL},
    {"checksums", M_MAP, M_IN(struct update_end_request, checksums), .items = M_STRING,
     .doc = "name -> 32 hex digits"},
    {0},
};

const struct member update_finish_members[] = {
    {"update_id", M_STRING, M_IN(struct update_end_request, update_id), .check = update_id_check,
     .flags = M_REQUIRED},
    {"", M_ROWS_WITH(update_end_rows)},
    {0},
};

const struct member update_verify_members[] = {
    {"update_id", M_STRING, M_IN(struct update_end_request, update_id), .check = update_id_check,
     .flags = M_REQUIRED},
    {"checksums", M_MAP, M_IN(struct update_end_request, checksums), .items = M_STRING,
     .doc = "name -> 32 hex digits"},
    {0},
};

const struct member update_abort_members[] = {
    {"update_id", M_STRING, M_IN(struct update_end_request, update_id), .check = update_id_check,
     .flags = M_REQUIRED},
    {"reason", M_STRING, M_IN(struct update_end_request, reason), .def = "aborted by its owner"},
    {0},
};

const struct member update_renew_members[] = {
    {"update_id", M_STRING, M_IN(struct update_end_request, update_id), .check = update_id_check,
     .flags = M_REQUIRED},
    {"lease_s", M_INT, M_IN(struct update_end_request, lease_s), .min = 1,
     .max = UPDATE_LEASE_S_MAX, .doc = "default: the session's own"},
    {0},
};

const struct member tensor_list_members[] = {
    {"", M_ROWS_OF(tensor_list_rows)},
    {"convert", M_BOOL, .def = "false"},
    {0},
};

const struct member preflight_members[] = {
    {"ipc_handles", M_MAP, .items = M_OBJECT, .of = ipc_handle_rows},
    {"ipc_handles_pickled", M_STRING, .flags = M_BASE64},
    {0},
};

const struct member transfer_init_members[] = {
    {"transport", M_STRING, M_IN(struct transfer_request, transport),
     .check = group_transport_check, .flags = M_REQUIRED, M_WORDS("nccl", "ipc")},
    {"world_size", M_INT, M_IN(struct transfer_request, world_size), .min = 2,
     .max = FLEET_WORLD_SIZE_MAX,
     .doc = "The number of all ranks, with the trainer's; required for nccl. A server with weights "
            "takes at most 128"},
    {"rank_offset", M_INT, M_IN(struct transfer_request, rank_offset),
     M_GIVEN(struct transfer_request, rank_offset_given), .min = 1, .max = FLEET_WORLD_SIZE_MAX - 1,
     .def = "1", .doc = "Rank of this server's first GPU"},
    {"nccl_unique_id", M_STRING, M_IN(struct transfer_request, id), .min = NCCL_ID_BASE64_LEN,
     .max = NCCL_ID_BASE64_LEN, .flags = M_BASE64, .check = nccl_id_check},
    {"master_address", M_STRING, M_IN(struct transfer_request, host), .min = 1,
     .max = NCCL_JOIN_HOST_MAX, .check = master_address_check},
    {"master_port", M_INT, M_IN(struct transfer_request, port), .min = 1, .max = 65535},
    {"group_name", M_STRING, M_IN(struct transfer_request, group_name), .min = 1,
     .max = NCCL_JOIN_GROUP_NAME_MAX, .check = group_name_check},
    {"timeout_s", M_INT, M_IN(struct transfer_request, timeout_s), .min = 1, .max = 86400,
     .doc = "Limit of the join; default: --join-timeout. With group_name it limits each of three "
            "steps: the count in the store, the wait for the trainer's first collective (default: "
            "a day), and NCCL's own init"},
    {"warm_up", M_BOOL, M_IN(struct transfer_request, warm_up),
     M_GIVEN(struct transfer_request, warm_up_given),
     .doc = "Whether an all-reduce of one float32 follows the init. Default: that of the form, "
            "true without group_name"},
    {"", M_ROWS_IN(packing_rows, struct transfer_request, packing)},
    {"packed_num_buffers", M_INT, M_IN(struct transfer_request, n_buffers), .min = 1,
     .doc = "Forwarded to vLLM upstreams; ignored by the embedded engine"},
    {0},
};

const struct member update_zmq_members[] = {
    {"zmq_handles", M_MAP, M_IN(struct zmq_request, handles), .items = M_STRING,
     .flags = M_REQUIRED, .doc = "The trainer's socket for each GPU, by its UUID"},
    {"weight_version", M_STRING, M_IN(struct zmq_request, label), .check = label_check, .min = 1,
     .max = VERSION_LABEL_MAX, .doc = "The trainer's own name"},
    {"timeout_ms", M_INT, M_IN(struct zmq_request, timeout_ms), .min = 1, .max = 86400000,
     .doc = "Of each message of the trainer"},
    {0},
};

const struct member pull_members[] = {
    {"form", M_STRING, M_IN(struct pull_request, form), .flags = M_REQUIRED,
     M_WORDS("slime", "skyrl"), .doc = "Whose directories: in the order of enum pull_form"},
    {"source", M_STRING, M_IN(struct pull_request, source), .def = "",
     .doc = "The directory with the versions, beneath --allow-path or a --fetch-prefix"},
    {"version", M_INT, M_IN(struct pull_request, version), .flags = M_REQUIRED, .min = 0},
    {"name", M_STRING, M_IN(struct pull_request, name), .def = "",
     .doc = "By which the update is committed"},
    {"base", M_STRING, M_IN(struct pull_request, base),
     .doc = "With version 0: the trainer's base model"},
    {0},
};

const struct member pull_commit_members[] = {
    {"name", M_STRING, M_IN(struct pull_request, name), .flags = M_REQUIRED},
    {"version", M_INT, M_IN(struct pull_request, version), .flags = M_REQUIRED, .min = 0},
    {0},
};

const struct member transfer_delete_members[] = {
    {"group_name", M_STRING, .doc = "Leave this group only"},
    {0},
};
