/* The requests of the releases of vLLM: how tensors are packed, and what newer ones have. */
#include "fleet/api/upstream_api_priv.h"
#include "tests/unit/fleet/api_args_of.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COLUMNS "\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[2,3]]"
#define THEIRS  "\"names\":[\"a\"],\"dtype_names\":[\"bfloat16\"],\"shapes\":[[2,3]]"
#define STORE   "\"master_address\":\"h\",\"master_port\":1,\"world_size\":2,\"rank_offset\":1"
#define INIT    "POST /init_weight_transfer_engine"
#define UPDATE  "POST /update_weights"
#define BUFFERS ",\"packed\":true,\"packed_buffer_size_bytes\":1024"
#define PICKLED ",\"ipc_handles_pickled\":\"gA==\""

/* Each release gets the form that it accepts; NULL: the release is unknown. */
static const struct row {
    const char *release;
    enum api_op op;
    const char *native, *path, *body;
} rows[] = {
    {"0.32.0", API_SHUTDOWN_TRANSFER, "{}", "POST /shutdown_weight_transfer_engine", NULL},
    {"0.31.1", API_SHUTDOWN_TRANSFER, "{}", NULL, NULL},
    {"0.28.0", API_INIT_TRANSFER,
     "{\"transport\":\"nccl\"," STORE BUFFERS ",\"packed_num_buffers\":3}", INIT,
     "{\"init_info\":{" STORE BUFFERS ",\"packed_num_buffers\":3}}"},
    {"0.32.0+cpu", API_INIT_TRANSFER,
     "{\"transport\":\"nccl\"," STORE ",\"packed\":true,\"bucket_nbytes\":9}", INIT,
     "{\"init_info\":{" STORE ",\"packed\":true,\"packed_buffer_size_bytes\":9}}"},
    {"0.1.dev1+g12ab", API_INIT_TRANSFER, "{\"transport\":\"nccl\"," STORE ",\"packed\":false}",
     INIT, "{\"init_info\":{" STORE ",\"packed\":false}}"},
    {"0.27.1", API_INIT_TRANSFER, "{\"transport\":\"nccl\"," STORE BUFFERS "}", INIT,
     "{\"init_info\":{" STORE "}}"},
    {"0.27.0", API_INIT_TRANSFER, "{\"transport\":\"ipc\",\"packed\":true}", INIT,
     "{\"init_info\":{\"packed\":true}}"},
    {"0.26.0", API_INIT_TRANSFER, "{\"transport\":\"ipc\",\"packed\":true}", INIT,
     "{\"init_info\":{}}"},
    {"0.32.0", API_INIT_TRANSFER, "{\"transport\":\"ipc\"}", INIT, "{\"init_info\":{}}"},
    {"0.30.0", API_INIT_TRANSFER,
     "{\"transport\":\"nccl\",\"world_size\":2,\"nccl_unique_id\":\"AA==\"}", INIT,
     "{\"init_info\":{\"world_size\":2,\"nccl_unique_id_b64\":\"AA==\"}}"},
    {"0.27.0", API_UPDATE_WEIGHTS, "{" COLUMNS ",\"packed\":true,\"tensor_sizes\":[12]" PICKLED "}",
     UPDATE, "{\"update_info\":{" THEIRS ",\"tensor_sizes\":[12]" PICKLED "}}"},
    {"0.26.0", API_UPDATE_WEIGHTS, "{" COLUMNS ",\"packed\":true,\"tensor_sizes\":[12]" PICKLED "}",
     UPDATE, "{\"update_info\":{" THEIRS ",\"tensor_sizes\":[12]" PICKLED ",\"packed\":true}}"},
    {"0.24.0", API_UPDATE_WEIGHTS, "{\"transport\":\"nccl\"," COLUMNS ",\"packed\":false}", UPDATE,
     "{\"update_info\":{" THEIRS "}}"},
    {"0.24.0", API_UPDATE_WEIGHTS, "{\"transport\":\"nccl\"," COLUMNS ",\"packed\":true}", UPDATE,
     "{\"update_info\":{" THEIRS ",\"packed\":true}}"},
    {"0.24.0", API_UPDATE_WEIGHTS,
     "{\"transport\":\"nccl\"," COLUMNS ",\"packed\":true,\"sizes\":[6]}", UPDATE,
     "{\"update_info\":{" THEIRS
     ",\"packed\":true,\"packed_buffer_size_bytes\":9223372036854775807}}"},
    {"0.32.0", API_UPDATE_WEIGHTS, "{\"transport\":\"nccl\"," COLUMNS "}", UPDATE,
     "{\"update_info\":{" THEIRS "}}"},
    {"0.31.0", API_SLEEP, "{\"level\":1,\"tags\":[\"kv_cache\"]}", "POST /release_kv_cache_memory",
     NULL},
    {"0.27.0", API_UPDATE_WEIGHTS,
     "{\"transport\":\"nccl\"," COLUMNS ",\"packed\":true,\"bucket_nbytes\":1024}", UPDATE,
     "{\"update_info\":{" THEIRS BUFFERS "}}"},
};

static void check_row(const struct row *row)
{
    const struct api_context ctx = {.release = row->release};
    struct own_args own;
    struct api_request r;
    struct err e = {0};
    char line[API_PATH_MAX + 16];

    assert_int_equal(api_make_request(&r, UPSTREAM_VLLM, row->op,
                                      own_args_of(&own, row->op, row->native), &ctx, &e),
                     0);
    own_args_fini(&own);
    if (row->path == NULL) {
        assert_null(r.method);
        return;
    }
    (void)snprintf(line, sizeof line, "%s %s", r.method, r.path);
    assert_string_equal(line, row->path);
    if (row->body == NULL)
        assert_null(r.body);
    else
        assert_string_equal(r.body, row->body);
    assert_int_equal(r.body_len, row->body != NULL ? strlen(row->body) : 0);
    api_request_fini(&r);
}

static void test_vllm_gets_the_form_of_its_release(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
}

/* Since 0.28 a vLLM unpacks as declared when its group was formed, whatever an update says. */
static void test_vllm_updates_are_packed_as_their_group(void **state)
{
    static const struct {
        struct api_packing group;
        const char *packing;
        bool good;
    } cases[] = {
        {{false, 0}, "", true},
        {{false, 0}, ",\"packed\":false", true},
        {{false, 0}, ",\"packed\":true", false},
        {{true, 0}, "", false}, /* handlers/fleet/packing.c adds it to each update */
        {{true, 0}, ",\"packed\":false", false},
        {{true, 0}, ",\"packed\":true", true},
        {{true, 0}, ",\"packed\":true,\"packed_buffer_size_bytes\":1073741824", true},
        {{true, 0}, ",\"packed\":true,\"bucket_nbytes\":4096", false},
        {{true, 4096}, ",\"packed\":true,\"bucket_nbytes\":4096", true},
        {{true, 4096}, ",\"packed\":true", false},
        {{true, 4096}, ",\"packed\":true,\"sizes\":[6]", false},
        {{true, INT64_MAX}, ",\"packed\":true,\"sizes\":[6]", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct api_context ctx = {.release = "0.32.0", .group = cases[i].group};
        struct api_request r;
        struct err e = {0};
        char text[256];
        struct own_args own;

        (void)snprintf(text, sizeof text, "{\"transport\":\"nccl\"," COLUMNS "%s}",
                       cases[i].packing);
        if (api_make_request(&r, UPSTREAM_VLLM, API_UPDATE_WEIGHTS,
                             own_args_of(&own, API_UPDATE_WEIGHTS, text), &ctx, &e) == 0) {
            assert_true(cases[i].good);
            assert_string_equal(r.body, "{\"update_info\":{" THEIRS "}}");
            api_request_fini(&r);
        } else {
            assert_false(cases[i].good);
            assert_string_equal(e.field, "/packed");
        }
        own_args_fini(&own);
    }
}

static void test_vllm_has(void **state)
{
    static const struct {
        const char *release;
        unsigned minor;
        bool has;
    } cases[] = {
        {"0.27.0", 28, false},
        {"0.28.0", 28, true},
        {"0.28.0rc2.dev5+gab", 28, true},
        {"0.32.0+cpu", 28, true},
        {"0.9.2", 28, true},
        {"0.10.0", 28, false},
        {"1.0.0", 28, true},
        {"2026.1", 28, true},
        {"0.1.dev12+g0123", 28, true},
        {"dev", 28, true},
        {"", 28, true},
        {NULL, 28, true},
        {"v0.24", 28, true},
        {"0.24.0.post1+cu128", 27, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(vllm_has(cases[i].release, cases[i].minor), cases[i].has);
}

static void test_read_release(void **state)
{
    static const struct {
        int status;
        const char *text, *release;
    } cases[] = {
        {200, "{\"version\":\"0.32.0+cpu\"}", "0.32.0+cpu"},
        {200, "{\"version\":7}", ""},
        {200, "{}", ""},
        {200, "no JSON", ""},
        {404, "{\"version\":\"0.32.0\"}", ""},
        {0, "", ""},
        {200, "{\"version\":\"0123456789012345678901234567890123456789012345678901234567890123\"}",
         ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct upstream_report report = {.process = ""};

        assert_int_equal(api_read_report(&report, UPSTREAM_VLLM, API_GET_RELEASE, cases[i].status,
                                         cases[i].text, strlen(cases[i].text), NULL),
                         0);
        assert_string_equal(report.release, cases[i].release);
    }
}

/* The layers that are wrapped for adapters, in models whose embedding is wrapped and in others. */
static void test_vllm_renames_wrapped_layers(void **state)
{
    static const struct {
        enum api_names names;
        const char *name, *theirs;
    } cases[] = {
        {API_NAMES_PLAIN, "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
        {API_NAMES_LORA, "model.layers.0.mlp.up_proj.weight",
         "model.layers.0.mlp.up_proj.base_layer.weight"},
        {API_NAMES_LORA, "model.layers.0.self_attn.k_proj.bias",
         "model.layers.0.self_attn.k_proj.base_layer.bias"},
        {API_NAMES_LORA, "model.embed_tokens.weight", "model.embed_tokens.weight"},
        {API_NAMES_LORA_EMBEDDING, "model.embed_tokens.weight",
         "model.embed_tokens.base_layer.weight"},
        {API_NAMES_LORA_EMBEDDING, "embed_tokens.weight", "embed_tokens.base_layer.weight"},
        {API_NAMES_LORA_EMBEDDING, "lm_head.weight", "lm_head.weight"},
        {API_NAMES_LORA_EMBEDDING, "model.layers.0.self_attn.q_norm.weight",
         "model.layers.0.self_attn.q_norm.weight"},
        {API_NAMES_LORA_EMBEDDING, "model.layers.0.mlp.up_proj.base_layer.weight",
         "model.layers.0.mlp.up_proj.base_layer.weight"},
        {API_NAMES_LORA_EMBEDDING, "my_up_proj.weight", "my_up_proj.weight"},
        {API_NAMES_LORA_EMBEDDING, "up_proj", "up_proj"},
        {API_NAMES_LORA_EMBEDDING, "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *info = vllm_with_names(json_pack("{s:[s]}", "names", cases[i].name),
                                       cases[i].names);

        assert_string_equal(json_string_value(json_array_get(json_object_get(info, "names"), 0)),
                            cases[i].theirs);
        json_decref(info);
    }
}

static void test_names_for_lora(void **state)
{
    static const struct {
        const char *release, *architecture, *config, *says; /* says NULL: `names` */
        enum api_names names;
    } cases[] = {
        {"0.24.0", "Qwen3ForCausalLM", "{\"lora_config\":{\"target_modules\":null}}", NULL,
         API_NAMES_LORA_EMBEDDING},
        {"0.24.0", "Qwen2ForCausalLM", "{}", NULL, API_NAMES_LORA},
        {"0.24.0", "MistralForCausalLM", "{}", NULL, API_NAMES_LORA},
        {"0.23.1", "Qwen3ForCausalLM", "{}", "in 0.23.1 are not known", API_NAMES_PLAIN},
        {"0.24.0", "GemmaForCausalLM", "{}", "those of GemmaForCausalLM in 0.24.0 are not known",
         API_NAMES_PLAIN},
        {"0.24.0", "Qwen3ForCausalLM", "{\"lora_config\":{\"target_modules\":[\"q_proj\"]}}",
         "with target_modules", API_NAMES_PLAIN},
        {"0.24.0", NULL, "{}", "--model DIR", API_NAMES_PLAIN},
        {"0.24.0", "Qwen3ForCausalLM", "{\"lora_config\":null}", NULL, API_NAMES_PLAIN},
        {"0.24.0", NULL, "{\"lora_config\":null}", NULL, API_NAMES_PLAIN},
    };
    static const struct {
        const char *metrics, *release;
        bool renames;
    } engines[] = {{"# TYPE vllm:lora_requests_info gauge\n", "0.24.0", true},
                   {"# TYPE vllm:lora_requests_info gauge\n", "0.27.1", true},
                   {"# TYPE vllm:lora_requests_info gauge\n", "0.28.0", false},
                   {"# TYPE vllm:lora_requests_info gauge\n", "", false},
                   {"# TYPE vllm:num_requests_running gauge\n", "0.24.0", false}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        enum api_names names = API_NAMES_PLAIN;
        struct err e = {0};
        int len = snprintf(text, sizeof text, "{\"vllm_config\":%s}", cases[i].config);
        int rc = api_names_for_lora(&names, UPSTREAM_VLLM, cases[i].release, cases[i].architecture,
                                    text, (size_t)len, &e);

        assert_int_equal(rc, cases[i].says != NULL ? -1 : 0);
        assert_int_equal(names, cases[i].names);
        assert_true(cases[i].says == NULL || strstr(e.msg, cases[i].says) != NULL);
    }
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++) {
        struct upstream_report report = {.process = ""};

        assert_int_equal(api_read_report(&report, UPSTREAM_VLLM, API_GET_STATUS, 200,
                                         engines[i].metrics, strlen(engines[i].metrics), NULL),
                         0);
        (void)snprintf(report.release, sizeof report.release, "%s", engines[i].release);
        assert_int_equal(report.has_lora &&
                             api_release_of(UPSTREAM_VLLM, report.release).renames_for_lora,
                         engines[i].renames);
        assert_false(api_release_of(UPSTREAM_SGLANG, report.release).renames_for_lora);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vllm_renames_wrapped_layers),
        cmocka_unit_test(test_names_for_lora),
        cmocka_unit_test(test_vllm_gets_the_form_of_its_release),
        cmocka_unit_test(test_vllm_updates_are_packed_as_their_group),
        cmocka_unit_test(test_vllm_has),
        cmocka_unit_test(test_read_release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
