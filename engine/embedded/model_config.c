/* Reading config.json. One row of `archs` says how an architecture differs; the rest is the same
 * for all, so that a new dense one is a row, and what a row cannot say is refused by key. */
#include "engine/embedded/model_config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum bias_rule { BIAS_NEVER, BIAS_ALWAYS, BIAS_BY_KEY };

struct arch {
    const char *name, *model_type; /* `architectures[0]`, `model_type` */
    enum model_arch arch;
    enum bias_rule qkv_bias, o_bias; /* BY_KEY: attention_bias, absent: false */
    enum bias_rule mlp_bias;         /* BY_KEY: mlp_bias, absent: false */
    bool qk_norm;
    uint32_t head_dim; /* when the key is absent; 0: hidden_size / num_attention_heads */
    double rms_norm_eps, rope_theta; /* when absent */
};

static const struct arch archs[] = {
    {"Qwen3ForCausalLM", "qwen3", ARCH_QWEN3, BIAS_BY_KEY, BIAS_BY_KEY, BIAS_NEVER, true, 128, 1e-6,
     10000.0},
};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

/* The member, or NULL when it is absent or null: the two mean the same in these files. */
static json_t *member(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);

    return json_is_null(v) ? NULL : v;
}

static int refuse(struct err *e, const char *dict, const char *key, const char *found,
                  const char *allowed)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", dict, key);
    return err_set(e, ERR_BAD_REQUEST, field, "%s %s is not supported: %s", key, found, allowed);
}

/* A string as it stands in a message: quoted and short. */
static const char *quoted(const json_t *v, char *out, size_t cap)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);

    (void)snprintf(out, cap, "%.60s", text != NULL ? text : "value");
    free(text);
    return out;
}

/* An integer within [least, most]; when absent `*out` stays, unless `required`. */
static int read_u32(uint32_t *out, const json_t *o, const char *key, bool required, uint32_t least,
                    uint32_t most, struct err *e)
{
    const json_t *v = member(o, key);
    char allowed[64], found[64];

    if (v == NULL && !required)
        return 0;
    (void)snprintf(allowed, sizeof allowed, "an integer within %u..%u is", least, most);
    if (v == NULL)
        return refuse(e, "", key, "missing", allowed);
    if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)least ||
        json_integer_value(v) > (json_int_t)most)
        return refuse(e, "", key, quoted(v, found, sizeof found), allowed);
    *out = (uint32_t)json_integer_value(v);
    return 0;
}

/* A finite number above 0. */
static int read_positive(double *out, const json_t *o, const char *dict, const char *key,
                         struct err *e)
{
    const json_t *v = member(o, key);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)) || json_number_value(v) <= 0.0)
        return refuse(e, dict, key, quoted(v, found, sizeof found), "a number above 0 is");
    *out = json_number_value(v);
    return 0;
}

static int read_bool(bool *out, const json_t *o, const char *key, struct err *e)
{
    const json_t *v = member(o, key);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_boolean(v))
        return refuse(e, "", key, quoted(v, found, sizeof found), "true and false are");
    *out = json_is_true(v);
    return 0;
}

static int read_bias(bool *out, const json_t *o, const char *key, enum bias_rule rule,
                     struct err *e)
{
    bool by_key = false;

    if (rule == BIAS_BY_KEY && read_bool(&by_key, o, key, e) != 0)
        return -1;
    *out = rule == BIAS_ALWAYS || by_key;
    return 0;
}

static int parse_json(json_t **out, const char *json, size_t len, const char *file, struct err *e)
{
    json_error_t je;
    json_t *o;

    if (len > MODEL_CONFIG_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "%s has %zu bytes, at most %d are allowed", file,
                       len, MODEL_CONFIG_NBYTES_MAX);
    o = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (o == NULL && json_error_code(&je) == json_error_out_of_memory)
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

static int find_arch(const struct arch **out, const json_t *o, struct err *e)
{
    const json_t *list = member(o, "architectures"), *type = member(o, "model_type");
    const char *name = json_string_value(json_array_get(list, 0));
    char known[256] = "", found[64];
    const struct arch *a = NULL;

    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", archs[i].name);
        if (name != NULL && strcmp(name, archs[i].name) == 0)
            a = &archs[i];
    }
    if (a == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/architectures", "architecture %s is not supported: %s",
                       list == NULL ? "missing" : quoted(list, found, sizeof found), known);
    if (type != NULL &&
        (!json_is_string(type) || strcmp(json_string_value(type), a->model_type) != 0))
        return err_set(e, ERR_BAD_REQUEST, "/model_type", "model_type %s is not '%s' of %s",
                       quoted(type, found, sizeof found), a->model_type, a->name);
    *out = a;
    return 0;
}

/* transformers 5 writes rope_parameters, with rope_theta inside; before it was rope_scaling beside
 * rope_theta. Inside either, `type` is an old name of `rope_type`. */
static int parse_rope(struct model_config *c, const json_t *o, struct err *e)
{
    json_t *dict = member(o, "rope_parameters"), *v;
    const json_t *type;
    const char *where = "/rope_parameters", *key = "rope_type", *inner;
    double partial = 1.0;
    char found[64];

    if (dict == NULL) {
        dict = member(o, "rope_scaling");
        where = "/rope_scaling";
    }
    if (read_positive(&c->rope_theta, o, "", "rope_theta", e) != 0 ||
        read_positive(&partial, o, "", "partial_rotary_factor", e) != 0)
        return -1;
    if (partial != 1.0)
        return refuse(e, "", "partial_rotary_factor", "other than 1", "1 is");
    if (dict == NULL)
        return 0;
    if (!json_is_object(dict))
        return refuse(e, "", where + 1, quoted(dict, found, sizeof found), "an object is");
    json_object_foreach(dict, inner, v)
    {
        if (json_is_object(v)) /* one set for each layer type */
            return refuse(e, where, inner, "an object", "one set for all layers is");
    }
    type = member(dict, key);
    if (type == NULL) {
        key = "type";
        type = member(dict, key);
    }
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
        return refuse(e, where, key, quoted(type, found, sizeof found), "\"default\" is");
    if (read_positive(&c->rope_theta, dict, where, "rope_theta", e) != 0 ||
        read_positive(&partial, dict, where, "partial_rotary_factor", e) != 0)
        return -1;
    if (partial != 1.0)
        return refuse(e, where, "partial_rotary_factor", "other than 1", "1 is");
    c->rope_kind = ROPE_DEFAULT;
    return 0;
}

static int check_layer_types(const struct model_config *c, const json_t *o, struct err *e)
{
    const json_t *types = member(o, "layer_types");
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
                       "layer type %s is not supported: \"full_attention\" is",
                       quoted(t, found, sizeof found));
    }
    return 0;
}

/* What would change the arithmetic and is not built. */
static int refuse_unsupported(const struct model_config *c, const json_t *o, struct err *e)
{
    const json_t *act = member(o, "hidden_act");
    bool sliding = false;
    char found[64];

    if (member(o, "quantization_config") != NULL)
        return refuse(e, "", "quantization_config", "of any kind", "unquantized weights are");
    if (act != NULL && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return refuse(e, "", "hidden_act", quoted(act, found, sizeof found), "\"silu\" is");
    if (read_bool(&sliding, o, "use_sliding_window", e) != 0)
        return -1;
    if (sliding)
        return refuse(e, "", "use_sliding_window", "true", "false is");
    return check_layer_types(c, o, e);
}

static int parse_heads(struct model_config *c, const struct arch *a, const json_t *o, struct err *e)
{
    if (read_u32(&c->n_heads, o, "num_attention_heads", true, 1, MODEL_WIDTH_MAX, e) != 0)
        return -1;
    c->n_kv_heads = c->n_heads;
    c->head_dim = a->head_dim != 0 ? a->head_dim : c->hidden_size / c->n_heads;
    if (read_u32(&c->n_kv_heads, o, "num_key_value_heads", false, 1, c->n_heads, e) != 0 ||
        read_u32(&c->head_dim, o, "head_dim", false, 2, MODEL_HEAD_DIM_MAX, e) != 0)
        return -1;
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
    const char *key = member(o, "dtype") != NULL ? "dtype" : "torch_dtype";
    const json_t *v = member(o, key);
    enum dtype d = DTYPE_F32;
    char found[64];

    if (v != NULL)
        d = json_is_string(v) ? dtype_parse(json_string_value(v)) : DTYPE_NONE;
    if (d != DTYPE_F32 && d != DTYPE_BF16 && d != DTYPE_F16)
        return refuse(e, "", key, quoted(v, found, sizeof found),
                      "bfloat16, float16 and float32 are");
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

static int parse_eos(struct model_config *c, const json_t *o, const json_t *generation,
                     struct err *e)
{
    const json_t *v = member(generation, "eos_token_id");

    if (v != NULL)
        return read_eos(c, v, "generation_config.json", e);
    v = member(o, "eos_token_id");
    return v != NULL ? read_eos(c, v, "config.json", e) : 0;
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
    if (read_u32(&c->vocab_size, o, "vocab_size", true, 1, MODEL_VOCAB_MAX, e) != 0 ||
        read_u32(&c->hidden_size, o, "hidden_size", true, 1, MODEL_WIDTH_MAX, e) != 0 ||
        read_u32(&c->intermediate_size, o, "intermediate_size", true, 1, MODEL_WIDTH_MAX, e) != 0 ||
        read_u32(&c->n_layers, o, "num_hidden_layers", true, 1, MODEL_LAYERS_MAX, e) != 0 ||
        read_u32(&c->max_position_embeddings, o, "max_position_embeddings", true, 1,
                 MODEL_POSITION_MAX, e) != 0 ||
        parse_heads(c, a, o, e) != 0 || read_positive(&eps, o, "", "rms_norm_eps", e) != 0 ||
        read_bias(&c->qkv_bias, o, "attention_bias", a->qkv_bias, e) != 0 ||
        read_bias(&c->o_bias, o, "attention_bias", a->o_bias, e) != 0 ||
        read_bias(&c->mlp_bias, o, "mlp_bias", a->mlp_bias, e) != 0 ||
        read_bool(&c->tie_word_embeddings, o, "tie_word_embeddings", e) != 0 ||
        parse_rope(c, o, e) != 0 || parse_dtype(c, o, e) != 0)
        return -1;
    c->rms_norm_eps = (float)eps;
    return refuse_unsupported(c, o, e);
}

int model_config_parse(struct model_config *out, const char *json, size_t len,
                       const char *generation_json, size_t generation_len, struct err *e)
{
    struct model_config c = {0};
    json_t *o = NULL, *generation = NULL;
    int rc = -1;

    if (parse_json(&o, json, len, "config.json", e) != 0)
        return -1;
    if (generation_json != NULL &&
        parse_json(&generation, generation_json, generation_len, "generation_config.json", e) != 0)
        goto drop;
    if (parse_members(&c, o, e) != 0 || parse_eos(&c, o, generation, e) != 0)
        goto drop;
    *out = c;
    rc = 0;
drop:
    json_decref(generation);
    json_decref(o);
    return rc;
}

/* The whole of DIR/name; *out NULL when it may be absent and is. */
static int read_file(char **out, size_t *len, const char *dir, const char *name, bool required,
                     struct err *e)
{
    char path[PATH_MAX], *text = NULL;
    struct stat st;
    size_t got = 0;
    ssize_t n = 1;
    int fd;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_NOT_FOUND, "", "the path of %s is too long", name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && !required)
        return 0;
    if (fd < 0)
        return err_set_errno(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_UNREADABLE, "", errno,
                             "cannot open %s", name);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MODEL_CONFIG_NBYTES_MAX) {
        (void)err_set(e, ERR_UNREADABLE, "", "%s is not a regular file of at most %d bytes", name,
                      MODEL_CONFIG_NBYTES_MAX);
        goto close;
    }
    text = malloc(MODEL_CONFIG_NBYTES_MAX + 1);
    if (text == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to read %s", name);
        goto close;
    }
    while (n > 0 && got <= MODEL_CONFIG_NBYTES_MAX) {
        n = read(fd, text + got, MODEL_CONFIG_NBYTES_MAX + 1 - got);
        got += n > 0 ? (size_t)n : 0;
    }
    if (n < 0) {
        (void)err_set_errno(e, ERR_UNREADABLE, "", errno, "cannot read %s", name);
        goto free;
    }
    (void)close(fd);
    *out = text;
    *len = got;
    return 0;

free:
    free(text);
close:
    (void)close(fd);
    return -1;
}

int model_config_load(struct model_config *out, const char *dir, struct err *e)
{
    char *config = NULL, *generation = NULL;
    size_t len = 0, generation_len = 0;
    int rc = -1;

    if (read_file(&config, &len, dir, "config.json", true, e) == 0 &&
        read_file(&generation, &generation_len, dir, "generation_config.json", false, e) == 0)
        rc = model_config_parse(out, config, len, generation, generation_len, e);
    free(generation);
    free(config);
    return rc;
}
