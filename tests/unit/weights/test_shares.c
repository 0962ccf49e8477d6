/* weights/store/shares: which rank owns which tensor. */
#include "weights/store/shares.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROUNDS = 500, N_MAX = 60, NBYTES_MAX = 5000 };

static struct tensor_list *list_of(const uint64_t *nbytes, uint32_t n)
{
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};
    char name[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "t.%u", i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &nbytes[i], 1, UINT64_MAX, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    return list;
}

/* Runs in the list's order, each within one tensor of an equal part; twice the same. */
static void assert_fair(const uint64_t *nbytes, uint32_t n, uint32_t n_ranks)
{
    struct tensor_list *list = list_of(nbytes, n);
    uint64_t largest = 0, sum = 0;
    uint32_t n_owned = 0;
    uint8_t *owners, *again;
    struct err e = {0};

    assert_int_equal(shares_new(&owners, list, n_ranks, &e), 0);
    assert_int_equal(shares_new(&again, list, n_ranks, &e), 0);
    assert_memory_equal(owners, again, n);
    for (uint32_t i = 0; i < n; i++) {
        largest = nbytes[i] > largest ? nbytes[i] : largest;
        assert_true(owners[i] < n_ranks && (i == 0 || owners[i - 1] <= owners[i]));
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t owned;
        uint64_t share = shares_nbytes(owners, list, r, &owned), equal = list->nbytes / n_ranks;

        assert_true(share <= equal + 1 + largest && share + largest + 1 >= equal);
        sum += share;
        n_owned += owned;
    }
    assert_int_equal(sum, list->nbytes);
    assert_int_equal(n_owned, n);
    free(owners);
    free(again);
    tensor_list_unref(list);
}

static void test_shares_differ_by_a_tensor_at_most(void **state)
{
    uint64_t nbytes[N_MAX];

    (void)state;
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        uint32_t n = (uint32_t)rand() % N_MAX + 1;

        for (uint32_t i = 0; i < n; i++)
            nbytes[i] = rand() % 5 == 0 ? 0 : (uint64_t)rand() % NBYTES_MAX + 1;
        assert_fair(nbytes, n, (uint32_t)rand() % SHARES_RANKS_MAX + 1);
    }
}

static void test_equal_tensors_are_halved(void **state)
{
    static const uint64_t nbytes[] = {8, 8, 8, 8};
    static const uint8_t halves[] = {0, 0, 1, 1};
    struct tensor_list *list = list_of(nbytes, 4);
    uint8_t *owners;
    struct err e = {0};

    (void)state;
    assert_int_equal(shares_new(&owners, list, 2, &e), 0);
    assert_memory_equal(owners, halves, sizeof halves);
    free(owners);
    tensor_list_unref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_differ_by_a_tensor_at_most),
        cmocka_unit_test(test_equal_tensors_are_halved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
