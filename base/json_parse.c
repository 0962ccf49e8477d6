/* jansson 2.14 ignores a failed growth of its token buffer, which would shorten a long name or
 * number: so a parse that ran out of memory is neither the text's mistake nor a success. */
#include "base/json_parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { INT_CHARS_SURE = 18, INT_CHARS_MAX = 20 }; /* that fit; that may fit, with a sign */

/* While a thread parses, its first failed allocation is remembered and every later one fails too,
 * so that jansson stops at once instead of going on with a shortened token. */
static _Thread_local struct {
    bool parsing, starved;
} memory;

static void *parse_malloc(size_t nbytes)
{
    void *p = memory.parsing && memory.starved ? NULL : malloc(nbytes);

    if (p == NULL)
        memory.starved = true;
    return p;
}

void json_parse_init(void)
{
    json_set_alloc_funcs(parse_malloc, free);
}

/* Without json_parse_init an allocation failure looks like this: no text at all, or "invalid token"
 * at a string. Real mistakes in strings all have other texts. */
static bool looks_starved(const json_error_t *why)
{
    return why->text[0] == '\0' || json_error_code(why) == json_error_out_of_memory ||
           strncmp(why->text, "invalid token near '\"", 21) == 0;
}

json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *why, bool *starved)
{
    json_t *root;

    memset(why, 0, sizeof *why);
    memory.parsing = true;
    memory.starved = false;
    root = json_loadb(text, len, flags, why);
    memory.parsing = false;
    *starved = memory.starved || (root == NULL && looks_starved(why));
    if (*starved) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* Is text[0, n) an integer that does not fit? */
static bool overflows(const char *text, size_t n)
{
    char copy[INT_CHARS_MAX + 1] = {0};

    for (size_t i = 0; i < n; i++) {
        if (strchr(".eE", text[i]) != NULL)
            return false;
    }
    if (n <= INT_CHARS_SURE || n > INT_CHARS_MAX)
        return n > INT_CHARS_MAX;
    memcpy(copy, text, n);
    errno = 0;
    (void)strtoll(copy, NULL, 10);
    return errno == ERANGE;
}

/* The text with ".0" behind each integer that does not fit. */
static char *widen(const char *text, size_t len, size_t *out_len)
{
    char *out = malloc(len + 2 * (len / INT_CHARS_SURE) + 1);
    bool in_string = false;
    size_t o = 0, n;

    for (size_t i = 0; out != NULL && i < len; i += n) {
        n = 0;
        while (!in_string && i + n < len && text[i + n] != '\0' &&
               strchr("+-.0123456789eE", text[i + n]) != NULL)
            n++;
        if (n == 0)
            n = in_string && text[i] == '\\' && i + 1 < len ? 2 : 1;
        memcpy(out + o, text + i, n);
        o += n;
        if (n == 1 && text[i] == '"')
            in_string = !in_string;
        else if (!in_string && overflows(text + i, n)) {
            memcpy(out + o, ".0", 2);
            o += 2;
        }
    }
    *out_len = o;
    return out;
}

json_t *json_parse_file(const char *text, size_t len, size_t flags, json_error_t *why,
                        bool *starved)
{
    json_t *root = json_parse(text, len, flags, why, starved);
    char *wide;
    size_t n;

    if (root != NULL || *starved || json_error_code(why) != json_error_numeric_overflow)
        return root;
    wide = widen(text, len, &n);
    if (wide == NULL) {
        *starved = true;
        return NULL;
    }
    root = json_parse(wide, n, flags, why, starved);
    free(wide);
    return root;
}

json_t *json_copy_all(const json_t *value)
{
    json_t *copy = json_copy(json_mutable(value));

    if (json_object_size(copy) == json_object_size(value) &&
        json_array_size(copy) == json_array_size(value))
        return copy;
    json_decref(copy);
    return NULL;
}

json_t *json_deep_copy_all(const json_t *value)
{
    json_t *copy = json_deep_copy(value);

    if (copy == NULL || json_equal(copy, value))
        return copy;
    json_decref(copy);
    return NULL;
}
