/* Attention of one layer: head norms, rotation, the KV write, then softmax over the past. Every
 * (row, head) is computed alone and in order of position, so that a prompt in pieces, a prompt in
 * one, and decoding give the same bits. */
#ifndef BATON_ENGINE_KERNELS_ATTENTION_H
#define BATON_ENGINE_KERNELS_ATTENTION_H

#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"

#include <stddef.h>
#include <stdint.h>

struct attention {
    const struct model_config *cfg;
    const struct kernels *kernels;
    uint32_t layer, n_rows;
    const struct model_row *rows; /* [n_rows] */
    float *q;                     /* [n_rows, n_heads * head_dim]; normed and rotated in place */
    float *k;                     /* [n_rows, n_kv_heads * head_dim]; the same */
    const float *v;               /* [n_rows, n_kv_heads * v_head_dim] */
    float *o;                     /* [n_rows, n_heads * v_head_dim]; the result */
    const float *q_norm, *k_norm; /* [head_dim], or NULL for a model without */
    const float *rope;            /* [n_rows, rope_dim]: of rope_row */
    float *scores;                /* [threads, n_heads / n_kv_heads, max_position_embeddings] */
};

/* attention_run - Threads: the engine's; no lock held. No allocation. */
void attention_run(const struct attention *a, struct compute *c);

#endif
