/* exp and silu, written once with vector extensions and compiled into each kernels_*.c for its own
 * instructions. Every operation is one IEEE operation on one element (no fused multiply-add, no
 * libm), so all of them, and every version of the C library, agree to the bit. */
#ifndef BATON_ENGINE_EMBEDDED_KERNELS_ELEMENTWISE_H
#define BATON_ENGINE_EMBEDDED_KERNELS_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ELEMENTWISE_LANES = 8 };

typedef double v8d __attribute__((vector_size(64)));
typedef int64_t v8l __attribute__((vector_size(64)));
typedef uint64_t v8u __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));

/* x = exp(x). Beyond +-200 the result is that of +-200, which float32 cannot hold either way. NaN
 * stays NaN: it fails both comparisons. x = k ln2 + r with |r| <= ln2 / 2, then Taylor to the 13th
 * power: an error near 1e-16, far below float32's. */
static inline __attribute__((always_inline)) void exp_v8d(v8d *x)
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
    const v8d low = (v8d){0} - 200.0, high = (v8d){0} + 200.0;
    v8d d = *x, shifted, k, r, p;
    v8l below, above;

    below = d < low;
    above = d > high;
    d = (v8d)(((v8l)d & ~(below | above)) | ((v8l)low & below) | ((v8l)high & above));
    shifted = d * 0x1.71547652b82fep0 + magic;
    k = shifted - magic;
    r = d - k * 0x1.62e42feep-1; /* ln2's high part: short enough for an exact product */
    r = r - k * 0x1.a39ef35793c76p-33;
    p = (v8d){0} + inverse_factorial[0];
    for (size_t i = 1; i < sizeof inverse_factorial / sizeof inverse_factorial[0]; i++)
        p = p * r + inverse_factorial[i];
    *x = p * (v8d)(((v8u)shifted + 1023) << 52);
}

static inline void exp_shifted_v8(float *x, float shift)
{
    v8f f;
    v8d d;

    memcpy(&f, x, sizeof f);
    f = f - shift;
    d = __builtin_convertvector(f, v8d);
    exp_v8d(&d);
    f = __builtin_convertvector(d, v8f);
    memcpy(x, &f, sizeof f);
}

static inline void silu_mul_v8(float *gate, const float *up)
{
    v8f g, u;
    v8d d, e;

    memcpy(&g, gate, sizeof g);
    memcpy(&u, up, sizeof u);
    d = __builtin_convertvector(g, v8d);
    e = -d;
    exp_v8d(&e);
    g = __builtin_convertvector(d / (1.0 + e), v8f) * u;
    memcpy(gate, &g, sizeof g);
}

static void elementwise_exp_shifted(float *x, float shift, size_t n)
{
    float tail[ELEMENTWISE_LANES] = {0};
    size_t i = 0;

    for (; i + ELEMENTWISE_LANES <= n; i += ELEMENTWISE_LANES)
        exp_shifted_v8(x + i, shift);
    if (i < n) {
        memcpy(tail, x + i, (n - i) * sizeof *x);
        exp_shifted_v8(tail, shift);
        memcpy(x + i, tail, (n - i) * sizeof *x);
    }
}

static void elementwise_silu_mul(float *gate, const float *up, size_t n)
{
    float g[ELEMENTWISE_LANES] = {0}, u[ELEMENTWISE_LANES] = {0};
    size_t i = 0;

    for (; i + ELEMENTWISE_LANES <= n; i += ELEMENTWISE_LANES)
        silu_mul_v8(gate + i, up + i);
    if (i < n) {
        memcpy(g, gate + i, (n - i) * sizeof *g);
        memcpy(u, up + i, (n - i) * sizeof *u);
        silu_mul_v8(g, u);
        memcpy(gate + i, g, (n - i) * sizeof *g);
    }
}

#endif
