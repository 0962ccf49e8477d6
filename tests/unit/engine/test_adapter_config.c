/* adapter_config.json: what is read, what is refused and why, which modules are meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/adapter_fixture.h"

static void test_parse_reads_what_peft_writes(void **state)
{
    static const struct {
        const char *path;
        uint32_t r;
        float scale;
        const char *in, *out; /* a module that is a target, and one that is not */
    } rows[] = {
        {SHOUT, 16, 2.0F, "model.layers.3.mlp.down_proj", "lm_head"},
        {RSLORA, 4, 4.0F, "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.k_proj"},
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char path[300];
        struct blob b;
        struct adapter_config *c;
        struct adapter_target t;
        struct err e = {0};

        (void)snprintf(path, sizeof path, "%s/adapter_config.json", rows[i].path);
        b = read_blob(path);
        c = config_of(b.data);
        assert_false(c->base_changed);
        assert_int_equal(adapter_config_target(c, rows[i].in, 3, &t, &e), 0);
        assert_true(t.wanted && t.r == rows[i].r && t.scale == rows[i].scale);
        assert_int_equal(adapter_config_target(c, rows[i].out, 0, &t, &e), 0);
        assert_false(t.wanted);
        adapter_config_free(c);
        free(b.data);
    }
}

static const struct {
    const char *json, *field, *says;
    enum err_code code;
} refusals[] = {
    {"", "", "line 1", ERR_UNREADABLE},
    {"{\"r\": 8", "", "line 1", ERR_UNREADABLE},
    {"{\"r\": 8, \"r\": 8}", "", "duplicate", ERR_UNREADABLE},
    {"{\"lora_alpha\": NaN}", "", "line 1", ERR_UNREADABLE},
    {"[]", "", "object", ERR_BAD_REQUEST},
    {"{\"r\": 0}", "/r", "1..4096", ERR_BAD_REQUEST},
    {"{\"r\": 4097}", "/r", "4097", ERR_BAD_REQUEST},
    {"{\"r\": -1}", "/r", "-1", ERR_BAD_REQUEST},
    {"{\"r\": 8.0}", "/r", "integer", ERR_BAD_REQUEST},
    {"{\"r\": \"8\"}", "/r", "\"8\"", ERR_BAD_REQUEST},
    {"{\"lora_alpha\": 0}", "/lora_alpha", "above 0", ERR_BAD_REQUEST},
    {"{\"lora_alpha\": 1e7}", "/lora_alpha", "1e6", ERR_BAD_REQUEST},
    {"{\"lora_alpha\": true}", "/lora_alpha", "true", ERR_BAD_REQUEST},
    {"{\"peft_type\": \"LOHA\"}", "/peft_type", "LOHA", ERR_BAD_REQUEST},
    {"{\"task_type\": \"SEQ_CLS\"}", "/task_type", "CAUSAL_LM", ERR_BAD_REQUEST},
    {"{\"bias\": \"all\"}", "/bias", "none", ERR_BAD_REQUEST},
    {"{\"use_rslora\": 1}", "/use_rslora", "true", ERR_BAD_REQUEST},
    {"{\"use_dora\": true}", "/use_dora", "DoRA", ERR_BAD_REQUEST},
    {"{\"modules_to_save\": [\"lm_head\"]}", "/modules_to_save", "lm_head", ERR_BAD_REQUEST},
    {"{\"lora_bias\": true}", "/lora_bias", "true", ERR_BAD_REQUEST},
    {"{\"layer_replication\": [[0, 1]]}", "/layer_replication", "[[0,1]]", ERR_BAD_REQUEST},
    {"{\"trainable_token_indices\": [1]}", "/trainable_token_indices", "[1]", ERR_BAD_REQUEST},
    {"{\"target_parameters\": [\"experts.up\"]}", "/target_parameters", "experts", ERR_BAD_REQUEST},
    {"{\"fan_in_fan_out\": true}", "/fan_in_fan_out", "true", ERR_BAD_REQUEST},
    {"{\"use_qalora\": true}", "/use_qalora", "true", ERR_BAD_REQUEST},
    {"{\"use_bdlora\": {\"n\": 2}}", "/use_bdlora", "n", ERR_BAD_REQUEST},
    {"{\"arrow_config\": {\"k\": 1}}", "/arrow_config", "k", ERR_BAD_REQUEST},
    {"{\"kasa_config\": 1}", "/kasa_config", "1", ERR_BAD_REQUEST},
    {"{\"alora_invocation_tokens\": [5]}", "/alora_invocation_tokens", "5", ERR_BAD_REQUEST},
    {"{\"use_something_new\": true}", "/use_something_new", "not known", ERR_BAD_REQUEST},
    {"{\"new\": {\"a\": {\"b\": 0}}}", "/new", "not known", ERR_BAD_REQUEST},
    {"{\"target_modules\": []}", "/target_modules", "at least one", ERR_BAD_REQUEST},
    {"{\"target_modules\": [3]}", "/target_modules", "3", ERR_BAD_REQUEST},
    {"{\"target_modules\": 3}", "/target_modules", "3", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"\"}", "/target_modules", "0 bytes", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"(q\"}", "/target_modules", "malformed", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"(*LIMIT_MATCH=1)q\"}", "/target_modules", "group", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"(?R)q\"}", "/target_modules", "group", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"(?C1)q\"}", "/target_modules", "group", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"a\\\\Kb\"}", "/target_modules", "escape", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"a\\\\\"}", "/target_modules", "escape", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"[[:alpha:]]+\"}", "/target_modules", "set", ERR_BAD_REQUEST},
    {"{\"target_modules\": \"a{,3}\"}", "/target_modules", "repeat", ERR_BAD_REQUEST},
    {"{\"exclude_modules\": 1}", "/exclude_modules", "1", ERR_BAD_REQUEST},
    {"{\"rank_pattern\": []}", "/rank_pattern", "object", ERR_BAD_REQUEST},
    {"{\"rank_pattern\": {\"q\": 0}}", "/rank_pattern", "0", ERR_BAD_REQUEST},
    {"{\"rank_pattern\": {\"\": 1}}", "/rank_pattern", "0 bytes", ERR_BAD_REQUEST},
    {"{\"alpha_pattern\": {\"q\": -1}}", "/alpha_pattern", "-1", ERR_BAD_REQUEST},
    {"{\"layers_to_transform\": -1}", "/layers_to_transform", "-1", ERR_BAD_REQUEST},
    {"{\"layers_to_transform\": [1024]}", "/layers_to_transform", "1024", ERR_BAD_REQUEST},
    {"{\"layers_to_transform\": [\"1\"]}", "/layers_to_transform", "1", ERR_BAD_REQUEST},
    {"{\"layers_to_transform\": 1, \"target_modules\": \".*q_proj\"}", "/layers_to_transform",
     "regular expression", ERR_BAD_REQUEST},
    {"{\"layers_pattern\": \"(layers|h)\"}", "/layers_pattern", "list of layers", ERR_BAD_REQUEST},
    {"{\"init_lora_weights\": 3}", "/init_lora_weights", "3", ERR_BAD_REQUEST},
};

static void test_parse_refuses_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct adapter_config *c = NULL;
        struct err e = {0};
        char field[64];

        (void)snprintf(field, sizeof field, "/adapter_config%s", refusals[i].field);
        assert_int_equal(adapter_config_parse(&c, refusals[i].json, strlen(refusals[i].json), &e),
                         -1);
        assert_null(c);
        if (e.code != refusals[i].code || strcmp(e.field, field) != 0 ||
            strstr(e.msg, refusals[i].says) == NULL)
            fail_msg("%s: %s at %s: %s", refusals[i].json, err_wire_name(e.code), e.field, e.msg);
    }
}

static void test_parse_counts_what_it_passes_over(void **state)
{
    static const struct {
        const char *json;
        uint32_t n_ignored;
        bool base_changed;
    } rows[] = {
        {"{}", 0, false},
        {"{\"r\": null, \"bias\": null, \"target_modules\": null}", 0, false},
        {"{\"use_dora\": false, \"modules_to_save\": [], \"use_bdlora\": {}}", 0, false},
        {"{\"lora_dropout\": 0.1, \"peft_version\": \"0.21.0\"}", 2, false},
        {"{\"later\": null, \"new\": {\"on\": false, \"list\": []}, \"text\": \"\"}", 3, false},
        {"{\"init_lora_weights\": \"gaussian\"}", 0, false},
        {"{\"init_lora_weights\": \"pissa\"}", 0, true},
        {"{\"init_lora_weights\": \"pissa_niter_16\"}", 0, true},
        {"{\"init_lora_weights\": \"PiSSA\"}", 0, true},
        {"{\"init_lora_weights\": \"OLoRA\"}", 0, true},
        {"{\"init_lora_weights\": \"corda\"}", 0, true},
        {"{\"init_lora_weights\": \"loftq\"}", 0, true},
        {"{\"init_lora_weights\": \"lora_ga\", \"lora_ga_config\": {\"scale\": \"stable\"}}", 1,
         true},
        {"{\"init_lora_weights\": \"MICA\"}", 0, false},
        {"{\"init_lora_weights\": \"eva\"}", 0, false},
        {"{\"init_lora_weights\": \"orthogonal\"}", 0, false},
        {"{\"auto_mapping\": {\"base_model_class\": \"X\", \"unsloth_fixed\": true}}", 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct adapter_config *c = config_of(rows[i].json);

        assert_int_equal(c->n_ignored, rows[i].n_ignored);
        assert_int_equal(c->base_changed, rows[i].base_changed);
        adapter_config_free(c);
    }
}

#define Q0 "model.layers.0.self_attn.q_proj"
#define Q1 "model.layers.1.self_attn.q_proj"
#define D1 "model.layers.1.mlp.down_proj"
#define UNSLOTH                                                                                    \
    "(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|down_proj).*?)|"                      \
    "(?:\\\\bmodel\\\\.layers\\\\.[\\\\d]{1,}\\\\.(?:self_attn|mlp)\\\\.(?:(?:k_proj|q_proj)))"

static void test_target_is_what_peft_would_choose(void **state)
{
    static const struct {
        const char *json, *path;
        uint32_t layer;
        bool wanted;
        uint32_t r;
        double scale;
    } rows[] = {
        {"{}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": [\"q_proj\"]}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": [\"proj\"]}", Q0, 0, false, 8, 1.0},
        {"{\"target_modules\": [\"_proj\", \"attn.q_proj\"]}", Q0, 0, false, 8, 1.0},
        {"{\"target_modules\": [\"self_attn.q_proj\"]}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": [\"" Q0 "\"]}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": [\"" Q0 "\"]}", Q1, 1, false, 8, 1.0},
        {"{\"target_modules\": \"all-linear\"}", D1, 1, true, 8, 1.0},
        {"{\"target_modules\": \"all-linear\"}", "lm_head", UINT32_MAX, false, 8, 1.0},
        {"{\"target_modules\": \"q_proj\"}", Q0, 0, false, 8, 1.0},
        {"{\"target_modules\": \".*q_proj\"}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": \".*\\\\.(q|k)_proj\"}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": \".*\\\\.(q|k)_pro\"}", Q0, 0, false, 8, 1.0},
        {"{\"target_modules\": \"model|.*q_proj\"}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": \"" UNSLOTH "\"}", Q0, 0, true, 8, 1.0},
        {"{\"target_modules\": \"" UNSLOTH "\"}", D1, 1, false, 8, 1.0},
        {"{\"exclude_modules\": [\"q_proj\"]}", Q0, 0, false, 8, 1.0},
        {"{\"exclude_modules\": \".*layers.0.*\"}", Q0, 0, false, 8, 1.0},
        {"{\"exclude_modules\": \".*layers.0.*\"}", Q1, 1, true, 8, 1.0},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 1}", Q0, 0, false, 8, 1.0},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 1}", Q1, 1, true, 8, 1.0},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [0, 5]}", Q0, 0, true, 8, 1},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": []}", Q1, 1, true, 8, 1.0},
        {"{\"target_modules\": [\"" Q0 "\"], \"layers_to_transform\": 1}", Q0, 0, true, 8, 1.0},
        {"{\"layers_to_transform\": 1, \"layers_pattern\": [\"h\", \"layers\"]}", Q1, 1, true, 8,
         1.0},
        {"{\"layers_to_transform\": 1, \"layers_pattern\": \"h\"}", Q1, 1, false, 8, 1.0},
        {"{\"layers_pattern\": \"h\"}", Q1, 1, true, 8, 1.0},
        {"{\"r\": 4, \"lora_alpha\": 16}", Q0, 0, true, 4, 4.0},
        {"{\"r\": 16, \"lora_alpha\": 8, \"use_rslora\": true}", Q0, 0, true, 16, 2.0},
        {"{\"rank_pattern\": {\"q_proj\": 2}}", Q0, 0, true, 2, 4.0},
        {"{\"rank_pattern\": {\"q_pro\": 2, \"_proj\": 3}}", Q0, 0, true, 8, 1.0},
        {"{\"rank_pattern\": {\"^q_proj\": 2}}", Q0, 0, true, 8, 1.0},
        {"{\"rank_pattern\": {\"" Q1 "\": 2, \"q_proj\": 4}}", Q1, 1, true, 2, 4.0},
        {"{\"rank_pattern\": {\"q_proj\": 4, \"" Q1 "\": 2}}", Q1, 1, true, 4, 2.0},
        {"{\"rank_pattern\": {\"self.attn.q.proj\": 2}}", Q0, 0, true, 2, 4.0},
        {"{\"rank_pattern\": {\"[qk]_proj\": 2}}", Q0, 0, true, 2, 4.0},
        {"{\"rank_pattern\": {\"layers\\\\.[1-9].*_proj\": 2}}", Q0, 0, true, 8, 1.0},
        {"{\"rank_pattern\": {\"layers\\\\.[1-9].*_proj\": 2}}", Q1, 1, true, 2, 4.0},
        {"{\"alpha_pattern\": {\"q_proj\": 2}}", Q0, 0, true, 8, 0.25},
        {"{\"rank_pattern\": {\"q_proj\": 4}, \"alpha_pattern\": {\"q_proj\": 2}, "
         "\"use_rslora\": true}",
         Q0, 0, true, 4, 1.0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct adapter_config *c = config_of(rows[i].json);
        struct adapter_target t;
        struct err e = {0};

        assert_int_equal(adapter_config_target(c, rows[i].path, rows[i].layer, &t, &e), 0);
        if (t.wanted != rows[i].wanted || t.r != rows[i].r || t.scale != (float)rows[i].scale)
            fail_msg("%s: %s is %d, rank %u, scale %g", rows[i].json, rows[i].path, t.wanted, t.r,
                     (double)t.scale);
        adapter_config_free(c);
    }
}

/* A pattern that explodes is given up, in bounded time, with its name. */
static void test_target_gives_up_on_a_hostile_pattern(void **state)
{
    static const char *const hostile[] = {
        "{\"target_modules\": \"(.*.*)*(.*.*)*(.*.*)*(.*.*)*[!?]\"}",
        "{\"rank_pattern\": {\"((.+)+)+((.+)+)+[!?]\": 2}}",
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct adapter_config *c = config_of(hostile[i]);
        struct adapter_target t;
        struct err e = {0};

        assert_int_equal(adapter_config_target(c, Q0 Q0 Q0 Q0, 0, &t, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, "takes too long"));
        adapter_config_free(c);
    }
}

/* Lists of just too many; and JSON that is too deep or too long. */
static void test_parse_bounds_what_it_reads(void **state)
{
    static const struct {
        const char *open, *item, *close;
        uint32_t n;
        enum err_code code;
    } rows[] = {
        {"{\"target_modules\": [", "\"m%u\"", "]}", ADAPTER_NAMES_MAX, ERR_NONE},
        {"{\"target_modules\": [", "\"m%u\"", "]}", ADAPTER_NAMES_MAX + 1, ERR_TOO_LARGE},
        {"{\"rank_pattern\": {", "\"m%u\": 1", "}}", ADAPTER_PATTERNS_MAX + 1, ERR_TOO_LARGE},
        {"{\"rank_pattern\": {", "\"[m]%u\": 1", "}}", ADAPTER_REGEXES_MAX, ERR_NONE},
        {"{\"rank_pattern\": {", "\"[m]%u\": 1", "}}", ADAPTER_REGEXES_MAX + 1, ERR_TOO_LARGE},
        {"{\"x\": ", "[", "", 100000, ERR_UNREADABLE},
        {"{\"target_modules\": \"", "(", "\"}", 500, ERR_BAD_REQUEST},
        {"{\"target_modules\": \"", "q", "\"}", ADAPTER_PATTERN_LEN_MAX + 1, ERR_BAD_REQUEST},
        {"", " ", "{}", ADAPTER_CONFIG_NBYTES_MAX, ERR_TOO_LARGE},
    };
    char *text = malloc(ADAPTER_CONFIG_NBYTES_MAX + 64);

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct adapter_config *c = NULL;
        struct err e = {0};
        bool comma = strchr(rows[i].item, '"') != NULL;
        size_t at = (size_t)sprintf(text, "%s", rows[i].open);

        for (uint32_t k = 0; k < rows[i].n; k++) {
            if (comma && k > 0)
                text[at++] = ',';
            if (rows[i].item[1] == '\0')
                text[at++] = rows[i].item[0];
            else if (rows[i].item[1] == 'm')
                at += (size_t)sprintf(
                    text + at, strchr(rows[i].item, ':') != NULL ? "\"m%u\":1" : "\"m%u\"", k);
            else
                at += (size_t)sprintf(text + at, "\"[m]%u\":1", k);
        }
        at += (size_t)sprintf(text + at, "%s", rows[i].close);
        assert_int_equal(adapter_config_parse(&c, text, at, &e), rows[i].code == ERR_NONE ? 0 : -1);
        if (e.code != rows[i].code)
            fail_msg("row %zu: %s: %s", i, err_wire_name(e.code), e.msg);
        adapter_config_free(c);
    }
    free(text);
}

/* A real file with bytes changed: refused with a reason, or within the limits. */
static void test_parse_survives_changed_bytes(void **state)
{
    static const char chars[] = "{}[]\",:0123456789eE+-. \\ntruefalsn\x80\xff";
    struct blob b = read_blob(SHOUT "/adapter_config.json");
    char *text = malloc(b.len);
    uint64_t seed = 1;

    (void)state;
    assert_non_null(text);
    for (int round = 0; round < 20000; round++) {
        struct adapter_config *c = NULL;
        struct err e = {0};
        int rc, n_changes = 1 + round % 3;

        memcpy(text, b.data, b.len);
        for (int k = 0; k < n_changes; k++) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            text[(seed >> 20) % b.len] = chars[(seed >> 50) % (sizeof chars - 1)];
        }
        rc = adapter_config_parse(&c, text, b.len - (seed >> 60 == 0 ? (seed >> 40) % b.len : 0),
                                  &e);
        assert_true((rc == 0) == (e.code == ERR_NONE) && (rc == 0) == (c != NULL));
        assert_true(rc == 0 || e.msg[0] != '\0');
        assert_true(rc != 0 || (c->r >= 1 && c->r <= ADAPTER_RANK_MAX));
        adapter_config_free(c);
    }
    free(text);
    free(b.data);
}

/* Ours, not those of the JSON library: 2.14 reads NULL when its own fail. */
static void test_parse_unwinds_every_failed_allocation(void **state)
{
    static const char json[] =
        "{\"target_modules\": \".*[qk]_proj\", \"exclude_modules\": [\"a\", \"b\"], "
        "\"rank_pattern\": {\"q_proj\": 4, \"[k]\": 2}, \"alpha_pattern\": {\"v\": 1}}";
    int rc = -1;

    (void)state;
    for (long n = 0; rc != 0; n++) {
        struct adapter_config *c = NULL;
        struct err e = {0};

        assert_true(n < 1000);
        fail_nth(n);
        rc = adapter_config_parse(&c, json, sizeof json - 1, &e);
        fail_nth(-1);
        assert_true((rc == 0) == (e.code == ERR_NONE) && (rc == 0) == (c != NULL));
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
        adapter_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_reads_what_peft_writes),
        cmocka_unit_test(test_parse_refuses_by_name),
        cmocka_unit_test(test_parse_counts_what_it_passes_over),
        cmocka_unit_test(test_target_is_what_peft_would_choose),
        cmocka_unit_test(test_target_gives_up_on_a_hostile_pattern),
        cmocka_unit_test(test_parse_bounds_what_it_reads),
        cmocka_unit_test(test_parse_survives_changed_bytes),
        cmocka_unit_test(test_parse_unwinds_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
