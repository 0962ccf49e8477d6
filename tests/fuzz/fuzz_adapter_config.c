/* adapter_config.json from a stranger. A refusal explains itself at a key; what is accepted lies
 * within the limits, says what the JSON says, says it again when it is read again, and gives every
 * module a rank and a finite scale, the same each time. */
#include "tests/fuzz/fuzz.h"

#include "engine/lora/adapter_config.h"

#include <jansson.h>
#include <math.h>

static const char *const paths[] = {"model.layers.0.self_attn.q_proj",
                                    "model.layers.1023.mlp.down_proj", "lm_head", "q_proj"};
static const uint32_t layers[] = {0, 1023, MODEL_LAYERS_MAX, UINT32_MAX};

enum { N_PATHS = sizeof paths / sizeof paths[0] };

static void check_names(const struct names *n)
{
    CHECK(n->n <= ADAPTER_NAMES_MAX);
    for (uint32_t i = 0; i < n->n; i++)
        CHECK(n->items[i][0] != '\0' && names_find(n, n->items[i]) == i);
}

static void check_overrides(const struct adapter_overrides *o, bool ranks)
{
    uint32_t n_regexes = 0;

    CHECK(o->n <= ADAPTER_PATTERNS_MAX);
    for (uint32_t i = 0; i < o->n; i++) {
        double v = o->items[i].value;

        CHECK(v > 0.0 && v <= (ranks ? ADAPTER_RANK_MAX : ADAPTER_ALPHA_MAX));
        CHECK(!ranks || v == floor(v));
        n_regexes += !adapter_pattern_is_plain(o->items[i].pattern);
    }
    CHECK(n_regexes <= ADAPTER_REGEXES_MAX);
}

/* What it says against what the JSON says. */
static void check_said(const struct adapter_config *c, const json_t *o)
{
    const json_t *r = json_object_get(o, "r"), *alpha = json_object_get(o, "lora_alpha");
    const json_t *targets = json_object_get(o, "target_modules"), *name;
    size_t i;

    CHECK(json_is_object(o));
    CHECK(c->r == (json_is_integer(r) ? json_integer_value(r) : 8));
    CHECK(c->alpha == (json_is_number(alpha) ? json_number_value(alpha) : 8.0));
    CHECK(c->rslora == json_is_true(json_object_get(o, "use_rslora")));
    CHECK(!json_is_true(json_object_get(o, "use_dora")));
    CHECK(json_array_size(json_object_get(o, "modules_to_save")) == 0);
    CHECK((c->targets == TARGETS_UNSAID) == (targets == NULL || json_is_null(targets)));
    CHECK((c->targets == TARGETS_NAMES) == json_is_array(targets));
    json_array_foreach(targets, i, name)
        CHECK(names_find(&c->target_names, json_string_value(name)) != NAMES_NONE);
    CHECK(c->ranks.n == json_object_size(json_object_get(o, "rank_pattern")));
    CHECK(c->alphas.n == json_object_size(json_object_get(o, "alpha_pattern")));
}

static bool is_end_of(const char *path, const char *name)
{
    size_t n = strlen(path), m = strlen(name);

    return m <= n && strcmp(path + n - m, name) == 0 && (m == n || path[n - m - 1] == '.');
}

/* PEFT's rule for a list, spelt out; where no layers are named. */
static bool is_named(const struct names *n, const char *path)
{
    for (uint32_t i = 0; i < n->n; i++)
        if (is_end_of(path, n->items[i]))
            return true;
    return false;
}

static bool read_target(struct adapter_config *c, uint32_t i, struct adapter_target *out)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NO_MEMORY, ERR_NONE};
    struct err e = {0};

    if (adapter_config_target(c, paths[i], layers[i], out, &e) == 0) {
        CHECK(e.code == ERR_NONE);
        return true;
    }
    check_refusal(&e, codes, "/adapter_config");
    return false;
}

static void check_target(struct adapter_config *c, uint32_t i)
{
    struct adapter_target t = {0}, again = {0};
    bool is_plain = c->excluded_pattern == NULL && !c->some_layers;

    if (!read_target(c, i, &t))
        return;
    CHECK(t.r >= 1 && t.r <= ADAPTER_RANK_MAX && isfinite(t.scale) && t.scale >= 0.0F);
    if (is_plain && c->targets == TARGETS_NAMES)
        CHECK(t.wanted ==
              (is_named(&c->target_names, paths[i]) && !is_named(&c->excluded_names, paths[i])));
    if (is_plain && c->targets == TARGETS_UNSAID)
        CHECK(t.wanted == !is_named(&c->excluded_names, paths[i]));
    if (read_target(c, i, &again))
        CHECK(again.wanted == t.wanted && again.r == t.r && again.scale == t.scale);
}

static void check_again(const struct adapter_config *c, const json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);
    struct adapter_config *again = NULL;
    struct err e = {0};

    CHECK(text != NULL);
    CHECK(adapter_config_parse(&again, text, strlen(text), &e) == 0);
    CHECK(again->r == c->r && again->rslora == c->rslora && again->targets == c->targets);
    CHECK(again->n_ignored == c->n_ignored && again->base_changed == c->base_changed);
    CHECK(memcmp(again->layers, c->layers, sizeof c->layers) == 0);
    adapter_config_free(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const enum err_code codes[] = {ERR_UNREADABLE, ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NONE};
    json_t *o = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, NULL);
    struct adapter_config *c = NULL;
    struct err e = {0};

    if (adapter_config_parse(&c, (const char *)data, len, &e) != 0) {
        check_refusal(&e, codes, "/adapter_config");
        CHECK(c == NULL && (e.code == ERR_UNREADABLE) == (o == NULL));
    } else {
        CHECK(c->r >= 1 && c->r <= ADAPTER_RANK_MAX);
        CHECK(c->alpha > 0.0 && c->alpha <= ADAPTER_ALPHA_MAX);
        check_names(&c->target_names);
        check_names(&c->excluded_names);
        check_overrides(&c->ranks, true);
        check_overrides(&c->alphas, false);
        check_said(c, o);
        check_again(c, o);
        for (uint32_t i = 0; i < N_PATHS; i++)
            check_target(c, i);
        adapter_config_free(c);
    }
    json_decref(o);
    return 0;
}
