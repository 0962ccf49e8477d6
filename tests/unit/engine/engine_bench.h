/* A store with one tensor, an engine over the fake model, and a gate in its step. */
#ifndef BATON_TESTS_ENGINE_BENCH_H
#define BATON_TESTS_ENGINE_BENCH_H

#include "tests/unit/engine/engine_jobs.h"
#include "tests/unit/engine/fake_model.h"

#include "base/clock.h"
#include "engine/scheduler/embedded.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

/* Of the stores that bench_init makes. */
static uint32_t bench_versions_max = 8;

/* Of the engines that bench_init makes: the fake model needs none, tokens are chosen on them. */
static uint32_t bench_threads = 1;

static bool bench_no_prefix_cache;

struct bench {
    struct store *store;
    struct engine *en;
    unsigned n_commits;
    float w[FAKE_VOCAB]; /* what the last commit brought */
};

static inline void commit_seed(struct bench *b, uint64_t seed)
{
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        b->w[i] = (float)(fake_mix(seed, i) >> 40) / (float)(1 << 23);
}

/* Label "v1", "v2", ...; new weights each time, of the seed that is their serial. Any thread, one
 * at a time. Returns false when there is no room for one more version. */
static inline bool commit_until(struct bench *b, uint64_t deadline_us)
{
    struct staging_cfg cfg = {0};
    struct store_stats stats;
    struct staging *g;
    struct slab *slab;
    struct err e = {0};
    char label[32];
    int rc;

    if (store_stage(b->store, &cfg, deadline_us, NULL, &g, &e) != 0) {
        assert(e.code == ERR_CONFLICT);
        return false;
    }
    commit_seed(b, ++b->n_commits);
    (void)snprintf(label, sizeof label, "v%u", b->n_commits);
    rc = staging_slab(g, sizeof b->w, &slab, &e);
    assert(rc == 0);
    memcpy(slab->base, b->w, sizeof b->w);
    rc = staging_view(g, 0, 0, slab, slab->addr, &e);
    assert(rc == 0);
    slab_unref(slab);
    rc = store_commit(b->store, g, label, &stats, &e);
    assert(rc == 0 && stats.serial == b->n_commits);
    return true;
}

static inline void commit(struct bench *b)
{
    bool done = commit_until(b, CLOCK_NEVER);

    assert(done);
    (void)done;
}

static inline struct model_spec *model_spec_make(void)
{
    struct tensor_list_builder *builder;
    struct model_spec *m;
    struct tensor_list *tensor_list;
    struct err e = {0};
    uint64_t shape[] = {FAKE_VOCAB};

    assert_int_equal(tensor_list_builder_new(&builder, &e), 0);
    assert_int_equal(tensor_list_builder_add(builder, "w", DTYPE_F32, shape, 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(builder, &tensor_list, &e), 0);
    assert_int_equal(model_spec_new(&m, tensor_list, NULL, 0, &e), 0);
    return m;
}

static inline void bench_init_unsynced(struct bench *b, uint32_t n_running, uint32_t n_rows,
                                       uint32_t n_chunks)
{
    struct store_cfg sc = {.n_versions_max = bench_versions_max, .nbytes_max = UINT64_MAX};
    struct embedded_cfg cfg = {.model_path = "fake",
                               .model = &fake_config,
                               .n_threads = bench_threads,
                               .no_prefix_cache = bench_no_prefix_cache,
                               .n_running_max = n_running,
                               .n_step_tokens_max = n_rows,
                               .kv_nbytes_max = (uint64_t)n_chunks * FAKE_CHUNK_NBYTES};
    struct err e = {0};

    memset(b, 0, sizeof *b);
    sc.model_spec = model_spec_make();
    assert_int_equal(store_new(&b->store, &sc, &e), 0);
    cfg.store = b->store;
    atomic_store(&fake_n_steps, 0);
    assert_int_equal(embedded_new(&b->en, &cfg, &e), 0);
}

static inline void bench_init(struct bench *b, uint32_t n_running, uint32_t n_rows,
                              uint32_t n_chunks)
{
    bench_init_unsynced(b, n_running, n_rows, n_chunks);
    commit(b);
}

static inline void bench_fini(struct bench *b)
{
    b->en->ops->free(b->en);
    store_free(b->store);
    fake_on_step = NULL;
    fake_on_logits = NULL;
}

static inline struct engine_stats stats_of(struct bench *b)
{
    struct engine_stats s;

    engine_stats_get(b->en, &s);
    return s;
}

static inline void bench_prompt(uint32_t *prompt, uint32_t n_prompt)
{
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (i * 7 + n_prompt) % 60;
}

static inline void submit(struct bench *b, struct job *j, uint32_t n_prompt, uint32_t max_tokens)
{
    struct gen_params p;
    struct err e = {0};
    uint32_t prompt[512];

    bench_prompt(prompt, n_prompt);
    gen_params_init(&p);
    p.logprobs = 0;
    p.temperature = 0;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    if (job_submit(b->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("refused: %s", e.msg);
}

/* Holds the engine inside a step until the test lets it go. */
static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut, held;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static inline void gate_step(void *arg, uint32_t n_rows)
{
    (void)arg;
    (void)n_rows;
    pthread_mutex_lock(&gate.lock);
    gate.held = gate.shut;
    pthread_cond_broadcast(&gate.changed);
    while (gate.shut)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.held = false;
    pthread_mutex_unlock(&gate.lock);
}

static inline void gate_shut(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.shut = true;
    pthread_mutex_unlock(&gate.lock);
    fake_on_step = gate_step;
}

static inline void gate_wait_held(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.held)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static inline void gate_open(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.shut = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static inline uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33) % n;
}

/* Turns of the loop happen without a step. */
static inline void wait_heartbeats(struct bench *b, int n)
{
    uint64_t last = stats_of(b).heartbeat_us;

    while (n > 0) {
        uint64_t now = stats_of(b).heartbeat_us;

        n -= now != last;
        last = now;
        (void)usleep(1000);
    }
}

static inline void *sleep_thread(void *arg)
{
    struct bench *b = arg;
    struct store_slept slept;
    struct err e = {0};
    int rc = store_sleep(b->store, 1, CLOCK_NEVER, &slept, &e);

    assert(rc == 0);
    (void)rc;
    return NULL;
}

/* With the engine held inside a step: the sleep closes the store's door and waits for that step,
 * the gate opens, and the engine is frozen before its next. */
static inline void sleep_at_gate(struct bench *b)
{
    struct store_info info = {0};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, sleep_thread, b), 0);
    while (info.state != STORE_ASLEEP) {
        (void)sched_yield();
        store_info(b->store, &info);
    }
    gate_open();
    assert_int_equal(pthread_join(thread, NULL), 0);
}

#endif
