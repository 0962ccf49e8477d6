/* Private to memory/device*.c: the device itself, and how a call enters its context. */
#ifndef BATON_MEMORY_DEVICE_PRIV_H
#define BATON_MEMORY_DEVICE_PRIV_H

#include "base/mtx.h"
#include "memory/device.h"

/* Page-locked memory and an equal amount of the GPU's: one copy uploads tables, one downloads sums.
 */
struct device_block {
    struct device_block *next;
    char *host;   /* owned */
    uint64_t dev; /* owned */
    uint64_t nbytes, nbytes_used;
};

enum device_kernel {
    KERNEL_COPY_SUM,
    KERNEL_SCATTER_SUM,
    KERNEL_SCATTER_SCAN,
    KERNEL_SCATTER_MARK,
    KERNEL_SCATTER_APPLY,
    KERNEL_COUNT
};

struct device {
    struct mtx lock;              /* rank MTX_LEAF; guards down to the blank line */
    struct device_batch *batches; /* idle, owned */
    struct device_block *blocks;  /* idle, owned */
    uint32_t n_batches_idle, n_batches_out;
    uint64_t nbytes_blocks; /* total of the idle blocks */

    const struct cu_api *cu; /* borrowed; this and all below are immutable after device_new */
    struct cuda_device about;
    char name[DEVICE_NAME_MAX];
    char bound[DEVICE_NAME_MAX + 16]; /* "the memory of cuda:0" */
    CUdevice dev;
    CUcontext ctx;   /* the primary one, retained */
    CUstream copies; /* of the batches that callers make */
    CUstream side;   /* of blocking calls: they wait for no update */
    CUmodule module; /* NULL: there are no kernels, and sums are made on the host */
    CUfunction kernels[KERNEL_COUNT];
};

/* device_enter for a release, which cannot report an error: on failure returns false and logs. */
bool device_enter_release(const struct device *d);
/* Logs a release that failed; nothing for CUDA_SUCCESS. */
void device_released(const struct device *d, CUresult result, const char *call);

/* Make a batch on one of the streams; device_batch_new is this with `copies`. */
int device_batch_on(struct device *d, CUstream stream, struct device_batch **out, struct err *e);

/* Frees idle batches and blocks; in the context. */
void device_batches_drop(struct device *d);

#endif
