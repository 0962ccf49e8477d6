/* The life of a generate without sockets or a model: one answer and one permit back on every path.
 */
#include "control/admission.h"
#include "control/generations.h"
#include "handlers/data_plane.h"
#include "handlers/generate/generation_reply.h"
#include "tests/fakes/data_plane.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct route native = {.methods = METHOD_POST,
                                    .pattern = "/v1/generate",
                                    .operation_id = "generate",
                                    .executor = EXECUTOR_GENERATE,
                                    .body = BODY_JSON,
                                    .strict = true,
                                    .form = FORM_NATIVE,
                                    .members = generate_members,
                                    .operation = OPERATION_GENERATE};
static const struct route lenient = {.methods = METHOD_POST,
                                     .pattern = "/inference/v1/generate",
                                     .operation_id = "inferenceGenerate",
                                     .executor = EXECUTOR_GENERATE,
                                     .body = BODY_JSON,
                                     .form = FORM_OPENAI,
                                     .members = generate_members,
                                     .operation = OPERATION_GENERATE};

/* At every other look, beginning with the next: more is unsent than a client may be behind. */
static bool wavers;
static atomic_uint n_looks;

size_t __wrap_http_request_stream_unsent(struct http_request *x);
size_t __real_http_request_stream_unsent(struct http_request *x);

size_t __wrap_http_request_stream_unsent(struct http_request *x)
{
    if (wavers && atomic_fetch_add(&n_looks, 1) % 2 == 0)
        return GENERATION_UNSENT_MAX + 1;
    return __real_http_request_stream_unsent(x);
}

static size_t n_running(struct plane *p)
{
    struct admission_stats s;

    admission_stats(p->app.generate->admission, &s);
    return s.n_running;
}

static size_t n_waiting(struct plane *p)
{
    struct admission_stats s;

    admission_stats(p->app.generate->admission, &s);
    return s.n_waiting;
}

static const json_t *error_of(const json_t *reply)
{
    const json_t *error = json_object_get(reply, "error");

    assert_true(json_is_object(error));
    return error;
}

static void test_generate_answers_when_every_sequence_ended(void **state)
{
    static const uint32_t first[] = {10, 11}, more[] = {12}, other[] = {20};
    struct plane *p = plane_new(1, 8, NULL);
    json_t *reply, *choices, *c, *span, *entry;
    struct plane_x px;
    int status = 0;

    (void)state;
    plane_send(p, &px, &native,
               "{\"token_ids\": [1, 2, 3], \"request_id\": \"mine\", \"model\": \"fake-model\","
               " \"sampling_params\": {\"n\": 2, \"logprobs\": 2, \"prompt_logprobs\": 0,"
               " \"seed\": 5, \"max_tokens\": 8}}");
    plane_wait_submitted(p, 2);
    assert_int_equal(p->seqs[0].r.params.seed, 5);
    assert_int_equal(p->seqs[1].r.params.seed, 6);
    assert_int_equal(p->seqs[1].r.n_prompt, 3);
    assert_int_equal(p->seqs[1].r.params.prompt_logprobs, -1);
    plane_tokens(p, 1, first, 2, 1);
    plane_tokens(p, 2, other, 1, 1);
    plane_tokens(p, 1, more, 1, 2);
    plane_end(p, 1, GEN_STOP);
    assert_int_equal(n_running(p), 1); /* the other sequence is not done */
    assert_int_equal(http_request_answered(px.x), ANSWER_NONE);
    plane_end(p, 2, GEN_LENGTH);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    assert_int_equal(n_running(p), 0);
    assert_string_equal(json_string_value(json_object_get(reply, "request_id")), "mine");
    assert_string_equal(json_string_value(json_object_get(reply, "boot_id")), p->life.boot_id);
    assert_true(json_is_null(json_object_get(reply, "kv_transfer_params")));
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(reply, "usage"), "completion_tokens")),
        4);
    assert_int_equal(json_array_size(json_object_get(reply, "prompt_logprobs")), 3);
    assert_true(json_is_null(json_array_get(json_object_get(reply, "prompt_logprobs"), 0)));
    choices = json_object_get(reply, "choices");
    assert_int_equal(json_array_size(choices), 2);
    c = json_array_get(choices, 0);
    assert_int_equal(json_array_size(json_object_get(c, "token_ids")), 3);
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "stop");
    assert_true(json_is_null(json_object_get(c, "stop_reason")));
    assert_true(json_is_null(json_object_get(c, "routed_experts")));
    assert_int_equal(json_array_size(json_object_get(c, "weight_versions")), 2);
    span = json_array_get(json_object_get(c, "weight_versions"), 1);
    assert_string_equal(json_string_value(json_object_get(span, "version")), "step-2");
    assert_int_equal(json_integer_value(json_object_get(span, "start")), 2);
    assert_int_equal(json_integer_value(json_object_get(span, "end")), 3);
    assert_int_equal(json_integer_value(json_object_get(span, "serial")), 2);
    entry = json_array_get(json_object_get(json_object_get(c, "logprobs"), "content"), 2);
    assert_string_equal(json_string_value(json_object_get(entry, "token")), "token_id:12");
    assert_true(json_real_value(json_object_get(entry, "logprob")) == -0.5);
    assert_int_equal(json_array_size(json_object_get(entry, "top_logprobs")), 2);
    assert_true(json_is_null(json_object_get(entry, "bytes")));
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

/* The request's word, else the server's; for every sequence of it. */
static void test_generate_hands_on_what_a_commit_does(void **state)
{
    static const struct {
        const char *member;
        enum gen_on_update of_server, wanted;
    } rows[] = {
        {"", GEN_ON_UPDATE_CONTINUE, GEN_ON_UPDATE_CONTINUE},
        {"", GEN_ON_UPDATE_RECOMPUTE, GEN_ON_UPDATE_RECOMPUTE},
        {", \"on_update\": null", GEN_ON_UPDATE_FINISH, GEN_ON_UPDATE_FINISH},
        {", \"on_update\": \"continue\"", GEN_ON_UPDATE_FINISH, GEN_ON_UPDATE_CONTINUE},
        {", \"on_update\": \"finish\"", GEN_ON_UPDATE_CONTINUE, GEN_ON_UPDATE_FINISH},
        {", \"on_update\": \"recompute\"", GEN_ON_UPDATE_FINISH, GEN_ON_UPDATE_RECOMPUTE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = plane_new(1, 8, NULL);
        char body[256];
        struct plane_x px;
        int status = 0;

        p->app.settings.on_update = rows[i].of_server;
        (void)snprintf(body, sizeof body, "{\"token_ids\": [1], \"sampling_params\": {\"n\": 2}%s}",
                       rows[i].member);
        plane_send(p, &px, i % 2 ? &native : &lenient, body);
        plane_wait_submitted(p, 2);
        assert_int_equal(p->seqs[0].r.on_update, rows[i].wanted);
        assert_int_equal(p->seqs[1].r.on_update, rows[i].wanted);
        plane_end(p, 1, GEN_LENGTH);
        plane_end(p, 2, GEN_LENGTH);
        json_decref(plane_wait_reply(&px, &status));
        assert_int_equal(status, 200);
        plane_x_fini(&px);
        plane_free(p);
    }
}

static void test_generate_refuses_at_once(void **state)
{
    static const struct {
        const struct route *route;
        const char *body, *param;
        int status;
    } rows[] = {
        {&native, "{\"token_ids\": [1]}", "/sampling_params", 400},
        {&native, "{\"sampling_params\": {}}", "/token_ids", 400},
        {&native, "{\"token_ids\": [], \"sampling_params\": {}}", "/token_ids", 400},
        {&native, "{\"token_ids\": [1, 1024], \"sampling_params\": {}}", "/token_ids/1", 400},
        {&native, "{\"token_ids\": \"hi\", \"sampling_params\": {}}", "/token_ids", 400},
        {&native, "{\"token_ids\": [1], \"sampling_params\": {}, \"model\": \"x\"}", "/model", 404},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"model\": \"x\"}", "model", 404},
        {&native, "{\"token_ids\": [1], \"sampling_params\": {\"tempreature\": 1}}",
         "/sampling_params/tempreature", 400},
        {&native, "{\"token_ids\": [1], \"sampling_params\": {}, \"tokens\": 1}", "/tokens", 400},
        {&native, "{\"token_ids\": [1], \"sampling_params\": {}, \"on_update\": \"stop\"}",
         "/on_update", 400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"on_update\": 1}", "on_update",
         400},
        {&native, "{\"token_ids\": [1], \"sampling_params\": {}, \"priority\": 1}", "/priority",
         400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"features\": {}}", "features",
         400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"kv_transfer_params\": {}}",
         "kv_transfer_params", 400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"cache_salt\": \"\"}",
         "cache_salt", 400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"output_mode\": \"text\"}",
         "output_mode", 400},
        {&lenient, "{\"token_ids\": [1], \"sampling_params\": {}, \"stream_options\": {}}",
         "stream_options", 400},
        {&native,
         "{\"token_ids\": [1], \"sampling_params\": {\"prompt_logprobs\": 0}, \"stream\": true}",
         "/sampling_params/prompt_logprobs", 400},
    };
    struct plane *p = plane_new(1, 8, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane_x px;
        int status = 0;
        json_t *reply;

        plane_send(p, &px, rows[i].route, rows[i].body);
        reply = plane_wait_reply(&px, &status);
        if (status != rows[i].status)
            fail_msg("%s: status %d", rows[i].body, status);
        assert_string_equal(json_string_value(json_object_get(error_of(reply), "param")),
                            rows[i].param);
        json_decref(reply);
        plane_x_fini(&px);
    }
    assert_int_equal(p->n_seqs, 0);
    plane_free(p);
}

static void test_generate_long_prompt_and_no_engine(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    char body[1024] = "{\"sampling_params\": {}, \"token_ids\": [0";
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    for (int i = 1; i < PLANE_CONTEXT; i++)
        strcat(body, ",0");
    strcat(body, "]}");
    plane_send(p, &px, &native, body);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 400);
    assert_string_equal(json_string_value(json_object_get(error_of(reply), "param")), "/token_ids");
    json_decref(reply);
    plane_x_fini(&px);

    p->app.generate->engine = NULL;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {}}");
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 409);
    assert_string_equal(json_string_value(json_object_get(error_of(reply), "code")), "no_engine");
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static const char simple[] = "{\"token_ids\": [1], \"sampling_params\": {}}";

static void test_queue_over_its_bound_is_503(void **state)
{
    struct plane *p = plane_new(1, 0, NULL);
    struct plane_x a, b;
    int status = 0;

    (void)state;
    plane_send(p, &a, &native, simple);
    plane_wait_submitted(p, 1);
    plane_send(p, &b, &native, simple);
    json_decref(plane_wait_reply(&b, &status));
    assert_int_equal(status, 503);
    plane_end(p, 1, GEN_LENGTH);
    json_decref(plane_wait_reply(&a, &status));
    assert_int_equal(status, 200);
    plane_x_fini(&a);
    plane_x_fini(&b);
    plane_free(p);
}

static void test_gone_while_queued_is_dropped(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x a, b, c;
    int status = 0;

    (void)state;
    plane_send(p, &a, &native, simple);
    plane_wait_submitted(p, 1);
    plane_send(p, &b, &native, simple);
    plane_send(p, &c, &native, simple);
    assert_int_equal(n_waiting(p), 2);
    http_request_mark_disconnected(b.x);
    assert_int_equal(n_waiting(p), 1);
    json_decref(plane_wait_reply(&b, &status));
    assert_int_equal(status, 499);
    plane_end(p, 1, GEN_LENGTH);
    plane_wait_submitted(p, 2); /* c, not b */
    plane_end(p, 2, GEN_LENGTH);
    json_decref(plane_wait_reply(&c, &status));
    assert_int_equal(status, 200);
    json_decref(plane_wait_reply(&a, &status));
    assert_int_equal(p->n_seqs, 2);
    plane_x_fini(&a);
    plane_x_fini(&b);
    plane_x_fini(&c);
    plane_free(p);
}

static void test_gone_while_running_cancels_and_keeps_the_permit(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;

    (void)state;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {\"n\": 3}}");
    plane_wait_submitted(p, 3);
    plane_end(p, 2, GEN_LENGTH);
    http_request_mark_disconnected(px.x);
    plane_wait_cancels(p, 2);
    assert_false(p->seqs[1].cancelled);
    plane_end(p, 1, GEN_ABORT);
    assert_int_equal(n_running(p), 1);
    assert_int_equal(http_request_answered(px.x), ANSWER_NONE);
    plane_end(p, 3, GEN_ABORT);
    json_decref(plane_wait_reply(&px, &status));
    assert_int_equal(status, 499);
    assert_int_equal(n_running(p), 0);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_gone_while_submitting_cancels_that_sequence(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;

    (void)state;
    p->hang_up = &px;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {\"n\": 3}}");
    plane_wait_cancels(p, 1);
    assert_int_equal(p->n_seqs, 1); /* the others were not submitted */
    plane_end(p, 1, GEN_ABORT);
    json_decref(plane_wait_reply(&px, &status));
    assert_int_equal(status, 499);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_gone_before_the_handler_ran(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct http_request *x = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(http_request_new(&x, NULL, &e), 0);
    x->route = &native;
    x->body = strdup(simple);
    x->body_len = strlen(simple);
    http_request_ref(x);
    http_request_mark_disconnected(x);
    assert_int_equal(handle_generate(&p->app, x, &e), 0);
    assert_int_equal(http_request_answered(x), ANSWER_REPLY);
    assert_int_equal(p->n_seqs, 0);
    http_request_unref(x);
    plane_free(p);
}

static void test_refused_sequence_cancels_the_others(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    p->refuse_from = 3;
    plane_send(p, &px, &native, "{\"token_ids\": [1, 2], \"sampling_params\": {\"n\": 4}}");
    plane_wait_cancels(p, 2);
    assert_int_equal(http_request_answered(px.x), ANSWER_NONE);
    plane_end(p, 1, GEN_ABORT);
    plane_end(p, 2, GEN_ABORT);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 400);
    assert_string_equal(json_string_value(json_object_get(error_of(reply), "param")),
                        "/token_ids/1");
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_engine_error_is_the_answer(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &native, "{\"token_ids\": [1, 2], \"sampling_params\": {\"n\": 2}}");
    plane_wait_submitted(p, 2);
    plane_end(p, 2, GEN_ERROR);
    plane_wait_cancels(p, 1);
    plane_end(p, 1, GEN_ABORT);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 500);
    assert_string_equal(json_string_value(json_object_get(error_of(reply), "code")),
                        "engine_error");
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_abort_by_the_engine_keeps_the_tokens(void **state)
{
    static const uint32_t ids[] = {4, 5};
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;
    json_t *reply, *c;

    (void)state;
    plane_send(p, &px, &lenient, simple);
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 2, 1);
    plane_end(p, 1, GEN_ABORT);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    c = json_array_get(json_object_get(reply, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "abort");
    assert_int_equal(json_array_size(json_object_get(c, "token_ids")), 2);
    assert_true(json_is_null(json_object_get(c, "logprobs")));
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

/* The payload of event i of a stream, parsed (new); NULL when it is [DONE]. */
static json_t *event(const char *stream, size_t i)
{
    const char *at = stream, *end;
    json_t *json;

    for (;; i--) {
        assert_int_equal(strncmp(at, "data: ", 6), 0);
        end = strstr(at, "\n\n");
        assert_non_null(end);
        if (i == 0)
            break;
        at = end + 2;
    }
    at += 6;
    if (strncmp(at, "[DONE]", 6) == 0)
        return NULL;
    json = json_loadb(at, (size_t)(end - at), 0, NULL);
    assert_non_null(json);
    return json;
}

static void test_stream_tells_each_token_once(void **state)
{
    static const uint32_t ids[] = {4, 5, 6, 7};
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    size_t n_told = 0, i;
    bool complete = false;
    char *text;
    json_t *e;

    (void)state;
    plane_send(p, &px, &native,
               "{\"token_ids\": [1], \"sampling_params\": {\"logprobs\": 0}, \"stream\": true, "
               "\"stream_options\": {\"include_usage\": true}}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 1, 1);
    plane_tokens(p, 1, ids + 1, 1, 1);
    plane_tokens(p, 1, ids + 2, 2, 2);
    plane_end(p, 1, GEN_LENGTH);
    text = plane_wait_stream(&px, &complete);
    assert_true(complete);
    for (i = 0;; i++) {
        json_t *c, *told;

        e = event(text, i);
        assert_non_null(e);
        c = json_array_get(json_object_get(e, "choices"), 0);
        if (c == NULL)
            break;
        told = json_object_get(c, "token_ids");
        for (size_t k = 0; k < json_array_size(told); k++)
            assert_int_equal(json_integer_value(json_array_get(told, k)), ids[n_told++]);
        assert_int_equal(
            json_array_size(json_object_get(json_object_get(c, "logprobs"), "content")),
            json_array_size(told));
        assert_true(json_is_null(json_object_get(e, "usage")));
        if (json_is_string(json_object_get(c, "finish_reason"))) {
            assert_int_equal(json_array_size(json_object_get(c, "weight_versions")), 2);
            assert_int_equal(n_told, 4);
        } else {
            assert_null(json_object_get(c, "weight_versions"));
        }
        json_decref(e);
    }
    assert_int_equal(n_told, 4);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(e, "usage"), "total_tokens")), 5);
    json_decref(e);
    assert_null(event(text, i + 1));
    assert_int_equal(strcmp(text + strlen(text) - 14, "data: [DONE]\n\n"), 0);
    free(text);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_stream_error_after_the_first_byte_is_in_band(void **state)
{
    static const uint32_t ids[] = {4};
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    bool complete = false;
    char first[4096], *text;
    json_t *e;

    (void)state;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {}, \"stream\": true}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 1, 1);
    plane_wait_stream_bytes(&px, first, sizeof first);
    assert_non_null(strstr(first, "\"token_ids\":[4]"));
    plane_end(p, 1, GEN_ERROR);
    text = plane_wait_stream(&px, &complete);
    assert_true(complete);
    e = event(text, 0);
    assert_string_equal(json_string_value(json_object_get(error_of(e), "code")), "engine_error");
    json_decref(e);
    assert_null(event(text, 1));
    free(text);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_stream_error_before_the_first_byte_is_a_reply(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    int status = 0;

    (void)state;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {}, \"stream\": true}");
    plane_wait_submitted(p, 1);
    plane_end(p, 1, GEN_ERROR);
    json_decref(plane_wait_reply(&px, &status));
    assert_int_equal(status, 500);
    plane_x_fini(&px);
    plane_free(p);
}

/* A stream whose client is as far behind as it may be, with 5 more tokens and its end to tell. */
static void stream_behind(struct plane *p, struct plane_x *px, size_t n_unsent)
{
    static const uint32_t ids[] = {4, 5, 6, 7, 8, 9};
    char *filler = calloc(1, n_unsent);

    assert_non_null(filler);
    memset(filler, '\n', n_unsent);
    plane_send(p, px, &native, "{\"token_ids\": [1], \"sampling_params\": {}, \"stream\": true}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 1, 1);
    while (http_request_answered(px->x) != ANSWER_STREAM)
        sched_yield();
    plane_settle(p);
    assert_int_equal(http_request_stream_write(px->x, filler, n_unsent), 0);
    for (int i = 1; i < 6; i++)
        plane_tokens(p, 1, ids + i, 1, 1);
    plane_end(p, 1, GEN_LENGTH);
    plane_settle(p);
    plane_settle(p); /* a job that has to look once more posts itself */
    free(filler);
}

/* What it has not been told waits for it, and is neither dropped nor piled up. */
static void test_stream_waits_for_a_slow_reader(void **state)
{
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    bool complete = false;
    size_t n_unsent = HTTP_REQUEST_STREAM_NBYTES_MAX - 1024;
    char *text;

    (void)state;
    stream_behind(p, &px, n_unsent);
    assert_in_range(http_request_stream_unsent(px.x), n_unsent, HTTP_REQUEST_STREAM_NBYTES_MAX);
    text = plane_wait_stream(&px, &complete);
    assert_true(complete);
    assert_non_null(strstr(text, "[5,6,7,8,9]"));
    assert_non_null(strstr(text, "\"length\""));
    assert_int_equal(strcmp(text + strlen(text) - 14, "data: [DONE]\n\n"), 0);
    free(text);
    plane_x_fini(&px);
    plane_free(p);
}

/* A client that catches up between two looks misses none of it. */
static void test_stream_is_whole_whenever_its_client_catches_up(void **state)
{
    static const uint32_t ids[] = {4, 5, 6, 7, 8, 9};
    struct plane *p = plane_new(1, 8, NULL);
    struct plane_x px;
    bool complete = false;
    char *text;

    (void)state;
    wavers = true;
    plane_send(p, &px, &native, "{\"token_ids\": [1], \"sampling_params\": {}, \"stream\": true}");
    plane_wait_submitted(p, 1);
    for (int i = 0; i < 6; i++)
        plane_tokens(p, 1, ids + i, 1, 1);
    plane_end(p, 1, GEN_LENGTH);
    text = plane_wait_stream(&px, &complete);
    assert_true(complete);
    assert_non_null(strstr(text, "9]"));
    assert_non_null(strstr(text, "\"length\""));
    assert_int_equal(strcmp(text + strlen(text) - 14, "data: [DONE]\n\n"), 0);
    free(text);
    wavers = false;
    plane_x_fini(&px);
    plane_free(p);
}

/* Both ends of the wait besides the client's reading: it goes, or the server stops. */
static void test_stream_waits_no_longer_than_it_must(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        struct plane *p = plane_new(1, 8, NULL);
        struct generations *all = NULL;
        struct plane_x px;
        struct err e = {0};
        bool complete = true;

        assert_int_equal(generations_new(&all, &e), 0);
        p->app.generate->generations = all;
        stream_behind(p, &px, GENERATION_UNSENT_MAX + 1);
        if (cut)
            generations_cut(all);
        else
            http_request_mark_disconnected(px.x);
        plane_settle(p);
        plane_settle(p);
        free(plane_wait_stream(&px, &complete));
        assert_false(complete);
        plane_x_fini(&px);
        plane_free(p);
        generations_free(all);
    }
}

/* An event that tells several tokens is bounded in bytes, one that tells one token is not. */
static void test_what_an_event_shares(void **state)
{
    struct generation g = {.stream_lagged = true};

    (void)state;
    g.params.gen.logprobs = -1;
    assert_int_equal(generation_event_tokens_max(&g), 655);
    g.params.gen.logprobs = 20;
    assert_int_equal(generation_event_tokens_max(&g), 31);
    g.params.gen.logprobs = 151936;
    assert_int_equal(generation_event_tokens_max(&g), 1);
    g.stream_lagged = false;
    g.params.gen.logprobs = -1;
    assert_int_equal(generation_event_tokens_max(&g), 1);
}

/* An engine thread of its own, which runs what is submitted and heeds cancels. */
struct turner {
    struct plane *p;
    atomic_bool stop;
};

static bool turn_one(struct plane *p, uint64_t id, uint32_t turn)
{
    uint32_t token = turn % PLANE_VOCAB;
    bool open, cancelled;
    uint32_t n = 0;

    mtx_lock(&p->lock);
    open = p->seqs[id].rec != NULL;
    cancelled = p->seqs[id].cancelled;
    if (open)
        n = p->seqs[id].rec->out.n_tokens;
    mtx_unlock(&p->lock);
    if (!open)
        return false;
    if (cancelled || n == 8)
        plane_end(p, id + 1, cancelled ? GEN_ABORT : GEN_LENGTH);
    else
        plane_tokens(p, id + 1, &token, 1, 1 + n / 4);
    return true;
}

static void *turn_main(void *arg)
{
    struct turner *t = arg;
    uint64_t first = 0, n;
    bool any = true;

    for (uint32_t turn = 0; any || !atomic_load(&t->stop); turn++) {
        mtx_lock(&t->p->lock);
        n = t->p->n_seqs;
        mtx_unlock(&t->p->lock);
        any = false;
        for (uint64_t id = first; id < n; id++)
            any = turn_one(t->p, id, turn) || any;
        if (!any) {
            first = n;
            sched_yield();
        }
    }
    return NULL;
}

static void test_storm_of_hangups_answers_everyone_once(void **state)
{
    enum { ROUNDS = 60, AT_ONCE = 16 };
    static struct plane_x px[AT_ONCE];
    struct plane *p = plane_new(3, 6, NULL);
    struct turner t = {.p = p};
    pthread_t thread;
    unsigned n_whole = 0;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, turn_main, &t), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < AT_ONCE; i++)
            plane_send(p, &px[i], &native,
                       i % 2 == 0 ? "{\"token_ids\": [1], \"sampling_params\": {\"n\": 3}}"
                                  : "{\"token_ids\": [1], \"sampling_params\": {\"n\": 2}, "
                                    "\"stream\": true}");
        for (unsigned i = 0; i < AT_ONCE; i++) {
            if ((i * 7 + round) % 3 == 0)
                http_request_mark_disconnected(px[i].x);
        }
        for (unsigned i = 0; i < AT_ONCE; i++) {
            bool complete = false;
            int status = 0;

            plane_wait_answer(&px[i]);
            if (http_request_answered(px[i].x) == ANSWER_STREAM) {
                free(plane_wait_stream(&px[i], &complete));
                n_whole += complete;
            } else {
                json_decref(plane_wait_reply(&px[i], &status));
                assert_true(status == 200 || status == 499 || status == 503);
                n_whole += status == 200;
            }
            plane_x_fini(&px[i]);
        }
    }
    while (n_running(p) + n_waiting(p) > 0) /* of streams that were cut */
        sched_yield();
    atomic_store(&t.stop, true);
    pthread_join(thread, NULL);
    assert_true(n_whole > 0);
    plane_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_answers_when_every_sequence_ended),
        cmocka_unit_test(test_generate_hands_on_what_a_commit_does),
        cmocka_unit_test(test_generate_refuses_at_once),
        cmocka_unit_test(test_generate_long_prompt_and_no_engine),
        cmocka_unit_test(test_queue_over_its_bound_is_503),
        cmocka_unit_test(test_gone_while_queued_is_dropped),
        cmocka_unit_test(test_gone_while_running_cancels_and_keeps_the_permit),
        cmocka_unit_test(test_gone_while_submitting_cancels_that_sequence),
        cmocka_unit_test(test_gone_before_the_handler_ran),
        cmocka_unit_test(test_refused_sequence_cancels_the_others),
        cmocka_unit_test(test_engine_error_is_the_answer),
        cmocka_unit_test(test_abort_by_the_engine_keeps_the_tokens),
        cmocka_unit_test(test_stream_tells_each_token_once),
        cmocka_unit_test(test_stream_error_after_the_first_byte_is_in_band),
        cmocka_unit_test(test_stream_error_before_the_first_byte_is_a_reply),
        cmocka_unit_test(test_stream_waits_for_a_slow_reader),
        cmocka_unit_test(test_stream_is_whole_whenever_its_client_catches_up),
        cmocka_unit_test(test_stream_waits_no_longer_than_it_must),
        cmocka_unit_test(test_what_an_event_shares),
        cmocka_unit_test(test_storm_of_hangups_answers_everyone_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
