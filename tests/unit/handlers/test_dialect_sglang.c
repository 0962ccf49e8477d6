/* SGLang's and prime-rl's ways in and out: what a request becomes, what a reply becomes, and what
 * is refused by name. */
#include "handlers/body.h"
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/compat/prime_rl/dialect_prime_rl.h"
#include "handlers/compat/sglang/dialect_sglang.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *read_json(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);

    assert_non_null(value);
    return value;
}

static void assert_json(const json_t *found, const char *wanted)
{
    json_t *value = read_json(wanted);

    if (!json_equal(found, value)) {
        char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);

        fail_msg("%s, wanted %s", text, wanted);
    }
    json_decref(value);
}

struct in_row {
    sglang_request *in;
    const char *theirs, *ours; /* ours NULL: refused, at `field`, with `word` */
    const char *field;         /* with ours: the path of the route; NULL: the first that fits */
    const char *word;
};

static const struct route *route_of(const struct in_row *row)
{
    for (size_t i = 0; i < n_routes; i++)
        if (routes[i].translate_request == row->in &&
            (row->ours == NULL || row->field == NULL || strcmp(routes[i].pattern, row->field) == 0))
            return &routes[i];
    fail_msg("no route translates %s", row->theirs);
    return NULL;
}

static void check_in(const struct in_row *row)
{
    struct http_request x = {.route = (void *)(uintptr_t)route_of(row)};
    json_t *body = read_json(row->theirs);
    struct err e = {0};
    int rc = row->in(&body, &x, &e);

    if (row->ours != NULL) {
        assert_int_equal(rc, 0);
        assert_int_equal(e.code, ERR_NONE);
        assert_json(body, row->ours);
    } else {
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, row->field);
        assert_non_null(strstr(e.msg, row->word));
    }
    json_decref(body);
}

#define GROUP "\"master_address\":\"h\",\"rank_offset\":1,\"world_size\":2,\"transport\":\"nccl\""

static void test_group_in(void **state)
{
    static const struct in_row rows[] = {
        {sglang_group_request,
         "{\"master_address\":\"h\",\"master_port\":5,\"rank_offset\":1,\"world_size\":2,"
         "\"group_name\":\"g\",\"backend\":\"nccl\",\"pp_rank\":3}",
         "{" GROUP ",\"master_port\":5,\"group_name\":\"g\"}", NULL, NULL},
        {sglang_group_request,
         "{\"master_address\":\"h\",\"master_port\":\"29500\",\"rank_offset\":1,\"world_size\":2}",
         "{" GROUP ",\"master_port\":29500,\"group_name\":\"weight_update_group\"}", NULL, NULL},
        /* No port: the native route says what it must be. */
        {sglang_group_request, "{\"master_port\":\"-1\"}",
         "{\"master_port\":\"-1\",\"group_name\":\"weight_update_group\",\"transport\":\"nccl\"}",
         NULL, NULL},
        {sglang_group_request, "{\"master_port\":\"123456\"}",
         "{\"master_port\":\"123456\",\"group_name\":\"weight_update_group\","
         "\"transport\":\"nccl\"}",
         NULL, NULL},
        {sglang_group_request, "{\"backend\":\"gloo\"}", NULL, "/backend", "'gloo'"},
        {sglang_group_request, "{\"backend\":1}", NULL, "/backend", "string"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_in(&rows[i]);
}

static void test_updates_in(void **state)
{
    static const struct in_row rows[] = {
        /* Columns are moved as they stand, whatever stands there. */
        {sglang_distributed_request,
         "{\"names\":[0],\"dtypes\":[1],\"shapes\":[[2]],\"group_name\":\"g\",\"flush_cache\":true,"
         "\"abort_all_requests\":true,\"weight_version\":\"v\",\"load_format\":null,\"new\":1}",
         "{\"names\":[0],\"dtypes\":[1],\"shapes\":[[2]],\"group_name\":\"g\","
         "\"abort_requests\":true,\"weight_version\":\"v\",\"transport\":\"nccl\"}",
         NULL, NULL},
        {sglang_distributed_request, "{\"load_format\":\"flattened_bucket\"}",
         "{\"transport\":\"nccl\",\"packed\":true,\"bucket_nbytes\":9223372036854775807}", NULL,
         NULL},
        {sglang_distributed_request, "{\"load_format\":\"pickle\"}", NULL, "/load_format",
         "'pickle'"},
        {sglang_disk_request,
         "{\"model_path\":\"/p\",\"load_format\":\"auto\",\"abort_all_requests\":false,"
         "\"weight_version\":null,\"is_async\":true,\"token_step\":3,\"manifest\":null}",
         "{\"path\":\"/p\",\"abort_requests\":false}", NULL, NULL},
        {sglang_disk_request, "{}", NULL, "/model_path", "required"},
        {sglang_disk_request, "{\"model_path\":\"/p\",\"load_format\":\"dummy\"}", NULL,
         "/load_format", "'dummy'"},
        {sglang_disk_request, "{\"model_path\":\"/p\",\"manifest\":{}}", NULL, "/manifest",
         "manifest"},
        {dialect_request_plain,
         "{\"zmq_handles\":{\"GPU-0\":\"ipc://@a\"},\"flush_cache\":true,"
         "\"torch_empty_cache\":true,\"weight_version\":\"v\"}",
         "{\"zmq_handles\":{\"GPU-0\":\"ipc://@a\"},\"weight_version\":\"v\"}",
         "/update_weights_from_ipc", NULL},
        {sglang_checker_request, "{}", "{\"action\":\"checksum\",\"must_match\":true}", NULL, NULL},
        {sglang_checker_request,
         "{\"action\":\"compare\",\"skip_tensor_list\":[\"a\"],\"selector\":\"all\"}",
         "{\"action\":\"compare\",\"skip\":[\"a\"],\"must_match\":true}", NULL, NULL},
        {sglang_reset_request, "{\"action\":\"reset_tensors\"}",
         "{\"level\":2,\"tags\":[\"weights\"]}", NULL, NULL},
        {sglang_begin_request, "{\"selector\":\"all\"}", "{\"selector\":\"all\",\"lease_s\":600}",
         NULL, NULL},
        {sglang_checker_request, "{\"action\":\"compare\",\"allow_quant_error\":true}",
         "{\"action\":\"compare\",\"must_match\":true}", NULL, NULL},
        {sglang_label_request, "{\"new_version\":\"v\"}",
         "{\"weight_version\":\"v\",\"abort_requests\":true}", NULL, NULL},
        {sglang_label_request, "{\"new_version\":\"v\",\"abort_all_requests\":false}",
         "{\"weight_version\":\"v\",\"abort_requests\":false}", NULL, NULL},
        {sglang_label_request, "{\"abort_all_requests\":true}", NULL, "/new_version", "required"},
        {prime_rl_update_request, "{\"weight_dir\":\"/w\",\"new\":1}", "{\"path\":\"/w\"}", NULL,
         NULL},
        {prime_rl_update_request, "{\"weight_dir\":null}", NULL, "/weight_dir", "null"},
        {prime_rl_broadcaster_request, "{\"host\":\"h\"}", NULL, "", "broadcaster"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_in(&rows[i]);
}

static void test_areal_in(void **state)
{
    static const struct in_row rows[] = {
        {areal_pause_request, "{}", "{\"mode\":\"abort\"}", NULL, NULL},
        {areal_group_request,
         "{\"master_address\":\"[::1]\",\"master_port\":\"5\",\"rank_offset\":1,\"world_size\":2,"
         "\"backend\":\"nccl\",\"group_name\":\"g\"}",
         "{\"master_address\":\"::1\",\"master_port\":5,\"rank_offset\":1,\"world_size\":2,"
         "\"group_name\":\"g\",\"transport\":\"nccl\"}",
         NULL, NULL},
        {sglang_disk_request, "{\"model_path\":\"/d\",\"weight_version\":\"v\"}",
         "{\"path\":\"/d\",\"weight_version\":\"v\"}", "/areal_update_weights", NULL},
        {areal_lora_request, "{\"lora_model_path\":\"/l\",\"lora_name\":\"a\",\"lora_int_id\":1}",
         "{\"lora_name\":\"a\",\"lora_path\":\"/l\",\"load_inplace\":true}", NULL, NULL},
        {areal_lora_tensors_request,
         "{\"names\":[\"x.lora_A.default.weight\",\"y\"],\"dtypes\":[\"bfloat16\",\"bfloat16\"],"
         "\"shapes\":[[1],[2]],\"group_name\":\"g\",\"lora_name\":\"a\",\"lora_rank\":8,\"lora_"
         "alpha\":16,"
         "\"lora_bias\":\"none\",\"lora_target_modules\":[\"q_proj\"],\"lora_int_id\":1}",
         "{\"names\":[\"x.lora_A.weight\",\"y\"],\"dtypes\":[\"bfloat16\",\"bfloat16\"],"
         "\"shapes\":[[1],[2]],\"group_name\":\"g\",\"lora_name\":\"a\",\"load_inplace\":true,"
         "\"transport\":\"nccl\",\"adapter_config\":{\"r\":8,\"lora_alpha\":16,\"bias\":\"none\","
         "\"target_modules\":[\"q_proj\"],\"peft_type\":\"LORA\"}}",
         NULL, NULL},
        {areal_lora_tensors_request,
         "{\"names\":[\"x\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"lora_name\":\"a\"}",
         "{\"names\":[\"x\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"lora_name\":\"a\","
         "\"load_inplace\":true,\"transport\":\"nccl\",\"adapter_config\":{\"peft_type\":\"LORA\"}"
         "}",
         NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_in(&rows[i]);
}

static void test_life_in(void **state)
{
    static const struct in_row rows[] = {
        {sglang_pause_request, "{}", "{\"mode\":\"abort\"}", NULL, NULL},
        {sglang_pause_request, "{\"mode\":\"retract\",\"lease_s\":1}", "{\"mode\":\"keep\"}", NULL,
         NULL},
        {sglang_pause_request, "{\"mode\":\"in_place\"}", "{\"mode\":\"keep\"}", NULL, NULL},
        {sglang_pause_request, "{\"mode\":\"keep\"}", NULL, "/mode", "'keep'"},
        {sglang_release_request, "{\"tags\":[\"weights\"]}", "{\"tags\":[\"weights\"],\"level\":2}",
         NULL, NULL},
        {sglang_release_request, "{\"tags\":null}", "{\"level\":2}", NULL, NULL},
        {dialect_request_plain, "{\"tags\":[\"kv_cache\"],\"level\":1}",
         "{\"tags\":[\"kv_cache\"]}", "/resume_memory_occupation", NULL},
        {sglang_abort_request, "{\"rid\":\"r\",\"abort_message\":\"m\"}",
         "{\"request_ids\":[\"r\"]}", NULL, NULL},
        {sglang_abort_request, "{\"rid\":\"r\",\"abort_all\":true}", "{\"all\":true}", NULL, NULL},
        {sglang_abort_request, "{}", NULL, "/rid", "abort_all"},
        {sglang_lora_request, "{\"lora_name\":\"a\",\"lora_path\":\"/p\",\"lora_id\":\"5\"}",
         "{\"lora_name\":\"a\",\"lora_path\":\"/p\",\"load_inplace\":true}", NULL, NULL},
        {sglang_lora_request, "{\"lora_name\":\"a\",\"lora_path\":\"/p\",\"pinned\":true}",
         "{\"lora_name\":\"a\",\"lora_path\":\"/"
         "p\",\"pinned\":true,\"load_inplace\":true}",
         NULL, NULL},
        {sglang_lora_request, "{\"lora_name\":\"a\"}", NULL, "/lora_path", "required"},
        {dialect_request_plain, "{\"lora_name\":\"a\",\"lora_int_id\":\"x\"}",
         "{\"lora_name\":\"a\"}", "/unload_lora_adapter", NULL},
        {sglang_lora_tensors_request, "{}", NULL, "", "pickled"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_in(&rows[i]);
}

static void test_outs(void **state)
{
    static const struct {
        sglang_response *out;
        const char *native, *theirs;
    } rows[] = {
        {sglang_group_response, "{\"state\":\"joining\",\"world_size\":2,\"group_name\":\"g\"}",
         "{\"success\":true,\"message\":\"group 'g' of 2 ranks: joining\"}"},
        {sglang_leave_response, "{\"state\":\"none\"}",
         "{\"success\":true,\"message\":\"no group is joined\"}"},
        {sglang_disk_response, "{\"phase\":\"committed\",\"weight_version\":\"v\"}",
         "{\"success\":true,\"message\":\"the weights are served. Weight version updated to v.\","
         "\"num_paused_requests\":0}"},
        {sglang_checker_response, "{\"checksums\":{\"a\":\"00\"}}",
         "{\"success\":true,\"message\":\"checksums of the served weights\","
         "\"payload\":{\"checksums\":{\"a\":\"00\"}}}"},
        {sglang_label_response, "{\"weight_version\":\"v\",\"serial\":2}",
         "{\"success\":true,\"message\":\"the served weights have that "
         "version\",\"new_version\":\"v\"}"},
        {sglang_flush_response, "{\"reset\":true,\"message\":\"m\"}",
         "{\"success\":true,\"message\":\"m\"}"},
        {sglang_lora_response, "{\"revision\":1,\"loaded_adapters\":{\"a\":null}}",
         "{\"status\":\"ok\",\"success\":true,\"error_message\":null,"
         "\"loaded_adapters\":{\"a\":null}}"},
        {sglang_version_response, "{\"weights\":{\"weight_version\":\"v\"}}",
         "{\"weight_version\":\"v\"}"},
        {sglang_version_response, "{\"weights\":{\"weight_version\":null}}",
         "{\"weight_version\":\"default\"}"},
        {sglang_model_response, "{\"engine\":null,\"model\":null}",
         "{\"model_path\":\"\",\"served_model_name\":\"\",\"tokenizer_path\":\"\","
         "\"is_generation\":false,\"preferred_sampling_params\":null,"
         "\"weight_version\":\"default\",\"load_format\":\"auto\",\"reasoning_parser\":null,"
         "\"tool_call_parser\":null,\"disaggregation_mode\":\"null\","
         "\"has_image_understanding\":false,\"has_audio_understanding\":false}"},
        {sglang_load_response, "{\"admission\":{\"generate\":{\"running\":2,\"waiting\":1}}}",
         "[{\"dp_rank\":0,\"num_running_reqs\":2,\"num_waiting_reqs\":1,\"num_reqs\":3,"
         "\"num_total_reqs\":3,\"num_tokens\":null,\"num_used_tokens\":null,"
         "\"max_total_num_tokens\":null,\"token_usage\":null}]"},
    };
    static const struct http_request x = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *reply = read_json(rows[i].native);

        assert_int_equal(rows[i].out(&reply, &x), 0);
        assert_json(reply, rows[i].theirs);
        json_decref(reply);
    }
}

/* A bucket that is not the last is a success that does not say that anything is served. */
static void test_update_out_tells_what_is_served(void **state)
{
    static const struct http_request x = {0};
    json_t *reply = read_json("{\"phase\":\"receiving\",\"weight_version\":\"v\","
                              "\"n_tensors_done\":3,\"n_tensors_total\":5}");
    const char *message;

    (void)state;
    assert_int_equal(sglang_update_response(&reply, &x), 0);
    message = json_string_value(json_object_get(reply, "message"));
    assert_non_null(strstr(message, "3 of 5"));
    assert_null(strstr(message, "updated"));
    json_decref(reply);
}

/* Without GPUs it counts as one rank, and has none. */
static void test_server_out_counts_ranks(void **state)
{
    char host[] = "engine:8700";
    const struct http_request x = {.host = host};
    static const struct {
        const char *ranks;
        int tp_size, num_gpus, base_gpu_id;
    } rows[] = {{"[]", 1, 0, 0},
                {"[{},{}]", 2, 2, 0},
                {"[{\"place\":\"cpu\"}]", 1, 1, 0},
                {"[{\"place\":\"cuda:3\"},{\"place\":\"cuda:4\"}]", 2, 2, 3}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *status = json_pack("{s:{s:o}, s:s, s:s}", "cuda", "ranks", read_json(rows[i].ranks),
                                   "version", "1", "boot_id", "b");

        assert_int_equal(sglang_server_response(&status, &x), 0);
        assert_int_equal(json_integer_value(json_object_get(status, "tp_size")), rows[i].tp_size);
        assert_int_equal(json_integer_value(json_object_get(status, "num_gpus")), rows[i].num_gpus);
        assert_int_equal(json_integer_value(json_object_get(status, "base_gpu_id")),
                         rows[i].base_gpu_id);
        json_decref(status);
    }
}

/* Miles compares it with the address in its own arguments. */
static void test_server_out_has_the_address_of_the_request(void **state)
{
    static const struct {
        const char *header, *host;
        int port; /* 0: null */
    } rows[] = {{"127.0.0.1:8700", "127.0.0.1", 8700},
                {"[::1]:81", "[::1]", 81},
                {"[::1]", "[::1]", 0},
                {"engine", "engine", 0},
                {"engine:", "engine", 0},
                {"", "", 0}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct http_request x = {.host = strdup(rows[i].header)};
        json_t *status = json_pack("{s:s, s:s}", "version", "1", "boot_id", "b");

        assert_int_equal(sglang_server_response(&status, &x), 0);
        assert_string_equal(json_string_value(json_object_get(status, "host")), rows[i].host);
        assert_int_equal(json_integer_value(json_object_get(status, "port")), rows[i].port);
        json_decref(status);
        free(x.host);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_in),
        cmocka_unit_test(test_updates_in),
        cmocka_unit_test(test_areal_in),
        cmocka_unit_test(test_life_in),
        cmocka_unit_test(test_outs),
        cmocka_unit_test(test_update_out_tells_what_is_served),
        cmocka_unit_test(test_server_out_counts_ranks),
        cmocka_unit_test(test_server_out_has_the_address_of_the_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
