/* Expressions. Depth is counted, not trusted: a macro that calls itself meets the bound. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <math.h>
#include <string.h>

int scope_set(struct run *r, struct scope *s, uint32_t sym, const struct value *v)
{
    if (run_charge(r, s->n / 8) != 0)
        return -1;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->vars[i].sym == sym) {
            s->vars[i].value = *v;
            return 0;
        }
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap < 4 ? 4 : s->cap * 2;
        struct var *vars = arena_array(&r->arena, cap, sizeof *vars);

        if (vars == NULL)
            return run_no_memory(r);
        if (s->n > 0)
            memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct var){sym, *v};
    return 0;
}

int scope_begin(struct run *r, struct scope *s, const struct block *body)
{
    for (uint32_t i = 0; i < body->n_unset; i++) {
        struct value v = value_undefined(r->t->symbols[body->unset[i]], V_NONE);

        if (scope_set(r, s, body->unset[i], &v) != 0)
            return -1;
    }
    return 0;
}

int run_lookup(struct run *r, uint32_t sym, struct value *out)
{
    for (const struct scope *s = r->scope; s != NULL; s = s->parent) {
        if (run_charge(r, s->n / 8 + 1) != 0)
            return -1;
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->vars[i].sym == sym) {
                *out = s->vars[i].value;
                return 0;
            }
        }
    }
    *out = r->context[sym];
    return 0;
}

static int eval_items(struct run *r, const struct node *n, struct value *out)
{
    struct list *l;
    struct value v;

    if (run_list(r, &l, n->n_kids) != 0)
        return -1;
    for (uint32_t i = 0; i < n->n_kids; i++) {
        if (run_eval(r, n->kids[i], &v) != 0 || run_push(r, l, &v) != 0)
            return -1;
    }
    *out = value_list(n->kind == N_LIST ? V_LIST : V_TUPLE, l);
    return 0;
}

static int eval_dict(struct run *r, const struct node *n, struct value *out)
{
    struct dict *d;
    struct value key, v;

    if (run_dict(r, &d, n->n_kids / 2) != 0)
        return -1;
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        if (run_eval(r, n->kids[i], &key) != 0 || run_eval(r, n->kids[i + 1], &v) != 0 ||
            run_put(r, d, &key, &v) != 0)
            return -1;
    }
    *out = (struct value){.type = V_DICT, .u.dict = d};
    return 0;
}

static int eval_slice(struct run *r, const struct node *n, struct value *out)
{
    struct value object, part[3] = {VALUE_NONE, VALUE_NONE, VALUE_NONE};

    if (run_eval(r, n->kids[0], &object) != 0)
        return -1;
    for (unsigned i = 0; i < 3; i++) {
        if (n->kids[i + 1] != NULL && run_eval(r, n->kids[i + 1], &part[i]) != 0)
            return -1;
    }
    return run_slice(r, &object, part, out);
}

static int eval_slots(struct run *r, const struct node *n, uint32_t first,
                      struct value v[CALLEE_SLOTS_MAX], bool given[CALLEE_SLOTS_MAX])
{
    for (uint32_t i = 0; i < CALLEE_SLOTS_MAX; i++) {
        given[i] = n->kids[first + i] != NULL;
        v[i] = value_undefined(TEXT("argument"), V_NONE);
        if (given[i] && run_eval(r, n->kids[first + i], &v[i]) != 0)
            return -1;
    }
    return 0;
}

static bool hands_on(const struct node *n)
{
    return n->n_kids == CALLEE_SLOTS_MAX + 2;
}

static int eval_callee(struct run *r, const struct node *n, struct value *out)
{
    struct value object, v[CALLEE_SLOTS_MAX];
    bool given[CALLEE_SLOTS_MAX], is = false;
    struct args a = {v, given};

    if (run_eval(r, n->kids[0], &object) != 0 ||
        eval_slots(r, n, n->kind == N_FILTER && hands_on(n) ? 2 : 1, v, given) != 0)
        return -1;
    if (n->kind == N_METHOD)
        return run_method(r, n->op, &object, &a, out);
    if (n->kind == N_FILTER)
        return run_filter(r, n, &object, &a, out);
    if (run_test(r, n->op, &object, &a, &is) != 0)
        return -1;
    *out = value_bool(is);
    return 0;
}

static int eval_sign(struct run *r, const struct node *n, struct value *out)
{
    struct value v;

    if (run_eval(r, n->kids[0], &v) != 0)
        return -1;
    if (!value_is_number(&v))
        return run_wrong_type(r, &v, "a number");
    if (v.type == V_FLOAT) {
        *out = value_float(n->kind == N_NEG ? -v.u.f : v.u.f);
        return 0;
    }
    if (n->kind == N_NEG && value_as_int(&v) == INT64_MIN)
        return run_fail(r, "an integer beyond 64 bits");
    *out = value_int(n->kind == N_NEG ? -value_as_int(&v) : value_as_int(&v));
    return 0;
}

static int eval_logic(struct run *r, const struct node *n, struct value *out)
{
    if (run_eval(r, n->kids[0], out) != 0)
        return -1;
    if (value_truth(out) == (n->kind == N_OR))
        return 0;
    return run_eval(r, n->kids[1], out);
}

static int eval_cond(struct run *r, const struct node *n, struct value *out)
{
    struct value test;

    if (run_eval(r, n->kids[0], &test) != 0)
        return -1;
    if (value_truth(&test))
        return run_eval(r, n->kids[1], out);
    if (n->kids[2] != NULL)
        return run_eval(r, n->kids[2], out);
    *out = value_undefined(TEXT("an if without else"), V_NONE);
    return 0;
}

static int eval_concat(struct run *r, const struct node *n, struct value *out)
{
    size_t mark = r->out->len;
    struct value *v = arena_array(&r->arena, n->n_kids, sizeof *v);

    if (v == NULL)
        return run_no_memory(r);
    for (uint32_t i = 0; i < n->n_kids; i++) { /* all before any is text: one may write */
        if (run_eval(r, n->kids[i], &v[i]) != 0)
            return -1;
    }
    for (uint32_t i = 0; i < n->n_kids; i++) {
        if (run_print(r, &v[i]) != 0)
            return -1;
    }
    return run_taken(r, mark, out);
}

static int eval_compare_one(struct run *r, unsigned op, const struct value *a,
                            const struct value *b, bool *out)
{
    bool same = false;

    switch (op) {
    case CMP_EQ:
    case CMP_NE:
        if (run_equal(r, a, b, out) != 0)
            return -1;
        *out = *out == (op == CMP_EQ);
        return 0;
    case CMP_IN:
    case CMP_NOT_IN:
        if (run_contains(r, b, a, out) != 0)
            return -1;
        *out = *out == (op == CMP_IN);
        return 0;
    case CMP_LT:
        return run_less(r, a, b, out);
    case CMP_GT:
        return run_less(r, b, a, out);
    default:
        break;
    }
    if (op == CMP_LE ? run_less(r, a, b, out) : run_less(r, b, a, out))
        return -1;
    if (*out)
        return 0;
    if (run_equal(r, a, b, &same) != 0)
        return -1;
    *out = same;
    return 0;
}

static int eval_compare(struct run *r, const struct node *n, struct value *out)
{
    struct value a, b;
    bool is = true;

    if (run_eval(r, n->kids[0], &a) != 0)
        return -1;
    for (uint32_t i = 1; i < n->n_kids && is; i++) {
        if (run_eval(r, n->kids[i], &b) != 0 ||
            eval_compare_one(r, n->ops[i - 1], &a, &b, &is) != 0)
            return -1;
        a = b;
    }
    *out = value_bool(is);
    return 0;
}

/* format is the one method whose arguments may have any names. */
static int eval_call(struct run *r, const struct node *n, struct value *out)
{
    const struct node *callee = n->kids[0];
    struct value v;

    if (callee->kind == N_ATTR && text_eq(callee->text, TEXT("format"))) {
        if (run_eval(r, callee->kids[0], &v) != 0)
            return -1;
        if (v.type == V_STRING)
            return run_format(r, n, &v, out);
    }
    return run_eval(r, callee, &v) == 0 ? run_call(r, n, &v, out) : -1;
}

static int eval_object(struct run *r, const struct node *n, struct value *out)
{
    struct value a, b;

    if (run_eval(r, n->kids[0], &a) != 0)
        return -1;
    if (n->kind == N_ATTR)
        return run_attr(r, &a, n->text, out);
    if (n->kind == N_FORMAT)
        return run_format_filter(r, n, &a, out);
    if (n->kind == N_NOT) {
        *out = value_bool(!value_truth(&a));
        return 0;
    }
    if (run_eval(r, n->kids[1], &b) != 0)
        return -1;
    return n->kind == N_ITEM ? run_item(r, &a, &b, out)
                             : run_binary(r, (enum binary_op)n->op, &a, &b, out);
}

static int eval_any(struct run *r, const struct node *n, struct value *out)
{
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return 0;
    case N_NAME:
        return run_lookup(r, n->sym, out);
    case N_CAPTURED:
        *out = r->captured;
        return 0;
    case N_LIST:
    case N_TUPLE:
        return eval_items(r, n, out);
    case N_DICT:
        return eval_dict(r, n, out);
    case N_SLICE:
        return eval_slice(r, n, out);
    case N_METHOD:
    case N_FILTER:
    case N_TEST:
        return eval_callee(r, n, out);
    case N_NEG:
    case N_POS:
        return eval_sign(r, n, out);
    case N_AND:
    case N_OR:
        return eval_logic(r, n, out);
    case N_COND:
        return eval_cond(r, n, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_CALL:
        return eval_call(r, n, out);
    case N_REFUSED:
        r->line = n->line;
        return run_fail(r, "%.*s", (int)n->text.len, n->text.p);
    default:
        return eval_object(r, n, out);
    }
}

int run_eval(struct run *r, const struct node *n, struct value *out)
{
    int rc;

    if (run_charge(r, 1) != 0)
        return -1;
    if (r->depth >= RUN_EVAL_DEPTH_MAX)
        return run_fail(r, "nests deeper than %d", RUN_EVAL_DEPTH_MAX);
    r->depth++;
    rc = eval_any(r, n, out);
    r->depth--;
    return rc;
}
