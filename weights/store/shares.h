/* Which GPU keeps which tensors of a version that is spread over several (--placement sharded).
 *
 * The shares are runs of the tensor list of about equal size: most buckets of a sender then belong
 * to one GPU, and are received where they stay. They depend only on the tensor list and on the
 * number of GPUs, so every version and every restart has the same. */
#ifndef BATON_WEIGHTS_STORE_SHARES_H
#define BATON_WEIGHTS_STORE_SHARES_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdint.h>

enum { SHARES_RANKS_MAX = 64 };

/* shares_new - the owner of each tensor. A share differs from an equal part of the bytes by at most
 * the largest tensor.
 * @out      [n_tensors] ranks; free() it
 * @n_ranks  1 to SHARES_RANKS_MAX
 * Errors: ERR_NO_MEMORY. */
int shares_new(uint8_t **out, const struct tensor_list *list, uint32_t n_ranks, struct err *e);

/* shares_nbytes - bytes and number of the tensors of one rank. */
uint64_t shares_nbytes(const uint8_t *owners, const struct tensor_list *list, uint32_t rank,
                       uint32_t *n_tensors);

#endif
