#include "engine/model/kv.h"
#include "tests/unit/engine/kv_taken.h"
#include "weights/model/model_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct model_config cfg = {
    .n_layers = 3, .n_kv_heads = 2, .head_dim = 6, .v_head_dim = 4};
enum { CHUNK_NBYTES = 3 * 2 * KV_CHUNK * (6 + 4) * 4 };

static struct kv_pool *pool_of(uint64_t nbytes)
{
    struct kv_pool *p = NULL;
    struct err e = {0};

    assert_int_equal(kv_pool_new(&p, &cfg, nbytes, &e), 0);
    assert_int_equal(e.code, ERR_NONE);
    return p;
}

static void test_pool_holds_what_fits_and_at_least_a_chunk(void **state)
{
    static const struct {
        uint64_t nbytes, tokens;
    } cases[] = {
        {0, KV_CHUNK},
        {CHUNK_NBYTES - 1, KV_CHUNK},
        {CHUNK_NBYTES, KV_CHUNK},
        {3 * (uint64_t)CHUNK_NBYTES - 1, 2 * KV_CHUNK},
        {3 * (uint64_t)CHUNK_NBYTES, 3 * KV_CHUNK},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kv_pool *p = pool_of(cases[i].nbytes);

        assert_int_equal(kv_pool_tokens_max(p), cases[i].tokens);
        assert_int_equal(kv_pool_tokens_used(p), 0);
        kv_pool_free(p);
    }
    kv_pool_free(NULL);
}

static void test_take_is_all_or_nothing(void **state)
{
    struct kv_pool *p = pool_of(4 * (uint64_t)CHUNK_NBYTES);
    struct kv_seq a = {0}, b = {0}, none = {0};

    (void)state;
    assert_true(kv_taken(&a, p, 2 * KV_CHUNK + 1));
    assert_int_equal(a.n_chunks, 3);
    assert_int_equal(kv_pool_tokens_used(p), 3 * KV_CHUNK);
    assert_false(kv_taken(&b, p, KV_CHUNK + 1));
    assert_memory_equal(&b, &none, sizeof b);
    assert_int_equal(kv_pool_tokens_used(p), 3 * KV_CHUNK);
    assert_false(kv_taken(&b, p, UINT32_MAX));
    assert_true(kv_taken(&b, p, KV_CHUNK));
    assert_int_equal(kv_pool_tokens_used(p), 4 * KV_CHUNK);
    kv_release(&a);
    assert_null(a.chunks);
    kv_release(&a); /* a zeroed one */
    assert_int_equal(kv_pool_tokens_used(p), KV_CHUNK);
    assert_true(kv_taken(&a, p, 3 * KV_CHUNK));
    kv_release(&b);
    kv_release(&a);
    assert_int_equal(kv_pool_tokens_used(p), 0);
    kv_pool_free(p);
}

/* Between a release and the restore there is nothing to take, whoever asks. */
static void test_a_released_pool_gives_nothing(void **state)
{
    struct kv_pool *p = pool_of(3 * (uint64_t)CHUNK_NBYTES);
    struct kv_seq prepared, whole = {0};

    (void)state;
    assert_true(kv_prepare(&prepared, KV_CHUNK));
    (void)kv_pool_release(p);
    assert_false(kv_take(&prepared, p, NULL));
    assert_false(kv_taken(&whole, p, KV_CHUNK));
    assert_null(whole.chunks);
    assert_int_equal(kv_pool_tokens_used(p), 0);
    kv_pool_restore(p);
    assert_true(kv_take(&prepared, p, NULL) && kv_taken(&whole, p, KV_CHUNK));
    kv_release(&prepared);
    kv_release(&whole);
    kv_pool_free(p);
}

/* Whoever prepares is another thread than whoever takes. */
static void test_take_needs_no_memory(void **state)
{
    struct kv_pool *p = pool_of(3 * (uint64_t)CHUNK_NBYTES);
    struct kv_seq a, b;
    uint32_t *list;

    (void)state;
    assert_true(kv_prepare(&a, 2 * KV_CHUNK) && kv_prepare(&b, KV_CHUNK + 1));
    list = a.chunks;
    assert_int_equal(kv_pool_tokens_used(p), 0);
    for (int i = 0; i < 3; i++) {
        assert_true(kv_take(&a, p, NULL));
        assert_int_equal(a.n_chunks, 2);
        assert_ptr_equal(a.chunks, list);
        assert_false(kv_take(&b, p, NULL));
        assert_int_equal(b.n_chunks, 0);
        assert_int_equal(kv_pool_tokens_used(p), 2 * KV_CHUNK);
        kv_give_back(&a);
        kv_give_back(&a); /* harmless */
        assert_int_equal(kv_pool_tokens_used(p), 0);
    }
    assert_true(kv_take(&b, p, NULL));
    kv_release(&b);
    kv_release(&a);
    assert_null(a.chunks);
    assert_int_equal(kv_pool_tokens_used(p), 0);
    kv_pool_free(p);
}

static float mark(uint32_t seq, uint32_t layer, uint32_t which, uint32_t head, uint32_t pos,
                  uint32_t i)
{
    return (float)(((((seq * 3 + layer) * 2 + which) * 2 + head) * 256 + pos) * 8 + i);
}

/* Calls fn for every float of both sequences. */
static void each(const struct kv_seq *seqs, void (*fn)(float *at, float marked))
{
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t layer = 0; layer < 3; layer++)
            for (uint32_t head = 0; head < 2; head++)
                for (uint32_t pos = 0; pos < 2 * KV_CHUNK; pos++)
                    for (uint32_t i = 0; i < 6; i++) {
                        fn(kv_k(&seqs[s], layer, head, pos) + i, mark(s, layer, 0, head, pos, i));
                        if (i < 4)
                            fn(kv_v(&seqs[s], layer, head, pos) + i,
                               mark(s, layer, 1, head, pos, i));
                    }
}

static void put(float *at, float marked)
{
    *at = marked;
}

static void check(float *at, float marked)
{
    assert_true(*at == marked);
}

static void test_every_position_has_memory_of_its_own(void **state)
{
    struct kv_pool *p = pool_of(5 * (uint64_t)CHUNK_NBYTES);
    struct kv_seq seqs[2], hole;

    (void)state;
    /* Chunks of the second sequence are not neighbours. */
    assert_true(kv_taken(&hole, p, 1));
    assert_true(kv_taken(&seqs[0], p, 2 * KV_CHUNK));
    kv_release(&hole);
    assert_true(kv_taken(&seqs[1], p, 2 * KV_CHUNK));
    each(seqs, put);
    each(seqs, check);
    kv_release(&seqs[0]);
    kv_release(&seqs[1]);
    kv_pool_free(p);
}

/* Attention reads a chunk's keys of one head as one matrix. */
static void test_positions_of_a_head_lie_back_to_back(void **state)
{
    struct kv_pool *p = pool_of(2 * (uint64_t)CHUNK_NBYTES);
    struct kv_seq s;

    (void)state;
    assert_true(kv_taken(&s, p, 2 * KV_CHUNK));
    for (uint32_t pos = 0; pos < 2 * KV_CHUNK; pos++) {
        uint32_t start = pos / KV_CHUNK * KV_CHUNK;

        assert_ptr_equal(kv_k(&s, 2, 1, pos), kv_k(&s, 2, 1, start) + (pos - start) * 6);
        assert_ptr_equal(kv_v(&s, 2, 1, pos), kv_v(&s, 2, 1, start) + (pos - start) * 4);
    }
    kv_release(&s);
    kv_pool_free(p);
}

/* ---- what is found ---- */

static uint32_t words[2 * KV_CHUNK + 1];

static struct kv_prefix prefix_of(uint64_t serial, unsigned char salt, uint32_t n_tokens)
{
    struct kv_prefix p = {
        .key = {.serial = serial, .scope = {salt}}, .tokens = words, .n_tokens = n_tokens};

    for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = i / 3;
    return p;
}

/* Takes chunks of n positions, tells all of them, and gives them back. Returns: how many it found.
 */
static uint32_t pass(struct kv_pool *p, const struct kv_prefix *prefix, uint32_t n)
{
    struct kv_seq s;
    uint32_t n_found;

    assert_true(kv_taken_with(&s, p, n, prefix));
    n_found = s.n_found;
    for (uint32_t pos = n_found; pos < n; pos++)
        kv_tell(&s, pos, prefix->tokens[pos]);
    kv_release(&s);
    return n_found;
}

/* All chunks of the small pool are in one bucket. */
static void test_only_equal_keys_find(void **state)
{
    struct kv_pool *p = pool_of(40 * (uint64_t)CHUNK_NBYTES);

    (void)state;
    kv_pool_serve(p, 7);
    for (int again = 0; again < 2; again++)
        for (unsigned salt = 0; salt < 20; salt++) {
            struct kv_prefix prefix = prefix_of(7, (unsigned char)salt, 9);

            assert_int_equal(pass(p, &prefix, 10), again * 9);
        }
    kv_pool_free(p);
    p = pool_of(CHUNK_NBYTES);
    kv_pool_serve(p, 1);
    for (unsigned salt = 0; salt < 20; salt++) {
        struct kv_prefix prefix = prefix_of(1, (unsigned char)salt, 9);
        struct kv_prefix other = prefix_of(1, (unsigned char)(salt + 1), 9);
        struct kv_prefix newer = prefix_of(2, (unsigned char)salt, 9);

        assert_int_equal(pass(p, &prefix, 10), 0);
        assert_int_equal(kv_find(p, &prefix), 9);
        assert_int_equal(kv_find(p, &other), 0);
        assert_int_equal(kv_find(p, &newer), 0);
    }
    kv_pool_free(p);
}

/* The same tokens behind others are other KV. */
static void test_only_the_same_past_is_found(void **state)
{
    struct kv_pool *p = pool_of(6 * (uint64_t)CHUNK_NBYTES);
    struct kv_prefix prefix = prefix_of(1, 0, 2 * KV_CHUNK);

    (void)state;
    kv_pool_serve(p, 1);
    assert_int_equal(pass(p, &prefix, 2 * KV_CHUNK + 1), 0);
    for (uint32_t first = 100; first < 110; first++) {
        words[5] = first;
        assert_int_equal(pass(p, &prefix, 2 * KV_CHUNK + 1), 5);
    }
    kv_pool_free(p);
    p = pool_of(2 * (uint64_t)CHUNK_NBYTES);
    kv_pool_serve(p, 1);
    for (uint32_t k = 0; k < 20; k++) { /* some of these chunks share a bucket */
        for (uint32_t i = 0; i < 2 * KV_CHUNK; i++)
            words[i] = (i + k) % 20;
        prefix.tokens = words;
        prefix.n_tokens = 0;
        assert_int_equal(pass(p, &prefix, 2 * KV_CHUNK), 0);
        prefix.n_tokens = KV_CHUNK;
        assert_int_equal(kv_find(p, &prefix), KV_CHUNK);
        prefix.tokens = words + KV_CHUNK; /* the second chunk, behind nothing */
        assert_int_equal(kv_find(p, &prefix), 0);
    }
    kv_pool_free(p);
}

static void test_the_longest_unused_goes_first(void **state)
{
    struct kv_pool *p = pool_of(4 * (uint64_t)CHUNK_NBYTES);
    struct kv_prefix a = prefix_of(1, 1, 9), b = prefix_of(1, 2, 9), c = prefix_of(1, 3, 9);
    struct kv_prefix longer = prefix_of(1, 1, 2 * KV_CHUNK);
    struct kv_seq s;

    (void)state;
    kv_pool_serve(p, 1);
    (void)pass(p, &a, 10);
    (void)pass(p, &b, 10);
    (void)pass(p, &c, 10);
    assert_int_equal(kv_pool_tokens_kept(p), 3 * KV_CHUNK);
    assert_int_equal(kv_pool_tokens_used(p), 0);
    assert_int_equal(pass(p, &a, 10), 9); /* from now on b is the oldest; a takes the free chunk */
    assert_true(kv_taken(&s, p, KV_CHUNK));
    assert_int_equal(kv_find(p, &b), 0);
    assert_int_equal(kv_find(p, &c), 9);
    kv_release(&s);
    assert_true(kv_taken(&s, p, 4 * KV_CHUNK)); /* all that is kept makes room */
    assert_int_equal(kv_find(p, &a) + kv_find(p, &c), 0);
    kv_release(&s);
    assert_int_equal(pass(p, &longer, 2 * KV_CHUNK + 1), 0);
    assert_true(kv_taken(&s, p, 3 * KV_CHUNK)); /* one is free, and the end of it goes first */
    assert_int_equal(kv_find(p, &longer), KV_CHUNK);
    kv_release(&s);
    kv_pool_free(p);
}

static void test_what_is_over_is_not_kept(void **state)
{
    struct kv_pool *p = pool_of(6 * (uint64_t)CHUNK_NBYTES);
    struct kv_prefix old = prefix_of(1, 0, 9), new = prefix_of(2, 0, 9);
    struct kv_seq s;

    (void)state;
    (void)pass(p, &old, 10);
    assert_int_equal(kv_pool_tokens_kept(p), 0); /* nothing is served */
    kv_pool_serve(p, 1);
    (void)pass(p, &old, 10);
    assert_true(kv_taken_with(&s, p, 10, &old));
    kv_pool_serve(p, 2);
    assert_int_equal(kv_pool_tokens_kept(p), 0);
    assert_int_equal(kv_find(p, &old), 9); /* somebody uses it still */
    kv_release(&s);
    assert_int_equal(kv_pool_tokens_kept(p), 0);
    assert_int_equal(kv_find(p, &old), 0);
    (void)pass(p, &new, 10);
    assert_true(kv_taken_with(&s, p, 10, &new));
    kv_pool_forget(p);
    assert_int_equal(kv_find(p, &new), 0);
    kv_tell(&s, 9, words[9]); /* behind what was forgotten */
    assert_int_equal(kv_find(p, &new), 0);
    kv_release(&s);
    assert_int_equal(kv_pool_tokens_kept(p), 0);
    (void)pass(p, &new, 10);
    (void)kv_pool_release(p);
    assert_int_equal(kv_find(p, &new), 0);
    kv_pool_restore(p);
    kv_pool_free(p);
}

/* Every float of what is shared and of what is copied is where the new sequence reads it. */
static void test_found_positions_are_there(void **state)
{
    static const uint32_t founds[] = {1, 63, 64, 65, 100, 2 * KV_CHUNK - 1};

    (void)state;
    for (size_t k = 0; k < sizeof founds / sizeof founds[0]; k++) {
        for (uint64_t room = 2; room <= 5; room += 3) { /* 2: what is copied makes room for it */
            struct kv_pool *p = pool_of(room * CHUNK_NBYTES);
            struct kv_prefix prefix = prefix_of(1, 0, 0);
            struct kv_seq seqs[2];

            kv_pool_serve(p, 1);
            assert_true(kv_taken_with(&seqs[0], p, 2 * KV_CHUNK, &prefix));
            seqs[1] = seqs[0];
            each(seqs, put); /* twice the same chunks: the second's marks stay */
            for (uint32_t pos = 0; pos < 2 * KV_CHUNK; pos++)
                kv_tell(&seqs[0], pos, words[pos]);
            kv_release(&seqs[0]);
            prefix.n_tokens = founds[k];
            assert_true(kv_taken_with(&seqs[1], p, 2 * KV_CHUNK, &prefix));
            assert_int_equal(seqs[1].n_found, founds[k]);
            for (uint32_t layer = 0; layer < 3; layer++)
                for (uint32_t head = 0; head < 2; head++)
                    for (uint32_t pos = 0; pos < founds[k]; pos++) {
                        assert_true(kv_k(&seqs[1], layer, head, pos)[5] ==
                                    mark(1, layer, 0, head, pos, 5));
                        assert_true(kv_v(&seqs[1], layer, head, pos)[3] ==
                                    mark(1, layer, 1, head, pos, 3));
                    }
            kv_release(&seqs[1]);
            kv_pool_free(p);
        }
    }
}

static void test_pool_of_more_than_there_is_room_for_is_refused(void **state)
{
    static const struct model_config wide = {
        .n_layers = 1024, .n_kv_heads = 64, .head_dim = 4096, .v_head_dim = 4096};
    struct kv_pool *p = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(kv_pool_new(&p, &wide, UINT64_C(1) << 62, &e), -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_holds_what_fits_and_at_least_a_chunk),
        cmocka_unit_test(test_take_is_all_or_nothing),
        cmocka_unit_test(test_a_released_pool_gives_nothing),
        cmocka_unit_test(test_take_needs_no_memory),
        cmocka_unit_test(test_every_position_has_memory_of_its_own),
        cmocka_unit_test(test_positions_of_a_head_lie_back_to_back),
        cmocka_unit_test(test_only_equal_keys_find),
        cmocka_unit_test(test_only_the_same_past_is_found),
        cmocka_unit_test(test_the_longest_unused_goes_first),
        cmocka_unit_test(test_what_is_over_is_not_kept),
        cmocka_unit_test(test_found_positions_are_there),
        cmocka_unit_test(test_pool_of_more_than_there_is_room_for_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
