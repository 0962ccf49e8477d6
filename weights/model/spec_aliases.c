/* The other names of a model's tensors. */
#include "weights/model/spec_aliases.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/* Names under which vLLM holds several of a layer's tensors as one, stacked along their rows; and
 * the one under which transformers 5 holds the router of Mixtral. */
static const struct fusion {
    const char *suffix;
    enum layer_tensor parts[3];
    uint32_t n_parts;
} fusions[] = {
    {"self_attn.qkv_proj.weight", {LAYER_Q, LAYER_K, LAYER_V}, 3},
    {"self_attn.fused_qkv_a_proj.weight", {LAYER_Q_A, LAYER_KV_A}, 2},
    {"self_attn.qkv_proj.bias", {LAYER_Q_BIAS, LAYER_K_BIAS, LAYER_V_BIAS}, 3},
    {"mlp.gate_up_proj.weight", {LAYER_GATE, LAYER_UP}, 2},
    {"mlp.gate_up_proj.bias", {LAYER_GATE_BIAS, LAYER_UP_BIAS}, 2},
    {"mlp.shared_experts.gate_up_proj.weight", {LAYER_SHARED_GATE, LAYER_SHARED_UP}, 2},
    {"mlp.gate.weight", {LAYER_BLOCK_ROUTER}, 1},
};
enum {
    N_FUSIONS = sizeof fusions / sizeof fusions[0],
    FUSION_PARTS_MAX = 3,
    N_EXPERT_FUSIONS = 2, /* gate with up; down */
    N_MODEL_ALIASES = 2   /* the tied head, rotary frequencies */
};

static struct alias_spec *next_spec(struct spec_aliases *a)
{
    struct alias_spec *spec = &a->specs[a->n];

    *spec = (struct alias_spec){
        .name = a->names[a->n_names], .kind = ALIAS_FUSED, .targets = a->targets + a->n_targets};
    return spec;
}

/* Keeps what next_spec began. */
static void keep_spec(struct spec_aliases *a, uint32_t n_targets)
{
    a->targets[a->n_targets + n_targets] = NULL;
    a->n_targets += n_targets + 1;
    a->n_names++;
    a->n++;
}

/* Sets target i of the spec that is being made. False when the targets differ in dtype, and so
 * cannot come as one. */
static bool set_target(struct spec_aliases *a, uint32_t i, const struct tensor_list *list,
                       const char *name)
{
    const char **targets = a->targets + a->n_targets;
    uint32_t at = tensor_list_find(list, name), first;

    assert(at != TENSOR_LIST_NO_TENSOR);
    targets[i] = list->tensors[at].name;
    first = tensor_list_find(list, targets[0]);
    return list->tensors[at].dtype == list->tensors[first].dtype;
}

static void fuse_tensors(struct spec_aliases *a, const struct model_config *c,
                         const struct tensor_list *list, uint32_t layer, const struct fusion *f)
{
    struct alias_spec *spec = next_spec(a);
    char name[MODEL_NAME_MAX];
    uint64_t shape[2];

    (void)snprintf(a->names[a->n_names], MODEL_NAME_MAX, "model.layers.%u.%s", layer, f->suffix);
    for (uint32_t i = 0; i < f->n_parts; i++) {
        if (!layer_tensor_needed(c, layer, f->parts[i]) ||
            !set_target(a, i, list, layer_tensor_name(layer, f->parts[i], name)))
            return;
        spec->ndim = layer_tensor_shape(c, f->parts[i], shape);
        spec->shape[0] += shape[0];
        spec->shape[1] = shape[1];
    }
    keep_spec(a, f->n_parts);
}

/* @first, last  the tensors of each expert that come one after the other */
static void fuse_experts(struct spec_aliases *a, const struct model_config *c,
                         const struct tensor_list *list, uint32_t layer, enum expert_tensor first,
                         enum expert_tensor last)
{
    struct alias_spec *spec = next_spec(a);
    char name[MODEL_NAME_MAX];
    uint64_t shape[2];
    uint32_t n = 0;

    (void)expert_fused_name(layer, first, a->names[a->n_names]);
    expert_tensor_shape(c, first, shape);
    spec->ndim = 3;
    spec->shape[0] = c->experts.n;
    spec->shape[1] = shape[0] * (last - first + 1);
    spec->shape[2] = shape[1];
    for (uint32_t expert = 0; expert < c->experts.n; expert++)
        for (int t = (int)first; t <= (int)last; t++)
            if (!set_target(a, n++, list,
                            expert_tensor_name(c, layer, expert, (enum expert_tensor)t, name)))
                return;
    keep_spec(a, n);
}

static void alias_layers(struct spec_aliases *a, const struct model_config *c,
                         const struct tensor_list *list)
{
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        for (uint32_t f = 0; f < N_FUSIONS; f++)
            fuse_tensors(a, c, list, layer, &fusions[f]);
        if (model_layer_is_sparse(c, layer)) {
            fuse_experts(a, c, list, layer, EXPERT_GATE, EXPERT_UP);
            fuse_experts(a, c, list, layer, EXPERT_DOWN, EXPERT_DOWN);
        }
    }
}

/* Layers that predict further tokens (MTP) are in checkpoints, and of no use to this engine. */
static void ignore_mtp_layers(struct spec_aliases *a, const struct model_config *c)
{
    for (uint32_t i = 0; i < c->n_mtp_layers; i++) {
        char *name = a->names[a->n_names++];

        (void)snprintf(name, MODEL_NAME_MAX, "model.layers.%u.", c->n_layers + i);
        a->specs[a->n++] = (struct alias_spec){.name = name, .kind = ALIAS_IGNORED};
    }
}

int spec_aliases_init(struct spec_aliases *out, const struct model_config *c,
                      const struct tensor_list *tensor_list, struct err *e)
{
    static const char *const embed[] = {MODEL_EMBED_NAME, NULL};
    size_t n_names = (size_t)c->n_layers * (N_FUSIONS + N_EXPERT_FUSIONS) + c->n_mtp_layers;
    size_t n_targets = (size_t)c->n_layers * N_FUSIONS * (FUSION_PARTS_MAX + 1) +
                       c->experts.n_sparse_layers *
                           ((size_t)c->experts.n * EXPERT_TENSOR_COUNT + N_EXPERT_FUSIONS);

    *out = (struct spec_aliases){0};
    out->specs = calloc(n_names + N_MODEL_ALIASES, sizeof *out->specs);
    out->names = calloc(n_names, sizeof *out->names);
    out->targets = calloc(n_targets, sizeof *out->targets);
    if (out->specs == NULL || out->names == NULL || out->targets == NULL) {
        spec_aliases_fini(out);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the names of %u layers", c->n_layers);
    }
    if (c->tie_word_embeddings)
        out->specs[out->n++] = (struct alias_spec){
            .name = MODEL_HEAD_NAME, .kind = ALIAS_TIED, .targets = embed};
    /* Those of single layers are known by their ending, see model_spec_match. */
    out->specs[out->n++] = (struct alias_spec){.name = "model.rotary_emb.inv_freq",
                                               .kind = ALIAS_IGNORED};
    alias_layers(out, c, tensor_list);
    ignore_mtp_layers(out, c);
    return 0;
}

void spec_aliases_fini(struct spec_aliases *a)
{
    free(a->specs);
    free(a->names);
    free((void *)a->targets);
    *a = (struct spec_aliases){0};
}
