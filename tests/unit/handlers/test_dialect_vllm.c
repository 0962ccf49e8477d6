/* vLLM's words in ours, and ours in vLLM's: row by row, without a server. */
#include "handlers/body.h"
#include "handlers/dialect.h"
#include "handlers/reply.h"
#include "handlers/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { QUERY_MAX = 4 };

static char typed_json[] = "application/json";
static const unsigned vllm = 1U << DIALECT_NATIVE | 1U << DIALECT_VLLM;

struct in_row {
    const char *path;
    struct http_request_param query[QUERY_MAX]; /* ended by a name that is NULL */
    const char *body;
    const char *ours;  /* NULL: refused, */
    const char *field; /* here, */
    const char *why;   /* with these words */
};

#define P(name, value)                                                                             \
    {                                                                                              \
        (char[]){name}, (char[])                                                                   \
        {                                                                                          \
            value                                                                                  \
        }                                                                                          \
    }

static const struct route *row_for(struct http_request *x, const char *path, const char *body)
{
    struct err e = {0};
    size_t at = 0;
    const struct route *first = route_find(path, METHOD_POST, vllm, &at, &e);

    assert_non_null(first);
    x->method = METHOD_POST;
    x->path = (char *)(uintptr_t)path;
    x->body = (char *)(uintptr_t)body;
    x->body_len = strlen(body);
    x->content_type = typed_json;
    x->route = route_match_body(first, METHOD_POST, vllm, body, x->body_len);
    return x->route;
}

static void check_in(const struct in_row *row)
{
    struct http_request x = {.query = (struct http_request_param *)(uintptr_t)row->query};
    const struct route *route = row_for(&x, row->path, row->body);
    struct err e = {0};
    json_t *body = NULL;
    char *text;
    int rc;

    while (x.n_query < QUERY_MAX && row->query[x.n_query].name != NULL)
        x.n_query++;
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

static void test_init_weight_transfer_engine(void **state)
{
    static const char path[] = "/init_weight_transfer_engine";
    const struct in_row rows[] = {
        {path, {{0}}, "{\"init_info\":{}}", "{\"transport\":\"ipc\"}", NULL, NULL},
        {path,
         {{0}},
         "{\"init_info\":{\"packed\":true,\"packed_buffer_size_bytes\":9}}",
         "{\"packed\":true,\"transport\":\"ipc\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"init_info\": {\"master_address\": \"10.0.0.1\", \"master_port\": 29500, "
         "\"rank_offset\": 1, \"world_size\": 3, \"some_new_key\": null}}",
         "{\"master_address\":\"10.0.0.1\",\"master_port\":29500,\"rank_offset\":1,"
         "\"transport\":\"nccl\",\"world_size\":3}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"init_info\": {\"world_size\": 3, \"some_new_key\": 1}}",
         NULL,
         "/init_info/some_new_key",
         "some_new_key"},
        {path,
         {{0}},
         "{\"init_info\": {\"world_size\": 2, \"packed\": true, \"packed_num_buffers\": 2, "
         "\"packed_buffer_size_bytes\": 4096}}",
         "{\"packed\":true,\"packed_buffer_size_bytes\":4096,\"packed_num_buffers\":2,"
         "\"transport\":\"nccl\",\"world_size\":2}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"init_info\": {\"world_size\": 2, \"packed\": false, \"packed_num_buffers\": 2, "
         "\"packed_buffer_size_bytes\": 4096}}",
         "{\"packed\":false,\"transport\":\"nccl\",\"world_size\":2}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"init_info\": {\"world_size\": 2, \"packed\": 1}}",
         NULL,
         "/init_info/packed",
         "integer"},
        {path,
         {{0}},
         "{\"init_info\": {\"world_size\": 2, \"nccl_unique_id_b64\": \"AA==\"}}",
         "{\"nccl_unique_id\":\"AA==\",\"transport\":\"nccl\",\"world_size\":2}",
         NULL,
         NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_init_refuses(void **state)
{
    static const char path[] = "/init_weight_transfer_engine";
    const struct in_row rows[] = {
        /* What is missing is the native route's to say. */
        {path,
         {{0}},
         "{\"init_info\":{\"world_size\":2}}",
         "{\"transport\":\"nccl\",\"world_size\":2}",
         NULL,
         NULL},
        {path, {{0}}, "{}", NULL, "/init_info", "required"},
        {path, {{0}}, "", NULL, "/init_info", "required"},
        {path, {{0}}, "{\"init_info\":null}", NULL, "/init_info", "required"},
        {path, {{0}}, "{\"init_info\":[]}", NULL, "/init_info", "object"},
        {path,
         {{0}},
         "{\"init_info\":{\"base_model_path\":\"/m\"}}",
         NULL,
         "/init_info/base_model_path",
         "deltas"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_start_and_finish(void **state)
{
    static const char start[] = "/start_weight_update", finish[] = "/finish_weight_update";
    static const char draft[] = "/start_draft_weight_update";
    static const char open[] = "{\"lease_s\":600}";
    const struct in_row rows[] = {
        {start, {{0}}, "", open, NULL, NULL},
        {start, {{0}}, "{}", open, NULL, NULL},
        {start, {{0}}, "{\"is_checkpoint_format\": true}", open, NULL, NULL},
        {start, {{0}}, "{\"is_checkpoint_format\": false}", open, NULL, NULL},
        {start, {{0}}, "{\"include_draft\": false, \"unheard_of\": 1}", open, NULL, NULL},
        {start, {{0}}, "{\"include_draft\": true}", NULL, "/include_draft", "drafter"},
        {start, {{0}}, "{\"is_checkpoint_format\": 3}", NULL, "/is_checkpoint_format", "integer"},
        {draft, {{0}}, "", NULL, "", "drafter"},
        {finish, {{0}}, "", "{}", NULL, NULL},
        {finish, {{0}}, "{}", "{}", NULL, NULL},
        {finish, {{0}}, "{\"weight_version\":null}", "{}", NULL, NULL},
        {finish, {{0}}, "{\"weight_version\":\"s1\"}", "{\"weight_version\":\"s1\"}", NULL, NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_update_weights(void **state)
{
    static const char path[] = "/update_weights";
#define COLUMNS "\"dtype_names\":[\"bfloat16\"],\"names\":[\"a\"]"
#define SHAPES  ",\"shapes\":[[2]]"
    const struct in_row rows[] = {
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES "}}",
         "{" COLUMNS SHAPES ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"packed\":true,"
         "\"packed_buffer_size_bytes\":4096,\"packed_num_buffers\":2}}",
         "{" COLUMNS ",\"packed\":true,\"packed_buffer_size_bytes\":4096" SHAPES
         ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"packed\":false,"
         "\"packed_buffer_size_bytes\":1073741824,\"packed_num_buffers\":2}}",
         "{" COLUMNS ",\"packed\":false" SHAPES ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"packed\":1}}",
         NULL,
         "/update_info/packed",
         "integer"},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"ipc_handles_pickled\":\"gA==\"}}",
         "{\"dtype_names\":[\"bfloat16\"],\"ipc_handles_pickled\":\"gA==\",\"names\":[\"a\"]" SHAPES
         "}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"ipc_handles_pickled\":\"gA==\",\"packed\":true,"
         "\"tensor_sizes\":[4],\"sizes\":null,\"more\":null}}",
         "{\"dtype_names\":[\"bfloat16\"],\"ipc_handles_pickled\":\"gA==\",\"names\":[\"a\"],"
         "\"packed\":true" SHAPES ",\"tensor_sizes\":[4]}",
         NULL,
         NULL},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_update_weights_of_each_rank(void **state)
{
    static const char path[] = "/update_weights";
    const struct in_row rows[] = {
        {path,
         {{0}},
         "{\"update_info\":[{" COLUMNS SHAPES "},{" COLUMNS SHAPES "}]}",
         "{" COLUMNS SHAPES ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":[{" COLUMNS SHAPES "},{" COLUMNS ",\"shapes\":[[3]]}]}",
         NULL,
         "/update_info/0",
         "the same broadcasts"},
        {path,
         {{0}},
         "{\"update_info\":[{" COLUMNS SHAPES ",\"ipc_handles_pickled\":\"gA==\"},"
         "{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"ipc_handles_pickled\":\"gB==\"},"
         "{" COLUMNS SHAPES ",\"ipc_handles_pickled\":\"gC==\",\"update_kind\":\"dense\"}]}",
         "{\"buckets\":[{\"dtype_names\":[\"bfloat16\"],\"ipc_handles_pickled\":\"gA==\","
         "\"names\":[\"a\"],\"rank\":0" SHAPES "},null,{\"dtype_names\":[\"bfloat16\"],"
         "\"ipc_handles_pickled\":\"gC==\",\"names\":[\"a\"],\"rank\":2" SHAPES "}]}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":[{" COLUMNS SHAPES ",\"ipc_handles_pickled\":\"gA==\"},{" COLUMNS SHAPES
         ",\"ipc_handles_pickled\":\"gC==\",\"num_updates_list\":[1]}]}",
         NULL,
         "/update_info/1/num_updates_list",
         "sparse"},
        {path, {{0}}, "{\"update_info\":[]}", NULL, "/update_info", "0 entries"},
        {path, {{0}}, "{\"update_info\":[7]}", NULL, "/update_info/0", "object"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_update_weights_of_all_ages(void **state)
{
    static const char path[] = "/update_weights";
    const struct in_row rows[] = {
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"metadata_by_gpu\":{},\"ipc_handles_pickled\":"
         "\"gA==\"}}",
         "{\"dtype_names\":[\"bfloat16\"],\"ipc_handles_pickled\":\"gA==\",\"metadata_by_gpu\":{},"
         "\"names\":[\"a\"]" SHAPES "}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"metadata_by_gpu\":{}}}",
         NULL,
         "/update_info/metadata_by_gpu",
         "metadata_by_gpu"},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"num_updates_list\":[1]}}",
         "{" COLUMNS ",\"num_updates_list\":[1]" SHAPES ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"num_updates_list\":[]}"
         "}",
         "{\"dtype_names\":[],\"names\":[],\"num_updates_list\":[],\"shapes\":[],\"transport\":"
         "\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES
         ",\"num_updates_list\":[1],\"ipc_handles_pickled\":\"gA==\"}}",
         NULL,
         "/update_info/num_updates_list",
         "num_updates_list"},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"update_kind\":\"dense\",\"num_updates_list\":"
         "null,\"is_checkpoint_format\":true}}",
         "{" COLUMNS SHAPES ",\"transport\":\"nccl\"}",
         NULL,
         NULL},
        {path,
         {{0}},
         "{\"update_info\":{" COLUMNS SHAPES ",\"update_kind\":\"sparse_flat\"}}",
         NULL,
         "/update_info/update_kind",
         "sparse"},
        {path, {{0}}, "{\"update_info\":null}", NULL, "/update_info", "required"},
        {path, {{0}}, "{\"update_info\":7}", NULL, "/update_info", "object"},
        {path,
         {{0}},
         "{\"update_info\":{\"target_version\":4}}",
         NULL,
         "/update_info/target_version",
         "deltas"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_versions_and_sums(void **state)
{
    static const char label[] = "/update_weight_version", checker[] = "/weight_checker";
    const struct in_row rows[] = {
        {label,
         {{0}},
         "{\"new_version\":\"s2\",\"abort_all_requests\":true}",
         "{\"weight_version\":\"s2\"}",
         NULL,
         NULL},
        {label, {{0}}, "{}", "{}", NULL, NULL}, /* the native route requires it */
        {checker, {{0}}, "{\"action\":\"checksum\"}", "{\"action\":\"checksum\"}", NULL, NULL},
        {checker,
         {{0}},
         "{\"action\":\"checksum\",\"baseline\":{}}",
         "{\"action\":\"checksum\"}",
         NULL,
         NULL},
        {checker,
         {{0}},
         "{\"action\":\"compare\",\"baseline\":{\"a\":\"00\"}}",
         "{\"action\":\"compare\",\"baseline\":{\"a\":\"00\"}}",
         NULL,
         NULL},
        {checker,
         {{0}},
         "{\"action\":\"reset\"}",
         "{\"level\":2,\"tags\":[\"weights\"]}",
         NULL,
         NULL},
        {checker, {{0}}, "{\"action\":5}", NULL, "/action", "string"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static void test_generation(void **state)
{
    static const char pause[] = "/pause", sleep[] = "/sleep", wake[] = "/wake_up";
    static const char abort_all[] = "{\"all\":true}", abort_path[] = "/abort_requests";
    static const char some[] = "/inference/v1/abort_requests";
    const struct in_row rows[] = {
        {pause, {{0}}, "", "{\"mode\":\"abort\"}", NULL, NULL},
        {pause,
         {P("mode", "keep"), P("clear_cache", "false")},
         "",
         "{\"mode\":\"keep\"}",
         NULL,
         NULL},
        {pause, {P("wait_for_inflight_requests", "true")}, "", "{\"mode\":\"wait\"}", NULL, NULL},
        {pause, {P("wait_for_inflight_requests", "false")}, "", "{\"mode\":\"abort\"}", NULL, NULL},
        {sleep, {{0}}, "", "{\"level\":1}", NULL, NULL},
        {sleep, {P("level", "2")}, "", "{\"level\":2}", NULL, NULL},
        {sleep,
         {P("level", "2"), P("mode", "abort"), P("tags", "weights"), P("tags", "kv_cache")},
         "",
         "{\"level\":2,\"tags\":[\"weights\",\"kv_cache\"]}",
         NULL,
         NULL},
        {sleep, {{0}}, "{\"level\":2}", "{\"level\":2}", NULL, NULL},
        {sleep, {P("level", "0")}, "", NULL, "/level", "/pause"},
        {sleep, {P("level", "x")}, "", NULL, "/level", "x"},
        {sleep, {P("mode", "keep")}, "", NULL, "/mode", "/pause?mode=keep"},
        {wake, {{0}}, "", "{}", NULL, NULL},
        {wake, {P("tags", "weights")}, "", "{\"tags\":[\"weights\"]}", NULL, NULL},
        {wake,
         {P("tags", "weights"), P("tags", "kv_cache")},
         "{}",
         "{\"tags\":[\"weights\",\"kv_cache\"]}",
         NULL,
         NULL},
        {wake, {{0}}, "{\"tags\":[\"kv_cache\"]}", "{\"tags\":[\"kv_cache\"]}", NULL, NULL},
        {wake, {{0}}, "{\"tags\":\"weights\"}", "{\"tags\":[\"weights\"]}", NULL, NULL},
        {wake, {{0}}, "{\"tags\":1}", "{}", NULL, NULL},
        {wake, {{0}}, "{\"tags\":null}", "{\"tags\":null}", NULL, NULL},
        {"/reset_prefix_cache",
         {{0}},
         "{\"reset_external\":5}",
         NULL,
         "/reset_external",
         "boolean"},
        {"/reset_prefix_cache",
         {{0}},
         "{\"reset_external\":true}",
         "{\"external\":true,\"running\":false}",
         NULL,
         NULL},
        {"/reset_prefix_cache",
         {P("reset_external", "perhaps")},
         "",
         NULL,
         "/reset_external",
         "perhaps"},
        {abort_path, {{0}}, "", abort_all, NULL, NULL},
        {abort_path, {{0}}, "{}", abort_all, NULL, NULL},
        {abort_path, {{0}}, "{\"request_ids\":null}", abort_all, NULL, NULL},
        {abort_path, {{0}}, "{\"request_ids\":[]}", abort_all, NULL, NULL},
        {abort_path, {{0}}, "{\"request_ids\":[\"a\"]}", "{\"request_ids\":[\"a\"]}", NULL, NULL},
        {some, {{0}}, "{\"request_ids\":[\"a\"]}", "{\"request_ids\":[\"a\"]}", NULL, NULL},
        {some, {{0}}, "{\"request_ids\":[]}", "{\"request_ids\":[]}", NULL, NULL},
        {some, {{0}}, "{\"request_ids\":null}", NULL, "/request_ids", "required"},
        {some, {{0}}, "", NULL, "/request_ids", "required"},
    };

    (void)state;
    CHECK_ALL(rows);
}

static const struct {
    const char *path, *body, *native, *theirs;
    enum http_request_method method;
} outs[] = {
    {"/init_weight_transfer_engine", "", "{\"state\":\"joined\"}",
     "{\"message\":\"Weight transfer initialized\"}", METHOD_POST},
    {"/start_weight_update", "", "{\"update_id\":\"x\"}", "{\"message\":\"Weight update started\"}",
     METHOD_POST},
    {"/update_weights", "{\"update_info\":{}}", "{\"phase\":\"open\"}",
     "{\"message\":\"Weights updated\"}", METHOD_POST},
    {"/finish_weight_update", "", "{\"phase\":\"committed\"}",
     "{\"message\":\"Weight update finished\"}", METHOD_POST},
    {"/update_weight_version", "", "{\"weight_version\":\"s2\",\"serial\":3}",
     "{\"new_version\":\"s2\",\"success\":true}", METHOD_POST},
    {"/weight_checker", "{\"action\":\"reset\"}", "{\"asleep\":true}", "{\"status\":\"reset\"}",
     METHOD_POST},
    {"/weight_checker", "{\"action\":\"checksum\"}", "{\"checksums\":{\"a\":\"00\"}}",
     "{\"checksums\":{\"a\":\"00\"}}", METHOD_POST},
    {"/pause", "", "{\"paused\":true}", "{\"status\":\"paused\"}", METHOD_POST},
    {"/resume", "", "{\"paused\":false}", "{\"status\":\"resumed\"}", METHOD_POST},
    {"/sleep", "", "{\"asleep\":true,\"level\":2}", "{\"status\":\"sleeping\",\"level\":2}",
     METHOD_POST},
    {"/release_kv_cache_memory", "", "{\"asleep\":true,\"level\":1}",
     "{\"status\":\"kv_cache_released\"}", METHOD_POST},
    {"/wake_up", "", "{\"asleep\":false,\"weights\":\"ready\",\"kv_cache\":\"present\"}",
     "{\"status\":\"awake\",\"tags\":null}", METHOD_POST},
    {"/wake_up", "", "{\"asleep\":true,\"weights\":\"ready\",\"kv_cache\":\"released\"}",
     "{\"status\":\"sleeping\",\"tags\":null}", METHOD_POST},
    {"/wake_up", "", "{\"asleep\":true,\"weights\":\"dropped\",\"kv_cache\":\"present\"}",
     "{\"status\":\"awake\",\"tags\":null}", METHOD_POST},
    {"/reset_prefix_cache", "", "{\"reset\":true}", "{\"success\":true,\"status\":\"ok\"}",
     METHOD_POST},
    {"/shutdown_weight_transfer_engine", "", "{\"state\":\"none\"}",
     "{\"message\":\"Weight transfer shut down\"}", METHOD_POST},
    {"/reset_mm_cache", "", "{\"reset\":true}", "{\"status\":\"ok\"}", METHOD_POST},
    {"/reset_encoder_cache", "", "{\"reset\":true}", "{\"status\":\"ok\"}", METHOD_POST},
    {"/abort_requests", "", "{\"aborted\":4}", "{\"aborted\":4,\"status\":\"aborted\"}",
     METHOD_POST},
    {"/is_paused", "", "{\"pause\":null,\"sleep\":{\"asleep\":false}}", "{\"is_paused\":false}",
     METHOD_GET},
    {"/is_paused", "", "{\"pause\":{},\"sleep\":{\"asleep\":false}}", "{\"is_paused\":true}",
     METHOD_GET},
    {"/is_paused", "", "{\"pause\":null,\"sleep\":{\"weights\":\"asleep\"}}",
     "{\"is_paused\":true}", METHOD_GET},
    {"/is_sleeping", "", "{\"pause\":{},\"sleep\":{\"asleep\":false}}", "{\"is_sleeping\":false}",
     METHOD_GET},
    {"/is_sleeping", "", "{\"sleep\":{\"weights\":\"asleep\",\"kv_cache\":\"present\"}}",
     "{\"is_sleeping\":true}", METHOD_GET},
    {"/is_sleeping", "", "{\"sleep\":{\"weights\":\"ready\",\"kv_cache\":\"released\"}}",
     "{\"is_sleeping\":true}", METHOD_GET},
    {"/is_sleeping", "", "{\"sleep\":{\"weights\":\"dropped\",\"kv_cache\":\"released\"}}",
     "{\"is_sleeping\":true}", METHOD_GET},
    {"/is_sleeping", "",
     "{\"sleep\":{\"asleep\":true,\"weights\":\"dropped\",\"kv_cache\":\"present\"}}",
     "{\"is_sleeping\":false}", METHOD_GET},
    {"/load", "", "{\"admission\":{\"generate\":{\"running\":2,\"waiting\":3}}}",
     "{\"server_load\":5}", METHOD_GET},
    {"/get_world_size", "", "{\"cuda\":{\"ranks\":[]}}", "{\"world_size\":1}", METHOD_GET},
    {"/get_world_size", "", "{\"cuda\":{\"ranks\":[{},{}]}}", "{\"world_size\":2}", METHOD_GET},
    {"/weight_info", "", "{\"weights\":{\"weight_version\":\"s1\"}}", "{\"weight_version\":\"s1\"}",
     METHOD_GET},
    {"/weight_info", "", "{\"weights\":{\"weight_version\":null}}", "{\"weight_version\":null}",
     METHOD_GET},
};

static void test_replies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof outs / sizeof outs[0]; i++) {
        struct http_reply reply = {0};
        struct http_request x = {0};
        struct err e = {0};
        size_t at = 0;
        const struct route *first = route_find(outs[i].path, outs[i].method, vllm, &at, &e);
        json_t *found, *wanted = json_loads(outs[i].theirs, 0, NULL);

        assert_non_null(first);
        x.route = route_match_body(first, outs[i].method, vllm, outs[i].body, strlen(outs[i].body));
        assert_true(reply_json_make(&x, 200, json_loads(outs[i].native, 0, NULL), &reply));
        assert_string_equal(reply.content_type, "application/json");
        found = json_loadb(reply.data, reply.len, 0, NULL);
        if (!json_equal(found, wanted))
            fail_msg("%s: %.*s, wanted %s", outs[i].path, (int)reply.len, (const char *)reply.data,
                     outs[i].theirs);
        json_decref(found);
        json_decref(wanted);
        reply.release(reply.release_arg);
    }
}

/* All of the table's errors have vLLM's form, and nothing of it is there when it is off. */
static void test_rows_are_vllm(void **state)
{
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        struct err e = {0};
        size_t at = 0;

        if (routes[i].dialect != DIALECT_VLLM)
            continue;
        n++;
        assert_int_equal(routes[i].form, FORM_OPENAI);
        assert_false(routes[i].strict);
        assert_null(route_find(routes[i].pattern, METHOD_POST, 1U << DIALECT_NATIVE, &at, &e));
        assert_int_equal(e.code, ERR_NOT_FOUND);
    }
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_weight_transfer_engine),
        cmocka_unit_test(test_init_refuses),
        cmocka_unit_test(test_start_and_finish),
        cmocka_unit_test(test_update_weights),
        cmocka_unit_test(test_update_weights_of_each_rank),
        cmocka_unit_test(test_update_weights_of_all_ages),
        cmocka_unit_test(test_versions_and_sums),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_rows_are_vllm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
