/* Copies all tensors of a source of any kind into ordinary host memory: for tensors that are not
 * weights of the model and belong to no update.
 *
 * Tensors on GPUs are read from the GPU of the first rank. Broadcast tensors are received into
 * temporary GPU memory on every rank, a window at a time, which is freed at the end; the bytes of
 * the first rank are used. */
#ifndef BATON_WEIGHTS_UPDATE_HOST_COPY_H
#define BATON_WEIGHTS_UPDATE_HOST_COPY_H

#include "base/err.h"
#include "base/progress.h"
#include "memory/device.h"
#include "weights/tensor_list.h"

#include <stdint.h>

enum { HOST_COPY_WINDOW_NBYTES = 64 << 20 }; /* a larger tensor gets a larger window */

struct host_copy {
    struct source *source; /* borrowed, and so are those below; the caller closes it */
    const struct tensor_list *tensor_list; /* of the source; of its first rank */
    struct device *const *devices; /* [n_devices] the source's ranks; none for one that fills */
    uint32_t n_devices;            /* at most STORE_DEVICES_MAX */
    struct source_scope **scope;   /* of the update that it belongs to, which keeps the mappings;
                                      NULL: none, and they are closed */
    struct progress *progress;     /* deadline, stop, gone */

    /* Returns memory for the bytes of tensor i. Called in ascending order, once for each tensor. */
    void *(*place)(void *arg, uint32_t i);
    /* The bytes of tensor i have arrived; from now on `place` may return the same memory for
     * another tensor. Returns -1 if the bytes are wrong: the copy then fails. No lock held; must
     * not block. */
    int (*arrived)(void *arg, uint32_t i, const void *bytes, struct err *e);
    void *arg;
};

/* host_copy_run - copy all tensors, or fail.
 *
 * Once the first bucket was requested from a sender, all buckets are received: an error of our own
 * is reported at the end, so that the group stays usable. When this returns, nothing reads from the
 * source's memory any more, its exports have been counted down, its mappings are closed or the
 * scope's, and the windows are freed, unless something may write to them for ever
 * (source_ops.stuck). Threads: any that the source allows. Blocks: until the deadline or stop of
 * `progress`. Errors: the source's, `arrived`'s; ERR_NO_STAGING (a GPU has no memory for a window:
 * nothing was requested from the sender), ERR_CUDA, ERR_NO_MEMORY. */
int host_copy_run(const struct host_copy *c, struct err *e);

#endif
