/* What a vLLM's release says; and the names of parameters in one before 0.28 with --enable-lora.
 *
 * In the latter each layer that an adapter may change is wrapped, and its parameters are those of
 * "….base_layer", while the loader of an update looks for the names that it is sent: it fails at
 * the first of a wrapped layer, after it has taken the model apart. Since 0.28 the wrapper itself
 * loads names as a checkpoint has them [lora/layers/base.py, BaseLayerWithLoRA.load_weights].
 *
 * Wrapped are all linear layers, and the embedding where the class of the model has it in
 * embedding_modules [lora/utils.py, get_supported_lora_modules]. Other models than these have
 * layers of which a name does not say what they are, or mappings of their own. */
#include "fleet/api/upstream_api_priv.h"

#include "base/json_parse.h"

#include <stdio.h>
#include <string.h>

enum {
    VLLM_FIRST_MINOR = 10, /* no transfer before it: 0.1.dev is no release */
    NAMES_KNOWN_SINCE = 24 /* the oldest release whose source was read */
};

bool vllm_has(const char *release, unsigned minor)
{
    unsigned of_major = 0, of_minor = 0;

    if (release == NULL || sscanf(release, "%3u.%4u", &of_major, &of_minor) != 2)
        return true;
    return of_major > 0 || of_minor >= minor || of_minor < VLLM_FIRST_MINOR;
}

static const struct known_model {
    const char *architecture;
    enum api_names names;
} known_models[] = {{"Qwen3ForCausalLM", API_NAMES_LORA_EMBEDDING},
                    {"LlamaForCausalLM", API_NAMES_LORA_EMBEDDING},
                    {"MistralForCausalLM", API_NAMES_LORA},
                    {"Qwen2ForCausalLM", API_NAMES_LORA}};

static const struct known_model *find_model(const char *architecture)
{
    for (size_t i = 0; i < sizeof known_models / sizeof known_models[0]; i++)
        if (strcmp(known_models[i].architecture, architecture) == 0)
            return &known_models[i];
    return NULL;
}

int vllm_names_for_lora(enum api_names *out, const char *release, const char *architecture,
                        const json_t *config, struct err *e)
{
    static const char is[] = "is a vLLM before 0.28 with --enable-lora, whose parameters have "
                             "other names";
    const json_t *lora = json_object_get(config, "lora_config");
    const struct known_model *known;

    if (config != NULL && json_is_null(lora)) { /* restarted without it since the last probe */
        *out = API_NAMES_PLAIN;
        return 0;
    }
    if (architecture == NULL)
        return err_set(e, ERR_CONFLICT, "/names",
                       "%s, which follow from the architecture of its model: start this server "
                       "with --model DIR, a directory with its config.json",
                       is);
    known = vllm_has(release, NAMES_KNOWN_SINCE) ? find_model(architecture) : NULL;
    if (known == NULL || json_is_array(json_object_get(lora, "target_modules")))
        return err_set(e, ERR_CONFLICT, "/names",
                       "%s; those of %.60s%s in %.20s are not known here: start it without "
                       "--enable-lora, or update it",
                       is, architecture, known != NULL ? " with target_modules" : "", release);
    *out = known->names;
    return 0;
}

/* The end of `name`, from the dot before "weight" or "bias"; NULL: it keeps its name. */
static const char *wrapped_end(const char *name, enum api_names names)
{
    static const char *const layers[] = {"q_proj",       "k_proj",      "v_proj",  "o_proj",
                                         "qkv_proj",     "gate_proj",   "up_proj", "down_proj",
                                         "gate_up_proj", "embed_tokens"};
    size_t n = sizeof layers / sizeof layers[0] - (names != API_NAMES_LORA_EMBEDDING);
    const char *end = strrchr(name, '.'), *layer;

    if (end == NULL)
        return NULL;
    layer = memrchr(name, '.', (size_t)(end - name));
    layer = layer != NULL ? layer + 1 : name;
    for (size_t i = 0; i < n; i++)
        if (strlen(layers[i]) == (size_t)(end - layer) &&
            strncmp(layers[i], layer, (size_t)(end - layer)) == 0)
            return end;
    return NULL;
}

json_t *vllm_with_names(json_t *info, enum api_names names)
{
    const json_t *given = json_object_get(info, "names"), *name;
    json_t *renamed;
    size_t i;

    if (names == API_NAMES_PLAIN || !json_is_array(given))
        return info;
    renamed = json_array();
    json_array_foreach(given, i, name)
    {
        const char *text = json_is_string(name) ? json_string_value(name) : "";
        const char *end = wrapped_end(text, names);
        json_t *made = end != NULL ? json_sprintf("%.*s.base_layer%s", (int)(end - text), text, end)
                                   : json_incref(json_mutable(name));

        (void)json_array_append_new(renamed, made);
    }
    if (json_array_size(renamed) == json_array_size(given))
        return api_with(info, "names", renamed);
    json_decref(renamed);
    json_decref(info);
    return NULL;
}
