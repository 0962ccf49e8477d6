/* A request's tokens are its own: alone on one thread, or among any others, in any batch, on
 * several threads, whatever is cancelled meanwhile. */
#include "tests/unit/engine/engine_bench.h"

enum { N_JOBS = 60, N_OUT = 40, ROUNDS = 4 };

struct wish {
    struct gen_params p; /* one reference of the logits_processor for each submit */
    uint32_t n_prompt, prompt[16];
};

static struct logits_processor *logits_processor_draw(uint64_t *state)
{
    struct logits_processor *s = NULL;
    struct err e = {0};
    uint32_t *ids, n = 20 + draw(state, 20), word[2];

    assert_int_equal(logits_processor_new(&s, &e), 0);
    if (draw(state, 2) == 0) {
        ids = malloc(n * sizeof *ids);
        assert_non_null(ids);
        for (uint32_t i = 0; i < n; i++)
            ids[i] = draw(state, 60);
        logits_processor_allow(s, ids, n);
    }
    for (uint32_t i = 0; i < 5; i++) {
        (void)logits_processor_add_bias(s, i * 10 + draw(state, 10), draw(state, 100) / 50.0 - 1);
        word[0] = draw(state, 60);
        word[1] = draw(state, 60);
        (void)logits_processor_forbid(s, word, 2);
    }
    return s;
}

static void wish_make(struct wish *w, uint64_t *state)
{
    gen_params_init(&w->p);
    w->p.max_tokens = 1 + draw(state, N_OUT);
    w->p.seed = draw(state, 1000000);
    w->p.temperature = (float)draw(state, 3);
    w->p.top_k = (int32_t)draw(state, 30) - 1;
    w->p.top_p = 1.0F - (float)draw(state, 8) / 10.0F;
    w->p.repetition_penalty = 0.8F + (float)draw(state, 8) / 10.0F;
    w->p.frequency_penalty = (float)draw(state, 4) / 2 - 1;
    w->p.presence_penalty = (float)draw(state, 4) / 2 - 1;
    w->p.min_tokens = draw(state, w->p.max_tokens);
    w->p.logprobs = (int32_t)draw(state, 4) - 1;
    w->p.logits_processor = draw(state, 2) == 0 ? logits_processor_draw(state) : NULL;
    w->n_prompt = 1 + draw(state, 16);
    for (uint32_t i = 0; i < w->n_prompt; i++)
        w->prompt[i] = draw(state, 60);
}

static void wish_submit(struct bench *b, const struct wish *w, struct job *j)
{
    struct gen_params p = w->p;
    struct err e = {0};

    *j = (struct job){0};
    p.logits_processor = logits_processor_ref(w->p.logits_processor);
    if (job_submit(b->en, j, w->prompt, w->n_prompt, &p, &e) != 0)
        fail_msg("refused: %s", e.msg);
}

static void assert_same(const struct gen_output *a, const struct gen_output *b)
{
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->n_tokens, b->n_tokens);
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_int_equal(a->tokens[i].id, b->tokens[i].id);
        assert_memory_equal(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float));
    }
}

/* Every wish alone, one after another. */
static void run_alone(const struct wish *wishes, struct job *jobs)
{
    struct bench b;

    bench_threads = 1;
    bench_init(&b, 1, 3, 100);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        wish_submit(&b, &wishes[i], &jobs[i]);
        job_wait(&jobs[i]);
    }
    bench_fini(&b);
}

static void run_together(const struct wish *wishes, const struct job *alone, uint64_t *state)
{
    static struct job jobs[N_JOBS], noise[N_JOBS];
    uint32_t n_running = 2 + draw(state, 30);
    struct bench b;

    memset(noise, 0, sizeof noise);
    bench_threads = 2 + draw(state, 3);
    bench_init(&b, n_running, n_running + draw(state, 30), 10 + draw(state, 100));
    for (uint32_t k = 0; k < N_JOBS; k++) {
        uint32_t i = k * 7 % N_JOBS; /* 7 and 60 have no divisor in common */

        wish_submit(&b, &wishes[draw(state, N_JOBS)], &noise[i]);
        wish_submit(&b, &wishes[i], &jobs[i]);
        b.en->ops->cancel(b.en, noise[draw(state, N_JOBS)].id);
    }
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job_wait(&jobs[i]);
        job_wait(&noise[i]);
        assert_same(jobs[i].out, alone[i].out);
        job_fini(&jobs[i]);
        job_fini(&noise[i]);
    }
    bench_fini(&b);
}

static void test_any_load_same_tokens(void **state)
{
    static struct wish wishes[N_JOBS];
    static struct job alone[N_JOBS];
    uint64_t random = 21;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < N_JOBS; i++)
            wish_make(&wishes[i], &random);
        run_alone(wishes, alone);
        run_together(wishes, alone, &random);
        for (uint32_t i = 0; i < N_JOBS; i++) {
            job_fini(&alone[i]);
            logits_processor_unref(wishes[i].p.logits_processor);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_load_same_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
