/* Which GPU's bucket feeds which rank of the store. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_MATCH_H
#define BATON_HANDLERS_UPDATE_UPDATE_MATCH_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"

#include <stdbool.h>
#include <stdint.h>

/* Can a rank's GPU read the memory of another one? */
enum match_reach {
    MATCH_UNSEEN, /* this machine shows no such GPU */
    MATCH_NO,     /* it does, but there is no way between the two */
    MATCH_YES
};

/* The server's side. */
struct match_ranks {
    uint32_t n;
    const char *const *uuids; /* [n], with or without "GPU-" or "MIG-", in either case */
    enum match_reach (*reach)(void *arg, uint32_t rank, const char *uuid);
    void *arg;
};

/* match_gpus - for each rank the bucket of its own GPU; without one, the bucket of the only GPU
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
int match_gpus(const struct ipc_gpu **fed, const struct match_ranks *ranks,
               const struct ipc_handles *h, bool sharded, const char *field, struct err *e);

/* match_list - UUIDs for a message: as many as fit, how many more there are. Returns out.
 * @at  the i-th of them */
const char *match_list(char *out, size_t cap, uint32_t n,
                       const char *(*at)(const void *arg, uint32_t i), const void *arg);

/* match_is_rank - is it the GPU of one of the ranks?
 * @uuid  as ipc_uuid_parse makes it */
bool match_is_rank(const struct match_ranks *ranks, const char *uuid);

#endif
