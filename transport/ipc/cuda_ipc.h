/* Weights on a trainer's GPUs, read through CUDA IPC handles: mapped here, copied by the update's
 * worker, and released as the exporter expects.
 *
 * The buckets of one update share a struct source_scope: mappings, by device and the 64 bytes of
 * the handle, so that a buffer which the trainer refills is mapped once; and exports, so that
 * torch's counter is decremented exactly once for each, after the last copy that reads it. Nothing
 * in the scope outlives the update: a restarted trainer's handles are opened again.
 *
 * A source that has joined decrements the counters of its exports at release, also after a failure:
 * otherwise the trainer would keep that memory until it exits. A source that is closed without
 * having joined, or whose join failed, has consumed nothing and leaves the counters unchanged, as
 * torch's own receiver does.
 *
 * If a trainer dies while its memory is read, a bucket may be incomplete. The names of its counters
 * contain its process number: if that process is visible from here, map and release detect that it
 * has ended and fail with ERR_GONE. If it is in another pid namespace, or has no counter, only
 * checksums detect the loss. */
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
    IPC_MAPPINGS_KEPT = 64  /* unused mappings kept for each update and device. Beyond that, the one
                               unused longest is closed when a source is released. Closing waits
                               for everything queued on the GPU, so the rest is closed at the end
                               of the update */
};

/* The source of a bucket's bytes for one rank. */
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
    struct ipc_bucket *buckets;              /* [n_buckets], owned, moved in also on failure */
    uint32_t n_buckets;
    struct cuda_ipc_stats *stats; /* borrowed; outlives the source and its scope */
};

/* For /metrics; relaxed: gauges and counters. */
struct cuda_ipc_stats {
    atomic_uint_fast64_t n_opened, n_closed, n_mapped;
    atomic_uint_fast64_t n_exports_released; /* counters decremented */
    atomic_uint_fast64_t n_exports_stuck;    /* exports whose counter could not be opened */
};

/* cuda_ipc_source_new - a source (map, at, release) over handles that the caller has checked
 * against the tensor lists: the runs of a rank ascend and do not overlap, and each has a tensor; a
 * set that is not packed has a handle for each tensor of the run. Nothing is opened yet.
 *
 * Only exports of GPUs that are assigned to a rank are counted; other servers count the others.
 * join may also fail with ERR_TOO_LARGE (more counter objects than IPC_COUNTERS_MAX). map may fail
 * with ERR_BAD_REQUEST, naming the bucket, its GPU and both sizes, if the mapped memory is shorter
 * than its handle describes.
 *
 * Errors: ERR_NO_MEMORY. */
int cuda_ipc_source_new(struct source **out, const struct cuda_ipc_cfg *cfg, struct err *e);

void ipc_bucket_fini(struct ipc_bucket *b); /* accepts a zeroed one */

#endif
