/* The experts of a sparse layer: a router chooses some of them for each row, each active expert
 * computes its rows, and the results are summed by the router's weights. Shared experts, in models
 * that have them, compute every row, and their result is added as it is.
 *
 * Only the weights of active experts are read. The sum of a row is taken in ascending order of the
 * experts' ids, and every product is that of the canonical dot, so that the result for a row
 * depends neither on the other rows nor on threads. */
#ifndef BATON_ENGINE_MODEL_EXPERTS_H
#define BATON_ENGINE_MODEL_EXPERTS_H

#include "base/err.h"
#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"
#include "weights/model/model_config.h"
#include "weights/model/model_tensors.h"
#include "weights/model_spec.h"
#include "weights/store/store.h"

#include <stdint.h>

struct experts;

/* experts_new - bind the tensors of all sparse layers, allocate what a step of n_rows_max rows
 * needs.
 * @cfg, model_spec  borrowed; cfg->experts.n_sparse_layers >= 1
 * Errors: ERR_MISMATCH (the model spec lacks a tensor), ERR_NO_MEMORY. */
int experts_new(struct experts **out, const struct model_config *cfg,
                const struct model_spec *model_spec, uint32_t n_rows_max, struct err *e);
void experts_free(struct experts *x); /* accepts NULL */

/* One sparse layer of a step. */
struct experts_step {
    struct compute *compute;
    const struct kernels *kernels;
    const struct version *version;
    uint32_t layer, n_rows;
    const uint32_t *tensors; /* [LAYER_TENSOR_COUNT]: where the layer's are in the tensor list */
    const float *h;          /* [n_rows, hidden_size]: the input */
    float *out;              /* [n_rows, hidden_size]: the result */
    uint16_t *const *routes; /* [n_rows]; of each row NULL, or [n_sparse_layers, n_per_token]: the
                                ids of the chosen experts are written at this layer's place, best
                                first */
};

/* experts_run - Threads: the engine's; no lock held. No allocation. Cannot fail. */
void experts_run(struct experts *x, const struct experts_step *s);

#endif
