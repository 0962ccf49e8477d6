/* exp and silu, written once with vector extensions and compiled into each kernels_*.c for its own
 * instructions. Every operation is one IEEE operation on one element (no fused multiply-add, no
 * libm), so all of them, and every version of the C library, agree to the bit. */
#ifndef BATON_ENGINE_KERNELS_KERNELS_ELEMENTWISE_H
#define BATON_ENGINE_KERNELS_KERNELS_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One register of doubles: wider ones are taken apart through memory. */
#if defined(__AVX512F__)
enum { ELEMENTWISE_LANES = 8 };
#elif defined(__AVX2__)
enum { ELEMENTWISE_LANES = 4 };
#else
enum { ELEMENTWISE_LANES = 2 };
#endif

typedef double vd __attribute__((vector_size(ELEMENTWISE_LANES * 8)));
typedef int64_t vl __attribute__((vector_size(ELEMENTWISE_LANES * 8)));
typedef uint64_t vu __attribute__((vector_size(ELEMENTWISE_LANES * 8)));
typedef float vf __attribute__((vector_size(ELEMENTWISE_LANES * 4)));

/* x = exp(x). Beyond +-200 the result is that of +-200, which float32 cannot hold either way. NaN
 * stays NaN: it fails both comparisons. x = k ln2 + r with |r| <= ln2 / 2, then Taylor to the 13th
 * power: an error near 1e-16, far below float32's. */
static inline __attribute__((always_inline)) void exp_vd(vd *x)
{
    static const double inverse_factorial[] = {
        1.0 / 6227020800.0,
        1.0 / 479001600.0,
        1.0 / 39916800.0,
        1.0 / 3628800.0,
        1.0 / 362880.0,
        1.0 / 40320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
        1.0,
        1.0,
    };
    const double magic = 0x1.8p52; /* adding it leaves the nearest integer in the low bits */
    const vd low = (vd){0} - 200.0, high = (vd){0} + 200.0;
    vd d = *x, shifted, k, r, p;
    vl below, above;

    below = d < low;
    above = d > high;
    d = (vd)(((vl)d & ~(below | above)) | ((vl)low & below) | ((vl)high & above));
    shifted = d * 0x1.71547652b82fep0 + magic;
    k = shifted - magic;
    r = d - k * 0x1.62e42feep-1; /* ln2's high part: short enough for an exact product */
    r = r - k * 0x1.a39ef35793c76p-33;
    p = (vd){0} + inverse_factorial[0];
    for (size_t i = 1; i < sizeof inverse_factorial / sizeof inverse_factorial[0]; i++)
        p = p * r + inverse_factorial[i];
    *x = p * (vd)(((vu)shifted + 1023) << 52);
}

static inline void exp_shifted_v(float *x, float shift)
{
    vf f;
    vd d;

    memcpy(&f, x, sizeof f);
    f = f - shift;
    d = __builtin_convertvector(f, vd);
    exp_vd(&d);
    f = __builtin_convertvector(d, vf);
    memcpy(x, &f, sizeof f);
}

static inline void silu_mul_v(float *gate, const float *up)
{
    vf g, u;
    vd d, e;

    memcpy(&g, gate, sizeof g);
    memcpy(&u, up, sizeof u);
    d = __builtin_convertvector(g, vd);
    e = -d;
    exp_vd(&e);
    g = __builtin_convertvector(d / (1.0 + e), vf) * u;
    memcpy(gate, &g, sizeof g);
}

static void elementwise_exp_shifted(float *x, float shift, size_t n)
{
    float tail[ELEMENTWISE_LANES] = {0};
    size_t i = 0;

    for (; i + ELEMENTWISE_LANES <= n; i += ELEMENTWISE_LANES)
        exp_shifted_v(x + i, shift);
    if (i < n) {
        memcpy(tail, x + i, (n - i) * sizeof *x);
        exp_shifted_v(tail, shift);
        memcpy(x + i, tail, (n - i) * sizeof *x);
    }
}

static void elementwise_silu_mul(float *gate, const float *up, size_t n)
{
    float g[ELEMENTWISE_LANES] = {0}, u[ELEMENTWISE_LANES] = {0};
    size_t i = 0;

    for (; i + ELEMENTWISE_LANES <= n; i += ELEMENTWISE_LANES)
        silu_mul_v(gate + i, up + i);
    if (i < n) {
        memcpy(g, gate + i, (n - i) * sizeof *g);
        memcpy(u, up + i, (n - i) * sizeof *u);
        silu_mul_v(g, u);
        memcpy(gate + i, g, (n - i) * sizeof *g);
    }
}

#endif
