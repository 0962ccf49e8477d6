/* A tensor list: the ordered list of (name, dtype, shape) that a transfer carries, immutable once
 * built.
 *
 * In a bucket the tensors follow each other without gaps, in the order of the list (packed);
 * `offset` is the byte offset of each. A model spec is the tensor list of everything that a model
 * needs, plus its aliases. All strings and arrays belong to the tensor list and live as long as it
 * does. */
#ifndef BATON_WEIGHTS_TENSOR_LIST_H
#define BATON_WEIGHTS_TENSOR_LIST_H

#include "base/err.h"
#include "memory/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_LIST_NBYTES_MAX                                                                     \
    ((uint64_t)INT64_MAX) /* of a tensor and of a tensor list: an off_t, a JSON int */

/* Of a request that repeats the list of the update before it, as vLLM's trainers do. */
#define TENSOR_LIST_NONE_BEFORE                                                                    \
    "names, dtypes and shapes are empty, which means those of the last update by this group, and " \
    "none has succeeded since it was joined: send them"
#define TENSOR_LIST_ID_LAST "last" /* the plan_id that means the same; no other id is so short */

enum {
    TENSOR_LIST_NDIM_MAX = 8,
    TENSOR_LIST_NAME_LEN_MAX = 1024,
    TENSOR_LIST_TENSORS_MAX = 1000000,
    TENSOR_LIST_DIGEST_LEN = 64 /* SHA-256 in hex */
};

struct tensor_spec {
    const char *name; /* of the tensor list */
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[TENSOR_LIST_NDIM_MAX]; /* row-major, outermost first */
    uint64_t numel;
    uint64_t nbytes;
    uint64_t offset; /* bytes from the start of the packed bucket */
};

struct tensor_list {
    uint32_t n_tensors;
    const struct tensor_spec *tensors; /* [n_tensors] */
    uint64_t nbytes;                   /* of the packed bucket */
    char digest[TENSOR_LIST_DIGEST_LEN +
                1]; /* SHA-256 over "name\tdtype\tshape\n" of each, in order */
};

/* The digest's dtype is the canonical name ("BF16"), its shape the dims joined by ',' ("1024,128"),
 * empty for a scalar. */

struct tensor_list_builder;

/* tensor_list_builder_new - begin a tensor list. Errors: ERR_NO_MEMORY. */
int tensor_list_builder_new(struct tensor_list_builder **out, struct err *e);
void tensor_list_builder_free(struct tensor_list_builder *b); /* accepts NULL */

/* tensor_list_builder_reserve - allocate memory for `n` more tensors, which need not be added.
 * Errors: ERR_NO_MEMORY; the builder is as it was. */
int tensor_list_builder_reserve(struct tensor_list_builder *b, uint32_t n, struct err *e);

/* tensor_list_builder_add - append one tensor.
 * @name   borrowed, copied; 1..TENSOR_LIST_NAME_LEN_MAX bytes, no control characters
 * @shape  [ndim]
 * @numel  as the sender declared, or UINT64_MAX if it did not
 *
 * Errors (field /names/<i>, /dtypes/<i>, /shapes/<i> or /sizes/<i>, <i> counting from 0):
 *   ERR_BAD_REQUEST  empty, too long or repeated name (the message names both places); ndim too
 *                    large; numel or nbytes overflow; numel differs from the product of the shape
 *   ERR_TOO_LARGE    more than TENSOR_LIST_TENSORS_MAX tensors
 *   ERR_NO_MEMORY
 *   After an error the builder is as it was before the call. */
int tensor_list_builder_add(struct tensor_list_builder *b, const char *name, enum dtype dtype,
                            const uint64_t *shape, uint32_t ndim, uint64_t numel, struct err *e);

/* tensor_list_builder_find - index of `name` among those added, or TENSOR_LIST_NO_TENSOR. O(1). */
uint32_t tensor_list_builder_find(const struct tensor_list_builder *b, const char *name);

/* tensor_list_builder_finish - turn the builder (consumed, also on failure) into a tensor list with
 * one reference. An empty tensor list is ERR_BAD_REQUEST at /names: an update of nothing is a
 * mistake. */
int tensor_list_builder_finish(struct tensor_list_builder *b, struct tensor_list **out,
                               struct err *e);

/* Gives tensor i its shape (room for TENSOR_LIST_NDIM_MAX dims) and numel, as
 * tensor_list_builder_add takes them; not 0: an error, which is set. */
typedef int tensor_list_shape_fn(void *arg, uint32_t i, uint64_t *shape, uint32_t *ndim,
                                 uint64_t *numel, struct err *e);

/* tensor_list_reshape - a list (one reference) with the names and dtypes of another, and shapes of
 * its own: no name is checked again.
 * @of  whose names stay as long as either list
 * Errors: those of @next, which is called for each tensor in order; at /shapes/<i> and /sizes/<i>
 *         those of tensor_list_builder_add; ERR_NO_MEMORY. */
int tensor_list_reshape(struct tensor_list **out, struct tensor_list *of,
                        tensor_list_shape_fn *next, void *arg, struct err *e);

/* tensor_list_names_of - the list that was built with these names: itself, unless it is reshaped.
 */
const struct tensor_list *tensor_list_names_of(const struct tensor_list *p);

struct tensor_list *tensor_list_ref(struct tensor_list *p);
void tensor_list_unref(struct tensor_list *p); /* accepts NULL; frees at zero; any thread */

enum { TENSOR_LIST_NO_TENSOR = UINT32_MAX };

/* tensor_list_find - index of `name`, or TENSOR_LIST_NO_TENSOR. O(1). */
uint32_t tensor_list_find(const struct tensor_list *p, const char *name);

/* tensor_list_find_near - the same, but compares with tensor `i` (any number) first: names that
 * come in the order of the list need no search. */
uint32_t tensor_list_find_near(const struct tensor_list *p, const char *name, uint32_t i);

/* tensor_list_measure - elements and bytes of a tensor; a 0 among the dims makes both 0.
 * @shape  [ndim]
 * Returns: false, with the outputs untouched, when the nonzero dims make more than
 * TENSOR_LIST_NBYTES_MAX bytes. */
bool tensor_list_measure(enum dtype dtype, const uint64_t *shape, uint32_t ndim, uint64_t *numel,
                         uint64_t *nbytes);

/* tensor_list_shape_text - "[1024, 128]" into a caller's buffer, for messages. Returns out. */
const char *tensor_list_shape_text(const struct tensor_spec *t, char *out, size_t cap);

#endif
