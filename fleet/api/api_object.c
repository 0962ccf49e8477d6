#include "fleet/api/upstream_api_priv.h"

#include "base/json_parse.h"
#include "weights/tensor_list.h"

#include <stdlib.h>

/* Steals json; NULL: no memory. */
static struct api_object *object_of(json_t *json)
{
    struct api_object *o = json != NULL ? malloc(sizeof *o) : NULL;

    if (o == NULL) {
        json_decref(json);
        return NULL;
    }
    *o = (struct api_object){.json = json, .owned = json};
    atomic_init(&o->n_refs, 1);
    return o;
}

struct api_object *api_object_ref(struct api_object *o)
{
    if (o != NULL)
        atomic_fetch_add_explicit(&o->n_refs, 1, memory_order_relaxed);
    return o;
}

void api_object_unref(struct api_object *o)
{
    if (o == NULL || atomic_fetch_sub_explicit(&o->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    json_decref(o->owned);
    free(o->text);
    free(o);
}

void api_object_fini(struct api_object *o)
{
    free(o->text);
    o->text = NULL;
}

const json_t *api_object_json(const struct api_object *o)
{
    return o != NULL ? o->json : NULL;
}

struct api_object *api_object_parse(const char *text, size_t len)
{
    json_auto_t *json = json_loadb(text, len, 0, NULL);

    return json_is_object(json) ? object_of(json_incref(json)) : NULL;
}

struct api_object *api_columns_of(const struct api_object *native)
{
    const json_t *from = native->json;

    return object_of(json_pack(
        "{s:O*, s:O*, s:O*, s:O*, s:O*}", "names", json_object_get(from, "names"), "dtypes",
        json_object_get(from, "dtypes"), "dtype_names", json_object_get(from, "dtype_names"),
        "shapes", json_object_get(from, "shapes"), "plan_id", json_object_get(from, "plan_id")));
}

char *api_load_again(const struct api_object *native)
{
    json_auto_t *again = api_with(json_copy_all(native->json), "load_inplace", json_true());

    (void)json_object_del(again, "if_revision");
    return json_dumps(again, JSON_COMPACT);
}

/* of the hand-off */

/* Adds the columns of a list. Steals body; NULL: no memory. @sized  and the bytes of each tensor */
static json_t *with_columns(json_t *body, const struct tensor_list *list, bool sized)
{
    json_auto_t *names = json_array(), *dtypes = json_array(), *shapes = json_array(),
                *sizes = json_array();

    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *t = &list->tensors[i];
        json_t *shape = json_array();

        for (uint32_t k = 0; k < t->ndim; k++)
            shape = json_list_append(shape, json_integer((json_int_t)t->shape[k]));
        (void)json_array_append_new(names, json_string(t->name));
        (void)json_array_append_new(dtypes, json_string(dtype_torch_name(t->dtype)));
        (void)json_array_append_new(shapes, shape);
        (void)json_array_append_new(sizes, json_integer((json_int_t)t->nbytes));
    }
    if (json_array_size(names) + json_array_size(dtypes) + json_array_size(shapes) +
                json_array_size(sizes) ==
            4 * (size_t)list->n_tensors &&
        json_object_update_new(body, json_pack("{s:O, s:O, s:O, s:O*}", "names", names, "dtypes",
                                               dtypes, "shapes", shapes, "tensor_sizes",
                                               sized ? sizes : NULL)) == 0)
        return body;
    json_decref(body);
    return NULL;
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
    json_t *body = api_with_text(json_object(), "serialized_format", t->format);

    if (t->serialized)
        return api_with(body, "serialized_named_tensors", entries_json(t));
    if (t->list != NULL)
        body = with_columns(body, t->list, t->packed);
    if (t->packed)
        body = api_with(body, "packed", json_true());
    return api_with_text(body, "ipc_handles_pickled", t->handles);
}

struct api_object *api_object_of(const struct api_tensors *t)
{
    return object_of(tensors_json(t));
}

/* what the fleet reads of an update */

struct api_object *api_report_make(const struct api_report_counts *c)
{
    json_t *missing = json_array();

    for (size_t i = 0; i < c->n_named; i++)
        (void)json_array_append_new(missing, json_string(c->missing[i]));
    if (json_array_size(missing) != c->n_named) {
        json_decref(missing);
        missing = NULL;
    }
    return object_of(json_pack("{s:s, s:I, s:I, s:I, s:o, s:I}", "coverage", c->coverage,
                               "n_tensors_total", (json_int_t)c->n_total, "n_tensors_done",
                               (json_int_t)c->n_done, "n_missing", (json_int_t)c->n_missing,
                               "missing", missing, "n_unseen", (json_int_t)c->n_unseen));
}

const char *api_report_coverage(const struct api_object *report)
{
    return json_string_value(json_object_get(api_object_json(report), "coverage"));
}

bool api_report_missing(const struct api_object *report, int64_t *n)
{
    const json_t *missing = json_object_get(api_object_json(report), "n_missing");

    *n = json_integer_value(missing);
    return json_is_integer(missing);
}

uint64_t api_report_count(const struct api_object *report, const char *member)
{
    return api_positive(json_object_get(api_object_json(report), member));
}
