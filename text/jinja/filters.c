/* Filters of one value. What takes text takes any value's, as Jinja2's do. */
#include "text/jinja/filters.h"
#include "text/jinja/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NUMBER_TEXT_MAX = 64, INDENT_MAX = 1024 };

static int filter_default(const struct value *v, const struct args *a, struct value *out)
{
    bool use = v->type == V_UNDEFINED || (a->given[1] && value_truth(&a->v[1]) && !value_truth(v));

    *out = !use ? *v : a->given[0] ? a->v[0] : value_text(TEXT(""));
    return 0;
}

/* Python's int(): spaces around, a sign, digits; what is none of that is the default. */
static bool filter_read_number(struct text s, char text[NUMBER_TEXT_MAX])
{
    s = text_strip(s, STRIP_BOTH);
    if (s.len == 0 || s.len >= NUMBER_TEXT_MAX)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (strchr("0123456789+-.eE", s.p[i]) == NULL || s.p[i] == '\0')
            return false;
    }
    memcpy(text, s.p, s.len);
    text[s.len] = '\0';
    return true;
}

/* Would Python read it where we do not: inf, nan, 1_000, digits of other scripts? */
static int refuse_number(struct run *r, struct text s)
{
    static const char *const words[] = {"inf", "nan"};
    bool odd;

    s = text_strip(s, STRIP_BOTH);
    odd = s.len > 0;
    for (size_t i = 0; i < s.len && odd; i++)
        odd = (s.p[i] & 0x80) != 0 ||
              (s.p[i] != '\0' && strchr("0123456789+-.eE_", s.p[i]) != NULL);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        odd = odd || (s.len >= 3 && s.len <= 9 &&
                      (strncasecmp(s.p, words[i], 3) == 0 ||
                       strncasecmp(s.p + 1, words[i], s.len > 3 ? 3 : 2) == 0));
    return odd ? run_fail(r, "reading '%.*s' as a number is not supported",
                          (int)(s.len < 40 ? s.len : 40), s.p)
               : 0;
}

static int string_number(struct run *r, struct text s, bool as_int, const struct value *absent,
                         struct value *out)
{
    char text[NUMBER_TEXT_MAX], *end;
    double f;
    int64_t i;

    *out = *absent;
    if (!filter_read_number(s, text))
        return refuse_number(r, s);
    if (as_int && strpbrk(text, ".eE") == NULL) {
        i = strtoll(text, &end, 10);
        if (*end == '\0' && (i == INT64_MAX || i == INT64_MIN))
            return run_fail(r, "an integer beyond 64 bits");
        if (*end == '\0')
            *out = value_int(i);
        return 0;
    }
    f = strtod(text, &end);
    if (*end != '\0')
        return 0;
    if (!as_int)
        *out = value_float(f);
    else if (isinf(f))
        return 0;
    else if (!float_to_int(f, &out->u.i))
        return run_fail(r, "an integer beyond 64 bits");
    else
        out->type = V_INT;
    return 0;
}

static int filter_number(struct run *r, bool as_int, const struct value *v, const struct args *a,
                         struct value *out)
{
    struct value absent = a->given[0] ? a->v[0] : as_int ? value_int(0) : value_float(0.0);

    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    if (v->type == V_STRING)
        return string_number(r, v->u.s, as_int, &absent, out);
    *out = absent;
    if (!value_is_number(v))
        return 0;
    if (!as_int)
        *out = value_float(value_as_float(v));
    else if (v->type != V_FLOAT)
        *out = value_int(value_as_int(v));
    else if (isnan(v->u.f))
        return 0;
    else if (isinf(v->u.f))
        return run_fail(r, "an integer beyond 64 bits");
    else if (!float_to_int(v->u.f, &out->u.i))
        return run_fail(r, "an integer beyond 64 bits");
    else
        out->type = V_INT;
    return 0;
}

static int filter_abs(struct run *r, const struct value *v, struct value *out)
{
    if (!value_is_number(v))
        return run_wrong_type(r, v, "a number");
    if (v->type == V_FLOAT) {
        *out = value_float(fabs(v->u.f));
        return 0;
    }
    if (value_as_int(v) == INT64_MIN)
        return run_fail(r, "an integer beyond 64 bits");
    *out = value_int(value_as_int(v) < 0 ? -value_as_int(v) : value_as_int(v));
    return 0;
}

static int filter_trim(struct run *r, struct text s, const struct args *a, struct value *out)
{
    struct text left;

    if (run_strip(r, s, a->given[0] ? &a->v[0] : NULL, STRIP_BOTH, &left) != 0)
        return -1;
    *out = value_text(left);
    return 0;
}

static int filter_replace(struct run *r, struct text s, const struct args *a, struct value *out)
{
    struct value old, new_text;

    if (run_str(r, &a->v[0], &old) != 0 || run_str(r, &a->v[1], &new_text) != 0)
        return -1;
    if (a->given[2] && a->v[2].type != V_INT && a->v[2].type != V_NONE)
        return run_wrong_type(r, &a->v[2], "a number of replacements");
    return run_replace(r, s, old.u.s, new_text.u.s,
                       a->given[2] && a->v[2].type == V_INT ? a->v[2].u.i : -1, out);
}

/* Title case of the filter, which is not that of the method: words begin after white space, '-' and
 * opening brackets; the rest of each is lower. */
static int filter_title(struct run *r, struct text s, struct value *out)
{
    size_t mark = r->out->len, from = 0;
    struct value part;

    for (size_t i = 0; i <= s.len; i++) {
        bool breaks = i == s.len || (s.p[i] != '\0' && strchr("-([{<", s.p[i]) != NULL) ||
                      char_is_space((unsigned char)s.p[i]);

        if (i < s.len && (s.p[i] & 0x80) != 0)
            return run_fail(r, "'title' of characters outside ASCII is not supported");
        if (!breaks)
            continue;
        if (run_case(r, (struct text){s.p + from, i - from}, CASE_CAPITALIZE, &part) != 0 ||
            run_write(r, part.u.s) != 0 ||
            (i < s.len && run_write(r, (struct text){s.p + i, 1}) != 0))
            return -1;
        from = i + 1;
    }
    return run_taken(r, mark, out);
}

static int indent_of(struct run *r, const struct value *v, struct value *out)
{
    struct value space = value_text(TEXT(" "));

    if (v->type == V_STRING) {
        *out = *v;
        return 0;
    }
    if (v->type != V_INT && v->type != V_BOOL)
        return run_wrong_type(r, v, "an indent: a number or a string");
    if (value_as_int(v) > INDENT_MAX)
        return run_fail(r, "an indent of more than %d", INDENT_MAX);
    return run_binary(r, OP_MUL, &space, v, out);
}

static int filter_indent(struct run *r, const struct value *v, const struct args *a,
                         struct value *out)
{
    struct value four = value_int(4), indent;
    bool first = a->given[1] && value_truth(&a->v[1]), blank = a->given[2] && value_truth(&a->v[2]);
    size_t mark = r->out->len;
    struct text rest, line;
    bool ended;

    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    if (v->type != V_STRING)
        return run_wrong_type(r, v, "a string to indent");
    if (indent_of(r, a->given[0] ? &a->v[0] : &four, &indent) != 0 ||
        run_charge_bytes(r, v->u.s.len) != 0)
        return -1;
    rest = v->u.s;
    if (rest.len > 0 && rest.p[rest.len - 1] == '\r')
        rest.len--; /* one line end with the \n that Jinja2 adds and takes off again */
    for (bool head = true;; head = false) {
        ended = text_line(&rest, &line);
        if (((head ? first : (blank || line.len > 0)) && run_write(r, indent.u.s) != 0) ||
            run_write(r, line) != 0 || (ended && run_write(r, TEXT("\n")) != 0))
            return -1;
        if (!ended)
            break;
    }
    return run_taken(r, mark, out);
}

static int json_separators(struct run *r, const struct value *v, struct json_style *style)
{
    const struct list *l = value_is_list(v) ? v->u.list : NULL;

    if (l == NULL || l->n != 2 || l->items[0].type != V_STRING || l->items[1].type != V_STRING)
        return run_wrong_type(r, v, "two separators");
    style->item = l->items[0].u.s;
    style->key = l->items[1].u.s;
    return 0;
}

static int filter_tojson(struct run *r, const struct value *v, const struct args *a,
                         struct value *out)
{
    struct json_style style = {.item = TEXT(", "), .key = TEXT(": ")};
    size_t mark = r->out->len;
    struct value indent;

    style.ascii = a->given[0] && value_truth(&a->v[0]);
    style.sorted = a->given[3] && value_truth(&a->v[3]);
    if (a->given[1] && a->v[1].type != V_NONE) {
        if (indent_of(r, &a->v[1], &indent) != 0)
            return -1;
        style.indented = true;
        style.indent = indent.u.s;
        style.item = TEXT(",");
    }
    if (a->given[2] && a->v[2].type != V_NONE && json_separators(r, &a->v[2], &style) != 0)
        return -1;
    return run_print_json(r, v, &style) == 0 ? run_taken(r, mark, out) : -1;
}

static int text_filter(struct run *r, unsigned id, const struct value *v, const struct args *a,
                       struct value *out)
{
    struct value s;

    if (run_str(r, v, &s) != 0)
        return -1;
    switch (id) {
    case FILTER_CAPITALIZE:
        return run_case(r, s.u.s, CASE_CAPITALIZE, out);
    case FILTER_LOWER:
        return run_case(r, s.u.s, CASE_LOWER, out);
    case FILTER_UPPER:
        return run_case(r, s.u.s, CASE_UPPER, out);
    case FILTER_TITLE:
        return filter_title(r, s.u.s, out);
    case FILTER_TRIM:
        return filter_trim(r, s.u.s, a, out);
    case FILTER_INDENT:
        return filter_indent(r, v, a, out);
    case FILTER_REPLACE:
        return filter_replace(r, s.u.s, a, out);
    default:
        *out = s;
        return 0;
    }
}

int run_filter_by_id(struct run *r, unsigned id, const struct value *v, const struct args *a,
                     struct value *out)
{
    size_t n;

    switch (id) {
    case FILTER_ABS:
        return filter_abs(r, v, out);
    case FILTER_DEFAULT:
        return filter_default(v, a, out);
    case FILTER_INT:
    case FILTER_FLOAT:
        return filter_number(r, id == FILTER_INT, v, a, out);
    case FILTER_LENGTH:
        if (run_length(r, v, &n) != 0)
            return -1;
        *out = value_int((int64_t)n);
        return 0;
    case FILTER_TOJSON:
        return filter_tojson(r, v, a, out);
    case FILTER_CAPITALIZE:
    case FILTER_INDENT:
    case FILTER_LOWER:
    case FILTER_REPLACE:
    case FILTER_SAFE:
    case FILTER_STRING:
    case FILTER_TITLE:
    case FILTER_TRIM:
    case FILTER_UPPER:
        if (text_filter(r, id, v, a, out) != 0)
            return -1;
        out->markup = id == FILTER_SAFE || (v->type == V_STRING && v->markup &&
                                            id != FILTER_REPLACE && id != FILTER_TITLE);
        return 0;
    default:
        return run_list_filter(r, id, v, a, out);
    }
}

int run_filter(struct run *r, const struct node *n, const struct value *in, const struct args *a,
               struct value *out)
{
    return n->n_kids == CALLEE_SLOTS_MAX + 2 ? run_filter_seq(r, n, in, a, out)
                                             : run_filter_by_id(r, n->op, in, a, out);
}
