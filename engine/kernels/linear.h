/* Linear layers over the compute pool. Outputs are split among the threads, never the sums, so the
 * result does not depend on how they are split. */
#ifndef BATON_ENGINE_KERNELS_LINEAR_H
#define BATON_ENGINE_KERNELS_LINEAR_H

#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"
#include "weights/tensor_list.h"

#include <stdint.h>

struct linear {
    struct matmul product;
    uint32_t n;       /* outputs */
    const void *bias; /* [n], or NULL */
    enum dtype bias_dtype;
};

/* linear_of - y = x * weight, without a bias.
 * @weight  [n, k]; @data  its bytes, borrowed for the run
 * @x  [n_rows, k];  @y  [n_rows, n] */
struct linear linear_of(const struct tensor_spec *weight, const void *data, const float *x,
                        uint32_t n_rows, float *y);

/* linears_run - compute all outputs of every row of `n` layers, as one region of the pool.
 * @list  [n], borrowed for the call; their inputs and outputs do not overlap
 * Threads: the engine's. No allocation. */
void linears_run(struct compute *c, const struct kernels *k, const struct linear *list, uint32_t n);

#endif
