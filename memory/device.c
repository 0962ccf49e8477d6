/* The context of a GPU, its memory, and what comes from other processes.
 *
 * Every call pushes the context and pops it again, so that a thread may serve several GPUs and
 * leaves nothing behind in itself. Rejected: cuCtxSetCurrent once for each thread, which a caller
 * that uses two devices must then undo by hand. */
#include "memory/device_priv.h"

#include "base/log.h"
#include "memory/copy_sum.h"
#include "memory/scatter.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The GPU's pages: an allocation of whole ones shares none with another, and so a handle to it
 * shows its importer nothing else. */
enum { DEVICE_GRANULE_NBYTES = 2 << 20, DEVICE_PINNED_GRANULE_NBYTES = 4096 };

int device_enter(const struct device *d, struct err *e)
{
    return cu_try(d->cu, d->cu->ctx_push_current(d->ctx), "cuCtxPushCurrent", e);
}

void device_leave(const struct device *d)
{
    CUcontext popped;

    device_released(d, d->cu->ctx_pop_current(&popped), "cuCtxPopCurrent");
}

void device_released(const struct device *d, CUresult result, const char *call)
{
    struct log_rec r;
    struct err e = {0};

    if (cu_try(d->cu, result, call, &e) == 0)
        return;
    log_begin(&r, LOG_WARN, "device.release");
    log_str(&r, "device", d->name);
    log_err(&r, &e);
    log_end(&r);
}

/* Tried twice: memory that cannot be released is lost until the process ends. */
bool device_enter_release(const struct device *d)
{
    CUresult result = d->cu->ctx_push_current(d->ctx);

    if (result != CUDA_SUCCESS)
        result = d->cu->ctx_push_current(d->ctx);
    device_released(d, result, "cuCtxPushCurrent");
    return result == CUDA_SUCCESS;
}

int device_stream_new(const struct device *d, CUstream *out, struct err *e)
{
    return cu_try(d->cu, d->cu->stream_create(out, CU_STREAM_NON_BLOCKING), "cuStreamCreate", e);
}

void device_stream_free(const struct device *d, CUstream stream)
{
    device_released(d, d->cu->stream_destroy(stream), "cuStreamDestroy");
}

const struct cu_api *device_api(const struct device *d)
{
    return d->cu;
}

static int load_kernels(struct device *d, struct err *e)
{
    static const char *const names[KERNEL_COUNT] = {
        [KERNEL_COPY_SUM] = COPY_SUM_KERNEL,           [KERNEL_SCATTER_SUM] = SCATTER_SUM_KERNEL,
        [KERNEL_SCATTER_SCAN] = SCATTER_SCAN_KERNEL,   [KERNEL_SCATTER_MARK] = SCATTER_MARK_KERNEL,
        [KERNEL_SCATTER_APPLY] = SCATTER_APPLY_KERNEL,
    };
    const struct cu_api *cu = d->cu;
    CUmodule module;

    if (copy_sum_image_nbytes == 0)
        return err_set(e, ERR_CUDA, "", "this binary was built without nvcc");
    if (!cu_can_launch(cu))
        return err_set(e, ERR_CUDA, "", "the driver library has no calls to run kernels");
    if (cu_try(cu, cu->module_load_data(&module, copy_sum_image), "cuModuleLoadData", e) != 0)
        return -1;
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (cu_try(cu, cu->module_get_function(&d->kernels[i], module, names[i]),
                   "cuModuleGetFunction", e) != 0)
            goto err_unload;
    d->module = module;
    return 0;

err_unload:
    device_released(d, cu->module_unload(module), "cuModuleUnload");
    return -1;
}

/* A device without kernels is a slower one, not a broken one. */
static void try_kernels(struct device *d)
{
    struct err e = {0};

    if (load_kernels(d, &e) != 0)
        log_line(LOG_WARN, "device.kernels", "checksums of %s are made on the host: %.400s",
                 d->name, e.msg);
}

static int open_streams(struct device *d, struct err *e)
{
    if (device_stream_new(d, &d->copies, e) != 0)
        return -1;
    if (device_stream_new(d, &d->side, e) != 0)
        goto err_copies;
    return 0;

err_copies:
    device_stream_free(d, d->copies);
    return -1;
}

static int open_context(struct device *d, struct err *e)
{
    const struct cu_api *cu = d->cu;

    if (cu_try(cu, cu->device_get(&d->dev, d->about.ordinal), "cuDeviceGet", e) != 0 ||
        cu_try(cu, cu->primary_ctx_retain(&d->ctx, d->dev), "cuDevicePrimaryCtxRetain", e) != 0)
        return -1;
    if (device_enter(d, e) != 0)
        goto err_context;
    if (open_streams(d, e) != 0)
        goto err_leave;
    try_kernels(d);
    device_leave(d);
    return 0;

err_leave:
    device_leave(d);
err_context:
    device_released(d, cu->primary_ctx_release(d->dev), "cuDevicePrimaryCtxRelease");
    return -1;
}

int device_new(struct device **out, const struct cu_api *cu, const struct cuda_device *about,
               struct err *e)
{
    struct device *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the record of a device");
    assert(about->ordinal >= 0 && about->ordinal < CUDA_DEVICES_MAX);
    mtx_init(&d->lock, MTX_LEAF);
    d->cu = cu;
    d->about = *about;
    (void)snprintf(d->name, sizeof d->name, "cuda:%d", about->ordinal);
    (void)snprintf(d->bound, sizeof d->bound, "the memory of cuda:%d", about->ordinal);
    if (open_context(d, e) != 0)
        goto err_device;
    *out = d;
    return 0;

err_device:
    mtx_fini(&d->lock);
    free(d);
    return -1;
}

void device_free(struct device *d)
{
    const struct cu_api *cu;

    if (d == NULL)
        return;
    assert(d->n_batches_out == 0);
    cu = d->cu;
    if (device_enter_release(d)) {
        device_batches_drop(d);
        if (d->module != NULL)
            device_released(d, cu->module_unload(d->module), "cuModuleUnload");
        device_stream_free(d, d->side);
        device_stream_free(d, d->copies);
        device_leave(d);
    }
    device_released(d, cu->primary_ctx_release(d->dev), "cuDevicePrimaryCtxRelease");
    mtx_fini(&d->lock);
    free(d);
}

const struct cuda_device *device_about(const struct device *d)
{
    return &d->about;
}

const char *device_name(const struct device *d)
{
    return d->name;
}

bool device_has_kernels(const struct device *d)
{
    return d->module != NULL;
}

int device_room(struct device *d, uint64_t *nbytes_free, uint64_t *nbytes_total, struct err *e)
{
    size_t now = 0, total = 0;
    int rc;

    if (device_enter(d, e) != 0)
        return -1;
    rc = cu_try(d->cu, d->cu->mem_get_info(&now, &total), "cuMemGetInfo", e);
    device_leave(d);
    if (rc != 0)
        return -1;
    *nbytes_free = now;
    *nbytes_total = total;
    return 0;
}

int device_check(struct device *d, struct err *e)
{
    CUresult result;

    if (device_enter(d, e) != 0)
        return -1;
    result = d->cu->stream_query(d->copies);
    device_leave(d);
    return result == CUDA_ERROR_NOT_READY ? 0 : cu_try(d->cu, result, "cuStreamQuery", e);
}

/* The GPU's memory, for slabs. */
static int memory_take(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e)
{
    struct device *d = arg;
    size_t now = 0, total = 0;
    CUdeviceptr at = 0;
    CUresult result;
    int rc = -1;

    if (device_enter(d, e) != 0)
        return -1;
    result = d->cu->mem_alloc(&at, nbytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        rc = cu_try(d->cu, result, "cuMemAlloc", e);
    else if (cu_try(d->cu, d->cu->mem_get_info(&now, &total), "cuMemGetInfo", e) == 0)
        (void)err_set(e, ERR_NO_STAGING, "",
                      "%llu bytes of %s are needed for weights, %zu of its %zu are free",
                      (unsigned long long)nbytes, d->name, now, total);
    device_leave(d);
    if (rc != 0)
        return -1;
    *addr = at;
    return 0;
}

static void memory_give(void *arg, uint64_t addr, uint64_t nbytes)
{
    struct device *d = arg;

    (void)nbytes;
    if (!device_enter_release(d))
        return;
    device_released(d, d->cu->mem_free(addr), "cuMemFree");
    device_leave(d);
}

/* If the driver does not report it, the allocation fails instead. */
static struct memory_room memory_room_of(void *arg)
{
    struct device *d = arg;
    uint64_t now, total;
    struct err e = {0};

    if (device_room(d, &now, &total, &e) != 0)
        return (struct memory_room){UINT64_MAX, "nothing"};
    return (struct memory_room){now, d->bound};
}

struct slab_memory device_memory(struct device *d)
{
    return (struct slab_memory){
        .take = memory_take,
        .give = memory_give,
        .room = memory_room_of,
        .granule_nbytes = DEVICE_GRANULE_NBYTES,
        .arg = d,
    };
}

static int pinned_take(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e)
{
    struct device *d = arg;
    void *at = NULL;
    CUresult result;
    int rc = -1;

    if (device_enter(d, e) != 0)
        return -1;
    result = d->cu->mem_host_alloc(&at, nbytes, CU_MEMHOSTALLOC_PORTABLE);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        (void)err_set(
            e, ERR_NO_STAGING, "",
            "%llu bytes of page-locked host memory are needed for weights, and the driver "
            "(cuMemHostAlloc) refuses them; %llu bytes of host memory are available",
            (unsigned long long)nbytes, (unsigned long long)memory_room("").nbytes);
    else
        rc = cu_try(d->cu, result, "cuMemHostAlloc", e);
    device_leave(d);
    if (rc != 0)
        return -1;
    *addr = (uintptr_t)at;
    return 0;
}

static void pinned_give(void *arg, uint64_t addr, uint64_t nbytes)
{
    struct device *d = arg;

    (void)nbytes;
    if (!device_enter_release(d))
        return;
    device_released(d, d->cu->mem_free_host((void *)(uintptr_t)addr), "cuMemFreeHost");
    device_leave(d);
}

static struct memory_room pinned_room(void *arg)
{
    (void)arg;
    return memory_room("");
}

struct slab_memory device_pinned_memory(struct device *d)
{
    return (struct slab_memory){
        .take = pinned_take,
        .give = pinned_give,
        .room = pinned_room,
        .granule_nbytes = DEVICE_PINNED_GRANULE_NBYTES,
        .arg = d,
    };
}

bool device_can_reach(const struct device *d, const struct cuda_device *other)
{
    return other == NULL || strcmp(other->uuid, d->about.uuid) == 0 ||
           cuda_can_reach(d->cu, &d->about, other);
}

int device_read(struct device *d, void *dst, uint64_t src, uint64_t nbytes, struct err *e)
{
    int rc;

    if (nbytes == 0)
        return 0;
    if (device_enter(d, e) != 0)
        return -1;
    rc = cu_try(d->cu, d->cu->memcpy_dtoh(dst, src, nbytes), "cuMemcpyDtoH", e);
    device_leave(d);
    return rc;
}

/* The driver's blocking copy from ordinary memory returns when it has read the bytes, which may be
 * before the GPU has them: hence the stream, and the wait for it. */
int device_write(struct device *d, uint64_t dst, const void *src, uint64_t nbytes, struct err *e)
{
    const struct cu_api *cu = d->cu;
    CUresult queued, done;
    int rc;

    if (nbytes == 0)
        return 0;
    if (device_enter(d, e) != 0)
        return -1;
    queued = cu->memcpy_htod_async(dst, src, nbytes, d->side);
    done = cu->stream_synchronize(d->side);
    rc = cu_try(cu, queued, "cuMemcpyHtoDAsync", e);
    if (rc == 0)
        rc = cu_try(cu, done, "cuStreamSynchronize", e);
    device_leave(d);
    return rc;
}

int device_sum(struct device *d, uint64_t addr, uint64_t nbytes, struct checksum *out,
               struct err *e)
{
    const struct device_piece piece = {addr, addr, nbytes, DTYPE_NONE};
    struct device_batch *b;
    struct device_made made;
    int rc;

    if (device_batch_on(d, d->side, &b, e) != 0)
        return -1;
    rc = device_batch_copy(b, &piece, 1, &made, e);
    if (rc == 0)
        rc = device_batch_wait(b, NULL, e);
    device_batch_free(b);
    if (rc == 0)
        *out = made.sum;
    return rc;
}
