/* Routed experts cut for the ranks of a trainer: refusals, worked examples, and that the blocks put
 * together are the whole, for every layout of small models and for random larger ones. */
#include "handlers/batch/replay_json.h"
#include "tests/unit/failing_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PER_TOKEN = 2, N_RANDOM = 2000 };

static const char at[] = "/replay_layout";

/* A model of n layers; those with a bit in `dense` are dense. */
static struct model_config model_of(uint32_t n, uint64_t dense)
{
    struct model_config m = {.n_layers = n, .experts = {.n = 100, .n_per_token = PER_TOKEN}};

    for (uint32_t i = 0; i < n; i++)
        if (i >= 64 || (dense >> i & 1) == 0) {
            m.experts.sparse_layers[i / 64] |= UINT64_C(1) << i % 64;
            m.experts.n_sparse_layers++;
        }
    return m;
}

static int parse(struct replay_layout *l, const struct model_config *m, const char *text,
                 struct err *e)
{
    json_t *o = json_loads(text, 0, NULL);
    int rc;

    assert_non_null(o);
    rc = replay_layout_parse(l, o, at, m, e);
    json_decref(o);
    return rc;
}

/* Of a model of 8 layers, of which the first is dense. */
static const struct {
    const char *layout, *field, *message;
} refusals[] = {
    {"{}", "/pipeline_parallel_size", "pipeline_parallel_size is missing, it is required"},
    {"{\"pipeline_parallel_size\": 1}", "/context_parallel_size",
     "context_parallel_size is missing, it is required"},
    {"{\"pipeline_parallel_size\": null, \"context_parallel_size\": 1}", "/pipeline_parallel_size",
     "it is required"},
    {"{\"pipeline_parallel_size\": \"1\", \"context_parallel_size\": 1}", "/pipeline_parallel_size",
     "a string, expected an integer"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1.5}", "/context_parallel_size",
     "expected an integer"},
    {"{\"pipeline_parallel_size\": 0, \"context_parallel_size\": 1}", "/pipeline_parallel_size",
     "is 0, expected 1 to 8"},
    {"{\"pipeline_parallel_size\": 9, \"context_parallel_size\": 1}", "/pipeline_parallel_size",
     "is 9, expected 1 to 8"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 0}", "/context_parallel_size",
     "is 0, expected 1 to 256"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 257}", "/context_parallel_size",
     "is 257, expected 1 to 256"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, \"tensor_parallel_size\": 2}",
     "/tensor_parallel_size", ""},
    /* stages */
    {"{\"pipeline_parallel_size\": 3, \"context_parallel_size\": 1}", "/pipeline_parallel_size",
     "of the model's 8 layers the first stage's 0 and the last one's 0 leave 8 for 3 stages"},
    {"{\"pipeline_parallel_size\": 4, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 1}",
     "/pipeline_parallel_size", "leave 7 for 3 stages"},
    {"{\"pipeline_parallel_size\": 4, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 4, \"num_layers_in_last_pipeline_stage\": 4}",
     "/pipeline_parallel_size", "leave 0 for 2 stages"},
    {"{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 4, \"num_layers_in_last_pipeline_stage\": 3}",
     "/pipeline_parallel_size", "leave 1 for 0 stages"},
    {"{\"pipeline_parallel_size\": 3, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 5, \"num_layers_in_last_pipeline_stage\": 4}",
     "/pipeline_parallel_size",
     "the first stage has 5 layers and the last one 4, but the model has 8"},
    {"{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 8}",
     "/pipeline_parallel_size", "leave 0 for 1 stages"},
    {"{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 0}",
     "/num_layers_in_first_pipeline_stage", "is 0, expected 1 to 8"},
    {"{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1, "
     "\"num_layers_in_last_pipeline_stage\": 9}",
     "/num_layers_in_last_pipeline_stage", "is 9, expected 1 to 8"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_layers_in_last_pipeline_stage\": 8}",
     "/num_layers_in_last_pipeline_stage", "one pipeline stage has all 8 layers"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_layers_in_first_pipeline_stage\": 3}",
     "/num_layers_in_first_pipeline_stage", "one pipeline stage has all 8 layers"},
    /* dense layers */
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_leading_dense_layers\": 0}",
     "/num_leading_dense_layers", "is 0, but layer 0 of the model (counted from 0) is dense"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_leading_dense_layers\": 2}",
     "/num_leading_dense_layers", "is 2, but layer 1 of the model (counted from 0) has experts"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_leading_dense_layers\": 9}",
     "/num_leading_dense_layers", "is 9, expected 0 to 8"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, "
     "\"num_leading_dense_layers\": -1}",
     "/num_leading_dense_layers", "is -1, expected 0 to 8"},
    /* padding */
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 3, \"sequence_multiple\": 8}",
     "/sequence_multiple", "is 8, expected a multiple of 6 (2 * context_parallel_size)"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, \"sequence_multiple\": 0}",
     "/sequence_multiple", "is 0, expected 1 to 1048576"},
    {"{\"pipeline_parallel_size\": 1, \"context_parallel_size\": 1, \"sequence_multiple\": "
     "1048577}",
     "/sequence_multiple", "is 1048577, expected 1 to 1048576"},
};

static void test_refusals(void **state)
{
    struct model_config m = model_of(8, 1);

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct replay_layout l;
        struct err e = {0};

        assert_int_equal(parse(&l, &m, refusals[i].layout, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_int_equal(strncmp(e.field, at, strlen(at)), 0);
        assert_string_equal(e.field + strlen(at), refusals[i].field);
        if (strstr(e.msg, refusals[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", e.msg, refusals[i].message);
    }
}

/* A layer that is dense among sparse ones is no leading one: the layout has to leave the number
 * out. */
static void test_dense_layers_in_the_middle(void **state)
{
    struct model_config m = model_of(4, 0x5);
    struct replay_block b;
    struct replay_layout l;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&l, &m,
                           "{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1, "
                           "\"num_leading_dense_layers\": 1}",
                           &e),
                     -1);
    assert_non_null(strstr(e.msg, "layer 2 of the model (counted from 0) is dense"));
    e = (struct err){0};
    assert_int_equal(
        parse(&l, &m, "{\"pipeline_parallel_size\": 2, \"context_parallel_size\": 1}", &e), 0);
    replay_block_at(&b, &l, &m, 5, 1);
    assert_int_equal(b.first_layer, 1);
    assert_int_equal(b.end_layer, 2);
}

static void test_too_many_blocks(void **state)
{
    struct model_config m = model_of(64, 0);
    struct replay_layout l;
    struct err e = {0};

    (void)state;
    assert_int_equal(
        parse(&l, &m, "{\"pipeline_parallel_size\": 64, \"context_parallel_size\": 64}", &e), 0);
    assert_int_equal(
        parse(&l, &m, "{\"pipeline_parallel_size\": 64, \"context_parallel_size\": 65}", &e), -1);
    assert_string_equal(e.field, "/replay_layout/context_parallel_size");
    assert_non_null(strstr(e.msg, "64 pipeline stages and 65 context ranks are 4160 blocks"));
}

static void test_size(void **state)
{
    struct model_config m = model_of(128, 0);
    struct replay_layout l = {.n_stages = 1, .n_contexts = 1, .sequence_multiple = 1 << 20};
    struct err e = {0};

    (void)state; /* 128 layers * 2 * 2^20 positions are 2^28 ids */
    assert_int_equal(replay_layout_check_size(&l, &m, 1, 1 << 20, at, &e), 0);
    assert_int_equal(replay_layout_check_size(&l, &m, 1, (1 << 20) + 1, at, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    assert_string_equal(e.field, at);
    e = (struct err){0};
    assert_int_equal(replay_layout_check_size(&l, &m, 2, 1, at, &e), -1);
}

/* DeepSeek-V3: 61 layers, the first 3 of them dense, on 16 stages, the last with 1 layer. */
static void test_deepseek_stages(void **state)
{
    struct model_config m = model_of(61, 7);
    struct replay_layout l;
    struct replay_block b;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&l, &m,
                           "{\"pipeline_parallel_size\": 16, \"context_parallel_size\": 2, "
                           "\"num_layers_in_last_pipeline_stage\": 1, "
                           "\"num_leading_dense_layers\": 3, \"sequence_multiple\": 8}",
                           &e),
                     0);
    assert_int_equal(replay_n_blocks(&l), 32);
    replay_block_at(&b, &l, &m, 9, 0); /* layers 0 to 3 */
    assert_int_equal(b.first_layer, 0);
    assert_int_equal(b.end_layer, 1);
    replay_block_at(&b, &l, &m, 9, 3); /* 4 to 7, context rank 1 */
    assert_int_equal(b.pipeline_rank, 1);
    assert_int_equal(b.context_rank, 1);
    assert_int_equal(b.first_layer, 1);
    assert_int_equal(b.end_layer, 5);
    assert_int_equal(b.chunks[0].begin, 4); /* 16 positions: chunks of 4 */
    assert_int_equal(b.chunks[0].end, 8);
    assert_int_equal(b.chunks[1].begin, 8);
    assert_int_equal(b.chunks[1].end, 12);
    replay_block_at(&b, &l, &m, 9, 30); /* layer 60, context rank 0 */
    assert_int_equal(b.first_layer, 57);
    assert_int_equal(b.end_layer, 58);
    assert_int_equal(b.chunks[0].begin, 0);
    assert_int_equal(b.chunks[1].begin, 12);
    assert_int_equal(b.chunks[1].end, 16);
}

static uint16_t id_of(uint32_t position, uint32_t layer, uint32_t i)
{
    return (uint16_t)((position * 131 + layer * 17 + i * 7) % 60000 + PER_TOKEN);
}

static uint16_t *make_routes(struct replay_routes *out, const struct model_config *m, uint32_t n)
{
    uint32_t layers = m->experts.n_sparse_layers;
    uint16_t *ids = malloc(((size_t)n * layers * PER_TOKEN + 1) * sizeof *ids), *p = ids;

    assert_non_null(ids);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t k = 0; k < PER_TOKEN; k++)
                *p++ = id_of(i, l, k);
    *out = (struct replay_routes){ids, n, layers, PER_TOKEN};
    return ids;
}

/* Puts a block where its ranks have it; `seen` counts how often a row of a layer came. */
static void put_block(uint16_t *whole, uint8_t *seen, const struct replay_block *b,
                      const uint16_t *cut, uint32_t n_layers)
{
    for (int c = 0; c < 2; c++)
        for (uint32_t p = b->chunks[c].begin; p < b->chunks[c].end; p++)
            for (uint32_t l = b->first_layer; l < b->end_layer; l++, cut += PER_TOKEN) {
                memcpy(whole + ((size_t)p * n_layers + l) * PER_TOKEN, cut,
                       PER_TOKEN * sizeof *cut);
                seen[(size_t)p * n_layers + l]++;
            }
}

/* The stage has the layers after those of the stages before it: as many as the layout says. */
static void assert_stage(const struct replay_layout *l, const struct model_config *m,
                         const struct replay_block *b)
{
    uint32_t n_left = l->n_stages - (l->n_first > 0) - (l->n_last > 0);
    uint32_t begin = 0, size = 0, want[2] = {0, 0};

    for (uint32_t s = 0; s <= b->pipeline_rank; s++) {
        begin += size;
        if (s == 0 && l->n_first > 0)
            size = l->n_first;
        else if (s == l->n_stages - 1 && l->n_last > 0)
            size = l->n_last;
        else
            size = (m->n_layers - l->n_first - l->n_last) / n_left;
    }
    for (uint32_t i = 0; i < begin + size; i++) {
        want[0] += i < begin && model_layer_is_sparse(m, i);
        want[1] += model_layer_is_sparse(m, i);
    }
    assert_int_equal(b->first_layer, want[0]);
    assert_int_equal(b->end_layer, want[1]);
}

/* The blocks put together are the routes, and padding after them; nothing is in two blocks. */
static void assert_whole(const struct replay_layout *l, const struct model_config *m,
                         uint32_t n_rows, uint32_t n_positions)
{
    uint32_t n_layers = m->experts.n_sparse_layers, padded = replay_padded_length(l, n_positions);
    size_t n = (size_t)padded * n_layers;
    uint16_t *whole = calloc(n * PER_TOKEN + 1, sizeof *whole);
    uint16_t *cut = calloc(n * PER_TOKEN + 1, sizeof *cut);
    uint8_t *seen = calloc(n + 1, 1);
    struct replay_routes routes;
    uint16_t *ids = make_routes(&routes, m, n_rows);

    assert_non_null(whole);
    assert_non_null(cut);
    assert_non_null(seen);
    assert_true(padded >= n_positions && padded - n_positions < l->sequence_multiple);
    for (uint32_t i = 0; i < replay_n_blocks(l); i++) {
        struct replay_block b;

        replay_block_at(&b, l, m, n_positions, i);
        assert_int_equal(i, b.pipeline_rank * l->n_contexts + b.context_rank);
        assert_int_equal(replay_block_n_rows(&b), padded / l->n_contexts);
        assert_stage(l, m, &b);
        replay_cut(cut, &b, &routes);
        put_block(whole, seen, &b, cut, n_layers);
    }
    for (uint32_t p = 0; p < padded; p++)
        for (uint32_t s = 0; s < n_layers; s++) {
            size_t row = (size_t)p * n_layers + s;

            assert_int_equal(seen[row], 1);
            for (uint32_t k = 0; k < PER_TOKEN; k++)
                assert_int_equal(whole[row * PER_TOKEN + k], p < n_rows ? id_of(p, s, k) : k);
        }
    free(whole);
    free(cut);
    free(seen);
    free(ids);
}

/* Is the split one that Megatron accepts? Counted out, not computed. */
static bool even(uint32_t n_layers, uint32_t pp, uint32_t first, uint32_t last)
{
    uint32_t n = 0, n_stages = pp - (first > 0) - (last > 0);

    if (pp == 1 && (first > 0 || last > 0))
        return false;
    for (uint32_t each = n_stages > 0; each <= (n_stages > 0 ? n_layers : 0); each++)
        n += first + last + n_stages * each == n_layers;
    return n == 1;
}

static int parse_numbers(struct replay_layout *l, const struct model_config *m, uint32_t pp,
                         uint32_t cp, uint32_t first, uint32_t last, uint32_t multiple,
                         struct err *e)
{
    json_t *o = json_pack("{s:i, s:i, s:i}", "pipeline_parallel_size", (int)pp,
                          "context_parallel_size", (int)cp, "sequence_multiple", (int)multiple);
    int rc;

    if (first > 0)
        json_object_set_new(o, "num_layers_in_first_pipeline_stage", json_integer(first));
    if (last > 0)
        json_object_set_new(o, "num_layers_in_last_pipeline_stage", json_integer(last));
    rc = replay_layout_parse(l, o, at, m, e);
    json_decref(o);
    return rc;
}

/* Every split of 8 layers over up to 8 stages and 8 context ranks; returns 1 if it is accepted. */
static uint32_t check_split(uint32_t pp, uint32_t first, uint32_t last)
{
    static const uint64_t dense[] = {0, 0x1, 0x7, 0x7f, 0x55, 0x80};

    for (size_t d = 0; d < sizeof dense / sizeof dense[0]; d++) {
        struct model_config m = model_of(8, dense[d]);

        for (uint32_t cp = 1; cp <= 8; cp++) {
            struct replay_layout l;
            struct err e = {0};

            assert_int_equal(parse_numbers(&l, &m, pp, cp, first, last, 2 * cp, &e),
                             even(8, pp, first, last) ? 0 : -1);
            if (e.code != ERR_NONE)
                return 0;
            for (uint32_t n = 1; n <= 4 * cp + 1; n += cp)
                assert_whole(&l, &m, n - 1, n);
        }
    }
    return 1;
}

static void test_every_small_layout(void **state)
{
    uint32_t n_accepted = 0;

    (void)state;
    for (uint32_t pp = 1; pp <= 8; pp++)
        for (uint32_t first = 0; first <= 8; first++)
            for (uint32_t last = 0; last <= 8; last++)
                n_accepted += check_split(pp, first, last);
    assert_true(n_accepted > 40);
}

static uint32_t draw(uint32_t min, uint32_t max)
{
    static uint64_t s = 1;

    s = s * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return min + (uint32_t)(s >> 33) % (max - min + 1);
}

static void test_random_layouts(void **state)
{
    uint32_t n_accepted = 0;

    (void)state;
    for (int i = 0; i < N_RANDOM; i++) {
        uint32_t pp = draw(1, 16), cp = draw(1, 16), n_layers = draw(1, 64);
        uint32_t first = pp > 1 ? draw(0, 5) : 0, last = pp > 1 ? draw(0, 5) : 0;
        uint32_t n = draw(1, 200), multiple = draw(1, 3) * 2 * cp;
        uint64_t dense = draw(0, 1) ? (UINT64_C(1) << draw(0, 10)) - 1
                                    : (uint64_t)draw(0, INT32_MAX) << draw(0, 31);
        struct model_config m = model_of(n_layers, dense);
        struct replay_layout l;
        struct err e = {0};

        if (pp > n_layers || first > n_layers || last > n_layers)
            continue;
        assert_int_equal(parse_numbers(&l, &m, pp, cp, first, last, multiple, &e),
                         even(n_layers, pp, first, last) ? 0 : -1);
        if (e.code != ERR_NONE)
            continue;
        assert_whole(&l, &m, draw(0, n), n);
        n_accepted++;
    }
    assert_true(n_accepted > N_RANDOM / 20);
}

/* Two stages of a model whose first layer is dense, two context ranks, 3 positions. */
static void put_blocks(struct buf *out)
{
    static const uint16_t ids[] = {9, 4, 300, 2, 40000, 0, 7, 6}; /* [2, 2, 2] */
    struct replay_layout l = {.n_stages = 2, .n_contexts = 2, .n_first = 2, .sequence_multiple = 4};
    struct replay_routes routes = {ids, 2, 2, 2};
    struct model_config m = model_of(3, 1);

    replay_blocks_put(out, &l, &m, &routes, 3);
}

static void test_json(void **state)
{
    struct buf out = {0};

    (void)state;
    put_blocks(&out);
    assert_false(out.failed);
    buf_append(&out, "", 1);
    assert_string_equal(out.data,
                        "[{\"data\":\"CQQAAQ==\",\"shape\":[2,1,2],\"dtype\":\"uint8\","
                        "\"pipeline_rank\":0,\"context_rank\":0,\"layers\":[1]},"
                        "{\"data\":\"QJwAAAAAAAAAAAAAAQAAAA==\",\"shape\":[2,1,2],\"dtype\":"
                        "\"int32\",\"pipeline_rank\":0,\"context_rank\":1,\"layers\":[1]},"
                        "{\"data\":\"LAECAAAAAQA=\",\"shape\":[2,1,2],\"dtype\":\"int16\","
                        "\"pipeline_rank\":1,\"context_rank\":0,\"layers\":[2]},"
                        "{\"data\":\"BwYAAQ==\",\"shape\":[2,1,2],\"dtype\":\"uint8\","
                        "\"pipeline_rank\":1,\"context_rank\":1,\"layers\":[2]}]");
    buf_fini(&out);
}

/* A reply that lacks a block must not look whole. */
static void test_json_without_memory(void **state)
{
    bool failed = true;
    int n = 0;

    (void)state;
    for (; failed; n++) {
        struct buf out = {0};

        atomic_store(&alloc_left, n);
        put_blocks(&out);
        failed = atomic_load(&alloc_left) < 0;
        atomic_store(&alloc_left, -1);
        assert_int_equal(out.failed, failed);
        buf_fini(&out);
    }
    assert_true(n > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dense_layers_in_the_middle),
        cmocka_unit_test(test_too_many_blocks),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_deepseek_stages),
        cmocka_unit_test(test_every_small_layout),
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
