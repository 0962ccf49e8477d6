/* The tensors of a decoder by their Hugging Face names: one list for the model spec, which promises
 * them, and for the forward pass, which reads them. */
#ifndef BATON_WEIGHTS_MODEL_MODEL_TENSORS_H
#define BATON_WEIGHTS_MODEL_MODEL_TENSORS_H

#include "weights/model/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* Row: constant, name below "model.layers.<n>.", rows, columns (0: a vector), needed when. The
 * expressions see `c`, the config, and `sparse`: the layer has experts. */
#define LAYER_TENSORS(X)                                                                           \
    X(LAYER_ATTN_NORM, "input_layernorm.weight", c->hidden_size, 0, true)                          \
    X(LAYER_Q, "self_attn.q_proj.weight", MODEL_Q_WIDTH(c), c->hidden_size,                        \
      c->latents.q_rank == 0)                                                                      \
    X(LAYER_K, "self_attn.k_proj.weight", MODEL_K_WIDTH(c), c->hidden_size,                        \
      c->latents.kv_rank == 0)                                                                     \
    X(LAYER_V, "self_attn.v_proj.weight", MODEL_V_WIDTH(c), c->hidden_size,                        \
      c->latents.kv_rank == 0)                                                                     \
    X(LAYER_O, "self_attn.o_proj.weight", c->hidden_size, MODEL_O_WIDTH(c), true)                  \
    X(LAYER_Q_BIAS, "self_attn.q_proj.bias", MODEL_Q_WIDTH(c), 0, c->qkv_bias)                     \
    X(LAYER_K_BIAS, "self_attn.k_proj.bias", MODEL_K_WIDTH(c), 0, c->qkv_bias)                     \
    X(LAYER_V_BIAS, "self_attn.v_proj.bias", MODEL_V_WIDTH(c), 0, c->qkv_bias)                     \
    X(LAYER_O_BIAS, "self_attn.o_proj.bias", c->hidden_size, 0, c->o_bias)                         \
    X(LAYER_Q_NORM, "self_attn.q_norm.weight", c->head_dim, 0, c->qk_norm)                         \
    X(LAYER_K_NORM, "self_attn.k_norm.weight", c->head_dim, 0, c->qk_norm)                         \
    X(LAYER_MLP_NORM, "post_attention_layernorm.weight", c->hidden_size, 0, true)                  \
    X(LAYER_GATE, "mlp.gate_proj.weight", c->intermediate_size, c->hidden_size, !sparse)           \
    X(LAYER_UP, "mlp.up_proj.weight", c->intermediate_size, c->hidden_size, !sparse)               \
    X(LAYER_DOWN, "mlp.down_proj.weight", c->hidden_size, c->intermediate_size, !sparse)           \
    X(LAYER_GATE_BIAS, "mlp.gate_proj.bias", c->intermediate_size, 0, !sparse && c->mlp_bias)      \
    X(LAYER_UP_BIAS, "mlp.up_proj.bias", c->intermediate_size, 0, !sparse && c->mlp_bias)          \
    X(LAYER_DOWN_BIAS, "mlp.down_proj.bias", c->hidden_size, 0, !sparse && c->mlp_bias)            \
    X(LAYER_ROUTER, "mlp.gate.weight", c->experts.n, c->hidden_size,                               \
      sparse && c->arch != ARCH_MIXTRAL)                                                           \
    X(LAYER_BLOCK_ROUTER, "block_sparse_moe.gate.weight", c->experts.n, c->hidden_size,            \
      sparse && c->arch == ARCH_MIXTRAL)                                                           \
    X(LAYER_ROUTER_BIAS, "mlp.gate.e_score_correction_bias", c->experts.n, 0,                      \
      sparse && c->experts.sigmoid)                                                                \
    X(LAYER_SHARED_GATE, "mlp.shared_experts.gate_proj.weight", c->experts.shared_size,            \
      c->hidden_size, sparse && c->experts.shared_size > 0)                                        \
    X(LAYER_SHARED_UP, "mlp.shared_experts.up_proj.weight", c->experts.shared_size,                \
      c->hidden_size, sparse && c->experts.shared_size > 0)                                        \
    X(LAYER_SHARED_DOWN, "mlp.shared_experts.down_proj.weight", c->hidden_size,                    \
      c->experts.shared_size, sparse && c->experts.shared_size > 0)                                \
    X(LAYER_Q_A, "self_attn.q_a_proj.weight", c->latents.q_rank, c->hidden_size,                   \
      c->latents.q_rank > 0)                                                                       \
    X(LAYER_Q_A_NORM, "self_attn.q_a_layernorm.weight", c->latents.q_rank, 0,                      \
      c->latents.q_rank > 0)                                                                       \
    X(LAYER_Q_B, "self_attn.q_b_proj.weight", MODEL_Q_WIDTH(c), c->latents.q_rank,                 \
      c->latents.q_rank > 0)                                                                       \
    X(LAYER_KV_A, "self_attn.kv_a_proj_with_mqa.weight", c->latents.kv_rank + c->rope_dim,         \
      c->hidden_size, c->latents.kv_rank > 0)                                                      \
    X(LAYER_KV_A_NORM, "self_attn.kv_a_layernorm.weight", c->latents.kv_rank, 0,                   \
      c->latents.kv_rank > 0)                                                                      \
    X(LAYER_KV_B, "self_attn.kv_b_proj.weight", MODEL_KV_B_WIDTH(c), c->latents.kv_rank,           \
      c->latents.kv_rank > 0)

#define MODEL_Q_WIDTH(c) ((c)->n_heads * (c)->head_dim)
#define MODEL_K_WIDTH(c) ((c)->n_kv_heads * (c)->head_dim)
#define MODEL_V_WIDTH(c) ((c)->n_kv_heads * (c)->v_head_dim)
#define MODEL_O_WIDTH(c) ((c)->n_heads * (c)->v_head_dim)
/* Of each head the part of a key that is not rotated, then the value. */
#define MODEL_KV_B_WIDTH(c) ((c)->n_heads * ((c)->head_dim - (c)->rope_dim + (c)->v_head_dim))

#define MODEL_EMBED_NAME "model.embed_tokens.weight"
#define MODEL_NORM_NAME  "model.norm.weight"
#define MODEL_HEAD_NAME  "lm_head.weight"

enum layer_tensor {
#define X(constant, suffix, rows, columns, needed) constant,
    LAYER_TENSORS(X)
#undef X
        LAYER_TENSOR_COUNT
};

enum { MODEL_NAME_MAX = 128 };

/* The tensors of one expert, in the order of their arithmetic. */
enum expert_tensor { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_TENSOR_COUNT };

bool layer_tensor_needed(const struct model_config *c, uint32_t layer, enum layer_tensor t);

/* layer_tensor_shape - rows and columns; returns ndim (1 or 2). */
uint32_t layer_tensor_shape(const struct model_config *c, enum layer_tensor t, uint64_t shape[2]);

/* layer_tensor_name - "model.layers.<layer>.<suffix>". Returns out. */
const char *layer_tensor_name(uint32_t layer, enum layer_tensor t, char out[MODEL_NAME_MAX]);

/* The same of one expert: [rows, columns], and "model.layers.<layer>.mlp.experts.<expert>.<suffix>"
 * ("block_sparse_moe" instead of "mlp" in Mixtral). */
void expert_tensor_shape(const struct model_config *c, enum expert_tensor t, uint64_t shape[2]);
const char *expert_tensor_name(const struct model_config *c, uint32_t layer, uint32_t expert,
                               enum expert_tensor t, char out[MODEL_NAME_MAX]);

/* Under this name transformers 5 holds all experts of a layer as one tensor of three dimensions: of
 * each expert in turn the rows of its gate and then of its up (EXPERT_GATE, EXPERT_UP), or its down
 * (EXPERT_DOWN). Returns out. */
const char *expert_fused_name(uint32_t layer, enum expert_tensor t, char out[MODEL_NAME_MAX]);

#endif
