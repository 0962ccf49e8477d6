/* JSON written as text, as jansson would write it. */
#include "handlers/json_put.h"

#include "base/utf8.h"
#include "handlers/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REAL_DIGITS = 9, NUMBER_CAP = 32, BASE64_PIECE = 4096 };

/* Puts a comma after a value. The last byte of a value is never one of these. */
static void put_comma(struct buf *out)
{
    if (out->len > 0 && strchr("{[: ", out->data[out->len - 1]) == NULL)
        buf_append(out, ",", 1);
}

void json_put_open(struct buf *out, char bracket)
{
    put_comma(out);
    buf_append(out, &bracket, 1);
}

void json_put_close(struct buf *out, char bracket)
{
    buf_append(out, &bracket, 1);
}

void json_put_name(struct buf *out, const char *name)
{
    json_put_string(out, name, strlen(name));
    buf_append(out, ":", 1);
}

static void put_escaped(struct buf *out, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = c != '\0' ? strchr(plain, c) : NULL;
    char text[NUMBER_CAP];

    (void)snprintf(text, sizeof text, at != NULL ? "\\%c" : "\\u%04X",
                   at != NULL ? letters[at - plain] : c);
    buf_puts(out, text);
}

void json_put_string(struct buf *out, const char *text, size_t len)
{
    size_t from = 0;

    put_comma(out);
    if (utf8_valid_prefix(text, len) != len)
        out->failed = true;
    buf_append(out, "\"", 1);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= ' ' && c != '"' && c != '\\')
            continue;
        buf_append(out, text + from, i - from);
        put_escaped(out, c);
        from = i + 1;
    }
    buf_append(out, text + from, len - from);
    buf_append(out, "\"", 1);
}

/* Writes the 4 digits of up to 3 bytes. */
static void base64_group(char digits[4], const unsigned char *data, size_t n)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = (uint32_t)data[0] << 16;

    bits |= n > 1 ? (uint32_t)data[1] << 8 : 0;
    bits |= n > 2 ? data[2] : 0;
    digits[0] = alphabet[bits >> 18];
    digits[1] = alphabet[bits >> 12 & 63];
    digits[2] = n > 1 ? alphabet[bits >> 6 & 63] : '=';
    digits[3] = n > 2 ? alphabet[bits & 63] : '=';
}

void json_put_base64(struct buf *out, const void *data, size_t nbytes)
{
    const unsigned char *bytes = data;
    char text[BASE64_PIECE];
    size_t n = 0;

    put_comma(out);
    buf_append(out, "\"", 1);
    for (size_t i = 0; i < nbytes; i += 3) {
        base64_group(text + n, bytes + i, nbytes - i);
        n += 4;
        if (n < sizeof text)
            continue;
        buf_append(out, text, n);
        n = 0;
    }
    buf_append(out, text, n);
    buf_append(out, "\"", 1);
}

void json_put_int(struct buf *out, int64_t v)
{
    char text[NUMBER_CAP];

    put_comma(out);
    (void)snprintf(text, sizeof text, "%" PRId64, v);
    buf_puts(out, text);
}

/* "1e-05" as "1e-5", "1e+20" as "1e20". */
static void shorten_exponent(char *e)
{
    char *to = e + 1, *from = to;

    if (*from == '-')
        to++;
    from++;
    while (*from == '0')
        from++;
    memmove(to, from, strlen(from) + 1);
}

void json_put_real(struct buf *out, double v)
{
    char text[NUMBER_CAP], *e;

    put_comma(out);
    (void)snprintf(text, sizeof text, "%.*g", REAL_DIGITS, v);
    e = strchr(text, 'e');
    if (e != NULL)
        shorten_exponent(e);
    buf_puts(out, text);
    if (e == NULL && strchr(text, '.') == NULL)
        buf_puts(out, ".0");
}

void json_put_null(struct buf *out)
{
    put_comma(out);
    buf_puts(out, "null");
}

void json_put_value(struct buf *out, json_t *v)
{
    put_comma(out);
    reply_append_json(out, v);
    json_decref(v);
}

void json_put_members(struct buf *out, json_t *object)
{
    const char *name;
    json_t *v;

    if (object == NULL)
        out->failed = true;
    json_object_foreach(object, name, v)
    {
        json_put_name(out, name);
        json_put_value(out, json_incref(v));
    }
    json_decref(object);
}

void json_put_text(struct buf *out, const struct buf *text)
{
    if (text->failed)
        out->failed = true;
    if (text->len == 0)
        return;
    put_comma(out);
    buf_append(out, text->data, text->len);
}
