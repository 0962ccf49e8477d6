/* Tests: what stands after `is`. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <math.h>

static bool is_iterable(const struct value *v)
{
    return v->type == V_UNDEFINED || v->type == V_STRING || v->type == V_DICT || value_is_list(v) ||
           v->type == V_LOOP;
}

/* Of what has a length and elements; undefined has both, in its way. */
static bool is_sequence(const struct value *v)
{
    return v->type == V_UNDEFINED || v->type == V_STRING || v->type == V_DICT ||
           v->type == V_LIST || v->type == V_TUPLE || v->type == V_RANGE;
}

static int test_parity(struct run *r, const struct value *v, const struct value *divisor,
                       int64_t rest, bool *out)
{
    struct value left;

    if (run_binary(r, OP_MOD, v, divisor, &left) != 0)
        return -1;
    *out = left.type == V_FLOAT ? !(left.u.f < (double)rest) && !(left.u.f > (double)rest)
                                : left.u.i == rest;
    return 0;
}

/* Python's `is`. Equal numbers and strings may be one object or two there. */
static int test_same(struct run *r, const struct value *a, const struct value *b, bool *out)
{
    bool same = false;

    *out = false;
    if (a->type != b->type)
        return 0;
    if (a->type == V_INT || a->type == V_FLOAT || a->type == V_STRING) {
        if (run_equal(r, a, b, &same) != 0)
            return -1;
        return same ? run_fail(r, "'sameas' of equal numbers or strings is not supported") : 0;
    }
    if (a->type == V_BOOL)
        *out = a->u.b == b->u.b;
    else if (a->type == V_NONE)
        *out = true;
    else if (a->type == V_DICT)
        *out = a->u.dict == b->u.dict;
    else if (value_is_list(a))
        *out = a->u.list == b->u.list;
    return 0;
}

static int test_order(struct run *r, unsigned id, const struct value *a, const struct value *b,
                      bool *out)
{
    bool same = false;

    if (id == TEST_EQ || id == TEST_NE) {
        if (run_equal(r, a, b, out) != 0)
            return -1;
        *out = *out == (id == TEST_EQ);
        return 0;
    }
    if (id == TEST_LT || id == TEST_LE ? run_less(r, a, b, out) : run_less(r, b, a, out))
        return -1;
    if (*out || id == TEST_LT || id == TEST_GT)
        return 0;
    if (run_equal(r, a, b, &same) != 0)
        return -1;
    *out = same;
    return 0;
}

static bool test_type(unsigned id, const struct value *v)
{
    switch (id) {
    case TEST_BOOLEAN:
        return v->type == V_BOOL;
    case TEST_CALLABLE: /* undefined is: its type has a call, which fails */
        return v->type >= V_MACRO || v->type == V_UNDEFINED;
    case TEST_DEFINED:
        return v->type != V_UNDEFINED;
    case TEST_UNDEFINED:
        return v->type == V_UNDEFINED;
    case TEST_FALSE:
        return v->type == V_BOOL && !v->u.b;
    case TEST_TRUE:
        return v->type == V_BOOL && v->u.b;
    case TEST_FLOAT:
        return v->type == V_FLOAT;
    case TEST_INTEGER:
        return v->type == V_INT;
    case TEST_ITERABLE:
        return is_iterable(v);
    case TEST_MAPPING:
        return v->type == V_DICT;
    case TEST_NONE:
        return v->type == V_NONE;
    case TEST_NUMBER:
        return value_is_number(v);
    case TEST_SEQUENCE:
        return is_sequence(v);
    default:
        return v->type == V_STRING;
    }
}

int run_test(struct run *r, unsigned id, const struct value *v, const struct args *a, bool *out)
{
    struct value two = value_int(2);

    switch (id) {
    case TEST_DIVISIBLEBY:
        return test_parity(r, v, &a->v[0], 0, out);
    case TEST_EVEN:
    case TEST_ODD:
        return test_parity(r, v, &two, id == TEST_ODD, out);
    case TEST_EQ:
    case TEST_NE:
    case TEST_LT:
    case TEST_LE:
    case TEST_GT:
    case TEST_GE:
        return test_order(r, id, v, &a->v[0], out);
    case TEST_IN:
        return run_contains(r, &a->v[0], v, out);
    case TEST_SAMEAS:
        return test_same(r, v, &a->v[0], out);
    default:
        *out = test_type(id, v);
        return 0;
    }
}
