/* Turns messages as clients send them into messages as templates expect them. The request's JSON is
 * not changed: a copy is. */
#include "handlers/generate/chat_parse.h"

#include "base/clock.h"
#include "handlers/body.h"

#include <stdio.h>
#include <string.h>

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the messages");
}

/* As body_type_name; NULL is "nothing". */
static const char *found_name(const json_t *v)
{
    return v != NULL ? body_type_name(v) : "nothing";
}

int chat_check_app(const struct app *app, struct err *e)
{
    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "no tokenizer is loaded: this server cannot generate text");
    if (app->generate->chat != NULL)
        return 0;
    if (app->generate->chat_why == NULL || app->generate->chat_why->code == ERR_NOT_FOUND)
        return err_set(e, ERR_BAD_REQUEST, "/messages",
                       "the model has no chat template; send a prompt to /v1/completions");
    return err_set(e, ERR_BAD_REQUEST, "/messages",
                   "the model's chat template is not supported (%.300s); send a prompt to "
                   "/v1/completions",
                   app->generate->chat_why->msg);
}

void chat_request_fini(struct chat_request *c)
{
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->documents);
    json_decref(c->kwargs);
    *c = (struct chat_request){0};
}

/* "/messages/3/content/1/type" and the like. */
static void message_field(char field[ERR_FIELD_MAX], size_t i, const char *rest, size_t part,
                          const char *member)
{
    int n = snprintf(field, ERR_FIELD_MAX, "/messages/%zu/%s", i, rest);

    if (member != NULL && n > 0 && n < ERR_FIELD_MAX)
        (void)snprintf(field + n, ERR_FIELD_MAX - (size_t)n, "/%zu%s", part, member);
}

/* The text of one part. */
static int part_text(const char **out, size_t *len, const json_t *part, size_t i, size_t k,
                     struct err *e)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    char field[ERR_FIELD_MAX];

    if (json_is_string(part))
        text = part;
    else if (!json_is_string(type) || (strcmp(json_string_value(type), "text") != 0 &&
                                       strcmp(json_string_value(type), "input_text") != 0)) {
        message_field(field, i, "content", k, "/type");
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a part of type '%.64s'; parts of type 'text' are supported",
                       json_is_string(type) ? json_string_value(type) : found_name(type));
    }
    if (!json_is_string(text)) {
        message_field(field, i, "content", k, "/text");
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected a string", found_name(text));
    }
    *out = json_string_value(text);
    *len = json_string_length(text);
    return 0;
}

/* The parts as an array of {type, text}, or joined by newlines. Returns a new reference. */
static int join_parts(json_t **out, const json_t *parts, bool as_parts, size_t i, struct err *e)
{
    json_t *list = json_array(), *v;
    struct buf text = {0};
    int rc = list == NULL ? no_memory(e) : 0;

    for (size_t k = 0; rc == 0 && k < json_array_size(parts); k++) {
        const char *s = NULL;
        size_t len = 0;

        rc = part_text(&s, &len, json_array_get(parts, k), i, k, e);
        if (rc != 0)
            break;
        buf_append(&text, "\n", k > 0 ? 1 : 0);
        buf_append(&text, s, len);
        v = as_parts ? json_pack("{s:s, s:s%}", "type", "text", "text", s, len) : NULL;
        if (as_parts && json_array_append_new(list, v) != 0)
            rc = no_memory(e);
    }
    if (rc == 0 && !as_parts) {
        json_decref(list);
        list = text.failed ? NULL : json_stringn(text.len > 0 ? text.data : "", text.len);
        rc = list == NULL ? no_memory(e) : 0;
    }
    buf_fini(&text);
    if (rc == 0)
        *out = list;
    else
        json_decref(list);
    return rc;
}

static int set_content(json_t *message, bool as_parts, size_t i, struct err *e)
{
    const json_t *content = body_given(message, "content");
    json_t *made = NULL;
    char field[ERR_FIELD_MAX];

    if (json_is_string(content))
        return 0;
    if (content != NULL && !json_is_array(content)) {
        message_field(field, i, "content", 0, NULL);
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected a string or an array of parts",
                       found_name(content));
    }
    if (content == NULL)
        made = json_string("");
    else if (join_parts(&made, content, as_parts, i, e) != 0)
        return -1;
    return json_object_set_new(message, "content", made) == 0 ? 0 : no_memory(e);
}

/* Templates expect arguments as an object; clients send them as JSON in a string. */
static int set_arguments(json_t *function, size_t i, size_t k, struct err *e)
{
    const json_t *arguments = json_object_get(function, "arguments");
    char field[ERR_FIELD_MAX];
    json_error_t je;
    json_t *made;

    if (!json_is_string(arguments))
        return 0;
    made = json_string_length(arguments) == 0
               ? json_object()
               : json_loadb(json_string_value(arguments), json_string_length(arguments),
                            JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (made == NULL && json_string_length(arguments) > 0 &&
        json_error_code(&je) != json_error_out_of_memory) {
        message_field(field, i, "tool_calls", k, "/function/arguments");
        return err_set(e, ERR_BAD_REQUEST, field, "a string that is not JSON: %.100s", je.text);
    }
    return json_object_set_new(function, "arguments", made) == 0 ? 0 : no_memory(e);
}

static int set_calls(json_t *message, size_t i, struct err *e)
{
    const json_t *calls = body_given(message, "tool_calls"), *call;
    char field[ERR_FIELD_MAX];
    size_t k;

    if (calls == NULL)
        return 0;
    if (!json_is_array(calls)) {
        message_field(field, i, "tool_calls", 0, NULL);
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected an array", found_name(calls));
    }
    json_array_foreach(calls, k, call)
    {
        json_t *function = json_object_get(call, "function");

        if (!json_is_object(function)) {
            message_field(field, i, "tool_calls", k, "/function");
            return err_set(e, ERR_BAD_REQUEST, field, "%s, expected an object",
                           found_name(function));
        }
        if (set_arguments(function, i, k, e) != 0)
            return -1;
    }
    return 0;
}

static int set_message(json_t *message, bool as_parts, size_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role"))) {
        (void)snprintf(field, sizeof field, "/messages/%zu%s", i,
                       json_is_object(message) ? "/role" : "");
        return err_set(e, ERR_BAD_REQUEST, field, "a message is an object with a string 'role'");
    }
    if (set_content(message, as_parts, i, e) != 0)
        return -1;
    return set_calls(message, i, e);
}

static int parse_messages(struct chat_request *c, const json_t *body, const struct chat_template *t,
                          struct err *e)
{
    bool as_parts = chat_template_takes_parts(t, c->tools != NULL);
    const json_t *messages = NULL;
    size_t n;

    if (body_required(body, "", "messages", e) != 0 ||
        body_array(&messages, body, "", "messages", e) != 0)
        return -1;
    n = json_array_size(messages);
    if (n == 0 || n > CHAT_MESSAGES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/messages", "%zu messages; expected 1 to %d", n,
                       CHAT_MESSAGES_MAX);
    c->messages = json_deep_copy(messages);
    if (c->messages == NULL)
        return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        if (set_message(json_array_get(c->messages, i), as_parts, i, e) != 0)
            return -1;
    }
    return 0;
}

static json_t *hold_ref(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v); /* no other thread uses the request */
}

static int parse_tools(struct chat_request *c, const json_t *body, struct err *e)
{
    const json_t *tools = NULL, *documents = NULL, *choice = body_given(body, "tool_choice"), *tool;
    const char *word = json_string_value(choice);
    char field[ERR_FIELD_MAX];
    size_t i;

    if (body_array(&tools, body, "", "tools", e) != 0 ||
        body_array(&documents, body, "", "documents", e) != 0)
        return -1;
    if (choice != NULL &&
        (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0)))
        return err_set(e, ERR_BAD_REQUEST, "/tool_choice",
                       "a call cannot be forced: 'auto' and 'none' are supported");
    json_array_foreach(tools, i, tool)
    {
        if (json_is_object(tool))
            continue;
        (void)snprintf(field, sizeof field, "/tools/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected an object", found_name(tool));
    }
    c->tools = json_array_size(tools) > 0 ? hold_ref(tools) : NULL;
    c->documents = documents != NULL ? hold_ref(documents) : NULL;
    return 0;
}

static int parse_kwargs(struct chat_request *c, const json_t *body, struct err *e)
{
    static const char at[] = "/chat_template_kwargs";
    static const char *const fixed[] = {"messages", "tools", "documents", "chat_template",
                                        "continue_final_message"};
    const json_t *kwargs = NULL;
    char field[ERR_FIELD_MAX];

    if (body_object(&kwargs, body, "", "chat_template_kwargs", e) != 0)
        return -1;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (json_object_get(kwargs, fixed[i]) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "%s/%s", at, fixed[i]);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%s' is a member of the request, not of "
                       "'chat_template_kwargs'",
                       fixed[i]);
    }
    if (kwargs != NULL &&
        body_bool(&c->add_generation_prompt, kwargs, at, "add_generation_prompt", e) != 0)
        return -1;
    c->kwargs = kwargs != NULL ? hold_ref(kwargs) : NULL;
    return 0;
}

int chat_parse(struct chat_request *out, const json_t *body, const struct chat_template *t,
               struct err *e)
{
    if (body_given(body, "chat_template") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "a template of the request's own is not supported; the model's is used");
    if (body_bool(&out->continue_final, body, "", "continue_final_message", e) != 0)
        return -1;
    out->add_generation_prompt = !out->continue_final;
    if (body_bool(&out->add_generation_prompt, body, "", "add_generation_prompt", e) != 0 ||
        body_bool(&out->add_special, body, "", "add_special_tokens", e) != 0 ||
        parse_kwargs(out, body, e) != 0 || parse_tools(out, body, e) != 0)
        return -1;
    if (out->continue_final && out->add_generation_prompt)
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "continue_final_message and add_generation_prompt cannot both be true");
    return parse_messages(out, body, t, e);
}

int chat_prompt(const struct chat_request *c, const struct chat_template *t, struct buf *out,
                struct err *e)
{
    struct chat_input in = {.messages = c->messages,
                            .tools = c->tools,
                            .documents = c->documents,
                            .kwargs = c->kwargs,
                            .add_generation_prompt = c->add_generation_prompt,
                            .continue_final = c->continue_final,
                            .now_s = clock_wall_s()};
    size_t from = out->len;

    if (chat_template_render(t, &in, out, e) != 0)
        return -1;
    if (out->len - from > CHAT_PROMPT_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/messages",
                       "the prompt has %zu bytes of text; at most %d are allowed", out->len - from,
                       CHAT_PROMPT_NBYTES_MAX);
    if (out->len == from)
        return err_set(e, ERR_BAD_REQUEST, "/messages", "the chat template makes an empty prompt");
    return 0;
}
