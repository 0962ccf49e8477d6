/* What a batch computes, and with which weights, over a model that sees every wrong KV entry. */
#include "tests/unit/engine/engine_bench.h"

#include "tests/unit/take_logits.h"

/* ---- one batch, many arrivals ---- */

enum { N_MIX = 60 };

struct mix_request {
    uint32_t prompt[200];
    uint32_t n_prompt;
    struct gen_params p;
};

struct mix {
    struct bench *b;
    struct mix_request req[N_MIX];
    struct job jobs[N_MIX];
    uint32_t n_submitted; /* engine thread, once it runs */
    uint64_t random;
};

static void mix_requests(struct mix *m)
{
    uint64_t r = 5;

    for (uint32_t i = 0; i < N_MIX; i++) {
        struct mix_request *q = &m->req[i];

        q->n_prompt = 1 + draw(&r, i % 3 == 0 ? 200 : 20);
        for (uint32_t k = 0; k < q->n_prompt; k++)
            q->prompt[k] = draw(&r, 62);
        gen_params_init(&q->p);
        q->p.max_tokens = 1 + draw(&r, 60);
        q->p.temperature = (float)draw(&r, 3) * 0.7F;
        q->p.top_k = draw(&r, 2) ? (int32_t)draw(&r, 30) : 0;
        q->p.top_p = draw(&r, 2) ? 0.9F : 1.0F;
        q->p.seed = r;
        q->p.logprobs = (int32_t)draw(&r, 6) - 1;
        q->p.prompt_logprobs = (int32_t)draw(&r, 4) - 1;
        q->p.min_tokens = draw(&r, 2) ? draw(&r, q->p.max_tokens + 1) : 0;
        q->p.n_stop_ids = draw(&r, 4);
        for (uint32_t k = 0; k < q->p.n_stop_ids; k++)
            q->p.stop_ids[k] = draw(&r, 62);
    }
}

static void mix_submit_next(struct mix *m)
{
    uint32_t i = m->n_submitted++;
    struct err e = {0};
    int rc = job_submit(m->b->en, &m->jobs[i], m->req[i].prompt, m->req[i].n_prompt, &m->req[i].p,
                        &e);

    assert(rc == 0);
    (void)rc;
}

/* Every third token or so brings another request. */
static void mix_tokens(struct job *j, const struct gen_output *out, void *arg)
{
    struct mix *m = arg;

    (void)j;
    if (m->n_submitted < N_MIX && (draw(&m->random, 3) == 0 || out->finish != GEN_RUNNING))
        mix_submit_next(m);
}

static void same_tokens(const struct gen_token *x, const struct gen_token *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_memory_equal(&x[i].logprob, &y[i].logprob, sizeof x[i].logprob);
        assert_int_equal(x[i].rank, y[i].rank);
        assert_int_equal(x[i].n_top, y[i].n_top);
        if (x[i].n_top > 0)
            assert_memory_equal(x[i].top, y[i].top, x[i].n_top * sizeof *x[i].top);
    }
}

static void same_output(const struct gen_output *x, const struct gen_output *y)
{
    assert_int_equal(x->n_tokens, y->n_tokens);
    assert_int_equal(x->n_prompt, y->n_prompt);
    assert_int_equal(x->finish, y->finish);
    assert_int_equal(x->stop_id, y->stop_id);
    same_tokens(x->tokens, y->tokens, x->n_tokens);
    same_tokens(x->prompt, y->prompt, x->n_prompt);
}

/* Runs all requests, one after the other or together; the outputs are the caller's. */
static void mix_run(struct mix *m, bool together, uint32_t n_running, uint32_t n_rows,
                    uint32_t n_chunks)
{
    struct engine_stats stats;
    struct bench b;
    uint64_t n_tokens = 0, n_prompt = 0;

    bench_init(&b, n_running, n_rows, n_chunks);
    memset(m, 0, sizeof *m);
    mix_requests(m);
    m->b = &b;
    m->random = n_rows;
    for (uint32_t i = 0; i < N_MIX && together; i++) {
        m->jobs[i].on_tokens = mix_tokens;
        m->jobs[i].arg = m;
    }
    mix_submit_next(m);
    for (uint32_t i = 0; i < N_MIX; i++) {
        if (!together && i > 0)
            mix_submit_next(m);
        job_wait(&m->jobs[i]);
        n_tokens += m->jobs[i].out->n_tokens;
        n_prompt += m->req[i].n_prompt;
    }
    stats = stats_of(&b);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.kv_tokens_used, 0);
    assert_int_equal(stats.n_finished[GEN_STOP] + stats.n_finished[GEN_LENGTH], N_MIX);
    assert_int_equal(stats.n_generated_tokens, n_tokens);
    assert_int_equal(stats.n_prompt_tokens + stats.n_prefix_found_tokens, n_prompt);
    bench_fini(&b);
}

static void mix_free(struct mix *m)
{
    for (uint32_t i = 0; i < N_MIX; i++)
        job_fini(&m->jobs[i]);
    free(m);
}

static void test_batching_changes_nothing(void **state)
{
    static const struct {
        uint32_t n_running, n_rows, n_chunks;
    } shapes[] = {{16, 64, 1000}, {7, 16, 1000}, {3, 3, 1000}, {32, 48, 9}, {1, 1, 5}};
    struct mix *alone = malloc(sizeof *alone), *batch = malloc(sizeof *batch);
    uint32_t n_stop = 0, n_length = 0;

    (void)state;
    assert_true(alone != NULL && batch != NULL);
    mix_run(alone, false, 1, 512, 1000);
    for (uint32_t i = 0; i < N_MIX; i++) {
        n_stop += alone->jobs[i].finish == GEN_STOP;
        n_length += alone->jobs[i].finish == GEN_LENGTH;
    }
    assert_true(n_stop > 5 && n_length > 5); /* the mix is one */
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        mix_run(batch, true, shapes[k].n_running, shapes[k].n_rows, shapes[k].n_chunks);
        for (uint32_t i = 0; i < N_MIX; i++) {
            same_output(alone->jobs[i].out, batch->jobs[i].out);
            job_fini(&batch->jobs[i]);
        }
    }
    free(batch);
    mix_free(alone);
}

static void test_logprobs_are_those_of_the_reference(void **state)
{
    struct gen_params p;
    struct job j = {0};
    struct bench b;
    struct err e = {0};
    uint32_t prompt[] = {5, 9, 5, 60}, all[64];
    float tokens[64], read[64], logits[FAKE_VOCAB];

    (void)state;
    bench_init(&b, 2, 3, 10);
    gen_params_init(&p);
    p.max_tokens = 40;
    p.seed = 11;
    p.logprobs = 3;
    p.prompt_logprobs = 2;
    p.ignore_eos = true;
    assert_int_equal(job_submit(b.en, &j, prompt, 4, &p, &e), 0);
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, 40);
    assert_int_equal(j.out->n_prompt, 4);
    assert_int_equal(j.out->prompt[0].id, 5);
    assert_int_equal(j.out->prompt[0].n_top, 0);
    for (uint32_t i = 0; i < 44; i++) {
        all[i] = i < 4 ? prompt[i] : j.out->tokens[i - 4].id;
        tokens[i] = (float)all[i];
        read[i] = b.w[all[i]];
    }
    for (uint32_t i = 1; i < 44; i++) {
        const struct gen_token *t = i < 4 ? &j.out->prompt[i] : &j.out->tokens[i - 4];
        struct sampler_row row;
        struct gen_top top[3];

        fake_logits(logits, tokens, read, i, b.w);
        assert_true(measure_row(&row, logits, FAKE_VOCAB, 1));
        assert_int_equal(t->id, all[i]);
        assert_true(t->logprob == sampler_logprob(&row, all[i]));
        assert_int_equal(t->rank, sampler_rank(&row, all[i]));
        assert_int_equal(t->n_top, i < 4 ? 2 : 3);
        sampler_top(&row, 3, top);
        assert_memory_equal(t->top, top, t->n_top * sizeof *top);
    }
    job_fini(&j);
    bench_fini(&b);
}

/* Long prompts arrive while two others decode: no step passes without a token for each of those. */
static void every_step_has_a_token(struct job *j, const struct gen_output *out, void *arg)
{
    unsigned *before = arg, now = atomic_load(&fake_n_steps);

    assert(out->n_tokens == 1 || now == *before + 1);
    *before = now;
    (void)j;
}

static void test_prefill_does_not_stop_decoding(void **state)
{
    unsigned before[2] = {0};
    struct job decoding[2] = {0}, prefill[3] = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 8, 16, 100);
    gate_shut();
    for (int i = 0; i < 2; i++) {
        decoding[i].on_tokens = every_step_has_a_token;
        decoding[i].arg = &before[i];
        submit(&b, &decoding[i], 3, 200);
    }
    gate_wait_held();
    for (int i = 0; i < 3; i++)
        submit(&b, &prefill[i], 400, 5);
    gate_open();
    for (int i = 0; i < 2; i++) {
        job_wait(&decoding[i]);
        assert_int_equal(decoding[i].out->n_tokens, 200);
        job_fini(&decoding[i]);
    }
    for (int i = 0; i < 3; i++) {
        job_wait(&prefill[i]);
        assert_int_equal(prefill[i].finish, GEN_LENGTH);
        job_fini(&prefill[i]);
    }
    bench_fini(&b);
}

/* ---- versions ---- */

static void commit_after_some(struct job *j, const struct gen_output *out, void *arg)
{
    (void)j;
    if (out->n_tokens % 3 == 0 && out->n_tokens < 30)
        commit(arg);
}

static void test_spans_are_exact(void **state)
{
    struct job j = {.on_tokens = commit_after_some};
    struct bench b, copy;
    float tokens[64], read[64], logits[FAKE_VOCAB];
    char label[32];

    (void)state;
    bench_init(&b, 2, 4, 10);
    j.arg = &b;
    submit(&b, &j, 6, 32);
    job_wait(&j);
    assert_int_equal(j.out->n_spans, 10);
    for (uint32_t i = 0; i < 10; i++) {
        const struct gen_span *s = &j.out->spans[i];

        (void)snprintf(label, sizeof label, "v%u", i + 1);
        assert_int_equal(s->serial, i + 1);
        assert_string_equal(s->label, label);
        assert_int_equal(s->start, i * 3);
        assert_int_equal(s->end, i == 9 ? 32 : i * 3 + 3);
    }
    /* The KV of older versions was kept, each later row read the version of its span. */
    for (uint32_t i = 0; i < 6; i++)
        tokens[i] = (float)((i * 7 + 6) % 60);
    commit_seed(&copy, 1);
    for (uint32_t i = 0; i < 6; i++)
        read[i] = copy.w[(uint32_t)tokens[i]];
    for (uint32_t i = 0; i < 32; i++) {
        struct sampler_row row;
        struct gen_top best;

        commit_seed(&copy, i / 3 < 9 ? i / 3 + 1 : 10);
        if (i > 0) {
            tokens[5 + i] = (float)j.out->tokens[i - 1].id;
            read[5 + i] = copy.w[j.out->tokens[i - 1].id];
        }
        fake_logits(logits, tokens, read, 6 + i, copy.w);
        assert_true(measure_row(&row, logits, FAKE_VOCAB, 1));
        sampler_top(&row, 1, &best);
        assert_int_equal(j.out->tokens[i].id, best.id);
        assert_true(j.out->tokens[i].logprob == best.logprob);
    }
    job_fini(&j);
    bench_fini(&b);
}

/* A version that is committed during a step is not read by it. */
static void test_a_commit_during_a_step_waits_for_the_next(void **state)
{
    struct job j = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 4, 10);
    gate_shut();
    submit(&b, &j, 4, 6);
    gate_wait_held();
    commit(&b);
    gate_open();
    job_wait(&j);
    assert_int_equal(j.out->n_spans, 2);
    assert_int_equal(j.out->spans[0].serial, 1);
    assert_int_equal(j.out->spans[0].end, 1);
    assert_int_equal(j.out->spans[1].serial, 2);
    assert_int_equal(j.out->spans[1].end, 6);
    job_fini(&j);
    bench_fini(&b);
}

static void rename_after_two(struct job *j, const struct gen_output *out, void *arg)
{
    struct bench *b = arg;
    struct err e = {0};
    uint64_t serial;

    (void)j;
    if (out->n_tokens == 2)
        (void)store_set_label(b->store, "renamed", 0, &serial, &e);
}

static void test_a_new_label_begins_a_span(void **state)
{
    struct job j = {.on_tokens = rename_after_two};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 4, 10);
    j.arg = &b;
    submit(&b, &j, 4, 5);
    job_wait(&j);
    assert_int_equal(j.out->n_spans, 2);
    assert_int_equal(j.out->spans[1].serial, 1);
    assert_int_equal(j.out->spans[1].start, 2);
    assert_string_equal(j.out->spans[1].label, "renamed");
    job_fini(&j);
    bench_fini(&b);
}

static void test_unsynced_is_refused(void **state)
{
    uint32_t prompt[] = {1};
    struct gen_params p;
    struct job j = {0};
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init_unsynced(&b, 2, 4, 10);
    gen_params_init(&p);
    assert_int_equal(job_submit(b.en, &j, prompt, 1, &p, &e), -1);
    assert_int_equal(e.code, ERR_UNSYNCED);
    commit(&b);
    submit(&b, &j, 3, 2);
    job_wait(&j);
    job_fini(&j);
    bench_fini(&b);
}

static void test_sleep_freezes_and_wake_releases(void **state)
{
    struct job running = {0}, cancelled = {0};
    struct bench b;
    struct err e = {0};
    uint64_t nbytes;
    unsigned n_steps;

    (void)state;
    bench_init(&b, 8, 16, 100);
    gate_shut();
    submit(&b, &running, 3, 300);
    submit(&b, &cancelled, 3, 300);
    gate_wait_held();
    sleep_at_gate(&b);
    n_steps = atomic_load(&fake_n_steps);
    b.en->ops->cancel(b.en, cancelled.id);
    job_wait(&cancelled);
    assert_int_equal(cancelled.finish, GEN_ABORT);
    wait_heartbeats(&b, 3);
    assert_int_equal(atomic_load(&fake_n_steps), n_steps);
    assert_int_equal(running.n_done, 0);
    assert_int_equal(store_wake(b.store, CLOCK_NEVER, &nbytes, &e), 0);
    job_wait(&running);
    assert_int_equal(running.out->n_tokens, 300);
    assert_int_equal(running.out->n_spans, 1);
    job_fini(&running);
    job_fini(&cancelled);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batching_changes_nothing),
        cmocka_unit_test(test_logprobs_are_those_of_the_reference),
        cmocka_unit_test(test_prefill_does_not_stop_decoding),
        cmocka_unit_test(test_spans_are_exact),
        cmocka_unit_test(test_a_commit_during_a_step_waits_for_the_next),
        cmocka_unit_test(test_a_new_label_begins_a_span),
        cmocka_unit_test(test_unsynced_is_refused),
        cmocka_unit_test(test_sleep_freezes_and_wake_releases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
