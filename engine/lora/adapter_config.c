/* Reading adapter_config.json, driven by one table of keys. Matching follows PEFT: a list matches a
 * whole path or its end after a dot, a text is a regular expression for the whole path, and a list
 * of layers limits only the modules that a list matched by their end. */
#include "engine/lora/adapter_config.h"

#include "base/json_parse.h"
#include "base/utf8.h"
#include "weights/model/adapter_method.h"
#include "weights/model/config_members.h"
#include "weights/tensor_list.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DICT "/adapter_config"

enum { NEUTRAL_DEPTH_MAX = 4, FOUND_MAX = 64 };

typedef int read_fn(struct adapter_config *c, const char *key, const json_t *v, struct err *e);

static int value_refuse(const char *key, const json_t *v, const char *allowed, struct err *e)
{
    char found[FOUND_MAX];

    return config_refuse(e, DICT, key, config_quoted(v, found, sizeof found), allowed);
}

static const char *adapter_config_field_of(const char *key, char out[ERR_FIELD_MAX])
{
    (void)snprintf(out, ERR_FIELD_MAX, DICT "/%s", key);
    return out;
}

static int adapter_config_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, DICT, "no memory for adapter_config.json");
}

/* Has no effect: null, false, empty, or an object of such values. */
static bool value_is_neutral(const json_t *v, unsigned depth)
{
    const char *key;
    json_t *member;

    if (json_is_null(v) || json_is_false(v))
        return true;
    if (json_is_string(v))
        return json_string_length(v) == 0;
    if (json_is_array(v))
        return json_array_size(v) == 0;
    if (!json_is_object(v) || depth == 0)
        return false;
    json_object_foreach(json_mutable(v), key, member)
    {
        if (!value_is_neutral(member, depth - 1))
            return false;
    }
    return true;
}

static int read_peft_type(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    (void)c;
    if (!json_is_string(v) || strcmp(json_string_value(v), "LORA") != 0)
        return value_refuse(key, v, "LORA", e);
    return 0;
}

static int read_task_type(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    (void)c;
    if (!json_is_string(v) || strcmp(json_string_value(v), "CAUSAL_LM") != 0)
        return value_refuse(key, v, "CAUSAL_LM", e);
    return 0;
}

static int adapter_config_read_bias(struct adapter_config *c, const char *key, const json_t *v,
                                    struct err *e)
{
    (void)c;
    if (!value_is_neutral(v, 0) &&
        (!json_is_string(v) || strcmp(json_string_value(v), "none") != 0))
        return value_refuse(key, v, "none", e);
    return 0;
}

static int adapter_config_rank_of(double *out, const char *key, const json_t *v, struct err *e)
{
    char allowed[FOUND_MAX];

    (void)snprintf(allowed, sizeof allowed, "an integer within 1..%d", ADAPTER_RANK_MAX);
    if (!json_is_integer(v) || json_integer_value(v) < 1 ||
        json_integer_value(v) > ADAPTER_RANK_MAX)
        return value_refuse(key, v, allowed, e);
    *out = (double)json_integer_value(v);
    return 0;
}

static int alpha_of(double *out, const char *key, const json_t *v, struct err *e)
{
    double alpha = json_is_number(v) ? json_number_value(v) : -1.0;

    if (!(alpha > 0.0) || alpha > ADAPTER_ALPHA_MAX)
        return value_refuse(key, v, "a number above 0, at most 1e6", e);
    *out = alpha;
    return 0;
}

static int read_r(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    double r = 0;

    if (adapter_config_rank_of(&r, key, v, e) != 0)
        return -1;
    c->r = (uint32_t)r;
    return 0;
}

static int read_alpha(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    return alpha_of(&c->alpha, key, v, e);
}

static int read_rslora(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    if (!json_is_boolean(v))
        return value_refuse(key, v, "true and false", e);
    c->rslora = json_is_true(v);
    return 0;
}

static int read_init(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    if (!json_is_boolean(v) && !json_is_string(v))
        return value_refuse(key, v, "true, false and a method's name", e);
    c->base_changed = adapter_method_changes_base(json_string_value(v));
    return 0;
}

static int read_overrides(struct adapter_overrides *out, const char *key, const json_t *v,
                          int (*value_of)(double *, const char *, const json_t *, struct err *),
                          struct err *e)
{
    char field[ERR_FIELD_MAX];
    uint32_t n_regexes = 0;
    const char *text;
    json_t *value;

    if (!json_is_object(v))
        return value_refuse(key, v, "an object of patterns", e);
    if (json_object_size(v) > ADAPTER_PATTERNS_MAX)
        return err_set(e, ERR_TOO_LARGE, adapter_config_field_of(key, field),
                       "%s has %zu patterns, at most %d fit", key, json_object_size(v),
                       ADAPTER_PATTERNS_MAX);
    if (json_object_size(v) == 0)
        return 0;
    out->items = calloc(json_object_size(v), sizeof *out->items);
    if (out->items == NULL)
        return adapter_config_no_memory(e);
    json_object_foreach(json_mutable(v), text, value)
    {
        struct adapter_override *o = &out->items[out->n];

        if (value_of(&o->value, key, value, e) != 0 ||
            adapter_pattern_new(&o->pattern, text, PATTERN_TAIL,
                                adapter_config_field_of(key, field), e) != 0)
            return -1;
        out->n++;
        n_regexes += !adapter_pattern_is_plain(o->pattern);
        if (n_regexes > ADAPTER_REGEXES_MAX)
            return err_set(e, ERR_TOO_LARGE, field,
                           "%s has more than %d regular expressions that are not plain paths", key,
                           ADAPTER_REGEXES_MAX);
    }
    return 0;
}

static int adapter_config_read_ranks(struct adapter_config *c, const char *key, const json_t *v,
                                     struct err *e)
{
    return read_overrides(&c->ranks, key, v, adapter_config_rank_of, e);
}

static int read_alphas(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    return read_overrides(&c->alphas, key, v, alpha_of, e);
}

/* A list of distinct module names; PEFT writes a set. */
static int read_names(struct names *out, const char *key, const json_t *v, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (json_array_size(v) > ADAPTER_NAMES_MAX)
        return err_set(e, ERR_TOO_LARGE, adapter_config_field_of(key, field),
                       "%s has %zu names, at most %d fit", key, json_array_size(v),
                       ADAPTER_NAMES_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        size_t len = json_string_length(item);

        if (!json_is_string(item) || len == 0 || len > TENSOR_LIST_NAME_LEN_MAX)
            return value_refuse(key, item, "a list of module names", e);
        if (names_find(out, json_string_value(item)) == NAMES_NONE &&
            names_add(out, json_string_value(item), e) != 0)
            return -1;
    }
    return 0;
}

static int read_targets(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (json_is_array(v)) {
        if (json_array_size(v) == 0)
            return value_refuse(key, v, "at least one module", e);
        c->targets = TARGETS_NAMES;
        return read_names(&c->target_names, key, v, e);
    }
    if (!json_is_string(v))
        return value_refuse(key, v, "a list, a regular expression and \"all-linear\"", e);
    if (strcmp(json_string_value(v), "all-linear") == 0) {
        c->targets = TARGETS_ALL;
        return 0;
    }
    c->targets = TARGETS_PATTERN;
    return adapter_pattern_new(&c->target_pattern, json_string_value(v), PATTERN_WHOLE,
                               adapter_config_field_of(key, field), e);
}

static int read_excluded(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (json_is_array(v))
        return read_names(&c->excluded_names, key, v, e);
    if (!json_is_string(v))
        return value_refuse(key, v, "a list and a regular expression", e);
    if (json_string_length(v) == 0)
        return 0;
    return adapter_pattern_new(&c->excluded_pattern, json_string_value(v), PATTERN_WHOLE,
                               adapter_config_field_of(key, field), e);
}

static int read_layers(struct adapter_config *c, const char *key, const json_t *v, struct err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;

        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= MODEL_LAYERS_MAX)
            return value_refuse(key, item, "layers within 0..1023", e);
        c->layers[json_integer_value(item)] = true;
    }
    c->some_layers = n > 0;
    return 0;
}

/* The name of the list that the layers are in; here that is always "layers". */
static int read_layers_pattern(struct adapter_config *c, const char *key, const json_t *v,
                               struct err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    bool ours = n == 0;

    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        const char *text = json_string_value(item);

        if (text == NULL || strspn(text, "abcdefghijklmnopqrstuvwxyz"
                                         "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != strlen(text))
            return value_refuse(key, item, "the name of a list of layers", e);
        ours = ours || strcmp(text, "layers") == 0 || text[0] == '\0';
    }
    c->other_stack = !ours;
    return 0;
}

/* One row of the table of keys. */
struct key {
    const char *name;
    read_fn *read;       /* or one of these: */
    const char *refused; /* why any value that has an effect is refused */
};

static const struct key keys[] = {
    {"peft_type", read_peft_type, NULL},
    {"task_type", read_task_type, NULL},
    {"bias", adapter_config_read_bias, NULL},
    {"r", read_r, NULL},
    {"lora_alpha", read_alpha, NULL},
    {"use_rslora", read_rslora, NULL},
    {"rank_pattern", adapter_config_read_ranks, NULL},
    {"alpha_pattern", read_alphas, NULL},
    {"target_modules", read_targets, NULL},
    {"exclude_modules", read_excluded, NULL},
    {"layers_to_transform", read_layers, NULL},
    {"layers_pattern", read_layers_pattern, NULL},
    {"init_lora_weights", read_init, NULL},

    {"use_dora", NULL, "adapters without DoRA"},
    {"lora_bias", NULL, "adapters without biases"},
    {"modules_to_save", NULL, "adapters without whole modules"},
    {"layer_replication", NULL, "adapters for the layers as they stand"},
    {"trainable_token_indices", NULL, "adapters without embeddings"},
    {"target_parameters", NULL, "adapters of linear modules"},
    {"fan_in_fan_out", NULL, "weights stored [out, in]"},
    {"use_qalora", NULL, "plain LoRA"},
    {"use_bdlora", NULL, "plain LoRA"},
    {"arrow_config", NULL, "plain LoRA"},
    {"kasa_config", NULL, "plain LoRA"},
    {"monteclora_config", NULL, "plain LoRA"},
    {"velora_config", NULL, "plain LoRA"},
    {"alora_invocation_tokens", NULL, "plain LoRA"},

    /* Members about the training or the origin. */
    {"auto_mapping", NULL, NULL},
    {"base_model_name_or_path", NULL, NULL},
    {"corda_config", NULL, NULL},
    {"ensure_weight_tying", NULL, NULL},
    {"eva_config", NULL, NULL},
    {"inference_mode", NULL, NULL},
    {"loftq_config", NULL, NULL},
    {"lora_dropout", NULL, NULL},
    {"lora_ga_config", NULL, NULL},
    {"megatron_config", NULL, NULL},
    {"megatron_core", NULL, NULL},
    {"peft_version", NULL, NULL},
    {"qalora_group_size", NULL, NULL},
    {"revision", NULL, NULL},
    {"runtime_config", NULL, NULL},
};

static const struct key *adapter_config_find_key(const char *name)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static int adapter_config_read_key(struct adapter_config *c, const char *name, const json_t *v,
                                   struct err *e)
{
    const struct key *k = adapter_config_find_key(name);

    if (k != NULL && k->read != NULL)
        return json_is_null(v) ? 0 : k->read(c, name, v, e);
    if (k != NULL && k->refused != NULL)
        return value_is_neutral(v, NEUTRAL_DEPTH_MAX) ? 0 : value_refuse(name, v, k->refused, e);
    if (k == NULL && !value_is_neutral(v, NEUTRAL_DEPTH_MAX)) {
        char found[FOUND_MAX], field[ERR_FIELD_MAX];

        return err_set(e, ERR_BAD_REQUEST, adapter_config_field_of(name, field),
                       "key '%.*s' with %s is not known, and could change what is computed",
                       utf8_cut(name, FOUND_MAX), name, config_quoted(v, found, sizeof found));
    }
    c->n_ignored++;
    return 0;
}

static int adapter_config_read_all(struct adapter_config *c, const json_t *root, struct err *e)
{
    const char *name;
    json_t *v;

    if (!json_is_object(root))
        return err_set(e, ERR_BAD_REQUEST, DICT, "adapter_config.json must be an object");
    json_object_foreach(json_mutable(root), name, v)
    {
        if (adapter_config_read_key(c, name, v, e) != 0)
            return -1;
    }
    if (c->some_layers && c->targets == TARGETS_PATTERN)
        return err_set(e, ERR_BAD_REQUEST, DICT "/layers_to_transform",
                       "layers_to_transform needs target_modules to be a list, "
                       "not a regular expression");
    return 0;
}

static int adapter_config_parse_json(json_t **out, const char *json, size_t len, struct err *e)
{
    json_error_t why;
    bool starved;

    if (len > ADAPTER_CONFIG_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, DICT,
                       "adapter_config.json has %zu bytes, at most %d are read", len,
                       ADAPTER_CONFIG_NBYTES_MAX);
    *out = json_parse_file(json, len, JSON_REJECT_DUPLICATES, &why, &starved);
    if (*out != NULL)
        return 0;
    if (starved)
        return adapter_config_no_memory(e);
    return err_set(e, ERR_UNREADABLE, DICT, "adapter_config.json: %s at line %d, column %d",
                   why.text, why.line, why.column);
}

int adapter_config_parse(struct adapter_config **out, const char *json, size_t len, struct err *e)
{
    struct adapter_config *c;
    json_t *root;
    int rc;

    if (adapter_config_parse_json(&root, json, len, e) != 0)
        return -1;
    c = calloc(1, sizeof *c);
    if (c == NULL) {
        json_decref(root);
        return adapter_config_no_memory(e);
    }
    c->r = 8; /* PEFT's own defaults */
    c->alpha = 8.0;
    names_init(&c->target_names);
    names_init(&c->excluded_names);
    c->text = strndup(json, len);
    rc = c->text != NULL ? adapter_config_read_all(c, root, e) : adapter_config_no_memory(e);
    json_decref(root);
    if (rc != 0) {
        adapter_config_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

static void overrides_fini(struct adapter_overrides *o)
{
    for (uint32_t i = 0; i < o->n; i++)
        adapter_pattern_free(o->items[i].pattern);
    free(o->items);
}

void adapter_config_free(struct adapter_config *c)
{
    if (c == NULL)
        return;
    names_fini(&c->target_names);
    names_fini(&c->excluded_names);
    adapter_pattern_free(c->target_pattern);
    adapter_pattern_free(c->excluded_pattern);
    overrides_fini(&c->ranks);
    overrides_fini(&c->alphas);
    free(c->text);
    free(c);
}

/* The path itself, or an end of it that begins after a dot. */
static bool names_match(const struct names *s, const char *path)
{
    if (s->n == 0)
        return false;
    for (const char *at = path; at != NULL; at = strchr(at, '.')) {
        at += *at == '.';
        if (names_find(s, at) != NAMES_NONE)
            return true;
    }
    return false;
}

static bool layer_wanted(const struct adapter_config *c, uint32_t layer)
{
    if (!c->some_layers)
        return true;
    return !c->other_stack && layer < MODEL_LAYERS_MAX && c->layers[layer];
}

static int is_excluded(struct adapter_config *c, const char *path, bool *out, struct err *e)
{
    *out = names_match(&c->excluded_names, path);
    if (*out || c->excluded_pattern == NULL)
        return 0;
    return adapter_pattern_match(c->excluded_pattern, path, &c->match_cpu_us, out, e);
}

static int is_wanted(struct adapter_config *c, const char *path, uint32_t layer, bool *out,
                     struct err *e)
{
    bool excluded;

    if (is_excluded(c, path, &excluded, e) != 0)
        return -1;
    *out = false;
    if (excluded)
        return 0;
    switch (c->targets) {
    case TARGETS_UNSAID:
        *out = layer_wanted(c, layer);
        break;
    case TARGETS_ALL:
        *out = layer < MODEL_LAYERS_MAX && layer_wanted(c, layer);
        break;
    case TARGETS_NAMES:
        *out = names_find(&c->target_names, path) != NAMES_NONE ||
               (names_match(&c->target_names, path) && layer_wanted(c, layer));
        break;
    case TARGETS_PATTERN:
        return adapter_pattern_match(c->target_pattern, path, &c->match_cpu_us, out, e);
    }
    return 0;
}

static int config_override(struct adapter_config *c, const struct adapter_overrides *o,
                           const char *path, double *value, struct err *e)
{
    for (uint32_t i = 0; i < o->n; i++) {
        bool matches;

        if (adapter_pattern_match(o->items[i].pattern, path, &c->match_cpu_us, &matches, e) != 0)
            return -1;
        if (matches) {
            *value = o->items[i].value;
            return 0;
        }
    }
    return 0;
}

int adapter_config_target(struct adapter_config *c, const char *path, uint32_t layer,
                          struct adapter_target *out, struct err *e)
{
    double r = c->r, alpha = c->alpha;
    bool wanted;

    if (is_wanted(c, path, layer, &wanted, e) != 0 ||
        config_override(c, &c->ranks, path, &r, e) != 0 ||
        config_override(c, &c->alphas, path, &alpha, e) != 0)
        return -1;
    *out = (struct adapter_target){
        .wanted = wanted, .r = (uint32_t)r, .scale = (float)(alpha / (c->rslora ? sqrt(r) : r))};
    return 0;
}
