/* Methods of strings, dicts and loops, called. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <string.h>

static int need_text(struct run *r, const struct value *v, struct text *out)
{
    if (v->type != V_STRING)
        return run_wrong_type(r, v, "a string");
    *out = v->u.s;
    return 0;
}

static bool has_affix(struct text s, struct text affix, bool at_end)
{
    return s.len >= affix.len && (affix.len == 0 || memcmp(at_end ? s.p + s.len - affix.len : s.p,
                                                           affix.p, affix.len) == 0);
}

/* One affix, or a tuple of which any will do. */
static int method_affix(struct run *r, struct text s, const struct value *v, bool at_end,
                        struct value *out)
{
    const struct value *affixes = v->type == V_TUPLE ? v->u.list->items : v;
    size_t n = v->type == V_TUPLE ? v->u.list->n : 1;
    bool is = false;

    for (size_t i = 0; i < n && !is; i++) {
        struct text affix = TEXT("");

        if (need_text(r, &affixes[i], &affix) != 0 || run_charge_bytes(r, affix.len) != 0)
            return -1;
        is = has_affix(s, affix, at_end);
    }
    *out = value_bool(is);
    return 0;
}

static int methods_push_text(struct run *r, struct list *l, const char *p, size_t len)
{
    struct value v = value_text((struct text){p, len});

    return run_push(r, l, &v);
}

/* At white space: runs of it separate, and none at the ends. */
static int split_space(struct run *r, struct text s, int64_t n_max, struct list *l)
{
    s = text_strip(s, STRIP_LEFT);
    while (s.len > 0) {
        size_t n = 0, len;

        if (n_max == 0) {
            s = text_strip(s, STRIP_RIGHT);
            return methods_push_text(r, l, s.p, s.len);
        }
        while (n < s.len) {
            len = text_char_len(s.p + n, s.p + s.len);
            if (len == 0 || char_is_space(text_char(s.p + n, len)))
                break;
            n += len;
        }
        if (methods_push_text(r, l, s.p, n) != 0)
            return -1;
        s = text_strip((struct text){s.p + n, s.len - n}, STRIP_LEFT);
        n_max -= n_max > 0 ? 1 : 0;
    }
    return 0;
}

static int split_at(struct run *r, struct text s, struct text sep, int64_t n_max, struct list *l)
{
    const char *at;

    while (n_max != 0 && s.len >= sep.len && (at = memmem(s.p, s.len, sep.p, sep.len)) != NULL) {
        size_t n = (size_t)(at - s.p);

        if (methods_push_text(r, l, s.p, n) != 0)
            return -1;
        s = (struct text){at + sep.len, s.len - n - sep.len};
        n_max -= n_max > 0 ? 1 : 0;
    }
    return methods_push_text(r, l, s.p, s.len);
}

/* What find_last may take: every place is compared. Lengths are far below 2^32. */
static size_t last_cost(struct text s, struct text what)
{
    return s.len / 4 + s.len / 32 * (what.len / 32);
}

/* The last place of `what` in s, which may not reach beyond `end`. */
static bool find_last(struct text s, struct text what, size_t end, size_t *at)
{
    if (end < what.len)
        return false;
    for (size_t i = end - what.len + 1; i-- > 0;) {
        if (what.len == 0 || memcmp(s.p + i, what.p, what.len) == 0) {
            *at = i;
            return true;
        }
    }
    return false;
}

static int split_from_end(struct run *r, struct text s, struct text sep, int64_t n_max,
                          struct list *l)
{
    size_t end = s.len, at = 0;

    while (n_max != 0 && find_last(s, sep, end, &at)) {
        if (methods_push_text(r, l, s.p + at + sep.len, end - at - sep.len) != 0)
            return -1;
        end = at;
        n_max -= n_max > 0 ? 1 : 0;
    }
    if (methods_push_text(r, l, s.p, end) != 0)
        return -1;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value v = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return 0;
}

static int method_split(struct run *r, struct text s, const struct args *a, bool from_end,
                        struct value *out)
{
    bool plain = !a->given[0] || a->v[0].type == V_NONE;
    int64_t n_max = -1;
    struct text sep = TEXT("");
    struct list *l;
    int rc;

    if (a->given[1] && a->v[1].type != V_INT)
        return run_wrong_type(r, &a->v[1], "a number of splits");
    n_max = a->given[1] ? a->v[1].u.i : -1;
    if ((!plain && need_text(r, &a->v[0], &sep) != 0) || run_charge_bytes(r, s.len * 4) != 0 ||
        (from_end && run_charge(r, last_cost(s, sep)) != 0) || run_list(r, &l, 0) != 0)
        return -1;
    if (!plain && sep.len == 0)
        return run_fail(r, "an empty separator");
    if (plain && from_end && n_max >= 0)
        return run_fail(r, "'rsplit' at white space, up to a number, is not supported");
    if (plain)
        rc = split_space(r, s, n_max, l);
    else
        rc = from_end ? split_from_end(r, s, sep, n_max, l) : split_at(r, s, sep, n_max, l);
    *out = value_list(V_LIST, l);
    return rc;
}

static int method_lines(struct run *r, struct text s, struct value *out)
{
    struct text line;
    struct list *l;

    if (run_charge_bytes(r, s.len * 4) != 0 || run_list(r, &l, 0) != 0)
        return -1;
    while (text_line(&s, &line) || line.len > 0) {
        if (methods_push_text(r, l, line.p, line.len) != 0)
            return -1;
    }
    *out = value_list(V_LIST, l);
    return 0;
}

static int method_find(struct run *r, struct text s, const struct value *v, bool last,
                       struct value *out)
{
    struct text what = TEXT("");
    const char *p;
    size_t at = 0;
    bool found;

    if (need_text(r, v, &what) != 0 || run_charge_bytes(r, s.len) != 0 ||
        (last && run_charge(r, last_cost(s, what)) != 0))
        return -1;
    if (last) {
        found = find_last(s, what, s.len, &at);
    } else {
        p = what.len == 0 ? s.p : s.len >= what.len ? memmem(s.p, s.len, what.p, what.len) : NULL;
        found = what.len == 0 || p != NULL;
        at = found && what.len > 0 ? (size_t)(p - s.p) : 0;
    }
    *out = value_int(found ? (int64_t)text_chars((struct text){s.p, at}) : -1);
    return 0;
}

static int method_count(struct run *r, struct text s, const struct value *v, struct value *out)
{
    struct text what = TEXT("");
    const char *at;
    int64_t n = 0;

    if (need_text(r, v, &what) != 0 || run_charge_bytes(r, s.len * 2) != 0)
        return -1;
    if (what.len == 0) {
        *out = value_int((int64_t)text_chars(s) + 1);
        return 0;
    }
    while (s.len >= what.len && (at = memmem(s.p, s.len, what.p, what.len)) != NULL) {
        n++;
        s.len -= (size_t)(at - s.p) + what.len;
        s.p = at + what.len;
    }
    *out = value_int(n);
    return 0;
}

static int method_remove(struct run *r, struct text s, const struct value *v, bool at_end,
                         struct value *out)
{
    struct text affix = TEXT("");

    if (need_text(r, v, &affix) != 0)
        return -1;
    if (has_affix(s, affix, at_end)) {
        s.p += at_end ? 0 : affix.len;
        s.len -= affix.len;
    }
    *out = value_text(s);
    return run_charge_bytes(r, affix.len);
}

static int method_join(struct run *r, const struct value *s, const struct value *v,
                       struct value *out)
{
    size_t mark = r->out->len;
    struct list *l;

    if (run_iterate(r, v, &l) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        struct value item = l->items[i];

        if (s->markup && run_escape(r, &l->items[i], &item) != 0)
            return -1;
        if (item.type != V_STRING)
            return run_wrong_type(r, &item, "a string");
        if ((i > 0 && run_write(r, s->u.s) != 0) || run_write(r, item.u.s) != 0)
            return -1;
    }
    return run_taken(r, mark, out);
}

static int method_isdigit(struct run *r, struct text s, struct value *out)
{
    bool is = s.len > 0;

    for (size_t i = 0; i < s.len; i++) {
        if ((s.p[i] & 0x80) != 0)
            return run_fail(r, "'isdigit' of characters outside ASCII is not supported");
        is = is && s.p[i] >= '0' && s.p[i] <= '9';
    }
    *out = value_bool(is);
    return run_charge_bytes(r, s.len);
}

static int method_replace(struct run *r, const struct value *s, const struct args *a,
                          struct value *out)
{
    struct text old = TEXT(""), new_text = TEXT("");
    struct value to = a->v[1];

    if (s->markup && run_escape(r, &a->v[1], &to) != 0)
        return -1;
    if (need_text(r, &a->v[0], &old) != 0 || need_text(r, &to, &new_text) != 0)
        return -1;
    if (a->given[2] && a->v[2].type != V_INT)
        return run_wrong_type(r, &a->v[2], "a number of replacements");
    return run_replace(r, s->u.s, old, new_text, a->given[2] ? a->v[2].u.i : -1, out);
}

static int strip_method(struct run *r, unsigned id, struct text s, const struct args *a,
                        struct value *out)
{
    int sides = id == METHOD_LSTRIP ? STRIP_LEFT : id == METHOD_RSTRIP ? STRIP_RIGHT : STRIP_BOTH;
    struct text left;

    if (run_strip(r, s, a->given[0] ? &a->v[0] : NULL, sides, &left) != 0)
        return -1;
    *out = value_text(left);
    return 0;
}

static int string_method(struct run *r, unsigned id, const struct value *v, const struct args *a,
                         struct value *out)
{
    struct text s = v->u.s;

    switch (id) {
    case METHOD_CAPITALIZE:
        return run_case(r, s, CASE_CAPITALIZE, out);
    case METHOD_LOWER:
        return run_case(r, s, CASE_LOWER, out);
    case METHOD_TITLE:
        return run_case(r, s, CASE_TITLE, out);
    case METHOD_UPPER:
        return run_case(r, s, CASE_UPPER, out);
    case METHOD_COUNT:
        return method_count(r, s, &a->v[0], out);
    case METHOD_ENDSWITH:
    case METHOD_STARTSWITH:
        return method_affix(r, s, &a->v[0], id == METHOD_ENDSWITH, out);
    case METHOD_FIND:
    case METHOD_RFIND:
        return method_find(r, s, &a->v[0], id == METHOD_RFIND, out);
    case METHOD_ISDIGIT:
        return method_isdigit(r, s, out);
    case METHOD_JOIN:
        return method_join(r, v, &a->v[0], out);
    case METHOD_REMOVEPREFIX:
    case METHOD_REMOVESUFFIX:
        return method_remove(r, s, &a->v[0], id == METHOD_REMOVESUFFIX, out);
    case METHOD_REPLACE:
        return method_replace(r, v, a, out);
    case METHOD_SPLIT:
    case METHOD_RSPLIT:
        return method_split(r, s, a, id == METHOD_RSPLIT, out);
    case METHOD_SPLITLINES:
        return method_lines(r, s, out);
    default:
        return strip_method(r, id, s, a, out);
    }
}

/* What methods of Markup give is Markup. */
static int markup_method(struct run *r, unsigned id, const struct value *v, const struct args *a,
                         struct value *out)
{
    if (string_method(r, id, v, a, out) != 0)
        return -1;
    out->markup = out->type == V_STRING;
    for (size_t i = 0; out->type == V_LIST && i < out->u.list->n; i++)
        out->u.list->items[i].markup = true;
    return 0;
}

int run_pairs(struct run *r, const struct dict *d, enum value_type type, struct value *out)
{
    struct list *l, *pair;

    if (run_list(r, &l, d->n) != 0)
        return -1;
    for (size_t i = 0; i < d->n; i++) {
        struct value v;

        if (run_list(r, &pair, 2) != 0 || run_push(r, pair, &d->entries[i].key) != 0 ||
            run_push(r, pair, &d->entries[i].value) != 0)
            return -1;
        v = value_list(V_TUPLE, pair);
        if (run_push(r, l, &v) != 0)
            return -1;
    }
    *out = value_list(type, l);
    return 0;
}

static int dict_method(struct run *r, unsigned id, const struct dict *d, const struct args *a,
                       struct value *out)
{
    struct value *found = NULL;
    struct list *l;

    if (id == METHOD_ITEMS)
        return run_pairs(r, d, V_VIEW, out);
    if (id == METHOD_GET) {
        if (run_find(r, d, &a->v[0], &found) != 0)
            return -1;
        *out = found != NULL ? *found : a->given[1] ? a->v[1] : VALUE_NONE;
        return 0;
    }
    if (run_list(r, &l, d->n) != 0)
        return -1;
    for (size_t i = 0; i < d->n; i++) {
        const struct dict_entry *m = &d->entries[i];

        if (run_push(r, l, id == METHOD_KEYS ? &m->key : &m->value) != 0)
            return -1;
    }
    *out = value_list(V_VIEW, l);
    return 0;
}

static int list_count(struct run *r, const struct list *l, const struct value *v, struct value *out)
{
    int64_t n = 0;

    for (size_t i = 0; i < l->n; i++) {
        bool same = false;

        if (run_equal(r, &l->items[i], v, &same) != 0)
            return -1;
        n += same ? 1 : 0;
    }
    *out = value_int(n);
    return 0;
}

static int loop_cycle(const struct loop *l, const struct args *a, struct value *out)
{
    size_t n = 0;

    while (n < CALLEE_SLOTS_MAX && a->given[n])
        n++;
    *out = a->v[l->i % n]; /* the parser has seen to it that there is one */
    return 0;
}

int run_method(struct run *r, unsigned id, const struct value *v, const struct args *a,
               struct value *out)
{
    bool of_dict = id == METHOD_GET || id == METHOD_ITEMS || id == METHOD_KEYS ||
                   id == METHOD_VALUES;

    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    if (v->type == V_STRING && !of_dict && id != METHOD_CYCLE)
        return v->markup ? markup_method(r, id, v, a, out) : string_method(r, id, v, a, out);
    if (v->type == V_DICT && of_dict)
        return dict_method(r, id, v->u.dict, a, out);
    if (v->type == V_LOOP && id == METHOD_CYCLE)
        return loop_cycle(v->u.loop, a, out);
    if ((v->type == V_LIST || v->type == V_TUPLE) && id == METHOD_COUNT)
        return list_count(r, v->u.list, &a->v[0], out);
    return run_fail(r, "a value of type '%s' does not have this method", value_type_name(v->type));
}
