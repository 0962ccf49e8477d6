/* What changed is found and encoded, and applying that gives the new bytes. */
#include "tests/unit/failing_alloc.h"
#include "tests/unit/weights/rows_fixture.h"

#include "weights/delta/delta_encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMEL = 70003, SPARSE_NUMEL = 3 << 20, NAME_MAX_LEN = TENSOR_LIST_NAME_LEN_MAX + 1 };

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Two versions of a tensor. */
struct versions {
    struct tensor_list *list; /* owned; of one tensor */
    const struct tensor_spec *t;
    unsigned char *base, *bytes; /* owned */
};

static struct versions versions_of(const char *name, enum dtype dtype, uint64_t numel)
{
    struct tensor_list_builder *b;
    struct versions v;
    struct err e = {0};
    uint64_t seed = 88172645463325252u;

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, name, dtype, &numel, 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &v.list, &e), 0);
    v.t = &v.list->tensors[0];
    v.base = malloc(v.t->nbytes + 1);
    v.bytes = malloc(v.t->nbytes + 1);
    assert_true(v.base != NULL && v.bytes != NULL);
    for (uint64_t i = 0; i < v.t->nbytes; i++)
        v.base[i] = (unsigned char)(random_next(&seed) >> 40);
    memcpy(v.bytes, v.base, v.t->nbytes);
    return v;
}

static void versions_free(struct versions *v)
{
    free(v->base);
    free(v->bytes);
    tensor_list_unref(v->list);
}

/* Changes each element with this chance, by 1 up or down, as a step of an optimizer does; returns
 * how many. */
static uint64_t change(struct versions *v, double chance)
{
    uint64_t seed = 1442695040888963407u, n = 0, unit = dtype_nbytes(v->t->dtype), value;

    for (uint64_t i = 0; i < v->t->numel; i++) {
        if ((double)(random_next(&seed) >> 11) * 0x1p-53 >= chance)
            continue;
        value = 0;
        memcpy(&value, v->bytes + i * unit, unit);
        value += (random_next(&seed) >> 40 & 1) != 0 ? 1 : UINT64_MAX;
        memcpy(v->bytes + i * unit, &value, unit);
        n++;
    }
    return n;
}

static uint64_t encoding_nbytes(const struct delta_encoding *x)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < x->n_parts; i++)
        n += x->parts[i].nbytes;
    return n;
}

/* Sends the parts as a transfer, and applies what arrives. */
static void assert_applies(const struct versions *v, const struct delta_encoding *x)
{
    struct tensor_list_builder *b;
    struct tensor_list *parts;
    struct delta_bytes bytes[DELTA_ENCODING_PARTS_MAX] = {{0}};
    struct delta_merge *merge;
    struct model_spec *m;
    struct delta *d = NULL;
    struct err e = {0};
    unsigned char *out = malloc(v->t->nbytes + 1);
    char name[NAME_MAX_LEN];

    assert_non_null(out);
    assert_int_equal(model_spec_new(&m, tensor_list_ref(v->list), NULL, 0, &e), 0);
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < x->n_parts; i++) {
        const struct delta_encoding_part *p = &x->parts[i];

        (void)snprintf(name, sizeof name, "%s%s", v->t->name, p->suffix);
        assert_int_equal(
            tensor_list_builder_add(b, name, p->dtype, p->shape, p->ndim, UINT64_MAX, &e), 0);
        bytes[i] = (struct delta_bytes){p->data, p->nbytes};
    }
    assert_int_equal(tensor_list_builder_finish(b, &parts, &e), 0);
    if (delta_of_parts(&d, m, parts, &e) != 0)
        print_error("%s\n", e.msg);
    assert_non_null(d);
    assert_int_equal(d->tensors[0].kind, x->kind);
    assert_int_equal(delta_merge_new(&merge, &e), 0);
    if (delta_apply(merge, out, v->t, &d->tensors[0], v->base, bytes[0], bytes[x->n_parts - 1],
                    &e) != 0)
        print_error("%s\n", e.msg);
    assert_int_equal(e.code, ERR_NONE);
    assert_memory_equal(out, v->bytes, v->t->nbytes);
    delta_merge_free(merge);
    delta_free(d);
    tensor_list_unref(parts);
    model_spec_free(m);
    free(out);
}

static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* Rows: which part of the elements changes, and the kinds without zstd and with it. */
static const struct density {
    double chance;
    enum delta_kind raw, zstd;
} densities[] = {
    {0.0001, DELTA_GAP, DELTA_GAP},    {0.01, DELTA_GAP, DELTA_GAP},
    {0.1, DELTA_BITMAP, DELTA_BITMAP}, {0.6, DELTA_BITMAP, DELTA_BITMAP},
    {0.999, DELTA_WHOLE, DELTA_XOR},   {1, DELTA_WHOLE, DELTA_XOR},
};

static void test_delta_encode_applies_to_the_new_bytes(void **state)
{
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};

    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        assert_int_equal(delta_encoder_new(&c, zstd != 0, &e), 0);
        for (size_t i = 0; i < N_DTYPES; i++) {
            for (size_t k = 0; k < sizeof densities / sizeof densities[0]; k++) {
                const struct density *row = &densities[k];
                struct versions v = versions_of("w", dtypes[i], NUMEL);
                uint64_t n = change(&v, row->chance);

                assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
                assert_int_equal(x.n_changed, n);
                assert_true(encoding_nbytes(&x) <= v.t->nbytes);
                if (row->chance != 0.1 || dtype_nbytes(dtypes[i]) < 8)
                    assert_int_equal(x.kind, zstd != 0 ? row->zstd : row->raw);
                assert_applies(&v, &x);
                versions_free(&v);
            }
        }
        delta_encoder_free(c);
    }
}

/* Every size around a word of the bitmap, a chunk and a step of the comparison, unaligned. */
static void test_delta_encode_compares_every_element(void **state)
{
    static const uint64_t sizes[] = {1, 2, 7, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 4161};
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};

    (void)state;
    assert_int_equal(delta_encoder_new(&c, false, &e), 0);
    for (size_t i = 0; i < N_DTYPES; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            struct versions v = versions_of("w", dtypes[i], sizes[k]);
            uint64_t unit = dtype_nbytes(dtypes[i]);

            memmove(v.base + 1, v.base, v.t->nbytes);
            assert_int_equal(delta_encode(&x, c, v.t, v.base + 1, v.bytes, &e), 0);
            assert_int_equal(x.n_changed + x.n_parts, 0);
            memmove(v.base, v.base + 1, v.t->nbytes);
            for (uint64_t at = 0; at < v.t->numel; at += at == 0 || sizes[k] < 200 ? 1 : 61) {
                v.bytes[at * unit + (at % unit)] ^= 0x80;
                assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
                assert_int_equal(x.n_changed, 1);
                assert_applies(&v, &x);
                v.bytes[at * unit + (at % unit)] ^= 0x80;
            }
            versions_free(&v);
        }
    }
    delta_encoder_free(c);
}

/* Gaps that are as long as one can be, and longer: 65534, 65535, 65536, 65537, two of them. */
static void test_delta_encode_bridges_long_gaps(void **state)
{
    static const uint64_t gaps[] = {65534, 65535, 65536, 65537, 131070, 131071, 131072, 131073};
    struct versions v = versions_of("w", DTYPE_BF16, SPARSE_NUMEL);
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};
    uint64_t at = 0;

    (void)state;
    assert_int_equal(delta_encoder_new(&c, false, &e), 0);
    for (size_t i = 0; i < sizeof gaps / sizeof gaps[0]; i++) {
        for (uint64_t next = at + 40; at < next; at++)
            v.bytes[2 * at] ^= 1;
        at += gaps[i];
    }
    v.bytes[2 * at] ^= 1;
    assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
    assert_int_equal(x.kind, DELTA_GAP);
    assert_true(x.parts[0].shape[0] > x.n_changed); /* bridges */
    assert_applies(&v, &x);
    delta_encoder_free(c);
    versions_free(&v);
}

static void test_delta_encode_indexes_a_few_of_many(void **state)
{
    struct versions v = versions_of("w", DTYPE_BF16, SPARSE_NUMEL);
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};

    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        assert_int_equal(delta_encoder_new(&c, zstd != 0, &e), 0);
        v.bytes[5] ^= 1;
        v.bytes[v.t->nbytes - 1] ^= 1;
        assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
        assert_int_equal(x.kind, DELTA_INDEX);
        assert_int_equal(encoding_nbytes(&x), 2 * (4 + 2));
        assert_applies(&v, &x);
        memcpy(v.bytes, v.base, v.t->nbytes);
        delta_encoder_free(c);
    }
    versions_free(&v);
}

/* Percent of the tensor for changes of one step of bf16 at random positions: at most 1.1 times what
 * the best encoding of the measurements in docs/delta.md takes. */
static void test_delta_encode_is_small(void **state)
{
    static const struct {
        double chance, percent;
    } rows[] = {{0.001, 0.10}, {0.01, 0.83}, {0.03, 2.20}, {0.05, 3.32}, {0.2, 8.74}};
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};

    (void)state;
    assert_int_equal(delta_encoder_new(&c, true, &e), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct versions v = versions_of("w", DTYPE_BF16, SPARSE_NUMEL);

        (void)change(&v, rows[i].chance);
        assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
        if (100.0 * (double)encoding_nbytes(&x) > 1.1 * rows[i].percent * (double)v.t->nbytes)
            fail_msg("%g %% changed: %g %%", 100 * rows[i].chance,
                     100.0 * (double)encoding_nbytes(&x) / (double)v.t->nbytes);
        versions_free(&v);
    }
    delta_encoder_free(c);
}

/* Where parts cost more than they save, and where a name leaves no room for "#bitmap.zst". */
static void test_delta_encode_sends_the_whole(void **state)
{
    char name[NAME_MAX_LEN];
    struct versions v = versions_of("w", DTYPE_BF16, 40), w;
    struct delta_encoder *c;
    struct delta_encoding x;
    struct err e = {0};

    (void)state;
    memset(name, 'n', sizeof name);
    name[NAME_MAX_LEN - 1] = '\0';
    w = versions_of(name, DTYPE_BF16, NUMEL);
    assert_int_equal(delta_encoder_new(&c, true, &e), 0);
    v.bytes[3] ^= 1;
    assert_int_equal(delta_encode(&x, c, v.t, v.base, v.bytes, &e), 0);
    assert_int_equal(x.kind, DELTA_WHOLE);
    assert_ptr_equal(x.parts[0].data, v.bytes);
    assert_applies(&v, &x);
    w.bytes[3] ^= 1;
    assert_int_equal(delta_encode(&x, c, w.t, w.base, w.bytes, &e), 0);
    assert_int_equal(x.kind, DELTA_WHOLE);
    assert_applies(&w, &x);
    delta_encoder_free(c);
    versions_free(&v);
    versions_free(&w);
}

static void test_delta_encode_fails_each_allocation_in_turn(void **state)
{
    struct versions v = versions_of("w", DTYPE_BF16, NUMEL);
    struct delta_encoder *c;
    struct delta_encoding x;
    int rc = -1;

    (void)state;
    (void)change(&v, 0.01);
    for (long n = 0; rc != 0; n++) {
        struct err e = {0};

        c = NULL;
        x = (struct delta_encoding){.kind = DELTA_KIND_COUNT};
        atomic_store(&alloc_left, n);
        rc = delta_encoder_new(&c, true, &e);
        if (rc == 0)
            rc = delta_encode(&x, c, v.t, v.base, v.bytes, &e);
        atomic_store(&alloc_left, -1);
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_NO_MEMORY);
        assert_true((x.kind == DELTA_KIND_COUNT) == (rc != 0));
        delta_encoder_free(c);
    }
    versions_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_encode_applies_to_the_new_bytes),
        cmocka_unit_test(test_delta_encode_compares_every_element),
        cmocka_unit_test(test_delta_encode_bridges_long_gaps),
        cmocka_unit_test(test_delta_encode_indexes_a_few_of_many),
        cmocka_unit_test(test_delta_encode_is_small),
        cmocka_unit_test(test_delta_encode_sends_the_whole),
        cmocka_unit_test(test_delta_encode_fails_each_allocation_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
