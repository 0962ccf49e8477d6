/* Turns messages as clients send them into messages as templates expect them. The request's JSON is
 * not changed: a copy is. */
#include "handlers/generate/chat_parse.h"

#include "base/clock.h"
#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/rows/generate_request.h"
#include "handlers/rows/rows.h"

#include <stdio.h>
#include <string.h>

static int chat_no_memory(struct err *e)
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

/* The member of a part that is its text; NULL if it is no text. As in vLLM; and a part without a
 * type is one of text if it has a text. */
static const char *text_member(const json_t *part)
{
    static const char *const members[][2] = {{"text", "text"},
                                             {"input_text", "text"},
                                             {"output_text", "text"},
                                             {"refusal", "refusal"},
                                             {"thinking", "thinking"}};
    const json_t *type = json_object_get(part, "type");

    if (type == NULL && json_is_string(json_object_get(part, "text")))
        return "text";
    for (size_t i = 0; json_is_string(type) && i < sizeof members / sizeof members[0]; i++) {
        if (strcmp(json_string_value(type), members[i][0]) == 0)
            return members[i][1];
    }
    return NULL;
}

/* The text of one part; borrowed. */
static int part_text(const json_t **out, const json_t *part, size_t i, size_t k, struct err *e)
{
    const char *member = text_member(part),
               *type = json_string_value(json_object_get(part, "type"));
    char field[ERR_FIELD_MAX], at[16];

    *out = json_is_string(part) ? part : json_object_get(part, member != NULL ? member : "");
    if (json_is_string(*out))
        return 0;
    (void)snprintf(at, sizeof at, "/%s", member != NULL ? member : "type");
    message_field(field, i, "content", k, at);
    if (member != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected a string", found_name(*out));
    return err_set(e, ERR_BAD_REQUEST, field,
                   "a part of type '%.64s'; parts of text are supported, of type 'text', "
                   "'input_text', 'output_text', 'refusal' or 'thinking'",
                   type != NULL ? type : found_name(json_object_get(part, "type")));
}

/* The parts as an array of {type, text}. Returns a new reference. */
static int copy_parts(json_t **out, const json_t *parts, size_t i, struct err *e)
{
    json_t *list = json_array();
    const json_t *text;

    for (size_t k = 0; k < json_array_size(parts); k++) {
        if (part_text(&text, json_array_get(parts, k), i, k, e) != 0) {
            json_decref(list);
            return -1;
        }
        if (json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", text)) != 0)
            break;
    }
    if (list == NULL || json_array_size(list) < json_array_size(parts)) {
        json_decref(list);
        return chat_no_memory(e);
    }
    *out = list;
    return 0;
}

/* The texts joined by newlines. Returns a new reference.
 * @keep_empty  an empty text is a line */
static int join_parts(json_t **out, const json_t *parts, bool keep_empty, size_t i, struct err *e)
{
    struct buf joined = {0};
    const json_t *text;
    bool first = true;
    int rc = 0;

    for (size_t k = 0; rc == 0 && k < json_array_size(parts); k++) {
        rc = part_text(&text, json_array_get(parts, k), i, k, e);
        if (rc != 0 || (json_string_length(text) == 0 && !keep_empty))
            continue;
        buf_append(&joined, "\n", first ? 0 : 1);
        buf_append(&joined, json_string_value(text), json_string_length(text));
        first = false;
    }
    if (rc == 0) {
        *out = joined.failed ? NULL : json_stringn(joined.len > 0 ? joined.data : "", joined.len);
        rc = *out == NULL ? chat_no_memory(e) : 0;
    }
    buf_fini(&joined);
    return rc;
}

static int set_content(json_t *message, bool as_parts, size_t i, struct err *e)
{
    const json_t *content = body_given(message, "content");
    bool of_tool = strcmp(json_string_value(json_object_get(message, "role")), "tool") == 0;
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
    else if ((as_parts && !of_tool ? copy_parts(&made, content, i, e)
                                   : join_parts(&made, content, as_parts, i, e)) != 0)
        return -1;
    return json_object_set_new(message, "content", made) == 0 ? 0 : chat_no_memory(e);
}

/* Is it an object to Python, though no JSON to us? `why` is of the first place that is none. */
static bool python_reads(const json_error_t *why, const char *text, size_t len)
{
    if (text[strspn(text, " \t\r\n")] != '{')
        return false;
    switch (json_error_code(why)) {
    case json_error_numeric_overflow:
    case json_error_null_byte_in_key:
    case json_error_stack_overflow:
        return true;
    default:
        return strncmp(why->text, "invalid Unicode", 15) == 0 ||
               strstr(why->text, "near 'NaN'") != NULL ||
               strstr(why->text, "near 'Infinity'") != NULL ||
               (why->position > 0 && (size_t)why->position <= len &&
                strncmp(text + why->position - 1, "-Infinity", 9) == 0);
    }
}

/* Templates expect arguments as an object; clients send them as JSON in a string. As in vLLM, what
 * is no object becomes an empty one, so that a conversation can go on after a model's mistake. */
static int set_arguments(json_t *function, size_t i, size_t k, struct err *e)
{
    const json_t *arguments = json_object_get(function, "arguments");
    const char *text = json_string_value(arguments);
    size_t len = json_string_length(arguments);
    char field[ERR_FIELD_MAX];
    json_t *made = NULL;
    json_error_t why;
    bool starved = false;

    if (json_is_object(arguments))
        return 0;
    if (len > 0)
        made = json_parse(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why, &starved);
    if (starved)
        return chat_no_memory(e);
    if (len > 0 && made == NULL && python_reads(&why, text, len)) {
        message_field(field, i, "tool_calls", k, "/function/arguments");
        return err_set(e, ERR_BAD_REQUEST, field, "JSON that is not supported: %.100s", why.text);
    }
    if (!json_is_object(made)) {
        json_decref(made);
        made = json_object();
    }
    return json_object_set_new(function, "arguments", made) == 0 ? 0 : chat_no_memory(e);
}

static int set_calls(json_t *message, size_t i, struct err *e)
{
    const json_t *calls = body_given(message, "tool_calls"), *call;
    char field[ERR_FIELD_MAX];
    size_t k;

    if (calls == NULL)
        return 0;
    if (json_is_array(calls) && json_array_size(calls) == 0)
        return json_object_del(message, "tool_calls");
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

/* Templates tell a member that is absent from one that is null; clients do not. */
static void drop_nulls(json_t *message)
{
    const char *name;
    json_t *v;
    void *next;

    json_object_foreach_safe(message, next, name, v)
    {
        if (json_is_null(v))
            (void)json_object_del(message, name);
    }
}

/* Two names of one thing: vLLM takes the first of these, transformers the second. */
static int check_reasoning(const json_t *message, size_t i, struct err *e)
{
    const json_t *a = body_given(message, "reasoning"),
                 *b = body_given(message, "reasoning_content");
    char field[ERR_FIELD_MAX];

    if (a == NULL || b == NULL || json_equal(a, b))
        return 0;
    message_field(field, i, "reasoning", 0, NULL);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'reasoning' and 'reasoning_content' differ; send one of them");
}

static int set_message(json_t *message, bool as_parts, size_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role"))) {
        (void)snprintf(field, sizeof field, "/messages/%zu%s", i,
                       json_is_object(message) ? "/role" : "");
        return err_set(e, ERR_BAD_REQUEST, field, "a message is an object with a string 'role'");
    }
    if (check_reasoning(message, i, e) != 0 || set_content(message, as_parts, i, e) != 0)
        return -1;
    drop_nulls(message);
    return set_calls(message, i, e);
}

static int parse_messages(struct chat_request *c, const json_t *messages,
                          const struct chat_template *t, struct err *e)
{
    bool as_parts = chat_template_takes_parts(t, c->tools != NULL);
    size_t n;

    n = json_array_size(messages);
    if (n == 0 || n > CHAT_MESSAGES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/messages", "%zu messages; expected 1 to %d", n,
                       CHAT_MESSAGES_MAX);
    c->messages = json_deep_copy_all(messages);
    if (c->messages == NULL)
        return chat_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        if (set_message(json_array_get(c->messages, i), as_parts, i, e) != 0)
            return -1;
    }
    return 0;
}

static json_t *hold_ref(const json_t *v)
{
    return json_incref(json_mutable(v)); /* no other thread uses the request */
}

static int parse_tools(struct chat_request *c, const struct chat_options *o, const json_t *choice,
                       struct err *e)
{
    const char *word = json_string_value(choice);
    char field[ERR_FIELD_MAX];
    const json_t *tool;
    size_t i;

    if (choice != NULL &&
        (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0)))
        return err_set(e, ERR_BAD_REQUEST, "/tool_choice",
                       "a call cannot be forced: 'auto' and 'none' are supported");
    json_array_foreach(o->tools, i, tool)
    {
        if (json_is_object(tool))
            continue;
        (void)snprintf(field, sizeof field, "/tools/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "%s, expected an object", found_name(tool));
    }
    c->tools = json_array_size(o->tools) > 0 ? hold_ref(o->tools) : NULL;
    c->documents = o->documents != NULL ? hold_ref(o->documents) : NULL;
    return 0;
}

static int parse_kwargs(struct chat_request *c, const json_t *kwargs, struct err *e)
{
    static const char at[] = "/chat_template_kwargs";
    static const char *const fixed[] = {"messages", "tools", "documents", "chat_template",
                                        "continue_final_message"};
    char field[ERR_FIELD_MAX];

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
    struct chat_options o = {0};

    if (member_read(&o, chat_rows, body, "", e) != 0)
        return -1;
    out->continue_final = o.continue_final;
    out->add_generation_prompt = o.add_given ? o.add_generation_prompt : !o.continue_final;
    out->add_special = o.add_special;
    if (parse_kwargs(out, o.kwargs, e) != 0 ||
        parse_tools(out, &o, body_given(body, "tool_choice"), e) != 0)
        return -1;
    if (out->continue_final && out->add_generation_prompt)
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "continue_final_message and add_generation_prompt cannot both be true");
    return parse_messages(out, o.messages, t, e);
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
