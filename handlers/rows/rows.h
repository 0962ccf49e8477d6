/* Tables of objects within requests: ranges, handles, sampling parameters. Those of whole bodies
 * are declared beside their handlers, in handlers/control_plane.h and handlers/data_plane.h. */
#ifndef BATON_HANDLERS_ROWS_ROWS_H
#define BATON_HANDLERS_ROWS_ROWS_H

#include "handlers/rows/member.h"

extern const struct member no_members[];      /* none */
extern const struct member shm_rows[];        /* a range of shared memory */
extern const struct member ipc_handle_rows[]; /* a CUDA IPC handle of one GPU */
extern const struct member per_gpu_rows[];    /* the tensors of one GPU's bucket */
extern const struct member tensor_list_rows[], memory_rows[], handles_rows[];
extern const struct member broadcast_rows[], packing_rows[];
extern const struct member nixl_rows[], nixl_agent_rows[], nixl_shard_rows[];
extern const struct member selector_rows[];
extern const struct member update_end_rows[]; /* a finish of a session that requests do not name */
extern const struct member bucket_rows[];     /* one bucket of several */
extern const struct member sampling_rows[];   /* as in vLLM: of /v1/generate, completions, chats */
extern const struct member sglang_sampling_rows[];
extern const struct member stream_options_rows[];
extern const struct member chat_rows[];  /* what a chat template is given */
extern const struct member batch_rows[]; /* how a batch is laid out */
extern const struct member replay_layout_rows[];
extern const struct member step_rows[]; /* the place of one sample in its trajectory */

/* Sentences of members that several tables have. */
#define DOC_LABEL                                                                                  \
    "The trainer's own name for these weights. It must not begin with baton:unfinished:, "         \
    "which marks updates that have not ended"
#define DOC_BASE_VERSION                                                                           \
    "The label of the version that the update builds on: 409 (`precondition_failed`) if another "  \
    "one is served, or was committed before the first tensors came. Not in front of a fleet "      \
    "without --stage"
#define DOC_BASE_UPDATE_ID                                                                         \
    "With `base_version`: the `update_id` of the update whose commit made that version, as its "   \
    "replies and /v1/status say: 409 (`precondition_failed`) if another update made what is "      \
    "served under that label"
#define DOC_DELTA                                                                                  \
    "The tensors are parts of a delta (docs/delta.md): the new tensors are made from those of "    \
    "`base_version`, which it needs. The update is partial, and nothing is converted"
#define DOC_BASE                                                                                   \
    "`unchecked`: the requests name no version that they build on, so that their trainer has to "  \
    "know that it is the served one; else null"
#define DOC_PATCHES                                                                                \
    "With nccl, in an update that was started and brought no whole tensors: so many positions "    \
    "(int32, row-major, in any order) and as many new values are broadcast for each tensor of "    \
    "names, dtypes and shapes, as vLLM's sparse_nccl does (docs/delta.md). The update is partial"
#define DOC_PER_GPU                                                                                \
    "The tensors of each GPU's bucket, if they differ between GPUs: the bytes of a GPU "           \
    "are sliced by its own list only. The request may also have names, dtypes and shapes "         \
    "(SkyRL sends those of rank 0), which are then not used. Each GPU that is the source "         \
    "of a rank of this server must be listed. `metadata_by_gpu` is another name of "               \
    "`per_gpu`."
#define DOC_SELECTOR                                                                               \
    "Which of an engine's models the tensors are for: `all` (the model and its drafter, "          \
    "if it has one) or `target` (the model alone). Forwarded to SGLang; to other engines "         \
    "both values mean the model alone: the embedded engine has no drafter, and that of a "         \
    "vLLM keeps its weights. `draft` is refused: updates of a drafter are not supported."
#define DOC_PLACEMENT                                                                              \
    "`replicated`: each rank (GPU) must get the whole model. `sharded`: the ranks "                \
    "together must; each rank gets the tensors that are addressed to it, whole tensors "           \
    "only, and a request may have none for it. Set at the start of a session. A session "          \
    "of a dialect that has a start becomes `sharded` with the first request that brings "          \
    "some ranks other tensors. A server with `--placement sharded` keeps each tensor on "          \
    "the GPU that owns it, whatever is sent here, and reports `sharded`; a tensor that "           \
    "does not come to its owner stays where it came."
#define DOC_NAMED_TENSORS                                                                          \
    "CUDA tensors as SGLang's trainers send them, one string for each rank that the "              \
    "trainer assumes for this server: a pickle (protocol 4 or 5) in base64, which is read"         \
    " and never executed. It is a list of (name, tensor), where a tensor may be in a "             \
    "LocalSerializedTensor, or a dict of `flattened_tensor` and `metadata`; names, dtypes"         \
    " and shapes are in it, so the request has no such members. A GPU of this server uses"         \
    " the string with its own UUID; if the strings name their GPU by an index, each GPU "          \
    "uses the string at its rank. If there is a string of one GPU only, the other GPUs "           \
    "read it by peer copy. If some strings are empty, a GPU without a string of its own "          \
    "gets no tensors. Strings for GPUs that are not of this server are parsed, and their "         \
    "memory is not opened. Tensors in host memory are refused."

#endif
