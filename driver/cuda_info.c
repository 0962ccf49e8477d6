/* Devices, described. */
#include "driver/cuda_info.h"

#include <stdio.h>
#include <string.h>

void cuda_uuid_text(char out[CUDA_UUID_MAX], const char *prefix, const CUuuid *uuid)
{
    size_t len = (size_t)snprintf(out, CUDA_UUID_MAX, "%.4s", prefix);

    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        len += (size_t)snprintf(out + len, CUDA_UUID_MAX - len, "%s%02x",
                                i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                (unsigned)(unsigned char)uuid->bytes[i]);
}

/* For a MIG slice the second form of the call returns the slice's UUID and the first form the
 * GPU's. Older drivers, without the first form or the difference, show it in the name. */
static int is_mig(const struct cu_api *cu, CUdevice dev, const char *name, const CUuuid *uuid,
                  bool *out, struct err *e)
{
    CUuuid parent = *uuid;

    if (cu->device_get_uuid_parent != NULL &&
        cu_try(cu, cu->device_get_uuid_parent(&parent, dev), "cuDeviceGetUuid", e) != 0)
        return -1;
    *out = memcmp(&parent, uuid, sizeof parent) != 0 || strstr(name, " MIG ") != NULL;
    return 0;
}

static int device_describe(const struct cu_api *cu, int ordinal, struct cuda_device *out,
                           struct err *e)
{
    struct cuda_device d = {.ordinal = ordinal};
    CUdevice dev;
    CUuuid uuid;
    size_t nbytes;

    if (cu_try(cu, cu->device_get(&dev, ordinal), "cuDeviceGet", e) != 0 ||
        cu_try(cu, cu->device_get_name(d.name, sizeof d.name, dev), "cuDeviceGetName", e) != 0 ||
        cu_try(cu, cu->device_get_uuid(&uuid, dev), "cuDeviceGetUuid_v2", e) != 0 ||
        is_mig(cu, dev, d.name, &uuid, &d.mig, e) != 0 ||
        cu_try(cu, cu->device_total_mem(&nbytes, dev), "cuDeviceTotalMem", e) != 0 ||
        cu_try(
            cu,
            cu->device_get_attribute(&d.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev),
            "cuDeviceGetAttribute", e) != 0 ||
        cu_try(
            cu,
            cu->device_get_attribute(&d.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev),
            "cuDeviceGetAttribute", e) != 0)
        return -1;
    cuda_uuid_text(d.uuid, d.mig ? "MIG-" : "GPU-", &uuid);
    d.nbytes_total = nbytes;
    *out = d;
    return 0;
}

int cuda_devices(const struct cu_api *cu, struct cuda_device devices[CUDA_DEVICES_MAX], size_t *n,
                 struct err *e)
{
    struct cuda_device found[CUDA_DEVICES_MAX];
    int count = 0;

    if (cu_try(cu, cu->device_get_count(&count), "cuDeviceGetCount", e) != 0)
        return -1;
    if (count > CUDA_DEVICES_MAX)
        count = CUDA_DEVICES_MAX;
    for (int i = 0; i < count; i++) {
        if (device_describe(cu, i, &found[i], e) != 0)
            return -1;
    }
    *n = count > 0 ? (size_t)count : 0;
    memcpy(devices, found, *n * sizeof found[0]);
    return 0;
}

static int info_read(struct cuda_info *info, struct err *e)
{
    const struct cu_api *cu = &info->api;
    int version = 0;

    if (cu_try(cu, cu->driver_get_version(&version), "cuDriverGetVersion", e) != 0)
        return -1;
    (void)snprintf(info->driver_version, sizeof info->driver_version, "%d.%d", version / 1000,
                   version % 1000 / 10);
    if (cu_try(cu, cu->init(0), "cuInit", e) != 0 ||
        cuda_devices(cu, info->devices, &info->n_devices, e) != 0)
        return -1;
    if (info->n_devices == 0)
        return err_set(e, ERR_CUDA, "", "the driver is there, but no device");
    return 0;
}

bool cuda_can_reach(const struct cu_api *cu, const struct cuda_device *from,
                    const struct cuda_device *to)
{
    CUdevice here, there;
    int can = 0;

    return cu->device_get(&here, from->ordinal) == CUDA_SUCCESS &&
           cu->device_get(&there, to->ordinal) == CUDA_SUCCESS &&
           cu->device_can_access_peer(&can, here, there) == CUDA_SUCCESS && can != 0;
}

void cuda_probe(struct cuda_info *out, const char *path)
{
    struct err e = {0};

    memset(out, 0, sizeof *out);
    out->available = cu_load(&out->api, path, &e) == 0 && info_read(out, &e) == 0;
    if (out->available)
        return;
    (void)snprintf(out->reason, sizeof out->reason, "%s", e.msg);
    out->n_devices = 0;
    memset(&out->api, 0, sizeof out->api); /* a driver that has run stays mapped */
}
