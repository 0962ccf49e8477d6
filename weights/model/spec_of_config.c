/* The model spec of a model: a name, a shape and a dtype for each row of LAYER_TENSORS and each
 * layer, and for each expert. */
#include "weights/model/model_tensors.h"
#include "weights/model/rope.h"
#include "weights/model/spec_aliases.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool model_layer_is_sparse(const struct model_config *c, uint32_t layer)
{
    assert(layer < MODEL_LAYERS_MAX);
    return (c->experts.sparse_layers[layer / 64] >> layer % 64 & 1) != 0;
}

bool layer_tensor_needed(const struct model_config *c, uint32_t layer, enum layer_tensor t)
{
    bool sparse = model_layer_is_sparse(c, layer);

    switch (t) {
#define X(constant, suffix, rows, columns, needed)                                                 \
    case constant:                                                                                 \
        return needed;
        LAYER_TENSORS(X)
#undef X
    case LAYER_TENSOR_COUNT:
        break;
    }
    assert(false);
    return false;
}

uint32_t layer_tensor_shape(const struct model_config *c, enum layer_tensor t, uint64_t shape[2])
{
    switch (t) {
#define X(constant, suffix, rows, columns, needed)                                                 \
    case constant:                                                                                 \
        shape[0] = (rows);                                                                         \
        shape[1] = (columns);                                                                      \
        break;
        LAYER_TENSORS(X)
#undef X
    case LAYER_TENSOR_COUNT:
        assert(false);
    }
    return shape[1] != 0 ? 2 : 1;
}

const char *layer_tensor_name(uint32_t layer, enum layer_tensor t, char out[MODEL_NAME_MAX])
{
    static const char *const suffixes[] = {
#define X(constant, suffix, rows, columns, needed) [constant] = (suffix),
        LAYER_TENSORS(X)
#undef X
    };

    (void)snprintf(out, MODEL_NAME_MAX, "model.layers.%u.%s", layer, suffixes[t]);
    return out;
}

void expert_tensor_shape(const struct model_config *c, enum expert_tensor t, uint64_t shape[2])
{
    shape[0] = t == EXPERT_DOWN ? c->hidden_size : c->experts.intermediate_size;
    shape[1] = t == EXPERT_DOWN ? c->experts.intermediate_size : c->hidden_size;
}

const char *expert_tensor_name(const struct model_config *c, uint32_t layer, uint32_t expert,
                               enum expert_tensor t, char out[MODEL_NAME_MAX])
{
    static const char *const names[EXPERT_TENSOR_COUNT] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const mixtral_names[EXPERT_TENSOR_COUNT] = {"w1", "w3", "w2"};
    bool mixtral = c->arch == ARCH_MIXTRAL;

    (void)snprintf(out, MODEL_NAME_MAX, "model.layers.%u.%s.experts.%u.%s.weight", layer,
                   mixtral ? "block_sparse_moe" : "mlp", expert,
                   mixtral ? mixtral_names[t] : names[t]);
    return out;
}

const char *expert_fused_name(uint32_t layer, enum expert_tensor t, char out[MODEL_NAME_MAX])
{
    (void)snprintf(out, MODEL_NAME_MAX, "model.layers.%u.mlp.experts.%s", layer,
                   t == EXPERT_DOWN ? "down_proj" : "gate_up_proj");
    return out;
}

/* The model's rows are those of the embedding, so a difference there is the config's. */
static int shape_error(const struct tensor_spec *found, const uint64_t *shape, uint32_t ndim,
                       struct err *e)
{
    struct tensor_spec expected = {.ndim = ndim};
    bool vocab = strcmp(found->name, MODEL_EMBED_NAME) == 0 && found->ndim == 2 &&
                 found->shape[0] != shape[0];
    char a[128], b[128];

    memcpy(expected.shape, shape, ndim * sizeof *shape);
    return err_set(e, ERR_MISMATCH, vocab ? "/vocab_size" : "",
                   "tensor '%s' is stored as %s, but config.json makes it %s", found->name,
                   tensor_list_shape_text(found, a, sizeof a),
                   tensor_list_shape_text(&expected, b, sizeof b));
}

/* What the list is made from. */
struct building {
    struct tensor_list_builder *builder;
    const struct model_config *cfg;
    const struct tensor_list *stored; /* or NULL */
};

/* @dtype  of the tensor; DTYPE_NONE: as it is stored, else the config's */
static int config_add_tensor(const struct building *b, const char *name, const uint64_t *shape,
                             uint32_t ndim, enum dtype dtype, struct err *e)
{
    uint32_t i = b->stored != NULL ? tensor_list_find(b->stored, name) : TENSOR_LIST_NO_TENSOR;

    if (i != TENSOR_LIST_NO_TENSOR) {
        const struct tensor_spec *t = &b->stored->tensors[i];

        if (t->ndim != ndim || memcmp(t->shape, shape, ndim * sizeof *shape) != 0)
            return shape_error(t, shape, ndim, e);
        dtype = dtype == DTYPE_NONE ? t->dtype : dtype;
    }
    dtype = dtype == DTYPE_NONE ? b->cfg->dtype : dtype;
    if (dtype != DTYPE_BF16 && dtype != DTYPE_F16 && dtype != DTYPE_F32)
        return err_set(e, ERR_MISMATCH, "",
                       "tensor '%s' is stored as %s, which is not one of BF16, F16, F32", name,
                       dtype_name(dtype));
    return tensor_list_builder_add(b->builder, name, dtype, shape, ndim, UINT64_MAX, e);
}

/* Where a checkpoint stores the experts fused, the dtype is that of the fused tensor. */
static int add_expert(const struct building *b, uint32_t layer, uint32_t expert, struct err *e)
{
    char name[MODEL_NAME_MAX];
    uint64_t shape[2];

    for (int t = 0; t < EXPERT_TENSOR_COUNT; t++) {
        enum dtype of_fused = DTYPE_NONE;
        uint32_t i = TENSOR_LIST_NO_TENSOR;

        if (b->stored != NULL)
            i = tensor_list_find(b->stored, expert_fused_name(layer, (enum expert_tensor)t, name));
        if (i != TENSOR_LIST_NO_TENSOR)
            of_fused = b->stored->tensors[i].dtype;
        expert_tensor_shape(b->cfg, (enum expert_tensor)t, shape);
        if (config_add_tensor(
                b, expert_tensor_name(b->cfg, layer, expert, (enum expert_tensor)t, name), shape, 2,
                of_fused, e) != 0)
            return -1;
    }
    return 0;
}

/* The router of DeepSeek-V3 is float32 in a model of any dtype, as transformers holds and saves it.
 */
static bool spec_of_config_is_float32(const struct model_config *c, enum layer_tensor t)
{
    return c->experts.sigmoid && (t == LAYER_ROUTER || t == LAYER_ROUTER_BIAS);
}

static int add_layer(const struct building *b, uint32_t layer, struct err *e)
{
    char name[MODEL_NAME_MAX];
    uint64_t shape[2];

    for (int t = 0; t < LAYER_TENSOR_COUNT; t++) {
        uint32_t ndim = layer_tensor_shape(b->cfg, (enum layer_tensor)t, shape);

        if (layer_tensor_needed(b->cfg, layer, (enum layer_tensor)t) &&
            config_add_tensor(b, layer_tensor_name(layer, (enum layer_tensor)t, name), shape, ndim,
                              spec_of_config_is_float32(b->cfg, (enum layer_tensor)t) ? DTYPE_F32
                                                                                      : DTYPE_NONE,
                              e) != 0)
            return -1;
    }
    for (uint32_t i = 0; model_layer_is_sparse(b->cfg, layer) && i < b->cfg->experts.n; i++)
        if (add_expert(b, layer, i, e) != 0)
            return -1;
    return 0;
}

static int build_tensor_list(struct tensor_list **out, const struct model_config *c,
                             const struct tensor_list *stored, struct err *e)
{
    const uint64_t table[2] = {c->vocab_size, c->hidden_size}, norm[1] = {c->hidden_size};
    struct building b = {.cfg = c, .stored = stored};

    if (tensor_list_builder_new(&b.builder, e) != 0)
        return -1;
    if (config_add_tensor(&b, MODEL_EMBED_NAME, table, 2, DTYPE_NONE, e) != 0)
        goto drop;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        if (add_layer(&b, layer, e) != 0)
            goto drop;
    }
    if (config_add_tensor(&b, MODEL_NORM_NAME, norm, 1, DTYPE_NONE, e) != 0)
        goto drop;
    if (!c->tie_word_embeddings &&
        config_add_tensor(&b, MODEL_HEAD_NAME, table, 2, DTYPE_NONE, e) != 0)
        goto drop;
    return tensor_list_builder_finish(b.builder, out, e);

drop:
    tensor_list_builder_free(b.builder);
    return -1;
}

static int spec_of_config_hold_routers(struct model_spec *m, const struct model_config *c,
                                       struct err *e)
{
    char name[MODEL_NAME_MAX];

    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (int t = 0; t < LAYER_TENSOR_COUNT; t++)
            if (spec_of_config_is_float32(c, (enum layer_tensor)t) &&
                layer_tensor_needed(c, layer, (enum layer_tensor)t) &&
                model_spec_hold(m, layer_tensor_name(layer, (enum layer_tensor)t, name), e) != 0)
                return -1;
    return 0;
}

/* Trainers may send the stored rotary frequencies: they must be those that this model computes. */
static int derive_rotary(struct model_spec *m, const struct model_config *cfg, struct err *e)
{
    uint32_t n = cfg->rope_dim / 2;
    float *frequencies = malloc(n * sizeof *frequencies);
    int rc;

    if (frequencies == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u rotary frequencies", (unsigned)n);
    rope_frequencies(frequencies, cfg);
    rc = model_spec_derive_rotary(m, frequencies, n, e);
    free(frequencies);
    return rc;
}

int model_spec_of_config(struct model_spec **out, const struct model_config *cfg,
                         const struct tensor_list *stored, struct err *e)
{
    struct spec_aliases aliases;
    struct model_spec *made;
    struct tensor_list *tensor_list;
    int rc;

    if (build_tensor_list(&tensor_list, cfg, stored, e) != 0)
        return -1;
    if (spec_aliases_init(&aliases, cfg, tensor_list, e) != 0) {
        tensor_list_unref(tensor_list);
        return -1;
    }
    rc = model_spec_new(&made, tensor_list, aliases.specs, aliases.n, e);
    spec_aliases_fini(&aliases);
    if (rc != 0)
        return -1;
    if (spec_of_config_hold_routers(made, cfg, e) != 0 || derive_rotary(made, cfg, e) != 0) {
        model_spec_free(made);
        return -1;
    }
    *out = made;
    return 0;
}
