/* What a template may call by name: filters, tests, methods, functions, with their parameters in
 * order. The tables are the list of what is supported; a name that is not there fails when it is
 * reached, as in Jinja2, which looks for a filter or test outside an if before it renders. */
#ifndef BATON_TEXT_JINJA_NAMES_H
#define BATON_TEXT_JINJA_NAMES_H

#include "text/jinja/value.h"

#include <stdbool.h>

enum { CALLEE_SLOTS_MAX = 4 };

struct callee {
    const char *name;
    unsigned id;
    unsigned n_required;
    const char *params[CALLEE_SLOTS_MAX + 1]; /* NULL-terminated */
    bool hands_on; /* map, select ...: further arguments go to the one it names */
};

/* Filters. Names that are one id are aliases. */
#define JINJA_FILTERS(X)                                                                           \
    X(ABS, "abs", 0, NULL)                                                                         \
    X(CAPITALIZE, "capitalize", 0, NULL)                                                           \
    X(DEFAULT, "default", 0, "default_value", "boolean", NULL)                                     \
    X(DICTSORT, "dictsort", 0, "case_sensitive", "by", "reverse", NULL)                            \
    X(FIRST, "first", 0, NULL)                                                                     \
    X(FLOAT, "float", 0, "default", NULL)                                                          \
    X(INDENT, "indent", 0, "width", "first", "blank", NULL)                                        \
    X(INT, "int", 0, "default", NULL)                                                              \
    X(ITEMS, "items", 0, NULL)                                                                     \
    X(JOIN, "join", 0, "d", "attribute", NULL)                                                     \
    X(LAST, "last", 0, NULL)                                                                       \
    X(LENGTH, "length", 0, NULL)                                                                   \
    X(LIST, "list", 0, NULL)                                                                       \
    X(LOWER, "lower", 0, NULL)                                                                     \
    X(MAX, "max", 0, "case_sensitive", "attribute", NULL)                                          \
    X(MIN, "min", 0, "case_sensitive", "attribute", NULL)                                          \
    X(REPLACE, "replace", 2, "old", "new", "count", NULL)                                          \
    X(REVERSE, "reverse", 0, NULL)                                                                 \
    X(SAFE, "safe", 0, NULL)                                                                       \
    X(SORT, "sort", 0, "reverse", "case_sensitive", "attribute", NULL)                             \
    X(STRING, "string", 0, NULL)                                                                   \
    X(SUM, "sum", 0, "attribute", "start", NULL)                                                   \
    X(TITLE, "title", 0, NULL)                                                                     \
    X(TOJSON, "tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys", NULL)              \
    X(TRIM, "trim", 0, "chars", NULL)                                                              \
    X(UNIQUE, "unique", 0, "case_sensitive", "attribute", NULL)                                    \
    X(UPPER, "upper", 0, NULL)

enum filter_id {
#define X(id, ...) FILTER_##id,
    JINJA_FILTERS(X)
#undef X
        FILTER_MAP,
    FILTER_SELECT,
    FILTER_REJECT,
    FILTER_SELECTATTR,
    FILTER_REJECTATTR
};

#define JINJA_TESTS(X)                                                                             \
    X(BOOLEAN, "boolean", 0, NULL)                                                                 \
    X(CALLABLE, "callable", 0, NULL)                                                               \
    X(DEFINED, "defined", 0, NULL)                                                                 \
    X(DIVISIBLEBY, "divisibleby", 1, "num", NULL)                                                  \
    X(EQ, "eq", 1, "other", NULL)                                                                  \
    X(EVEN, "even", 0, NULL)                                                                       \
    X(FALSE, "false", 0, NULL)                                                                     \
    X(FLOAT, "float", 0, NULL)                                                                     \
    X(GE, "ge", 1, "other", NULL)                                                                  \
    X(GT, "gt", 1, "other", NULL)                                                                  \
    X(IN, "in", 1, "seq", NULL)                                                                    \
    X(INTEGER, "integer", 0, NULL)                                                                 \
    X(ITERABLE, "iterable", 0, NULL)                                                               \
    X(LE, "le", 1, "other", NULL)                                                                  \
    X(LT, "lt", 1, "other", NULL)                                                                  \
    X(MAPPING, "mapping", 0, NULL)                                                                 \
    X(NE, "ne", 1, "other", NULL)                                                                  \
    X(NONE, "none", 0, NULL)                                                                       \
    X(NUMBER, "number", 0, NULL)                                                                   \
    X(ODD, "odd", 0, NULL)                                                                         \
    X(SAMEAS, "sameas", 1, "other", NULL)                                                          \
    X(SEQUENCE, "sequence", 0, NULL)                                                               \
    X(STRING, "string", 0, NULL)                                                                   \
    X(TRUE, "true", 0, NULL)                                                                       \
    X(UNDEFINED, "undefined", 0, NULL)

enum test_id {
#define X(id, ...) TEST_##id,
    JINJA_TESTS(X)
#undef X
};

#define JINJA_METHODS(X)                                                                           \
    X(CAPITALIZE, "capitalize", 0, NULL)                                                           \
    X(COUNT, "count", 1, "value", NULL)                                                            \
    X(CYCLE, "cycle", 1, "a", "b", "c", "d", NULL)                                                 \
    X(ENDSWITH, "endswith", 1, "suffix", NULL)                                                     \
    X(FIND, "find", 1, "sub", NULL)                                                                \
    X(GET, "get", 1, "key", "default", NULL)                                                       \
    X(ISDIGIT, "isdigit", 0, NULL)                                                                 \
    X(ITEMS, "items", 0, NULL)                                                                     \
    X(JOIN, "join", 1, "iterable", NULL)                                                           \
    X(KEYS, "keys", 0, NULL)                                                                       \
    X(LOWER, "lower", 0, NULL)                                                                     \
    X(LSTRIP, "lstrip", 0, "chars", NULL)                                                          \
    X(REMOVEPREFIX, "removeprefix", 1, "prefix", NULL)                                             \
    X(REMOVESUFFIX, "removesuffix", 1, "suffix", NULL)                                             \
    X(REPLACE, "replace", 2, "old", "new", "count", NULL)                                          \
    X(RFIND, "rfind", 1, "sub", NULL)                                                              \
    X(RSPLIT, "rsplit", 0, "sep", "maxsplit", NULL)                                                \
    X(RSTRIP, "rstrip", 0, "chars", NULL)                                                          \
    X(SPLIT, "split", 0, "sep", "maxsplit", NULL)                                                  \
    X(SPLITLINES, "splitlines", 0, NULL)                                                           \
    X(STARTSWITH, "startswith", 1, "prefix", NULL)                                                 \
    X(STRIP, "strip", 0, "chars", NULL)                                                            \
    X(TITLE, "title", 0, NULL)                                                                     \
    X(UPPER, "upper", 0, NULL)                                                                     \
    X(VALUES, "values", 0, NULL)

enum method_id {
#define X(id, ...) METHOD_##id,
    JINJA_METHODS(X)
#undef X
};

/* Those that are only names here fail when they are called. */
#define JINJA_FUNCTIONS(X)                                                                         \
    X(CYCLER, "cycler")                                                                            \
    X(DICT, "dict")                                                                                \
    X(JOINER, "joiner")                                                                            \
    X(LIPSUM, "lipsum")                                                                            \
    X(NAMESPACE, "namespace")                                                                      \
    X(RAISE, "raise_exception")                                                                    \
    X(RANGE, "range")                                                                              \
    X(STRFTIME_NOW, "strftime_now")

enum function_id {
#define X(id, name) FUNCTION_##id,
    JINJA_FUNCTIONS(X)
#undef X
};

/* All return NULL, or false, for an unknown name. */
const struct callee *filter_named(struct text name);
const struct callee *test_named(struct text name);
const struct callee *method_named(struct text name);
bool function_named(struct text name, unsigned *id);

/* Is it a filter or a test of Jinja2, supported or not? */
bool jinja_has_filter(struct text name);
bool jinja_has_test(struct text name);

/* Does Python's type have this method, whatever we make of it? @changes  it changes its object, so
 * that the sandbox of transformers hides it */
bool method_of(enum value_type type, struct text name, bool *changes);

#endif
