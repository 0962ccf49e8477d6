/* Parsing of `--device`: the named GPUs, as indexes into the driver's list of devices. */
#ifndef BATON_MEMORY_DEVICE_LIST_H
#define BATON_MEMORY_DEVICE_LIST_H

#include "base/err.h"
#include "driver/cuda_info.h"

#include <stdint.h>

struct device_list {
    uint32_t n;                       /* 0: the host's memory */
    uint32_t index[CUDA_DEVICES_MAX]; /* in cuda_info's devices, by rank */
};

/* device_list_parse - "cpu", or GPUs separated by commas, a rank each: "cuda:1", or a UUID with or
 * without "GPU-" or "MIG-", in either case.
 * @expected  what an entry may be, for errors: DEVICE_LIST_EXPECTED, unless the caller takes more
 * @out       written on success only
 *
 * Threads: any.
 * Errors, at --device: ERR_BAD_REQUEST (not a device, a device twice, cpu among GPUs),
 *         ERR_NO_GPU (no such GPU, with the ones that exist; or no CUDA, with the cause). */
#define DEVICE_LIST_EXPECTED "cpu, cuda:<number> or the UUID of a GPU"
int device_list_parse(struct device_list *out, const char *text, const struct cuda_info *cuda,
                      const char *expected, struct err *e);

/* device_list_least - the GPU of the list with the least memory. @list  not empty */
const struct cuda_device *device_list_least(const struct device_list *list,
                                            const struct cuda_info *cuda);

#endif
