/* The embedded engine as it ships: the fixture model, weights from files through update sessions.
 */
#include "tests/unit/engine/golden_case.h"

enum { CASES_MAX = 16 };

/* ---- golden ---- */

static void test_golden_at_every_checkpoint(void **state)
{
    json_t *golden = json_load_file(MODEL_DIR "/golden.json", 0, NULL), *checkpoint;
    struct served s;
    const char *step;
    uint32_t n_checkpoints = 0;

    (void)state;
    assert_non_null(golden);
    serve(&s, 8, 24); /* prompts come in pieces, beside others that decode */
    json_object_foreach(json_object_get(golden, "checkpoints"), step, checkpoint)
    {
        const json_t *cases = json_object_get(checkpoint, "cases");
        struct job jobs[CASES_MAX] = {0};
        size_t n = json_array_size(cases);
        uint64_t serial = push(&s, "", step);

        assert_in_range(n, 1, CASES_MAX);
        for (size_t i = 0; i < n; i++)
            golden_submit(&s, &jobs[i], json_array_get(cases, i));
        for (size_t i = 0; i < n; i++) {
            job_wait(&jobs[i]);
            golden_check(jobs[i].out, json_array_get(cases, i));
            assert_int_equal(jobs[i].out->n_spans, 1);
            assert_int_equal(jobs[i].out->spans[0].serial, serial);
            assert_string_equal(jobs[i].out->spans[0].label, step);
            job_fini(&jobs[i]);
        }
        n_checkpoints++;
    }
    assert_int_equal(n_checkpoints, 3);
    close_served(&s);
    json_decref(golden);
}

/* ---- batching ---- */

enum { N_MIX = 16 };

static void submit_mixed(struct served *s, struct job *j, uint32_t i)
{
    uint32_t prompt[120], n_prompt = 3 + i * 7;
    struct gen_params p;
    struct err e = {0};

    for (uint32_t k = 0; k < n_prompt; k++)
        prompt[k] = (k * k * 31 + i * 17 + 5) % 1000;
    gen_params_init(&p);
    p.temperature = i % 4 == 0 ? 0 : 0.9F;
    p.top_p = i % 3 == 0 ? 0.8F : 1;
    p.top_k = i % 5 == 0 ? 40 : 0;
    p.seed = i * 1000;
    p.max_tokens = 10 + i;
    p.logprobs = (int32_t)(i % 4);
    p.prompt_logprobs = i % 2 ? 1 : -1;
    if (job_submit(s->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("%s", e.msg);
}

struct arrivals {
    struct served *s;
    struct job *jobs;
    uint32_t first;
};

static void *arrive(void *arg)
{
    struct arrivals *a = arg;

    for (uint32_t i = a->first; i < N_MIX; i += 2)
        submit_mixed(a->s, &a->jobs[i], i);
    return NULL;
}

static void test_batching_changes_no_bit(void **state)
{
    struct job alone[N_MIX] = {0}, batch[N_MIX] = {0};
    struct served s;
    struct arrivals a[2] = {{&s, batch, 0}, {&s, batch, 1}};
    pthread_t threads[2];

    (void)state;
    serve(&s, 1, 256);
    (void)push(&s, "", "step-01500");
    for (uint32_t i = 0; i < N_MIX; i++) {
        submit_mixed(&s, &alone[i], i);
        job_wait(&alone[i]);
    }
    close_served(&s);
    serve(&s, 9, 20);
    (void)push(&s, "", "step-01500");
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, arrive, &a[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < N_MIX; i++) {
        job_wait(&batch[i]);
        assert_int_equal(alone[i].out->n_tokens, batch[i].out->n_tokens);
        assert_int_equal(alone[i].finish, batch[i].finish);
        assert_int_equal(alone[i].out->n_prompt, batch[i].out->n_prompt);
        same_tokens(alone[i].out->tokens, batch[i].out->tokens, alone[i].out->n_tokens);
        same_tokens(alone[i].out->prompt, batch[i].out->prompt, alone[i].out->n_prompt);
        job_fini(&alone[i]);
        job_fini(&batch[i]);
    }
    close_served(&s);
}

/* ---- updates ---- */

/* Tells when a sequence has `want` tokens, and keeps it from ending before the test says so. */
struct reached {
    uint32_t want, hold;
    bool yes, go_on;
};

static void note_reached(struct job *j, const struct gen_output *out, void *arg)
{
    struct reached *r = arg;

    (void)j;
    if (out->n_tokens < r->want)
        return;
    pthread_mutex_lock(&jobs_lock);
    r->yes = true;
    pthread_cond_broadcast(&jobs_changed);
    while (out->n_tokens == r->hold && !r->go_on)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static void let_go(struct reached *r)
{
    pthread_mutex_lock(&jobs_lock);
    r->go_on = true;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
}

static void wait_reached(struct reached *r)
{
    pthread_mutex_lock(&jobs_lock);
    while (!r->yes)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static void submit_long(struct served *s, struct job *j, uint32_t max_tokens)
{
    static const uint32_t prompt[] = {40, 77, 258, 803, 264, 77, 290}; /* In the beginning */
    struct gen_params p;
    struct err e = {0};

    gen_params_init(&p);
    p.logprobs = 0;
    p.temperature = 0;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    if (job_submit(s->en, j, prompt, 7, &p, &e) != 0)
        fail_msg("%s", e.msg);
}

static void check_spans(const struct gen_output *out, const char *const *labels, uint32_t n)
{
    assert_int_equal(out->n_spans, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(out->spans[i].start, i == 0 ? 0 : out->spans[i - 1].end);
        assert_true(out->spans[i].end > out->spans[i].start);
        assert_string_equal(out->spans[i].label, labels[i]);
    }
    assert_int_equal(out->spans[n - 1].end, out->n_tokens);
}

/* The first span's tokens are those of a run that saw no update. */
static void test_update_while_running(void **state)
{
    static const char *const labels[] = {"step-00000", "step-01500"};
    struct reached reached = {.want = 5, .hold = 890};
    struct job undisturbed = {0}, j = {.on_tokens = note_reached, .arg = &reached};
    struct served s;
    uint64_t serial;

    (void)state;
    serve(&s, 4, 32);
    (void)push(&s, "", "step-00000");
    submit_long(&s, &undisturbed, 900);
    job_wait(&undisturbed);
    submit_long(&s, &j, 900);
    wait_reached(&reached);
    serial = push(&s, "", "step-01500");
    let_go(&reached);
    job_wait(&j);
    check_spans(j.out, labels, 2);
    assert_true(j.out->spans[0].end >= 5);
    assert_int_equal(j.out->spans[1].serial, serial);
    same_tokens(undisturbed.out->tokens, j.out->tokens, j.out->spans[0].end);
    assert_true(undisturbed.out->tokens[899].logprob != j.out->tokens[899].logprob);
    assert_true(j.out->longest_gap_us > 0);
    job_fini(&undisturbed);
    job_fini(&j);
    close_served(&s);
}

/* ---- the rest of the way ---- */

static void test_stop_string_of_real_text(void **state)
{
    char stop[] = "ccept";
    struct gen_params p;
    struct job j = {0};
    struct buf text = {0};
    struct served s;
    struct err e = {0};
    uint32_t prompt[] = {40, 77, 258, 803, 264, 77, 290}, *ids;

    (void)state;
    serve(&s, 4, 32);
    (void)push(&s, "", "step-01500");
    gen_params_init(&p);
    p.logprobs = 0;
    p.temperature = 0;
    p.max_tokens = 32;
    p.n_stops = 1;
    p.stops[0] = stop;
    assert_int_equal(job_submit(s.en, &j, prompt, 7, &p, &e), 0);
    job_wait(&j);
    assert_int_equal(j.finish, GEN_STOP);
    assert_string_equal(j.out->stop_text, "ccept");
    ids = malloc(j.out->n_tokens * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < j.out->n_tokens; i++)
        ids[i] = j.out->tokens[i].id;
    assert_int_equal(tokenizer_decode(s.tokenizer, ids, j.out->n_tokens, true, &text, &e), 0);
    text.data[text.len - j.out->stop_text_cut] = '\0';
    assert_string_equal(text.data, " time, that I should be a");
    buf_fini(&text);
    free(ids);
    job_fini(&j);
    close_served(&s);
}

static void test_info_is_the_models(void **state)
{
    struct engine_info info;
    struct served s;

    (void)state;
    serve(&s, 4, 32);
    s.en->ops->info(s.en, &info);
    assert_int_equal(info.vocab_size, 1024);
    assert_int_equal(info.max_model_len, 1024);
    assert_string_equal(info.model_path, MODEL_DIR);
    close_served(&s);
}

static void test_dense_model_has_no_routes(void **state)
{
    struct job j = {0};
    struct engine_info info;
    struct gen_params p;
    struct served s;
    struct err e = {0};
    uint32_t prompt = 5;

    (void)state;
    serve(&s, 4, 32);
    (void)push(&s, "", "step-00000");
    s.en->ops->info(s.en, &info);
    assert_int_equal(info.n_experts + info.n_route_layers + info.n_routes_per_token, 0);
    gen_params_init(&p);
    p.routes = true;
    assert_int_equal(job_submit(s.en, &j, &prompt, 1, &p, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/return_routed_experts");
    assert_non_null(strstr(e.msg, "no experts"));
    close_served(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_at_every_checkpoint),
        cmocka_unit_test(test_batching_changes_no_bit),
        cmocka_unit_test(test_update_while_running),
        cmocka_unit_test(test_stop_string_of_real_text),
        cmocka_unit_test(test_info_is_the_models),
        cmocka_unit_test(test_dense_model_has_no_routes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
