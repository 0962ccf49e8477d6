/* Answers: their form, their headers, and that there is one even without memory. */
#include "handlers/reply.h"

#include "http/http_request_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* jansson's allocations fail from the n-th on; -1: never. */
static long allocations_left = -1;

static void *scarce_malloc(size_t nbytes)
{
    if (allocations_left == 0)
        return NULL;
    if (allocations_left > 0)
        allocations_left--;
    return malloc(nbytes);
}

void *__real_realloc(void *p, size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);

/* The n-th realloc from now fails, once; -1: none does. */
static long realloc_countdown = -1;

void *__wrap_realloc(void *p, size_t nbytes)
{
    if (realloc_countdown >= 0 && realloc_countdown-- == 0)
        return NULL;
    return __real_realloc(p, nbytes);
}

static const struct route native = {.form = FORM_NATIVE}, openai = {.form = FORM_OPENAI};

static void no_wake(struct http_request_http_server *http_server)
{
    (void)http_server;
}

/* An request whose answer stays where the test can read it. */
static struct http_request *open_http_request(const struct route *route)
{
    static struct http_request_http_server http_server = {.wake = no_wake};
    struct http_request *x;
    struct err e = {0};

    assert_int_equal(http_request_new(&x, &http_server, &e), 0);
    x->route = route;
    return http_request_ref(x); /* one for who answers */
}

static const char *header(const struct http_reply *r, const char *name)
{
    for (size_t i = 0; i < r->n_headers; i++) {
        if (strcmp(r->headers[i].name, name) == 0)
            return r->headers[i].value;
    }
    return NULL;
}

/* JSON bodies end in a newline, for people who read them in a terminal. */
static void assert_body(const struct http_reply *r, const char *text)
{
    assert_int_equal(r->len, strlen(text) + 1);
    assert_memory_equal(r->data, text, strlen(text));
    assert_int_equal(((const char *)r->data)[r->len - 1], '\n');
    assert_string_equal(r->content_type, "application/json");
}

static void test_reply_json_is_compact(void **state)
{
    struct http_request *x = open_http_request(&native);
    const struct http_reply *r = &x->priv->reply;

    (void)state;
    reply_json(x, 200, json_pack("{s:[i, f, n], s:s}", "a", 1, 0.5, "b", "\xc3\xa9\n"));
    assert_int_equal(r->status, 200);
    assert_body(r, "{\"a\":[1,0.5,null],\"b\":\"\xc3\xa9\\n\"}");
    assert_null(header(r, "Retry-After"));
    assert_null(r->log_code);
    http_request_unref(x);
}

static void test_reply_json_keeps_a_nul(void **state)
{
    struct http_request *x = open_http_request(&native);

    (void)state;
    reply_json(x, 200, json_pack("{s:o}", "text", json_stringn("a\0b", 3)));
    assert_body(&x->priv->reply, "{\"text\":\"a\\u0000b\"}");
    http_request_unref(x);
}

static void test_reply_empty(void **state)
{
    struct http_request *x = open_http_request(&native);
    const struct http_reply *r = &x->priv->reply;

    (void)state;
    reply_empty(x, 200);
    assert_int_equal(r->status, 200);
    assert_int_equal(r->len, 0);
    assert_null(r->content_type);
    http_request_unref(x);
}

static void test_reply_error_native_form(void **state)
{
    struct http_request *x = open_http_request(&native);
    const struct http_reply *r = &x->priv->reply;
    struct err e = {0};

    (void)state;
    (void)err_set(&e, ERR_INCOMPLETE, "/names", "1 of 2 tensors is missing");
    reply_error(x, &e, json_pack("{s:[s]}", "missing", "b"));
    assert_int_equal(r->status, 422);
    assert_body(r, "{\"error\":{\"message\":\"1 of 2 tensors is missing\","
                   "\"type\":\"unprocessable_error\",\"code\":\"incomplete_update\","
                   "\"param\":\"/names\",\"retryable\":false,\"details\":{\"missing\":[\"b\"]}}}");
    assert_string_equal(r->log_code, "incomplete_update");
    http_request_unref(x);
}

static void test_reply_error_openai_form(void **state)
{
    struct http_request *x = open_http_request(&openai);
    const struct http_reply *r = &x->priv->reply;
    struct err e = {0};

    (void)state;
    (void)err_set(&e, ERR_BAD_REQUEST, "", "prompt is missing, it is required");
    reply_error(x, &e, json_pack("{s:i}", "dropped", 1));
    assert_int_equal(r->status, 400);
    assert_body(r, "{\"error\":{\"message\":\"prompt is missing, it is required\","
                   "\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}");
    http_request_unref(x);
}

static void test_reply_error_names_places_as_vllm(void **state)
{
    static const struct {
        const char *field, *native, *openai, *sglang;
    } rows[] = {
        {"/model", "/model", "model", "/model: no"},
        {"/tokens/1", "/tokens/1", "tokens.1", "/tokens/1: no"},
        {"/sampling_params/stop/0", "/sampling_params/stop/0", "sampling_params.stop.0",
         "/sampling_params/stop/0: no"},
        {"/checksums/a~1b~0c", "/checksums/a~1b~0c", "checksums.a/b~c", "/checksums/a~1b~0c: no"},
        {"mode", "mode", "mode", "mode: no"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};

        (void)err_set(&e, ERR_BAD_REQUEST, rows[i].field, "no");
        for (int form = 0; form < 3; form++) {
            static const enum route_form forms[] = {FORM_NATIVE, FORM_OPENAI, FORM_SGLANG};
            const char *wants[] = {rows[i].native, rows[i].openai, rows[i].sglang};
            json_t *body = reply_error_json(forms[form], &e, NULL);
            const json_t *error = json_object_get(body, "error");

            assert_string_equal(
                json_string_value(json_object_get(error, form < 2 ? "param" : "message")),
                wants[form]);
            json_decref(body);
        }
    }
}

/* Every code of the table, in both forms: type, status, Retry-After. */
static void test_reply_error_make_every_code(void **state)
{
    static const struct {
        int status;
        const char *native, *openai;
    } rows[] = {
        {400, "invalid_request_error", "BadRequestError"},
        {401, "invalid_request_error", "Unauthorized"},
        {403, "invalid_request_error", "Forbidden"},
        {404, "not_found_error", "NotFoundError"},
        {405, "invalid_request_error", "Method Not Allowed"},
        {408, "invalid_request_error", "Request Timeout"},
        {409, "conflict_error", "Conflict"},
        {410, "invalid_request_error", "Gone"},
        {413, "invalid_request_error", "Request Entity Too Large"},
        {414, "invalid_request_error", "BadRequestError"},
        {415, "invalid_request_error", "BadRequestError"}, /* and a 400 there, as in vLLM */
        {416, "invalid_request_error", "Range Not Satisfiable"},
        {417, "invalid_request_error", "Expectation Failed"},
        {421, "invalid_request_error", "BadRequestError"},
        {422, "unprocessable_error", "UnprocessableEntityError"},
        {431, "invalid_request_error", "BadRequestError"},
        {499, "invalid_request_error", "Client Closed Request"},
        {501, "server_error", "NotImplementedError"},
        {500, "server_error", "InternalServerError"},
        {502, "server_error", "InternalServerError"},
        {503, "unavailable_error", "ServiceUnavailable"},
        {504, "server_error", "InternalServerError"},
        {505, "server_error", "InternalServerError"},
        {507, "unavailable_error", "InternalServerError"},
    };

    (void)state;
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++) {
        struct err e = {.code = (enum err_code)code, .msg = "m"};
        int status = err_http_status(e.code);
        size_t row = 0;

        while (row < sizeof rows / sizeof rows[0] && rows[row].status != status)
            row++;
        if (row == sizeof rows / sizeof rows[0])
            fail_msg("status %d has no type", status);
        for (int form = 0; form < 2; form++) {
            struct http_reply r = {0};
            json_t *body, *error;

            reply_error_make(form == 0 ? &native : &openai, &e, NULL, &r);
            body = json_loadb(r.data, r.len, 0, NULL);
            error = json_object_get(body, "error");
            if (form == 1 && status == 415)
                status = 400;
            assert_int_equal(r.status, status);
            assert_string_equal(json_string_value(json_object_get(error, "type")),
                                form == 0 ? rows[row].native : rows[row].openai);
            assert_true((header(&r, "Retry-After") != NULL) == (status == 503 || status == 507));
            assert_string_equal(r.log_code, err_wire_name(e.code));
            assert_true(json_is_null(json_object_get(error, "param")));
            if (form == 0) {
                assert_true(json_is_null(json_object_get(error, "details")));
                assert_int_equal(json_is_true(json_object_get(error, "retryable")),
                                 err_retryable(e.code));
            } else {
                assert_int_equal(json_integer_value(json_object_get(error, "code")), status);
            }
            json_decref(body);
            r.release(r.release_arg);
        }
    }
}

static void test_reply_error_make_without_a_route_is_native(void **state)
{
    struct http_reply r = {0};
    struct err e = {0};

    (void)state;
    (void)err_set(&e, ERR_NOT_FOUND, "", "there is no route /x");
    reply_error_make(NULL, &e, NULL, &r);
    assert_non_null(strstr(r.data, "\"code\":\"not_found\""));
    r.release(r.release_arg);
}

/* What a client put into a message, or a cut through a character, must not cost the message. */
static void test_reply_error_json_cleans_bytes(void **state)
{
    struct err e = {0};
    json_t *body;

    (void)state;
    (void)err_set(&e, ERR_NOT_FOUND, "/\xff", "there is no route /\xc3\x28 \"\x01\xe2\x82");
    body = reply_error_json(FORM_NATIVE, &e, NULL);
    assert_non_null(body);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(body, "error"), "message")),
        "there is no route /?( \" ??");
    assert_string_equal(json_string_value(json_object_get(json_object_get(body, "error"), "param")),
                        "/?");
    json_decref(body);
    memset(e.msg, 0xe2, sizeof e.msg - 1);
    body = reply_error_json(FORM_OPENAI, &e, NULL);
    assert_non_null(body);
    json_decref(body);
}

/* The first, second, ... allocation fails, and all after it: there is an answer all the same, and
 * it is the right one or a 503. */
static void test_reply_error_answers_without_memory(void **state)
{
    static const struct route *const routes_of[] = {&native, &openai};
    struct err e = {0};

    (void)state;
    (void)err_set(&e, ERR_CONFLICT, "/update_id", "an update is open");
    for (int form = 0; form < 2; form++) {
        int status = 0, n_last_resorts = 0;

        for (int n = 0; status != 409; n++) {
            struct http_request *x = open_http_request(routes_of[form]);
            const struct http_reply *r = &x->priv->reply;
            json_t *details = json_pack("{s:i}", "n", 1), *body;

            allocations_left = n;
            reply_error(x, &e, details);
            allocations_left = -1;
            status = r->status;
            assert_true(status == 409 || status == 503);
            if (status == 503) {
                n_last_resorts++;
                assert_string_equal(header(r, "Retry-After"), "1");
                assert_string_equal(r->log_code, "out_of_memory");
            }
            body = json_loadb(r->data, r->len, 0, NULL);
            assert_non_null(json_object_get(json_object_get(body, "error"), "message"));
            assert_true(json_is_integer(json_object_get(json_object_get(body, "error"), "code")) ==
                        (form == 1));
            json_decref(body);
            http_request_unref(x);
        }
        assert_true(n_last_resorts > 3);
    }
}

static void test_reply_json_answers_without_memory(void **state)
{
    struct http_request *x = open_http_request(&openai);
    json_t *body = json_pack("{s:s}", "text", "as it was meant");

    (void)state;
    reply_json(x, 200, NULL); /* building it failed */
    assert_int_equal(x->priv->reply.status, 503);
    assert_non_null(strstr(x->priv->reply.data, "\"code\":503"));
    http_request_unref(x);

    x = open_http_request(NULL);
    allocations_left = 0;
    reply_json(x, 200, body);
    allocations_left = -1;
    assert_int_equal(x->priv->reply.status, 503);
    assert_string_equal(header(&x->priv->reply, "Retry-After"), "1");
    assert_non_null(strstr(x->priv->reply.data, "\"code\":\"out_of_memory\""));
    http_request_unref(x);
}

/* One growth of the text that fails, wherever it falls: the answer is whole, or the 503. jansson's
 * own buffer would have lost a key and gone on. */
static void test_reply_json_is_whole_or_refused(void **state)
{
    bool failed = true;

    (void)state;
    for (int shift = 0; shift < 16; shift++) {
        failed = true;
        for (long n = 0; failed; n++) {
            struct http_request *x = open_http_request(&native);
            json_t *body = json_object(), *found;

            for (int i = 0; i < 400; i++) {
                char key[48];
                (void)snprintf(key, sizeof key, "%.*s%d", shift, "________________", i);
                assert_int_equal(json_object_set_new(body, key, json_integer(i)), 0);
            }
            realloc_countdown = n;
            allocations_left = -1;
            reply_json(x, 200, json_incref(body));
            failed = realloc_countdown < 0;
            realloc_countdown = -1;
            found = json_loadb(x->priv->reply.data, x->priv->reply.len, 0, NULL);
            assert_non_null(found);
            assert_int_equal(x->priv->reply.status, failed ? 503 : 200);
            assert_int_equal(json_equal(found, body), !failed);
            json_decref(found);
            json_decref(body);
            http_request_unref(x);
        }
    }
}

static int setup(void **state)
{
    (void)state;
    json_set_alloc_funcs(scarce_malloc, free);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply_json_is_compact),
        cmocka_unit_test(test_reply_json_keeps_a_nul),
        cmocka_unit_test(test_reply_empty),
        cmocka_unit_test(test_reply_error_native_form),
        cmocka_unit_test(test_reply_error_openai_form),
        cmocka_unit_test(test_reply_error_names_places_as_vllm),
        cmocka_unit_test(test_reply_error_make_every_code),
        cmocka_unit_test(test_reply_error_make_without_a_route_is_native),
        cmocka_unit_test(test_reply_error_json_cleans_bytes),
        cmocka_unit_test(test_reply_error_answers_without_memory),
        cmocka_unit_test(test_reply_json_answers_without_memory),
        cmocka_unit_test(test_reply_json_is_whole_or_refused),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
