/* A slow model of the sampling order, in double precision: it keeps the history, walks all of it
 * for every token, sorts everything, and shares no code with the engine. Logits come from the test;
 * there is no model and no thread. Allocations are counted: link with --wrap. */
#ifndef BATON_TESTS_UNIT_ENGINE_SLOW_SAMPLER_H
#define BATON_TESTS_UNIT_ENGINE_SLOW_SAMPLER_H

#include "tests/unit/take_logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 80, N_PROMPT_MAX = 12, N_OUT_MAX = 24, EOS = 79, LIST_MAX = 12, WORD_MAX = 3 };

static const struct seq_rules rules = {
    .vocab_size = VOCAB, .max_model_len = 512, .kv_tokens_max = 1000, .n_eos = 1, .eos = {EOS}};

/* ---- allocations are counted, and made to fail ---- */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);

static long n_allocations, fails_at = -1;

static bool fails(void)
{
    return n_allocations++ == fails_at;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return fails() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(next_random(state) % n);
}

/* In [low, high). */
static float between(uint64_t *state, float low, float high)
{
    return low + (high - low) * (float)(next_random(state) % 65536) / 65536.0F;
}

/* ---- one request, in plain lists ---- */

struct request {
    struct gen_params p; /* without its logits_processor */
    uint32_t n_prompt, prompt[N_PROMPT_MAX];
    uint32_t n_allowed, allowed[VOCAB];
    uint32_t n_biases, bias_ids[LIST_MAX];
    float biases[LIST_MAX];
    uint32_t n_words, word_len[LIST_MAX], words[LIST_MAX][WORD_MAX];
};

static void request_init(struct request *r)
{
    memset(r, 0, sizeof *r);
    gen_params_init(&r->p);
    r->p.max_tokens = N_OUT_MAX;
    r->p.logprobs = 0;
    r->p.ignore_eos = true;
    r->n_prompt = 1;
}

static struct logits_processor *logits_processor_of(const struct request *r)
{
    struct logits_processor *s = NULL;
    struct err e = {0};

    if (r->n_allowed + r->n_biases + r->n_words == 0)
        return NULL;
    assert_int_equal(logits_processor_new(&s, &e), 0);
    if (r->n_allowed > 0) {
        uint32_t *ids = malloc(r->n_allowed * sizeof *ids);

        assert_non_null(ids);
        memcpy(ids, r->allowed, r->n_allowed * sizeof *ids);
        logits_processor_allow(s, ids, r->n_allowed);
    }
    for (uint32_t i = 0; i < r->n_biases; i++)
        assert_true(logits_processor_add_bias(s, r->bias_ids[i], (double)r->biases[i]));
    for (uint32_t i = 0; i < r->n_words; i++)
        assert_true(logits_processor_forbid(s, r->words[i], r->word_len[i]));
    return s;
}

static int make_seq(struct seq **q, const struct request *r, struct err *e)
{
    struct gen_request gr = {.n_prompt = r->n_prompt, .params = r->p};
    int rc;

    gr.params.logits_processor = logits_processor_of(r);
    gr.prompt = malloc(r->n_prompt * sizeof *gr.prompt);
    assert_non_null(gr.prompt);
    memcpy(gr.prompt, r->prompt, r->n_prompt * sizeof *gr.prompt);
    rc = seq_new(q, &rules, &gr, e);
    gen_request_fini(&gr);
    return rc;
}

/* ---- the slow model ---- */

struct entry {
    double logit;
    uint32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->logit < y->logit || x->logit > y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static uint32_t count_in(uint32_t id, const uint32_t *ids, uint32_t n)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += ids[i] == id;
    return found;
}

static bool slow_masked(const struct request *r, uint32_t id, const uint32_t *out, uint32_t n_out)
{
    if (r->n_allowed > 0 && count_in(id, r->allowed, r->n_allowed) == 0)
        return true;
    for (uint32_t w = 0; w < r->n_words; w++) {
        uint32_t n = r->word_len[w];

        if (r->words[w][n - 1] == id && n_out >= n - 1 &&
            memcmp(out + n_out - (n - 1), r->words[w], (n - 1) * sizeof *out) == 0)
            return true;
    }
    return n_out < r->p.min_tokens &&
           (id == EOS || count_in(id, r->p.stop_ids, r->p.n_stop_ids) > 0);
}

/* Minus infinity where it is masked. */
static double slow_logit(const struct request *r, double logit, uint32_t id, const uint32_t *out,
                         uint32_t n_out)
{
    uint32_t n = count_in(id, out, n_out);
    double penalty = (double)r->p.repetition_penalty;

    if (slow_masked(r, id, out, n_out))
        return -INFINITY;
    for (uint32_t i = 0; i < r->n_biases; i++)
        if (r->bias_ids[i] == id)
            logit += fmin(fmax((double)r->biases[i], -100), 100);
    if (n > 0 || count_in(id, r->prompt, r->n_prompt) > 0)
        logit = logit > 0 ? logit / penalty : logit * penalty;
    logit -= (double)r->p.frequency_penalty * n;
    return n > 0 ? logit - (double)r->p.presence_penalty : logit;
}

/* The sampler's definition of randomness: SplitMix64 of (seed, index), then of the id. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static double slow_uniform(uint64_t seed, uint64_t index, uint32_t id)
{
    const uint64_t step = 0x9e3779b97f4a7c15U;
    uint64_t key = mix(mix(seed + step) + step * (index + 1));

    return ((double)(mix(key + step * (id + 1U)) >> 12) + 0.5) / 4503599627370496.0;
}

struct verdict {
    uint32_t id, n_kept;
    bool sure;             /* false: within rounding of another answer */
    double logprob[VOCAB]; /* of what was drawn from; minus infinity of what was not */
};

static const double CLOSE = 2e-5;

static bool near(double a, double b)
{
    return fabs(a - b) <= CLOSE * fmax(1, fmax(fabs(a), fabs(b)));
}

/* Entries are sorted, the best first; cuts them to what min_p, top_k and top_p leave. */
static void slow_cut(const struct request *r, struct entry *s, uint32_t *n, bool *sure)
{
    double best = s[0].logit, total = 0, below_sum = 0;
    uint32_t k = r->p.top_k > 0 ? (uint32_t)r->p.top_k : *n, n_kept = *n;

    while (n_kept > 0 && exp(s[n_kept - 1].logit - best) < (double)r->p.min_p)
        n_kept--;
    for (uint32_t i = 0; i < *n && r->p.min_p > 0; i++)
        *sure = *sure && !near(exp(s[i].logit - best), (double)r->p.min_p);
    if (k < n_kept) {
        *sure = *sure && !near(s[k].logit, s[k - 1].logit);
        for (; n_kept > k && s[n_kept - 1].logit < s[k - 1].logit;)
            n_kept--;
    }
    for (uint32_t i = 0; i < n_kept; i++)
        total += exp(s[i].logit - best);
    for (*n = n_kept; *n > 1 && r->p.top_p < 1; (*n)--) {
        below_sum += exp(s[*n - 1].logit - best) / total;
        *sure = *sure && !near(below_sum, 1 - (double)r->p.top_p);
        if (below_sum > 1 - (double)r->p.top_p)
            break;
    }
}

static void slow_logprobs(struct verdict *v, const struct entry *s, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp(s[i].logit - s[0].logit);
    for (uint32_t id = 0; id < VOCAB; id++)
        v->logprob[id] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        v->logprob[s[i].id] = s[i].logit - s[0].logit - log(sum);
}

static struct verdict slow_pick(const struct request *r, const float *logits, const uint32_t *out,
                                uint32_t n_out)
{
    struct verdict v = {.sure = true};
    struct entry s[VOCAB];
    double first = INFINITY, second = INFINITY, t = (double)r->p.temperature;
    uint32_t n = 0;

    for (uint32_t id = 0; id < VOCAB; id++) {
        double logit = slow_logit(r, (double)logits[id], id, out, n_out);

        if (!isinf(logit))
            s[n++] = (struct entry){logit, id};
    }
    if (n == 0)
        return v;
    qsort(s, n, sizeof *s, by_logit);
    v.id = s[0].id;
    v.n_kept = n;
    if (!(t > 0)) {
        slow_logprobs(&v, s, n);
        v.sure = n == 1 || !near(s[0].logit, s[1].logit);
        return v;
    }
    for (uint32_t i = 0; i < n; i++)
        s[i].logit /= fmax(t, 0.01);
    slow_cut(r, s, &n, &v.sure);
    v.n_kept = n;
    slow_logprobs(&v, s, n);
    for (uint32_t i = 0; i < n; i++) {
        double arrival = -log(slow_uniform(r->p.seed, n_out, s[i].id)) /
                         exp(s[i].logit - s[0].logit);

        if (arrival < first) {
            second = first;
            first = arrival;
            v.id = s[i].id;
        } else {
            second = fmin(second, arrival);
        }
    }
    v.sure = v.sure && (isinf(second) || second - first > CLOSE * 10 * first);
    return v;
}

/* ---- running one ---- */

static void logits_of(float *logits, uint64_t seed, uint32_t step)
{
    uint64_t state = mix(seed * 1000 + step);

    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = between(&state, -6, 6);
}

static struct version_label label_v = {.refs = 1, .text = "v"};
static struct taker taker;

/* One token more. The step must not allocate. */
static void take(struct seq *q, const float *logits)
{
    struct seq_step step = {.serial = 1, .name = &label_v};
    long before = n_allocations;

    take_logits(&taker, q, q->req.n_prompt - 1 + q->rec->out.n_tokens, logits, &step);
    assert_int_equal(n_allocations, before);
}

static void random_lists(struct request *r, uint64_t *state)
{
    if (below(state, 3) == 0) {
        r->n_allowed = 1 + below(state, 30);
        for (uint32_t i = 0; i < r->n_allowed; i++)
            r->allowed[i] = below(state, VOCAB);
    }
    if (below(state, 2) == 0) {
        r->n_biases = below(state, LIST_MAX);
        for (uint32_t i = 0; i < r->n_biases; i++) {
            r->bias_ids[i] = i * 6 + below(state, 6);
            r->biases[i] = between(state, -8, 8);
        }
    }
    if (below(state, 2) == 0) {
        r->n_words = below(state, LIST_MAX);
        for (uint32_t i = 0; i < r->n_words; i++) {
            r->word_len[i] = 1 + below(state, WORD_MAX);
            for (uint32_t k = 0; k < r->word_len[i]; k++)
                r->words[i][k] = r->n_allowed > 0 ? r->allowed[below(state, r->n_allowed)]
                                                  : below(state, VOCAB);
        }
    }
}

static void random_request(struct request *r, uint64_t *state)
{
    static const float temperatures[] = {0, 0, 0.005F, 0.5F, 1, 1, 1.7F};

    request_init(r);
    r->p.seed = next_random(state);
    r->p.temperature = temperatures[below(state, 7)];
    r->p.top_k = below(state, 2) == 0 ? (int32_t)below(state, 20) : -1;
    r->p.top_p = below(state, 2) == 0 ? between(state, 0.05F, 1) : 1;
    r->p.min_p = below(state, 3) == 0 ? between(state, 0, 0.5F) : 0;
    if (below(state, 2) == 0)
        r->p.repetition_penalty = between(state, 0.5F, 2.5F);
    if (below(state, 2) == 0)
        r->p.frequency_penalty = between(state, -2, 2);
    if (below(state, 2) == 0)
        r->p.presence_penalty = between(state, -2, 2);
    r->p.min_tokens = below(state, 2) == 0 ? below(state, N_OUT_MAX) : 0;
    r->p.ignore_eos = below(state, 2) == 0;
    r->p.n_stop_ids = below(state, 4);
    for (uint32_t i = 0; i < r->p.n_stop_ids; i++)
        r->p.stop_ids[i] = below(state, VOCAB);
    r->n_prompt = 1 + below(state, N_PROMPT_MAX);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = below(state, VOCAB);
    random_lists(r, state);
}

static void run_bits(const struct request *r, uint64_t seed, struct gen_token *tokens)
{
    struct err e = {0};
    struct seq *q = NULL;
    float logits[VOCAB];

    if (make_seq(&q, r, &e) != 0)
        fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < N_OUT_MAX; i++) {
        logits_of(logits, seed, i);
        take(q, logits);
        tokens[i] = q->rec->tokens[i];
    }
    seq_free(q);
}

static int make_taker(void **state)
{
    struct err e = {0};

    (void)state;
    return taker_init(&taker, VOCAB, &e);
}

static int free_taker(void **state)
{
    (void)state;
    taker_fini(&taker);
    return 0;
}

#endif
