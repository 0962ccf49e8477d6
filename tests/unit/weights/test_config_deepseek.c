/* DeepSeek-V3: what config.json may say, and the tensors that follow from it. */
#include "weights/model/model_config.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* As Moonlight-16B-A3B publishes it, but small. */
static const char published[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"auto_map\":{\"AutoConfig\":\"configuration_deepseek.DeepseekV3Config\"},"
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"aux_loss_alpha\":0.001,\"ep_size\":1,"
    "\"bos_token_id\":1,\"eos_token_id\":2,\"first_k_dense_replace\":1,\"hidden_act\":\"silu\","
    "\"hidden_size\":24,\"intermediate_size\":40,\"initializer_range\":0.02,\"kv_lora_rank\":14,"
    "\"max_position_embeddings\":512,\"moe_intermediate_size\":18,\"moe_layer_freq\":1,"
    "\"n_group\":2,\"n_routed_experts\":8,\"n_shared_experts\":2,\"norm_topk_prob\":true,"
    "\"num_attention_heads\":3,\"num_experts_per_tok\":4,\"num_hidden_layers\":3,"
    "\"num_key_value_heads\":3,\"num_nextn_predict_layers\":0,\"pretraining_tp\":1,"
    "\"q_lora_rank\":null,\"qk_nope_head_dim\":12,\"qk_rope_head_dim\":6,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":50000.0,\"routed_scaling_factor\":2.446,\"scoring_func\":\"sigmoid\","
    "\"seq_aux\":true,\"tie_word_embeddings\":false,\"topk_group\":1,"
    "\"topk_method\":\"noaux_tc\",\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
    "\"v_head_dim\":10,\"vocab_size\":96}";

/* @changes  members to set, or with a value of "absent" to remove */
static int parse(struct model_config *c, const char *changes, struct err *e)
{
    json_t *o = json_loads(published, 0, NULL), *with = json_loads(changes, 0, NULL), *v;
    const char *key;
    char *text;
    int rc;

    if (o == NULL || with == NULL)
        fail_msg("%s is not JSON", changes);
    json_object_foreach(with, key, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), "absent") == 0)
            (void)json_object_del(o, key);
        else
            (void)json_object_set(o, key, v);
    }
    text = json_dumps(o, 0);
    rc = model_config_parse(c, text, strlen(text), NULL, 0, e);
    free(text);
    json_decref(with);
    json_decref(o);
    return rc;
}

static struct model_config accepted(const char *changes)
{
    struct model_config c = {0};
    struct err e = {0};

    if (parse(&c, changes, &e) != 0)
        fail_msg("%s is refused at %s: %s", changes, e.field, e.msg);
    return c;
}

static void test_parse_attention(void **state)
{
    struct model_config c = accepted("{}");

    (void)state;
    assert_true(c.arch == ARCH_DEEPSEEK_V3 && !c.qk_norm && !c.qkv_bias && !c.o_bias);
    assert_true(c.latents.kv_rank == 14 && c.latents.q_rank == 0);
    assert_true(c.head_dim == 18 && c.v_head_dim == 10 && c.rope_dim == 6 && c.n_kv_heads == 3);
    assert_true(c.rope_interleave && c.rope_theta == 50000.0 && c.dtype == DTYPE_BF16);
    assert_int_equal(accepted("{\"q_lora_rank\":20}").latents.q_rank, 20);
    assert_false(accepted("{\"rope_interleave\":false}").rope_interleave);
    assert_int_equal(accepted("{\"num_key_value_heads\":null}").n_kv_heads, 3);
    (void)accepted("{\"head_dim\":6,\"qk_head_dim\":18}"); /* as transformers 5 writes them */
}

static void assert_near(double found, double expected)
{
    assert_true(fabs(found - expected) < 1e-12);
}

/* As DeepSeek-V3 publishes it; the first two keys make the rotation 1. */
static void test_parse_yarn(void **state)
{
    struct model_config c = accepted(
        "{\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
        "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"}}");
    double mscale = 0.1 * log(40) + 1;

    (void)state;
    assert_true(c.rope_kind == ROPE_YARN && c.rope_scaling.truncate);
    assert_near(c.rope_scaling.rotation, 1);
    assert_near(c.rope_scaling.scores, mscale * mscale);
    c = accepted("{\"rope_scaling\":{\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":0,"
                 "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\","
                 "\"truncate\":false}}");
    assert_false(c.rope_scaling.truncate);
    assert_near(c.rope_scaling.rotation, mscale);
    assert_near(c.rope_scaling.scores, 1);
    c = accepted("{\"rope_scaling\":{\"factor\":40,\"mscale\":0.5,\"mscale_all_dim\":1,"
                 "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\"}}");
    assert_near(c.rope_scaling.rotation, (0.05 * log(40) + 1) / mscale);
}

/* Kimi-K2's config.json is one of DeepSeek-V3, but for the name. */
static void test_parse_kimi_k2(void **state)
{
    struct model_config c = accepted(
        "{\"model_type\":\"kimi_k2\",\"n_group\":1,\"topk_group\":1,\"n_shared_experts\":1,"
        "\"q_lora_rank\":20,\"routed_scaling_factor\":2.827,\"rms_norm_eps\":1e-06,"
        "\"eos_token_id\":3,\"rope_scaling\":{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor\":32.0,"
        "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,"
        "\"type\":\"yarn\"}}");
    struct err e = {0};

    (void)state;
    assert_true(c.arch == ARCH_DEEPSEEK_V3 && c.rope_interleave && c.rope_kind == ROPE_YARN);
    assert_true(c.experts.sigmoid && c.experts.n_groups == 1 && c.experts.scale == 2.827F);
    assert_int_equal(parse(&c, "{\"model_type\":\"kimi_k25\"}", &e), -1);
    assert_string_equal(e.field, "/model_type");
    e = (struct err){0};
    assert_int_equal(
        parse(&c, "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"kimi_k2\"}", &e), -1);
    assert_string_equal(e.field, "/model_type");
}

static void test_parse_experts(void **state)
{
    struct model_config c = accepted("{}");

    (void)state;
    assert_true(c.experts.sigmoid && c.experts.normalize && c.experts.scale == 2.446F);
    assert_true(c.experts.n == 8 && c.experts.n_per_token == 4);
    assert_true(c.experts.n_groups == 2 && c.experts.n_groups_kept == 1);
    assert_true(c.experts.intermediate_size == 18 && c.experts.shared_size == 36);
    assert_false(model_layer_is_sparse(&c, 0));
    assert_true(model_layer_is_sparse(&c, 1) && model_layer_is_sparse(&c, 2));
    assert_int_equal(c.experts.n_sparse_layers, 2);
    assert_false(accepted("{\"norm_topk_prob\":false}").experts.normalize);
    assert_true(accepted("{\"norm_topk_prob\":\"absent\"}").experts.normalize);
    (void)accepted("{\"scoring_func\":\"absent\",\"topk_method\":null}");
    c = accepted("{\"first_k_dense_replace\":3}");
    assert_true(c.experts.n == 0 && c.experts.n_sparse_layers == 0);
    assert_int_equal(accepted("{\"first_k_dense_replace\":0}").experts.n_sparse_layers, 3);
}

static void test_parse_refusals_name_the_key(void **state)
{
    static const struct {
        const char *changes, *field;
    } rows[] = {
        {"{\"q_lora_rank\":\"absent\"}", "/q_lora_rank"},
        {"{\"q_lora_rank\":0}", "/q_lora_rank"},
        {"{\"kv_lora_rank\":null}", "/kv_lora_rank"},
        {"{\"qk_nope_head_dim\":0}", "/qk_nope_head_dim"},
        {"{\"qk_rope_head_dim\":5}", "/qk_rope_head_dim"},
        {"{\"qk_rope_head_dim\":4096}", "/qk_rope_head_dim"},
        {"{\"v_head_dim\":null}", "/v_head_dim"},
        {"{\"head_dim\":18}", "/head_dim"},
        {"{\"rope_interleave\":null}", "/rope_interleave"},
        {"{\"num_key_value_heads\":1}", "/num_key_value_heads"},
        {"{\"num_attention_heads\":65536,\"num_key_value_heads\":65536}", "/num_attention_heads"},
        {"{\"attention_bias\":true}", "/attention_bias"},
        {"{\"scoring_func\":\"softmax\"}", "/scoring_func"},
        {"{\"topk_method\":\"group_limited_greedy\"}", "/topk_method"},
        {"{\"moe_layer_freq\":2}", "/moe_layer_freq"},
        {"{\"num_nextn_predict_layers\":-1}", "/num_nextn_predict_layers"},
        {"{\"first_k_dense_replace\":null}", "/first_k_dense_replace"},
        {"{\"n_routed_experts\":null}", "/n_routed_experts"},
        {"{\"num_local_experts\":4}", "/num_local_experts"},
        {"{\"num_experts_per_tok\":5}", "/num_experts_per_tok"},
        {"{\"n_group\":null}", "/n_group"},
        {"{\"n_group\":3}", "/n_group"},
        {"{\"n_group\":8}", "/n_group"},
        {"{\"topk_group\":3}", "/topk_group"},
        {"{\"norm_topk_prob\":null}", "/norm_topk_prob"},
        {"{\"routed_scaling_factor\":null}", "/routed_scaling_factor"},
        {"{\"routed_scaling_factor\":1e300}", "/routed_scaling_factor"},
        {"{\"n_shared_experts\":0}", "/n_shared_experts"},
        {"{\"n_shared_experts\":1048576}", "/n_shared_experts"},
        {"{\"moe_intermediate_size\":null}", "/moe_intermediate_size"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"mscale_all_dim\":1}}",
         "/rope_scaling/mscale_all_dim"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "/quantization_config"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c;
        struct err e = {0};

        if (parse(&c, rows[i].changes, &e) == 0)
            fail_msg("%s was accepted", rows[i].changes);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        if (strcmp(e.field, rows[i].field) != 0)
            fail_msg("%s is refused at %s, not %s: %s", rows[i].changes, e.field, rows[i].field,
                     e.msg);
    }
}

static struct model_spec *spec_of(const char *changes, const struct tensor_list *stored)
{
    struct model_config c = accepted(changes);
    struct model_spec *m = NULL;
    struct err e = {0};

    if (model_spec_of_config(&m, &c, stored, &e) != 0)
        fail_msg("refused at %s: %s", e.field, e.msg);
    return m;
}

static bool has(const struct model_spec *m, const char *name)
{
    return tensor_list_find(m->tensor_list, name) != TENSOR_LIST_NO_TENSOR;
}

/* @columns  0: a vector */
static void assert_tensor(const struct model_spec *m, const char *name, enum dtype dtype,
                          uint64_t rows, uint64_t columns)
{
    const struct tensor_spec *t;

    if (!has(m, name))
        fail_msg("no tensor '%s'", name);
    t = &m->tensor_list->tensors[tensor_list_find(m->tensor_list, name)];
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->ndim, columns > 0 ? 2 : 1);
    assert_int_equal(t->shape[0], rows);
    assert_true(columns == 0 || t->shape[1] == columns);
}

#define LAYER(n) "model.layers." #n "."

static void test_spec_has_the_published_names(void **state)
{
    struct model_spec *m = spec_of("{}", NULL);

    (void)state;
    assert_tensor(m, LAYER(0) "self_attn.q_proj.weight", DTYPE_BF16, 54, 24);
    assert_tensor(m, LAYER(0) "self_attn.kv_a_proj_with_mqa.weight", DTYPE_BF16, 20, 24);
    assert_tensor(m, LAYER(0) "self_attn.kv_a_layernorm.weight", DTYPE_BF16, 14, 0);
    assert_tensor(m, LAYER(0) "self_attn.kv_b_proj.weight", DTYPE_BF16, 66, 14);
    assert_tensor(m, LAYER(0) "self_attn.o_proj.weight", DTYPE_BF16, 24, 30);
    assert_tensor(m, LAYER(0) "mlp.gate_proj.weight", DTYPE_BF16, 40, 24);
    assert_tensor(m, LAYER(1) "mlp.gate.weight", DTYPE_F32, 8, 24);
    assert_tensor(m, LAYER(1) "mlp.gate.e_score_correction_bias", DTYPE_F32, 8, 0);
    assert_tensor(m, LAYER(1) "mlp.shared_experts.gate_proj.weight", DTYPE_BF16, 36, 24);
    assert_tensor(m, LAYER(1) "mlp.shared_experts.up_proj.weight", DTYPE_BF16, 36, 24);
    assert_tensor(m, LAYER(2) "mlp.shared_experts.down_proj.weight", DTYPE_BF16, 24, 36);
    assert_tensor(m, LAYER(2) "mlp.experts.7.down_proj.weight", DTYPE_BF16, 24, 18);
    assert_false(has(m, LAYER(0) "self_attn.k_proj.weight"));
    assert_false(has(m, LAYER(0) "self_attn.v_proj.weight"));
    assert_false(has(m, LAYER(0) "self_attn.q_a_proj.weight"));
    assert_false(has(m, LAYER(0) "mlp.gate.weight"));
    assert_false(has(m, LAYER(1) "mlp.gate_proj.weight"));
    model_spec_free(m);
    m = spec_of("{\"q_lora_rank\":20}", NULL);
    assert_tensor(m, LAYER(1) "self_attn.q_a_proj.weight", DTYPE_BF16, 20, 24);
    assert_tensor(m, LAYER(1) "self_attn.q_a_layernorm.weight", DTYPE_BF16, 20, 0);
    assert_tensor(m, LAYER(1) "self_attn.q_b_proj.weight", DTYPE_BF16, 54, 20);
    assert_false(has(m, LAYER(1) "self_attn.q_proj.weight"));
    model_spec_free(m);
}

/* Under the names of vLLM and transformers 5 too; layers for further tokens are accepted. */
static void test_spec_takes_other_names(void **state)
{
    static const struct {
        const char *name;
        enum alias_kind kind;
        uint32_t ndim;
        uint64_t shape[3];
    } rows[] = {
        {LAYER(0) "self_attn.fused_qkv_a_proj.weight", ALIAS_FUSED, 2, {40, 24}},
        {LAYER(1) "mlp.shared_experts.gate_up_proj.weight", ALIAS_FUSED, 2, {72, 24}},
        {LAYER(2) "mlp.experts.gate_up_proj", ALIAS_FUSED, 3, {8, 36, 24}},
        {LAYER(2) "mlp.experts.down_proj", ALIAS_FUSED, 3, {8, 24, 18}},
        {LAYER(3) "eh_proj.weight", ALIAS_IGNORED, 2, {24, 48}},
        {LAYER(4) "mlp.gate.e_score_correction_bias", ALIAS_IGNORED, 1, {8}},
    };
    struct model_spec *m = spec_of("{\"q_lora_rank\":20,\"num_nextn_predict_layers\":2}", NULL);
    struct tensor_spec beyond = {.name = LAYER(5) "eh_proj.weight", .dtype = DTYPE_BF16, .ndim = 1};
    struct model_spec_match match;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tensor_spec t = {.name = rows[i].name, .dtype = DTYPE_BF16, .ndim = rows[i].ndim};

        memcpy(t.shape, rows[i].shape, sizeof rows[i].shape);
        if (model_spec_match(m, &t, false, 0, &match, &e) != 0)
            fail_msg("%s", e.msg);
        assert_true(match.alias != NULL && match.alias->kind == rows[i].kind);
    }
    assert_int_equal(model_spec_match(m, &beyond, false, 0, &match, &e), -1);
    model_spec_free(m);
}

/* Whether a trainer's update without `convert` is taken. */
static bool is_taken(const struct model_spec *m, const char *name, enum dtype dtype)
{
    uint32_t i = tensor_list_find(m->tensor_list, name);
    struct tensor_spec t = m->tensor_list->tensors[i];
    struct model_spec_match match;
    struct err e = {0};

    t.dtype = dtype;
    return model_spec_match(m, &t, false, 0, &match, &e) == 0;
}

static const char bias[] = LAYER(1) "mlp.gate.e_score_correction_bias";
static const char gate[] = LAYER(1) "mlp.gate.weight", up[] = LAYER(1) "mlp.up_proj.weight";

static struct tensor_list *list_of(const char *name, enum dtype dtype, const uint64_t *shape,
                                   uint32_t ndim)
{
    static const uint64_t width[] = {6, 4};
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, name, dtype, shape, ndim, UINT64_MAX, &e), 0);
    if (strcmp(name, gate) == 0) {
        assert_int_equal(tensor_list_builder_add(b, bias, DTYPE_BF16, shape, 1, UINT64_MAX, &e), 0);
        assert_int_equal(tensor_list_builder_add(b, up, DTYPE_BF16, width, 2, UINT64_MAX, &e), 0);
        assert_int_equal(
            tensor_list_builder_add(b, "other.gate.weight", DTYPE_BF16, width, 2, UINT64_MAX, &e),
            0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    return list;
}

static void assert_routers_are_held(const struct model_spec *m)
{
    assert_tensor(m, gate, DTYPE_F32, 8, 24);
    assert_tensor(m, bias, DTYPE_F32, 8, 0);
    assert_true(is_taken(m, gate, DTYPE_F32) && is_taken(m, bias, DTYPE_F32));
    assert_true(is_taken(m, gate, DTYPE_BF16) && is_taken(m, bias, DTYPE_BF16));
    assert_true(is_taken(m, gate, DTYPE_F16) && !is_taken(m, gate, DTYPE_F64));
}

/* A checkpoint stores the router in bfloat16; transformers holds and sends it in float32, and older
 * trainers in bfloat16: both are taken, and never narrowed. */
static void test_spec_keeps_the_router_in_float32(void **state)
{
    static const uint64_t shape[] = {8, 24}, too_many[] = {9};
    struct model_config c = accepted("{}");
    struct tensor_list *stored = list_of(gate, DTYPE_BF16, shape, 2);
    struct model_spec *m = spec_of("{}", stored);
    struct err e = {0};

    (void)state;
    assert_routers_are_held(m);
    assert_false(is_taken(m, LAYER(0) "mlp.gate_proj.weight", DTYPE_F16));
    model_spec_free(m);
    tensor_list_unref(stored);
    stored = list_of(bias, DTYPE_F32, too_many, 1);
    assert_int_equal(model_spec_of_config(&m, &c, stored, &e), -1);
    assert_non_null(strstr(e.msg, bias));
    tensor_list_unref(stored);
}

/* The same of a model that only other engines run, such as GLM-4.5: by its stored tensors. */
static void test_stored_spec_keeps_the_router_in_float32(void **state)
{
    static const uint64_t shape[] = {8, 24};
    struct tensor_list *stored = list_of(gate, DTYPE_BF16, shape, 2);
    char dir[] = "/tmp/baton-test-router-XXXXXX", path[64];
    struct model_spec *m;
    struct err e = {0};
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("{\"architectures\":[\"Glm4MoeForCausalLM\"]}", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(model_spec_of_dir(&m, dir, stored, &e), 0);
    assert_routers_are_held(m);
    assert_tensor(m, up, DTYPE_BF16, 6, 4);
    assert_tensor(m, "other.gate.weight", DTYPE_BF16, 6, 4);
    assert_false(is_taken(m, up, DTYPE_F16));
    model_spec_free(m);
    tensor_list_unref(stored);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_attention),
        cmocka_unit_test(test_parse_yarn),
        cmocka_unit_test(test_parse_kimi_k2),
        cmocka_unit_test(test_parse_experts),
        cmocka_unit_test(test_parse_refusals_name_the_key),
        cmocka_unit_test(test_spec_has_the_published_names),
        cmocka_unit_test(test_spec_takes_other_names),
        cmocka_unit_test(test_spec_keeps_the_router_in_float32),
        cmocka_unit_test(test_stored_spec_keeps_the_router_in_float32),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
