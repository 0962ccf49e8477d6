/* transport/nccl_source: a tensor list's tensors, in the broadcasts in which their sender sends
 * them. */
#include "tests/unit/transport/group_fixture.h"

#include "transport/nccl/packed_chunks.h"

enum { TENSORS = 12, BUCKET_NBYTES = 1000, TOTAL = 10250, SOON_US = 300 * 1000 };

void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);

static bool calloc_fails;

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return calloc_fails ? NULL : __real_calloc(n, nbytes);
}

/* Sums that reach the bound and do not cross it, that cross it, empty ones in between and last. */
static const uint64_t sizes[TENSORS] = {100, 899, 1, 0, 250, 5000, 0, 600, 400, 0, 3000, 0};

/* What travels together over BUCKET_NBYTES; and where. */
static const struct packed_chunk buckets[] = {{0, 5, 1250}, {5, 1, 5000}, {6, 5, 4000}, {11, 1, 0}};
enum { BUCKETS = sizeof buckets / sizeof buckets[0] };

static struct tensor_list *tensor_list_new(void)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};
    char name[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &sizes[i], 1, UINT64_MAX, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    assert_int_equal(tensor_list->nbytes, TOTAL);
    return tensor_list;
}

/* The source has a reference of its own. */
static struct source *source_new(struct nccl_group *g, struct packed_chunks *chunks,
                                 struct tensor_list *tensor_list)
{
    struct source *s = NULL;
    struct err e = {0};

    assert_int_equal(nccl_source_new(&s, g, tensor_list, chunks, &e), 0);
    assert_null(chunks->chunks);
    tensor_list_unref(tensor_list);
    assert_string_equal(s->ops->name, "nccl");
    assert_null(s->ops->fill);
    assert_null(s->ops->map);
    return s;
}

/* All of them in order, as the update's worker asks for them; how many. */
static uint32_t receive_all(struct source *s, const struct tensor_list *tensor_list,
                            const uint64_t base[2])
{
    struct progress p = gfx_patient();
    uint32_t count = 0;
    struct err e = {0};

    for (uint32_t first = 0, n; first < TENSORS; first += n, count++) {
        uint64_t at = tensor_list->tensors[first].offset, dst[] = {base[0] + at, base[1] + at};

        n = s->ops->bucket(s, first);
        assert_true(n > 0 && n <= TENSORS - first);
        if (s->ops->post(s, first, n, dst, &p, &e) != 0)
            fail_msg("%s", e.msg);
    }
    for (uint32_t i = 0; i < count; i++)
        if (s->ops->receive(s, &p, &e) != 0)
            fail_msg("%s", e.msg);
    assert_int_equal(atomic_load(&p.nbytes_done), 0); /* the worker counts */
    return count;
}

static void free_all(struct source *s, struct nccl_group *g, struct nfx_peer *peer,
                     const uint64_t base[2])
{
    source_close(s);
    nccl_group_free(g);
    (void)nfx_end(peer, true);
    gfx_drop(base[0]);
    gfx_drop(base[1]);
}

static void test_packed_buckets_end_where_the_sender_ends_them(void **state)
{
    const uint64_t base[] = {gfx_buffer(0, TOTAL), gfx_buffer(1, TOTAL)};
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, true);
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks;
    struct source *s;
    struct err e = {0};
    uint64_t at = 0;

    (void)state;
    assert_int_equal(packed_chunks_init(&chunks, tensor_list, BUCKET_NBYTES, "", &e), 0);
    s = source_new(g, &chunks, tensor_list);
    for (uint32_t i = 0; i < BUCKETS; i++) {
        assert_int_equal(s->ops->bucket(s, buckets[i].first), buckets[i].n);
        if (buckets[i].nbytes > 0)
            nfx_send(&peer, buckets[i].nbytes, i);
    }
    assert_int_equal(receive_all(s, tensor_list, base), BUCKETS);
    for (uint32_t i = 0; i < BUCKETS; at += buckets[i].nbytes, i++) {
        for (int r = 0; r < GFX_DEVICES && buckets[i].nbytes > 0; r++)
            assert_int_equal(nfx_n_wrong(base[r] + at, buckets[i].nbytes, i, 0), 0);
    }
    assert_int_equal(gfx_info(g).n_broadcasts, BUCKETS - 1); /* an empty one is none */
    assert_int_equal(gfx_info(g).nbytes_received, TOTAL);
    assert_false(s->ops->stuck(s));
    free_all(s, g, &peer, base);
}

static void test_one_broadcast_for_all(void **state)
{
    const uint64_t base[] = {gfx_buffer(0, TOTAL), gfx_buffer(1, TOTAL)};
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks;
    struct source *s;
    struct err e = {0};

    (void)state;
    assert_int_equal(packed_chunks_init(&chunks, tensor_list, UINT64_MAX, "", &e), 0);
    s = source_new(g, &chunks, tensor_list);
    nfx_send(&peer, TOTAL, 3);
    assert_int_equal(receive_all(s, tensor_list, base), 1);
    assert_int_equal(nfx_n_wrong(base[0], TOTAL, 3, 0), 0);
    assert_int_equal(nfx_n_wrong(base[1], TOTAL, 3, 0), 0);
    free_all(s, g, &peer, base);
}

static void test_each_tensor_by_itself(void **state)
{
    const uint64_t base[] = {gfx_buffer(0, TOTAL), gfx_buffer(1, TOTAL)};
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks;
    struct source *s;
    struct err e = {0};
    uint64_t at = 0, n = 0;

    (void)state;
    assert_int_equal(packed_chunks_each(&chunks, tensor_list, &e), 0);
    assert_int_equal(chunks.n, TENSORS);
    assert_int_equal(chunks.nbytes_max, 5000);
    s = source_new(g, &chunks, tensor_list);
    for (uint32_t i = 0; i < TENSORS; i++) {
        if (sizes[i] > 0)
            nfx_send(&peer, sizes[i], i);
        n += sizes[i] > 0;
    }
    assert_int_equal(receive_all(s, tensor_list, base), TENSORS);
    for (uint32_t i = 0; i < TENSORS; at += sizes[i], i++)
        for (int r = 0; r < GFX_DEVICES && sizes[i] > 0; r++)
            assert_int_equal(nfx_n_wrong(base[r] + at, sizes[i], i, 0), 0);
    assert_int_equal(gfx_info(g).n_broadcasts, n);
    free_all(s, g, &peer, base);
}

static void test_a_bucket_that_does_not_come(void **state)
{
    const uint64_t base[] = {gfx_buffer(0, TOTAL), gfx_buffer(1, TOTAL)};
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 2, false);
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks;
    struct progress p = gfx_patient();
    struct source *s;
    struct err e = {0};

    (void)state;
    assert_int_equal(packed_chunks_init(&chunks, tensor_list, BUCKET_NBYTES, "", &e), 0);
    s = source_new(g, &chunks, tensor_list);
    nfx_send(&peer, buckets[0].nbytes, 1);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(s->ops->post(s, buckets[i].first, buckets[i].n, base, &p, &e), 0);
    assert_int_equal(s->ops->receive(s, &p, &e), 0);
    p = gfx_within(SOON_US);
    assert_int_equal(s->ops->receive(s, &p, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_false(s->ops->stuck(s));
    free_all(s, g, &peer, base);
}

static void test_without_memory(void **state)
{
    struct nfx_peer peer;
    struct nccl_group *g = gfx_joined(&peer, NULL, 1, false);
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks, untouched = {0};
    struct source *s = NULL;
    struct err e = {0};

    (void)state;
    calloc_fails = true;
    assert_int_equal(packed_chunks_each(&untouched, tensor_list, &e), -1);
    calloc_fails = false;
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_null(untouched.chunks);
    err_clear(&e);
    assert_int_equal(packed_chunks_each(&chunks, tensor_list, &e), 0);
    calloc_fails = true;
    assert_int_equal(nccl_source_new(&s, g, tensor_list, &chunks, &e), -1);
    calloc_fails = false;
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_null(s);
    assert_null(chunks.chunks); /* moved all the same */
    source_close(NULL);
    tensor_list_unref(tensor_list);
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GFX_TEST(test_packed_buckets_end_where_the_sender_ends_them),
        GFX_TEST(test_one_broadcast_for_all),
        GFX_TEST(test_each_tensor_by_itself),
        GFX_TEST(test_a_bucket_that_does_not_come),
        GFX_TEST(test_without_memory),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
