/* BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs): the hash alone, without keys, derived keys
 * and longer outputs. */
#ifndef BATON_MEMORY_BLAKE3_H
#define BATON_MEMORY_BLAKE3_H

#include <stddef.h>
#include <stdint.h>

enum {
    BLAKE3_NBYTES = 32,
    BLAKE3_BLOCK_NBYTES = 64,
    BLAKE3_CHUNK_NBYTES = 1024,
    BLAKE3_DEPTH_MAX = 54 /* of the tree over 2^64 bytes */
};

struct blake3 {
    uint32_t cv[8];                      /* chaining value of the chunk being read */
    uint64_t n_chunks;                   /* before it */
    uint8_t block[BLAKE3_BLOCK_NBYTES];  /* its last block, not compressed yet */
    uint32_t n_block;                    /* bytes of that */
    uint32_t n_blocks;                   /* of the chunk, before that */
    uint32_t stack[BLAKE3_DEPTH_MAX][8]; /* of whole subtrees, the largest first */
    uint32_t n_stack;
};

void blake3_init(struct blake3 *b);
void blake3_add(struct blake3 *b, const void *data, size_t nbytes);
void blake3_digest(const struct blake3 *b, uint8_t out[BLAKE3_NBYTES]);

#endif
