/* The same weights and tokens give the same bits: random models of every architecture and awkward
 * sizes, their sequences in random batches, chunks, thread counts and instruction sets, against
 * each sequence alone, a token at a time, scalar, on one thread. And a seed gives the same tokens
 * under any load.
 *
 * test_reproducible [ROUNDS [SEED]]: more of it, or one run again; the seed is printed. */
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/scheduler/embedded.h"
#include "tests/unit/engine/engine_jobs.h"
#include "tests/unit/engine/kv_taken.h"
#include "text/tokenizer.h"
#include "transport/file.h"
#include "weights/update/update.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/random_model.h"

enum { SEQS_MAX = 5, LEN_MAX = 70, ROWS_MAX = 128, CONTEXT = 128, THREADS_MAX = 4, N_OTHERS = 3 };

static uint32_t n_rounds = 7; /* one of each architecture */
static uint64_t first_seed = 20251121;
static uint64_t draws;

static uint32_t below(uint32_t n)
{
    draws = draws * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(draws >> 33) % n;
}

static uint32_t between(uint32_t least, uint32_t most)
{
    return least + below(most - least + 1);
}

/* ---- the forward pass ---- */

static void random_rope(struct model_config *c)
{
    c->rope_kind = (enum rope_kind)below(ROPE_YARN + 1);
    c->rope_theta = 500.0 + (double)below(1000000);
    c->rope_scaling = (struct rope_scaling){.factor = 1.5 + (double)below(8),
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 2 + (double)below(3),
                                            .original_positions = 16 << below(3),
                                            .beta_fast = 4,
                                            .beta_slow = 1,
                                            .truncate = below(2) == 0,
                                            .rotation = 1.1,
                                            .scores = 1.2};
}

/* Some groups of a random size, of which some are kept. */
static void random_groups(struct model_experts *x)
{
    uint32_t width = between(2, 4);

    x->sigmoid = true;
    x->n_groups = between(1, 4);
    x->n_groups_kept = between(1, x->n_groups);
    x->n = x->n_groups * width;
    x->n_per_token = between(1, x->n_groups_kept * width);
    x->scale = 2.5F;
    x->shared_size = x->intermediate_size * between(1, 2);
}

/* Heads whose values are narrower or wider than their keys, in odd numbers too. */
static void random_latents(struct model_config *c)
{
    c->n_kv_heads = c->n_heads;
    c->latents = (struct model_latents){.kv_rank = between(1, 40), .q_rank = between(0, 1) * 19};
    c->rope_dim = 2 * between(1, 12);
    c->head_dim = c->rope_dim + between(1, 40);
    c->v_head_dim = between(1, 50);
    c->rope_interleave = below(2) == 0;
}

static void random_experts(struct model_config *c)
{
    struct model_experts *x = &c->experts;

    x->n = between(2, 9);
    x->n_per_token = between(1, x->n < 4 ? x->n : 4);
    x->intermediate_size = c->arch == ARCH_MIXTRAL ? c->intermediate_size : between(8, 60);
    x->normalize = c->arch == ARCH_MIXTRAL || below(2) == 0;
    x->n_sparse_layers = c->arch == ARCH_MIXTRAL ? c->n_layers : 1;
    x->sparse_layers[0] = c->arch == ARCH_MIXTRAL ? (UINT64_C(1) << c->n_layers) - 1
                                                  : UINT64_C(1) << (c->n_layers - 1);
    if (c->arch == ARCH_DEEPSEEK_V3)
        random_groups(x);
}

static struct model_config random_config(enum model_arch arch)
{
    static const uint32_t head_dims[] = {8, 10, 16, 22, 32, 50, 64, 128};
    struct model_config c = {.arch = arch,
                             .vocab_size = between(17, 130),
                             .hidden_size = between(8, 100),
                             .intermediate_size = between(8, 130),
                             .n_layers = between(1, 2),
                             .n_kv_heads = between(1, 2),
                             .head_dim = head_dims[below(8)],
                             .max_position_embeddings = CONTEXT,
                             .rms_norm_eps = 1e-5F,
                             .tie_word_embeddings = below(2) == 0,
                             .dtype = DTYPE_BF16};
    bool biased = below(2) == 0;

    c.n_heads = c.n_kv_heads * between(1, c.head_dim > 32 ? 3 : 8);
    c.qk_norm = arch == ARCH_QWEN3 || arch == ARCH_QWEN3_MOE;
    c.v_head_dim = c.rope_dim = c.head_dim;
    c.qkv_bias = arch == ARCH_QWEN2 || (arch != ARCH_MISTRAL && arch != ARCH_MIXTRAL &&
                                        arch != ARCH_DEEPSEEK_V3 && biased);
    c.o_bias = (arch == ARCH_LLAMA || arch == ARCH_QWEN3) && biased;
    c.mlp_bias = arch == ARCH_LLAMA && below(2) == 0;
    if (arch == ARCH_DEEPSEEK_V3)
        random_latents(&c);
    random_rope(&c);
    if (arch == ARCH_QWEN3_MOE || arch == ARCH_MIXTRAL || arch == ARCH_DEEPSEEK_V3)
        random_experts(&c);
    return c;
}

/* Some sequences, and the logits of each position when it is computed alone. */
struct expected {
    struct model_config cfg;
    struct weights w;
    uint32_t n, len[SEQS_MAX], tokens[SEQS_MAX][LEN_MAX];
    float *logits[SEQS_MAX]; /* [len, vocab] */
};

static void expected_init(struct expected *x, enum model_arch arch)
{
    struct model *m;
    struct kv_pool *pool;
    struct kv_seq kv;
    struct err e = {0};

    x->cfg = random_config(arch);
    x->w = weights_new(&x->cfg, draws);
    assert_true(kernels_select(KERNELS_SCALAR));
    assert_int_equal(model_new(&m, &x->cfg, x->w.model_spec, 1, 1, &e), 0);
    assert_int_equal(kv_pool_new(&pool, &x->cfg, 16 << 20, &e), 0);
    x->n = between(1, SEQS_MAX);
    for (uint32_t s = 0; s < x->n; s++) {
        x->len[s] = between(1, LEN_MAX);
        x->logits[s] = malloc(sizeof(float) * x->len[s] * x->cfg.vocab_size);
        assert_true(x->logits[s] != NULL && kv_taken(&kv, pool, x->len[s]));
        for (uint32_t pos = 0; pos < x->len[s]; pos++) {
            x->tokens[s][pos] = below(x->cfg.vocab_size);
            model_step(m, &x->w.version,
                       &(struct model_row){x->tokens[s][pos], pos, &kv, true, NULL, NULL}, 1,
                       x->logits[s] + (size_t)pos * x->cfg.vocab_size);
        }
        kv_release(&kv);
    }
    kv_pool_free(pool);
    model_free(m);
}

static void expected_fini(struct expected *x)
{
    for (uint32_t s = 0; s < x->n; s++)
        free(x->logits[s]);
    weights_free(&x->w);
}

/* A run of the same sequences in another shape. */
struct other {
    const struct expected *x;
    struct model *model;
    struct kv_pool *pool;
    struct kv_seq kv[SEQS_MAX];
    uint32_t done[SEQS_MAX]; /* positions computed */
    float *logits;           /* [ROWS_MAX, vocab] */
    struct model_row rows[ROWS_MAX];
    uint32_t n_rows;
    char what[96]; /* for messages */
};

static const char *select_isa(void)
{
    enum kernels_isa isa;

    do
        isa = (enum kernels_isa)below(KERNELS_ISA_COUNT);
    while (!kernels_select(isa));
    return kernels_current()->name;
}

static void other_init(struct other *o, const struct expected *x)
{
    uint32_t n_threads = between(1, THREADS_MAX);
    const char *isa = select_isa();
    struct err e = {0};

    *o = (struct other){.x = x};
    (void)snprintf(o->what, sizeof o->what, "%s, %u threads, hidden %u, %u/%u heads of %u", isa,
                   n_threads, x->cfg.hidden_size, x->cfg.n_heads, x->cfg.n_kv_heads,
                   x->cfg.head_dim);
    assert_int_equal(model_new(&o->model, &x->cfg, x->w.model_spec, ROWS_MAX, n_threads, &e), 0);
    assert_int_equal(kv_pool_new(&o->pool, &x->cfg, 32 << 20, &e), 0);
    kv_pool_serve(o->pool, 1);
    o->logits = malloc(sizeof(float) * ROWS_MAX * x->cfg.vocab_size);
    assert_non_null(o->logits);
    for (uint32_t i = 0, first = below(x->n); i < x->n; i++) { /* chunks lie in another order */
        uint32_t s = (first + i) % x->n;
        struct kv_prefix none = {.key = {.serial = 1}, .tokens = x->tokens[s]};

        assert_true(kv_taken_with(&o->kv[s], o->pool, x->len[s], &none));
    }
}

static void other_fini(struct other *o)
{
    for (uint32_t s = 0; s < o->x->n; s++)
        kv_release(&o->kv[s]);
    free(o->logits);
    kv_pool_free(o->pool);
    model_free(o->model);
}

static void kv_tell_next(struct other *o, uint32_t s)
{
    kv_tell(&o->kv[s], o->done[s], o->x->tokens[s][o->done[s]]);
    o->done[s]++;
}

/* The next positions of some sequences, whole chunks one after the other or in turns. */
static void pick_rows(struct other *o)
{
    uint32_t take[SEQS_MAX] = {0}, first = below(o->x->n), n = 0;
    bool turns = below(2) == 0;

    for (uint32_t s = 0; s < o->x->n; s++) {
        uint32_t left = o->x->len[s] - o->done[s], most = 1U << below(7);

        take[s] = below(3) == 0 ? 0 : left < most ? left : most;
        take[s] = take[s] > ROWS_MAX / SEQS_MAX ? ROWS_MAX / SEQS_MAX : take[s];
        n += take[s];
    }
    o->n_rows = 0;
    for (uint32_t s = first; o->n_rows < n; s = (s + 1) % o->x->n) {
        uint32_t here = turns && take[s] > 0 ? 1 : take[s];

        for (uint32_t i = 0; i < here; i++, take[s]--, kv_tell_next(o, s))
            o->rows[o->n_rows++] = (struct model_row){
                o->x->tokens[s][o->done[s]], o->done[s], &o->kv[s], below(3) != 0, NULL, NULL};
    }
}

static uint32_t compare_rows(const struct other *o)
{
    size_t vocab = o->x->cfg.vocab_size;
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->n_rows; i++) {
        uint32_t s = (uint32_t)(o->rows[i].kv - o->kv);

        if (!o->rows[i].want_logits)
            continue;
        if (memcmp(o->logits + n * vocab, o->x->logits[s] + o->rows[i].pos * vocab,
                   vocab * sizeof(float)) != 0)
            fail_msg("position %u of sequence %u differs in a batch of %u: %s", o->rows[i].pos, s,
                     o->n_rows, o->what);
        n++;
    }
    return n;
}

static uint32_t run_to_the_end(struct other *o)
{
    const struct expected *x = o->x;
    uint32_t n_compared = 0, left = 1;

    while (left > 0) {
        pick_rows(o);
        model_step(o->model, &x->w.version, o->rows, o->n_rows, o->logits);
        n_compared += compare_rows(o);
        left = 0;
        for (uint32_t s = 0; s < x->n; s++)
            left += x->len[s] - o->done[s];
    }
    return n_compared;
}

/* Each sequence once more: what comes before some position is found, and not computed. */
static void find_again(struct other *o)
{
    for (uint32_t s = 0; s < o->x->n; s++) {
        struct kv_prefix prefix = {
            .key = {.serial = 1}, .tokens = o->x->tokens[s], .n_tokens = below(o->x->len[s])};

        kv_release(&o->kv[s]);
        assert_true(kv_taken_with(&o->kv[s], o->pool, o->x->len[s], &prefix));
        assert_int_equal(o->kv[s].n_found, prefix.n_tokens);
        o->done[s] = prefix.n_tokens;
    }
}

static uint32_t run_other(const struct expected *x)
{
    uint32_t n_compared;
    struct other o;

    other_init(&o, x);
    n_compared = run_to_the_end(&o);
    find_again(&o);
    n_compared += run_to_the_end(&o);
    other_fini(&o);
    return n_compared;
}

static void test_bits_do_not_depend_on_the_batch(void **state)
{
    uint32_t n_compared = 0;

    (void)state;
    for (uint32_t round = 0; round < n_rounds; round++) {
        struct expected x;

        draws = first_seed + round;
        expected_init(&x, (enum model_arch)(round % (ARCH_DEEPSEEK_V3 + 1)));
        for (int i = 0; i < N_OTHERS; i++)
            n_compared += run_other(&x);
        expected_fini(&x);
    }
    print_message("seed %llu: %u rounds, %u rows of logits equal to the bit\n",
                  (unsigned long long)first_seed, n_rounds, n_compared);
    assert_true(n_compared >= n_rounds * 8);
}

/* ---- the engine ---- */

enum { N_JOBS = 12, PROMPT_MAX = 60 };

struct served {
    struct model_config cfg;
    struct store *store;
    struct updates *updates;
    struct engine *en;
};

struct pushed {
    bool done;
    struct err e;
};

static void push_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct pushed *p = arg;

    (void)info;
    pthread_mutex_lock(&jobs_lock);
    p->done = true;
    p->e = *e;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
}

/* Takes the source, and the tensor list of `w`. */
static void push(struct served *s, struct source *src, struct file_weights *w)
{
    struct update_chunk *c = calloc(1, sizeof *c);
    struct pushed p = {0};
    struct err e = {0};

    assert_non_null(c);
    c->source = src;
    c->tensor_list = tensor_list_ref(w->tensor_list);
    c->done = push_done;
    c->done_arg = &p;
    file_weights_fini(w);
    assert_int_equal(updates_submit(s->updates, c, &e), 0);
    pthread_mutex_lock(&jobs_lock);
    while (!p.done)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
    assert_int_equal(p.e.code, ERR_NONE);
}

static void serve(struct served *s, const char *model, uint32_t n_threads, uint32_t n_running,
                  uint32_t n_rows)
{
    struct updates_cfg uc = {.receive_timeout_us = 60000000, .pin_timeout_us = 60000000};
    struct store_cfg sc = {.n_versions_max = 4, .nbytes_max = UINT64_MAX};
    struct embedded_cfg cfg = {.n_threads = n_threads,
                               .n_running_max = n_running,
                               .n_step_tokens_max = n_rows,
                               .kv_nbytes_max = 4 << 20};
    struct file_weights w = {0};
    struct source *src;
    struct err e = {0};
    char dir[256];

    *s = (struct served){0};
    (void)snprintf(dir, sizeof dir, FIXTURES "/%s", model);
    assert_int_equal(model_config_load(&s->cfg, dir, &e), 0);
    assert_int_equal(file_source_open_local(&src, &w, dir, &e), 0);
    assert_int_equal(model_spec_of_config(&sc.model_spec, &s->cfg, w.tensor_list, &e), 0);
    assert_int_equal(store_new(&s->store, &sc, &e), 0);
    uc.store = s->store;
    assert_int_equal(updates_new(&s->updates, &uc, &e), 0);
    push(s, src, &w);
    cfg.model_path = dir;
    cfg.model = &s->cfg;
    cfg.store = s->store;
    assert_int_equal(embedded_new(&s->en, &cfg, &e), 0);
}

static void close_served(struct served *s)
{
    s->en->ops->free(s->en);
    updates_free(s->updates);
    store_free(s->store);
}

/* What request i of a round asks for. */
static void submit(struct served *s, struct job *j, uint64_t seed, uint32_t i)
{
    uint32_t prompt[PROMPT_MAX], n_prompt;
    struct gen_params p;
    struct err e = {0};
    uint64_t kept = draws;

    draws = seed * 1000 + i;
    n_prompt = between(1, PROMPT_MAX);
    for (uint32_t k = 0; k < n_prompt; k++)
        prompt[k] = below(s->cfg.vocab_size);
    gen_params_init(&p);
    p.temperature = below(4) == 0 ? 0 : 0.5F + (float)below(10) / 10;
    p.top_p = below(2) == 0 ? 1 : 0.9F;
    p.top_k = below(2) == 0 ? 0 : (int32_t)between(1, 50);
    p.min_p = below(3) == 0 ? 0.05F : 0;
    p.seed = seed ^ i;
    p.max_tokens = between(1, 24);
    p.logprobs = (int32_t)below(4);
    p.prompt_logprobs = below(2) == 0 ? 1 : -1;
    draws = kept;
    if (job_submit(s->en, j, prompt, n_prompt, &p, &e) != 0)
        fail_msg("%s", e.msg);
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

static void same_output(const struct job *x, const struct job *y)
{
    assert_int_equal(x->out->n_tokens, y->out->n_tokens);
    assert_int_equal(x->finish, y->finish);
    assert_int_equal(x->out->n_prompt, y->out->n_prompt);
    same_tokens(x->out->tokens, y->out->tokens, x->out->n_tokens);
    same_tokens(x->out->prompt, y->out->prompt, x->out->n_prompt);
}

/* The requests in a random order among others that are cancelled, in random batches. */
static void under_load(const char *model, uint64_t seed, const struct job *alone)
{
    struct job jobs[N_JOBS] = {0}, noise[N_JOBS] = {0};
    uint32_t first = below(N_JOBS), n_rows = between(2, 64);
    struct served s;

    (void)select_isa();
    serve(&s, model, between(1, THREADS_MAX), between(2, n_rows < 10 ? n_rows : 10), n_rows);
    for (uint32_t k = 0; k < N_JOBS; k++) {
        uint32_t i = (first + k * 5) % N_JOBS;

        submit(&s, &noise[k], seed + 1, k);
        submit(&s, &jobs[i], seed, i);
        if (below(2) == 0)
            s.en->ops->cancel(s.en, noise[below(k + 1)].id);
    }
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job_wait(&jobs[i]);
        same_output(&alone[i], &jobs[i]);
        job_fini(&jobs[i]);
        job_wait(&noise[i]);
        job_fini(&noise[i]);
    }
    close_served(&s);
}

static void test_seed_gives_the_same_tokens_under_any_load(void **state)
{
    static const char *const models[] = {"tiny-qwen2", "tiny-llama2-spm", "tiny-llama3"};

    (void)state;
    for (uint32_t round = 0; round < (n_rounds + 3) / 4; round++) {
        const char *model = models[round % 3];
        struct job alone[N_JOBS] = {0};
        struct served s;

        draws = first_seed + round;
        assert_true(kernels_select(KERNELS_SCALAR));
        serve(&s, model, 1, 1, 1);
        for (uint32_t i = 0; i < N_JOBS; i++) {
            submit(&s, &alone[i], round, i);
            job_wait(&alone[i]);
        }
        close_served(&s);
        under_load(model, round, alone);
        under_load(model, round, alone);
        for (uint32_t i = 0; i < N_JOBS; i++)
            job_fini(&alone[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_the_batch),
        cmocka_unit_test(test_seed_gives_the_same_tokens_under_any_load),
    };

    if (argc > 1)
        n_rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
