/* A recursive-descent reader; only json_reader_skip recurses, to the depth that it is given. */
#include "base/json_reader.h"

#include "base/utf8.h"

#include <string.h>

static bool reader_fail(struct json_reader *r, const char *wrong)
{
    if (r->wrong == NULL)
        r->wrong = wrong;
    return false;
}

void json_reader_init(struct json_reader *r, const void *data, size_t len)
{
    const uint8_t *bytes = data;

    *r = (struct json_reader){.start = bytes, .at = bytes, .end = bytes + len};
}

size_t json_reader_offset(const struct json_reader *r)
{
    return (size_t)(r->at - r->start);
}

int json_reader_peek(struct json_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
    return r->at < r->end ? *r->at : -1;
}

bool json_reader_open(struct json_reader *r, char bracket)
{
    if (r->wrong != NULL)
        return false;
    if (json_reader_peek(r) != bracket)
        return reader_fail(r, bracket == '{' ? "an object was expected" : "an array was expected");
    r->at++;
    return true;
}

bool json_reader_next(struct json_reader *r, char close, uint32_t *n)
{
    int c;

    if (r->wrong != NULL)
        return false;
    c = json_reader_peek(r);
    if (c == close) {
        r->at++;
        return false;
    }
    if (*n > 0) {
        if (c != ',')
            return reader_fail(r, close == '}' ? "',' or '}' was expected"
                                               : "',' or ']' was expected");
        r->at++;
    }
    ++*n;
    return true;
}

bool json_reader_end(struct json_reader *r)
{
    if (r->wrong != NULL)
        return false;
    return json_reader_peek(r) == -1 ? true
                                     : reader_fail(r, "there is more after the end of the value");
}

static bool read_hex4(struct json_reader *r, uint32_t *out)
{
    uint32_t value = 0;

    if (r->end - r->at < 4)
        return reader_fail(r, "the text ends inside a string");
    for (int i = 0; i < 4; i++, r->at++) {
        uint8_t c = *r->at;
        uint8_t lower = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return reader_fail(r, "four hex digits were expected after \\u");
    }
    *out = value;
    return true;
}

/* What follows "\u", two of them for a pair of surrogates. */
static bool unicode_escape(struct json_reader *r, uint32_t *out)
{
    uint32_t high, low;

    if (!read_hex4(r, &high))
        return false;
    *out = high;
    if (high < 0xd800 || high > 0xdfff)
        return true;
    if (high > 0xdbff || r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
        return reader_fail(r, "a lone surrogate is not a character");
    r->at += 2;
    if (!read_hex4(r, &low))
        return false;
    if (low < 0xdc00 || low > 0xdfff)
        return reader_fail(r, "a lone surrogate is not a character");
    *out = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* What follows a backslash. */
static bool read_escape(struct json_reader *r, uint32_t *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    uint8_t c;

    if (r->at == r->end)
        return reader_fail(r, "the text ends inside a string");
    c = *r->at++;
    if (c == 'u')
        return unicode_escape(r, out);
    found = c != '\0' ? strchr(from, c) : NULL;
    if (found == NULL)
        return reader_fail(r, "a backslash before a character that needs none");
    *out = (uint8_t)to[found - from];
    return true;
}

/* One character of a string, as UTF-8 into text; len 0 at the closing quote. */
static bool read_character(struct json_reader *r, char text[UTF8_MAX], size_t *len)
{
    uint32_t c;
    int n;

    if (r->at == r->end)
        return reader_fail(r, "the text ends inside a string");
    *len = 0;
    if (*r->at == '"') {
        r->at++;
        return true;
    }
    if (*r->at < 0x20)
        return reader_fail(r, "a control character inside a string");
    if (*r->at == '\\') {
        r->at++;
        if (!read_escape(r, &c))
            return false;
        *len = utf8_put(text, c);
        return true;
    }
    n = *r->at < 0x80 ? 1 : utf8_scan(r->at, (size_t)(r->end - r->at), &c);
    if (n <= 0)
        return reader_fail(r, "a string is not valid UTF-8");
    *len = (size_t)n;
    memcpy(text, r->at, *len);
    r->at += n;
    return true;
}

bool json_reader_plain(struct json_reader *r, const char **out, size_t *len)
{
    const uint8_t *p;
    uint32_t c;
    int n;

    if (r->wrong != NULL || json_reader_peek(r) != '"')
        return false;
    for (p = r->at + 1; p < r->end && *p != '"' && *p != '\\' && *p >= 0x20; p += n) {
        n = *p < 0x80 ? 1 : utf8_scan(p, (size_t)(r->end - p), &c);
        if (n <= 0)
            return false;
    }
    if (p == r->end || *p != '"')
        return false;
    *out = (const char *)r->at + 1;
    *len = (size_t)(p - r->at) - 1;
    r->at = p + 1;
    return true;
}

bool json_reader_string(struct json_reader *r, char *out, size_t cap)
{
    char text[UTF8_MAX] = {0};
    size_t used = 0, len = 0;

    if (r->wrong != NULL)
        return false;
    if (json_reader_peek(r) != '"')
        return reader_fail(r, "a string was expected");
    r->at++;
    for (;;) {
        if (!read_character(r, text, &len))
            return false;
        if (len == 0)
            break;
        if (out == NULL)
            continue;
        if (text[0] == '\0')
            return reader_fail(r, "a NUL inside a string");
        if (len >= cap - used)
            return reader_fail(r, "a string is longer than allowed");
        memcpy(out + used, text, len);
        used += len;
    }
    if (out != NULL)
        out[used] = '\0';
    return true;
}

bool json_reader_key(struct json_reader *r, char *out, size_t cap)
{
    if (!json_reader_string(r, out, cap))
        return false;
    if (json_reader_peek(r) != ':')
        return reader_fail(r, "':' was expected");
    r->at++;
    return true;
}

static bool json_reader_is_digit(const struct json_reader *r)
{
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

bool json_reader_u64(struct json_reader *r, uint64_t *out)
{
    const uint8_t *first;
    uint64_t value = 0;

    if (r->wrong != NULL)
        return false;
    (void)json_reader_peek(r);
    first = r->at;
    for (; json_reader_is_digit(r); r->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*r->at - '0'), &value))
            return reader_fail(r, "an integer is larger than 2^64 - 1");
    if (r->at == first || (*first == '0' && r->at - first > 1) ||
        (r->at < r->end && (*r->at == '.' || *r->at == 'e' || *r->at == 'E')))
        return reader_fail(r, "a non-negative integer was expected");
    *out = value;
    return true;
}

static bool skip_digits(struct json_reader *r)
{
    if (!json_reader_is_digit(r))
        return reader_fail(r, "a digit was expected");
    while (json_reader_is_digit(r))
        r->at++;
    return true;
}

static bool skip_number(struct json_reader *r)
{
    if (*r->at == '-')
        r->at++;
    if (r->at < r->end && *r->at == '0')
        r->at++;
    else if (!skip_digits(r))
        return false;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!skip_digits(r))
            return false;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
            r->at++;
        return skip_digits(r);
    }
    return true;
}

static bool skip_word(struct json_reader *r)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t len = strlen(words[i]);
        if ((size_t)(r->end - r->at) >= len && memcmp(r->at, words[i], len) == 0) {
            r->at += len;
            return true;
        }
    }
    return reader_fail(r, "a JSON value was expected");
}

static bool skip_members(struct json_reader *r, char close, unsigned depth)
{
    uint32_t n = 0;

    r->at++;
    while (json_reader_next(r, close, &n))
        if ((close == '}' && !json_reader_key(r, NULL, 0)) || !json_reader_skip(r, depth))
            return false;
    return r->wrong == NULL;
}

bool json_reader_skip(struct json_reader *r, unsigned depth)
{
    int c;

    if (r->wrong != NULL)
        return false;
    c = json_reader_peek(r);
    if (c == '{' || c == '[') {
        if (depth == 0)
            return reader_fail(r, "values are nested too deep");
        return skip_members(r, c == '{' ? '}' : ']', depth - 1);
    }
    if (c == '"')
        return json_reader_string(r, NULL, 0);
    if (c == '-' || (c >= '0' && c <= '9'))
        return skip_number(r);
    return skip_word(r);
}
