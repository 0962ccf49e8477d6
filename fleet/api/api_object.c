#include "fleet/api/upstream_api_priv.h"

#include <stdatomic.h>
#include <stdlib.h>

struct api_object {
    atomic_uint n_refs;
    json_t *json; /* owned */
};

/* Steals json; NULL: no memory. */
static struct api_object *object_of(json_t *json)
{
    struct api_object *o = json != NULL ? malloc(sizeof *o) : NULL;

    if (o == NULL) {
        json_decref(json);
        return NULL;
    }
    atomic_init(&o->n_refs, 1);
    o->json = json;
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
    json_decref(o->json);
    free(o);
}

const json_t *api_object_json(const struct api_object *o)
{
    return o != NULL ? o->json : NULL;
}

struct api_object *api_columns_of(const struct api_native *native)
{
    static const char *const members[] = {"names", "dtypes", "dtype_names", "shapes", "plan_id"};
    json_t *list = json_object();

    for (size_t i = 0; list != NULL && i < sizeof members / sizeof members[0]; i++) {
        json_t *value = json_object_get(native->body, members[i]);

        if (value != NULL && json_object_set(list, members[i], value) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return object_of(list);
}

/* what the fleet reads of an update */

struct api_object *api_report_read(const char *text, size_t len)
{
    json_t *report = json_loadb(text, len, 0, NULL);

    if (json_is_object(report))
        return object_of(report);
    json_decref(report);
    return NULL;
}

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
