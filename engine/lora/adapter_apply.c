/* Rows are sorted by adapter once for each step. Then each call has three regions: rows that are
 * not adjacent are gathered, t = scale * A x, y += B t. The work of a region is cut into tiles of
 * some rows of one adapter and some outputs of one module, with consecutive numbers; no sum is
 * split.
 *
 * The scale is applied to t, not to B t, because t is shorter. */
#include "engine/lora/adapter_apply.h"

#include "engine/lora/adapter_names.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE_ROWS = 32,
    TILE_T = 16,             /* outputs of A in a tile */
    TILE_Y = KERNELS_GRAIN,  /* outputs of B in a tile */
    TILE_WORK_MIN = 65536,   /* multiply-adds that are worth a thread */
    GATHER_WORK_MIN = 16384, /* floats */
    ALIGN = 64
};

/* The rows of one adapter: places [first, first + n) in `order`. */
struct group {
    const struct adapter *adapter; /* borrowed */
    uint32_t first, n;
    bool together; /* they are consecutive rows of the step as well */
};

/* Tiles of one group and one output: numbers [first, first + n_row_tiles * n_out_tiles). */
struct tiles {
    uint64_t first;
    uint32_t group, output;
    uint32_t n_out, n_out_tiles;
};

struct adapter_apply {
    struct model_config cfg;
    uint32_t n_rows_max, rank_max, width_max;
    uint32_t n_groups, n_ordered;

    uint32_t *order;      /* owned; [n_rows_max]: rows by adapter */
    uint32_t *group_of;   /* owned; [n_rows_max] */
    struct group *groups; /* owned; [n_rows_max] */
    struct tiles *tiles;  /* owned; [n_rows_max * ADAPTER_OUTPUTS_MAX] */
    float *x;             /* owned; [n_rows_max][width_max]: gathered, in order */
    float *t;             /* owned; [ADAPTER_OUTPUTS_MAX][n_rows_max][rank_max] */
};

static void *apply_alloc(uint64_t n, size_t nbytes, struct err *e)
{
    void *p = NULL;

    if (n > SIZE_MAX / nbytes || posix_memalign(&p, ALIGN, n * nbytes) != 0) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %" PRIu64 " activations of the adapters",
                      n);
        return NULL;
    }
    return p;
}

static int adapter_apply_allocate_all(struct adapter_apply *s, struct err *e)
{
    uint64_t rows = s->n_rows_max;

    s->order = apply_alloc(rows, sizeof *s->order, e);
    if (s->order == NULL)
        return -1;
    s->group_of = apply_alloc(rows, sizeof *s->group_of, e);
    if (s->group_of == NULL)
        return -1;
    s->groups = apply_alloc(rows, sizeof *s->groups, e);
    if (s->groups == NULL)
        return -1;
    s->tiles = apply_alloc(rows * ADAPTER_OUTPUTS_MAX, sizeof *s->tiles, e);
    if (s->tiles == NULL)
        return -1;
    s->x = apply_alloc(rows * s->width_max, sizeof *s->x, e);
    if (s->x == NULL)
        return -1;
    s->t = apply_alloc(rows * s->rank_max * ADAPTER_OUTPUTS_MAX, sizeof *s->t, e);
    return s->t != NULL ? 0 : -1;
}

int adapter_apply_new(struct adapter_apply **out, const struct model_config *cfg,
                      uint32_t n_rows_max, uint32_t rank_max, struct err *e)
{
    struct adapter_apply *s = calloc(1, sizeof *s);

    assert(n_rows_max >= 1 && rank_max >= 1 && rank_max <= ADAPTER_RANK_MAX);
    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the adapters' scratch");
    s->cfg = *cfg;
    s->n_rows_max = n_rows_max;
    s->rank_max = rank_max;
    for (int m = 0; m < ADAPTER_MODULE_COUNT; m++) {
        uint32_t n_out, n_in;

        adapter_module_shape(cfg, (enum adapter_module)m, &n_out, &n_in);
        s->width_max = s->width_max < n_in ? n_in : s->width_max;
    }
    if (adapter_apply_allocate_all(s, e) != 0) {
        adapter_apply_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void adapter_apply_free(struct adapter_apply *s)
{
    if (s == NULL)
        return;
    free(s->order);
    free(s->group_of);
    free(s->groups);
    free(s->tiles);
    free(s->x);
    free(s->t);
    free(s);
}

/* ---- grouping ---- */

static uint32_t group_for(struct adapter_apply *s, const struct adapter *a, uint32_t likely)
{
    if (likely < s->n_groups && s->groups[likely].adapter == a)
        return likely;
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (s->groups[g].adapter == a)
            return g;
    s->groups[s->n_groups] = (struct group){.adapter = a, .together = true};
    return s->n_groups++;
}

uint32_t adapter_apply_rows(struct adapter_apply *s, const struct adapter *const *adapters,
                            uint32_t n_rows)
{
    uint32_t last = 0, at = 0;

    assert(n_rows <= s->n_rows_max);
    s->n_groups = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        if (adapters[r] == NULL)
            continue;
        assert(adapter_rank(adapters[r]) <= s->rank_max);
        last = s->group_of[r] = group_for(s, adapters[r], last);
        s->groups[last].n++;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        s->groups[g].first = at;
        at += s->groups[g].n;
        s->groups[g].n = 0;
    }
    s->n_ordered = at;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct group *g = adapters[r] != NULL ? &s->groups[s->group_of[r]] : NULL;

        if (g == NULL)
            continue;
        g->together = g->together && (g->n == 0 || s->order[g->first + g->n - 1] == r - 1);
        s->order[g->first + g->n++] = r;
    }
    return s->n_groups;
}

/* ---- one call ---- */

struct call {
    struct adapter_apply *s;
    const struct kernels *kernels;
    const struct adapter_linears *l;
    uint32_t n_in;
    uint32_t n_tiles_lists;
    bool second; /* t is computed: now B */
};

static const struct adapter_pair *pair_of(const struct call *c, const struct tiles *t)
{
    return adapter_pair(c->s->groups[t->group].adapter, c->l->layer,
                        c->l->outputs[t->output].module);
}

static void apply_gather(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct call *c = arg;
    struct adapter_apply *s = c->s;

    (void)thread;
    for (size_t i = first; i < last; i++)
        memcpy(s->x + i * c->n_in, c->l->x + s->order[i] * c->l->ldx, c->n_in * sizeof *s->x);
}

/* t of one output, in the order of the rows. */
static float *t_of(const struct call *c, uint32_t output)
{
    return c->s->t + (size_t)output * c->s->n_rows_max * c->s->rank_max;
}

static void tile_t(const struct call *c, const struct tiles *tiles, uint32_t place, uint32_t n_rows,
                   uint32_t from, uint32_t to)
{
    const struct adapter_apply *s = c->s;
    const struct group *g = &s->groups[tiles->group];
    const struct adapter_pair *p = pair_of(c, tiles);
    float *t = t_of(c, tiles->output) + (size_t)place * s->rank_max;
    struct matmul m = {.x = s->x + (size_t)place * c->n_in,
                       .ldx = c->n_in,
                       .w = p->a,
                       .dtype = p->a_dtype,
                       .y = t,
                       .ldy = s->rank_max,
                       .m = n_rows,
                       .k = c->n_in};

    if (g->together) {
        m.x = c->l->x + s->order[place] * c->l->ldx;
        m.ldx = c->l->ldx;
    }
    kernels_matmul(c->kernels, &m, from, to);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t j = from; j < to; j++)
            t[r * s->rank_max + j] *= p->scale;
}

static void tile_y(const struct call *c, const struct tiles *tiles, uint32_t place, uint32_t n_rows,
                   uint32_t from, uint32_t to)
{
    const struct adapter_apply *s = c->s;
    const struct adapter_output *out = &c->l->outputs[tiles->output];
    const struct adapter_pair *p = pair_of(c, tiles);
    float added[TILE_ROWS][TILE_Y];
    struct matmul m = {.x = t_of(c, tiles->output) + (size_t)place * s->rank_max,
                       .ldx = s->rank_max,
                       .w = (const char *)p->b + (size_t)from * p->r * dtype_nbytes(p->b_dtype),
                       .dtype = p->b_dtype,
                       .y = added[0],
                       .ldy = TILE_Y,
                       .m = n_rows,
                       .k = p->r};

    kernels_matmul(c->kernels, &m, 0, to - from);
    for (size_t r = 0; r < n_rows; r++) {
        float *y = out->y + s->order[place + r] * out->ldy + from;

        for (size_t j = 0; j < to - from; j++)
            y[j] += added[r][j];
    }
}

static void run_tile(const struct call *c, const struct tiles *tiles, uint64_t i)
{
    const struct group *g = &c->s->groups[tiles->group];
    uint32_t width = c->second ? TILE_Y : TILE_T;
    uint32_t row = (uint32_t)(i / tiles->n_out_tiles) * TILE_ROWS;
    uint32_t from = (uint32_t)(i % tiles->n_out_tiles) * width;
    uint32_t n_rows = g->n - row < TILE_ROWS ? g->n - row : TILE_ROWS;
    uint32_t to = tiles->n_out - from < width ? tiles->n_out : from + width;

    (c->second ? tile_y : tile_t)(c, tiles, g->first + row, n_rows, from, to);
}

static void run_tiles(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct call *c = arg;
    const struct tiles *lists = c->s->tiles;
    uint32_t low = 0, high = c->n_tiles_lists;

    (void)thread;
    while (high - low > 1) { /* the last list that begins at or before `first` */
        uint32_t middle = low + (high - low) / 2;

        if (lists[middle].first <= first)
            low = middle;
        else
            high = middle;
    }
    for (uint64_t i = first; i < last; i++) {
        while (low + 1 < c->n_tiles_lists && lists[low + 1].first <= i)
            low++;
        run_tile(c, &lists[low], i - lists[low].first);
    }
}

/* Numbers the tiles of a region; returns how many there are, and the work in all. */
static uint32_t make_tiles(struct call *c, uint64_t *work)
{
    struct adapter_apply *s = c->s;
    uint32_t width = c->second ? TILE_Y : TILE_T;
    uint64_t n = 0;

    c->n_tiles_lists = 0;
    *work = 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        for (uint32_t o = 0; o < c->l->n; o++) {
            struct tiles t = {.first = n, .group = g, .output = o};
            const struct adapter_pair *p = pair_of(c, &t);
            uint32_t n_out, n_in, n_row_tiles = (s->groups[g].n + TILE_ROWS - 1) / TILE_ROWS;

            if (p->r == 0)
                continue;
            adapter_module_shape(&s->cfg, c->l->outputs[o].module, &n_out, &n_in);
            t.n_out = c->second ? n_out : p->r;
            t.n_out_tiles = (t.n_out + width - 1) / width;
            s->tiles[c->n_tiles_lists++] = t;
            n += (uint64_t)n_row_tiles * t.n_out_tiles;
            *work += (uint64_t)s->groups[g].n * p->r * (c->second ? n_out : n_in);
        }
    }
    assert(n <= UINT32_MAX);
    return (uint32_t)n;
}

static bool any_apart(const struct adapter_apply *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (!s->groups[g].together)
            return true;
    return false;
}

static void run_region(struct call *c, struct compute *pool)
{
    uint64_t work;
    uint32_t n = make_tiles(c, &work);

    if (n > 0)
        compute_run(pool, n, (uint32_t)(TILE_WORK_MIN / (work / n + 1) + 1), run_tiles, c);
}

void adapter_apply(struct adapter_apply *s, struct compute *c, const struct kernels *kernels,
                   const struct adapter_linears *l)
{
    struct call call = {.s = s, .kernels = kernels, .l = l};
    uint32_t n_out;

    assert(l->n >= 1 && l->n <= ADAPTER_OUTPUTS_MAX);
    if (s->n_groups == 0)
        return;
    for (uint32_t o = 0; o < l->n; o++) {
        uint32_t n_in;

        adapter_module_shape(&s->cfg, l->outputs[o].module, &n_out, &n_in);
        assert(o == 0 || n_in == call.n_in);
        call.n_in = n_in;
    }
    if (any_apart(s))
        compute_run(c, s->n_ordered, GATHER_WORK_MIN / call.n_in + 1, apply_gather, &call);
    run_region(&call, c);
    call.second = true;
    run_region(&call, c);
}
