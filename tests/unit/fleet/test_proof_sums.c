/* Checksums of engines, compared with each other and with committed bytes. */
#include "fleet/proof/proof_committed.h"
#include "fleet/proof/proof_sums.h"
#include "fleet/proof/tensor_digest.h"
#include "tests/unit/weights_fixture.h"

#include <jansson.h>

static struct proof_sums *sums_of(enum upstream_kind kind, json_t *from)
{
    struct buf sums = {0};
    struct proof_sums *s;
    const char *key;
    json_t *sum;

    json_object_foreach(from, key, sum)
    {
        const char *text = json_is_string(sum) ? json_string_value(sum) : "";

        buf_append(&sums, key, strlen(key) + 1);
        buf_append(&sums, text, strlen(text) + 1);
    }
    s = proof_sums_new(kind, &sums);
    assert_non_null(s);
    json_decref(from);
    return s;
}

static void test_distances(void **state)
{
    struct proof_sums *s[] = {
        sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:s}", "a", "01", "b", "02")),
        sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:s}", "b", "02", "a", "01")),
        sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:s}", "a", "01", "b", "03")),
        sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:s}", "a", "01", "c", "02")),
        sums_of(UPSTREAM_VLLM, json_pack("{s:s}", "a", "01")),
        sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:i}", "a", "01", "b", 2)),
    };
    const double from_first[] = {0, 0, 1, -1, -1, 1};

    (void)state;
    for (size_t i = 0; i < sizeof s / sizeof s[0]; i++) {
        assert_true(proof_sums_distance(s[0], s[i]) == from_first[i]);
        assert_true(proof_sums_distance(s[i], s[0]) == from_first[i]);
        assert_true((s[0]->hash == s[i]->hash) == (from_first[i] == 0));
    }
    assert_ptr_equal(proof_sums_find(s[1], "b"), &s[1]->list[1]);
    assert_null(proof_sums_find(s[1], "c"));
    assert_null(proof_sums_find(NULL, "c"));
    for (size_t i = 0; i < sizeof s / sizeof s[0]; i++)
        proof_sums_unref(s[i]);
    proof_sums_unref(NULL);
}

static void test_names(void **state)
{
    struct proof_sums *v = sums_of(UPSTREAM_VLLM, json_pack("{s:s, s:s}", "dp0:pp0:pcp0:tp1:a.b",
                                                            "01", "plain", "02")),
                      *s = sums_of(UPSTREAM_SGLANG, json_pack("{s:s, s:s}", "rank 1/a.b", "01",
                                                              "draft rank 0/c", "02"));

    (void)state;
    assert_string_equal(v->list[0].name, "a.b");
    assert_string_equal(v->list[1].name, "plain");
    assert_string_equal(s->list[0].name, "c");
    assert_string_equal(s->list[1].name, "a.b");
    proof_sums_unref(v);
    proof_sums_unref(s);
}

/* Byte i is 7 i + i / 256. What SGLang 0.5.23's algorithm gives for it was computed from its
 * definition by another program. */
static const struct digest_row {
    size_t nbytes;
    const char *words, *sha256;
} digest_rows[] = {
    {0, "0000000000000000", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {1, "3d93a6540b54ef2a", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"},
    {4, "3ddca57716b346af", "6e14590861815ebebb76e8ca460621bd0f60ea4f1550edbf32e664d30d7a04fd"},
    {10, "117dc121db7d32da", "18da5405f99aeda80989c4deefa592bf0bcb1088a546bbd6397e2d26e53e29fe"},
    {32768, "017ae3038b626945", "3dadfccb8d297f5301391a1928adf9020572014b69f78b2f031f34da450b6ff2"},
    {32770, "6e9ccb8b0fb05d43", "2a2004280b1fea5c0935bcbbace670594dae2a19be4294e9b5ef1f4802e861dc"},
    {100000, "fa2dde75c4de0638",
     "55af394c980c7a7fb68aa904c4afdd93d76e5f826487105fc06f92a25bab8cbe"},
};

static void test_digests(void **state)
{
    static unsigned char bytes[100000];
    char text[TENSOR_DIGEST_TEXT_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t r = 0; r < sizeof digest_rows / sizeof digest_rows[0]; r++) {
        const struct digest_row *row = &digest_rows[r];

        for (size_t piece = TENSOR_DIGEST_TILE; piece <= 3 * TENSOR_DIGEST_TILE;
             piece += TENSOR_DIGEST_TILE)
            for (int kind = 0; kind < TENSOR_DIGESTS; kind++) {
                struct tensor_digest d;

                tensor_digest_begin(&d, (enum tensor_digest_kind)kind, row->nbytes);
                for (size_t at = 0; at < row->nbytes; at += piece)
                    tensor_digest_add(&d, bytes + at,
                                      row->nbytes - at < piece ? row->nbytes - at : piece);
                tensor_digest_end(&d, text);
                assert_string_equal(text, kind == TENSOR_DIGEST_WORDS ? row->words : row->sha256);
            }
    }
    assert_true(tensor_digest_matches(TENSOR_DIGEST_SHA256, text, text));
    assert_true(tensor_digest_matches(TENSOR_DIGEST_SHA256, text, "55af394c980c7a7f"));
    assert_false(tensor_digest_matches(TENSOR_DIGEST_SHA256, text, "55af394c980c7a7"));
    assert_false(tensor_digest_matches(TENSOR_DIGEST_SHA256, text, ""));
    assert_false(tensor_digest_fits(TENSOR_DIGEST_WORDS, text));
}

/* An engine that holds the tensors of a step: one of them fused, one of another layout. */

enum { FUSED = 1, OTHER = 2, ZERO = 3 };

static void put(struct staging *g, uint32_t i, unsigned step)
{
    struct tensor_list *one = fx_tensor_list_of(1U << i);
    struct slab *slab = NULL;
    struct err e = {0};

    assert_int_equal(staging_slab(g, one->nbytes + 64, &slab, &e), 0);
    (void)fx_bytes(fx_model[i].name, step, (unsigned char *)(uintptr_t)slab->addr);
    if (i == ZERO)
        memset((void *)(uintptr_t)slab->addr, step == 1 ? 0 : 1, one->nbytes);
    assert_int_equal(staging_view(g, 0, i, slab, slab->addr, &e), 0);
    slab_unref(slab);
    tensor_list_unref(one);
}

static void commit_step(struct store *s, unsigned step)
{
    struct staging_cfg cfg = {.partial = false};
    struct staging *g = NULL;
    struct store_stats stats;
    struct err e = {0};

    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++)
        put(g, i, step);
    assert_int_equal(store_commit(s, g, "label", &stats, &e), 0);
}

/* @torn    a tensor whose bytes are of no version; FX_N: none
 * @layout  also of ZERO: the engine turns it when its bytes are not all the same */
static struct proof_sums *engine_has(unsigned step, uint32_t torn, enum tensor_digest_kind kind,
                                     size_t len)
{
    json_t *sums = json_object();

    for (uint32_t i = 0; i < FX_N; i++) {
        unsigned char bytes[FX_NBYTES_MAX];
        uint64_t n = fx_bytes(fx_model[i].name, step, bytes);
        char text[TENSOR_DIGEST_TEXT_MAX + 1], key[64];
        struct tensor_digest d;

        if (i == ZERO)
            memset(bytes, step == 1 ? 0 : 2, n);
        bytes[0] ^= (i == torn || i == OTHER) ? 1 : 0;
        tensor_digest_begin(&d, kind, n);
        tensor_digest_add(&d, bytes, n);
        tensor_digest_end(&d, text);
        text[len] = '\0';
        (void)snprintf(key, sizeof key, "rank 0/%s", i == FUSED ? "fused" : fx_model[i].name);
        assert_int_equal(json_object_set_new(sums, key, json_string(text)), 0);
    }
    return sums_of(UPSTREAM_SGLANG, sums);
}

static struct proof_compared compared(struct proof_committed *c, struct proof_sums *sums,
                                      const struct proof_sums *before, uint64_t serial)
{
    struct proof_compared out;
    struct err e = {0};

    assert_int_equal(proof_committed_compare(c, sums, before, serial, &out, &e), 0);
    return out;
}

static void is(const struct proof_compared *c, size_t n_equal, size_t n_different, size_t n_wrong)
{
    assert_int_equal(c->n_checked, n_equal + n_different);
    assert_int_equal(c->n_equal, n_equal);
    assert_int_equal(c->n_different, n_different);
    assert_int_equal(c->n_wrong, n_wrong);
}

static void test_committed(void **state)
{
    static const struct form {
        enum tensor_digest_kind kind;
        size_t len;
    } forms[] = {{TENSOR_DIGEST_WORDS, 16}, {TENSOR_DIGEST_SHA256, 16}, {TENSOR_DIGEST_SHA256, 64}};

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        struct store_cfg cfg = {
            .model_spec = fx_model_spec(), .n_versions_max = 2, .nbytes_max = UINT64_MAX};
        enum tensor_digest_kind kind = forms[f].kind;
        size_t len = forms[f].len;
        atomic_bool stop = false;
        struct proof_committed *c = NULL;
        struct proof_sums *first, *torn, *next, *later;
        struct proof_compared found;
        struct store *s = NULL;
        struct err e = {0};

        assert_int_equal(store_new(&s, &cfg, &e), 0);
        assert_int_equal(proof_committed_new(&c, s, &stop, &e), 0);
        first = engine_has(1, FX_N, kind, len);
        assert_int_equal(proof_committed_compare(c, first, NULL, 1, &found, &e), -1);
        assert_int_equal(e.code, ERR_UNSYNCED);
        err_clear(&e);

        commit_step(s, 1);
        found = compared(c, first, NULL, 1); /* the fused one is not compared */
        is(&found, FX_N - 2, 1, 0);          /* another layout is no fault */

        torn = engine_has(1, 0, kind, len);
        found = compared(c, torn, NULL, 1); /* the first answer of a process accuses nobody */
        is(&found, FX_N - 3, 2, 0);
        found = compared(c, torn, first, 1);
        is(&found, FX_N - 3, 2, 1);
        assert_string_equal(found.wrong, fx_model[0].name);

        commit_step(s, 2);
        assert_int_equal(proof_committed_compare(c, first, NULL, 1, &found, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        err_clear(&e);
        next = engine_has(2, FX_N, kind, len);
        found = compared(c, next, torn, 2); /* zeros were equal in every layout */
        is(&found, FX_N - 3, 2, 0);
        later = engine_has(1, FX_N, kind, len); /* it kept the version of before */
        found = compared(c, later, torn, 2);    /* what was right two answers ago counts too */
        is(&found, 0, FX_N - 1, FX_N - 4);      /* not zeros, and not the three bytes */

        stop = true;
        commit_step(s, 3);
        assert_int_equal(proof_committed_compare(c, later, NULL, 3, &found, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        proof_sums_unref(first);
        proof_sums_unref(torn);
        proof_sums_unref(next);
        proof_sums_unref(later);
        proof_committed_free(c);
        store_free(s);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_committed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
