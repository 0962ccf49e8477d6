/* What a commit changed, from checksums alone: the comparison, and what it warns of. */
#include "weights/update/changes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_LARGE = 6, NORM = N_LARGE, BIAS, SCALE, EMBED, HEAD, N };
enum { LARGE_NUMEL = CHANGES_LARGE_NUMEL, NORM_NUMEL = 128, BIAS_NUMEL = 129 };

static struct tensor_list *list;

/* Two versions: of each tensor the number that its bytes are made of; 0: all zero, ONES: all one.
 */
enum { ONES = 1 };
static struct digest before[N], now[N];

static void add(struct tensor_list_builder *b, const char *name, enum dtype dtype, uint64_t numel)
{
    struct err e = {0};

    assert_int_equal(tensor_list_builder_add(b, name, dtype, &numel, 1, numel, &e), 0);
}

static int make_list(void **state)
{
    struct tensor_list_builder *b;
    struct err e = {0};
    char name[32];

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (int i = 0; i < N_LARGE; i++) {
        (void)snprintf(name, sizeof name, "layer.%d.weight", i);
        add(b, name, DTYPE_BF16, LARGE_NUMEL);
    }
    add(b, "norm.weight", DTYPE_BF16, NORM_NUMEL);
    add(b, "proj.bias", DTYPE_BF16, BIAS_NUMEL); /* its last word is cut */
    add(b, "proj.scale", DTYPE_F32, 1);
    add(b, "embed.weight", DTYPE_BF16, LARGE_NUMEL);
    add(b, "head.weight", DTYPE_BF16, LARGE_NUMEL);
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    assert_int_equal(list->n_tensors, N);
    return 0;
}

static int free_list(void **state)
{
    (void)state;
    tensor_list_unref(list);
    return 0;
}

static void put(struct digest *d, uint32_t i, unsigned seed)
{
    const struct tensor_spec *t = &list->tensors[i];
    uint8_t *bytes = calloc(1, t->nbytes);
    uint32_t x = seed;

    assert_non_null(bytes);
    for (uint64_t k = 0; k < t->nbytes; k++) {
        x = x * 1664525 + 1013904223;
        if (seed == ONES)
            bytes[k] = k % 2 == 0 ? 0x80 : 0x3f;
        else if (seed != 0)
            bytes[k] = (uint8_t)(x >> 24);
    }
    d[i] = (struct digest){.sum = checksum_of(bytes, t->nbytes), .known = true, .sent = true};
    free(bytes);
}

/* The version before, and one in which every tensor is another. */
static void versions(void)
{
    for (uint32_t i = 0; i < N; i++) {
        put(before, i, 100 + i);
        put(now, i, 200 + i);
    }
}

static void keep(uint32_t i)
{
    now[i] = before[i];
}

static struct change_report *compare(const char *label)
{
    const struct change_before was = {before, 7, "step-7"};
    struct change_report *r = NULL;
    struct err e = {0};

    assert_int_equal(change_report_make(&r, list, &was, now, label, &e), 0);
    assert_true(r->counts.known);
    assert_int_equal(r->counts.before_serial, 7);
    assert_string_equal(r->counts.before_label, "step-7");
    assert_int_equal(r->n_tensors, N);
    return r;
}

static unsigned warnings_of(const struct change_report *r)
{
    unsigned bits = 0;

    for (int i = 0; i < CHANGE_WARNING_COUNT; i++)
        bits |= r->counts.warnings[i] ? 1U << i : 0;
    return bits;
}

static void check(const char *label, uint32_t n_changed, uint32_t n_equal, unsigned warnings)
{
    struct change_report *r = compare(label);

    assert_int_equal(r->counts.n[CHANGE_CHANGED], n_changed);
    assert_int_equal(r->counts.n_equal_to_another, n_equal);
    assert_int_equal(warnings_of(r), warnings);
    free(r);
}

enum {
    NOTHING = 1 << CHANGE_WARN_NOTHING,
    FEW = 1 << CHANGE_WARN_FEW,
    EQUAL = 1 << CHANGE_WARN_EQUAL
};

static void test_all_changed(void **state)
{
    (void)state;
    versions();
    check("step-8", N, 0, 0);
}

static void test_nothing_changed(void **state)
{
    struct change_report *r;

    (void)state;
    versions();
    for (uint32_t i = 0; i < N; i++)
        keep(i);
    r = compare("step-8");
    assert_int_equal(r->counts.n[CHANGE_UNCHANGED], N);
    assert_int_equal(warnings_of(r), NOTHING);
    assert_false(r->counts.repeated);
    free(r);
    r = compare("step-7"); /* the same version again is no fault */
    assert_int_equal(warnings_of(r), 0);
    assert_true(r->counts.repeated);
    free(r);
    check("", 0, 0, NOTHING); /* a label of its own is another one */
    for (uint32_t i = 0; i < N; i++)
        assert_false(now[i].unchanged); /* it is no reason to expect that they stay */
    put(now, 0, 200);
    check("step-7", 1, 0, 0); /* the same label with other bytes is no repetition */
}

/* Large ones warn once: what is frozen stays so. Small ones are often equal by rounding. */
static void test_a_few_unchanged(void **state)
{
    struct change_report *r;

    (void)state;
    versions();
    keep(2);
    keep(NORM);
    keep(BIAS);
    r = compare("step-8");
    assert_int_equal(r->counts.n[CHANGE_UNCHANGED], 3);
    assert_int_equal(r->counts.n_newly_unchanged, 1);
    assert_true(r->tensors[2].newly_unchanged);
    assert_int_equal(warnings_of(r), FEW);
    free(r);
    assert_true(now[2].unchanged && now[NORM].unchanged && !now[3].unchanged);

    memcpy(before, now, sizeof before);
    for (uint32_t i = 0; i < N; i++)
        put(now, i, 300 + i);
    keep(2);
    check("step-9", N - 1, 0, 0);
    keep(3); /* a second one stops */
    r = compare("step-9");
    assert_int_equal(r->counts.n[CHANGE_UNCHANGED], 2);
    assert_int_equal(r->counts.n_newly_unchanged, 1);
    assert_true(r->tensors[3].newly_unchanged);
    assert_int_equal(warnings_of(r), FEW);
    free(r);
}

static void test_most_unchanged_is_no_few(void **state)
{
    (void)state;
    versions();
    for (uint32_t i = 0; i < N; i++)
        keep(i);
    put(now, 0, 200);
    check("step-8", 1, 0, 0);
    versions();
    for (uint32_t i = 0; i < N; i++)
        put(before, i, 0); /* large, but all zero: not in use */
    memcpy(now, before, sizeof now);
    for (uint32_t i = 1; i < N; i++)
        put(now, i, 200 + i);
    check("step-8", N - 1, 0, 0);
}

static void test_two_swapped(void **state)
{
    struct change_report *r;

    (void)state;
    versions();
    now[1] = before[4];
    now[4] = before[1];
    r = compare("step-8");
    assert_int_equal(r->counts.n[CHANGE_CHANGED], N);
    assert_int_equal(r->counts.n_equal_to_another, 2);
    assert_int_equal(r->tensors[1].other, 4);
    assert_int_equal(r->tensors[4].other, 1);
    assert_true(r->tensors[1].other_before && r->tensors[4].other_before);
    assert_int_equal(r->tensors[0].other, TENSOR_LIST_NO_TENSOR);
    assert_int_equal(warnings_of(r), EQUAL);
    free(r);
}

static void test_one_has_anothers_old_bytes(void **state)
{
    (void)state;
    versions();
    now[5] = before[0];
    check("step-8", N, 1, EQUAL);
}

static void test_one_has_anothers_new_bytes(void **state)
{
    struct change_report *r;

    (void)state;
    versions();
    now[5] = now[0];
    r = compare("step-8");
    assert_int_equal(r->counts.n_equal_to_another, 1);
    assert_int_equal(r->tensors[5].other, 0);
    assert_false(r->tensors[5].other_before);
    assert_int_equal(warnings_of(r), EQUAL);
    free(r);
}

static void test_tied_tensors_stay_equal(void **state)
{
    (void)state;
    versions();
    before[HEAD] = before[EMBED];
    now[HEAD] = now[EMBED];
    check("step-8", N, 0, 0);
    put(now, HEAD, 500); /* they part */
    check("step-8", N, 0, 0);
    now[HEAD] = before[2];
    check("step-8", N, 1, EQUAL);
}

/* Zeros and ones, with a whole last word and without, and scalars. */
static void test_constants_and_scalars_are_equal_by_chance(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed <= ONES; seed++) {
        versions();
        put(before, 0, seed);
        put(now, 1, seed); /* as 0 was */
        put(now, 2, seed); /* as 1 is */
        put(before, BIAS, seed);
        check("step-8", N, 0, 0);
    }
    versions();
    put(before, SCALE, 900);
    put(now, SCALE, 901);
    check("step-8", N, 0, 0);
}

static void test_what_is_constant(void **state)
{
    struct digest d[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        for (unsigned seed = 0; seed <= ONES; seed++) {
            put(d, i, seed);
            assert_true(checksum_is_constant(&d[i].sum, list->tensors[i].nbytes));
        }
        if (i == SCALE) /* one word */
            continue;
        for (unsigned seed = 2; seed < 6; seed++) {
            put(d, i, seed);
            assert_false(checksum_is_constant(&d[i].sum, list->tensors[i].nbytes));
        }
        put(d, i, ONES);
        d[i].sum.b++;
        assert_false(checksum_is_constant(&d[i].sum, list->tensors[i].nbytes));
    }
}

static void test_partial_and_unknown(void **state)
{
    struct change_report *r;

    (void)state;
    versions();
    for (uint32_t i = 0; i < N; i++)
        keep(i);
    for (uint32_t i = 1; i < N; i++)
        now[i].sent = false;
    r = compare("step-8");
    assert_int_equal(r->counts.n[CHANGE_NOT_SENT], N - 1);
    assert_int_equal(r->counts.n[CHANGE_UNCHANGED], 1);
    assert_int_equal(warnings_of(r), NOTHING);
    free(r);
    now[1].sent = true;
    now[1].known = false;
    r = compare("step-8"); /* it may have changed */
    assert_int_equal(r->counts.n[CHANGE_NOT_COMPARED], 1);
    assert_int_equal(warnings_of(r), 0);
    free(r);
    now[0] = before[3]; /* the other keeps it */
    check("step-8", 1, 1, EQUAL);
    before[3].known = false;
    now[3].known = false;
    check("step-8", 1, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_changed),
        cmocka_unit_test(test_nothing_changed),
        cmocka_unit_test(test_a_few_unchanged),
        cmocka_unit_test(test_most_unchanged_is_no_few),
        cmocka_unit_test(test_two_swapped),
        cmocka_unit_test(test_one_has_anothers_old_bytes),
        cmocka_unit_test(test_one_has_anothers_new_bytes),
        cmocka_unit_test(test_tied_tensors_stay_equal),
        cmocka_unit_test(test_constants_and_scalars_are_equal_by_chance),
        cmocka_unit_test(test_what_is_constant),
        cmocka_unit_test(test_partial_and_unknown),
    };

    return cmocka_run_group_tests(tests, make_list, free_list);
}
