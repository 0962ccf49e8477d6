/* Which GPU's bucket feeds which rank of the store. */
#ifndef BATON_HANDLERS_SOURCE_GPU_MATCH_H
#define BATON_HANDLERS_SOURCE_GPU_MATCH_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"

#include <stdbool.h>
#include <stdint.h>

/* Can a rank's GPU read the memory of another one? */
enum gpu_reach {
    GPU_NOT_VISIBLE,    /* this machine shows no such GPU */
    GPU_NO_PEER_ACCESS, /* it does, but there is no way between the two */
    GPU_REACHABLE
};

/* The server's side. */
struct gpu_match_ranks {
    uint32_t n;
    const char *const *uuids; /* [n], with or without "GPU-" or "MIG-", in either case */
    enum gpu_reach (*reach)(void *arg, uint32_t rank, const char *uuid);
    void *arg;
};

/* gpu_match - for each rank the bucket of its own GPU; without one, the bucket of the only GPU
 * there is, if the rank's GPU can read it (the copy then goes from GPU to GPU). With `sharded` a
 * rank may go without, and one GPU that is a rank itself feeds only that one: a shard is meant for
 * whom it is addressed to.
 * @fed    [ranks->n], NULL for a rank that gets nothing; points into h->gpus; written on success
 *         only
 * @field  the handles' JSON pointer
 *
 * Threads: any. Pure but for ranks->reach.
 * Errors:  ERR_BAD_REQUEST  a rank goes without (sharded: all do); both sides are in the message.
 */
int gpu_match(const struct ipc_gpu **rank_gpus, const struct gpu_match_ranks *ranks,
              const struct ipc_handles *h, bool sharded, const char *field, struct err *e);

/* gpu_list_text - UUIDs for a message: as many as fit, how many more there are. Returns out.
 * @at  the i-th of them */
const char *gpu_list_text(char *out, size_t cap, uint32_t n,
                          const char *(*at)(const void *arg, uint32_t i), const void *arg);

/* gpu_match_is_rank - is it the GPU of one of the ranks?
 * @uuid  as ipc_uuid_parse makes it */
bool gpu_match_is_rank(const struct gpu_match_ranks *ranks, const char *uuid);

#endif
