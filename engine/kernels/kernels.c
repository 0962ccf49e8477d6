/* The scalar kernels, which define what the others must equal, and the choice among them. */
#include "engine/kernels/kernels.h"

#include "engine/kernels/kernels_elementwise.h"
#include "engine/kernels/kernels_logits.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* IEEE half to float; a signalling NaN is made quiet, as the instruction does. */
static float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000U) << 16, exponent = (h >> 10) & 31U, frac = h & 1023U;
    uint32_t bits;
    float f;

    if (exponent == 0) {
        f = (float)frac * 0x1p-24F;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000U | frac << 13 | (frac != 0 ? 0x00400000U : 0U);
    } else {
        bits = sign | (exponent + 112U) << 23 | frac << 13;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float widen_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static float element_widen(const void *src, enum dtype dtype, size_t i)
{
    const char *p = src;
    uint16_t half;
    float f;

    if (dtype == DTYPE_F32) {
        memcpy(&f, p + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, p + i * sizeof half, sizeof half);
    return dtype == DTYPE_BF16 ? widen_bf16(half) : widen_f16(half);
}

void kernels_widen(float *dst, const void *src, enum dtype dtype, size_t numel)
{
    assert(dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F32);
    if (dtype == DTYPE_F32) {
        memcpy(dst, src, numel * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < numel; i++)
        dst[i] = element_widen(src, dtype, i);
}

static float dot_scalar(const float *x, const void *w, enum dtype dtype, uint32_t k)
{
    float lanes[KERNELS_LANES] = {0};

    for (size_t base = 0; base < k; base += KERNELS_LANES) {
        for (size_t j = 0; j < KERNELS_LANES; j++) {
            bool in = base + j < k;
            float a = in ? x[base + j] : 0.0F, b = in ? element_widen(w, dtype, base + j) : 0.0F;

            lanes[j] = fmaf(a, b, lanes[j]);
        }
    }
    for (size_t half = KERNELS_LANES / 2; half >= 1; half /= 2) {
        for (size_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    }
    return lanes[0];
}

static void matmul_scalar(const struct matmul *a, uint32_t first, uint32_t last)
{
    size_t ldw = (size_t)a->k * (a->dtype == DTYPE_F32 ? 4U : 2U);

    for (size_t n = first; n < last; n++) {
        for (size_t m = 0; m < a->m; m++)
            a->y[m * a->ldy + n] = dot_scalar(a->x + m * a->ldx, (const char *)a->w + n * ldw,
                                              a->dtype, a->k);
    }
}

static void weighted_sum_scalar(float *o, const float *p, const float *v, uint32_t n, uint32_t d)
{
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < d; i++)
            o[i] = fmaf(p[j], v[j * d + i], o[i]);
    }
}

static const struct kernels scalar = {
    .name = "scalar",
    .matmul_bf16 = matmul_scalar,
    .matmul_f16 = matmul_scalar,
    .matmul_f32 = matmul_scalar,
    .weighted_sum = weighted_sum_scalar,
    .exp_shifted = elementwise_exp_shifted,
    .silu_mul = elementwise_silu_mul,
    .maxima = logits_maxima,
    .exp_sum = logits_exp_sum,
    .count_from = logits_count_from,
    .race = logits_race,
};

/* __builtin_cpu_supports also checks that the system saves the wide registers. */
static bool cpu_has(enum kernels_isa isa)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;

    if (isa == KERNELS_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return isa == KERNELS_AVX2 ? avx2 : isa == KERNELS_SCALAR;
#else
    return isa == KERNELS_SCALAR;
#endif
}

const struct kernels *kernels_get(enum kernels_isa isa)
{
    if (!cpu_has(isa))
        return NULL;
    switch (isa) {
    case KERNELS_SCALAR:
        return &scalar;
    case KERNELS_AVX2:
        return kernels_avx2();
    case KERNELS_AVX512:
        return kernels_avx512();
    case KERNELS_ISA_COUNT:
        break;
    }
    return NULL;
}

/* -1 until kernels_select; relaxed: the tables are constant, nothing is published with it. */
static atomic_int selected = -1;

const struct kernels *kernels_current(void)
{
    int isa = atomic_load_explicit(&selected, memory_order_relaxed);
    const struct kernels *best = NULL;

    if (isa >= 0)
        return kernels_get((enum kernels_isa)isa);
    for (isa = KERNELS_ISA_COUNT - 1; best == NULL && isa >= 0; isa--)
        best = kernels_get((enum kernels_isa)isa);
    return best;
}

bool kernels_select(enum kernels_isa isa)
{
    if (kernels_get(isa) == NULL)
        return false;
    atomic_store_explicit(&selected, (int)isa, memory_order_relaxed);
    return true;
}

void kernels_matmul(const struct kernels *k, const struct matmul *a, uint32_t first, uint32_t last)
{
    assert(a->k >= 1);
    switch (a->dtype) {
    case DTYPE_BF16:
        k->matmul_bf16(a, first, last);
        break;
    case DTYPE_F16:
        k->matmul_f16(a, first, last);
        break;
    default:
        assert(a->dtype == DTYPE_F32);
        k->matmul_f32(a, first, last);
        break;
    }
}

void kernels_rms_norm(const struct kernels *k, float *y, const float *x, const float *w, uint32_t n,
                      float eps)
{
    float sum = 0.0F, scale;
    struct matmul square = {
        .x = x, .ldx = n, .w = x, .dtype = DTYPE_F32, .y = &sum, .ldy = 1, .m = 1, .k = n};

    k->matmul_f32(&square, 0, 1);
    scale = 1.0F / sqrtf(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = w[i] * (x[i] * scale);
}
