/* The randomness of a draw: a pure function of (seed, index of the output token, token id), so that
 * neither the order in which tokens are drawn nor the thread that draws them can matter. */
#ifndef BATON_ENGINE_KERNELS_UNIFORM_H
#define BATON_ENGINE_KERNELS_UNIFORM_H

#include <stdint.h>
#include <string.h>

#define UNIFORM_STEP 0x9e3779b97f4a7c15U /* SplitMix64's increment, and its two multipliers */
#define UNIFORM_MIX1 0xbf58476d1ce4e5b9U
#define UNIFORM_MIX2 0x94d049bb133111ebU

/* SplitMix64's output function, of a uint64_t or of a vector of them. */
#define UNIFORM_MIX(z)                                                                             \
    do {                                                                                           \
        (z) = ((z) ^ ((z) >> 30)) * UNIFORM_MIX1;                                                  \
        (z) = ((z) ^ ((z) >> 27)) * UNIFORM_MIX2;                                                  \
        (z) = (z) ^ ((z) >> 31);                                                                   \
    } while (0)

/* uniform_key - what all tokens of one draw share. */
static inline uint64_t uniform_key(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + UNIFORM_STEP;

    UNIFORM_MIX(z);
    z += UNIFORM_STEP * (index + 1);
    UNIFORM_MIX(z);
    return z;
}

/* uniform_of - in (0, 1), both ends excluded: 52 bits and a half fit a double exactly. */
static inline double uniform_of(uint64_t key, uint32_t id)
{
    uint64_t z = key + UNIFORM_STEP * ((uint64_t)id + 1);

    UNIFORM_MIX(z);
    return ((double)(z >> 12) + 0.5) * 0x1p-52;
}

#endif
