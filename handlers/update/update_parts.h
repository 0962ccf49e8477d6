/* The parts of an update request that several handlers read. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_PARTS_H
#define BATON_HANDLERS_UPDATE_UPDATE_PARTS_H

#include "base/err.h"
#include "handlers/body_columns.h"
#include "handlers/route.h"
#include "http/exchange.h"
#include "memory/checksum.h"
#include "weights/manifest.h"
#include "weights/plan.h"
#include "weights/source.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>

struct app;

/* `text`, where it stands beside an object: the columns of the request that were left in its text,
 * of body_parse_columns; NULL when all are in the tree. */

/* update_id_check - of 1 to len_max bytes? Errors: ERR_BAD_REQUEST at `field`. */
int update_id_check(const char *id, size_t len_max, const char *field, struct err *e);

/* update_id_parse - the update_id member of a body, which must be there. @id  borrowed from it
 * Errors: ERR_BAD_REQUEST at /update_id. */
int update_id_parse(const char **id, const json_t *body, struct err *e);

/* plan_from_body - names, dtypes (or dtype_names), shapes, sizes -> a plan (one reference).
 * Errors: ERR_BAD_REQUEST at the member or its element: absent, not as long as names, not a known
 *         dtype, not a shape; and those of plan_builder_add. */
int plan_from_body(struct plan **out, const json_t *body, const struct body_columns *text,
                   struct err *e);

/* columns_add - the same from an object in a request, appended to a plan that is being built.
 * @origins  [n_origins], where the tensors of that plan stood so far; the last is this object, and
 *           errors point below it. Only `first` and `at` are read.
 * @n        how many came; written on success only */
int columns_add(struct plan_builder *b, const json_t *object, const struct body_columns *text,
                const struct chunk_origin *origins, uint32_t n_origins, uint32_t *n, struct err *e);

/* specs_add - the tensors of a registered plan, as columns_add. */
int specs_add(struct plan_builder *b, const struct plan *plan, const struct chunk_origin *origins,
              uint32_t n_origins, struct err *e);

/* columns_check - are they well formed? Errors: as columns_add's. */
int columns_check(const json_t *object, const struct body_columns *text, const char *at,
                  struct err *e);

/* plan_of_list - by the object's plan_id, by its columns, or NULL when neither is given and
 * `optional`. Both together are ERR_BAD_REQUEST; an unknown plan_id is ERR_NOT_FOUND.
 * @at  the object's JSON pointer, "" for the body */
int plan_of_list(struct plan **out, const struct app *app, const json_t *object,
                 const struct body_columns *text, const char *at, bool optional, struct err *e);

/* checksums_add - `checksums` of an object, 32 hex digits or null each, for tensors [first,
 * first + n) of the plan.
 * @sums, @has  malloc'ed [n_tensors] when the first list of them comes, the caller's also on
 *              failure; NULL as long as none has
 * Errors: ERR_BAD_REQUEST at <at>/checksums or an element of it; ERR_NO_MEMORY. */
int checksums_add(struct checksum **sums, bool **has, const json_t *object, const char *at,
                  const struct plan *plan, uint32_t first, uint32_t n, struct err *e);

/* shm_from_body - open the `shm` member's ranges for `plan`. */
int shm_from_body(struct source **out, const json_t *body, const struct plan *plan, struct err *e);

/* ipc_from_body - the plans, checksums and source of a chunk whose bytes come by CUDA IPC handles:
 * of `ipc_handles` or `ipc_handles_pickled`, or of several `buckets` of them. All is held against
 * what the handles say before anything is opened; nothing is opened here.
 * @c        gets plan, or ranks; origins, checksums, source. On an error it holds none of them
 * @sharded  the ranks together must be complete, not each by itself
 *
 * Threads: any. Errors: ERR_BAD_REQUEST at the member that is wrong; the readers' ERR_TOO_LARGE and
 *          ERR_NO_MEMORY; ERR_NOT_FOUND (plan_id); ERR_NO_GPU when nothing is wrong and the weights
 *          of this server are not on a GPU. */
int ipc_from_body(struct update_chunk *c, const struct app *app, const json_t *body,
                  const struct body_columns *text, bool sharded, struct err *e);

/* tensors_from_body - the plans and source of a chunk whose names, dtypes, shapes and handles stand
 * in pickles, one for each GPU of the trainer (`serialized_named_tensors`). Nothing is opened here.
 * @c        gets plan or ranks, origins and source; none of them where the strings are empty
 * @sharded  the ranks together must be complete, not each by itself
 * Threads: any. Errors: ERR_BAD_REQUEST at /serialized_named_tensors or one of them (all tensors
 * are on GPUs that are not this server's, too), or at a member that stands beside; those of
 * torch_tensors_read; ERR_NO_GPU when nothing is wrong and the weights of this server are not on a
 * GPU. On an error c is still to be freed. */
int tensors_from_body(struct update_chunk *c, const struct app *app, const json_t *body,
                      bool sharded, struct err *e);

/* nccl_from_body - the plan, checksums and source of a chunk that the trainer's group broadcasts
 * (transport: "nccl"). Nothing is received here.
 * @c  gets plan, checksums, source; on an error, what was read of them
 * Threads: any. Errors: ERR_BAD_REQUEST at the member that is wrong; ERR_NOT_FOUND (plan_id);
 *          ERR_CONFLICT at /expected_digest; those of weight_transfer_source. */
int nccl_from_body(struct update_chunk *c, struct app *app, const json_t *body,
                   const struct body_columns *text, struct err *e);

/* update_source_of - the one source of bytes that the body names: the member.
 * @out  static. Errors: ERR_BAD_REQUEST: none, several, or a word for another one. */
int update_source_of(const char **out, const json_t *body, struct err *e);

/* mode_from_body - `mode` of a start: "staged", and no other. */
int mode_from_body(const json_t *body, struct err *e);

/* placement_from_body - `placement`: "replicated" or "sharded". @sharded unchanged when absent. */
int placement_from_body(bool *sharded, const json_t *body, struct err *e);

/* selector_from_body - `selector`: "all" or "target", which here are the same: there is no drafter.
 * @selector  static; unchanged when absent. Errors: ERR_BAD_REQUEST at /selector: a drafter's. */
int selector_from_body(const char **selector, const json_t *body, struct err *e);

enum { UPDATE_UNNAMED_LEASE_S = 600 }; /* of sessions whose trainers do not know of leases */

/* session_find - the open session, if the route's requests do not name theirs.
 * @id  "" when there is none yet and the first request opens it (session_begin)
 * Errors: ERR_CONFLICT: none is open and this route opens none; or it was started by somebody who
 *         names it. */
int session_find(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                 struct err *e);

/* session_begin - open an implicit one, or find the one that another request just opened. */
int session_begin(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                  struct err *e);

/* weights_find - a tensor of the manifest, by its own name or one that ties to it.
 * Errors: ERR_NOT_FOUND. */
int weights_find(const struct manifest *m, const char *name, uint32_t *index, struct err *e);

/* session_give_up - end the open update, if its requests do not name it.
 * @begun  whatever has come of it, and whoever started it; else only an implicit one of which
 *         nothing has been received */
void session_give_up(struct app *app, bool begun, const char *why);

/* label_check - a weight version label: 1..VERSION_LABEL_MAX bytes without control characters, and
 * none of an update that did not end (FLEET_UNFINISHED). */
int label_check(const char *label, const char *field, struct err *e);

/* body_is_tensors - is the body a safetensors stream, by its content type, and its route takes
 * such? */
bool body_is_tensors(const struct exchange *x);

#endif
