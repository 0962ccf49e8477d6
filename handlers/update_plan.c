/* The columns of a transfer: names, dtypes, shapes, sizes, checksums. */
#include "base/utf8.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/update_parts.h"
#include "weights/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_MAX = 64 };

/* The four columns of one request; absent ones are NULL. */
struct columns {
    const json_t *names, *dtypes, *shapes, *sizes;
    const char *dtypes_member; /* which of its two names was used */
};

static int same_length(const struct columns *c, const json_t *column, const char *member,
                       struct err *e)
{
    char field[FIELD_MAX];

    if (column == NULL || json_array_size(column) == json_array_size(c->names))
        return 0;
    (void)snprintf(field, sizeof field, "/%s", member);
    return err_set(e, ERR_BAD_REQUEST, field, "%s has %zu entries, names has %zu", member,
                   json_array_size(column), json_array_size(c->names));
}

static int read_columns(struct columns *c, const json_t *body, struct err *e)
{
    const json_t *alias = NULL;

    memset(c, 0, sizeof *c);
    c->dtypes_member = "dtypes";
    if (body_required(body, "", "names", e) != 0 ||
        body_array(&c->names, body, "", "names", e) != 0 ||
        body_array(&c->dtypes, body, "", "dtypes", e) != 0 ||
        body_array(&alias, body, "", "dtype_names", e) != 0 ||
        body_required(body, "", "shapes", e) != 0 ||
        body_array(&c->shapes, body, "", "shapes", e) != 0 ||
        body_array(&c->sizes, body, "", "sizes", e) != 0)
        return -1;
    if (alias != NULL && c->dtypes != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/dtype_names",
                       "dtypes and dtype_names are one member; send one of them");
    if (alias != NULL) {
        c->dtypes = alias;
        c->dtypes_member = "dtype_names";
    }
    if (c->dtypes == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/dtypes", "dtypes is required beside names");
    if (same_length(c, c->dtypes, c->dtypes_member, e) != 0 ||
        same_length(c, c->shapes, "shapes", e) != 0 || same_length(c, c->sizes, "sizes", e) != 0)
        return -1;
    return 0;
}

static int read_shape(uint64_t *shape, uint32_t *ndim, const json_t *value, size_t i,
                      struct err *e)
{
    char field[FIELD_MAX];
    size_t n = json_array_size(value);

    (void)snprintf(field, sizeof field, "/shapes/%zu", i);
    if (!json_is_array(value) || n > PLAN_NDIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a shape is an array of 0 to %d integers",
                       PLAN_NDIM_MAX);
    for (size_t k = 0; k < n; k++) {
        const json_t *dim = json_array_get(value, k);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "dimension %zu is not an integer from 0 on", k);
        shape[k] = (uint64_t)json_integer_value(dim);
    }
    *ndim = (uint32_t)n;
    return 0;
}

static int read_size(uint64_t *numel, const json_t *sizes, size_t i, struct err *e)
{
    const json_t *value = json_array_get(sizes, i);
    char field[FIELD_MAX];

    *numel = UINT64_MAX;
    if (value == NULL || json_is_null(value))
        return 0;
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        (void)snprintf(field, sizeof field, "/sizes/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a size is the number of elements: an integer from 0 on");
    }
    *numel = (uint64_t)json_integer_value(value);
    return 0;
}

static int add_tensor(struct plan_builder *b, const struct columns *c, size_t i, struct err *e)
{
    const char *name = json_string_value(json_array_get(c->names, i));
    const char *text = json_string_value(json_array_get(c->dtypes, i));
    uint64_t shape[PLAN_NDIM_MAX], numel;
    enum dtype dtype;
    uint32_t ndim;
    char field[FIELD_MAX];

    if (name == NULL) {
        (void)snprintf(field, sizeof field, "/names/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "a name is a string");
    }
    dtype = text != NULL ? dtype_parse(text) : DTYPE_NONE;
    if (dtype == DTYPE_NONE) {
        (void)snprintf(field, sizeof field, "/%s/%zu", c->dtypes_member, i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "dtype '%.32s' of '%.160s' is not one of %s, nor torch's name for one",
                       text != NULL ? text : "(not a string)", name, dtype_list());
    }
    if (read_shape(shape, &ndim, json_array_get(c->shapes, i), i, e) != 0 ||
        read_size(&numel, c->sizes, i, e) != 0)
        return -1;
    return plan_builder_add(b, name, dtype, shape, ndim, numel, e);
}

int plan_from_body(struct plan **out, const json_t *body, struct err *e)
{
    struct plan_builder *b;
    struct columns c;

    if (read_columns(&c, body, e) != 0 || plan_builder_new(&b, e) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(c.names); i++) {
        if (add_tensor(b, &c, i, e) != 0) {
            plan_builder_free(b);
            return -1;
        }
    }
    return plan_builder_finish(b, out, e);
}

static bool given(const json_t *body, const char *member)
{
    const json_t *value = json_object_get(body, member);

    return value != NULL && !json_is_null(value);
}

int plan_of_request(struct plan **out, const struct app *app, const json_t *body, bool optional,
                    struct err *e)
{
    static const char *const columns[] = {"names", "dtypes", "dtype_names", "shapes", "sizes"};
    const char *plan_id = NULL;
    const char *column = NULL;
    struct plan *plan;

    for (size_t i = 0; i < sizeof columns / sizeof columns[0] && column == NULL; i++)
        column = given(body, columns[i]) ? columns[i] : NULL;
    if (body_str(&plan_id, body, "", "plan_id", e) != 0)
        return -1;
    if (plan_id != NULL && column != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/plan_id",
                       "plan_id stands for names, dtypes, shapes and sizes; '%s' came too", column);
    if (plan_id == NULL && column == NULL && optional) {
        *out = NULL;
        return 0;
    }
    if (plan_id == NULL)
        return plan_from_body(out, body, e);
    plan = updates_plan_get(app->updates, plan_id);
    if (plan == NULL)
        return err_set(e, ERR_NOT_FOUND, "/plan_id",
                       "no plan '%.80s' is registered; post it to /v1/weights/plans", plan_id);
    *out = plan;
    return 0;
}

static int read_checksum(struct checksum *sum, bool *has, const json_t *value, size_t i,
                         const char *name, struct err *e)
{
    char field[FIELD_MAX];

    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_string(value) && checksum_parse(sum, json_string_value(value))) {
        *has = true;
        return 0;
    }
    (void)snprintf(field, sizeof field, "/checksums/%zu", i);
    return err_set(e, ERR_BAD_REQUEST, field, "the checksum of '%.160s' is not %d hex digits",
                   name, CHECKSUM_LEN);
}

int checksums_from_body(struct checksum **sums, bool **has, const json_t *body,
                        const struct plan *plan, struct err *e)
{
    const json_t *list = NULL;
    struct checksum *s;
    bool *h;
    int rc = 0;

    if (body_array(&list, body, "", "checksums", e) != 0)
        return -1;
    if (list == NULL)
        return 0;
    if (json_array_size(list) != plan->n_tensors)
        return err_set(e, ERR_BAD_REQUEST, "/checksums", "checksums has %zu entries for %u tensors",
                       json_array_size(list), plan->n_tensors);
    s = calloc(plan->n_tensors, sizeof *s);
    h = calloc(plan->n_tensors, sizeof *h);
    if (s == NULL || h == NULL)
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
    for (size_t i = 0; i < plan->n_tensors && rc == 0; i++)
        rc = read_checksum(&s[i], &h[i], json_array_get(list, i), i, plan->tensors[i].name, e);
    if (rc != 0) {
        free(s);
        free(h);
        return -1;
    }
    *sums = s;
    *has = h;
    return 0;
}

int label_check(const char *label, const char *field, struct err *e)
{
    char copy[VERSION_LABEL_MAX + 1];
    size_t len = strlen(label);

    if (len == 0 || len > VERSION_LABEL_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a weight version is 1 to %d bytes long; this one has %zu",
                       VERSION_LABEL_MAX, len);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)label[i] < 0x20 || label[i] == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "byte %zu of the weight version is a control character", i);
    }
    memcpy(copy, label, len + 1);
    if (utf8_clean(copy) > 0) /* it came in a query: JSON has been checked */
        return err_set(e, ERR_BAD_REQUEST, field, "the weight version is not well-formed UTF-8");
    return 0;
}
