/* Equality, order, membership. */
#include "text/jinja/run.h"

#include <string.h>

static int equal(struct run *r, const struct value *a, const struct value *b, unsigned depth,
                 bool *out);

static int equal_lists(struct run *r, const struct list *a, const struct list *b, unsigned depth,
                       bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        if (equal(r, &a->items[i], &b->items[i], depth + 1, out) != 0)
            return -1;
    }
    return 0;
}

static int equal_dicts(struct run *r, const struct dict *a, const struct dict *b, unsigned depth,
                       bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        struct value *other = NULL;

        if (run_find(r, b, &a->entries[i].key, &other) != 0)
            return -1;
        *out = other != NULL;
        if (*out && equal(r, &a->entries[i].value, other, depth + 1, out) != 0)
            return -1;
    }
    return 0;
}

static bool equal_numbers(const struct value *a, const struct value *b)
{
    double x, y;

    if (a->type != V_FLOAT && b->type != V_FLOAT)
        return value_as_int(a) == value_as_int(b);
    x = value_as_float(a);
    y = value_as_float(b);
    return x >= y && x <= y;
}

/* Objects that are only equal to themselves. */
static int equal_objects(const struct value *a, const struct value *b)
{
    switch (a->type) {
    case V_UNDEFINED:
    case V_NONE:
        return true;
    case V_NAMESPACE:
        return a->u.dict == b->u.dict;
    case V_LOOP:
        return a->u.loop == b->u.loop;
    case V_MACRO:
        return a->u.macro == b->u.macro;
    case V_FUNCTION:
        return a->u.function == b->u.function;
    case V_ITER:
        return a->u.list == b->u.list;
    default:
        return -1;
    }
}

static int equal(struct run *r, const struct value *a, const struct value *b, unsigned depth,
                 bool *out)
{
    int same;

    if (depth > RUN_VALUE_DEPTH_MAX)
        return run_fail(r, "values nest deeper than %d", RUN_VALUE_DEPTH_MAX);
    if (run_charge(r, 1) != 0)
        return -1;
    if (value_is_number(a) && value_is_number(b)) {
        *out = equal_numbers(a, b);
        return 0;
    }
    *out = false;
    if (a->type != b->type)
        return 0;
    if (a->type == V_STRING) {
        *out = text_eq(a->u.s, b->u.s);
        return a->u.s.len == b->u.s.len ? run_charge_bytes(r, a->u.s.len) : 0;
    }
    if (a->type == V_LIST || a->type == V_TUPLE || a->type == V_RANGE)
        return equal_lists(r, a->u.list, b->u.list, depth, out);
    if (a->type == V_DICT)
        return equal_dicts(r, a->u.dict, b->u.dict, depth, out);
    same = equal_objects(a, b);
    if (same < 0)
        return run_fail(r, "comparing values of type '%s' is not supported",
                        value_type_name(a->type));
    *out = same != 0;
    return 0;
}

int run_equal(struct run *r, const struct value *a, const struct value *b, bool *out)
{
    return equal(r, a, b, 0, out);
}

static int less(struct run *r, const struct value *a, const struct value *b, unsigned depth,
                bool *out)
{
    if (depth > RUN_VALUE_DEPTH_MAX)
        return run_fail(r, "values nest deeper than %d", RUN_VALUE_DEPTH_MAX);
    if (value_is_number(a) && value_is_number(b)) {
        *out = a->type != V_FLOAT && b->type != V_FLOAT ? value_as_int(a) < value_as_int(b)
                                                        : value_as_float(a) < value_as_float(b);
        return run_charge(r, 1);
    }
    if (a->type == V_STRING && b->type == V_STRING) {
        *out = text_cmp(a->u.s, b->u.s) < 0;
        return run_charge_bytes(r, a->u.s.len < b->u.s.len ? a->u.s.len : b->u.s.len);
    }
    if ((a->type == V_LIST || a->type == V_TUPLE) && a->type == b->type) {
        const struct list *x = a->u.list, *y = b->u.list;

        for (size_t i = 0; i < x->n && i < y->n; i++) {
            bool same = false;

            if (equal(r, &x->items[i], &y->items[i], depth + 1, &same) != 0)
                return -1;
            if (!same)
                return less(r, &x->items[i], &y->items[i], depth + 1, out);
        }
        *out = x->n < y->n;
        return 0;
    }
    if (a->type == V_UNDEFINED || b->type == V_UNDEFINED)
        return run_undefined(r, a->type == V_UNDEFINED ? a : b);
    return run_fail(r, "values of types '%s' and '%s' have no order", value_type_name(a->type),
                    value_type_name(b->type));
}

int run_less(struct run *r, const struct value *a, const struct value *b, bool *out)
{
    return less(r, a, b, 0, out);
}

int run_find(struct run *r, const struct dict *d, const struct value *key, struct value **out)
{
    *out = NULL;
    if (key->type == V_LIST || key->type == V_DICT || key->type == V_NAMESPACE)
        return run_wrong_type(r, key, "a key of a dict");
    if (run_charge(r, d->n / 8 + 1) != 0)
        return -1;
    for (size_t i = 0; i < d->n; i++) {
        const struct value *k = &d->entries[i].key;
        bool same;

        if (k->type == V_STRING && key->type == V_STRING && k->u.s.len != key->u.s.len)
            same = false;
        else if (run_equal(r, k, key, &same) != 0)
            return -1;
        if (same) {
            *out = &d->entries[i].value;
            return 0;
        }
    }
    return 0;
}

int run_contains(struct run *r, const struct value *in, const struct value *v, bool *out)
{
    struct value *found = NULL;
    struct list *l;

    *out = false;
    if (in->type == V_STRING) {
        if (v->type != V_STRING)
            return run_wrong_type(r, v, "a string to look for in a string");
        *out = v->u.s.len == 0 ||
               (in->u.s.len >= v->u.s.len && memmem(in->u.s.p, in->u.s.len, v->u.s.p, v->u.s.len));
        return run_charge_bytes(r, in->u.s.len);
    }
    if (in->type == V_DICT) {
        if (run_find(r, in->u.dict, v, &found) != 0)
            return -1;
        *out = found != NULL;
        return 0;
    }
    if (run_iterate(r, in, &l) != 0)
        return -1;
    for (size_t i = 0; i < l->n && !*out; i++) {
        if (run_equal(r, &l->items[i], v, out) != 0)
            return -1;
    }
    return 0;
}

/* Merges the sorted halves [0, mid) and [mid, n) into `to`. */
struct run_pair {
    struct value *items, *keys;
};

static int merge(struct run *r, struct run_pair from, struct run_pair to, size_t mid, size_t n,
                 bool reverse)
{
    size_t i = 0, j = mid;

    for (size_t k = 0; k < n; k++) {
        bool second = i == mid;

        if (i < mid && j < n &&
            (reverse ? run_less(r, &from.keys[i], &from.keys[j], &second)
                     : run_less(r, &from.keys[j], &from.keys[i], &second)) != 0)
            return -1;
        to.items[k] = from.items[second ? j : i];
        to.keys[k] = from.keys[second ? j : i];
        *(second ? &j : &i) += 1;
    }
    return 0;
}

int run_sort(struct run *r, struct value *items, struct value *keys, size_t n, bool reverse)
{
    struct run_pair from = {items, keys}, to = {arena_array(&r->arena, n, sizeof *items),
                                                arena_array(&r->arena, n, sizeof *keys)};

    if (to.items == NULL || to.keys == NULL)
        return run_no_memory(r);
    for (size_t width = 1; width < n; width *= 2) {
        struct run_pair swap = from;

        for (size_t at = 0; at < n; at += 2 * width) {
            size_t len = n - at < 2 * width ? n - at : 2 * width;

            if (merge(r, (struct run_pair){from.items + at, from.keys + at},
                      (struct run_pair){to.items + at, to.keys + at}, width < len ? width : len,
                      len, reverse) != 0)
                return -1;
        }
        from = to;
        to = swap;
    }
    if (from.items != items)
        memcpy(items, from.items, n * sizeof *items);
    return 0;
}
