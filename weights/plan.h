/* A plan: the ordered list of (name, dtype, shape) that a transfer carries, immutable once built.
 *
 * Tensors of a plan lie back to back in the order of the plan (packed); `offset` is the byte
 * offset of each in that bucket. A manifest is the plan of everything that a model needs, plus its
 * aliases. All strings and arrays belong to the plan and live as long as it does. */
#ifndef BATON_WEIGHTS_PLAN_H
#define BATON_WEIGHTS_PLAN_H

#include "base/err.h"
#include "memory/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_NBYTES_MAX ((uint64_t)INT64_MAX) /* of a tensor and of a plan: an off_t, a JSON int */

enum {
    PLAN_NDIM_MAX = 8,
    PLAN_NAME_LEN_MAX = 1024,
    PLAN_TENSORS_MAX = 1000000,
    PLAN_DIGEST_LEN = 64 /* SHA-256 in hex */
};

struct tensor_spec {
    const char *name; /* of the plan */
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[PLAN_NDIM_MAX]; /* row-major, outermost first */
    uint64_t numel;
    uint64_t nbytes;
    uint64_t offset; /* bytes from the start of the packed bucket */
};

struct plan {
    uint32_t n_tensors;
    const struct tensor_spec *tensors; /* [n_tensors] */
    uint64_t nbytes;                   /* of the packed bucket */
    char digest[PLAN_DIGEST_LEN + 1];  /* SHA-256 over "name\tdtype\tshape\n" of each, in order */
};

/* The digest's dtype is the canonical name ("BF16"), its shape the dims joined by ',' ("1024,128"),
 * empty for a scalar. */

struct plan_builder;

/* plan_builder_new - begin a plan. Errors: ERR_NO_MEMORY. */
int plan_builder_new(struct plan_builder **out, struct err *e);
void plan_builder_free(struct plan_builder *b); /* accepts NULL */

/* plan_builder_reserve - make room for `n` more tensors, which need not come.
 * Errors: ERR_NO_MEMORY; the builder is as it was. */
int plan_builder_reserve(struct plan_builder *b, uint32_t n, struct err *e);

/* plan_builder_add - append one tensor.
 * @name   borrowed, copied; 1..PLAN_NAME_LEN_MAX bytes, no control characters
 * @shape  [ndim]
 * @numel  what the sender says, or UINT64_MAX for "not said"
 *
 * Errors (field /names/<i>, /dtypes/<i>, /shapes/<i> or /sizes/<i>, <i> counting from 0):
 *   ERR_BAD_REQUEST  empty, too long or repeated name (the message names both places); ndim too
 *                    large; numel or nbytes overflow; numel differs from the product of the shape
 *   ERR_TOO_LARGE    more than PLAN_TENSORS_MAX tensors
 *   ERR_NO_MEMORY
 *   After an error the builder is as it was before the call. */
int plan_builder_add(struct plan_builder *b, const char *name, enum dtype dtype,
                     const uint64_t *shape, uint32_t ndim, uint64_t numel, struct err *e);

/* plan_builder_find - index of `name` among those added, or PLAN_NO_TENSOR. O(1). */
uint32_t plan_builder_find(const struct plan_builder *b, const char *name);

/* plan_builder_finish - turn the builder (consumed, also on failure) into a plan with one
 * reference. An empty plan is ERR_BAD_REQUEST at /names: an update of nothing is a mistake. */
int plan_builder_finish(struct plan_builder *b, struct plan **out, struct err *e);

struct plan *plan_ref(struct plan *p);
void plan_unref(struct plan *p); /* accepts NULL; frees at zero; any thread */

enum { PLAN_NO_TENSOR = UINT32_MAX };

/* plan_find - index of `name`, or PLAN_NO_TENSOR. O(1). */
uint32_t plan_find(const struct plan *p, const char *name);

/* plan_find_near - the same, looking first at tensor `i` (any number): what comes in a plan's own
 * order is found without a search. */
uint32_t plan_find_near(const struct plan *p, const char *name, uint32_t i);

/* plan_measure - elements and bytes of a tensor; a 0 among the dims makes both 0.
 * @shape  [ndim]
 * Returns: false, with the outputs untouched, when the nonzero dims make more than
 * PLAN_NBYTES_MAX bytes. */
bool plan_measure(enum dtype dtype, const uint64_t *shape, uint32_t ndim, uint64_t *numel,
                  uint64_t *nbytes);

/* plan_shape_text - "[1024, 128]" into a caller's buffer, for messages. Returns out. */
const char *plan_shape_text(const struct tensor_spec *t, char *out, size_t cap);

#endif
