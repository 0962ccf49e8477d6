#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int api_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to an upstream");
}

int api_send_nothing(struct api_request *out)
{
    out->method = NULL;
    out->path[0] = '\0';
    return 0;
}

int api_set_path(struct api_request *out, const char *path)
{
    (void)snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

int api_set_body(struct api_request *out, json_t *body, struct err *e)
{
    if (body != NULL)
        out->body = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(body);
    if (out->body == NULL)
        return api_no_memory(e);
    out->body_len = strlen(out->body);
    return 0;
}

json_t *api_pick(const json_t *from, const struct api_member *members)
{
    json_t *to = json_object();

    for (; to != NULL && members->ours != NULL; members++) {
        json_t *value = json_object_get(from, members->ours);

        if (value == NULL || json_is_null(value))
            continue;
        if (json_object_set(to, members->theirs, value) != 0) {
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

json_t *api_with(json_t *body, const char *member, json_t *value)
{
    if (json_object_set_new(body, member, value) == 0)
        return body;
    json_decref(body);
    return NULL;
}

json_t *api_with_text(json_t *body, const char *member, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return body;
    return api_with(body, member, json_string(text));
}

json_t *api_with_rank(json_t *body, const struct api_context *ctx)
{
    if (!ctx->has_rank_offset)
        return body;
    return api_with(body, "rank_offset", json_integer((json_int_t)ctx->rank_offset));
}

int api_check_word(const char *word, const char *const *words, const char *field, struct err *e)
{
    char known[64] = "";
    size_t len = 0;

    for (size_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], word) == 0)
            return 0;
        if (len < sizeof known)
            len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "",
                                    words[i]);
    }
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is not one of %s", word, known);
}

int api_check_mode(const char *mode, const json_t *native, const char *kind, struct err *e)
{
    static const char *const modes[] = {"keep", "wait", "abort", NULL};

    if (api_check_word(mode, modes, "/mode", e) != 0)
        return -1;
    if (strcmp(api_text(native, "new_requests", "queue"), "reject") != 0)
        return 0;
    return err_set(
        e, ERR_BAD_REQUEST, "/new_requests",
        "%s upstreams queue new requests while they are paused: leave new_requests out, or "
        "send queue",
        kind);
}

int api_refuse(const json_t *native, const char *const *members, const char *kind,
               const char *takes, struct err *e)
{
    char field[64];

    for (; *members != NULL; members++) {
        if (!api_has(native, *members))
            continue;
        (void)snprintf(field, sizeof field, "/%s", *members);
        return err_set(e, ERR_BAD_REQUEST, field, "%s upstreams do not support %s%s", kind,
                       *members, takes);
    }
    return 0;
}

int api_refuse_tensor_list(const char *kind, struct err *e)
{
    return err_set(
        e, ERR_BAD_REQUEST, "",
        "%s upstreams do not store tensor lists: send names, dtypes and shapes in each update",
        kind);
}

int api_load_adapter(struct api_request *out, const char *kind, const json_t *native, bool in_place,
                     struct err *e)
{
    static const struct api_member members[] = {
        {"lora_name", "lora_name"}, {"lora_path", "lora_path"}, {0}};
    json_t *body;

    if (!api_has(native, "lora_path"))
        return err_set(e, ERR_BAD_REQUEST, "/lora_path",
                       "%s upstreams load adapters only from a directory: send lora_path, or the "
                       "tensors as the body, to a server that has --adapter-dir",
                       kind);
    body = api_pick(native, members);
    return api_set_body(out, in_place ? api_with(body, "load_inplace", json_true()) : body, e);
}

int api_unload_adapter(struct api_request *out, const json_t *native, const struct api_context *ctx,
                       struct err *e)
{
    static const struct api_member members[] = {{"lora_name", "lora_name"}, {0}};

    (void)ctx;
    return api_set_body(out, api_pick(native, members), e);
}

int api_set_version(struct api_request *out, const json_t *native, const struct api_context *ctx,
                    struct err *e)
{
    (void)ctx;
    return api_set_body(out,
                        json_pack("{s:s, s:b}", "new_version",
                                  api_text(native, "weight_version", ""), "abort_all_requests", 0),
                        e);
}
