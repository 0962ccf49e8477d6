/* A model of four tensors, with a tied and a fused name, and tensor lists of rows for it. */
#ifndef BATON_TESTS_ROWS_FIXTURE_H
#define BATON_TESTS_ROWS_FIXTURE_H

#include "weights/model_spec.h"
#include "weights/tensor_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct row {
    const char *name;
    enum dtype dtype;
    uint64_t shape[2];
};

static inline struct tensor_list *tensor_list_of(const struct row *rows, size_t n)
{
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tensor_list_builder_add(b, rows[i].name, rows[i].dtype, rows[i].shape, 2,
                                                 UINT64_MAX, &e),
                         0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static inline struct model_spec *model_spec_of_model(void)
{
    static const struct row rows[] = {{"embed", DTYPE_BF16, {8, 4}},
                                      {"gate", DTYPE_BF16, {6, 4}},
                                      {"up", DTYPE_BF16, {6, 4}},
                                      {"norm", DTYPE_BF16, {1, 4}}};
    static const char *const table[] = {"embed", NULL}, *const halves[] = {"gate", "up", NULL};
    const struct alias_spec aliases[] = {
        {.name = "head", .kind = ALIAS_TIED, .targets = table},
        {.name = "gate_up", .kind = ALIAS_FUSED, .targets = halves, .ndim = 2, .shape = {12, 4}},
    };
    struct model_spec *m;
    struct err e = {0};

    assert_int_equal(model_spec_new(&m, tensor_list_of(rows, 4), aliases, 2, &e), 0);
    return m;
}

#endif
