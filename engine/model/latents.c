/* Two regions of products, and after each one that goes over the rows: norms of the short vectors,
 * then the expansion. A head's key is its own part, then the part that all heads share and that
 * attention rotates. */
#include "engine/model/latents.h"

#include "engine/kernels/linear.h"
#include "weights/model/model_tensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LATENTS_ROW_WORK = 8192, LATENTS_ALIGN = 64 };

/* Of the norms of latents, whatever rms_norm_eps is. */
static const float LATENTS_EPS = 1e-6F;

struct latents {
    const struct model_config *cfg;      /* borrowed */
    const struct model_spec *model_spec; /* borrowed */
    float *q_a;                          /* owned; [rows, q_rank] */
    float *kv_a;                         /* owned; [rows, kv_rank + rope_dim] */
    float *kv_b;                         /* owned; [rows, MODEL_KV_B_WIDTH] */
    float *q_norm, *kv_norm;             /* owned; [q_rank], [kv_rank]: of the layer, widened */
};

/* What a region of the pool gets. */
struct latents_region {
    struct latents *t;
    const struct latents_step *s;
};

static float *floats_alloc(uint64_t n, struct err *e)
{
    void *p = NULL;

    if (n > SIZE_MAX / sizeof(float) ||
        posix_memalign(&p, LATENTS_ALIGN, (n + 1) * sizeof(float)) != 0) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %" PRIu64 " values of latents", n);
        return NULL;
    }
    return p;
}

int latents_new(struct latents **out, const struct model_config *cfg,
                const struct model_spec *model_spec, uint32_t n_rows_max, struct err *e)
{
    struct latents *t = calloc(1, sizeof *t);
    uint64_t rows = n_rows_max;

    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for latents");
    t->cfg = cfg;
    t->model_spec = model_spec;
    if ((t->q_a = floats_alloc(rows * cfg->latents.q_rank, e)) == NULL ||
        (t->kv_a = floats_alloc(rows * (cfg->latents.kv_rank + cfg->rope_dim), e)) == NULL ||
        (t->kv_b = floats_alloc(rows * MODEL_KV_B_WIDTH(cfg), e)) == NULL ||
        (t->q_norm = floats_alloc(cfg->latents.q_rank, e)) == NULL ||
        (t->kv_norm = floats_alloc(cfg->latents.kv_rank, e)) == NULL) {
        latents_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void latents_free(struct latents *t)
{
    if (t == NULL)
        return;
    free(t->q_a);
    free(t->kv_a);
    free(t->kv_b);
    free(t->q_norm);
    free(t->kv_norm);
    free(t);
}

static struct linear latents_linear(const struct latents *t, const struct latents_step *s,
                                    enum layer_tensor weight, const float *x, float *y)
{
    uint32_t i = s->tensors[weight];

    return linear_of(&t->model_spec->tensor_list->tensors[i], s->version->views[i].data, x,
                     s->n_rows, y);
}

static void latents_widen(const struct latents *t, const struct latents_step *s, float *out,
                          enum layer_tensor norm)
{
    uint32_t i = s->tensors[norm];
    const struct tensor_spec *spec = &t->model_spec->tensor_list->tensors[i];

    kernels_widen(out, s->version->views[i].data, spec->dtype, spec->numel);
}

static void norm_latents(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct latents_region *g = arg;
    const struct kernels *k = g->s->kernels;
    const struct model_config *c = g->t->cfg;
    uint32_t q_rank = c->latents.q_rank, kv_rank = c->latents.kv_rank;

    (void)thread;
    for (size_t r = first; r < last; r++) {
        float *q = g->t->q_a + r * q_rank, *kv = g->t->kv_a + r * (kv_rank + c->rope_dim);

        if (q_rank > 0)
            kernels_rms_norm(k, q, q, g->t->q_norm, q_rank, LATENTS_EPS);
        kernels_rms_norm(k, kv, kv, g->t->kv_norm, kv_rank, LATENTS_EPS);
    }
}

/* Item i is row i / n_heads, head i % n_heads. */
static void expand_heads(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct latents_region *g = arg;
    const struct model_config *c = g->t->cfg;
    size_t rope = c->rope_dim, own = c->head_dim - rope, v = c->v_head_dim;
    size_t kv_a_width = c->latents.kv_rank + rope;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *from = g->t->kv_b + i * (own + v);
        const float *shared = g->t->kv_a + i / c->n_heads * kv_a_width + c->latents.kv_rank;

        memcpy(g->s->k + i * (own + rope), from, own * sizeof(float));
        memcpy(g->s->k + i * (own + rope) + own, shared, rope * sizeof(float));
        memcpy(g->s->v + i * v, from + own, v * sizeof(float));
    }
}

static uint32_t latents_grain(uint32_t width)
{
    return width >= LATENTS_ROW_WORK ? 1 : LATENTS_ROW_WORK / width;
}

void latents_run(struct latents *t, const struct latents_step *s)
{
    const struct model_config *c = t->cfg;
    struct latents_region g = {t, s};
    struct linear down[2], up[2];
    uint32_t n_up = 0;

    down[0] = latents_linear(t, s, LAYER_KV_A, s->h, t->kv_a);
    down[1] = c->latents.q_rank > 0 ? latents_linear(t, s, LAYER_Q_A, s->h, t->q_a)
                                    : latents_linear(t, s, LAYER_Q, s->h, s->q);
    linears_run(s->compute, s->kernels, down, 2);
    latents_widen(t, s, t->kv_norm, LAYER_KV_A_NORM);
    if (c->latents.q_rank > 0)
        latents_widen(t, s, t->q_norm, LAYER_Q_A_NORM);
    compute_run(s->compute, s->n_rows, latents_grain(c->latents.kv_rank + c->latents.q_rank),
                norm_latents, &g);
    up[n_up] = latents_linear(t, s, LAYER_KV_B, t->kv_a, t->kv_b);
    up[n_up++].product.ldx = c->latents.kv_rank + c->rope_dim;
    if (c->latents.q_rank > 0)
        up[n_up++] = latents_linear(t, s, LAYER_Q_B, t->q_a, s->q);
    linears_run(s->compute, s->kernels, up, n_up);
    compute_run(s->compute, s->n_rows * c->n_heads, latents_grain(c->head_dim + c->v_head_dim),
                expand_heads, &g);
}
