/* fleet/handoff/window_plan: which tensors share a window, and where. */
#include "fleet/handoff/window_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MAX = 40, ROUNDS = 2000 };

static struct tensor_spec specs[N_MAX];
static char names[N_MAX][32];

static struct tensor_list list_of(uint32_t n)
{
    struct tensor_list list = {.n_tensors = n, .tensors = specs};

    for (uint32_t i = 0; i < n; i++)
        list.nbytes += specs[i].nbytes;
    return list;
}

/* A tensor of a group. */
static void set(uint32_t i, unsigned group, enum dtype dtype, uint64_t numel)
{
    (void)snprintf(names[i], sizeof names[i], "layers.%u.t%u.weight", group, (unsigned)i);
    specs[i] = (struct tensor_spec){.name = names[i],
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
    set(0, 0, DTYPE_BF16, 100);
    set(1, 1, DTYPE_F32, 1000);
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

    set(1, 0, DTYPE_F32, 1000); /* of the same group */
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 4199, &e), -1);
    assert_non_null(strstr(e.msg, "4200 from 'layers.0.t0.weight' on"));
    err_clear(&e);

    set(1, 1, DTYPE_F32, WINDOW_NBYTES_DEFAULT);
    list = list_of(2);
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 0, &e), 0);
    assert_int_equal(nbytes, 4 * WINDOW_NBYTES_DEFAULT);

    specs[1].ndim = 0;
    assert_int_equal(window_nbytes_choose(&nbytes, &list, 0, &e), -1);
    assert_string_equal(e.field, "--stage");
}

/* The number in the list of the i-th tensor of a plan. */
static uint32_t index_of(const struct window_plan *p, uint32_t i)
{
    return (uint32_t)(p->tensors[i].tensor - specs);
}

static unsigned group_of(uint32_t index)
{
    unsigned group = 0;

    assert_int_equal(sscanf(names[index], "layers.%u.", &group), 1);
    return group;
}

static uint64_t nbytes_of(const struct tensor_list *list, unsigned group)
{
    uint64_t nbytes = 0;

    for (uint32_t i = 0; i < list->n_tensors; i++)
        nbytes += group_of(i) == group ? specs[i].nbytes : 0;
    return nbytes;
}

/* The group that comes first in a window, as its first tensor does in the list. */
static unsigned first_group(const struct window_plan *p, uint32_t k)
{
    uint32_t first = N_MAX;

    for (uint32_t i = p->first[k]; i < p->first[k + 1]; i++)
        first = index_of(p, i) < first ? index_of(p, i) : first;
    return group_of(first);
}

/* Every tensor once, in windows that hold no more than they may; a group in one window; in a window
 * no gap, and each tensor aligned for its elements. */
static void check(const struct tensor_list *list, uint64_t nbytes)
{
    uint32_t in_window[N_MAX] = {0}; /* by group, 1 + that window */
    bool seen[N_MAX] = {false};
    struct window_plan p;
    struct err e = {0};

    assert_int_equal(window_plan_init(&p, list, nbytes, &e), 0);
    assert_int_equal(p.first[0], 0);
    assert_int_equal(p.first[p.n], list->n_tensors);
    for (uint32_t k = 0; k < p.n; k++) {
        uint64_t end = 0;

        assert_true(p.first[k] < p.first[k + 1]);
        for (uint32_t i = p.first[k]; i < p.first[k + 1]; i++) {
            uint32_t index = index_of(&p, i), *in = &in_window[group_of(index)];

            assert_in_range(index, 0, list->n_tensors - 1);
            assert_false(seen[index]);
            seen[index] = true;
            assert_true(*in == 0 || *in == k + 1);
            *in = k + 1;
            assert_int_equal(p.tensors[i].offset, end);
            assert_int_equal(end % dtype_nbytes(specs[index].dtype), 0);
            end += specs[index].nbytes;
        }
        assert_true(end <= nbytes);
        if (k + 1 < p.n) /* the next group did not fit */
            assert_true(end + nbytes_of(list, first_group(&p, k + 1)) > nbytes);
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
            set(i, (unsigned)rand() % N_MAX, dtypes[rand() % 5], (uint64_t)rand() % 50);
        list = list_of(n);
        for (uint64_t wanted = (uint64_t)392 * N_MAX / 8; wanted < 20000; wanted *= 3) {
            if (window_nbytes_choose(&nbytes, &list, wanted, &e) == 0)
                check(&list, nbytes);
            else
                assert_string_equal(e.field, "--stage-window");
            err_clear(&e);
        }
    }
}

/* As a model with compressed attention is cut: the two of one layer stay together, though the list
 * has others in between. */
static void test_names(void **state)
{
    static const char *const given[] = {
        "lm_head.weight",
        "model.layers.0.self_attn.q_a_proj.weight",
        "model.layers.0.mlp.experts.3.gate_proj.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.0.mlp.experts.31.gate_proj.weight",
        "model.layers.0.mlp.experts.3.up_proj.weight",
    };
    static const uint32_t order[] = {0, 1, 3, 2, 5, 4};
    struct tensor_list list;
    struct window_plan p;
    struct err e = {0};

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        set(i, 0, DTYPE_U8, 10);
        specs[i].name = given[i];
    }
    list = list_of(6);
    assert_int_equal(window_plan_init(&p, &list, 30, &e), 0);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.first[1], 3);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(index_of(&p, i), order[i]);
    window_plan_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_random_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
