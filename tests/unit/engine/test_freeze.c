/* The engine between two tokens: frozen, without its KV cache, without weights; and what runs goes
 * on as if nothing had been. */
#include "tests/unit/engine/engine_bench.h"

static void freeze_now(struct bench *b)
{
    struct err e = {0};

    if (b->en->ops->freeze(b->en, CLOCK_NEVER, &e) != 0)
        fail_msg("not frozen: %s", e.msg);
}

static void same_output(const struct gen_output *x, const struct gen_output *y)
{
    assert_int_equal(x->n_tokens, y->n_tokens);
    for (uint32_t i = 0; i < x->n_tokens; i++) {
        assert_int_equal(x->tokens[i].id, y->tokens[i].id);
        assert_memory_equal(&x->tokens[i].logprob, &y->tokens[i].logprob, sizeof(float));
    }
}

/* No token is made while the loop turns. */
static void assert_still(struct bench *b)
{
    uint64_t n = stats_of(b).n_generated_tokens, steps = stats_of(b).n_steps;

    assert_true(stats_of(b).frozen || stats_of(b).kv_released);
    assert_int_equal(stats_of(b).n_generated_tokens, n);
    assert_int_equal(stats_of(b).n_steps, steps);
    assert_int_equal(atomic_load(&fake_n_steps), steps);
}

/* Freezes from a step's own callback thread are the test's: it waits until a job has tokens. */
struct until {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n;
};

static void note_tokens(struct job *j, const struct gen_output *out, void *arg)
{
    struct until *u = arg;

    (void)j;
    pthread_mutex_lock(&u->lock);
    u->n = out->n_tokens;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

static void wait_tokens(struct until *u, uint32_t n)
{
    pthread_mutex_lock(&u->lock);
    while (u->n < n)
        pthread_cond_wait(&u->changed, &u->lock);
    pthread_mutex_unlock(&u->lock);
}

/* Freezes while a job of so many tokens runs; one that was faster is followed by another. */
static void submit_and_freeze(struct bench *b, struct job *job, struct until *u, uint32_t max)
{
    for (;;) {
        u->n = 0;
        job->on_tokens = note_tokens;
        job->arg = u;
        submit(b, job, 20, max);
        wait_tokens(u, 3);
        freeze_now(b);
        if (u->n < max)
            return;
        b->en->ops->thaw(b->en);
        job_wait(job);
        job_fini(job);
        *job = (struct job){0};
    }
}

#define UNTIL                                                                                      \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                     \
    }

static void test_frozen_goes_on_bit_identically(void **state)
{
    struct job alone = {0}, job = {0};
    struct until u = UNTIL;
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    submit(&b, &alone, 20, 200);
    job_wait(&alone);
    submit_and_freeze(&b, &job, &u, 200);
    for (int i = 0; i < 5; i++) {
        freeze_now(&b);
        freeze_now(&b); /* repeating is harmless */
        assert_still(&b);
        b.en->ops->thaw(b.en);
        b.en->ops->thaw(b.en);
    }
    job_wait(&job);
    same_output(job.out, alone.out);
    assert_int_equal(job.out->n_spans, 1);
    job_fini(&alone);
    job_fini(&job);
    bench_fini(&b);
}

static void test_freeze_waits_for_the_step(void **state)
{
    struct job job = {0};
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    gate_shut();
    submit(&b, &job, 4, 20);
    gate_wait_held();
    assert_int_equal(b.en->ops->freeze(b.en, clock_after_us(1000), &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_false(stats_of(&b).frozen);
    gate_open();
    job_wait(&job); /* nothing froze later */
    assert_int_equal(job.finish, GEN_LENGTH);
    job_fini(&job);
    bench_fini(&b);
}

static void test_frozen_takes_cancels_and_requests(void **state)
{
    struct job gone = {0}, late = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    freeze_now(&b);
    submit(&b, &gone, 4, 20);
    submit(&b, &late, 4, 20);
    b.en->ops->cancel(b.en, gone.id);
    job_wait(&gone);
    assert_int_equal(gone.finish, GEN_ABORT);
    assert_int_equal(gone.out->n_tokens, 0);
    assert_still(&b);
    b.en->ops->thaw(b.en);
    job_wait(&late);
    assert_int_equal(late.finish, GEN_LENGTH);
    job_fini(&gone);
    job_fini(&late);
    bench_fini(&b);
}

static void test_kv_is_made_again(void **state)
{
    struct job alone = {0}, jobs[3] = {{0}};
    struct until u = UNTIL;
    uint64_t nbytes = 0, again = 1;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 40);
    submit(&b, &alone, 20, 200);
    job_wait(&alone);
    submit_and_freeze(&b, &jobs[0], &u, 200);
    for (int i = 1; i < 3; i++)
        submit(&b, &jobs[i], 20, 200);
    assert_int_equal(b.en->ops->kv_release(b.en, CLOCK_NEVER, &nbytes, &e), 0);
    assert_true(nbytes > 0);
    assert_int_equal(b.en->ops->kv_release(b.en, CLOCK_NEVER, &again, &e), 0);
    assert_int_equal(again, 0);
    assert_true(stats_of(&b).kv_released);
    assert_int_equal(stats_of(&b).kv_tokens_used, 0);
    b.en->ops->thaw(b.en); /* without a cache nothing is computed, frozen or not */
    assert_still(&b);
    assert_int_equal(b.en->ops->kv_restore(b.en, CLOCK_NEVER, &e), 0);
    assert_int_equal(b.en->ops->kv_restore(b.en, CLOCK_NEVER, &e), 0);
    for (int i = 0; i < 3; i++) {
        job_wait(&jobs[i]);
        same_output(jobs[i].out, alone.out);
        job_fini(&jobs[i]);
    }
    job_fini(&alone);
    bench_fini(&b);
}

static void test_submit_without_kv(void **state)
{
    struct job late = {0};
    struct gen_params p;
    uint32_t prompt[4];
    uint64_t nbytes;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    bench_prompt(prompt, 4);
    gen_params_init(&p);
    p.logprobs = 0;
    assert_int_equal(b.en->ops->kv_release(b.en, CLOCK_NEVER, &nbytes, &e), 0);
    assert_int_equal(job_submit(b.en, &late, prompt, 4, &p, &e), -1);
    assert_int_equal(e.code, ERR_ASLEEP);
    assert_int_equal(b.en->ops->kv_restore(b.en, CLOCK_NEVER, &e), 0);
    submit(&b, &late, 4, 20);
    job_wait(&late);
    job_fini(&late);
    bench_fini(&b);
}

/* The weights sleep, or go and are replaced, under frozen generations. */
static void sleep_under(int level)
{
    struct job job = {0};
    struct until u = UNTIL;
    struct store_slept slept;
    struct err e = {0};
    uint64_t nbytes;
    uint32_t n;
    struct bench b;

    bench_init(&b, 4, 8, 20);
    submit_and_freeze(&b, &job, &u, 300);
    n = u.n;
    if (store_sleep(b.store, level, CLOCK_NEVER, &slept, &e) != 0)
        fail_msg("no sleep: %s", e.msg);
    b.en->ops->thaw(b.en); /* without weights nothing is computed, and nothing fails */
    wait_heartbeats(&b, 3);
    assert_int_equal(u.n, n);
    if (level == 1)
        assert_int_equal(store_wake(b.store, CLOCK_NEVER, &nbytes, &e), 0);
    else
        commit(&b);
    job_wait(&job);
    assert_int_equal(job.finish, GEN_LENGTH);
    assert_int_equal(job.out->n_tokens, 300);
    assert_int_equal(job.out->n_spans, level == 1 ? 1 : 2);
    assert_int_equal(job.out->spans[0].end, level == 1 ? 300 : n);
    job_fini(&job);
    bench_fini(&b);
}

static void test_weights_sleep_under_frozen(void **state)
{
    (void)state;
    sleep_under(1);
    sleep_under(2);
}

static void test_stop_while_frozen(void **state)
{
    struct job job = {0};
    uint64_t nbytes;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    freeze_now(&b);
    submit(&b, &job, 4, 20);
    assert_int_equal(b.en->ops->kv_release(b.en, CLOCK_NEVER, &nbytes, &e), 0);
    b.en->ops->stop(b.en);
    assert_int_equal(job.finish, GEN_ABORT);
    freeze_now(&b); /* there is nothing left to wait for */
    job_fini(&job);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_goes_on_bit_identically),
        cmocka_unit_test(test_freeze_waits_for_the_step),
        cmocka_unit_test(test_frozen_takes_cancels_and_requests),
        cmocka_unit_test(test_kv_is_made_again),
        cmocka_unit_test(test_submit_without_kv),
        cmocka_unit_test(test_weights_sleep_under_frozen),
        cmocka_unit_test(test_stop_while_frozen),
    };

    return cmocka_run_group_tests_name("freeze", tests, NULL, NULL);
}
