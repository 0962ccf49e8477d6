/* Filters of sequences. Those that Jinja2 writes as generators give a V_ITER: true even when empty,
 * without a length, read once. */
#include "text/jinja/filters.h"
#include "text/jinja/names.h"

#include <string.h>

/* attribute= of a filter, or the item itself. */
static int filters_list_part_of(struct run *r, const struct value *item,
                                const struct value *attribute, struct value *out)
{
    if (attribute == NULL || attribute->type == V_NONE) {
        *out = *item;
        return 0;
    }
    return run_path(r, item, attribute, out);
}

static const struct value *given(const struct args *a, unsigned i)
{
    return a->given[i] ? &a->v[i] : NULL;
}

/* What sorting and the like compare: the part, lower case unless case counts. */
static int sort_key(struct run *r, const struct value *item, const struct value *attribute,
                    bool case_sensitive, struct value *out)
{
    struct value v;

    if (attribute != NULL && attribute->type == V_STRING && attribute->u.s.len > 0 &&
        memchr(attribute->u.s.p, ',', attribute->u.s.len) != NULL)
        return run_fail(r, "several attributes to sort by are not supported");
    if (filters_list_part_of(r, item, attribute, &v) != 0)
        return -1;
    if (v.type == V_STRING && !case_sensitive)
        return run_case(r, v.u.s, CASE_LOWER, out);
    *out = v;
    return 0;
}

static int sort_keys(struct run *r, const struct list *l, const struct value *attribute,
                     bool case_sensitive, struct value **out)
{
    struct value *keys = arena_array(&r->arena, l->n, sizeof *keys);

    if (keys == NULL)
        return run_no_memory(r);
    for (size_t i = 0; i < l->n; i++) {
        if (sort_key(r, &l->items[i], attribute, case_sensitive, &keys[i]) != 0)
            return -1;
    }
    *out = keys;
    return 0;
}

/* A list of its own, which may be changed. */
static int copy_list(struct run *r, const struct value *v, struct list **out)
{
    struct list *l, *copy;

    if (run_iterate(r, v, &l) != 0 || run_list(r, &copy, l->n) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if (run_push(r, copy, &l->items[i]) != 0)
            return -1;
    }
    *out = copy;
    return 0;
}

static int filter_sort(struct run *r, const struct value *v, const struct args *a,
                       struct value *out)
{
    struct value *keys;
    struct list *l;

    if (copy_list(r, v, &l) != 0 ||
        sort_keys(r, l, given(a, 2), a->given[1] && value_truth(&a->v[1]), &keys) != 0 ||
        run_sort(r, l->items, keys, l->n, a->given[0] && value_truth(&a->v[0])) != 0)
        return -1;
    *out = value_list(V_LIST, l);
    return 0;
}

static int filter_dictsort(struct run *r, const struct value *v, const struct args *a,
                           struct value *out)
{
    bool by_value = a->given[1] && a->v[1].type == V_STRING && text_eq(a->v[1].u.s, TEXT("value"));
    bool by_key = !a->given[1] || (a->v[1].type == V_STRING && text_eq(a->v[1].u.s, TEXT("key")));
    struct value which = value_int(by_value), *keys;

    if (!by_value && !by_key)
        return run_fail(r, "'dictsort' is by 'key' or by 'value'");
    if (v->type != V_DICT)
        return run_wrong_type(r, v, "a dict");
    if (run_pairs(r, v->u.dict, V_LIST, out) != 0 ||
        sort_keys(r, out->u.list, &which, a->given[0] && value_truth(&a->v[0]), &keys) != 0)
        return -1;
    return run_sort(r, out->u.list->items, keys, out->u.list->n,
                    a->given[2] && value_truth(&a->v[2]));
}

static int filter_unique(struct run *r, const struct value *v, const struct args *a,
                         struct value *out)
{
    struct value *keys;
    struct list *l, *kept;

    if (run_iterate(r, v, &l) != 0 ||
        sort_keys(r, l, given(a, 1), a->given[0] && value_truth(&a->v[0]), &keys) != 0 ||
        run_list(r, &kept, 0) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        bool seen = false;

        if (keys[i].type == V_LIST || keys[i].type == V_DICT)
            return run_wrong_type(r, &keys[i], "a value that can be a key");
        for (size_t k = 0; k < i && !seen; k++) {
            if (run_equal(r, &keys[k], &keys[i], &seen) != 0)
                return -1;
        }
        if (!seen && run_push(r, kept, &l->items[i]) != 0)
            return -1;
    }
    *out = value_list(V_ITER, kept);
    return 0;
}

static int filter_extreme(struct run *r, bool max, const struct value *v, const struct args *a,
                          struct value *out)
{
    struct value *keys;
    struct list *l;
    size_t best = 0;

    if (run_iterate(r, v, &l) != 0 ||
        sort_keys(r, l, given(a, 1), a->given[0] && value_truth(&a->v[0]), &keys) != 0)
        return -1;
    if (l->n == 0) {
        *out = value_undefined(TEXT("an element of an empty sequence"), V_NONE);
        return 0;
    }
    for (size_t i = 1; i < l->n; i++) {
        bool better = false;

        if ((max ? run_less(r, &keys[best], &keys[i], &better)
                 : run_less(r, &keys[i], &keys[best], &better)) != 0)
            return -1;
        best = better ? i : best;
    }
    *out = l->items[best];
    return 0;
}

static int filter_sum(struct run *r, const struct value *v, const struct args *a, struct value *out)
{
    struct value sum = a->given[1] ? a->v[1] : value_int(0), part, next;
    struct list *l;

    if (sum.type == V_STRING)
        return run_wrong_type(r, &sum, "a number to begin a sum with");
    if (run_iterate(r, v, &l) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if (filters_list_part_of(r, &l->items[i], given(a, 0), &part) != 0 ||
            run_binary(r, OP_ADD, &sum, &part, &next) != 0)
            return -1;
        sum = next;
    }
    *out = sum;
    return 0;
}

static int filter_join(struct run *r, const struct value *v, const struct args *a,
                       struct value *out)
{
    size_t mark = r->out->len;
    struct value d = value_text(TEXT("")), part;
    struct list *l;

    if ((a->given[0] && run_str(r, &a->v[0], &d) != 0) || run_iterate(r, v, &l) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if ((i > 0 && run_write(r, d.u.s) != 0) ||
            filters_list_part_of(r, &l->items[i], given(a, 1), &part) != 0 ||
            run_print(r, &part) != 0)
            return -1;
    }
    return run_taken(r, mark, out);
}

static int filter_first(struct run *r, const struct value *v, struct value *out)
{
    struct value first = *v;
    struct list *l;

    *out = value_undefined(TEXT("the first of an empty sequence"), V_NONE);
    if (v->type == V_ITER) { /* takes it out */
        if (v->u.list->next < v->u.list->n)
            *out = v->u.list->items[v->u.list->next++];
        return 0;
    }
    if (v->type == V_STRING) /* no need to cut all of it up */
        first.u.s.len = v->u.s.len > 0 ? text_char_len(v->u.s.p, v->u.s.p + v->u.s.len) : 0;
    if (run_iterate(r, &first, &l) != 0)
        return -1;
    if (l->n > 0)
        *out = l->items[0];
    return 0;
}

static int filter_last(struct run *r, const struct value *v, struct value *out)
{
    struct value minus = value_int(-1);
    struct list *l;

    if (v->type == V_ITER)
        return run_wrong_type(r, v, "a sequence that can be read from its end");
    if (v->type == V_STRING && v->u.s.len > 0)
        return run_item(r, v, &minus, out);
    if (run_iterate(r, v, &l) != 0)
        return -1;
    *out = l->n > 0 ? l->items[l->n - 1]
                    : value_undefined(TEXT("the last of an empty sequence"), V_NONE);
    return 0;
}

static int filter_reverse(struct run *r, const struct value *v, struct value *out)
{
    struct value part[3] = {VALUE_NONE, VALUE_NONE, value_int(-1)};
    struct list *l;

    if (v->type == V_STRING)
        return run_slice(r, v, part, out);
    if (v->type == V_UNDEFINED) {
        if (run_list(r, &l, 0) != 0)
            return -1;
        *out = value_list(V_ITER, l);
        return 0;
    }
    if (copy_list(r, v, &l) != 0)
        return -1;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value swap = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = swap;
    }
    *out = value_list(V_ITER, l);
    return 0;
}

static int filter_items(struct run *r, const struct value *v, struct value *out)
{
    static const struct dict empty;

    if (v->type != V_DICT && v->type != V_UNDEFINED)
        return run_wrong_type(r, v, "a dict");
    return run_pairs(r, v->type == V_DICT ? v->u.dict : &empty, V_ITER, out);
}

int run_list_filter(struct run *r, unsigned id, const struct value *v, const struct args *a,
                    struct value *out)
{
    struct list *l;

    switch (id) {
    case FILTER_DICTSORT:
        return filter_dictsort(r, v, a, out);
    case FILTER_FIRST:
        return filter_first(r, v, out);
    case FILTER_ITEMS:
        return filter_items(r, v, out);
    case FILTER_JOIN:
        return filter_join(r, v, a, out);
    case FILTER_LAST:
        return filter_last(r, v, out);
    case FILTER_MAX:
    case FILTER_MIN:
        return filter_extreme(r, id == FILTER_MAX, v, a, out);
    case FILTER_REVERSE:
        return filter_reverse(r, v, out);
    case FILTER_SORT:
        return filter_sort(r, v, a, out);
    case FILTER_SUM:
        return filter_sum(r, v, a, out);
    case FILTER_UNIQUE:
        return filter_unique(r, v, a, out);
    default: /* list */
        if (copy_list(r, v, &l) != 0)
            return -1;
        *out = value_list(V_LIST, l);
        return 0;
    }
}

/* Does the item stay, by the filter's test or by its own truth? */
static int keeps(struct run *r, const struct node *n, const struct value *item,
                 const struct args *a, const struct value *path, bool *out)
{
    struct value v = *item;

    if (path != NULL && run_path(r, item, path, &v) != 0)
        return -1;
    if (n->inner == NO_INNER)
        *out = value_truth(&v);
    else if (run_test(r, n->inner, &v, a, out) != 0)
        return -1;
    *out = *out == (n->op == FILTER_SELECT || n->op == FILTER_SELECTATTR);
    return 0;
}

static int map_item(struct run *r, const struct node *n, const struct value *item,
                    const struct args *a, const struct value *path, struct value *out)
{
    if (path == NULL)
        return run_filter_by_id(r, n->inner, item, a, out);
    if (run_path(r, item, path, out) != 0)
        return -1;
    if (out->type == V_UNDEFINED && a->given[0] && a->v[0].type != V_NONE)
        *out = a->v[0];
    return 0;
}

int run_filter_seq(struct run *r, const struct node *n, const struct value *in,
                   const struct args *a, struct value *out)
{
    struct value path, v;
    const struct value *at = NULL;
    struct list *l = NULL, *made;

    if (n->kids[1] != NULL) {
        if (run_eval(r, n->kids[1], &path) != 0)
            return -1;
        at = &path;
    }
    if (run_list(r, &made, 0) != 0 || (value_truth(in) && run_iterate(r, in, &l) != 0))
        return -1;
    for (size_t i = 0; l != NULL && i < l->n; i++) { /* what is false yields nothing */
        bool keep = true;

        v = l->items[i];
        if ((n->op == FILTER_MAP ? map_item(r, n, &l->items[i], a, at, &v)
                                 : keeps(r, n, &l->items[i], a, at, &keep)) != 0 ||
            (keep && run_push(r, made, &v) != 0))
            return -1;
    }
    *out = value_list(V_ITER, made);
    return 0;
}
