/* Kernels for AVX2, FMA and F16C: the 16 lanes of a dot are two registers, which take turns. Blocks
 * of 4 tokens x 3 outputs: 12 of the 16 registers hold sums, and 7 loads feed 12 multiply-adds. */
#include "engine/kernels/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "engine/kernels/kernels_elementwise.h"
#include "engine/kernels/kernels_logits.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { VEC_LANES = 8, BLOCK_M = 4, BLOCK_M_KINDS = 3, COLUMNS_MAX = 4 };

typedef __m256 vec;

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE void vec_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

struct sixteen {
    uint16_t bf16[16];
} __attribute__((packed));

/* The bf16 at p[0..3], p[8..11], or at p[4..7], p[12..15], behind zeros, which widens them. As two
 * instructions in one: a zero that the compiler keeps would cost a sum its register. */
INLINE vec interleave_lo(const char *p)
{
    vec v;

    __asm__("vpxor %0, %0, %0\n\tvpunpcklwd %1, %0, %0"
            : "=&x"(v)
            : "m"(*(const struct sixteen *)(const void *)p));
    return v;
}

INLINE vec interleave_hi(const char *p)
{
    vec v;

    __asm__("vpxor %0, %0, %0\n\tvpunpckhwd %1, %0, %0"
            : "=&x"(v)
            : "m"(*(const struct sixteen *)(const void *)p));
    return v;
}

/* Pass 0 has the lanes 0..3 and 8..11, pass 1 the others: as the instruction interleaves the halves
 * of a bf16 with zeros, which widens it in one operation, and as the last sums want them. */
INLINE vec vec_widen(const char *p, enum dtype dtype, size_t pass)
{
    const char *lo, *hi;

    if (dtype == DTYPE_BF16)
        return pass == 0 ? interleave_lo(p) : interleave_hi(p);
    lo = p + pass * 4 * (dtype == DTYPE_F32 ? 4 : 2);
    hi = lo + 8 * (dtype == DTYPE_F32 ? 4 : 2);
    if (dtype == DTYPE_F16)
        return _mm256_cvtph_ps(
            _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)lo),
                               _mm_loadl_epi64((const __m128i *)(const void *)hi)));
    return _mm256_insertf128_ps(
        _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)lo)),
        _mm_loadu_ps((const float *)(const void *)hi), 1);
}

/* Lane i += lane i + 8, then i + 4. */
INLINE __m128 fold(const float *sums)
{
    return _mm_add_ps(_mm_add_ps(_mm_loadu_ps(sums), _mm_loadu_ps(sums + 4)),
                      _mm_add_ps(_mm_loadu_ps(sums + 8), _mm_loadu_ps(sums + 12)));
}

INLINE void reduce_1(float *y, float (*sums)[16])
{
    __m128 four = fold(sums[0]), two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    *y = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Four dots at once: the transposed sums add the same lanes in the same order as reduce_1. */
INLINE void reduce_4(float *y, float (*sums)[16])
{
    __m128 c0 = fold(sums[0]), c1 = fold(sums[1]), c2 = fold(sums[2]), c3 = fold(sums[3]);

    _MM_TRANSPOSE4_PS(c0, c1, c2, c3);
    _mm_storeu_ps(y, _mm_add_ps(_mm_add_ps(c0, c2), _mm_add_ps(c1, c3)));
}

#include "engine/kernels/kernels_matmul.h"

#define SWEEPS_OF(name, dtype, mt)                                                                 \
    SWEEP(name, dtype, mt, 1, 0);                                                                  \
    SWEEP(name, dtype, mt, 1, 1);                                                                  \
    SWEEP(name, dtype, mt, 2, 0);                                                                  \
    SWEEP(name, dtype, mt, 2, 1);                                                                  \
    SWEEP(name, dtype, mt, 3, 0);                                                                  \
    SWEEP(name, dtype, mt, 3, 1)

/* Its braces would be laid out as those of blocks. */
/* clang-format off */
#define SWEEPS_ROW(name, mt)                                                                       \
    {{name##_##mt##x1_0, name##_##mt##x1_1},                                                       \
     {name##_##mt##x2_0, name##_##mt##x2_1},                                                       \
     {name##_##mt##x3_0, name##_##mt##x3_1}}
/* clang-format on */

#define SWEEPS(name, dtype)                                                                        \
    SWEEPS_OF(name, dtype, 1);                                                                     \
    SWEEPS_OF(name, dtype, 2);                                                                     \
    SWEEPS_OF(name, dtype, 4);                                                                     \
    static const sweeps name##_sweeps = {SWEEPS_ROW(name, 1), SWEEPS_ROW(name, 2),                 \
                                         SWEEPS_ROW(name, 4)};                                     \
    MATMUL(name, dtype)

SWEEPS(matmul_bf16, DTYPE_BF16);
SWEEPS(matmul_f16, DTYPE_F16);
SWEEPS(matmul_f32, DTYPE_F32);

/* Columns [i, i + 8 * nb): the sums stay in registers over all n rows. */
INLINE void sum_columns(float *o, const float *p, const float *v, size_t n, size_t d, size_t nb)
{
    __m256 acc[COLUMNS_MAX];

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

static void kernels_avx2_weighted_sum(float *o, const float *p, const float *v, uint32_t n,
                                      uint32_t d)
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
    .weighted_sum = kernels_avx2_weighted_sum,
    .exp_shifted = elementwise_exp_shifted,
    .silu_mul = elementwise_silu_mul,
    .maxima = logits_maxima,
    .exp_sum = logits_exp_sum,
    .count_from = logits_count_from,
    .race = logits_race,
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
