/* The parts of an update request that several handlers read. */
#ifndef BATON_HANDLERS_UPDATE_PARTS_H
#define BATON_HANDLERS_UPDATE_PARTS_H

#include "base/err.h"
#include "base/exchange.h"
#include "weights/checksum.h"
#include "weights/plan.h"
#include "weights/source.h"

#include <jansson.h>
#include <stdbool.h>

struct app;

/* plan_from_body - names, dtypes (or dtype_names), shapes, sizes -> a plan (one reference).
 * Errors: ERR_BAD_REQUEST at the member or its element: absent, not as long as names, not a known
 *         dtype, not a shape; and those of plan_builder_add. */
int plan_from_body(struct plan **out, const json_t *body, struct err *e);

/* plan_of_request - by plan_id, by the body's columns, or NULL when neither is given and
 * `optional`. Both together are ERR_BAD_REQUEST; an unknown plan_id is ERR_NOT_FOUND. */
int plan_of_request(struct plan **out, const struct app *app, const json_t *body, bool optional,
                    struct err *e);

/* checksums_from_body - `checksums`, aligned with the plan: 32 hex digits or null each.
 * @sums, @has  malloc'ed [n_tensors], the caller's; both NULL when the member is absent */
int checksums_from_body(struct checksum **sums, bool **has, const json_t *body,
                        const struct plan *plan, struct err *e);

/* shm_from_body - open the `shm` member's ranges for `plan`. */
int shm_from_body(struct source **out, const json_t *body, const struct plan *plan,
                  struct err *e);

/* ipc_from_body - judge the `ipc_handles` or `ipc_handles_pickled` member against `plan`, and
 * `packed` and `tensor_sizes` beside it. Nothing is opened: this server has no way to a GPU.
 * Errors: always one. ERR_BAD_REQUEST at the member that is wrong; the readers' ERR_TOO_LARGE and
 *         ERR_NO_MEMORY; ERR_NO_GPU when nothing is wrong. */
int ipc_from_body(const json_t *body, const struct plan *plan, struct err *e);

/* label_check - a weight version label: 1..VERSION_LABEL_MAX bytes without control characters. */
int label_check(const char *label, const char *field, struct err *e);

/* body_is_tensors - is the body a safetensors stream, by its content type? */
bool body_is_tensors(const struct exchange *x);

#endif
