/* Elements and attributes, slices, iteration. An attribute is looked for among what Python's type
 * has before the keys of a dict, an element the other way round: d.items is the method, whatever
 * keys d has. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <string.h>

static int loop_attr(struct run *r, const struct value *v, struct text name, struct value *out)
{
    const struct loop *l = v->u.loop;

    (void)r;
    *out = value_undefined(name, V_LOOP);
    if (text_eq(name, TEXT("index")))
        *out = value_int((int64_t)l->i + 1);
    else if (text_eq(name, TEXT("index0")))
        *out = value_int((int64_t)l->i);
    else if (text_eq(name, TEXT("revindex")))
        *out = value_int((int64_t)(l->n - l->i));
    else if (text_eq(name, TEXT("revindex0")))
        *out = value_int((int64_t)(l->n - l->i) - 1);
    else if (text_eq(name, TEXT("first")))
        *out = value_bool(l->i == 0);
    else if (text_eq(name, TEXT("last")))
        *out = value_bool(l->i + 1 == l->n);
    else if (text_eq(name, TEXT("length")))
        *out = value_int((int64_t)l->n);
    else if (text_eq(name, TEXT("depth")))
        *out = value_int(l->depth + 1);
    else if (text_eq(name, TEXT("depth0")))
        *out = value_int(l->depth);
    else if (text_eq(name, TEXT("previtem")) && l->i > 0)
        *out = l->items[l->i - 1];
    else if (text_eq(name, TEXT("nextitem")) && l->i + 1 < l->n)
        *out = l->items[l->i + 1];
    else if (text_eq(name, TEXT("cycle")) || text_eq(name, TEXT("changed")))
        *out = (struct value){.type = V_METHOD, .of = V_LOOP, .u.s = name};
    return 0;
}

static int access_find_key(struct run *r, const struct value *v, const struct value *key,
                           struct value *out, bool *found)
{
    struct value *at = NULL;

    if (run_find(r, v->u.dict, key, &at) != 0)
        return -1;
    *found = at != NULL;
    if (at != NULL)
        *out = *at;
    return 0;
}

/* A method of Python's type, not called; what changes its object is hidden as undefined. */
static bool find_method(const struct value *v, struct text name, struct value *out)
{
    bool changes = false;

    if (name.len >= 2 && memcmp(name.p, "__", 2) == 0) {
        *out = value_undefined(name, v->type);
        return true;
    }
    if (!method_of(v->type, name, &changes))
        return false;
    *out = changes ? value_undefined(name, v->type)
                   : (struct value){.type = V_METHOD, .of = v->type, .u.s = name};
    return true;
}

int run_attr(struct run *r, const struct value *v, struct text name, struct value *out)
{
    struct value key = value_text(name);
    bool found = false;

    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    if (v->type == V_LOOP)
        return loop_attr(r, v, name, out);
    if (find_method(v, name, out))
        return 0;
    if ((v->type == V_DICT || v->type == V_NAMESPACE) &&
        access_find_key(r, v, &key, out, &found) != 0)
        return -1;
    if (v->type > V_DICT && v->type != V_NAMESPACE)
        return run_fail(r, "attributes of a value of type '%s' are not supported",
                        value_type_name(v->type));
    if (!found)
        *out = value_undefined(name, v->type);
    return 0;
}

/* The element of a list, or a string's character; false when there is none. */
static bool element(const struct value *v, int64_t i, struct value *out)
{
    size_t n = v->type == V_STRING ? text_chars(v->u.s) : v->u.list->n, at;

    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return false;
    if (v->type != V_STRING) {
        *out = v->u.list->items[i];
        return true;
    }
    at = text_offset(v->u.s, (size_t)i);
    *out = value_text(
        (struct text){v->u.s.p + at, text_char_len(v->u.s.p + at, v->u.s.p + v->u.s.len)});
    out->markup = v->markup;
    return true;
}

static int undefined_key(struct run *r, const struct value *v, const struct value *key,
                         struct value *out)
{
    struct value name;

    if (key->type == V_STRING && find_method(v, key->u.s, out))
        return 0;
    if (key->type == V_STRING && v->type == V_LOOP)
        return loop_attr(r, v, key->u.s, out);
    if (key->type > V_STRING) {
        *out = value_undefined(TEXT("[...]"), v->type);
        return 0;
    }
    if (run_str(r, key, &name) != 0)
        return -1;
    *out = value_undefined(name.u.s, v->type);
    return 0;
}

int run_item(struct run *r, const struct value *v, const struct value *key, struct value *out)
{
    bool found = false;

    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    if (v->type == V_DICT || v->type == V_NAMESPACE) {
        bool hashable = key->type != V_LIST && key->type != V_DICT && key->type != V_NAMESPACE;
        bool named = v->type == V_DICT || key->type == V_STRING;

        if (hashable && named && access_find_key(r, v, key, out, &found) != 0)
            return -1;
    } else if ((v->type == V_STRING || v->type == V_LIST || v->type == V_TUPLE ||
                v->type == V_RANGE) &&
               (key->type == V_INT || key->type == V_BOOL)) {
        if (v->type == V_STRING && run_charge_bytes(r, v->u.s.len) != 0)
            return -1;
        found = element(v, value_as_int(key), out);
    } else if (v->type > V_DICT && v->type != V_RANGE && v->type != V_LOOP) {
        return run_fail(r, "elements of a value of type '%s' are not supported",
                        value_type_name(v->type));
    }
    return found ? 0 : undefined_key(r, v, key, out);
}

static int slice_bound(struct run *r, const struct value *v, int64_t absent, int64_t *out)
{
    *out = absent;
    if (v->type == V_NONE)
        return 0;
    if (v->type != V_INT && v->type != V_BOOL)
        return run_wrong_type(r, v, "an integer of a slice");
    *out = value_as_int(v);
    return 0;
}

/* Python's rules for one end, given the step's sign. */
static int64_t clamp(int64_t i, int64_t n, bool down)
{
    if (i < 0) {
        i = i < -n - 1 ? -n - 1 : i;
        i += n;
        return i < 0 ? (down ? -1 : 0) : i;
    }
    return i >= n ? (down ? n - 1 : n) : i;
}

static int slice_string(struct run *r, struct text s, int64_t start, int64_t stop, int64_t step,
                        struct value *out)
{
    size_t from, n = 0, chars = text_chars(s);
    const char **at;
    char *o;

    if (run_charge_bytes(r, s.len) != 0)
        return -1;
    if (step == 1) {
        from = text_offset(s, (size_t)start);
        n = stop > start
                ? text_offset((struct text){s.p + from, s.len - from}, (size_t)(stop - start))
                : 0;
        *out = value_text((struct text){s.p + from, n});
        return 0;
    }
    at = arena_array(&r->arena, chars + 1, sizeof *at);
    if (at == NULL)
        return run_no_memory(r);
    if (run_charge(r, chars) != 0 || run_bytes(r, &o, s.len) != 0)
        return -1;
    at[0] = s.p;
    for (size_t i = 0; i < chars; i++)
        at[i + 1] = at[i] + text_char_len(at[i], s.p + s.len);
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
        memcpy(o + n, at[i], (size_t)(at[i + 1] - at[i]));
        n += (size_t)(at[i + 1] - at[i]);
    }
    *out = value_text((struct text){o, n});
    return 0;
}

static int slice_list(struct run *r, const struct value *v, int64_t start, int64_t stop,
                      int64_t step, struct value *out)
{
    struct list *l;

    if (run_list(r, &l, 0) != 0)
        return -1;
    if (step == 1) { /* shares the items: nothing changes them */
        l->n = stop > start ? (size_t)(stop - start) : 0;
        l->cap = l->n;
        l->items = l->n > 0 ? v->u.list->items + start : NULL;
    } else {
        for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
            if (run_push(r, l, &v->u.list->items[i]) != 0)
                return -1;
        }
    }
    *out = value_list(v->type, l);
    return 0;
}

int run_slice(struct run *r, const struct value *v, const struct value part[3], struct value *out)
{
    int64_t n, start, stop, step;

    if (v->type != V_STRING && v->type != V_LIST && v->type != V_TUPLE)
        return run_wrong_type(r, v, "a list or string to slice");
    n = (int64_t)(v->type == V_STRING ? text_chars(v->u.s) : v->u.list->n);
    if (slice_bound(r, &part[2], 1, &step) != 0)
        return -1;
    if (step == 0)
        return run_fail(r, "a slice with step 0");
    /* Further steps than there are elements are as good as that many: no sum overflows. */
    step = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step;
    if (slice_bound(r, &part[0], step < 0 ? n - 1 : 0, &start) != 0 ||
        slice_bound(r, &part[1], step < 0 ? -n - 1 : n, &stop) != 0)
        return -1;
    start = clamp(start, n, step < 0);
    stop = clamp(stop, n, step < 0);
    if (v->type == V_STRING) {
        if (slice_string(r, v->u.s, start, stop, step, out) != 0)
            return -1;
        out->markup = v->markup;
        return 0;
    }
    return slice_list(r, v, start, stop, step, out);
}

int run_length(struct run *r, const struct value *v, size_t *out)
{
    switch (v->type) {
    case V_UNDEFINED:
        *out = 0;
        return 0;
    case V_STRING:
        *out = text_chars(v->u.s);
        return run_charge_bytes(r, v->u.s.len);
    case V_DICT:
        *out = v->u.dict->n;
        return 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
        *out = v->u.list->n;
        return 0;
    case V_LOOP:
        *out = v->u.loop->n;
        return 0;
    default:
        return run_wrong_type(r, v, "a value with a length");
    }
}

static int chars_of(struct run *r, struct text s, struct list *l)
{
    for (size_t i = 0, len; i < s.len; i += len) {
        struct value c;

        len = text_char_len(s.p + i, s.p + s.len);
        len = len > 0 ? len : 1;
        c = value_text((struct text){s.p + i, len});
        if (run_push(r, l, &c) != 0)
            return -1;
    }
    return 0;
}

int run_iterate(struct run *r, const struct value *v, struct list **out)
{
    struct list *l;

    if (value_is_list(v) && v->type != V_ITER) {
        *out = v->u.list;
        return 0;
    }
    if (v->type != V_ITER && v->type != V_DICT && v->type != V_STRING && v->type != V_UNDEFINED)
        return run_wrong_type(r, v, "something to walk over");
    if (run_list(r, &l, v->type == V_DICT ? v->u.dict->n : 0) != 0)
        return -1;
    if (v->type == V_STRING && chars_of(r, v->u.s, l) != 0)
        return -1;
    for (size_t i = 0; v->type == V_DICT && i < v->u.dict->n; i++) {
        if (run_push(r, l, &v->u.dict->entries[i].key) != 0)
            return -1;
    }
    if (v->type == V_ITER && v->u.list->next < v->u.list->n) {
        l->items = v->u.list->items + v->u.list->next;
        l->n = l->cap = v->u.list->n - v->u.list->next;
        v->u.list->next = v->u.list->n;
    }
    *out = l;
    return 0;
}

int run_path(struct run *r, const struct value *v, const struct value *path, struct value *out)
{
    struct text rest;
    struct value at = *v;

    if (path->type == V_INT)
        return run_item(r, v, path, out);
    if (path->type != V_STRING)
        return run_wrong_type(r, path, "the name of an attribute");
    for (rest = path->u.s;;) {
        const char *dot = rest.len > 0 ? memchr(rest.p, '.', rest.len) : NULL;
        size_t n = dot != NULL ? (size_t)(dot - rest.p) : rest.len;
        struct value key = value_text((struct text){rest.p, n}), next;
        int64_t i = 0;
        bool digits = n > 0 && n < 10;

        for (size_t k = 0; k < n && digits; k++) {
            digits = rest.p[k] >= '0' && rest.p[k] <= '9';
            i = i * 10 + (rest.p[k] - '0');
        }
        if (digits)
            key = value_int(i);
        if (run_item(r, &at, &key, &next) != 0)
            return -1;
        at = next;
        if (dot == NULL)
            break;
        rest = (struct text){dot + 1, rest.len - n - 1};
    }
    *out = at;
    return 0;
}
