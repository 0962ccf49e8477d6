/* CUDA IPC: our allocations for others, theirs and their events for us. */
#include "memory/device_priv.h"

#include <stdlib.h>
#include <string.h>

struct device_event {
    CUevent event; /* owned */
};

_Static_assert(sizeof(CUipcMemHandle) == DEVICE_IPC_NBYTES &&
                   sizeof(CUipcEventHandle) == DEVICE_IPC_NBYTES,
               "handles travel as bytes");

/* The usual causes of the driver's error codes. */
static const char *usual_reason(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_CONTEXT:
        return "usually a handle that this server exported itself, which only another process can "
               "open";
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_MAP_FAILED:
        return "usually its exporter has exited or freed it, or runs on another host or in a "
               "container whose GPUs or IPC and PID namespaces are not this server's";
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        return "its memory is on a GPU that this one cannot reach";
    case CUDA_ERROR_OUT_OF_MEMORY:
        return "this process has no room left to map it";
    default:
        return "the exporter may have exited";
    }
}

/* Did the driver refuse the handle, rather than fail? */
static bool is_refusal(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_MAP_FAILED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_INVALID_HANDLE:
        return true;
    default:
        return false;
    }
}

static int foreign_try(const struct device *d, CUresult result, const char *call, struct err *e)
{
    struct err told = {0};

    if (cu_try(d->cu, result, call, &told) == 0)
        return 0;
    return err_set(e, is_refusal(result) ? ERR_UNREADABLE : ERR_CUDA, "", "%s: %.300s; %s", d->name,
                   told.msg, usual_reason(result));
}

int device_export(struct device *d, uint64_t addr, uint8_t handle[DEVICE_IPC_NBYTES],
                  uint64_t *offset, struct err *e)
{
    const struct cu_api *cu = d->cu;
    CUipcMemHandle h;
    CUdeviceptr base = 0;
    size_t nbytes = 0;
    int rc;

    if (device_enter(d, e) != 0)
        return -1;
    rc = cu_try(cu, cu->mem_get_address_range(&base, &nbytes, addr), "cuMemGetAddressRange", e);
    if (rc == 0)
        rc = cu_try(cu, cu->ipc_get_mem_handle(&h, base), "cuIpcGetMemHandle", e);
    device_leave(d);
    if (rc != 0)
        return -1;
    memcpy(handle, &h, sizeof h);
    if (offset != NULL)
        *offset = addr - base;
    return 0;
}

static int handle_import(struct device *d, const CUipcMemHandle *h, CUdeviceptr *addr,
                         size_t *nbytes, struct err *e)
{
    const struct cu_api *cu = d->cu;
    CUdeviceptr base = 0;

    if (foreign_try(d, cu->ipc_open_mem_handle(addr, *h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                    "cuIpcOpenMemHandle", e) != 0)
        return -1;
    if (cu_try(cu, cu->mem_get_address_range(&base, nbytes, *addr), "cuMemGetAddressRange", e) != 0)
        goto err_mapping;
    *nbytes -= *addr - base;
    return 0;

err_mapping:
    device_released(d, cu->ipc_close_mem_handle(*addr), "cuIpcCloseMemHandle");
    return -1;
}

int device_import(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES], uint64_t *addr,
                  uint64_t *nbytes, struct err *e)
{
    CUipcMemHandle h;
    CUdeviceptr at;
    size_t there;
    int rc;

    memcpy(&h, handle, sizeof h);
    if (device_enter(d, e) != 0)
        return -1;
    rc = handle_import(d, &h, &at, &there, e);
    device_leave(d);
    if (rc != 0)
        return -1;
    *addr = at;
    *nbytes = there;
    return 0;
}

void device_unimport(struct device *d, uint64_t addr)
{
    if (!device_enter_release(d))
        return;
    device_released(d, d->cu->ipc_close_mem_handle(addr), "cuIpcCloseMemHandle");
    device_leave(d);
}

int device_event_open(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES],
                      struct device_event **out, struct err *e)
{
    struct device_event *ev = calloc(1, sizeof *ev);
    CUipcEventHandle h;
    int rc;

    if (ev == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the record of an event");
    memcpy(&h, handle, sizeof h);
    if (device_enter(d, e) != 0)
        goto err_event;
    rc = foreign_try(d, d->cu->ipc_open_event_handle(&ev->event, h), "cuIpcOpenEventHandle", e);
    device_leave(d);
    if (rc != 0)
        goto err_event;
    *out = ev;
    return 0;

err_event:
    free(ev);
    return -1;
}

int device_event_passed(struct device *d, struct device_event *ev, struct err *e)
{
    CUresult result;

    if (device_enter(d, e) != 0)
        return -1;
    result = d->cu->event_query(ev->event);
    device_leave(d);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    return cu_try(d->cu, result, "cuEventQuery", e) == 0 ? 1 : -1;
}

void device_event_close(struct device *d, struct device_event *ev)
{
    if (ev == NULL)
        return;
    if (device_enter_release(d)) {
        device_released(d, d->cu->event_destroy(ev->event), "cuEventDestroy");
        device_leave(d);
    }
    free(ev);
}
