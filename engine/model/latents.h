/* Latent attention (MLA): queries, keys and values of all heads from short vectors. Keys and values
 * are expanded before they go into the KV cache, so that attention itself is that of every model.
 */
#ifndef BATON_ENGINE_MODEL_LATENTS_H
#define BATON_ENGINE_MODEL_LATENTS_H

#include "base/err.h"
#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"
#include "weights/model/model_config.h"
#include "weights/model_spec.h"
#include "weights/store/store.h"

#include <stdint.h>

struct latents;

/* latents_new - allocate what a step of n_rows_max rows needs.
 * @cfg, model_spec  borrowed; cfg->latents.kv_rank >= 1
 * Errors: ERR_NO_MEMORY. */
int latents_new(struct latents **out, const struct model_config *cfg,
                const struct model_spec *model_spec, uint32_t n_rows_max, struct err *e);
void latents_free(struct latents *t); /* accepts NULL */

/* One layer of a step. */
struct latents_step {
    struct compute *compute;
    const struct kernels *kernels;
    const struct version *version;
    const uint32_t *tensors; /* [LAYER_TENSOR_COUNT]: where the layer's are in the tensor list */
    uint32_t n_rows;
    const float *h; /* [n_rows, hidden_size]: the input */
    float *q, *k;   /* [n_rows, n_heads * head_dim]: the results, not rotated */
    float *v;       /* [n_rows, n_heads * v_head_dim] */
};

/* latents_run - Threads: the engine's; no lock held. No allocation. Cannot fail. */
void latents_run(struct latents *t, const struct latents_step *s);

#endif
