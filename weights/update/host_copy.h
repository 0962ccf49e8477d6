/* All tensors of a source into ordinary host memory, whatever kind of source it is: for what is no
 * weight of the model and belongs to no update.
 *
 * What lies on GPUs is read from the first rank's. What is broadcast comes to GPU memory of its own
 * on every rank, a window at a time, which is given back at the end; what comes to the first rank
 * stands for all. */
#ifndef BATON_WEIGHTS_UPDATE_HOST_COPY_H
#define BATON_WEIGHTS_UPDATE_HOST_COPY_H

#include "base/err.h"
#include "base/progress.h"
#include "memory/device.h"
#include "weights/tensor_list.h"

#include <stdint.h>

enum { HOST_COPY_WINDOW_NBYTES = 64 << 20 }; /* one that is larger than this has a larger window */

struct host_copy {
    struct source *source;         /* borrowed, and so are those below; the caller closes it */
    const struct tensor_list *tensor_list; /* of the source; of its first rank */
    struct device *const *devices; /* [n_devices] the source's ranks; none for one that fills */
    uint32_t n_devices;            /* at most STORE_DEVICES_MAX */
    struct progress *progress;     /* deadline, stop, gone */

    /* Where tensor i goes: room for its bytes. Asked for in ascending order, once each. */
    void *(*place)(void *arg, uint32_t i);
    /* They are there, and only now may the place of another tensor be the same one. -1: they are
     * not what they should be, and the copy fails. No lock held, nothing is waited for. */
    int (*came)(void *arg, uint32_t i, const void *bytes, struct err *e);
    void *arg;
};

/* host_copy_run - all of them, or an error.
 *
 * Once a sender was asked for its first bucket, all buckets are received: what goes wrong here
 * meanwhile is told at the end, and the group lives on. When this returns nothing reads from the
 * source's memory any more, its exports have been counted down, its mappings are closed, and the
 * windows are given back, unless something may write to them for ever (source_ops.stuck).
 * Threads: any, but for what the source says. Blocks: until the progress says to give up.
 * Errors: the source's, `came`'s; ERR_NO_STAGING (a GPU has no room for a window: nothing has been
 *         asked for then), ERR_CUDA, ERR_NO_MEMORY. */
int host_copy_run(const struct host_copy *c, struct err *e);

#endif
