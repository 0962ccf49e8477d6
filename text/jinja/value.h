/* Values of a template, as Python has them. They live in the arena of one render, so that they are
 * copied freely and never freed one by one; text may also be borrowed from the template or from the
 * JSON that was given. Nothing here changes a value once it is made, but for namespaces. */
#ifndef BATON_TEXT_JINJA_VALUE_H
#define BATON_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_type {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE, /* range(): a list that is no list */
    V_VIEW,  /* d.keys(), d.values(), d.items() */
    V_ITER,  /* what a filter yields: read once, always true */
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION,
    V_METHOD, /* d.items, not called */
    V_TYPE_COUNT
};

struct text {
    const char *p;
    size_t len;
};

struct list;
struct dict;
struct loop;
struct macro;

struct value {
    enum value_type type;
    enum value_type of; /* V_UNDEFINED: what lacked the attribute; V_NONE: it was a name */
    bool markup;        /* V_STRING: what 'safe' made, which escapes strings that join it */
    union {
        bool b;
        int64_t i;
        double f;
        struct text s;     /* V_STRING; of V_UNDEFINED and V_METHOD the name */
        struct list *list; /* V_LIST, V_TUPLE, V_RANGE, V_VIEW, V_ITER */
        struct dict *dict; /* V_DICT, V_NAMESPACE */
        struct loop *loop;
        struct macro *macro;
        unsigned function; /* enum of calls.c */
    } u;
};

struct list {
    struct value *items; /* [n] */
    size_t n, cap;
    size_t next; /* V_ITER: how many were read */
};

struct dict_entry {
    struct value key, value;
};

struct dict {
    struct dict_entry *entries; /* [n], in the order in which they came */
    size_t n, cap;
};

/* The state of one for loop, as its `loop` shows it. */
struct loop {
    const struct value *items;
    size_t i, n;
    unsigned depth;
};

#define TEXT(literal) ((struct text){(literal), sizeof(literal) - 1})
#define VALUE_NONE    ((struct value){.type = V_NONE})

static inline struct value value_bool(bool b)
{
    return (struct value){.type = V_BOOL, .u.b = b};
}

static inline struct value value_int(int64_t i)
{
    return (struct value){.type = V_INT, .u.i = i};
}

static inline struct value value_float(double f)
{
    return (struct value){.type = V_FLOAT, .u.f = f};
}

static inline struct value value_text(struct text s)
{
    return (struct value){.type = V_STRING, .u.s = s};
}

static inline struct value value_list(enum value_type type, struct list *l)
{
    return (struct value){.type = type, .u.list = l};
}

static inline struct value value_undefined(struct text name, enum value_type of)
{
    return (struct value){.type = V_UNDEFINED, .of = of, .u.s = name};
}

static inline bool value_is_list(const struct value *v)
{
    return v->type >= V_LIST && v->type <= V_ITER && v->type != V_DICT;
}

static inline bool value_is_number(const struct value *v)
{
    return v->type == V_INT || v->type == V_FLOAT || v->type == V_BOOL;
}

static inline int64_t value_as_int(const struct value *v) /* of V_INT and V_BOOL */
{
    return v->type == V_BOOL ? v->u.b : v->u.i;
}

static inline double value_as_float(const struct value *v) /* of numbers */
{
    return v->type == V_FLOAT ? v->u.f : (double)value_as_int(v);
}

bool text_eq(struct text a, struct text b);
int text_cmp(struct text a, struct text b); /* by code point, as Python orders strings */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
struct text text_strip(struct text s, int sides); /* white space, as Python's str.strip() */

/* value_type_name - as Python's errors name it: "str", "dict". */
const char *value_type_name(enum value_type type);
bool value_truth(const struct value *v);

/* value_int_max - is the double a whole number that an int64 holds? */
bool float_to_int(double f, int64_t *out);

#endif
