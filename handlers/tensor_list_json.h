/* Lists of tensors in requests: columns of names, dtypes and shapes, or a registered tensor list.
 */
#ifndef BATON_HANDLERS_TENSOR_LIST_JSON_H
#define BATON_HANDLERS_TENSOR_LIST_JSON_H

#include "base/err.h"
#include "handlers/body_columns.h"
#include "memory/checksum.h"
#include "weights/tensor_list.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>

struct app_weights;

/* `text`, where it stands beside an object: the columns of the request that were left in its text,
 * of body_parse_columns; NULL when all are in the tree. */

/* tensor_list_from_body - names, dtypes (or dtype_names), shapes, sizes -> a tensor list (one
 * reference). Errors: ERR_BAD_REQUEST at the member or its element: absent, not as long as names,
 * not a known dtype, not a shape; and those of tensor_list_builder_add. */
int tensor_list_from_body(struct tensor_list **out, const json_t *body,
                          const struct body_columns *text, struct err *e);

/* tensor_list_append - append the tensors of a list to a tensor list that is being built.
 * @origins  [n_origins], where the tensors of that tensor list stood so far; the last is this list,
 * and errors point below it. Only `first` and `at` are read. */
int tensor_list_append(struct tensor_list_builder *b, const struct tensor_list *tensor_list,
                       const struct chunk_origin *origins, uint32_t n_origins, struct err *e);

/* tensor_columns_check - are they well formed? Errors: as tensor_list_from_body's, below `at`. */
int tensor_columns_check(const json_t *object, const struct body_columns *text, const char *at,
                         struct err *e);

/* tensor_list_resolve - by the object's plan_id, by its columns, or NULL when neither is given and
 * `optional`. Both together are ERR_BAD_REQUEST; an unknown plan_id is ERR_NOT_FOUND.
 * @at  the object's JSON pointer, "" for the body */
int tensor_list_resolve(struct tensor_list **out, const struct app_weights *weights,
                        const json_t *object, const struct body_columns *text, const char *at,
                        bool optional, struct err *e);

/* checksums_add - `checksums` of an object, 32 hex digits or null each, for tensors [first,
 * first + n) of the tensor list.
 * @sums, @has  malloc'ed [n_tensors] when the first list of them comes, the caller's also on
 *              failure; NULL as long as none has
 * Errors: ERR_BAD_REQUEST at <at>/checksums or an element of it; ERR_NO_MEMORY. */
int checksums_add(struct checksum **sums, bool **has, const json_t *object, const char *at,
                  const struct tensor_list *tensor_list, uint32_t first, uint32_t n, struct err *e);

#endif
