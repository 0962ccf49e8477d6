/* Reading config.json. One row of `archs` describes how an architecture differs; the rest is the
 * same for all, but for experts (config_experts.c) and latent attention (config_latents.c). A new
 * dense architecture is a new row; what a row cannot express is refused by key.
 */
#include "weights/model/config_members.h"

#include "base/file.h"
#include "base/json_parse.h"

#include <float.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum bias_rule { BIAS_NEVER, BIAS_ALWAYS, BIAS_BY_KEY };

struct arch {
    const char *name, *model_type; /* `architectures[0]`, `model_type` */
    enum model_arch arch;
    enum bias_rule qkv_bias, o_bias; /* BY_KEY: attention_bias (of both), absent: false */
    enum bias_rule mlp_bias;         /* BY_KEY: mlp_bias, absent: false */
    bool qk_norm;
    uint32_t head_dim; /* when the key is absent; 0: hidden_size / num_attention_heads */
    double rms_norm_eps, rope_theta; /* when absent */
};

static const struct arch archs[] = {
    {"Qwen3ForCausalLM", "qwen3", ARCH_QWEN3, BIAS_BY_KEY, BIAS_BY_KEY, BIAS_NEVER, true, 128, 1e-6,
     10000.0},
    {"Qwen2ForCausalLM", "qwen2", ARCH_QWEN2, BIAS_ALWAYS, BIAS_NEVER, BIAS_NEVER, false, 0, 1e-6,
     10000.0},
    {"LlamaForCausalLM", "llama", ARCH_LLAMA, BIAS_BY_KEY, BIAS_BY_KEY, BIAS_BY_KEY, false, 0, 1e-6,
     10000.0},
    {"MistralForCausalLM", "mistral", ARCH_MISTRAL, BIAS_NEVER, BIAS_NEVER, BIAS_NEVER, false, 0,
     1e-6, 10000.0},
    {"Qwen3MoeForCausalLM", "qwen3_moe", ARCH_QWEN3_MOE, BIAS_BY_KEY, BIAS_BY_KEY, BIAS_NEVER, true,
     0, 1e-6, 10000.0},
    {"MixtralForCausalLM", "mixtral", ARCH_MIXTRAL, BIAS_NEVER, BIAS_NEVER, BIAS_NEVER, false, 0,
     1e-5, 1e6},
    {"DeepseekV3ForCausalLM", "deepseek_v3", ARCH_DEEPSEEK_V3, BIAS_NEVER, BIAS_NEVER, BIAS_NEVER,
     false, 0, 1e-6, 10000.0},
};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

/* Biases that the architecture always or never has are not read from a key; a key with the other
 * value belongs to another model. */
static int model_config_read_bias(bool *out, const json_t *o, const char *key, enum bias_rule rule,
                                  struct err *e)
{
    bool by_key = rule == BIAS_ALWAYS;

    if (config_bool(&by_key, o, key, e) != 0)
        return -1;
    if (rule == BIAS_ALWAYS && !by_key)
        return config_refuse(e, "", key, "false", "true, for this architecture");
    if (rule == BIAS_NEVER && by_key)
        return config_refuse(e, "", key, "true", "false, for this architecture");
    *out = by_key;
    return 0;
}

static int parse_biases(struct model_config *c, const struct arch *a, const json_t *o,
                        struct err *e)
{
    if (model_config_read_bias(&c->qkv_bias, o, "attention_bias", a->qkv_bias, e) != 0 ||
        model_config_read_bias(&c->mlp_bias, o, "mlp_bias", a->mlp_bias, e) != 0)
        return -1;
    c->o_bias = a->o_bias == BIAS_BY_KEY && c->qkv_bias;
    return 0;
}

static int model_config_parse_json(json_t **out, const char *json, size_t len, const char *file,
                                   struct err *e)
{
    json_error_t je;
    bool starved;
    json_t *o;

    if (len > MODEL_CONFIG_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "%s has %zu bytes, at most %d are allowed", file,
                       len, MODEL_CONFIG_NBYTES_MAX);
    o = json_parse_file(json, len, JSON_REJECT_DUPLICATES, &je, &starved);
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read %s", file);
    if (o == NULL)
        return err_set(e, ERR_BAD_REQUEST, "", "%s is not JSON: line %d, column %d: %s", file,
                       je.line, je.column, je.text);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_set(e, ERR_BAD_REQUEST, "", "%s is not a JSON object", file);
    }
    *out = o;
    return 0;
}

/* Kimi-K2 is DeepSeek-V3 by another name: vLLM reads it by that class, and so does transformers
 * where it is the text model of Kimi-K2.5. */
static bool is_type_of(const json_t *type, const struct arch *a)
{
    const char *name = json_string_value(type);

    return name != NULL && (strcmp(name, a->model_type) == 0 ||
                            (a->arch == ARCH_DEEPSEEK_V3 && strcmp(name, "kimi_k2") == 0));
}

static int find_arch(const struct arch **out, const json_t *o, struct err *e)
{
    const json_t *list = config_member(o, "architectures"), *type = config_member(o, "model_type");
    const char *name = json_string_value(json_array_get(list, 0));
    char known[256] = "", found[64];
    const struct arch *a = NULL;

    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", archs[i].name);
        if (name != NULL && strcmp(name, archs[i].name) == 0)
            a = &archs[i];
    }
    if (list == NULL) {
        (void)config_missing(e, "", "architectures", known);
        return -1;
    }
    if (a == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/architectures",
                       "architecture %s is not supported; supported: %s",
                       config_quoted(list, found, sizeof found), known);
    if (type != NULL && !is_type_of(type, a))
        return err_set(e, ERR_BAD_REQUEST, "/model_type", "model_type %s is not '%s' of %s",
                       config_quoted(type, found, sizeof found), a->model_type, a->name);
    *out = a;
    return 0;
}

static int check_layer_types(const struct model_config *c, const json_t *o, struct err *e)
{
    const json_t *types = config_member(o, "layer_types");
    char field[ERR_FIELD_MAX], found[64];

    if (types == NULL)
        return 0;
    if (!json_is_array(types) || json_array_size(types) != c->n_layers)
        return err_set(e, ERR_BAD_REQUEST, "/layer_types",
                       "layer_types is not an array of num_hidden_layers %u entries", c->n_layers);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *t = json_array_get(types, i);

        if (json_is_string(t) && strcmp(json_string_value(t), "full_attention") == 0)
            continue;
        (void)snprintf(field, sizeof field, "/layer_types/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "layer type %s is not supported; supported: \"full_attention\"",
                       config_quoted(t, found, sizeof found));
    }
    return 0;
}

/* A window that no position can leave is none. Mistral's class has one when the key is absent;
 * Qwen's have none without use_sliding_window. vLLM applies one to any other class, and
 * transformers in its cache alone. */
static int check_window(const struct model_config *c, const json_t *o, struct err *e)
{
    enum { WINDOW_OF_CLASS = 4096 };
    const json_t *v = json_object_get(o, "sliding_window");
    json_int_t window = v == NULL ? WINDOW_OF_CLASS : json_integer_value(v);
    bool qwen = c->arch == ARCH_QWEN2 || c->arch == ARCH_QWEN3 || c->arch == ARCH_QWEN3_MOE;
    char found[64];

    if (qwen || json_is_null(v) || (v == NULL && c->arch != ARCH_MISTRAL))
        return 0;
    if ((v == NULL || json_is_integer(v)) && window >= (json_int_t)c->max_position_embeddings)
        return 0;
    return config_refuse(e, "", "sliding_window",
                         v == NULL ? "missing, which means 4096,"
                                   : config_quoted(v, found, sizeof found),
                         "null, or at least max_position_embeddings");
}

/* Keys that change what transformers or vLLM computes, whatever the architecture. */
static int refuse_keys(const json_t *o, struct err *e)
{
    static const char *const absent[] = {"quantization_config",  "compression_config",
                                         "text_config",          "dual_chunk_attention_config",
                                         "attention_chunk_size", "llama_4_scaling",
                                         "per_layer_config",     "transformers_weights"};
    bool causal = true;
    double scale = 1.0;

    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (config_member(o, absent[i]) != NULL)
            return config_refuse(e, "", absent[i], "of any kind", "a config without it");
    if (config_bool(&causal, o, "is_causal", e) != 0 ||
        config_positive(&scale, o, "", "logit_scale", e) != 0)
        return -1;
    if (!causal)
        return config_refuse(e, "", "is_causal", "false", "true");
    if (scale < 1.0 || scale > 1.0)
        return config_refuse(e, "", "logit_scale", "other than 1", "1");
    return 0;
}

/* Refuses settings that change the arithmetic and are not supported. */
static int refuse_unsupported(const struct model_config *c, const json_t *o, struct err *e)
{
    const json_t *act = config_member(o, "hidden_act");
    const char *name = act == NULL ? "silu" : json_string_value(act);
    bool sliding = false;
    char found[64];

    if (refuse_keys(o, e) != 0)
        return -1;
    if (name == NULL || (strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0))
        return config_refuse(e, "", "hidden_act", config_quoted(act, found, sizeof found),
                             "\"silu\"");
    if (config_bool(&sliding, o, "use_sliding_window", e) != 0)
        return -1;
    if (sliding)
        return config_refuse(e, "", "use_sliding_window", "true", "false");
    if (check_window(c, o, e) != 0)
        return -1;
    return check_layer_types(c, o, e);
}

static int parse_heads(struct model_config *c, const struct arch *a, const json_t *o, struct err *e)
{
    if (config_u32(&c->n_heads, o, "num_attention_heads", true, 1, MODEL_WIDTH_MAX, e) != 0)
        return -1;
    c->n_kv_heads = c->n_heads;
    if (config_u32(&c->n_kv_heads, o, "num_key_value_heads", false, 1, c->n_heads, e) != 0)
        return -1;
    if (c->arch == ARCH_DEEPSEEK_V3)
        return config_latents(c, o, e);
    c->head_dim = a->head_dim != 0 ? a->head_dim : c->hidden_size / c->n_heads;
    if (config_u32(&c->head_dim, o, "head_dim", false, 2, MODEL_HEAD_DIM_MAX, e) != 0)
        return -1;
    c->v_head_dim = c->rope_dim = c->head_dim;
    if (c->head_dim < 2 || c->head_dim % 2 != 0 || c->head_dim > MODEL_HEAD_DIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/head_dim",
                       "head_dim %u is not an even number within 2..%d", c->head_dim,
                       MODEL_HEAD_DIM_MAX);
    if ((uint64_t)c->n_heads * c->head_dim > MODEL_WIDTH_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/num_attention_heads",
                       "num_attention_heads %u times head_dim %u is over %d", c->n_heads,
                       c->head_dim, MODEL_WIDTH_MAX);
    if (c->n_heads % c->n_kv_heads != 0)
        return err_set(e, ERR_BAD_REQUEST, "/num_key_value_heads",
                       "num_attention_heads %u is not a multiple of num_key_value_heads %u",
                       c->n_heads, c->n_kv_heads);
    return 0;
}

static int parse_dtype(struct model_config *c, const json_t *o, struct err *e)
{
    const char *key = config_member(o, "dtype") != NULL ? "dtype" : "torch_dtype";
    const json_t *v = config_member(o, key);
    enum dtype d = DTYPE_F32;
    char found[64];

    if (config_agree((struct config_key){o, "", "dtype"}, (struct config_key){o, "", "torch_dtype"},
                     e) != 0)
        return -1;
    if (v != NULL)
        d = json_is_string(v) ? dtype_parse(json_string_value(v)) : DTYPE_NONE;
    if (d != DTYPE_F32 && d != DTYPE_BF16 && d != DTYPE_F16)
        return config_refuse(e, "", key, config_quoted(v, found, sizeof found),
                             "bfloat16, float16 and float32");
    c->dtype = d;
    return 0;
}

static int read_eos(struct model_config *c, const json_t *v, const char *file, struct err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (n > MODEL_EOS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/eos_token_id", "%s has %zu eos ids, at most %d", file,
                       n, MODEL_EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;

        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > (json_int_t)UINT32_MAX)
            return err_set(e, ERR_BAD_REQUEST, "/eos_token_id",
                           "eos_token_id of %s is neither a token id nor a list of them", file);
        c->eos[i] = (uint32_t)json_integer_value(id);
    }
    c->n_eos = (uint32_t)n;
    return 0;
}

static bool has_eos(const struct model_config *c, uint32_t id)
{
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

static int parse_eos(struct model_config *c, const json_t *o, const json_t *generation,
                     struct err *e)
{
    const json_t *first = config_member(generation, "eos_token_id");
    const json_t *second = config_member(o, "eos_token_id");
    struct model_config other = {0};
    struct err unused = {0};

    if (second != NULL && read_eos(&other, second, "config.json", first ? &unused : e) != 0 &&
        first == NULL)
        return -1;
    if (first != NULL && read_eos(c, first, "generation_config.json", e) != 0)
        return -1;
    for (uint32_t i = 0; first != NULL && i < other.n_eos; i++)
        c->eos_differs = c->eos_differs || !has_eos(c, other.eos[i]);
    if (first == NULL) {
        c->n_eos = other.n_eos;
        memcpy(c->eos, other.eos, sizeof c->eos);
    }
    return 0;
}

static int parse_members(struct model_config *c, const json_t *o, struct err *e)
{
    const struct arch *a;
    double eps;

    if (find_arch(&a, o, e) != 0)
        return -1;
    eps = a->rms_norm_eps;
    c->arch = a->arch;
    c->qk_norm = a->qk_norm;
    c->rope_theta = a->rope_theta;
    if (config_u32(&c->vocab_size, o, "vocab_size", true, 1, MODEL_VOCAB_MAX, e) != 0 ||
        config_u32(&c->hidden_size, o, "hidden_size", true, 1, MODEL_WIDTH_MAX, e) != 0 ||
        config_u32(&c->intermediate_size, o, "intermediate_size", true, 1, MODEL_WIDTH_MAX, e) !=
            0 ||
        config_u32(&c->n_layers, o, "num_hidden_layers", true, 1, MODEL_LAYERS_MAX, e) != 0 ||
        config_u32(&c->max_position_embeddings, o, "max_position_embeddings", true, 1,
                   MODEL_POSITION_MAX, e) != 0 ||
        parse_heads(c, a, o, e) != 0 || config_positive(&eps, o, "", "rms_norm_eps", e) != 0 ||
        parse_biases(c, a, o, e) != 0 ||
        config_bool(&c->tie_word_embeddings, o, "tie_word_embeddings", e) != 0 ||
        config_rope(c, o, e) != 0 || config_experts(c, o, e) != 0 || parse_dtype(c, o, e) != 0)
        return -1;
    c->rms_norm_eps = (float)fmin(eps, (double)FLT_MAX);
    if (!(c->rms_norm_eps > 0 && eps <= (double)FLT_MAX))
        return config_refuse(e, "", "rms_norm_eps", "beyond what a float holds",
                             "a number above 0");
    return refuse_unsupported(c, o, e);
}

int model_config_parse(struct model_config *out, const char *json, size_t len,
                       const char *generation_json, size_t generation_len, struct err *e)
{
    struct model_config c = {0};
    json_t *o = NULL, *generation = NULL;
    int rc = -1;

    if (model_config_parse_json(&o, json, len, "config.json", e) != 0)
        return -1;
    if (generation_json != NULL &&
        model_config_parse_json(&generation, generation_json, generation_len,
                                "generation_config.json", e) != 0)
        goto drop;
    if (parse_members(&c, o, e) != 0 || parse_eos(&c, o, generation, e) != 0 ||
        config_generation(&c.defaults, generation, e) != 0)
        goto drop;
    *out = c;
    rc = 0;
drop:
    json_decref(generation);
    json_decref(o);
    return rc;
}

static int read_file(char **out, size_t *len, const char *dir, const char *name, bool optional,
                     struct err *e)
{
    struct file_cfg file = {
        .dir = dir, .path = name, .nbytes_max = MODEL_CONFIG_NBYTES_MAX, .optional = optional};

    return file_read(out, len, &file, e);
}

int model_config_load(struct model_config *out, const char *dir, struct err *e)
{
    char *config = NULL, *generation = NULL;
    size_t len = 0, generation_len = 0;
    int rc = -1;

    if (read_file(&config, &len, dir, "config.json", false, e) == 0 &&
        read_file(&generation, &generation_len, dir, "generation_config.json", true, e) == 0)
        rc = model_config_parse(out, config, len, generation, generation_len, e);
    free(generation);
    free(config);
    return rc;
}

int model_config_ties(bool *out, const char *dir, struct err *e)
{
    static const char key[] = "tie_word_embeddings";
    const json_t *outer, *inner;
    char *text = NULL;
    json_error_t why;
    size_t len = 0;
    bool starved;
    json_t *root;

    if (read_file(&text, &len, dir, "config.json", false, e) != 0)
        return -1;
    root = json_parse_file(text, len, JSON_REJECT_DUPLICATES, &why, &starved);
    free(text);
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read config.json");
    if (root == NULL)
        return err_set(e, ERR_BAD_REQUEST, "", "config.json is not JSON: line %d, column %d: %s",
                       why.line, why.column, why.text);
    outer = config_member(root, key);
    inner = config_member(json_object_get(root, "text_config"), key);
    *out = (json_is_true(outer) || json_is_true(inner)) && !json_is_false(outer) &&
           !json_is_false(inner);
    json_decref(root);
    return 0;
}
