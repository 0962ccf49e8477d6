/* Whole sequences against the slow model. */
#include "tests/unit/engine/slow_sampler.h"

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
    gr.params.logits_processor = logits_processor_of(&r);
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
        cmocka_unit_test(test_a_bad_word_goes_by_the_output_only),
        cmocka_unit_test(test_no_choice_is_refused_at_submit),
        cmocka_unit_test(test_ids_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(test_seq_new_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, make_taker, free_taker);
}
