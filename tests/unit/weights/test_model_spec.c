/* Manifests: aliases, what a mismatch says, and that a suggestion costs little whatever the model.
 */
#include "weights/model_spec.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct tensor_list *model_tensor_list(void)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        uint64_t d0, d1;
    } rows[] = {{"model.embed_tokens.weight", DTYPE_BF16, 100, 16},
                {"model.layers.0.mlp.experts.0.gate_proj.weight", DTYPE_BF16, 8, 16},
                {"model.layers.0.mlp.experts.0.up_proj.weight", DTYPE_BF16, 8, 16},
                {"model.layers.0.mlp.experts.1.gate_proj.weight", DTYPE_BF16, 8, 16},
                {"model.layers.0.mlp.experts.1.up_proj.weight", DTYPE_BF16, 8, 16},
                {"model.layers.0.mlp.gate.e_score_correction_bias", DTYPE_F32, 2, 1},
                {"model.norm.weight", DTYPE_BF16, 16, 1}};
    struct tensor_list_builder *b;
    struct err e = {0};
    struct tensor_list *p;

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint64_t shape[] = {rows[i].d0, rows[i].d1};
        assert_int_equal(
            tensor_list_builder_add(b, rows[i].name, rows[i].dtype, shape, 2, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static const char *const tied_to[] = {"model.embed_tokens.weight", NULL};
static const char *const fused_to[] = {"model.layers.0.mlp.experts.0.gate_proj.weight",
                                       "model.layers.0.mlp.experts.0.up_proj.weight",
                                       "model.layers.0.mlp.experts.1.gate_proj.weight",
                                       "model.layers.0.mlp.experts.1.up_proj.weight", NULL};
static const char *const mixed_to[] = {"model.layers.0.mlp.experts.0.gate_proj.weight",
                                       "model.layers.0.mlp.gate.e_score_correction_bias", NULL};
static const char *const nowhere[] = {"model.embed", NULL};

#define FUSED "model.layers.0.mlp.experts.gate_up_proj"

static struct model_spec *model_model_spec_of_test(void)
{
    static const struct alias_spec aliases[] = {
        {.name = "lm_head.weight", .kind = ALIAS_TIED, .targets = tied_to},
        {.name = FUSED, .kind = ALIAS_FUSED, .targets = fused_to, .ndim = 3, .shape = {2, 16, 16}},
        {.name = "model.position_ids", .kind = ALIAS_IGNORED}};
    struct model_spec *m = NULL;
    struct err e = {0};

    if (model_spec_new(&m, model_tensor_list(), aliases, 3, &e) != 0)
        fail_msg("%s", e.msg);
    return m;
}

static struct tensor_spec spec(const char *name, enum dtype d, uint32_t ndim, uint64_t d0,
                               uint64_t d1, uint64_t d2)
{
    return (struct tensor_spec){.name = name, .dtype = d, .ndim = ndim, .shape = {d0, d1, d2}};
}

static void test_model_spec_match_names_and_aliases(void **state)
{
    struct model_spec *m = model_model_spec_of_test();
    struct model_spec_match match;
    struct tensor_spec t;
    struct err e = {0};

    (void)state;
    t = spec("model.norm.weight", DTYPE_BF16, 2, 16, 1, 0);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_true(match.index == 6 && match.alias == NULL);
    t = spec("model.norm.weight", DTYPE_F32, 2, 16, 1, 0);
    assert_int_equal(model_spec_match(m, &t, true, 0, &match, &e), 0);
    t = spec("lm_head.weight", DTYPE_BF16, 2, 100, 16, 0);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_int_equal(match.index, TENSOR_LIST_NO_TENSOR);
    assert_int_equal(match.alias->kind, ALIAS_TIED);
    assert_int_equal(match.alias->targets[0], 0);
    t = spec(FUSED, DTYPE_BF16, 3, 2, 16, 16);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_int_equal(match.alias->n_targets, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(match.alias->targets[i], 1 + i);
    t = spec("model.position_ids", DTYPE_I64, 2, 1, 512, 0);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_int_equal(match.alias->kind, ALIAS_IGNORED);
    t = spec("model.layers.9.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, 64, 0, 0);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_int_equal(match.alias->kind, ALIAS_IGNORED);
    model_spec_free(m);
    model_spec_free(NULL);
}

/* Whatever came before, a tensor matches as it does alone. */
static void test_model_spec_match_next_matches_as_alone(void **state)
{
    struct model_spec *m = model_model_spec_of_test();
    struct model_spec_match alone, next, last = {.index = TENSOR_LIST_NO_TENSOR};
    struct err e = {0};

    (void)state;
    for (uint32_t i = 0; i < m->tensor_list->n_tensors; i++) {
        for (uint32_t k = 0; k <= m->tensor_list->n_tensors; k++) {
            last.index = k < m->tensor_list->n_tensors ? k : TENSOR_LIST_NO_TENSOR;
            assert_int_equal(model_spec_match(m, &m->tensor_list->tensors[i], false, 0, &alone, &e),
                             0);
            assert_int_equal(
                model_spec_match_next(m, &last, &m->tensor_list->tensors[i], false, 0, &next, &e),
                0);
            assert_int_equal(next.index, alone.index);
            assert_ptr_equal(next.alias, alone.alias);
        }
    }
    model_spec_free(m);
}

/* An ignored alias that ends in '.' stands for what is below it, of any shape and dtype. */
static void test_match_ignores_what_is_below_a_prefix(void **state)
{
    static const char *const ignored[] = {"model.layers.2.eh_proj.weight",
                                          "model.layers.2.mlp.experts.0.up_proj.weight",
                                          "model.layers.2."};
    static const char *const unknown[] = {"model.layers.20.eh_proj.weight", "model.layers.2",
                                          "x.model.layers.2.w", "model.layers.3.eh_proj.weight"};
    const struct alias_spec aliases[] = {{.name = "model.layers.2.", .kind = ALIAS_IGNORED}};
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct model_spec *m;
    struct model_spec_match match;
    struct err e = {0};

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "model.norm.weight", DTYPE_BF16,
                                             (const uint64_t[]){4}, 1, UINT64_MAX, &e),
                     0);
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    assert_int_equal(model_spec_new(&m, list, aliases, 1, &e), 0);
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        struct tensor_spec t = spec(ignored[i], DTYPE_F8_E4M3, 2, 3 + i, 5, 0);

        assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
        assert_true(match.alias != NULL && match.alias->kind == ALIAS_IGNORED);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        struct tensor_spec t = spec(unknown[i], DTYPE_BF16, 1, 4, 0, 0);

        assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), -1);
        assert_string_equal(e.field, "/names/0");
        err_clear(&e);
    }
    model_spec_free(m);
}

static void test_model_spec_check_ignored_compares_rotary(void **state)
{
    static const float right[] = {1.0F, 0.1F}, zeros[] = {0, 0}, other[] = {1.0F, 0.11F};
    static const uint16_t narrow[] = {0x3f80, 0x3dcd}; /* bfloat16 of 1 and 0.1 */
    struct tensor_spec t = spec("model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, 2, 0,
                                0);
    struct model_spec *m = model_model_spec_of_test();
    struct model_spec_match match;
    struct err e = {0};

    (void)state;
    assert_int_equal(model_spec_derive_rotary(m, right, 2, &e), 0);
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), 0);
    assert_int_equal(model_spec_check_ignored(m, &t, right, &e), 0);
    assert_int_equal(model_spec_check_ignored(m, &t, zeros, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "inv_freq"));
    err_clear(&e);
    assert_int_equal(model_spec_check_ignored(m, &t, other, &e), -1);
    assert_non_null(strstr(e.msg, "element 1"));
    err_clear(&e);
    t.dtype = DTYPE_BF16;
    assert_int_equal(model_spec_check_ignored(m, &t, narrow, &e), 0);
    t = spec("model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, 3, 0, 0);
    assert_int_equal(model_spec_match(m, &t, false, 4, &match, &e), -1);
    assert_string_equal(e.field, "/shapes/4");
    model_spec_free(m);
}

static void test_model_spec_match_refusals(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        uint32_t ndim;
        uint64_t d0, d1, d2;
        bool convert;
        const char *field, *says;
    } rows[] = {
        {"model.norm.weight", DTYPE_BF16, 1, 16, 0, 0, false, "/shapes/7",
         "'model.norm.weight' has shape [16], the model expects [16, 1]"},
        {"model.norm.weight", DTYPE_BF16, 2, 16, 2, 0, true, "/shapes/7", "[16, 2]"},
        {"model.norm.weight", DTYPE_F32, 2, 16, 1, 0, false, "/dtypes/7",
         "is F32, the model expects BF16; \"convert\": true"},
        {"model.norm.weight", DTYPE_I16, 2, 16, 1, 0, true, "/dtypes/7",
         "is I16, the model expects BF16"},
        {"lm_head.weight", DTYPE_BF16, 2, 16, 100, 0, false, "/shapes/7", "lm_head.weight"},
        {"lm_head.weight", DTYPE_F32, 2, 100, 16, 0, false, "/dtypes/7", "lm_head.weight"},
        {FUSED, DTYPE_BF16, 2, 32, 16, 0, false, "/shapes/7", "[2, 16, 16]"},
        {FUSED, DTYPE_F16, 3, 2, 16, 16, false, "/dtypes/7", "F16"},
        {"model.nrom.weight", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7",
         "no tensor 'model.nrom.weight'; did you mean 'model.norm.weight'?"},
        {"module.model.norm.weight", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7",
         "mean 'model.norm.weight'"},
        {"_fsdp.module.lm_head.weight", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7",
         "mean 'lm_head.weight'"},
        {"_orig_mod.model._fsdp_wrapped_module.norm._checkpoint_wrapped_module.weight", DTYPE_BF16,
         2, 16, 1, 0, false, "/names/7", "mean 'model.norm.weight'"},
        {"norm.weight", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7", "mean 'model.norm.weight'"},
        {"model.norm", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7", "mean 'model.norm.weight'"},
        {FUSED ".weight", DTYPE_BF16, 2, 16, 1, 0, false, "/names/7", "mean '" FUSED "'?"},
        {"rotary_emb.inv_freq", DTYPE_F32, 1, 64, 0, 0, false, "/names/7", "no tensor"},
        {"", DTYPE_F32, 1, 64, 0, 0, false, "/names/7", "no tensor ''"},
    };
    struct model_spec *m = model_model_spec_of_test();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tensor_spec t = spec(rows[i].name, rows[i].dtype, rows[i].ndim, rows[i].d0,
                                    rows[i].d1, rows[i].d2);
        struct model_spec_match match = {.index = 99};
        struct err e = {0};
        assert_int_equal(model_spec_match(m, &t, rows[i].convert, 7, &match, &e), -1);
        if (e.code != ERR_MISMATCH || strcmp(e.field, rows[i].field) != 0 ||
            strstr(e.msg, rows[i].says) == NULL)
            fail_msg("row %zu: %s: %s", i, e.field, e.msg);
        assert_int_equal(match.index, 99);
    }
    model_spec_free(m);
}

static void test_model_spec_match_far_names_get_no_suggestion(void **state)
{
    struct model_spec *m = model_model_spec_of_test();
    struct tensor_spec t = spec("transformer.wte", DTYPE_F32, 1, 1, 0, 0);
    struct model_spec_match match;
    struct err e = {0};

    (void)state;
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), -1);
    assert_null(strstr(e.msg, "did you mean"));
    model_spec_free(m);
}

static void test_model_spec_new_refuses_wrong_aliases(void **state)
{
    static const struct {
        struct alias_spec alias;
        const char *says;
    } rows[] = {
        {{.name = "x", .kind = ALIAS_TIED, .targets = nowhere}, "'model.embed', which is not"},
        {{.name = "model.norm.weight", .kind = ALIAS_TIED, .targets = tied_to}, "already"},
        {{.name = "x", .kind = ALIAS_TIED, .targets = fused_to}, "4 targets"},
        {{.name = "x", .kind = ALIAS_TIED}, "0 targets"},
        {{.name = "x", .kind = ALIAS_IGNORED, .targets = tied_to}, "1 targets"},
        {{.name = "x", .kind = ALIAS_FUSED, .targets = mixed_to, .ndim = 1, .shape = {4}}, "fuses"},
        {{.name = "x", .kind = ALIAS_FUSED, .targets = fused_to, .ndim = 2, .shape = {31, 16}},
         "add up"},
        {{.name = "x", .kind = ALIAS_FUSED, .targets = fused_to, .ndim = 9}, "dimensions"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_spec *m = NULL;
        struct err e = {0};
        assert_int_equal(model_spec_new(&m, model_tensor_list(), &rows[i].alias, 1, &e), -1);
        if (e.code != ERR_INTERNAL || strstr(e.msg, rows[i].says) == NULL)
            fail_msg("row %zu: %s", i, e.msg);
        assert_null(m);
    }
}

/* 200,000 names of 1 KiB that differ in the middle, none near: the work has a bound. */
static void test_model_spec_match_suggestion_is_bounded(void **state)
{
    enum { N = 200000, LEN = 1000 };
    static char name[LEN + 1];
    struct tensor_list_builder *b;
    struct model_spec *m;
    struct model_spec_match match;
    struct tensor_spec t = spec(name, DTYPE_U8, 1, 1, 0, 0);
    struct err e = {0};
    const uint64_t shape[] = {1};
    struct tensor_list *p;
    uint64_t began;

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    memset(name, 'a', LEN);
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(name + 480, 11, "%010u", i);
        name[490] = 'a';
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, shape, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    assert_int_equal(model_spec_new(&m, p, NULL, 0, &e), 0);
    memcpy(name + 480, "xxxxxxxxxx", 10);
    began = clock_now_us();
    assert_int_equal(model_spec_match(m, &t, false, 0, &match, &e), -1);
    began = clock_now_us() - began;
    print_message("suggestion among %d long names: %llu us\n", N, (unsigned long long)began);
    assert_true(began < 60000000); /* unbounded, it would take many minutes */
    model_spec_free(m);
}

static char path[] = "/tmp/baton-manifest-XXXXXX";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void test_model_spec_load_json(void **state)
{
    struct model_spec *m;
    struct err e = {0};

    (void)state;
    write_file("{\"names\":[\"a\",\"b\"],\"dtypes\":[\"bfloat16\",\"F32\"],\"shapes\":[[2,3],[]],"
               "\"aliases\":{\"a2\":\"a\",\"b2\":\"b\"}}");
    if (model_spec_load(&m, path, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(m->tensor_list->n_tensors, 2);
    assert_int_equal(m->tensor_list->nbytes, 16);
    assert_int_equal(m->n_aliases, 2);
    assert_int_equal(m->aliases[0].kind, ALIAS_TIED);
    assert_int_equal(m->aliases[0].shape[1], 3);
    model_spec_free(m);
}

static void test_model_spec_load_safetensors(void **state)
{
    struct model_spec *m;
    struct err e = {0};

    (void)state;
    if (model_spec_load(&m, FIXTURES "/kjv-qwen3-1m/checkpoints/step-00000.safetensors", &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_not_equal(tensor_list_find(m->tensor_list, "model.norm.weight"),
                         TENSOR_LIST_NO_TENSOR);
    model_spec_free(m);
}

static void test_model_spec_load_refusals(void **state)
{
    static const struct {
        const char *text, *field, *says;
    } rows[] = {
        {"", "", "line"},
        {"[]", "", "object"},
        {"{", "", "line 1"},
        {"{\"names\":[],\"names\":[]}", "", "duplicate"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]],\"extra\":1}", "", "only"},
        {"{\"names\":\"a\",\"dtypes\":[],\"shapes\":[]}", "/names", "array"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"]}", "/shapes", "array"},
        {"{\"names\":[\"a\"],\"dtypes\":[],\"shapes\":[[1]]}", "/names", "1 names, 0 dtypes"},
        {"{\"names\":[],\"dtypes\":[],\"shapes\":[]}", "/names", "no tensors"},
        {"{\"names\":[1],\"dtypes\":[\"F32\"],\"shapes\":[[1]]}", "/names/0", "string"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F7\"],\"shapes\":[[1]]}", "/dtypes/0", "'F7'"},
        {"{\"names\":[\"a\"],\"dtypes\":[7],\"shapes\":[[1]]}", "/dtypes/0", "not one of"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[1]}", "/shapes/0", "array"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[-1]]}", "/shapes/0", "dimension 0"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1.5]]}", "/shapes/0", "integer"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1,1,1,1,1,1,1,1,1]]}", "/shapes/0",
         "at most 8"},
        {"{\"names\":[\"a\",\"a\"],\"dtypes\":[\"F32\",\"F32\"],\"shapes\":[[1],[1]]}", "/names/1",
         "twice"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]],\"aliases\":[]}", "/aliases",
         "object"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]],\"aliases\":{\"b\":\"c\"}}",
         "/aliases", "'c', which is not"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]],\"aliases\":{\"b\":1}}",
         "/aliases", "'b' must be"},
        {"{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]],\"aliases\":{\"a\":\"a\"}}",
         "/aliases", "itself"},
    };
    struct model_spec *m = NULL;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        err_clear(&e);
        write_file(rows[i].text);
        assert_int_equal(model_spec_load(&m, path, &e), -1);
        if (e.code != ERR_BAD_REQUEST || strcmp(e.field, rows[i].field) != 0 ||
            strstr(e.msg, rows[i].says) == NULL)
            fail_msg("row %zu: %s: %s", i, e.field, e.msg);
    }
    err_clear(&e);
    assert_int_equal(model_spec_load(&m, "/nowhere.json", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);
    assert_int_equal(model_spec_load(&m, "/tmp", &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_spec_match_names_and_aliases),
        cmocka_unit_test(test_model_spec_match_next_matches_as_alone),
        cmocka_unit_test(test_match_ignores_what_is_below_a_prefix),
        cmocka_unit_test(test_model_spec_check_ignored_compares_rotary),
        cmocka_unit_test(test_model_spec_match_refusals),
        cmocka_unit_test(test_model_spec_match_far_names_get_no_suggestion),
        cmocka_unit_test(test_model_spec_new_refuses_wrong_aliases),
        cmocka_unit_test(test_model_spec_match_suggestion_is_bounded),
        cmocka_unit_test(test_model_spec_load_json),
        cmocka_unit_test(test_model_spec_load_safetensors),
        cmocka_unit_test(test_model_spec_load_refusals),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
