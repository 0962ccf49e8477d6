/* SkyRL's words in ours, and ours in SkyRL's: row by row, without a server. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/compat/skyrl/dialect_skyrl.h"
#include "handlers/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char typed_json[] = "application/json";
static const unsigned skyrl = 1U << DIALECT_NATIVE | 1U << DIALECT_SKYRL;

struct in_row {
    const char *path, *body;
    const char *ours;        /* NULL: refused, */
    const char *field, *why; /* here, with these words */
};

static void check_in(const struct in_row *row)
{
    struct http_request x = {.method = METHOD_POST,
                             .path = (char *)(uintptr_t)row->path,
                             .body = (char *)(uintptr_t)row->body,
                             .body_len = strlen(row->body),
                             .content_type = typed_json};
    struct err e = {0};
    size_t at = 0;
    const struct route *first = route_find(row->path, METHOD_POST, skyrl, &at, &e), *route;
    json_t *body = NULL;
    char *text;
    int rc;

    assert_non_null(first);
    route = route_match_body(first, METHOD_POST, skyrl, row->body, x.body_len);
    x.route = route;
    rc = body_parse(&body, &x, route, &e);
    if (row->ours == NULL) {
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, row->field);
        if (strstr(e.msg, row->why) == NULL)
            fail_msg("'%s' is not in '%s'", row->why, e.msg);
        return;
    }
    if (rc != 0)
        fail_msg("%s %s: %s %s", row->path, row->body, e.field, e.msg);
    text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, row->ours);
    free(text);
    json_decref(body);
}

static void check_all(const struct in_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_in(&rows[i]);
}
#define CHECK_ALL(rows) check_all(rows, sizeof rows / sizeof rows[0])

#define RPC(method)              "{\"method\": \"" method "\"}"
#define RPC_WITH(method, kwargs) "{\"method\": \"" method "\", \"kwargs\": " kwargs "}"
#define LISTS                    "\"names\": [\"a\"], \"dtype_names\": [\"bfloat16\"], " SHAPES
#define SHAPES                   "\"shapes\": [[2]]"
#define OUR_LISTS                "\"dtype_names\":[\"bfloat16\"],\"names\":[\"a\"]"

static void test_rpc_brackets(void **state)
{
    static const char path[] = "/collective_rpc";
    static const struct in_row rows[] = {
        {path, RPC_WITH("skyrl_start_weight_update", "{\"is_checkpoint_format\": true}"),
         "{\"lease_s\":600}", NULL, NULL},
        {path, RPC("skyrl_start_weight_update"), "{\"lease_s\":600}", NULL, NULL},
        {path, RPC_WITH("skyrl_start_weight_update", "{\"is_checkpoint_format\": false}"), NULL,
         "/kwargs/is_checkpoint_format", "checkpoint"},
        {path, RPC("skyrl_finish_weight_update"), "{}", NULL, NULL},
        {path, RPC_WITH("skyrl_finish_weight_update", "{\"weight_version\": \"7\"}"),
         "{\"weight_version\":\"7\"}", NULL, NULL},
        {path, RPC_WITH("skyrl_sleep_for_weight_sync", "{\"offload_kv\": true}"),
         "{\"level\":2,\"tags\":[\"weights\"]}", NULL, NULL},
        {path, RPC_WITH("skyrl_sleep_for_weight_sync", "{\"offload_kv\": false}"),
         "{\"level\":2,\"tags\":[\"weights\",\"kv_cache\"]}", NULL, NULL},
        {path, RPC_WITH("skyrl_wake_for_weight_sync", "{\"tags\": [\"kv_cache\"]}"),
         "{\"tags\":[\"kv_cache\"]}", NULL, NULL},
        {path, RPC_WITH("skyrl_finish_weight_update", "{\"tags\": [\"kv_cache\"]}"), "{}", NULL,
         NULL},
        {path, RPC_WITH("skyrl_wake_for_weight_sync", "{\"weight_version\": \"7\"}"), "{}", NULL,
         NULL},
        {path, "{\"method\": \"skyrl_finish_weight_update\", \"args\": [1]}", NULL, "/args",
         "position"},
        {path, "{\"method\": \"skyrl_finish_weight_update\", \"kwargs\": 5}", NULL, "/kwargs",
         "object"},
        {path,
         "{\"method\": \"update_weights_from_ipc\", \"args\": [{\"GPU-0\": \"ipc://@a\"}], "
         "\"timeout\": 300.0}",
         "{\"timeout_ms\":300000,\"zmq_handles\":{\"GPU-0\":\"ipc://@a\"}}", NULL, NULL},
        {path, RPC_WITH("update_weights_from_ipc", "{\"zmq_handles\": {}}"), "{\"zmq_handles\":{}}",
         NULL, NULL},
        {path, RPC("update_weights_from_ipc"), NULL, "/args", "one argument"},
        {path, "{\"method\": \"update_weights_from_ipc\", \"args\": [{}, {}]}", NULL, "/args",
         "one argument"},
        {path,
         "{\"method\": \"update_weights_from_ipc\", \"args\": [{}], "
         "\"kwargs\": {\"zmq_handles\": {}}}",
         NULL, "/args", "one argument"},
        {path, "{\"method\": \"update_weights_from_ipc\", \"args\": [{}], \"timeout\": -1}", NULL,
         "/timeout", "number"},
        {path, "{\"kwargs\": {\"method\": \"update_weights_ipc\"}}", NULL, "/method", "required"},
        {path, "", NULL, "", "empty"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_rpc_updates(void **state)
{
    static const char path[] = "/collective_rpc";
    static const struct in_row rows[] = {
        {path, RPC_WITH("update_weights_nccl", "{\"update_info\": {" LISTS ", \"packed\": true}}"),
         "{" OUR_LISTS ",\"packed\":true,\"shapes\":[[2]],\"transport\":\"nccl\"}", NULL, NULL},
        {path,
         RPC_WITH("update_weights_nccl", "{\"update_info\": {" LISTS ", \"packed\": true, "
                                         "\"packed_buffer_size_bytes\": 5, "
                                         "\"packed_num_buffers\": 2}}"),
         "{" OUR_LISTS ",\"packed\":true,\"packed_buffer_size_bytes\":5,\"shapes\":[[2]],"
         "\"transport\":\"nccl\"}",
         NULL, NULL},
        /* Without packed there are no buffers. */
        {path,
         RPC_WITH("update_weights_nccl",
                  "{\"update_info\": {" LISTS ", \"packed_buffer_size_bytes\": 5}}"),
         "{" OUR_LISTS ",\"shapes\":[[2]],\"transport\":\"nccl\"}", NULL, NULL},
        {path,
         RPC_WITH("update_weights_ipc", "{\"update_info\": {" LISTS ", \"sizes\": [2], "
                                        "\"ipc_handles_pickled\": \"gAQ=\"}}"),
         "{\"dtype_names\":[\"bfloat16\"],\"ipc_handles_pickled\":\"gAQ=\",\"names\":[\"a\"],"
         "\"shapes\":[[2]],\"sizes\":[2]}",
         NULL, NULL},
        {path, RPC("update_weights_ipc"), NULL, "/kwargs", "required"},
        {path, RPC_WITH("update_weights_ipc", "{}"), NULL, "/kwargs/update_info", "required"},
        {path, RPC_WITH("update_weights_nccl", "{\"update_info\": 5}"), NULL, "/kwargs/update_info",
         "object"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_own_routes(void **state)
{
    static const char lora[] = "/skyrl/v1/load_lora_adapter", generate[] = "/skyrl/v1/generate";
    static const struct in_row rows[] = {
        {lora, "{\"lora_name\": \"n\", \"lora_path\": \"/p\", \"other\": 1}",
         "{\"load_inplace\":true,\"lora_name\":\"n\",\"lora_path\":\"/p\"}", NULL, NULL},
        {lora, "{\"lora_name\": \"n\"}", NULL, "/lora_path", "required"},
        {lora, "{\"lora_path\": \"/p\"}", NULL, "/lora_name", "required"},
        {generate, "{\"token_ids\": [1], \"stream\": true}",
         "{\"return_routed_experts\":true,\"sampling_params\":{},\"token_ids\":[1]}", NULL, NULL},
        {generate,
         "{\"token_ids\": [1], \"sampling_params\": {\"n\": 1}, \"model\": \"m\", \"features\": "
         "null, \"cache_salt\": \"s\"}",
         "{\"cache_salt\":\"s\",\"model\":\"m\",\"return_routed_experts\":true,\"sampling_params\":"
         "{\"n\":1},\"token_ids\":[1]}",
         NULL, NULL},
        {generate, "{\"token_ids\": [1], \"sampling_params\": {\"n\": 2}}", NULL,
         "/sampling_params/n", "exactly one"},
        {"/fetch_weights", "{\"target_version\": 3}", NULL, "/sync_dir", "delta"},
        {"/fetch_weights", "{\"target_version\": 3, \"sync_dir\": \"/d/\"}",
         "{\"form\":\"skyrl\",\"name\":\"/d\",\"source\":\"/d\",\"version\":3}", NULL, NULL},
        {"/fetch_weights", "{\"target_version\": 3, \"uri\": \"/d/delta-00000003\"}",
         "{\"form\":\"skyrl\",\"name\":\"/d\",\"source\":\"/d\",\"version\":3}", NULL, NULL},
        {"/fetch_weights",
         "{\"target_version\": 3, \"sync_dir\": \"/d\", \"uri\": \"/d/delta-00000002\"}", NULL,
         "/uri", "delta-00000003"},
        {"/fetch_weights", "{\"target_version\": 3, \"uri\": \"x\"}", NULL, "/uri",
         "delta-00000003"},
        {"/fetch_weights", "{}", NULL, "/target_version", "required"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void assert_out(int (*out)(json_t **, const struct http_request *), struct app *app,
                       const char *ours, const char *theirs)
{
    struct http_request x = {.app = app};
    json_t *reply = json_loads(ours, 0, NULL);
    char *text;

    assert_int_equal(out(&reply, &x), 0);
    text = json_dumps(reply, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, theirs);
    free(text);
    json_decref(reply);
}

static void test_ways_out(void **state)
{
    struct app_weights weights = {.n_devices = 0};
    struct app app = {.weights = &weights};

    (void)state;
    assert_out(skyrl_results_response, &app, "{\"phase\": \"open\"}", "{\"results\":[null]}");
    app.weights->n_devices = 3;
    assert_out(skyrl_results_response, &app, "{}", "{\"results\":[null,null,null]}");
}

static json_int_t number_of(const char *name)
{
    struct http_request x = {0};
    json_t *reply = json_pack("{s:s, s:s, s:i}", "status", "ok", "lora_name", name, "revision", 4);
    json_int_t number;

    assert_int_equal(skyrl_lora_response(&reply, &x), 0);
    assert_int_equal(json_object_size(reply), 3);
    number = json_integer_value(json_object_get(reply, "lora_int_id"));
    json_decref(reply);
    return number;
}

static void test_lora_out_numbers_names(void **state)
{
    static const char *const names[] = {"skyrl-lora", "skyrl-lorb", "a",      "b",
                                        "aa",         "model-1",    "model-2"};
    enum { N = sizeof names / sizeof names[0] };

    (void)state;
    for (size_t i = 0; i < N; i++) {
        assert_true(number_of(names[i]) > 0 && number_of(names[i]) < (json_int_t)1 << 48);
        for (size_t k = 0; k <= i; k++)
            assert_int_equal(number_of(names[i]) == number_of(names[k]), i == k);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_brackets),
        cmocka_unit_test(test_rpc_updates),
        cmocka_unit_test(test_own_routes),
        cmocka_unit_test(test_ways_out),
        cmocka_unit_test(test_lora_out_numbers_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
