/* A and B of a tensor's words, without a multiplication in the loop.
 *
 * Over m steps a running sum a += w, b += a leaves b = sum (m - j) w_j, hence
 * sum j w_j = m a - b. Lane k of a vector of L words sees every L-th word, i = L j + k, so that
 * sum (i + 1) w_i = L (m a - b) + (k + 1) a. All mod 2^64, where this is exact. */
#include "memory/checksum.h"

#include <endian.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Adds words first, first + 1, ... of the tensor; the last one may be short. */
static void add_scalar(struct checksum *c, const uint8_t *data, uint64_t nbytes, uint64_t first)
{
    uint64_t i = first;
    uint32_t word;

    for (; nbytes >= 4; nbytes -= 4, data += 4, i++) {
        memcpy(&word, data, 4);
        c->a += le32toh(word);
        c->b += (i + 1) * le32toh(word);
    }
    if (nbytes > 0) {
        word = 0;
        memcpy(&word, data, nbytes);
        c->a += le32toh(word);
        c->b += (i + 1) * le32toh(word);
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

enum { LANES = 16, STEP_NBYTES = LANES * 4 };

__attribute__((target("avx2"))) static __m256i load_words(const uint8_t *data)
{
    return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i_u *)data));
}

/* Whole steps of 64 bytes from the start of the tensor; returns how many bytes it took. */
__attribute__((target("avx2"))) static uint64_t add_avx2(struct checksum *c, const uint8_t *data,
                                                         uint64_t nbytes)
{
    uint64_t m = nbytes / STEP_NBYTES;
    __m256i a[4], b[4];
    uint64_t la[LANES], lb[LANES];

    for (int v = 0; v < 4; v++)
        a[v] = b[v] = _mm256_setzero_si256();
    for (uint64_t j = 0; j < m; j++, data += STEP_NBYTES) {
        a[0] = _mm256_add_epi64(a[0], load_words(data));
        a[1] = _mm256_add_epi64(a[1], load_words(data + 16));
        a[2] = _mm256_add_epi64(a[2], load_words(data + 32));
        a[3] = _mm256_add_epi64(a[3], load_words(data + 48));
        b[0] = _mm256_add_epi64(b[0], a[0]);
        b[1] = _mm256_add_epi64(b[1], a[1]);
        b[2] = _mm256_add_epi64(b[2], a[2]);
        b[3] = _mm256_add_epi64(b[3], a[3]);
    }
    for (int v = 0; v < 4; v++) {
        _mm256_storeu_si256((__m256i_u *)&la[4 * v], a[v]);
        _mm256_storeu_si256((__m256i_u *)&lb[4 * v], b[v]);
    }
    for (uint64_t k = 0; k < LANES; k++) {
        c->a += la[k];
        c->b += LANES * (m * la[k] - lb[k]) + (k + 1) * la[k];
    }
    return m * STEP_NBYTES;
}
#endif

struct checksum checksum_of(const void *data, uint64_t nbytes)
{
    struct checksum c = {0, 0};
    const uint8_t *bytes = data;
    uint64_t done = 0;

#if defined(__x86_64__)
    if (nbytes >= STEP_NBYTES && __builtin_cpu_supports("avx2"))
        done = add_avx2(&c, bytes, nbytes);
#endif
    if (done < nbytes)
        add_scalar(&c, bytes + done, nbytes - done, done / 4);
    return c;
}

/* A word is the sum of its bytes, each at its place, so the bytes of a word that is cut may be
 * added one by one. */
void checksum_add(struct checksum *c, const void *data, uint64_t nbytes, uint64_t at)
{
    const uint8_t *bytes = data;
    struct checksum rest;

    for (; at % 4 != 0 && nbytes > 0; at++, bytes++, nbytes--) {
        uint64_t part = (uint64_t)*bytes << (8 * (at % 4));

        c->a += part;
        c->b += (at / 4 + 1) * part;
    }
    rest = checksum_of(bytes, nbytes);
    c->a += rest.a;
    c->b += rest.b + at / 4 * rest.a;
}

static bool parse_u64(uint64_t *out, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t value = 0;

    for (int i = 0; i < CHECKSUM_LEN / 2; i++) {
        char lower = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] - 'A' + 'a') : text[i];
        const char *digit = lower != '\0' ? strchr(digits, lower) : NULL;
        if (digit == NULL)
            return false;
        value = value << 4 | (uint64_t)(digit - digits);
    }
    *out = value;
    return true;
}

bool checksum_parse(struct checksum *out, const char *text)
{
    struct checksum c;

    if (!parse_u64(&c.a, text) || !parse_u64(&c.b, text + CHECKSUM_LEN / 2) ||
        text[CHECKSUM_LEN] != '\0')
        return false;
    *out = c;
    return true;
}

void checksum_text(const struct checksum *c, char out[CHECKSUM_LEN + 1])
{
    (void)snprintf(out, CHECKSUM_LEN + 1, "%016llx%016llx", (unsigned long long)c->a,
                   (unsigned long long)c->b);
}
