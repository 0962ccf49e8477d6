/* Tokens, logprobs and ranks of a step are the same bits whoever computes them: random rows and
 * rules over a vocabulary of several parts, on several threads, by each instruction set, in any
 * company, against each row alone, scalar, on one thread. */
#include "engine/sampler/token_selector.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 3 * SAMPLER_PART + 1234, N_ROWS = 24, ROUNDS = 4, N_TOP_MAX = 20, N_MASKED = 5 };

static uint64_t rng_state = 9;

static uint32_t below(uint32_t n)
{
    rng_state = rng_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(rng_state >> 33) % n;
}

struct row {
    float *logits; /* owned; [VOCAB] */
    struct gen_params p;
    struct logits_processor *logits_processor; /* owned, or NULL */
    struct token_counts counts;
    uint32_t masked[N_MASKED];
    struct choice asked;
    struct gen_top top[N_TOP_MAX];

    bool finite, chosen; /* alone */
    struct gen_token token;
    struct gen_top alone[N_TOP_MAX];
};

static struct row rows[N_ROWS];

static void fill_logits(float *x)
{
    uint32_t peak = below(3);

    for (uint32_t i = 0; i < VOCAB; i++)
        x[i] = (float)(below(20000) + below(20000)) / 2000.0F - 10.0F;
    for (uint32_t i = 0; peak > 0 && i < 30; i++)
        x[below(VOCAB)] += (float)(below(8) * peak); /* ties among the best, in several parts */
    if (below(12) == 0)
        x[below(VOCAB)] = NAN;
}

static struct logits_processor *random_logits_processor(void)
{
    struct logits_processor *s = NULL;
    struct err e = {0};
    uint32_t *ids;

    assert_int_equal(logits_processor_new(&s, &e), 0);
    if (below(2) == 0) {
        ids = malloc(300 * sizeof *ids);
        assert_non_null(ids);
        for (uint32_t i = 0; i < 300; i++)
            ids[i] = below(VOCAB);
        logits_processor_allow(s, ids, 300);
    }
    for (uint32_t i = 0; i < 6; i++)
        assert_true(
            logits_processor_add_bias(s, i * 900 + below(900), (double)below(200) / 20 - 5));
    return s;
}

static void random_rules(struct row *r)
{
    static const float temperatures[] = {0, 0.005F, 0.6F, 1, 1, 1.8F};
    struct gen_params *p = &r->p;
    struct err e = {0};

    gen_params_init(p);
    p->temperature = temperatures[below(6)];
    p->seed = below(1000000);
    p->top_k = below(3) == 0 ? 1 + (int32_t)below(below(2) ? 60 : VOCAB) : 0;
    p->top_p = below(3) == 0 ? 1.0F - (float)below(100) / 101.0F : 1;
    p->min_p = below(4) == 0 ? (float)(1 + below(100)) / 400.0F : 0;
    p->repetition_penalty = below(2) ? 1.2F : 1;
    p->presence_penalty = 0.3F;
    if (below(3) == 0)
        p->logits_processor = r->logits_processor = random_logits_processor();
    if (below(3) == 0) {
        assert_int_equal(token_counts_init(&r->counts, 60, &e), 0);
        for (uint32_t i = 0; i < 60; i++)
            token_counts_add_output(&r->counts, below(VOCAB));
    }
}

static void row_init(struct row *r)
{
    *r = (struct row){.logits = malloc(VOCAB * sizeof(float))};
    assert_non_null(r->logits);
    fill_logits(r->logits);
    r->asked = (struct choice){.logits = r->logits, .logprobs = -1};
    if (below(3) > 0)
        r->asked.logprobs = (int32_t)below(N_TOP_MAX + 1);
    if (r->asked.logprobs > 0)
        r->asked.top = r->top;
    if (below(5) == 0) {
        r->asked.given = true;
        r->asked.id = below(VOCAB);
        return;
    }
    random_rules(r);
    r->asked.logprobs_mode = (enum gen_logprobs_mode)below(GEN_LOGPROBS_N_MODES);
    for (uint32_t i = 0; i < N_MASKED; i++)
        r->masked[i] = below(VOCAB);
    r->asked.draw = (struct sampler_draw){.params = &r->p,
                                          .counts = r->counts.n > 0 ? &r->counts : NULL,
                                          .index = below(50),
                                          .masked = r->masked,
                                          .n_masked = below(3) == 0 ? N_MASKED : 0};
}

static void row_fini(struct row *r)
{
    token_counts_fini(&r->counts);
    logits_processor_unref(r->logits_processor);
    free(r->logits);
}

struct pool {
    struct compute *compute;
    struct token_selector *selector;
};

static struct pool pool_new(enum kernels_isa isa, uint32_t n_threads, uint32_t n_max)
{
    struct pool p;
    struct err e = {0};

    assert_true(kernels_select(isa));
    assert_int_equal(compute_new(&p.compute, n_threads, &e), 0);
    assert_int_equal(token_selector_new(&p.selector, p.compute, VOCAB, n_max, &e), 0);
    return p;
}

static void pool_free(struct pool *p)
{
    token_selector_free(p->selector);
    compute_free(p->compute);
}

static void same(const struct choice *c, const struct row *r)
{
    assert_int_equal(c->finite, r->finite);
    if (!r->finite)
        return;
    assert_int_equal(c->chosen, r->chosen);
    if (!r->chosen)
        return;
    assert_int_equal(c->token.id, r->token.id);
    assert_int_equal(c->token.rank, r->token.rank);
    assert_memory_equal(&c->token.logprob, &r->token.logprob, sizeof(float));
    assert_int_equal(c->token.n_top, r->token.n_top);
    if (c->token.n_top > 0)
        assert_memory_equal(c->token.top, r->alone, c->token.n_top * sizeof *r->alone);
}

/* What the rows alone say. Returns: how many distinct ways were seen, as bits. */
static unsigned run_alone(void)
{
    struct pool p = pool_new(KERNELS_SCALAR, 1, 1);
    unsigned ways = 0;

    for (uint32_t i = 0; i < N_ROWS; i++) {
        struct choice c = rows[i].asked;

        token_selector_run(p.selector, &c, 1);
        rows[i].finite = c.finite;
        rows[i].chosen = c.chosen;
        rows[i].token = c.token;
        memcpy(rows[i].alone, rows[i].top, sizeof rows[i].alone);
        ways |= !c.finite                  ? 1U
                : c.given                  ? 2U
                : !c.chosen                ? 4U
                : sampler_is_open(&c.draw) ? 8U
                                           : 16U;
        if (!c.finite || !c.chosen)
            continue;
        assert_true(!c.given || c.token.id == rows[i].asked.id);
        assert_true((c.token.rank > 0) == (c.logprobs >= 0));
        assert_true(c.logprobs >= 0 ? c.token.logprob <= 0 : !(c.token.logprob < 0));
        c = rows[i].asked; /* what is not asked for changes no token */
        c.logprobs = c.logprobs >= 0 ? -1 : 0;
        c.top = NULL;
        token_selector_run(p.selector, &c, 1);
        assert_int_equal(c.token.id, rows[i].token.id);
    }
    pool_free(&p);
    return ways;
}

/* Together, in random groups. */
static void run_together(enum kernels_isa isa, uint32_t n_threads)
{
    struct pool p = pool_new(isa, n_threads, N_ROWS);
    struct choice choices[N_ROWS];

    for (uint32_t first = 0, n; first < N_ROWS; first += n) {
        n = 1 + below(N_ROWS);
        n = n < N_ROWS - first ? n : N_ROWS - first;
        for (uint32_t i = 0; i < n; i++) {
            choices[i] = rows[first + i].asked;
            memset(rows[first + i].top, 0x5a, sizeof rows[first + i].top);
        }
        token_selector_run(p.selector, choices, n);
        for (uint32_t i = 0; i < n; i++)
            same(&choices[i], &rows[first + i]);
    }
    pool_free(&p);
}

static void test_the_same_bits_whoever_computes(void **state)
{
    unsigned ways = 0;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < N_ROWS; i++)
            row_init(&rows[i]);
        ways |= run_alone();
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            if (kernels_get((enum kernels_isa)isa) == NULL)
                continue;
            run_together((enum kernels_isa)isa, 1);
            run_together((enum kernels_isa)isa, 2 + below(6));
        }
        for (uint32_t i = 0; i < N_ROWS; i++)
            row_fini(&rows[i]);
    }
    assert_int_equal(ways & 27U, 27U); /* not finite, given, open draws, other draws */
}

/* Each of the tokens once, with top_k and top_p of a whole vocabulary: the bounds that spare a draw
 * most tokens spare it none that could come. */
static void test_rules_keep_what_a_sort_keeps(void **state)
{
    struct pool p = pool_new(KERNELS_SCALAR, 1, 1);
    struct gen_params params;
    uint32_t n_seen = 0;
    struct row r;

    (void)state;
    gen_params_init(&params);
    params.top_k = 7;
    r.logits = malloc(VOCAB * sizeof(float));
    assert_non_null(r.logits);
    for (uint32_t i = 0; i < VOCAB; i++)
        r.logits[i] = (float)(i % 97) / 97.0F;
    for (uint32_t i = 0; i < 7; i++)
        r.logits[5000 + i] = 1.5F + (float)i / 10; /* the seven, all in one block */
    for (uint64_t index = 0, mask = 0; index < 400; index++) {
        struct choice c = {.logits = r.logits, .logprobs = -1};

        c.draw = (struct sampler_draw){.params = &params, .index = index};
        token_selector_run(p.selector, &c, 1);
        assert_in_range(c.token.id, 5000, 5006);
        n_seen += (mask >> (c.token.id - 5000) & 1) == 0;
        mask |= 1ULL << (c.token.id - 5000);
    }
    assert_int_equal(n_seen, 7);
    free(r.logits);
    pool_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits_whoever_computes),
        cmocka_unit_test(test_rules_keep_what_a_sort_keeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
