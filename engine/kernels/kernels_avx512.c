/* Kernels for AVX-512 (F, BW, VL, DQ): the 16 lanes of a dot are one register. Blocks of 8 tokens x
 * 3 outputs: 24 of the 32 registers hold sums, and 11 loads feed 24 multiply-adds. */
#include "engine/kernels/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include "engine/kernels/kernels_elementwise.h"
#include "engine/kernels/kernels_logits.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { VEC_LANES = 16, BLOCK_M = 8, BLOCK_M_KINDS = 4, COLUMNS_MAX = 4 };

typedef __m512 vec;

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vec vec_widen(const char *p, enum dtype dtype, size_t pass)
{
    __m256i half;

    (void)pass; /* one vector holds all lanes, in order */
    if (dtype == DTYPE_F32)
        return _mm512_loadu_ps(p);
    half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (dtype == DTYPE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE void reduce_1(float *y, float (*sums)[16])
{
    __m512 a = _mm512_loadu_ps(sums[0]);
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    *y = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Lane i += lane i + 8 of two dots: the first one's eight sums, then the other's. */
INLINE __m512 fold_2(const float *a, const float *b)
{
    __m512 x = _mm512_loadu_ps(a), y = _mm512_loadu_ps(b);

    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}

/* Four dots at once add the same lanes in the same order as reduce_1: a quarter for each dot, then
 * the first lane of each quarter. */
INLINE void reduce_4(float *y, float (*sums)[16])
{
    const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m512 ab = fold_2(sums[0], sums[1]), cd = fold_2(sums[2], sums[3]), r;

    r = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    r = _mm512_add_ps(r, _mm512_permute_ps(r, 0x0e));
    r = _mm512_add_ps(r, _mm512_permute_ps(r, 0x01));
    _mm_storeu_ps(y, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, r)));
}

#include "engine/kernels/kernels_matmul.h"

#define SWEEPS_OF(name, dtype, mt)                                                                 \
    SWEEP(name, dtype, mt, 1, 0);                                                                  \
    SWEEP(name, dtype, mt, 2, 0);                                                                  \
    SWEEP(name, dtype, mt, 3, 0)

/* Its braces would be laid out as those of blocks. */
/* clang-format off */
#define SWEEPS_ROW(name, mt) {{name##_##mt##x1_0}, {name##_##mt##x2_0}, {name##_##mt##x3_0}}
/* clang-format on */

#define SWEEPS(name, dtype)                                                                        \
    SWEEPS_OF(name, dtype, 1);                                                                     \
    SWEEPS_OF(name, dtype, 2);                                                                     \
    SWEEPS_OF(name, dtype, 4);                                                                     \
    SWEEPS_OF(name, dtype, 8);                                                                     \
    static const sweeps name##_sweeps = {SWEEPS_ROW(name, 1), SWEEPS_ROW(name, 2),                 \
                                         SWEEPS_ROW(name, 4), SWEEPS_ROW(name, 8)};                \
    MATMUL(name, dtype)

SWEEPS(matmul_bf16, DTYPE_BF16);
SWEEPS(matmul_f16, DTYPE_F16);
SWEEPS(matmul_f32, DTYPE_F32);

/* nb registers of columns, the last of them masked: the sums stay there over all n rows. */
INLINE void sum_columns(float *o, const float *p, const float *v, size_t n, size_t d, size_t nb,
                        __mmask16 mask)
{
    __m512 acc[COLUMNS_MAX];

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

static void kernels_avx512_weighted_sum(float *o, const float *p, const float *v, uint32_t n,
                                        uint32_t d)
{
    size_t i = 0;

    for (; i + 64 <= d; i += 64)
        sum_columns(o + i, p, v + i, n, d, 4, 0xffff);
    for (; i + 16 <= d; i += 16)
        sum_columns(o + i, p, v + i, n, d, 1, 0xffff);
    if (i < d)
        sum_columns(o + i, p, v + i, n, d, 1, (__mmask16)((1U << (d - i)) - 1U));
}

/* One token waits for memory, and narrower loads come closer to its speed: measured, a quarter. */
static void matmul_bf16_or_avx2(const struct matmul *a, uint32_t first, uint32_t last)
{
    if (a->m == 1 && kernels_avx2() != NULL)
        kernels_avx2()->matmul_bf16(a, first, last);
    else
        matmul_bf16(a, first, last);
}

static const struct kernels avx512 = {
    .name = "avx512",
    .matmul_bf16 = matmul_bf16_or_avx2,
    .matmul_f16 = matmul_f16,
    .matmul_f32 = matmul_f32,
    .weighted_sum = kernels_avx512_weighted_sum,
    .exp_shifted = elementwise_exp_shifted,
    .silu_mul = elementwise_silu_mul,
    .maxima = logits_maxima,
    .exp_sum = logits_exp_sum,
    .count_from = logits_count_from,
    .race = logits_race,
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
