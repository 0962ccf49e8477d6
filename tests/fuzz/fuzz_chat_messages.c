/* Messages of a stranger for each template of the fixtures. The first byte picks the template; what
 * follows is the JSON of a request, or, where it is none, makes one: roles, texts, parts, tools,
 * calls, nesting. A refusal names a member; what is accepted is bounded UTF-8, the same each time,
 * whatever it cost, and leaves the request as it was. For the plainest template the text is also
 * what is spelt out here. */
#include "tests/fuzz/fuzz.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "handlers/body.h"
#include "handlers/generate/chat_parse.h"
#include "text/chat_template.h"

enum { TEXT_MAX = 64, NESTING_MAX = 4, SECONDS_MAX = 60 };

static const char *const names[] = {"chatml",  "deepseek", "llama2", "llama3", "macros",
                                    "mistral", "qwen25",   "qwen3",  "zephyr"};

enum { N_TEMPLATES = sizeof names / sizeof names[0] };

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rbe");
    char *text = malloc(1 << 20);

    CHECK(f != NULL && text != NULL);
    *len = fread(text, 1, 1 << 20, f);
    (void)fclose(f);
    return text;
}

static const struct chat_template *template_number(uint32_t i)
{
    static struct chat_template *loaded[N_TEMPLATES];
    char path[512], *source;
    struct err e = {0};
    json_t *config;
    size_t len;

    if (loaded[i] != NULL)
        return loaded[i];
    (void)snprintf(path, sizeof path, "%s/chat/%s.config", FIXTURES, names[i]);
    config = json_load_file(path, 0, NULL);
    (void)snprintf(path, sizeof path, "%s/chat/%s.jinja", FIXTURES, names[i]);
    source = read_file(path, &len);
    CHECK(config != NULL && chat_template_parse(&loaded[i], source, len, config, &e) == 0);
    json_decref(config);
    free(source);
    return loaded[i];
}

/* ---- a request out of bytes ---- */

static json_t *text_of(struct taker *t)
{
    static const char *const pieces[] = {
        "a",        " ",          "\n", "\xc3\xa9", "{{ x }}",          "{% if %}",
        "</think>", "<|im_end|>", "\"", "\\",       "\xf0\x9f\x98\x80", "<tool_call>",
        "[INST]",   "\t",         "'"};
    char text[TEXT_MAX * 12] = "";
    size_t n = take_below(t, 12);

    for (size_t i = 0; i < n; i++)
        strcat(text, pieces[take_below(t, sizeof pieces / sizeof pieces[0])]);
    return json_string(text);
}

static json_t *value_of(struct taker *t, unsigned depth)
{
    uint32_t kind = take_below(t, depth < NESTING_MAX ? 8 : 6), n = take_below(t, 4);
    json_t *v;

    switch (kind) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(n & 1);
    case 2:
        return json_integer((json_int_t)take_byte(t) * (n == 3 ? -1000000007LL : 1));
    case 3:
        return json_real(take_byte(t) / 7.0);
    case 4:
    case 5:
        return text_of(t);
    case 6:
        v = json_array();
        for (uint32_t i = 0; i < n; i++)
            CHECK(json_array_append_new(v, value_of(t, depth + 1)) == 0);
        return v;
    default:
        v = json_object();
        for (uint32_t i = 0; i < n; i++) {
            json_t *key = text_of(t);

            CHECK(json_object_set_new(v, json_string_value(key), value_of(t, depth + 1)) == 0);
            json_decref(key);
        }
        return v;
    }
}

static json_t *content_of(struct taker *t)
{
    uint32_t kind = take_below(t, 8), n = take_below(t, 4);
    json_t *parts;

    if (kind < 4)
        return text_of(t);
    if (kind == 4)
        return value_of(t, 0);
    if (kind == 5)
        return json_null();
    parts = json_array();
    for (uint32_t i = 0; i < n; i++)
        CHECK(json_array_append_new(
                  parts, take_below(t, 8) == 0
                             ? value_of(t, 0)
                             : json_pack("{s:s, s:o}", "type", "text", "text", text_of(t))) == 0);
    return parts;
}

static json_t *calls_of(struct taker *t)
{
    json_t *calls = json_array(), *arguments;
    uint32_t n = take_below(t, 3);

    for (uint32_t i = 0; i < n; i++) {
        arguments = value_of(t, 0);
        if (take_below(t, 2) == 0) { /* in a string, as clients send them */
            char *text = json_dumps(arguments, JSON_ENCODE_ANY);

            json_decref(arguments);
            arguments = json_string(text);
            free(text);
        }
        CHECK(json_array_append_new(calls,
                                    json_pack("{s:s, s:{s:o, s:o}}", "type", "function", "function",
                                              "name", text_of(t), "arguments", arguments)) == 0);
    }
    return calls;
}

static json_t *message_of(struct taker *t)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool", "developer", ""};
    json_t *m = json_object();
    uint32_t more = take_byte(t);

    if (take_below(t, 16) == 15)
        CHECK(json_object_set_new(m, "role", value_of(t, 0)) == 0);
    else
        CHECK(json_object_set_new(m, "role", json_string(roles[take_below(t, 6)])) == 0);
    if (take_below(t, 16) != 15)
        CHECK(json_object_set_new(m, "content", content_of(t)) == 0);
    if ((more & 7) == 1)
        CHECK(json_object_set_new(m, "tool_calls", calls_of(t)) == 0);
    if ((more & 56) == 8)
        CHECK(json_object_set_new(m, "reasoning_content", value_of(t, 2)) == 0);
    if ((more & 192) == 64)
        CHECK(json_object_set_new(m, "tool_call_id", text_of(t)) == 0);
    return m;
}

static json_t *request_of(struct taker *t)
{
    uint32_t how = take_byte(t), n = 1 + take_below(t, 6);
    json_t *o = json_object(), *messages = json_array();

    for (uint32_t i = 0; i < n; i++)
        CHECK(json_array_append_new(messages, message_of(t)) == 0);
    CHECK(json_object_set_new(o, "messages", messages) == 0);
    if ((how & 3) == 1)
        CHECK(json_object_set_new(o, "tools", value_of(t, 0)) == 0);
    if ((how & 3) == 2)
        CHECK(json_object_set_new(o, "tools",
                                  json_pack("[{s:s, s:{s:o, s:o}}]", "type", "function", "function",
                                            "name", text_of(t), "parameters", value_of(t, 1))) ==
              0);
    if ((how & 12) == 4)
        CHECK(json_object_set_new(o, "continue_final_message", json_true()) == 0);
    if ((how & 48) == 16)
        CHECK(json_object_set_new(o, "chat_template_kwargs", value_of(t, 0)) == 0);
    if ((how & 192) == 64)
        CHECK(json_object_set_new(o, "documents", value_of(t, 0)) == 0);
    return o;
}

/* ---- what must hold ---- */

static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NONE};

static void put_string(struct buf *out, const json_t *text)
{
    buf_append(out, json_string_value(text), json_string_length(text));
}

/* What chatml makes of texts. */
static void spell_out(const struct chat_request *c, struct buf *out)
{
    const json_t *m;
    size_t i;

    json_array_foreach(c->messages, i, m)
    {
        const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");

        if (i == 0 && strcmp(json_string_value(role), "system") != 0)
            buf_puts(out, "<|im_start|>system\nYou answer questions.<|im_end|>\n");
        buf_puts(out, "<|im_start|>");
        put_string(out, role);
        buf_puts(out, "\n");
        put_string(out, content);
        buf_puts(out, "<|im_end|>\n");
    }
    if (c->add_generation_prompt)
        buf_puts(out, "<|im_start|>assistant\n");
}

static bool is_plain(const struct chat_request *c)
{
    const json_t *m;
    size_t i;

    json_array_foreach(c->messages, i,
                       m) if (!json_is_string(json_object_get(m, "content"))) return false;
    return !c->continue_final && c->kwargs == NULL;
}

static void check_text(const struct chat_request *c, uint32_t number, const struct buf *text)
{
    struct buf wanted = {0};

    CHECK(text->len > 0 && text->len <= CHAT_PROMPT_NBYTES_MAX);
    CHECK(utf8_valid_prefix(text->data, text->len) == text->len);
    if (number == 0 && is_plain(c)) {
        spell_out(c, &wanted);
        CHECK(wanted.len == text->len && memcmp(wanted.data, text->data, text->len) == 0);
        buf_fini(&wanted);
    }
}

static void check_request(const json_t *body, uint32_t number)
{
    const struct chat_template *t = template_number(number);
    struct chat_request c = {0};
    struct buf first = {0}, second = {0};
    struct err e = {0}, again = {0};
    int rc;

    if (chat_parse(&c, body, t, &e) != 0) {
        check_refusal(&e, codes, "/");
        chat_request_fini(&c);
        return;
    }
    rc = chat_prompt(&c, t, &first, &e);
    if (rc != 0)
        check_refusal(&e, codes, "/");
    else
        check_text(&c, number, &first);
    CHECK(chat_prompt(&c, t, &second, &again) == rc && again.code == e.code);
    if (rc == 0)
        CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    buf_fini(&first);
    buf_fini(&second);
    chat_request_fini(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct taker in = {data, data + len};
    uint32_t number = take_below(&in, N_TEMPLATES);
    uint64_t deadline_us = clock_after_us((uint64_t)SECONDS_MAX * 1000000);
    json_t *body = json_loadb((const char *)in.at, (size_t)(in.end - in.at),
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    json_t *before;

    if (!json_is_object(body)) {
        json_decref(body);
        body = request_of(&in);
    }
    before = json_deep_copy(body);
    check_request(body, number);
    CHECK(json_equal(body, before));
    CHECK(!clock_passed(deadline_us));
    json_decref(before);
    json_decref(body);
    return 0;
}
