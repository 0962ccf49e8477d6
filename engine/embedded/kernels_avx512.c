/* Kernels for AVX-512 (F, BW, VL, DQ): the 16 lanes of a dot are one register. Blocks of up to 4
 * tokens x 4 outputs: 16 accumulators, 4 loads of each side for 16 multiply-adds. */
#include "engine/embedded/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include "engine/embedded/kernels_elementwise.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

enum { TILE_NBYTES = 128 << 10, BLOCK_MAX = 4 };

INLINE size_t element_nbytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

/* The lanes of `mask`, zeros in the others; reads nothing of those. */
INLINE __m512 load(const char *p, enum dtype dtype, __mmask16 mask)
{
    __m256i half;

    if (dtype == DTYPE_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    half = _mm256_maskz_loadu_epi16(mask, p);
    if (dtype == DTYPE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m128 fold(__m512 a)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));

    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

INLINE float reduce(__m512 a)
{
    __m128 four = fold(a), two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Four dots at once: the transposed sums add the same lanes in the same order as reduce. */
INLINE __m128 reduce_4(const __m512 *a)
{
    __m128 c0 = fold(a[0]), c1 = fold(a[1]), c2 = fold(a[2]), c3 = fold(a[3]);

    _MM_TRANSPOSE4_PS(c0, c1, c2, c3);
    return _mm_add_ps(_mm_add_ps(c0, c2), _mm_add_ps(c1, c3));
}

INLINE void step(const struct matmul *a, const float *x, const char *w, size_t k, __mmask16 mask,
                 enum dtype dtype, size_t mt, size_t nt, __m512 acc[BLOCK_MAX][BLOCK_MAX])
{
    const size_t nbytes = element_nbytes(dtype);
    __m512 wv[BLOCK_MAX], xv;

    UNROLL
    for (size_t j = 0; j < nt; j++)
        wv[j] = load(w + (j * a->k + k) * nbytes, dtype, mask);
    UNROLL
    for (size_t i = 0; i < mt; i++) {
        xv = load((const char *)(x + i * a->ldx + k), DTYPE_F32, mask);
        UNROLL
        for (size_t j = 0; j < nt; j++)
            acc[i][j] = _mm512_fmadd_ps(xv, wv[j], acc[i][j]);
    }
}

/* mt tokens from m on, nt (1 or 4) outputs from n on; both constant where this is inlined. */
INLINE void block(const struct matmul *a, size_t m, size_t n, enum dtype dtype, size_t mt,
                  size_t nt)
{
    const char *w = (const char *)a->w + n * a->k * element_nbytes(dtype);
    const float *x = a->x + m * a->ldx;
    __m512 acc[BLOCK_MAX][BLOCK_MAX];
    size_t k = 0;

    UNROLL
    for (size_t i = 0; i < mt; i++) {
        UNROLL
        for (size_t j = 0; j < nt; j++)
            acc[i][j] = _mm512_setzero_ps();
    }
    for (; k + KERNELS_LANES <= a->k; k += KERNELS_LANES)
        step(a, x, w, k, 0xffff, dtype, mt, nt, acc);
    if (k < a->k)
        step(a, x, w, k, (__mmask16)((1U << (a->k - k)) - 1U), dtype, mt, nt, acc);
    UNROLL
    for (size_t i = 0; i < mt; i++) {
        float *y = a->y + (m + i) * a->ldy + n;

        if (nt == 4)
            _mm_storeu_ps(y, reduce_4(acc[i]));
        else
            *y = reduce(acc[i][0]);
    }
}

INLINE void tokens(const struct matmul *a, size_t m, size_t first, size_t last, enum dtype dtype,
                   size_t mt)
{
    size_t n = first;

    for (; n + 4 <= last; n += 4)
        block(a, m, n, dtype, mt, 4);
    for (; n < last; n++)
        block(a, m, n, dtype, mt, 1);
}

INLINE void tile(const struct matmul *a, size_t first, size_t last, enum dtype dtype)
{
    size_t m = 0;

    for (; m + 4 <= a->m; m += 4)
        tokens(a, m, first, last, dtype, 4);
    switch (a->m - m) {
    case 3:
        tokens(a, m, first, last, dtype, 3);
        break;
    case 2:
        tokens(a, m, first, last, dtype, 2);
        break;
    case 1:
        tokens(a, m, first, last, dtype, 1);
        break;
    default:
        break;
    }
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

/* nb registers of columns, the last of them masked: the sums stay there over all n rows. */
INLINE void sum_columns(float *o, const float *p, const float *v, size_t n, size_t d, size_t nb,
                        __mmask16 mask)
{
    __m512 acc[BLOCK_MAX];

    UNROLL
    for (size_t b = 0; b < nb; b++)
        acc[b] = _mm512_maskz_loadu_ps(mask, o + 16 * b);
    for (size_t j = 0; j < n; j++) {
        UNROLL
        for (size_t b = 0; b < nb; b++)
            acc[b] = _mm512_fmadd_ps(_mm512_set1_ps(p[j]),
                                     _mm512_maskz_loadu_ps(mask, v + j * d + 16 * b), acc[b]);
    }
    UNROLL
    for (size_t b = 0; b < nb; b++)
        _mm512_mask_storeu_ps(o + 16 * b, mask, acc[b]);
}

static void weighted_sum(float *o, const float *p, const float *v, uint32_t n, uint32_t d)
{
    size_t i = 0;

    for (; i + 64 <= d; i += 64)
        sum_columns(o + i, p, v + i, n, d, 4, 0xffff);
    for (; i + 16 <= d; i += 16)
        sum_columns(o + i, p, v + i, n, d, 1, 0xffff);
    if (i < d)
        sum_columns(o + i, p, v + i, n, d, 1, (__mmask16)((1U << (d - i)) - 1U));
}

static const struct kernels avx512 = {
    .name = "avx512",
    .matmul_bf16 = matmul_bf16,
    .matmul_f16 = matmul_f16,
    .matmul_f32 = matmul_f32,
    .weighted_sum = weighted_sum,
    .exp_shifted = elementwise_exp_shifted,
    .silu_mul = elementwise_silu_mul,
};

const struct kernels *kernels_avx512(void)
{
    return &avx512;
}

#else

const struct kernels *kernels_avx512(void)
{
    return NULL;
}

#endif
