/* Pickles that hold named tensors, as SGLang's trainers send them: names, dtypes, shapes and CUDA
 * IPC handles, read by torch_pickle.c, which executes nothing.
 *
 * The form, as SGLang reads it and slime, verl and others write it. A request has one string for
 * each tensor-parallel rank: base64 (standard, padded) of what ForkingPickler makes in protocol 4
 * or 5. Its root is a dict {"flattened_tensor": T, "metadata": [M, ...]} (load_format
 * "flattened_bucket"), or a list of (name, T or L) (load_format null or "direct").
 *
 * T, a CUDA tensor: <rebuild function> <15 arguments> REDUCE. The function is torch's
 * rebuild_cuda_tensor, with the sender's index as device; or _rebuild_cuda_tensor_modified of the
 * module that patched torch (sglang.srt.patch_torch, then sglang.srt.utils.patch_torch, or a copy
 * in the trainer), with a bare UUID, str(props.uuid), in argument 6 instead. A tensor with two
 * names is one value, which the pickle takes from the memo the second time.
 *
 * M, FlattenedTensorMetadata (sglang.srt.weight_sync.tensor_bucket, or a copy): () NEWOBJ, a dict,
 * BUILD. A plain dict is accepted too. Members: name, shape (torch.Size), dtype, start_idx,
 * end_idx, numel = end_idx - start_idx. The indexes count elements of the flattened tensor. In
 * newer versions, which allow mixed dtypes, that tensor is uint8, so they are bytes; in older ones
 * it has the one dtype to which torch.cat converted all tensors. The tensors are adjacent. For
 * ranks that have less to send, slime sends an empty uint8 tensor without metadata; the process
 * that gathers the tensors makes it, so its UUID is that process's.
 *
 * L, LocalSerializedTensor (sglang.srt.model_executor.model_runner, then .weight_updater and
 * .model_runner_components.weight_updater): as M, with one member `values`, a list of bytes: a
 * pickle of one T for each rank. verl sends it; the strings of a request are then all equal, and
 * rank i uses values[i].
 *
 * A pickled CPU tensor needs code to be executed: to open a socket or a file of the sender
 * (rebuild_tensor), or to load its bytes (torch._utils). Neither is accepted. */
#ifndef BATON_TRANSPORT_IPC_TORCH_TENSORS_H
#define BATON_TRANSPORT_IPC_TORCH_TENSORS_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/tensor_list.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TENSORS_RANKS_MAX = IPC_GPUS_MAX, /* values of a LocalSerializedTensor */
    TENSORS_LOCAL_NBYTES_MAX = 2048   /* of one of them; real ones have about 400 */
};

/* The contents of one string. */
struct torch_tensors {
    struct tensor_list *tensor_list; /* owned: one reference; NULL: it holds nothing */
    struct ipc_handles
        handles; /* of one GPU: packed in the tensor list's order, or one for each tensor */
    char uuid[IPC_UUID_LEN + 1]; /* of that GPU; "": the string has only an index, or no tensor */
};

/* torch_tensors_read - read one string.
 * @out    written on success only; torch_tensors_fini
 * @text   [len], base64
 * @rank   selects the value of a LocalSerializedTensor
 * @field  the member's JSON pointer
 *
 * Threads: any. Linear time but for TENSORS_LOCAL_NBYTES_MAX; memory a constant times len.
 * Errors: ERR_BAD_REQUEST at `field`, with the mistake and its tensor: those of torch_handles_read
 *         and tensor_list_builder_add; another form than the above; metadata that contradicts
 *         itself or the flattened tensor; tensors of several GPUs;
 *         ERR_TOO_LARGE (too many bytes, values or tensors); ERR_NO_MEMORY. */
int torch_tensors_read(struct torch_tensors *out, const char *text, size_t len, uint32_t rank,
                       const char *field, struct err *e);

void torch_tensors_fini(struct torch_tensors *t); /* accepts a zeroed one */

#endif
