/* Which GPUs `--device` means: text into places of the list that the driver gave. */
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
 * @out  written on success only
 *
 * Threads: any.
 * Errors, at --device: ERR_BAD_REQUEST (not a device, twice the same, cpu among GPUs),
 *         ERR_NO_GPU (there is no such GPU: what there is; or no CUDA: why). */
int device_list_parse(struct device_list *out, const char *text, const struct cuda_info *cuda,
                      struct err *e);

#endif
