/* Which template serves, what its variables are, where the text ends. */
#include "text/chat_template.h"

#include "base/file.h"
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAT_SPECIALS_MAX = 64 };

struct chat_template {
    struct jinja *plain;    /* owned; NULL: only requests with tools are served */
    struct jinja *tool_use; /* owned; NULL: `plain` serves those too */
    json_t *specials;       /* owned: {"bos_token": "<s>", ...} */
};

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a chat template");
}

void chat_template_free(struct chat_template *t)
{
    if (t == NULL)
        return;
    jinja_free(t->plain);
    jinja_free(t->tool_use);
    json_decref(t->specials);
    free(t);
}

/* A token is given as its text, or as an object with the text as `content`. */
static const json_t *token_text(const json_t *v)
{
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) && json_string_length(v) > 0 ? v : NULL;
}

static int add_token(json_t *specials, const char *name, const json_t *v, struct err *e)
{
    const json_t *text = token_text(v);

    if (text == NULL)
        return 0;
    return json_object_set(specials, name, (json_t *)(uintptr_t)text) == 0 ? 0 : no_memory(e);
}

static int add_tokens(json_t *specials, const json_t *list, struct err *e)
{
    json_t *texts = json_array();
    size_t n = json_array_size(list) < CHAT_SPECIALS_MAX ? json_array_size(list)
                                                         : CHAT_SPECIALS_MAX;

    for (size_t i = 0; i < n && texts != NULL; i++) {
        const json_t *text = token_text(json_array_get(list, i));

        if (text != NULL && json_array_append(texts, (json_t *)(uintptr_t)text) != 0) {
            json_decref(texts);
            texts = NULL;
        }
    }
    if (texts == NULL || json_object_set_new(specials, "additional_special_tokens", texts) != 0)
        return no_memory(e);
    return 0;
}

static int read_specials(json_t **out, const json_t *config, struct err *e)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *specials = json_object();
    const json_t *more = json_object_get(config, "additional_special_tokens");

    if (specials == NULL)
        return no_memory(e);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (add_token(specials, names[i], json_object_get(config, names[i]), e) != 0)
            goto err_decref;
    }
    if (json_array_size(more) > 0 && add_tokens(specials, more, e) != 0)
        goto err_decref;
    *out = specials;
    return 0;

err_decref:
    json_decref(specials);
    return -1;
}

/* tokenizer_config.json; *out is NULL when there is none. */
static int load_config(json_t **out, const char *dir, struct err *e)
{
    struct file_cfg file = {.dir = dir,
                            .path = "tokenizer_config.json",
                            .nbytes_max = CHAT_CONFIG_NBYTES_MAX,
                            .optional = true};
    json_error_t je;
    json_t *o;
    char *text;
    size_t len = 0;

    *out = NULL;
    if (file_read(&text, &len, &file, e) != 0)
        return -1;
    if (text == NULL)
        return 0;
    o = json_loadb(text, len, 0, &je);
    free(text);
    if (o == NULL && json_error_code(&je) == json_error_out_of_memory)
        return no_memory(e);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "tokenizer_config.json is no JSON object");
    }
    *out = o;
    return 0;
}

static int parse_named(struct chat_template *t, const json_t *list, struct err *e)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const json_t *name = json_object_get(item, "name"),
                     *source = json_object_get(item, "template");
        const char *text = json_string_value(name);
        struct jinja **at;

        if (text == NULL || !json_is_string(source))
            return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                           "entry %zu of the list has no name and template", i);
        at = strcmp(text, "default") == 0    ? &t->plain
             : strcmp(text, "tool_use") == 0 ? &t->tool_use
                                             : NULL;
        if (at == NULL)
            continue;
        jinja_free(*at);
        *at = NULL;
        if (jinja_parse(at, json_string_value(source), json_string_length(source), e) != 0)
            return -1;
    }
    if (t->plain == NULL && t->tool_use == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "the list has neither a template 'default' nor one 'tool_use'");
    return 0;
}

static int parse_config(struct chat_template *t, const json_t *config, struct err *e)
{
    const json_t *v = json_object_get(config, "chat_template");

    if (v == NULL || json_is_null(v))
        return err_set(
            e, ERR_NOT_FOUND, "",
            "the model has no chat template: no chat_template.jinja, no chat_template in "
            "tokenizer_config.json");
    if (json_is_string(v))
        return jinja_parse(&t->plain, json_string_value(v), json_string_length(v), e);
    if (!json_is_array(v))
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "chat_template in tokenizer_config.json is neither a string nor a list");
    return parse_named(t, v, e);
}

int chat_template_parse(struct chat_template **out, const char *source, size_t len,
                        const json_t *config, struct err *e)
{
    struct chat_template *t = calloc(1, sizeof *t);
    int rc;

    if (t == NULL)
        return no_memory(e);
    rc = source != NULL ? jinja_parse(&t->plain, source, len, e) : parse_config(t, config, e);
    if (rc != 0 || read_specials(&t->specials, config, e) != 0) {
        chat_template_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

int chat_template_load(struct chat_template **out, const char *dir, struct err *e)
{
    struct file_cfg file = {.dir = dir,
                            .path = "chat_template.jinja",
                            .nbytes_max = JINJA_SOURCE_NBYTES_MAX,
                            .optional = true};
    json_t *config = NULL;
    char *source = NULL;
    size_t len = 0;
    int rc;

    if (load_config(&config, dir, e) != 0)
        return -1;
    rc = file_read(&source, &len, &file, e);
    if (rc == 0)
        rc = chat_template_parse(out, source, len, config, e);
    free(source);
    json_decref(config);
    return rc;
}

static const struct jinja *template_pick(const struct chat_template *t, bool has_tools)
{
    return has_tools && t->tool_use != NULL ? t->tool_use : t->plain;
}

bool chat_template_takes_parts(const struct chat_template *t, bool has_tools)
{
    const struct jinja *j = template_pick(t, has_tools);

    return j != NULL && jinja_walks_content(j);
}

/* The text of the last message; NULL when it has none. */
static const json_t *final_text(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1),
                 *content = json_object_get(last, "content");

    for (size_t i = json_array_size(content); i-- > 0;) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");

        if (json_is_string(text))
            return text;
    }
    return json_is_string(content) ? content : NULL;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The last place of `what` in s, as an offset, or s's length. By a search from the other end, so
 * that time is linear in both. */
static int find_last(const char *s, size_t len, const char *what, size_t n, size_t *at,
                     struct err *e)
{
    char *back = malloc(len + n + 1);
    const char *found;

    if (back == NULL)
        return no_memory(e);
    for (size_t i = 0; i < len; i++)
        back[i] = s[len - 1 - i];
    for (size_t i = 0; i < n; i++)
        back[len + i] = what[n - 1 - i];
    found = n > 0 ? memmem(back, len, back + len, n) : back;
    *at = found != NULL ? len - (size_t)(found - back) - n : len;
    free(back);
    return 0;
}

/* Cuts the text after the last place where it shows the final message. A template may trim the
 * message, so that white space around it does not count, but for what the text kept of it. */
static int cut_after_final(const struct chat_input *in, size_t from, struct buf *out, struct err *e)
{
    const json_t *final = final_text(in->messages);
    const char *text = json_string_value(final);
    size_t len = text != NULL ? json_string_length(final) : 0, at = 0, kept, rest;

    while (len > 0 && is_space(*text)) {
        text++;
        len--;
    }
    kept = len;
    while (len > 0 && is_space(text[len - 1]))
        len--;
    if (len == 0)
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "the final message has no text that could be continued");
    if (out->len > from && find_last(out->data + from, out->len - from, text, len, &at, e) != 0)
        return -1;
    rest = out->len - from - at;
    if (rest == 0)
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "the chat template does not show the text of the final message, so that it "
                       "cannot be continued");
    out->len = from + at +
               (rest >= kept && memcmp(out->data + from + at, text, kept) == 0 ? kept : len);
    out->data[out->len] = '\0';
    return 0;
}

/* The variables that every template gets; a new object. */
static json_t *template_variables(const struct chat_input *in)
{
    return json_pack("{s:O, s:O?, s:O?, s:b}", "messages", in->messages, "tools", in->tools,
                     "documents", in->documents, "add_generation_prompt",
                     in->add_generation_prompt);
}

int chat_template_render(const struct chat_template *t, const struct chat_input *in,
                         struct buf *out, struct err *e)
{
    const struct jinja *j = template_pick(t, in->tools != NULL);
    json_t *base = template_variables(in);
    const json_t *layers[3] = {in->kwargs, base, t->specials};
    struct jinja_input input = {.layers = layers, .n_layers = 3, .now_s = in->now_s};
    size_t from = out->len;
    int rc;

    if (base == NULL)
        return no_memory(e);
    rc = j != NULL ? jinja_render(j, &input, out, e)
                   : err_set(e, ERR_BAD_REQUEST, "/tools",
                             "the model's only chat template is for requests with tools");
    json_decref(base);
    if (rc == 0 && in->continue_final && cut_after_final(in, from, out, e) != 0) {
        rc = -1;
        out->len = from;
        if (out->data != NULL)
            out->data[from] = '\0';
    }
    return rc;
}
