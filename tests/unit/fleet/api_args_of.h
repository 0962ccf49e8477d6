/* The arguments of an operation, of the body that a client sends to our own route: what handlers
 * and fleet/ make of it. */
#ifndef BATON_TESTS_UNIT_FLEET_API_ARGS_OF_H
#define BATON_TESTS_UNIT_FLEET_API_ARGS_OF_H

#include "fleet/api/api_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { OWN_IDS_MAX = 4 };

struct own_args {
    struct api_args args;
    json_t *body; /* owned */
    struct api_object native;
    struct api_tensors tensors;
    struct api_join join;
    struct api_pause pause;
    struct api_sleep sleep;
    const char *ids[OWN_IDS_MAX];
};

static inline const char *own_text(const json_t *body, const char *member)
{
    return json_string_value(json_object_get(body, member));
}

static inline bool own_is(const json_t *body, const char *member, const char *text)
{
    const char *is = own_text(body, member);

    return is != NULL && strcmp(is, text) == 0;
}

static inline bool own_on(const json_t *body, const char *member)
{
    return json_is_true(json_object_get(body, member));
}

static inline void own_read_tags(struct api_sleep *out, const json_t *body)
{
    const json_t *tags = json_object_get(body, "tags"), *tag;
    size_t i;

    *out = (struct api_sleep){.level = 1};
    if (json_is_integer(json_object_get(body, "level")))
        out->level = (int)json_integer_value(json_object_get(body, "level"));
    out->weights = out->kv = json_array_size(tags) == 0;
    json_array_foreach(tags, i, tag)
    {
        out->weights = out->weights || strcmp(json_string_value(tag), "weights") == 0;
        out->kv = out->kv || strcmp(json_string_value(tag), "kv_cache") == 0;
    }
}

/* Borrows from `o` until own_args_fini. */
static inline const struct api_args *own_args_of(struct own_args *o, enum api_op op,
                                                 const char *text)
{
    json_t *b = json_loads(text, 0, NULL);
    const json_t *ids = json_object_get(b, "request_ids");

    assert_non_null(b);
    assert_true(json_array_size(ids) <= OWN_IDS_MAX);
    *o = (struct own_args){.body = b, .native = {.json = b}};
    o->tensors.group = o->join.group = own_text(b, "group_name");
    o->join.by_handles = own_is(b, "transport", "ipc");
    o->join.packed_given = json_object_get(b, "packed") != NULL;
    o->join.packed = own_on(b, "packed");
    o->pause = (struct api_pause){.mode = own_is(b, "mode", "wait")    ? PAUSE_WAIT
                                          : own_is(b, "mode", "abort") ? PAUSE_ABORT
                                                                       : PAUSE_KEEP,
                                  .reject = own_is(b, "new_requests", "reject")};
    own_read_tags(&o->sleep, b);
    for (size_t i = 0; i < json_array_size(ids); i++)
        o->ids[i] = json_string_value(json_array_get(ids, i));
    o->args = (struct api_args){.native = &o->native,
                                .tensors = op == API_UPDATE_WEIGHTS ? &o->tensors : NULL,
                                .join = &o->join,
                                .pause = &o->pause,
                                .sleep = &o->sleep,
                                .label = own_text(b, "weight_version"),
                                .selector = own_text(b, "selector"),
                                .name = own_text(b, "lora_name"),
                                .dir = own_text(b, "lora_path"),
                                .running = own_on(b, "running"),
                                .external = own_on(b, "external"),
                                .ids = o->ids,
                                .n_ids = json_array_size(ids),
                                .all = own_on(b, "all")};
    return &o->args;
}

static inline void own_args_fini(struct own_args *o)
{
    api_object_fini(&o->native);
    json_decref(o->body);
}

#endif
