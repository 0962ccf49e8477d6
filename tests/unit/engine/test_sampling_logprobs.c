/* Logprobs of each mode, against the slow model. */
#include "tests/unit/engine/slow_sampler.h"

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
        r.p.logprobs_mode = GEN_LOGPROBS_TEMPERED;
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

/* All of the vocabulary, best first; what was left out has the least. */
static void check_processed(const struct gen_token *t, const struct verdict *want)
{
    assert_int_equal(t->n_top, VOCAB);
    assert_true(near((double)t->logprob, want->logprob[t->id]));
    for (uint32_t i = 0; i < VOCAB; i++) {
        double logprob = want->logprob[t->top[i].id];

        if (isinf(logprob))
            assert_true(t->top[i].logprob <= SAMPLER_LOGPROB_MIN);
        else
            assert_true(near((double)t->top[i].logprob, logprob));
        assert_true(i == 0 || t->top[i].logprob <= t->top[i - 1].logprob);
        assert_true(t->top[i].rank >= i + 1);
    }
    assert_int_equal(t->top[want->n_kept - 1].rank, want->n_kept);
}

static void test_processed_logprobs_are_of_what_was_drawn_from(void **state)
{
    uint64_t random = 12;
    uint32_t n_sure = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 600; seed++) {
        uint32_t out[N_OUT_MAX];
        struct request r;
        struct err e = {0};
        struct seq *q = NULL;

        random_request(&r, &random);
        r.p.logprobs_mode = GEN_LOGPROBS_PROCESSED;
        r.p.logprobs = VOCAB;
        if (make_seq(&q, &r, &e) != 0)
            continue;
        for (uint32_t n = 0; q->rec->out.finish == GEN_RUNNING; n++) {
            struct verdict want;
            float logits[VOCAB];

            logits_of(logits, seed, n);
            want = slow_pick(&r, logits, out, n);
            take(q, logits);
            if (want.n_kept == 0)
                break;
            out[n] = q->rec->tokens[n].id;
            if (want.sure)
                check_processed(&q->rec->tokens[n], &want);
            n_sure += want.sure;
        }
        seq_free(q);
    }
    assert_true(n_sure > 3000);
}
int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs_stay_raw),
        cmocka_unit_test(test_logprobs_are_tempered_where_that_was_asked_for),
        cmocka_unit_test(test_processed_logprobs_are_of_what_was_drawn_from),
    };

    return cmocka_run_group_tests(tests, make_taker, free_taker);
}
