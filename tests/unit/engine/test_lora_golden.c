/* The embedded engine with adapters, over the fixture model: what peft computed in float32, the
 * same bits in every company, and what becomes of revisions that requests still use. */
#include "tests/unit/engine/golden_case.h"
#include "tests/unit/engine/lora_fixture.h"

enum { CASES_MAX = 8 };

static const char *const kinds[] = {"shout", "rslora"};
enum { N_KINDS = 2 };

/* ---- golden ---- */

static json_t *golden_of(const char *kind)
{
    char path[512];
    json_t *golden;

    (void)snprintf(path, sizeof path, MODEL_DIR "/adapters/%s/golden.json", kind);
    golden = json_load_file(path, 0, NULL);
    assert_non_null(golden);
    return golden;
}

/* Every case of both, all in one batch, beside the base model's own. */
static void test_golden(void **state)
{
    json_t *base = json_load_file(MODEL_DIR "/golden.json", 0, NULL);
    json_t *golden[N_KINDS + 1] = {
        golden_of("shout"), golden_of("rslora"),
        json_incref(json_object_get(json_object_get(base, "checkpoints"), "step-01500"))};
    struct job jobs[N_KINDS + 1][CASES_MAX] = {0};
    struct adapter_use *uses[N_KINDS + 1] = {0};
    struct adapters *set = registry(1 << 30);
    struct served s;

    (void)state;
    serve_adapters(&s, 16, 48, RANK_MAX); /* prompts come in pieces */
    (void)push(&s, "", "step-01500");
    for (int k = 0; k < N_KINDS; k++) {
        assert_int_equal(load(set, &s.cfg, kinds[k], kinds[k]).revision, 1);
        uses[k] = use_of(set, kinds[k]);
    }
    for (size_t i = 0; i < 4; i++)
        for (int k = 0; k <= N_KINDS; k++) {
            jobs[k][i].adapter = uses[k];
            golden_submit(&s, &jobs[k][i], json_array_get(json_object_get(golden[k], "cases"), i));
        }
    for (int k = 0; k <= N_KINDS; k++) {
        adapter_use_unref(uses[k]);
        for (size_t i = 0; i < 4; i++) {
            job_wait(&jobs[k][i]);
            golden_check(jobs[k][i].out, json_array_get(json_object_get(golden[k], "cases"), i));
            assert_string_equal(jobs[k][i].out->adapter, k < N_KINDS ? kinds[k] : "");
            assert_int_equal(jobs[k][i].out->adapter_revision, k < N_KINDS);
            job_fini(&jobs[k][i]);
        }
        json_decref(golden[k]);
    }
    close_served(&s);
    close_registry(set);
    json_decref(base);
}

/* ---- company ---- */

enum { N_MIX = 18 };

static void submit_mixed(struct served *s, struct job *j, uint32_t i)
{
    uint32_t prompt[120], n_prompt = 3 + i * 5;
    struct gen_params p;
    struct err e = {0};

    for (uint32_t k = 0; k < n_prompt; k++)
        prompt[k] = (k * k * 31 + i / 3 * 17 + 5) % 1000;
    gen_params_init(&p);
    p.temperature = i % 4 == 0 ? 0 : 0.9F;
    p.seed = i;
    p.max_tokens = 6 + i;
    p.logprobs = 2;
    p.prompt_logprobs = i % 2 ? 1 : -1;
    p.ignore_eos = true;
    if (job_submit(s->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("%s", e.msg);
}

/* Base, shout and rslora in one batch give the bits that each gives alone. */
static void test_company_changes_no_bit(void **state)
{
    struct job alone[N_MIX] = {0}, batch[N_MIX] = {0};
    struct adapters *set = registry(1 << 30);
    struct adapter_use *uses[3] = {0};
    struct served s;
    uint32_t n_other = 0;

    (void)state;
    serve_adapters(&s, 1, 256, RANK_MAX);
    (void)push(&s, "", "step-01500");
    for (int k = 0; k < N_KINDS; k++) {
        (void)load(set, &s.cfg, kinds[k], kinds[k]);
        uses[k] = use_of(set, kinds[k]);
    }
    for (uint32_t i = 0; i < N_MIX; i++) {
        alone[i].adapter = batch[i].adapter = uses[i % 3];
        submit_mixed(&s, &alone[i], i);
        job_wait(&alone[i]);
    }
    close_served(&s);
    serve_adapters(&s, 9, 20, RANK_MAX);
    (void)push(&s, "", "step-01500");
    for (uint32_t i = 0; i < N_MIX; i++)
        submit_mixed(&s, &batch[i], i);
    for (uint32_t i = 0; i < N_MIX; i++) {
        job_wait(&batch[i]);
        assert_int_equal(alone[i].out->n_tokens, batch[i].out->n_tokens);
        same_tokens(alone[i].out->tokens, batch[i].out->tokens, alone[i].out->n_tokens);
        same_tokens(alone[i].out->prompt, batch[i].out->prompt, alone[i].out->n_prompt);
        n_other += i % 3 != 0 && alone[i].out->tokens[0].id != alone[i - i % 3].out->tokens[0].id;
    }
    assert_true(n_other > 0); /* adapters do something at all */
    for (uint32_t i = 0; i < N_MIX; i++) {
        job_fini(&alone[i]);
        job_fini(&batch[i]);
    }
    for (int k = 0; k < N_KINDS; k++)
        adapter_use_unref(uses[k]);
    close_served(&s);
    close_registry(set);
}

/* ---- revisions ---- */

/* Holds a generation at its first token until the test says so. */
struct gate {
    bool reached, open;
};

static void hold_at_first(struct job *j, const struct gen_output *out, void *arg)
{
    struct gate *g = arg;

    (void)j;
    (void)out;
    pthread_mutex_lock(&jobs_lock);
    g->reached = true;
    pthread_cond_broadcast(&jobs_changed);
    while (!g->open)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static void submit_held(struct served *s, struct adapters *set, struct job *j, struct gate *g,
                        const json_t *c)
{
    *j = (struct job){.adapter = use_of(set, "x"), .on_tokens = hold_at_first, .arg = g};
    golden_submit(s, j, c);
    adapter_use_unref(j->adapter);
    j->adapter = NULL;
    pthread_mutex_lock(&jobs_lock);
    while (!g->reached)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

/* A generation ends on the revision that it began with, although another took its place and that
 * was unloaded; the engine lets go of it once. */
static void test_revision_is_kept_to_the_end(void **state)
{
    json_t *golden = golden_of("shout");
    const json_t *c = json_array_get(json_object_get(golden, "cases"), 0);
    struct adapters *set = registry(1 << 30);
    struct adapters_unloaded unloaded;
    struct adapters_gauges g;
    struct gate gate = {0};
    struct err e = {0};
    struct served s;
    struct job j;

    (void)state;
    serve_adapters(&s, 4, 64, RANK_MAX);
    (void)push(&s, "", "step-01500");
    (void)load(set, &s.cfg, "x", "shout");
    submit_held(&s, set, &j, &gate, c);
    assert_int_equal(load(set, &s.cfg, "x", "rslora").revision, 2);
    assert_int_equal(adapters_unload(set, "x", &unloaded, &e), 0);
    assert_int_equal(unloaded.n_users, 1);
    adapters_gauges(set, &g);
    assert_true(g.nbytes > 0 && g.n_older == 1);
    pthread_mutex_lock(&jobs_lock);
    gate.open = true;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
    job_wait(&j);
    golden_check(j.out, c);
    assert_string_equal(j.out->adapter, "x");
    assert_int_equal(j.out->adapter_revision, 1);
    job_fini(&j);
    close_served(&s);
    adapters_gauges(set, &g);
    assert_int_equal(g.nbytes, 0);
    close_registry(set);
    json_decref(golden);
}

/* The adapter goes on over new base weights, and the KV of the old ones stays. */
static void test_adapters_outlive_an_update(void **state)
{
    json_t *golden = golden_of("rslora");
    const json_t *cases = json_object_get(golden, "cases");
    struct adapters *set = registry(1 << 30);
    struct job before = {0}, after = {0};
    struct served s;

    (void)state;
    serve_adapters(&s, 4, 64, RANK_MAX);
    (void)push(&s, "", "step-00000");
    (void)load(set, &s.cfg, "x", "rslora");
    before.adapter = after.adapter = use_of(set, "x");
    golden_submit(&s, &before, json_array_get(cases, 0));
    job_wait(&before);
    (void)push(&s, "", "step-01500");
    golden_submit(&s, &after, json_array_get(cases, 0));
    job_wait(&after);
    golden_check(after.out, json_array_get(cases, 0));
    assert_int_equal(before.out->adapter_revision, after.out->adapter_revision);
    assert_true(fabs((double)before.out->tokens[0].logprob - (double)after.out->tokens[0].logprob) >
                GOLDEN_TOLERANCE);
    adapter_use_unref(after.adapter);
    job_fini(&before);
    job_fini(&after);
    close_served(&s);
    close_registry(set);
    json_decref(golden);
}

/* One prompt after the other, with adapters that come and go under two names: what is found is
 * always of the adapter's own revision. */
static void test_kv_is_of_one_revision(void **state)
{
    static const struct {
        const char *name, *load; /* load: before it, under that name; "": unload it first */
        const char *kind;
        bool found;
    } steps[] = {
        {"x", "shout", "shout", false},   {"x", NULL, "shout", true},
        {"x", "rslora", "rslora", false}, {"x", NULL, "rslora", true},
        {"x", "shout", "shout", false},   {"y", "shout", "shout", false},
        {"x", "", "rslora", false},       {"y", NULL, "shout", true},
        {"y", "rslora", "rslora", false}, {"x", NULL, "rslora", true},
    };
    struct adapters *set = registry(1 << 30);
    struct adapters_unloaded unloaded;
    struct err e = {0};
    struct served s;

    (void)state;
    serve_adapters(&s, 4, 64, RANK_MAX);
    (void)push(&s, "", "step-01500");
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        json_t *golden = golden_of(steps[i].kind);
        json_t *c = json_array_get(json_object_get(golden, "cases"), 0);
        struct job j = {0};

        (void)json_object_del(c, "prompt_logprobs");
        if (steps[i].load != NULL && steps[i].load[0] == '\0')
            assert_int_equal(adapters_unload(set, steps[i].name, &unloaded, &e), 0);
        if (steps[i].load != NULL)
            (void)load(set, &s.cfg, steps[i].name, steps[i].kind);
        j.adapter = use_of(set, steps[i].name);
        golden_submit(&s, &j, c);
        adapter_use_unref(j.adapter);
        job_wait(&j);
        golden_check(j.out, c);
        assert_int_equal(j.out->n_cached > 0, steps[i].found);
        job_fini(&j);
        json_decref(golden);
    }
    close_served(&s);
    close_registry(set);
}

/* A request that the engine refuses keeps its hold until it is freed, and then lets go. */
static void test_refused_request_lets_go(void **state)
{
    struct adapters *set = registry(1 << 30);
    uint32_t bad = UINT32_MAX;
    struct gen_params p;
    struct err e = {0};
    struct job j = {0};
    struct served s;

    (void)state;
    serve_adapters(&s, 4, 64, RANK_MAX);
    (void)push(&s, "", "step-01500");
    (void)load(set, &s.cfg, "x", "shout");
    j.adapter = use_of(set, "x");
    gen_params_init(&p);
    p.logprobs = 0;
    assert_int_equal(job_submit(s.en, &j, &bad, 1, &p, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    adapter_use_unref(j.adapter);
    close_served(&s);
    close_registry(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_company_changes_no_bit),
        cmocka_unit_test(test_revision_is_kept_to_the_end),
        cmocka_unit_test(test_adapters_outlive_an_update),
        cmocka_unit_test(test_kv_is_of_one_revision),
        cmocka_unit_test(test_refused_request_lets_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
