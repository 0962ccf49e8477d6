/* CUDA IPC handles in a request: they are read, matched with the GPUs that hold this server's
 * weights, checked against their tensors, and then made a source. A server without GPUs does all
 * but the last step, so that it reports the same mistakes. */
#include "handlers/source/ipc_request.h"

#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/source/source_json.h"

#include <stdlib.h>

static int ipc_refuse_no_gpu(const struct ipc_request *q, struct err *e)
{
    const struct cuda_info *cuda = q->weights->cuda;

    if (!cuda->available)
        return err_set(e, ERR_NO_GPU, q->parts[0].field,
                       "the handles are well formed (of %u GPUs, %s first), but this server has no "
                       "CUDA: %.200s; send the tensors by shm, path or as the body",
                       (unsigned)q->n_ranks, q->uuids[0], cuda->reason);
    return err_set(
        e, ERR_NO_GPU, q->parts[0].field,
        "the handles are well formed (of %u GPUs, %s first), but this server was started "
        "with --device cpu, which keeps its weights in host memory; start it with "
        "--device cuda:0 (it has %s there), or send the tensors by shm, path or as the "
        "body",
        (unsigned)q->n_ranks, q->uuids[0], cuda->devices[0].uuid);
}

static int open_ipc_source(struct source **out, struct ipc_request *q, struct err *e)
{
    struct tensor_list *tensor_lists[IPC_RANKS_MAX];
    struct cuda_ipc_cfg cfg = {
        .devices = q->weights->devices,
        .n_ranks = q->n_ranks,
        .tensor_lists = tensor_lists,
        .buckets = q->buckets,
        .n_buckets = q->n_buckets,
        .stats = q->weights->ipc_stats,
    };

    for (uint32_t r = 0; r < q->n_ranks; r++)
        tensor_lists[r] = q->tensor_lists[q->ranks_equal ? 0 : r].tensor_list;
    q->buckets = NULL; /* moved, also on failure */
    return cuda_ipc_source_new(out, &cfg, e);
}

static void move_alike(struct update_chunk *c, struct ipc_request *q)
{
    struct chunk_rank *all = &q->tensor_lists[0];

    c->tensor_list = all->tensor_list;
    c->checksums = all->checksums;
    c->has_checksum = all->has_checksum;
    *all = (struct chunk_rank){NULL};
}

static void move_ranks(struct update_chunk *c, struct ipc_request *q)
{
    c->ranks = q->tensor_lists;
    c->n_ranks = q->n_ranks;
    q->tensor_lists = NULL;
    for (uint32_t r = 0; r < q->n_ranks && c->tensor_list == NULL; r++)
        if (c->ranks[r].tensor_list != NULL)
            c->tensor_list = tensor_list_ref(c->ranks[r].tensor_list);
}

/* Errors of a list in the body itself need no other pointer. */
static void move_origins(struct update_chunk *c, struct ipc_request *q)
{
    if (q->origins[0].at[0] == '\0')
        return;
    c->origins = q->origins;
    c->n_origins = q->n_origins;
    q->origins = NULL;
}

int ipc_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                  const struct body_columns *text, bool sharded, struct err *e)
{
    struct ipc_request q;
    int rc = -1;

    if (ipc_request_read(&q, weights, body, text, sharded, e) != 0 ||
        ipc_request_match(&q, e) != 0 || ipc_request_merge(&q, e) != 0 ||
        ipc_request_validate(&q, e) != 0)
        goto err_fini;
    if (weights->n_devices == 0)
        rc = ipc_refuse_no_gpu(&q, e);
    else
        rc = open_ipc_source(&c->source, &q, e);
    if (rc != 0)
        goto err_fini;
    if (q.ranks_equal)
        move_alike(c, &q);
    else
        move_ranks(c, &q);
    move_origins(c, &q);

err_fini:
    ipc_request_fini(&q);
    return rc;
}
