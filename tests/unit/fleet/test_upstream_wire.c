/* Our operations in the words of each upstream, and how its answers read. */
#include "fleet/api/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* `body` NULL: none. `path` NULL: nothing is sent. */
struct row {
    enum wire_dialect dialect;
    enum wire_op op;
    const char *native, *path, *body;
};

static const struct row rows[] = {
    {WIRE_BATON, WIRE_START, "{\"weight_version\":\"a\"}", "POST /v1/update_weights/start",
     "{\"weight_version\":\"a\"}"},
    {WIRE_BATON, WIRE_LEAVE, "{}", "DELETE /v1/weight_transfer", NULL},
    {WIRE_BATON, WIRE_RESUME, "{}", "POST /v1/resume", NULL},
    {WIRE_BATON, WIRE_VERIFY, "{}", "POST /v1/update_weights/verify", "{}"},
    {WIRE_VLLM, WIRE_INIT,
     "{\"transport\":\"nccl\",\"master_address\":\"10.0.0.1\",\"master_port\":29500,"
     "\"world_size\":9,\"rank_offset\":1}",
     "POST /init_weight_transfer_engine",
     "{\"init_info\":{\"master_address\":\"10.0.0.1\",\"master_port\":29500,\"world_size\":9,"
     "\"rank_offset\":1}}"},
    {WIRE_VLLM, WIRE_LEAVE, "{}", "POST /shutdown_weight_transfer_engine", NULL},
    {WIRE_VLLM, WIRE_VERIFY, "{}", NULL, NULL},
    {WIRE_VLLM, WIRE_START, "{\"weight_version\":\"a\"}", "POST /start_weight_update",
     "{\"is_checkpoint_format\":true}"},
    {WIRE_VLLM, WIRE_FINISH, "{\"update_id\":\"u\",\"weight_version\":\"a\"}",
     "POST /finish_weight_update", "{\"weight_version\":\"a\"}"},
    {WIRE_VLLM, WIRE_PAUSE, "{\"mode\":\"keep\"}", "POST /pause?mode=keep&clear_cache=false", NULL},
    {WIRE_BATON, WIRE_RESET_CACHE, "{\"running\":true}", "POST /v1/reset_cache",
     "{\"running\":true}"},
    {WIRE_BATON, WIRE_RESET_ENCODER, "{}", NULL, NULL},
    {WIRE_BATON, WIRE_RETRACT, "{}", NULL, NULL},
    {WIRE_VLLM, WIRE_RESET_CACHE, "{}", "POST /reset_prefix_cache", NULL},
    {WIRE_VLLM, WIRE_RESET_CACHE, "{\"running\":false,\"external\":true}",
     "POST /reset_prefix_cache?reset_external=true", NULL},
    {WIRE_VLLM, WIRE_RESET_CACHE, "{\"running\":true}",
     "POST /reset_prefix_cache?reset_running_requests=true", NULL},
    {WIRE_VLLM, WIRE_RESET_CACHE, "{\"running\":true,\"external\":true}",
     "POST /reset_prefix_cache?reset_running_requests=true&reset_external=true", NULL},
    {WIRE_VLLM, WIRE_RESET_ENCODER, "{}", "POST /reset_encoder_cache", NULL},
    {WIRE_VLLM, WIRE_RETRACT, "{}", NULL, NULL},
    {WIRE_SGLANG, WIRE_RESET_CACHE, "{\"running\":true}", "POST /flush_cache", "{}"},
    {WIRE_SGLANG, WIRE_RESET_ENCODER, "{}", NULL, NULL},
    {WIRE_SGLANG, WIRE_RESET_STORAGE, "{}", "POST /hicache/storage-backend/clear", NULL},
    {WIRE_VLLM, WIRE_RESET_STORAGE, "{}", NULL, NULL},
    {WIRE_BATON, WIRE_RESET_STORAGE, "{}", NULL, NULL},
    {WIRE_SGLANG, WIRE_RETRACT, "{}", "POST /pause_generation", "{\"mode\":\"retract\"}"},
    {WIRE_VLLM, WIRE_SLEEP, "{\"level\":2}", "POST /sleep?level=2", NULL},
    {WIRE_VLLM, WIRE_WAKE, "{\"tags\":[\"weights\",\"kv_cache\"]}",
     "POST /wake_up?tags=weights&tags=kv_cache", NULL},
    {WIRE_VLLM, WIRE_WAKE, "{}", "POST /wake_up", NULL},
    {WIRE_VLLM, WIRE_ABORT_REQUESTS, "{\"all\":true}", "POST /abort_requests", "{}"},
    {WIRE_VLLM, WIRE_ABORT_REQUESTS, "{\"request_ids\":[]}", NULL, NULL},
    {WIRE_SGLANG, WIRE_ABORT_REQUESTS, "{\"request_ids\":[]}", NULL, NULL},
    {WIRE_VLLM, WIRE_LORA_LOAD, "{\"lora_name\":\"l\",\"lora_path\":\"/p\",\"pinned\":true}",
     "POST /v1/load_lora_adapter",
     "{\"lora_name\":\"l\",\"lora_path\":\"/p\",\"load_inplace\":true}"},
    {WIRE_SGLANG, WIRE_INIT,
     "{\"master_address\":\"h\",\"master_port\":1,\"world_size\":3,\"rank_offset\":1,"
     "\"group_name\":\"g\"}",
     "POST /init_weights_update_group",
     "{\"master_address\":\"h\",\"master_port\":1,\"world_size\":3,\"rank_offset\":1,"
     "\"group_name\":\"g\",\"backend\":\"nccl\"}"},
    {WIRE_SGLANG, WIRE_INIT, "{\"transport\":\"ipc\"}", NULL, NULL},
    {WIRE_SGLANG, WIRE_START, "{\"weight_version\":\"a\"}", "POST /begin_weight_update", "{}"},
    {WIRE_SGLANG, WIRE_START, "{\"selector\":\"target\"}", "POST /begin_weight_update",
     "{\"selector\":\"target\"}"},
    {WIRE_SGLANG, WIRE_UPDATE, "{\"serialized_named_tensors\":[\"x\"],\"selector\":\"target\"}",
     "POST /update_weights_from_tensor",
     "{\"serialized_named_tensors\":[\"x\"],\"selector\":\"target\",\"flush_cache\":false,"
     "\"disable_draft_model\":true}"},
    {WIRE_SGLANG, WIRE_UPDATE,
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"selector\":\"all\"}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"selector\":\"all\","
     "\"flush_cache\":false}"},
    {WIRE_SGLANG, WIRE_RENEW, "{}", NULL, NULL},
    {WIRE_SGLANG, WIRE_LABEL, "{\"weight_version\":\"a\"}", "POST /update_weight_version",
     "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {WIRE_VLLM, WIRE_LABEL, "{\"weight_version\":\"a\"}", "POST /update_weight_version",
     "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {WIRE_BATON, WIRE_LABEL, "{\"weight_version\":\"a\"}", "POST /v1/weights/label",
     "{\"weight_version\":\"a\"}"},
    {WIRE_BATON, WIRE_RENEW, "{\"lease_s\":9}", "POST /v1/update_weights/renew", "{\"lease_s\":9}"},
    {WIRE_BATON, WIRE_TENSOR_LIST, "{\"names\":[]}", "POST /v1/weights/plans", "{\"names\":[]}"},
    {WIRE_SGLANG, WIRE_UPDATE,
     "{\"transport\":\"nccl\",\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]]}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"flush_cache\":false}"},
    {WIRE_SGLANG, WIRE_UPDATE,
     "{\"transport\":\"nccl\",\"packed\":true,\"bucket_nbytes\":9223372036854775807,"
     "\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]]}",
     "POST /update_weights_from_distributed",
     "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],\"flush_cache\":false,"
     "\"load_format\":\"flattened_bucket\"}"},
    {WIRE_SGLANG, WIRE_UPDATE,
     "{\"serialized_named_tensors\":[\"x\"],\"serialized_format\":\"flattened_bucket\"}",
     "POST /update_weights_from_tensor",
     "{\"serialized_named_tensors\":[\"x\"],\"load_format\":\"flattened_bucket\","
     "\"flush_cache\":false}"},
    {WIRE_SGLANG, WIRE_UPDATE, "{\"path\":\"/w\",\"weight_version\":\"a\"}",
     "POST /update_weights_from_disk",
     "{\"model_path\":\"/w\",\"weight_version\":\"a\",\"flush_cache\":false}"},
    {WIRE_SGLANG, WIRE_FINISH, "{\"weight_version\":\"a\"}", "POST /update_weight_version",
     "{\"new_version\":\"a\",\"abort_all_requests\":false}"},
    {WIRE_SGLANG, WIRE_FINISH, "{}", NULL, NULL},
    {WIRE_SGLANG, WIRE_PAUSE, "{\"mode\":\"keep\"}", "POST /pause_generation",
     "{\"mode\":\"in_place\"}"},
    {WIRE_SGLANG, WIRE_SLEEP, "{\"level\":1,\"tags\":[\"kv_cache\"]}",
     "POST /release_memory_occupation", "{\"tags\":[\"kv_cache\"]}"},
    {WIRE_SGLANG, WIRE_ABORT_REQUESTS, "{\"all\":true}", "POST /abort_request",
     "{\"abort_all\":true}"},
    {WIRE_SGLANG, WIRE_ABORT_REQUESTS, "{\"request_ids\":[\"a\"]}", "POST /abort_request",
     "{\"rid\":\"a\"}"},
};

static json_t *parse(const char *text)
{
    json_t *native = json_loads(text, 0, NULL);

    assert_non_null(native);
    return native;
}

static void check_row(const struct row *row)
{
    static const struct wire_about about = {0};
    json_t *native = parse(row->native);
    struct wire_request r;
    struct err e = {0};
    char line[WIRE_PATH_MAX + 16];

    assert_int_equal(wire_make(&r, row->dialect, row->op, native, &about, &e), 0);
    json_decref(native);
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
    wire_request_fini(&r);
}

static void test_wire_make_says_it_in_their_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
}

static void test_wire_make_puts_in_what_is_each_ones_own(void **state)
{
    static const struct wire_about about = {
        .update_id = "upd-7", .has_rank_offset = true, .rank_offset = 5};
    json_t *native = parse("{\"update_id\":\"upd-1\",\"master_address\":\"h\",\"rank_offset\":1}");
    struct wire_request r;
    struct err e = {0};

    (void)state;
    for (int d = 0; d < WIRE_DIALECTS; d++) {
        assert_int_equal(wire_make(&r, (enum wire_dialect)d, WIRE_INIT, native, &about, &e), 0);
        assert_non_null(strstr(r.body, "\"rank_offset\":5"));
        wire_request_fini(&r);
    }
    assert_int_equal(wire_make(&r, WIRE_BATON, WIRE_FINISH, native, &about, &e), 0);
    assert_non_null(strstr(r.body, "\"update_id\":\"upd-7\""));
    wire_request_fini(&r);
    assert_string_equal(json_string_value(json_object_get(native, "update_id")), "upd-1");
    json_decref(native);
    native = parse("{\"mode\":\"keep\"}"); /* at the end of an update, but no step of it */
    assert_int_equal(wire_make(&r, WIRE_BATON, WIRE_PAUSE, native, &about, &e), 0);
    assert_null(strstr(r.body, "update_id"));
    wire_request_fini(&r);
    json_decref(native);
    native = parse("{\"path\":\"/w\",\"weight_version\":\"a\"}");
    assert_int_equal(wire_make(&r, WIRE_SGLANG, WIRE_UPDATE, native, &about, &e), 0);
    assert_non_null(strstr(r.body, "\"weight_version\":\"upd-7\"")); /* not yet what it is */
    wire_request_fini(&r);
    json_decref(native);
}

static void test_wire_make_names_the_group_that_was_joined(void **state)
{
    static const struct wire_about about = {.group_name = "g"}, unnamed = {.group_name = ""};
    json_t *native = parse("{\"transport\":\"nccl\",\"names\":[]}");
    enum wire_op ops[] = {WIRE_UPDATE, WIRE_LEAVE};
    struct wire_request r;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        assert_int_equal(wire_make(&r, WIRE_SGLANG, ops[i], native, &about, &e), 0);
        assert_non_null(strstr(r.body, "\"group_name\":\"g\""));
        wire_request_fini(&r);
        assert_int_equal(wire_make(&r, WIRE_SGLANG, ops[i], native, &unnamed, &e), 0);
        assert_null(strstr(r.body, "group_name"));
        wire_request_fini(&r);
    }
    json_decref(native);
}

static void test_wire_make_refuses_what_they_have_no_words_for(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        enum wire_op op;
        const char *native, *field;
    } bad[] = {
        {WIRE_VLLM, WIRE_INIT, "{\"group_name\":\"x\"}", "/group_name"},
        {WIRE_VLLM, WIRE_INIT, "{\"warm_up\":false}", "/warm_up"},
        {WIRE_VLLM, WIRE_UPDATE, "{\"shm\":{}}", "/shm"},
        {WIRE_VLLM, WIRE_UPDATE, "{\"path\":\"/w\"}", "/path"},
        {WIRE_VLLM, WIRE_UPDATE, "{\"checksums\":[]}", "/checksums"},
        {WIRE_VLLM, WIRE_START, "{\"partial\":true}", "/partial"},
        {WIRE_VLLM, WIRE_PAUSE, "{\"mode\":\"keep&level=2\"}", "/mode"},
        {WIRE_VLLM, WIRE_PAUSE, "{\"new_requests\":\"reject\"}", "/new_requests"},
        {WIRE_VLLM, WIRE_TENSOR_LIST, "{}", ""},
        {WIRE_VLLM, WIRE_UPDATE, "{\"chunk_id\":\"c\"}", "/chunk_id"},
        {WIRE_VLLM, WIRE_UPDATE, "{\"serialized_named_tensors\":[]}", "/serialized_named_tensors"},
        {WIRE_SGLANG, WIRE_UPDATE, "{\"packed\":true,\"bucket_nbytes\":4096}", "/packed"},
        {WIRE_SGLANG, WIRE_UPDATE, "{\"bucket_nbytes\":4096}", "/bucket_nbytes"},
        {WIRE_SGLANG, WIRE_PAUSE, "{\"new_requests\":\"reject\"}", "/new_requests"},
        {WIRE_SGLANG, WIRE_TENSOR_LIST, "{}", ""},
        {WIRE_VLLM, WIRE_WAKE, "{\"tags\":[\"a b\"]}", "/tags"},
        {WIRE_VLLM, WIRE_WAKE, "{\"tags\":[\"weights\",\"weights\",\"weights\"]}", "/tags"},
        {WIRE_VLLM, WIRE_SLEEP, "{\"level\":2,\"tags\":[\"weights\"]}", "/tags"},
        {WIRE_VLLM, WIRE_FINISH, "{\"checksums\":{}}", "/checksums"},
        {WIRE_VLLM, WIRE_LORA_LOAD, "{\"lora_name\":\"l\",\"shm\":{}}", "/lora_path"},
        {WIRE_SGLANG, WIRE_UPDATE, "{\"packed\":true}", "/packed"},
        {WIRE_SGLANG, WIRE_UPDATE, "{\"ipc_handles_pickled\":\"x\"}", "/ipc_handles_pickled"},
        {WIRE_SGLANG, WIRE_PAUSE, "{\"mode\":\"wait\"}", "/mode"},
        {WIRE_SGLANG, WIRE_ABORT_REQUESTS, "{\"request_ids\":[\"a\",\"b\"]}", "/request_ids"},
        {WIRE_SGLANG, WIRE_ABORT_REQUESTS, "{\"request_ids\":[\"\"]}", "/request_ids"},
    };
    static const struct wire_about none = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *native = parse(bad[i].native);
        struct wire_request r;
        struct err e = {0};

        assert_int_equal(wire_make(&r, bad[i].dialect, bad[i].op, native, &none, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, bad[i].field);
        if (bad[i].op == WIRE_UPDATE && strstr(e.msg, "know nothing of") != NULL)
            assert_non_null(strstr(e.msg, ": they take tensors over NCCL"));
        assert_null(r.body);
        json_decref(native);
    }
}

/* A pause or a sleep is the fleet's own doing, and ends before it is asked again. */
static void test_wire_read_who_would_serve(void **state)
{
    static const struct {
        const char *text, *unready;
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
    struct upstream_saw saw;

    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        wire_read_who(&saw, WIRE_BATON, asked[i].text, strlen(asked[i].text));
        assert_string_equal(saw.unready, asked[i].unready);
    }
}

static void test_wire_read_who(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        const char *text, *process, *label;
    } who[] = {
        {WIRE_BATON, "{\"boot_id\":\"b\",\"weights\":{\"weight_version\":\"v\"}}", "b", "v"},
        {WIRE_BATON, "{\"boot_id\":\"b\",\"weights\":{\"weight_version\":null}}", "b", ""},
        {WIRE_BATON, "<html>", "", ""},
        {WIRE_VLLM, "# HELP x\nprocess_start_time_seconds 1.7e+09\nvllm:x 1\n", "1.7e+09", ""},
        {WIRE_VLLM, "process_start", "", ""},
        {WIRE_SGLANG, "{\"weight_version\":\"v\"}", "", "v"},
        {WIRE_SGLANG, "", "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof who / sizeof who[0]; i++) {
        struct upstream_saw saw;

        wire_read_who(&saw, who[i].dialect, who[i].text, strlen(who[i].text));
        assert_string_equal(saw.process, who[i].process);
        assert_string_equal(saw.label, who[i].label);
    }
}

static void test_wire_read_ranks(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        const char *text;
        uint64_t n; /* 0: refused */
    } ranks[] = {
        {WIRE_BATON, "{\"cuda\":{\"ranks\":[{},{}]}}", 2},
        {WIRE_BATON, "{\"cuda\":{\"ranks\":[]}}", 0},
        {WIRE_VLLM, "{\"world_size\":8}", 8},
        {WIRE_VLLM, "{\"world_size\":\"8\"}", 0},
        {WIRE_VLLM, "{\"world_size\":-1}", 0},
        {WIRE_SGLANG, "{\"tp_size\":4,\"pp_size\":2,\"dp_size\":1}", 8},
        {WIRE_SGLANG, "{\"tp_size\":4}", 4},
        {WIRE_SGLANG, "{}", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const char *text = ranks[i].text;
        uint64_t n = 0;
        struct err e = {0};
        int rc = wire_read_ranks(&n, ranks[i].dialect, text, strlen(text), &e);

        assert_int_equal(rc, ranks[i].n > 0 ? 0 : -1);
        assert_int_equal(n, ranks[i].n);
    }
}

static void test_wire_read_open_update(void **state)
{
    static const char open[] = "{\"update\":{\"update_id\":\"upd-1\"}}";
    static const char none[] = "{\"update\":null}";
    char id[WIRE_UPDATE_ID_MAX + 1] = "";

    (void)state;
    assert_true(wire_read_open_update(id, open, sizeof open - 1));
    assert_string_equal(id, "upd-1");
    assert_false(wire_read_open_update(id, none, sizeof none - 1));
    assert_false(wire_read_open_update(id, "", 0));
}

static void test_wire_read_error(void **state)
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
        wire_read_error(out, sizeof out, errors[i].text, strlen(errors[i].text));
        assert_string_equal(out, errors[i].said);
    }
    wire_read_error(out, 4, "long text", 9);
    assert_string_equal(out, "lon");
}

static void test_wire_read_update_id(void **state)
{
    char id[WIRE_UPDATE_ID_MAX + 1] = "old";
    struct err e = {0};

    (void)state;
    assert_int_equal(wire_read_update_id(id, "{\"update_id\":\"upd-1\"}", 21, &e), 0);
    assert_string_equal(id, "upd-1");
    assert_int_equal(wire_read_update_id(id, "{}", 2, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_string_equal(id, "upd-1");
}

static void test_wire_read_name_takes_what_it_says(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        const char *text, *name; /* NULL: it does not say */
    } cases[] = {
        {WIRE_VLLM, "{\"weight_version\":\"step-1\"}", "step-1"},
        {WIRE_VLLM, "{\"weight_version\":null}", ""},
        {WIRE_VLLM, "{\"weight_version\":7}", NULL},
        {WIRE_VLLM, "{}", NULL},
        {WIRE_VLLM, "no JSON", NULL},
        {WIRE_VLLM, "", NULL},
        {WIRE_SGLANG, "{\"weight_version\":\"default\"}", "default"},
        {WIRE_SGLANG, "{\"version\":\"0.5\"}", NULL},
        {WIRE_BATON, "{\"weights\":{\"weight_version\":\"step-2\"}}", "step-2"},
        {WIRE_BATON, "{\"weight_version\":\"step-2\"}", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[WIRE_NAME_MAX + 1] = "before";
        struct err e = {0};
        int rc = wire_read_name(name, cases[i].dialect, cases[i].text, strlen(cases[i].text), &e);

        assert_int_equal(rc, cases[i].name != NULL ? 0 : -1);
        assert_string_equal(name, cases[i].name != NULL ? cases[i].name : "before");
        assert_int_equal(e.code, cases[i].name != NULL ? ERR_NONE : ERR_UNREADABLE);
    }
}

static void test_wire_read_name_shows_that_it_is_too_long(void **state)
{
    char name[WIRE_NAME_MAX + 1], text[WIRE_NAME_MAX + 64];
    struct err e = {0};

    (void)state;
    for (int len = WIRE_NAME_MAX - 1; len < WIRE_NAME_MAX + 10; len++) {
        (void)snprintf(text, sizeof text, "{\"weight_version\":\"%0*d\"}", len, 0);
        assert_int_equal(wire_read_name(name, WIRE_VLLM, text, strlen(text), &e), 0);
        assert_int_equal(strlen(name), len < WIRE_NAME_MAX ? len : WIRE_NAME_MAX);
    }
}

static void test_wire_ask_and_names(void **state)
{
    (void)state;
    for (int d = 0; d < WIRE_DIALECTS; d++) {
        enum wire_dialect found;
        struct err e = {0};

        assert_int_equal(
            wire_dialect_parse(&found, wire_dialect_name((enum wire_dialect)d), "--upstream", &e),
            0);
        assert_int_equal(found, d);
        for (int q = 0; q < WIRE_QUESTIONS; q++) {
            bool asks = (q != WIRE_LABEL_OF && q != WIRE_RELEASE) || found == WIRE_VLLM;
            struct wire_request r;

            assert_int_equal(wire_ask(&r, found, (enum wire_question)q, &e), 0);
            assert_true((r.method != NULL) == asks);
            assert_int_equal(r.path[0], asks ? '/' : '\0');
            assert_true((r.body != NULL) == (q == WIRE_TOKEN));
            wire_request_fini(&r);
        }
        if (d == 0)
            assert_int_equal(wire_dialect_parse(&found, "vLLM", "--upstream", &e), -1);
    }
}

/* What vLLM says of its version, which one of before, or without its mode for developers, does not.
 */
static void test_wire_read_label(void **state)
{
    static const struct {
        int status;
        const char *text, *label; /* label NULL: it is no answer */
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
        struct upstream_saw saw = {.label = "as it was"};
        struct err e = {0};
        int rc = wire_read_label(&saw, WIRE_VLLM, labels[i].status, labels[i].text,
                                 strlen(labels[i].text), &e);

        assert_int_equal(rc, labels[i].label != NULL ? 0 : -1);
        assert_int_equal(e.code, labels[i].label != NULL ? ERR_NONE : ERR_UNREADABLE);
        assert_string_equal(saw.label, labels[i].label != NULL ? labels[i].label : "");
    }
}

/* What a 200 says, in the answer to an operation; `good`: that it was done. */
static const struct done {
    enum wire_dialect dialect;
    enum wire_op op;
    const char *native, *answer;
    bool good;
} dones[] = {
    {WIRE_BATON, WIRE_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"receiving\"}", true},
    {WIRE_BATON, WIRE_UPDATE, "{}", "{\"update_id\":\"u2\",\"phase\":\"receiving\"}", false},
    {WIRE_BATON, WIRE_UPDATE, "{}", "{\"update_id\":\"u1\",\"phase\":\"aborted\"}", false},
    {WIRE_BATON, WIRE_UPDATE, "{}", "<html>", false},
    {WIRE_BATON, WIRE_VERIFY, "{}", "{\"update_id\":\"u1\",\"phase\":\"verified\"}", true},
    {WIRE_BATON, WIRE_VERIFY, "{}", "{\"update_id\":\"u1\",\"phase\":\"verifying\"}", false},
    {WIRE_BATON, WIRE_FINISH, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"committed\",\"weight_version\":\"a\"}", true},
    {WIRE_BATON, WIRE_FINISH, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"committed\",\"weight_version\":\"b\"}", false},
    {WIRE_BATON, WIRE_FINISH, "{\"weight_version\":\"a\"}",
     "{\"update_id\":\"u1\",\"phase\":\"verified\",\"weight_version\":\"a\"}", false},
    {WIRE_BATON, WIRE_ABORT, "{}", "{\"update_id\":\"u1\",\"phase\":\"aborted\"}", true},
    {WIRE_BATON, WIRE_ABORT, "{}", "{\"update_id\":\"u1\",\"phase\":\"open\"}", false},
    {WIRE_BATON, WIRE_PAUSE, "{}", "{\"paused\":true}", true},
    {WIRE_BATON, WIRE_PAUSE, "{}", "{\"paused\":false}", false},
    {WIRE_BATON, WIRE_RESUME, "{}", "{\"paused\":false}", true},
    {WIRE_BATON, WIRE_RESUME, "{}", "{}", false},
    {WIRE_BATON, WIRE_LABEL, "{\"weight_version\":\"a\"}", "{\"weight_version\":\"b\"}", false},
    {WIRE_BATON, WIRE_INIT, "{\"transport\":\"nccl\"}", "{\"state\":\"joined\"}", true},
    {WIRE_BATON, WIRE_INIT, "{\"transport\":\"nccl\"}", "{\"state\":\"failed\"}", false},
    {WIRE_BATON, WIRE_INIT, "{\"transport\":\"ipc\"}", "{\"state\":\"none\"}", true},
    {WIRE_VLLM, WIRE_RESUME, "{}", "{\"status\":\"resumed\"}", true},
    {WIRE_VLLM, WIRE_SLEEP, "{}", "", true},
    {WIRE_VLLM, WIRE_UPDATE, "{}", "{\"error\":{\"message\":\"no\"}}", false},
    {WIRE_SGLANG, WIRE_WAKE, "{}", "null", true},
    {WIRE_SGLANG, WIRE_UPDATE, "{}", "{\"success\":true,\"message\":\"\"}", true},
    {WIRE_SGLANG, WIRE_UPDATE, "{}", "{\"success\":false,\"message\":\"shapes\"}", false},
    {WIRE_SGLANG, WIRE_LORA_LOAD, "{}", "{\"success\":true,\"error_message\":null}", true},
    {WIRE_SGLANG, WIRE_FINISH, "{\"weight_version\":\"a\"}",
     "{\"success\":true,\"new_version\":\"b\"}", false},
};

static void test_wire_read_absent_tells_none_from_no(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        int status;
        const char *text;
        bool absent;
    } said[] = {
        {WIRE_VLLM, 404, "{\"error\":{\"message\":\"The lora adapter 'x' cannot be found\"}}",
         true},
        {WIRE_VLLM, 400, "{}", false},
        {WIRE_BATON, 404, "", true},
        {WIRE_BATON, 500, "not found", false},
        {WIRE_SGLANG, 400,
         "{\"success\":false,\"error_message\":\"LoRA with name x does not exist. Loaded LoRAs: "
         "dict_keys([])\"}",
         true},
        {WIRE_SGLANG, 400,
         "{\"success\":false,\"error_message\":\"LoRA with name y does not exist\"}", false},
        {WIRE_SGLANG, 400, "{\"success\":false,\"error_message\":\"LoRA is not enabled\"}", false},
        {WIRE_SGLANG, 400, "x does not exist", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        assert_int_equal(wire_read_absent(said[i].dialect, "x", said[i].status, said[i].text,
                                          strlen(said[i].text)),
                         said[i].absent);
}

static void test_wire_read_done_believes_the_body(void **state)
{
    static const struct wire_about about = {.update_id = "u1"};

    (void)state;
    for (size_t i = 0; i < sizeof dones / sizeof dones[0]; i++) {
        const struct done *d = &dones[i];
        json_t *native = json_loads(d->native, 0, NULL);
        struct err e = {0};
        int rc = wire_read_done(d->dialect, d->op, native, &about, d->answer, strlen(d->answer),
                                &e);

        if ((rc == 0) != d->good)
            fail_msg("%s: %d, %s", d->answer, rc, e.msg);
        assert_int_equal(e.code, d->good ? ERR_NONE : ERR_UPSTREAM);
        json_decref(native);
    }
}

static void test_wire_resets_surely_takes_silence_for_no_proof(void **state)
{
    static const struct {
        enum wire_dialect dialect;
        const char *native, *answer;
        bool surely;
    } said[] = {
        {WIRE_VLLM, "{\"running\":true}", "", true}, /* it would have failed */
        {WIRE_VLLM, "{\"running\":false}", "", false},
        {WIRE_VLLM, "{}", "{\"success\":true}", true},
        {WIRE_VLLM, "{}", "{\"success\":\"true\"}", false},
        {WIRE_VLLM, "{}", "{\"success\":true", false},
        {WIRE_VLLM, "{}", "true", false},
        {WIRE_SGLANG, "{}", "Cache flushed.\n", true},
        {WIRE_BATON, "{}", "{}", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        json_t *native = json_loads(said[i].native, 0, NULL);

        assert_int_equal(
            wire_resets_surely(said[i].dialect, native, said[i].answer, strlen(said[i].answer)),
            said[i].surely);
        json_decref(native);
    }
}

/* What ends an update that has begun takes no name, and nothing that begins none. */
static void test_wire_make_of_what_has_begun(void **state)
{
    static const struct wire_about begun = {.update_id = "upd-7", .has_begun = true};
    json_t *native = parse("{\"weight_version\":\"a\"}"), *file = parse("{\"path\":\"/w\"}");
    struct wire_request r;
    struct err e = {0};

    (void)state;
    assert_int_equal(wire_make(&r, WIRE_SGLANG, WIRE_FINISH, native, &begun, &e), 0);
    assert_string_equal(r.path, "/end_weight_update");
    assert_string_equal(r.body, "{}");
    wire_request_fini(&r);
    assert_int_equal(wire_make(&r, WIRE_SGLANG, WIRE_UPDATE, file, &begun, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/path");
    assert_null(r.method);
    json_decref(native);
    json_decref(file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_resets_surely_takes_silence_for_no_proof),
        cmocka_unit_test(test_wire_make_says_it_in_their_words),
        cmocka_unit_test(test_wire_make_puts_in_what_is_each_ones_own),
        cmocka_unit_test(test_wire_make_names_the_group_that_was_joined),
        cmocka_unit_test(test_wire_make_refuses_what_they_have_no_words_for),
        cmocka_unit_test(test_wire_read_who),
        cmocka_unit_test(test_wire_read_who_would_serve),
        cmocka_unit_test(test_wire_read_ranks),
        cmocka_unit_test(test_wire_read_open_update),
        cmocka_unit_test(test_wire_read_error),
        cmocka_unit_test(test_wire_read_update_id),
        cmocka_unit_test(test_wire_read_absent_tells_none_from_no),
        cmocka_unit_test(test_wire_read_done_believes_the_body),
        cmocka_unit_test(test_wire_read_name_takes_what_it_says),
        cmocka_unit_test(test_wire_read_name_shows_that_it_is_too_long),
        cmocka_unit_test(test_wire_ask_and_names),
        cmocka_unit_test(test_wire_make_of_what_has_begun),
        cmocka_unit_test(test_wire_read_label),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
