/* A sparse layer as five regions of the pool: logits of the router, the choice of each row, then
 * for all active experts at once gate and up, their product, down; last the sum of each row. Rows
 * that share an expert are gathered, so that its weights are read once. */
#include "engine/model/experts.h"

#include "engine/kernels/linear.h"
#include "engine/model/router.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS_ROW_WORK = 8192, EXPERTS_ALIGN = 64 };

struct experts {
    const struct model_config *cfg;      /* borrowed */
    const struct model_spec *model_spec; /* borrowed */
    uint32_t *tensors; /* owned; [n_sparse_layers, n, EXPERT_TENSOR_COUNT]; indexes into the list */
    uint32_t *sparse_index; /* owned; [n_layers]: how many sparse layers are before it */

    /* Of one step. A slot is one row at one of its experts; slots of an expert are neighbours. */
    float *logits;          /* owned; [rows, n] */
    float *scores;          /* owned; [rows, n]; scratch of the router */
    uint16_t *ids;          /* owned; [rows, n_per_token]; best first */
    float *weights;         /* owned; [rows, n_per_token]; of `ids` */
    uint32_t *slots;        /* owned; [rows, n_per_token]; where the row's result of `ids` is */
    uint32_t *slot_rows;    /* owned; [rows * n_per_token] */
    uint32_t *first;        /* owned; [n + 1]: the first slot of each expert */
    struct linear *linears; /* owned; [2 * n + 2] */
    float *x;               /* owned; [slots, hidden_size]: the input, then the result */
    float *gate, *up;       /* owned; [slots, intermediate_size] */
    float *shared_gate, *shared_up; /* owned; [rows, shared_size] */
    float *shared;                  /* owned; [rows, hidden_size]: of the shared experts */
};

/* What a region of the pool gets. */
struct region {
    struct experts *x;
    const struct experts_step *s;
};

/* After an error: nothing more, so that the first one is reported. */
static void *rows_alloc(uint64_t n, size_t nbytes, struct err *e)
{
    void *p = NULL;

    if (e->code != ERR_NONE)
        return NULL;
    if (n > SIZE_MAX / nbytes || posix_memalign(&p, EXPERTS_ALIGN, n * nbytes) != 0) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %" PRIu64 " values of the experts", n);
        return NULL;
    }
    return p;
}

static int experts_bind(uint32_t *out, const struct model_spec *model_spec, const char *name,
                        struct err *e)
{
    *out = tensor_list_find(model_spec->tensor_list, name);
    if (*out == TENSOR_LIST_NO_TENSOR)
        return err_set(e, ERR_MISMATCH, "", "the manifest has no tensor '%s'", name);
    return 0;
}

static int bind_layer(struct experts *x, uint32_t layer, struct err *e)
{
    const struct model_config *c = x->cfg;
    uint32_t *tensors = x->tensors +
                        (size_t)x->sparse_index[layer] * c->experts.n * EXPERT_TENSOR_COUNT;
    char name[MODEL_NAME_MAX];

    for (uint32_t i = 0; i < c->experts.n; i++)
        for (int t = 0; t < EXPERT_TENSOR_COUNT; t++)
            if (experts_bind(tensors++, x->model_spec,
                             expert_tensor_name(c, layer, i, (enum expert_tensor)t, name), e) != 0)
                return -1;
    return 0;
}

static int bind_layers(struct experts *x, struct err *e)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < x->cfg->n_layers; l++) {
        x->sparse_index[l] = n;
        if (!model_layer_is_sparse(x->cfg, l))
            continue;
        n++;
        if (bind_layer(x, l, e) != 0)
            return -1;
    }
    assert(n == x->cfg->experts.n_sparse_layers);
    return 0;
}

static int allocate(struct experts *x, uint32_t n_rows_max, struct err *e)
{
    const struct model_config *c = x->cfg;
    const struct model_experts *ex = &c->experts;
    uint64_t rows = n_rows_max, slots = rows * ex->n_per_token;

    x->sparse_index = rows_alloc(c->n_layers, sizeof *x->sparse_index, e);
    x->tensors = rows_alloc((uint64_t)ex->n_sparse_layers * ex->n * EXPERT_TENSOR_COUNT,
                            sizeof *x->tensors, e);
    x->logits = rows_alloc(rows * ex->n, sizeof *x->logits, e);
    x->scores = rows_alloc(rows * ex->n, sizeof *x->scores, e);
    x->ids = rows_alloc(slots, sizeof *x->ids, e);
    x->weights = rows_alloc(slots, sizeof *x->weights, e);
    x->slots = rows_alloc(slots, sizeof *x->slots, e);
    x->slot_rows = rows_alloc(slots, sizeof *x->slot_rows, e);
    x->first = rows_alloc((uint64_t)ex->n + 1, sizeof *x->first, e);
    x->linears = rows_alloc(2 * ((uint64_t)ex->n + 1), sizeof *x->linears, e);
    x->x = rows_alloc(slots * c->hidden_size, sizeof *x->x, e);
    x->gate = rows_alloc(slots * ex->intermediate_size, sizeof *x->gate, e);
    x->up = rows_alloc(slots * ex->intermediate_size, sizeof *x->up, e);
    x->shared_gate = rows_alloc(rows * ex->shared_size, sizeof *x->shared_gate, e);
    x->shared_up = rows_alloc(rows * ex->shared_size, sizeof *x->shared_up, e);
    x->shared = rows_alloc(ex->shared_size > 0 ? rows * c->hidden_size : 0, sizeof *x->shared, e);
    return e->code == ERR_NONE ? 0 : -1;
}

int experts_new(struct experts **out, const struct model_config *cfg,
                const struct model_spec *model_spec, uint32_t n_rows_max, struct err *e)
{
    struct experts *x = calloc(1, sizeof *x);

    if (x == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the experts");
    x->cfg = cfg;
    x->model_spec = model_spec;
    if (allocate(x, n_rows_max, e) != 0 || bind_layers(x, e) != 0) {
        experts_free(x);
        return -1;
    }
    *out = x;
    return 0;
}

void experts_free(struct experts *x)
{
    if (x == NULL)
        return;
    free(x->sparse_index);
    free(x->tensors);
    free(x->logits);
    free(x->scores);
    free(x->ids);
    free(x->weights);
    free(x->slots);
    free(x->slot_rows);
    free(x->first);
    free(x->linears);
    free(x->x);
    free(x->gate);
    free(x->up);
    free(x->shared_gate);
    free(x->shared_up);
    free(x->shared);
    free(x);
}

static uint32_t experts_rows_grain(uint64_t width)
{
    return width >= EXPERTS_ROW_WORK ? 1 : (uint32_t)(EXPERTS_ROW_WORK / width);
}

static struct linear experts_linear(const struct experts *x, const struct experts_step *s,
                                    uint32_t tensor, const float *in, uint32_t n_rows, float *y)
{
    return linear_of(&x->model_spec->tensor_list->tensors[tensor], s->version->views[tensor].data,
                     in, n_rows, y);
}

static void choose_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct region *g = arg;
    const struct model_experts *ex = &g->x->cfg->experts;
    uint32_t k = ex->n_per_token, bias = g->s->tensors[LAYER_ROUTER_BIAS];

    (void)thread;
    for (size_t r = first; r < last; r++) {
        uint16_t *ids = g->x->ids + r * k;

        router_choose(ex, g->x->logits + r * ex->n,
                      ex->sigmoid ? g->s->version->views[bias].data : NULL,
                      g->x->scores + r * ex->n, ids, g->x->weights + r * k);
        if (g->s->routes[r] != NULL)
            memcpy(g->s->routes[r] + (size_t)g->x->sparse_index[g->s->layer] * k, ids,
                   k * sizeof *ids);
    }
}

/* Gives each row a slot at each of its experts; slots are in order of expert, then of row. */
static void deal_slots(struct experts *x, uint32_t n_rows)
{
    const struct model_experts *ex = &x->cfg->experts;
    uint32_t n_slots = n_rows * ex->n_per_token;

    memset(x->first, 0, ((size_t)ex->n + 1) * sizeof *x->first);
    for (uint32_t i = 0; i < n_slots; i++)
        x->first[x->ids[i] + 1]++;
    for (uint32_t id = 0; id < ex->n; id++)
        x->first[id + 1] += x->first[id];
    for (uint32_t i = 0; i < n_slots; i++) {
        uint32_t slot = x->first[x->ids[i]]++; /* of the expert: the next free one */

        x->slots[i] = slot;
        x->slot_rows[slot] = i / ex->n_per_token;
    }
    for (uint32_t id = ex->n; id > 0; id--)
        x->first[id] = x->first[id - 1];
    x->first[0] = 0;
}

static void gather_slots(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct region *g = arg;
    size_t width = g->x->cfg->hidden_size;

    (void)thread;
    for (size_t slot = first; slot < last; slot++)
        memcpy(g->x->x + slot * width, g->s->h + g->x->slot_rows[slot] * width,
               width * sizeof(float));
}

static void silu_shared(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct region *g = arg;
    size_t width = g->x->cfg->experts.shared_size;

    (void)thread;
    g->s->kernels->silu_mul(g->x->shared_gate + first * width, g->x->shared_up + first * width,
                            (last - first) * width);
}

static void silu_slots(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct region *g = arg;
    size_t width = g->x->cfg->experts.intermediate_size;

    (void)thread;
    g->s->kernels->silu_mul(g->x->gate + first * width, g->x->up + first * width,
                            (last - first) * width);
}

/* In ascending order of id, then the shared ones, as transformers adds them. */
static void sum_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct region *g = arg;
    uint32_t k = g->x->cfg->experts.n_per_token;
    size_t width = g->x->cfg->hidden_size;

    (void)thread;
    for (size_t r = first; r < last; r++) {
        const uint32_t *slots = g->x->slots + r * k;
        float *out = g->s->out + r * width;

        memset(out, 0, width * sizeof *out);
        for (uint32_t n = 0, below = 0; n < k; n++) {
            uint32_t next = UINT32_MAX;
            const float *y;
            float weight;

            for (uint32_t i = 0; i < k; i++)
                if (slots[i] >= below && (next == UINT32_MAX || slots[i] < slots[next]))
                    next = i;
            below = slots[next] + 1;
            y = g->x->x + slots[next] * width;
            weight = g->x->weights[r * k + next];
            for (size_t i = 0; i < width; i++)
                out[i] += weight * y[i];
        }
        for (size_t i = 0; i < width && g->x->cfg->experts.shared_size > 0; i++)
            out[i] += g->x->shared[r * width + i];
    }
}

/* Adds those of the shared experts; returns how many there are then. */
static uint32_t add_shared(struct experts *x, const struct experts_step *s, uint32_t n, bool down)
{
    const uint32_t *t = s->tensors;

    if (x->cfg->experts.shared_size == 0)
        return n;
    if (down) {
        x->linears[n++] = experts_linear(x, s, t[LAYER_SHARED_DOWN], x->shared_gate, s->n_rows,
                                         x->shared);
        return n;
    }
    x->linears[n++] = experts_linear(x, s, t[LAYER_SHARED_GATE], s->h, s->n_rows, x->shared_gate);
    x->linears[n++] = experts_linear(x, s, t[LAYER_SHARED_UP], s->h, s->n_rows, x->shared_up);
    return n;
}

/* Gate and up of all active experts, or their down. */
static void run_experts(struct experts *x, const struct experts_step *s, bool down)
{
    const struct model_config *c = x->cfg;
    const uint32_t *tensors = x->tensors + (size_t)x->sparse_index[s->layer] * c->experts.n *
                                               EXPERT_TENSOR_COUNT;
    size_t width = c->experts.intermediate_size;
    uint32_t n = 0;

    for (uint32_t id = 0; id < c->experts.n; id++, tensors += EXPERT_TENSOR_COUNT) {
        size_t at = x->first[id];
        uint32_t m = x->first[id + 1] - x->first[id];
        float *in = x->x + at * c->hidden_size, *gate = x->gate + at * width;

        if (m == 0)
            continue;
        if (down) {
            x->linears[n++] = experts_linear(x, s, tensors[EXPERT_DOWN], gate, m, in);
            continue;
        }
        x->linears[n++] = experts_linear(x, s, tensors[EXPERT_GATE], in, m, gate);
        x->linears[n++] = experts_linear(x, s, tensors[EXPERT_UP], in, m, x->up + at * width);
    }
    n = add_shared(x, s, n, down);
    linears_run(s->compute, s->kernels, x->linears, n);
}

void experts_run(struct experts *x, const struct experts_step *s)
{
    const struct model_config *c = x->cfg;
    uint32_t n_slots = s->n_rows * c->experts.n_per_token;
    struct region g = {x, s};
    enum layer_tensor gate = c->arch == ARCH_MIXTRAL ? LAYER_BLOCK_ROUTER : LAYER_ROUTER;
    struct linear router = experts_linear(x, s, s->tensors[gate], s->h, s->n_rows, x->logits);

    assert(model_layer_is_sparse(c, s->layer));
    linears_run(s->compute, s->kernels, &router, 1);
    compute_run(s->compute, s->n_rows,
                experts_rows_grain((uint64_t)c->experts.n * c->experts.n_per_token), choose_rows,
                &g);
    deal_slots(x, s->n_rows);
    compute_run(s->compute, n_slots, experts_rows_grain(c->hidden_size), gather_slots, &g);
    run_experts(x, s, false);
    compute_run(s->compute, n_slots, experts_rows_grain(c->experts.intermediate_size), silu_slots,
                &g);
    if (c->experts.shared_size > 0)
        compute_run(s->compute, s->n_rows, experts_rows_grain(c->experts.shared_size), silu_shared,
                    &g);
    run_experts(x, s, true);
    compute_run(s->compute, s->n_rows,
                experts_rows_grain((uint64_t)c->hidden_size * c->experts.n_per_token), sum_rows,
                &g);
}
