/* The embedded engine against what its cores can do, on a random bfloat16 model made in memory.
 *
 * Forward pass, once for each instruction set: bytes of weights and KV that a decode step needs in
 * a second (of experts only those that compute the token) against a plain read of the same memory
 * by as many threads; a batch of 16 against a batch of 1; prefill against the cores' multiply-adds.
 * Then, of a dense model, the whole engine: the same two
 * batches, by several ways to choose a token, and the longest gap between two tokens while nothing,
 * bare commits, or whole updates happen beside it. Everything is interleaved, and the best of
 * several rounds counts.
 *
 * Usage: bench_engine [tiny|0.5b|tiny-moe|moe] [threads] [rounds]     default: tiny, which only
 * shows that it runs; all processors. More rounds of the forward pass help on a busy machine. */
#include "base/clock.h"
#include "engine/kernels/kernels.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"
#include "engine/scheduler/embedded.h"
#include "tests/bench/bench_cores.h"
#include "tests/unit/engine/kv_taken.h"
#include "weights/store/store.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 16, STREAMS = 4, COMMIT_PAUSE_MS = 5, ENGINE_ROUNDS = 3, READ_AHEAD = 6144 };

struct shape {
    const char *name;
    struct model_config cfg;
    uint32_t context, n_prefill; /* tokens before a decode step; rows of a prefill step */
    uint32_t n_tokens;           /* that a stream generates; 0: the forward pass alone */
    int rounds;
};

static const struct shape shapes[] = {
    {.name = "tiny",
     .cfg = {.vocab_size = 1024,
             .hidden_size = 128,
             .intermediate_size = 320,
             .n_layers = 2,
             .n_heads = 4,
             .n_kv_heads = 2,
             .head_dim = 32,
             .v_head_dim = 32,
             .rope_dim = 32,
             .max_position_embeddings = 512,
             .rms_norm_eps = 1e-6F,
             .rope_theta = 1e6,
             .tie_word_embeddings = true,
             .qkv_bias = true,
             .dtype = DTYPE_BF16},
     .context = 64,
     .n_prefill = 64,
     .n_tokens = 64,
     .rounds = 2},
    {.name = "0.5b", /* as Qwen2.5-0.5B */
     .cfg = {.vocab_size = 151936,
             .hidden_size = 896,
             .intermediate_size = 4864,
             .n_layers = 24,
             .n_heads = 14,
             .n_kv_heads = 2,
             .head_dim = 64,
             .v_head_dim = 64,
             .rope_dim = 64,
             .max_position_embeddings = 4096,
             .rms_norm_eps = 1e-6F,
             .rope_theta = 1e6,
             .tie_word_embeddings = true,
             .qkv_bias = true,
             .dtype = DTYPE_BF16},
     .context = 256,
     .n_prefill = 128,
     .n_tokens = 24,
     .rounds = 8},
    {.name = "tiny-moe",
     .cfg = {.arch = ARCH_DEEPSEEK_V3,
             .vocab_size = 1024,
             .hidden_size = 128,
             .intermediate_size = 320,
             .n_layers = 2,
             .n_heads = 4,
             .n_kv_heads = 4,
             .head_dim = 48,
             .v_head_dim = 32,
             .rope_dim = 16,
             .rope_interleave = true,
             .latents = {.kv_rank = 64, .q_rank = 96},
             .max_position_embeddings = 512,
             .rms_norm_eps = 1e-6F,
             .rope_theta = 1e4,
             .tie_word_embeddings = true,
             .dtype = DTYPE_BF16,
             .experts = {.n = 8,
                         .n_per_token = 2,
                         .intermediate_size = 64,
                         .normalize = true,
                         .sigmoid = true,
                         .n_groups = 4,
                         .n_groups_kept = 2,
                         .scale = 2.5F,
                         .shared_size = 64,
                         .n_sparse_layers = 1,
                         .sparse_layers = {2}}},
     .context = 64,
     .n_prefill = 64,
     .rounds = 2},
    {.name = "moe", /* layers of DeepSeek-V3's kind, with fewer experts, a quarter of them chosen */
     .cfg = {.arch = ARCH_DEEPSEEK_V3,
             .vocab_size = 16384,
             .hidden_size = 2048,
             .intermediate_size = 8192,
             .n_layers = 4,
             .n_heads = 16,
             .n_kv_heads = 16,
             .head_dim = 192,
             .v_head_dim = 128,
             .rope_dim = 64,
             .rope_interleave = true,
             .latents = {.kv_rank = 512, .q_rank = 1536},
             .max_position_embeddings = 4096,
             .rms_norm_eps = 1e-6F,
             .rope_theta = 1e4,
             .tie_word_embeddings = true,
             .dtype = DTYPE_BF16,
             .experts = {.n = 16,
                         .n_per_token = 4,
                         .intermediate_size = 2816,
                         .normalize = true,
                         .sigmoid = true,
                         .n_groups = 4,
                         .n_groups_kept = 2,
                         .scale = 2.5F,
                         .shared_size = 2816,
                         .n_sparse_layers = 3,
                         .sparse_layers = {14}}},
     .context = 256,
     .n_prefill = 128,
     .rounds = 8},
};

struct bench {
    const struct shape *shape;
    uint32_t n_threads;
    int rounds; /* of the forward pass */
    struct store *store;
    struct kv_pool *kv;
    struct kv_seq seqs[BATCH];
    struct model *models[KERNELS_ISA_COUNT]; /* NULL: no such instructions here */
    struct compute *pool;
    float *logits; /* [BATCH][vocab_size] */
};

/* What one instruction set reached; seconds of a step, rates a second. */
struct reached {
    double decode_1, decode_16, prefill; /* least seconds */
    double read, flops;                  /* most a second */
};

static void check(int rc, const struct err *e)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "bench_engine: %s\n", e->msg);
    exit(1);
}

static double seconds_since(uint64_t begin_us)
{
    return (double)(clock_now_us() - begin_us) / 1e6;
}

static void keep_least(double *best, double x)
{
    *best = *best == 0.0 || x < *best ? x : *best;
}

static void keep_most(double *best, double x)
{
    *best = x > *best ? x : *best;
}

/* --- the model ------------------------------------------------------------------------------- */

/* bf16 of both signs around 2^-5: sums of a thousand products stay near 1. */
static void fill_random(uint16_t *w, size_t numel, uint64_t seed)
{
    uint64_t s = seed * 2 + 1;

    for (size_t i = 0; i < numel; i++) {
        s = s * 6364136223846793005U + 1442695040888963407U;
        w[i] = (uint16_t)(0x3c80U | (s >> 48 & 0x80ffU));
    }
}

/* Publishes new weights: all of them, or with `partial` the last norm alone. The copy is what an
 * update over shared memory does. */
static void commit(struct bench *b, const uint16_t *from, bool partial)
{
    const struct tensor_list *tensor_list = store_model_spec(b->store)->tensor_list;
    struct staging_cfg cfg = {.partial = partial};
    struct store_stats stats;
    struct staging *g;
    struct slab *slab;
    struct err e = {0};
    uint32_t only = tensor_list_find(tensor_list, "model.norm.weight");
    uint64_t nbytes = 0;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        nbytes += (tensor_list->tensors[i].nbytes + 63) / 64 * 64;
    nbytes = partial ? tensor_list->tensors[only].nbytes : nbytes;
    check(store_stage(b->store, &cfg, CLOCK_NEVER, NULL, &g, &e), &e);
    check(staging_slab(g, nbytes, &slab, &e), &e);
    if (from != NULL)
        memcpy(slab->base, from, nbytes);
    else
        fill_random(slab->base, nbytes / 2, 1);
    nbytes = 0;
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        if (partial && i != only)
            continue;
        check(staging_view(g, 0, i, slab, slab->addr + nbytes, &e), &e);
        nbytes += (tensor_list->tensors[i].nbytes + 63) / 64 * 64;
    }
    slab_unref(slab);
    check(store_commit(b->store, g, "", &stats, &e), &e);
}

static void fill_kv(struct bench *b)
{
    const struct model_config *c = &b->shape->cfg;
    float x = 0.0F;

    for (size_t s = 0; s < BATCH; s++) {
        for (uint32_t at = 0; at < c->n_layers * c->n_kv_heads * b->shape->context; at++) {
            uint32_t layer = at / (c->n_kv_heads * b->shape->context);
            uint32_t head = at / b->shape->context % c->n_kv_heads, pos = at % b->shape->context;

            for (uint32_t i = 0; i < c->head_dim || i < c->v_head_dim; i++) {
                x = x > 1.0F ? -1.0F : x + 0.01F;
                if (i < c->head_dim)
                    kv_k(&b->seqs[s], layer, head, pos)[i] = x;
                if (i < c->v_head_dim)
                    kv_v(&b->seqs[s], layer, head, pos)[i] = -x;
            }
        }
    }
}

static uint64_t kv_nbytes(const struct shape *s, uint64_t n_tokens)
{
    return (uint64_t)s->cfg.n_layers * s->cfg.n_kv_heads * (s->cfg.head_dim + s->cfg.v_head_dim) *
           sizeof(float) * n_tokens;
}

static void bench_init(struct bench *b, const struct shape *shape, uint32_t n_threads)
{
    struct store_cfg sc = {.n_versions_max = 4, .nbytes_max = UINT64_MAX};
    uint32_t rows = shape->n_prefill > BATCH ? shape->n_prefill : BATCH;
    uint32_t room = shape->context + KV_CHUNK;
    struct err e = {0};

    *b = (struct bench){.shape = shape, .n_threads = n_threads};
    check(model_spec_of_config(&sc.model_spec, &shape->cfg, NULL, &e), &e);
    check(store_new(&b->store, &sc, &e), &e);
    commit(b, NULL, false);
    check(kv_pool_new(&b->kv, &shape->cfg, kv_nbytes(shape, (uint64_t)BATCH * room), &e), &e);
    for (size_t i = 0; i < BATCH; i++) {
        if (!kv_taken(&b->seqs[i], b->kv, shape->context))
            abort();
    }
    fill_kv(b);
    for (int isa = KERNELS_AVX2; isa < KERNELS_ISA_COUNT; isa++) {
        if (kernels_select((enum kernels_isa)isa))
            check(model_new(&b->models[isa], &shape->cfg, store_model_spec(b->store), rows,
                            n_threads, &e),
                  &e);
    }
    check(compute_new(&b->pool, n_threads, &e), &e);
    b->logits = calloc((size_t)BATCH * shape->cfg.vocab_size, sizeof *b->logits);
    if (b->logits == NULL)
        abort();
}

static void bench_fini(struct bench *b)
{
    free(b->logits);
    compute_free(b->pool);
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++)
        model_free(b->models[isa]);
    for (size_t i = 0; i < BATCH; i++)
        kv_release(&b->seqs[i]);
    kv_pool_free(b->kv);
    store_free(b->store);
}

/* --- the forward pass ------------------------------------------------------------------------ */

/* One step of n rows: of as many sequences, or with `prefill` of the first one, the last wanted. */
static double time_step(struct bench *b, struct model *m, uint32_t n, bool prefill)
{
    struct model_row *rows = calloc(n, sizeof *rows);
    const struct version *v;
    struct err e = {0};
    uint64_t begin;
    double s;

    if (rows == NULL)
        abort();
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct model_row){.token = i * 31 % b->shape->cfg.vocab_size,
                                     .pos = prefill ? i : b->shape->context - 1,
                                     .kv = &b->seqs[prefill ? 0 : i],
                                     .want_logits = !prefill || i == n - 1};
    check(store_pin(b->store, &v, &e), &e);
    begin = clock_now_us();
    model_step(m, v, rows, n, b->logits);
    s = seconds_since(begin);
    store_unpin(b->store, v);
    free(rows);
    return s;
}

static void measure_forward(struct bench *b, struct reached *reached)
{
    const struct version *v;
    struct err e = {0};

    for (int round = 0; round < b->rounds; round++) {
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            struct model *m = b->models[isa];
            struct reached *r = &reached[isa];

            if (m == NULL)
                continue;
            check(store_pin(b->store, &v, &e), &e);
            for (size_t ahead = 0; ahead <= READ_AHEAD; ahead += READ_AHEAD)
                keep_most(&r->read,
                          cores_read(b->pool, (enum kernels_isa)isa, v->views[0].slab->base,
                                     v->views[0].slab->nbytes, ahead));
            store_unpin(b->store, v);
            keep_most(&r->flops, cores_flops(b->pool, (enum kernels_isa)isa));
            for (int twice = 0; twice < 2; twice++) {
                keep_least(&r->decode_1, time_step(b, m, 1, false));
                keep_least(&r->decode_16, time_step(b, m, BATCH, false));
            }
            keep_least(&r->prefill, time_step(b, m, b->shape->n_prefill, true));
        }
    }
}

/* Bytes of the weights that one row needs: not those of experts that do not compute it. */
static double active_nbytes(const struct bench *b)
{
    const struct model_config *c = &b->shape->cfg;
    const struct model_experts *x = &c->experts;
    struct store_info info;

    store_info(b->store, &info);
    return (double)info.nbytes - (double)x->n_sparse_layers * (x->n - x->n_per_token) * 3.0 *
                                     x->intermediate_size * c->hidden_size *
                                     (double)dtype_nbytes(c->dtype);
}

/* Of a row with so many keys, without logits; each weight is one multiply-add. The embedding is
 * the head. */
static double layers_flop(const struct bench *b, double n_keys)
{
    const struct model_config *c = &b->shape->cfg;

    return 2.0 * (active_nbytes(b) / (double)dtype_nbytes(c->dtype) -
                  (double)c->vocab_size * c->hidden_size) +
           2.0 * c->n_layers * c->n_heads * (c->head_dim + c->v_head_dim) * n_keys;
}

static double head_flop(const struct bench *b)
{
    return 2.0 * (double)b->shape->cfg.vocab_size * b->shape->cfg.hidden_size;
}

static void print_forward(const struct bench *b, const struct reached *reached)
{
    const struct shape *s = b->shape;
    struct store_info info;
    double read = 0, nbytes, flop, decode_flop;

    store_info(b->store, &info);
    nbytes = active_nbytes(b) + (double)kv_nbytes(s, s->context);
    flop = layers_flop(b, (s->n_prefill + 1) / 2.0) * s->n_prefill + head_flop(b);
    decode_flop = layers_flop(b, s->context) + head_flop(b);
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++)
        keep_most(&read, reached[isa].read);
    (void)printf("%s: %.0f MB of weights, %.0f for one token, %u threads; plain read %.1f GB/s\n",
                 s->name, (double)info.nbytes / 1e6, active_nbytes(b) / 1e6, b->n_threads,
                 read / 1e9);
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct reached *r = &reached[isa];

        if (b->models[isa] == NULL)
            continue;
        (void)printf("%s: decode of 1: %.2f ms, %.1f GB/s, %.2f of a plain read\n",
                     kernels_get((enum kernels_isa)isa)->name, r->decode_1 * 1e3,
                     nbytes / r->decode_1 / 1e9, nbytes / r->decode_1 / read);
        (void)printf("  decode of %d: %.2f ms, tokens/s %.1f x a batch of 1, %.2f of the peak\n",
                     BATCH, r->decode_16 * 1e3, BATCH * r->decode_1 / r->decode_16,
                     (double)BATCH * decode_flop / r->decode_16 / r->flops);
        (void)printf("  prefill of %u: %.0f GFLOP/s, %.2f of the peak of %.0f\n", s->n_prefill,
                     flop / r->prefill / 1e9, flop / r->prefill / r->flops, r->flops / 1e9);
    }
}

/* --- the whole engine ------------------------------------------------------------------------ */

/* What the streams of one run saw. Written on the engine's thread, but for `left`. */
struct watch {
    pthread_mutex_t lock; /* guards left */
    pthread_cond_t ended;
    uint32_t left;

    uint64_t first_us, last_us, n_tokens; /* of all streams */
    uint64_t longest_gap_us, before_us;   /* of the first stream */
};

struct stream {
    struct watch *w;
    bool gaps;
};

static void on_tokens(void *arg, const struct gen_output *out, uint32_t first)
{
    struct stream *s = arg;
    struct watch *w = s->w;
    uint64_t now = clock_now_us();

    w->first_us = w->first_us == 0 ? now : w->first_us;
    w->last_us = now;
    w->n_tokens += out->n_tokens - first;
    if (!s->gaps)
        return;
    if (first >= 2 && now - w->before_us > w->longest_gap_us) /* the first gaps touch new pages */
        w->longest_gap_us = now - w->before_us;
    w->before_us = now;
}

static void on_done(void *arg, struct gen_output *out)
{
    struct stream *s = arg;

    if (out->finish != GEN_LENGTH)
        (void)fprintf(stderr, "bench_engine: a stream ended: %s\n", out->error.msg);
    pthread_mutex_lock(&s->w->lock);
    s->w->left--;
    pthread_cond_signal(&s->w->ended);
    pthread_mutex_unlock(&s->w->lock);
}

static const struct gen_sink sink = {.tokens = on_tokens, .done = on_done};

/* How tokens are chosen: greedy; or as a trainer's rollouts, by a draw of the whole vocabulary,
 * with logprobs; or as users ask for text. */
enum choosing { GREEDY, ROLLOUT, NUCLEUS, CHOOSING_COUNT };

static void set_choosing(struct gen_params *p, enum choosing how)
{
    p->temperature = how == GREEDY ? 0.0F : 1.0F;
    p->logprobs = how == ROLLOUT ? 0 : -1;
    p->top_k = how == NUCLEUS ? 50 : 0;
    p->top_p = how == NUCLEUS ? 0.95F : 1.0F;
    p->repetition_penalty = how == NUCLEUS ? 1.1F : 1.0F;
}

static void submit(struct bench *b, struct engine *en, struct stream *s, enum choosing how)
{
    struct gen_request r = {.n_prompt = 1, .sink = &sink, .sink_arg = s};
    struct err e = {0};
    uint64_t id;

    r.prompt = calloc(1, sizeof *r.prompt);
    if (r.prompt == NULL)
        abort();
    gen_params_init(&r.params);
    set_choosing(&r.params, how);
    r.params.max_tokens = b->shape->n_tokens;
    r.params.ignore_eos = true;
    check(en->ops->submit(en, &r, &id, &e), &e);
}

/* What happens beside the streams. */
enum beside { NOTHING, COMMITS, UPDATES, BESIDE_COUNT };

static bool all_ended(struct watch *w, uint64_t wait_ms)
{
    struct timespec until;
    bool ended;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += (time_t)(wait_ms / 1000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    while (w->left > 0 && pthread_cond_timedwait(&w->ended, &w->lock, &until) == 0)
        ;
    ended = w->left == 0;
    pthread_mutex_unlock(&w->lock);
    return ended;
}

/* Streams until all have ended. Returns how many versions were committed meanwhile. */
static unsigned run_streams(struct bench *b, struct engine *en, uint32_t n, enum choosing how,
                            enum beside beside, const uint16_t *weights, struct watch *w)
{
    struct stream streams[BATCH];
    unsigned n_commits = 0;

    *w = (struct watch){.left = n};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ended, NULL);
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = (struct stream){.w = w, .gaps = i == 0};
        submit(b, en, &streams[i], how);
    }
    while (!all_ended(w, beside == NOTHING ? 60000 : COMMIT_PAUSE_MS)) {
        if (beside == NOTHING)
            continue;
        commit(b, weights, beside == COMMITS);
        n_commits++;
    }
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->lock);
    return n_commits;
}

static double rate(const struct watch *w, uint32_t n_streams)
{
    return (double)(w->n_tokens - n_streams) / ((double)(w->last_us - w->first_us) / 1e6);
}

/* What the whole engine reached. */
struct rates {
    double one[CHOOSING_COUNT], batch[CHOOSING_COUNT]; /* tokens a second, most */
    double gap_ms[BESIDE_COUNT], step_ms[BESIDE_COUNT];
    unsigned n_commits[BESIDE_COUNT];
};

/* A fresh engine for each run, because its longest step is remembered. The round with the shortest
 * of the longest gaps counts, with its own longest step. */
static void measure_run(struct bench *b, uint32_t n, enum choosing how, enum beside beside,
                        const uint16_t *weights, struct rates *r)
{
    struct embedded_cfg cfg = {
        .model_path = "",
        .model = &b->shape->cfg,
        .store = b->store,
        .n_threads = b->n_threads,
        .n_running_max = BATCH,
        .n_step_tokens_max = BATCH,
        .kv_nbytes_max = kv_nbytes(b->shape, (uint64_t)BATCH * (b->shape->n_tokens + KV_CHUNK))};
    struct engine_stats stats;
    struct engine *en;
    struct watch w;
    struct err e = {0};
    double gap_ms;

    check(embedded_new(&en, &cfg, &e), &e);
    r->n_commits[beside] += run_streams(b, en, n, how, beside, weights, &w);
    engine_stats_get(en, &stats);
    en->ops->free(en);
    gap_ms = (double)w.longest_gap_us / 1e3;
    if (n == 1)
        keep_most(&r->one[how], rate(&w, n));
    if (n == BATCH)
        keep_most(&r->batch[how], rate(&w, n));
    if (n == STREAMS && (r->gap_ms[beside] == 0.0 || gap_ms < r->gap_ms[beside])) {
        r->gap_ms[beside] = gap_ms;
        r->step_ms[beside] = (double)stats.step_us_max / 1e3;
    }
}

static void measure_engine(struct bench *b)
{
    static const char *const names[] = {"nothing", "bare commits", "whole updates"};
    static const char *const ways[] = {"greedy", "drawn with logprobs", "top_k 50 with a penalty"};
    struct store_info info;
    struct rates r = {0};
    uint16_t *weights;
    size_t nbytes;

    store_info(b->store, &info);
    nbytes = info.nbytes + (1 << 20); /* a staging's views are rounded up */
    weights = malloc(nbytes);
    if (weights == NULL)
        abort();
    fill_random(weights, nbytes / 2, 2);
    for (int round = 0; round < ENGINE_ROUNDS; round++) {
        for (int how = 0; how < CHOOSING_COUNT; how++) {
            measure_run(b, 1, (enum choosing)how, NOTHING, NULL, &r);
            measure_run(b, BATCH, (enum choosing)how, NOTHING, NULL, &r);
        }
        for (int i = 0; i < BESIDE_COUNT; i++)
            measure_run(b, STREAMS, GREEDY, (enum beside)i, weights, &r);
    }
    for (int how = 0; how < CHOOSING_COUNT; how++)
        (void)printf("engine, %s: 1 stream %.1f tokens/s, %d streams %.1f: %.1f x\n", ways[how],
                     r.one[how], BATCH, r.batch[how], r.batch[how] / r.one[how]);
    for (int i = 0; i < BESIDE_COUNT; i++)
        (void)printf("  %d streams beside %s (%u): longest gap %.2f ms, longest step %.2f: %+.2f\n",
                     STREAMS, names[i], r.n_commits[i], r.gap_ms[i], r.step_ms[i],
                     r.gap_ms[i] - r.step_ms[i]);
    free(weights);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "tiny";
    uint32_t n_threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : compute_n_processors();
    const struct shape *shape = NULL;
    struct reached reached[KERNELS_ISA_COUNT] = {{0}};
    struct bench b;

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        shape = strcmp(shapes[i].name, name) == 0 ? &shapes[i] : shape;
    if (shape == NULL) {
        (void)fprintf(stderr, "usage: bench_engine [tiny|0.5b|tiny-moe|moe] [threads] [rounds]\n");
        return 2;
    }
    bench_init(&b, shape, n_threads);
    b.rounds = argc > 3 ? atoi(argv[3]) : shape->rounds;
    measure_forward(&b, reached);
    print_forward(&b, reached);
    (void)fflush(stdout);
    if (shape->n_tokens > 0)
        measure_engine(&b);
    bench_fini(&b);
    return 0;
}
