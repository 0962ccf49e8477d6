/* Whole replies and events of every generation route, as tests/fixtures/replies/ has them: members,
 * their order and values. A reply is text that no builder of trees checks, so that a name that
 * comes twice, or a comma too many, is seen here. */
#include "control/generations.h"
#include "handlers/route.h"
#include "tests/fakes/data_plane.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKENS = 3, LOADS = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY };

static const char source[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
static const uint32_t made[N_TOKENS] = {40, 300, 1}; /* with the ids behind each as its best */

static struct tokenizer *tok;
static struct chat_template *template;

static int setup(void **state)
{
    struct err e = {0};

    (void)state;
    return tokenizer_load(&tok, FIXTURES "/kjv-qwen3-1m", &e) == 0
               ? chat_template_parse(&template, source, sizeof source - 1, NULL, &e)
               : -1;
}

static int teardown(void **state)
{
    (void)state;
    chat_template_free(template);
    tokenizer_free(tok);
    return 0;
}

/* When it was made, how long it took, and by which release. */
static void blank(json_t *reply)
{
    json_t *meta = json_object_get(reply, "meta_info"), *item;
    size_t i;

    json_array_foreach(reply, i, item)
    {
        blank(item);
    }
    if (json_object_get(meta, "e2e_latency") != NULL)
        assert_int_equal(json_object_set_new(meta, "e2e_latency", json_real(0.5)), 0);
    if (json_object_get(reply, "system_fingerprint") != NULL)
        assert_int_equal(json_object_set_new(reply, "system_fingerprint", json_string("")), 0);
    if (json_object_get(reply, "created") != NULL)
        assert_int_equal(json_object_set_new(reply, "created", json_integer(0)), 0);
}

static void append_json(struct buf *out, const char *text, size_t len)
{
    json_error_t why;
    json_t *v = json_loadb(text, len, LOADS, &why);
    char *dump;

    if (v == NULL)
        fail_msg("%s: %.*s", why.text, (int)len, text);
    blank(v);
    dump = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY);
    assert_non_null(dump);
    buf_printf(out, "%s\n", dump);
    free(dump);
    json_decref(v);
}

static void append_stream(struct buf *out, struct plane_x *px)
{
    static const char last[] = "[DONE]";
    bool complete = false;
    char *stream = plane_wait_stream(px, &complete), *end;

    assert_true(complete);
    for (char *at = stream; *at != '\0'; at = end + 2) {
        assert_int_equal(strncmp(at, "data: ", 6), 0);
        at += 6;
        end = strstr(at, "\n\n");
        assert_non_null(end);
        if ((size_t)(end - at) == sizeof last - 1 && memcmp(at, last, sizeof last - 1) == 0)
            buf_printf(out, "%s\n", last);
        else
            append_json(out, at, (size_t)(end - at));
    }
    free(stream);
}

static void append_reply(struct buf *out, struct plane_x *px)
{
    int status = 0;
    json_t *reply = plane_wait_reply(px, &status);
    char *text = json_dumps(reply, JSON_COMPACT | JSON_REAL_PRECISION(9));

    assert_int_equal(status, 200);
    append_json(out, text, strlen(text));
    free(text);
    json_decref(reply);
}

static const struct route *route_of(const char *path)
{
    struct err e = {0};
    size_t at = 0;
    const struct route *route = route_find(path, METHOD_POST, ~0U, &at, &e);

    assert_non_null(route);
    return route;
}

/* One token at a time, each of which the pool has seen. */
static void make_all(struct plane *p, uint64_t n_seqs)
{
    plane_wait_submitted(p, n_seqs);
    for (uint64_t id = 1; id <= n_seqs; id++) {
        for (size_t i = 0; i + 1 < N_TOKENS; i++) {
            plane_tokens(p, id, &made[i], 1, 1);
            plane_settle(p);
        }
        plane_last_token(p, id, made[N_TOKENS - 1], 1, GEN_LENGTH);
        plane_settle(p);
    }
}

static void run_case(struct buf *out, const char *path, const char *body, uint64_t n_seqs,
                     bool stream)
{
    struct plane *p = plane_new(1, 8, tok);
    struct generations *gs;
    struct plane_x px;
    struct err e = {0};

    assert_int_equal(generations_new(&p->app.generate->generations, &e), 0);
    p->app.generate->chat = template;
    p->app.generate->info.n_route_layers = 1; /* SkyRL's route asks for routed experts */
    plane_send(p, &px, route_of(path), body);
    make_all(p, n_seqs);
    if (stream)
        append_stream(out, &px);
    else
        append_reply(out, &px);
    plane_x_fini(&px);
    gs = p->app.generate->generations;
    plane_free(p);
    generations_free(gs);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    struct buf text = {0};
    char part[4096];
    size_t n;

    if (f == NULL)
        fail_msg("%s is not there", path);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        buf_append(&text, part, n);
    (void)fclose(f);
    return buf_take(&text, &n);
}

#define STREAM ",\"stream\":true"
#define COUNTED                                                                                    \
    STREAM ",\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}"
#define TEXT(members) "{\"request_id\":\"r\",\"prompt\":[40,77,258],\"max_tokens\":3" members "}"
#define CHAT(members)                                                                              \
    "{\"request_id\":\"r\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":"   \
    "3" members "}"
#define IDS(params, members)                                                                       \
    "{\"request_id\":\"r\",\"token_ids\":[40,77,258],\"sampling_params\":{\"max_tokens\":3" params \
    "}" members "}"
#define SGLANG(params, members)                                                                    \
    "{\"rid\":\"r\",\"input_ids\":[40,77,258],\"sampling_params\":{\"max_new_tokens\":3" params    \
    "}" members "}"
#define PLAIN(params) "{\"token_ids\":[40,77,258],\"sampling_params\":{\"max_tokens\":3" params "}}"

static const struct {
    const char *name, *path, *body;
    uint64_t n_seqs;
    bool stream;
} rows[] = {
    {"completion", "/v1/completions", TEXT(""), 1, false},
    {"completion-logprobs", "/v1/completions",
     TEXT(",\"logprobs\":5,\"n\":2,\"return_token_ids\":true"), 2, false},
    {"completion-as-ids", "/v1/completions",
     TEXT(",\"logprobs\":2,\"return_tokens_as_token_ids\":true"), 1, false},
    {"completion-echo", "/v1/completions", TEXT(",\"echo\":true,\"logprobs\":1"), 1, false},
    {"completion-echo-ids", "/v1/completions",
     TEXT(",\"echo\":true,\"logprobs\":1,\"return_token_ids\":true"), 1, false},
    {"completion-prompt", "/v1/completions", TEXT(",\"prompt_logprobs\":0"), 1, false},
    {"completion-stream", "/v1/completions", TEXT(",\"n\":2,\"logprobs\":2" COUNTED), 2, true},
    {"chat", "/v1/chat/completions", CHAT(""), 1, false},
    {"chat-logprobs", "/v1/chat/completions",
     CHAT(",\"logprobs\":true,\"top_logprobs\":5,\"n\":2,\"return_token_ids\":true"), 2, false},
    {"chat-as-ids", "/v1/chat/completions",
     CHAT(",\"logprobs\":true,\"top_logprobs\":1,\"return_tokens_as_token_ids\":true"), 1, false},
    {"chat-prompt", "/v1/chat/completions", CHAT(",\"return_prompt_text\":true"), 1, false},
    {"chat-stream", "/v1/chat/completions",
     CHAT(",\"logprobs\":true,\"top_logprobs\":2,\"return_prompt_text\":true" COUNTED), 1, true},
    {"generate", "/v1/generate", IDS("", ""), 1, false},
    {"generate-logprobs", "/inference/v1/generate",
     IDS(",\"logprobs\":5,\"n\":2,\"prompt_logprobs\":0", ",\"return_token_ids\":true"), 2, false},
    {"generate-stream", "/v1/generate",
     IDS(",\"n\":2,\"logprobs\":2", ",\"return_token_ids\":true" COUNTED), 2, true},
    {"skyrl", "/skyrl/v1/generate", PLAIN(",\"logprobs\":3,\"prompt_logprobs\":0"), 1, false},
    {"skyrl-plain", "/skyrl/v1/generate", PLAIN(""), 1, false},
    {"sglang", "/generate", SGLANG("", ""), 1, false},
    {"sglang-logprobs", "/generate",
     SGLANG(",\"n\":2", ",\"return_logprob\":true,\"top_logprobs_num\":5,\"logprob_start_len\":1,"
                        "\"return_text_in_logprobs\":true"),
     2, false},
    {"sglang-stream", "/generate",
     SGLANG("", ",\"return_logprob\":true,\"top_logprobs_num\":2" STREAM), 1, true},
};

static void test_replies_are_as_recorded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf found = {0};
        char path[256], *want;

        run_case(&found, rows[i].path, rows[i].body, rows[i].n_seqs, rows[i].stream);
        assert_false(found.failed);
        (void)snprintf(path, sizeof path, FIXTURES "/replies/%s.jsonl", rows[i].name);
        want = read_file(path);
        if (strcmp(found.data, want) != 0)
            fail_msg("%s\nfound: %s\nwanted: %s", rows[i].name, found.data, want);
        free(want);
        buf_fini(&found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies_are_as_recorded),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
