/* Whole sequences against a slow model of the sampling order, in double precision: it keeps the
 * history, walks all of it for every token, sorts everything, and shares no code with the engine.
 * Logits come from the test; there is no model and no thread. */
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
    struct gen_params p; /* without its steering */
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

static struct steering *steering_of(const struct request *r)
{
    struct steering *s = NULL;
    struct err e = {0};

    if (r->n_allowed + r->n_biases + r->n_words == 0)
        return NULL;
    assert_int_equal(steering_new(&s, &e), 0);
    if (r->n_allowed > 0) {
        uint32_t *ids = malloc(r->n_allowed * sizeof *ids);

        assert_non_null(ids);
        memcpy(ids, r->allowed, r->n_allowed * sizeof *ids);
        steering_allow(s, ids, r->n_allowed);
    }
    for (uint32_t i = 0; i < r->n_biases; i++)
        assert_true(steering_favour(s, r->bias_ids[i], (double)r->biases[i]));
    for (uint32_t i = 0; i < r->n_words; i++)
        assert_true(steering_forbid(s, r->words[i], r->word_len[i]));
    return s;
}

static int make_seq(struct seq **q, const struct request *r, struct err *e)
{
    struct gen_request gr = {.n_prompt = r->n_prompt, .params = r->p};
    int rc;

    gr.params.steering = steering_of(r);
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
    bool sure; /* false: within rounding of another answer */
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
        v.sure = n == 1 || !near(s[0].logit, s[1].logit);
        return v;
    }
    for (uint32_t i = 0; i < n; i++)
        s[i].logit /= fmax(t, 0.01);
    slow_cut(r, s, &n, &v.sure);
    v.n_kept = n;
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

struct tally {
    uint32_t n_tokens, n_unsure, n_refused, n_errors;
};

/* Runs the request and holds every token against the slow model. */
static void compare(const struct request *r, uint64_t seed, struct tally *tally)
{
    uint32_t out[N_OUT_MAX];
    struct err e = {0};
    struct seq *q = NULL;
    float logits[VOCAB];

    logits_of(logits, seed, 0);
    if (make_seq(&q, r, &e) != 0) {
        assert_int_equal(slow_pick(r, logits, out, 0).n_kept, 0);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        tally->n_refused++;
        return;
    }
    for (uint32_t n = 0; q->rec->out.finish == GEN_RUNNING; n++) {
        struct verdict want;

        logits_of(logits, seed, n);
        want = slow_pick(r, logits, out, n);
        take(q, logits);
        if (want.n_kept == 0) {
            assert_int_equal(q->rec->out.finish, GEN_ERROR);
            assert_int_equal(q->rec->out.error.code, ERR_BAD_REQUEST);
            assert_int_equal(q->rec->out.n_tokens, n);
            tally->n_errors++;
            break;
        }
        assert_int_equal(q->rec->out.n_tokens, n + 1);
        out[n] = q->rec->tokens[n].id;
        assert_false(slow_masked(r, out[n], out, n));
        tally->n_tokens++;
        tally->n_unsure += !want.sure;
        if (want.sure && out[n] != want.id)
            fail_msg("seed %llu, token %u: %u, the slow model says %u", (unsigned long long)seed, n,
                     out[n], want.id);
    }
    seq_free(q);
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

static void test_sequences_equal_the_slow_model(void **state)
{
    struct tally tally = {0};
    uint64_t random = 11;

    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        struct request r;

        random_request(&r, &random);
        compare(&r, round, &tally);
    }
    print_message("%u tokens, %u of them within rounding of another; %u requests refused, %u ended "
                  "without a choice\n",
                  tally.n_tokens, tally.n_unsure, tally.n_refused, tally.n_errors);
    assert_true(tally.n_tokens > 20000 && tally.n_unsure < tally.n_tokens / 50);
    assert_true(tally.n_refused > 0 && tally.n_errors > 0);
}

/* ---- the order, by cases in which another order gives another token ---- */

static uint32_t greedy_of(const struct request *r, const float *few, uint32_t n, uint32_t n_steps)
{
    struct err e = {0};
    struct seq *q = NULL;
    float logits[VOCAB];
    uint32_t id;

    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = i < n ? few[i] : -50.0F;
    if (make_seq(&q, r, &e) != 0)
        fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < n_steps; i++)
        take(q, logits);
    assert_int_equal(q->rec->out.n_tokens, n_steps);
    id = q->rec->tokens[n_steps - 1].id;
    seq_free(q);
    return id;
}

/* (-1 + 3) / 4 beats 0; -1 * 4 + 3 would not. */
static void test_bias_comes_before_the_repetition_penalty(void **state)
{
    static const float logits[] = {-1, 0};
    struct request r;

    (void)state;
    request_init(&r);
    r.p.temperature = 0;
    r.p.repetition_penalty = 4;
    r.n_biases = 1;
    r.biases[0] = 3;
    assert_int_equal(greedy_of(&r, logits, 2, 1), 0);
    r.p.repetition_penalty = 1e9F;
    assert_int_equal(greedy_of(&r, logits, 2, 1), 0); /* next to nothing, still above 0 */
}

/* 2 / 2 - 1 loses to 0.25; (2 - 1) / 2 would not. */
static void test_the_repetition_penalty_comes_before_the_others(void **state)
{
    static const float logits[] = {2, 0.25F, -9};
    struct request r;

    (void)state;
    request_init(&r);
    r.p.temperature = 0;
    r.prompt[0] = 2;
    r.p.repetition_penalty = 2;
    r.p.frequency_penalty = 1;
    assert_int_equal(greedy_of(&r, logits, 3, 1), 0);
    assert_int_equal(greedy_of(&r, logits, 3, 2), 1);
    r.p.frequency_penalty = 0;
    r.p.presence_penalty = 1;
    assert_int_equal(greedy_of(&r, logits, 3, 2), 1);
    r.p.presence_penalty = 0.5F;
    assert_int_equal(greedy_of(&r, logits, 3, 2), 0);
}

/* A prompt token is repeated, but neither frequent nor present in the output. */
static void test_only_repetition_looks_at_the_prompt(void **state)
{
    static const float logits[] = {2, 1.5F};
    struct request r;

    (void)state;
    request_init(&r);
    r.p.temperature = 0;
    r.p.frequency_penalty = r.p.presence_penalty = 2;
    assert_int_equal(greedy_of(&r, logits, 2, 1), 0);
    r.p.repetition_penalty = 2;
    assert_int_equal(greedy_of(&r, logits, 2, 1), 1);
}

/* No bias brings a masked token back, and a penalty of less than nothing neither. */
static void test_a_masked_token_stays_masked(void **state)
{
    static const float logits[] = {9, 1, 0.5F, 3e38F};
    struct request r;

    (void)state;
    request_init(&r);
    r.p.temperature = 0;
    r.p.min_tokens = 2;
    r.p.n_stop_ids = 1; /* id 0, which is the prompt's too */
    r.p.repetition_penalty = 1e-30F;
    r.n_biases = 1;
    r.biases[0] = 100;
    r.n_allowed = 3;
    memcpy(r.allowed, (const uint32_t[]){2, 1, 0}, 3 * sizeof(uint32_t));
    r.n_words = 1;
    r.word_len[0] = 1;
    r.words[0][0] = 1;
    assert_int_equal(greedy_of(&r, logits, 4, 1), 2);
    assert_int_equal(greedy_of(&r, logits, 4, 3), 0); /* min_tokens is over */
}

static void test_extreme_penalties_make_no_infinity(void **state)
{
    static const float logits[] = {3e38F, -3e38F, 2e38F, 0};
    static const float penalties[] = {1e-45F, 1e-30F, 1e30F, 3.4e38F};
    struct request r;

    (void)state;
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++)
        for (int hot = 0; hot < 2; hot++) {
            request_init(&r);
            r.p.temperature = hot ? 100 : 0;
            r.p.repetition_penalty = penalties[i];
            r.p.frequency_penalty = -2;
            r.n_prompt = 4;
            memcpy(r.prompt, (const uint32_t[]){0, 1, 2, 3}, 4 * sizeof(uint32_t));
            assert_true(greedy_of(&r, logits, 4, 8) < (hot ? VOCAB : 4));
        }
}

/* Logits that a penalty would drive out of the range of floats: neither masked nor unweighable. */
static void test_a_penalty_masks_nothing(void **state)
{
    static const float low[] = {-3e38F, -3e38F}, high[] = {1, 3e38F};
    struct request r;

    (void)state;
    request_init(&r);
    r.n_prompt = r.n_allowed = 2;
    r.prompt[1] = r.allowed[1] = 1;
    r.p.repetition_penalty = 1e30F;
    r.p.temperature = 0;
    assert_int_equal(greedy_of(&r, low, 2, 1), 0);
    r.p.repetition_penalty = 1e-30F;
    r.p.temperature = 100;
    for (r.p.seed = 0; r.p.seed < 50; r.p.seed++)
        assert_int_equal(greedy_of(&r, high, 2, 1), 1);
}

/* ---- neutral values ---- */

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

static void test_neutral_values_change_no_bit(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct gen_token plain[N_OUT_MAX], neutral[N_OUT_MAX];
        struct request r;

        request_init(&r);
        r.p.seed = seed;
        run_bits(&r, seed, plain);
        r.n_allowed = VOCAB;
        for (uint32_t i = 0; i < VOCAB; i++)
            r.allowed[i] = VOCAB - 1 - i;
        r.n_biases = LIST_MAX;
        for (uint32_t i = 0; i < LIST_MAX; i++)
            r.bias_ids[i] = i;
        r.p.top_k = VOCAB;
        r.p.repetition_penalty = 1;
        r.p.presence_penalty = -0.0F;
        run_bits(&r, seed, neutral);
        for (uint32_t i = 0; i < N_OUT_MAX; i++) {
            assert_int_equal(plain[i].id, neutral[i].id);
            assert_memory_equal(&plain[i].logprob, &neutral[i].logprob, sizeof(float));
            assert_int_equal(plain[i].rank, neutral[i].rank);
        }
    }
}

/* Logprobs are of the model's logits, whatever the rules make of them. */
static void test_logprobs_stay_raw(void **state)
{
    struct gen_token tokens[N_OUT_MAX];
    struct request r;
    uint64_t random = 5;

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        do {
            random_request(&r, &random);
            r.p.min_tokens = N_OUT_MAX;
            r.n_allowed = r.n_words = r.p.n_stop_ids = 0;
        } while (r.p.repetition_penalty == 1);
        run_bits(&r, seed, tokens);
        for (uint32_t i = 0; i < N_OUT_MAX; i++) {
            float logits[VOCAB];
            double sum = 0;

            logits_of(logits, seed, i);
            for (uint32_t k = 0; k < VOCAB; k++)
                sum += exp((double)logits[k]);
            assert_float_equal(tokens[i].logprob, (double)logits[tokens[i].id] - log(sum), 1e-5);
        }
    }
}

static void test_logprobs_are_tempered_where_that_was_asked_for(void **state)
{
    struct gen_token tokens[N_OUT_MAX];
    struct request r;
    uint64_t random = 6;

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        double temperature;

        do {
            random_request(&r, &random);
            r.p.min_tokens = N_OUT_MAX;
            r.n_allowed = r.n_words = r.p.n_stop_ids = 0;
        } while (!(r.p.temperature > 0.1F) || (r.p.temperature > 0.9F && r.p.temperature < 1.1F));
        r.p.logprobs_tempered = true;
        temperature = (double)r.p.temperature;
        run_bits(&r, seed, tokens);
        for (uint32_t i = 0; i < N_OUT_MAX; i++) {
            float logits[VOCAB];
            double sum = 0;

            logits_of(logits, seed, i);
            for (uint32_t k = 0; k < VOCAB; k++)
                sum += exp((double)logits[k] / temperature);
            assert_float_equal(tokens[i].logprob,
                               (double)logits[tokens[i].id] / temperature - log(sum), 1e-4);
        }
    }
}

/* ---- bad words of several tokens ---- */

static void test_a_bad_word_goes_by_the_output_only(void **state)
{
    static const float logits[] = {3, 2, 1};
    struct request r;

    (void)state;
    request_init(&r);
    r.p.temperature = 0; /* always 0, unless it is forbidden; the prompt ends with 0 */
    r.n_words = 1;
    r.word_len[0] = 3;
    memset(r.words[0], 0, sizeof r.words[0]);
    assert_int_equal(greedy_of(&r, logits, 3, 1), 0);
    assert_int_equal(greedy_of(&r, logits, 3, 2), 0);
    assert_int_equal(greedy_of(&r, logits, 3, 3), 1);
    assert_int_equal(greedy_of(&r, logits, 3, 4), 0);
    assert_int_equal(greedy_of(&r, logits, 3, 6), 1);
}

/* ---- refusals, memory ---- */

static void test_no_choice_is_refused_at_submit(void **state)
{
    struct request r;
    struct seq *q = NULL;
    struct err e = {0};

    (void)state;
    request_init(&r);
    r.n_allowed = 3;
    memcpy(r.allowed, (const uint32_t[]){5, EOS, 5}, 3 * sizeof(uint32_t));
    r.p.min_tokens = 1;
    r.n_words = 1;
    r.word_len[0] = 1;
    r.words[0][0] = 5;
    assert_int_equal(make_seq(&q, &r, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/sampling_params/allowed_token_ids");
    err_clear(&e);
    r.p.min_tokens = 0; /* then eos may come */
    assert_int_equal(make_seq(&q, &r, &e), 0);
    seq_free(q);
}

static void test_ids_beyond_the_vocabulary_are_refused(void **state)
{
    struct request r;
    struct seq *q = NULL;

    (void)state;
    for (int i = 0; i < 3; i++) {
        static const char *const fields[] = {"/sampling_params/allowed_token_ids",
                                             "/sampling_params/logit_bias",
                                             "/sampling_params/bad_words"};
        struct err e = {0};

        request_init(&r);
        r.n_allowed = i == 0 ? 2 : 0;
        r.allowed[1] = VOCAB;
        r.n_biases = i == 1;
        r.bias_ids[0] = UINT32_MAX;
        r.n_words = i == 2;
        r.word_len[0] = 2;
        r.words[0][0] = VOCAB;
        assert_int_equal(make_seq(&q, &r, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, fields[i]);
    }
}

/* Fails the 1st, 2nd, ... allocation of seq_new in turn. */
static void test_seq_new_unwinds_every_failure(void **state)
{
    struct gen_request gr = {.n_prompt = 2};
    struct request r;
    struct seq *q = NULL;
    int rc = -1;

    (void)state;
    request_init(&r);
    r.n_biases = 1;
    r.p.repetition_penalty = 2;
    gr.params = r.p;
    gr.params.logprobs = gr.params.prompt_logprobs = 2;
    gr.params.steering = steering_of(&r);
    gr.prompt = calloc(2, sizeof *gr.prompt);
    for (long n = 0; rc != 0; n++) {
        struct err e = {0};

        fails_at = n_allocations + n;
        rc = seq_new(&q, &rules, &gr, &e);
        fails_at = -1;
        assert_true((rc == 0) == (e.code == ERR_NONE));
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
        assert_true((rc == 0) == (gr.prompt == NULL));
        assert_true(rc == 0 ? n > 6 : q == NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences_equal_the_slow_model),
        cmocka_unit_test(test_bias_comes_before_the_repetition_penalty),
        cmocka_unit_test(test_the_repetition_penalty_comes_before_the_others),
        cmocka_unit_test(test_only_repetition_looks_at_the_prompt),
        cmocka_unit_test(test_a_masked_token_stays_masked),
        cmocka_unit_test(test_extreme_penalties_make_no_infinity),
        cmocka_unit_test(test_a_penalty_masks_nothing),
        cmocka_unit_test(test_neutral_values_change_no_bit),
        cmocka_unit_test(test_logprobs_stay_raw),
        cmocka_unit_test(test_logprobs_are_tempered_where_that_was_asked_for),
        cmocka_unit_test(test_a_bad_word_goes_by_the_output_only),
        cmocka_unit_test(test_no_choice_is_refused_at_submit),
        cmocka_unit_test(test_ids_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(test_seq_new_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, make_taker, free_taker);
}
