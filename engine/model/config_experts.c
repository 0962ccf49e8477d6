/* The mixture of experts of config.json: which layers are sparse, how many experts they have, and
 * how a token's experts are chosen and weighted. */
#include "engine/model/config_members.h"

#include <stdio.h>

static void make_sparse(struct model_experts *x, uint32_t layer)
{
    x->sparse_layers[layer / 64] |= UINT64_C(1) << layer % 64;
    x->n_sparse_layers++;
}

/* Two spellings of one number: transformers 5 writes num_local_experts for every model. */
static int read_n_experts(uint32_t *out, const json_t *o, const char *key, uint32_t least,
                          struct err *e)
{
    uint32_t a = UINT32_MAX, b = UINT32_MAX;
    char found[32];

    if (config_u32(&a, o, key, false, least, MODEL_EXPERTS_MAX, e) != 0 ||
        config_u32(&b, o, "num_local_experts", false, least, MODEL_EXPERTS_MAX, e) != 0)
        return -1;
    if (a == UINT32_MAX && b == UINT32_MAX)
        return config_missing(e, "", key, "the number of experts of a sparse layer");
    if (a != UINT32_MAX && b != UINT32_MAX && a != b) {
        (void)snprintf(found, sizeof found, "%u", b);
        return config_refuse(e, "", "num_local_experts", found, "what the other name of it has");
    }
    *out = a != UINT32_MAX ? a : b;
    return 0;
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

    if (read_n_experts(&x->n, o, "num_experts", 0, e) != 0 ||
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

    if (config_u32(&x->n, o, "num_local_experts", true, 1, MODEL_EXPERTS_MAX, e) != 0)
        return -1;
    x->normalize = true;
    x->intermediate_size = c->intermediate_size;
    for (uint32_t l = 0; l < c->n_layers; l++)
        make_sparse(x, l);
    return read_n_per_token(x, o, e);
}

int config_experts(struct model_config *c, const json_t *o, struct err *e)
{
    switch (c->arch) {
    case ARCH_QWEN3_MOE:
        return parse_qwen3_moe(c, o, e);
    case ARCH_MIXTRAL:
        return parse_mixtral(c, o, e);
    case ARCH_QWEN3:
    case ARCH_QWEN2:
    case ARCH_LLAMA:
    case ARCH_MISTRAL:
        break;
    }
    return 0;
}
