/* Which tensors of a model spec a tensor list would bring. */
#include "weights/update/coverage.h"

#include "tests/unit/weights/rows_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Counts what `rows` leave out of the model; -1 when the tensor list is refused. */
static int missing(const struct row *rows, size_t n, const char **first, struct err *e)
{
    struct model_spec *m = model_spec_of_model();
    struct tensor_list *p = tensor_list_of(rows, n);
    static char name[32];
    const char *names[2] = {"", ""};
    uint32_t n_missing = 99;
    int rc = tensor_list_coverage(m, p, false, names, 2, &n_missing, e);

    (void)strncpy(name, names[0], sizeof name - 1);
    *first = name;
    tensor_list_unref(p);
    model_spec_free(m);
    return rc == 0 ? (int)n_missing : -1;
}

static void test_tensor_list_coverage_counts(void **state)
{
    static const struct row all[] = {{"norm", DTYPE_BF16, {1, 4}},
                                     {"gate_up", DTYPE_BF16, {12, 4}},
                                     {"head", DTYPE_BF16, {8, 4}}};
    struct err e = {0};
    const char *first;

    (void)state;
    assert_int_equal(missing(all, 3, &first, &e), 0); /* a tied and a fused name count */
    assert_int_equal(missing(all, 2, &first, &e), 1);
    assert_string_equal(first, "embed");
    assert_int_equal(missing(all, 1, &first, &e), 3);
    assert_int_equal(missing(all + 2, 1, &first, &e), 3);
    assert_string_equal(first, "gate");
}

static void test_tensor_list_coverage_refuses(void **state)
{
    static const struct row twice[] = {{"gate", DTYPE_BF16, {6, 4}},
                                       {"gate_up", DTYPE_BF16, {12, 4}}};
    static const struct row both[] = {{"head", DTYPE_BF16, {8, 4}}, {"embed", DTYPE_BF16, {8, 4}}};
    static const struct row unknown[] = {{"embde", DTYPE_BF16, {8, 4}}};
    struct err e = {0};
    const char *first;

    (void)state;
    assert_int_equal(missing(twice, 2, &first, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/names/1");
    err_clear(&e);
    assert_int_equal(missing(both, 2, &first, &e), 3); /* a tied name beside its own is no repeat */
    assert_int_equal(missing(unknown, 1, &first, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_list_coverage_counts),
        cmocka_unit_test(test_tensor_list_coverage_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
