/* Random requests of all three modes, random commits between any two steps, in place too, random
 * cancels. Every token and every logprob is then checked by itself: made again by one sequence
 * alone from what its span says that it read. */
#include "tests/unit/engine/engine_bench.h"

#include "engine/scheduler/sequence.h"
#include "tests/unit/take_logits.h"

#include <stdio.h>

enum { WALK_JOBS = 120, WALK_PROMPT_MAX = 150, WALK_IDS = 60, WALK_CHUNKS = 40 };

struct wish {
    uint32_t prompt[WALK_PROMPT_MAX], n_prompt;
    struct gen_params p;
    struct job job;
    uint64_t prompt_serials[WALK_PROMPT_MAX]; /* which version fed it; what no span tells */
};

static struct walk {
    struct bench b;
    struct wish wishes[WALK_JOBS];
    pthread_mutex_t committing; /* n_commits and the seed go with it */
    pthread_mutex_t submitting;
    uint32_t n_submitted;
    uint64_t random; /* of the engine's thread */
    atomic_bool over;
} walk;

/* A wish begins with its own number. */
static void note_prompt(const float *tokens, const float *serials, uint32_t n)
{
    uint32_t i = (uint32_t)tokens[0] * WALK_IDS + (uint32_t)tokens[1];

    if (n != walk.wishes[i].n_prompt)
        return;
    for (uint32_t k = 0; k < n; k++)
        walk.wishes[i].prompt_serials[k] = (uint64_t)serials[k];
}

static void wish_make(struct wish *w, uint32_t i, uint64_t *r)
{
    memset(w, 0, sizeof *w);
    w->n_prompt = 3 + draw(r, i % 4 == 0 ? WALK_PROMPT_MAX - 3 : 25);
    for (uint32_t k = 0; k < w->n_prompt; k++)
        w->prompt[k] = draw(r, WALK_IDS);
    w->prompt[0] = i / WALK_IDS;
    w->prompt[1] = i % WALK_IDS;
    gen_params_init(&w->p);
    w->p.max_tokens = 1 + draw(r, 60);
    w->p.min_tokens = draw(r, 2) == 0 ? draw(r, w->p.max_tokens) : 0;
    w->p.seed = draw(r, 1 << 30);
    w->p.temperature = (float)draw(r, 3) * 0.7F;
    w->p.top_p = draw(r, 2) == 0 ? 0.9F : 1.0F;
    w->p.repetition_penalty = draw(r, 2) == 0 ? 1.2F : 1.0F;
    w->p.frequency_penalty = draw(r, 2) == 0 ? 0.4F : 0.0F;
    w->p.logprobs = (int32_t)draw(r, 4) - 1;
    w->p.prompt_logprobs = (int32_t)draw(r, 3) - 1;
    w->job.on_update = (enum gen_on_update)draw(r, 3);
}

/* One wish more, unless there are `n` already. */
static void walk_submit(uint32_t n)
{
    struct wish *w;
    struct err e = {0};

    pthread_mutex_lock(&walk.submitting);
    if (walk.n_submitted < n) {
        w = &walk.wishes[walk.n_submitted++];
        if (job_submit(walk.b.en, &w->job, w->prompt, w->n_prompt, &w->p, &e) != 0)
            fail_msg("refused: %s", e.msg);
    }
    pthread_mutex_unlock(&walk.submitting);
}

/* Between two steps: none, one or two commits, as far as there is room; more work; a cancel. */
static void meddle(struct job *j, const struct gen_output *out, void *arg)
{
    uint32_t n = draw(&walk.random, 12);

    (void)arg;
    if (n < 3 && pthread_mutex_trylock(&walk.committing) == 0) {
        for (; n < 3; n += 1 + draw(&walk.random, 2))
            (void)commit_until(&walk.b, clock_now_us());
        pthread_mutex_unlock(&walk.committing);
    }
    if (draw(&walk.random, 6) == 0 || out->finish != GEN_RUNNING)
        walk_submit(WALK_JOBS);
    if (draw(&walk.random, 60) == 0)
        walk.b.en->ops->cancel(walk.b.en, 1 + draw(&walk.random, WALK_JOBS));
    (void)j;
}

/* Waits for room as a real update does, and always finds it in the end. */
static void *commit_from_outside(void *arg)
{
    uint64_t random = *(const uint64_t *)arg;

    while (!atomic_load(&walk.over)) {
        unsigned before = atomic_load(&fake_n_steps), wait = 1 + draw(&random, 40);

        while (!atomic_load(&walk.over) && atomic_load(&fake_n_steps) < before + wait)
            (void)sched_yield();
        pthread_mutex_lock(&walk.committing);
        commit(&walk.b);
        pthread_mutex_unlock(&walk.committing);
    }
    return NULL;
}

/* ---- the oracle ---- */

static const struct seq_rules oracle_rules = {.vocab_size = FAKE_VOCAB,
                                              .max_model_len = 512,
                                              .kv_tokens_max = WALK_CHUNKS * KV_CHUNK,
                                              .n_eos = 1,
                                              .eos = {62}};

static uint64_t serial_of_token(const struct gen_output *out, uint32_t i)
{
    for (uint32_t s = 0; s < out->n_spans; s++)
        if (i >= out->spans[s].start && i < out->spans[s].end)
            return out->spans[s].serial;
    fail_msg("token %u is in no span", i);
    return 0;
}

/* The version that fed position `pos`, as the row of `last` found it. */
static uint64_t serial_read(const struct wish *w, uint32_t pos, uint32_t last)
{
    const struct gen_output *out = w->job.out;
    uint32_t row = w->job.on_update == GEN_ON_UPDATE_CONTINUE ? pos : last;

    if (row + 1 >= w->n_prompt)
        return serial_of_token(out, row + 1 - w->n_prompt);
    return w->job.on_update == GEN_ON_UPDATE_CONTINUE ? w->prompt_serials[row]
                                                      : serial_of_token(out, 0);
}

static void oracle_logits(float *logits, const struct wish *w, uint32_t last)
{
    float tokens[512], read[512];
    struct bench b;

    for (uint32_t i = 0; i <= last; i++) {
        uint32_t id = i < w->n_prompt ? w->prompt[i] : w->job.out->tokens[i - w->n_prompt].id;

        commit_seed(&b, serial_read(w, i, last));
        tokens[i] = (float)id;
        read[i] = b.w[id];
    }
    fake_logits(logits, tokens, read, last + 1, b.w); /* the row's own version, last */
}

static struct seq *oracle_new(const struct wish *w)
{
    struct gen_request r = {.n_prompt = w->n_prompt, .params = w->p};
    struct seq *q = NULL;
    struct err e = {0};

    r.prompt = malloc(w->n_prompt * sizeof *r.prompt);
    assert_non_null(r.prompt);
    memcpy(r.prompt, w->prompt, w->n_prompt * sizeof *r.prompt);
    if (seq_new(&q, &oracle_rules, &r, &e) != 0)
        fail_msg("oracle: %s", e.msg);
    return q;
}

static void same_token(const struct gen_token *x, const struct gen_token *y)
{
    assert_int_equal(x->id, y->id);
    assert_memory_equal(&x->logprob, &y->logprob, sizeof x->logprob);
    assert_int_equal(x->rank, y->rank);
    assert_int_equal(x->n_top, y->n_top);
    if (x->n_top > 0)
        assert_memory_equal(x->top, y->top, x->n_top * sizeof *x->top);
}

/* A job that was cancelled has the beginning of what it would have had. */
static void check_by_oracle(const struct wish *w, struct taker *taker)
{
    static struct version_label name = {.refs = 1, .text = "oracle"};
    const struct gen_output *out = w->job.out;
    struct seq_step step = {.serial = 1, .name = &name};
    float logits[FAKE_VOCAB];
    struct seq *q = oracle_new(w);

    for (uint32_t p = 0; p + 1 < w->n_prompt + out->n_tokens; p++) {
        if (!seq_wants_logits(q, p))
            continue;
        oracle_logits(logits, w, p);
        take_logits(taker, q, p, logits, &step);
        if (p + 1 < w->n_prompt)
            same_token(&q->rec->prompt[p + 1], &out->prompt[p + 1]);
        else
            same_token(&q->rec->tokens[p + 1 - w->n_prompt], &out->tokens[p + 1 - w->n_prompt]);
    }
    if (out->finish != GEN_ABORT) {
        assert_int_equal(q->rec->out.finish, out->finish);
        assert_int_equal(q->rec->out.n_tokens, out->n_tokens);
    }
    seq_free(q);
}

static void check_spans(const struct gen_output *out, enum gen_on_update mode)
{
    for (uint32_t i = 0; i < out->n_spans; i++) {
        assert_int_equal(out->spans[i].start, i == 0 ? 0 : out->spans[i - 1].end);
        assert_true(out->spans[i].end > out->spans[i].start);
        assert_true(i == 0 || out->spans[i].serial > out->spans[i - 1].serial);
    }
    assert_int_equal(out->n_spans > 0 ? out->spans[out->n_spans - 1].end : 0, out->n_tokens);
    assert_true(mode != GEN_ON_UPDATE_FINISH || out->n_spans <= 1);
}

struct seen_by_walk {
    uint32_t n_spans[3], n_jobs[3], n_aborted, n_ended;
};

static void check_all(struct seen_by_walk *seen)
{
    struct taker taker;
    struct err e = {0};

    assert_int_equal(taker_init(&taker, FAKE_VOCAB, &e), 0);
    for (uint32_t i = 0; i < WALK_JOBS; i++) {
        const struct wish *w = &walk.wishes[i];

        assert_int_equal(w->job.n_done, 1);
        assert_true(w->job.finish != GEN_ERROR);
        check_spans(w->job.out, w->job.on_update);
        if (w->job.out->n_tokens > 0)
            check_by_oracle(w, &taker);
        seen->n_spans[w->job.on_update] += w->job.out->n_spans;
        seen->n_jobs[w->job.on_update]++;
        seen->n_aborted += w->job.finish == GEN_ABORT;
        seen->n_ended += w->job.finish != GEN_ABORT;
    }
    taker_fini(&taker);
}

static void walk_once(uint64_t seed, struct seen_by_walk *seen)
{
    uint64_t random = seed, outside = seed + 1;
    uint32_t n_running = 1 + draw(&random, 12);
    pthread_t thread;

    memset(&walk, 0, sizeof walk);
    pthread_mutex_init(&walk.committing, NULL);
    pthread_mutex_init(&walk.submitting, NULL);
    walk.random = seed + 2;
    for (uint32_t i = 0; i < WALK_JOBS; i++) {
        wish_make(&walk.wishes[i], i, &random);
        walk.wishes[i].job.on_tokens = meddle;
    }
    bench_versions_max = 2 + draw(&random, 4);
    bench_init(&walk.b, n_running, n_running + draw(&random, 30), WALK_CHUNKS);
    fake_on_logits = note_prompt;
    assert_int_equal(pthread_create(&thread, NULL, commit_from_outside, &outside), 0);
    for (uint32_t i = 0; i < WALK_JOBS; i++) {
        walk_submit(i + 1);
        job_wait(&walk.wishes[i].job);
    }
    atomic_store(&walk.over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    check_all(seen);
    assert_int_equal(stats_of(&walk.b).kv_tokens_used, 0);
    bench_fini(&walk.b);
    for (uint32_t i = 0; i < WALK_JOBS; i++)
        job_fini(&walk.wishes[i].job);
    pthread_mutex_destroy(&walk.committing);
    pthread_mutex_destroy(&walk.submitting);
}

static void test_every_token_is_what_its_span_says(void **state)
{
    const char *rounds = getenv("BATON_WALK_ROUNDS");
    unsigned long n = rounds != NULL ? strtoul(rounds, NULL, 10) : 8;
    struct seen_by_walk seen = {0};

    (void)state;
    for (unsigned long i = 0; i < n; i++)
        walk_once(1000 + i * 77, &seen);
    print_message("spans of %u continue: %u, of %u recompute: %u; %u finish; %u cancelled\n",
                  seen.n_jobs[0], seen.n_spans[0], seen.n_jobs[2], seen.n_spans[2], seen.n_jobs[1],
                  seen.n_aborted);
    assert_true(seen.n_spans[0] > 2 * seen.n_jobs[0] && seen.n_spans[2] > 2 * seen.n_jobs[2]);
    assert_true(seen.n_aborted > 0 && seen.n_ended > seen.n_aborted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_is_what_its_span_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
