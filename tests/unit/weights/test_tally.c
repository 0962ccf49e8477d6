/* Counting what comes of a model that others receive. */
#include "weights/tally.h"

#include "tests/unit/weights/rows_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct row embed = {"embed", DTYPE_BF16, {8, 4}}, norm = {"norm", DTYPE_BF16, {1, 4}},
                        gate = {"gate", DTYPE_BF16, {6, 4}}, up = {"up", DTYPE_BF16, {6, 4}},
                        gate_up = {"gate_up", DTYPE_BF16, {12, 4}},
                        head = {"head", DTYPE_BF16, {8, 4}};

struct world {
    struct model_spec *m;
    struct tally *t;
};

static struct world begin(struct model_spec *m)
{
    struct world w = {.m = m};
    struct err e = {0};

    assert_int_equal(tally_new(&w.t, m, &e), 0);
    return w;
}

static void end(struct world *w)
{
    tally_free(w->t);
    model_spec_free(w->m);
}

static void come(struct world *w, const struct row *rows, size_t n)
{
    struct tensor_list *p = tensor_list_of(rows, n);
    struct err e = {0};

    assert_int_equal(tally_add(w->t, p, &e), 0);
    tensor_list_unref(p);
}

static void come_one(struct world *w, struct row row)
{
    come(w, &row, 1);
}

static int check(const struct world *w, struct row row, bool shapes, bool once, struct err *e)
{
    struct tensor_list *p = tensor_list_of(&row, 1);
    int rc = tally_check(w->t, p, shapes, once, e);

    tensor_list_unref(p);
    return rc;
}

/* The first that is missing; "" when nothing is. */
static const char *first_missing(const struct world *w, uint32_t n)
{
    const char *names[2] = {"", ""};

    assert_int_equal(tally_missing(w->t, names, 2), n);
    return names[0];
}

static void test_tally_counts_over_lists(void **state)
{
    const struct row some[] = {norm, gate};
    struct world w = begin(model_spec_of_model());

    (void)state;
    assert_string_equal(first_missing(&w, 4), "embed");
    come(&w, some, 2);
    assert_string_equal(first_missing(&w, 2), "embed");
    come_one(&w, embed);
    assert_string_equal(first_missing(&w, 1), "up");
    come(&w, some, 2); /* again: not counted twice */
    assert_string_equal(first_missing(&w, 1), "up");
    come_one(&w, up);
    assert_string_equal(first_missing(&w, 0), "");
    assert_int_equal(tally_n_sent(w.t), 4);
    end(&w);
}

static void test_tally_knows_other_names(void **state)
{
    struct world w = begin(model_spec_of_model());

    (void)state;
    come_one(&w, gate_up);
    come_one(&w, norm);
    assert_string_equal(first_missing(&w, 1), "embed");
    come_one(&w, head); /* an engine skips it: its table is still the old one */
    assert_string_equal(first_missing(&w, 1), "embed");
    come_one(&w, (struct row){"layers.0.rotary_emb.inv_freq", DTYPE_F32, {1, 2}});
    come_one(&w, (struct row){"gate.weight_scale", DTYPE_F32, {1, 1}});
    come_one(&w, embed);
    assert_string_equal(first_missing(&w, 0), "");
    assert_int_equal(tally_n_sent(w.t), 6);
    end(&w);
}

static void test_tally_check_refuses(void **state)
{
    struct world w = begin(model_spec_of_model());
    struct err e = {0};

    (void)state;
    assert_int_equal(check(&w, (struct row){"norm", DTYPE_F32, {1, 4}}, true, true, &e), 0);
    assert_int_equal(check(&w, (struct row){"other", DTYPE_F32, {9, 9}}, true, true, &e), 0);
    assert_int_equal(check(&w, (struct row){"norm", DTYPE_BF16, {4, 1}}, false, true, &e), 0);
    assert_int_equal(check(&w, (struct row){"norm", DTYPE_BF16, {4, 1}}, true, true, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_string_equal(e.field, "/shapes/0");
    err_clear(&e);
    assert_int_equal(check(&w, (struct row){"gate_up", DTYPE_BF16, {6, 8}}, true, true, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    err_clear(&e);
    come_one(&w, norm);
    assert_int_equal(check(&w, norm, true, false, &e), 0);
    assert_int_equal(check(&w, norm, true, true, &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/names/0");
    assert_non_null(strstr(e.msg, "'norm'"));
    end(&w);
}

/* What came is what must come the next time. */
static void test_tally_model_spec_is_what_came(void **state)
{
    struct world w = begin(NULL), next;
    struct model_spec *m;
    struct err e = {0};

    (void)state;
    assert_string_equal(first_missing(&w, 0), "");
    come_one(&w, gate);
    come_one(&w, head);
    come_one(&w, gate);
    assert_int_equal(tally_model_spec(&m, w.t, &e), 0);
    end(&w);
    next = begin(m);
    assert_string_equal(first_missing(&next, 2), "gate");
    come_one(&next, head);
    come_one(&next, gate_up); /* exact names: nothing says what that is */
    assert_string_equal(first_missing(&next, 1), "gate");
    come_one(&next, gate);
    assert_string_equal(first_missing(&next, 0), "");
    end(&next);
}

static void test_tally_model_spec_of_nothing(void **state)
{
    struct world w = begin(NULL);
    struct model_spec *m = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(tally_model_spec(&m, w.t, &e), -1);
    assert_null(m);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    end(&w);
}

static void test_tally_tells_what_is_unknown(void **state)
{
    struct world w = begin(model_spec_of_model());
    const struct row other = {"actor.norm", DTYPE_F32, {1, 4}};
    const char *name;

    (void)state;
    come_one(&w, norm);
    assert_int_equal(tally_unknown(w.t, &name), 0);
    assert_string_equal(name, "");
    come_one(&w, other);
    come_one(&w, other);
    come_one(&w, (struct row){"actor.head", DTYPE_F32, {1, 4}});
    assert_int_equal(tally_unknown(w.t, &name), 2);
    assert_string_equal(name, "actor.norm");
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tally_counts_over_lists),
        cmocka_unit_test(test_tally_knows_other_names),
        cmocka_unit_test(test_tally_check_refuses),
        cmocka_unit_test(test_tally_model_spec_is_what_came),
        cmocka_unit_test(test_tally_model_spec_of_nothing),
        cmocka_unit_test(test_tally_tells_what_is_unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
