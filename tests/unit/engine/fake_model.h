/* A model that is cheap and exact: tests link it in place of engine/model/model.c.
 *
 * It keeps in the KV cache, for each position, the token and the weight that it read for it (and
 * the serial of its version, for those who ask); the logits of a position are a hash of all that
 * stands there up to it, plus the weights. So a token is right only if every position of the cache
 * holds what the right version put there. The routes of a row are what computed it, and when. */
#ifndef BATON_TESTS_FAKE_MODEL_H
#define BATON_TESTS_FAKE_MODEL_H

#include "engine/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAKE_VOCAB = 64,
    FAKE_POISON = 63,                  /* logits after this token are not finite */
    FAKE_ROUTES = 4,                   /* serial, position, token, step */
    FAKE_CHUNK_NBYTES = 2 * 64 * 2 * 4 /* of KV: K and V, KV_CHUNK positions, head_dim floats */
};

static const struct model_config fake_config = {
    .vocab_size = FAKE_VOCAB,
    .n_layers = 1,
    .n_heads = 1,
    .n_kv_heads = 1,
    .head_dim = 2,
    .v_head_dim = 2,
    .rope_dim = 2,
    .max_position_embeddings = 512,
    .n_eos = 1,
    .eos = {62},
    .experts = {
        .n = 1 << 12, .n_per_token = FAKE_ROUTES, .n_sparse_layers = 1, .sparse_layers = {1}}};

struct model {
    uint32_t n_rows_max;
    struct compute *compute; /* owned */
};

/* Called on the engine's thread at the start of each step. Set while no engine runs. */
static void (*fake_on_step)(void *arg, uint32_t n_rows);
static void *fake_on_step_arg;
static atomic_uint fake_n_steps;

/* Called on the engine's thread for rows that want logits: what stands at [0, n), and which version
 * put it there. Set while no engine runs. */
static void (*fake_on_logits)(const float *tokens, const float *serials, uint32_t n);

int model_new(struct model **out, const struct model_config *cfg,
              const struct model_spec *model_spec, uint32_t n_rows_max, uint32_t n_threads,
              struct err *e)
{
    struct model *m = calloc(1, sizeof *m);

    assert(cfg->vocab_size == FAKE_VOCAB && model_spec->tensor_list->n_tensors == 1);
    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the fake model");
    m->n_rows_max = n_rows_max;
    if (compute_new(&m->compute, n_threads, e) != 0) {
        free(m);
        return -1;
    }
    *out = m;
    return 0;
}

struct compute *model_compute(struct model *m)
{
    return m->compute;
}

int model_pin(struct model *m, pthread_t caller, struct err *e)
{
    (void)m;
    (void)caller;
    (void)e;
    return 0;
}

int model_take_adapters(struct model *m, uint32_t rank_max, struct err *e)
{
    (void)m;
    (void)rank_max;
    (void)e;
    return 0;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    compute_free(m->compute);
    free(m);
}

static inline uint64_t fake_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15U;
    return h ^ (h >> 29);
}

/* The logits after tokens [0, n), whose weights were `read`. */
static inline void fake_logits(float *logits, const float *tokens, const float *read, uint32_t n,
                               const float *w)
{
    uint64_t h = 1;
    uint32_t bits;

    for (uint32_t i = 0; i < n; i++) {
        h = fake_mix(h, (uint64_t)tokens[i]);
        memcpy(&bits, &read[i], sizeof bits);
        h = fake_mix(h, bits);
    }
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        logits[i] = w[i] + (float)(fake_mix(h, i) >> 40) / (float)(1 << 22);
    logits[FAKE_POISON] -= 60; /* comes in prompts only */
    if (n > 0 && tokens[n - 1] == (float)FAKE_POISON)
        logits[7] = NAN;
}

static inline void fake_run(const struct model_row *row, const struct version *v, float *logits)
{
    float tokens[1024], read[1024], serials[1024];
    const float *w = v->views[0].data;
    uint32_t n = row->pos + 1;

    assert(n <= 1024 && row->token < FAKE_VOCAB);
    kv_k(row->kv, 0, 0, row->pos)[0] = (float)row->token;
    kv_k(row->kv, 0, 0, row->pos)[1] = (float)v->serial;
    kv_v(row->kv, 0, 0, row->pos)[0] = w[row->token];
    if (row->routes != NULL) {
        row->routes[0] = (uint16_t)v->serial;
        row->routes[1] = (uint16_t)row->pos;
        row->routes[2] = (uint16_t)row->token;
        row->routes[3] = (uint16_t)atomic_load(&fake_n_steps);
    }
    if (!row->want_logits)
        return;
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = kv_k(row->kv, 0, 0, i)[0];
        read[i] = kv_v(row->kv, 0, 0, i)[0];
        serials[i] = kv_k(row->kv, 0, 0, i)[1];
    }
    if (fake_on_logits != NULL)
        fake_on_logits(tokens, serials, n);
    fake_logits(logits, tokens, read, n, w);
}

void model_step(struct model *m, const struct version *v, const struct model_row *rows,
                uint32_t n_rows, float *logits)
{
    assert(n_rows >= 1 && n_rows <= m->n_rows_max);
    atomic_fetch_add(&fake_n_steps, 1);
    if (fake_on_step != NULL)
        fake_on_step(fake_on_step_arg, n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        assert(i == 0 || rows[i].kv != rows[i - 1].kv || rows[i].pos == rows[i - 1].pos + 1);
        fake_run(&rows[i], v, logits);
        logits += rows[i].want_logits ? FAKE_VOCAB : 0;
    }
}

uint64_t model_pulse(const struct model *m)
{
    (void)m;
    return 0; /* a held step shows in the loop's own heartbeat */
}

#endif
