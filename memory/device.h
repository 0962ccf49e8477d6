/* A GPU that holds a rank of the weights: its context, its memory, and the copies made there.
 *
 * The context is the device's primary one, retained once and pushed for each call, so any thread
 * may call. Copies of updates go to one stream of the device's own, in the order in which they are
 * queued, and never wait there for anybody else's event: a stream that waited for a trainer that
 * died would hold up every copy behind it. */
#ifndef BATON_MEMORY_DEVICE_H
#define BATON_MEMORY_DEVICE_H

#include "base/err.h"
#include "base/progress.h"
#include "driver/cuda.h"
#include "driver/cuda_info.h"
#include "memory/checksum.h"
#include "memory/dtype.h"
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

/* device_has_kernels - are sums made on the GPU, in the pass that copies? Otherwise on the host. */
bool device_has_kernels(const struct device *d);

/* device_room - free and total bytes of the GPU, now. Errors: ERR_CUDA. */
int device_room(struct device *d, uint64_t *nbytes_free, uint64_t *nbytes_total, struct err *e);

/* device_check - is its context alive? What ends one (an illegal access, broken hardware) takes its
 * memory along, and every call says so from then on. Never blocks. Errors: ERR_CUDA. */
int device_check(struct device *d, struct err *e);

/* What slab pools take their memory from: the GPU's, and page-locked host memory, which the GPU
 * copies to at full speed. The pool must be freed before the device. */
struct slab_memory device_memory(struct device *d);
struct slab_memory device_pinned_memory(struct device *d);

/* device_export - the CUDA IPC handle of an allocation of ours; `addr` may lie inside it.
 * @offset  of addr in the allocation, may be NULL
 * Errors: ERR_CUDA. */
int device_export(struct device *d, uint64_t addr, uint8_t handle[DEVICE_IPC_NBYTES],
                  uint64_t *offset, struct err *e);

/* device_import - map another process's allocation. @nbytes its size. Every success is undone by
 * one device_unimport; opening the same handle twice in one context is for the caller to avoid.
 * Errors: ERR_UNREADABLE (the driver refuses the handle), ERR_CUDA; with what usually is the
 * reason: exporter gone, our own handle, not on this host. device_unimport cannot fail (a failure
 * is logged). */
int device_import(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES], uint64_t *addr,
                  uint64_t *nbytes, struct err *e);
void device_unimport(struct device *d, uint64_t addr);

/* A trainer's event: opened, asked, closed. device_event_passed: 1 it has happened, 0 not yet,
 * -1 ERR_CUDA. Never blocks. Opening: ERR_UNREADABLE, ERR_CUDA, ERR_NO_MEMORY. */
struct device_event;
int device_event_open(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES],
                      struct device_event **out, struct err *e);
int device_event_passed(struct device *d, struct device_event *ev, struct err *e);
void device_event_close(struct device *d, struct device_event *ev); /* accepts NULL */

/* device_can_reach - can this GPU read the memory of `other` (NULL or itself: yes)? */
bool device_can_reach(const struct device *d, const struct cuda_device *other);

/* For a thread that works on the GPU with another library (NCCL): makes the device's context the
 * thread's until device_leave; and a stream of its own there, without ties to any other. The call
 * table is the driver's. Errors: ERR_CUDA. */
int device_enter(const struct device *d, struct err *e);
void device_leave(const struct device *d);
int device_stream_new(const struct device *d, CUstream *out, struct err *e); /* in the context */
void device_stream_free(const struct device *d, CUstream stream); /* there too; waits for nothing */
const struct cu_api *device_api(const struct device *d);

/* Blocking copies and sums, for the few bytes that a batch does not move. Threads: any. They wait
 * for nothing that is queued: the caller has seen its batch done. Errors: ERR_CUDA; device_sum also
 * ERR_NO_MEMORY. */
int device_read(struct device *d, void *dst, uint64_t src, uint64_t nbytes, struct err *e);
int device_write(struct device *d, uint64_t dst, const void *src, uint64_t nbytes, struct err *e);
int device_sum(struct device *d, uint64_t addr, uint64_t nbytes, struct checksum *out,
               struct err *e);

/* A piece of a copy between addresses that the GPU reaches. src == dst: only summed. */
struct device_piece {
    uint64_t src, dst, nbytes;
    enum dtype dtype; /* of its elements, whole ones, to be looked at while they are summed;
                         DTYPE_NONE: nobody asks */
};

/* What is made of the bytes of a piece. */
struct device_made {
    struct checksum sum;
    bool suspect; /* it may hold a number that is not finite: look. Also where it could not be seen
                     in the pass that copies. False: it holds none, or nobody asked. */
};

/* A batch: copies queued together, and the sums of what they brought. Used by one thread. */
struct device_batch;

/* Errors: ERR_CUDA, ERR_NO_MEMORY. */
int device_batch_new(struct device *d, struct device_batch **out, struct err *e);

/* device_batch_copy - queue the pieces. Few go by the driver's copies, many (or summed ones) by one
 * kernel where there are kernels; the caller has merged neighbours.
 * @pieces  [n], borrowed during the call
 * @made    also sum each piece's bytes at dst, and look for numbers that are not finite; NULL, or
 *          [n] that must live until the batch is done: written by device_batch_wait, or by
 *          device_batch_poll when it says done
 * No piece may write what another of the same call reads or writes.
 * Errors: ERR_CUDA, ERR_NO_MEMORY. What was queued before stays queued, and of this call some. */
int device_batch_copy(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                      struct device_made *made, struct err *e);

/* Between this GPU and host memory (page-locked, or the call blocks); after all that was queued. */
int device_batch_to_host(struct device_batch *b, void *dst, uint64_t src, uint64_t nbytes,
                         struct err *e);
int device_batch_from_host(struct device_batch *b, uint64_t dst, const void *src, uint64_t nbytes,
                           struct err *e);

/* device_batch_poll - 1 everything queued so far is done and the sums are there, 0 not yet, -1
 * ERR_CUDA. Without kernels each call sums up to 4 MiB of what has arrived.
 * device_batch_wait - the same, waited for: until p's deadline or stop.
 * Errors of waiting: ERR_CUDA, ERR_TIMEOUT, ERR_CONFLICT; the copies go on regardless: only
 * device_batch_free makes sure that nothing writes any more. */
int device_batch_poll(struct device_batch *b, struct err *e);
int device_batch_wait(struct device_batch *b, const struct progress *p, struct err *e);

/* device_batch_free - waits until the GPU has let go; accepts NULL. */
void device_batch_free(struct device_batch *b);

#endif
