/* The routes of a generation: which row is recorded, by which weights, and which are kept, over a
 * model that writes into each row what computed it. */
#include "tests/unit/engine/engine_bench.h"

enum { N_PROMPT = 12, N_TOKENS = 40, AT = 10, ROWS_MAX = N_PROMPT + N_TOKENS };

/* What happens when a job has AT tokens; `kept` is what was recorded until then. */
struct at {
    struct bench *b;
    void (*happen)(struct bench *b);
    uint32_t n_kept;
    uint16_t kept[ROWS_MAX][FAKE_ROUTES];
};

static void happen_at(struct job *j, const struct gen_output *out, void *arg)
{
    struct at *at = arg;

    (void)j;
    if (out->n_tokens != AT)
        return;
    at->n_kept = out->n_routed;
    memcpy(at->kept, out->routes, out->n_routed * sizeof at->kept[0]);
    at->happen(at->b);
}

static void forget(struct bench *b)
{
    (void)b->en->ops->kv_forget(b->en, true);
}

static void submit_routed(struct bench *b, struct job *j, uint32_t n_prompt, uint32_t n_tokens)
{
    struct gen_params p;
    struct err e = {0};
    uint32_t prompt[512];

    bench_prompt(prompt, n_prompt);
    gen_params_init(&p);
    p.temperature = 0;
    p.max_tokens = n_tokens;
    p.ignore_eos = true;
    p.routes = true;
    if (job_submit(b->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("refused: %s", e.msg);
}

static const uint16_t *row_of(const struct gen_output *out, uint32_t i)
{
    return out->routes + (size_t)i * FAKE_ROUTES;
}

static uint64_t serial_of_token(const struct gen_output *out, uint32_t i)
{
    for (uint32_t k = 0; k < out->n_spans; k++)
        if (i >= out->spans[k].start && i < out->spans[k].end)
            return out->spans[k].serial;
    fail_msg("token %u has no version", i);
    return 0;
}

/* Every row is of its position and token, and of the version that made the next token. */
static void check_rows(const struct gen_output *out, uint32_t n_prompt, uint64_t prompt_serial)
{
    uint32_t prompt[512];

    bench_prompt(prompt, n_prompt);
    assert_non_null(out->routes);
    assert_int_equal(out->n_route_layers * out->n_routes_per_token, FAKE_ROUTES);
    assert_int_equal(out->n_routed, n_prompt + out->n_tokens - 1);
    for (uint32_t i = 0; i < out->n_routed; i++) {
        const uint16_t *row = row_of(out, i);
        bool made = i + 1 >= n_prompt;

        assert_int_equal(row[1], i);
        assert_int_equal(row[2], i < n_prompt ? prompt[i] : out->tokens[i - n_prompt].id);
        assert_int_equal(row[0], made ? serial_of_token(out, i + 1 - n_prompt) : prompt_serial);
        if (i >= n_prompt)
            assert_true(row[3] > row_of(out, i - 1)[3]); /* of the step that made the token */
    }
}

static void test_each_position_has_its_row(void **state)
{
    struct job alone = {0}, samples[3] = {{0}}, plain = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 4, 5, 40); /* prompts in pieces */
    submit_routed(&b, &alone, 100, N_TOKENS);
    job_wait(&alone);
    check_rows(alone.out, 100, 1);
    submit(&b, &plain, N_PROMPT, N_TOKENS);
    for (int i = 0; i < 3; i++) /* of one prompt */
        submit_routed(&b, &samples[i], N_PROMPT, N_TOKENS);
    for (int i = 0; i < 3; i++) {
        job_wait(&samples[i]);
        check_rows(samples[i].out, N_PROMPT, 1);
        job_fini(&samples[i]);
    }
    job_wait(&plain);
    assert_null(plain.out->routes);
    assert_int_equal(plain.out->n_routed, 0);
    job_fini(&plain);
    job_fini(&alone);
    bench_fini(&b);
}

static void test_one_token_has_the_rows_of_the_prompt(void **state)
{
    struct job j = {0}, one = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 5, 20);
    submit_routed(&b, &j, N_PROMPT, 1);
    submit_routed(&b, &one, 1, 1);
    job_wait(&j);
    job_wait(&one);
    check_rows(j.out, N_PROMPT, 1);
    check_rows(one.out, 1, 1);
    job_fini(&j);
    job_fini(&one);
    bench_fini(&b);
}

/* Runs a job to which `happen` happens in the middle; rows recorded before are not changed. */
static void run_disturbed(enum gen_on_update on_update, void (*happen)(struct bench *b),
                          uint32_t n_spans)
{
    struct at at = {.happen = happen};
    struct job j = {.on_update = on_update, .on_tokens = happen_at, .arg = &at};
    struct bench b;

    bench_init(&b, 2, 5, 20); /* computed again in pieces */
    at.b = &b;
    submit_routed(&b, &j, N_PROMPT, N_TOKENS);
    job_wait(&j);
    assert_int_equal(j.out->n_tokens, N_TOKENS);
    assert_int_equal(j.out->n_spans, n_spans);
    check_rows(j.out, N_PROMPT, 1);
    assert_int_equal(at.n_kept, N_PROMPT + AT - 1);
    assert_memory_equal(at.kept, j.out->routes, at.n_kept * sizeof at.kept[0]);
    if (on_update == GEN_ON_UPDATE_RECOMPUTE || happen == forget)
        assert_int_equal(stats_of(&b).n_recomputed_tokens, N_PROMPT + AT - 1);
    job_fini(&j);
    bench_fini(&b);
}

static void test_rows_keep_what_made_the_token(void **state)
{
    (void)state;
    run_disturbed(GEN_ON_UPDATE_CONTINUE, commit, 2);
    run_disturbed(GEN_ON_UPDATE_RECOMPUTE, commit, 2);
    run_disturbed(GEN_ON_UPDATE_FINISH, commit, 1);
    run_disturbed(GEN_ON_UPDATE_CONTINUE, forget, 1);
}

/* Holds the engine with the job in the middle of its output. */
static void shut(struct bench *b)
{
    (void)b;
    gate_shut();
}

static bool release_in_the_middle(struct bench *b)
{
    struct at at = {.happen = shut, .b = b};
    struct job j = {.on_tokens = happen_at, .arg = &at};
    uint64_t nbytes = 0, n_before = stats_of(b).n_recomputed_tokens;
    struct err e = {0};

    submit_routed(b, &j, N_PROMPT, 400);
    gate_wait_held();
    gate_open();
    assert_int_equal(b->en->ops->kv_release(b->en, CLOCK_NEVER, &nbytes, &e), 0);
    assert_int_equal(b->en->ops->kv_restore(b->en, CLOCK_NEVER, &e), 0);
    job_wait(&j);
    fake_on_step = NULL;
    check_rows(j.out, N_PROMPT, 1);
    assert_memory_equal(at.kept, j.out->routes, at.n_kept * sizeof at.kept[0]);
    job_fini(&j);
    return stats_of(b).n_recomputed_tokens > n_before;
}

static void test_rows_outlive_the_kv_cache(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 2, 5, 20);
    while (!release_in_the_middle(&b)) /* the job may end before the release begins */
        ;
    bench_fini(&b);
}

/* No token was made of what was computed first: the rows are those of the weights that make it. */
static void test_a_prompt_that_begins_again_has_new_rows(void **state)
{
    struct job again = {.on_update = GEN_ON_UPDATE_RECOMPUTE}, mixed = {0};
    struct bench b;

    (void)state;
    bench_init(&b, 2, 8, 20);
    gate_shut();
    submit_routed(&b, &again, 100, 10);
    gate_wait_held();
    commit(&b);
    gate_open();
    job_wait(&again);
    check_rows(again.out, 100, 2);
    gate_shut();
    submit_routed(&b, &mixed, 100, 10);
    gate_wait_held();
    commit(&b);
    gate_open();
    job_wait(&mixed);
    assert_int_equal(mixed.out->n_routed, 109);
    for (uint32_t i = 0; i < 99; i++) /* `continue`: the first step is of the old weights */
        assert_int_equal(row_of(mixed.out, i)[0], i < 8 ? 2 : 3);
    job_fini(&again);
    job_fini(&mixed);
    bench_fini(&b);
}

static void test_an_early_end_has_what_was_computed(void **state)
{
    struct job cancelled = {0}, failed = {0};
    uint32_t poisoned[] = {1, 2, FAKE_POISON};
    struct gen_params p;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_init(&b, 2, 8, 20);
    gate_shut();
    submit_routed(&b, &cancelled, 100, 10);
    gate_wait_held();
    b.en->ops->cancel(b.en, cancelled.id);
    gate_open();
    job_wait(&cancelled);
    assert_int_equal(cancelled.finish, GEN_ABORT);
    assert_int_equal(cancelled.out->n_tokens, 0);
    assert_in_range(cancelled.out->n_routed, 1, 99);
    for (uint32_t i = 0; i < cancelled.out->n_routed; i++)
        assert_int_equal(row_of(cancelled.out, i)[1], i);
    gen_params_init(&p);
    p.routes = true;
    assert_int_equal(job_submit(b.en, &failed, poisoned, 3, &p, &e), 0);
    job_wait(&failed);
    assert_int_equal(failed.finish, GEN_ERROR);
    assert_int_equal(failed.out->n_routed, 3);
    job_fini(&cancelled);
    job_fini(&failed);
    bench_fini(&b);
}

static void test_info_says_which_routes_there_are(void **state)
{
    struct engine_info info;
    struct bench b;

    (void)state;
    bench_init(&b, 2, 8, 20);
    b.en->ops->info(b.en, &info);
    assert_int_equal(info.n_experts, fake_config.experts.n);
    assert_int_equal(info.n_layers, 1);
    assert_int_equal(info.n_route_layers, 1);
    assert_int_equal(info.route_layers[0], 0);
    assert_int_equal(info.n_routes_per_token, FAKE_ROUTES);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_position_has_its_row),
        cmocka_unit_test(test_one_token_has_the_rows_of_the_prompt),
        cmocka_unit_test(test_rows_keep_what_made_the_token),
        cmocka_unit_test(test_rows_outlive_the_kv_cache),
        cmocka_unit_test(test_a_prompt_that_begins_again_has_new_rows),
        cmocka_unit_test(test_an_early_end_has_what_was_computed),
        cmocka_unit_test(test_info_says_which_routes_there_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
