/* What a commit does to sequences that run: `finish` and `recompute`, beside `continue`. */
#include "tests/unit/engine/engine_bench.h"

#include "engine/scheduler/sequence.h"

/* Commits `n` times when the job has `at` tokens. */
struct commits {
    struct bench *b;
    uint32_t at, n;
};

static void commit_at(struct job *j, const struct gen_output *out, void *arg)
{
    const struct commits *c = arg;

    (void)j;
    for (uint32_t i = 0; out->n_tokens == c->at && i < c->n; i++)
        commit(c->b);
}

static void same_tokens(const struct gen_token *x, const struct gen_token *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_memory_equal(&x[i].logprob, &y[i].logprob, sizeof x[i].logprob);
        assert_int_equal(x[i].rank, y[i].rank);
    }
}

static void span_is(const struct gen_output *out, uint32_t i, uint64_t serial, uint32_t start,
                    uint32_t end)
{
    assert_true(i < out->n_spans);
    assert_int_equal(out->spans[i].serial, serial);
    assert_int_equal(out->spans[i].start, start);
    assert_int_equal(out->spans[i].end, end);
}

static uint32_t n_live(struct bench *b)
{
    struct store_info info;

    store_info(b->store, &info);
    return info.n_live;
}

/* The free_queue frees what has no reader left. */
static void wait_live(struct bench *b, uint32_t n)
{
    while (n_live(b) != n)
        (void)sched_yield();
}

/* ---- finish ---- */

static void test_finish_is_a_run_without_any_update(void **state)
{
    struct job alone = {0}, finish = {.on_update = GEN_ON_UPDATE_FINISH}, goes_on = {0};
    struct commits c = {.at = 7, .n = 2};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 8, 20);
    submit(&b, &alone, 20, 40);
    job_wait(&alone);
    c.b = &b;
    goes_on.on_tokens = commit_at;
    goes_on.arg = &c;
    gate_shut();
    submit(&b, &finish, 20, 40);
    submit(&b, &goes_on, 30, 40);
    gate_wait_held();
    gate_open();
    job_wait(&finish);
    job_wait(&goes_on);
    assert_int_equal(finish.out->n_spans, 1);
    span_is(finish.out, 0, 1, 0, 40);
    assert_string_equal(finish.out->spans[0].label, "v1");
    same_tokens(finish.out->tokens, alone.out->tokens, 40);
    assert_int_equal(goes_on.out->n_spans, 2); /* two commits between two steps: one of them made */
    span_is(goes_on.out, 0, 1, 0, 7);
    span_is(goes_on.out, 1, 3, 7, 40);
    job_fini(&alone);
    job_fini(&finish);
    job_fini(&goes_on);
    wait_live(&b, 1);
    bench_fini(&b);
}

static void test_a_queued_finish_holds_nothing(void **state)
{
    struct job first = {.on_update = GEN_ON_UPDATE_FINISH},
               second = {.on_update = GEN_ON_UPDATE_FINISH};
    struct bench b;

    (void)state;
    bench_init(&b, 1, 4, 20);
    gate_shut();
    submit(&b, &first, 4, 20);
    submit(&b, &second, 4, 20);
    gate_wait_held();
    commit(&b);
    commit(&b);
    assert_int_equal(n_live(&b), 2); /* the first's, and what is served */
    gate_open();
    job_wait(&first);
    job_wait(&second);
    assert_int_equal(first.out->n_spans, 1);
    span_is(first.out, 0, 1, 0, 20);
    assert_int_equal(second.out->n_spans, 1);
    span_is(second.out, 0, 3, 0, 20);
    job_fini(&first);
    job_fini(&second);
    bench_fini(&b);
}

/* Longer than a step can feed: the first row decides, not the first token. */
static void test_finish_begins_with_its_prompt(void **state)
{
    struct job finish = {.on_update = GEN_ON_UPDATE_FINISH}, alone = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 8, 20);
    submit(&b, &alone, 100, 10);
    job_wait(&alone);
    gate_shut();
    submit(&b, &finish, 100, 10);
    gate_wait_held();
    commit(&b);
    gate_open();
    job_wait(&finish);
    assert_int_equal(finish.out->n_spans, 1);
    span_is(finish.out, 0, 1, 0, 10);
    same_tokens(finish.out->tokens, alone.out->tokens, 10);
    job_fini(&finish);
    job_fini(&alone);
    bench_fini(&b);
}

static void test_updates_wait_for_room_and_not_for_finish(void **state)
{
    struct job held = {.on_update = GEN_ON_UPDATE_FINISH};
    struct staging_cfg cfg = {0};
    struct staging *g = NULL;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_versions_max = 2;
    bench_init(&b, 2, 4, 20);
    bench_versions_max = 8;
    gate_shut();
    submit(&b, &held, 4, 300);
    gate_wait_held();
    commit(&b); /* with the sequence in the middle of a step */
    assert_int_equal(held.n_done, 0);
    assert_int_equal(store_stage(b.store, &cfg, clock_now_us(), NULL, &g, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "2 versions of the weights are alive"));
    gate_open();
    commit(&b); /* waits for the sequence, and no longer */
    job_wait(&held);
    assert_int_equal(held.out->n_spans, 1);
    span_is(held.out, 0, 1, 0, 300);
    job_fini(&held);
    bench_fini(&b);
}

static void test_cancel_and_stop_let_the_version_go(void **state)
{
    struct job cancelled = {.on_update = GEN_ON_UPDATE_FINISH},
               stopped = {.on_update = GEN_ON_UPDATE_FINISH};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 4, 20);
    gate_shut();
    submit(&b, &cancelled, 4, 400);
    gate_wait_held();
    commit(&b);
    b.en->ops->cancel(b.en, cancelled.id);
    gate_open();
    job_wait(&cancelled);
    assert_int_equal(cancelled.finish, GEN_ABORT);
    wait_live(&b, 1);
    gate_shut();
    submit(&b, &stopped, 4, 400);
    gate_wait_held();
    commit(&b);
    gate_open();
    b.en->ops->free(b.en);
    assert_int_equal(n_live(&b), 1);
    store_free(b.store);
    fake_on_step = NULL;
    job_fini(&cancelled);
    job_fini(&stopped);
}

static void rename_at_two(struct job *j, const struct gen_output *out, void *arg)
{
    struct bench *b = arg;
    struct err e = {0};
    uint64_t serial;

    (void)j;
    if (out->n_tokens == 2)
        (void)store_set_label(b->store, "renamed", 0, &serial, &e);
}

/* A rename is no update: it holds no room, and is told as everywhere. */
static void test_a_rename_is_no_update(void **state)
{
    enum gen_on_update modes[] = {GEN_ON_UPDATE_FINISH, GEN_ON_UPDATE_RECOMPUTE};
    struct bench b;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct job j = {.on_update = modes[i], .on_tokens = rename_at_two, .arg = &b};

        bench_init(&b, 2, 4, 20);
        submit(&b, &j, 4, 20);
        job_wait(&j);
        assert_int_equal(j.out->n_spans, 2);
        span_is(j.out, 0, 1, 0, 2);
        span_is(j.out, 1, 1, 2, 20);
        assert_string_equal(j.out->spans[1].label, "renamed");
        assert_int_equal(stats_of(&b).n_recomputed_tokens, 0);
        wait_live(&b, 1);
        job_fini(&j);
        bench_fini(&b);
    }
}

/* ---- recompute ---- */

/* Submits the job's own text so far, `n` tokens of its output, as a prompt. */
static void submit_again(struct bench *b, struct job *fresh, const struct job *j, uint32_t n_prompt,
                         uint32_t n, uint32_t max_tokens)
{
    uint32_t prompt[512];
    struct gen_params p;
    struct err e = {0};

    bench_prompt(prompt, n_prompt);
    for (uint32_t i = 0; i < n; i++)
        prompt[n_prompt + i] = j->out->tokens[i].id;
    gen_params_init(&p);
    p.logprobs = 0;
    p.temperature = 0;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    assert_int_equal(job_submit(b->en, fresh, prompt, n_prompt + n, &p, &e), 0);
}

static void test_recompute_is_a_fresh_request(void **state)
{
    struct job j = {.on_update = GEN_ON_UPDATE_RECOMPUTE, .on_tokens = commit_at};
    struct job before = {0}, fresh = {0}, mixed = {.on_tokens = commit_at};
    struct commits c = {.at = 10, .n = 2};
    struct engine_stats stats;
    struct bench b;

    (void)state;
    bench_init(&b, 2, 5, 20); /* made again in five pieces */
    submit(&b, &before, 12, 40);
    job_wait(&before);
    c.b = &b;
    j.arg = &c;
    submit(&b, &j, 12, 40);
    job_wait(&j);
    assert_int_equal(j.out->n_spans, 2);
    span_is(j.out, 0, 1, 0, 10);
    span_is(j.out, 1, 3, 10, 40); /* 2 made nothing */
    same_tokens(j.out->tokens, before.out->tokens, 10);
    submit_again(&b, &fresh, &j, 12, 10, 30);
    job_wait(&fresh);
    same_tokens(j.out->tokens + 10, fresh.out->tokens, 30);
    assert_int_equal(stats_of(&b).n_recomputed_tokens, 12 + 9);
    stats = stats_of(&b);
    assert_int_equal(stats.n_prompt_tokens + stats.n_prefix_found_tokens, 12 + 12 + 22);
    mixed.arg = &c;
    c.n = 1;
    submit(&b, &mixed, 12, 40);
    job_wait(&mixed);
    job_fini(&fresh);
    fresh = (struct job){0};
    submit_again(&b, &fresh, &mixed, 12, 10, 30);
    job_wait(&fresh);
    assert_true(mixed.out->tokens[39].logprob != fresh.out->tokens[29].logprob); /* stale KV */
    job_fini(&j);
    job_fini(&before);
    job_fini(&fresh);
    job_fini(&mixed);
    bench_fini(&b);
}

static void submit_probed(struct bench *b, struct job *j)
{
    uint32_t prompt[100];
    struct gen_params p;
    struct err e = {0};

    bench_prompt(prompt, 100);
    gen_params_init(&p);
    p.logprobs = 0;
    p.max_tokens = 10;
    p.seed = 3;
    p.prompt_logprobs = 0;
    p.ignore_eos = true;
    assert_int_equal(job_submit(b->en, j, prompt, 100, &p, &e), 0);
}

/* A prompt that was half fed is fed again, and what was told of it is told again. */
static void test_recompute_begins_again_within_a_prompt(void **state)
{
    struct job j = {.on_update = GEN_ON_UPDATE_RECOMPUTE}, fresh = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 8, 20);
    gate_shut();
    submit_probed(&b, &j);
    gate_wait_held();
    commit(&b);
    gate_open();
    job_wait(&j);
    submit_probed(&b, &fresh);
    job_wait(&fresh);
    assert_int_equal(j.out->n_spans, 1);
    span_is(j.out, 0, 2, 0, 10);
    same_tokens(j.out->tokens, fresh.out->tokens, 10);
    same_tokens(j.out->prompt, fresh.out->prompt, 100);
    assert_int_equal(stats_of(&b).n_recomputed_tokens, 8);
    assert_int_equal(stats_of(&b).n_prompt_tokens, 200);
    job_fini(&j);
    job_fini(&fresh);
    bench_fini(&b);
}

static void commit_each_step(void *arg, uint32_t n_rows)
{
    (void)n_rows;
    commit(arg); /* waits for the free_queue at most: of four, one is held and one is being read */
}

/* Each token of a version whose KV is whole, though no version is served for as long as that
 * takes; and a commit at each step needs no room beyond what is allowed. */
static void test_recompute_is_not_starved_by_commits(void **state)
{
    struct job j = {.on_update = GEN_ON_UPDATE_RECOMPUTE};
    struct bench b;

    (void)state;
    bench_versions_max = 4;
    bench_init(&b, 2, 8, 20);
    bench_versions_max = 8;
    fake_on_step_arg = &b;
    fake_on_step = commit_each_step;
    submit(&b, &j, 60, 30);
    job_wait(&j);
    fake_on_step = NULL;
    assert_int_equal(j.out->n_tokens, 30);
    assert_int_equal(j.out->n_spans, 30);
    for (uint32_t i = 1; i < j.out->n_spans; i++) /* a step in vain, then eight at least */
        assert_true(j.out->spans[i].serial >= j.out->spans[i - 1].serial + 9);
    job_fini(&j);
    bench_fini(&b);
}

/* Commits until the sequence holds a version that is served no more. */
struct overtaken {
    struct bench *b;
    unsigned n_steps; /* of the engine's thread, and of the test while that is frozen */
};

static void overtake(void *arg, uint32_t n_rows)
{
    struct overtaken *o = arg;

    (void)n_rows;
    if (o->n_steps++ <= SEQ_REBUILDS_MAX)
        commit(o->b);
    else
        (void)sched_yield();
}

/* Frozen, nothing is gained by what it holds, and an update would lack the room. */
static void test_frozen_recompute_holds_nothing(void **state)
{
    struct bench b;
    uint32_t n_prompt = 480;
    bool caught = false;

    (void)state;
    bench_versions_max = 2;
    bench_init(&b, 1, 1, 20);
    bench_versions_max = 8;
    while (!caught) {
        struct job j = {.on_update = GEN_ON_UPDATE_RECOMPUTE};
        struct overtaken o = {.b = &b};
        unsigned n_before = atomic_load(&fake_n_steps);
        struct store_info info;
        struct err e = {0};

        fake_on_step_arg = &o;
        fake_on_step = overtake;
        submit(&b, &j, --n_prompt, 10); /* of which nothing is there yet */
        while (atomic_load(&fake_n_steps) < n_before + SEQ_REBUILDS_MAX + 2)
            (void)sched_yield();
        assert_int_equal(b.en->ops->freeze(b.en, CLOCK_NEVER, &e), 0);
        caught = o.n_steps > SEQ_REBUILDS_MAX + 1 && j.n_seen == 0;
        if (caught)
            assert_true(commit_until(&b, clock_after_us(60000000)));
        store_info(b.store, &info);
        assert_true(info.n_live <= 2);
        fake_on_step = NULL;
        b.en->ops->thaw(b.en);
        job_wait(&j);
        assert_int_equal(j.out->n_tokens, 10);
        job_fini(&j);
    }
    bench_fini(&b);
}

/* While KV of several hundred tokens is made again, the others get a token from each step. */
static void every_step_has_a_token(struct job *j, const struct gen_output *out, void *arg)
{
    unsigned *before = arg, now = atomic_load(&fake_n_steps);

    assert(out->n_tokens == 1 || now == *before + 1);
    *before = now;
    (void)j;
}

static void test_recompute_does_not_stop_decoding(void **state)
{
    struct job long_ones[3] = {{0}}, decoding = {.on_tokens = every_step_has_a_token};
    struct commits c = {.at = 20, .n = 1};
    unsigned before = 0;
    struct bench b;

    (void)state;
    bench_init(&b, 8, 16, 100);
    c.b = &b;
    decoding.arg = &before;
    for (int i = 0; i < 3; i++) {
        long_ones[i].on_update = GEN_ON_UPDATE_RECOMPUTE;
        long_ones[i].on_tokens = commit_at;
        long_ones[i].arg = &c;
        submit(&b, &long_ones[i], 300 + (uint32_t)i, 60); /* nothing in common */
    }
    submit(&b, &decoding, 3, 400);
    for (int i = 0; i < 3; i++)
        job_wait(&long_ones[i]);
    job_wait(&decoding);
    assert_int_equal(decoding.out->n_tokens, 400);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(long_ones[i].out->n_tokens, 60);
        assert_true(long_ones[i].out->n_spans >= 2);
        job_fini(&long_ones[i]);
    }
    assert_true(stats_of(&b).n_recomputed_tokens > 900);
    job_fini(&decoding);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finish_is_a_run_without_any_update),
        cmocka_unit_test(test_a_queued_finish_holds_nothing),
        cmocka_unit_test(test_finish_begins_with_its_prompt),
        cmocka_unit_test(test_updates_wait_for_room_and_not_for_finish),
        cmocka_unit_test(test_cancel_and_stop_let_the_version_go),
        cmocka_unit_test(test_a_rename_is_no_update),
        cmocka_unit_test(test_recompute_is_a_fresh_request),
        cmocka_unit_test(test_recompute_begins_again_within_a_prompt),
        cmocka_unit_test(test_recompute_is_not_starved_by_commits),
        cmocka_unit_test(test_frozen_recompute_holds_nothing),
        cmocka_unit_test(test_recompute_does_not_stop_decoding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
