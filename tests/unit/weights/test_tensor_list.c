/* Plans: what is refused, what is computed, and that a hundred thousand names are nothing. */
#include "weights/tensor_list.h"

#include "base/clock.h"
#include "base/names.h"
#include "base/utf8.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SAID_NOTHING UINT64_MAX

static struct tensor_list_builder *builder(void)
{
    struct tensor_list_builder *b = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    return b;
}

static void add(struct tensor_list_builder *b, const char *name, enum dtype d, uint32_t ndim,
                uint64_t d0, uint64_t d1)
{
    const uint64_t shape[] = {d0, d1};
    struct err e = {0};

    if (tensor_list_builder_add(b, name, d, shape, ndim, SAID_NOTHING, &e) != 0)
        fail_msg("%s", e.msg);
}

static struct tensor_list *finish(struct tensor_list_builder *b)
{
    struct tensor_list *p = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static void test_tensor_list_offsets_and_digest(void **state)
{
    struct tensor_list_builder *b = builder();
    struct tensor_list *p;

    (void)state;
    add(b, "a", DTYPE_BF16, 2, 1024, 128);
    add(b, "b.scalar", DTYPE_F32, 0, 0, 0);
    add(b, "c.empty", DTYPE_I64, 2, 0, 7);
    add(b, "d", DTYPE_U8, 1, 3, 0);
    p = finish(b);
    assert_int_equal(p->n_tensors, 4);
    assert_int_equal(p->tensors[0].numel, 131072);
    assert_int_equal(p->tensors[0].nbytes, 262144);
    assert_int_equal(p->tensors[1].offset, 262144);
    assert_int_equal(p->tensors[1].nbytes, 4);
    assert_int_equal(p->tensors[2].nbytes, 0);
    assert_int_equal(p->tensors[3].offset, 262148);
    assert_int_equal(p->nbytes, 262151);
    /* printf 'a\tBF16\t1024,128\nb.scalar\tF32\t\nc.empty\tI64\t0,7\nd\tU8\t3\n' | sha256sum */
    assert_string_equal(p->digest,
                        "042e0a8a9e32ca45eabaa25b71b559f8c8c0a4b9d533a3cac5e4c29179b42183");
    assert_int_equal(tensor_list_find(p, "d"), 3);
    assert_int_equal(tensor_list_find(p, "e"), TENSOR_LIST_NO_TENSOR);
    assert_int_equal(tensor_list_find(p, ""), TENSOR_LIST_NO_TENSOR);
    tensor_list_unref(p);
}

static void test_tensor_list_shape_text_and_cuts(void **state)
{
    const struct tensor_spec t = {.ndim = 2, .shape = {1024, 128}}, scalar = {.ndim = 0};
    char text[64], small[5], name[400];

    (void)state;
    assert_string_equal(tensor_list_shape_text(&t, text, sizeof text), "[1024, 128]");
    assert_string_equal(tensor_list_shape_text(&scalar, text, sizeof text), "[]");
    (void)tensor_list_shape_text(&t, small, sizeof small);
    assert_int_equal(strlen(small), 4);
    assert_int_equal(utf8_cut_name("short"), 5);
    for (int i = 0; i < 399; i += 3)
        memcpy(name + i, "\xe2\x82\xac", 3);
    name[399] = '\0';
    assert_int_equal(utf8_cut_name(name) % 3, 0);
    assert_true(utf8_cut_name(name) > 100);
    assert_int_equal(utf8_cut(name, 4), 3);
}

static char long_name[TENSOR_LIST_NAME_LEN_MAX + 2];

static const struct {
    const char *what, *name;
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[TENSOR_LIST_NDIM_MAX + 1], numel;
    const char *field, *says;
} add_refusals[] = {
    {"empty name", "", DTYPE_F32, 1, {1}, SAID_NOTHING, "/names/2", "empty"},
    {"long name", long_name, DTYPE_F32, 1, {1}, SAID_NOTHING, "/names/2", "1024"},
    {"newline", "x\ny", DTYPE_F32, 1, {1}, SAID_NOTHING, "/names/2", "0x0a"},
    {"delete", "x\x7f", DTYPE_F32, 1, {1}, SAID_NOTHING, "/names/2", "0x7f"},
    {"repeated name",
     "b",
     DTYPE_F32,
     1,
     {1},
     SAID_NOTHING,
     "/names/2",
     "'b' is named twice, at 1 and at 2"},
    {"no dtype", "x", DTYPE_NONE, 1, {1}, SAID_NOTHING, "/dtypes/2", "BF16"},
    {"ndim",
     "x",
     DTYPE_F32,
     9,
     {1, 1, 1, 1, 1, 1, 1, 1, 1},
     SAID_NOTHING,
     "/shapes/2",
     "9 dimensions"},
    {"numel overflow", "x", DTYPE_U8, 2, {UINT64_MAX, 2}, SAID_NOTHING, "/shapes/2", "2^63"},
    {"nbytes overflow", "x", DTYPE_F64, 1, {UINT64_C(1) << 61}, SAID_NOTHING, "/shapes/2", "2^63"},
    {"overflow behind a zero",
     "x",
     DTYPE_U8,
     3,
     {0, UINT64_MAX, 2},
     SAID_NOTHING,
     "/shapes/2",
     "2^63"},
    {"sum overflow", "x", DTYPE_U8, 1, {INT64_MAX}, SAID_NOTHING, "/shapes/2", "the list has more"},
    {"size", "x", DTYPE_F32, 2, {3, 5}, 14, "/sizes/2", "size is 14, but its shape has 15"},
    {"size of scalar", "x", DTYPE_F32, 0, {0}, 0, "/sizes/2", "has 1 elements"},
};

/* Each row is added after tensors "a" and "b"; the builder must then be as before. */
static void test_tensor_list_builder_add_refusals(void **state)
{
    struct tensor_list_builder *b = builder();
    struct tensor_list *p;

    (void)state;
    memset(long_name, 'n', sizeof long_name - 1);
    add(b, "a", DTYPE_F32, 1, 4, 0);
    add(b, "b", DTYPE_F32, 1, 4, 0);
    for (size_t i = 0; i < sizeof add_refusals / sizeof add_refusals[0]; i++) {
        struct err e = {0};
        assert_int_equal(tensor_list_builder_add(b, add_refusals[i].name, add_refusals[i].dtype,
                                                 add_refusals[i].shape, add_refusals[i].ndim,
                                                 add_refusals[i].numel, &e),
                         -1);
        if (e.code != ERR_BAD_REQUEST || strcmp(e.field, add_refusals[i].field) != 0 ||
            strstr(e.msg, add_refusals[i].says) == NULL)
            fail_msg("%s: %s: %s", add_refusals[i].what, e.field, e.msg);
    }
    add(b, "x", DTYPE_F32, 1, 1, 0);
    p = finish(b);
    assert_int_equal(p->n_tensors, 3);
    assert_int_equal(p->nbytes, 36);
    tensor_list_unref(p);
}

static void test_tensor_list_builder_accepts_the_edges(void **state)
{
    struct tensor_list_builder *b = builder();
    const uint64_t ones[TENSOR_LIST_NDIM_MAX] = {1, 1, 1, 1, 1, 1, 1, 1}, most[] = {INT64_MAX - 1};
    struct err e = {0};
    struct tensor_list *p;

    (void)state;
    memset(long_name, 'n', TENSOR_LIST_NAME_LEN_MAX);
    long_name[TENSOR_LIST_NAME_LEN_MAX] = '\0';
    assert_int_equal(
        tensor_list_builder_add(b, long_name, DTYPE_U8, ones, TENSOR_LIST_NDIM_MAX, 1, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "most", DTYPE_U8, most, 1, INT64_MAX - 1, &e), 0);
    p = finish(b);
    assert_true(p->nbytes == TENSOR_LIST_NBYTES_MAX);
    tensor_list_unref(p);
}

static void test_tensor_list_builder_finish_refuses_nothing(void **state)
{
    struct tensor_list *p = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(tensor_list_builder_finish(builder(), &p, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/names");
    assert_null(p);
    tensor_list_builder_free(NULL);
    tensor_list_unref(NULL);
}

static void test_tensor_list_of_100000_tensors_is_fast(void **state)
{
    enum { N = 100000 };
    struct tensor_list_builder *b = builder();
    uint64_t began = clock_now_us();
    char name[128];
    struct tensor_list *p;

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.down_proj.weight",
                       i / 1000, i % 1000);
        add(b, name, DTYPE_BF16, 2, 1024, i + 1);
    }
    p = finish(b);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(tensor_list_find(p, p->tensors[i].name), i);
    print_message("100000 tensors: %llu us\n", (unsigned long long)(clock_now_us() - began));
    assert_true(clock_now_us() - began < 5000000); /* quadratic would take minutes */
    tensor_list_unref(p);
}

static void test_tensor_list_builder_add_bounds_the_number(void **state)
{
    struct tensor_list_builder *b = builder();
    const uint64_t shape[] = {1};
    struct err e = {0};
    char name[32];
    int rc = 0;
    unsigned i;

    (void)state;
    for (i = 0; i < TENSOR_LIST_TENSORS_MAX && rc == 0; i++) {
        (void)snprintf(name, sizeof name, "t%u", i);
        rc = tensor_list_builder_add(b, name, DTYPE_U8, shape, 1, SAID_NOTHING, &e);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(tensor_list_builder_add(b, "one more", DTYPE_U8, shape, 1, SAID_NOTHING, &e),
                     -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    tensor_list_builder_free(b);
}

static void *ref_and_unref(void *arg)
{
    for (int i = 0; i < 10000; i++)
        tensor_list_unref(tensor_list_ref(arg));
    tensor_list_unref(arg);
    return NULL;
}

/* Under TSan and ASan: the last one frees, once. */
static void test_tensor_list_ref_from_many_threads(void **state)
{
    struct tensor_list_builder *b = builder();
    pthread_t threads[4];
    struct tensor_list *p;

    (void)state;
    add(b, "a", DTYPE_U8, 1, 1, 0);
    p = finish(b);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ref_and_unref, tensor_list_ref(p)), 0);
    tensor_list_unref(p);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void test_names_find_what_was_added(void **state)
{
    struct names s;
    struct err e = {0};
    char text[64];

    (void)state;
    names_init(&s);
    assert_int_equal(names_find(&s, "x"), NAMES_NONE);
    for (unsigned i = 0; i < 5000; i++) { /* every length modulo 8 */
        (void)snprintf(text, sizeof text, "%*s%u", (int)(i % 17), "", i);
        assert_int_equal(names_find(&s, text), NAMES_NONE);
        assert_int_equal(names_add(&s, text, &e), 0);
    }
    for (unsigned i = 0; i < 5000; i++) {
        (void)snprintf(text, sizeof text, "%*s%u", (int)(i % 17), "", i);
        assert_int_equal(names_find(&s, text), i);
        assert_string_equal(s.items[i], text);
    }
    names_fini(&s);
    names_fini(&s);
}

static void test_names_key_finds_and_adds(void **state)
{
    struct names s;
    struct names_key key;
    struct err e = {0};

    (void)state;
    names_init(&s);
    assert_int_equal(names_add(&s, "a", &e), 0);
    assert_int_equal(names_reserve(&s, 1000, &e), 0);
    assert_int_equal(names_find(&s, "a"), 0);
    key = names_key(&s, "b", 1);
    assert_int_equal(names_find_key(&s, &key), NAMES_NONE);
    assert_int_equal(names_add_key(&s, &key, &e), 0);
    assert_int_equal(names_find_key(&s, &key), 1);
    assert_int_equal(names_find(&s, "b"), 1);
    assert_int_equal(names_reserve(&s, 0, &e), 0);
    names_fini(&s);
}

static void test_tensor_list_find_near_finds_all_from_anywhere(void **state)
{
    struct tensor_list_builder *b = builder();
    struct tensor_list *p;
    struct err e = {0};

    (void)state;
    assert_int_equal(tensor_list_builder_reserve(b, 300, &e), 0);
    assert_int_equal(tensor_list_builder_reserve(b, UINT32_MAX, &e),
                     0); /* as many as there may be */
    add(b, "a", DTYPE_U8, 1, 1, 0);
    add(b, "b", DTYPE_U8, 1, 1, 0);
    p = finish(b);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(tensor_list_find_near(p, "a", i), 0);
        assert_int_equal(tensor_list_find_near(p, "b", i), 1);
        assert_int_equal(tensor_list_find_near(p, "c", i), TENSOR_LIST_NO_TENSOR);
    }
    assert_int_equal(tensor_list_find_near(p, "b", TENSOR_LIST_NO_TENSOR), 1);
    tensor_list_unref(p);
}

/* @arg  the first dim of each; 99: an error */
static int next_shape(void *arg, uint32_t i, uint64_t *shape, uint32_t *ndim, uint64_t *numel,
                      struct err *e)
{
    const uint64_t *dims = arg;

    *ndim = 2;
    shape[0] = dims[i];
    shape[1] = 3;
    *numel = dims[i] == 98 ? 1 : UINT64_MAX;
    return dims[i] == 99 ? err_set(e, ERR_BAD_REQUEST, "/shapes/9", "as told") : 0;
}

static void test_tensor_list_reshape_is_the_list_with_those_shapes(void **state)
{
    static uint64_t dims[] = {5, 7}, more[] = {0, 4}, bad[] = {5, 99}, sizes[] = {5, 98},
                    large[] = {UINT64_MAX / 26, UINT64_MAX / 26};
    struct tensor_list_builder *b = builder(), *by_name = builder();
    struct tensor_list *first, *second, *third, *wanted;
    struct err e = {0};

    (void)state;
    add(b, "a", DTYPE_F32, 1, 1, 0);
    add(b, "b", DTYPE_U8, 1, 1, 0);
    first = finish(b);
    add(by_name, "a", DTYPE_F32, 2, 5, 3);
    add(by_name, "b", DTYPE_U8, 2, 7, 3);
    wanted = finish(by_name);
    assert_int_equal(tensor_list_reshape(&second, first, next_shape, dims, &e), 0);
    assert_string_equal(second->digest, wanted->digest);
    assert_int_equal(second->n_tensors, 2);
    assert_int_equal(second->nbytes, 81);
    assert_int_equal(second->tensors[1].offset, 60);
    assert_int_equal(second->tensors[1].numel, 21);
    assert_ptr_equal(tensor_list_names_of(second), first);
    assert_ptr_equal(tensor_list_names_of(first), first);
    assert_int_equal(tensor_list_reshape(&third, second, next_shape, more, &e), 0);
    assert_ptr_equal(tensor_list_names_of(third), first);
    assert_int_equal(third->nbytes, 12);
    assert_int_equal(tensor_list_reshape(&wanted, second, next_shape, bad, &e), -1);
    assert_string_equal(e.msg, "as told");
    err_clear(&e);
    assert_int_equal(tensor_list_reshape(&wanted, second, next_shape, sizes, &e), -1);
    assert_string_equal(e.field, "/sizes/1");
    err_clear(&e);
    assert_int_equal(tensor_list_reshape(&wanted, second, next_shape, large, &e), -1);
    assert_string_equal(e.field, "/shapes/1");
    tensor_list_unref(wanted);
    tensor_list_unref(first); /* its names stay with the others */
    assert_int_equal(tensor_list_find(second, "b"), 1);
    assert_int_equal(tensor_list_find(third, "c"), TENSOR_LIST_NO_TENSOR);
    assert_string_equal(third->tensors[0].name, "a");
    tensor_list_unref(second);
    tensor_list_unref(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_list_offsets_and_digest),
        cmocka_unit_test(test_tensor_list_shape_text_and_cuts),
        cmocka_unit_test(test_tensor_list_builder_add_refusals),
        cmocka_unit_test(test_tensor_list_builder_accepts_the_edges),
        cmocka_unit_test(test_tensor_list_builder_finish_refuses_nothing),
        cmocka_unit_test(test_tensor_list_of_100000_tensors_is_fast),
        cmocka_unit_test(test_tensor_list_builder_add_bounds_the_number),
        cmocka_unit_test(test_tensor_list_ref_from_many_threads),
        cmocka_unit_test(test_names_find_what_was_added),
        cmocka_unit_test(test_names_key_finds_and_adds),
        cmocka_unit_test(test_tensor_list_find_near_finds_all_from_anywhere),
        cmocka_unit_test(test_tensor_list_reshape_is_the_list_with_those_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
