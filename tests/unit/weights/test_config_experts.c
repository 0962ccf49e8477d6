/* Mixtures of experts: what config.json may say, and the tensors that follow from it. */
#include "weights/model/model_config.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define QWEN3_MOE                                                                                  \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":96," \
    "\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":6,\"num_attention_heads\":" \
    "4,"                                                                                           \
    "\"max_position_embeddings\":512,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16"
#define MIXTRAL                                                                                    \
    "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"vocab_size\":96,"    \
    "\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":" \
    "4,"                                                                                           \
    "\"max_position_embeddings\":512,\"num_experts_per_tok\":2"

static int parse(struct model_config *c, const char *text, struct err *e)
{
    json_t *o = json_loads(text, 0, NULL);

    if (o == NULL)
        fail_msg("%s is not JSON", text);
    json_decref(o);
    return model_config_parse(c, text, strlen(text), NULL, 0, e);
}

static struct model_config accepted(const char *text)
{
    struct model_config c = {0};
    struct err e = {0};

    if (parse(&c, text, &e) != 0)
        fail_msg("%s is refused at %s: %s", text, e.field, e.msg);
    return c;
}

/* Which layers are sparse, as a text of 0 and 1. */
static void test_parse_sparse_layers(void **state)
{
    static const struct {
        const char *text, *sparse;
    } rows[] = {
        {QWEN3_MOE ",\"num_experts\":8}", "111111"},
        {QWEN3_MOE ",\"num_local_experts\":8}", "111111"},
        {QWEN3_MOE ",\"num_experts\":8,\"num_local_experts\":8}", "111111"},
        {QWEN3_MOE ",\"num_experts\":8,\"decoder_sparse_step\":2}", "010101"},
        {QWEN3_MOE ",\"num_experts\":8,\"mlp_only_layers\":[0,3,99]}", "011011"},
        {QWEN3_MOE ",\"num_experts\":8,\"decoder_sparse_step\":3,\"mlp_only_layers\":[2]}",
         "000001"},
        {QWEN3_MOE ",\"num_experts\":8,\"decoder_sparse_step\":7}", "000000"},
        {QWEN3_MOE ",\"num_experts\":0}", "000000"},
        {MIXTRAL ",\"num_local_experts\":4}", "11"},
        {MIXTRAL ",\"num_experts\":4}", "11"}, /* an alias of transformers 5 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c = accepted(rows[i].text);
        uint32_t n = 0;

        assert_int_equal(c.n_layers, strlen(rows[i].sparse));
        for (uint32_t l = 0; l < c.n_layers; l++) {
            assert_int_equal(model_layer_is_sparse(&c, l), rows[i].sparse[l] == '1');
            n += model_layer_is_sparse(&c, l);
        }
        assert_int_equal(c.experts.n_sparse_layers, n);
        assert_int_equal(c.experts.n > 0, n > 0);
    }
}

static void test_parse_experts(void **state)
{
    struct model_config c = accepted(QWEN3_MOE ",\"num_experts\":8}");

    (void)state;
    assert_true(c.arch == ARCH_QWEN3_MOE && c.qk_norm && c.head_dim == 6);
    assert_true(c.experts.n == 8 && c.experts.n_per_token == 2);
    assert_int_equal(c.experts.intermediate_size, 16);
    assert_false(c.experts.normalize); /* the class's default */
    assert_true(
        accepted(QWEN3_MOE ",\"num_experts\":8,\"norm_topk_prob\":true}").experts.normalize);
    c = accepted(MIXTRAL ",\"num_local_experts\":4,\"sliding_window\":null}");
    assert_true(c.arch == ARCH_MIXTRAL && c.experts.n == 4 && c.experts.normalize);
    assert_int_equal(c.experts.intermediate_size, 40);
    assert_true(c.rms_norm_eps == 1e-5F && c.rope_theta == 1e6);
}

static void test_parse_refusals_name_the_key(void **state)
{
    static const struct {
        const char *text, *field;
    } rows[] = {
        {QWEN3_MOE "}", "/num_experts"},
        {QWEN3_MOE ",\"num_experts\":-1}", "/num_experts"},
        {QWEN3_MOE ",\"num_experts\":4097}", "/num_experts"},
        {QWEN3_MOE ",\"num_experts\":8,\"num_local_experts\":4}", "/num_local_experts"},
        {QWEN3_MOE ",\"num_experts\":1}", "/num_experts_per_tok"},
        {QWEN3_MOE ",\"num_experts\":8,\"num_experts_per_tok\":0}", "/num_experts_per_tok"},
        {QWEN3_MOE ",\"num_experts\":8,\"num_experts_per_tok\":65}", "/num_experts_per_tok"},
        {QWEN3_MOE ",\"num_experts\":8,\"moe_intermediate_size\":0}", "/moe_intermediate_size"},
        {QWEN3_MOE ",\"num_experts\":8,\"norm_topk_prob\":1}", "/norm_topk_prob"},
        {QWEN3_MOE ",\"num_experts\":8,\"decoder_sparse_step\":0}", "/decoder_sparse_step"},
        {QWEN3_MOE ",\"num_experts\":8,\"mlp_only_layers\":3}", "/mlp_only_layers"},
        {QWEN3_MOE ",\"num_experts\":8,\"mlp_only_layers\":[1,-1]}", "/mlp_only_layers/1"},
        {MIXTRAL "}", "/num_local_experts"},
        {MIXTRAL ",\"num_local_experts\":4,\"num_experts\":8}", "/num_experts"},
        {MIXTRAL ",\"num_local_experts\":0}", "/num_local_experts"},
        {MIXTRAL ",\"num_local_experts\":4,\"sliding_window\":64}", "/sliding_window"},
        {MIXTRAL ",\"num_local_experts\":4,\"attention_bias\":true}", "/attention_bias"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *o = json_loads(rows[i].text, 0, NULL); /* the last of two equal keys wins */
        char *text = json_dumps(o, 0);
        struct model_config c;
        struct err e = {0};

        if (model_config_parse(&c, text, strlen(text), NULL, 0, &e) == 0)
            fail_msg("%s was accepted", text);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, rows[i].field);
        free(text);
        json_decref(o);
    }
}

static struct model_spec *spec_of(const char *text, const struct tensor_list *stored)
{
    struct model_config c = accepted(text);
    struct model_spec *m = NULL;
    struct err e = {0};

    if (model_spec_of_config(&m, &c, stored, &e) != 0)
        fail_msg("refused at %s: %s", e.field, e.msg);
    return m;
}

static const struct alias *find_alias(const struct model_spec *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_aliases; i++)
        if (strcmp(m->aliases[i].name, name) == 0)
            return &m->aliases[i];
    fail_msg("no alias '%s'", name);
    return NULL;
}

static void assert_tensor(const struct model_spec *m, const char *name, uint64_t rows,
                          uint64_t columns)
{
    uint32_t i = tensor_list_find(m->tensor_list, name);

    if (i == TENSOR_LIST_NO_TENSOR)
        fail_msg("no tensor '%s'", name);
    assert_int_equal(m->tensor_list->tensors[i].shape[0], rows);
    assert_int_equal(m->tensor_list->tensors[i].shape[1], columns);
}

static void assert_absent(const struct model_spec *m, const char *name)
{
    assert_int_equal(tensor_list_find(m->tensor_list, name), TENSOR_LIST_NO_TENSOR);
}

/* One tensor of all experts fills each expert's, in the order of its bytes. */
static void assert_fused(const struct model_spec *m, const char *name, uint64_t rows,
                         uint64_t columns, const char *const *targets)
{
    const struct alias *a = find_alias(m, name);

    assert_true(a->kind == ALIAS_FUSED && a->ndim == 3);
    assert_int_equal(a->shape[1], rows);
    assert_int_equal(a->shape[2], columns);
    for (uint32_t i = 0; i < a->n_targets; i++)
        assert_string_equal(m->tensor_list->tensors[a->targets[i]].name, targets[i]);
    assert_null(targets[a->n_targets]);
}

static void test_spec_of_qwen3_moe(void **state)
{
    struct model_spec *m = spec_of(QWEN3_MOE ",\"num_experts\":2,\"mlp_only_layers\":[0,2,3,4,5]}",
                                   NULL);
    static const char *const gate_up[] = {"model.layers.1.mlp.experts.0.gate_proj.weight",
                                          "model.layers.1.mlp.experts.0.up_proj.weight",
                                          "model.layers.1.mlp.experts.1.gate_proj.weight",
                                          "model.layers.1.mlp.experts.1.up_proj.weight", NULL};
    static const char *const down[] = {"model.layers.1.mlp.experts.0.down_proj.weight",
                                       "model.layers.1.mlp.experts.1.down_proj.weight", NULL};

    (void)state;
    assert_tensor(m, "model.layers.0.mlp.gate_proj.weight", 40, 24);
    assert_absent(m, "model.layers.0.mlp.gate.weight");
    assert_absent(m, "model.layers.1.mlp.gate_proj.weight");
    assert_tensor(m, "model.layers.1.mlp.gate.weight", 2, 24);
    assert_tensor(m, gate_up[1], 16, 24);
    assert_tensor(m, down[1], 24, 16);
    assert_absent(m, "model.layers.1.mlp.experts.2.up_proj.weight");
    assert_fused(m, "model.layers.1.mlp.experts.gate_up_proj", 32, 24, gate_up);
    assert_fused(m, "model.layers.1.mlp.experts.down_proj", 24, 16, down);
    model_spec_free(m);
}

static void test_spec_of_mixtral(void **state)
{
    struct model_spec *m = spec_of(MIXTRAL ",\"num_local_experts\":2}", NULL);
    static const char *const gate_up[] = {"model.layers.1.block_sparse_moe.experts.0.w1.weight",
                                          "model.layers.1.block_sparse_moe.experts.0.w3.weight",
                                          "model.layers.1.block_sparse_moe.experts.1.w1.weight",
                                          "model.layers.1.block_sparse_moe.experts.1.w3.weight",
                                          NULL};
    const struct alias *router;

    (void)state;
    assert_tensor(m, "model.layers.0.block_sparse_moe.gate.weight", 2, 24);
    assert_tensor(m, "model.layers.0.block_sparse_moe.experts.1.w2.weight", 24, 40);
    assert_absent(m, "model.layers.0.mlp.up_proj.weight");
    assert_fused(m, "model.layers.1.mlp.experts.gate_up_proj", 80, 24, gate_up);
    router = find_alias(m, "model.layers.1.mlp.gate.weight"); /* as transformers 5 holds it */
    assert_string_equal(m->tensor_list->tensors[router->targets[0]].name,
                        "model.layers.1.block_sparse_moe.gate.weight");
    model_spec_free(m);
}

/* A checkpoint that stores the experts fused decides their dtype. */
static void test_spec_takes_the_dtype_of_fused_experts(void **state)
{
    static const uint64_t shape[] = {2, 32, 24};
    struct tensor_list_builder *b;
    struct tensor_list *stored;
    struct model_spec *m;
    struct err e = {0};
    uint32_t i;

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "model.layers.1.mlp.experts.gate_up_proj",
                                             DTYPE_BF16, shape, 3, UINT64_MAX, &e),
                     0);
    assert_int_equal(tensor_list_builder_finish(b, &stored, &e), 0);
    m = spec_of(QWEN3_MOE ",\"num_experts\":2}", stored);
    i = tensor_list_find(m->tensor_list, "model.layers.1.mlp.experts.1.up_proj.weight");
    assert_int_equal(m->tensor_list->tensors[i].dtype, DTYPE_BF16);
    i = tensor_list_find(m->tensor_list, "model.layers.1.mlp.experts.1.down_proj.weight");
    assert_int_equal(m->tensor_list->tensors[i].dtype, DTYPE_F32);
    model_spec_free(m);
    tensor_list_unref(stored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_sparse_layers),
        cmocka_unit_test(test_parse_experts),
        cmocka_unit_test(test_parse_refusals_name_the_key),
        cmocka_unit_test(test_spec_of_qwen3_moe),
        cmocka_unit_test(test_spec_of_mixtral),
        cmocka_unit_test(test_spec_takes_the_dtype_of_fused_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
