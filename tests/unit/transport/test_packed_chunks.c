/* vLLM's bucket boundaries, against the vectors and against the rule written the other way round.
 */
#include "transport/nccl/packed_chunks.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FIELD "/bucket_nbytes"

void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);

static bool calloc_fails;

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return calloc_fails ? NULL : __real_calloc(n, nbytes);
}

/* A tensor list of byte tensors; it needs no memory of its own but `specs`. */
static struct tensor_list tensor_list_of(struct tensor_spec *specs, const uint64_t *nbytes,
                                         uint32_t n)
{
    struct tensor_list p = {.n_tensors = n, .tensors = specs};

    for (uint32_t i = 0; i < n; i++) {
        specs[i] = (struct tensor_spec){.name = "t",
                                        .dtype = DTYPE_U8,
                                        .ndim = 1,
                                        .shape = {nbytes[i]},
                                        .numel = nbytes[i],
                                        .nbytes = nbytes[i],
                                        .offset = p.nbytes};
        p.nbytes += nbytes[i];
    }
    return p;
}

static uint64_t int_of(const json_t *object, const char *member)
{
    const json_t *value = json_object_get(object, member);

    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static void check_case(const json_t *c)
{
    const json_t *sizes = json_object_get(c, "sizes"), *expect = json_object_get(c, "expect");
    uint32_t n = (uint32_t)json_array_size(sizes);
    struct tensor_spec specs[64];
    struct packed_chunks chunks;
    uint64_t nbytes[64], largest = 0;
    struct err e = {0};
    struct tensor_list p;

    assert_true(n <= 64);
    for (uint32_t i = 0; i < n; i++)
        nbytes[i] = (uint64_t)json_integer_value(json_array_get(sizes, i));
    p = tensor_list_of(specs, nbytes, n);
    assert_int_equal(packed_chunks_init(&chunks, &p, int_of(c, "buffer_size_bytes"), FIELD, &e), 0);
    assert_int_equal(chunks.n, json_array_size(expect));
    for (uint32_t i = 0; i < chunks.n; i++) {
        const json_t *x = json_array_get(expect, i), *members = json_object_get(x, "members");
        assert_int_equal(chunks.chunks[i].n, json_array_size(members));
        for (uint32_t k = 0; k < chunks.chunks[i].n; k++)
            assert_int_equal(chunks.chunks[i].first + k,
                             json_integer_value(json_array_get(members, k)));
        assert_int_equal(chunks.chunks[i].nbytes, int_of(x, "bytes"));
        assert_int_equal(chunks.chunks[i].nbytes > 0,
                         json_is_true(json_object_get(x, "nccl_call")));
        if (chunks.chunks[i].nbytes > largest)
            largest = chunks.chunks[i].nbytes;
    }
    assert_int_equal(chunks.nbytes_max, largest);
    packed_chunks_fini(&chunks);
    assert_null(chunks.chunks);
}

static void test_vectors(void **state)
{
    json_t *file = json_load_file(FIXTURES "/nccl/packed_boundaries.json", 0, NULL), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(json_object_get(file, "cases")) >= 9);
    json_array_foreach(json_object_get(file, "cases"), i, c) check_case(c);
    json_decref(file);
}

/* The sender's loop, as vLLM has it: append, add, flush if greater. */
static void check_against_sender(const struct tensor_list *p, uint64_t bucket_nbytes)
{
    struct packed_chunks chunks;
    uint64_t total = 0;
    uint32_t n_pending = 0, at = 0;
    struct err e = {0};

    assert_int_equal(packed_chunks_init(&chunks, p, bucket_nbytes, FIELD, &e), 0);
    for (uint32_t i = 0; i <= p->n_tensors; i++) {
        if (i < p->n_tensors) {
            n_pending++;
            total += p->tensors[i].nbytes;
        }
        if (n_pending > 0 && (total > bucket_nbytes || i == p->n_tensors)) {
            uint32_t last = i < p->n_tensors ? i : i - 1;
            assert_true(at < chunks.n);
            assert_int_equal(chunks.chunks[at].first, last + 1 - n_pending);
            assert_int_equal(chunks.chunks[at].n, n_pending);
            assert_int_equal(chunks.chunks[at++].nbytes, total);
            n_pending = 0;
            total = 0;
        }
    }
    assert_int_equal(at, chunks.n);
    packed_chunks_fini(&chunks);
}

static void test_random_tensor_lists_agree_with_the_sender(void **state)
{
    struct tensor_spec specs[200];
    uint64_t nbytes[200];

    (void)state;
    srand(4);
    for (int round = 0; round < 500; round++) {
        uint32_t n = (uint32_t)(rand() % 200);
        uint64_t largest = (uint64_t)1 << (rand() % 40);
        struct tensor_list p;
        for (uint32_t i = 0; i < n; i++)
            nbytes[i] = rand() % 4 == 0 ? 0 : (uint64_t)rand() % largest;
        p = tensor_list_of(specs, nbytes, n);
        check_against_sender(&p, 1 + (uint64_t)rand() % (4 * largest));
    }
}

static void test_the_largest_tensor_list_does_not_overflow(void **state)
{
    uint64_t nbytes[] = {TENSOR_LIST_NBYTES_MAX - 2, 1, 1};
    struct tensor_spec specs[3];
    struct tensor_list p = tensor_list_of(specs, nbytes, 3);
    struct packed_chunks chunks;
    struct err e = {0};

    (void)state;
    assert_int_equal(packed_chunks_init(&chunks, &p, UINT64_MAX, FIELD, &e), 0);
    assert_int_equal(chunks.n, 1);
    assert_int_equal(chunks.nbytes_max, TENSOR_LIST_NBYTES_MAX);
    packed_chunks_fini(&chunks);
    check_against_sender(&p, TENSOR_LIST_NBYTES_MAX - 2);
    check_against_sender(&p, 1);
}

/* A tensor list from the builder: chunks cover its bytes, and each begins where its first tensor
 * lies. */
static void test_a_real_tensor_list_is_covered(void **state)
{
    static const uint64_t rows[] = {3, 1, 7, 2, 5, 5, 1};
    struct packed_chunks chunks;
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};
    uint64_t at = 0;

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, i % 2 != 0 ? DTYPE_F32 : DTYPE_BF16,
                                                 &rows[i], 1, UINT64_MAX, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    assert_int_equal(packed_chunks_init(&chunks, p, 16, FIELD, &e), 0);
    assert_true(chunks.n > 1);
    for (uint32_t i = 0; i < chunks.n; i++) {
        assert_int_equal(p->tensors[chunks.chunks[i].first].offset, at);
        at += chunks.chunks[i].nbytes;
    }
    assert_int_equal(at, p->nbytes);
    packed_chunks_fini(&chunks);
    tensor_list_unref(p);
}

static void test_refuses_a_bucket_of_nothing_and_no_memory(void **state)
{
    uint64_t nbytes[] = {1};
    struct tensor_spec specs[1];
    struct tensor_list p = tensor_list_of(specs, nbytes, 1);
    struct packed_chunks chunks = {.n = 77};
    struct err e = {0};

    (void)state;
    assert_int_equal(packed_chunks_init(&chunks, &p, 0, FIELD, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, FIELD);
    err_clear(&e);
    calloc_fails = true;
    assert_int_equal(packed_chunks_init(&chunks, &p, 1, FIELD, &e), -1);
    calloc_fails = false;
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_int_equal(chunks.n, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_random_tensor_lists_agree_with_the_sender),
        cmocka_unit_test(test_the_largest_tensor_list_does_not_overflow),
        cmocka_unit_test(test_a_real_tensor_list_is_covered),
        cmocka_unit_test(test_refuses_a_bucket_of_nothing_and_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
