/* Sources of tensor bytes as requests name them, for updates and loads of adapters. */
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

/* `text` next to an object: the columns that body_parse_columns left in the request's text; NULL
 * if all are in the tree. */

/* shm_from_body - open the ranges of the member `shm` for `tensor_list`. Threads: any. Errors:
 * ERR_BAD_REQUEST at the member; those of shm_source_open; ERR_NO_MEMORY. */
int shm_from_body(struct source **out, const json_t *body, const struct tensor_list *tensor_list,
                  struct err *e);

/* ipc_from_body - the tensor lists, checksums and source of a chunk that is read through CUDA
 * IPC handles: `ipc_handles` or `ipc_handles_pickled`, or several `buckets` of them. Everything
 * is checked against the handles; nothing is opened yet.
 * @c        receives tensor_list or ranks, origins, checksums, source; nothing on error
 * @sharded  the ranks together must be complete, not each by itself
 *
 * Threads: any.
 * Errors:  ERR_BAD_REQUEST at the member; ERR_TOO_LARGE and ERR_NO_MEMORY of the readers;
 *          ERR_NOT_FOUND (plan_id); ERR_NO_GPU if the request is correct but the weights are not
 *          on a GPU. */
int ipc_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                  const struct body_columns *text, bool sharded, struct err *e);

/* nccl_from_body - the tensor list, checksums and source of a chunk that the trainer's group
 * broadcasts (transport: "nccl"). Nothing is received yet.
 * @c        receives tensor_list, checksums, source; on error, those that were read
 * @patches  receives what the parts in c->tensor_list are, if the body has num_updates_list; it is
 *           then the caller's, also on error. NULL: it has none
 * Threads: any.
 * Errors:  ERR_BAD_REQUEST at the member; ERR_NOT_FOUND (plan_id); ERR_PRECONDITION
 *          at /expected_digest; those of delta_of_patches and of weight_transfer_source. */
struct delta;
int nccl_from_body(struct update_chunk *c, struct delta **patches,
                   const struct app_weights *weights, const json_t *body,
                   const struct body_columns *text, struct err *e);

/* body_reads_nixl - is its transport nixl? */
bool body_reads_nixl(const json_t *body);

/* nixl_from_body - the tensor list, checksums and source of a chunk that is read by NIXL
 * (transport: "nixl"). Nothing is read yet.
 * @c  receives tensor_list, checksums, source; on error, those that were read
 * Threads: any.
 * Errors:  ERR_NO_NIXL (the server has no --nixl-library), ERR_NO_GPU (VRAM, and this machine has
 * no GPU), ERR_BAD_REQUEST at the member (also: a tensor without a checksum, and not `unchecked`),
 * ERR_NOT_FOUND (plan_id), ERR_MISMATCH (the shards of a tensor do not tile it), ERR_TOO_LARGE,
 * ERR_NO_MEMORY. */
int nixl_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                   const struct body_columns *text, struct err *e);

/* named_tensors_from_body - the tensor lists and source of a chunk whose names, dtypes, shapes
 * and handles are in pickles, one for each GPU of the trainer (`serialized_named_tensors`).
 * Nothing is opened yet.
 * @c        receives tensor_list or ranks, origins and source; nothing if all strings are empty
 * @sharded  the ranks together must be complete, not each by itself
 * Threads: any. On error `c` is still to be freed.
 * Errors:  ERR_BAD_REQUEST at /serialized_named_tensors or one of them (also: all tensors are on
 *          GPUs of other servers), or at a member that the pickles replace; those of
 *          torch_tensors_read; ERR_NO_GPU if the request is correct but the weights are not on a
 *          GPU. */
int named_tensors_from_body(struct update_chunk *c, const struct app_weights *weights,
                            const json_t *body, bool sharded, struct err *e);

/* route_accepts_nccl - may a request of this route be for broadcasts? Those of a dialect whose
 * translation never sets `transport` are not. */
bool route_accepts_nccl(const struct http_request *x);

/* update_refused - an update, or the load of an adapter, was refused: the trainer may already
 * broadcast it to its group (weight_transfer_doubt). update_refused_unread - before its body was
 * understood: a group that a refusal ends is meant only by a route that `broadcasts`, and while
 * the open update has received nothing by it.
 * @body  NULL: the tensors are the body
 * @e     as weight_transfer_doubt's
 * Threads: any. Blocks: no. */
void update_refused(struct app *app, const struct http_request *x, const json_t *body,
                    struct err *e);
void update_refused_unread(struct app *app, const struct http_request *x, struct err *e);

#endif
