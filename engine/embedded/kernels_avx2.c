/* Kernels for AVX2, FMA and F16C: the 16 lanes of a dot are two registers. Blocks of 2 tokens x 2
 * outputs (8 accumulators), or 1 x 4 for a single token. */
#include "engine/embedded/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "engine/embedded/kernels_elementwise.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

enum { TILE_NBYTES = 128 << 10, BLOCK_MAX = 4 };

struct lanes {
    __m256 lo, hi; /* lanes 0..7, 8..15 */
};

INLINE size_t element_nbytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

INLINE __m256 widen_8(const char *p, enum dtype dtype)
{
    __m128i half;

    if (dtype == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (dtype == DTYPE_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE struct lanes load(const char *p, enum dtype dtype)
{
    return (struct lanes){widen_8(p, dtype), widen_8(p + 8 * element_nbytes(dtype), dtype)};
}

/* The last n < 16 elements, zeros after them; reads nothing beyond. */
INLINE struct lanes load_tail(const char *p, enum dtype dtype, size_t n)
{
    char padded[KERNELS_LANES * sizeof(float)] = {0};

    memcpy(padded, p, n * element_nbytes(dtype));
    return load(padded, dtype);
}

INLINE void accumulate(struct lanes *acc, const struct lanes *x, const struct lanes *w)
{
    acc->lo = _mm256_fmadd_ps(x->lo, w->lo, acc->lo);
    acc->hi = _mm256_fmadd_ps(x->hi, w->hi, acc->hi);
}

INLINE float reduce(const struct lanes *a)
{
    __m256 eight = _mm256_add_ps(a->lo, a->hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* mt tokens from m on, nt outputs from n on; both constant where this is inlined. */
INLINE void block(const struct matmul *a, size_t m, size_t n, enum dtype dtype, size_t mt,
                  size_t nt)
{
    const size_t nbytes = element_nbytes(dtype);
    const char *w = (const char *)a->w + n * a->k * nbytes;
    const float *x = a->x + m * a->ldx;
    struct lanes acc[BLOCK_MAX][BLOCK_MAX] = {0}, wv[BLOCK_MAX], xv;
    size_t k = 0;

    for (; k + KERNELS_LANES <= a->k; k += KERNELS_LANES) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            wv[j] = load(w + (j * a->k + k) * nbytes, dtype);
        UNROLL
        for (size_t i = 0; i < mt; i++) {
            xv = load((const char *)(x + i * a->ldx + k), DTYPE_F32);
            UNROLL
            for (size_t j = 0; j < nt; j++)
                accumulate(&acc[i][j], &xv, &wv[j]);
        }
    }
    if (k < a->k) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            wv[j] = load_tail(w + (j * a->k + k) * nbytes, dtype, a->k - k);
        UNROLL
        for (size_t i = 0; i < mt; i++) {
            xv = load_tail((const char *)(x + i * a->ldx + k), DTYPE_F32, a->k - k);
            UNROLL
            for (size_t j = 0; j < nt; j++)
                accumulate(&acc[i][j], &xv, &wv[j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < mt; i++) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            a->y[(m + i) * a->ldy + n + j] = reduce(&acc[i][j]);
    }
}

INLINE void one_token(const struct matmul *a, size_t m, size_t first, size_t last, enum dtype dtype)
{
    size_t n = first;

    for (; n + 4 <= last; n += 4)
        block(a, m, n, dtype, 1, 4);
    for (; n < last; n++)
        block(a, m, n, dtype, 1, 1);
}

INLINE void tile(const struct matmul *a, size_t first, size_t last, enum dtype dtype)
{
    size_t m = 0, n;

    for (; m + 2 <= a->m; m += 2) {
        for (n = first; n + 2 <= last; n += 2)
            block(a, m, n, dtype, 2, 2);
        if (n < last)
            block(a, m, n, dtype, 2, 1);
    }
    if (m < a->m)
        one_token(a, m, first, last, dtype);
}

/* Weights go through in tiles that stay in the second-level cache while all tokens pass. */
INLINE void matmul(const struct matmul *a, uint32_t first, uint32_t last, enum dtype dtype)
{
    size_t rows = TILE_NBYTES / (a->k * element_nbytes(dtype));

    rows = rows < BLOCK_MAX ? BLOCK_MAX : rows - rows % BLOCK_MAX;
    for (size_t n = first; n < last; n += rows)
        tile(a, n, last - n < rows ? last : n + rows, dtype);
}

static void matmul_bf16(const struct matmul *a, uint32_t first, uint32_t last)
{
    matmul(a, first, last, DTYPE_BF16);
}

static void matmul_f16(const struct matmul *a, uint32_t first, uint32_t last)
{
    matmul(a, first, last, DTYPE_F16);
}

static void matmul_f32(const struct matmul *a, uint32_t first, uint32_t last)
{
    matmul(a, first, last, DTYPE_F32);
}

/* Columns [i, i + 8 * nb): the sums stay in registers over all n rows. */
INLINE void sum_columns(float *o, const float *p, const float *v, size_t n, size_t d, size_t nb)
{
    __m256 acc[BLOCK_MAX];

    UNROLL
    for (size_t b = 0; b < nb; b++)
        acc[b] = _mm256_loadu_ps(o + 8 * b);
    for (size_t j = 0; j < n; j++) {
        UNROLL
        for (size_t b = 0; b < nb; b++)
            acc[b] = _mm256_fmadd_ps(_mm256_set1_ps(p[j]), _mm256_loadu_ps(v + j * d + 8 * b),
                                     acc[b]);
    }
    UNROLL
    for (size_t b = 0; b < nb; b++)
        _mm256_storeu_ps(o + 8 * b, acc[b]);
}

static void weighted_sum(float *o, const float *p, const float *v, uint32_t n, uint32_t d)
{
    size_t i = 0;

    for (; i + 32 <= d; i += 32)
        sum_columns(o + i, p, v + i, n, d, 4);
    for (; i + 8 <= d; i += 8)
        sum_columns(o + i, p, v + i, n, d, 1);
    for (; i < d; i++) {
        for (size_t j = 0; j < n; j++)
            o[i] = _mm_cvtss_f32(
                _mm_fmadd_ss(_mm_set_ss(p[j]), _mm_set_ss(v[j * d + i]), _mm_set_ss(o[i])));
    }
}

static const struct kernels avx2 = {
    .name = "avx2",
    .matmul_bf16 = matmul_bf16,
    .matmul_f16 = matmul_f16,
    .matmul_f32 = matmul_f32,
    .weighted_sum = weighted_sum,
    .exp_shifted = elementwise_exp_shifted,
    .silu_mul = elementwise_silu_mul,
};

const struct kernels *kernels_avx2(void)
{
    return &avx2;
}

#else

const struct kernels *kernels_avx2(void)
{
    return NULL;
}

#endif
