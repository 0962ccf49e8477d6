/* Bounds, failures, and how values come to be. */
#include "text/jinja/run.h"

#include "base/json_parse.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHARGE_BYTES = 32 }; /* looked at for one unit of work */

int run_fail(struct run *r, const char *fmt, ...)
{
    char msg[ERR_MSG_MAX - 48];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    (void)utf8_clean(msg);
    return err_set(r->e, ERR_BAD_REQUEST, "/messages", "chat template, line %u: %s", r->line, msg);
}

int run_no_memory(struct run *r)
{
    if (r->arena.full)
        return run_fail(r, "the values take more than %d bytes", JINJA_RENDER_NBYTES_MAX);
    return err_set(r->e, ERR_NO_MEMORY, "", "no memory to render a chat template");
}

int run_undefined(struct run *r, const struct value *v)
{
    int len = v->u.s.len < 200 ? (int)v->u.s.len : 200;

    if (v->of == V_NONE)
        return run_fail(r, "'%.*s' is undefined", len, v->u.s.p);
    return run_fail(r, "'%s object' has no element '%.*s'", value_type_name(v->of), len, v->u.s.p);
}

int run_wrong_type(struct run *r, const struct value *v, const char *wanted)
{
    if (v->type == V_UNDEFINED)
        return run_undefined(r, v);
    return run_fail(r, "a value of type '%s' where %s belongs", value_type_name(v->type), wanted);
}

int run_charge(struct run *r, size_t n)
{
    if (n > JINJA_STEPS_MAX || r->n_steps > JINJA_STEPS_MAX - n)
        return run_fail(r, "more than %d steps", JINJA_STEPS_MAX);
    r->n_steps += n;
    return 0;
}

int run_charge_bytes(struct run *r, size_t n)
{
    return run_charge(r, n / CHARGE_BYTES + 1);
}

int run_bytes(struct run *r, char **out, size_t n)
{
    *out = arena_bytes(&r->arena, n);
    return *out != NULL ? 0 : run_no_memory(r);
}

int run_concat(struct run *r, struct text a, struct text b, struct value *out)
{
    char *p;

    if (b.len == 0 || a.len == 0) {
        *out = value_text(b.len == 0 ? a : b);
        return 0;
    }
    if (arena_extend(&r->arena, a.p, a.len, b.len)) { /* so that growing a text is no square */
        memcpy((char *)(uintptr_t)a.p + a.len, b.p, b.len);
        *out = value_text((struct text){a.p, a.len + b.len});
        return run_charge_bytes(r, b.len);
    }
    if (run_charge_bytes(r, a.len + b.len) != 0 || run_bytes(r, &p, a.len + b.len) != 0)
        return -1;
    memcpy(p, a.p, a.len);
    memcpy(p + a.len, b.p, b.len);
    *out = value_text((struct text){p, a.len + b.len});
    return 0;
}

int run_list(struct run *r, struct list **out, size_t cap)
{
    struct list *l;

    if (run_charge(r, cap / 8 + 1) != 0)
        return -1;
    l = arena_alloc(&r->arena, sizeof *l);
    if (l == NULL)
        return run_no_memory(r);
    if (cap > 0 && (l->items = arena_array(&r->arena, cap, sizeof *l->items)) == NULL)
        return run_no_memory(r);
    l->cap = cap;
    *out = l;
    return 0;
}

int run_push(struct run *r, struct list *l, const struct value *v)
{
    if (run_charge(r, 1) != 0)
        return -1;
    if (l->n == l->cap) {
        size_t cap = l->cap < 4 ? 4 : l->cap * 2;
        struct value *items = arena_array(&r->arena, cap, sizeof *items);

        if (items == NULL)
            return run_no_memory(r);
        if (l->n > 0)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = *v;
    return 0;
}

int run_dict(struct run *r, struct dict **out, size_t cap)
{
    struct dict *d;

    if (run_charge(r, cap / 8 + 1) != 0)
        return -1;
    d = arena_alloc(&r->arena, sizeof *d);
    if (d == NULL)
        return run_no_memory(r);
    if (cap > 0 && (d->entries = arena_array(&r->arena, cap, sizeof *d->entries)) == NULL)
        return run_no_memory(r);
    d->cap = cap;
    *out = d;
    return 0;
}

static int dict_add(struct run *r, struct dict *d, const struct value *key, const struct value *v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap < 4 ? 4 : d->cap * 2;
        struct dict_entry *entries = arena_array(&r->arena, cap, sizeof *entries);

        if (entries == NULL)
            return run_no_memory(r);
        if (d->n > 0)
            memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->cap = cap;
    }
    d->entries[d->n++] = (struct dict_entry){*key, *v};
    return 0;
}

int run_put(struct run *r, struct dict *d, const struct value *key, const struct value *v)
{
    struct value *old = NULL;

    if (run_find(r, d, key, &old) != 0)
        return -1;
    if (old != NULL) {
        *old = *v;
        return 0;
    }
    return dict_add(r, d, key, v);
}

static int json_value(struct run *r, const json_t *j, unsigned depth, struct value *out);

static int json_list(struct run *r, const json_t *j, unsigned depth, struct value *out)
{
    size_t n = json_array_size(j);
    struct list *l;
    struct value v;

    if (run_list(r, &l, n) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (json_value(r, json_array_get(j, i), depth + 1, &v) != 0 || run_push(r, l, &v) != 0)
            return -1;
    }
    *out = value_list(V_LIST, l);
    return 0;
}

static int json_dict(struct run *r, const json_t *j, unsigned depth, struct value *out)
{
    const char *name;
    struct dict *d;
    json_t *member;

    if (run_dict(r, &d, json_object_size(j)) != 0)
        return -1;
    json_object_foreach(json_mutable(j), name, member)
    {
        struct value key = value_text((struct text){name, strlen(name)}), v;

        if (json_value(r, member, depth + 1, &v) != 0 || run_charge(r, 1) != 0 ||
            dict_add(r, d, &key, &v) != 0) /* names in an object differ */
            return -1;
    }
    *out = (struct value){.type = V_DICT, .u.dict = d};
    return 0;
}

static int json_value(struct run *r, const json_t *j, unsigned depth, struct value *out)
{
    if (depth > RUN_VALUE_DEPTH_MAX)
        return run_fail(r, "values nest deeper than %d", RUN_VALUE_DEPTH_MAX);
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return json_dict(r, j, depth, out);
    case JSON_ARRAY:
        return json_list(r, j, depth, out);
    case JSON_STRING:
        *out = value_text((struct text){json_string_value(j), json_string_length(j)});
        return 0;
    case JSON_INTEGER:
        *out = value_int(json_integer_value(j));
        return 0;
    case JSON_REAL:
        *out = value_float(json_real_value(j));
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(j));
        return 0;
    default:
        *out = VALUE_NONE;
        return 0;
    }
}

int run_json(struct run *r, const json_t *j, struct value *out)
{
    return json_value(r, j, 0, out);
}

int run_write(struct run *r, struct text s)
{
    if (r->out->len - r->out_from >
            JINJA_OUTPUT_NBYTES_MAX -
                (s.len < JINJA_OUTPUT_NBYTES_MAX ? s.len : JINJA_OUTPUT_NBYTES_MAX) ||
        s.len > JINJA_OUTPUT_NBYTES_MAX)
        return run_fail(r, "the text passes %d bytes", JINJA_OUTPUT_NBYTES_MAX);
    if (run_charge_bytes(r, s.len) != 0)
        return -1;
    buf_append(r->out, s.p, s.len);
    return r->out->failed ? run_no_memory(r) : 0;
}

int run_taken(struct run *r, size_t mark, struct value *out)
{
    size_t n = r->out->len - mark;
    char *p;

    if (run_charge_bytes(r, n) != 0 || run_bytes(r, &p, n) != 0)
        return -1;
    if (n > 0)
        memcpy(p, r->out->data + mark, n);
    r->out->len = mark;
    *out = value_text((struct text){p, n});
    return 0;
}

const char *value_type_name(enum value_type type)
{
    static const char *const names[V_TYPE_COUNT] = {
        [V_UNDEFINED] = "undefined", [V_NONE] = "none",
        [V_BOOL] = "bool",           [V_INT] = "int",
        [V_FLOAT] = "float",         [V_STRING] = "str",
        [V_LIST] = "list",           [V_TUPLE] = "tuple",
        [V_DICT] = "dict",           [V_RANGE] = "range",
        [V_VIEW] = "dict view",      [V_ITER] = "generator",
        [V_NAMESPACE] = "namespace", [V_LOOP] = "loop",
        [V_MACRO] = "macro",         [V_FUNCTION] = "function",
        [V_METHOD] = "method"};

    return names[type];
}

bool value_truth(const struct value *v)
{
    switch (v->type) {
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v->u.b;
    case V_INT:
        return v->u.i != 0;
    case V_FLOAT:
        return fpclassify(v->u.f) != FP_ZERO;
    case V_STRING:
        return v->u.s.len > 0;
    case V_DICT:
        return v->u.dict->n > 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
        return v->u.list->n > 0;
    default:
        return true;
    }
}

bool float_to_int(double f, int64_t *out)
{
    if (!(f >= -9223372036854775808.0 && f < 9223372036854775808.0))
        return false;
    *out = (int64_t)f;
    return true;
}
