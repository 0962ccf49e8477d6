/* The mixture of experts of config.json: which layers are sparse, how many experts they have, and
 * how a token's experts are chosen and weighted. */
#include "weights/model/config_members.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void make_sparse(struct model_experts *x, uint32_t layer)
{
    x->sparse_layers[layer / 64] |= UINT64_C(1) << layer % 64;
    x->n_sparse_layers++;
}

/* Two spellings of one number: transformers 5 writes num_local_experts for every model. */
static int read_n_experts(uint32_t *out, const json_t *o, const char *key, const char *other,
                          uint32_t least, struct err *e)
{
    if (config_member(o, key) == NULL && config_member(o, other) == NULL)
        return config_missing(e, "", key, "the number of experts of a sparse layer");
    if (config_u32(out, o, key, false, least, MODEL_EXPERTS_MAX, e) != 0 ||
        config_u32(out, o, other, false, least, MODEL_EXPERTS_MAX, e) != 0)
        return -1;
    return config_agree((struct config_key){o, "", key}, (struct config_key){o, "", other}, e);
}

static int read_n_per_token(struct model_experts *x, const json_t *o, struct err *e)
{
    if (config_u32(&x->n_per_token, o, "num_experts_per_tok", true, 1, MODEL_EXPERTS_PER_TOKEN_MAX,
                   e) != 0)
        return -1;
    if (x->n_per_token > x->n)
        return err_set(e, ERR_BAD_REQUEST, "/num_experts_per_tok",
                       "num_experts_per_tok %u is more than the %u experts of a layer",
                       x->n_per_token, x->n);
    return 0;
}

/* @dense  [n_layers]: set for each layer that mlp_only_layers names */
static int read_dense_layers(bool *dense, uint32_t n_layers, const json_t *o, struct err *e)
{
    const json_t *list = config_member(o, "mlp_only_layers");
    char field[ERR_FIELD_MAX], found[64];

    if (list != NULL && !json_is_array(list))
        return config_refuse(e, "", "mlp_only_layers", config_quoted(list, found, sizeof found),
                             "an array of layers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t layer = json_integer_value(v);

        if (!json_is_integer(v) || layer < 0) {
            (void)snprintf(field, sizeof field, "/mlp_only_layers/%zu", i);
            return err_set(e, ERR_BAD_REQUEST, field, "%s is not the number of a layer",
                           config_quoted(v, found, sizeof found));
        }
        if (layer < (json_int_t)n_layers)
            dense[layer] = true;
    }
    return 0;
}

static int parse_qwen3_moe(struct model_config *c, const json_t *o, struct err *e)
{
    struct model_experts *x = &c->experts;
    bool dense[MODEL_LAYERS_MAX] = {false};
    uint32_t step = 1;

    if (read_n_experts(&x->n, o, "num_experts", "num_local_experts", 0, e) != 0 ||
        config_u32(&step, o, "decoder_sparse_step", false, 1, MODEL_LAYERS_MAX, e) != 0 ||
        read_dense_layers(dense, c->n_layers, o, e) != 0 ||
        config_bool(&x->normalize, o, "norm_topk_prob", e) != 0)
        return -1;
    for (uint32_t l = 0; x->n > 0 && l < c->n_layers; l++)
        if (!dense[l] && (l + 1) % step == 0)
            make_sparse(x, l);
    if (x->n_sparse_layers == 0) {
        *x = (struct model_experts){0};
        return 0;
    }
    if (config_u32(&x->intermediate_size, o, "moe_intermediate_size", true, 1, MODEL_WIDTH_MAX,
                   e) != 0)
        return -1;
    return read_n_per_token(x, o, e);
}

static int parse_mixtral(struct model_config *c, const json_t *o, struct err *e)
{
    struct model_experts *x = &c->experts;

    if (read_n_experts(&x->n, o, "num_local_experts", "num_experts", 1, e) != 0)
        return -1;
    x->normalize = true;
    x->intermediate_size = c->intermediate_size;
    for (uint32_t l = 0; l < c->n_layers; l++)
        make_sparse(x, l);
    return read_n_per_token(x, o, e);
}

/* Other ways to score and to choose, of DeepSeek's own code. Absent: those of DeepSeek-V3. */
static int refuse_other_routers(const json_t *o, struct err *e)
{
    static const struct {
        const char *key, *value;
    } only[] = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
    uint32_t every = 1;
    char found[64];

    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++) {
        const json_t *v = config_member(o, only[i].key);

        if (v != NULL && (!json_is_string(v) || strcmp(json_string_value(v), only[i].value) != 0))
            return config_refuse(e, "", only[i].key, config_quoted(v, found, sizeof found),
                                 only[i].value);
    }
    return config_u32(&every, o, "moe_layer_freq", false, 1, 1, e);
}

static int read_groups(struct model_experts *x, const json_t *o, struct err *e)
{
    if (config_u32(&x->n_groups, o, "n_group", true, 1, MODEL_EXPERTS_MAX, e) != 0 ||
        config_u32(&x->n_groups_kept, o, "topk_group", true, 1, MODEL_EXPERTS_MAX, e) != 0)
        return -1;
    if (x->n % x->n_groups != 0 || x->n / x->n_groups < 2)
        return err_set(e, ERR_BAD_REQUEST, "/n_group",
                       "n_group %u does not make equal groups of at least 2 of n_routed_experts %u",
                       x->n_groups, x->n);
    if (x->n_groups_kept > x->n_groups)
        return err_set(e, ERR_BAD_REQUEST, "/topk_group", "topk_group %u is more than n_group %u",
                       x->n_groups_kept, x->n_groups);
    if (x->n_per_token > x->n_groups_kept * (x->n / x->n_groups))
        return err_set(e, ERR_BAD_REQUEST, "/num_experts_per_tok",
                       "num_experts_per_tok %u is more than the %u experts of topk_group %u groups",
                       x->n_per_token, x->n_groups_kept * (x->n / x->n_groups), x->n_groups_kept);
    return 0;
}

static int read_scale(struct model_experts *x, const json_t *o, struct err *e)
{
    double scale = 0.0;

    if (config_member(o, "routed_scaling_factor") == NULL)
        return config_missing(e, "", "routed_scaling_factor", "a number above 0");
    if (config_positive(&scale, o, "", "routed_scaling_factor", e) != 0)
        return -1;
    x->scale = (float)fmin(scale, (double)FLT_MAX);
    if (!(x->scale > 0 && scale <= (double)FLT_MAX))
        return config_refuse(e, "", "routed_scaling_factor", "beyond what a float holds",
                             "a number above 0");
    return 0;
}

static int parse_deepseek_v3(struct model_config *c, const json_t *o, struct err *e)
{
    struct model_experts *x = &c->experts;
    uint32_t n_dense = 0, n_shared = 0;

    x->sigmoid = true;
    if (refuse_other_routers(o, e) != 0 ||
        config_agree((struct config_key){o, "", "num_nextn_predict_layers"},
                     (struct config_key){o, "", "num_mtp_layers"}, e) != 0 ||
        config_u32(&c->n_mtp_layers, o, "num_mtp_layers", false, 0, MODEL_LAYERS_MAX, e) != 0 ||
        config_u32(&c->n_mtp_layers, o, "num_nextn_predict_layers", false, 0, MODEL_LAYERS_MAX,
                   e) != 0 ||
        config_u32(&n_dense, o, "first_k_dense_replace", true, 0, MODEL_LAYERS_MAX, e) != 0)
        return -1;
    if (n_dense >= c->n_layers) {
        *x = (struct model_experts){0};
        return 0;
    }
    for (uint32_t l = n_dense; l < c->n_layers; l++)
        make_sparse(x, l);
    if (read_n_experts(&x->n, o, "n_routed_experts", "num_local_experts", 2, e) != 0 ||
        read_n_per_token(x, o, e) != 0 || read_groups(x, o, e) != 0 ||
        config_bool_or_true(&x->normalize, o, "norm_topk_prob", e) != 0 ||
        read_scale(x, o, e) != 0 ||
        config_u32(&x->intermediate_size, o, "moe_intermediate_size", true, 1, MODEL_WIDTH_MAX,
                   e) != 0 ||
        config_u32(&n_shared, o, "n_shared_experts", true, 1, MODEL_WIDTH_MAX, e) != 0)
        return -1;
    if ((uint64_t)n_shared * x->intermediate_size > MODEL_WIDTH_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/n_shared_experts",
                       "n_shared_experts %u times moe_intermediate_size %u is over %d", n_shared,
                       x->intermediate_size, MODEL_WIDTH_MAX);
    x->shared_size = n_shared * x->intermediate_size;
    return 0;
}

int config_experts(struct model_config *c, const json_t *o, struct err *e)
{
    switch (c->arch) {
    case ARCH_QWEN3_MOE:
        return parse_qwen3_moe(c, o, e);
    case ARCH_MIXTRAL:
        return parse_mixtral(c, o, e);
    case ARCH_DEEPSEEK_V3:
        return parse_deepseek_v3(c, o, e);
    case ARCH_QWEN3:
    case ARCH_QWEN2:
    case ARCH_LLAMA:
    case ARCH_MISTRAL:
        break;
    }
    return 0;
}
