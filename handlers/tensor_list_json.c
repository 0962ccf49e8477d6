/* The columns of a transfer: names, dtypes, shapes, sizes, checksums. */
#include "handlers/tensor_list_json.h"

#include "base/utf8.h"
#include "handlers/app.h"
#include "handlers/rows/rows.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DTYPE_TEXT_MAX = 32,
    CACHED_MIN = 16 /* tensors; reading a shorter list is as fast as finding it in the cache */
};

/* The four columns of one list. */
struct columns {
    struct column names, dtypes, shapes, sizes;
    const char *dtypes_member; /* the name that was used: dtypes or dtype_names */
    const char *at;            /* JSON pointer of the object that contains them */

    /* The last dtype that was read: adjacent tensors nearly always have the same. */
    char dtype_text[DTYPE_TEXT_MAX];
    enum dtype dtype;
};

/* "<at>/<member>", as err_set takes it. */
static const char *field_of(char field[ERR_FIELD_MAX], const char *at, const char *member)
{
    (void)snprintf(field, ERR_FIELD_MAX, "%s/%s", at, member);
    return field;
}

static const char *element_of(char field[ERR_FIELD_MAX], const char *at, const char *member,
                              size_t i)
{
    (void)snprintf(field, ERR_FIELD_MAX, "%s/%s/%zu", at, member, i);
    return field;
}

static int check_length(const struct columns *c, const struct column *column, const char *member,
                        struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (!column->given || column->n == c->names.n)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field_of(field, c->at, member),
                   "%s has %zu entries, names has %zu", member, column->n, c->names.n);
}

static int read_columns(struct columns *c, const json_t *object, const struct body_columns *text,
                        const char *at, struct err *e)
{
    bool alias = body_given(object, "dtype_names") != NULL;
    const json_t *other = NULL;
    char field[ERR_FIELD_MAX];

    c->at = at;
    c->dtypes_member = alias ? "dtype_names" : "dtypes";
    c->dtype_text[0] = '\0';
    c->dtype = DTYPE_NONE;
    if (body_required(object, at, "names", e) != 0 ||
        column_open(&c->names, text, object, at, "names", e) != 0 ||
        body_array(&other, object, at, "dtypes", e) != 0 ||
        column_open(&c->dtypes, text, object, at, c->dtypes_member, e) != 0 ||
        body_required(object, at, "shapes", e) != 0 ||
        column_open(&c->shapes, text, object, at, "shapes", e) != 0 ||
        column_open(&c->sizes, text, object, at, "sizes", e) != 0)
        return -1;
    if (alias && other != NULL)
        return err_set(e, ERR_BAD_REQUEST, field_of(field, at, "dtype_names"),
                       "dtypes and dtype_names are one member; send one of them");
    if (!c->dtypes.given)
        return err_set(e, ERR_BAD_REQUEST, field_of(field, at, "dtypes"),
                       "dtypes is required with names");
    if (c->names.n == 0)
        return err_set(e, ERR_BAD_REQUEST, field_of(field, at, "names"),
                       "there are no tensors; at least 1 is needed");
    if (check_length(c, &c->dtypes, c->dtypes_member, e) != 0 ||
        check_length(c, &c->shapes, "shapes", e) != 0 ||
        check_length(c, &c->sizes, "sizes", e) != 0)
        return -1;
    return 0;
}

static int read_shape(uint64_t *shape, uint32_t *ndim, struct columns *c, size_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];
    uint32_t bad;

    if (column_next_shape(&c->shapes, shape, ndim, &bad) != 0)
        return err_set(e, ERR_BAD_REQUEST, element_of(field, c->at, "shapes", i),
                       "a shape is an array of 0 to %d integers", TENSOR_LIST_NDIM_MAX);
    if (bad < TENSOR_LIST_NDIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, element_of(field, c->at, "shapes", i),
                       "dimension %u is not an integer from 0 on", (unsigned)bad);
    return 0;
}

static int read_size(uint64_t *numel, struct columns *c, size_t i, struct err *e)
{
    enum column_value kind = COLUMN_NULL;
    char field[ERR_FIELD_MAX];

    if (c->sizes.given)
        kind = column_next_u64(&c->sizes, numel);
    if (kind == COLUMN_OTHER)
        return err_set(e, ERR_BAD_REQUEST, element_of(field, c->at, "sizes", i),
                       "a size is the number of elements: an integer from 0 on");
    if (kind == COLUMN_NULL)
        *numel = UINT64_MAX;
    return 0;
}

/* The request's JSON pointer for a tensor of the merged list. */
static const char *origin_pointer(char out[ERR_FIELD_MAX], const struct chunk_origin *origins,
                                  uint32_t n_origins, uint32_t i)
{
    uint32_t k = n_origins - 1;

    while (k > 0 && origins[k].first > i)
        k--;
    return element_of(out, origins[k].at, "names", i - origins[k].first);
}

/* The builder's indexes count from the first tensor of the first list; converts them to pointers
 * into the request. */
static int relocate_error(const struct tensor_list_builder *b, const struct chunk_origin *origins,
                          uint32_t n_origins, size_t i, const char *name, struct err *e)
{
    uint32_t before = tensor_list_builder_find(b, name);
    const struct chunk_origin *o = &origins[n_origins - 1];
    char first[ERR_FIELD_MAX], here[ERR_FIELD_MAX], member[16];
    unsigned merged;

    if (o->at[0] == '\0' || sscanf(e->field, "/%15[a-z]/%u", member, &merged) != 2)
        return -1;
    (void)element_of(here, o->at, member, i);
    if (before == TENSOR_LIST_NO_TENSOR) {
        memcpy(e->field, here, sizeof here);
        return -1;
    }
    err_clear(e);
    return err_set(e, ERR_BAD_REQUEST, here, "tensor '%.*s' is named twice, at %s and at %s",
                   utf8_cut_name(name), name, origin_pointer(first, origins, n_origins, before),
                   here);
}

static enum dtype read_dtype(struct columns *c, const char *text)
{
    if (text == NULL)
        return DTYPE_NONE;
    if (strcmp(c->dtype_text, text) == 0)
        return c->dtype;
    c->dtype = dtype_parse(text);
    (void)snprintf(c->dtype_text, sizeof c->dtype_text, "%s",
                   strlen(text) < sizeof c->dtype_text ? text : "");
    return c->dtype;
}

static int add_tensor(struct tensor_list_builder *b, struct columns *c, size_t i,
                      const struct chunk_origin *origin, struct err *e)
{
    const char *name = column_next_string(&c->names);
    const char *text = column_next_string(&c->dtypes);
    uint64_t shape[TENSOR_LIST_NDIM_MAX], numel;
    enum dtype dtype;
    uint32_t ndim;
    char field[ERR_FIELD_MAX];

    if (name == NULL)
        return err_set(e, ERR_BAD_REQUEST, element_of(field, c->at, "names", i),
                       "a name is a string");
    dtype = read_dtype(c, text);
    if (dtype == DTYPE_NONE)
        return err_set(e, ERR_BAD_REQUEST, element_of(field, c->at, c->dtypes_member, i),
                       "dtype '%.32s' of '%.160s' is not one of %s, nor torch's name for one",
                       text != NULL ? text : "(not a string)", name, dtype_list());
    if (read_shape(shape, &ndim, c, i, e) != 0 || read_size(&numel, c, i, e) != 0)
        return -1;
    if (tensor_list_builder_add(b, name, dtype, shape, ndim, numel, e) == 0)
        return 0;
    return relocate_error(b, origin, 1, i, name, e);
}

int tensor_list_append(struct tensor_list_builder *b, const struct tensor_list *tensor_list,
                       const struct chunk_origin *origins, uint32_t n_origins, struct err *e)
{
    if (tensor_list_builder_reserve(b, tensor_list->n_tensors, e) != 0)
        return -1;
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, t->numel, e) != 0)
            return relocate_error(b, origins, n_origins, i, t->name, e);
    }
    return 0;
}

/* All tensors of the columns, in a builder. */
static int columns_build(struct tensor_list_builder **out, struct columns *c, struct err *e)
{
    uint32_t n = c->names.n < UINT32_MAX ? (uint32_t)c->names.n : UINT32_MAX;
    struct chunk_origin origin = {.rank = 0};
    struct tensor_list_builder *b;

    (void)snprintf(origin.at, sizeof origin.at, "%s", c->at);
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    if (tensor_list_builder_reserve(b, n, e) != 0)
        goto err_free;
    for (size_t i = 0; i < c->names.n; i++)
        if (add_tensor(b, c, i, &origin, e) != 0)
            goto err_free;
    *out = b;
    return 0;

err_free:
    tensor_list_builder_free(b);
    return -1;
}

int tensor_columns_check(const json_t *object, const struct body_columns *text, const char *at,
                         struct err *e)
{
    struct tensor_list_builder *b;
    struct columns c;

    if (read_columns(&c, object, text, at, e) != 0 || columns_build(&b, &c, e) != 0)
        return -1;
    tensor_list_builder_free(b);
    return 0;
}

/* Makes the key of the list for the cache. Returns false if one of its columns is in the tree. */
static bool key_of_columns(struct list_key *out, const struct columns *c)
{
    const struct column *columns[LIST_COLUMNS] = {&c->names, &c->dtypes, &c->shapes, &c->sizes};

    *out = (struct list_key){.kind = LIST_BY_TEXT};
    for (size_t i = 0; i < LIST_COLUMNS; i++) {
        if (columns[i]->given && columns[i]->text == NULL)
            return false;
        if (columns[i]->given)
            out->text[i] = columns[i]->text->text;
    }
    return true;
}

/* Is this the list of the cache entry? Each column was compared with it when it was found. */
static bool is_cached_entry(const struct list_entry *l, const struct columns *c)
{
    const struct column *columns[LIST_COLUMNS] = {&c->names, &c->dtypes, &c->shapes, &c->sizes};
    bool is = l != NULL;

    for (size_t i = 0; i < LIST_COLUMNS && is; i++)
        is = columns[i]->given ? columns[i]->text->cached == l : l->key.text[i].text == NULL;
    return is;
}

static int next_shape(void *arg, uint32_t i, uint64_t *shape, uint32_t *ndim, uint64_t *numel,
                      struct err *e)
{
    struct columns *c = arg;

    return read_shape(shape, ndim, c, i, e) != 0 ? -1 : read_size(numel, c, i, e);
}

/* The cached list with these names and dtypes, and maybe other shapes; or NULL. */
static struct tensor_list *list_of_names(const struct columns *c)
{
    const struct list_entry *l = c->names.text->cached;

    return l != NULL && c->dtypes.text->cached == l ? l->tensor_list : NULL;
}

/* @lists  cache for long lists whose columns are in the text; NULL: no cache */
static int tensor_list_from_list(struct tensor_list **out, struct list_cache *lists,
                                 const json_t *object, const struct body_columns *text,
                                 const char *at, struct err *e)
{
    struct tensor_list_builder *b;
    struct list_key key;
    struct columns c;
    bool cached;

    if (read_columns(&c, object, text, at, e) != 0)
        return -1;
    cached = lists != NULL && c.names.n >= CACHED_MIN && key_of_columns(&key, &c);
    if (cached && is_cached_entry(c.names.text->cached, &c)) {
        *out = tensor_list_ref(c.names.text->cached->tensor_list);
        return 0;
    }
    *out = cached ? list_cache_get(lists, &key) : NULL;
    if (*out != NULL)
        return 0;
    if (cached && list_of_names(&c) != NULL) { /* as the deltas of one step after another */
        if (tensor_list_reshape(out, list_of_names(&c), next_shape, &c, e) == 0)
            return 0;
        err_clear(e); /* it is found again below, with its place in the request */
        if (read_columns(&c, object, text, at, e) != 0)
            return -1;
    }
    if (columns_build(&b, &c, e) != 0 || tensor_list_builder_finish(b, out, e) != 0)
        return -1;
    if (cached)
        (void)list_cache_put(lists, &key, out);
    return 0;
}

int tensor_list_from_body(struct tensor_list **out, const json_t *body,
                          const struct body_columns *text, struct err *e)
{
    return tensor_list_from_list(out, NULL, body, text, "", e);
}

int tensor_list_resolve(struct tensor_list **out, const struct app_weights *weights,
                        const json_t *object, const struct body_columns *text, const char *at,
                        bool optional, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *plan_id = NULL, *column = member_given(field, tensor_list_rows, 0, object, at);
    struct list_key key;

    if (body_str(&plan_id, object, at, "plan_id", e) != 0)
        return -1;
    if (plan_id != NULL && column != NULL)
        return err_set(e, ERR_BAD_REQUEST, field_of(field, at, "plan_id"),
                       "plan_id replaces names, dtypes, shapes and sizes; '%s' was sent too",
                       column);
    if (plan_id == NULL && column == NULL && optional) {
        *out = NULL;
        return 0;
    }
    if (plan_id == NULL)
        return tensor_list_from_list(out, weights->lists, object, text, at, e);
    key = (struct list_key){LIST_BY_ID, {{plan_id, strlen(plan_id)}}};
    *out = list_cache_get(weights->lists, &key);
    if (*out == NULL)
        return err_set(e, ERR_NOT_FOUND, field_of(field, at, "plan_id"),
                       "no tensor list '%.80s' is registered; post it to /v1/weights/plans",
                       plan_id);
    return 0;
}

static int read_checksum(struct checksum *sum, bool *has, const json_t *value, const char *at,
                         size_t i, const char *name, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_string(value) && checksum_parse(sum, json_string_value(value))) {
        *has = true;
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, element_of(field, at, "checksums", i),
                   "the checksum of '%.160s' is not %d hex digits", name, CHECKSUM_LEN);
}

int checksums_add(struct checksum **sums, bool **has, const json_t *object, const char *at,
                  const struct tensor_list *tensor_list, uint32_t first, uint32_t n, struct err *e)
{
    const json_t *list = NULL;
    char field[ERR_FIELD_MAX];

    if (body_array(&list, object, at, "checksums", e) != 0)
        return -1;
    if (list == NULL)
        return 0;
    if (json_array_size(list) != n)
        return err_set(e, ERR_BAD_REQUEST, field_of(field, at, "checksums"),
                       "checksums has %zu entries for %u tensors", json_array_size(list),
                       (unsigned)n);
    if (*sums == NULL)
        *sums = calloc(tensor_list->n_tensors, sizeof **sums);
    if (*has == NULL)
        *has = calloc(tensor_list->n_tensors, sizeof **has);
    if (*sums == NULL || *has == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
    for (uint32_t i = 0; i < n; i++)
        if (read_checksum(&(*sums)[first + i], &(*has)[first + i], json_array_get(list, i), at, i,
                          tensor_list->tensors[first + i].name, e) != 0)
            return -1;
    return 0;
}
