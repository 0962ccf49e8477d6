/* Which template serves, what its variables are, where the text ends. */
#include "text/chat_template.h"

#include "base/file.h"
#include "base/json_parse.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAT_SPECIALS_MAX = 64 };

struct chat_template {
    struct jinja *plain;    /* owned; NULL: only requests with tools are served */
    struct jinja *tool_use; /* owned; NULL: `plain` serves those too */
    json_t *specials;       /* owned: {"bos_token": "<s>", ...} */
};

static int chat_template_no_memory(struct err *e)
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
    return json_object_set(specials, name, json_mutable(text)) == 0 ? 0
                                                                    : chat_template_no_memory(e);
}

static int add_tokens(json_t *specials, const json_t *list, struct err *e)
{
    json_t *texts = json_array();
    size_t n = json_array_size(list) < CHAT_SPECIALS_MAX ? json_array_size(list)
                                                         : CHAT_SPECIALS_MAX;

    for (size_t i = 0; i < n && texts != NULL; i++) {
        const json_t *text = token_text(json_array_get(list, i));

        if (text != NULL && json_array_append(texts, json_mutable(text)) != 0) {
            json_decref(texts);
            texts = NULL;
        }
    }
    if (texts == NULL || json_object_set_new(specials, "additional_special_tokens", texts) != 0)
        return chat_template_no_memory(e);
    return 0;
}

static int read_specials(json_t **out, const json_t *config, struct err *e)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *specials = json_object();
    const json_t *more = json_object_get(config, "additional_special_tokens");

    if (specials == NULL)
        return chat_template_no_memory(e);
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
    json_error_t why;
    json_t *o;
    char *text;
    size_t len = 0;
    bool starved;

    *out = NULL;
    if (file_read(&text, &len, &file, e) != 0)
        return -1;
    if (text == NULL)
        return 0;
    o = json_parse_file(text, len, 0, &why, &starved);
    free(text);
    if (starved)
        return chat_template_no_memory(e);
    if (o == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "tokenizer_config.json is not JSON: line %d, column %d: %s", why.line,
                       why.column, why.text);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "tokenizer_config.json is no JSON object");
    }
    *out = o;
    return 0;
}

/* Says which of a model's templates failed. -1. */
static int name_template(struct err *e, const char *name)
{
    struct err named = {0};

    (void)err_set(&named, e->code, e->field, "template '%s': %s", name, e->msg);
    *e = named;
    return -1;
}

static struct jinja **template_named(struct chat_template *t, const char *name)
{
    return strcmp(name, "default") == 0    ? &t->plain
           : strcmp(name, "tool_use") == 0 ? &t->tool_use
                                           : NULL;
}

/* The last of two with one name serves, as in transformers; those of other names are ignored. */
static int parse_named(struct chat_template *t, const char *name, const char *source, size_t len,
                       struct err *e)
{
    struct jinja **at = template_named(t, name);

    if (at == NULL)
        return 0;
    jinja_free(*at);
    *at = NULL;
    return jinja_parse(at, source, len, e) == 0 ? 0 : name_template(e, name);
}

static int chat_template_parse_list(struct chat_template *t, const json_t *list, struct err *e)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const json_t *name = json_object_get(item, "name"),
                     *source = json_object_get(item, "template");
        const char *text = json_string_value(name);

        if (text == NULL || !json_is_string(source))
            return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                           "entry %zu of the list has no name and template", i);
        if (parse_named(t, text, json_string_value(source), json_string_length(source), e) != 0)
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
    return chat_template_parse_list(t, v, e);
}

int chat_template_parse(struct chat_template **out, const char *source, size_t len,
                        const json_t *config, struct err *e)
{
    struct chat_template *t = calloc(1, sizeof *t);
    int rc;

    if (t == NULL)
        return chat_template_no_memory(e);
    rc = source != NULL ? jinja_parse(&t->plain, source, len, e) : parse_config(t, config, e);
    if (rc != 0 || read_specials(&t->specials, config, e) != 0) {
        chat_template_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

/* DIR/PATH, if it is there. */
static int load_file(char **source, size_t *len, const char *dir, const char *path, struct err *e)
{
    struct file_cfg file = {
        .dir = dir, .path = path, .nbytes_max = JINJA_SOURCE_NBYTES_MAX, .optional = true};

    *source = NULL;
    return file_read(source, len, &file, e);
}

/* Those that transformers writes beside chat_template.jinja when a model has several. */
static int load_named(struct chat_template *t, const char *dir, const char *name, struct err *e)
{
    char path[64], *source;
    size_t len = 0;
    int rc;

    (void)snprintf(path, sizeof path, "additional_chat_templates/%s.jinja", name);
    if (load_file(&source, &len, dir, path, e) != 0)
        return -1;
    rc = source != NULL ? parse_named(t, name, source, len, e) : 0;
    free(source);
    return rc;
}

/* Files come before tokenizer_config.json. */
static int load_templates(struct chat_template *t, const char *dir, const json_t *config,
                          struct err *e)
{
    char *source;
    size_t len = 0;
    int rc;

    if (load_file(&source, &len, dir, "chat_template.jinja", e) != 0)
        return -1;
    rc = source != NULL ? jinja_parse(&t->plain, source, len, e) : 0;
    free(source);
    if (rc != 0 || load_named(t, dir, "default", e) != 0 || load_named(t, dir, "tool_use", e) != 0)
        return -1;
    return t->plain != NULL || t->tool_use != NULL ? 0 : parse_config(t, config, e);
}

int chat_template_load(struct chat_template **out, const char *dir, struct err *e)
{
    struct chat_template *t;
    json_t *config = NULL;

    if (load_config(&config, dir, e) != 0)
        return -1;
    t = calloc(1, sizeof *t);
    if (t == NULL)
        (void)chat_template_no_memory(e);
    if (t == NULL || load_templates(t, dir, config, e) != 0 ||
        read_specials(&t->specials, config, e) != 0) {
        chat_template_free(t);
        t = NULL;
    }
    json_decref(config);
    if (t == NULL)
        return -1;
    *out = t;
    return 0;
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

/* A copy of a message that has its reasoning by each name that templates read. */
static json_t *with_reasoning(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const json_t *reasoning = NULL;
    json_t *o;

    for (size_t i = 0; i < 3 && (reasoning == NULL || json_is_null(reasoning)); i++)
        reasoning = json_object_get(message, names[i]);
    if (reasoning == NULL || json_is_null(reasoning))
        return json_copy_all(message);
    o = json_pack("{s:O}", "thinking", reasoning);
    if (o != NULL && json_object_update(o, json_mutable(message)) == 0 &&
        json_object_set(o, "reasoning_content", json_mutable(reasoning)) == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* The messages as the template gets them; new, NULL without memory. Only the outer two levels are
 * copies. */
static json_t *template_messages(const json_t *messages)
{
    json_t *copy = json_array(), *message;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        if (copy != NULL && json_array_append_new(copy, with_reasoning(message)) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    }
    return copy;
}

/* What marks the end of the final message's text in the prompt. A template that trims the message
 * takes the space away. */
static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* o.member + tag. */
static int set_tag(json_t *o, const char *member, const json_t *text)
{
    return json_object_set_new(
        o, member,
        json_pack("s%+%", json_string_value(text), json_string_length(text), tag, sizeof tag - 1));
}

/* Puts the tag behind the last message's text: content, or the last part that has a text. *text is
 * borrowed from `given`, whose copy `messages` is. */
static int tag_final(json_t *messages, const json_t *given, struct text *text, struct err *e)
{
    size_t last = json_array_size(given) - 1, i;
    const json_t *content = json_object_get(json_array_get(given, last), "content");
    json_t *message = json_array_get(messages, last), *parts;
    int rc;

    if (json_is_array(content)) {
        for (i = json_array_size(content); i > 0; i--) {
            if (json_object_get(json_array_get(content, i - 1), "text") != NULL)
                break;
        }
        parts = json_deep_copy_all(content);
        content = i > 0 ? json_object_get(json_array_get(content, i - 1), "text") : NULL;
        rc = json_is_string(content) ? set_tag(json_array_get(parts, i - 1), "text", content) : 0;
        rc = json_object_set_new(message, "content", parts) != 0 ? -1 : rc;
    } else {
        rc = json_is_string(content) ? set_tag(message, "content", content) : 0;
    }
    if (rc != 0)
        return chat_template_no_memory(e);
    if (!json_is_string(content))
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "the final message has no text that could be continued");
    *text = (struct text){json_string_value(content), json_string_length(content)};
    return 0;
}

/* Cuts the prompt at the last tag, and white space before it when the template trimmed the text. */
static int cut_at_tag(struct buf *out, size_t from, struct text final, struct err *e)
{
    struct text prompt = {out->data != NULL ? out->data + from : "", out->len - from};
    size_t n = sizeof tag - 2; /* without the space */

    final = text_strip(final, STRIP_BOTH);
    if (memmem(prompt.p, prompt.len, tag, n) == NULL ||
        (final.len > 0 && memmem(prompt.p, prompt.len, final.p, final.len) == NULL))
        return err_set(e, ERR_BAD_REQUEST, "/continue_final_message",
                       "the chat template does not show the text of the final message, so that it "
                       "cannot be continued");
    for (prompt.len -= n; memcmp(prompt.p + prompt.len, tag, n) != 0;)
        prompt.len--;
    if (prompt.p + prompt.len + n == out->data + out->len || prompt.p[prompt.len + n] != ' ')
        prompt = text_strip(prompt, STRIP_RIGHT);
    out->len = from + prompt.len;
    out->data[out->len] = '\0';
    return 0;
}

/* The variables that every template gets; a new object. Steals the messages. */
static json_t *template_variables(const struct chat_input *in, json_t *messages)
{
    return json_pack("{s:o, s:O?, s:O?, s:b}", "messages", messages, "tools", in->tools,
                     "documents", in->documents, "add_generation_prompt",
                     in->add_generation_prompt);
}

static int render(const struct chat_template *t, const struct chat_input *in, json_t *base,
                  struct buf *out, struct err *e)
{
    const struct jinja *j = template_pick(t, in->tools != NULL);
    const json_t *layers[3] = {in->kwargs, base, t->specials};
    struct jinja_input input = {.layers = layers, .n_layers = 3, .now_s = in->now_s};

    if (j == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/tools",
                       "the model's only chat template is for requests with tools");
    if (jinja_render(j, &input, out, e) == 0)
        return 0;
    return j == t->tool_use ? name_template(e, "tool_use") : -1;
}

int chat_template_render(const struct chat_template *t, const struct chat_input *in,
                         struct buf *out, struct err *e)
{
    json_t *messages = template_messages(in->messages), *base = NULL;
    struct text final = {NULL, 0};
    size_t from = out->len;
    int rc = messages != NULL ? 0 : chat_template_no_memory(e);

    if (rc == 0 && in->continue_final)
        rc = tag_final(messages, in->messages, &final, e);
    if (rc == 0) {
        base = template_variables(in, json_incref(messages));
        rc = base != NULL ? render(t, in, base, out, e) : chat_template_no_memory(e);
    }
    json_decref(base);
    json_decref(messages);
    if (rc == 0 && in->continue_final && cut_at_tag(out, from, final, e) != 0) {
        rc = -1;
        out->len = from;
        if (out->data != NULL)
            out->data[from] = '\0';
    }
    return rc;
}
