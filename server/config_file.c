/* The JSON file of the configuration: strict, so that a misspelt member is not a silent default. */
#include "server/config_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_TEXT_MAX = 24, MEMBER_FIELD_MAX = CONFIG_NAME_MAX + 8 };

static int read_file(char **out, size_t *len, const char *path, struct err *e)
{
    FILE *f = fopen(path, "rbe");
    char *data;
    size_t n;
    int rc = -1;

    if (f == NULL)
        return err_set_errno(e, ERR_BAD_REQUEST, "--config", errno, "it cannot be opened");
    data = malloc(CONFIG_FILE_NBYTES_MAX + 1);
    if (data == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "--config", "no memory for it");
        goto close;
    }
    n = fread(data, 1, CONFIG_FILE_NBYTES_MAX + 1, f);
    if (ferror(f)) {
        (void)err_set_errno(e, ERR_BAD_REQUEST, "--config", errno, "it cannot be read");
    } else if (n > CONFIG_FILE_NBYTES_MAX) {
        (void)err_set(e, ERR_BAD_REQUEST, "--config", "it is longer than %d bytes",
                      CONFIG_FILE_NBYTES_MAX);
    } else {
        *out = data;
        *len = n;
        data = NULL;
        rc = 0;
    }
    free(data);
close:
    (void)fclose(f);
    return rc;
}

static int parse(json_t **out, const char *path, struct err *e)
{
    json_error_t why;
    json_t *root;
    char *text;
    size_t len;

    if (read_file(&text, &len, path, e) != 0)
        return -1;
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (root == NULL && why.text[0] == '\0')
        return err_set(e, ERR_NO_MEMORY, "--config", "no memory for it");
    if (root == NULL)
        return err_set(e, ERR_BAD_REQUEST, "--config", "%s, line %d, column %d", why.text, why.line,
                       why.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_BAD_REQUEST, "--config", "it is not a JSON object");
    }
    *out = root;
    return 0;
}

static const char *wanted(enum config_kind kind)
{
    static const char *const names[] = {
        [KIND_STR] = "a string",
        [KIND_INT] = "an integer",
        [KIND_MS] = "an integer (milliseconds)",
        [KIND_NBYTES] = "an integer (bytes) or a string as \"64MiB\"",
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
    bool is_number = kind == KIND_INT || kind == KIND_MS || kind == KIND_NBYTES;

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
        return err_set(e, ERR_BAD_REQUEST, field, "%s is wanted", wanted(o->kind));
    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item))
            return err_set(e, ERR_BAD_REQUEST, field, "entry %zu is not a string", i);
        if (config_set(l, o, LAYER_FILE, field, json_string_value(item), e) != 0)
            return -1;
    }
    return 0;
}

static const struct config_option *find_member(const char *member)
{
    char name[CONFIG_NAME_MAX];

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        config_member_name(name, &config_options[i]);
        if (strcmp(name, member) == 0)
            return &config_options[i];
    }
    return NULL;
}

static int set_member(struct config_loader *l, const char *member, const json_t *value,
                      struct err *e)
{
    const struct config_option *o = find_member(member);
    char field[MEMBER_FIELD_MAX], near[CONFIG_NEAR_MAX], number[NUMBER_TEXT_MAX];
    const char *text;

    (void)snprintf(field, sizeof field, "/%.*s", CONFIG_NAME_MAX, member);
    if (o == NULL) {
        config_near(near, member, "", config_member_name);
        return err_set(e, ERR_BAD_REQUEST, field, "unknown member '%.60s'%s", member, near);
    }
    if (config_is_list(o))
        return set_list(l, o, field, value, e);
    text = scalar_text(number, o->kind, value);
    if (text == NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is wanted", wanted(o->kind));
    return config_set(l, o, LAYER_FILE, field, text, e);
}

static int set_members(struct config_loader *l, struct err *e)
{
    json_t *root, *value;
    const char *member;
    int rc = 0;

    if (parse(&root, l->file, e) != 0)
        return -1;
    json_object_foreach(root, member, value)
    {
        rc = set_member(l, member, value, e);
        if (rc != 0)
            break;
    }
    json_decref(root);
    return rc;
}

int config_file_load(struct config_loader *l, struct err *e)
{
    char msg[ERR_MSG_MAX];

    if (set_members(l, e) == 0)
        return 0;
    (void)snprintf(msg, sizeof msg, "%s", e->msg);
    (void)snprintf(e->msg, sizeof e->msg, "configuration file %.200s: %.280s", l->file, msg);
    return -1;
}
