/* /v1/chat/completions with a real tokenizer, a template and a fake engine. */
#include "handlers/data_plane.h"
#include "handlers/generate/chat_parse.h"
#include "tests/fakes/data_plane.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/model/model_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct route chat = {.methods = METHOD_POST,
                                  .pattern = "/v1/chat/completions",
                                  .operation_id = "chatCompletions",
                                  .executor = EXECUTOR_GENERATE,
                                  .body = BODY_JSON,
                                  .form = FORM_OPENAI,
                                  .members = chat_members,
                                  .operation = OPERATION_CHAT};

static const char source[] =
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('No role ' ~ m.role) }}{% "
    "endif %}{{ m.role }}: {{ m.content }}\n{% for c in m.tool_calls or [] %}{{ c.function.name "
    "}}({{ c.function.arguments.x }})\n{% endfor %}{% if 'mark' in m or m.tool_calls == [] %}!{% "
    "endif "
    "%}{% endfor %}{% if tools %}{{ tools|length }}{% "
    "endif %}{{ mood }}{% if add_generation_prompt %}assistant:{% endif %}";
static const char text[] = "In the beginning God created the heaven";

static struct tokenizer *tok;
static struct chat_template *template;
static uint32_t *ids; /* of `text` */
static size_t n_ids;

static int setup(void **state)
{
    struct err e = {0};

    (void)state;
    if (tokenizer_load(&tok, FIXTURES "/kjv-qwen3-1m", &e) != 0 ||
        chat_template_parse(&template, source, sizeof source - 1, NULL, &e) != 0)
        return -1;
    return tokenizer_encode(tok, text, sizeof text - 1, false, &ids, &n_ids, &e);
}

static int teardown(void **state)
{
    (void)state;
    free(ids);
    chat_template_free(template);
    tokenizer_free(tok);
    return 0;
}

static struct plane *chat_plane(void)
{
    struct plane *p = plane_new(1, 8, tok);

    p->app.generate->chat = template;
    return p;
}

static const char *str(const json_t *o, const char *member)
{
    const char *s = json_string_value(json_object_get(o, member));

    assert_non_null(s);
    return s;
}

/* What the engine got is the tokens of this text. */
static void assert_prompt(const struct plane *p, const char *want)
{
    const struct gen_request *r = &p->seqs[0].r;
    struct buf got = {0};
    struct err e = {0};

    assert_int_equal(tokenizer_decode(tok, r->prompt, r->n_prompt, false, &got, &e), 0);
    assert_string_equal(got.data, want);
    buf_fini(&got);
}

static void test_chat_answers_with_a_message(void **state)
{
    struct plane *p = chat_plane();
    json_t *reply, *c, *message;
    struct plane_x px;
    int status = 0;

    (void)state;
    plane_send(p, &px, &chat,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"In the\"}], \"max_tokens\": 20,"
               " \"return_token_ids\": true, \"logprobs\": true, \"top_logprobs\": 0,"
               " \"request_id\": \"r7\", \"a_new_member\": 1}");
    plane_wait_submitted(p, 1);
    assert_prompt(p, "user: In the\nassistant:");
    assert_int_equal(p->seqs[0].r.params.logprobs, 0);
    plane_tokens(p, 1, ids, (uint32_t)n_ids, 3);
    plane_end(p, 1, GEN_LENGTH);
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    assert_string_equal(str(reply, "id"), "chatcmpl-r7");
    assert_string_equal(str(reply, "object"), "chat.completion");
    assert_true(json_array_size(json_object_get(reply, "prompt_token_ids")) > 0);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(reply, "usage"), "completion_tokens")),
        n_ids);
    c = json_array_get(json_object_get(reply, "choices"), 0);
    message = json_object_get(c, "message");
    assert_string_equal(str(message, "role"), "assistant");
    assert_string_equal(str(message, "content"), text);
    assert_string_equal(str(c, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(c, "token_ids")), n_ids);
    assert_int_equal(json_array_size(json_object_get(c, "weight_versions")), 1);
    c = json_object_get(json_object_get(c, "logprobs"), "content");
    assert_int_equal(json_array_size(c), n_ids);
    c = json_array_get(c, 0);
    assert_string_equal(str(c, "token"), "I");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(c, "bytes"), 0)), 'I');
    assert_true(json_is_real(json_object_get(c, "logprob")));
    assert_int_equal(json_array_size(json_object_get(c, "top_logprobs")), 0);
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

/* The events of a stream, in order; new. */
static json_t *events_of(char *stream)
{
    json_t *all = json_array();
    char *rest = stream, *line;

    while ((line = strsep(&rest, "\n")) != NULL) {
        if (strncmp(line, "data: {", 7) == 0)
            assert_int_equal(json_array_append_new(all, json_loads(line + 6, 0, NULL)), 0);
    }
    return all;
}

static void test_chat_streams_deltas(void **state)
{
    struct plane *p = chat_plane();
    char said[256] = "", *stream;
    struct plane_x px;
    bool complete = false;
    json_t *events, *event;
    size_t i, n;

    (void)state;
    plane_send(p, &px, &chat,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stream\": true,"
               " \"stream_options\": {\"include_usage\": true}, \"return_token_ids\": true}");
    plane_wait_submitted(p, 1);
    assert_int_equal(p->seqs[0].r.params.max_tokens, GEN_MAX_TOKENS_REST);
    plane_tokens(p, 1, ids, 2, 1);
    plane_wait_answer(&px);
    plane_tokens(p, 1, ids + 2, (uint32_t)n_ids - 2, 1);
    plane_end(p, 1, GEN_STOP);
    stream = plane_wait_stream(&px, &complete);
    assert_true(complete);
    assert_non_null(strstr(stream, "data: [DONE]"));
    events = events_of(stream);
    n = json_array_size(events);
    assert_true(n >= 3);
    json_array_foreach(events, i, event)
    {
        json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
               *delta = json_object_get(choice, "delta");

        assert_string_equal(str(event, "object"), "chat.completion.chunk");
        assert_int_equal(json_object_get(event, "prompt_token_ids") != NULL, i == 0);
        assert_int_equal(json_object_get(delta, "role") != NULL, i == 0);
        assert_int_equal(json_is_object(json_object_get(event, "usage")), i == n - 1);
        if (i < n - 1)
            (void)strncat(said, str(delta, "content"), sizeof said - strlen(said) - 1);
        assert_int_equal(json_is_string(json_object_get(choice, "finish_reason")), i == n - 2);
    }
    assert_memory_equal(said, text, strlen(said)); /* the last token may be the one that stopped */
    assert_true(strlen(said) + 8 > strlen(text));
    json_decref(events);
    free(stream);
    plane_x_fini(&px);
    plane_free(p);
}

#define CALLS(arguments)                                                                           \
    "{\"messages\": [{\"role\": \"a\", \"tool_calls\": [{\"function\": {\"name\": \"f\", "         \
    "\"arguments\": " arguments "}}]}]}"

static void test_chat_makes_the_prompt_of_what_it_is_given(void **state)
{
    static const struct {
        const char *body, *prompt;
    } rows[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
         " {\"type\": \"text\", \"text\": \"b\"}]}]}",
         "user: a\nb\nassistant:"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"add_generation_prompt\": "
         "false}",
         "user: a\n"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"I am\"}], "
         "\"continue_final_message\": true}",
         "assistant: I am"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
         "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 12}\"}}]}]}",
         "assistant: \nf(12)\nassistant:"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{}, {}], "
         "\"tool_choice\": \"auto\", \"chat_template_kwargs\": {\"mood\": \"glad\", "
         "\"add_generation_prompt\": false}}",
         "user: a\n2glad"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"text\": \"a\"}, \"\", "
         "{\"type\": \"output_text\", \"text\": \"b\"}, {\"type\": \"refusal\", \"refusal\": "
         "\"c\"}, {\"type\": \"thinking\", \"thinking\": \"d\"}]}]}",
         "user: a\nb\nc\nd\nassistant:"},
        {CALLS("\"{\""), "a: \nf()\nassistant:"},
        {CALLS("\"[1]\""), "a: \nf()\nassistant:"},
        {CALLS("\"7\""), "a: \nf()\nassistant:"},
        {CALLS("\"NaN\""), "a: \nf()\nassistant:"},
        {CALLS("\"[99999999999999999999]\""), "a: \nf()\nassistant:"},
        {CALLS("\"{\\\"x\\\": \\\"NaN, Infinity\""), "a: \nf()\nassistant:"},
        {CALLS("\"{\\\"x\\\": -}, -Infinity\""), "a: \nf()\nassistant:"},
        {CALLS("[1]"), "a: \nf()\nassistant:"},
        {CALLS("{\"x\": 3}"), "a: \nf(3)\nassistant:"},
        {"{\"messages\": [{\"role\": \"a\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}]}",
         "a: \nf()\nassistant:"},
        {"{\"messages\": [{\"role\": \"a\", \"content\": null, \"tool_calls\": null}]}",
         "a: \nassistant:"},
        {"{\"messages\": [{\"role\": \"a\", \"reasoning\": \"x\", \"reasoning_content\": \"x\"}]}",
         "a: \nassistant:"},
        {CALLS("\"\""), "a: \nf()\nassistant:"},
        {CALLS("null"), "a: \nf()\nassistant:"},
        {CALLS("\"{\\\"x\\\": 1, \\\"x\\\": 2}\""), "a: \nf(2)\nassistant:"},
        {"{\"messages\": [{\"role\": \"a\", \"content\": \"\", \"tool_calls\": [], \"mark\": "
         "null}]}",
         "a: \nassistant:"},
        {"{\"messages\": [{\"role\": \"a\", \"content\": \"\", \"mark\": 1}]}", "a: \n!assistant:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct plane *p = chat_plane();
        struct plane_x px;
        int status = 0;

        plane_send(p, &px, &chat, rows[i].body);
        plane_wait_submitted(p, 1);
        assert_prompt(p, rows[i].prompt);
        plane_tokens(p, 1, ids, 1, 1);
        plane_end(p, 1, GEN_LENGTH);
        json_decref(plane_wait_reply(&px, &status));
        assert_int_equal(status, 200);
        plane_x_fini(&px);
        plane_free(p);
    }
}

#define USER "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "

static const struct {
    const char *body, *field, *msg;
} refusals[] = {
    {"{}", "messages", "messages is missing"},
    {"{\"messages\": []}", "messages", "0 messages"},
    {"{\"messages\": [1]}", "messages.0", "string 'role'"},
    {"{\"messages\": [{\"content\": \"a\"}]}", "messages.0.role", "string 'role'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", "messages.0.content", "integer"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "messages.0.content.0.type", "'image_url'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
     "messages.0.content.0.text", "a string"},
    {CALLS("\"{\\\"x\\\": 99999999999999999999}\""), "messages.0.tool_calls.0.function.arguments",
     "too big integer"},
    {CALLS("\"{\\\"x\\\": NaN}\""), "messages.0.tool_calls.0.function.arguments", "near 'NaN'"},
    {CALLS("\" {\\\"x\\\": [Infinity]}\""), "messages.0.tool_calls.0.function.arguments",
     "near 'Infinity'"},
    {CALLS("\"{\\\"x\\\": -Infinity}\""), "messages.0.tool_calls.0.function.arguments", "near '-'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"a\", \"reasoning\": "
     "\"x\", "
     "\"reasoning_content\": \"y\"}]}",
     "messages.1.reasoning", "differ"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{}]}]}", "messages.0.content.0.type",
     "'nothing'"},
    {"{\"messages\": [{\"role\": \"a\", \"tool_calls\": [{}]}]}",
     "messages.0.tool_calls.0.function", "object"},
    {"{\"messages\": [{\"role\": \"bad\", \"content\": \"\"}]}", "messages", "No role bad"},
    {USER "\"tools\": [1]}", "tools.0", "object"},
    {USER "\"tool_choice\": \"required\"}", "tool_choice", "'auto'"},
    {USER "\"chat_template\": \"x\"}", "chat_template", "not supported"},
    {USER "\"chat_template_kwargs\": {\"messages\": []}}", "chat_template_kwargs.messages",
     "member of the request"},
    {USER "\"continue_final_message\": true, \"add_generation_prompt\": true}",
     "continue_final_message", "not both"},
    {USER "\"top_logprobs\": 2}", "top_logprobs", "'logprobs' is not true"},
    {USER "\"logprobs\": 2}", "logprobs", "boolean"},
    {USER "\"prompt_logprobs\": 1}", "prompt_logprobs", "/v1/completions"},
    {USER "\"temperature\": -1}", "temperature", "temperature"},
    {USER "\"functions\": [{}]}", "functions", ""},
    {USER "\"ebnf\": \"x\"}", "ebnf", "not supported"},
};

static void test_chat_refuses_by_member(void **state)
{
    struct plane *p = chat_plane();

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct plane_x px;
        json_t *reply, *error;
        int status = 0;

        plane_send(p, &px, &chat, refusals[i].body);
        reply = plane_wait_reply(&px, &status);
        error = json_object_get(reply, "error");
        if (status != 400 || strcmp(str(error, "param"), refusals[i].field) != 0 ||
            strstr(str(error, "message"), refusals[i].msg) == NULL)
            fail_msg("%s: %d at %s: %s", refusals[i].body, status, str(error, "param"),
                     str(error, "message"));
        json_decref(reply);
        plane_x_fini(&px);
    }
    assert_int_equal(p->n_seqs, 0);
    plane_free(p);
}

/* The ids of the same messages, without generating. */
static void test_tokenize_takes_messages(void **state)
{
    static const struct route tokenize = {.methods = METHOD_POST,
                                          .pattern = "/tokenize",
                                          .operation_id = "tokenize",
                                          .executor = EXECUTOR_TEXT,
                                          .body = BODY_JSON,
                                          .form = FORM_OPENAI,
                                          .members = tokenize_members,
                                          .operation = OPERATION_TOKENIZE};
    static const char want[] = "user: a\nassistant:";
    struct plane *p = chat_plane();
    uint32_t *wanted = NULL;
    struct plane_x px;
    struct err e = {0};
    json_t *reply, *tokens;
    size_t n = 0;
    int status = 0;

    (void)state;
    assert_int_equal(tokenizer_encode(tok, want, sizeof want - 1, false, &wanted, &n, &e), 0);
    plane_send(p, &px, &tokenize, USER "\"model\": null}");
    reply = plane_wait_reply(&px, &status);
    assert_int_equal(status, 200);
    tokens = json_object_get(reply, "tokens");
    assert_int_equal(json_array_size(tokens), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(json_integer_value(json_array_get(tokens, i)), wanted[i]);
    free(wanted);
    json_decref(reply);
    plane_x_fini(&px);
    plane_free(p);
}

static const struct route render = {.methods = METHOD_POST,
                                    .pattern = "/v1/chat/completions/render",
                                    .operation_id = "chatRender",
                                    .executor = EXECUTOR_TEXT,
                                    .body = BODY_JSON,
                                    .form = FORM_OPENAI,
                                    .members = chat_members,
                                    .operation = OPERATION_CHAT_RENDER};
static const struct route inference = {.methods = METHOD_POST,
                                       .pattern = "/inference/v1/generate",
                                       .operation_id = "inferenceGenerate",
                                       .executor = EXECUTOR_GENERATE,
                                       .body = BODY_JSON,
                                       .form = FORM_OPENAI,
                                       .members = generate_members,
                                       .operation = OPERATION_GENERATE};

/* What the engine is asked for by a chat, and by what a chat renders to. */
static void assert_renders(struct plane *p, const char *body)
{
    const struct gen_request *x = &p->seqs[0].r, *y = &p->seqs[1].r;
    struct plane_x direct, rendered, sent;
    int status = 0;
    json_t *reply;
    char *body_sent;

    plane_send(p, &direct, &chat, body);
    plane_wait_submitted(p, 1);
    plane_send(p, &rendered, &render, body);
    reply = plane_wait_reply(&rendered, &status);
    if (status != 200)
        fail_msg("%s: %s", body, str(json_object_get(reply, "error"), "message"));
    assert_true(json_is_null(json_object_get(reply, "features")));
    body_sent = json_dumps(reply, JSON_REAL_PRECISION(9));
    plane_send(p, &sent, &inference, body_sent);
    free(body_sent);
    json_decref(reply);
    plane_wait_submitted(p, 2);
    assert_int_equal(x->n_prompt, y->n_prompt);
    assert_memory_equal(x->prompt, y->prompt, x->n_prompt * sizeof *x->prompt);
    assert_int_equal(x->params.max_tokens, y->params.max_tokens);
    assert_int_equal(x->params.logprobs, y->params.logprobs);
    assert_int_equal(x->params.top_k, y->params.top_k);
    assert_int_equal(x->params.n_stops, y->params.n_stops);
    assert_true(x->params.ignore_eos == y->params.ignore_eos);
    assert_memory_equal(&x->params.temperature, &y->params.temperature, sizeof(float));
    assert_memory_equal(&x->params.top_p, &y->params.top_p, sizeof(float));
    assert_memory_equal(&x->params.min_p, &y->params.min_p, sizeof(float));
    assert_memory_equal(&x->params.repetition_penalty, &y->params.repetition_penalty,
                        sizeof(float));
    for (uint64_t id = 1; id <= 2; id++)
        plane_end(p, id, GEN_LENGTH);
    json_decref(plane_wait_reply(&direct, &status));
    json_decref(plane_wait_reply(&sent, &status));
    plane_x_fini(&direct);
    plane_x_fini(&rendered);
    plane_x_fini(&sent);
}

static void test_render_makes_the_same_request(void **state)
{
    static const struct model_defaults defaults = {.has_temperature = true,
                                                   .temperature = 0.7F,
                                                   .has_top_k = true,
                                                   .top_k = 20,
                                                   .has_max_tokens = true,
                                                   .max_tokens = 9};
    static const char *const bodies[] = {
        USER "\"temperature\": 0.3, \"logprobs\": true, \"top_logprobs\": 2}",
        USER "\"max_completion_tokens\": 5, \"stop\": [\"x\", \"y\"], \"top_p\": 0.9}",
        USER "\"max_tokens\": 64, \"ignore_eos\": true, \"logprobs\": false}",
        USER "\"cache_salt\": \"s\", \"repetition_penalty\": 1.1, \"min_p\": 0.05}",
    };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof bodies / sizeof bodies[0]; i++) {
        struct plane *p = plane_new(4, 8, tok);

        p->app.generate->chat = template;
        p->app.generate->defaults = i % 2 == 0 ? &defaults : NULL;
        assert_renders(p, bodies[i / 2]);
        plane_free(p);
    }
}

static void test_render_refuses_as_a_chat(void **state)
{
    struct plane *p = chat_plane();

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct plane_x px;
        json_t *reply;
        int status = 0;

        plane_send(p, &px, &render, refusals[i].body);
        reply = plane_wait_reply(&px, &status);
        if (status != 400 ||
            strcmp(str(json_object_get(reply, "error"), "param"), refusals[i].field) != 0)
            fail_msg("%s: %d", refusals[i].body, status);
        json_decref(reply);
        plane_x_fini(&px);
    }
    plane_free(p);
}

static void test_chat_says_why_there_is_no_template(void **state)
{
    struct err none = {0}, refused = {0};
    struct plane *p = plane_new(1, 8, tok);
    const struct err *const why[] = {&none, &refused};
    static const char *const says[] = {"has no chat template", "line 3: filter 'x'"};

    (void)state;
    (void)err_set(&none, ERR_NOT_FOUND, "", "none");
    (void)err_set(&refused, ERR_BAD_REQUEST, "/chat_template", "line 3: filter 'x'");
    for (size_t i = 0; i < 2; i++) {
        struct plane_x px;
        json_t *reply;
        int status = 0;

        p->app.generate->chat_why = why[i];
        plane_send(p, &px, &chat, USER "\"n\": 1}");
        reply = plane_wait_reply(&px, &status);
        assert_int_equal(status, 400);
        assert_non_null(strstr(str(json_object_get(reply, "error"), "message"), says[i]));
        json_decref(reply);
        plane_x_fini(&px);
    }
    plane_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_answers_with_a_message),
        cmocka_unit_test(test_chat_streams_deltas),
        cmocka_unit_test(test_chat_makes_the_prompt_of_what_it_is_given),
        cmocka_unit_test(test_chat_refuses_by_member),
        cmocka_unit_test(test_tokenize_takes_messages),
        cmocka_unit_test(test_render_makes_the_same_request),
        cmocka_unit_test(test_render_refuses_as_a_chat),
        cmocka_unit_test(test_chat_says_why_there_is_no_template),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
