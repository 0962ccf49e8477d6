/* What a request may contain, and what a reply contains, as data: one row for each member of a body
 * or a query.
 *
 * From the rows come the reader (member_read), the refusal of unknown members with the closest
 * known name, the writer of replies (member_write), the schemas in openapi/
 * (tests/tools/print_contract.c), and the tables of members in docs/. A table has one row for a
 * name, and ends with {0}. */
#ifndef BATON_HANDLERS_ROWS_MEMBER_H
#define BATON_HANDLERS_ROWS_MEMBER_H

#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the value may be; several are or-ed. In a request null counts as absent everywhere. */
enum member_type {
    M_ANY = 0,
    M_STRING = 1 << 0,
    M_BOOL = 1 << 1,
    M_INT = 1 << 2,
    M_NUMBER = 1 << 3,
    M_ARRAY = 1 << 4,
    M_OBJECT = 1 << 5, /* with the members `of`, or any */
    M_MAP = 1 << 6,    /* an object whose names the client chooses; `items` are its values */
    M_INTS = 1 << 7,   /* of items only: an array of integers */
    M_NULL = 1 << 8,   /* of items; in a reply: null instead of 0, "" and NULL */
    M_ROWS = 1 << 9    /* no member: all rows of the table `of` belong here */
};

enum member_flags {
    M_REQUIRED = 1 << 0,
    M_QUERY = 1 << 1,  /* it may be in the query: for a body of tensors, or without a body */
    M_ABOVE = 1 << 2,  /* the minimum itself is not allowed */
    M_BASE64 = 1 << 3, /* the string, or each string of the array */
    M_OPEN = 1 << 4,   /* members that are not in `of` are ignored */
    M_EACH = 1 << 5,   /* or an array with a value for each prompt, as in SGLang */
    M_IF_ANY = 1 << 6, /* in a reply: left out if it is null or an empty array */
    M_FLEET = 1 << 7,  /* in a reply: only in front of upstream engines */
    M_OWN = 1 << 8     /* this one and higher ones: groups of members, named beside their table */
};

/* A string with its length, because it may hold NULs (a prompt). */
struct member_text {
    const char *s;
    size_t len;
};

/* How a value is stored; M_IN chooses by the type of the field. */
enum member_store {
    STORE_NOT,   /* its handler reads it */
    STORE_STR,   /* borrowed from the body; with `words` static */
    STORE_CHARS, /* an array of them; of replies only */
    STORE_TEXT,
    STORE_BOOL,
    STORE_U32,
    STORE_U64,
    STORE_INT, /* the index in `words`, or an integer */
    STORE_I64,
    STORE_F32,
    STORE_F64,
    STORE_JSON, /* borrowed from the body */
    STORE_ROWS  /* M_ROWS_IN */
};

/* The field of a struct that gets the value, or of which a reply tells. An absent member leaves the
 * field as it is, unless the row has a default. */
#define M_IN(type, field)                                                                          \
    .at = offsetof(type, field),                                                                   \
    .store = _Generic(((type *)NULL)->field, const char *                                          \
                      : STORE_STR, char *                                                          \
                      : _Generic(&((type *)NULL)->field, char **                                   \
                                 : STORE_STR, default                                              \
                                 : STORE_CHARS),                                                   \
                        struct member_text                                                         \
                      : STORE_TEXT, bool                                                           \
                      : STORE_BOOL, uint32_t                                                       \
                      : STORE_U32, uint64_t                                                        \
                      : STORE_U64, int64_t                                                         \
                      : STORE_I64, float                                                           \
                      : STORE_F32, double                                                          \
                      : STORE_F64, int                                                             \
                      : STORE_INT, const json_t *                                                  \
                      : STORE_JSON)
/* The bool that becomes true if the member is given; while it is false, a reply has null instead,
 * or, of a member that cannot be null, nothing. */
#define M_GIVEN(type, field) .given = offsetof(type, field) + 1
/* The rows of another table: read together with this one's into a field of its struct, or into the
 * same struct; or only listed here, and read by their own handler. */
#define M_ROWS_IN(table, type, field)                                                              \
    M_ROWS, .of = table, .at = offsetof(type, field), .store = STORE_ROWS
#define M_ROWS_WITH(table) M_ROWS, .of = table, .store = STORE_ROWS
#define M_ROWS_OF(table)   M_ROWS, .of = table
/* Of replies: an object with the rows of `table`, from a field that is a struct. */
#define M_OBJECT_IN(table, type, field)                                                            \
    M_OBJECT, .of = table, .at = offsetof(type, field), .store = STORE_ROWS
/* Of replies: the value that `function` makes of the address of a field, or of the struct. */
#define M_MADE(function, type, field) .make = function, .at = offsetof(type, field)
enum { M_MS = 1000, M_S = 1000000 }; /* .per, of microseconds */
#define M_SAME ""                    /* .ours: the same name */
#define M_WORDS(...)                                                                               \
    .words = (const char *const[])                                                                 \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

struct member {
    const char *name;
    unsigned type, items; /* of enum member_type */
    unsigned flags;       /* of enum member_flags */
    enum member_store store;
    size_t at, given;         /* given: offset of a bool, plus 1; 0: none */
    int64_t min, max;         /* of a number; max 0: none; of an int64_t, both 0: none. Of a
                                 string with a field its length in bytes, which `check` checks if
                                 there is one; of an array or a map its length: the handler checks
                                 it */
    const char *def;          /* the default; NULL: none, or the text `doc` says it */
    const char *const *words; /* the strings that are allowed; NULL: any */
    /* The only value, beside null, that is accepted: JSON text of a number, of false, or of an
     * object whose members must be there; "null": none; "empty": "", [] and {}. NULL: others too.
     */
    const char *neutral;
    const struct member *of; /* members of the object, or of each object of the array or map */
    /* A string's own rules; NULL: none. Errors: ERR_BAD_REQUEST at `field`. */
    int (*check)(const char *text, const char *field, struct err *e);
    /* Of replies. per: the value is the field divided by it (microseconds as seconds); 0: by 1.
     * word: the text of an enum. make: the value (new), NULL without memory. */
    uint32_t per;
    const char *(*word)(unsigned value);
    json_t *(*make)(const void *from);
    const char *ours; /* in a table of a dialect: the place in the native request, such as
                         "request_ids/0" or "adapter_config/r"; M_SAME; NULL: nowhere */
    const char *doc;
};

/* member_find - the row of a name, or NULL. @rows  NULL: none
 * @flags  that the row must have: M_QUERY, or 0 */
const struct member *member_find(const struct member *rows, const char *name, unsigned flags);

/* member_names - the names of rows that have `flags`, at most cap - 1, ended by NULL. */
enum { MEMBER_NAMES_MAX = 192 };
void member_names(const char *names[MEMBER_NAMES_MAX], const struct member *rows, unsigned flags);

/* member_given - the first member that the object has, of the rows with `flags`; NULL: none.
 * @field  its JSON pointer, for an error; unchanged without one */
const char *member_given(char field[ERR_FIELD_MAX], const struct member *rows, unsigned flags,
                         const json_t *object, const char *at);

/* member_only_given - the only member that the object has, of the rows with `flags`; NULL: there is
 * none, or several.
 * @field  the JSON pointer of the last one, if there are several, else "" */
const char *member_only_given(char field[ERR_FIELD_MAX], const struct member *rows, unsigned flags,
                              const json_t *object, const char *at);

/* member_read - read members of `object` into a struct, in the order of the rows: required
 * members, types, limits, words, neutral values and `check`.
 * @out   the struct that the rows name; strings and JSON are borrowed from the object
 * @at    the object's JSON pointer: "" or "/sampling_params"
 * Errors: ERR_BAD_REQUEST at the member; ERR_NO_MEMORY. */
int member_read(void *out, const struct member *rows, const json_t *object, const char *at,
                struct err *e);

/* member_read_only - refuse members that are not in `rows`, then member_read. */
int member_read_only(void *out, const struct member *rows, const json_t *object, const char *at,
                     struct err *e);

/* member_read_query - the same from the query, of rows with M_QUERY. Strings are borrowed from the
 * request. */
int member_read_query(void *out, const struct member *rows, const struct http_request *x,
                      struct err *e);

/* member_write - the object (new) that the rows make of a struct, in their order; NULL without
 * memory, or if a text is not UTF-8. A row with `def` has that value always; one with neither a
 * field nor `make` is left out: its handler puts it.
 * @from  the struct that the rows name */
json_t *member_write(const void *from, const struct member *rows);

/* member_write_list - an array (new) of such objects; NULL as above.
 * @items  [n] structs of `nbytes` bytes each */
json_t *member_write_list(const void *items, size_t n, size_t nbytes, const struct member *rows);

#endif
