/* Copies all tensors of a source whose bytes are on GPUs into memory of each rank, for tensors that
 * are not weights of the model: as weights/update/host_copy.h, but they stay there. */
#ifndef BATON_WEIGHTS_UPDATE_DEVICE_COPY_H
#define BATON_WEIGHTS_UPDATE_DEVICE_COPY_H

#include "base/err.h"
#include "base/progress.h"
#include "memory/device.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdint.h>

struct device_copy {
    struct source *source; /* borrowed, and so are those below; of the second or third kind */
    const struct tensor_list *tensor_list; /* of the source */
    struct device *const *devices;         /* [n_devices] the source's ranks */
    uint32_t n_devices;                    /* at most STORE_DEVICES_MAX */
    struct slab *const *slabs;             /* [n_devices] each of device_copy_places' size */
    const uint64_t *at;                    /* [n_tensors] as device_copy_places set them */
    struct source_scope **scope;           /* as in host_copy.h */
    struct progress *progress;             /* deadline, stop, gone; counts no bytes */
};

/* device_copy_places - where the tensors will lie in each rank's memory. Buckets begin aligned.
 * @at  [n_tensors] is written. Returns the size of that memory, at least 1. */
enum { DEVICE_COPY_ALIGN = 16 };
uint64_t device_copy_places(const struct source *source, const struct tensor_list *tensor_list,
                            uint64_t *at);

/* device_copy_run - copy all tensors, or fail.
 *
 * When this returns, nothing reads from the source's memory any more, its exports have been counted
 * down, and its mappings are closed or the scope's; nothing writes to the slabs any more, unless
 * they are quarantined, because the source may write to them for ever (source_ops.stuck). Threads:
 * any that the source allows. Blocks: until the deadline or stop of `progress`. Errors: the
 * source's; ERR_CUDA, ERR_NO_MEMORY. */
int device_copy_run(const struct device_copy *c, struct err *e);

#endif
