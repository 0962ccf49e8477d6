/* The model spec of a model: a name, a shape and a dtype for each row of LAYER_TENSORS and each
 * layer, and the other names that trainers and engines use for the same bytes. */
#include "engine/kernels/attention.h"
#include "engine/model/model_tensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool layer_tensor_needed(const struct model_config *c, enum layer_tensor t)
{
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

static int add_tensor(struct tensor_list_builder *b, const struct model_config *c,
                      const struct tensor_list *stored, const char *name, const uint64_t *shape,
                      uint32_t ndim, struct err *e)
{
    uint32_t i = stored != NULL ? tensor_list_find(stored, name) : TENSOR_LIST_NO_TENSOR;
    enum dtype dtype = c->dtype;

    if (i != TENSOR_LIST_NO_TENSOR) {
        const struct tensor_spec *t = &stored->tensors[i];

        if (t->ndim != ndim || memcmp(t->shape, shape, ndim * sizeof *shape) != 0)
            return shape_error(t, shape, ndim, e);
        dtype = t->dtype;
    }
    if (dtype != DTYPE_BF16 && dtype != DTYPE_F16 && dtype != DTYPE_F32)
        return err_set(e, ERR_MISMATCH, "",
                       "tensor '%s' is stored as %s, which is not one of BF16, F16, F32", name,
                       dtype_name(dtype));
    return tensor_list_builder_add(b, name, dtype, shape, ndim, UINT64_MAX, e);
}

static int add_layer(struct tensor_list_builder *b, const struct model_config *c,
                     const struct tensor_list *stored, uint32_t layer, struct err *e)
{
    char name[MODEL_NAME_MAX];
    uint64_t shape[2];

    for (int t = 0; t < LAYER_TENSOR_COUNT; t++) {
        uint32_t ndim = layer_tensor_shape(c, (enum layer_tensor)t, shape);

        if (layer_tensor_needed(c, (enum layer_tensor)t) &&
            add_tensor(b, c, stored, layer_tensor_name(layer, (enum layer_tensor)t, name), shape,
                       ndim, e) != 0)
            return -1;
    }
    return 0;
}

static int build_tensor_list(struct tensor_list **out, const struct model_config *c,
                             const struct tensor_list *stored, struct err *e)
{
    const uint64_t table[2] = {c->vocab_size, c->hidden_size}, norm[1] = {c->hidden_size};
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    if (add_tensor(b, c, stored, MODEL_EMBED_NAME, table, 2, e) != 0)
        goto drop;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        if (add_layer(b, c, stored, layer, e) != 0)
            goto drop;
    }
    if (add_tensor(b, c, stored, MODEL_NORM_NAME, norm, 1, e) != 0)
        goto drop;
    if (!c->tie_word_embeddings && add_tensor(b, c, stored, MODEL_HEAD_NAME, table, 2, e) != 0)
        goto drop;
    return tensor_list_builder_finish(b, out, e);

drop:
    tensor_list_builder_free(b);
    return -1;
}

/* Names under which vLLM holds several of a layer's tensors as one, stacked along their rows. */
static const struct fusion {
    const char *suffix;
    enum layer_tensor parts[3];
    uint32_t n_parts;
} fusions[] = {
    {"self_attn.qkv_proj.weight", {LAYER_Q, LAYER_K, LAYER_V}, 3},
    {"self_attn.qkv_proj.bias", {LAYER_Q_BIAS, LAYER_K_BIAS, LAYER_V_BIAS}, 3},
    {"mlp.gate_up_proj.weight", {LAYER_GATE, LAYER_UP}, 2},
    {"mlp.gate_up_proj.bias", {LAYER_GATE_BIAS, LAYER_UP_BIAS}, 2},
};
enum { N_FUSIONS = sizeof fusions / sizeof fusions[0], FUSION_PARTS_MAX = 3 };

struct fused {
    char name[MODEL_NAME_MAX];
    char part_names[FUSION_PARTS_MAX][MODEL_NAME_MAX];
    const char *targets[FUSION_PARTS_MAX + 1];
};

/* False when the layer lacks a part, or the parts differ in dtype and so cannot come as one. */
static bool alias_fuse(struct fused *out, struct alias_spec *spec, const struct model_config *c,
                       const struct tensor_list *tensor_list, uint32_t layer,
                       const struct fusion *f)
{
    uint64_t shape[2];

    *spec = (struct alias_spec){.name = out->name, .kind = ALIAS_FUSED, .targets = out->targets};
    (void)snprintf(out->name, sizeof out->name, "model.layers.%u.%s", layer, f->suffix);
    for (uint32_t i = 0; i < f->n_parts; i++) {
        uint32_t at, first;

        if (!layer_tensor_needed(c, f->parts[i]))
            return false;
        out->targets[i] = layer_tensor_name(layer, f->parts[i], out->part_names[i]);
        at = tensor_list_find(tensor_list, out->targets[i]);
        first = tensor_list_find(tensor_list, out->targets[0]);
        assert(at != TENSOR_LIST_NO_TENSOR && first != TENSOR_LIST_NO_TENSOR);
        if (tensor_list->tensors[at].dtype != tensor_list->tensors[first].dtype)
            return false;
        spec->ndim = layer_tensor_shape(c, f->parts[i], shape);
        spec->shape[0] += shape[0];
        spec->shape[1] = shape[1];
    }
    out->targets[f->n_parts] = NULL;
    return true;
}

/* Trainers may send the stored rotary frequencies: they must be those that this model computes. */
static int derive_rotary(struct model_spec *m, const struct model_config *cfg, struct err *e)
{
    uint32_t n = cfg->head_dim / 2;
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
    static const char *const embed[] = {MODEL_EMBED_NAME, NULL};
    struct model_spec *made;
    struct tensor_list *tensor_list;
    struct alias_spec *specs;
    struct fused *fused;
    uint32_t n = 0, n_fused = 0;
    int rc = -1;

    if (build_tensor_list(&tensor_list, cfg, stored, e) != 0)
        return -1;
    specs = calloc((size_t)cfg->n_layers * N_FUSIONS + 2, sizeof *specs);
    fused = calloc((size_t)cfg->n_layers * N_FUSIONS, sizeof *fused);
    if (specs == NULL || fused == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the names of %u layers", cfg->n_layers);
        tensor_list_unref(tensor_list);
        goto drop;
    }
    if (cfg->tie_word_embeddings)
        specs[n++] = (struct alias_spec){
            .name = MODEL_HEAD_NAME, .kind = ALIAS_TIED, .targets = embed};
    /* Those of single layers are known by their ending, see model_spec_match. */
    specs[n++] = (struct alias_spec){.name = "model.rotary_emb.inv_freq", .kind = ALIAS_IGNORED};
    for (uint32_t layer = 0; layer < cfg->n_layers; layer++) {
        for (uint32_t f = 0; f < N_FUSIONS; f++) {
            if (alias_fuse(&fused[n_fused], &specs[n], cfg, tensor_list, layer, &fusions[f])) {
                n_fused++;
                n++;
            }
        }
    }
    rc = model_spec_new(&made, tensor_list, specs, n, e);
    if (rc == 0) {
        rc = derive_rotary(made, cfg, e);
        if (rc == 0)
            *out = made;
        else
            model_spec_free(made);
    }
drop:
    free(fused);
    free(specs);
    return rc;
}
