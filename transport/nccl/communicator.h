/* One rank of a trainer's NCCL group: a GPU, a communicator, a stream, and the operations on them.
 *
 * Everything here runs on the one thread that owns the rank. It waits only by polling the
 * communicator, the stream and `give_up`, because NCCL's own waiting calls have no deadline. An
 * event is recorded only after NCCL reports that the collective is on the stream: before that it
 * would fire too early. The next collective may then be entered while the first is still running:
 * the GPU executes them in order.
 *
 * Functions that return int: 0 done; 1 ended because `give_up` was set, with *e untouched; -1
 * failed. After 1 or -1 only communicator_abort may be called on the communicator. */
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
    const struct nccl_api *nccl; /* borrowed; the caller fills the members down to the blank line */
    struct device *device;       /* borrowed */
    const atomic_bool *give_up;  /* borrowed */
    int rank, world_size;

    ncclComm_t comm;                   /* owned; NULL: none, or aborted */
    CUstream stream;                   /* owned; NULL: not opened */
    CUevent landed[SOURCE_POSTED_MAX]; /* owned; a ring of events behind entered collectives */
    uint64_t n_entered, n_landed;      /* collectives put on the stream, and finished; ever */
    CUdeviceptr one;                   /* owned; a float32 for the warm-up; 0: none */
};

/* communicator_open - enter the device's context on this thread, make the stream and the events;
 * with `warm_up` also allocate its float32, so that a lack of memory shows before a trainer waits.
 * Errors: ERR_CUDA; nothing is open then. */
int communicator_open(struct communicator *r, bool warm_up, struct err *e);

/* communicator_join - enter the communicator of `id`; done when all peers have entered, in any
 * order.
 * Errors: ERR_NCCL. */
int communicator_join(struct communicator *r, const uint8_t id[NCCL_ID_NBYTES], struct err *e);

/* communicator_warm_up - take part in an all-reduce (sum) of one float32, with 0; once.
 * Errors: ERR_NCCL, ERR_CUDA. */
int communicator_warm_up(struct communicator *r, struct err *e);

/* communicator_enter - enter a broadcast of rank 0, behind those entered before. Returns 0 when it
 * is on the stream, which for the first one may take as long as the slowest peer. 0 bytes are no
 * broadcast; it counts as finished when all before it are. At most SOURCE_POSTED_MAX may be entered
 * and not finished. Errors: ERR_NCCL, ERR_CUDA. */
int communicator_enter(struct communicator *r, uint64_t dst, uint64_t nbytes, struct err *e);

/* communicator_update - update n_landed, without waiting: the bytes of that many broadcasts have
 * arrived. Errors: ERR_NCCL, ERR_CUDA, of any broadcast that was entered. */
int communicator_update(struct communicator *r, struct err *e);

/* communicator_abort - abort the communicator, if there is one. May never return, because NCCL's
 * call has no deadline. If this process has several ranks of one communicator, kernels of this rank
 * may run until the last of them has been aborted. A failure is logged. */
void communicator_abort(struct communicator *r);

/* communicator_is_quiet - is the stream done? Call it after every rank of the process was aborted.
 * True for a destroyed context, which runs nothing. */
bool communicator_is_quiet(const struct communicator *r);

/* communicator_close - when it is quiet; accepts one that is not open. */
void communicator_close(struct communicator *r);

/* communicator_pause - wait between two polls of an operation that began at since_us: at first not
 * at all, then a small part of the time that has passed, at most 1 ms, or 10 ms after a second. */
void communicator_pause(uint64_t since_us);

#endif
