/* Tensor lists in requests: columns of names, dtypes and shapes, or the plan_id of a registered
 * list. */
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

/* `text` next to an object: the columns that body_parse_columns left in the request's text; NULL
 * if all are in the tree. */

/* tensor_list_from_body - make a tensor list (one reference) of names, dtypes (or dtype_names),
 * shapes and sizes.
 * Errors: ERR_BAD_REQUEST at the member or its element: absent, not as long as names, not a
 *         known dtype, not a shape; those of tensor_list_builder_add. */
int tensor_list_from_body(struct tensor_list **out, const json_t *body,
                          const struct body_columns *text, struct err *e);

/* tensor_list_append - append the tensors of a list to a builder.
 * @origins  [n_origins]: the JSON pointers of the lists in the builder; the last is this list's,
 *           and errors are reported below it. Only `first` and `at` are read. */
int tensor_list_append(struct tensor_list_builder *b, const struct tensor_list *tensor_list,
                       const struct chunk_origin *origins, uint32_t n_origins, struct err *e);

/* tensor_columns_check - are the columns of the object well formed? Errors: as
 * tensor_list_from_body, below `at`. */
int tensor_columns_check(const json_t *object, const struct body_columns *text, const char *at,
                         struct err *e);

/* tensor_list_resolve - the tensor list of an object, by its plan_id or its columns; NULL if it
 * has neither and `optional` is set.
 * @at  the object's JSON pointer, "" for the body
 * Errors: ERR_BAD_REQUEST (both plan_id and columns; as tensor_list_from_body), ERR_NOT_FOUND
 *         (the plan_id is not known). */
int tensor_list_resolve(struct tensor_list **out, const struct app_weights *weights,
                        const json_t *object, const struct body_columns *text, const char *at,
                        bool optional, struct err *e);

/* checksums_add - read `checksums` of an object, 32 hex digits or null each, for tensors [first,
 * first + n) of the tensor list.
 * @sums, @has  malloc'ed [n_tensors] at the first list of checksums, the caller's also after an
 *              error; NULL until then
 * Errors: ERR_BAD_REQUEST at <at>/checksums or an element of it; ERR_NO_MEMORY. */
int checksums_add(struct checksum **sums, bool **has, const json_t *object, const char *at,
                  const struct tensor_list *tensor_list, uint32_t first, uint32_t n, struct err *e);

#endif
