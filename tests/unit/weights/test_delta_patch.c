/* Patches of vLLM's trainers become parts of a delta, and are put in order. */
#include "tests/unit/failing_alloc.h"
#include "tests/unit/weights/rows_fixture.h"

#include "weights/delta/delta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 2 };

/* embed is BF16 [8, 4], norm BF16 [1, 4]; head is tied to embed, gate_up fused of gate and up. */
struct patch_row {
    const char *name;
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[2];
    uint64_t count;
};

static struct tensor_list *named_of(const struct patch_row *rows, uint64_t *counts)
{
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < N_MAX && rows[i].name != NULL; i++) {
        counts[i] = rows[i].count;
        assert_int_equal(tensor_list_builder_add(b, rows[i].name, rows[i].dtype, rows[i].shape,
                                                 rows[i].ndim, UINT64_MAX, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static const struct patch_row good[N_MAX] = {{"head", DTYPE_BF16, 2, {8, 4}, 32},
                                             {"norm", DTYPE_BF16, 2, {1, 4}, 0}};

static void test_delta_of_patches_lists_positions_and_values(void **state)
{
    struct model_spec *m = model_spec_of_model();
    uint64_t counts[N_MAX];
    struct tensor_list *named = named_of(good, counts), *parts = NULL;
    struct delta *d = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(delta_of_patches(&d, &parts, m, named, counts, &e), 0);
    assert_int_equal(parts->n_tensors, 4);
    assert_string_equal(parts->tensors[0].name, "head#index");
    assert_int_equal(parts->tensors[0].dtype, DTYPE_I32);
    assert_int_equal(parts->tensors[0].nbytes, 32 * 4);
    assert_string_equal(parts->tensors[1].name, "head#value");
    assert_int_equal(parts->tensors[1].nbytes, 32 * 2);
    assert_int_equal(parts->tensors[3].nbytes, 0);
    assert_int_equal(d->result->n_tensors, 2);
    assert_string_equal(d->result->tensors[0].name, "head");
    assert_int_equal(d->result->tensors[0].numel, 32);
    assert_int_equal(d->tensors[1].kind, DELTA_INDEX);
    assert_int_equal(d->tensors[0].base, 0); /* head is tied to it */
    assert_int_equal(d->tensors[1].base, 3);
    assert_int_equal(d->tensors[1].positions.i, 2);
    assert_int_equal(d->tensors[1].values.i, 3);
    assert_true(d->tensors[1].patch);
    delta_free(d);
    tensor_list_unref(parts);
    tensor_list_unref(named);
    model_spec_free(m);
}

static const struct bad {
    struct patch_row rows[N_MAX];
    enum err_code code;
    const char *field, *says;
} bads[] = {
    {{{"none", DTYPE_BF16, 2, {8, 4}, 1}}, ERR_MISMATCH, "/names/0", "no tensor 'none'"},
    {{{"norm", DTYPE_BF16, 2, {1, 4}, 1}, {"embed", DTYPE_BF16, 2, {8, 5}, 1}},
     ERR_MISMATCH,
     "/shapes/1",
     "'embed'"},
    {{{"embed", DTYPE_BF16, 1, {32}, 1}}, ERR_MISMATCH, "/shapes/0", "'embed'"},
    {{{"embed", DTYPE_F16, 2, {8, 4}, 1}}, ERR_MISMATCH, "/dtypes/0", "are F16"},
    {{{"embed", DTYPE_U16, 2, {8, 4}, 1}}, ERR_MISMATCH, "/dtypes/0", "U16"},
    {{{"embed", DTYPE_BF16, 2, {8, 4}, 33}},
     ERR_BAD_REQUEST,
     "/num_updates_list/0",
     "33 updates of 32"},
    {{{"embed", DTYPE_BF16, 2, {8, 4}, UINT64_MAX}},
     ERR_BAD_REQUEST,
     "/num_updates_list/0",
     "updates of 32"},
    {{{"gate_up", DTYPE_BF16, 2, {12, 4}, 1}}, ERR_BAD_REQUEST, "/names/0", "'gate_up'"},
    {{{"a.qkv_proj.weight", DTYPE_BF16, 2, {12, 4}, 1}}, ERR_MISMATCH, "/names/0", "vLLM 0.28"},
    {{{"model.rotary_emb.inv_freq", DTYPE_F32, 1, {4}, 1}}, ERR_BAD_REQUEST, "/names/0", "no such"},
};

static void test_delta_of_patches_refuses(void **state)
{
    struct model_spec *m = model_spec_of_model();

    (void)state;
    for (size_t k = 0; k < sizeof bads / sizeof bads[0]; k++) {
        uint64_t counts[N_MAX];
        struct tensor_list *named = named_of(bads[k].rows, counts), *parts = NULL;
        struct delta *d = NULL;
        struct err e = {0};

        assert_int_equal(delta_of_patches(&d, &parts, m, named, counts, &e), -1);
        if (e.code != bads[k].code || strcmp(e.field, bads[k].field) != 0 ||
            strstr(e.msg, bads[k].says) == NULL)
            print_error("row %zu: %s: %s\n", k, e.field, e.msg);
        assert_int_equal(e.code, bads[k].code);
        assert_string_equal(e.field, bads[k].field);
        assert_non_null(strstr(e.msg, bads[k].says));
        assert_null(d);
        assert_null(parts);
        tensor_list_unref(named);
    }
    model_spec_free(m);
}

static void test_delta_of_patches_unwinds_every_failure(void **state)
{
    struct model_spec *m = model_spec_of_model();
    uint64_t counts[N_MAX];
    struct tensor_list *named = named_of(good, counts);
    int rc = -1;

    (void)state;
    for (int n = 0; rc != 0; n++) {
        struct tensor_list *parts = NULL;
        struct delta *d = NULL;
        struct err e = {0};

        atomic_store(&alloc_left, n);
        rc = delta_of_patches(&d, &parts, m, named, counts, &e);
        atomic_store(&alloc_left, -1);
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_NO_MEMORY);
        assert_int_equal(d != NULL, rc == 0);
        assert_int_equal(parts != NULL, rc == 0);
        delta_free(d);
        tensor_list_unref(parts);
    }
    tensor_list_unref(named);
    model_spec_free(m);
}

/* ---- in order ---- */

enum { SORT_MAX = 3000 };

struct entry {
    uint32_t position, n; /* n: where it was; its value tells */
};

static int by_position(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return x->position < y->position ? -1 : x->position > y->position;
}

/* Bytes of value n, of `unit` bytes. */
static uint64_t value_of(uint32_t n, uint32_t unit)
{
    uint64_t value = n * UINT64_C(0x9e3779b97f4a7c15);

    return unit == 8 ? value : value & ((UINT64_C(1) << (8 * unit)) - 1);
}

static void check_sorted(struct entry *entries, uint32_t n, uint32_t unit)
{
    static char memory[SORT_MAX * 12 + 2];
    char *positions = memory + 1, *values = positions + (size_t)n * 4; /* any alignment */

    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = value_of(entries[i].n, unit);

        memcpy(positions + (size_t)i * 4, &entries[i].position, 4);
        memcpy(values + (size_t)i * unit, &value, unit);
    }
    values[(size_t)n * unit] = 'x';
    delta_sort(positions, values, n, unit);
    qsort(entries, n, sizeof *entries, by_position);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = 0;

        assert_memory_equal(positions + (size_t)i * 4, &entries[i].position, 4);
        memcpy(&value, values + (size_t)i * unit, unit);
        assert_int_equal(value, value_of(entries[i].n, unit));
    }
    assert_int_equal(values[(size_t)n * unit], 'x');
}

/* All different. */
static void entries_of(struct entry *entries, uint32_t n, uint32_t spread)
{
    for (uint32_t i = 0; i < n; i++)
        entries[i] = (struct entry){i * spread, i};
}

static void shuffle(struct entry *entries, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)rand() % i;
        struct entry kept = entries[k];

        entries[k] = entries[i - 1];
        entries[i - 1] = kept;
    }
}

static void test_delta_sort_puts_any_order_in_order(void **state)
{
    static const uint32_t units[] = {1, 2, 4, 8}, counts[] = {0, 1, 2, 3, 64, SORT_MAX};
    static struct entry entries[SORT_MAX];

    (void)state;
    srand(7);
    for (size_t u = 0; u < 4; u++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (uint32_t order = 0; order < 4; order++) {
                uint32_t n = counts[c];

                entries_of(entries, n, order == 3 ? 0x7fffffff : 5); /* with wrapping: all bits */
                if (order >= 2)
                    shuffle(entries, n);
                for (uint32_t i = 0; order == 1 && i < n / 2; i++) { /* backwards */
                    struct entry kept = entries[i];

                    entries[i] = entries[n - 1 - i];
                    entries[n - 1 - i] = kept;
                }
                check_sorted(entries, n, units[u]);
            }
}

/* Both are still there, side by side, for the merge to refuse. */
static void test_delta_sort_keeps_doubles(void **state)
{
    uint32_t positions[] = {9, 3, 9, UINT32_MAX, 0}, wanted[] = {0, 3, 9, 9, UINT32_MAX};
    uint16_t values[] = {1, 2, 3, 4, 5};

    (void)state;
    delta_sort(positions, values, 5, 2);
    assert_memory_equal(positions, wanted, sizeof wanted);
    assert_int_equal(values[0], 5);
    assert_int_equal(values[1], 2);
    assert_int_equal(values[2] + values[3], 4);
    assert_int_equal(values[4], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_of_patches_lists_positions_and_values),
        cmocka_unit_test(test_delta_of_patches_refuses),
        cmocka_unit_test(test_delta_of_patches_unwinds_every_failure),
        cmocka_unit_test(test_delta_sort_puts_any_order_in_order),
        cmocka_unit_test(test_delta_sort_keeps_doubles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
