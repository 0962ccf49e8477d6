/* The CUDA driver and the GPUs of this machine, probed once and without creating a context, so that
 * the probe takes no memory on any GPU and does not disturb other processes that use them. */
#ifndef BATON_DRIVER_CUDA_INFO_H
#define BATON_DRIVER_CUDA_INFO_H

#include "base/err.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_DEVICES_MAX = 64, /* more than a host has; MIG slices show one at a time */
    CUDA_NAME_MAX = 128,
    CUDA_UUID_MAX = 48,   /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    CUDA_VERSION_MAX = 16 /* "13.0" */
};

struct cuda_device {
    int ordinal;              /* among the devices that this process may see */
    char name[CUDA_NAME_MAX]; /* "NVIDIA H200" */
    char uuid[CUDA_UUID_MAX]; /* as nvidia-smi prints it: "GPU-…", of a MIG slice "MIG-…" */
    uint64_t nbytes_total;
    int major, minor; /* compute capability */
    bool mig;         /* a slice of a GPU, as far as libcuda shows it */
};

struct cuda_info {
    struct cu_api api; /* zeroed unless available */
    bool available;    /* the library is loaded, initialized, and has a device */
    char driver_version[CUDA_VERSION_MAX]; /* the newest CUDA it can run; "" when unknown */
    char reason[ERR_MSG_MAX];              /* why not available, "" when it is */
    size_t n_devices;
    struct cuda_device devices[CUDA_DEVICES_MAX];
};

/* cuda_uuid_text - 16 bytes as "<prefix>xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
 * @prefix  "GPU-", "MIG-" or "" */
void cuda_uuid_text(char out[CUDA_UUID_MAX], const char *prefix, const CUuuid *uuid);

/* cuda_devices - describe every device, at most the first CUDA_DEVICES_MAX.
 * @cu  loaded and initialized (cuInit)
 * @devices, @n  written on success only
 *
 * Threads: any, no lock held. Creates no context.
 * Errors:  ERR_CUDA  with the driver's call and result. */
int cuda_devices(const struct cu_api *cu, struct cuda_device devices[CUDA_DEVICES_MAX], size_t *n,
                 struct err *e);

/* cuda_can_reach - can `from` read the memory of `to` (peer access)? False: not another GPU, or the
 * driver does not say. Threads: any. Creates no context. */
bool cuda_can_reach(const struct cu_api *cu, const struct cuda_device *from,
                    const struct cuda_device *to);

/* cuda_probe - load libcuda, initialize it, list its devices. Cannot fail: if CUDA cannot be used,
 * out->reason has the cause. A library that was loaded stays mapped, as a driver that has run must.
 * @path  as cu_load
 *
 * Threads: one, no lock held. The caller has blocked the signals that other threads must not get,
 * since the driver starts threads. Blocks: up to seconds on a host with many GPUs. */
void cuda_probe(struct cuda_info *out, const char *path);

#endif
