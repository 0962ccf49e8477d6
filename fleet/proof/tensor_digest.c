/* The hash of words: each tile of 8192 words gives 64 bits, two sums of mixed words; the tiles'
 * are added up and mixed once more. All sums wrap. */
#include "fleet/proof/tensor_digest.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHORT_LEN = 16 }; /* hex digits of 64 bits */

static const uint32_t seed = 0x243F6A88U;

static uint32_t turn_left(uint32_t x, unsigned by)
{
    return (x << by) | (x >> (32 - by));
}

/* The end of MurmurHash3 of 32 bits. */
static uint32_t mix32(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x85EBCA6BU;
    x = (x ^ (x >> 13)) * 0xC2B2AE35U;
    return x ^ (x >> 16);
}

/* The end of SplitMix64. */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

/* @first  the place of its first word in the tensor; bytes behind the last are 0 */
static uint64_t tile_hash(const unsigned char *bytes, size_t n, uint32_t first, uint64_t nbytes)
{
    const uint32_t other_seed = (seed * 0x9E3779B1U) ^ 0xDEADBEEFU,
                   padded = (uint32_t)((nbytes + 3) / 4 * 4);
    uint32_t a = 0, b = 0;

    for (size_t at = 0; at < n; at += 4) {
        uint32_t word = 0, i = first + (uint32_t)(at / 4);

        memcpy(&word, bytes + at, n - at < 4 ? n - at : 4);
        a += mix32(word ^ (i * 0x27D4EB2DU + seed) ^ turn_left(i, 15));
        b += mix32(word ^ (i * 0x165667B1U + other_seed) ^ turn_left(i, 13));
    }
    return (uint64_t)mix32(a ^ padded) << 32 | mix32(b ^ padded);
}

void tensor_digest_begin(struct tensor_digest *d, enum tensor_digest_kind kind, uint64_t nbytes)
{
    *d = (struct tensor_digest){.kind = kind, .nbytes = nbytes};
    sha256_init(&d->sha);
}

void tensor_digest_add(struct tensor_digest *d, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;

    assert(n % TENSOR_DIGEST_TILE == 0 || d->at + n == d->nbytes);
    if (d->kind == TENSOR_DIGEST_SHA256) {
        sha256_update(&d->sha, n, from);
        d->at += n;
        return;
    }
    for (size_t at = 0; at < n; at += TENSOR_DIGEST_TILE) {
        size_t part = n - at < TENSOR_DIGEST_TILE ? n - at : TENSOR_DIGEST_TILE;

        d->words += tile_hash(from + at, part, (uint32_t)(d->at / 4), d->nbytes);
        d->at += part;
    }
}

void tensor_digest_end(struct tensor_digest *d, char out[TENSOR_DIGEST_TEXT_MAX + 1])
{
    uint8_t sum[SHA256_DIGEST_SIZE];

    assert(d->at == d->nbytes);
    if (d->kind == TENSOR_DIGEST_WORDS) {
        (void)snprintf(out, TENSOR_DIGEST_TEXT_MAX + 1, "%016" PRIx64,
                       d->nbytes > 0 ? mix64(d->words) : 0);
        return;
    }
    sha256_digest(&d->sha, sizeof sum, sum);
    for (size_t i = 0; i < sizeof sum; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

bool tensor_digest_fits(enum tensor_digest_kind kind, const char *sum)
{
    size_t len = strlen(sum);

    return len == SHORT_LEN || (len == TENSOR_DIGEST_TEXT_MAX && kind == TENSOR_DIGEST_SHA256);
}

bool tensor_digest_matches(enum tensor_digest_kind kind, const char *own, const char *sum)
{
    return tensor_digest_fits(kind, sum) && strncmp(own, sum, strlen(sum)) == 0;
}
