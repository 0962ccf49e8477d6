/* Modules, and the kernels in them: any image holds all that the fake knows, done by its own plain
 * loops. */
#include "memory/copy_sum.h"
#include "memory/scatter.h"
#include "tests/fakes/libcuda/fakecuda_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUmod_st {
    size_t n_functions;
};

/* Where a GPU's kernel reads or writes what is not mapped, its context is lost: nothing that a
 * program should go on from. */
static char *reach(const char *kernel, CUdeviceptr at, size_t nbytes)
{
    char *view = fake_view(at, nbytes);

    if (view == NULL) {
        (void)fprintf(stderr, "fakecuda: %s: no %zu bytes at %#llx\n", kernel, nbytes, at);
        abort();
    }
    return view;
}

/* void fake_fill(uint8_t *dst, size_t nbytes, uint8_t value) */
static void run_fill(const uint64_t *params, unsigned n_blocks)
{
    (void)n_blocks;
    memset(reach("fake_fill", params[0], params[1]), (int)(params[2] & 0xff), params[1]);
}

/* Adds the bytes [from, to) of a piece to its sums. */
static void add_words(struct copy_sum_made *made, const char *bytes, uint64_t from, uint64_t to)
{
    uint64_t end;

    for (uint64_t at = from; at < to; at = end) {
        uint64_t word = at / 4, value = 0;

        end = (word + 1) * 4 < to ? (word + 1) * 4 : to;
        for (uint64_t i = at; i < end; i++)
            value += (uint64_t)(unsigned char)bytes[i - from] << (8 * (i % 4));
        made->a += value;
        made->b += (word + 1) * value;
    }
}

/* Is there a number that is not finite in the bytes that lie at [lo, hi) of the destination? */
static bool look(const struct copy_sum_piece *p, const char *bytes, uint64_t lo, uint64_t hi)
{
    uint64_t end;

    for (uint64_t at = lo; at < hi; at = end) {
        uint32_t word = 0;

        end = (at / 4 + 1) * 4 < hi ? (at / 4 + 1) * 4 : hi;
        for (uint64_t i = at; i < end; i++)
            word |= (uint32_t)(unsigned char)bytes[i - lo] << (8 * (i % 4));
        if ((((word & p->mask) + p->step) & (word | p->keep) & p->top) != 0)
            return true;
    }
    return false;
}

/* One block: the part of its piece that lies in its tile. */
static void copy_sum_tile(const struct copy_sum_piece *p, uint64_t index,
                          struct copy_sum_made *made)
{
    uint64_t base = p->dst - p->dst % COPY_SUM_ALIGN;
    uint64_t lo = base + index * COPY_SUM_TILE_NBYTES;
    uint64_t hi = lo + COPY_SUM_TILE_NBYTES;
    const char *src;

    lo = lo < p->dst ? p->dst : lo;
    hi = hi > p->dst + p->nbytes ? p->dst + p->nbytes : hi;
    if (lo >= hi) {
        (void)fprintf(stderr, "fakecuda: " COPY_SUM_KERNEL ": a tile outside its piece\n");
        abort();
    }
    src = reach(COPY_SUM_KERNEL, p->src + (lo - p->dst), hi - lo);
    if (p->src != p->dst)
        memcpy(reach(COPY_SUM_KERNEL, lo, hi - lo), src, hi - lo);
    if (made == NULL)
        return;
    add_words(made, src, lo - p->dst, hi - p->dst);
    if (p->mask != 0 && look(p, src, lo, hi))
        made->found = 1;
}

/* void baton_copy_sum(const struct copy_sum_piece *pieces, const uint32_t *tile_piece,
 *                     struct copy_sum_made *made) */
static void run_copy_sum(const uint64_t *params, unsigned n_blocks)
{
    const char *tile_piece = reach(COPY_SUM_KERNEL, params[1], 4 * (size_t)n_blocks);

    for (unsigned block = 0; block < n_blocks; block++) {
        struct copy_sum_piece p;
        struct copy_sum_made made;
        char *made_at = NULL;
        uint32_t i;

        memcpy(&i, tile_piece + 4 * (size_t)block, 4);
        memcpy(&p, reach(COPY_SUM_KERNEL, params[0] + i * sizeof p, sizeof p), sizeof p);
        if (params[2] != 0) {
            made_at = reach(COPY_SUM_KERNEL, params[2] + i * sizeof made, sizeof made);
            memcpy(&made, made_at, sizeof made);
        }
        copy_sum_tile(&p, block - p.first_tile, made_at != NULL ? &made : NULL);
        if (made_at != NULL)
            memcpy(made_at, &made, sizeof made);
    }
}

/* A block's tile of a piece, and where the piece's bytes are. */
struct scatter_tile {
    struct scatter_piece p;
    uint32_t i;        /* of the piece */
    uint64_t first, n; /* entries */
    const char *positions, *values;
    char *dst;
};

static uint64_t number(const char *array, uint64_t i, uint32_t nbytes)
{
    uint64_t value = 0;

    memcpy(&value, array + i * nbytes, nbytes);
    return value;
}

static struct scatter_tile scatter_tile(const char *kernel, const uint64_t *params, unsigned block)
{
    struct scatter_tile t = {.i = 0};
    uint64_t nbytes;

    memcpy(&t.i, reach(kernel, params[1] + 4 * (uint64_t)block, 4), 4);
    memcpy(&t.p, reach(kernel, params[0] + t.i * sizeof t.p, sizeof t.p), sizeof t.p);
    if (block < t.p.first_tile || block - t.p.first_tile >= t.p.n_tiles) {
        (void)fprintf(stderr, "fakecuda: %s: a tile outside its piece\n", kernel);
        abort();
    }
    t.first = (uint64_t)(block - t.p.first_tile) * SCATTER_TILE;
    t.n = scatter_entries(&t.p) - t.first;
    if (t.n > SCATTER_TILE)
        t.n = SCATTER_TILE;
    nbytes = t.p.kind == SCATTER_GAP      ? 2
             : t.p.kind == SCATTER_BITMAP ? 1
             : t.p.kind == SCATTER_INDEX  ? t.p.position_nbytes
                                          : 0;
    nbytes *= scatter_entries(&t.p);
    t.positions = nbytes > 0 ? reach(kernel, t.p.positions, nbytes) : NULL;
    t.values = t.p.n_values > 0 ? reach(kernel, t.p.values, t.p.n_values * t.p.unit) : NULL;
    t.dst = t.p.n_units > 0 ? reach(kernel, t.p.dst, t.p.n_units * t.p.unit) : NULL;
    return t;
}

static bool scatter_counts(const struct scatter_piece *p)
{
    return p->kind == SCATTER_GAP || p->kind == SCATTER_BITMAP;
}

static uint64_t scatter_count(const struct scatter_tile *t, uint64_t k)
{
    if (t->p.kind == SCATTER_GAP)
        return number(t->positions, k, 2) + 1;
    return (uint64_t)__builtin_popcountll(number(t->positions, k, 1));
}

static void scatter_refuse(const char *kernel, uint64_t array, uint64_t i)
{
    struct copy_sum_made made;
    char *at = reach(kernel, array + i * sizeof made, sizeof made);

    memcpy(&made, at, sizeof made);
    made.found = 1;
    memcpy(at, &made, sizeof made);
}

/* void baton_scatter_sum(const struct scatter_piece *pieces, const uint32_t *tile_piece,
 *                        uint64_t *sums) */
static void run_scatter_sum(const uint64_t *params, unsigned n_blocks)
{
    for (unsigned block = 0; block < n_blocks; block++) {
        struct scatter_tile t = scatter_tile(SCATTER_SUM_KERNEL, params, block);
        uint64_t sum = 0;

        if (!scatter_counts(&t.p))
            continue;
        for (uint64_t k = t.first; k < t.first + t.n; k++)
            sum += scatter_count(&t, k);
        memcpy(reach(SCATTER_SUM_KERNEL, params[2] + 8 * (uint64_t)block, 8), &sum, 8);
    }
}

/* void baton_scatter_scan(const struct scatter_piece *pieces, uint64_t *sums,
 *                         struct copy_sum_made *made) */
static void run_scatter_scan(const uint64_t *params, unsigned n_blocks)
{
    for (unsigned block = 0; block < n_blocks; block++) {
        struct scatter_piece p;
        uint64_t done = 0, sum;

        memcpy(&p, reach(SCATTER_SCAN_KERNEL, params[0] + block * sizeof p, sizeof p), sizeof p);
        for (uint32_t tile = 0; scatter_counts(&p) && tile < p.n_tiles; tile++) {
            char *at = reach(SCATTER_SCAN_KERNEL, params[1] + 8 * (p.first_tile + (uint64_t)tile),
                             8);

            memcpy(&sum, at, 8);
            memcpy(at, &done, 8);
            done += sum;
        }
        if (p.kind == SCATTER_BITMAP && done != p.n_values)
            scatter_refuse(SCATTER_SCAN_KERNEL, params[2], block);
    }
}

/* Returns false if it is out of range. */
static bool scatter_unit(const struct scatter_tile *t, uint64_t at, uint64_t k)
{
    uint64_t value;

    if (at >= t->p.n_units || k >= t->p.n_values)
        return false;
    value = number(t->values, k, t->p.unit);
    if (t->p.kind != SCATTER_INDEX)
        value ^= number(t->dst, at, t->p.unit);
    memcpy(t->dst + at * t->p.unit, &value, t->p.unit);
    return true;
}

/* Entry k. @before  what the entries before it count; is brought up to date */
static bool scatter_entry(const struct scatter_tile *t, uint64_t k, uint64_t *before)
{
    uint32_t width = t->p.position_nbytes;
    uint64_t at = k, bits;
    bool good = true;

    if (t->p.kind == SCATTER_BITMAP) {
        for (bits = number(t->positions, k, 1); bits != 0; bits &= bits - 1)
            good &= scatter_unit(t, k * 8 + (uint64_t)__builtin_ctzll(bits), (*before)++);
        return good;
    }
    if (t->p.kind == SCATTER_GAP) {
        *before += scatter_count(t, k);
        at = *before - 1;
    } else if (t->p.kind == SCATTER_INDEX) {
        at = number(t->positions, k, width);
        if (k > 0 && number(t->positions, k - 1, width) >= at)
            return false;
    }
    return scatter_unit(t, at, k);
}

/* void baton_scatter_apply(const struct scatter_piece *pieces, const uint32_t *tile_piece,
 *                          const uint64_t *sums, struct copy_sum_made *made) */
static void run_scatter_apply(const uint64_t *params, unsigned n_blocks)
{
    for (unsigned block = 0; block < n_blocks; block++) {
        struct scatter_tile t = scatter_tile(SCATTER_APPLY_KERNEL, params, block);
        uint64_t before = 0;
        bool good = true;

        if (scatter_counts(&t.p))
            memcpy(&before, reach(SCATTER_APPLY_KERNEL, params[2] + 8 * (uint64_t)block, 8), 8);
        for (uint64_t k = t.first; k < t.first + t.n; k++)
            good &= scatter_entry(&t, k, &before);
        if (!good)
            scatter_refuse(SCATTER_APPLY_KERNEL, params[3], t.i);
    }
}

static struct CUfunc_st kernels[] = {
    {"fake_fill", 3, {8, 8, 1}, 0, run_fill},
    {COPY_SUM_KERNEL, 3, {8, 8, 8}, COPY_SUM_THREADS, run_copy_sum},
    {SCATTER_SUM_KERNEL, 3, {8, 8, 8}, SCATTER_THREADS, run_scatter_sum},
    {SCATTER_SCAN_KERNEL, 3, {8, 8, 8}, SCATTER_THREADS, run_scatter_scan},
    {SCATTER_APPLY_KERNEL, 4, {8, 8, 8, 8}, SCATTER_THREADS, run_scatter_apply},
};

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUresult result = fake_enter_context("cuModuleLoadData");
    struct CUmod_st *m;

    if (result != CUDA_SUCCESS)
        return result;
    if (image == NULL)
        return CUDA_ERROR_INVALID_IMAGE;
    m = calloc(1, sizeof *m);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->n_functions = sizeof kernels / sizeof kernels[0];
    (void)pthread_mutex_lock(&fake.lock);
    fake.counts.n_modules++;
    (void)pthread_mutex_unlock(&fake.lock);
    *module = m;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    CUresult result = fake_enter_context("cuModuleUnload");

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    (void)pthread_mutex_lock(&fake.lock);
    fake.counts.n_modules--;
    (void)pthread_mutex_unlock(&fake.lock);
    free(module);
    return result;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = fake_enter_context("cuModuleGetFunction");

    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < module->n_functions; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            *function = &kernels[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}
