/* A GPU that holds a rank of the weights: its context, its memory, and the copies made there.
 *
 * The context is the device's primary one, retained once and pushed for each call, so any thread
 * may call. Copies of updates run on one stream of the device, in the order in which they are
 * queued. This stream never waits for an event of another process: if that process died, every
 * copy queued behind the event would wait as well. */
#ifndef BATON_MEMORY_DEVICE_H
#define BATON_MEMORY_DEVICE_H

#include "base/err.h"
#include "base/progress.h"
#include "driver/cuda.h"
#include "driver/cuda_info.h"
#include "memory/checksum.h"
#include "memory/dtype.h"
#include "memory/scatter.h"
#include "memory/slab.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DEVICE_IPC_NBYTES = 64, /* of a memory or event handle */
    DEVICE_ALIGN = 256,     /* what cuMemAlloc guarantees */
    DEVICE_NAME_MAX = 16    /* "cuda:63" */
};

struct device;

/* device_new - retain the context, make the stream, load the kernels if there are any.
 * @cu     borrowed, loaded and initialized; outlives the device
 * @about  copied
 * Threads: one. Blocks: about 0.2 s. Errors: ERR_CUDA, ERR_NO_MEMORY. */
int device_new(struct device **out, const struct cu_api *cu, const struct cuda_device *about,
               struct err *e);

/* device_free - every batch and slab must be back; accepts NULL. */
void device_free(struct device *d);

const struct cuda_device *device_about(const struct device *d);
const char *device_name(const struct device *d); /* "cuda:0" */

/* device_has_kernels - are checksums computed on the GPU, while copying, and few elements changed
 * there? Otherwise on the host. */
bool device_has_kernels(const struct device *d);

/* device_room - free and total bytes of the GPU, now. Errors: ERR_CUDA. */
int device_room(struct device *d, uint64_t *nbytes_free, uint64_t *nbytes_total, struct err *e);

/* device_check - is the context alive? An illegal access or a hardware fault destroys the context
 * and its memory, and every later call fails. Never blocks. Errors: ERR_CUDA. */
int device_check(struct device *d, struct err *e);

/* Memory for slab pools: the GPU's, and page-locked host memory, to which the GPU copies at full
 * speed. The pool must be freed before the device. */
struct slab_memory device_memory(struct device *d);
struct slab_memory device_pinned_memory(struct device *d);

/* device_export - the CUDA IPC handle of the allocation of ours that contains `addr`.
 * @offset  of addr in the allocation, may be NULL
 * Errors: ERR_CUDA. */
int device_export(struct device *d, uint64_t addr, uint8_t handle[DEVICE_IPC_NBYTES],
                  uint64_t *offset, struct err *e);

/* device_import - map another process's allocation. Every success needs one device_unimport. The
 * caller must not open the same handle twice in one context.
 * @nbytes  its size
 * Errors: ERR_UNREADABLE (the driver refuses the handle), ERR_CUDA; the message has the usual
 * cause: the exporter has exited, the handle is our own or from another host. device_unimport
 * cannot fail (a failure is logged). */
int device_import(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES], uint64_t *addr,
                  uint64_t *nbytes, struct err *e);
void device_unimport(struct device *d, uint64_t addr);

/* A trainer's event: open, query, close. device_event_passed returns 1 if it has happened, 0 if not
 * yet, -1 for ERR_CUDA. Never blocks. Errors of opening: ERR_UNREADABLE, ERR_CUDA,
 * ERR_NO_MEMORY. */
struct device_event;
int device_event_open(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES],
                      struct device_event **out, struct err *e);
int device_event_passed(struct device *d, struct device_event *ev, struct err *e);
void device_event_close(struct device *d, struct device_event *ev); /* accepts NULL */

/* device_can_reach - can this GPU read the memory of `other` (NULL or itself: yes)? */
bool device_can_reach(const struct device *d, const struct cuda_device *other);

/* For a thread that uses the GPU through another library (NCCL). device_enter makes the device's
 * context current for the thread until device_leave. device_stream_new makes a stream that does not
 * synchronize with any other. device_api is the driver's call table. Errors: ERR_CUDA. */
int device_enter(const struct device *d, struct err *e);
void device_leave(const struct device *d);
int device_stream_new(const struct device *d, CUstream *out, struct err *e); /* in the context */
void device_stream_free(const struct device *d, CUstream stream); /* there too; waits for nothing */
const struct cu_api *device_api(const struct device *d);

/* Blocking copies and sums, for the few bytes that no batch moves. Threads: any. They do not wait
 * for queued work: the caller must have seen its batch done. Errors: ERR_CUDA; device_sum also
 * ERR_NO_MEMORY. */
int device_read(struct device *d, void *dst, uint64_t src, uint64_t nbytes, struct err *e);
int device_write(struct device *d, uint64_t dst, const void *src, uint64_t nbytes, struct err *e);
int device_sum(struct device *d, uint64_t addr, uint64_t nbytes, struct checksum *out,
               struct err *e);

/* A piece of a copy between addresses that the GPU can access. src == dst: only summed. */
struct device_piece {
    uint64_t src, dst, nbytes;
    enum dtype dtype; /* of its elements (whole ones), which are checked for numbers that are not
                         finite while they are summed; DTYPE_NONE: not checked */
};

/* The result for a piece. */
struct device_made {
    struct checksum sum;
    bool suspect; /* it may contain a number that is not finite, or could not be checked while
                     copying: the caller must check. False: it contains none, or no check was
                     requested. */
    bool refused; /* of device_batch_scatter: the piece's positions are beyond its units, not
                     ascending, or have not as many values. Its bytes then mean nothing */
};

/* A batch: copies queued together, and the sums of the copied bytes. Used by one thread. */
struct device_batch;

/* Errors: ERR_CUDA, ERR_NO_MEMORY. */
int device_batch_new(struct device *d, struct device_batch **out, struct err *e);

/* device_batch_copy - queue the pieces. A few are copied by the driver's copies; many, or summed
 * ones, by one kernel if there are kernels. The caller has merged adjacent pieces.
 * @pieces  [n], borrowed during the call
 * @made    NULL, or [n]: also sum each piece's bytes at dst, and check for numbers that are not
 *          finite. Must stay valid until the batch is done: it is written by device_batch_wait, or
 *          by device_batch_poll when that returns 1
 * No piece may write what another of the same call reads or writes.
 * Errors: ERR_CUDA, ERR_NO_MEMORY. Earlier work stays queued, and some of this call's may be. */
int device_batch_copy(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                      struct device_made *made, struct err *e);

/* device_batch_scatter - queue copies of which few units are changed, behind everything queued
 * before. Only if device_has_kernels.
 * @pieces  [n], borrowed during the call, which numbers their tiles and runs
 * @made    [n], as in device_batch_copy: of the changed bytes
 * No piece may write what another of the same call reads or writes.
 * Errors: ERR_CUDA, ERR_NO_MEMORY. Earlier work stays queued, and some of this call's may be. */
int device_batch_scatter(struct device_batch *b, struct scatter_piece *pieces, uint32_t n,
                         struct device_made *made, struct err *e);

/* Queue a copy between this GPU and host memory, behind everything queued before. The call blocks
 * if the host memory is not page-locked. */
int device_batch_to_host(struct device_batch *b, void *dst, uint64_t src, uint64_t nbytes,
                         struct err *e);
int device_batch_from_host(struct device_batch *b, uint64_t dst, const void *src, uint64_t nbytes,
                           struct err *e);

/* device_batch_poll - returns 1 if everything queued so far is done and the sums are written, 0 if
 * not yet, -1 for ERR_CUDA. Without kernels each call sums up to 4 MiB of the bytes that have
 * arrived.
 * device_batch_wait - wait for the same, until p's deadline or stop.
 * Errors of waiting: ERR_CUDA, ERR_TIMEOUT, ERR_CONFLICT. The copies continue after an error: only
 * device_batch_free ensures that nothing writes any more. */
int device_batch_poll(struct device_batch *b, struct err *e);
int device_batch_wait(struct device_batch *b, const struct progress *p, struct err *e);

/* device_batch_free - waits until the GPU has finished the batch; accepts NULL. */
void device_batch_free(struct device_batch *b);

#endif
