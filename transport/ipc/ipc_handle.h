/* CUDA IPC handles as a request carries them: a trainer's description of memory on its GPUs. They
 * are read and checked here, and never opened. */
#ifndef BATON_TRANSPORT_IPC_IPC_HANDLE_H
#define BATON_TRANSPORT_IPC_IPC_HANDLE_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    IPC_MEM_NBYTES = 64,   /* cudaIpcMemHandle_t */
    IPC_EVENT_NBYTES = 64, /* cudaIpcEventHandle_t */
    IPC_UUID_LEN = 36,     /* 8-4-4-4-12 hex digits */
    IPC_GPUS_MAX = 64,     /* of one request */
    IPC_HANDLES_MAX = 1 << 20,
    IPC_REF_NAME_MAX = 60, /* "/torch_<10 digits>_<20>_<20>" */
    IPC_REF_SLOTS = 10000, /* of one reference counter file */
};

/* One exported tensor. Element 0 is at <opened base> + storage_offset + tensor_offset bytes. */
struct ipc_handle {
    bool has_memory;             /* false: an empty tensor, nothing was shared */
    uint8_t version;             /* of torch's wrapping; 0 = the bare 64 bytes */
    char type;                   /* 'c' (cudaMalloc), the only one that is accepted */
    bool requires_grad;          /* of the sender's tensor; a receiver does not use it */
    bool is_parameter;           /* torch.nn.parameter.Parameter rather than torch.Tensor */
    bool event_sync;             /* wait for `event` before reading */
    uint8_t mem[IPC_MEM_NBYTES]; /* without version and type */
    uint8_t event[IPC_EVENT_NBYTES];
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    uint64_t stride[TENSOR_LIST_NDIM_MAX]; /* elements; contiguous, row-major */
    uint64_t nbytes;                       /* of the tensor, which is within the storage */
    uint64_t tensor_offset;                /* bytes, within the storage */
    uint64_t storage_nbytes;
    uint64_t storage_offset;             /* bytes, within the allocation; the sum is below 2^63 */
    int32_t device;                      /* the sender's index, meaningless in another process */
    uint32_t ref_slot;                   /* of the counter file, 0..IPC_REF_SLOTS - 1 */
    char ref_name[IPC_REF_NAME_MAX + 1]; /* POSIX shared memory; "" = nothing to count down */
};

struct ipc_gpu {
    char uuid[IPC_UUID_LEN + 1];      /* lower case, without "GPU-" or "MIG-" */
    const struct ipc_handle *handles; /* [n_handles], of the set */
};

struct ipc_handles {
    bool packed;        /* one handle a GPU for all tensors, else one for each tensor */
    uint32_t n_handles; /* of each GPU */
    uint32_t n_gpus;
    struct ipc_gpu gpus[IPC_GPUS_MAX];
    struct ipc_handle *all; /* owned, [n_gpus * n_handles], one GPU after the other */
};

/* ipc_handles_fini - free and zero; accepts a zeroed set. */
void ipc_handles_fini(struct ipc_handles *h);

/* ipc_uuid_parse - a GPU's UUID, with or without "GPU-" or "MIG-", in either case.
 * @text  [len], need not end in NUL
 * Returns: false, with `out` untouched, if the text is not a UUID. */
bool ipc_uuid_parse(char out[IPC_UUID_LEN + 1], const char *text, size_t len);

/* ipc_base64 - decode strictly: the standard alphabet, padded, nothing else.
 * @out    [len / 4 * 3 + 3] bytes
 * @what   names the text in a message
 * Errors: ERR_BAD_REQUEST at `field`. */
int ipc_base64(uint8_t *out, size_t *nbytes, const char *text, size_t len, const char *what,
               const char *field, struct err *e);

/* ipc_handles_from_json - the plain form: {"<gpu uuid>": {handle, offset, nbytes, event?}}, where
 * handle and event are base64 of 64 bytes. Each becomes one packed bucket of bytes (U8).
 * @out    written on success only
 * @field  the member's JSON pointer
 *
 * Threads: any.
 * Errors: ERR_BAD_REQUEST at <field>, <field>/<uuid> or <field>/<uuid>/<member>; ERR_NO_MEMORY. */
int ipc_handles_from_json(struct ipc_handles *out, const json_t *value, const char *field,
                          struct err *e);

#endif
