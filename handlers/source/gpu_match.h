/* Assignment of a trainer's GPUs to the ranks of the store: from which GPU's bucket each rank
 * reads. */
#ifndef BATON_HANDLERS_SOURCE_GPU_MATCH_H
#define BATON_HANDLERS_SOURCE_GPU_MATCH_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"

#include <stdbool.h>
#include <stdint.h>

/* Can a rank's GPU read the memory of another one? */
enum gpu_reach {
    GPU_NOT_VISIBLE,    /* the driver of this machine shows no such GPU */
    GPU_NO_PEER_ACCESS, /* it does, but this rank's GPU cannot read its memory */
    GPU_REACHABLE
};

/* The server's side. */
struct gpu_match_ranks {
    uint32_t n;
    const char *const *uuids; /* [n], with or without "GPU-" or "MIG-", in either case */
    enum gpu_reach (*reach)(void *arg, uint32_t rank, const char *uuid);
    void *arg;
};

/* gpu_match - for each rank choose the bucket of its own GPU; if there is none, the bucket of
 * the only GPU in the request, if the rank's GPU can read it (the copy then goes from GPU to
 * GPU). With `sharded` a rank may get nothing, and a bucket of a rank's own GPU feeds only that
 * rank: a shard is addressed to one rank.
 * @rank_gpus  [ranks->n], NULL for a rank that gets nothing; points into h->gpus; written on
 *             success only
 * @field      the handles' JSON pointer
 *
 * Threads: any. Pure except for ranks->reach.
 * Errors:  ERR_BAD_REQUEST  a rank gets nothing (sharded: all ranks do); the message names the
 *          GPUs of both sides */
int gpu_match(const struct ipc_gpu **rank_gpus, const struct gpu_match_ranks *ranks,
              const struct ipc_handles *h, bool sharded, const char *field, struct err *e);

/* gpu_list_text - UUIDs for a message: as many as fit, and the number of the others. Returns
 * out.
 * @at  returns the i-th UUID */
const char *gpu_list_text(char *out, size_t cap, uint32_t n,
                          const char *(*at)(const void *arg, uint32_t i), const void *arg);

/* gpu_match_is_rank - is this the GPU of one of the ranks?
 * @uuid  as ipc_uuid_parse makes it */
bool gpu_match_is_rank(const struct gpu_match_ranks *ranks, const char *uuid);

#endif
