/* Our own GPU memory for an engine that runs torch: the pickles in which vLLM and SGLang take CUDA
 * IPC handles, written with the opcodes that torch_pickle.c reads. torch_tensors.h and
 * torch_handle.h describe the two forms. */
#ifndef BATON_TRANSPORT_IPC_TORCH_EXPORT_H
#define BATON_TRANSPORT_IPC_TORCH_EXPORT_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/tensor_list.h"

#include <stdint.h>

/* One exported allocation, or a part of it: torch sees it as one storage. */
struct torch_slab {
    uint8_t mem[IPC_MEM_NBYTES]; /* handle of the allocation */
    const char *uuid;            /* borrowed: of its GPU, bare, without "GPU-" */
    uint64_t begin;              /* of the storage in the allocation */
    uint64_t nbytes;             /* from its begin to the end of the last tensor in it */
};

/* A tensor, contiguous, `offset` bytes after the begin of a slab. */
struct torch_place {
    const struct tensor_spec *tensor; /* borrowed */
    uint32_t slab;
    uint64_t offset; /* a multiple of the size of an element */
};

/* What one GPU maps. */
struct torch_gpu {
    const char *uuid;                 /* borrowed, bare */
    const struct torch_place *places; /* borrowed; [n_tensors]; in slabs of any GPU: those of
                                         another one are opened as a peer's */
};

struct torch_exports {
    const struct torch_slab *slabs; /* [n_slabs] */
    uint32_t n_slabs;
    uint32_t n_tensors;
    /* Of a counter object in torch's form (ref_counter.h): each receiver decrements the slot when
     * it drops a storage. If there is no such object, torch counts nothing. */
    const char *ref_name;
    uint32_t ref_slot;
};

/* torch_export_handles - `ipc_handles_pickled` of a vLLM, not packed: base64 of a list with, for
 * each tensor, a dict from a GPU's UUID to the arguments of torch's rebuild_cuda_tensor.
 * @gpus  [n_gpus]; 1..IPC_GPUS_MAX
 * torch_export_packed - the same, packed: base64 of one such dict, for a tensor of bytes.
 * @gpus  [n_gpus]; each with one place, whose tensor is the packed bytes: one dimension of DTYPE_U8
 * torch_export_named - one of `serialized_named_tensors` of an SGLang, for load_format null: base64
 * of a list of (name, tensor). Each tensor names the GPU that has it, and not the one that maps it.
 * torch_export_bucket - the same for load_format "flattened_bucket": base64 of {"flattened_tensor":
 * tensor, "metadata": [FlattenedTensorMetadata, ...]}.
 * @flat    the bucket: one dimension of DTYPE_U8
 * @places  [n_tensors]; their offsets are from the begin of the bucket, and a multiple of the size
 * of an element each, because SGLang views a part of the bucket as the tensor
 *
 * Threads: any. Returns: new, free(); NULL with e set. Errors: ERR_NO_MEMORY. */
char *torch_export_handles(const struct torch_exports *x, const struct torch_gpu *gpus,
                           uint32_t n_gpus, struct err *e);
char *torch_export_packed(const struct torch_exports *x, const struct torch_gpu *gpus,
                          uint32_t n_gpus, struct err *e);
char *torch_export_named(const struct torch_exports *x, const struct torch_place *places,
                         struct err *e);
char *torch_export_bucket(const struct torch_exports *x, const struct torch_place *flat,
                          const struct torch_place *places, struct err *e);

#endif
