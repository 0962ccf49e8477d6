/* The requests of each kind of upstream for our operations and queries, and its replies. */
#include "fleet/api/upstream_api.h"
#include "tests/unit/fleet/api_args_of.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* `body` NULL: the request has none. `path` NULL: nothing is sent. */
struct row {
    enum upstream_kind kind;
    enum api_op op;
    const char *native, *path, *body;
};

static const struct row rows[] = {
    {UPSTREAM_BATON, API_START_UPDATE, "{\"weight_version\":\"a\"}",
     "POST /v1/update_weights/start", "{\"weight_version\":\"a\"}"},
    {UPSTREAM_BATON, API_SHUTDOWN_TRANSFER, "{}", "DELETE /v1/weight_transfer", NULL},
    {UPSTREAM_BATON, API_RESUME, "{}", "POST /v1/resume", NULL},
    {UPSTREAM_BATON, API_VERIFY_UPDATE, "{}", "POST /v1/update_weights/verify", "{}"},
    {UPSTREAM_VLLM, API_INIT_TRANSFER,
     "{\"transport\":\"nccl\",\"master_address\":\"10.0.0.1\",\"master_port\":29500,"
     "\"world_size\":9,\"rank_offset\":1}",
     "POST /init_weight_transfer_engine",
     "{\"init_info\":{\"master_address\":\"10.0.0.1\",\"master_port\":29500,\"world_size\":9,"
     "\"rank_offset\":1}}"},
    {UPSTREAM_VLLM, API_SHUTDOWN_TRANSFER, "{}", "POST /shutdown_weight_transfer_engine", NULL},
    {UPSTREAM_VLLM, API_VERIFY_UPDATE, "{}", NULL, NULL},
    {UPSTREAM_VLLM, API_START_UPDATE, "{\"weight_version\":\"a\"}", "POST /start_weight_update",
     "{\"is_checkpoint_format\":true}"},
    {UPSTREAM_VLLM, API_FINISH_UPDATE, "{\"update_id\":\"u\",\"weight_version\":\"a\"}",
     "POST /finish_weight_update", "{\"weight_version\":\"a\"}"},
    {UPSTREAM_VLLM, API_PAUSE, "{\"mode\":\"keep\"}", "POST /pause?mode=keep&clear_cache=false",
     NULL},
    {UPSTREAM_BATON, API_RESET_PREFIX_CACHE, "{\"running\":true}", "POST /v1/reset_cache",
     "{\"running\":true}"},
    {UPSTREAM_BATON, API_RESET_ENCODER_CACHE, "{}", NULL, NULL},
    {UPSTREAM_BATON, API_RETRACT_REQUESTS, "{}", NULL, NULL},
    {UPSTREAM_VLLM, API_RESET_PREFIX_CACHE, "{}", "POST /reset_prefix_cache", NULL},
    {UPSTREAM_VLLM, API_RESET_PREFIX_CACHE, "{\"running\":false,\"external\":true}",
     "POST /reset_prefix_cache?reset_external=true", NULL},
    {UPSTREAM_VLLM, API_RESET_PREFIX_CACHE, "{\"running\":true}",
     "POST /reset_prefix_cache?reset_running_requests=true", NULL},
    {UPSTREAM_VLLM, API_RESET_PREFIX_CACHE, "{\"running\":true,\"external\":true}",
     "POST /reset_prefix_cache?reset_running_requests=true&reset_external=true", NULL},
    {UPSTREAM_VLLM, API_RESET_ENCODER_CACHE, "{}", "POST /reset_encoder_cache", NULL},
    {UPSTREAM_VLLM, API_RETRACT_REQUESTS, "{}", NULL, NULL},
    {UPSTREAM_SGLANG, API_RESET_PREFIX_CACHE, "{\"running\":true}", "POST /flush_cache", "{}"},
    {UPSTREAM_SGLANG, API_RESET_ENCODER_CACHE, "{}", NULL, NULL},
    {UPSTREAM_SGLANG, API_RESET_STORAGE_CACHE, "{}", "POST /hicache/storage-backend/clear", NULL},
    {UPSTREAM_VLLM, API_RESET_STORAGE_CACHE, "{}", NULL, NULL},
    {UPSTREAM_BATON, API_RESET_STORAGE_CACHE, "{}", NULL, NULL},
    {UPSTREAM_SGLANG, API_RETRACT_REQUESTS, "{}", "POST /pause_generation",
     "{\"mode\":\"retract\"}"},
    {UPSTREAM_VLLM, API_SLEEP, "{\"level\":2}", "POST /sleep?level=2", NULL},
    {UPSTREAM_VLLM, API_WAKE, "{\"tags\":[\"weights\",\"kv_cache\"]}",
     "POST /wake_up?tags=weights&tags=kv_cache", NULL},
    {UPSTREAM_VLLM, API_WAKE, "{}", "POST /wake_up", NULL},
    {UPSTREAM_VLLM, API_ABORT_REQUESTS, "{\"all\":true}", "POST /abort_requests", "{}"},
    {UPSTREAM_VLLM, API_ABORT_REQUESTS, "{\"request_ids\":[]}", NULL, NULL},
    {UPSTREAM_SGLANG, API_ABORT_REQUESTS, "{\"request_ids\":[]}", NULL, NULL},
    {UPSTREAM_VLLM, API_LOAD_ADAPTER, "{\"lora_name\":\"l\",\"lora_path\":\"/p\",\"pinned\":true}",
     "POST /v1/load_lora_adapter",
     "{\"lora_name\":\"l\",\"lora_path\":\"/p\",\"load_inplace\":true}"},
    {UPSTREAM_SGLANG, API_INIT_TRANSFER,
     "{\"master_address\":\"h\",\"master_port\":1,\"world_size\":3,\"rank_offset\":1,"
     "\"group_name\":\"g\"}",
     "POST /init_weights_update_group",
     "{\"master_address\":\"h\",\"master_port\":1,\"world_size\":3,\"rank_offset\":1,"
     "\"group_name\":\"g\",\"backend\":\"nccl\"}"},
    {UPSTREAM_SGLANG, API_INIT_TRANSFER, "{\"transport\":\"ipc\"}", NULL, NULL},
    {UPSTREAM_SGLANG, API_START_UPDATE, "{\"weight_version\":\"a\"}", "POST /begin_weight_update",
     "{}"},
    {UPSTREAM_SGLANG, API_START_UPDATE, "{\"selector\":\"target\"}", "POST /begin_weight_update",
     "{\"selector\":\"target\"}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS,
     "{\"serialized_named_tensors\":[\"x\"],\"selector\":\"target\"}",
     "POST /update_weights_from_tensor",
     "{\"serialized_named_tensors\":[\"x\"],\"selector\":\"target\",\"flush_cache\":false,"
     "\"disable_draft_model\":true}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS,
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"selector\":\"all\"}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"selector\":\"all\","
     "\"flush_cache\":false}"},
    {UPSTREAM_SGLANG, API_RENEW_UPDATE, "{}", NULL, NULL},
    {UPSTREAM_SGLANG, API_SET_VERSION, "{\"weight_version\":\"a\"}", "POST /update_weight_version",
     "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {UPSTREAM_VLLM, API_SET_VERSION, "{\"weight_version\":\"a\"}", "POST /update_weight_version",
     "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {UPSTREAM_BATON, API_SET_VERSION, "{\"weight_version\":\"a\"}", "POST /v1/weights/label",
     "{\"weight_version\":\"a\"}"},
    {UPSTREAM_BATON, API_SEED, "{\"request_ids\":[\"http://a\",\"http://b\"]}",
     "POST /v1/weights/seed", "{\"peers\":[\"http://a\",\"http://b\"],\"if_serial\":0}"},
    {UPSTREAM_VLLM, API_SEED, "{}", NULL, NULL},
    {UPSTREAM_BATON, API_RENEW_UPDATE, "{\"lease_s\":9}", "POST /v1/update_weights/renew",
     "{\"lease_s\":9}"},
    {UPSTREAM_BATON, API_PUT_TENSOR_LIST, "{\"names\":[]}", "POST /v1/weights/plans",
     "{\"names\":[]}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS,
     "{\"transport\":\"nccl\",\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]]}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"flush_cache\":false}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS,
     "{\"transport\":\"nccl\",\"packed\":true,\"bucket_nbytes\":9223372036854775807,"
     "\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]]}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"flush_cache\":false,"
     "\"load_format\":\"flattened_bucket\"}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS,
     "{\"serialized_named_tensors\":[\"x\"],\"serialized_format\":\"flattened_bucket\"}",
     "POST /update_weights_from_tensor",
     "{\"serialized_named_tensors\":[\"x\"],\"load_format\":\"flattened_bucket\","
     "\"flush_cache\":false}"},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"path\":\"/w\",\"weight_version\":\"a\"}",
     "POST /update_weights_from_disk",
     "{\"model_path\":\"/w\",\"weight_version\":\"a\",\"flush_cache\":false}"},
    {UPSTREAM_SGLANG, API_FINISH_UPDATE, "{\"weight_version\":\"a\"}",
     "POST /update_weight_version", "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {UPSTREAM_SGLANG, API_FINISH_UPDATE, "{}", NULL, NULL},
    {UPSTREAM_SGLANG, API_PAUSE, "{\"mode\":\"keep\"}", "POST /pause_generation",
     "{\"mode\":\"in_place\"}"},
    {UPSTREAM_SGLANG, API_SLEEP, "{\"level\":1,\"tags\":[\"kv_cache\"]}",
     "POST /release_memory_occupation", "{\"tags\":[\"kv_cache\"]}"},
    {UPSTREAM_SGLANG, API_ABORT_REQUESTS, "{\"all\":true}", "POST /abort_request",
     "{\"abort_all\":true}"},
    {UPSTREAM_SGLANG, API_ABORT_REQUESTS, "{\"request_ids\":[\"a\"]}", "POST /abort_request",
     "{\"rid\":\"a\"}"},
};

/* As api_make_request, of a client's body. */
static int make(struct api_request *out, enum upstream_kind kind, enum api_op op,
                const char *native, const struct api_context *ctx, struct err *e)
{
    struct own_args own;
    int rc = api_make_request(out, kind, op, own_args_of(&own, op, native), ctx, e);

    own_args_fini(&own);
    return rc;
}

static void check_row(const struct row *row)
{
    static const struct api_context ctx = {0};
    struct api_request r;
    struct err e = {0};
    char line[API_PATH_MAX + 16];

    assert_int_equal(make(&r, row->kind, row->op, row->native, &ctx, &e), 0);
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

static void test_make_request_translates_for_each_kind(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
}

static void test_make_request_adds_what_the_upstream_has(void **state)
{
    static const struct api_context ctx = {
        .update_id = "upd-7", .has_rank_offset = true, .rank_offset = 5};
    static const char native[] = "{\"update_id\":\"upd-1\",\"master_address\":\"h\","
                                 "\"rank_offset\":1}",
                      pause[] = "{\"mode\":\"keep\"}",
                      files[] = "{\"path\":\"/w\",\"weight_version\":\"a\"}";
    struct api_request r;
    struct err e = {0};

    (void)state;
    for (int d = 0; d < UPSTREAM_KINDS; d++) {
        assert_int_equal(make(&r, (enum upstream_kind)d, API_INIT_TRANSFER, native, &ctx, &e), 0);
        assert_non_null(strstr(r.body, "\"rank_offset\":5"));
        api_request_fini(&r);
    }
    assert_int_equal(make(&r, UPSTREAM_BATON, API_FINISH_UPDATE, native, &ctx, &e), 0);
    assert_non_null(strstr(r.body, "\"update_id\":\"upd-7\""));
    api_request_fini(&r);
    /* sent during an update, but not a step of it */
    assert_int_equal(
        make(&r, UPSTREAM_BATON, API_PAUSE, pause, &(struct api_context){.update_id = "u"}, &e), 0);
    assert_null(strstr(r.body, "update_id"));
    api_request_fini(&r);
    assert_int_equal(make(&r, UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, files, &ctx, &e), 0);
    assert_non_null(
        strstr(r.body, "\"weight_version\":\"upd-7\"")); /* the marker, not the version */
    api_request_fini(&r);
}

static void test_make_request_names_the_joined_group(void **state)
{
    static const struct api_context ctx = {.group_name = "g"}, unnamed = {.group_name = ""};
    static const char native[] = "{\"transport\":\"nccl\",\"names\":[]}";
    enum api_op ops[] = {API_UPDATE_WEIGHTS, API_SHUTDOWN_TRANSFER};
    struct api_request r;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        assert_int_equal(make(&r, UPSTREAM_SGLANG, ops[i], native, &ctx, &e), 0);
        assert_non_null(strstr(r.body, "\"group_name\":\"g\""));
        api_request_fini(&r);
        assert_int_equal(make(&r, UPSTREAM_SGLANG, ops[i], native, &unnamed, &e), 0);
        assert_null(strstr(r.body, "group_name"));
        api_request_fini(&r);
    }
}

static void test_make_request_refuses_unsupported_members(void **state)
{
    static const struct {
        enum upstream_kind kind;
        enum api_op op;
        const char *native, *field;
    } bad[] = {
        {UPSTREAM_VLLM, API_INIT_TRANSFER, "{\"group_name\":\"x\"}", "/group_name"},
        {UPSTREAM_VLLM, API_INIT_TRANSFER, "{\"warm_up\":false}", "/warm_up"},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"shm\":{}}", "/shm"},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"path\":\"/w\"}", "/path"},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"checksums\":[]}", "/checksums"},
        {UPSTREAM_VLLM, API_START_UPDATE, "{\"partial\":true}", "/partial"},
        {UPSTREAM_VLLM, API_START_UPDATE, "{\"trainer_ranks\":2}", "/trainer_ranks"},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"trainer_rank\":0}", "/trainer_rank"},
        {UPSTREAM_SGLANG, API_START_UPDATE, "{\"trainer_ranks\":2}", "/trainer_ranks"},
        {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"trainer_rank\":0}", "/trainer_rank"},
        {UPSTREAM_VLLM, API_PAUSE, "{\"new_requests\":\"reject\"}", "/new_requests"},
        {UPSTREAM_VLLM, API_PUT_TENSOR_LIST, "{}", ""},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"chunk_id\":\"c\"}", "/chunk_id"},
        {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{\"serialized_named_tensors\":[]}",
         "/serialized_named_tensors"},
        {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"packed\":true,\"bucket_nbytes\":4096}",
         "/packed"},
        {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"bucket_nbytes\":4096}", "/bucket_nbytes"},
        {UPSTREAM_SGLANG, API_PAUSE, "{\"new_requests\":\"reject\"}", "/new_requests"},
        {UPSTREAM_SGLANG, API_PUT_TENSOR_LIST, "{}", ""},
        {UPSTREAM_VLLM, API_WAKE, "{\"tags\":[\"a b\"]}", "/tags"},
        {UPSTREAM_VLLM, API_WAKE, "{\"tags\":[\"weights\",\"weights\",\"weights\"]}", "/tags"},
        {UPSTREAM_VLLM, API_SLEEP, "{\"level\":2,\"tags\":[\"weights\"]}", "/tags"},
        {UPSTREAM_VLLM, API_FINISH_UPDATE, "{\"checksums\":{}}", "/checksums"},
        {UPSTREAM_VLLM, API_LOAD_ADAPTER, "{\"lora_name\":\"l\",\"shm\":{}}", "/lora_path"},
        {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"packed\":true}", "/packed"},
        {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{\"ipc_handles_pickled\":\"x\"}",
         "/ipc_handles_pickled"},
        {UPSTREAM_SGLANG, API_PAUSE, "{\"mode\":\"wait\"}", "/mode"},
        {UPSTREAM_SGLANG, API_ABORT_REQUESTS, "{\"request_ids\":[\"a\",\"b\"]}", "/request_ids"},
        {UPSTREAM_SGLANG, API_ABORT_REQUESTS, "{\"request_ids\":[\"\"]}", "/request_ids"},
    };
    static const struct api_context none = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct api_request r;
        struct err e = {0};

        assert_int_equal(make(&r, bad[i].kind, bad[i].op, bad[i].native, &none, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, bad[i].field);
        if (bad[i].op == API_UPDATE_WEIGHTS && strstr(e.msg, "do not support") != NULL)
            assert_non_null(strstr(e.msg, ": they accept tensors over NCCL"));
        assert_null(r.body);
    }
}

static void read_status(struct upstream_report *out, enum upstream_kind kind, const char *text)
{
    assert_int_equal(api_read_report(out, kind, API_GET_STATUS, 200, text, strlen(text), NULL), 0);
}

/* A pause or a sleep is not reported: the fleet ends it itself, before the next probe. */
static void test_read_status_reports_lasting_reasons(void **state)
{
    static const struct {
        const char *text, *not_ready;
    } asked[] = {
        {"{\"ready\":true,\"reason\":null}", ""},
        {"{\"ready\":false,\"reason\":{\"code\":\"no_weights\"}}", "no_weights"},
        {"{\"ready\":false,\"reason\":{\"code\":\"non_finite_logits\"}}", "non_finite_logits"},
        {"{\"ready\":false,\"reason\":{\"code\":\"draining\"}}", "draining"},
        {"{\"ready\":false,\"reason\":{\"code\":\"paused\"}}", ""},
        {"{\"ready\":false,\"reason\":{\"code\":\"asleep\"}}", ""},
        {"{\"ready\":false,\"reason\":{\"code\":\"overloaded\"}}", ""},
        {"{\"ready\":false}", ""},
        {"{\"ready\":\"no\",\"reason\":{\"code\":\"draining\"}}", ""},
    };
    struct upstream_report report;

    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        read_status(&report, UPSTREAM_BATON, asked[i].text);
        assert_string_equal(report.not_ready, asked[i].not_ready);
    }
}

static void test_read_status(void **state)
{
    static const struct {
        enum upstream_kind kind;
        const char *text, *process, *label, *identity;
    } who[] = {
        {UPSTREAM_BATON, "{\"boot_id\":\"b\",\"weights\":{\"weight_version\":\"v\"}}", "b", "v",
         "b"},
        {UPSTREAM_BATON, "{\"boot_id\":\"b\",\"weights\":{\"weight_version\":null}}", "b", "", "b"},
        {UPSTREAM_BATON, "<html>", "", "", ""},
        {UPSTREAM_VLLM, "# HELP x\nprocess_start_time_seconds 1.7e+09\nvllm:x 1\n", "1.7e+09", "",
         ""},
        {UPSTREAM_VLLM,
         "#\nprocess_start_time_seconds 1.79547483271e+09\n# TYPE vllm:num_preemptions_created "
         "gauge\n"
         "vllm:num_preemptions_created{engine=\"0\",model_name=\"a b\"} 1.7954748338589928e+09\n"
         "vllm:num_preemptions_created{engine=\"1\",model_name=\"a b\"} 1.8e+09\n",
         "1.79547483271e+09", "", "1.79547483271e+09 1.7954748338589928e+09"},
        {UPSTREAM_VLLM, "\nvllm:num_preemptions_created{engine=\"0\"} 1.8e+09\n", "", "", ""},
        {UPSTREAM_VLLM, "\nprocess_start_time_seconds 1\nvllm:num_preemptions_created{x", "1", "",
         ""},
        {UPSTREAM_VLLM, "process_start", "", "", ""},
        {UPSTREAM_SGLANG, "{\"weight_version\":\"v\"}", "", "v", ""},
        {UPSTREAM_SGLANG, "", "", "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof who / sizeof who[0]; i++) {
        struct upstream_report report;

        read_status(&report, who[i].kind, who[i].text);
        assert_string_equal(report.process, who[i].process);
        assert_string_equal(report.label, who[i].label);
        assert_string_equal(report.identity, who[i].identity);
    }
}

static void test_read_update_of_the_weights(void **state)
{
    static const char committed[] = "{\"error\":{\"details\":{\"phase\":\"committed\"}}}";
    static const char served[] = "{\"weights\":{\"update_id\":\"upd-1\"}}";
    struct upstream_report report;

    (void)state;
    read_status(&report, UPSTREAM_BATON, served);
    assert_string_equal(report.update_id, "upd-1");
    read_status(&report, UPSTREAM_BATON, "{\"weights\":{\"update_id\":null}}");
    assert_string_equal(report.update_id, "");
    assert_true(api_is_committed(committed, strlen(committed)));
    assert_false(api_is_committed("{\"error\":{\"details\":{\"phase\":\"aborted\"}}}", 43));
    assert_false(api_is_committed(NULL, 0));
}

static void test_read_ranks(void **state)
{
    static const struct {
        enum upstream_kind kind;
        const char *text;
        uint64_t n; /* UINT64_MAX: an error */
    } ranks[] = {
        {UPSTREAM_BATON, "{\"cuda\":{\"ranks\":[{},{}]}}", 2},
        {UPSTREAM_BATON, "{\"cuda\":{\"ranks\":[]}}", 0},
        {UPSTREAM_VLLM, "{\"world_size\":8}", 8},
        {UPSTREAM_VLLM, "{\"world_size\":\"8\"}", UINT64_MAX},
        {UPSTREAM_VLLM, "{\"world_size\":-1}", UINT64_MAX},
        {UPSTREAM_SGLANG, "{\"tp_size\":4,\"pp_size\":2,\"dp_size\":1}", 8},
        {UPSTREAM_SGLANG, "{\"tp_size\":4}", 4},
        {UPSTREAM_SGLANG, "{}", UINT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const char *text = ranks[i].text;
        uint64_t n = UINT64_MAX;
        struct err e = {0};
        int rc = api_read_ranks(&n, ranks[i].kind, text, strlen(text), &e);

        assert_int_equal(rc, ranks[i].n != UINT64_MAX ? 0 : -1);
        assert_int_equal(n, ranks[i].n);
    }
}

static void test_read_bucket_ranks(void **state)
{
    static const char whole[] =
        "{\"tp_size\":4,\"pp_size\":2,\"dp_size\":4,\"version\":\"0.5.16\"}";
    struct api_bucket_ranks ranks;
    struct err e = {0};

    (void)state;
    assert_int_equal(api_read_bucket_ranks(&ranks, whole, strlen(whole), &e), 0);
    assert_int_equal(ranks.n_entries, 4); /* also with attention that is data-parallel */
    assert_int_equal(ranks.n_stages, 2);
    assert_string_equal(ranks.release, "0.5.16");
    assert_int_equal(api_read_bucket_ranks(&ranks, "{\"tp_size\":1}", 13, &e), 0);
    assert_int_equal(ranks.n_stages, 1);
    assert_string_equal(ranks.release, "");
    assert_int_equal(api_read_bucket_ranks(&ranks, "", 0, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
}

static void test_read_open_update(void **state)
{
    static const char open[] = "{\"update\":{\"update_id\":\"upd-1\"}}";
    static const char none[] = "{\"update\":null}";
    char id[API_UPDATE_ID_MAX + 1] = "";

    (void)state;
    assert_true(api_read_open_update(id, open, sizeof open - 1));
    assert_string_equal(id, "upd-1");
    assert_false(api_read_open_update(id, none, sizeof none - 1));
    assert_false(api_read_open_update(id, "", 0));
}

static void test_read_error(void **state)
{
    static const struct {
        const char *text, *said;
    } errors[] = {
        {"{\"error\":{\"message\":\"no\"}}", "no"},
        {"{\"error\":\"no\"}", "no"},
        {"{\"success\":false,\"message\":\"no\"}", "no"},
        {"{\"detail\":\"no\"}", "no"},
        {"Internal\nServer Error", "Internal Server Error"},
        {"caf\xc3", "caf?"},
        {"", ""},
    };
    char out[32];

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        api_read_error(out, sizeof out, errors[i].text, strlen(errors[i].text));
        assert_string_equal(out, errors[i].said);
    }
    api_read_error(out, 4, "long text", 9);
    assert_string_equal(out, "lon");
}

static void test_read_start(void **state)
{
    char id[API_UPDATE_ID_MAX + 1] = "old", process[FLEET_LABEL_MAX + 1];
    struct err e = {0};

    (void)state;
    assert_int_equal(api_read_start(id, process, "{\"update_id\":\"upd-1\"}", 21, &e), 0);
    assert_string_equal(id, "upd-1");
    assert_string_equal(process, "");
    assert_int_equal(api_read_start(id, process, "{\"boot_id\":\"b\"}", 15, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_string_equal(id, "upd-1");
    assert_string_equal(process, "b");
}

static void test_read_version(void **state)
{
    static const struct {
        enum upstream_kind kind;
        const char *text, *name; /* NULL: an error */
    } cases[] = {
        {UPSTREAM_VLLM, "{\"weight_version\":\"step-1\"}", "step-1"},
        {UPSTREAM_VLLM, "{\"weight_version\":null}", ""},
        {UPSTREAM_VLLM, "{\"weight_version\":7}", NULL},
        {UPSTREAM_VLLM, "{}", NULL},
        {UPSTREAM_VLLM, "no JSON", NULL},
        {UPSTREAM_VLLM, "", NULL},
        {UPSTREAM_SGLANG, "{\"weight_version\":\"default\"}", "default"},
        {UPSTREAM_SGLANG, "{\"version\":\"0.5\"}", NULL},
        {UPSTREAM_BATON, "{\"weights\":{\"weight_version\":\"step-2\"}}", "step-2"},
        {UPSTREAM_BATON, "{\"weight_version\":\"step-2\"}", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[API_VERSION_MAX + 1] = "before";
        struct err e = {0};
        int rc = api_read_version(name, cases[i].kind, cases[i].text, strlen(cases[i].text), &e);

        assert_int_equal(rc, cases[i].name != NULL ? 0 : -1);
        assert_string_equal(name, cases[i].name != NULL ? cases[i].name : "before");
        assert_int_equal(e.code, cases[i].name != NULL ? ERR_NONE : ERR_UNREADABLE);
    }
}

static void test_read_version_of_a_long_one(void **state)
{
    char name[API_VERSION_MAX + 1], text[API_VERSION_MAX + 64];
    struct err e = {0};

    (void)state;
    for (int len = API_VERSION_MAX - 1; len < API_VERSION_MAX + 10; len++) {
        (void)snprintf(text, sizeof text, "{\"weight_version\":\"%0*d\"}", len, 0);
        assert_int_equal(api_read_version(name, UPSTREAM_VLLM, text, strlen(text), &e), 0);
        assert_int_equal(strlen(name), len < API_VERSION_MAX ? len : API_VERSION_MAX);
    }
}

static void test_make_query_and_kind_names(void **state)
{
    (void)state;
    for (int d = 0; d < UPSTREAM_KINDS; d++) {
        enum upstream_kind found;
        struct err e = {0};

        assert_int_equal(upstream_kind_parse(&found, upstream_kind_name((enum upstream_kind)d),
                                             "--upstream", &e),
                         0);
        assert_int_equal(found, d);
        for (int q = 0; q < API_QUERIES; q++) {
            bool asks = (q != API_GET_PROBE_VERSION && q != API_GET_RELEASE &&
                         q != API_GET_PAUSED && q != API_GET_ASLEEP && q != API_GENERATE_CANARY &&
                         q != API_GET_CHECKSUMS) ||
                        found == UPSTREAM_VLLM ||
                        (found == UPSTREAM_SGLANG &&
                         (q == API_GENERATE_CANARY || q == API_GET_CHECKSUMS));
            struct api_request r;

            assert_int_equal(api_make_query(&r, found, (enum api_query)q, &e), 0);
            assert_true((r.method != NULL) == asks);
            assert_int_equal(r.path[0], asks ? '/' : '\0');
            assert_true((r.body != NULL) ==
                        (asks && (q == API_GENERATE_TOKEN || q == API_GENERATE_CANARY ||
                                  q == API_GET_CHECKSUMS)));
            api_request_fini(&r);
        }
        if (d == 0)
            assert_int_equal(upstream_kind_parse(&found, "vLLM", "--upstream", &e), -1);
    }
}

/* vLLM's /weight_info. Older releases do not have it, nor does one without its development mode. */
static void test_read_probe_version(void **state)
{
    static const struct {
        int status;
        const char *text, *label; /* label NULL: an error */
    } labels[] = {
        {200, "{\"weight_version\":\"step-1\"}", "step-1"},
        {200, "{\"weight_version\":null}", ""},
        {404, "{\"detail\":\"Not Found\"}", ""},
        {405, "", ""},
        {0, "", "as it was"},
        {200, "{}", NULL},
        {200, "<html>", NULL},
        {500, "{\"weight_version\":\"step-1\"}", NULL},
        {503, "", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        struct upstream_report report = {.label = "as it was"};
        struct err e = {0};
        int rc = api_read_report(&report, UPSTREAM_VLLM, API_GET_PROBE_VERSION, labels[i].status,
                                 labels[i].text, strlen(labels[i].text), &e);

        assert_int_equal(rc, labels[i].label != NULL ? 0 : -1);
        assert_int_equal(e.code, labels[i].label != NULL ? ERR_NONE : ERR_UNREADABLE);
        assert_string_equal(report.label, labels[i].label != NULL ? labels[i].label : "");
    }
}

/* Replies 200 to an operation; `good`: it was done as requested. */
static const struct done {
    enum upstream_kind kind;
    enum api_op op;
    const char *native, *answer;
    bool good;
} dones[] = {
    {UPSTREAM_BATON, API_UPDATE_WEIGHTS, "{}", "{\"update_id\":\"u1\",\"phase\":\"receiving\"}",
     true},
    {UPSTREAM_BATON, API_UPDATE_WEIGHTS, "{}", "{\"update_id\":\"u2\",\"phase\":\"receiving\"}",
     false},
    {UPSTREAM_BATON, API_UPDATE_WEIGHTS, "{}", "{\"update_id\":\"u1\",\"phase\":\"aborted\"}",
     false},
    {UPSTREAM_BATON, API_UPDATE_WEIGHTS, "{}", "<html>", false},
    {UPSTREAM_BATON, API_VERIFY_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"verified\"}",
     true},
    {UPSTREAM_BATON, API_VERIFY_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"verifying\"}",
     false},
    {UPSTREAM_BATON, API_FINISH_UPDATE, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"committed\",\"weight_version\":\"a\"}", true},
    {UPSTREAM_BATON, API_FINISH_UPDATE, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"committed\",\"weight_version\":\"b\"}", false},
    {UPSTREAM_BATON, API_FINISH_UPDATE, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"verified\",\"weight_version\":\"a\"}", false},
    {UPSTREAM_BATON, API_ABORT_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"aborted\"}", true},
    {UPSTREAM_BATON, API_ABORT_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"open\"}", false},
    {UPSTREAM_BATON, API_PAUSE, "{}", "{\"paused\":true}", true},
    {UPSTREAM_BATON, API_PAUSE, "{}", "{\"paused\":false}", false},
    {UPSTREAM_BATON, API_RESUME, "{}", "{\"paused\":false}", true},
    {UPSTREAM_BATON, API_RESUME, "{}", "{}", false},
    {UPSTREAM_BATON, API_SET_VERSION, "{\"weight_version\":\"a\"}", "{\"weight_version\":\"b\"}",
     false},
    {UPSTREAM_BATON, API_INIT_TRANSFER, "{\"transport\":\"nccl\"}", "{\"state\":\"joined\"}", true},
    {UPSTREAM_BATON, API_INIT_TRANSFER, "{\"transport\":\"nccl\"}", "{\"state\":\"failed\"}",
     false},
    {UPSTREAM_BATON, API_INIT_TRANSFER, "{\"transport\":\"ipc\"}", "{\"state\":\"none\"}", true},
    {UPSTREAM_VLLM, API_RESUME, "{}", "{\"status\":\"resumed\"}", true},
    {UPSTREAM_VLLM, API_SLEEP, "{}", "", true},
    {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{}", "{\"error\":{\"message\":\"no\"}}", false},
    {UPSTREAM_SGLANG, API_WAKE, "{}", "null", true},
    {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{}", "{\"message\":\"Weights updated\"}", true},
    {UPSTREAM_VLLM, API_UPDATE_WEIGHTS, "{}", "<html>OK</html>", false},
    {UPSTREAM_VLLM, API_FINISH_UPDATE, "{}", "{}", false},
    {UPSTREAM_VLLM, API_START_UPDATE, "{}", "", false},
    {UPSTREAM_SGLANG, API_INIT_TRANSFER, "{}", "null", false},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{}", "\"ok\"", false},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{}", "{\"success\":true,\"message\":\"\"}", true},
    {UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, "{}", "{\"success\":false,\"message\":\"shapes\"}",
     false},
    {UPSTREAM_SGLANG, API_LOAD_ADAPTER, "{}", "{\"success\":true,\"error_message\":null}", true},
    {UPSTREAM_SGLANG, API_FINISH_UPDATE, "{\"weight_version\":\"a\"}",
     "{\"success\":true,\"new_version\":\"b\"}", false},
};

static void test_adapter_is_absent(void **state)
{
    static const struct {
        enum upstream_kind kind;
        int status;
        const char *text;
        bool absent;
    } said[] = {
        {UPSTREAM_VLLM, 404, "{\"error\":{\"message\":\"The lora adapter 'x' cannot be found\"}}",
         true},
        {UPSTREAM_VLLM, 400, "{}", false},
        {UPSTREAM_BATON, 404, "", true},
        {UPSTREAM_BATON, 500, "not found", false},
        {UPSTREAM_SGLANG, 400,
         "{\"success\":false,\"error_message\":\"LoRA with name x does not exist. Loaded LoRAs: "
         "dict_keys([])\"}",
         true},
        {UPSTREAM_SGLANG, 400,
         "{\"success\":false,\"error_message\":\"LoRA with name y does not exist\"}", false},
        {UPSTREAM_SGLANG, 400, "{\"success\":false,\"error_message\":\"LoRA is not enabled\"}",
         true},
        {UPSTREAM_SGLANG, 400, "x does not exist", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        assert_int_equal(api_adapter_is_absent(said[i].kind, "x", said[i].status, said[i].text,
                                               strlen(said[i].text)),
                         said[i].absent);
}

static void test_check_done_reads_the_body(void **state)
{
    static const struct api_context ctx = {.update_id = "u1"};

    (void)state;
    for (size_t i = 0; i < sizeof dones / sizeof dones[0]; i++) {
        const struct done *d = &dones[i];
        struct own_args own;
        struct err e = {0};
        int rc = api_check_done(d->kind, d->op, own_args_of(&own, d->op, d->native), &ctx,
                                d->answer, strlen(d->answer), &e);

        if ((rc == 0) != d->good)
            fail_msg("%s: %d, %s", d->answer, rc, e.msg);
        assert_int_equal(e.code, d->good ? ERR_NONE : ERR_UPSTREAM);
        own_args_fini(&own);
    }
}

static void test_reset_is_proven_only_by_the_body(void **state)
{
    static const struct {
        enum upstream_kind kind;
        const char *native, *answer;
        bool surely;
    } said[] = {
        {UPSTREAM_VLLM, "{\"running\":true}", "", true}, /* a failure has another status */
        {UPSTREAM_VLLM, "{\"running\":false}", "", false},
        {UPSTREAM_VLLM, "{}", "{\"success\":true}", true},
        {UPSTREAM_VLLM, "{}", "{\"success\":\"true\"}", false},
        {UPSTREAM_VLLM, "{}", "{\"success\":true", false},
        {UPSTREAM_VLLM, "{}", "true", false},
        {UPSTREAM_SGLANG, "{}", "Cache flushed.\n", true},
        {UPSTREAM_BATON, "{}", "{}", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        struct own_args own;
        const struct api_args *args = own_args_of(&own, API_RESET_PREFIX_CACHE, said[i].native);

        assert_int_equal(
            api_reset_is_proven(said[i].kind, args, said[i].answer, strlen(said[i].answer)),
            said[i].surely);
        own_args_fini(&own);
    }
}

/* The end of a started update takes no version; without a started update only the version is set.
 */
static void test_make_request_of_a_started_update(void **state)
{
    static const struct api_context begun = {.update_id = "upd-7", .has_begun = true};
    static const char native[] = "{\"weight_version\":\"a\"}", file[] = "{\"path\":\"/w\"}";
    struct api_request r;
    struct err e = {0};

    (void)state;
    assert_int_equal(make(&r, UPSTREAM_SGLANG, API_FINISH_UPDATE, native, &begun, &e), 0);
    assert_string_equal(r.path, "/end_weight_update");
    assert_string_equal(r.body, "{}");
    api_request_fini(&r);
    assert_int_equal(make(&r, UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, file, &begun, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/path");
    assert_null(r.method);
}

static void test_windows_are_refused_with_a_reason(void **state)
{
    (void)state;
    assert_null(api_release_of(UPSTREAM_BATON, NULL).refuses_windows);
    assert_null(
        api_release_of(UPSTREAM_VLLM, NULL).refuses_windows); /* not probed yet: the newest */
    assert_null(api_release_of(UPSTREAM_VLLM, "0.24.0").refuses_windows);
    assert_null(api_release_of(UPSTREAM_VLLM, "0.33.1rc0").refuses_windows);
    assert_non_null(strstr(api_release_of(UPSTREAM_VLLM, "0.23.1").refuses_windows, "0.24"));
    assert_null(api_release_of(UPSTREAM_SGLANG, NULL).refuses_windows);
    assert_null(api_release_of(UPSTREAM_SGLANG, "").refuses_windows);
    assert_null(api_release_of(UPSTREAM_SGLANG, "0.5.6.post2").refuses_windows);
    assert_null(api_release_of(UPSTREAM_SGLANG, "0.6.0").refuses_windows);
    assert_null(api_release_of(UPSTREAM_SGLANG, "1.0.0").refuses_windows);
    assert_non_null(
        strstr(api_release_of(UPSTREAM_SGLANG, "0.5.5.post3").refuses_windows, "0.5.6"));
    assert_non_null(
        strstr(api_release_of(UPSTREAM_SGLANG, "0.4.10").refuses_windows, "--stage cuda:0"));
}

static bool mapped_nothing(enum upstream_kind kind, int status, const char *text)
{
    return api_has_mapped_nothing(kind, status, text, strlen(text));
}

static void test_has_mapped_nothing(void **state)
{
    (void)state;
    assert_true(mapped_nothing(UPSTREAM_SGLANG, 500, "Internal Server Error"));
    assert_true(mapped_nothing(UPSTREAM_SGLANG, 400, "{\"error\": {\"message\": \"x\"}}"));
    assert_false(mapped_nothing(UPSTREAM_SGLANG, 400, "{\"success\": false, \"message\": \"x\"}"));
    for (int status = 502; status <= 504; status++) /* of a gateway */
        assert_false(mapped_nothing(UPSTREAM_SGLANG, status, ""));
    assert_false(mapped_nothing(UPSTREAM_VLLM, 500, ""));
    assert_false(mapped_nothing(UPSTREAM_BATON, 400, ""));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_are_refused_with_a_reason),
        cmocka_unit_test(test_has_mapped_nothing),
        cmocka_unit_test(test_reset_is_proven_only_by_the_body),
        cmocka_unit_test(test_make_request_translates_for_each_kind),
        cmocka_unit_test(test_make_request_adds_what_the_upstream_has),
        cmocka_unit_test(test_make_request_names_the_joined_group),
        cmocka_unit_test(test_make_request_refuses_unsupported_members),
        cmocka_unit_test(test_read_status),
        cmocka_unit_test(test_read_status_reports_lasting_reasons),
        cmocka_unit_test(test_read_update_of_the_weights),
        cmocka_unit_test(test_read_ranks),
        cmocka_unit_test(test_read_bucket_ranks),
        cmocka_unit_test(test_read_open_update),
        cmocka_unit_test(test_read_error),
        cmocka_unit_test(test_read_start),
        cmocka_unit_test(test_adapter_is_absent),
        cmocka_unit_test(test_check_done_reads_the_body),
        cmocka_unit_test(test_read_version),
        cmocka_unit_test(test_read_version_of_a_long_one),
        cmocka_unit_test(test_make_query_and_kind_names),
        cmocka_unit_test(test_make_request_of_a_started_update),
        cmocka_unit_test(test_read_probe_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
