/* A decoder as one list of steps over activations that are allocated once. What differs between
 * architectures is data: which tensors a layer has (LAYER_TENSORS) and how angles are made. Weights
 * are looked up in the version at each use; only their index in the tensor list is kept.
 * Rejected: fused or repacked copies for speed, which every update would have to rebuild. */
#include "engine/model/model.h"

#include "base/clock.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/linear.h"
#include "engine/lora/adapter_apply.h"
#include "engine/model/experts.h"
#include "engine/model/latents.h"
#include "weights/model/model_tensors.h"
#include "weights/model/rope.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_WORK_MIN = 8192, /* elements */
    ACTIVATION_ALIGN = 64
};

struct model {
    struct model_config cfg;
    const struct model_spec *model_spec; /* borrowed */
    const struct kernels *kernels;       /* static */
    struct compute *compute;             /* owned */
    uint32_t n_rows_max;
    uint32_t embed, norm, head;             /* indexes into the tensor list */
    uint32_t (*layers)[LAYER_TENSOR_COUNT]; /* owned; [n_layers]; TENSOR_LIST_NO_TENSOR: has none */

    float *frequencies;              /* owned; [rope_dim / 2] */
    uint32_t *wanted;                /* owned; [n_rows_max]; rows that want logits */
    float *scores;                   /* owned; see struct attention */
    float *activations;              /* owned; all of the following are inside it */
    float *x, *h, *delta;            /* [rows, hidden]: the stream, its norm, what is added next */
    float *q, *k, *v, *o;            /* [rows, heads * dimensions of one] */
    float *gate, *up;                /* [rows, intermediate] */
    float *rope;                     /* [rows, rope_dim] */
    float *norm_w, *q_norm, *k_norm; /* a norm's weight, widened for the region that uses it */

    struct latents *latents; /* owned; NULL: queries, keys and values come from x itself */
    struct experts *experts; /* owned; NULL: no layer is sparse */
    uint16_t **routes;       /* owned; [n_rows_max]; of the step's rows */

    struct adapter_apply *apply;         /* owned; NULL: rows have no adapters */
    const struct adapter **row_adapters; /* owned; [n_rows_max]; of the step's rows */

    atomic_uint_fast64_t pulse_us; /* relaxed: a gauge that health reads */
};

/* One call of model_step. */
struct step {
    struct model *m;
    const struct version *v;
    const struct model_row *rows;
    uint32_t n_rows;
    bool adapted;   /* some row has an adapter */
    bool add_delta; /* the next norm first adds delta to x */
};

static int bind_tensor(uint32_t *out, const struct model_spec *model_spec, const char *name,
                       struct err *e)
{
    *out = tensor_list_find(model_spec->tensor_list, name);
    if (*out == TENSOR_LIST_NO_TENSOR)
        return err_set(e, ERR_MISMATCH, "", "the manifest has no tensor '%s'", name);
    return 0;
}

static int bind_tensors(struct model *m, struct err *e)
{
    const struct model_config *c = &m->cfg;
    char name[MODEL_NAME_MAX];

    if (bind_tensor(&m->embed, m->model_spec, MODEL_EMBED_NAME, e) != 0 ||
        bind_tensor(&m->norm, m->model_spec, MODEL_NORM_NAME, e) != 0)
        return -1;
    m->head = m->embed;
    if (!c->tie_word_embeddings && bind_tensor(&m->head, m->model_spec, MODEL_HEAD_NAME, e) != 0)
        return -1;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        for (int t = 0; t < LAYER_TENSOR_COUNT; t++) {
            m->layers[l][t] = TENSOR_LIST_NO_TENSOR;
            if (layer_tensor_needed(c, l, (enum layer_tensor)t) &&
                bind_tensor(&m->layers[l][t], m->model_spec,
                            layer_tensor_name(l, (enum layer_tensor)t, name), e) != 0)
                return -1;
        }
    }
    return 0;
}

static void *model_alloc(uint64_t n, size_t nbytes, struct err *e)
{
    void *p = NULL;

    if (n > SIZE_MAX / nbytes || posix_memalign(&p, ACTIVATION_ALIGN, n * nbytes) != 0) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %" PRIu64 " activations of the model",
                      n);
        return NULL;
    }
    return p;
}

/* Takes n floats, rounded up to whole cache lines; with a NULL base only counts. */
static float *scratch_carve(float *base, uint64_t *used, uint64_t n)
{
    const uint64_t line = ACTIVATION_ALIGN / sizeof(float);
    float *p = base != NULL ? base + *used : NULL;

    *used += (n + line - 1) / line * line;
    return p;
}

static uint64_t carve_all(struct model *m, float *base)
{
    const struct model_config *c = &m->cfg;
    uint64_t used = 0, rows = m->n_rows_max;

    m->x = scratch_carve(base, &used, rows * c->hidden_size);
    m->h = scratch_carve(base, &used, rows * c->hidden_size);
    m->delta = scratch_carve(base, &used, rows * c->hidden_size);
    m->q = scratch_carve(base, &used, rows * MODEL_Q_WIDTH(c));
    m->k = scratch_carve(base, &used, rows * MODEL_K_WIDTH(c));
    m->v = scratch_carve(base, &used, rows * MODEL_V_WIDTH(c));
    m->o = scratch_carve(base, &used, rows * MODEL_O_WIDTH(c));
    m->gate = scratch_carve(base, &used, rows * c->intermediate_size);
    m->up = scratch_carve(base, &used, rows * c->intermediate_size);
    m->rope = scratch_carve(base, &used, rows * c->rope_dim);
    m->norm_w = scratch_carve(base, &used, c->hidden_size);
    m->q_norm = scratch_carve(base, &used, c->head_dim);
    m->k_norm = scratch_carve(base, &used, c->head_dim);
    return used;
}

static int model_allocate_all(struct model *m, uint32_t n_threads, struct err *e)
{
    const struct model_config *c = &m->cfg;
    uint64_t group = c->n_heads / c->n_kv_heads;

    m->layers = model_alloc(c->n_layers, sizeof *m->layers, e);
    if (m->layers == NULL)
        return -1;
    m->frequencies = model_alloc(c->rope_dim / 2, sizeof(float), e);
    if (m->frequencies == NULL)
        return -1;
    m->wanted = model_alloc(m->n_rows_max, sizeof *m->wanted, e);
    if (m->wanted == NULL)
        return -1;
    m->routes = model_alloc(m->n_rows_max, sizeof *m->routes, e);
    if (m->routes == NULL)
        return -1;
    m->scores = model_alloc(n_threads * group * c->max_position_embeddings, sizeof(float), e);
    if (m->scores == NULL)
        return -1;
    m->activations = model_alloc(carve_all(m, NULL), sizeof(float), e);
    if (m->activations == NULL)
        return -1;
    (void)carve_all(m, m->activations);
    return 0;
}

int model_new(struct model **out, const struct model_config *cfg,
              const struct model_spec *model_spec, uint32_t n_rows_max, uint32_t n_threads,
              struct err *e)
{
    struct model *m = calloc(1, sizeof *m);

    assert(n_rows_max >= 1);
    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the model");
    m->cfg = *cfg;
    m->model_spec = model_spec;
    m->kernels = kernels_current();
    m->n_rows_max = n_rows_max;
    if (model_allocate_all(m, n_threads, e) != 0 || bind_tensors(m, e) != 0 ||
        (cfg->latents.kv_rank > 0 &&
         latents_new(&m->latents, &m->cfg, model_spec, n_rows_max, e) != 0) ||
        (cfg->experts.n_sparse_layers > 0 &&
         experts_new(&m->experts, &m->cfg, model_spec, n_rows_max, e) != 0) ||
        compute_new(&m->compute, n_threads, e) != 0) {
        model_free(m);
        return -1;
    }
    rope_frequencies(m->frequencies, &m->cfg);
    *out = m;
    return 0;
}

int model_take_adapters(struct model *m, uint32_t rank_max, struct err *e)
{
    const struct adapter **rows = calloc(m->n_rows_max, sizeof *rows);

    assert(m->apply == NULL);
    if (rows == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the adapters of %" PRIu32 " rows",
                       m->n_rows_max);
    if (adapter_apply_new(&m->apply, &m->cfg, m->n_rows_max, rank_max, e) != 0) {
        free(rows);
        return -1;
    }
    m->row_adapters = rows;
    return 0;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    compute_free(m->compute);
    adapter_apply_free(m->apply);
    latents_free(m->latents);
    experts_free(m->experts);
    free(m->row_adapters);
    free(m->activations);
    free(m->scores);
    free(m->routes);
    free(m->wanted);
    free(m->frequencies);
    free(m->layers);
    free(m);
}

int model_pin(struct model *m, pthread_t caller, struct err *e)
{
    return compute_pin(m->compute, caller, e);
}

struct compute *model_compute(struct model *m)
{
    return m->compute;
}

static const struct tensor_spec *model_tensor_spec_of(const struct model *m, uint32_t index)
{
    return &m->model_spec->tensor_list->tensors[index];
}

static uint32_t model_rows_grain(uint32_t width)
{
    return width >= ROWS_WORK_MIN ? 1 : ROWS_WORK_MIN / width;
}

/* The weight of a norm as float32, or NULL when the model has none. */
static const float *norm_widened(const struct step *s, float *out, uint32_t index)
{
    if (index == TENSOR_LIST_NO_TENSOR)
        return NULL;
    kernels_widen(out, s->v->views[index].data, model_tensor_spec_of(s->m, index)->dtype,
                  model_tensor_spec_of(s->m, index)->numel);
    return out;
}

static void embed_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct step *s = arg;
    const struct model *m = s->m;
    const struct tensor_spec *t = model_tensor_spec_of(m, m->embed);
    size_t width = m->cfg.hidden_size, row_nbytes = width * dtype_nbytes(t->dtype);

    (void)thread;
    for (size_t r = first; r < last; r++) {
        assert(s->rows[r].token < m->cfg.vocab_size);
        kernels_widen(m->x + r * width,
                      (const char *)s->v->views[m->embed].data + s->rows[r].token * row_nbytes,
                      t->dtype, width);
        rope_row(m->rope + r * m->cfg.rope_dim, m->frequencies, &m->cfg, s->rows[r].pos);
    }
}

/* h[out] = norm(x[row]), after the last block's delta has been added to x. */
static void norm_row(const struct step *s, size_t row, size_t out)
{
    const struct model *m = s->m;
    size_t width = m->cfg.hidden_size;
    float *x = m->x + row * width;
    const float *delta = m->delta + row * width;

    if (s->add_delta) {
        for (size_t i = 0; i < width; i++)
            x[i] += delta[i];
    }
    kernels_rms_norm(m->kernels, m->h + out * width, x, m->norm_w, (uint32_t)width,
                     m->cfg.rms_norm_eps);
}

static void norm_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    (void)thread;
    for (size_t r = first; r < last; r++)
        norm_row(arg, r, r);
}

static void norm_wanted(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct step *s = arg;

    (void)thread;
    for (size_t i = first; i < last; i++)
        norm_row(s, s->m->wanted[i], i);
}

static void step_norm(struct step *s, uint32_t weight)
{
    (void)norm_widened(s, s->m->norm_w, weight);
    compute_run(s->m->compute, s->n_rows, model_rows_grain(s->m->cfg.hidden_size), norm_rows, s);
    s->add_delta = true;
}

static struct linear step_linear(const struct step *s, uint32_t weight, uint32_t bias,
                                 const float *x, uint32_t n_rows, float *y)
{
    struct linear l = linear_of(model_tensor_spec_of(s->m, weight), s->v->views[weight].data, x,
                                n_rows, y);

    if (bias != TENSOR_LIST_NO_TENSOR) {
        l.bias = s->v->views[bias].data;
        l.bias_dtype = model_tensor_spec_of(s->m, bias)->dtype;
    }
    return l;
}

/* What the rows' adapters add to the linears that were just run over one input. */
static void step_adapt(const struct step *s, const struct adapter_linears *l)
{
    if (s->adapted)
        adapter_apply(s->m->apply, s->m->compute, s->m->kernels, l);
}

static void adapt_one(const struct step *s, uint32_t layer, enum adapter_module module,
                      const struct linear *linear)
{
    const struct matmul *p = &linear->product;
    struct adapter_linears l = {.layer = layer, .x = p->x, .ldx = p->ldx, .n = 1};

    l.outputs[0] = (struct adapter_output){module, p->y, p->ldy};
    step_adapt(s, &l);
}

static void adapt_qkv(const struct step *s, uint32_t layer)
{
    const struct model *m = s->m;
    size_t k_width = MODEL_K_WIDTH(&m->cfg), v_width = MODEL_V_WIDTH(&m->cfg);
    struct adapter_linears l = {.layer = layer, .x = m->h, .ldx = m->cfg.hidden_size, .n = 3};

    l.outputs[0] = (struct adapter_output){ADAPTER_Q, m->q, MODEL_Q_WIDTH(&m->cfg)};
    l.outputs[1] = (struct adapter_output){ADAPTER_K, m->k, k_width};
    l.outputs[2] = (struct adapter_output){ADAPTER_V, m->v, v_width};
    step_adapt(s, &l);
}

static void adapt_gate_up(const struct step *s, uint32_t layer)
{
    const struct model *m = s->m;
    size_t width = m->cfg.intermediate_size;
    struct adapter_linears l = {.layer = layer, .x = m->h, .ldx = m->cfg.hidden_size, .n = 2};

    l.outputs[0] = (struct adapter_output){ADAPTER_GATE, m->gate, width};
    l.outputs[1] = (struct adapter_output){ADAPTER_UP, m->up, width};
    step_adapt(s, &l);
}

/* Queries, keys and values of all rows, from their norms. */
static void project_qkv(struct step *s, uint32_t layer)
{
    struct model *m = s->m;
    const uint32_t *t = m->layers[layer];
    struct linear qkv[3];

    if (m->latents != NULL) {
        latents_run(m->latents, &(struct latents_step){.compute = m->compute,
                                                       .kernels = m->kernels,
                                                       .version = s->v,
                                                       .tensors = t,
                                                       .n_rows = s->n_rows,
                                                       .h = m->h,
                                                       .q = m->q,
                                                       .k = m->k,
                                                       .v = m->v});
        return;
    }
    qkv[0] = step_linear(s, t[LAYER_Q], t[LAYER_Q_BIAS], m->h, s->n_rows, m->q);
    qkv[1] = step_linear(s, t[LAYER_K], t[LAYER_K_BIAS], m->h, s->n_rows, m->k);
    qkv[2] = step_linear(s, t[LAYER_V], t[LAYER_V_BIAS], m->h, s->n_rows, m->v);
    linears_run(m->compute, m->kernels, qkv, 3);
}

static void attention_block(struct step *s, uint32_t layer)
{
    struct model *m = s->m;
    const uint32_t *t = m->layers[layer];
    struct linear out;
    struct attention a = {.cfg = &m->cfg,
                          .kernels = m->kernels,
                          .layer = layer,
                          .n_rows = s->n_rows,
                          .rows = s->rows,
                          .q = m->q,
                          .k = m->k,
                          .v = m->v,
                          .o = m->o,
                          .rope = m->rope,
                          .scores = m->scores};

    step_norm(s, t[LAYER_ATTN_NORM]);
    project_qkv(s, layer);
    adapt_qkv(s, layer);
    a.q_norm = norm_widened(s, m->q_norm, t[LAYER_Q_NORM]);
    a.k_norm = norm_widened(s, m->k_norm, t[LAYER_K_NORM]);
    attention_run(&a, m->compute);
    out = step_linear(s, t[LAYER_O], t[LAYER_O_BIAS], m->o, s->n_rows, m->delta);
    linears_run(m->compute, m->kernels, &out, 1);
    adapt_one(s, layer, ADAPTER_O, &out);
}

static void silu_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct step *s = arg;
    size_t width = s->m->cfg.intermediate_size;

    (void)thread;
    s->m->kernels->silu_mul(s->m->gate + first * width, s->m->up + first * width,
                            (last - first) * width);
}

static void mlp_block(struct step *s, uint32_t layer)
{
    struct model *m = s->m;
    const uint32_t *t = m->layers[layer];
    uint32_t width = m->cfg.intermediate_size;
    struct linear in[2], out;

    step_norm(s, t[LAYER_MLP_NORM]);
    in[0] = step_linear(s, t[LAYER_GATE], t[LAYER_GATE_BIAS], m->h, s->n_rows, m->gate);
    in[1] = step_linear(s, t[LAYER_UP], t[LAYER_UP_BIAS], m->h, s->n_rows, m->up);
    linears_run(m->compute, m->kernels, in, 2);
    adapt_gate_up(s, layer);
    compute_run(m->compute, s->n_rows, model_rows_grain(width), silu_rows, s);
    out = step_linear(s, t[LAYER_DOWN], t[LAYER_DOWN_BIAS], m->gate, s->n_rows, m->delta);
    linears_run(m->compute, m->kernels, &out, 1);
    adapt_one(s, layer, ADAPTER_DOWN, &out);
}

static void experts_block(struct step *s, uint32_t layer)
{
    struct model *m = s->m;
    struct experts_step run = {.compute = m->compute,
                               .kernels = m->kernels,
                               .version = s->v,
                               .layer = layer,
                               .tensors = m->layers[layer],
                               .n_rows = s->n_rows,
                               .h = m->h,
                               .out = m->delta,
                               .routes = m->routes};

    step_norm(s, m->layers[layer][LAYER_MLP_NORM]);
    experts_run(m->experts, &run);
}

static void logits_of_wanted(struct step *s, float *logits)
{
    struct model *m = s->m;
    struct linear head;
    uint32_t n = 0;

    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->rows[r].want_logits)
            m->wanted[n++] = r;
    }
    if (n == 0)
        return;
    (void)norm_widened(s, m->norm_w, m->norm);
    compute_run(m->compute, n, model_rows_grain(m->cfg.hidden_size), norm_wanted, s);
    head = step_linear(s, m->head, TENSOR_LIST_NO_TENSOR, m->h, n, logits);
    linears_run(m->compute, m->kernels, &head, 1);
}

/* Returns: has some row an adapter? */
static bool take_adapters(struct model *m, const struct model_row *rows, uint32_t n_rows)
{
    bool any = false;

    for (uint32_t r = 0; r < n_rows && !any; r++)
        any = rows[r].adapter != NULL;
    if (!any)
        return false;
    assert(m->apply != NULL);
    for (uint32_t r = 0; r < n_rows; r++)
        m->row_adapters[r] = rows[r].adapter;
    (void)adapter_apply_rows(m->apply, m->row_adapters, n_rows);
    return true;
}

void model_step(struct model *m, const struct version *v, const struct model_row *rows,
                uint32_t n_rows, float *logits)
{
    struct step s = {.m = m, .v = v, .rows = rows, .n_rows = n_rows};

    assert(n_rows <= m->n_rows_max);
    if (n_rows == 0)
        return;
    s.adapted = take_adapters(m, rows, n_rows);
    for (uint32_t r = 0; r < n_rows; r++)
        m->routes[r] = rows[r].routes;
    compute_run(m->compute, n_rows, model_rows_grain(m->cfg.hidden_size), embed_rows, &s);
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        attention_block(&s, l);
        if (model_layer_is_sparse(&m->cfg, l))
            experts_block(&s, l);
        else
            mlp_block(&s, l);
        atomic_store_explicit(&m->pulse_us, clock_now_us(), memory_order_relaxed);
    }
    logits_of_wanted(&s, logits);
}

uint64_t model_pulse(const struct model *m)
{
    return atomic_load_explicit(&m->pulse_us, memory_order_relaxed);
}
