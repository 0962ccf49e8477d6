/* The request is scanned once. Each plain column is cut out and replaced by its number. The rest
 * is small, and is parsed as any other body. If that fails, the whole request is parsed as it
 * was sent, so that errors and their positions are those of the sent text.
 *
 * A client cannot send text that looks like the number of a column: either all arrays with a
 * column's name are cut out, or none is. */
#include "handlers/body_columns.h"

#include "handlers/body_scan.h"
#include "handlers/route.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGITS_MAX = 18,         /* of a plain integer: always below 2^63 */
    PLACEHOLDER_LEN_MAX = 24 /* "[[4294967295]]" */
};

enum kind { KIND_STRINGS, KIND_INTEGERS, KIND_SHAPES };

/* A scan of text that ends at `end`. */
struct walk {
    const char *at, *end;
};

/* A member that is a column if it is an array, and the type of its elements. */
struct column_member {
    const char *name;
    enum kind kind;
    enum list_column which;
};

/* NULL: it is not a column's name. */
static const struct column_member *find_member(const char *name, size_t len)
{
    static const struct column_member columns[] = {
        {"names", KIND_STRINGS, LIST_NAMES},        {"dtypes", KIND_STRINGS, LIST_DTYPES},
        {"dtype_names", KIND_STRINGS, LIST_DTYPES}, {"shapes", KIND_SHAPES, LIST_SHAPES},
        {"sizes", KIND_INTEGERS, LIST_SIZES},       {"tensor_sizes", KIND_INTEGERS, LIST_SIZES},
    };

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        if (strlen(columns[i].name) == len && memcmp(columns[i].name, name, len) == 0)
            return &columns[i];
    return NULL;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Consumes `c` if it is the next byte that is not blank. */
static bool take(struct walk *w, char c)
{
    while (w->at < w->end && is_blank(*w->at))
        w->at++;
    if (w->at == w->end || *w->at != c)
        return false;
    w->at++;
    return true;
}

/* A string of ASCII without escapes, not longer than a name may be. */
static bool plain_string(struct walk *w)
{
    const char *first;

    if (!take(w, '"'))
        return false;
    first = w->at;
    while (w->at < w->end && *w->at >= 0x20 && *w->at < 0x7f && *w->at != '"' && *w->at != '\\')
        w->at++;
    if (w->at == w->end || *w->at != '"' || w->at - first > TENSOR_LIST_NAME_LEN_MAX)
        return false;
    w->at++;
    return true;
}

static bool plain_integer(struct walk *w)
{
    const char *first;

    while (w->at < w->end && is_blank(*w->at))
        w->at++;
    first = w->at;
    while (w->at < w->end && *w->at >= '0' && *w->at <= '9')
        w->at++;
    /* After the digits of a real number comes neither ',' nor ']': the caller refuses it. */
    return w->at > first && w->at - first <= DIGITS_MAX && (*first != '0' || w->at - first == 1);
}

static bool plain_shape(struct walk *w)
{
    uint32_t n = 0;

    if (!take(w, '['))
        return false;
    if (take(w, ']'))
        return true;
    do {
        if (n++ == TENSOR_LIST_NDIM_MAX || !plain_integer(w))
            return false;
    } while (take(w, ','));
    return take(w, ']');
}

/* The whole array, beginning with its '['. */
static bool plain_column(struct walk *w, enum kind kind, struct column_text *out)
{
    const char *begin = w->at;
    static bool (*const plain[])(struct walk *) = {[KIND_STRINGS] = plain_string,
                                                   [KIND_INTEGERS] = plain_integer,
                                                   [KIND_SHAPES] = plain_shape};

    *out = (struct column_text){.n = 0};
    if (!take(w, '['))
        return false;
    if (!take(w, ']')) {
        do {
            if (!plain[kind](w))
                return false;
            out->n++;
        } while (take(w, ','));
        if (!take(w, ']'))
            return false;
    }
    out->text = (struct list_text){begin, (size_t)(w->at - begin)};
    return true;
}

/* As plain_column, for a column with the same bytes as one of a cached list. */
static bool cached_column(struct walk *w, enum list_column which, struct body_columns *columns,
                          struct list_cache *lists, struct column_text *out)
{
    struct list_entry *before = columns->n > 0 ? columns->items[columns->n - 1].cached : NULL;
    struct list_entry *l = list_cache_find(lists, which, w->at, (size_t)(w->end - w->at), before);

    if (l == NULL)
        return false;
    *out = (struct column_text){
        .text = {w->at, l->key.text[which].len}, .n = l->tensor_list->n_tensors, .cached = l};
    w->at += l->key.text[which].len;
    return true;
}

static bool push(struct body_columns *columns, struct column_text column)
{
    if (columns->n == columns->cap) {
        uint32_t cap = columns->cap == 0 ? 8 : 2 * columns->cap;
        struct column_text *grown = realloc(columns->items, cap * sizeof *grown);

        if (grown == NULL)
            return false;
        columns->items = grown;
        columns->cap = cap;
    }
    columns->items[columns->n++] = column;
    return true;
}

/* The text without its columns. */
struct rest {
    char *text; /* owned; as large as the request */
    size_t len;
};

static void rest_copy(struct rest *r, const char *from, const char *to)
{
    memcpy(r->text + r->len, from, (size_t)(to - from));
    r->len += (size_t)(to - from);
}

/* Writes a column's placeholder, as deep as the column, so that the depth check gives the same
 * result. Returns false if it would be longer than the column. */
static bool rest_placeholder(struct rest *r, enum kind kind, uint32_t number, size_t len)
{
    char placeholder[PLACEHOLDER_LEN_MAX];
    int n = snprintf(placeholder, sizeof placeholder, kind == KIND_SHAPES ? "[[%u]]" : "[%u]",
                     (unsigned)number);

    if ((size_t)n > len)
        return false;
    rest_copy(r, placeholder, placeholder + n);
    return true;
}

/* Called after each string: if it is the name of a column that is an array, cuts out the column.
 * @from  begin of the text that has not been copied to r
 * Returns false: no column of this request may be cut out. */
static bool cut_member(struct walk *w, const char *name, size_t len, struct body_columns *columns,
                       struct list_cache *lists, struct rest *r, const char **from)
{
    const struct column_member *column_member;
    struct column_text column;
    const char *begin;

    if (!take(w, ':'))
        return true; /* not a member's name */
    if (memchr(name, '\\', len) != NULL)
        return false; /* may be a column's name, with escapes */
    column_member = find_member(name, len);
    if (column_member == NULL)
        return true;
    while (w->at < w->end && is_blank(*w->at))
        w->at++;
    begin = w->at;
    if (w->at == w->end || *w->at != '[')
        return true; /* absent, or refused later because it is not an array */
    if (!cached_column(w, column_member->which, columns, lists, &column) &&
        !plain_column(w, column_member->kind, &column))
        return false;
    if (!push(columns, column)) {
        list_entry_unref(column.cached);
        return false;
    }
    rest_copy(r, *from, begin);
    *from = w->at;
    return rest_placeholder(r, column_member->kind, columns->n - 1, (size_t)(w->at - begin));
}

/* Returns false if the body has no columns, if they are not all plain, or without memory. */
static bool cut(const char *text, size_t len, struct body_columns *columns,
                struct list_cache *lists, struct rest *r)
{
    struct walk w = {text, text + len};
    const char *from = text;

    r->text = malloc(len + 1);
    if (r->text == NULL)
        return false;
    while (w.at < w.end) {
        size_t begin, end;

        if (*w.at++ != '"')
            continue;
        begin = (size_t)(w.at - text);
        end = scan_string_end(text, len, begin);
        if (end == len)
            return false;
        w.at = text + end + 1;
        if (!cut_member(&w, text + begin, end - begin, columns, lists, r, &from))
            return false;
    }
    if (columns->n == 0)
        return false;
    rest_copy(r, from, w.end);
    r->text[r->len] = '\0';
    return true;
}

void body_columns_fini(struct body_columns *columns)
{
    for (uint32_t i = 0; i < columns->n; i++)
        list_entry_unref(columns->items[i].cached);
    free(columns->items);
    memset(columns, 0, sizeof *columns);
}

int body_parse_columns(json_t **out, struct body_columns *columns, const struct http_request *x,
                       const struct route *route, struct list_cache *lists, struct err *e)
{
    struct rest r = {0};
    struct err none = {0};
    int rc = -1;

    memset(columns, 0, sizeof *columns);
    if (!route->whole && cut(x->body, x->body_len, columns, lists, &r))
        rc = body_parse_text(out, x, r.text, r.len, route, &none);
    free(r.text);
    if (rc == 0)
        return 0;
    body_columns_fini(columns);
    return body_parse(out, x, route, e);
}

/* The column whose number is in the tree. */
static const struct column_text *column_of(const struct body_columns *columns,
                                           const json_t *placeholder)
{
    while (json_is_array(placeholder))
        placeholder = json_array_get(placeholder, 0);
    assert(json_is_integer(placeholder) && (uint64_t)json_integer_value(placeholder) < columns->n);
    return &columns->items[json_integer_value(placeholder)];
}

int column_open(struct column *out, const struct body_columns *columns, const json_t *o,
                const char *at, const char *member, struct err *e)
{
    const json_t *array = NULL;

    out->given = false;
    out->n = 0;
    if (body_array(&array, o, at, member, e) != 0)
        return -1;
    if (array == NULL)
        return 0;
    out->given = true;
    out->i = 0;
    out->text = NULL;
    out->tree = array;
    out->n = json_array_size(array);
    if (columns != NULL && columns->n > 0) {
        const struct column_text *text = column_of(columns, array);

        out->tree = NULL;
        out->text = text;
        out->n = text->n;
        out->at = text->text.text + 1;
    }
    return 0;
}

/* Between two elements of a plain column are only commas and blanks. */
static const char *skip_between(const char *at)
{
    while (*at == ',' || is_blank(*at))
        at++;
    return at;
}

const char *column_next_string(struct column *c)
{
    const char *first, *end;

    if (c->tree != NULL)
        return json_string_value(json_array_get(c->tree, c->i++));
    first = skip_between(c->at) + 1;
    end = memchr(first, '"', sizeof c->string);
    assert(end != NULL);
    memcpy(c->string, first, (size_t)(end - first));
    c->string[end - first] = '\0';
    c->at = end + 1;
    return c->string;
}

static uint64_t next_digits(const char **at)
{
    uint64_t value = 0;

    for (*at = skip_between(*at); **at >= '0' && **at <= '9'; ++*at)
        value = value * 10 + (uint64_t)(**at - '0');
    return value;
}

enum column_value column_next_u64(struct column *c, uint64_t *out)
{
    const json_t *value;

    if (c->tree == NULL) {
        *out = next_digits(&c->at);
        return COLUMN_INTEGER;
    }
    value = json_array_get(c->tree, c->i++);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return value == NULL || json_is_null(value) ? COLUMN_NULL : COLUMN_OTHER;
    *out = (uint64_t)json_integer_value(value);
    return COLUMN_INTEGER;
}

static void shape_of_text(struct column *c, uint64_t *shape, uint32_t *ndim)
{
    c->at = skip_between(c->at) + 1;
    for (*ndim = 0; *(c->at = skip_between(c->at)) != ']'; ++*ndim)
        shape[*ndim] = next_digits(&c->at);
    c->at++;
}

int column_next_shape(struct column *c, uint64_t shape[TENSOR_LIST_NDIM_MAX], uint32_t *ndim,
                      uint32_t *bad)
{
    const json_t *value;

    *bad = TENSOR_LIST_NDIM_MAX;
    if (c->tree == NULL) {
        shape_of_text(c, shape, ndim);
        return 0;
    }
    value = json_array_get(c->tree, c->i++);
    if (!json_is_array(value) || json_array_size(value) > TENSOR_LIST_NDIM_MAX)
        return -1;
    *ndim = (uint32_t)json_array_size(value);
    for (uint32_t k = 0; k < *ndim; k++) {
        const json_t *dim = json_array_get(value, k);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            *bad = k;
            return 0;
        }
        shape[k] = (uint64_t)json_integer_value(dim);
    }
    return 0;
}
