/* Heads that share a KV head are computed together: their scores against a chunk of keys are one
 * small matrix product, because a chunk's keys of one head are contiguous. */
#include "engine/kernels/attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { ATTENTION_WORK_MIN = 32768 }; /* multiply-adds that are worth a thread */

/* Pairs are (i, i + d/2) in most checkpoints, (2i, 2i + 1) where they are interleaved. */
static void rotate_pairs(float *x, const float *rope, uint32_t d)
{
    const float *c = rope, *s = rope + d / 2;

    for (size_t i = 0; i < d / 2; i++) {
        float lo = x[2 * i], hi = x[2 * i + 1];

        x[2 * i] = lo * c[i] - hi * s[i];
        x[2 * i + 1] = hi * c[i] + lo * s[i];
    }
}

static void rotate_halves(float *x, const float *rope, uint32_t d)
{
    const float *c = rope, *s = rope + d / 2;

    for (uint32_t i = 0; i < d / 2; i++) {
        float lo = x[i], hi = x[i + d / 2];

        x[i] = lo * c[i] - hi * s[i];
        x[i + d / 2] = hi * c[i] + lo * s[i];
    }
}

static void norm_and_rotate(const struct attention *a, float *heads, uint32_t n_heads,
                            const float *norm, const float *rope)
{
    uint32_t d = a->cfg->head_dim, rope_dim = a->cfg->rope_dim;

    for (uint32_t h = 0; h < n_heads; h++) {
        float *x = heads + (size_t)h * d;

        if (norm != NULL)
            kernels_rms_norm(a->kernels, x, x, norm, d, a->cfg->rms_norm_eps);
        if (a->cfg->rope_interleave)
            rotate_pairs(x + d - rope_dim, rope, rope_dim);
        else
            rotate_halves(x + d - rope_dim, rope, rope_dim);
    }
}

static void prepare_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct attention *a = arg;
    const struct model_config *cfg = a->cfg;
    size_t d = cfg->head_dim, v_d = cfg->v_head_dim, q_width = cfg->n_heads * d;
    size_t k_width = cfg->n_kv_heads * d, v_width = cfg->n_kv_heads * v_d;

    (void)thread;
    for (size_t r = first; r < last; r++) {
        const struct model_row *row = &a->rows[r];
        const float *rope = a->rope + r * cfg->rope_dim;

        norm_and_rotate(a, a->q + r * q_width, cfg->n_heads, a->q_norm, rope);
        norm_and_rotate(a, a->k + r * k_width, cfg->n_kv_heads, a->k_norm, rope);
        for (uint32_t h = 0; h < cfg->n_kv_heads; h++) {
            memcpy(kv_k(row->kv, a->layer, h, row->pos), a->k + r * k_width + h * d,
                   d * sizeof(float));
            memcpy(kv_v(row->kv, a->layer, h, row->pos), a->v + r * v_width + h * v_d,
                   v_d * sizeof(float));
        }
    }
}

/* The sum is taken in double and in order of position. */
static void attention_softmax(const struct kernels *k, float *x, uint32_t n, float scale)
{
    float max = -INFINITY;
    double sum = 0.0, inverse;

    for (uint32_t i = 0; i < n; i++) {
        x[i] *= scale;
        max = x[i] > max ? x[i] : max;
    }
    k->exp_shifted(x, max, n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    inverse = 1.0 / sum;
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * inverse);
}

static float attention_scale(const struct model_config *cfg)
{
    double scale = 1.0 / sqrt((double)cfg->head_dim);

    return (float)(cfg->rope_kind == ROPE_YARN ? scale * cfg->rope_scaling.scores : scale);
}

/* All query heads of one KV head, for one row. */
static void attention_head(const struct attention *a, const struct model_row *row, const float *q,
                           float *o, float *scores, uint32_t kv_head)
{
    const struct model_config *cfg = a->cfg;
    uint32_t group = cfg->n_heads / cfg->n_kv_heads, n = row->pos + 1;
    uint32_t d = cfg->head_dim, v_d = cfg->v_head_dim;
    size_t ld = cfg->max_position_embeddings;
    float scale = attention_scale(cfg);

    for (uint32_t at = 0; at < n; at += KV_CHUNK) {
        struct matmul keys = {.x = q,
                              .ldx = d,
                              .w = kv_k(row->kv, a->layer, kv_head, at),
                              .dtype = DTYPE_F32,
                              .y = scores + at,
                              .ldy = ld,
                              .m = group,
                              .k = d};

        a->kernels->matmul_f32(&keys, 0, n - at < KV_CHUNK ? n - at : KV_CHUNK);
    }
    for (size_t g = 0; g < group; g++)
        attention_softmax(a->kernels, scores + g * ld, n, scale);
    memset(o, 0, (size_t)group * v_d * sizeof *o);
    for (uint32_t at = 0; at < n; at += KV_CHUNK) {
        const float *v = kv_v(row->kv, a->layer, kv_head, at);
        uint32_t here = n - at < KV_CHUNK ? n - at : KV_CHUNK;

        for (size_t g = 0; g < group; g++)
            a->kernels->weighted_sum(o + g * v_d, scores + g * ld + at, v, here, v_d);
    }
}

/* Item i is row i / n_kv_heads, KV head i % n_kv_heads. */
static void attend_items(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct attention *a = arg;
    const struct model_config *cfg = a->cfg;
    size_t group = cfg->n_heads / cfg->n_kv_heads;
    size_t q_width = group * cfg->head_dim, o_width = group * cfg->v_head_dim;
    float *scores = a->scores + thread * group * cfg->max_position_embeddings;

    for (size_t i = first; i < last; i++) {
        const struct model_row *row = &a->rows[i / cfg->n_kv_heads];

        attention_head(a, row, a->q + i * q_width, a->o + i * o_width, scores,
                       (uint32_t)(i % cfg->n_kv_heads));
    }
}

static uint32_t grain_of(uint64_t work_of_item)
{
    return work_of_item >= ATTENTION_WORK_MIN ? 1
                                              : (uint32_t)(ATTENTION_WORK_MIN / (work_of_item + 1));
}

void attention_run(const struct attention *a, struct compute *c)
{
    const struct model_config *cfg = a->cfg;
    struct attention copy = *a; /* compute_run takes no const */
    uint64_t group = cfg->n_heads / cfg->n_kv_heads, n_keys = 0;

    for (uint32_t r = 0; r < a->n_rows; r++) {
        assert(a->rows[r].pos < cfg->max_position_embeddings);
        n_keys += a->rows[r].pos + 1;
    }
    compute_run(c, a->n_rows, grain_of((uint64_t)(cfg->n_heads + cfg->n_kv_heads) * cfg->head_dim),
                prepare_rows, &copy);
    compute_run(c, a->n_rows * cfg->n_kv_heads,
                grain_of(group * (cfg->head_dim + cfg->v_head_dim) * (n_keys / a->n_rows)),
                attend_items, &copy);
}
