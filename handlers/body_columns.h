/* The long columns of a request (names, dtypes, shapes, sizes: one element for each of up to a
 * million tensors), read from its text without a JSON tree: a tree costs a microsecond for each
 * tensor, more than copying the tensor does.
 *
 * This is done only if all columns are plain: strings of ASCII without escapes, integers of
 * digits, shapes of such integers. Those can be read in one way only. jansson parses and checks
 * the rest of the request, and all of a request that has a column which is not plain. */
#ifndef BATON_HANDLERS_BODY_COLUMNS_H
#define BATON_HANDLERS_BODY_COLUMNS_H

#include "handlers/body.h"
#include "weights/tensor_list.h"
#include "weights/update/list_cache.h"

/* A plain column in the text of a request. */
struct column_text {
    struct list_text text;     /* borrowed from the request */
    uint32_t n;                /* elements */
    struct list_entry *cached; /* counted: a cached list that has this very column, or NULL */
};

/* The columns that were left in the text; the tree has the number of each column instead. */
struct body_columns {
    struct column_text *items; /* owned; [n] */
    uint32_t n, cap;           /* n 0: the tree has them all */
};

/* body_parse_columns - body_parse, but the columns stay in the text if all of them are plain.
 * @columns  body_columns_fini before the request ends; empty after an error
 * @lists    borrowed: a column of a cached list is compared instead of checked; may be NULL */
int body_parse_columns(json_t **out, struct body_columns *columns, const struct http_request *x,
                       const struct route *route, struct list_cache *lists, struct err *e);
void body_columns_fini(struct body_columns *columns); /* accepts a zeroed one */

/* One column, read in order: each call of a `_next` function reads the next element, at most n
 * calls in all. */
struct column {
    bool given;
    size_t n;

    const json_t *tree;                        /* borrowed; NULL: it is in the text */
    size_t i;                                  /* of the tree: the next one */
    const struct column_text *text;            /* borrowed; NULL: it is in the tree */
    const char *at;                            /* in the text: before the next one */
    char string[TENSOR_LIST_NAME_LEN_MAX + 1]; /* of the text: the last one */
};

/* column_open - begin to read a member that is an array, absent or null.
 * @columns  of body_parse_columns, whose tree contains `o`; NULL: the tree is body_parse's
 * Errors: as body_array. */
int column_open(struct column *out, const struct body_columns *columns, const json_t *o,
                const char *at, const char *member, struct err *e);

/* column_next_string - the next string, borrowed until the next call; NULL: it is not a string. */
const char *column_next_string(struct column *c);

/* The type of an element; COLUMN_INTEGER is from 0 on. */
enum column_value { COLUMN_INTEGER, COLUMN_NULL, COLUMN_OTHER };
enum column_value column_next_u64(struct column *c, uint64_t *out);

/* column_next_shape - the next shape. Returns -1 if it is not an array of 0 to
 * TENSOR_LIST_NDIM_MAX elements; else 0.
 * @bad  the first dimension that is not an integer from 0 on, or TENSOR_LIST_NDIM_MAX if all are */
int column_next_shape(struct column *c, uint64_t shape[TENSOR_LIST_NDIM_MAX], uint32_t *ndim,
                      uint32_t *bad);

#endif
