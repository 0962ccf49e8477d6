/* Arithmetic, as Python has it; integers beyond 64 bits are refused. */
#include "text/jinja/run.h"

#include <math.h>
#include <string.h>

static int too_large(struct run *r)
{
    return run_fail(r, "an integer beyond 64 bits");
}

static int int_power(struct run *r, int64_t a, int64_t b, struct value *out)
{
    int64_t x = 1;

    if (b < 0) {
        if (a == 0)
            return run_fail(r, "a division by zero");
        *out = value_float(pow((double)a, (double)b));
        return 0;
    }
    if (a == 0 || a == 1 || a == -1) {
        *out = value_int(b == 0 || a == 1 || (a == -1 && b % 2 == 0) ? 1 : a);
        return 0;
    }
    for (int64_t i = 0; i < b; i++) { /* at most 63 turns */
        if (__builtin_mul_overflow(x, a, &x))
            return too_large(r);
    }
    *out = value_int(x);
    return 0;
}

/* Rounds towards minus infinity; the rest has the divisor's sign. */
static int int_divide(struct run *r, enum binary_op op, int64_t a, int64_t b, struct value *out)
{
    int64_t q, rest;

    if (b == 0)
        return run_fail(r, "a division by zero");
    if (a == INT64_MIN && b == -1)
        return op == OP_MOD ? (*out = value_int(0), 0) : too_large(r);
    q = a / b;
    rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        q--;
        rest += b;
    }
    *out = value_int(op == OP_MOD ? rest : q);
    return 0;
}

static int int_op(struct run *r, enum binary_op op, int64_t a, int64_t b, struct value *out)
{
    int64_t x = 0;
    bool over = false;

    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &x);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case OP_POW:
        return int_power(r, a, b, out);
    case OP_DIV:
        if (b == 0)
            return run_fail(r, "a division by zero");
        *out = value_float((double)a / (double)b);
        return 0;
    default:
        return int_divide(r, op, a, b, out);
    }
    *out = value_int(x);
    return over ? too_large(r) : 0;
}

static bool is_zero(double f)
{
    return fpclassify(f) == FP_ZERO;
}

/* Python's floor division of floats, by way of the exact rest. */
static double float_divide(double a, double b, double *rest)
{
    double mod = fmod(a, b), div = (a - mod) / b, floored;

    if (!is_zero(mod) && (b < 0) != (mod < 0)) {
        mod += b;
        div -= 1.0;
    } else if (is_zero(mod)) {
        mod = copysign(0.0, b);
    }
    *rest = mod;
    if (is_zero(div))
        return copysign(0.0, a / b);
    floored = floor(div);
    return div - floored > 0.5 ? floored + 1.0 : floored;
}

static int float_op(struct run *r, enum binary_op op, double a, double b, struct value *out)
{
    double rest, q;

    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && is_zero(b))
        return run_fail(r, "a division by zero");
    if (op == OP_POW && ((is_zero(a) && b < 0) || (a < 0 && floor(b) < b) ||
                         (isfinite(a) && isfinite(b) && isinf(pow(a, b)))))
        return run_fail(r, "a power that is no finite real number");
    switch (op) {
    case OP_ADD:
        *out = value_float(a + b);
        return 0;
    case OP_SUB:
        *out = value_float(a - b);
        return 0;
    case OP_MUL:
        *out = value_float(a * b);
        return 0;
    case OP_DIV:
        *out = value_float(a / b);
        return 0;
    case OP_POW:
        *out = value_float(pow(a, b));
        return 0;
    default:
        q = float_divide(a, b, &rest);
        *out = value_float(op == OP_MOD ? rest : q);
        return 0;
    }
}

static int repeat(struct run *r, const struct value *v, int64_t n, struct value *out)
{
    size_t len = v->type == V_STRING ? v->u.s.len : v->u.list->n;
    struct list *l;
    char *o;

    n = n < 0 || len == 0 ? 0 : n;
    if (n > 0 && len > (size_t)JINJA_RENDER_NBYTES_MAX / (uint64_t)n)
        return run_fail(r, "the values take more than %d bytes", JINJA_RENDER_NBYTES_MAX);
    if (v->type == V_STRING) {
        if (run_charge_bytes(r, len * (size_t)n) != 0 || run_charge(r, (size_t)n) != 0 ||
            run_bytes(r, &o, len * (size_t)n) != 0)
            return -1;
        for (size_t i = 0; i < (size_t)n; i++)
            memcpy(o + i * len, v->u.s.p, len);
        *out = value_text((struct text){o, len * (size_t)n});
        out->markup = v->markup;
        return 0;
    }
    if (run_list(r, &l, 0) != 0)
        return -1;
    for (size_t i = 0; i < len * (size_t)n; i++) {
        if (run_push(r, l, &v->u.list->items[i % len]) != 0)
            return -1;
    }
    *out = value_list(v->type, l);
    return 0;
}

static int join_lists(struct run *r, const struct value *a, const struct value *b,
                      struct value *out)
{
    struct list *l;

    if (run_list(r, &l, a->u.list->n + b->u.list->n) != 0)
        return -1;
    for (size_t i = 0; i < a->u.list->n + b->u.list->n; i++) {
        const struct value *v = i < a->u.list->n ? &a->u.list->items[i]
                                                 : &b->u.list->items[i - a->u.list->n];

        if (run_push(r, l, v) != 0)
            return -1;
    }
    *out = value_list(a->type, l);
    return 0;
}

static int join_strings(struct run *r, const struct value *a, const struct value *b,
                        struct value *out)
{
    struct value left = *a, right = *b;
    bool markup = a->markup || b->markup;

    if (markup && (run_escape(r, a, &left) != 0 || run_escape(r, b, &right) != 0))
        return -1;
    if (run_concat(r, left.u.s, right.u.s, out) != 0)
        return -1;
    out->markup = markup;
    return 0;
}

static bool repeats(const struct value *v)
{
    return v->type == V_STRING || v->type == V_LIST || v->type == V_TUPLE;
}

int run_binary(struct run *r, enum binary_op op, const struct value *a, const struct value *b,
               struct value *out)
{
    bool whole = a->type != V_FLOAT && b->type != V_FLOAT;

    if (value_is_number(a) && value_is_number(b))
        return whole ? int_op(r, op, value_as_int(a), value_as_int(b), out)
                     : float_op(r, op, value_as_float(a), value_as_float(b), out);
    if (op == OP_ADD && a->type == V_STRING && b->type == V_STRING)
        return join_strings(r, a, b, out);
    if (op == OP_ADD && a->type == b->type && (a->type == V_LIST || a->type == V_TUPLE))
        return join_lists(r, a, b, out);
    if (op == OP_MUL && repeats(a) && (b->type == V_INT || b->type == V_BOOL))
        return repeat(r, a, value_as_int(b), out);
    if (op == OP_MUL && repeats(b) && (a->type == V_INT || a->type == V_BOOL))
        return repeat(r, b, value_as_int(a), out);
    if (op == OP_MOD && a->type == V_STRING)
        return run_percent(r, a, b, out);
    if (a->type == V_UNDEFINED || b->type == V_UNDEFINED)
        return run_undefined(r, a->type == V_UNDEFINED ? a : b);
    return run_fail(r, "no arithmetic of types '%s' and '%s' here", value_type_name(a->type),
                    value_type_name(b->type));
}
