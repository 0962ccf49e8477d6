/* One rank of a trainer's NCCL group: a GPU, a communicator, a stream, and all that is done there.
 *
 * Everything here runs on the one thread that owns the rank, and nothing waits but by looking again
 * and again, at the communicator, the stream and `give_up`: what NCCL offers to wait with has no
 * deadline. An event is recorded only when NCCL says that the collective is on the stream, since
 * before that it would be early. Then the next one may be entered, long before the first has ended:
 * the GPU goes from one to the other by itself.
 *
 * What returns int: 0 done; 1 given up, because it was told to, with *e untouched; -1 failed. After
 * either of the last two the communicator is good for communicator_abort alone. */
#ifndef BATON_TRANSPORT_NCCL_COMMUNICATOR_H
#define BATON_TRANSPORT_NCCL_COMMUNICATOR_H

#include "base/err.h"
#include "driver/nccl.h"
#include "memory/device.h"
#include "transport/nccl/nccl_id.h"
#include "weights/source.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct communicator {
    const struct nccl_api *nccl; /* borrowed; these five are the caller's to fill */
    struct device *device;       /* borrowed */
    const atomic_bool *give_up;  /* borrowed */
    int rank, world_size;

    ncclComm_t comm;                   /* owned; NULL: none, or aborted */
    CUstream stream;                   /* owned; NULL: not opened */
    CUevent landed[SOURCE_POSTED_MAX]; /* owned; behind each collective that was entered, in turn */
    uint64_t n_entered, n_landed;      /* collectives: on the stream, and over; ever */
    CUdeviceptr one;                   /* owned; a float32 for the warm-up; 0: none */
};

/* communicator_open - the device's context for this thread, a stream, events; with warm_up the
 * float32 for it, so that memory is missed before a trainer waits. Errors: ERR_CUDA; nothing is
 * open then. */
int communicator_open(struct communicator *r, bool warm_up, struct err *e);

/* communicator_join - enter the communicator of `id`, in the order in which the peers come.
 * Errors: ERR_NCCL. */
int communicator_join(struct communicator *r, const uint8_t id[NCCL_ID_NBYTES], struct err *e);

/* communicator_warm_up - take part in an all-reduce (sum) of one float32, with 0; once.
 * Errors: ERR_NCCL, ERR_CUDA. */
int communicator_warm_up(struct communicator *r, struct err *e);

/* communicator_enter - enter a broadcast of rank 0, behind those that were entered; 0 when it is on
 * the stream, which for the first one may take as long as the slowest peer. 0 bytes are no
 * broadcast, and over when all before them is. At most SOURCE_POSTED_MAX may be entered and not
 * over. Errors: ERR_NCCL, ERR_CUDA. */
int communicator_enter(struct communicator *r, uint64_t dst, uint64_t nbytes, struct err *e);

/* communicator_look - does not wait: brings n_landed up to date; the bytes of so many are there.
 * Errors: ERR_NCCL, ERR_CUDA, of any that was entered. */
int communicator_look(struct communicator *r, struct err *e);

/* communicator_abort - end the communicator, if there is one. May never return: NCCL's call has no
 * deadline either. Where several ranks of one communicator are in a process, kernels of this one
 * may run until the last of them has been aborted. A failure is logged. */
void communicator_abort(struct communicator *r);

/* communicator_is_quiet - after every rank of the process was aborted: is the stream done? Of a
 * dead context, which runs nothing, it is. */
bool communicator_is_quiet(const struct communicator *r);

/* communicator_close - when it is quiet; accepts one that is not open. */
void communicator_close(struct communicator *r);

/* communicator_pause - between two looks at something that began at since_us: at first nothing,
 * then a small part of the time that it has taken so far, then steps of 1 ms at most, and of 10 ms
 * when it has taken a second. */
void communicator_pause(uint64_t since_us);

#endif
