#include "fleet/api/upstream_api_priv.h"

#include "weights/tensor_list.h"

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

int api_set_body(const struct api_draft *d, json_t *body)
{
    struct api_request *out = d->out;

    if (body != NULL)
        out->body = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(body);
    if (out->body == NULL)
        return api_no_memory(d->e);
    out->body_len = strlen(out->body);
    return 0;
}

json_t *api_pick(const json_t *own, const struct api_member *members)
{
    json_t *to = json_object();

    for (; members->ours != NULL; members++)
        if (api_has(own, members->ours))
            to = api_with(to, members->theirs, json_incref(json_object_get(own, members->ours)));
    return to;
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

int api_refuse(const struct api_draft *d, const struct api_op_row *row)
{
    char field[64];
    int len;

    for (const char *at = row->refuses; at != NULL && *at != '\0'; at += len + (at[len] == ' ')) {
        len = (int)strcspn(at, " ");
        (void)snprintf(field, sizeof field, "/%.*s", len, at);
        if (api_has(d->own, field + 1))
            return err_set(d->e, ERR_BAD_REQUEST, field, "%s upstreams do not support %s%s",
                           d->api->name, field + 1, row->takes != NULL ? row->takes : "");
    }
    return 0;
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

/* our own bodies */

void api_native_fini(struct api_native *n)
{
    free(n->text);
    n->text = NULL;
}

char *api_load_again(const struct api_native *native)
{
    json_auto_t *again = api_with(json_copy((json_t *)(uintptr_t)native->body), "load_inplace",
                                  json_true());

    (void)json_object_del(again, "if_revision");
    return json_dumps(again, JSON_COMPACT);
}

/* Steals body; NULL: no memory. */
static struct api_native *native_of(json_t *body)
{
    struct api_native *n = body != NULL ? malloc(sizeof *n) : NULL;

    if (n != NULL)
        *n = (struct api_native){.body = body, .owned = body};
    else
        json_decref(body);
    return n;
}

struct api_native *api_native_parse(const char *text)
{
    return native_of(json_loads(text, 0, NULL));
}

void api_native_free(struct api_native *n)
{
    if (n == NULL)
        return;
    json_decref(n->owned);
    api_native_fini(n);
    free(n);
}

/* Adds the columns of a list. @sized  and the bytes of each tensor */
static int put_columns(json_t *to, const struct tensor_list *list, bool sized)
{
    json_auto_t *names = json_array(), *dtypes = json_array(), *shapes = json_array(),
                *sizes = json_array();

    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *t = &list->tensors[i];
        json_t *shape = json_array();

        for (uint32_t k = 0; k < t->ndim; k++)
            (void)json_array_append_new(shape, json_integer((json_int_t)t->shape[k]));
        (void)json_array_append_new(names, json_string(t->name));
        (void)json_array_append_new(dtypes, json_string(dtype_torch_name(t->dtype)));
        (void)json_array_append_new(shapes, shape);
        (void)json_array_append_new(sizes, json_integer((json_int_t)t->nbytes));
    }
    if (json_array_size(names) + json_array_size(dtypes) + json_array_size(shapes) +
            json_array_size(sizes) ==
        4 * (size_t)list->n_tensors)
        (void)json_object_update_new(to, json_pack("{s:O, s:O, s:O, s:O*}", "names", names,
                                                   "dtypes", dtypes, "shapes", shapes,
                                                   "tensor_sizes", sized ? sizes : NULL));
    return json_object_size(to) > 0 ? 0 : -1;
}

/* The ranks of a hand-off have one text, which may name a whole model. */
static json_t *entries_json(const struct api_tensors *t)
{
    json_t *list = json_array(), *entry = NULL;

    for (size_t i = 0; i < t->n_entries; i++) {
        if (i > 0 && t->entries[i] == t->entries[i - 1])
            json_incref(entry);
        else
            entry = json_string(t->entries[i]);
        (void)json_array_append_new(list, entry);
    }
    if (json_array_size(list) == t->n_entries)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *tensors_json(const struct api_tensors *t)
{
    json_t *body = json_object();

    if (t->format != NULL)
        body = api_with_text(body, "serialized_format", t->format);
    if (t->serialized)
        return api_with(body, "serialized_named_tensors", entries_json(t));
    if (t->list != NULL && put_columns(body, t->list, t->packed) != 0) {
        json_decref(body);
        return NULL;
    }
    if (t->packed)
        body = api_with(body, "packed", json_true());
    return api_with_text(body, "ipc_handles_pickled", t->handles);
}

struct api_native *api_native_of(const struct api_tensors *t)
{
    return native_of(tensors_json(t));
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
