/* The JSON file of the configuration: strict, so that a misspelt member is not a silent default. */
#include "server/config/config_table.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_TEXT_MAX = 24 };

static int file_parse(json_t **out, const struct config_loader *l, const char *text, size_t len,
                      struct err *e)
{
    char place[ERR_FIELD_MAX];
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);

    if (root == NULL && why.text[0] == '\0')
        return err_set(e, ERR_NO_MEMORY, l->file_option, "no memory for it");
    config_place(place, l->config.origins, root == NULL ? (uint32_t)why.line : 1, NULL);
    if (root == NULL)
        return err_set(e, ERR_BAD_REQUEST, place, "it is not JSON: %s (column %d)", why.text,
                       why.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_BAD_REQUEST, place, "it is not a JSON object");
    }
    *out = root;
    return 0;
}

/* The line of a member of the outermost object; 0 if its name is written with escapes.
 * @text  valid JSON */
static uint32_t line_of(const char *text, size_t len, const char *member)
{
    uint32_t line = 1;
    size_t depth = 0, first;

    for (size_t i = 0; i < len; i++) {
        line += text[i] == '\n';
        depth += text[i] == '{' || text[i] == '[';
        depth -= text[i] == '}' || text[i] == ']';
        if (text[i] != '"')
            continue;
        first = ++i;
        while (i < len && text[i] != '"')
            i += text[i] == '\\' ? 2 : 1;
        if (depth == 1 && i - first == strlen(member) &&
            memcmp(text + first, member, i - first) == 0 && i + 1 < len &&
            text[i + 1 + strspn(text + i + 1, " \t\r\n")] == ':')
            return line;
    }
    return 0;
}

static const char *expected(enum config_kind kind)
{
    static const char *const names[] = {
        [KIND_STR] = "a string",
        [KIND_INT] = "an integer",
        [KIND_LIMIT] = "an integer",
        [KIND_MS] = "an integer (milliseconds)",
        [KIND_NBYTES] = "an integer (bytes) or a string such as \"64MiB\"",
        [KIND_BOOL] = "true or false",
        [KIND_LIST] = "an array of strings",
        [KIND_WORDS] = "an array of strings",
    };

    return names[kind];
}

/* A scalar member as the text that config_set reads, or NULL when its type is not the option's. */
static const char *scalar_text(char number[NUMBER_TEXT_MAX], enum config_kind kind,
                               const json_t *value)
{
    bool is_number = kind == KIND_INT || kind == KIND_LIMIT || kind == KIND_MS ||
                     kind == KIND_NBYTES;

    if (json_is_string(value) && (kind == KIND_STR || kind == KIND_NBYTES))
        return json_string_value(value);
    if (json_is_boolean(value) && kind == KIND_BOOL)
        return json_is_true(value) ? "true" : "false";
    if (!json_is_integer(value) || !is_number)
        return NULL;
    (void)snprintf(number, NUMBER_TEXT_MAX, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return number;
}

static int set_list(struct config_loader *l, const struct config_option *o, const char *field,
                    const json_t *value, struct err *e)
{
    size_t i;
    json_t *item;

    if (!json_is_array(value))
        return err_set(e, ERR_BAD_REQUEST, field, "%s is expected", expected(o->kind));
    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item))
            return err_set(e, ERR_BAD_REQUEST, field, "entry %zu is not a string", i);
        if (config_set(l, o, LAYER_FILE, field, json_string_value(item), e) != 0)
            return -1;
    }
    return 0;
}

static const struct config_option *config_find_member(const char *member)
{
    char name[CONFIG_NAME_MAX];

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        config_member_name(name, &config_options[i]);
        if (strcmp(name, member) == 0)
            return &config_options[i];
    }
    return NULL;
}

static int set_config_member(struct config_loader *l, uint32_t line, const char *member,
                             const json_t *value, struct err *e)
{
    const struct config_option *o = config_find_member(member);
    char field[ERR_FIELD_MAX], near[CONFIG_NEAR_MAX], number[NUMBER_TEXT_MAX];
    const char *text;

    config_place(field, l->config.origins, line, member);
    if (o == NULL) {
        config_near(near, member, "", config_member_name);
        return err_set(e, ERR_BAD_REQUEST, field, "unknown member%s", near);
    }
    l->config.origins->lines[o - config_options] = line;
    if (config_is_list(o))
        return set_list(l, o, field, value, e);
    text = scalar_text(number, o->kind, value);
    if (text == NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is expected", expected(o->kind));
    return config_set(l, o, LAYER_FILE, field, text, e);
}

int config_file_load(struct config_loader *l, struct err *e)
{
    struct file_cfg file = {.path = l->file,
                            .field = l->file_option,
                            .nbytes_max = CONFIG_FILE_NBYTES_MAX,
                            .pipes = true};
    json_t *root = NULL, *value;
    const char *member;
    char *text = NULL;
    size_t len = 0;
    int rc;

    if (file_read(&text, &len, &file, e) != 0)
        return -1;
    rc = file_parse(&root, l, text, len, e);
    json_object_foreach(root, member, value)
    {
        rc = set_config_member(l, line_of(text, len, member), member, value, e);
        if (rc != 0)
            break;
    }
    json_decref(root);
    free(text);
    return rc;
}
