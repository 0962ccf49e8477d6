/* What the cores can do at best, by the same threads as the engine's: bytes read and multiply-adds
 * in a second. Engines are measured against these, in the same run. */
#ifndef BATON_TESTS_BENCH_CORES_H
#define BATON_TESTS_BENCH_CORES_H

#include "base/clock.h"
#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CORES_PIECE_NBYTES = 1 << 16, CORES_CHAINS = 12, CORES_FMA_ROUNDS = 200000 };

/* Something must come of what is computed, or it is left out. */
static atomic_uint cores_sink;

struct cores_read {
    const char *base;
    enum kernels_isa isa;
    size_t ahead; /* how many bytes before its use a line is asked for */
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) static inline uint32_t cores_read_avx2(const char *p, size_t n,
                                                                       size_t ahead)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;

    for (size_t i = 0; i + 128 <= n; i += 128) {
        const __m256i *v = (const __m256i *)(const void *)(p + i);

        __builtin_prefetch(p + i + ahead, 0, 2);
        __builtin_prefetch(p + i + ahead + 64, 0, 2);
        a = _mm256_or_si256(a, _mm256_loadu_si256(v));
        b = _mm256_or_si256(b, _mm256_loadu_si256(v + 1));
        c = _mm256_or_si256(c, _mm256_loadu_si256(v + 2));
        d = _mm256_or_si256(d, _mm256_loadu_si256(v + 3));
    }
    a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    return (uint32_t)_mm256_movemask_epi8(a);
}

__attribute__((target("avx512f,avx512dq"))) static inline uint32_t
cores_read_avx512(const char *p, size_t n, size_t ahead)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

    for (size_t i = 0; i + 256 <= n; i += 256) {
        for (size_t line = 0; line < 256; line += 64)
            __builtin_prefetch(p + i + ahead + line, 0, 2);
        a = _mm512_or_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_or_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_or_si512(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_or_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    return (uint32_t)_mm512_movepi32_mask(a);
}

__attribute__((target("avx2,fma"))) static inline uint32_t cores_fma_avx2(void)
{
    __m256 acc[CORES_CHAINS], x = _mm256_set1_ps(0.5F);

    for (int i = 0; i < CORES_CHAINS; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int round = 0; round < CORES_FMA_ROUNDS; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CORES_CHAINS; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], x, x);
    }
    for (int i = 1; i < CORES_CHAINS; i++)
        acc[0] = _mm256_add_ps(acc[0], acc[i]);
    return (uint32_t)_mm256_movemask_ps(acc[0]);
}

__attribute__((target("avx512f,avx512dq"))) static inline uint32_t cores_fma_avx512(void)
{
    __m512 acc[CORES_CHAINS], x = _mm512_set1_ps(0.5F);

    for (int i = 0; i < CORES_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int round = 0; round < CORES_FMA_ROUNDS; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CORES_CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], x, x);
    }
    for (int i = 1; i < CORES_CHAINS; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    return (uint32_t)_mm512_movepi32_mask(_mm512_castps_si512(acc[0]));
}
#endif

static inline uint32_t cores_read_plain(const char *p, size_t n)
{
    uint64_t acc[8] = {0};

    for (size_t i = 0; i + 64 <= n; i += 64) {
        const uint64_t *v = (const uint64_t *)(const void *)(p + i);

        for (int j = 0; j < 8; j++)
            acc[j] |= v[j];
    }
    return (uint32_t)(acc[0] | acc[1] | acc[2] | acc[3] | acc[4] | acc[5] | acc[6] | acc[7]);
}

static inline void cores_read_part(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct cores_read *r = arg;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        const char *p = r->base + i * CORES_PIECE_NBYTES;
        uint32_t x;

#if defined(__x86_64__)
        x = r->isa == KERNELS_AVX512 ? cores_read_avx512(p, CORES_PIECE_NBYTES, r->ahead)
            : r->isa == KERNELS_AVX2 ? cores_read_avx2(p, CORES_PIECE_NBYTES, r->ahead)
                                     : cores_read_plain(p, CORES_PIECE_NBYTES);
#else
        x = cores_read_plain(p, CORES_PIECE_NBYTES);
#endif
        (void)atomic_fetch_or_explicit(&cores_sink, x, memory_order_relaxed);
    }
}

/* cores_read - bytes a second of reading memory once, whole pieces of CORES_PIECE_NBYTES.
 * @base   64-byte aligned
 * @ahead  0, or how far before its use memory is asked for: whichever is faster is the bandwidth */
static inline double cores_read(struct compute *c, enum kernels_isa isa, const void *base,
                                size_t nbytes, size_t ahead)
{
    struct cores_read r = {.base = base, .isa = isa, .ahead = ahead};
    uint32_t n = (uint32_t)(nbytes / CORES_PIECE_NBYTES);
    uint64_t begin = clock_now_us();

    compute_run(c, n, 1, cores_read_part, &r);
    return (double)n * CORES_PIECE_NBYTES / ((double)(clock_now_us() - begin) / 1e6);
}

static inline void cores_fma_part(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    enum kernels_isa isa = *(enum kernels_isa *)arg;

    (void)thread;
    (void)isa;
    for (uint32_t i = first; i < last; i++) {
        uint32_t x = 0;

#if defined(__x86_64__)
        x = isa == KERNELS_AVX512 ? cores_fma_avx512() : cores_fma_avx2();
#endif
        (void)atomic_fetch_or_explicit(&cores_sink, x, memory_order_relaxed);
    }
}

/* cores_flops - floating point operations a second of fused multiply-adds that wait for nothing. */
static inline double cores_flops(struct compute *c, enum kernels_isa isa)
{
    uint32_t n = compute_n_threads(c) * 8, lanes = isa == KERNELS_AVX512 ? 16 : 8;
    uint64_t begin = clock_now_us();

    compute_run(c, n, 1, cores_fma_part, &isa);
    return 2.0 * n * lanes * CORES_CHAINS * CORES_FMA_ROUNDS /
           ((double)(clock_now_us() - begin) / 1e6);
}

#endif
