#include "fleet/api/upstream_api_priv.h"

#include "base/json_parse.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int api_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to an upstream");
}

int api_send_nothing(const struct api_draft *d)
{
    d->out->method = NULL;
    d->out->path[0] = '\0';
    return 0;
}

int api_set_path(struct api_request *out, const char *path)
{
    (void)snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

int api_set_text(struct api_request *out, char *text, struct err *e)
{
    if (text == NULL)
        return api_no_memory(e);
    out->body = text;
    out->body_len = strlen(text);
    return 0;
}

int api_set_body(const struct api_draft *d, json_t *body)
{
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;

    json_decref(body);
    return api_set_text(d->out, text, d->e);
}

const char *api_next_word(char word[API_WORD_MAX], const char *at)
{
    size_t len = at != NULL ? strcspn(at, " ") : 0;

    assert(len < API_WORD_MAX);
    if (len == 0)
        return NULL;
    memcpy(word, at, len);
    word[len] = '\0';
    return at + len + (at[len] == ' ');
}

json_t *api_pick(const json_t *own, const char *members)
{
    json_t *to = json_object();
    char word[API_WORD_MAX];

    while ((members = api_next_word(word, members)) != NULL) {
        char *equals = strchr(word, '=');
        const char *theirs = equals != NULL ? equals + 1 : word;

        if (equals != NULL)
            *equals = '\0';
        if (api_has(own, word))
            to = api_with(to, theirs, json_incref(json_object_get(own, word)));
    }
    return to;
}

json_t *api_at(const json_t *json, const char *pointer)
{
    char word[32];
    size_t len;

    for (; *pointer == '/'; pointer += len) {
        len = strcspn(++pointer, "/");
        (void)snprintf(word, sizeof word, "%.*s", (int)len, pointer);
        json = json_is_array(json) ? json_array_get(json, strtoul(word, NULL, 10))
                                   : json_object_get(json, word);
    }
    return json_mutable(json);
}

bool api_has(const json_t *own, const char *member)
{
    const json_t *value = json_object_get(own, member);

    return value != NULL && !json_is_null(value);
}

const char *api_text(const json_t *object, const char *member, const char *otherwise)
{
    const json_t *value = json_object_get(object, member);

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

int api_check_pause(const struct api_draft *d)
{
    if (!d->args->pause->reject)
        return 0;
    return err_set(
        d->e, ERR_BAD_REQUEST, "/new_requests",
        "%s upstreams queue new requests while they are paused: leave new_requests out, or "
        "send queue",
        d->api->name);
}

int api_refuse_tensor_list(const struct api_draft *d)
{
    return err_set(
        d->e, ERR_BAD_REQUEST, "",
        "%s upstreams do not store tensor lists: send names, dtypes and shapes in each update",
        d->api->name);
}

int api_load_adapter(const struct api_draft *d)
{
    json_t *body;

    if (d->args->dir == NULL)
        return err_set(d->e, ERR_BAD_REQUEST, "/lora_path",
                       "%s upstreams load adapters only from a directory: send lora_path, or the "
                       "tensors as the body, to a server that has --adapter-dir",
                       d->api->name);
    body = json_pack("{s:s, s:s}", "lora_name", d->args->name, "lora_path", d->args->dir);
    if (d->api->caps.replaces_adapters)
        body = api_with(body, "load_inplace", json_true());
    return api_set_body(d, body);
}

int api_unload_adapter(const struct api_draft *d)
{
    return api_set_body(d, json_pack("{s:s}", "lora_name", d->args->name));
}

int api_set_version(const struct api_draft *d)
{
    return api_set_body(
        d, json_pack("{s:s, s:b}", "new_version", d->args->label, "abort_all_requests", 0));
}

json_t *api_tags(const struct api_draft *d)
{
    const struct api_sleep *sleep = d->args->sleep;

    if (d->own != NULL)
        return api_has(d->own, "tags") ? json_incref(json_object_get(d->own, "tags")) : NULL;
    if (sleep == NULL || sleep->weights == sleep->kv)
        return NULL;
    return json_pack("[s]", sleep->weights ? "weights" : "kv_cache");
}
