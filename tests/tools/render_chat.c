/* Renders chat templates for tests/real/test_templates.py. Reads a JSON object from each line:
 * {"template": SOURCE, "specials": {...}} parses a template, any other is a conversation for it,
 * with the members of struct chat_input. Writes for each {"text": ...}, or {"error": ..., "field":
 * ...}. */
#include "text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(struct chat_template **t, const json_t *o, struct err *e)
{
    const json_t *source = json_object_get(o, "template");

    chat_template_free(*t);
    *t = NULL;
    return chat_template_parse(t, json_string_value(source), json_string_length(source),
                               json_object_get(o, "specials"), e);
}

static const json_t *array_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);

    return json_is_array(v) ? v : NULL;
}

static int render(const struct chat_template *t, const json_t *o, struct buf *out, struct err *e)
{
    struct chat_input in = {
        .messages = array_of(o, "messages"),
        .tools = array_of(o, "tools"),
        .documents = array_of(o, "documents"),
        .kwargs = json_object_get(o, "kwargs"),
        .add_generation_prompt = json_is_true(json_object_get(o, "add_generation_prompt")),
        .continue_final = json_is_true(json_object_get(o, "continue_final_message")),
        .now_s = json_integer_value(json_object_get(o, "now_s"))};

    if (t == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/template", "no template");
    return chat_template_render(t, &in, out, e);
}

static void answer(struct chat_template **t, const char *line, size_t len)
{
    json_t *o = json_loadb(line, len, JSON_ALLOW_NUL, NULL), *reply;
    struct buf out = {0};
    struct err e = {0};
    int rc = json_object_get(o, "template") != NULL ? parse(t, o, &e) : render(*t, o, &out, &e);

    reply = rc == 0 ? json_pack("{s:s%}", "text", out.len > 0 ? out.data : "", out.len)
                    : json_pack("{s:s, s:s}", "error", e.msg, "field", e.field);
    if (reply == NULL || json_dumpf(reply, stdout, JSON_COMPACT) != 0)
        abort();
    (void)putchar('\n');
    json_decref(reply);
    json_decref(o);
    buf_fini(&out);
}

int main(void)
{
    struct chat_template *t = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0)
        answer(&t, line, (size_t)n);
    free(line);
    chat_template_free(t);
    return 0;
}
