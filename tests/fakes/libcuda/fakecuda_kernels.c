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

/* A piece, and where its bytes are. */
struct scatter {
    struct scatter_piece p;
    uint64_t n_units, n_entries;
    const char *positions, *values, *src;
    char *dst;
};

static uint64_t number(const char *array, uint64_t i, uint32_t nbytes)
{
    uint64_t value = 0;

    memcpy(&value, array + i * nbytes, nbytes);
    return value;
}

static const char *reach_some(const char *kernel, CUdeviceptr at, size_t nbytes)
{
    return nbytes > 0 ? reach(kernel, at, nbytes) : NULL;
}

static struct scatter scatter_of(const char *kernel, uint64_t pieces, uint32_t i)
{
    struct scatter s;
    uint64_t width;

    memcpy(&s.p, reach(kernel, pieces + i * sizeof s.p, sizeof s.p), sizeof s.p);
    s.n_units = s.p.copy.nbytes / s.p.unit;
    s.n_entries = scatter_entries(&s.p);
    width = s.p.kind == SCATTER_GAP ? 2 : s.p.kind == SCATTER_BITMAP ? 1 : s.p.position_nbytes;
    s.positions = reach_some(kernel, s.p.positions, s.n_entries * width);
    s.values = reach_some(kernel, s.p.values, s.p.n_values * s.p.unit);
    s.src = reach_some(kernel, s.p.copy.src, s.p.copy.nbytes);
    s.dst = (char *)(uintptr_t)reach_some(kernel, s.p.copy.dst, s.p.copy.nbytes);
    return s;
}

/* The pieces of the blocks, each of which is a run or a tile of one, in order. */
static uint32_t piece_of_block(const char *kernel, const uint64_t *params, unsigned block)
{
    uint32_t i;

    memcpy(&i, reach(kernel, params[1] + 4 * (uint64_t)block, 4), 4);
    return i;
}

/* Returns false if it is out of range. */
static bool scatter_unit(const struct scatter *s, uint64_t at, uint64_t k)
{
    uint64_t value;

    if (at >= s->n_units || k >= s->p.n_values)
        return false;
    value = number(s->values, k, s->p.unit);
    if (s->p.kind != SCATTER_INDEX)
        value ^= number(s->dst, at, s->p.unit);
    memcpy(s->dst + at * s->p.unit, &value, s->p.unit);
    return true;
}

/* Entry k. @before  what the entries before it count; is brought up to date */
static bool scatter_entry(const struct scatter *s, uint64_t k, uint64_t *before)
{
    uint32_t width = s->p.position_nbytes;
    uint64_t at, bits;
    bool good = true;

    if (s->p.kind == SCATTER_BITMAP) {
        for (bits = number(s->positions, k, 1); bits != 0; bits &= bits - 1)
            good &= scatter_unit(s, k * 8 + (uint64_t)__builtin_ctzll(bits), (*before)++);
        return good;
    }
    if (s->p.kind == SCATTER_GAP) {
        *before += number(s->positions, k, 2) + 1;
        at = *before - 1;
    } else {
        at = number(s->positions, k, width);
        if (k > 0 && number(s->positions, k - 1, width) >= at)
            return false;
    }
    return scatter_unit(s, at, k);
}

static void scatter_piece(const struct scatter *s, struct copy_sum_made *made)
{
    const struct copy_sum_piece *copy = &s->p.copy;
    uint64_t before = 0;
    bool good = true;

    if (copy->nbytes > 0)
        memmove(s->dst, s->src, copy->nbytes);
    for (uint64_t i = 0; s->p.kind == SCATTER_ALL && i < s->n_units; i++)
        good &= scatter_unit(s, i, i);
    for (uint64_t k = 0; k < s->n_entries; k++)
        good &= scatter_entry(s, k, &before);
    if (!good || (s->p.kind == SCATTER_BITMAP && before != s->p.n_values))
        made->found |= SCATTER_REFUSED;
    add_words(made, s->dst, 0, copy->nbytes);
    if (copy->mask != 0 && look(copy, s->dst, copy->dst, copy->dst + copy->nbytes))
        made->found |= SCATTER_NOT_FINITE;
}

/* void baton_scatter_sum(const struct scatter_piece *pieces, const uint32_t *run_piece,
 *                        uint64_t *sums)
 * void baton_scatter_mark(const struct scatter_piece *pieces, const uint32_t *run_piece,
 *                         const uint64_t *sums, struct scatter_mark *marks,
 *                         struct copy_sum_made *made)
 * A piece is made at once, by its first block in the last launch; one without bytes, which has no
 * tiles, is refused here. */
static void run_scatter_sum(const uint64_t *params, unsigned n_blocks)
{
    (void)reach(SCATTER_SUM_KERNEL, params[2], 8 * (size_t)n_blocks);
}

static void run_scatter_mark(const uint64_t *params, unsigned n_blocks)
{
    (void)reach(SCATTER_MARK_KERNEL, params[2], 8 * (size_t)n_blocks);
    for (unsigned block = 0; block < n_blocks; block++) {
        uint32_t i = piece_of_block(SCATTER_MARK_KERNEL, params, block);
        struct scatter s = scatter_of(SCATTER_MARK_KERNEL, params[0], i);
        struct copy_sum_made *made = (void *)reach(SCATTER_MARK_KERNEL,
                                                   params[4] + i * sizeof *made, sizeof *made);

        if (block < s.p.first_run || block - s.p.first_run >= s.p.n_runs) {
            (void)fprintf(stderr, "fakecuda: " SCATTER_MARK_KERNEL ": a run outside its piece\n");
            abort();
        }
        if (s.p.n_tiles == 0)
            made->found |= SCATTER_REFUSED;
    }
}

/* void baton_scatter_scan(const struct scatter_piece *pieces, uint64_t *sums,
 *                         struct copy_sum_made *made) */
static void run_scatter_scan(const uint64_t *params, unsigned n_blocks)
{
    for (unsigned block = 0; block < n_blocks; block++)
        (void)scatter_of(SCATTER_SCAN_KERNEL, params[0], block);
}

/* void baton_scatter_apply(const struct scatter_piece *pieces, const uint32_t *tile_piece,
 *                          const struct scatter_mark *marks, struct copy_sum_made *made) */
static void run_scatter_apply(const uint64_t *params, unsigned n_blocks)
{
    (void)reach(SCATTER_APPLY_KERNEL, params[2], sizeof(struct scatter_mark) * n_blocks);
    for (unsigned block = 0; block < n_blocks; block++) {
        uint32_t i = piece_of_block(SCATTER_APPLY_KERNEL, params, block);
        struct scatter s = scatter_of(SCATTER_APPLY_KERNEL, params[0], i);
        struct copy_sum_made *made = (void *)reach(SCATTER_APPLY_KERNEL,
                                                   params[3] + i * sizeof *made, sizeof *made);

        if (block < s.p.copy.first_tile || block - s.p.copy.first_tile >= s.p.n_tiles) {
            (void)fprintf(stderr, "fakecuda: " SCATTER_APPLY_KERNEL ": a tile outside its piece\n");
            abort();
        }
        if (block == s.p.copy.first_tile)
            scatter_piece(&s, made);
    }
}

static struct CUfunc_st kernels[] = {
    {"fake_fill", 3, {8, 8, 1}, 0, run_fill},
    {COPY_SUM_KERNEL, 3, {8, 8, 8}, COPY_SUM_THREADS, run_copy_sum},
    {SCATTER_SUM_KERNEL, 3, {8, 8, 8}, SCATTER_THREADS, run_scatter_sum},
    {SCATTER_SCAN_KERNEL, 3, {8, 8, 8}, SCATTER_THREADS, run_scatter_scan},
    {SCATTER_MARK_KERNEL, 5, {8, 8, 8, 8, 8}, SCATTER_THREADS, run_scatter_mark},
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
