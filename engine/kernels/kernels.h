/* The arithmetic of the forward pass, once for each instruction set, equal to the bit.
 *
 * Canonical dot: 16 float32 lanes; lane j accumulates k = j, j + 16, ... by fused multiply-add in
 * ascending k; the tail is padded with zeros; then lane i += lane i+8, i+4, i+2, i+1. Weights are
 * widened to float32 in registers, which is exact. A result therefore depends neither on the
 * instruction set, nor on how many rows are computed together, nor on which thread computes them.
 * Rejected: a BLAS, whose order of summation changes with the shape, and which cannot read bf16. */
#ifndef BATON_ENGINE_KERNELS_KERNELS_H
#define BATON_ENGINE_KERNELS_KERNELS_H

#include "memory/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KERNELS_LANES = 16,
    KERNELS_GRAIN = 12, /* outputs of a matmul that the kernels compute together */
    KERNELS_BLOCK = 256 /* logits that have one maximum */
};

/* y[i][j] = dot(x[i], w[j]): a linear layer, its weights stored [out, in]. */
struct matmul {
    const float *x; /* [m][ldx]; the first k of each row are read */
    size_t ldx;
    const void *w; /* [out][k], in `dtype` (BF16, F16 or F32); any alignment */
    enum dtype dtype;
    float *y; /* [m][ldy] */
    size_t ldy;
    uint32_t m, k; /* k >= 1 */
};

/* Computes outputs [first, last) of every row. */
typedef void matmul_fn(const struct matmul *a, uint32_t first, uint32_t last);

/* The exponential race of a draw: token i arrives at -log(u_i) / w_i, w_i = exp((logit - max) *
 * scale), u_i its uniform_of; the first wins, of equal ones the lowest id. Minus infinity does not
 * run. As -log(u) >= 1 - u, most need no logarithm, and no exact w_i; that test errs on the side of
 * running, so the winner is the same in whatever pieces and order they run. */
struct race {
    uint64_t key;   /* uniform_key */
    double max;     /* a finite logit, none of the runners' is larger */
    double scale;   /* 1 / temperature */
    double arrival; /* the winner's so far; INFINITY: there is none */
    uint32_t winner;
};

struct kernels {
    const char *name;
    matmul_fn *matmul_bf16, *matmul_f16, *matmul_f32;

    /* o[i] = fma(p[j], v[j][i], o[i]) for j = 0, 1, ... n-1; v is [n][d]. */
    void (*weighted_sum)(float *o, const float *p, const float *v, uint32_t n, uint32_t d);

    /* x[i] = exp(x[i] - shift), computed in double. */
    void (*exp_shifted)(float *x, float shift, size_t n);

    /* gate[i] = silu(gate[i]) * up[i], silu in double. */
    void (*silu_mul)(float *gate, const float *up, size_t n);

    /* max[b] = the largest of x[b * KERNELS_BLOCK] and on. Returns: are all n finite? NaN is no
     * maximum. */
    bool (*maxima)(float *max, const float *x, size_t n);

    /* The sum of exp((x[i] - shift) * scale), shift >= x[i], in double: eight lanes, lane j over i
     * = j, j + 8, ... in order, then lane i += lane i+4, i+2, i+1. Below exp(-200) is exp(-200). */
    double (*exp_sum)(const float *x, double shift, double scale, size_t n);

    /* How many are >= least. */
    uint32_t (*count_from)(const float *x, float least, size_t n);

    /* Tokens id, id + 1, ... with the logits x[n] run. Ids ascend from call to call. */
    void (*race)(struct race *r, const float *x, uint32_t id, size_t n);
};

enum kernels_isa { KERNELS_SCALAR, KERNELS_AVX2, KERNELS_AVX512, KERNELS_ISA_COUNT };

/* kernels_get - those of one instruction set, or NULL when this build or this CPU lacks it. */
const struct kernels *kernels_get(enum kernels_isa isa);

/* kernels_current - those that a model made now will use: the best, unless kernels_select chose
 * others. Threads: any. */
const struct kernels *kernels_current(void);

/* kernels_select - choose for every model made from now on; a hook for tests, which compare
 * instruction sets. Returns false, and changes nothing, when there is no such set here. */
bool kernels_select(enum kernels_isa isa);

/* kernels_matmul - the one of a->dtype. */
void kernels_matmul(const struct kernels *k, const struct matmul *a, uint32_t first, uint32_t last);

/* kernels_widen - numel elements of BF16, F16 or F32, any alignment, to float32; exact. */
void kernels_widen(float *dst, const void *src, enum dtype dtype, size_t numel);

/* kernels_rms_norm - y = w * (x / sqrt(mean(x^2) + eps)); y may be x. */
void kernels_rms_norm(const struct kernels *k, float *y, const float *x, const float *w, uint32_t n,
                      float eps);

/* The sets that live in files compiled for their own instructions; NULL where not built. */
const struct kernels *kernels_avx2(void);
const struct kernels *kernels_avx512(void);

#endif
