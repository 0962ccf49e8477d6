/* The long columns of a request (names, dtypes, shapes, sizes: an element for each of up to a
 * million tensors), read from its text without a tree: a tree costs a microsecond for each tensor,
 * more than copying it does.
 *
 * Only plain columns are: strings of ASCII without escapes, integers of digits, shapes of such.
 * Those are JSON that nobody could read in two ways; whatever else a request holds is jansson's to
 * accept or to refuse, and so is all of a request in which one column is not plain. */
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

/* The columns that were left in the text; in the tree the number of each stands in its place. */
struct body_columns {
    struct column_text *items; /* owned; [n] */
    uint32_t n, cap;           /* n 0: the tree has them all */
};

/* body_parse_columns - as body_parse, leaving the columns in the text if all of them are plain.
 * @columns  to be finished before the request ends; empty after an error
 * @lists    borrowed: columns that are in there need not be looked at again; may be NULL */
int body_parse_columns(json_t **out, struct body_columns *columns, const struct http_request *x,
                       const struct route *route, struct list_cache *lists, struct err *e);
void body_columns_fini(struct body_columns *columns); /* accepts a zeroed one */

/* One column, read from its first element to its last: each `_next` is the next one's, and is
 * called at most n times in all. */
struct column {
    bool given;
    size_t n;

    const json_t *tree;                        /* borrowed; NULL: it is in the text */
    size_t i;                                  /* of the tree: the next one */
    const struct column_text *text;            /* borrowed; NULL: it is in the tree */
    const char *at;                            /* in the text: before the next one */
    char string[TENSOR_LIST_NAME_LEN_MAX + 1]; /* of the text: the last one */
};

/* column_open - a member that is an array, absent or null.
 * @columns  of body_parse_columns, whose tree `o` is in; NULL: of body_parse
 * Errors: as body_array. */
int column_open(struct column *out, const struct body_columns *columns, const json_t *o,
                const char *at, const char *member, struct err *e);

/* column_next_string - borrowed until the next call; NULL: it is no string. */
const char *column_next_string(struct column *c);

/* What an element may be beside an integer from 0 on. */
enum column_value { COLUMN_INTEGER, COLUMN_NULL, COLUMN_OTHER };
enum column_value column_next_u64(struct column *c, uint64_t *out);

/* column_next_shape - -1: it is no array of 0 to TENSOR_LIST_NDIM_MAX; else 0.
 * @bad  the first dimension that is not an integer from 0 on, or TENSOR_LIST_NDIM_MAX */
int column_next_shape(struct column *c, uint64_t shape[TENSOR_LIST_NDIM_MAX], uint32_t *ndim,
                      uint32_t *bad);

#endif
