/* What is done with the logits of a whole vocabulary, written once with vector extensions and
 * compiled into each kernels_*.c for its own instructions. Sums run in LOGITS_LANES doubles, lane j
 * over the elements j, j + 8, ... in order, then lane i += lane i + 4, i + 2, i + 1; the rest are
 * maxima and counts, which have no order. So all sets of instructions agree to the bit. */
#ifndef BATON_ENGINE_KERNELS_KERNELS_LOGITS_H
#define BATON_ENGINE_KERNELS_KERNELS_LOGITS_H

#include "engine/kernels/kernels.h"
#include "engine/kernels/kernels_elementwise.h"
#include "engine/kernels/uniform.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    LOGITS_LANES = 8,
    LOGITS_VECTORS = LOGITS_LANES / ELEMENTWISE_LANES, /* of doubles, for all lanes */
    LOGITS_WIDE = 2 * ELEMENTWISE_LANES                /* floats in a register */
};

typedef float vw __attribute__((vector_size(LOGITS_WIDE * 4)));
typedef int32_t vi __attribute__((vector_size(LOGITS_WIDE * 4)));

#define LOGITS_NOT_FINITE 0x7f800000 /* the bits of |x|, and all above */
#define LOGITS_ABS        0x7fffffff

static inline float logits_max_of(const float *x, size_t n, float max, int32_t *most_bits)
{
    for (size_t i = 0; i < n; i++) {
        int32_t bits;

        memcpy(&bits, x + i, sizeof bits);
        bits &= LOGITS_ABS;
        *most_bits = bits > *most_bits ? bits : *most_bits;
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

static float logits_block_max(const float *x, size_t n, int32_t *most_bits)
{
    vw max = (vw){0} - INFINITY, v;
    vi most = (vi){0}, bits, more;
    float lanes[LOGITS_WIDE], all = -INFINITY;
    int32_t most_lanes[LOGITS_WIDE];
    size_t i = 0;

    for (; i + LOGITS_WIDE <= n; i += LOGITS_WIDE) {
        memcpy(&v, x + i, sizeof v);
        bits = (vi)v & LOGITS_ABS;
        more = bits > most;
        most = (bits & more) | (most & ~more);
        more = v > max;
        max = (vw)(((vi)v & more) | ((vi)max & ~more));
    }
    memcpy(lanes, &max, sizeof lanes);
    memcpy(most_lanes, &most, sizeof most_lanes);
    for (size_t j = 0; j < LOGITS_WIDE; j++) {
        all = lanes[j] > all ? lanes[j] : all;
        *most_bits = most_lanes[j] > *most_bits ? most_lanes[j] : *most_bits;
    }
    return logits_max_of(x + i, n - i, all, most_bits);
}

static bool logits_maxima(float *max, const float *x, size_t n)
{
    int32_t most_bits = 0;

    for (size_t i = 0; i < n; i += KERNELS_BLOCK)
        *max++ = logits_block_max(x + i, n - i < KERNELS_BLOCK ? n - i : KERNELS_BLOCK, &most_bits);
    return most_bits < LOGITS_NOT_FINITE;
}

/* exp of what is at most 0, as exp_vd, to the tenth power: an error below 1e-12, which is nothing
 * to the logarithm of a sum. NaN stays NaN. */
static inline __attribute__((always_inline)) void logits_exp(vd *x)
{
    static const double inverse_factorial[] = {
        1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0,
        1.0 / 24.0,      1.0 / 6.0,      1.0 / 2.0,     1.0,          1.0,
    };
    const double magic = 0x1.8p52;
    vd d = *x, shifted, k, r, p;
    vl below = d < -200.0;

    d = (vd)(((vl)d & ~below) | ((vl)((vd){0} - 200.0) & below));
    shifted = d * 0x1.71547652b82fep0 + magic;
    k = shifted - magic;
    r = d - k * 0x1.62e42feep-1;
    r = r - k * 0x1.a39ef35793c76p-33;
    p = (vd){0} + inverse_factorial[0];
    for (size_t i = 1; i < sizeof inverse_factorial / sizeof inverse_factorial[0]; i++)
        p = p * r + inverse_factorial[i];
    *x = p * (vd)(((vu)shifted + 1023) << 52);
}

static inline __attribute__((always_inline)) void logits_weights(vd *out, const float *x,
                                                                 double shift, double scale)
{
    vf f;

    memcpy(&f, x, sizeof f);
    *out = (__builtin_convertvector(f, vd) - shift) * scale;
    logits_exp(out);
}

static double logits_exp_sum(const float *x, double shift, double scale, size_t n)
{
    vd sums[LOGITS_VECTORS] = {{0}}, w;
    double lanes[LOGITS_LANES], last[LOGITS_LANES];
    float tail[LOGITS_LANES] = {0};
    size_t i = 0;

    for (; i + LOGITS_LANES <= n; i += LOGITS_LANES) {
        for (size_t j = 0; j < LOGITS_VECTORS; j++) {
            logits_weights(&w, x + i + j * ELEMENTWISE_LANES, shift, scale);
            sums[j] += w;
        }
    }
    memcpy(lanes, sums, sizeof lanes);
    if (i < n) {
        memcpy(tail, x + i, (n - i) * sizeof *x);
        for (size_t j = 0; j < LOGITS_VECTORS; j++) {
            logits_weights(&w, tail + j * ELEMENTWISE_LANES, shift, scale);
            memcpy(last + j * ELEMENTWISE_LANES, &w, sizeof w);
        }
        for (size_t j = 0; j < n - i; j++)
            lanes[j] += last[j];
    }
    for (size_t half = LOGITS_LANES / 2; half >= 1; half /= 2) {
        for (size_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    }
    return lanes[0];
}

static uint32_t logits_count_from(const float *x, float least, size_t n)
{
    vi count = (vi){0};
    int32_t lanes[LOGITS_WIDE];
    uint32_t all = 0;
    size_t i = 0;
    vw v;

    for (; i + LOGITS_WIDE <= n; i += LOGITS_WIDE) {
        memcpy(&v, x + i, sizeof v);
        count -= v >= least; /* true is -1 */
    }
    memcpy(lanes, &count, sizeof lanes);
    for (size_t j = 0; j < LOGITS_WIDE; j++)
        all += (uint32_t)lanes[j];
    for (; i < n; i++)
        all += x[i] >= least;
    return all;
}

typedef int32_t vh __attribute__((vector_size(ELEMENTWISE_LANES * 4)));

/* Is any lane true? */
static inline bool logits_any(vh lanes)
{
#if defined(__AVX512F__)
    return _mm256_movemask_ps((__m256)lanes) != 0;
#elif defined(__AVX2__)
    return _mm_movemask_ps((__m128)lanes) != 0;
#else
    uint64_t bits;

    memcpy(&bits, &lanes, sizeof bits);
    return bits != 0;
#endif
}

/* At least exp((x - max) * scale), by at most a hundredth, for results above exp(-80); else at most
 * exp(-80). x = n ln2 + r, then the first terms in r; what they lack is below a thousandth. */
static inline __attribute__((always_inline)) void logits_weight_bound(vf *x, float max, float scale)
{
    vf t = (*x - max) * scale, shifted, r, p;
    vh low = t < -80.0F;

    t = (vf)(((vh)t & ~low) | ((vh)((vf){0} - 80.0F) & low));
    shifted = t * 0x1.715476p0F + 0x1.8p23F;
    r = t - (shifted - 0x1.8p23F) * 0x1.62e43p-1F;
    p = 1.0F + r * (1.0F + r * (0.5F + r * (1.0F / 6)));
    *x = (vf)((vh)p + ((vh)shifted << 23)) * 1.005F;
}

/* Those of the n <= ELEMENTWISE_LANES tokens at x that come before all others so far. */
static __attribute__((noinline)) void logits_arrive(struct race *r, const float *x, uint32_t id,
                                                    size_t n)
{
    for (size_t j = 0; j < n; j++) {
        double w = exp(((double)x[j] - r->max) * r->scale), arrival;

        if (isinf(x[j]))
            continue;
        arrival = -log(uniform_of(r->key, id + (uint32_t)j)) / w;
        if (!(arrival < r->arrival))
            continue;
        r->arrival = arrival;
        r->winner = id + (uint32_t)j;
    }
}

/* The winner's arrival in units of 2^-52, as of the uniforms; a float, or none at all. */
static inline float logits_race_bound(const struct race *r)
{
    return r->arrival < 1e20 ? (float)(r->arrival * 0x1p52) : INFINITY;
}

static void logits_race(struct race *r, const float *x, uint32_t id, size_t n)
{
    const float max = (float)r->max, scale = (float)r->scale;
    float tail[ELEMENTWISE_LANES], bound = logits_race_bound(r);
    uint64_t first[ELEMENTWISE_LANES];
    vu counter, z;
    vd k;
    vf w;

    for (size_t j = 0; j < ELEMENTWISE_LANES; j++)
        first[j] = r->key + UNIFORM_STEP * ((uint64_t)id + j + 1);
    memcpy(&counter, first, sizeof counter);
    for (size_t i = 0; i < n; i += ELEMENTWISE_LANES) {
        size_t here = n - i < ELEMENTWISE_LANES ? n - i : ELEMENTWISE_LANES;
        const float *at = x + i;

        if (here < ELEMENTWISE_LANES) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, at, here * sizeof *at);
            at = tail;
        }
        memcpy(&w, at, sizeof w);
        logits_weight_bound(&w, max, scale);
        z = counter;
        counter += UNIFORM_STEP * ELEMENTWISE_LANES;
        UNIFORM_MIX(z);
        k = (vd)((z >> 12) | 0x4330000000000000U) - 0x1p52; /* exactly z >> 12 */
        if (!logits_any(__builtin_convertvector((0x1p52 - 0.5) - k, vf) <= w * bound))
            continue;
        logits_arrive(r, at, id + (uint32_t)i, here);
        bound = logits_race_bound(r);
    }
}

#endif
