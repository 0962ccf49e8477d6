/* Values as text: str(), repr() and json.dumps() of Python. */
#include "text/jinja/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { NUMBER_NBYTES = 48, FLOAT_DIGITS_MAX = 17, FLOAT_PLAIN_MAX = 16, FLOAT_PLAIN_MIN = -4 };

static int write_text(struct run *r, const char *text)
{
    return run_write(r, (struct text){text, strlen(text)});
}

/* The shortest digits that read back as the same number, laid out as Python's repr does. */
static void float_text(char out[NUMBER_NBYTES], double f)
{
    char digits[NUMBER_NBYTES], plain[NUMBER_NBYTES];
    int n = 1, exponent;
    char *e;

    for (; n <= FLOAT_DIGITS_MAX; n++) {
        (void)snprintf(digits, sizeof digits, "%.*e", n - 1, f);
        if (n == FLOAT_DIGITS_MAX || !(strtod(digits, NULL) < f || strtod(digits, NULL) > f))
            break;
    }
    e = strchr(digits, 'e');
    exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent >= FLOAT_PLAIN_MIN && exponent < FLOAT_PLAIN_MAX) {
        int after = n - 1 - exponent;

        (void)snprintf(plain, sizeof plain, "%.*f", after > 1 ? after : 1, f);
        (void)snprintf(out, NUMBER_NBYTES, "%s", plain);
        return;
    }
    *e = '\0';
    (void)snprintf(out, NUMBER_NBYTES, "%.24se%c%02d", digits, exponent < 0 ? '-' : '+',
                   abs(exponent));
}

static int write_float(struct run *r, double f, bool json)
{
    char text[NUMBER_NBYTES];

    if (isnan(f))
        return write_text(r, json ? "NaN" : "nan");
    if (isinf(f))
        return write_text(r, json ? (f > 0 ? "Infinity" : "-Infinity") : (f > 0 ? "inf" : "-inf"));
    float_text(text, f);
    return write_text(r, text);
}

static int write_int(struct run *r, int64_t i)
{
    char text[NUMBER_NBYTES];

    (void)snprintf(text, sizeof text, "%" PRId64, i);
    return write_text(r, text);
}

static bool is_printable(uint32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

/* One character within quotes, by repr's rules. */
static int repr_char(struct run *r, const char *p, size_t len, char quote)
{
    uint32_t c = text_char(p, len);
    char text[16];

    if (c == (unsigned char)quote || c == '\\')
        (void)snprintf(text, sizeof text, "\\%c", (int)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        (void)snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (is_printable(c))
        return run_write(r, (struct text){p, len});
    else if (c < 0x100)
        (void)snprintf(text, sizeof text, "\\x%02x", c);
    else
        (void)snprintf(text, sizeof text, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    return write_text(r, text);
}

static int repr_string(struct run *r, struct text s)
{
    bool has_single = s.len > 0 && memchr(s.p, '\'', s.len) != NULL;
    bool has_double = s.len > 0 && memchr(s.p, '"', s.len) != NULL;
    char quote[2] = {has_single && !has_double ? '"' : '\'', '\0'};

    if (write_text(r, quote) != 0)
        return -1;
    for (size_t i = 0, len; i < s.len; i += len) {
        len = text_char_len(s.p + i, s.p + s.len);
        len = len > 0 ? len : 1;
        if (repr_char(r, s.p + i, len, quote[0]) != 0)
            return -1;
    }
    return write_text(r, quote);
}

static int repr(struct run *r, const struct value *v, unsigned depth);

static int repr_items(struct run *r, const struct list *l, const char *open, const char *close,
                      unsigned depth)
{
    if (write_text(r, open) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if ((i > 0 && write_text(r, ", ") != 0) || repr(r, &l->items[i], depth + 1) != 0)
            return -1;
    }
    return write_text(r, close);
}

static int repr_dict(struct run *r, const struct dict *d, unsigned depth)
{
    if (write_text(r, "{") != 0)
        return -1;
    for (size_t i = 0; i < d->n; i++) {
        if ((i > 0 && write_text(r, ", ") != 0) || repr(r, &d->entries[i].key, depth + 1) != 0 ||
            write_text(r, ": ") != 0 || repr(r, &d->entries[i].value, depth + 1) != 0)
            return -1;
    }
    return write_text(r, "}");
}

static int repr(struct run *r, const struct value *v, unsigned depth)
{
    if (depth > RUN_VALUE_DEPTH_MAX)
        return run_fail(r, "values nest deeper than %d", RUN_VALUE_DEPTH_MAX);
    switch (v->type) {
    case V_NONE:
        return write_text(r, "None");
    case V_BOOL:
        return write_text(r, v->u.b ? "True" : "False");
    case V_INT:
        return write_int(r, v->u.i);
    case V_FLOAT:
        return write_float(r, v->u.f, false);
    case V_STRING:
        if (!v->markup)
            return repr_string(r, v->u.s);
        return write_text(r, "Markup(") == 0 && repr_string(r, v->u.s) == 0 ? write_text(r, ")")
                                                                            : -1;
    case V_UNDEFINED:
        return write_text(r, "Undefined");
    case V_LIST:
        return repr_items(r, v->u.list, "[", "]", depth);
    case V_TUPLE:
        return repr_items(r, v->u.list, "(", v->u.list->n == 1 ? ",)" : ")", depth);
    case V_DICT:
        return repr_dict(r, v->u.dict, depth);
    default:
        return run_fail(r, "a value of type '%s' has no text", value_type_name(v->type));
    }
}

int run_print(struct run *r, const struct value *v)
{
    if (v->type == V_STRING)
        return run_write(r, v->u.s);
    return v->type == V_UNDEFINED ? 0 : repr(r, v, 0);
}

int run_str(struct run *r, const struct value *v, struct value *out)
{
    size_t mark = r->out->len;

    if (v->type == V_STRING) {
        *out = *v;
        return 0;
    }
    return run_print(r, v) == 0 ? run_taken(r, mark, out) : -1;
}

int run_escape(struct run *r, const struct value *v, struct value *out)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    size_t mark = r->out->len, done = 0;

    if (run_str(r, v, out) != 0)
        return -1;
    for (size_t i = 0; i < out->u.s.len && !out->markup; i++) {
        const char *at = out->u.s.p[i] != '\0' ? strchr(from, out->u.s.p[i]) : NULL;

        if (at == NULL)
            continue;
        if (run_write(r, (struct text){out->u.s.p + done, i - done}) != 0 ||
            write_text(r, to[at - from]) != 0)
            return -1;
        done = i + 1;
    }
    if (done > 0 && (run_write(r, (struct text){out->u.s.p + done, out->u.s.len - done}) != 0 ||
                     run_taken(r, mark, out) != 0))
        return -1;
    out->markup = true;
    return 0;
}

static int json_char(struct run *r, const char *p, size_t len, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    uint32_t c = text_char(p, len);
    const char *at = c > 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
    char text[16];

    if (at != NULL)
        (void)snprintf(text, sizeof text, "\\%c", to[at - from]);
    else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000))
        (void)snprintf(text, sizeof text, "\\u%04x", c);
    else if (ascii && c >= 0x10000)
        (void)snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                       0xdc00 + ((c - 0x10000) & 0x3ff));
    else
        return run_write(r, (struct text){p, len});
    return write_text(r, text);
}

/* Bytes from s that need no escape. */
static size_t plain_len(struct text s, bool ascii)
{
    size_t i = 0;

    while (i < s.len && (unsigned char)s.p[i] >= 0x20 && s.p[i] != '"' && s.p[i] != '\\' &&
           !(ascii && (unsigned char)s.p[i] >= 0x7f))
        i++;
    return i;
}

static int json_string_text(struct run *r, struct text s, bool ascii)
{
    if (write_text(r, "\"") != 0)
        return -1;
    while (s.len > 0) {
        size_t n = plain_len(s, ascii);

        if (n > 0 && run_write(r, (struct text){s.p, n}) != 0)
            return -1;
        if (n == 0) {
            n = text_char_len(s.p, s.p + s.len);
            n = n > 0 ? n : 1;
            if (json_char(r, s.p, n, ascii) != 0)
                return -1;
        }
        s.p += n;
        s.len -= n;
    }
    return write_text(r, "\"");
}

static int json_newline(struct run *r, const struct json_style *style, unsigned depth)
{
    if (!style->indented)
        return 0;
    if (write_text(r, "\n") != 0)
        return -1;
    for (unsigned i = 0; i < depth; i++) {
        if (run_write(r, style->indent) != 0)
            return -1;
    }
    return 0;
}

static int json_any(struct run *r, const struct value *v, const struct json_style *style,
                    unsigned depth);

static int json_items(struct run *r, const struct list *l, const struct json_style *style,
                      unsigned depth)
{
    if (l->n == 0)
        return write_text(r, "[]");
    if (write_text(r, "[") != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if ((i > 0 && run_write(r, style->item) != 0) || json_newline(r, style, depth + 1) != 0 ||
            json_any(r, &l->items[i], style, depth + 1) != 0)
            return -1;
    }
    return json_newline(r, style, depth) == 0 ? write_text(r, "]") : -1;
}

static int json_key(struct run *r, const struct value *key)
{
    switch (key->type) {
    case V_BOOL:
        return write_text(r, key->u.b ? "\"true\"" : "\"false\"");
    case V_NONE:
        return write_text(r, "\"null\"");
    case V_INT:
    case V_FLOAT:
        if (write_text(r, "\"") != 0 ||
            (key->type == V_INT ? write_int(r, key->u.i) : write_float(r, key->u.f, true)) != 0)
            return -1;
        return write_text(r, "\"");
    default:
        return run_wrong_type(r, key, "a key of JSON");
    }
}

/* The entries in the order in which they are to be written. */
static int json_order(struct run *r, const struct dict *d, bool sorted, struct value **order)
{
    struct value *keys = arena_array(&r->arena, d->n, sizeof *keys);

    *order = arena_array(&r->arena, d->n, sizeof **order);
    if (keys == NULL || *order == NULL)
        return run_no_memory(r);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        (*order)[i] = value_int((int64_t)i);
    }
    return sorted ? run_sort(r, *order, keys, d->n, false) : 0;
}

static int json_members(struct run *r, const struct dict *d, const struct json_style *style,
                        unsigned depth)
{
    struct value *order;

    if (d->n == 0)
        return write_text(r, "{}");
    if (json_order(r, d, style->sorted, &order) != 0 || write_text(r, "{") != 0)
        return -1;
    for (size_t i = 0; i < d->n; i++) {
        const struct dict_entry *m = &d->entries[order[i].u.i];

        if ((i > 0 && run_write(r, style->item) != 0) || json_newline(r, style, depth + 1) != 0 ||
            (m->key.type == V_STRING ? json_string_text(r, m->key.u.s, style->ascii)
                                     : json_key(r, &m->key)) != 0 ||
            run_write(r, style->key) != 0 || json_any(r, &m->value, style, depth + 1) != 0)
            return -1;
    }
    return json_newline(r, style, depth) == 0 ? write_text(r, "}") : -1;
}

static int json_any(struct run *r, const struct value *v, const struct json_style *style,
                    unsigned depth)
{
    if (depth > RUN_VALUE_DEPTH_MAX)
        return run_fail(r, "values nest deeper than %d", RUN_VALUE_DEPTH_MAX);
    switch (v->type) {
    case V_NONE:
        return write_text(r, "null");
    case V_BOOL:
        return write_text(r, v->u.b ? "true" : "false");
    case V_INT:
        return write_int(r, v->u.i);
    case V_FLOAT:
        return write_float(r, v->u.f, true);
    case V_STRING:
        return json_string_text(r, v->u.s, style->ascii);
    case V_LIST:
    case V_TUPLE:
        return json_items(r, v->u.list, style, depth);
    case V_DICT:
        return json_members(r, v->u.dict, style, depth);
    case V_UNDEFINED:
        return run_undefined(r, v);
    default:
        return run_wrong_type(r, v, "a value that JSON has");
    }
}

int run_print_json(struct run *r, const struct value *v, const struct json_style *style)
{
    return json_any(r, v, style, 0);
}
