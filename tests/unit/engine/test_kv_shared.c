/* KV that sequences share: what is found is what they would have computed, and never anything else.
 * The fake model sees each wrong entry; the reference knows no cache. */
#include "tests/unit/engine/engine_bench.h"

enum { N_PROMPT = 150, N_OUT = 20 };

struct ask {
    const uint32_t *prompt;
    uint32_t n_prompt, n_out;
    enum gen_on_update on_update;
    int32_t prompt_logprobs; /* -1: none */
    unsigned char salt;
    bool skip, routes;
};

static void stem(uint32_t *prompt, uint32_t n, uint32_t kind)
{
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (i * 7 + i / 50 + kind * 13) % 60;
}

static void ask_for(struct bench *b, struct job *j, const struct ask *a)
{
    struct gen_params p;
    struct err e = {0};

    gen_params_init(&p);
    p.temperature = 0;
    p.logprobs = 0;
    p.prompt_logprobs = a->prompt_logprobs;
    p.max_tokens = a->n_out;
    p.ignore_eos = true;
    p.skip_prefix = a->skip;
    p.routes = a->routes;
    p.salt[0] = a->salt;
    j->on_update = a->on_update;
    if (job_submit(b->en, j, a->prompt, a->n_prompt, &p, &e) != 0)
        fail_msg("refused: %s", e.msg);
}

/* What the weights of a serial make of a prompt. */
static void is_right(const struct job *j, const uint32_t *prompt, uint32_t n_prompt,
                     uint64_t serial)
{
    float tokens[512], read[512], logits[FAKE_VOCAB];
    struct bench copy;

    commit_seed(&copy, serial);
    for (uint32_t i = 0; i < n_prompt + j->out->n_tokens; i++) {
        uint32_t id = i < n_prompt ? prompt[i] : j->out->tokens[i - n_prompt].id;

        if (i >= n_prompt) {
            uint32_t best = 0;

            fake_logits(logits, tokens, read, i, copy.w);
            for (uint32_t k = 1; k < FAKE_VOCAB; k++)
                best = logits[k] > logits[best] ? k : best;
            assert_int_equal(id, best);
        }
        tokens[i] = (float)id;
        read[i] = copy.w[id];
    }
}

/* Asks, waits, checks all of it, and says how much of the prompt was found. */
static uint32_t found(struct bench *b, const struct ask *a)
{
    struct job j = {0};
    uint32_t n;

    ask_for(b, &j, a);
    job_wait(&j);
    assert_int_equal(j.finish, GEN_LENGTH);
    is_right(&j, a->prompt, a->n_prompt, j.out->spans[0].serial);
    assert_int_equal(j.out->spans[0].serial, b->n_commits);
    n = j.out->n_cached;
    job_fini(&j);
    return n;
}

static void test_samples_compute_their_prompt_once(void **state)
{
    static const uint32_t lengths[] = {1, 2, 40, 63, 64, 65, 128, 129, N_PROMPT};

    (void)state;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        uint32_t prompt[N_PROMPT], n = lengths[k];
        struct ask a = {.prompt = prompt, .n_prompt = n, .n_out = N_OUT, .prompt_logprobs = -1};
        struct job jobs[8] = {{0}};
        struct engine_stats stats;
        struct bench b;

        stem(prompt, n, 1);
        bench_init(&b, 8, 70, 30);
        gate_shut();
        for (int i = 0; i < 8; i++)
            ask_for(&b, &jobs[i], &a);
        gate_wait_held();
        gate_open();
        for (int i = 0; i < 8; i++) {
            job_wait(&jobs[i]);
            is_right(&jobs[i], prompt, n, 1);
            assert_int_equal(jobs[i].out->n_cached, i == 0 ? 0 : n - 1);
            job_fini(&jobs[i]);
        }
        stats = stats_of(&b);
        assert_int_equal(stats.n_prompt_tokens, n + 7);
        assert_int_equal(stats.n_prefix_found_tokens, 7 * (n - 1));
        assert_int_equal(stats.n_prefix_queried_tokens, n > 1 ? 8 * n : 8);
        assert_int_equal(stats.kv_tokens_used, 0);
        bench_fini(&b);
    }
}

/* Shared chunks are reserved once: eight such prompts at once are more than this pool has. */
static void test_what_is_shared_needs_no_more_room(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .n_out = N_OUT, .prompt_logprobs = -1};
    struct job jobs[8] = {{0}};
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_init(&b, 8, 16, 2 + 8);
    gate_shut();
    for (int i = 0; i < 8; i++)
        ask_for(&b, &jobs[i], &a);
    gate_wait_held();
    gate_open();
    job_wait(&jobs[0]);
    for (int i = 0; i < 8; i++) {
        job_wait(&jobs[i]);
        is_right(&jobs[i], prompt, N_PROMPT, 1);
        job_fini(&jobs[i]);
    }
    /* 150 tokens in steps of 16, then all at once: not 8 prompts one after the other. */
    assert_in_range(stats_of(&b).n_steps, 10 + N_OUT, 10 + N_OUT + 5);
    bench_fini(&b);
}

static void test_later_requests_find_earlier_ones(void **state)
{
    uint32_t prompt[400], other[400];
    struct ask a = {.prompt = prompt, .n_prompt = 100, .n_out = N_OUT, .prompt_logprobs = -1};
    struct job first = {0};
    struct bench b;

    (void)state;
    stem(prompt, 400, 1);
    bench_init(&b, 2, 16, 40);
    ask_for(&b, &first, &a);
    job_wait(&first);
    assert_int_equal(stats_of(&b).kv_tokens_used, 0);
    assert_int_equal(found(&b, &a), 99);
    for (uint32_t i = 0; i < N_OUT; i++) /* the next turn of a dialogue; its last token has no KV */
        prompt[100 + i] = first.out->tokens[i].id;
    a.n_prompt = 200;
    assert_int_equal(found(&b, &a), 100 + N_OUT - 1);
    assert_int_equal(found(&b, &a), 199);
    a.n_prompt = 70; /* a part of it */
    assert_int_equal(found(&b, &a), 69);
    memcpy(other, prompt, sizeof other);
    a.prompt = other;
    a.n_prompt = 200;
    other[77] = 61; /* another way from there on */
    assert_int_equal(found(&b, &a), 77);
    other[64] = 60;
    assert_int_equal(found(&b, &a), 64);
    other[0] = 60;
    assert_int_equal(found(&b, &a), 0);
    job_fini(&first);
    bench_fini(&b);
}

static void test_rows_that_report_more_are_computed(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .n_out = 3, .prompt_logprobs = 0};
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_init(&b, 2, 16, 40);
    assert_int_equal(found(&b, &a), 0);
    assert_int_equal(found(&b, &a), 0);
    a.prompt_logprobs = -1;
    assert_int_equal(found(&b, &a), N_PROMPT - 1); /* others may find what these computed */
    a.routes = true;
    assert_int_equal(found(&b, &a), 0);
    a.routes = false;
    a.skip = true;
    assert_int_equal(found(&b, &a), 0);
    assert_int_equal(stats_of(&b).n_prefix_queried_tokens, N_PROMPT);
    bench_fini(&b);
}

static void test_without_it_nothing_is_found(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .n_out = 3, .prompt_logprobs = -1};
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_no_prefix_cache = true;
    bench_init(&b, 2, 16, 40);
    bench_no_prefix_cache = false;
    assert_int_equal(found(&b, &a), 0);
    assert_int_equal(found(&b, &a), 0);
    assert_int_equal(stats_of(&b).kv_tokens_kept, 0);
    assert_int_equal(stats_of(&b).n_prefix_queried_tokens, 0);
    bench_fini(&b);
}

static void after_commit(struct bench *b)
{
    commit(b);
}

static void after_reset(struct bench *b)
{
    assert_true(b->en->ops->kv_forget(b->en, false) >= N_PROMPT);
}

static void after_kv_release(struct bench *b)
{
    struct err e = {0};
    uint64_t nbytes;

    assert_int_equal(b->en->ops->kv_release(b->en, CLOCK_NEVER, &nbytes, &e), 0);
    assert_int_equal(stats_of(b).kv_tokens_kept, 0);
    assert_int_equal(b->en->ops->kv_restore(b->en, CLOCK_NEVER, &e), 0);
}

static void after_sleep_and_update(struct bench *b)
{
    struct store_slept slept;
    struct err e = {0};
    uint64_t nbytes;

    assert_int_equal(store_sleep(b->store, 2, CLOCK_NEVER, &slept, &e), 0);
    assert_int_equal(store_wake(b->store, CLOCK_NEVER, &nbytes, &e), 0);
    commit(b);
}

static void test_nothing_is_found_of_what_is_over(void **state)
{
    static void (*const after[])(struct bench * b) = {after_commit, after_reset, after_kv_release,
                                                      after_sleep_and_update};
    uint32_t prompt[N_PROMPT];

    (void)state;
    stem(prompt, N_PROMPT, 1);
    for (size_t k = 0; k < sizeof after / sizeof after[0]; k++) {
        for (int on_update = 0; on_update <= GEN_ON_UPDATE_RECOMPUTE; on_update++) {
            struct ask a = {.prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .n_out = N_OUT,
                            .prompt_logprobs = -1,
                            .on_update = (enum gen_on_update)on_update};
            struct bench b;

            bench_init(&b, 2, 16, 40);
            assert_int_equal(found(&b, &a), 0);
            assert_int_equal(found(&b, &a), N_PROMPT - 1);
            after[k](&b);
            assert_int_equal(found(&b, &a), 0);
            assert_int_equal(found(&b, &a), N_PROMPT - 1);
            bench_fini(&b);
        }
    }
}

static void test_weights_that_wake_have_their_kv(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .n_out = 4, .prompt_logprobs = -1};
    struct store_slept slept;
    struct err e = {0};
    uint64_t nbytes;
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_init(&b, 2, 16, 40);
    assert_int_equal(found(&b, &a), 0);
    assert_int_equal(store_sleep(b.store, 1, CLOCK_NEVER, &slept, &e), 0);
    assert_int_equal(store_wake(b.store, CLOCK_NEVER, &nbytes, &e), 0);
    assert_int_equal(found(&b, &a), N_PROMPT - 1);
    bench_fini(&b);
}

static void test_salts_share_nothing(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .n_out = 4, .prompt_logprobs = -1};
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_init(&b, 2, 16, 40);
    for (a.salt = 0; a.salt < 3; a.salt++)
        assert_int_equal(found(&b, &a), 0);
    for (a.salt = 0; a.salt < 3; a.salt++)
        assert_int_equal(found(&b, &a), N_PROMPT - 1);
    bench_fini(&b);
}

/* KV of two versions, or of what was told to forget, is nobody else's. */
static void commit_at_ten(struct job *j, const struct gen_output *out, void *arg)
{
    (void)j;
    if (out->n_tokens == 10)
        commit(arg);
}

static void reset_at_ten(struct job *j, const struct gen_output *out, void *arg)
{
    struct bench *b = arg;

    (void)j;
    if (out->n_tokens == 10)
        (void)b->en->ops->kv_forget(b->en, false);
}

static void test_a_mixed_past_is_not_found(void **state)
{
    static const uint32_t n_found[GEN_ON_UPDATE_RECOMPUTE + 1] = {
        [GEN_ON_UPDATE_RECOMPUTE] = 70 + 80 - 1};
    uint32_t prompt[200];

    (void)state;
    for (int on_update = 0; on_update <= GEN_ON_UPDATE_RECOMPUTE; on_update++) {
        struct ask a = {.prompt = prompt,
                        .n_prompt = 70,
                        .n_out = 80,
                        .prompt_logprobs = -1,
                        .on_update = (enum gen_on_update)on_update};
        struct job j = {.on_tokens = commit_at_ten};
        struct bench b;

        stem(prompt, 200, 1);
        bench_init(&b, 2, 16, 40);
        j.arg = &b;
        ask_for(&b, &j, &a);
        job_wait(&j);
        for (uint32_t i = 0; i < 80; i++)
            prompt[70 + i] = j.out->tokens[i].id;
        a.n_prompt = 200;
        assert_int_equal(found(&b, &a), n_found[on_update]);
        job_fini(&j);
        bench_fini(&b);
    }
}

static void test_a_reset_leaves_what_runs_alone(void **state)
{
    uint32_t prompt[200];
    struct ask a = {.prompt = prompt, .n_prompt = 70, .n_out = 80, .prompt_logprobs = -1};
    struct job j = {.on_tokens = reset_at_ten};
    struct bench b;

    (void)state;
    stem(prompt, 200, 1);
    bench_init(&b, 2, 16, 40);
    j.arg = &b;
    ask_for(&b, &j, &a);
    job_wait(&j);
    is_right(&j, prompt, 70, 1);
    assert_int_equal(stats_of(&b).n_recomputed_tokens, 0);
    assert_int_equal(found(&b, &a), 0);
    job_fini(&j);
    bench_fini(&b);
}

/* The samples lose what they shared, and share it again. */
static void test_recompute_is_shared_too(void **state)
{
    uint32_t prompt[N_PROMPT];
    struct ask a = {.prompt = prompt,
                    .n_prompt = N_PROMPT,
                    .n_out = N_OUT,
                    .prompt_logprobs = -1,
                    .on_update = GEN_ON_UPDATE_RECOMPUTE};
    struct job jobs[8] = {{0}};
    struct bench b;

    (void)state;
    stem(prompt, N_PROMPT, 1);
    bench_init(&b, 8, 16, 2 + 8);
    jobs[0].on_tokens = commit_at_ten;
    jobs[0].arg = &b;
    gate_shut();
    for (int i = 0; i < 8; i++)
        ask_for(&b, &jobs[i], &a);
    gate_wait_held();
    gate_open();
    for (int i = 0; i < 8; i++) {
        uint32_t again[N_PROMPT + N_OUT], n;
        struct job rest = {0};

        job_wait(&jobs[i]);
        n = jobs[i].out->spans[0].end;
        memcpy(again, prompt, sizeof prompt);
        for (uint32_t k = 0; k < N_OUT; k++)
            again[N_PROMPT + k] = jobs[i].out->tokens[k].id;
        ask_for(&b, &rest,
                &(struct ask){.prompt = again,
                              .n_prompt = N_PROMPT + n,
                              .n_out = N_OUT - n,
                              .prompt_logprobs = -1,
                              .skip = true});
        job_wait(&rest);
        is_right(&rest, again, N_PROMPT + n, 2);
        for (uint32_t k = 0; k < N_OUT - n; k++)
            assert_int_equal(rest.out->tokens[k].id, jobs[i].out->tokens[n + k].id);
        job_fini(&rest);
        job_fini(&jobs[i]);
    }
    assert_in_range(stats_of(&b).n_recomputed_tokens, N_PROMPT + 10, N_PROMPT + 8 * 12);
    bench_fini(&b);
}

/* Who computes for the others may leave. */
static void test_followers_outlive_who_computes(void **state)
{
    uint32_t prompt[400];
    struct ask a = {.prompt = prompt, .n_prompt = 400, .n_out = 4, .prompt_logprobs = -1};
    struct job first = {0}, second = {0};
    struct bench b;

    (void)state;
    stem(prompt, 400, 1);
    bench_init(&b, 4, 16, 40);
    gate_shut();
    ask_for(&b, &first, &a);
    gate_wait_held();
    ask_for(&b, &second, &a);
    b.en->ops->cancel(b.en, first.id);
    gate_open();
    job_wait(&second);
    assert_int_equal(first.finish, GEN_ABORT);
    assert_int_equal(second.out->n_cached, 16);
    is_right(&second, prompt, 400, 1);
    assert_int_equal(stats_of(&b).n_prompt_tokens, 400);
    job_fini(&first);
    job_fini(&second);
    bench_fini(&b);
}

/* Many stems, salts, commits, resets and cancels in a pool that is always full. With `finish` an
 * output is of one version, and known. */
enum { N_WALK = 400, WALK_AT_ONCE = 12 };

static void test_a_walk_in_a_full_pool(void **state)
{
    static const uint32_t n_chunks[] = {8, 40};
    uint64_t r = 3;

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        static uint32_t prompts[WALK_AT_ONCE][300];
        static uint32_t n_prompts[WALK_AT_ONCE];
        struct job jobs[WALK_AT_ONCE] = {{0}};
        struct bench b;
        uint32_t n_ended = 0, n_found = 0;

        bench_init(&b, 6, 24, n_chunks[k]);
        for (uint32_t i = 0; i < N_WALK; i++) {
            uint32_t at = i % WALK_AT_ONCE, what = draw(&r, 12);
            struct ask a = {.prompt = prompts[at],
                            .n_out = 1 + draw(&r, 30),
                            .prompt_logprobs = (int32_t)draw(&r, 8) == 0 ? 0 : -1,
                            .on_update = GEN_ON_UPDATE_FINISH,
                            .salt = (unsigned char)draw(&r, 2)};

            if (i >= WALK_AT_ONCE) {
                job_wait(&jobs[at]);
                if (jobs[at].out->n_tokens > 0) {
                    assert_int_equal(jobs[at].out->n_spans, 1);
                    is_right(&jobs[at], prompts[at], n_prompts[at], jobs[at].out->spans[0].serial);
                }
                n_ended += jobs[at].finish == GEN_LENGTH;
                n_found += jobs[at].out->n_cached;
                job_fini(&jobs[at]);
                jobs[at] = (struct job){0};
            }
            n_prompts[at] = a.n_prompt = 1 + draw(&r, 250);
            stem(prompts[at], a.n_prompt, draw(&r, 3));
            if (draw(&r, 2) == 0)
                prompts[at][draw(&r, a.n_prompt)] = draw(&r, 60);
            ask_for(&b, &jobs[at], &a);
            if (what == 0)
                commit(&b);
            else if (what == 1)
                (void)b.en->ops->kv_forget(b.en, draw(&r, 2) == 0);
            else if (what == 2)
                b.en->ops->cancel(b.en, jobs[draw(&r, WALK_AT_ONCE)].id);
            else if (what == 3)
                after_kv_release(&b);
        }
        for (uint32_t i = 0; i < WALK_AT_ONCE; i++) {
            job_wait(&jobs[i]);
            job_fini(&jobs[i]);
        }
        assert_true(n_ended > N_WALK / 2 && n_found > 1000);
        assert_int_equal(stats_of(&b).kv_tokens_used, 0);
        bench_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_compute_their_prompt_once),
        cmocka_unit_test(test_what_is_shared_needs_no_more_room),
        cmocka_unit_test(test_later_requests_find_earlier_ones),
        cmocka_unit_test(test_rows_that_report_more_are_computed),
        cmocka_unit_test(test_without_it_nothing_is_found),
        cmocka_unit_test(test_nothing_is_found_of_what_is_over),
        cmocka_unit_test(test_weights_that_wake_have_their_kv),
        cmocka_unit_test(test_salts_share_nothing),
        cmocka_unit_test(test_a_mixed_past_is_not_found),
        cmocka_unit_test(test_a_reset_leaves_what_runs_alone),
        cmocka_unit_test(test_recompute_is_shared_too),
        cmocka_unit_test(test_followers_outlive_who_computes),
        cmocka_unit_test(test_a_walk_in_a_full_pool),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
