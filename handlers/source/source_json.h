/* Where the bytes of a request come from, as it says it: what updates and loads of adapters have in
 * common. Opened in handlers/update/. */
#ifndef BATON_HANDLERS_SOURCE_SOURCE_JSON_H
#define BATON_HANDLERS_SOURCE_SOURCE_JSON_H

#include "base/err.h"
#include "handlers/body_columns.h"
#include "weights/source.h"
#include "weights/tensor_list.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>

struct app;
struct app_weights;
struct http_request;

/* `text`, where it stands beside an object: the columns of the request that were left in its text,
 * of body_parse_columns; NULL when all are in the tree. */

/* shm_from_body - open the `shm` member's ranges for `tensor_list`. */
int shm_from_body(struct source **out, const json_t *body, const struct tensor_list *tensor_list,
                  struct err *e);

/* ipc_from_body - the tensor lists, checksums and source of a chunk whose bytes come by CUDA IPC
 * handles: of `ipc_handles` or `ipc_handles_pickled`, or of several `buckets` of them. All is held
 * against what the handles say before anything is opened; nothing is opened here.
 * @c        gets tensor list, or ranks; origins, checksums, source. On an error it holds none of
 * them
 * @sharded  the ranks together must be complete, not each by itself
 *
 * Threads: any. Errors: ERR_BAD_REQUEST at the member that is wrong; the readers' ERR_TOO_LARGE and
 *          ERR_NO_MEMORY; ERR_NOT_FOUND (plan_id); ERR_NO_GPU when nothing is wrong and the weights
 *          of this server are not on a GPU. */
int ipc_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                  const struct body_columns *text, bool sharded, struct err *e);

/* nccl_from_body - the tensor list, checksums and source of a chunk that the trainer's group
 * broadcasts (transport: "nccl"). Nothing is received here.
 * @c  gets tensor list, checksums, source; on an error, what was read of them
 * Threads: any. Errors: ERR_BAD_REQUEST at the member that is wrong; ERR_NOT_FOUND (plan_id);
 *          ERR_CONFLICT at /expected_digest; those of weight_transfer_source. */
int nccl_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                   const struct body_columns *text, struct err *e);

/* named_tensors_from_body - the tensor lists and source of a chunk whose names, dtypes, shapes and
 * handles stand in pickles, one for each GPU of the trainer (`serialized_named_tensors`). Nothing
 * is opened here.
 * @c        gets tensor list or ranks, origins and source; none of them where the strings are empty
 * @sharded  the ranks together must be complete, not each by itself
 * Threads: any. Errors: ERR_BAD_REQUEST at /serialized_named_tensors or one of them (all tensors
 * are on GPUs that are not this server's, too), or at a member that stands beside; those of
 * torch_tensors_read; ERR_NO_GPU when nothing is wrong and the weights of this server are not on a
 * GPU. On an error c is still to be freed. */
int named_tensors_from_body(struct update_chunk *c, const struct app_weights *weights,
                            const json_t *body, bool sharded, struct err *e);

/* update_refused_unread - an update, or the load of an adapter, was refused before its body was
 * understood: the trainer may already broadcast it to its group (weight_transfer_doubt).
 * Threads: any. Blocks: no. */
void update_refused_unread(struct app *app, const struct http_request *x);

#endif
