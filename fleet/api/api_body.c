/* Paths and JSON bodies of requests, as all kinds of upstreams need them. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int api_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to an upstream");
}

int api_set_path(struct api_request *out, const char *method, const char *path)
{
    out->method = method;
    (void)snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

/* Steals body; NULL: building it ran out of memory. */
int api_set_body(struct api_request *out, const char *path, json_t *body, struct err *e)
{
    if (body != NULL)
        out->body = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(body);
    if (out->body == NULL)
        return api_no_memory(e);
    out->body_len = strlen(out->body);
    return api_set_path(out, "POST", path);
}

/* A new object with those members of `from`; pairs {ours, theirs} up to a NULL. */
json_t *api_pick(const json_t *from, const struct api_member *pairs)
{
    json_t *to = json_object();

    for (; to != NULL && pairs->ours != NULL; pairs++) {
        json_t *value = json_object_get(from, pairs->ours);

        if (value == NULL || json_is_null(value))
            continue;
        if (json_object_set(to, pairs->theirs, value) != 0) {
            json_decref(to);
            return NULL;
        }
    }
    return to;
}

bool api_has(const json_t *native, const char *member)
{
    const json_t *value = json_object_get(native, member);

    return value != NULL && !json_is_null(value);
}

const char *api_text(const json_t *native, const char *member, const char *otherwise)
{
    const json_t *value = json_object_get(native, member);

    return json_is_string(value) ? json_string_value(value) : otherwise;
}

/* Members that this dialect has no words for; up to a NULL. */
/* @takes  what the dialect takes instead; "" */
int api_refuse_instead(const json_t *native, const char *const *members, const char *dialect,
                       const char *takes, struct err *e)
{
    char field[64];

    for (; *members != NULL; members++) {
        if (!api_has(native, *members))
            continue;
        (void)snprintf(field, sizeof field, "/%s", *members);
        return err_set(e, ERR_BAD_REQUEST, field, "%s upstreams know nothing of %s%s", dialect,
                       *members, takes);
    }
    return 0;
}

int api_refuse(const json_t *native, const char *const *members, const char *dialect, struct err *e)
{
    return api_refuse_instead(native, members, dialect, "", e);
}

int api_set_text(json_t *body, const char *member, const char *text)
{
    return json_object_set_new(body, member, json_string(text));
}

/* What goes into a path is a word of ours, or nothing. */
int api_check_word(const char *word, const char *const *words, const char *field, struct err *e)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], word) == 0)
            return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is not known here", word);
}

const char *const api_pause_modes[] = {"keep", "wait", "abort", NULL};

int api_refuse_tensor_list(const char *dialect, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "%s upstreams keep no plans: say in each update what comes", dialect);
}

/* What comes while it is paused waits there; nobody can tell it to refuse. */
int api_refuse_reject(const json_t *native, const char *dialect, struct err *e)
{
    if (strcmp(api_text(native, "new_requests", "queue"), "reject") != 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/new_requests",
                   "%s upstreams queue what comes while they are paused: they cannot reject it",
                   dialect);
}

int api_set_version(struct api_request *out, const json_t *native, struct err *e)
{
    return api_set_body(out, "/update_weight_version",
                        json_pack("{s:s, s:b}", "new_version",
                                  api_text(native, "weight_version", ""), "abort_all_requests", 0),
                        e);
}

int api_load_adapter(struct api_request *out, const char *path, const char *dialect,
                     const json_t *native, bool in_place, struct err *e)
{
    static const struct api_member pairs[] = {
        {"lora_name", "lora_name"}, {"lora_path", "lora_path"}, {0}};
    json_t *body;

    if (!api_has(native, "lora_path"))
        return err_set(e, ERR_BAD_REQUEST, "/lora_path",
                       "%s upstreams take adapters from a directory only: send lora_path", dialect);
    body = api_pick(native, pairs);
    if (body != NULL && in_place && json_object_set_new(body, "load_inplace", json_true()) != 0) {
        json_decref(body);
        body = NULL;
    }
    return api_set_body(out, path, body, e);
}

int api_unload_adapter(struct api_request *out, const char *path, const json_t *native,
                       struct err *e)
{
    static const struct api_member pairs[] = {{"lora_name", "lora_name"}, {0}};

    return api_set_body(out, path, api_pick(native, pairs), e);
}

/* Where there is a text. Steals body; NULL: no memory. */
json_t *api_with_text(json_t *body, const char *member, const char *text)
{
    if (body == NULL || text == NULL || text[0] == '\0' || api_set_text(body, member, text) == 0)
        return body;
    json_decref(body);
    return NULL;
}
