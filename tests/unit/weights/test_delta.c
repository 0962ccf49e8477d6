/* The names of a transfer say which parts of which tensors it brings. */
#include "tests/unit/failing_alloc.h"
#include "tests/unit/weights/rows_fixture.h"

#include "weights/delta/delta.h"

#include <stdlib.h>
#include <string.h>

enum { N_MAX = 4 };

struct part_row {
    const char *name;
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[2];
};

static struct tensor_list *list_of(const struct part_row *rows)
{
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < N_MAX && rows[i].name != NULL; i++)
        assert_int_equal(tensor_list_builder_add(b, rows[i].name, rows[i].dtype, rows[i].shape,
                                                 rows[i].ndim, UINT64_MAX, &e),
                         0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

/* embed is BF16 [8, 4], norm BF16 [1, 4]; head is tied to embed, gate_up fused of gate and up. */
static const struct good {
    struct part_row parts[N_MAX];
    const char *result;
    enum delta_kind kind;
    uint32_t position_nbytes, positions, values; /* N_MAX: none */
} goods[] = {
    {{{"embed", DTYPE_BF16, 2, {8, 4}}}, "embed", DELTA_WHOLE, 0, N_MAX, 0},
    {{{"norm", DTYPE_BF16, 2, {1, 4}}}, "norm", DELTA_WHOLE, 0, N_MAX, 0},
    {{{"head", DTYPE_BF16, 2, {8, 4}}}, "head", DELTA_WHOLE, 0, N_MAX, 0},
    {{{"gate_up", DTYPE_BF16, 2, {12, 4}}}, "gate_up", DELTA_WHOLE, 0, N_MAX, 0},
    {{{"embed#xor", DTYPE_U16, 2, {8, 4}}}, "embed", DELTA_XOR, 0, N_MAX, 0},
    {{{"embed#xor.zst", DTYPE_U8, 1, {17}}}, "embed", DELTA_XOR, 0, N_MAX, 0},
    {{{"head#xor", DTYPE_U16, 1, {3}}, {"head#gap", DTYPE_U16, 1, {3}}},
     "head",
     DELTA_GAP,
     0,
     1,
     0},
    {{{"embed#gap.zst", DTYPE_U8, 1, {9}}, {"embed#xor", DTYPE_U16, 1, {3}}},
     "embed",
     DELTA_GAP,
     0,
     0,
     1},
    {{{"embed#bitmap", DTYPE_U8, 1, {4}}, {"embed#xor.zst", DTYPE_U8, 1, {3}}},
     "embed",
     DELTA_BITMAP,
     0,
     0,
     1},
    {{{"embed#index", DTYPE_U32, 1, {3}}, {"embed#value", DTYPE_BF16, 1, {3}}},
     "embed",
     DELTA_INDEX,
     4,
     0,
     1},
    {{{"embed#index", DTYPE_I32, 1, {3}}, {"embed#value", DTYPE_U16, 1, {3}}},
     "embed",
     DELTA_INDEX,
     4,
     0,
     1},
    {{{"embed#value", DTYPE_U16, 1, {3}}, {"embed#index", DTYPE_I64, 1, {3}}},
     "embed",
     DELTA_INDEX,
     8,
     1,
     0},
    {{{"embed#index.zst", DTYPE_U8, 1, {3}}, {"embed#value", DTYPE_U16, 1, {3}}},
     "embed",
     DELTA_INDEX,
     0,
     0,
     1},
    {{{"embed#range", DTYPE_U64, 2, {1, 2}}, {"embed#value", DTYPE_BF16, 1, {3}}},
     "embed",
     DELTA_RANGE,
     0,
     0,
     1},
    {{{"norm#range.zst", DTYPE_U8, 1, {40}}, {"norm#value.zst", DTYPE_U8, 1, {3}}},
     "norm",
     DELTA_RANGE,
     0,
     0,
     1},
};

static void test_delta_of_parts_tells_the_kind(void **state)
{
    struct model_spec *m = model_spec_of_model();

    (void)state;
    for (size_t k = 0; k < sizeof goods / sizeof goods[0]; k++) {
        const struct good *g = &goods[k];
        struct tensor_list *parts = list_of(g->parts);
        const struct delta_tensor *t;
        struct delta *d = NULL;
        struct err e = {0};

        if (delta_of_parts(&d, m, parts, &e) != 0)
            print_error("row %zu: %s\n", k, e.msg);
        assert_non_null(d);
        assert_int_equal(d->result->n_tensors, 1);
        assert_string_equal(d->result->tensors[0].name, g->result);
        assert_int_equal(d->result->tensors[0].dtype, DTYPE_BF16);
        assert_int_equal(d->result->tensors[0].ndim, 2);
        t = &d->tensors[0];
        assert_int_equal(t->kind, g->kind);
        if (t->kind == DELTA_WHOLE)
            assert_int_equal(t->base, tensor_list_find(m->tensor_list, g->result));
        assert_int_equal(t->unit, 2);
        assert_int_equal(t->position_nbytes, g->position_nbytes);
        assert_int_equal(t->positions.i, g->positions == N_MAX ? UINT32_MAX : g->positions);
        assert_int_equal(t->values.i, g->values);
        assert_int_equal(t->values.zstd, strstr(parts->tensors[t->values.i].name, ".zst") != NULL);
        assert_int_equal(t->values.nbytes, t->values.zstd ? 0 : parts->tensors[g->values].nbytes);
        delta_free(d);
        tensor_list_unref(parts);
    }
    model_spec_free(m);
}

static const struct bad {
    struct part_row parts[N_MAX];
    enum err_code code;
    const char *field, *says;
} bads[] = {
    {{{"none#xor", DTYPE_U16, 2, {8, 4}}}, ERR_MISMATCH, "/names/0", "no tensor 'none'"},
    {{{"#gap", DTYPE_U16, 1, {8}}}, ERR_MISMATCH, "/names/0", "no tensor ''"},
    {{{"embed", DTYPE_BF16, 2, {8, 4}}, {"#xor.zst", DTYPE_U8, 1, {8}}},
     ERR_MISMATCH,
     "/names/1",
     "no tensor ''"},
    {{{"emded#gap", DTYPE_U16, 1, {8}}}, ERR_MISMATCH, "/names/0", "did you mean 'embed'"},
    {{{"none", DTYPE_BF16, 2, {8, 4}}}, ERR_MISMATCH, "/names/0", "no tensor 'none'"},
    {{{"embed", DTYPE_BF16, 2, {8, 5}}}, ERR_MISMATCH, "/shapes/0", "'embed'"},
    {{{"embed", DTYPE_F32, 2, {8, 4}}}, ERR_MISMATCH, "/dtypes/0", "'embed'"},
    {{{"embed#xor", DTYPE_BF16, 2, {8, 4}}}, ERR_MISMATCH, "/dtypes/0", "'embed#xor'"},
    {{{"embed#xor", DTYPE_U32, 2, {8, 4}}}, ERR_MISMATCH, "/dtypes/0", "'embed#xor'"},
    {{{"embed#xor", DTYPE_U16, 2, {4, 8}}}, ERR_MISMATCH, "/shapes/0", "'embed#xor'"},
    {{{"embed#xor", DTYPE_U16, 1, {32}}}, ERR_MISMATCH, "/shapes/0", "'embed#xor'"},
    {{{"embed#xor.zst", DTYPE_U16, 1, {8}}}, ERR_MISMATCH, "/dtypes/0", "compressed"},
    {{{"embed#xor.zst", DTYPE_U8, 2, {8, 4}}}, ERR_MISMATCH, "/shapes/0", "'embed#xor.zst'"},
    {{{"embed#gap", DTYPE_U32, 1, {3}}}, ERR_MISMATCH, "/dtypes/0", "'embed#gap'"},
    {{{"embed#gap", DTYPE_U16, 2, {3, 1}}, {"embed#xor", DTYPE_U16, 1, {3}}},
     ERR_MISMATCH,
     "/shapes/0",
     "'embed#gap'"},
    {{{"embed#gap", DTYPE_U16, 1, {3}}, {"embed#xor", DTYPE_U16, 2, {3, 1}}},
     ERR_MISMATCH,
     "/shapes/1",
     "'embed#xor'"},
    {{{"embed#bitmap", DTYPE_BOOL, 1, {4}}}, ERR_MISMATCH, "/dtypes/0", "'embed#bitmap'"},
    {{{"embed#index", DTYPE_I16, 1, {4}}}, ERR_MISMATCH, "/dtypes/0", "'embed#index'"},
    {{{"embed#range", DTYPE_U64, 1, {4}}, {"embed#value", DTYPE_BF16, 1, {4}}},
     ERR_MISMATCH,
     "/shapes/0",
     "[k, 2]"},
    {{{"embed#range", DTYPE_U64, 2, {4, 3}}, {"embed#value", DTYPE_BF16, 1, {4}}},
     ERR_MISMATCH,
     "/shapes/0",
     "[k, 2]"},
    {{{"embed#range", DTYPE_I64, 2, {4, 2}}}, ERR_MISMATCH, "/dtypes/0", "'embed#range'"},
    {{{"embed#value", DTYPE_F16, 1, {4}}}, ERR_MISMATCH, "/dtypes/0", "'embed#value'"},
    {{{"embed#delta", DTYPE_U16, 1, {4}}}, ERR_BAD_REQUEST, "/names/0", "'embed#delta' is no part"},
    {{{"embed#", DTYPE_U16, 1, {4}}}, ERR_BAD_REQUEST, "/names/0", "is no part"},
    {{{"embed#.zst", DTYPE_U8, 1, {4}}}, ERR_BAD_REQUEST, "/names/0", "is no part"},
    {{{"embed#gap", DTYPE_U16, 1, {3}}},
     ERR_BAD_REQUEST,
     "/names/0",
     "'embed' has #gap and no values"},
    {{{"embed#value", DTYPE_U16, 1, {3}}},
     ERR_BAD_REQUEST,
     "/names/0",
     "'embed' has no positions and #value"},
    {{{"norm", DTYPE_BF16, 2, {1, 4}},
      {"embed#gap", DTYPE_U16, 1, {3}},
      {"embed#value", DTYPE_U16, 1, {3}}},
     ERR_BAD_REQUEST,
     "/names/2",
     "has #gap and #value"},
    {{{"embed#index", DTYPE_U32, 1, {3}}, {"embed#xor", DTYPE_U16, 1, {3}}},
     ERR_BAD_REQUEST,
     "/names/1",
     "has #index and #xor"},
    {{{"embed", DTYPE_BF16, 2, {8, 4}}, {"embed#xor", DTYPE_U16, 2, {8, 4}}},
     ERR_BAD_REQUEST,
     "/names/1",
     "does not belong together"},
    {{{"embed#xor", DTYPE_U16, 2, {8, 4}}, {"embed", DTYPE_BF16, 2, {8, 4}}},
     ERR_BAD_REQUEST,
     "/names/1",
     "does not belong together"},
    {{{"embed#gap", DTYPE_U16, 1, {3}}, {"embed#bitmap", DTYPE_U8, 1, {4}}},
     ERR_BAD_REQUEST,
     "/names/1",
     "does not belong together"},
    {{{"embed#xor", DTYPE_U16, 1, {3}}, {"embed#xor.zst", DTYPE_U8, 1, {4}}},
     ERR_BAD_REQUEST,
     "/names/1",
     "does not belong together"},
    {{{"gate_up#xor", DTYPE_U16, 2, {12, 4}}}, ERR_BAD_REQUEST, "/names/0", "fused"},
    {{{"model.rotary_emb.inv_freq#xor", DTYPE_U32, 1, {4}}},
     ERR_BAD_REQUEST,
     "/names/0",
     "derived"},
};

static void test_delta_of_parts_refuses(void **state)
{
    struct model_spec *m = model_spec_of_model();

    (void)state;
    for (size_t k = 0; k < sizeof bads / sizeof bads[0]; k++) {
        struct tensor_list *parts = list_of(bads[k].parts);
        struct delta *d = NULL;
        struct err e = {0};

        assert_int_equal(delta_of_parts(&d, m, parts, &e), -1);
        if (e.code != bads[k].code || strcmp(e.field, bads[k].field) != 0 ||
            strstr(e.msg, bads[k].says) == NULL)
            print_error("row %zu: %s: %s\n", k, e.field, e.msg);
        assert_int_equal(e.code, bads[k].code);
        assert_string_equal(e.field, bads[k].field);
        assert_non_null(strstr(e.msg, bads[k].says));
        assert_null(d);
        tensor_list_unref(parts);
    }
    model_spec_free(m);
}

static void test_delta_of_parts_keeps_the_order(void **state)
{
    static const struct part_row rows[N_MAX] = {{"up#gap", DTYPE_U16, 1, {1}},
                                                {"embed", DTYPE_BF16, 2, {8, 4}},
                                                {"norm#xor", DTYPE_U16, 2, {1, 4}},
                                                {"up#xor", DTYPE_U16, 1, {1}}};
    struct model_spec *m = model_spec_of_model();
    struct tensor_list *parts = list_of(rows);
    struct delta *d = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(delta_of_parts(&d, m, parts, &e), 0);
    assert_int_equal(d->result->n_tensors, 3);
    assert_string_equal(d->result->tensors[0].name, "up");
    assert_string_equal(d->result->tensors[1].name, "embed");
    assert_string_equal(d->result->tensors[2].name, "norm");
    assert_int_equal(d->tensors[0].values.i, 3);
    delta_free(d);
    tensor_list_unref(parts);
    model_spec_free(m);
}

/* A list of the same names with the shapes of `rows`. */
static int shape_of_row(void *arg, uint32_t i, uint64_t *shape, uint32_t *ndim, uint64_t *numel,
                        struct err *e)
{
    const struct part_row *rows = arg;

    (void)e;
    *ndim = rows[i].ndim;
    memcpy(shape, rows[i].shape, sizeof rows[i].shape);
    *numel = UINT64_MAX;
    return 0;
}

static struct tensor_list *reshaped(struct tensor_list *parts, const struct part_row *rows)
{
    struct part_row copy[N_MAX];
    struct tensor_list *p;
    struct err e = {0};

    memcpy(copy, rows, sizeof copy);
    assert_int_equal(tensor_list_reshape(&p, parts, shape_of_row, copy, &e), 0);
    return p;
}

/* What the next step's delta says is what it would say by its names. */
static void test_delta_of_shapes_says_the_same(void **state)
{
    struct model_spec *m = model_spec_of_model();

    (void)state;
    for (size_t k = 0; k < sizeof goods / sizeof goods[0]; k++) {
        struct part_row rows[N_MAX];
        struct tensor_list *parts = list_of(goods[k].parts), *other;
        struct delta *first, *wanted, *found;
        struct err e = {0};

        memcpy(rows, goods[k].parts, sizeof rows);
        for (size_t i = 0; i < N_MAX; i++)
            rows[i].shape[0] += rows[i].ndim == 1 || rows[i].dtype == DTYPE_U64; /* of parts [n] */
        other = reshaped(parts, rows);
        assert_int_equal(delta_of_parts(&first, m, parts, &e), 0);
        assert_int_equal(delta_of_parts(&wanted, m, other, &e), 0);
        assert_int_equal(delta_of_shapes(&found, first, m, other, &e), 0);
        assert_ptr_equal(found->result, first->result);
        assert_memory_equal(found->tensors, wanted->tensors, sizeof *wanted->tensors);
        delta_free(first);
        delta_free(wanted);
        delta_free(found);
        tensor_list_unref(parts);
        tensor_list_unref(other);
    }
    model_spec_free(m);
}

static const struct {
    struct part_row parts[N_MAX], then[N_MAX];
    const char *field;
} misshapen[] = {
    {{{"embed#index", DTYPE_U32, 1, {3}}, {"embed#value", DTYPE_BF16, 1, {3}}},
     {{.ndim = 1, .shape = {3}}, {.ndim = 2, .shape = {3, 1}}},
     "/shapes/1"},
    {{{"embed#range", DTYPE_U64, 2, {3, 2}}, {"embed#value", DTYPE_BF16, 1, {3}}},
     {{.ndim = 2, .shape = {3, 3}}, {.ndim = 1, .shape = {3}}},
     "/shapes/0"},
    {{{"embed#xor", DTYPE_U16, 2, {8, 4}}}, {{.ndim = 2, .shape = {4, 8}}}, "/shapes/0"},
    {{{"norm#xor", DTYPE_U16, 2, {1, 4}}, {"embed", DTYPE_BF16, 2, {8, 4}}},
     {{.ndim = 2, .shape = {1, 4}}, {.ndim = 2, .shape = {8, 5}}},
     "/shapes/1"},
    {{{"embed#gap.zst", DTYPE_U8, 1, {9}}, {"embed#xor", DTYPE_U16, 1, {3}}},
     {{.ndim = 2, .shape = {9, 1}}, {.ndim = 1, .shape = {3}}},
     "/shapes/0"},
};

static void test_delta_of_shapes_refuses(void **state)
{
    struct model_spec *m = model_spec_of_model();

    (void)state;
    for (size_t k = 0; k < sizeof misshapen / sizeof misshapen[0]; k++) {
        struct tensor_list *parts = list_of(misshapen[k].parts);
        struct tensor_list *other = reshaped(parts, misshapen[k].then);
        struct delta *first, *found = NULL;
        struct err e = {0};

        assert_int_equal(delta_of_parts(&first, m, parts, &e), 0);
        assert_int_equal(delta_of_shapes(&found, first, m, other, &e), -1);
        assert_int_equal(e.code, ERR_MISMATCH);
        assert_string_equal(e.field, misshapen[k].field);
        assert_null(found);
        delta_free(first);
        tensor_list_unref(parts);
        tensor_list_unref(other);
    }
    model_spec_free(m);
}

static void test_delta_of_parts_unwinds_every_failure(void **state)
{
    struct model_spec *m = model_spec_of_model();
    struct tensor_list *parts = list_of(goods[5].parts);
    int rc = -1;

    (void)state;
    for (int n = 0; rc != 0; n++) {
        struct delta *d = NULL;
        struct err e = {0};

        atomic_store(&alloc_left, n);
        rc = delta_of_parts(&d, m, parts, &e);
        atomic_store(&alloc_left, -1);
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_NO_MEMORY);
        assert_int_equal(d != NULL, rc == 0);
        delta_free(d);
    }
    tensor_list_unref(parts);
    model_spec_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_of_parts_tells_the_kind),
        cmocka_unit_test(test_delta_of_parts_refuses),
        cmocka_unit_test(test_delta_of_parts_keeps_the_order),
        cmocka_unit_test(test_delta_of_shapes_says_the_same),
        cmocka_unit_test(test_delta_of_shapes_refuses),
        cmocka_unit_test(test_delta_of_parts_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
