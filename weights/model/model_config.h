/* config.json of a Hugging Face model directory, and the model spec that follows from it. What is
 * not supported is refused with the key that is the reason. */
#ifndef BATON_WEIGHTS_MODEL_MODEL_CONFIG_H
#define BATON_WEIGHTS_MODEL_MODEL_CONFIG_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MODEL_CONFIG_NBYTES_MAX = 1 << 20, /* of config.json and of generation_config.json */
    MODEL_EOS_MAX = 16,
    MODEL_LAYERS_MAX = 1024,
    MODEL_VOCAB_MAX = 1 << 24,
    MODEL_WIDTH_MAX = 1 << 20, /* hidden_size, intermediate_size, heads * head_dim */
    MODEL_HEAD_DIM_MAX = 1 << 12,
    MODEL_EXPERTS_MAX = 1 << 12, /* of one layer: the id of an expert fits in 16 bits */
    MODEL_EXPERTS_PER_TOKEN_MAX = 64,
    MODEL_POSITION_MAX = 1 << 24 /* positions are exact in float32 up to here */
};

enum model_arch {
    ARCH_QWEN3,
    ARCH_QWEN2,
    ARCH_LLAMA,
    ARCH_MISTRAL,
    ARCH_QWEN3_MOE,
    ARCH_MIXTRAL,
    ARCH_DEEPSEEK_V3
};

/* How angles follow from positions. */
enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR, /* every frequency divided by the factor */
    ROPE_LLAMA3, /* long waves divided, short ones kept, those between blended */
    ROPE_YARN    /* the same by another ramp, and larger scores of attention */
};

/* All above 0 where the kind reads them. */
struct rope_scaling {
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3; low < high */
    double original_positions;   /* llama3, yarn: the context before it was stretched */
    double beta_fast, beta_slow; /* yarn: turns in that context, where the ramp begins and ends */
    bool truncate;               /* yarn: the ramp begins and ends at whole pairs */
    double rotation;             /* yarn: what cosines and sines are multiplied by */
    double scores;               /* yarn: what scores of attention are multiplied by besides */
};

/* Sampling values of generation_config.json: defaults for the routes where vLLM has them. */
struct model_defaults {
    bool has_temperature, has_top_p, has_min_p, has_repetition_penalty, has_top_k, has_max_tokens;
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_tokens;
};

/* A mixture of experts: in a sparse layer a router chooses which experts compute a token. */
struct model_experts {
    uint32_t n;                 /* in a sparse layer; 0: the model has no sparse layer */
    uint32_t n_per_token;       /* 1..n */
    uint32_t intermediate_size; /* of one expert */
    bool normalize;             /* the weights of the chosen experts are made to sum to 1 */
    bool sigmoid;           /* scores are sigmoids of the logits; false: their softmax. With it: */
    uint32_t n_groups;      /* equal parts of the experts, of at least 2 */
    uint32_t n_groups_kept; /* experts are chosen from the best groups */
    float scale;            /* of the weights */
    uint32_t shared_size;   /* width of what computes every token besides; 0: nothing does */
    uint32_t n_sparse_layers;
    uint64_t
        sparse_layers[MODEL_LAYERS_MAX / 64]; /* bit l % 64 of word l / 64: layer l is sparse */
};

/* Latent attention (MLA): keys and values of all heads, and maybe the queries, are made from short
 * vectors; of a key only the last rope_dim elements are made otherwise: rotated, for all heads. */
struct model_latents {
    uint32_t kv_rank; /* elements for keys and values; 0: the model has no latent attention */
    uint32_t q_rank;  /* elements for queries; 0: they are made as elsewhere */
};

struct model_config {
    enum model_arch arch;
    uint32_t vocab_size, hidden_size, intermediate_size;
    uint32_t n_layers, n_heads, n_kv_heads;
    uint32_t head_dim, v_head_dim; /* of a query and a key; of a value */
    uint32_t rope_dim;             /* the last elements of a query and a key, which are rotated */
    bool rope_interleave;          /* pairs are (2i, 2i + 1); false: (i, i + rope_dim / 2) */
    struct model_latents latents;
    uint32_t max_position_embeddings;
    float rms_norm_eps;
    enum rope_kind rope_kind;
    struct rope_scaling rope_scaling;
    double rope_theta;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias, qk_norm; /* which tensors a layer has */
    enum dtype dtype; /* of the file's `dtype`/`torch_dtype` (BF16, F16, F32; absent: F32);
                         used where no weights decide it */
    uint32_t n_eos;   /* generation_config.json wins over config.json, as in transformers */
    uint32_t eos[MODEL_EOS_MAX];
    bool eos_differs; /* and config.json has one that is not among them */
    struct model_defaults defaults;
    struct model_experts experts;
    uint32_t n_mtp_layers; /* of a checkpoint, after n_layers: they predict further tokens, and
                              their tensors are accepted and dropped */
};

/* model_layer_is_sparse - has the layer experts, instead of one MLP? */
bool model_layer_is_sparse(const struct model_config *c, uint32_t layer);

/* model_config_parse - @json is config.json, @generation_json generation_config.json or NULL.
 * Errors: ERR_BAD_REQUEST with the key as the field ("/hidden_act"; "/generation_config/top_p" of
 *         the other file); ERR_NO_MEMORY. */
int model_config_parse(struct model_config *out, const char *json, size_t len,
                       const char *generation_json, size_t generation_len, struct err *e);

/* model_config_load - the same from DIR. Errors: also ERR_NOT_FOUND, ERR_UNREADABLE. */
int model_config_load(struct model_config *out, const char *dir, struct err *e);

/* model_config_ties - does DIR's config.json, of any model, have "tie_word_embeddings": true,
 * outside or in text_config, and not the contrary in the other? Readers differ which of the two
 * counts. Errors: ERR_BAD_REQUEST (not JSON), ERR_NOT_FOUND, ERR_UNREADABLE. */
int model_config_ties(bool *out, const char *dir, struct err *e);

/* model_spec_of_dir - the tensors that an update of DIR's model must bring, for any engine: as
 * model_spec_of_config; for a model that the embedded engine does not know, every stored tensor
 * except rotary frequencies, and except the head of a model that ties it.
 * @stored  as model_spec_of_config's
 * Errors: model_config_load's without `stored`; else ERR_NOT_FOUND, ERR_UNREADABLE, ERR_NO_MEMORY,
 *         and ERR_BAD_REQUEST where config.json is no JSON or nothing is stored. */
int model_spec_of_dir(struct model_spec **out, const char *dir, const struct tensor_list *stored,
                      struct err *e);

/* model_spec_of_config - the tensors that the model needs, with the dtypes that `stored` has for
 * them (cfg->dtype for names it lacks); aliases as in weights/model_spec.h.
 * @stored  borrowed, or NULL: the tensor list of a checkpoint of this model
 * Errors: ERR_MISMATCH (a stored tensor has another shape: names it), ERR_NO_MEMORY. */
int model_spec_of_config(struct model_spec **out, const struct model_config *cfg,
                         const struct tensor_list *stored, struct err *e);

#endif
