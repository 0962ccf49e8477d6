/* Weights that lie on a trainer's GPUs, reached through CUDA IPC handles: mapped here, copied by
 * the update's worker, and given back as the exporter expects.
 *
 * What the buckets of one update share (struct source_scope): mappings, by device and the 64 bytes
 * of the handle, so that a trainer which refills one buffer is mapped once; and exports, so that
 * torch's counter goes down exactly once for each, after the last copy that reads it. Nothing of it
 * outlives the update: a restarted trainer's handles are opened afresh.
 *
 * A source that has joined counts its exports down at release, whatever became of it, or the
 * trainer would keep that memory until it exits. One that is closed without having joined, or whose
 * join failed, has consumed nothing and leaves the counters alone, as torch's own receiver would.
 *
 * A trainer that dies while its memory is read may leave half of a bucket there. Its process number
 * is in its counters' name: where it is visible from here, map and release see that it has ended
 * and say ERR_GONE. In another pid namespace, or without a counter, only checksums tell. */
#ifndef BATON_TRANSPORT_IPC_CUDA_IPC_H
#define BATON_TRANSPORT_IPC_CUDA_IPC_H

#include "base/err.h"
#include "memory/device.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    IPC_BUCKETS_MAX = 4096, /* of one request */
    IPC_MAPPINGS_KEPT = 64  /* of an update and device, unused ones beyond those in use: of more,
                               the one unused longest is closed, as a source is released. Closing
                               waits for everything queued on the GPU, so the rest is closed at
                               the update's end */
};

/* Where a bucket's bytes come from for one rank. */
struct ipc_bucket_rank {
    const struct ipc_gpu *gpu; /* in the bucket's handles; NULL: this rank gets nothing of it */
};

/* One bucket: a run of tensors of each rank's tensor list. */
struct ipc_bucket {
    struct ipc_handles handles;    /* moved in; packed, or one for each tensor of the run */
    struct ipc_bucket_rank *ranks; /* moved in, owned; [n_ranks] */
    uint32_t *first;               /* moved in, owned; [n_ranks] in that rank's tensor list */
    uint32_t *n_tensors;           /* moved in, owned; [n_ranks] */
};

struct cuda_ipc_cfg {
    struct device *const *devices; /* [n_ranks]; borrowed; outlive the source and its scope */
    uint32_t n_ranks;
    struct tensor_list *const *tensor_lists; /* [n_ranks]; a reference to each is taken; NULL for a
                                  rank that gets nothing */
    struct ipc_bucket *buckets;    /* [n_buckets], owned, moved in also on failure */
    uint32_t n_buckets;
    struct cuda_ipc_stats *stats;  /* borrowed; outlives the source and its scope */
};

/* For /metrics; relaxed: gauges and counters. */
struct cuda_ipc_stats {
    atomic_uint_fast64_t n_opened, n_closed, n_mapped;
    atomic_uint_fast64_t n_exports_released; /* counters taken down */
    atomic_uint_fast64_t n_exports_stuck;    /* whose counter could not be reached */
};

/* cuda_ipc_source_new - a source (map, at, release) over handles that have been judged against the
 * tensor lists: the runs of a rank ascend and do not overlap, each has a tensor; a set that is not
 * packed has a handle for each tensor of the run. Nothing is opened yet.
 *
 * Exports are those of the GPUs that ranks are given: the others' are for other servers to count.
 * join can also say ERR_TOO_LARGE (counter objects beyond any use), map ERR_BAD_REQUEST with the
 * bucket, its GPU and both numbers, when the mapped memory is shorter than a handle says.
 *
 * Errors: ERR_NO_MEMORY. */
int cuda_ipc_source_new(struct source **out, const struct cuda_ipc_cfg *cfg, struct err *e);

void ipc_bucket_fini(struct ipc_bucket *b); /* accepts a zeroed one */

#endif
