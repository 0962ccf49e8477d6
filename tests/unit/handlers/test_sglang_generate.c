/* SGLang's /generate with a real tokenizer and a fake engine. */
#include "base/jobs/workers.h"
#include "control/admission.h"
#include "control/generations.h"
#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/generate/sglang_generate.h"
#include "tests/fakes/data_plane.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct route generate = {.methods = METHOD_POST,
                                      .pattern = "/generate",
                                      .operation_id = "sglangGenerate",
                                      .executor = EXECUTOR_GENERATE,
                                      .body = BODY_JSON,
                                      .form = FORM_SGLANG,
                                      .dialect = DIALECT_SGLANG,
                                      .members = sglang_generate_members,
                                      .operation = OPERATION_SGLANG_GENERATE};

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

/* A plane whose generations can be aborted by name. */
static struct plane *make(size_t n_permits)
{
    struct plane *p = plane_new(n_permits, 8, tok);
    struct err e = {0};

    assert_int_equal(generations_new(&p->app.generate->generations, &e), 0);
    return p;
}

static void unmake(struct plane *p)
{
    struct generations *gs = p->app.generate->generations;

    plane_free(p);
    generations_free(gs);
}

/* json[path]: members and indices, "meta_info.finish_reason.type", "0.output_ids.1". */
static const json_t *at(const json_t *o, const char *path)
{
    char name[64];

    while (*path != '\0') {
        size_t len = strcspn(path, ".");

        assert_true(len < sizeof name);
        memcpy(name, path, len);
        name[len] = '\0';
        o = json_is_array(o) ? json_array_get(o, strtoul(name, NULL, 10))
                             : json_object_get(o, name);
        if (o == NULL)
            fail_msg("there is no %s", name);
        path += path[len] == '.' ? len + 1 : len;
    }
    return o;
}

/* The value at `path`, as JSON, is `want`. */
static void assert_json(const json_t *o, const char *path, const char *want)
{
    char *found = json_dumps(at(o, path), JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));

    assert_non_null(found);
    if (strcmp(found, want) != 0)
        fail_msg("%s is %s, not %s", path, found, want);
    free(found);
}

static const char *str(const json_t *o, const char *path)
{
    const char *s = json_string_value(at(o, path));

    assert_non_null(s);
    return s;
}

static json_t *reply_of(struct plane_x *px)
{
    int status = 0;
    json_t *reply = plane_wait_reply(px, &status);

    if (status != 200)
        fail_msg("%d: %s", status, str(reply, "message"));
    return reply;
}

/* What the tokens spell. */
static void assert_spells(const json_t *item, const uint32_t *tokens, size_t n)
{
    struct buf want = {0};
    struct err e = {0};

    assert_int_equal(tokenizer_decode(tok, tokens, n, true, &want, &e), 0);
    assert_string_equal(str(item, "text"), n > 0 ? want.data : "");
    buf_fini(&want);
}

static void test_one_prompt_is_one_object(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &generate,
               "{\"text\": \"In the\", \"rid\": \"r7\", \"sampling_params\": {\"temperature\": 0.5,"
               " \"top_k\": 1073741824, \"stop_token_ids\": [70]}, \"return_logprob\": true}");
    plane_wait_submitted(p, 1);
    assert_int_equal(p->seqs[0].r.params.max_tokens,
                     GEN_MAX_TOKENS_REST); /* 128 pass the context */
    assert_int_equal(p->seqs[0].r.params.logprobs, 0);
    assert_int_equal(p->seqs[0].r.params.prompt_logprobs, -1);
    assert_int_equal(p->seqs[0].r.params.logprobs_mode, GEN_LOGPROBS_TEMPERED);
    plane_tokens(p, 1, ids, 3, 3);
    plane_tokens(p, 1, (const uint32_t[]){70}, 1, 4);
    plane_end(p, 1, GEN_STOP);
    reply = reply_of(&px);
    assert_spells(reply, ids, 3); /* without the token that stopped it */
    assert_int_equal(json_array_size(at(reply, "output_ids")), 4);
    assert_json(reply, "output_ids.3", "70");
    assert_json(reply, "meta_info.id", "\"r7\"");
    assert_json(reply, "meta_info.finish_reason", "{\"type\":\"stop\",\"matched\":70}");
    assert_json(reply, "meta_info.prompt_tokens", "3");
    assert_json(reply, "meta_info.completion_tokens", "4");
    assert_json(reply, "meta_info.cached_tokens", "0");
    assert_json(reply, "meta_info.weight_version", "\"step-4\"");
    assert_json(reply, "meta_info.weight_versions",
                "[{\"version\":\"step-3\",\"start\":0,\"end\":3,\"serial\":3},"
                "{\"version\":\"step-4\",\"start\":3,\"end\":4,\"serial\":4}]");
    assert_json(reply, "meta_info.output_token_logprobs.3", "[-0.5,70,null]");
    assert_json(reply, "meta_info.input_token_logprobs", "[]");
    assert_null(json_object_get(at(reply, "meta_info"), "output_top_logprobs"));
    assert_null(json_object_get(reply, "index"));
    json_decref(reply);
    plane_x_fini(&px);
    unmake(p);
}

static void test_logprobs_only_where_they_are_asked_for(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &generate,
               "{\"input_ids\": [5, 6], \"logprob_start_len\": 0, \"top_logprobs_num\": 3}");
    plane_wait_submitted(p, 1);
    assert_int_equal(p->seqs[0].r.params.logprobs, -1);
    assert_int_equal(p->seqs[0].r.params.prompt_logprobs, -1);
    plane_tokens(p, 1, ids, 1, 1);
    plane_end(p, 1, GEN_LENGTH);
    reply = reply_of(&px);
    assert_json(reply, "meta_info.finish_reason", "{\"type\":\"length\",\"length\":1}");
    assert_json(reply, "meta_info.id", "\"req-1\"");
    assert_null(json_object_get(at(reply, "meta_info"), "output_token_logprobs"));
    assert_null(json_object_get(at(reply, "meta_info"), "input_token_logprobs"));
    json_decref(reply);
    plane_x_fini(&px);
    unmake(p);
}

static void test_logprobs_of_the_prompt(void **state)
{
    static const struct {
        const char *start, *tokens, *tops;
    } rows[] = {
        {"0", "[[null,5,null],[-1.5,6,null],[-1.5,7,null]]", "[null,[],[]]"},
        {"1", "[[null,6,null],[-1.5,7,null]]", "[null,[]]"},
        {"3", "[]", "[]"},
        {"-1", "[]", "[]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = make(1);
        struct plane_x px;
        char body[256];
        json_t *reply;

        (void)snprintf(body, sizeof body,
                       "{\"input_ids\": [[5, 6, 7]], \"sampling_params\": {\"n\": 2},"
                       " \"return_logprob\": [true], \"logprob_start_len\": %s,"
                       " \"top_logprobs_num\": 2}",
                       rows[i].start);
        plane_send(p, &px, &generate, body);
        plane_wait_submitted(p, 2);
        for (uint64_t id = 1; id <= 2; id++) {
            plane_tokens(p, id, ids, 1, 1);
            plane_end(p, id, GEN_LENGTH);
        }
        reply = reply_of(&px);
        assert_int_equal(json_array_size(reply), 2);
        for (size_t k = 0; k < 2; k++) { /* both of the prompt's sequences */
            const json_t *item = json_array_get(reply, k);

            assert_json(item, "meta_info.input_token_logprobs", rows[i].tokens);
            assert_json(item, "meta_info.input_top_logprobs", rows[i].tops);
            assert_int_equal(json_array_size(at(item, "meta_info.output_top_logprobs.0")), 2);
        }
        json_decref(reply);
        plane_x_fini(&px);
        unmake(p);
    }
}

static void test_a_batch_keeps_the_order(void **state)
{
    static const struct {
        const char *members, *names[4];
    } rows[] = {
        {"\"rid\": \"b\"", {"\"b_0\"", "\"b_1\"", "\"b_2\"", "\"b_3\""}},
        {"\"rid\": [\"x\", \"y\"]", {"\"x_0\"", "\"x_1\"", "\"y_0\"", "\"y_1\""}},
        {"\"lora_path\": [null, null]",
         {"\"req-1_0\"", "\"req-1_1\"", "\"req-1_2\"", "\"req-1_3\""}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = make(1);
        struct plane_x px;
        char body[256];
        json_t *reply;

        (void)snprintf(body, sizeof body,
                       "{\"text\": [\"In the\", \"God\"], \"sampling_params\": [{\"n\": 2,"
                       " \"sampling_seed\": 9}, {\"n\": 2, \"sampling_seed\": 9}], %s}",
                       rows[i].members);
        plane_send(p, &px, &generate, body);
        plane_wait_submitted(p, 4);
        assert_int_equal(p->seqs[3].r.params.seed, 10);
        for (uint64_t id = 4; id >= 1; id--) {
            plane_tokens(p, id, ids + id, 1, 1);
            plane_end(p, id, GEN_LENGTH);
        }
        reply = reply_of(&px);
        assert_int_equal(json_array_size(reply), 4);
        for (size_t k = 0; k < 4; k++) {
            const json_t *item = json_array_get(reply, k);

            assert_int_equal(json_integer_value(at(item, "output_ids.0")), ids[k + 1]);
            assert_json(item, "meta_info.id", rows[i].names[k]);
        }
        json_decref(reply);
        plane_x_fini(&px);
        unmake(p);
    }
}

/* A batch of one is still a batch; a single prompt is none. */
static void test_an_array_answers_an_array(void **state)
{
    static const struct {
        const char *body;
        bool many;
    } rows[] = {
        {"{\"text\": \"a\"}", false},
        {"{\"text\": [\"a\"]}", true},
        {"{\"input_ids\": [5]}", false},
        {"{\"input_ids\": [[5]], \"text\": null}", true},
        {"{\"input_ids\": [5], \"image_data\": [], \"sampling_params\": [{}]}", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = make(1);
        struct plane_x px;
        json_t *reply;

        plane_send(p, &px, &generate, rows[i].body);
        plane_wait_submitted(p, 1);
        plane_tokens(p, 1, ids, 1, 1);
        plane_end(p, 1, GEN_LENGTH);
        reply = reply_of(&px);
        assert_true(json_is_array(reply) == rows[i].many);
        json_decref(reply);
        plane_x_fini(&px);
        unmake(p);
    }
}

/* The events of a stream; ends the test unless it ends with [DONE]. New. */
static json_t *events_of(struct plane_x *px)
{
    json_t *events = json_array();
    bool complete = false;
    char *stream = plane_wait_stream(px, &complete);
    const char *from = stream;

    assert_true(complete);
    for (;; from = strstr(from, "\n\n") + 2) {
        const char *end = strstr(from, "\n\n");

        assert_non_null(end);
        assert_int_equal(strncmp(from, "data: ", 6), 0);
        if (strncmp(from + 6, "[DONE]", 6) == 0)
            break;
        assert_int_equal(
            json_array_append_new(events, json_loadb(from + 6, (size_t)(end - from) - 6, 0, NULL)),
            0);
    }
    free(stream);
    return events;
}

static void test_an_event_says_all_so_far(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    json_t *events;
    const json_t *last;
    size_t n, n_before = 0;

    (void)state;
    plane_send(p, &px, &generate,
               "{\"text\": \"Lo:\", \"stream\": true, \"return_logprob\": true,"
               " \"logprob_start_len\": 0, \"return_text_in_logprobs\": true}");
    plane_wait_submitted(p, 1);
    for (uint32_t i = 0; i < n_ids; i++) {
        plane_tokens(p, 1, ids + i, 1, 1);
        plane_settle(p);
    }
    plane_end(p, 1, GEN_LENGTH);
    events = events_of(&px);
    n = json_array_size(events);
    assert_true(n > n_ids / 2);
    last = json_array_get(events, n - 1);
    for (size_t i = 0; i < n; i++) {
        const json_t *event = json_array_get(events, i);
        size_t n_now = json_array_size(at(event, "output_ids"));

        assert_true(n_now >= n_before);
        assert_int_equal(json_array_size(at(event, "meta_info.output_token_logprobs")), n_now);
        assert_int_equal(strncmp(str(last, "text"), str(event, "text"), strlen(str(event, "text"))),
                         0);
        assert_true(json_is_null(at(event, "meta_info.finish_reason")) == (i + 1 < n));
        assert_true((json_object_get(at(event, "meta_info"), "input_token_logprobs") != NULL) ==
                    (i + 1 == n));
        n_before = n_now;
    }
    assert_string_equal(str(last, "text"), text);
    assert_int_equal(n_before, n_ids);
    assert_json(last, "meta_info.output_token_logprobs.0", "[-0.5,40,\"I\"]");
    assert_json(last, "meta_info.weight_version", "\"step-1\"");
    assert_true(json_array_size(at(last, "meta_info.input_token_logprobs")) > 1);
    json_decref(events);
    plane_x_fini(&px);
    unmake(p);
}

static void test_events_of_a_batch_say_whose(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    json_t *events, *event;
    size_t i, n_last[2] = {0};

    (void)state;
    plane_send(p, &px, &generate, "{\"text\": [\"a\", \"b\"], \"stream\": true}");
    plane_wait_submitted(p, 2);
    for (uint64_t id = 2; id >= 1; id--) {
        plane_tokens(p, id, ids, (uint32_t)id, 1);
        plane_settle(p);
        plane_end(p, id, GEN_LENGTH);
    }
    events = events_of(&px);
    json_array_foreach(events, i, event)
    {
        json_int_t index = json_integer_value(at(event, "index"));

        assert_in_range(index, 0, 1);
        n_last[index] = json_array_size(at(event, "output_ids"));
    }
    assert_int_equal(n_last[0], 1);
    assert_int_equal(n_last[1], 2);
    json_decref(events);
    plane_x_fini(&px);
    unmake(p);
}

/* Nobody reads until the end: what waits is bounded, and the last event is whole. */
static void test_a_slow_reader_misses_no_token(void **state)
{
    struct plane *p = make(1);
    size_t n_most = 0, n_last;
    struct plane_x px;
    json_t *events;

    (void)state;
    plane_send(p, &px, &generate,
               "{\"input_ids\": [5], \"stream\": true, \"return_logprob\": true,"
               " \"top_logprobs_num\": 64}");
    plane_wait_submitted(p, 1);
    for (uint32_t i = 0; i < PLANE_CONTEXT; i++) {
        size_t unsent;

        plane_tokens(p, 1, &ids[i % 4], 1, 1);
        plane_settle(p);
        unsent = http_request_stream_unsent(px.x);
        n_most = unsent > n_most ? unsent : n_most;
    }
    plane_end(p, 1, GEN_LENGTH);
    plane_settle(p); /* who reads meanwhile keeps up */
    assert_in_range(n_most, GENERATION_UNSENT_MAX + 1, 3 * GENERATION_UNSENT_MAX);
    events = events_of(&px);
    n_last = json_array_size(events) - 1;
    assert_true(n_last + 1 < PLANE_CONTEXT);
    assert_int_equal(json_array_size(at(json_array_get(events, n_last), "output_ids")),
                     PLANE_CONTEXT);
    assert_int_equal(
        json_array_size(at(json_array_get(events, n_last), "meta_info.output_top_logprobs")),
        PLANE_CONTEXT);
    json_decref(events);
    plane_x_fini(&px);
    unmake(p);
}

static void test_a_stop_string_is_cut_or_kept(void **state)
{
    static const struct {
        const char *params, *text;
    } rows[] = {{"{\"stop\": \" the\"}", "In"},
                {"{\"stop\": [\" the\"], \"no_stop_trim\": true}", "In the"}};
    uint32_t *words = NULL;
    struct err e = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(tokenizer_encode(tok, "In the", 6, true, &words, &n, &e), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = make(1);
        struct plane_x px;
        char body[256];
        json_t *reply;

        (void)snprintf(body, sizeof body, "{\"text\": \"x\", \"sampling_params\": %s}",
                       rows[i].params);
        plane_send(p, &px, &generate, body);
        plane_wait_submitted(p, 1);
        plane_tokens(p, 1, words, (uint32_t)n, 1);
        plane_stop_text(p, 1, 0, 4);
        plane_end(p, 1, GEN_STOP);
        reply = reply_of(&px);
        assert_string_equal(str(reply, "text"), rows[i].text);
        assert_json(reply, "meta_info.finish_reason", "{\"type\":\"stop\",\"matched\":\" the\"}");
        assert_int_equal(json_array_size(at(reply, "output_ids")), n);
        json_decref(reply);
        plane_x_fini(&px);
        unmake(p);
    }
    free(words);
}

/* max_new_tokens 0 asks for the prompt's logprobs and nothing else. */
static void test_no_output_is_told_where_none_was_asked_for(void **state)
{
    static const char *const stream[] = {"false", "true"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct plane *p = make(1);
        json_t *reply, *events = NULL;
        struct plane_x px;
        char body[256];

        (void)snprintf(body, sizeof body,
                       "{\"input_ids\": [5, 6], \"sampling_params\": {\"max_new_tokens\": 0},"
                       " \"return_logprob\": true, \"logprob_start_len\": 0, \"stream\": %s}",
                       stream[i]);
        plane_send(p, &px, &generate, body);
        plane_wait_submitted(p, 1);
        assert_int_equal(p->seqs[0].r.params.max_tokens, 1);
        plane_tokens(p, 1, ids, 1, 1);
        plane_settle(p);
        plane_end(p, 1, GEN_LENGTH);
        if (i == 0) {
            reply = reply_of(&px);
        } else {
            events = events_of(&px);
            assert_int_equal(json_array_size(events), 1);
            reply = json_incref(json_array_get(events, 0));
        }
        assert_json(reply, "text", "\"\"");
        assert_json(reply, "output_ids", "[]");
        assert_json(reply, "meta_info.completion_tokens", "0");
        assert_json(reply, "meta_info.finish_reason", "{\"type\":\"length\",\"length\":0}");
        assert_json(reply, "meta_info.output_token_logprobs", "[]");
        assert_json(reply, "meta_info.input_token_logprobs", "[[null,5,null],[-1.5,6,null]]");
        assert_json(reply, "meta_info.weight_version", "\"step-1\"");
        assert_json(reply, "meta_info.weight_versions",
                    "[{\"version\":\"step-1\",\"start\":0,\"end\":0,\"serial\":1}]");
        json_decref(reply);
        json_decref(events);
        plane_x_fini(&px);
        unmake(p);
    }
}

static void abort_one(struct plane *p, const char *rid, uint32_t wanted)
{
    assert_int_equal(generations_abort(p->app.generate->generations, &rid, 1), wanted);
}

static void test_a_name_aborts_its_request(void **state)
{
    struct plane *p = make(1);
    struct plane_x px, queued;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &generate, "{\"text\": \"a\", \"rid\": \"one\"}");
    plane_wait_submitted(p, 1);
    plane_send(p, &queued, &generate, "{\"text\": [\"a\", \"b\"], \"rid\": \"two\"}");
    plane_settle(p);
    abort_one(p, "nobody", 0);
    abort_one(p, "two", 1);
    reply = reply_of(&queued);
    for (size_t i = 0; i < 2; i++) {
        assert_json(json_array_get(reply, i), "meta_info.finish_reason",
                    "{\"type\":\"abort\",\"message\":\"Abort before prefill\","
                    "\"status_code\":null,\"err_type\":null}");
        assert_json(json_array_get(reply, i), "output_ids", "[]");
        assert_json(json_array_get(reply, i), "meta_info.weight_versions", "[]");
    }
    json_decref(reply);
    abort_one(p, "one", 1);
    plane_wait_cancels(p, 1);
    plane_tokens(p, 1, ids, 2, 1);
    plane_end(p, 1, GEN_ABORT);
    reply = reply_of(&px);
    assert_spells(reply, ids, 2);
    assert_json(reply, "meta_info.finish_reason.type", "\"abort\"");
    assert_json(reply, "meta_info.finish_reason.message", "\"Aborted\"");
    json_decref(reply);
    plane_x_fini(&px);
    plane_x_fini(&queued);
    unmake(p);
}

/* One of a batch, while it runs and while all of it queues; the others go on. */
static void test_a_name_aborts_one_of_a_batch(void **state)
{
    struct plane *p = make(1);
    struct plane_x px, queued;
    json_t *reply;

    (void)state;
    plane_send(p, &px, &generate, "{\"text\": [\"a\", \"b\"], \"rid\": [\"x\", \"y\"]}");
    plane_wait_submitted(p, 2);
    plane_send(p, &queued, &generate, "{\"text\": [\"a\", \"b\"], \"rid\": \"late\"}");
    plane_settle(p);
    abort_one(p, "y", 1);
    abort_one(p, "y", 0); /* already */
    abort_one(p, "late_1", 1);
    plane_wait_cancels(p, 1);
    assert_false(p->seqs[0].cancelled);
    assert_true(p->seqs[1].cancelled);
    plane_end(p, 2, GEN_ABORT);
    plane_tokens(p, 1, ids, 1, 1);
    plane_end(p, 1, GEN_LENGTH);
    reply = reply_of(&px);
    assert_json(reply, "0.meta_info.finish_reason.type", "\"length\"");
    assert_json(reply, "1.meta_info.finish_reason.type", "\"abort\"");
    json_decref(reply);
    plane_wait_submitted(p, 4); /* the permit went on */
    plane_wait_cancels(p, 2);
    assert_false(p->seqs[2].cancelled);
    assert_true(p->seqs[3].cancelled);
    plane_end(p, 4, GEN_ABORT);
    plane_end(p, 3, GEN_LENGTH);
    json_decref(reply_of(&queued));
    plane_x_fini(&px);
    plane_x_fini(&queued);
    unmake(p);
}

static void test_an_error_in_a_stream_is_an_event(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    json_t *events;

    (void)state;
    plane_send(p, &px, &generate, "{\"text\": \"a\", \"stream\": true}");
    plane_wait_submitted(p, 1);
    plane_tokens(p, 1, ids, 1, 1);
    plane_wait_answer(&px);
    plane_end(p, 1, GEN_ERROR);
    events = events_of(&px);
    assert_int_equal(json_array_size(events), 2);
    assert_non_null(strstr(str(events, "1.error.message"), "the fake engine broke"));
    json_decref(events);
    plane_x_fini(&px);
    unmake(p);
}

static void test_the_engine_blames_their_member(void **state)
{
    struct plane *p = make(1);
    struct plane_x px;
    int status = 0;
    json_t *reply;

    (void)state;
    p->refuse_from = 2; /* at /token_ids/1 */
    plane_send(p, &px, &generate, "{\"input_ids\": [[1, 2], [3, 4]]}");
    plane_wait_cancels(p, 1);
    plane_end(p, 1, GEN_ABORT);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 400);
    assert_non_null(strstr(str(reply, "error.message"), "/input_ids/1/1"));
    json_decref(reply);
    plane_x_fini(&px);
    unmake(p);
}

/* A body, and what its refusal says. */
static const struct {
    const char *body, *says;
} refusals[] = {
    {"{}", "'text' and 'input_ids' are missing"},
    {"{\"text\": \"a\", \"input_ids\": [1]}", "both given"},
    {"{\"text\": [1, 2]}", "token ids belong in 'input_ids'"},
    {"{\"input_ids\": \"a\"}", "text belongs in 'text'"},
    {"{\"input_ids\": [[1], \"a\"]}", "/input_ids/1"},
    {"{\"input_ids\": [1, 1024]}", "/input_ids/1"},
    {"{\"input_ids\": []}", "/input_ids"},
    {"{\"text\": \"\"}", "/text"},
    {"{\"text\": \"a\", \"sampling_params\": 5}", "/sampling_params"},
    {"{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": -1}}", "max_new_tokens is -1"},
    {"{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 3, \"min_new_tokens\": 4}}",
     "min_new_tokens is 4"},
    {"{\"text\": \"a\", \"sampling_params\": {\"top_p\": 0}}", "top_p is 0"},
    {"{\"text\": \"a\", \"sampling_params\": {\"regex\": \"a*\"}}", "'regex' is not supported"},
    {"{\"text\": \"a\", \"sampling_params\": {\"json_schema\": \"{}\"}}", "'json_schema'"},
    {"{\"text\": \"a\", \"sampling_params\": {\"ebnf\": \"x\"}}", "'ebnf'"},
    {"{\"text\": \"a\", \"sampling_params\": {\"stop_regex\": [\"x\"]}}", "'stop_regex'"},
    {"{\"text\": \"a\", \"sampling_params\": {\"custom_params\": {\"x\": 1}}}", "'custom_params'"},
    {"{\"text\": \"a\", \"sampling_params\": {\"beam_width\": 2}}", "'beam_width'"},
    {"{\"text\": \"a\", \"sampling_params\": {\"no_stop_trim\": 1}}", "no_stop_trim"},
    {"{\"text\": [\"a\", \"b\"], \"sampling_params\": [{}, {\"top_k\": 1}]}",
     "cannot differ in 'sampling_params'"},
    {"{\"text\": [\"a\", \"b\"], \"sampling_params\": [{}]}", "1 values for 2 prompts"},
    {"{\"text\": [\"a\", \"b\"], \"logprob_start_len\": [0, 1]}", "'logprob_start_len'"},
    {"{\"text\": \"a\", \"return_logprob\": 1}", "return_logprob"},
    {"{\"text\": \"a\", \"logprob_start_len\": -2}", "logprob_start_len is -2"},
    {"{\"text\": \"a\", \"return_logprob\": true, \"top_logprobs_num\": 1025}", "top_logprobs_num"},
    {"{\"text\": \"a\", \"return_logprob\": true, \"logprob_start_len\": 0, \"stream\": true,"
     " \"sampling_params\": {\"n\": 2}}",
     "set 'stream' to false"},
    {"{\"text\": \"a\", \"token_ids_logprob\": [1]}", "'token_ids_logprob'"},
    {"{\"text\": \"a\", \"return_hidden_states\": true}", "'return_hidden_states'"},
    {"{\"text\": \"a\", \"return_routed_experts\": true}", "'fake-model' has no experts"},
    {"{\"input_ids\": [5], \"routed_experts_start_len\": 2}", "/routed_experts_start_len"},
    {"{\"text\": \"a\", \"image_data\": [\"x\"]}", "'image_data'"},
    {"{\"text\": \"a\", \"input_embeds\": [[0.5]]}", "'input_embeds'"},
    {"{\"text\": \"a\", \"session_params\": {\"id\": \"x\"}}", "'session_params'"},
    {"{\"text\": \"a\", \"custom_logit_processor\": \"x\"}", "'custom_logit_processor'"},
    {"{\"text\": \"a\", \"bootstrap_host\": \"x\"}", "'bootstrap_host'"},
    {"{\"text\": \"a\", \"priority\": 3}", "'priority'"},
    {"{\"text\": \"a\", \"lora_path\": \"nobody\"}", "'nobody' is not served here"},
    {"{\"text\": \"a\", \"lora_path\": \"fake-model\"}", "base model"},
    {"{\"text\": \"a\", \"rid\": \"\"}", "/rid"},
    {"{\"text\": \"a\", \"rid\": 5}", "/rid"},
    {"{\"text\": [\"a\", \"b\"], \"rid\": [\"x\"]}", "1 request ids for 2 prompts"},
    {"{\"text\": [\"a\", \"b\"], \"rid\": [\"x\", \"x\"]}", "'x' is given twice"},
    {"{\"text\": [\"a\", \"b\"], \"rid\": [\"x\", null]}", "/rid/1"},
    {"{\"text\": [\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"],"
     " \"sampling_params\": {\"n\": 128}}",
     "1152 sequences"},
};

static void test_refusals_name_the_member(void **state)
{
    struct plane *p = make(1);

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct plane_x px;
        int status = 0;
        json_t *reply;

        plane_send(p, &px, &generate, refusals[i].body);
        reply = plane_wait_reply(&px, &status);
        if (status != 400 || strstr(str(reply, "error.message"), refusals[i].says) == NULL)
            fail_msg("%s: %d %s", refusals[i].body, status, str(reply, "error.message"));
        json_decref(reply);
        plane_x_fini(&px);
    }
    assert_int_equal(p->n_seqs, 0);
    unmake(p);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_prompt_is_one_object),
        cmocka_unit_test(test_logprobs_only_where_they_are_asked_for),
        cmocka_unit_test(test_logprobs_of_the_prompt),
        cmocka_unit_test(test_a_batch_keeps_the_order),
        cmocka_unit_test(test_an_array_answers_an_array),
        cmocka_unit_test(test_an_event_says_all_so_far),
        cmocka_unit_test(test_events_of_a_batch_say_whose),
        cmocka_unit_test(test_a_slow_reader_misses_no_token),
        cmocka_unit_test(test_a_stop_string_is_cut_or_kept),
        cmocka_unit_test(test_no_output_is_told_where_none_was_asked_for),
        cmocka_unit_test(test_a_name_aborts_its_request),
        cmocka_unit_test(test_a_name_aborts_one_of_a_batch),
        cmocka_unit_test(test_an_error_in_a_stream_is_an_event),
        cmocka_unit_test(test_the_engine_blames_their_member),
        cmocka_unit_test(test_refusals_name_the_member),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
