/* A trainer's NCCL group, with this server's GPUs as some of its ranks.
 *
 * Each rank has a thread of its own, which owns the rank's communicator and makes every call on it,
 * including the abort: NCCL allows no second thread there. Other threads only post a request and
 * wait with a deadline. A thread that gives up sets a flag, and the owner aborts. A failure of one
 * rank ends the group for all of them: a new unique id is needed, which only the trainer can make.
 *
 * Rejected: one thread for all ranks (blocking or grouped calls of several communicators wait for
 * each other's peers), and aborting from the watchdog (it frees what the owner is using). */
#ifndef BATON_TRANSPORT_NCCL_NCCL_GROUP_H
#define BATON_TRANSPORT_NCCL_NCCL_GROUP_H

#include "base/err.h"
#include "driver/nccl.h"
#include "memory/device.h"
#include "transport/nccl/nccl_id.h"
#include "weights/source.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    NCCL_WORLD_MAX = 128, /* more need several unique ids, which torch requests in another way */
    NCCL_ABORT_TIMEOUT_US = 10 * 1000 * 1000 /* an abort that takes longer is stuck */
};

struct nccl_group;

struct nccl_group_cfg {
    const struct nccl_api *nccl;   /* borrowed; outlives the group */
    struct device *const *devices; /* [n_ranks] borrowed; they outlive the group */
    uint32_t n_ranks;              /* of this server */
    uint32_t world_size;           /* 2..NCCL_WORLD_MAX, including the trainer's ranks */
    uint32_t rank_offset;          /* of devices[0]; 1.. world_size - n_ranks */
    bool warm_up; /* an all-reduce of one float32 belongs to the join (vLLM's stateless group) */
    uint64_t abort_timeout_us; /* 0: NCCL_ABORT_TIMEOUT_US */
};

enum nccl_group_state {
    NCCL_GROUP_JOINING, /* made, or waiting for its id and for the other ranks */
    NCCL_GROUP_JOINED,
    NCCL_GROUP_FAILED, /* aborted or being aborted; the info has the cause */
    NCCL_GROUP_STUCK   /* an abort did not return in time: this process must be restarted */
};
const char *nccl_group_state_name(enum nccl_group_state state);

struct nccl_group_info {
    enum nccl_group_state state;
    uint32_t world_size, rank_offset, n_ranks;
    uint64_t nbytes_received, n_broadcasts;
    struct err error; /* why it failed; clean otherwise */
};

/* nccl_group_new - start the ranks' threads. No GPU is used yet. Threads: any, here and below,
 * unless another is named. Blocks: as nccl_sockets_enter.
 * Errors: ERR_NO_MEMORY, ERR_NCCL (no version), ERR_INTERNAL (no thread). */
int nccl_group_new(struct nccl_group **out, const struct nccl_group_cfg *cfg, struct err *e);

/* nccl_group_open - allocate each rank's resources on its GPU, so that a lack of them shows before
 * a trainer waits.
 * @p  its deadline, stop and gone are checked every 10 ms at the latest
 * Threads: any, once, before join. Blocks: for the driver's calls, or until the deadline, stop or
 * gone of `p`.
 * Errors: ERR_CUDA, ERR_TIMEOUT, ERR_CONFLICT (stopped; left), ERR_GONE; STUCK as below. After an
 *         error the group has failed. */
int nccl_group_open(struct nccl_group *g, const struct progress *p, struct err *e);

/* nccl_group_join - every rank enters the communicator of `id`; then the warm-up.
 * @p  as above
 * Threads: any, once. Blocks: until all ranks of the world have joined, or until the deadline, stop
 * or gone of `p`, and then until the aborts have finished.
 * Errors: ERR_NCCL (with both NCCL versions if NCCL reports them), ERR_TIMEOUT (names
 *         NCCL_CUMEM_ENABLE and the version as suspects), ERR_CONFLICT (stopped; left; not the
 *         first), ERR_GONE, ERR_CUDA. After an error the group has failed. */
int nccl_group_join(struct nccl_group *g, const uint8_t id[NCCL_ID_NBYTES],
                    const struct progress *p, struct err *e);

/* nccl_group_post - take part in the next broadcast from rank 0: every rank enters it as soon as it
 * has entered the earlier ones, whether or not their bytes have arrived. At most SOURCE_POSTED_MAX
 * may be posted and not received.
 * @dst  [n_ranks] addresses on the ranks' GPUs, nbytes each; copied; 0 bytes are no broadcast, as
 * in NCCL
 *
 * Threads: one at a time, here and below: the update's worker. Blocks: no; after a failure, as
 * receive does.
 * Errors: ERR_CONFLICT (not joined; has failed or was left before anything was posted), and those
 * of receive. After one nothing has been posted. */
int nccl_group_post(struct nccl_group *g, const uint64_t *dst, uint64_t nbytes, struct err *e);

/* nccl_group_receive - wait for the oldest broadcast that was posted and not received.
 * Blocks: until its bytes have arrived on every rank, or until the deadline, stop or gone of `p`,
 * and then until the aborts have finished. `p` is checked every 10 ms at the latest; its byte count
 * is not changed.
 * Errors: ERR_CONFLICT (has failed, left or stopped), ERR_TIMEOUT, ERR_GONE, ERR_NCCL, ERR_CUDA.
 *         After an error the group has failed, nothing is posted any more, and nothing writes to
 *         any dst that was posted. Or it is STUCK (ERR_NCCL, the abort's time-out after the first
 *         cause, which the message names): then every dst that was posted and not received must
 *         never be used again. Broadcasts that arrived before the failure are received first. */
int nccl_group_receive(struct nccl_group *g, const struct progress *p, struct err *e);

/* nccl_group_leave - leave by abort, at any time, also while another thread waits in join or
 * receive, which then fail with `why`. Blocks: no. Repeating is harmless; the first cause is kept.
 */
void nccl_group_leave(struct nccl_group *g, const char *why);

/* nccl_group_info - never waits. If no thread waits for an abort, the clock decides whether it is
 * reported as STUCK. */
void nccl_group_info(struct nccl_group *g, struct nccl_group_info *out);

/* nccl_group_end - leaves, and waits until nothing of it uses a device or the library any more;
 * at most until the abort's time-out after it failed. No other thread may be in a call.
 * @out  the final state: STUCK if a thread has not ended in time */
void nccl_group_end(struct nccl_group *g, struct nccl_group_info *out);

/* nccl_group_free - end the group and join the threads. Threads that have not ended in time are
 * abandoned with their memory, and use the devices and the library again when NCCL's call returns:
 * so the caller must keep both until the process ends if the state was STUCK. Accepts NULL. No
 * other thread may be in a call. */
void nccl_group_free(struct nccl_group *g);

/* nccl_source_new - a source over the group: buckets as the sender cuts them.
 * @tensor_list  a reference is taken
 * @chunks       of the tensor list, moved in, also on failure: where each broadcast ends
 *               (packed_chunks_init; packed_chunks_each for one broadcast for each tensor)
 * @group        borrowed: the caller keeps it until the source is closed
 * Errors: ERR_NO_MEMORY. */
struct packed_chunks;
int nccl_source_new(struct source **out, struct nccl_group *group, struct tensor_list *tensor_list,
                    struct packed_chunks *chunks, struct err *e);

#endif
