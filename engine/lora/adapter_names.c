/* Reading the names that PEFT gives to tensors. */
#include "engine/lora/adapter_names.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PEFT_PREFIX   "base_model.model."
#define LAYERS_PREFIX "model.layers."

static const struct module {
    const char *path; /* below the layer */
    enum layer_tensor weight;
} modules[ADAPTER_MODULE_COUNT] = {
    [ADAPTER_Q] = {"self_attn.q_proj", LAYER_Q},    [ADAPTER_K] = {"self_attn.k_proj", LAYER_K},
    [ADAPTER_V] = {"self_attn.v_proj", LAYER_V},    [ADAPTER_O] = {"self_attn.o_proj", LAYER_O},
    [ADAPTER_GATE] = {"mlp.gate_proj", LAYER_GATE}, [ADAPTER_UP] = {"mlp.up_proj", LAYER_UP},
    [ADAPTER_DOWN] = {"mlp.down_proj", LAYER_DOWN},
};

/* Parts of names that mean something other than a plain pair. */
static const struct {
    const char *part, *why;
} refused[] = {
    {".lora_embedding_A", "adapters of embeddings are not supported"},
    {".lora_embedding_B", "adapters of embeddings are not supported"},
    {".lora_magnitude_vector", "DoRA is not supported"},
    {".lora_A.bias", "biases of adapters are not supported"},
    {".lora_B.bias", "biases of adapters are not supported"},
    {".modules_to_save.", "modules_to_save is not supported"},
    {".base_layer.", "weights of the base model do not belong into an adapter"},
    {".weight#", "it is a part of a delta, which needs \"delta\": true and \"if_digest\""},
    {"lm_head.", "lm_head is not supported in an adapter"},
    {"embed_tokens.", "embeddings are not supported in an adapter"},
};

enum layer_tensor adapter_module_weight(enum adapter_module module)
{
    return modules[module].weight;
}

const char *adapter_module_path(uint32_t layer, enum adapter_module module,
                                char out[MODEL_NAME_MAX])
{
    (void)snprintf(out, MODEL_NAME_MAX, LAYERS_PREFIX "%u.%s", layer, modules[module].path);
    return out;
}

static bool adapter_names_ends_with(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);

    return len >= n && memcmp(text + len - n, end, n) == 0;
}

/* A layer's number, as it is written; NULL when there is none or it is not one of the model's. */
static const char *read_layer(const char *at, uint32_t n_layers, uint32_t *out)
{
    const char *start = at;
    uint32_t n = 0;

    for (; *at >= '0' && *at <= '9' && at - start < 5; at++)
        n = n * 10 + (uint32_t)(*at - '0');
    if (at == start || (*start == '0' && at - start > 1) || *at != '.' || n >= n_layers)
        return NULL;
    *out = n;
    return at + 1;
}

static bool read_half(const char *name, size_t len, uint32_t n_layers, struct adapter_name *out)
{
    static const char a_end[] = ".lora_A.weight", b_end[] = ".lora_B.weight";
    const char *at = name;

    out->is_b = adapter_names_ends_with(name, len, b_end);
    if ((!out->is_b && !adapter_names_ends_with(name, len, a_end)) ||
        strncmp(at, LAYERS_PREFIX, sizeof LAYERS_PREFIX - 1) != 0)
        return false;
    at = read_layer(at + sizeof LAYERS_PREFIX - 1, n_layers, &out->layer);
    if (at == NULL)
        return false;
    for (int m = 0; m < ADAPTER_MODULE_COUNT; m++) {
        size_t n = strlen(modules[m].path);

        if ((size_t)(name + len - at) == n + sizeof a_end - 1 &&
            memcmp(at, modules[m].path, n) == 0) {
            out->module = (enum adapter_module)m;
            return true;
        }
    }
    return false;
}

struct adapter_name adapter_name_parse(const char *name, uint32_t n_layers)
{
    struct adapter_name out = {.kind = ADAPTER_NAME_HALF};
    size_t len;

    if (strncmp(name, PEFT_PREFIX, sizeof PEFT_PREFIX - 1) == 0)
        name += sizeof PEFT_PREFIX - 1;
    len = strlen(name);
    if (read_half(name, len, n_layers, &out))
        return out;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strstr(name, refused[i].part) != NULL)
            return (struct adapter_name){.kind = ADAPTER_NAME_REFUSED, .why = refused[i].why};
    }
    out.kind = adapter_names_ends_with(name, len, "rotary_emb.inv_freq") ? ADAPTER_NAME_IGNORED
                                                                         : ADAPTER_NAME_FOREIGN;
    return out;
}
