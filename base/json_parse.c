/* The values are jansson's, but the text is read by json_reader, in a third of the time. jansson
 * reads it again if that refuses it: it decides, and words what is wrong.
 *
 * jansson 2.14 ignores a failed growth of its token buffer, which would shorten a long name or
 * number: so a parse that ran out of memory is neither the text's mistake nor a success. */
#include "base/json_parse.h"

#include "base/json_reader.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INT_CHARS_SURE = 18, INT_CHARS_MAX = 20 };   /* that fit; that may fit, with a sign */
enum { TREE_DEPTH_MAX = 64, TREE_NUMBER_MAX = 40 }; /* what is beyond is left to jansson */

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

/* A string, in the text or, with escapes, in *own (owned). Not one with a NUL. */
static bool take_string(struct json_reader *r, const char **out, size_t *len, char **own)
{
    struct json_reader check = *r;
    size_t cap;

    *own = NULL;
    if (json_reader_plain(r, out, len))
        return true;
    if (!json_reader_string(&check, NULL, 0))
        return false;
    cap = (size_t)(check.at - r->at); /* decoded it is not longer */
    *own = parse_malloc(cap);
    if (*own == NULL || !json_reader_string(r, *own, cap))
        return false;
    *out = *own;
    *len = strlen(*own);
    return true;
}

static json_t *read_string(struct json_reader *r)
{
    const char *text;
    json_t *out = NULL;
    size_t len;
    char *own;

    if (take_string(r, &text, &len, &own))
        out = json_stringn_nocheck(text, len);
    free(own);
    return out;
}

/* A number or a word. */
static json_t *read_plain(struct json_reader *r)
{
    const char *from = (const char *)r->at;
    char text[TREE_NUMBER_MAX + 1] = {0};
    double real;
    size_t len;

    if (!json_reader_skip(r, 0))
        return NULL;
    len = (size_t)((const char *)r->at - from);
    if (from[0] == 't' || from[0] == 'f')
        return json_boolean(from[0] == 't');
    if (from[0] == 'n')
        return json_null();
    if (len > TREE_NUMBER_MAX)
        return NULL;
    memcpy(text, from, len);
    if (strpbrk(text, ".eE") == NULL)
        return len <= INT_CHARS_SURE ? json_integer(strtoll(text, NULL, 10)) : NULL;
    real = strtod(text, NULL);
    return isfinite(real) ? json_real(real) : NULL;
}

static json_t *read_value(struct json_reader *r, size_t flags, unsigned depth);

static bool put_member(json_t *object, struct json_reader *r, size_t flags, unsigned depth)
{
    const char *name;
    size_t len;
    char *own;
    bool ok = take_string(r, &name, &len, &own) && json_reader_peek(r) == ':' &&
              ((flags & JSON_REJECT_DUPLICATES) == 0 ||
               json_object_getn(object, name, len) == NULL);

    if (ok) {
        r->at++;
        ok = json_object_setn_new_nocheck(object, name, len, read_value(r, flags, depth)) == 0;
    }
    free(own);
    return ok;
}

static json_t *read_members(struct json_reader *r, char close, size_t flags, unsigned depth)
{
    json_t *out = close == '}' ? json_object() : json_array();
    bool ok = depth > 0 && out != NULL;
    uint32_t n = 0;

    r->at++;
    while (ok && json_reader_next(r, close, &n))
        ok = close == '}' ? put_member(out, r, flags, depth - 1)
                          : json_array_append_new(out, read_value(r, flags, depth - 1)) == 0;
    if (ok && r->wrong == NULL)
        return out;
    json_decref(out);
    return NULL;
}

/* NULL: not read, or no memory. */
static json_t *read_value(struct json_reader *r, size_t flags, unsigned depth)
{
    int c = json_reader_peek(r);

    if (c == '{' || c == '[')
        return read_members(r, c == '{' ? '}' : ']', flags, depth);
    if (c == -1)
        return NULL;
    return c == '"' ? read_string(r) : read_plain(r);
}

static json_t *read_text(const char *text, size_t len, size_t flags)
{
    struct json_reader r;
    json_t *root;
    int c;

    json_reader_init(&r, text, len);
    c = json_reader_peek(&r);
    if ((flags & JSON_DECODE_ANY) == 0 && c != '{' && c != '[')
        return NULL;
    root = read_value(&r, flags, TREE_DEPTH_MAX);
    if (json_reader_end(&r))
        return root;
    json_decref(root);
    return NULL;
}

json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *why, bool *starved)
{
    json_t *root;

    memset(why, 0, sizeof *why);
    memory.parsing = true;
    memory.starved = false;
    root = read_text(text, len, flags);
    if (root == NULL && !memory.starved)
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
