/* The tables of names, expanded. */
#include "text/jinja/names.h"

#include <stddef.h>
#include <string.h>

struct alias {
    const char *name, *means;
};

#define ROW(prefix, key, text, required, ...)                                                      \
    {.name = (text), .id = prefix##key, .n_required = (required), .params = {__VA_ARGS__}},

static const struct callee filters[] = {
#define X(...) ROW(FILTER_, __VA_ARGS__)
    JINJA_FILTERS(X)
#undef X
        {.name = "map", .id = FILTER_MAP, .params = {NULL}, .hands_on = true},
    {.name = "select", .id = FILTER_SELECT, .params = {NULL}, .hands_on = true},
    {.name = "reject", .id = FILTER_REJECT, .params = {NULL}, .hands_on = true},
    {.name = "selectattr", .id = FILTER_SELECTATTR, .params = {NULL}, .hands_on = true},
    {.name = "rejectattr", .id = FILTER_REJECTATTR, .params = {NULL}, .hands_on = true},
};
static const struct alias filter_aliases[] = {{"count", "length"}, {"d", "default"}};

static const struct callee tests[] = {
#define X(...) ROW(TEST_, __VA_ARGS__)
    JINJA_TESTS(X)
#undef X
};
static const struct alias test_aliases[] = {{"==", "eq"}, {"equalto", "eq"},     {"!=", "ne"},
                                            {"<", "lt"},  {"lessthan", "lt"},    {"<=", "le"},
                                            {">", "gt"},  {"greaterthan", "gt"}, {">=", "ge"}};

static const struct callee methods[] = {
#define X(...) ROW(METHOD_, __VA_ARGS__)
    JINJA_METHODS(X)
#undef X
};

static bool is_name(const char *name, struct text s)
{
    return strlen(name) == s.len && memcmp(name, s.p, s.len) == 0;
}

static const struct callee *named(const struct callee *rows, size_t n, struct text name)
{
    for (size_t i = 0; i < n; i++) {
        if (is_name(rows[i].name, name))
            return &rows[i];
    }
    return NULL;
}

static struct text meaning(const struct alias *rows, size_t n, struct text name)
{
    for (size_t i = 0; i < n; i++) {
        if (is_name(rows[i].name, name))
            return (struct text){rows[i].means, strlen(rows[i].means)};
    }
    return name;
}

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

const struct callee *filter_named(struct text name)
{
    return named(filters, COUNT(filters), meaning(filter_aliases, COUNT(filter_aliases), name));
}

const struct callee *test_named(struct text name)
{
    return named(tests, COUNT(tests), meaning(test_aliases, COUNT(test_aliases), name));
}

const struct callee *method_named(struct text name)
{
    return named(methods, COUNT(methods), name);
}

bool function_named(struct text name, unsigned *id)
{
    static const char *const names[] = {
#define X(key, text) [FUNCTION_##key] = (text),
        JINJA_FUNCTIONS(X)
#undef X
    };

    for (unsigned i = 0; i < COUNT(names); i++) {
        if (is_name(names[i], name)) {
            *id = i;
            return true;
        }
    }
    return false;
}

/* Is `name` one of the words in `list`, which are separated by spaces? */
static bool in_words(const char *list, struct text name)
{
    while (*list != '\0') {
        size_t len = strcspn(list, " ");

        if (len == name.len && memcmp(list, name.p, len) == 0)
            return true;
        list += len + (list[len] == ' ');
    }
    return false;
}

bool jinja_has_filter(struct text name)
{
    return filter_named(name) != NULL ||
           in_words("attr batch center e escape filesizeformat forceescape format groupby pprint "
                    "random round slice striptags truncate urlencode urlize wordcount wordwrap "
                    "xmlattr",
                    name);
}

bool jinja_has_test(struct text name)
{
    return test_named(name) != NULL || in_words("escaped filter lower test upper", name);
}

bool method_of(enum value_type type, struct text name, bool *changes)
{
    static const char str[] =
        "capitalize casefold center count encode endswith expandtabs find format format_map index "
        "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
        "isspace istitle isupper join ljust lower lstrip maketrans partition removeprefix "
        "removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
        "startswith strip swapcase title translate upper zfill";
    static const char list_changes[] = "append clear extend insert pop remove reverse sort";
    static const char dict_changes[] = "clear pop popitem setdefault update";
    bool of_list = type == V_LIST, of_dict = type == V_DICT;

    *changes = (of_list && in_words(list_changes, name)) ||
               (of_dict && in_words(dict_changes, name));
    if (*changes)
        return true;
    if (type == V_STRING)
        return in_words(str, name);
    if (of_list)
        return in_words("copy count index", name);
    if (type == V_TUPLE)
        return in_words("count index", name);
    return of_dict && in_words("copy fromkeys get items keys values", name);
}
