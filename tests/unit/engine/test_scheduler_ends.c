/* How generations end, wait and are refused, and how the engine thread lives. */
#include "tests/unit/engine/engine_bench.h"

static void test_cancel_ends_within_a_step(void **state)
{
    struct job j = {0}, other = {0};
    struct bench b;
    uint32_t n_tokens;

    (void)state;
    bench_init(&b, 4, 4, 100);
    gate_shut();
    submit(&b, &j, 3, 400);
    submit(&b, &other, 3, 10);
    gate_wait_held();
    n_tokens = j.n_seen;
    b.en->ops->cancel(b.en, j.id);
    gate_open();
    job_wait(&j);
    assert_int_equal(j.finish, GEN_ABORT);
    assert_in_range(j.out->n_tokens, n_tokens, n_tokens + 1);
    b.en->ops->cancel(b.en, j.id); /* ended: harmless */
    b.en->ops->cancel(b.en, 0);
    b.en->ops->cancel(b.en, UINT64_MAX);
    job_wait(&other);
    assert_int_equal(other.finish, GEN_LENGTH);
    assert_int_equal(stats_of(&b).n_finished[GEN_ABORT], 1);
    job_fini(&j);
    job_fini(&other);
    bench_fini(&b);
}

struct canceller {
    struct bench *b;
    struct job *jobs;
    uint64_t random;
};

/* Cancels whatever there is, itself included, from the engine's thread. */
static void cancel_someone(struct job *j, const struct gen_output *out, void *arg)
{
    struct canceller *c = arg;

    (void)j;
    (void)out;
    if (draw(&c->random, 12) == 0)
        c->b->en->ops->cancel(c->b->en, 1 + draw(&c->random, 40));
}

static void *cancel_from_outside(void *arg)
{
    struct canceller *c = arg;
    struct engine_stats stats;
    uint64_t random = 17;

    do {
        c->b->en->ops->cancel(c->b->en, 1 + draw(&random, 40));
        (void)sched_yield();
        stats = stats_of(c->b);
    } while (stats.n_finished[GEN_LENGTH] + stats.n_finished[GEN_ABORT] < 20);
    return NULL;
}

static void test_cancel_at_any_point(void **state)
{
    struct job jobs[40];
    struct canceller c = {.jobs = jobs};
    unsigned n_aborted = 0;
    pthread_t thread;
    struct bench b;

    (void)state;
    bench_init(&b, 6, 12, 30);
    c.b = &b;
    c.random = 23;
    memset(jobs, 0, sizeof jobs);
    assert_int_equal(pthread_create(&thread, NULL, cancel_from_outside, &c), 0);
    for (uint32_t i = 0; i < 40; i++) {
        jobs[i].on_tokens = cancel_someone;
        jobs[i].arg = &c;
        jobs[i].dropped = i % 2;
        submit(&b, &jobs[i], 1 + i * 5, 60);
    }
    for (uint32_t i = 0; i < 40; i++)
        job_wait(&jobs[i]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(jobs[i].n_done, 1);
        assert_int_equal(jobs[i].id, i + 1);
        assert_true(jobs[i].finish == GEN_ABORT || jobs[i].finish == GEN_LENGTH);
        n_aborted += jobs[i].finish == GEN_ABORT;
        job_fini(&jobs[i]);
    }
    assert_true(n_aborted > 0);
    assert_int_equal(stats_of(&b).kv_tokens_used, 0);
    bench_fini(&b);
}

static void test_bad_logits_are_never_sampled(void **state)
{
    uint32_t bad[] = {4, FAKE_POISON, 5}, last[] = {4, FAKE_POISON};
    struct job seen = {0}, unseen = {0}, sampled = {0}, good = {0};
    struct gen_params p;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init(&b, 8, 16, 100);
    gen_params_init(&p);
    submit(&b, &good, 4, 20);
    assert_int_equal(job_submit(b.en, &unseen, bad, 3, &p, &e), 0);
    assert_int_equal(job_submit(b.en, &sampled, last, 2, &p, &e), 0);
    p.prompt_logprobs = 0;
    assert_int_equal(job_submit(b.en, &seen, bad, 3, &p, &e), 0);
    job_wait(&good);
    job_wait(&seen);
    job_wait(&unseen);
    job_wait(&sampled);
    assert_int_equal(good.finish, GEN_LENGTH);
    assert_true(unseen.finish == GEN_LENGTH || unseen.finish == GEN_STOP);
    assert_int_equal(seen.finish, GEN_ERROR);
    assert_int_equal(seen.out->error.code, ERR_LOGITS);
    assert_non_null(strstr(seen.out->error.msg, "with weights 'v1' (serial 1)"));
    assert_int_equal(stats_of(&b).failing_serial, 1);
    assert_int_equal(sampled.finish, GEN_ERROR);
    assert_int_equal(sampled.out->n_tokens, 0);
    job_fini(&good);
    job_fini(&seen);
    job_fini(&unseen);
    job_fini(&sampled);
    bench_fini(&b);
}

/* Weights are blamed for what they alone computed: not for KV that older ones left behind. */
static void test_the_failing_weights_are_told(void **state)
{
    uint32_t mixed[40], own[] = {4, FAKE_POISON};
    struct job jobs[3] = {0};
    struct gen_params p;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init(&b, 8, 16, 100);
    gen_params_init(&p);
    bench_prompt(mixed, 40);
    mixed[39] = FAKE_POISON;
    gate_shut();
    assert_int_equal(job_submit(b.en, &jobs[0], mixed, 40, &p, &e), 0);
    gate_wait_held(); /* in the first of three steps */
    commit(&b);
    gate_open();
    job_wait(&jobs[0]);
    assert_int_equal(jobs[0].finish, GEN_ERROR);
    assert_non_null(
        strstr(jobs[0].out->error.msg, "'v2' (serial 2); its KV cache is in part of serial 1"));
    assert_int_equal(stats_of(&b).failing_serial, 0);
    assert_int_equal(job_submit(b.en, &jobs[1], own, 2, &p, &e), 0);
    job_wait(&jobs[1]);
    assert_int_equal(stats_of(&b).failing_serial, 2);
    commit(&b);
    submit(&b, &jobs[2], 4, 20);
    job_wait(&jobs[2]);
    assert_int_equal(jobs[2].finish, GEN_LENGTH);
    assert_int_equal(stats_of(&b).failing_serial, 2); /* and what is served is 3 */
    for (size_t i = 0; i < 3; i++)
        job_fini(&jobs[i]);
    bench_fini(&b);
}

/* ---- room ---- */

static unsigned n_order;

static void note_order(struct job *j, const struct gen_output *out, void *arg)
{
    unsigned *mine = arg;

    (void)j;
    if (out->n_tokens == 1)
        *mine = ++n_order;
}

static void test_kv_exhaustion_queues_in_order(void **state)
{
    unsigned order[6] = {0};
    struct job jobs[6] = {0};
    struct engine_stats stats;
    struct bench b;

    (void)state;
    n_order = 0;
    bench_init(&b, 16, 32, 4); /* 4 chunks of 64 positions */
    gate_shut();
    for (uint32_t i = 0; i < 6; i++) {
        jobs[i].on_tokens = note_order;
        jobs[i].arg = &order[i];
        /* Two chunks each; the fourth takes the whole pool, the fifth would fit before it. */
        submit(&b, &jobs[i], i == 3 ? 200 : i == 4 ? 10 : 100, i == 3 ? 57 : 20);
    }
    gate_wait_held();
    stats = stats_of(&b);
    assert_int_equal(stats.n_running + stats.n_waiting, 6);
    assert_int_equal(stats.kv_tokens_max, 256);
    gate_open();
    for (uint32_t i = 0; i < 6; i++) {
        job_wait(&jobs[i]);
        assert_int_equal(order[i], i + 1);
        job_fini(&jobs[i]);
    }
    assert_int_equal(stats_of(&b).kv_tokens_used, 0);
    bench_fini(&b);
}

static void test_what_never_fits_is_refused(void **state)
{
    uint32_t prompt[512] = {0};
    struct gen_params p;
    struct job j = {0};
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init(&b, 4, 64, 2); /* 128 positions */
    gen_params_init(&p);
    p.temperature = 0;
    p.ignore_eos = true;
    p.max_tokens = 30;
    assert_int_equal(job_submit(b.en, &j, prompt, 100, &p, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    err_clear(&e);
    p.max_tokens = 29; /* the last token is never fed: exactly 128 */
    assert_int_equal(job_submit(b.en, &j, prompt, 100, &p, &e), 0);
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, 29);
    job_fini(&j);
    memset(&j, 0, sizeof j);
    p.max_tokens = GEN_MAX_TOKENS_REST;
    assert_int_equal(job_submit(b.en, &j, prompt, 120, &p, &e), 0);
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, 9);
    assert_int_equal(j.finish, GEN_LENGTH);
    job_fini(&j);
    assert_int_equal(job_submit(b.en, &j, prompt, 129, &p, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    bench_fini(&b);
}

static void test_context_limits_the_output(void **state)
{
    struct job j = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 64, 20);
    submit(&b, &j, 500, 100);
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, 12); /* 512 in all */
    assert_int_equal(j.finish, GEN_LENGTH);
    assert_true(j.out->first_token_us > 0);
    job_fini(&j);
    bench_fini(&b);
}

/* ---- life ---- */

static void test_drain_refuses_and_lets_run(void **state)
{
    uint32_t prompt[] = {1};
    struct job j = {0}, refused = {0};
    struct gen_params p;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init(&b, 4, 64, 20);
    gate_shut();
    submit(&b, &j, 5, 50);
    gate_wait_held();
    b.en->ops->drain(b.en);
    gen_params_init(&p);
    assert_int_equal(job_submit(b.en, &refused, prompt, 1, &p, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    gate_open();
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, 50);
    job_fini(&j);
    bench_fini(&b);
}

static void test_free_aborts_what_runs_and_waits(void **state)
{
    struct job jobs[12] = {0};
    struct bench b;

    (void)state;
    for (int round = 0; round < 20; round++) {
        memset(jobs, 0, sizeof jobs);
        bench_init(&b, 3, 8, 40);
        for (int i = 0; i < 12; i++) {
            jobs[i].dropped = i % 2;
            submit(&b, &jobs[i], 20, 400);
        }
        while (round % 2 && stats_of(&b).n_steps < (uint64_t)round)
            (void)usleep(100);
        bench_fini(&b);
        for (int i = 0; i < 12; i++) {
            assert_int_equal(jobs[i].n_done, 1);
            assert_true(jobs[i].finish == GEN_ABORT || jobs[i].finish == GEN_LENGTH);
            job_fini(&jobs[i]);
        }
    }
}

static void test_free_while_frozen(void **state)
{
    struct job j = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 3, 8, 40);
    gate_shut();
    submit(&b, &j, 20, 400);
    gate_wait_held();
    sleep_at_gate(&b);
    b.en->ops->free(b.en);
    assert_int_equal(j.finish, GEN_ABORT);
    assert_true(j.out->n_tokens <= 1);
    store_free(b.store);
    job_fini(&j);
}

static void test_the_heart_beats_when_idle(void **state)
{
    struct engine_info info;
    struct bench b;

    (void)state;
    bench_init(&b, 3, 8, 40);
    wait_heartbeats(&b, 2);
    assert_int_equal(stats_of(&b).n_steps, 0);
    b.en->ops->info(b.en, &info);
    assert_int_equal(info.vocab_size, FAKE_VOCAB);
    assert_int_equal(info.max_model_len, 512);
    assert_string_equal(info.model_path, "fake");
    bench_fini(&b);
}

/* The heart does not beat through a step that hangs; the stats say so without waiting for it. */
static void test_stats_do_not_wait_for_a_step(void **state)
{
    struct job j = {0};
    struct bench b;
    uint64_t heartbeat_us;

    (void)state;
    bench_init(&b, 3, 8, 40);
    gate_shut();
    submit(&b, &j, 5, 5);
    gate_wait_held();
    heartbeat_us = stats_of(&b).heartbeat_us;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(stats_of(&b).heartbeat_us, heartbeat_us);
    gate_open();
    job_wait(&j);
    assert_true(stats_of(&b).step_us_max > 0);
    job_fini(&j);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_ends_within_a_step),
        cmocka_unit_test(test_cancel_at_any_point),
        cmocka_unit_test(test_bad_logits_are_never_sampled),
        cmocka_unit_test(test_the_failing_weights_are_told),
        cmocka_unit_test(test_kv_exhaustion_queues_in_order),
        cmocka_unit_test(test_what_never_fits_is_refused),
        cmocka_unit_test(test_context_limits_the_output),
        cmocka_unit_test(test_drain_refuses_and_lets_run),
        cmocka_unit_test(test_free_aborts_what_runs_and_waits),
        cmocka_unit_test(test_free_while_frozen),
        cmocka_unit_test(test_the_heart_beats_when_idle),
        cmocka_unit_test(test_stats_do_not_wait_for_a_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
