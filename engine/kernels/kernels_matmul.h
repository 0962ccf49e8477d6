/* The loops of a matrix product, written once over the vectors of one instruction set and compiled
 * into its kernels_*.c, which first defines
 *   vec, VEC_LANES   a vector of 8 or 16 float32; PASSES of them hold the 16 lanes of a dot
 *   BLOCK_M          tokens of a block; times BLOCK_N outputs it fills the registers; and
 *   BLOCK_M_KINDS    how many powers of two there are up to it
 *   vec_zero, vec_load, vec_store, vec_fma (a * b + c)
 *   vec_widen(p, dtype, pass)  the lanes of a pass out of the 16 elements at p; which lanes those
 *                    are is the file's business, if it is the same for every dtype
 *   reduce_4(y, sums)  y[0..3] = the canonical sums of sums[0..3], each PASSES vectors; reduce_1
 * and then the functions of each dtype, by SWEEP and MATMUL.
 *
 * The lanes of a dot never meet before the end. So vectors of 8 pass twice over weights that the
 * first-level cache holds, and have registers for as large a block; and sums may rest in memory
 * between two stretches of k: neither changes a bit.
 *
 * Rejected: widening weights once into a buffer for all tokens (measured: slower for 16 tokens, no
 * faster for 64). */
#ifndef BATON_ENGINE_KERNELS_KERNELS_MATMUL_H
#define BATON_ENGINE_KERNELS_KERNELS_MATMUL_H

#include "engine/kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    BLOCK_N = 3,
    TILE_N = 12,    /* outputs whose weights stay in the second-level cache for all tokens */
    STRETCH = 1024, /* of k: a block's rows of it stay in the first-level cache */
    ONE_TOKEN_N = 4,
    PASSES = KERNELS_LANES / VEC_LANES,
    LINE_NBYTES = 64
};

typedef float lanes[KERNELS_LANES]; /* the running sums of one dot */

INLINE size_t element_nbytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

/* The n < 16 elements at p, zeros after them; reads nothing else. */
INLINE void pad(char *out, const char *p, enum dtype dtype, size_t n)
{
    memset(out, 0, sizeof(lanes));
    memcpy(out, p, n * element_nbytes(dtype));
}

/* One step of k: 16 elements of mt tokens, ldx apart, and of nt outputs, ldw bytes apart. */
INLINE void step(vec acc[BLOCK_M][BLOCK_N], const float *x, size_t ldx, const char *w, size_t ldw,
                 enum dtype dtype, size_t pass, size_t mt, size_t nt)
{
    vec wv[BLOCK_N], xv;

    UNROLL
    for (size_t j = 0; j < nt; j++)
        wv[j] = vec_widen(w + j * ldw, dtype, pass);
    UNROLL
    for (size_t i = 0; i < mt; i++) {
        xv = vec_widen((const char *)(x + i * ldx), DTYPE_F32, pass);
        if (PASSES == 1)
            __asm__("" : "+v"(xv)); /* one load, not one for each output */
        UNROLL
        for (size_t j = 0; j < nt; j++)
            acc[i][j] = vec_fma(xv, wv[j], acc[i][j]);
    }
}

INLINE void last_step(vec acc[BLOCK_M][BLOCK_N], const float *x, size_t ldx, const char *w,
                      size_t ldw, enum dtype dtype, size_t n, size_t pass, size_t mt, size_t nt)
{
    float xs[BLOCK_M][KERNELS_LANES];
    char ws[BLOCK_N][sizeof(lanes)];

    for (size_t i = 0; i < mt; i++)
        pad((char *)xs[i], (const char *)(x + i * ldx), DTYPE_F32, n);
    for (size_t j = 0; j < nt; j++)
        pad(ws[j], w + j * ldw, dtype, n);
    step(acc, xs[0], KERNELS_LANES, ws[0], sizeof ws[0], dtype, pass, mt, nt);
}

/* One pass of a block over n elements of k. */
struct sweep {
    lanes (*sums)[TILE_N]; /* [token][output] */
    const float *x;
    const char *w;
    size_t ldx, ldw, n;
    const char *soon; /* memory to ask for, soon_step bytes further at each step */
    size_t soon_step;
    bool first; /* the sums begin here */
};

/* A small batch has few steps in which to ask for the next tile's lines. */
INLINE size_t lines_each_step(size_t mt)
{
    return PASSES == 1 && mt <= 4 ? 2 : 1;
}

INLINE void sweep(const struct sweep *s, enum dtype dtype, size_t pass, size_t mt, size_t nt)
{
    const size_t ldx = s->ldx, ldw = s->ldw, soon_step = s->soon_step;
    const float *x = s->x;
    const char *w = s->w, *soon = s->soon;
    vec acc[BLOCK_M][BLOCK_N];

    UNROLL
    for (size_t i = 0; i < mt; i++) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            acc[i][j] = s->first ? vec_zero() : vec_load(&s->sums[i][j][pass * VEC_LANES]);
    }
    for (size_t n = s->n / KERNELS_LANES; n > 0; n--) {
        __builtin_prefetch(soon, 0, 2);
        if (lines_each_step(mt) == 2)
            __builtin_prefetch(soon + LINE_NBYTES, 0, 2);
        step(acc, x, ldx, w, ldw, dtype, pass, mt, nt);
        soon += soon_step;
        x += KERNELS_LANES;
        w += KERNELS_LANES * element_nbytes(dtype);
    }
    if (s->n % KERNELS_LANES > 0)
        last_step(acc, x, ldx, w, ldw, dtype, s->n % KERNELS_LANES, pass, mt, nt);
    UNROLL
    for (size_t i = 0; i < mt; i++) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            vec_store(&s->sums[i][j][pass * VEC_LANES], acc[i][j]);
    }
}

typedef void sweep_fn(const struct sweep *s);

/* For 1, 2, 4, ... BLOCK_M tokens and 1, 2, 3 outputs. */
typedef sweep_fn *const sweeps[BLOCK_M_KINDS][BLOCK_N][PASSES];

/* tell_reads reports to ThreadSanitizer once what the sweeps read of w and x. A report for each
 * load took four fifths of a step there. The sweeps write nothing that another thread uses. */
#if defined(__SANITIZE_THREAD__)
#define UNWATCHED __attribute__((no_sanitize("thread")))
void __tsan_read_range(void *p, unsigned long n);
#else
#define UNWATCHED
#endif

/* Functions of their own, because what else lived in registers would cost sums theirs. */
#define SWEEP(name, dtype, mt, nt, pass)                                                           \
    static __attribute__((noinline))                                                               \
    UNWATCHED void name##_##mt##x##nt##_##pass(const struct sweep *s)                              \
    {                                                                                              \
        sweep(s, dtype, pass, mt, nt);                                                             \
    }                                                                                              \
    _Static_assert((mt) <= BLOCK_M && (nt) <= BLOCK_N && (pass) < PASSES, "a block in registers")

struct tile {
    const struct matmul *a;
    const sweeps *sweeps;   /* of a's dtype */
    size_t nbytes;          /* of an element of it */
    size_t n, n_tile;       /* outputs [n, n + n_tile) */
    const char *next, *end; /* weights of the next tile that are not prefetched yet */
};

static void tile_block(struct tile *t, struct sweep *s, size_t kind, size_t nt)
{
    size_t nbytes = s->n / KERNELS_LANES * lines_each_step((size_t)1 << kind) * LINE_NBYTES;

    for (size_t pass = 0; pass < PASSES; pass++) {
        bool more = (size_t)(t->end - t->next) >= nbytes;

        s->soon = more ? t->next : s->w;
        s->soon_step = more ? lines_each_step((size_t)1 << kind) * LINE_NBYTES : 0;
        t->next += more ? nbytes : 0;
        (*t->sweeps)[kind][nt - 1][pass](s);
    }
}

/* 2^kind tokens from m on through the tile. */
static void tile_tokens(struct tile *t, size_t m, size_t kind)
{
    const struct matmul *a = t->a;
    const size_t mt = (size_t)1 << kind, ldw = a->k * t->nbytes;
    lanes sums[BLOCK_M][TILE_N] __attribute__((aligned(LINE_NBYTES)));

    for (size_t k = 0; k < a->k; k += STRETCH) {
        for (size_t j = 0; j < t->n_tile; j += BLOCK_N) {
            struct sweep s = {.sums = (lanes(*)[TILE_N])(void *)sums[0][j],
                              .x = a->x + m * a->ldx + k,
                              .w = (const char *)a->w + (t->n + j) * ldw + k * t->nbytes,
                              .ldx = a->ldx,
                              .ldw = ldw,
                              .n = a->k - k < STRETCH ? a->k - k : STRETCH,
                              .first = k == 0};

            tile_block(t, &s, kind, t->n_tile - j < BLOCK_N ? t->n_tile - j : BLOCK_N);
        }
    }
    for (size_t i = 0; i < mt; i++) {
        float *y = a->y + (m + i) * a->ldy + t->n;
        size_t j = 0;

        for (; j + 4 <= t->n_tile; j += 4)
            reduce_4(y + j, &sums[i][j]);
        for (; j < t->n_tile; j++)
            reduce_1(y + j, &sums[i][j]);
    }
}

#if defined(__SANITIZE_THREAD__)
static void tell_reads(const struct matmul *a, size_t first, size_t last, size_t row_nbytes)
{
    char *w = (char *)(uintptr_t)a->w;

    __tsan_read_range(w + first * row_nbytes, (last - first) * row_nbytes);
    for (size_t i = 0; i < a->m; i++)
        __tsan_read_range((char *)(uintptr_t)(a->x + i * a->ldx), a->k * sizeof *a->x);
}
#else
static void tell_reads(const struct matmul *a, size_t first, size_t last, size_t row_nbytes)
{
    (void)a, (void)first, (void)last, (void)row_nbytes;
}
#endif

static void many_tokens(const struct matmul *a, size_t first, size_t last, const sweeps *by)
{
    const size_t nbytes = element_nbytes(a->dtype), row_nbytes = a->k * nbytes;

    tell_reads(a, first, last, row_nbytes);
    for (size_t n = first; n < last; n += TILE_N) {
        size_t n_tile = last - n < TILE_N ? last - n : TILE_N, left = last - n - n_tile, m = 0;
        struct tile t = {.a = a, .sweeps = by, .nbytes = nbytes, .n = n, .n_tile = n_tile};

        t.next = (const char *)a->w + (n + n_tile) * row_nbytes;
        t.end = t.next + (left < TILE_N ? left : TILE_N) * row_nbytes;
        for (size_t kind = BLOCK_M_KINDS; kind-- > 0;) {
            for (; a->m - m >= (size_t)1 << kind; m += (size_t)1 << kind)
                tile_tokens(&t, m, kind);
        }
    }
}

/* One token and nt (1 or 4) outputs: nothing is used twice, so only the speed of the memory
 * matters. Prefetches `reach` bytes ahead. */
INLINE void one_token_block(const struct matmul *a, size_t n, enum dtype dtype, size_t nt,
                            size_t reach)
{
    const size_t nbytes = element_nbytes(dtype), row_nbytes = a->k * nbytes;
    const char *w = (const char *)a->w + n * row_nbytes;
    lanes sums[ONE_TOKEN_N] __attribute__((aligned(LINE_NBYTES)));
    float xs[KERNELS_LANES];
    char ws[sizeof(lanes)];
    vec acc[ONE_TOKEN_N][PASSES], xv;
    size_t k = 0;

    UNROLL
    for (size_t j = 0; j < nt; j++) {
        UNROLL
        for (size_t p = 0; p < PASSES; p++)
            acc[j][p] = vec_zero();
    }
    for (; k + KERNELS_LANES <= a->k; k += KERNELS_LANES) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            __builtin_prefetch(w + j * row_nbytes + k * nbytes + reach, 0, 2);
        UNROLL
        for (size_t p = 0; p < PASSES; p++) {
            xv = vec_widen((const char *)(a->x + k), DTYPE_F32, p);
            UNROLL
            for (size_t j = 0; j < nt; j++)
                acc[j][p] = vec_fma(xv, vec_widen(w + j * row_nbytes + k * nbytes, dtype, p),
                                    acc[j][p]);
        }
    }
    if (k < a->k)
        pad((char *)xs, (const char *)(a->x + k), DTYPE_F32, a->k - k);
    for (size_t j = 0; j < nt && k < a->k; j++) {
        pad(ws, w + j * row_nbytes + k * nbytes, dtype, a->k - k);
        for (size_t p = 0; p < PASSES; p++)
            acc[j][p] = vec_fma(vec_widen((const char *)xs, DTYPE_F32, p), vec_widen(ws, dtype, p),
                                acc[j][p]);
    }
    UNROLL
    for (size_t j = 0; j < nt; j++) {
        UNROLL
        for (size_t p = 0; p < PASSES; p++)
            vec_store(&sums[j][p * VEC_LANES], acc[j][p]);
    }
    if (nt == ONE_TOKEN_N)
        reduce_4(a->y + n, sums);
    else
        reduce_1(a->y + n, sums);
}

INLINE void one_token(const struct matmul *a, size_t first, size_t last, enum dtype dtype)
{
    const size_t row_nbytes = a->k * element_nbytes(dtype);
    size_t n = first;

    for (; n + ONE_TOKEN_N <= last; n += ONE_TOKEN_N)
        one_token_block(a, n, dtype, ONE_TOKEN_N, ONE_TOKEN_N * row_nbytes);
    for (; n < last; n++)
        one_token_block(a, n, dtype, 1, 0);
}

#define MATMUL(name, dtype)                                                                        \
    static void name(const struct matmul *a, uint32_t first, uint32_t last)                        \
    {                                                                                              \
        if (a->m == 1)                                                                             \
            one_token(a, first, last, dtype);                                                      \
        else                                                                                       \
            many_tokens(a, first, last, &name##_sweeps);                                           \
    }                                                                                              \
    _Static_assert((dtype) != DTYPE_I64, "weights are floating point")

#endif
