#include "weights/model/model_config.h"

#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL_DIR FIXTURES "/kjv-qwen3-1m"

/* The beginning of a patch that makes the config another architecture's. */
#define QWEN2   "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\""
#define LLAMA   "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\""
#define YARN    "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64"
#define MISTRAL "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\""

/* A small config; `patch` is an object whose members replace its own. */
static char *patched(const char *patch)
{
    static const char base[] =
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":96,"
        "\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
        "\"max_position_embeddings\":512}";
    json_t *o = json_loads(base, 0, NULL), *p = json_loads(patch, 0, NULL);
    char *text;

    assert_non_null(p);
    assert_int_equal(json_object_update(o, p), 0);
    text = json_dumps(o, 0);
    assert_non_null(text);
    json_decref(p);
    json_decref(o);
    return text;
}

static int parse_patched(struct model_config *c, const char *patch, const char *generation,
                         struct err *e)
{
    char *text = patched(patch);
    int rc = model_config_parse(c, text, strlen(text), generation,
                                generation != NULL ? strlen(generation) : 0, e);

    free(text);
    return rc;
}

static struct model_config accepted(const char *patch, const char *generation)
{
    struct model_config c = {0};
    struct err e = {0};

    if (parse_patched(&c, patch, generation, &e) != 0)
        fail_msg("%s refused at %s: %s", patch, e.field, e.msg);
    return c;
}

static void test_load_reads_the_fixture(void **state)
{
    struct model_config c = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(model_config_load(&c, MODEL_DIR, &e), 0);
    assert_int_equal(c.arch, ARCH_QWEN3);
    assert_int_equal(c.vocab_size, 1024);
    assert_int_equal(c.hidden_size, 128);
    assert_int_equal(c.intermediate_size, 384);
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.max_position_embeddings, 1024);
    assert_true(c.rms_norm_eps == 1e-6F);
    assert_true(c.rope_theta == 10000.0);
    assert_true(c.tie_word_embeddings && c.qk_norm);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(c.dtype, DTYPE_BF16);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 1021);
}

static void test_parse_defaults(void **state)
{
    struct model_config c = accepted("{\"head_dim\":null,\"num_key_value_heads\":null}", NULL);

    (void)state;
    assert_int_equal(c.head_dim, 128); /* of the class, not hidden_size / heads */
    assert_int_equal(c.n_kv_heads, 4);
    assert_true(c.rms_norm_eps == 1e-6F);
    assert_true(c.rope_theta == 10000.0);
    assert_false(c.tie_word_embeddings);
    assert_int_equal(c.dtype, DTYPE_F32);
    assert_int_equal(c.n_eos, 0);
}

static void test_parse_attention_bias_is_of_all_four(void **state)
{
    struct model_config c = accepted("{\"attention_bias\":true}", NULL);

    (void)state;
    assert_true(c.qkv_bias && c.o_bias);
    assert_false(c.mlp_bias);
}

/* What each architecture has when its config says nothing, and what a key may change. */
static void test_parse_architectures(void **state)
{
    static const struct {
        const char *patch;
        enum model_arch arch;
        uint32_t head_dim;
        bool qkv, o, mlp, norm;
    } rows[] = {
        {"{\"head_dim\":null}", ARCH_QWEN3, 128, false, false, false, true},
        {QWEN2 ",\"head_dim\":null}", ARCH_QWEN2, 6, true, false, false, false},
        {QWEN2 ",\"attention_bias\":true}", ARCH_QWEN2, 8, true, false, false, false},
        {LLAMA ",\"head_dim\":null}", ARCH_LLAMA, 6, false, false, false, false},
        {LLAMA ",\"attention_bias\":true}", ARCH_LLAMA, 8, true, true, false, false},
        {LLAMA ",\"mlp_bias\":true}", ARCH_LLAMA, 8, false, false, true, false},
        {LLAMA ",\"sliding_window\":512,\"hidden_act\":\"swish\"}", ARCH_LLAMA, 8, false, false,
         false, false},
        {MISTRAL ",\"head_dim\":null,\"sliding_window\":null}", ARCH_MISTRAL, 6, false, false,
         false, false},
        {MISTRAL ",\"sliding_window\":512}", ARCH_MISTRAL, 8, false, false, false, false},
        {MISTRAL ",\"max_position_embeddings\":4096}", ARCH_MISTRAL, 8, false, false, false, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c = accepted(rows[i].patch, NULL);

        assert_int_equal(c.arch, rows[i].arch);
        assert_int_equal(c.head_dim, rows[i].head_dim);
        assert_int_equal(c.qkv_bias, rows[i].qkv);
        assert_int_equal(c.o_bias, rows[i].o);
        assert_int_equal(c.mlp_bias, rows[i].mlp);
        assert_int_equal(c.qk_norm, rows[i].norm);
        assert_true(c.rms_norm_eps == 1e-6F && c.rope_theta == 10000.0);
    }
}

static void test_load_reads_the_tiny_models(void **state)
{
    struct model_config c = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(model_config_load(&c, FIXTURES "/tiny-llama3", &e), 0);
    assert_true(c.arch == ARCH_LLAMA && c.rope_kind == ROPE_LLAMA3 && c.dtype == DTYPE_F16);
    assert_true(c.rope_theta == 500000.0 && c.rope_scaling.factor == 8.0);
    assert_true(c.rope_scaling.low_freq_factor == 1.0 && c.rope_scaling.high_freq_factor == 4.0);
    assert_true(c.rope_scaling.original_positions == 64.0 && !c.tie_word_embeddings);
    assert_int_equal(model_config_load(&c, FIXTURES "/tiny-qwen2", &e), 0);
    assert_true(c.arch == ARCH_QWEN2 && c.rope_kind == ROPE_DEFAULT && c.dtype == DTYPE_BF16);
    assert_true(c.rope_theta == 1e6 && c.tie_word_embeddings && c.head_dim == 16);
    assert_int_equal(model_config_load(&c, FIXTURES "/tiny-llama2-spm", &e), 0);
    assert_true(c.arch == ARCH_LLAMA && c.dtype == DTYPE_F32 && c.eos[0] == 2);
}

static void test_parse_scaled_rope_in_both_spellings(void **state)
{
    static const char *const linear[] = {
        "{\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
        "{\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5}}",
        "{\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":2.5}}",
    };
    struct model_config c;

    (void)state;
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
        c = accepted(linear[i], NULL);
        assert_true(c.rope_kind == ROPE_LINEAR && c.rope_scaling.factor == 2.5);
        assert_true(c.rope_theta == 5e5);
    }
    c = accepted("{\"rope_parameters\":{\"rope_theta\":1e4,\"rope_type\":\"llama3\",\"factor\":32,"
                 "\"low_freq_factor\":1,\"high_freq_factor\":4,"
                 "\"original_max_position_embeddings\":8192}}",
                 NULL);
    assert_true(c.rope_kind == ROPE_LLAMA3 && c.rope_scaling.original_positions == 8192.0);
}

/* transformers 5 takes it from the file's own context, or from beside the dictionary. */
static void test_parse_original_positions(void **state)
{
    static const struct {
        const char *patch;
        double original;
    } rows[] = {
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", 512},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}}",
         512},
        {"{\"original_max_position_embeddings\":128,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":"
         "4}}",
         128},
        {"{\"original_max_position_embeddings\":64.0,\"rope_scaling\":" YARN "}}", 64},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_true(accepted(rows[i].patch, NULL).rope_scaling.original_positions ==
                    rows[i].original);
}

/* vLLM and SGLang multiply the context by a linear factor; YaRN's is scaled in the file. */
static void test_parse_context_of_scaled_rope(void **state)
{
    (void)state;
    assert_int_equal(accepted("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", NULL)
                         .max_position_embeddings,
                     1280);
    assert_int_equal(accepted("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e9}}", NULL)
                         .max_position_embeddings,
                     MODEL_POSITION_MAX);
    assert_int_equal(accepted("{\"rope_scaling\":" YARN "}}", NULL).max_position_embeddings, 512);
}

/* Both dictionaries are read if each alone gives the same model, whatever a reader prefers. */
static void test_parse_both_dictionaries_that_agree(void **state)
{
    static const char *const rows[] = {
        "{\"rope_scaling\":" YARN "},\"rope_parameters\":" YARN ",\"rope_theta\":10000}}",
        "{\"rope_scaling\":" YARN "},\"rope_parameters\":{}}",
        "{\"rope_scaling\":{},\"rope_parameters\":" YARN "}}",
        "{\"rope_scaling\":null,\"rope_parameters\":" YARN "}}",
        "{\"rope_theta\":5e5,\"rope_scaling\":" YARN "},\"rope_parameters\":" YARN
        ",\"rope_theta\":500000.0,\"beta_fast\":32}}",
        "{\"rope_scaling\":" YARN ",\"beta_fast\":1.0,\"beta_slow\":1.0}}", /* Kimi-K2 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(accepted(rows[i], NULL).rope_kind, ROPE_YARN);
}

static void test_parse_sampling_defaults(void **state)
{
    struct model_defaults d =
        accepted("{}", "{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.01,"
                       "\"repetition_penalty\":1.05,\"max_new_tokens\":512,\"do_sample\":true}")
            .defaults;

    (void)state;
    assert_true(d.has_temperature && d.temperature == 0.6F);
    assert_true(d.has_top_p && d.top_p == 0.95F);
    assert_true(d.has_min_p && d.min_p == 0.01F);
    assert_true(d.has_repetition_penalty && d.repetition_penalty == 1.05F);
    assert_true(d.has_top_k && d.top_k == 20);
    assert_true(d.has_max_tokens && d.max_tokens == 512);
    d = accepted("{}", "{\"temperature\":null}").defaults;
    assert_false(d.has_temperature || d.has_top_p || d.has_min_p || d.has_repetition_penalty ||
                 d.has_top_k || d.has_max_tokens);
}

static void test_parse_refuses_sampling_defaults_out_of_range(void **state)
{
    static const struct {
        const char *generation, *field;
    } rows[] = {
        {"{\"temperature\":-1}", "/generation_config/temperature"},
        {"{\"temperature\":\"hot\"}", "/generation_config/temperature"},
        {"{\"top_p\":0}", "/generation_config/top_p"},
        {"{\"top_p\":1.5}", "/generation_config/top_p"},
        {"{\"min_p\":2}", "/generation_config/min_p"},
        {"{\"repetition_penalty\":0}", "/generation_config/repetition_penalty"},
        {"{\"top_k\":-2}", "/generation_config/top_k"},
        {"{\"top_k\":1.5}", "/generation_config/top_k"},
        {"{\"max_new_tokens\":0}", "/generation_config/max_new_tokens"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c;
        struct err e = {0};

        assert_int_equal(parse_patched(&c, "{}", rows[i].generation, &e), -1);
        assert_string_equal(e.field, rows[i].field);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
    }
}

static void test_parse_both_spellings_of_rope(void **state)
{
    static const char *const million[] = {
        "{\"rope_theta\":1000000}",
        "{\"rope_theta\":1e6,\"rope_scaling\":null}",
        "{\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"default\"}}",
        "{\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"}}",
        "{\"rope_parameters\":{\"rope_theta\":1000000},\"rope_theta\":1e6}",
        "{\"rope_theta\":1e6,\"rope_parameters\":null,\"partial_rotary_factor\":1.0}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof million / sizeof million[0]; i++)
        assert_true(accepted(million[i], NULL).rope_theta == 1e6);
}

static void test_parse_dtype_of_either_key(void **state)
{
    (void)state;
    assert_int_equal(accepted("{\"torch_dtype\":\"float16\"}", NULL).dtype, DTYPE_F16);
    assert_int_equal(accepted("{\"dtype\":\"bfloat16\"}", NULL).dtype, DTYPE_BF16);
    assert_int_equal(accepted("{\"dtype\":\"float16\",\"torch_dtype\":\"float16\"}", NULL).dtype,
                     DTYPE_F16);
}

static void test_parse_eos_of_generation_config_wins(void **state)
{
    struct model_config c = accepted("{\"eos_token_id\":5}", "{\"eos_token_id\":[7,8,9]}");

    (void)state;
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[2], 9);
    assert_true(c.eos_differs);
    assert_false(accepted("{\"eos_token_id\":[9,7]}", "{\"eos_token_id\":[7,8,9]}").eos_differs);
    c = accepted("{\"eos_token_id\":[5,6]}", "{\"top_p\":0.9}");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 6);
    assert_false(c.eos_differs);
    c = accepted("{\"eos_token_id\":5}", "{\"eos_token_id\":null}");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 5);
    assert_int_equal(accepted("{\"eos_token_id\":null}", NULL).n_eos, 0);
}

static void test_parse_ignores_what_changes_nothing(void **state)
{
    (void)state;
    (void)accepted("{\"attention_dropout\":0.1,\"initializer_range\":0.02,\"use_cache\":false,"
                   "\"max_window_layers\":28,\"pretraining_tp\":4,\"transformers_version\":\"9\","
                   "\"sliding_window\":4096,\"use_sliding_window\":false,"
                   "\"quantization_config\":null,\"something_new\":{\"a\":[1]},"
                   "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
                   NULL);
}

static const struct {
    const char *patch, *field;
} refusals[] = {
    {"{\"architectures\":null}", "/architectures"},
    {"{\"architectures\":[]}", "/architectures"},
    {"{\"architectures\":\"Qwen3ForCausalLM\"}", "/architectures"},
    {"{\"architectures\":[\"GPT2LMHeadModel\"]}", "/architectures"},
    {"{\"architectures\":[17]}", "/architectures"},
    {"{\"model_type\":\"llama\"}", "/model_type"},
    {"{\"model_type\":3}", "/model_type"},
    {"{\"quantization_config\":{\"bits\":4}}", "/quantization_config"},
    {"{\"compression_config\":{\"format\":\"x\"}}", "/compression_config"},
    {"{\"text_config\":{\"hidden_size\":24}}", "/text_config"},
    {"{\"dual_chunk_attention_config\":{\"chunk_size\":8}}", "/dual_chunk_attention_config"},
    {"{\"architectures\":[\"MixtralForCausalLM\"]}", "/model_type"}, /* the base says qwen3 */
    {"{\"architectures\":[\"LlamaForCausalLM\"]}", "/model_type"},   /* the base says qwen3 */
    {QWEN2 ",\"attention_bias\":false}", "/attention_bias"},
    {QWEN2 ",\"mlp_bias\":true}", "/mlp_bias"},
    {QWEN2 ",\"use_sliding_window\":true}", "/use_sliding_window"},
    {"{\"mlp_bias\":true}", "/mlp_bias"}, /* Qwen3 */
    {LLAMA ",\"mlp_bias\":1}", "/mlp_bias"},
    {MISTRAL ",\"sliding_window\":null,\"attention_bias\":true}", "/attention_bias"},
    {MISTRAL ",\"sliding_window\":511}", "/sliding_window"},
    {MISTRAL ",\"sliding_window\":true}", "/sliding_window"},
    {MISTRAL ",\"max_position_embeddings\":4097}", "/sliding_window"}, /* 4096 when absent */
    {"{\"hidden_act\":\"gelu\"}", "/hidden_act"},
    {"{\"hidden_act\":1}", "/hidden_act"},
    {"{\"rope_scaling\":{\"rope_type\":\"wavy\"}}", "/rope_scaling/rope_type"},
    {"{\"rope_scaling\":" YARN ",\"beta_fast\":1,\"beta_slow\":2}}", "/rope_scaling/beta_fast"},
    {"{\"original_max_position_embeddings\":128,\"rope_scaling\":" YARN "}}",
     "/original_max_position_embeddings"},
    {"{\"rope_scaling\":" YARN "},\"rope_parameters\":{\"rope_type\":\"default\"}}",
     "/rope_scaling"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":1e4}"
     "}",
     "/rope_scaling"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"type\":"
     "\"linear\","
     "\"factor\":2.5}}",
     "/rope_scaling"},
    /* transformers 5 would turn by 1e4 here: what it drops with rope_parameters is rope_theta too
     */
    {"{\"rope_scaling\":" YARN "},\"rope_parameters\":" YARN ",\"rope_theta\":1e6}}",
     "/rope_scaling"},
    {"{\"rope_scaling\":" YARN ",\"attention_factor\":1},\"rope_parameters\":" YARN "}}",
     "/rope_scaling"},
    {"{\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}}", "/rope_theta"},
    {"{\"rope_scaling\":{\"type\":\"default\",\"rope_type\":\"linear\",\"factor\":2}}",
     "/rope_scaling/type"},
    {"{\"dtype\":\"float32\",\"torch_dtype\":\"float16\"}", "/torch_dtype"},
    {"{\"is_causal\":false}", "/is_causal"},
    {"{\"logit_scale\":0.5}", "/logit_scale"},
    {"{\"attention_chunk_size\":64}", "/attention_chunk_size"},
    {"{\"per_layer_config\":[{}]}", "/per_layer_config"},
    {"{\"transformers_weights\":\"other.safetensors\"}", "/transformers_weights"},
    {LLAMA ",\"sliding_window\":16}", "/sliding_window"},
    {"{\"rope_scaling\":" YARN ",\"mscale\":\"1\"}}", "/rope_scaling/mscale"},
    {"{\"rope_scaling\":" YARN ",\"mscale_all_dim\":-1}}", "/rope_scaling/mscale_all_dim"},
    {"{\"rope_scaling\":" YARN ",\"attention_factor\":0}}", "/rope_scaling/attention_factor"},
    {"{\"rope_scaling\":" YARN ",\"attention_factor\":1e300}}", "/rope_scaling/attention_factor"},
    {"{\"rope_scaling\":" YARN ",\"truncate\":1}}", "/rope_scaling/truncate"},
    {"{\"rope_scaling\":[1]}", "/rope_scaling"},
    {"{\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}}", "/rope_scaling/rope_type"},
    {"{\"rope_scaling\":{\"type\":\"su\"}}", "/rope_scaling/type"},
    {"{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "/rope_scaling/rope_type"},
    {"{\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "/rope_parameters/factor"},
    {"{\"rope_scaling\":{\"type\":\"linear\"}}", "/rope_scaling/factor"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "/rope_scaling/factor"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}", "/rope_scaling/factor"},
    {"{\"rope_parameters\":{\"rope_type\":\"llama3\"}}", "/rope_parameters/factor"},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "/rope_scaling/low_freq_factor"},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}}",
     "/rope_scaling/high_freq_factor"},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
     "/rope_scaling/high_freq_factor"},
    {"{\"rope_parameters\":{\"rope_type\":7}}", "/rope_parameters/rope_type"},
    {"{\"rope_parameters\":{\"rope_theta\":-1}}", "/rope_parameters/rope_theta"},
    {"{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
     "/rope_parameters/full_attention"},
    {"{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
     "/rope_parameters/partial_rotary_factor"},
    {"{\"partial_rotary_factor\":0.25}", "/partial_rotary_factor"},
    {"{\"rope_theta\":0}", "/rope_theta"},
    {"{\"rope_theta\":\"1e6\"}", "/rope_theta"},
    {"{\"rope_theta\":1e-300}", "/rope_theta"}, /* angles that no float holds */
    {"{\"rope_parameters\":{\"rope_theta\":1e-300}}", "/rope_parameters/rope_theta"},
    {"{\"rope_theta\":1e-300,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "/rope_theta"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e-44}}", "/rope_scaling/factor"},
    {"{\"rope_parameters\":{\"type\":\"linear\",\"factor\":1e-300}}", "/rope_parameters/factor"},
    {"{\"use_sliding_window\":true}", "/use_sliding_window"},
    {"{\"use_sliding_window\":1}", "/use_sliding_window"},
    {"{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "/layer_types/1"},
    {"{\"layer_types\":[\"full_attention\"]}", "/layer_types"},
    {"{\"layer_types\":\"full_attention\"}", "/layer_types"},
    {"{\"num_key_value_heads\":3}", "/num_key_value_heads"},
    {"{\"num_key_value_heads\":8}", "/num_key_value_heads"},
    {"{\"num_key_value_heads\":0}", "/num_key_value_heads"},
    {"{\"head_dim\":7}", "/head_dim"},
    {"{\"head_dim\":0}", "/head_dim"},
    {"{\"head_dim\":4098}", "/head_dim"},
    {"{\"head_dim\":4096,\"num_attention_heads\":512}", "/num_attention_heads"},
    {"{\"vocab_size\":null}", "/vocab_size"},
    {"{\"vocab_size\":0}", "/vocab_size"},
    {"{\"vocab_size\":-1}", "/vocab_size"},
    {"{\"vocab_size\":16777217}", "/vocab_size"},
    {"{\"vocab_size\":32.0}", "/vocab_size"},
    {"{\"hidden_size\":\"24\"}", "/hidden_size"},
    {"{\"hidden_size\":1048577}", "/hidden_size"},
    {"{\"intermediate_size\":null}", "/intermediate_size"},
    {"{\"num_hidden_layers\":1025}", "/num_hidden_layers"},
    {"{\"num_hidden_layers\":0}", "/num_hidden_layers"},
    {"{\"num_attention_heads\":9223372036854775807}", "/num_attention_heads"},
    {"{\"max_position_embeddings\":16777217}", "/max_position_embeddings"},
    {"{\"max_position_embeddings\":null}", "/max_position_embeddings"},
    {"{\"rms_norm_eps\":0}", "/rms_norm_eps"},
    {"{\"rms_norm_eps\":true}", "/rms_norm_eps"},
    {"{\"rms_norm_eps\":1e-300}", "/rms_norm_eps"}, /* 0 as a float: a row of zeros is NaN */
    {"{\"rms_norm_eps\":1e300}", "/rms_norm_eps"},
    {"{\"attention_bias\":\"yes\"}", "/attention_bias"},
    {"{\"tie_word_embeddings\":1}", "/tie_word_embeddings"},
    {"{\"torch_dtype\":\"float64\"}", "/torch_dtype"},
    {"{\"dtype\":\"fp8\"}", "/dtype"},
    {"{\"dtype\":[]}", "/dtype"},
    {"{\"eos_token_id\":-1}", "/eos_token_id"},
    {"{\"eos_token_id\":[1,\"2\"]}", "/eos_token_id"},
    {"{\"eos_token_id\":4294967296}", "/eos_token_id"},
    {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "/eos_token_id"},
};

static void test_parse_refusals_name_the_key(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct model_config c = {.vocab_size = 77};
        struct err e = {0};

        if (parse_patched(&c, refusals[i].patch, NULL, &e) == 0)
            fail_msg("%s was accepted", refusals[i].patch);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, refusals[i].field);
        assert_true(strlen(e.msg) > 10);
        assert_int_equal(c.vocab_size, 77); /* output untouched */
    }
}

static void test_parse_refuses_what_is_no_config(void **state)
{
    static const char *const texts[] = {
        "", "[]", "17", "{", "{\"vocab_size\":1,\"vocab_size\":2}", "{} {}", "\xff\xfe{}", "null",
    };
    char *text = patched("{}");

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct model_config c;
        struct err e = {0};

        assert_int_equal(model_config_parse(&c, texts[i], strlen(texts[i]), NULL, 0, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, "config.json"));
        err_clear(&e);
        assert_int_equal(model_config_parse(&c, text, strlen(text), texts[i], strlen(texts[i]), &e),
                         -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, "generation_config.json"));
    }
    free(text);
}

static void put_file(const char *dir, const char *name, const char *text, size_t len)
{
    char path[256];
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    assert_int_equal(close(fd), 0);
}

static int load_code(const char *dir)
{
    struct model_config c;
    struct err e = {0};
    int rc = model_config_load(&c, dir, &e);

    assert_true((rc == 0) == (e.code == ERR_NONE));
    return (int)e.code;
}

static void test_load_says_what_is_wrong_with_the_file(void **state)
{
    char dir[] = "/tmp/baton-config-XXXXXX", path[256], *text = patched("{}");
    char *big = calloc(1, MODEL_CONFIG_NBYTES_MAX + 1);

    (void)state;
    assert_non_null(big);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(load_code(dir), ERR_NOT_FOUND);
    put_file(dir, "config.json", text, strlen(text));
    assert_int_equal(load_code(dir), ERR_NONE); /* generation_config.json may be absent */
    put_file(dir, "generation_config.json", "{", 1);
    assert_int_equal(load_code(dir), ERR_BAD_REQUEST);
    put_file(dir, "generation_config.json", "{}", 2);
    assert_int_equal(load_code(dir), ERR_NONE);
    put_file(dir, "config.json", big, MODEL_CONFIG_NBYTES_MAX + 1);
    assert_int_equal(load_code(dir), ERR_BAD_REQUEST);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(load_code(dir), ERR_UNREADABLE);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(load_code(dir), ERR_UNREADABLE);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    free(big);
    free(text);
}

/* --- model_spec_of_config
 * -------------------------------------------------------------------------- */

static const struct tensor_spec *find(const struct model_spec *m, const char *name)
{
    uint32_t i = tensor_list_find(m->tensor_list, name);

    return i != TENSOR_LIST_NO_TENSOR ? &m->tensor_list->tensors[i] : NULL;
}

static const struct alias *find_alias(const struct model_spec *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_aliases; i++) {
        if (strcmp(m->aliases[i].name, name) == 0)
            return &m->aliases[i];
    }
    return NULL;
}

static struct model_spec *model_spec_of(const char *patch, const struct tensor_list *stored)
{
    struct model_config c = accepted(patch, NULL);
    struct model_spec *m = NULL;
    struct err e = {0};

    if (model_spec_of_config(&m, &c, stored, &e) != 0)
        fail_msg("refused at %s: %s", e.field, e.msg);
    return m;
}

static void assert_tensor(const struct model_spec *m, const char *name, enum dtype dtype,
                          uint32_t ndim, uint64_t rows, uint64_t columns)
{
    const struct tensor_spec *t = find(m, name);

    if (t == NULL)
        fail_msg("no tensor '%s'", name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->ndim, ndim);
    assert_int_equal(t->shape[0], rows);
    if (ndim == 2)
        assert_int_equal(t->shape[1], columns);
}

static void test_model_spec_names_and_shapes(void **state)
{
    struct model_spec *m = model_spec_of("{\"dtype\":\"bfloat16\"}", NULL);

    (void)state;
    assert_int_equal(m->tensor_list->n_tensors, 3 + 2 * 11);
    assert_tensor(m, "model.embed_tokens.weight", DTYPE_BF16, 2, 96, 24);
    assert_tensor(m, "lm_head.weight", DTYPE_BF16, 2, 96, 24);
    assert_tensor(m, "model.norm.weight", DTYPE_BF16, 1, 24, 0);
    assert_tensor(m, "model.layers.1.input_layernorm.weight", DTYPE_BF16, 1, 24, 0);
    assert_tensor(m, "model.layers.1.post_attention_layernorm.weight", DTYPE_BF16, 1, 24, 0);
    assert_tensor(m, "model.layers.0.self_attn.q_proj.weight", DTYPE_BF16, 2, 32, 24);
    assert_tensor(m, "model.layers.0.self_attn.k_proj.weight", DTYPE_BF16, 2, 16, 24);
    assert_tensor(m, "model.layers.0.self_attn.v_proj.weight", DTYPE_BF16, 2, 16, 24);
    assert_tensor(m, "model.layers.0.self_attn.o_proj.weight", DTYPE_BF16, 2, 24, 32);
    assert_tensor(m, "model.layers.0.self_attn.q_norm.weight", DTYPE_BF16, 1, 8, 0);
    assert_tensor(m, "model.layers.0.self_attn.k_norm.weight", DTYPE_BF16, 1, 8, 0);
    assert_tensor(m, "model.layers.1.mlp.gate_proj.weight", DTYPE_BF16, 2, 40, 24);
    assert_tensor(m, "model.layers.1.mlp.up_proj.weight", DTYPE_BF16, 2, 40, 24);
    assert_tensor(m, "model.layers.1.mlp.down_proj.weight", DTYPE_BF16, 2, 24, 40);
    assert_null(find_alias(m, "lm_head.weight"));
    assert_non_null(find_alias(m, "model.rotary_emb.inv_freq"));
    model_spec_free(m);
}

static void test_model_spec_of_biases(void **state)
{
    struct model_spec *m = model_spec_of("{\"attention_bias\":true}", NULL);
    const struct alias *a = find_alias(m, "model.layers.0.self_attn.qkv_proj.bias");

    (void)state;
    assert_int_equal(m->tensor_list->n_tensors, 3 + 2 * 15);
    assert_tensor(m, "model.layers.1.self_attn.q_proj.bias", DTYPE_F32, 1, 32, 0);
    assert_tensor(m, "model.layers.1.self_attn.v_proj.bias", DTYPE_F32, 1, 16, 0);
    assert_tensor(m, "model.layers.1.self_attn.o_proj.bias", DTYPE_F32, 1, 24, 0);
    assert_non_null(a);
    assert_int_equal(a->ndim, 1);
    assert_int_equal(a->shape[0], 64);
    assert_null(find_alias(m, "model.layers.0.mlp.gate_up_proj.bias"));
    model_spec_free(m);
}

static void test_model_spec_aliases(void **state)
{
    struct model_spec *m = model_spec_of("{\"tie_word_embeddings\":true}", NULL);
    const struct alias *a = find_alias(m, "lm_head.weight");

    (void)state;
    assert_null(find(m, "lm_head.weight"));
    assert_non_null(a);
    assert_int_equal(a->kind, ALIAS_TIED);
    assert_int_equal(a->targets[0], tensor_list_find(m->tensor_list, "model.embed_tokens.weight"));
    a = find_alias(m, "model.layers.1.self_attn.qkv_proj.weight");
    assert_non_null(a);
    assert_int_equal(a->kind, ALIAS_FUSED);
    assert_int_equal(a->n_targets, 3);
    assert_int_equal(a->targets[0],
                     tensor_list_find(m->tensor_list, "model.layers.1.self_attn.q_proj.weight"));
    assert_int_equal(a->targets[1],
                     tensor_list_find(m->tensor_list, "model.layers.1.self_attn.k_proj.weight"));
    assert_int_equal(a->targets[2],
                     tensor_list_find(m->tensor_list, "model.layers.1.self_attn.v_proj.weight"));
    assert_int_equal(a->shape[0], 64);
    assert_int_equal(a->shape[1], 24);
    a = find_alias(m, "model.layers.0.mlp.gate_up_proj.weight");
    assert_non_null(a);
    assert_int_equal(a->n_targets, 2);
    assert_int_equal(a->shape[0], 80);
    assert_int_equal(a->shape[1], 24);
    a = find_alias(m, "model.rotary_emb.inv_freq");
    assert_non_null(a);
    assert_int_equal(a->kind, ALIAS_IGNORED);
    model_spec_free(m);
}

static struct tensor_list *stored_of(const char *name, enum dtype dtype, uint64_t rows,
                                     uint64_t columns)
{
    const uint64_t shape[2] = {rows, columns}, other[1] = {9};
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "not.of.this.model", DTYPE_I64, other, 1, 9, &e),
                     0);
    assert_int_equal(
        tensor_list_builder_add(b, name, dtype, shape, columns != 0 ? 2 : 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static void test_model_spec_takes_stored_dtypes(void **state)
{
    struct tensor_list *p = stored_of("model.layers.0.mlp.up_proj.weight", DTYPE_F16, 40, 24);
    struct model_spec *m = model_spec_of("{\"dtype\":\"bfloat16\"}", p);

    (void)state;
    assert_tensor(m, "model.layers.0.mlp.up_proj.weight", DTYPE_F16, 2, 40, 24);
    assert_tensor(m, "model.layers.0.mlp.gate_proj.weight", DTYPE_BF16, 2, 40, 24);
    assert_null(find(m, "not.of.this.model"));
    /* Parts of two dtypes cannot come as one tensor. */
    assert_null(find_alias(m, "model.layers.0.mlp.gate_up_proj.weight"));
    assert_non_null(find_alias(m, "model.layers.1.mlp.gate_up_proj.weight"));
    model_spec_free(m);
    tensor_list_unref(p);
}

static void test_model_spec_refuses_a_stored_tensor_that_does_not_fit(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        uint64_t rows, columns;
        const char *field, *said;
    } cases[] = {
        {"model.layers.0.mlp.up_proj.weight", DTYPE_F16, 24, 40, "", "[40, 24]"},
        {"model.norm.weight", DTYPE_F16, 24, 1, "", "[24]"},
        {"model.norm.weight", DTYPE_F16, 25, 0, "", "[24]"},
        {"model.embed_tokens.weight", DTYPE_F16, 97, 24, "/vocab_size", "[96, 24]"},
        {"model.embed_tokens.weight", DTYPE_F16, 96, 25, "", "[96, 24]"},
        {"lm_head.weight", DTYPE_I8, 96, 24, "", "I8"},
        {"model.layers.1.self_attn.q_norm.weight", DTYPE_F64, 8, 0, "", "F64"},
    };
    struct model_config c = accepted("{}", NULL);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tensor_list *p = stored_of(cases[i].name, cases[i].dtype, cases[i].rows,
                                          cases[i].columns);
        struct model_spec *m = NULL;
        struct err e = {0};

        assert_int_equal(model_spec_of_config(&m, &c, p, &e), -1);
        assert_int_equal(e.code, ERR_MISMATCH);
        assert_string_equal(e.field, cases[i].field);
        assert_non_null(strstr(e.msg, cases[i].name));
        assert_non_null(strstr(e.msg, cases[i].said));
        assert_null(m);
        tensor_list_unref(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_reads_the_fixture),
        cmocka_unit_test(test_parse_defaults),
        cmocka_unit_test(test_parse_attention_bias_is_of_all_four),
        cmocka_unit_test(test_parse_architectures),
        cmocka_unit_test(test_load_reads_the_tiny_models),
        cmocka_unit_test(test_parse_both_spellings_of_rope),
        cmocka_unit_test(test_parse_scaled_rope_in_both_spellings),
        cmocka_unit_test(test_parse_original_positions),
        cmocka_unit_test(test_parse_context_of_scaled_rope),
        cmocka_unit_test(test_parse_both_dictionaries_that_agree),
        cmocka_unit_test(test_parse_sampling_defaults),
        cmocka_unit_test(test_parse_refuses_sampling_defaults_out_of_range),
        cmocka_unit_test(test_parse_dtype_of_either_key),
        cmocka_unit_test(test_parse_eos_of_generation_config_wins),
        cmocka_unit_test(test_parse_ignores_what_changes_nothing),
        cmocka_unit_test(test_parse_refusals_name_the_key),
        cmocka_unit_test(test_parse_refuses_what_is_no_config),
        cmocka_unit_test(test_load_says_what_is_wrong_with_the_file),
        cmocka_unit_test(test_model_spec_names_and_shapes),
        cmocka_unit_test(test_model_spec_of_biases),
        cmocka_unit_test(test_model_spec_aliases),
        cmocka_unit_test(test_model_spec_takes_stored_dtypes),
        cmocka_unit_test(test_model_spec_refuses_a_stored_tensor_that_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
