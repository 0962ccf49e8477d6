/* The checksum of a tensor: over its bytes as little-endian 32-bit words w0, w1, ... (zero-padded),
 * A = sum of w_i and B = sum of (i+1)*w_i, both mod 2^64. B is position-weighted, so a wrong
 * offset, a swapped slice or another tensor's bytes show. Not a cryptographic digest. */
#ifndef BATON_MEMORY_CHECKSUM_H
#define BATON_MEMORY_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

enum { CHECKSUM_LEN = 32 }; /* 16 hex digits of A, then 16 of B */

struct checksum {
    uint64_t a, b;
};

/* checksum_of - @data may be unaligned. Runs at memory speed (with AVX2 if the CPU has it). */
struct checksum checksum_of(const void *data, uint64_t nbytes);

/* checksum_add - add bytes [at, at + nbytes) of a tensor, which are at `data`, to its checksum.
 * Parts may be added in any order; once every byte was added, the result is that of checksum_of. */
void checksum_add(struct checksum *c, const void *data, uint64_t nbytes, uint64_t at);

/* checksum_parse - read 32 hex digits (of either case). Returns false for anything else. */
bool checksum_parse(struct checksum *out, const char *text);
void checksum_text(const struct checksum *c, char out[CHECKSUM_LEN + 1]);

static inline bool checksum_equal(struct checksum x, struct checksum y)
{
    return x.a == y.a && x.b == y.b;
}

#endif
