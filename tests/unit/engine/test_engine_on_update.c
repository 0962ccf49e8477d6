/* The modes with the real model: the same bits as runs that saw no update. And the engine's thread,
 * which allocates nothing and frees nothing, whatever is asked of it and committed meanwhile. */
#include "tests/unit/engine/lora_fixture.h"

#include <stdatomic.h>

/* ---- counting ---- */

/* The engine's thread, from its first token on. Volatile: a compiler knows that realloc reads no
 * static of ours. */
static _Thread_local volatile bool counting;
static atomic_uint n_allocations, n_frees;

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void __real_free(void *p);
void __wrap_free(void *p);

static void count(atomic_uint *n)
{
    if (counting)
        atomic_fetch_add(n, 1);
}

void *__wrap_malloc(size_t n)
{
    count(&n_allocations);
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count(&n_allocations);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    count(&n_allocations);
    return __real_realloc(p, n);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    count(&n_allocations);
    return __real_posix_memalign(p, align, n);
}

void __wrap_free(void *p)
{
    count(&n_frees);
    __real_free(p);
}

static void begin_counting(struct job *j, const struct gen_output *out, void *arg)
{
    (void)j;
    (void)out;
    (void)arg;
    counting = true;
}

/* ---- requests ---- */

enum { N_ASKED = 36 };

/* Everything that a token may cost: stop strings that nearly come, penalties, logprobs, bad words,
 * each mode. */
static void ask(struct served *s, struct job *j, uint32_t i)
{
    static char never[] = "the Lord never said this", half[] = "beginning of nothing";
    uint32_t prompt[60], n_prompt = 3 + i * 11 % 50, word[] = {5, i % 1000};
    struct gen_params p;
    struct err e = {0};

    for (uint32_t k = 0; k < n_prompt; k++)
        prompt[k] = (k * k * 31 + i * 17 + 5) % 1000;
    gen_params_init(&p);
    p.temperature = i % 3 == 0 ? 0 : 0.9F;
    p.top_p = i % 4 == 0 ? 0.8F : 1;
    p.top_k = i % 5 == 0 ? 40 : 0;
    p.min_p = i % 7 == 0 ? 0.01F : 0;
    p.seed = i * 1000;
    p.max_tokens = 30 + i % 40;
    p.min_tokens = i % 20;
    p.ignore_eos = true;
    p.logprobs = (int32_t)(i % 6) - 1;
    p.prompt_logprobs = i % 4 == 1 ? 2 : -1;
    p.repetition_penalty = i % 2 ? 1.1F : 1;
    p.frequency_penalty = i % 3 == 1 ? 0.2F : 0;
    p.presence_penalty = i % 5 == 1 ? 0.2F : 0;
    p.n_stops = i % 3;
    p.stops[0] = never;
    p.stops[1] = half;
    assert_int_equal(logits_processor_new(&p.logits_processor, &e), 0);
    assert_true(logits_processor_add_bias(p.logits_processor, i, 0.5) &&
                logits_processor_forbid(p.logits_processor, word, 2));
    j->on_update = (enum gen_on_update)(i / 2 % 3);
    if (job_submit(s->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("%s", e.msg);
}

/* Every other one uses the adapter, each a revision of its own, which nobody else keeps alive. */
static void ask_adapted(struct served *s, struct adapters *set, struct job *j, uint32_t i)
{
    if (i % 2 == 0) {
        (void)load(set, &s->cfg, "x", i % 4 == 0 ? "rslora" : "shout");
        j->adapter = use_of(set, "x");
    }
    ask(s, j, i);
    adapter_use_unref(j->adapter);
    j->adapter = NULL;
}

static void test_the_engines_thread_allocates_nothing(void **state)
{
    static const char *const steps[] = {"step-00000", "step-00100", "step-01500"};
    struct job first = {.on_tokens = begin_counting}, jobs[N_ASKED] = {{0}};
    uint32_t n_spans[3] = {0}, n_tokens = 0, unheard = 0;
    struct adapters *set = registry(1 << 30);
    struct engine_stats stats;
    struct served s;

    (void)state;
    serve_adapters(&s, 6, 24, RANK_MAX);
    (void)push(&s, "", steps[0]);
    (void)load(set, &s.cfg, "x", "shout");
    ask(&s, &first, 1);
    job_wait(&first);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        jobs[i].dropped = i % 9 == 8; /* its output is the engine's to free */
        ask_adapted(&s, set, &jobs[i], i);
    }
    s.en->ops->cancel(s.en, jobs[N_ASKED - 1].id);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        (void)push(&s, "", steps[i % 3]);
        job_wait(&jobs[i]);
        assert_true(jobs[i].finish == GEN_LENGTH || jobs[i].finish == GEN_ABORT);
        if (jobs[i].out == NULL)
            unheard++;
        else
            n_spans[jobs[i].on_update] += jobs[i].out->n_spans;
        n_tokens += jobs[i].n_seen;
        job_fini(&jobs[i]);
    }
    engine_stats_get(s.en, &stats);
    job_fini(&first);
    close_served(&s);
    close_registry(set);
    print_message("%u tokens, spans %u %u %u, %llu made again\n", n_tokens, n_spans[0], n_spans[1],
                  n_spans[2], (unsigned long long)stats.n_recomputed_tokens);
    assert_true(n_tokens > 1000 && unheard == 4);
    assert_true(n_spans[GEN_ON_UPDATE_CONTINUE] > 12 && n_spans[GEN_ON_UPDATE_RECOMPUTE] > 12);
    assert_true(stats.n_recomputed_tokens > 0);
    assert_int_equal(atomic_load(&n_allocations), 0);
    assert_int_equal(atomic_load(&n_frees), 0);
}

static void leak_one(struct job *j, const struct gen_output *out, void *arg)
{
    (void)out;
    begin_counting(j, out, arg);
    *(void **)arg = realloc(*(void **)arg, 16);
    counting = false;
}

/* The counter counts. */
static void test_an_allocation_there_is_seen(void **state)
{
    void *leaked = NULL;
    struct job j = {.on_tokens = leak_one, .arg = &leaked};
    struct served s;

    (void)state;
    serve(&s, 6, 24);
    (void)push(&s, "", "step-00000");
    ask(&s, &j, 1);
    job_wait(&j);
    close_served(&s);
    free(leaked);
    assert_int_equal(atomic_load(&n_allocations), j.n_seen);
    job_fini(&j);
    atomic_store(&n_allocations, 0);
}

/* ---- bits ---- */

/* Commits once, between two tokens, from another thread while the engine waits. */
struct moment {
    uint32_t at;
    bool reached, go_on;
};

static void wait_at(struct job *j, const struct gen_output *out, void *arg)
{
    struct moment *m = arg;

    (void)j;
    if (out->n_tokens != m->at)
        return;
    pthread_mutex_lock(&jobs_lock);
    m->reached = true;
    pthread_cond_broadcast(&jobs_changed);
    while (!m->go_on)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static void moment_wait(struct moment *m)
{
    pthread_mutex_lock(&jobs_lock);
    while (!m->reached)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static void moment_pass(struct moment *m)
{
    pthread_mutex_lock(&jobs_lock);
    m->go_on = true;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
}

static const uint32_t in_the_beginning[] = {40, 77, 258, 803, 264, 77, 290};

static void submit_ids(struct served *s, struct job *j, const uint32_t *ids, uint32_t n,
                       uint32_t max_tokens, float temperature)
{
    struct gen_params p;
    struct err e = {0};

    gen_params_init(&p);
    p.temperature = temperature;
    p.seed = 77;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    p.logprobs = 3;
    if (job_submit(s->en, j, ids, n, &p, &e) != 0)
        fail_msg("%s", e.msg);
}

static void spans_are(const struct gen_output *out, uint32_t at, uint64_t first, uint64_t second)
{
    assert_int_equal(out->n_spans, 2);
    assert_int_equal(out->spans[0].serial, first);
    assert_int_equal(out->spans[0].end, at);
    assert_int_equal(out->spans[1].serial, second);
    assert_int_equal(out->spans[1].start, at);
    assert_int_equal(out->spans[1].end, out->n_tokens);
}

static void test_the_modes_to_the_bit(void **state)
{
    struct moment m = {.at = 20};
    struct job before = {0}, finish = {.on_update = GEN_ON_UPDATE_FINISH}, goes_on = {0},
               again = {.on_update = GEN_ON_UPDATE_RECOMPUTE}, fresh = {0};
    uint32_t ids[7 + 20];
    struct served s;

    (void)state;
    serve(&s, 8, 16); /* what is made again takes two steps */
    (void)push(&s, "", "step-00000");
    submit_ids(&s, &before, in_the_beginning, 7, 60, 0.8F);
    job_wait(&before);
    again.on_tokens = wait_at;
    again.arg = &m;
    submit_ids(&s, &again, in_the_beginning, 7, 60, 0);
    submit_ids(&s, &finish, in_the_beginning, 7, 60, 0.8F);
    submit_ids(&s, &goes_on, in_the_beginning, 7, 60, 0);
    moment_wait(&m);
    assert_int_equal(push(&s, "", "step-00100"), 2);
    assert_int_equal(push(&s, "", "step-01500"), 3);
    moment_pass(&m);
    job_wait(&finish);
    job_wait(&again);
    job_wait(&goes_on);
    assert_int_equal(finish.out->n_spans, 1);
    assert_int_equal(finish.out->spans[0].serial, 1);
    same_tokens(finish.out->tokens, before.out->tokens, 60);
    spans_are(again.out, 20, 1, 3);
    memcpy(ids, in_the_beginning, sizeof in_the_beginning);
    for (uint32_t i = 0; i < 20; i++)
        ids[7 + i] = again.out->tokens[i].id;
    submit_ids(&s, &fresh, ids, 27, 40, 0);
    job_wait(&fresh);
    assert_int_equal(fresh.out->spans[0].serial, 3);
    same_tokens(again.out->tokens + 20, fresh.out->tokens, 40);
    assert_int_equal(goes_on.out->n_spans, 2);
    same_tokens(goes_on.out->tokens, again.out->tokens, goes_on.out->spans[0].end);
    assert_true(goes_on.out->tokens[goes_on.out->spans[1].start].logprob !=
                again.out->tokens[20].logprob);
    job_fini(&before);
    job_fini(&finish);
    job_fini(&goes_on);
    job_fini(&again);
    job_fini(&fresh);
    close_served(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_allocation_there_is_seen),
        cmocka_unit_test(test_the_engines_thread_allocates_nothing),
        cmocka_unit_test(test_the_modes_to_the_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
