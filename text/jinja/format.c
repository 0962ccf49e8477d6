/* Text with places for values: '%' of a string, the filter format, and the method format. What
 * Python has beside %s, %d, {}, {0}, {name} and {:d} is refused when it is reached. */
#include "text/jinja/run.h"

#include <string.h>

/* The values of one format; what Markup takes in is escaped. */
struct format {
    struct text rest; /* of the format */
    bool markup;
    const struct value *plain; /* [n_plain] */
    size_t n_plain, next;
    const struct dict *named; /* or NULL */
};

static int format_refuse(struct run *r, struct text place)
{
    return run_fail(r, "place '%.*s' in a format is not supported",
                    (int)(place.len < 40 ? place.len : 40), place.p);
}

/* `how` is 's', or 'd' for an integer. */
static int format_put_value(struct run *r, const struct format *f, const struct value *v, char how)
{
    struct value made = *v;

    if (how == 'd') {
        if (v->type != V_INT && v->type != V_BOOL)
            return run_wrong_type(r, v, "an integer of a format");
        made = value_int(value_as_int(v));
    }
    if (f->markup && run_escape(r, v, &made) != 0)
        return -1;
    return run_print(r, &made);
}

static int format_find_named(struct run *r, const struct format *f, struct text name,
                             const struct value **out)
{
    struct value key = value_text(name), *found = NULL;

    if (f->named != NULL && run_find(r, f->named, &key, &found) != 0)
        return -1;
    *out = found;
    return found != NULL ? 0
                         : run_fail(r, "a format has no value '%.*s'",
                                    (int)(name.len < 64 ? name.len : 64), name.p);
}

static int next_plain(struct run *r, struct format *f, const struct value **out)
{
    if (f->next >= f->n_plain)
        return run_fail(r, "a format has places for more than %zu values", f->n_plain);
    *out = &f->plain[f->next++];
    return 0;
}

/* Writes what stands before the next of `marks` and takes it off; *at is the mark, or '\0'. */
static int next_place(struct run *r, struct format *f, const char *marks, char *at)
{
    size_t n = 0;

    while (n < f->rest.len && (f->rest.p[n] == '\0' || strchr(marks, f->rest.p[n]) == NULL))
        n++;
    *at = n < f->rest.len ? f->rest.p[n] : '\0';
    if (run_write(r, (struct text){f->rest.p, n}) != 0)
        return -1;
    f->rest = (struct text){f->rest.p + n, f->rest.len - n};
    return 0;
}

/* %s, %d, %i, %(name)s, %%, at the '%'. */
static int percent_place(struct run *r, struct format *f)
{
    struct text s = {f->rest.p + 1, f->rest.len - 1}, name = TEXT("");
    const char *close = s.len > 0 && *s.p == '(' ? memchr(s.p, ')', s.len) : NULL;
    const struct value *v = NULL;

    if (close != NULL) {
        name = (struct text){s.p + 1, (size_t)(close - s.p) - 1};
        s = (struct text){close + 1, s.len - (size_t)(close + 1 - s.p)};
    }
    if (s.len == 0 || *s.p == '\0' || strchr("sdi%", *s.p) == NULL || (*s.p == '%' && close))
        return format_refuse(r, (struct text){f->rest.p, f->rest.len < 8 ? f->rest.len : 8});
    f->rest = (struct text){s.p + 1, s.len - 1};
    if (*s.p == '%')
        return run_write(r, TEXT("%"));
    if ((close != NULL ? format_find_named(r, f, name, &v) : next_plain(r, f, &v)) != 0)
        return -1;
    return format_put_value(r, f, v, *s.p == 's' ? 's' : 'd');
}

int run_percent(struct run *r, const struct value *format, const struct value *right,
                struct value *out)
{
    bool tuple = right->type == V_TUPLE, dict = right->type == V_DICT;
    bool may_be_left = dict || right->type == V_LIST || right->type == V_RANGE ||
                       right->type == V_UNDEFINED; /* Python takes each for a mapping */
    struct format f = {.rest = format->u.s,
                       .markup = format->markup,
                       .plain = tuple ? right->u.list->items : right,
                       .n_plain = tuple ? right->u.list->n : 1,
                       .named = dict ? right->u.dict : NULL};
    size_t mark = r->out->len;
    char at;

    for (;;) {
        if (next_place(r, &f, "%", &at) != 0)
            return -1;
        if (at == '\0')
            break;
        if (percent_place(r, &f) != 0)
            return -1;
    }
    if (f.next < f.n_plain && !may_be_left)
        return run_fail(r, "a format has places for %zu of %zu values", f.next, f.n_plain);
    if (run_taken(r, mark, out) != 0)
        return -1;
    out->markup = f.markup;
    return 0;
}

/* {}, {0}, {name}, each with :d or :s or nothing; what is between the braces. */
static int brace_place(struct run *r, struct format *f, struct text place, bool *numbered)
{
    const char *colon = place.len > 0 ? memchr(place.p, ':', place.len) : NULL;
    struct text name = {place.p, colon != NULL ? (size_t)(colon - place.p) : place.len};
    struct text how = {colon != NULL ? colon + 1 : "",
                       colon != NULL ? place.len - name.len - 1 : 0};
    const struct value *v = NULL;
    size_t i = 0, n_digits = 0;
    bool counted = name.len == 0;

    for (; n_digits < name.len && n_digits < 6; n_digits++) {
        if (name.p[n_digits] < '0' || name.p[n_digits] > '9')
            break;
        i = i * 10 + (size_t)(name.p[n_digits] - '0');
    }
    if ((how.len > 0 && !text_eq(how, TEXT("d"))) || (n_digits > 0 && n_digits < name.len) ||
        (counted && *numbered) || (n_digits > 0 && f->next > 0 && !*numbered))
        return format_refuse(r, place);
    for (size_t k = 0; k < name.len; k++) {
        if (name.p[k] == '\0' || strchr(".[!{", name.p[k]) != NULL)
            return format_refuse(r, place);
    }
    if (n_digits > 0) {
        *numbered = true;
        f->next = i;
    }
    if ((counted || n_digits > 0 ? next_plain(r, f, &v) : format_find_named(r, f, name, &v)) != 0)
        return -1;
    return format_put_value(r, f, v, how.len > 0 ? 'd' : 's');
}

/* At a brace. */
static int next_brace(struct run *r, struct format *f, bool *numbered)
{
    char brace = *f->rest.p;
    const char *close;
    struct text place;

    if (f->rest.len >= 2 && f->rest.p[1] == brace) {
        f->rest = (struct text){f->rest.p + 2, f->rest.len - 2};
        return run_write(r, brace == '{' ? TEXT("{") : TEXT("}"));
    }
    close = brace == '{' ? memchr(f->rest.p, '}', f->rest.len) : NULL;
    if (close == NULL)
        return run_fail(r, "a single '%c' in a format", brace);
    place = (struct text){f->rest.p + 1, (size_t)(close - f->rest.p) - 1};
    f->rest = (struct text){close + 1, f->rest.len - place.len - 2};
    return brace_place(r, f, place, numbered);
}

/* The named arguments of a call, as a dict. */
static int named_args(struct run *r, const struct node *n, const struct value *v, struct dict **out)
{
    if (run_dict(r, out, n->n_keys) != 0)
        return -1;
    for (uint32_t i = 0; i < n->n_keys; i++) {
        struct value key = value_text(n->keys[i]);

        if (run_put(r, *out, &key, &v[i]) != 0)
            return -1;
    }
    return 0;
}

int run_format(struct run *r, const struct node *n, const struct value *format, struct value *out)
{
    struct format f = {.rest = format->u.s, .markup = format->markup};
    struct dict *named;
    uint32_t n_plain;
    struct value *v;
    bool numbered = false;
    size_t mark;
    char at;

    if (run_args(r, n, &v, &n_plain) != 0 || named_args(r, n, v + n_plain, &named) != 0)
        return -1;
    f.plain = v;
    f.n_plain = n_plain;
    f.named = named;
    mark = r->out->len;
    for (;;) {
        if (next_place(r, &f, "{}", &at) != 0)
            return -1;
        if (at == '\0')
            break;
        if (next_brace(r, &f, &numbered) != 0)
            return -1;
    }
    if (run_taken(r, mark, out) != 0)
        return -1;
    out->markup = f.markup;
    return 0;
}

int run_format_filter(struct run *r, const struct node *n, const struct value *format,
                      struct value *out)
{
    struct value right = {.type = V_DICT}, text, *v;
    uint32_t n_plain;
    struct list *l;

    if (run_str(r, format, &text) != 0 || run_args(r, n, &v, &n_plain) != 0)
        return -1;
    if (n_plain > 0 && n->n_keys > 0)
        return run_fail(r, "filter 'format' takes either named arguments or others");
    if (n->n_keys > 0) {
        if (named_args(r, n, v, &right.u.dict) != 0)
            return -1;
    } else {
        if (run_list(r, &l, 0) != 0)
            return -1;
        *l = (struct list){.items = v, .n = n_plain, .cap = n_plain};
        right = value_list(V_TUPLE, l);
    }
    return run_percent(r, &text, &right, out);
}
