/* A request with CUDA IPC handles while it is read. Steps: ipc_request_read, _match, _merge,
 * _validate; shared by ipc_request.c, buckets_read.c, buckets_merge.c and handles_validate.c. */
#ifndef BATON_HANDLERS_SOURCE_IPC_REQUEST_H
#define BATON_HANDLERS_SOURCE_IPC_REQUEST_H

#include "base/err.h"
#include "handlers/source/gpu_match.h"
#include "transport/ipc/cuda_ipc.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct app_weights;
struct body_columns;

enum {
    IPC_AT_MAX = sizeof(((struct chunk_origin *)0)->at),
    IPC_BUCKET_AT_MAX = sizeof "/buckets/4095",
    IPC_RANKS_MAX = STORE_DEVICES_MAX,
    IPC_ANY_RANK = IPC_RANKS_MAX
};
_Static_assert((int)IPC_BUCKETS_MAX == 4096, "the pointer of the last has room");
_Static_assert((int)IPC_BUCKET_AT_MAX + (int)sizeof "/metadata_by_gpu/GPU-" + (int)IPC_UUID_LEN <=
                   (int)IPC_AT_MAX + 1,
               "so has that of a list in it");

/* A tensor list in the request: an object with columns or a plan_id. */
struct ipc_list {
    const json_t *object;        /* borrowed */
    char at[IPC_AT_MAX];         /* its JSON pointer */
    char uuid[IPC_UUID_LEN + 1]; /* the GPU whose bucket it describes; "": every GPU's */
    bool used;                   /* by a rank of this server */
};

/* The JSON of one bucket. Its handles are in the struct ipc_bucket with the same index. */
struct ipc_bucket_json {
    const json_t *object;       /* borrowed; has all members of the bucket */
    char at[IPC_BUCKET_AT_MAX]; /* its JSON pointer: "" or "/buckets/<i>" */
    char field[IPC_AT_MAX];     /* JSON pointer of the handles */
    uint32_t rank;          /* the rank that reads it; IPC_ANY_RANK: those whose GPUs it names */
    const char *per_gpu;    /* the member that contains its lists; NULL: one list for all GPUs */
    struct ipc_list *lists; /* owned; [n_lists] */
    uint32_t n_lists;
};

struct ipc_request {
    const struct app_weights *weights; /* borrowed */
    const struct body_columns *text;   /* borrowed; NULL: all columns are in the tree */
    bool sharded;
    uint32_t n_buckets;
    struct ipc_bucket_json *parts; /* owned; [n_parts] */
    struct ipc_bucket *buckets;    /* owned; [n_parts] */

    /* The ranks. Without GPUs: the GPUs that the handles name, so that the request can be
     * checked all the same. */
    uint32_t n_ranks;
    char uuids[IPC_RANKS_MAX][IPC_UUID_LEN + 1];
    const struct ipc_list **lists; /* owned; [n_parts][n_ranks]; NULL: nothing for that rank */

    /* What each rank receives. ranks_equal: all receive the same, and only [0] is set. */
    bool ranks_equal;
    struct chunk_rank *tensor_lists; /* owned; [n_ranks] */
    struct chunk_origin *origins;    /* owned; NULL: errors need no other pointer */
    uint32_t n_origins;
};

void ipc_request_fini(struct ipc_request *q); /* accepts a zeroed one */

static inline const struct ipc_list *ipc_rank_list(const struct ipc_request *q, uint32_t part,
                                                   uint32_t rank)
{
    return q->lists[(size_t)part * q->n_ranks + rank];
}

/* buckets_read.c */

/* ipc_own_uuids - the GPUs of the server's ranks, and how many ranks there are. */
uint32_t ipc_own_uuids(char uuids[][IPC_UUID_LEN + 1], const struct app_weights *weights);

/* ipc_request_read - read the buckets, their handles, and find their lists; nothing is matched
 * yet.
 * @body  borrowed; outlives q
 * Errors: ERR_BAD_REQUEST at the member; ERR_TOO_LARGE and ERR_NO_MEMORY of the readers.
 *         ipc_request_fini is needed also after an error. */
int ipc_request_read(struct ipc_request *q, const struct app_weights *weights, const json_t *body,
                     const struct body_columns *text, bool sharded, struct err *e);

/* ipc_gpu_reach - can this rank of the server read that GPU's memory? For gpu_match_ranks.reach.
 * @weights  a struct app_weights that has GPUs. Threads: any. Blocks: no. */
enum gpu_reach ipc_gpu_reach(void *weights, uint32_t rank, const char *uuid);

/* ipc_request_match - choose the GPU's handle and the list for each rank.
 * Errors: as gpu_match; ERR_BAD_REQUEST at per_gpu (no list for a GPU that is to be read), at
 *         rank (there is no such rank); those of tensor_columns_check for lists that no rank
 *         uses. */
int ipc_request_match(struct ipc_request *q, struct err *e);

/* buckets_merge.c */

/* ipc_request_merge - merge the lists of all buckets into one tensor list for each rank, and
 * read the checksums. Errors: as tensor_list_resolve; ERR_BAD_REQUEST at /checksums or an
 * element of it. */
int ipc_request_merge(struct ipc_request *q, struct err *e);

/* handles_validate.c */

/* ipc_request_validate - check each bucket against its tensors: `packed`, `tensor_sizes`, number
 * of handles, dtypes, shapes, length. Errors: ERR_BAD_REQUEST. */
int ipc_request_validate(const struct ipc_request *q, struct err *e);

#endif
