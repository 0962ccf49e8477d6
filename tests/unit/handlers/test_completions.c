/* /v1/completions, /tokenize and /detokenize with a real tokenizer and a fake engine. */
#include "base/jobs/workers.h"
#include "control/admission.h"
#include "handlers/data_plane.h"
#include "tests/fakes/data_plane.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct route completions = {.methods = METHOD_POST,
                                         .pattern = "/v1/completions",
                                         .operation_id = "completions",
                                         .executor = EXECUTOR_GENERATE,
                                         .body = BODY_JSON,
                                         .form = FORM_OPENAI,
                                         .members = completions_members,
                                         .operation = OPERATION_COMPLETIONS};
static const struct route tokenize = {.methods = METHOD_POST,
                                      .pattern = "/tokenize",
                                      .operation_id = "tokenize",
                                      .executor = EXECUTOR_TEXT,
                                      .body = BODY_JSON,
                                      .form = FORM_OPENAI,
                                      .members = tokenize_members,
                                      .operation = OPERATION_TOKENIZE};
static const struct route detokenize = {.methods = METHOD_POST,
                                        .pattern = "/detokenize",
                                        .operation_id = "detokenize",
                                        .executor = EXECUTOR_TEXT,
                                        .body = BODY_JSON,
                                        .form = FORM_OPENAI,
                                        .members = detokenize_members,
                                        .operation = OPERATION_DETOKENIZE};

static const char text[] = "In the beginning God created the heaven and the earth.";

static struct tokenizer *tok;
static uint32_t *ids; /* of `text` */
static size_t n_ids;

static int setup(void **state)
{
    struct err e = {0};

    (void)state;
    if (tokenizer_load(&tok, FIXTURES "/kjv-qwen3-1m", &e) != 0)
        return -1;
    return tokenizer_encode(tok, text, sizeof text - 1, true, &ids, &n_ids, &e);
}

static int teardown(void **state)
{
    (void)state;
    free(ids);
    tokenizer_free(tok);
    return 0;
}

static const char *str(const json_t *o, const char *member)
{
    const char *s = json_string_value(json_object_get(o, member));

    assert_non_null(s);
    return s;
}

static void test_completion_of_text(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    json_t *reply, *c, *lp;
    struct plane_x px;
    char echoed[256];
    int status = 0;

    (void)state;
    (void)snprintf(echoed, sizeof echoed, "In the%s", text);
    plane_send(p, &px, &completions,
               "{\"prompt\": \"In the\", \"logprobs\": 1, \"echo\": true, \"max_tokens\": 30,"
               " \"return_token_ids\": true, \"request_id\": \"r7\"}");
    plane_wait_submitted(p, 1);
    assert_int_equal(p->seqs[0].r.params.prompt_logprobs, 1); /* the echo needs them */
    plane_tokens(p, 1, ids, (uint32_t)n_ids, 3);
    plane_end(p, 1, GEN_LENGTH);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    assert_string_equal(str(reply, "id"), "cmpl-r7");
    assert_string_equal(str(reply, "object"), "text_completion");
    assert_string_equal(str(reply, "boot_id"), p->life.boot_id);
    c = json_array_get(json_object_get(reply, "choices"), 0);
    assert_string_equal(str(c, "text"), text); /* the prompt was given as ids */
    assert_string_equal(str(c, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(c, "token_ids")), n_ids);
    assert_true(json_is_null(json_array_get(json_object_get(c, "prompt_logprobs"), 0)));
    assert_int_equal(json_array_size(json_object_get(c, "weight_versions")), 1);
    lp = json_object_get(c, "logprobs");
    assert_true(json_is_null(json_array_get(json_object_get(lp, "token_logprobs"), 0)));
    assert_int_equal(json_array_size(json_object_get(lp, "tokens")),
                     n_ids + json_array_size(json_object_get(c, "prompt_token_ids")));
    for (size_t i = 0; i < json_array_size(json_object_get(lp, "tokens")); i++) {
        const char *token = json_string_value(json_array_get(json_object_get(lp, "tokens"), i));
        json_int_t at = json_integer_value(json_array_get(json_object_get(lp, "text_offset"), i));

        assert_int_equal(strncmp(echoed + at, token, strlen(token)), 0); /* ASCII */
    }
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_completion_of_lists_keeps_the_order(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct plane_x px;
    json_t *reply, *c;
    int status = 0;

    (void)state;
    plane_send(p, &px, &completions,
               "{\"prompt\": [[5], [6, 7]], \"n\": 2, \"return_tokens_as_token_ids\": true,"
               " \"logprobs\": 0, \"max_tokens\": null}");
    plane_wait_submitted(p, 4);
    assert_int_equal(p->seqs[0].r.params.max_tokens, 16);
    assert_int_equal(p->seqs[2].r.n_prompt, 2);
    for (uint64_t id = 4; id >= 1; id--) {
        plane_tokens(p, id, ids + id, 1, 1);
        plane_end(p, id, GEN_LENGTH);
    }
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    for (size_t i = 0; i < 4; i++) {
        char want[32];

        c = json_array_get(json_object_get(reply, "choices"), i);
        assert_int_equal(json_integer_value(json_object_get(c, "index")), i);
        (void)snprintf(want, sizeof want, "token_id:%u", ids[i + 1]);
        assert_string_equal(json_string_value(json_array_get(
                                json_object_get(json_object_get(c, "logprobs"), "tokens"), 0)),
                            want);
    }
    c = json_object_get(reply, "usage");
    assert_int_equal(json_integer_value(json_object_get(c, "prompt_tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(c, "completion_tokens")), 4);
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

/* Feeds `text` up to where the stop string is whole, as an engine would; returns its tokens. */
static uint32_t feed_to_stop(struct plane *p, uint64_t id, const char *stop)
{
    struct detok d;
    struct buf out = {0};
    uint32_t n = 0;
    char *at = NULL;

    detok_init(&d, tok, true);
    while (at == NULL && n < n_ids) {
        detok_push(&d, ids[n], &out);
        plane_tokens(p, id, ids + n, 1, 1);
        n++;
        at = out.len > 0 ? strstr(out.data, stop) : NULL;
    }
    assert_non_null(at);
    plane_stop_text(p, id, 0, (uint32_t)(out.len - (size_t)(at - out.data)));
    buf_fini(&out);
    return n;
}

static void test_completion_cuts_at_the_stop(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\": \"x\", \"stop\": [\"God cr\"], \"max_tokens\": 40}",
        "{\"prompt\": \"x\", \"stop\": \"God cr\", \"include_stop_str_in_output\": true}"};
    static const char *const wants[] = {"In the beginning ", "In the beginning God cr"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct plane *p = plane_new(1, 8, tok);
        struct plane_x px;
        int status = 0;
        json_t *reply, *c;
        uint32_t n;

        plane_send(p, &px, &completions, bodies[i]);
        plane_wait_submitted(p, 1);
        n = feed_to_stop(p, 1, "God cr");
        plane_end(p, 1, GEN_STOP);
        reply = plane_wait_reply(&px, &status);
        assert_int_equal(status, 200);
        c = json_array_get(json_object_get(reply, "choices"), 0);
        assert_string_equal(str(c, "text"), wants[i]);
        assert_string_equal(str(c, "stop_reason"), "God cr");
        assert_int_equal(json_integer_value(
                             json_object_get(json_object_get(reply, "usage"), "completion_tokens")),
                         n);
        json_decref(reply);
        plane_x_fini(&px);
        plane_free(p);
    }
}

static void test_completion_hides_the_stop_token(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct buf want = {0};
    struct err e = {0};
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &completions, "{\"prompt\": \"x\", \"stop_token_ids\": [70]}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 2, 1);
    plane_tokens(p, 1, (const uint32_t[]){70}, 1, 1);
    plane_end(p, 1, GEN_STOP);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    assert_int_equal(tokenizer_decode(tok, ids, 2, true, &want, &e), 0);
    assert_string_equal(str(json_array_get(json_object_get(reply, "choices"), 0), "text"),
                        want.data);
    buf_fini(&want);
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

/* The text deltas of a stream of one choice, put together; the number of events before [DONE]. */
static size_t join_stream(const char *stream, struct buf *out)
{
    size_t n = 0;

    for (;; n++) {
        const char *end = strstr(stream, "\n\n");
        json_t *event, *c;

        assert_non_null(end);
        assert_int_equal(strncmp(stream, "data: ", 6), 0);
        if (strncmp(stream + 6, "[DONE]", 6) == 0) {
            assert_string_equal(end, "\n\n");
            return n;
        }
        event = json_loadb(stream + 6, (size_t)(end - stream) - 6, 0, NULL);
        assert_non_null(event);
        c = json_array_get(json_object_get(event, "choices"), 0);
        if (c != NULL)
            buf_puts(out, str(c, "text"));
        json_decref(event);
        stream = end + 2;
    }
}

static void test_stream_of_text_is_the_text(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct buf joined = {0};
    struct plane_x px;
    bool complete = false;
    char *stream;

    (void)state;
    plane_send(p, &px, &completions,
               "{\"prompt\": \"Lo: \", \"echo\": true, \"stream\": true, \"stop\": [\"God cr\"],"
               " \"stream_options\": {\"include_usage\": true, \"continuous_usage_stats\": true}}");
    plane_wait_submitted(p, 1);
    (void)feed_to_stop(p, 1, "God cr");
    plane_end(p, 1, GEN_STOP);
    stream = plane_wait_stream(&px, &complete);
    assert_true(complete);
    assert_true(join_stream(stream, &joined) >= 2);
    assert_string_equal(joined.data, "Lo: In the beginning ");
    assert_non_null(strstr(stream, "\"weight_versions\""));
    assert_non_null(strstr(stream, "\"choices\":[],\"usage\":{"));
    free(stream);
    buf_fini(&joined);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_stream_never_tells_the_stop_token(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct buf joined = {0}, want = {0};
    struct err e = {0};
    struct plane_x px;
    bool complete = false;
    char *stream;

    (void)state;
    plane_send(p, &px, &completions,
               "{\"prompt\": \"x\", \"stream\": true, \"stop_token_ids\": [70]}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 2, 1);
    plane_last_token(p, 1, 70, 1, GEN_STOP);
    stream = plane_wait_stream(&px, &complete);
    (void)join_stream(stream, &joined);
    assert_int_equal(tokenizer_decode(tok, ids, 2, true, &want, &e), 0);
    assert_string_equal(joined.data, want.data);
    free(stream);
    buf_fini(&joined);
    buf_fini(&want);
    plane_x_fini(&px);
    plane_free(p);
}

/* A token of one NUL byte is as good a name as any; jansson reads none. */
static void test_logprobs_name_a_token_of_nul(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct plane_x px;
    uint32_t *nul = NULL;
    struct err e = {0};
    bool complete = false;
    char *stream;
    size_t n = 0;

    (void)state;
    assert_int_equal(tokenizer_encode(tok, "\0", 1, false, &nul, &n, &e), 0);
    assert_int_equal(n, 1);
    plane_send(p, &px, &completions, "{\"prompt\": \"x\", \"logprobs\": 0, \"stream\": true}");
    plane_wait_submitted(p, 1);
    plane_last_token(p, 1, nul[0], 1, GEN_LENGTH);
    stream = plane_wait_stream(&px, &complete);
    assert_non_null(strstr(stream, "\"tokens\":[\"\\u0000\"]"));
    assert_non_null(strstr(stream, "\"top_logprobs\":[{\"\\u0000\":-0.5}]"));
    free(stream);
    free(nul);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_stream_holds_back_a_stop_string(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct plane_x px;
    char told[8192];
    bool complete = false;
    uint32_t n;

    (void)state;
    plane_send(p, &px, &completions,
               "{\"prompt\": \"x\", \"stream\": true, \"stop\": [\"God created\"]}");
    plane_wait_submitted(p, 1);
    n = feed_to_stop(p, 1, "God created");
    assert_true(n > 1);
    plane_settle(p); /* every token was seen, the end was not */
    plane_wait_stream_bytes(&px, told, sizeof told);
    assert_null(strstr(told, "G"));
    plane_end(p, 1, GEN_STOP);
    free(plane_wait_stream(&px, &complete));
    assert_true(complete);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_completion_refuses(void **state)
{
    static const struct {
        const char *body, *param;
        int status;
    } rows[] = {
        {"{}", "prompt", 400},
        {"{\"prompt\": []}", "prompt", 400},
        {"{\"prompt\": 5}", "prompt", 400},
        {"{\"prompt\": {}}", "prompt", 400},
        {"{\"prompt\": [\"a\", 5]}", "prompt.1", 400},
        {"{\"prompt\": [[1], \"a\"]}", "prompt.1", 400},
        {"{\"prompt\": [1, \"a\"]}", "prompt.1", 400},
        {"{\"prompt\": [1, 1024]}", "prompt.1", 400},
        {"{\"prompt\": [[1], [2, 1024]]}", "prompt.1.1", 400},
        {"{\"prompt\": [[1], []]}", "prompt.1", 400},
        {"{\"prompt\": \"\"}", "prompt", 400},
        {"{\"prompt\": \"a\", \"model\": \"other\"}", "model", 404},
        {"{\"prompt\": \"a\", \"suffix\": \"b\"}", "suffix", 400},
        {"{\"prompt\": \"a\", \"presence_penalty\": 3}", "presence_penalty", 400},
        {"{\"prompt\": \"a\", \"guided_json\": {}}", "guided_json", 400},
        {"{\"prompt\": \"a\", \"bad_words\": [\"x\", \"\"]}", "bad_words.1", 400},
        {"{\"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens", 400},
        {"{\"prompt\": \"a\", \"lora_path\": \"b\"}", "lora_path", 400},
        {"{\"prompt\": \"a\", \"regex\": \"b*\"}", "regex", 400},
        {"{\"prompt\": \"a\", \"no_stop_trim\": true}", "no_stop_trim", 400},
        {"{\"prompt\": \"a\", \"input_ids\": [1]}", "input_ids", 400},
        {"{\"prompt\": \"a\", \"watermark\": {\"key\": 1}}", "watermark", 400},
        {"{\"prompt\": \"a\", \"return_meta_info\": true}", "return_meta_info", 400},
        {"{\"prompt\": \"a\", \"return_cached_tokens_details\": true}",
         "return_cached_tokens_details", 400},
        {"{\"prompt\": \"a\", \"rid\": [\"x\"]}", "rid", 400},
        {"{\"prompt\": \"a\", \"stream\": true, \"prompt_logprobs\": 1}", "prompt_logprobs", 400},
        {"{\"prompt\": \"a\", \"stream\": true, \"echo\": true, \"logprobs\": 1}", "echo", 400},
        {"{\"prompt\": [\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"], \"n\": 128}",
         "prompt", 400},
    };
    struct plane *p = plane_new(1, 8, tok);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane_x px;
        int status = 0;
        json_t *reply;

        plane_send(p, &px, &completions, rows[i].body);
        reply = plane_wait_reply(&px, &status);
        if (status != rows[i].status ||
            strcmp(str(json_object_get(reply, "error"), "param"), rows[i].param) != 0)
            fail_msg("%s: %d %s", rows[i].body, status,
                     str(json_object_get(reply, "error"), "param"));
        json_decref(reply);
        plane_x_fini(&px);
    }
    assert_int_equal(p->n_seqs, 0);
    plane_free(p);
}

static void test_completion_blames_its_own_member(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    p->refuse_from = 2; /* at /token_ids/1 */
    plane_send(p, &px, &completions, "{\"prompt\": [[1, 2], [3, 4]]}");
    plane_wait_cancels(p, 1);
    plane_end(p, 1, GEN_ABORT);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 400);
    assert_string_equal(str(json_object_get(reply, "error"), "param"), "prompt.1.1");
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_completion_text_over_its_bound(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    size_t len = (4 << 20) + 1;
    char *body = malloc(len + 64);
    struct plane_x px;
    int status = 0;

    (void)state;
    assert_non_null(body);
    (void)strcpy(body, "{\"prompt\": \"");
    memset(body + strlen(body), 'a', len);
    (void)strcpy(body + 12 + len, "\"}");
    plane_send(p, &px, &completions, body);
    json_decref(plane_wait_reply(&px, &status));
    assert_int_equal(status, 413);
    free(body);
    plane_x_fini(&px);
    plane_free(p);
}

static size_t n_prompts_waiting(struct plane *p)
{
    struct admission_stats s;

    admission_stats(p->app.generate->prompt_admission, &s);
    return s.n_waiting;
}

static void nothing_granted(void *arg)
{
    (void)arg;
}

/* Takes every permit for prompts, as long prompts do. */
static size_t hold_prompts(struct plane *p, struct ticket held[8])
{
    struct admission_stats s;
    struct err e = {0};

    admission_stats(p->app.generate->prompt_admission, &s);
    assert_true(s.n_permits <= 8);
    for (size_t i = 0; i < s.n_permits; i++) {
        held[i] = (struct ticket){.granted = nothing_granted};
        assert_int_equal(admission_enter(p->app.generate->prompt_admission, &held[i], &e), 0);
    }
    return s.n_permits;
}

static void test_prompts_wait_at_their_semaphore(void **state)
{
    enum { N = 16 };
    static const char body[] = "{\"prompt\": \"hello\", \"max_tokens\": 1}";
    struct plane *p = plane_new(N, 8, tok);
    struct plane_x px[N], detok;
    struct ticket held[8];
    size_t n_held = hold_prompts(p, held);
    int status = 0;

    (void)state;
    for (size_t i = 0; i < N; i++)
        plane_send(p, &px[i], &completions, body);
    assert_int_equal(n_prompts_waiting(p), N);
    assert_int_equal(workers_queued(p->app.text_executor),
                     0); /* nobody's text work is behind them */
    plane_send(p, &detok, &detokenize, "{\"tokens\": [1]}");
    json_decref(plane_wait_reply(&detok, &status));
    assert_int_equal(status, 200);
    plane_x_fini(&detok);

    /* The odd ones leave: out of the line at once, and answered. */
    for (size_t i = 1; i < N; i += 2)
        http_request_mark_disconnected(px[i].x);
    assert_int_equal(n_prompts_waiting(p), N / 2);
    for (size_t i = 1; i < N; i += 2)
        plane_wait_answer(&px[i]);

    for (size_t i = 0; i < n_held; i++)
        admission_leave(p->app.generate->prompt_admission, &held[i]);
    plane_wait_submitted(p, N / 2);
    for (uint64_t id = 1; id <= N / 2; id++) {
        plane_tokens(p, id, (uint32_t[]){1}, 1, 1);
        plane_end(p, id, GEN_LENGTH);
    }
    for (size_t i = 0; i < N; i += 2) {
        json_decref(plane_wait_reply(&px[i], &status));
        assert_int_equal(status, 200);
    }
    for (size_t i = 0; i < N; i++)
        plane_x_fini(&px[i]);
    plane_free(p);
}

static void test_prompts_over_the_queue_are_shed(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    struct ticket held[8], waiting[64];
    size_t n_held = hold_prompts(p, held);
    struct err e = {0};
    struct plane_x px;
    json_t *reply;
    int status = 0;

    (void)state;
    for (size_t i = 0; i < 64; i++) {
        waiting[i] = (struct ticket){.granted = nothing_granted};
        assert_int_equal(admission_enter(p->app.generate->prompt_admission, &waiting[i], &e), 0);
    }
    plane_send(p, &px, &completions, "{\"prompt\": \"hello\"}");
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 503);
    json_decref(reply);
    for (size_t i = 0; i < 64; i++)
        assert_true(admission_cancel(p->app.generate->prompt_admission, &waiting[i]));
    for (size_t i = 0; i < n_held; i++)
        admission_leave(p->app.generate->prompt_admission, &held[i]);
    plane_x_fini(&px);
    plane_free(p);
}

static void test_tokenize_and_back(void **state)
{
    struct plane *p = plane_new(1, 8, tok);
    json_t *reply, *again, *tokens;
    char *body, *list;
    struct plane_x px;
    int status = 0;

    (void)state;
    plane_send(p, &px, &tokenize,
               "{\"prompt\": \"In the beginning God created the heaven and the earth.\","
               " \"return_token_strs\": true}");
    reply = plane_wait_reply(&px, &status);
    plane_x_fini(&px);
    assert_int_equal(status, 200);
    tokens = json_object_get(reply, "tokens");
    assert_int_equal(json_array_size(tokens), n_ids);
    assert_int_equal(json_integer_value(json_object_get(reply, "count")), n_ids);
    assert_int_equal(json_integer_value(json_object_get(reply, "max_model_len")), PLANE_CONTEXT);
    assert_int_equal(json_array_size(json_object_get(reply, "token_strs")), n_ids);
    list = json_dumps(tokens, 0);
    body = malloc(strlen(list) + 32);
    (void)sprintf(body, "{\"tokens\": %s}", list);
    plane_send(p, &px, &detokenize, body);
    again = plane_wait_reply(&px, &status);
    plane_x_fini(&px);
    assert_int_equal(status, 200);
    assert_string_equal(str(again, "prompt"), text);
    json_decref(reply);
    json_decref(again);
    free(list);
    free(body);
    plane_free(p);
}

static void test_tokenize_refuses(void **state)
{
    static const struct {
        const struct route *route;
        const char *body, *param;
        int status;
    } rows[] = {
        {&tokenize, "{}", "prompt", 400},
        {&tokenize, "{\"prompt\": [1]}", "prompt", 400},
        {&tokenize, "{\"messages\": []}", "messages", 400},
        {&tokenize, "{\"prompt\": \"a\", \"model\": \"b\"}", "model", 404},
        {&tokenize, "{\"prompt\": \"a\", \"add_special_tokens\": 1}", "add_special_tokens", 400},
        {&detokenize, "{}", "tokens", 400},
        {&detokenize, "{\"tokens\": \"a\"}", "tokens", 400},
        {&detokenize, "{\"tokens\": [1, 99999]}", "tokens.1", 400},
        {&detokenize, "{\"tokens\": [1, -1]}", "tokens.1", 400},
        {&detokenize, "{\"tokens\": [], \"model\": \"b\"}", "model", 404},
    };
    struct plane *p = plane_new(1, 8, tok);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane_x px;
        int status = 0;
        json_t *reply;

        plane_send(p, &px, rows[i].route, rows[i].body);
        reply = plane_wait_reply(&px, &status);
        if (status != rows[i].status ||
            strcmp(str(json_object_get(reply, "error"), "param"), rows[i].param) != 0)
            fail_msg("%s: %d", rows[i].body, status);
        json_decref(reply);
        plane_x_fini(&px);
    }
    plane_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion_of_text),
        cmocka_unit_test(test_completion_of_lists_keeps_the_order),
        cmocka_unit_test(test_completion_cuts_at_the_stop),
        cmocka_unit_test(test_completion_hides_the_stop_token),
        cmocka_unit_test(test_stream_of_text_is_the_text),
        cmocka_unit_test(test_stream_never_tells_the_stop_token),
        cmocka_unit_test(test_logprobs_name_a_token_of_nul),
        cmocka_unit_test(test_stream_holds_back_a_stop_string),
        cmocka_unit_test(test_completion_refuses),
        cmocka_unit_test(test_completion_blames_its_own_member),
        cmocka_unit_test(test_completion_text_over_its_bound),
        cmocka_unit_test(test_prompts_wait_at_their_semaphore),
        cmocka_unit_test(test_prompts_over_the_queue_are_shed),
        cmocka_unit_test(test_tokenize_and_back),
        cmocka_unit_test(test_tokenize_refuses),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
