/* fleet/handoff/window_plan: which tensors share a window, and where. */
#include "fleet/handoff/window_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MAX = 40, ROUNDS = 2000 };

static struct tensor_spec specs[N_MAX];

static struct tensor_list list_of(uint32_t n)
{
    struct tensor_list list = {.n_tensors = n, .tensors = specs};

    for (uint32_t i = 0; i < n; i++)
        list.nbytes += specs[i].nbytes;
    return list;
}

static void set(uint32_t i, enum dtype dtype, uint64_t numel)
{
    specs[i] = (struct tensor_spec){.name = "t",
                                    .dtype = dtype,
                                    .ndim = 1,
                                    .shape = {numel},
                                    .numel = numel,
                                    .nbytes = numel * dtype_nbytes(dtype)};
}

static void test_size(void **state)
{
    struct tensor_list list;
    struct err e = {0};
    uint64_t nbytes = 0;

    (void)state;
    set(0, DTYPE_BF16, 100);
    set(1, DTYPE_F32, 1000);
    list = list_of(2);
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 0, &e), 0);
    assert_int_equal(nbytes, 4200);
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 4000, &e), 0);
    assert_int_equal(nbytes, 4000);
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 3999, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "--stage-window");
    assert_non_null(strstr(e.msg, "3999"));
    assert_non_null(strstr(e.msg, "4000"));
    err_clear(&e);

    set(1, DTYPE_F32, WINDOW_NBYTES_DEFAULT);
    list = list_of(2);
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 0, &e), 0);
    assert_int_equal(nbytes, 4 * WINDOW_NBYTES_DEFAULT);

    specs[1].ndim = 0;
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 0, &e), -1);
    assert_string_equal(e.field, "--stage");
}

/* Every tensor once, in windows that are in list order and hold no more than they may; in a window
 * no gap, and each tensor aligned for its elements. */
static void check(const struct tensor_list *list, uint64_t nbytes)
{
    struct window_plan p;
    struct err e = {0};

    assert_int_equal(window_plan_init(&p, list, nbytes, &e), 0);
    assert_int_equal(p.first[0], 0);
    assert_int_equal(p.first[p.n], list->n_tensors);
    for (uint32_t k = 0; k < p.n; k++) {
        bool seen[N_MAX] = {false};
        uint64_t end = 0;

        assert_true(p.first[k] < p.first[k + 1]);
        for (uint32_t i = p.first[k]; i < p.first[k + 1]; i++) {
            uint32_t index = p.tensors[i].index;

            assert_in_range(index, p.first[k], p.first[k + 1] - 1);
            assert_false(seen[index]);
            seen[index] = true;
            assert_int_equal(p.tensors[i].offset, end);
            assert_int_equal(end % dtype_nbytes(specs[index].dtype), 0);
            end += specs[index].nbytes;
        }
        assert_true(end <= nbytes);
        if (k + 1 < p.n) /* the next tensor did not fit */
            assert_true(end + specs[p.first[k + 1]].nbytes > nbytes);
    }
    window_plan_fini(&p);
}

static void test_random_lists(void **state)
{
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F8_E4M3, DTYPE_I64};

    (void)state;
    srand(21);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t n = 1 + (uint32_t)rand() % N_MAX;
        struct tensor_list list;
        uint64_t nbytes;
        struct err e = {0};

        for (uint32_t i = 0; i < n; i++)
            set(i, dtypes[rand() % 5], (uint64_t)rand() % 50);
        list = list_of(n);
        for (uint64_t wanted = 392; wanted < 20000; wanted *= 3) {
            assert_int_equal(window_nbytes_choose(&nbytes, &list, wanted, &e), 0);
            check(&list, nbytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_random_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
