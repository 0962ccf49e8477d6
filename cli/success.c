#include "cli/success.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum shape {
    IS_TEXT,   /* not empty; with `values`, one of those */
    IS_COUNT,  /* an integer, 0 or more */
    IS_SERIAL, /* an integer, 1 or more */
    IS_BOOL,
    IS_TRUE,
    IS_FALSE,
    IS_OBJECT,
    IS_LIST,
    IS_SENT, /* a text, the same as in the request */
    OR_NULL = 16
};

static const char *const shape_names[] = {
    [IS_TEXT] = "a text",        [IS_COUNT] = "a number", [IS_SERIAL] = "a number above 0",
    [IS_BOOL] = "true or false", [IS_TRUE] = "true",      [IS_FALSE] = "false",
    [IS_OBJECT] = "an object",   [IS_LIST] = "an array",  [IS_SENT] = "that of the request"};

/* A row for each member. "a.b" is a member of a member, "a?.b" one that is not looked
 * for where `a` is null, "a.*.b" is one of each element of an array. */
static const struct row {
    const char *method, *path, *member;
    int shape;
    const char *values; /* of a text, with | between them; NULL: any */
} rows[] = {
    {"POST", "/v1/update_weights/start", "update_id", IS_TEXT, NULL},
    {"POST", "/v1/update_weights/start", "phase", IS_TEXT, "open"},
    {"POST", "/v1/update_weights", "update_id", IS_SENT, NULL}, /* a part of an open update */
    {"POST", "/v1/update_weights", "phase", IS_TEXT, "open|receiving"},
    {"POST", "/v1/update_weights/finish", "update_id", IS_SENT, NULL},
    {"POST", "/v1/update_weights/finish", "phase", IS_TEXT, "committed"},
    {"POST", "/v1/update_weights/finish", "serial", IS_SERIAL, NULL},
    {"POST", "/v1/update_weights/finish", "weight_version", IS_TEXT, NULL},
    {"POST", "/v1/update_weights/abort", "update_id", IS_SENT, NULL},
    {"POST", "/v1/update_weights/abort", "phase", IS_TEXT, "aborted"},
    {"GET", "/readyz", "ready", IS_TRUE, NULL},
    {"GET", "/v1/status", "version", IS_TEXT, NULL},
    {"GET", "/v1/status", "life", IS_TEXT, NULL},
    {"GET", "/v1/status", "ready", IS_BOOL, NULL},
    {"GET", "/v1/status", "control_ready", IS_BOOL, NULL},
    {"GET", "/v1/status", "weights.state", IS_TEXT, NULL},
    {"GET", "/v1/status", "admission.generate", IS_OBJECT, NULL},
    {"GET", "/v1/status", "update", IS_OBJECT | OR_NULL, NULL},
    {"GET", "/v1/status", "update?.update_id", IS_TEXT, NULL},
    {"GET", "/v1/upstreams", "n", IS_COUNT, NULL},
    {"GET", "/v1/upstreams", "n_serving", IS_COUNT, NULL},
    {"GET", "/v1/upstreams", "min_ready", IS_COUNT, NULL},
    {"GET", "/v1/upstreams", "list", IS_LIST, NULL},
    {"GET", "/v1/upstreams", "list.*.upstream", IS_TEXT, NULL},
    {"GET", "/v1/upstreams", "list.*.state", IS_TEXT, NULL},
    {"POST", "/v1/upstreams", "upstream", IS_TEXT, NULL},
    {"POST", "/v1/upstreams", "dialect", IS_TEXT, NULL},
    {"POST", "/v1/upstreams", "state", IS_TEXT, NULL},
    {"POST", "/v1/upstreams/remove", "upstream", IS_TEXT, NULL},
    {"POST", "/v1/upstreams/remove", "state", IS_TEXT, "removed"},
    {"POST", "/v1/upstreams/remove", "outstanding", IS_OBJECT, NULL},
    {"POST", "/v1/upstreams/prove", "n", IS_COUNT, NULL},
    {"POST", "/v1/upstreams/prove", "n_proven", IS_COUNT, NULL},
    {"POST", "/v1/upstreams/prove", "list", IS_LIST, NULL},
    {"POST", "/v1/upstreams/prove", "list.*.upstream", IS_TEXT, NULL},
    {"POST", "/v1/upstreams/prove", "list.*.proof", IS_OBJECT | OR_NULL, NULL},
    {"POST", "/v1/load_lora_adapter", "status", IS_TEXT, "ok"},
    {"POST", "/v1/load_lora_adapter", "lora_name", IS_SENT, NULL},
    {"POST", "/v1/load_lora_adapter", "revision", IS_SERIAL, NULL},
    {"POST", "/v1/unload_lora_adapter", "status", IS_TEXT, "ok"},
    {"POST", "/v1/unload_lora_adapter", "lora_name", IS_SENT, NULL},
    {"GET", "/v1/lora_adapters", "adapters", IS_LIST, NULL},
    {"GET", "/v1/lora_adapters", "adapters.*.lora_name", IS_TEXT, NULL},
    {"POST", "/v1/pause", "paused", IS_TRUE, NULL},
    {"POST", "/v1/pause", "acknowledged", IS_TRUE, NULL},
    {"POST", "/v1/pause", "mode", IS_TEXT, NULL},
    {"POST", "/v1/resume", "paused", IS_FALSE, NULL},
    {"POST", "/v1/resume", "was_paused", IS_BOOL, NULL},
    {"POST", "/v1/sleep", "asleep", IS_TRUE, NULL},
    {"POST", "/v1/sleep", "weights", IS_TEXT, NULL},
    {"POST", "/v1/sleep", "kv_cache", IS_TEXT, NULL},
    {"POST", "/v1/wake", "asleep", IS_BOOL, NULL}, /* true where tags named a part */
    {"POST", "/v1/wake", "weights", IS_TEXT, NULL},
    {"POST", "/v1/wake", "kv_cache", IS_TEXT, NULL},
    {"POST", "/v1/abort_requests", "aborted", IS_COUNT, NULL},
    {"GET", "/v1/weights", "weight_version", IS_TEXT, NULL},
    {"GET", "/v1/weights", "serial", IS_SERIAL, NULL},
    {"GET", "/v1/weights", "tensors", IS_LIST, NULL},
    {"GET", "/v1/weights", "tensors.*.name", IS_TEXT, NULL},
    {"GET", "/v1/weights/diff", "n_tensors", IS_COUNT, NULL},
    {"GET", "/v1/weights/diff", "tensors", IS_LIST, NULL},
    {"GET", "/v1/weights/diff", "tensors.*.name", IS_TEXT, NULL},
    {"GET", "/v1/weights/diff", "next_offset", IS_COUNT | OR_NULL, NULL},
    {"GET", "/v1/weights/diff", "changes", IS_OBJECT | OR_NULL, NULL},
    {"GET", "/v1/weights/diff", "changes?.warnings", IS_LIST, NULL},
};

static bool success_is_one_of(const char *text, const char *values)
{
    size_t len = strlen(text);

    if (values == NULL)
        return len > 0;
    for (const char *at = values; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (len == strcspn(at, "|") && strncmp(at, text, len) == 0)
            return true;
    }
    return false;
}

static bool has_shape(const struct row *row, const json_t *sent, const json_t *value)
{
    if ((row->shape & OR_NULL) != 0 && json_is_null(value))
        return true;
    switch (row->shape & ~OR_NULL) {
    case IS_TEXT:
        return json_is_string(value) && success_is_one_of(json_string_value(value), row->values);
    case IS_COUNT:
        return json_is_integer(value) && json_integer_value(value) >= 0;
    case IS_SERIAL:
        return json_is_integer(value) && json_integer_value(value) >= 1;
    case IS_BOOL:
        return json_is_boolean(value);
    case IS_TRUE:
        return json_is_true(value);
    case IS_FALSE:
        return json_is_false(value);
    case IS_OBJECT:
        return json_is_object(value);
    case IS_LIST:
        return json_is_array(value);
    default:
        return json_is_string(value) && json_equal(value, json_object_get(sent, row->member)) == 1;
    }
}

/* The first value at `path` that is wrong is *found; NULL: it is missing. */
static bool member_check(const struct row *row, const char *path, const json_t *sent,
                         const json_t *at, const json_t **found)
{
    size_t len = strcspn(path, ".?"), i;
    bool may_be_null = path[len] == '?';
    const char *rest = path + len + may_be_null;
    const json_t *element;

    *found = at;
    if (*path == '\0')
        return has_shape(row, sent, at);
    rest += *rest == '.';
    if (*path == '*') {
        json_array_foreach(at, i, element)
        {
            if (!member_check(row, rest, sent, element, found))
                return false;
        }
        return true;
    }
    at = json_object_getn(at, path, len);
    return (may_be_null && json_is_null(at)) || member_check(row, rest, sent, at, found);
}

static void describe(const struct row *row, const json_t *found, char *why, size_t why_size)
{
    enum { SHOWN_MAX = 60 };
    char *text = found != NULL
                     ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII)
                     : NULL;

    (void)snprintf(why, why_size, "%s is %.*s, expected %s%s", row->member, SHOWN_MAX,
                   text != NULL ? text : "missing",
                   row->values != NULL ? row->values : shape_names[row->shape & ~OR_NULL],
                   (row->shape & OR_NULL) != 0 ? " or null" : "");
    free(text);
}

bool success_check(const char *method, const char *path, const json_t *sent, const json_t *answer,
                   char *why, size_t why_size)
{
    size_t len = strcspn(path, "?"), n = 0;
    const json_t *found;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];

        if (strcmp(row->method, method) != 0 || strlen(row->path) != len ||
            strncmp(row->path, path, len) != 0)
            continue;
        n++;
        if (!json_is_object(answer)) {
            (void)snprintf(why, why_size, "it is not a JSON object");
            return false;
        }
        if (!member_check(row, row->member, sent, answer, &found)) {
            describe(row, found, why, why_size);
            return false;
        }
    }
    assert(n > 0);
    return true;
}
