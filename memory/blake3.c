/* The input is cut into chunks of 1024 bytes, the leaves of a binary tree whose left subtrees are
 * whole. A chunk is compressed once a byte beyond it has come, because the last node is compressed
 * as the root. */
#include "memory/blake3.h"

#include <endian.h>
#include <string.h>

enum flag { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };
enum { ROUNDS = 7 };

static const uint32_t iv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* What is compressed, and how. */
struct node {
    uint32_t cv[8], words[16];
    uint64_t counter;
    uint32_t nbytes, flags;
};

static inline uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static inline void mix(uint32_t v[16], int a, int b, int c, int d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

/* A round takes the words in this order; the next one takes them permuted once more. */
static const uint8_t order[ROUNDS][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
                                          {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
                                          {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
                                          {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
                                          {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
                                          {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

static void compress(const struct node *n, uint32_t out[8])
{
    const uint32_t *m = n->words;
    uint32_t v[16];

    memcpy(v, n->cv, sizeof n->cv);
    memcpy(v + 8, iv, 4 * sizeof *iv);
    v[12] = (uint32_t)n->counter;
    v[13] = (uint32_t)(n->counter >> 32);
    v[14] = n->nbytes;
    v[15] = n->flags;
    for (int r = 0; r < ROUNDS; r++) {
        const uint8_t *o = order[r];

        mix(v, 0, 4, 8, 12, m[o[0]], m[o[1]]);
        mix(v, 1, 5, 9, 13, m[o[2]], m[o[3]]);
        mix(v, 2, 6, 10, 14, m[o[4]], m[o[5]]);
        mix(v, 3, 7, 11, 15, m[o[6]], m[o[7]]);
        mix(v, 0, 5, 10, 15, m[o[8]], m[o[9]]);
        mix(v, 1, 6, 11, 12, m[o[10]], m[o[11]]);
        mix(v, 2, 7, 8, 13, m[o[12]], m[o[13]]);
        mix(v, 3, 4, 9, 14, m[o[14]], m[o[15]]);
    }
    for (int i = 0; i < 8; i++)
        out[i] = v[i] ^ v[i + 8];
}

/* The block of the chunk that was read last, as its last one if `end` is set. */
static struct node block_node(const struct blake3 *b, uint32_t end)
{
    struct node n = {.counter = b->n_chunks, .nbytes = b->n_block};

    n.flags = (b->n_blocks == 0 ? CHUNK_START : 0) | end;
    memcpy(n.cv, b->cv, sizeof n.cv);
    memcpy(n.words, b->block, b->n_block);
    for (int i = 0; i < 16; i++)
        n.words[i] = le32toh(n.words[i]);
    return n;
}

static struct node parent_node(const uint32_t left[8], const uint32_t right[8])
{
    struct node n = {.nbytes = BLAKE3_BLOCK_NBYTES, .flags = PARENT};

    memcpy(n.cv, iv, sizeof n.cv);
    memcpy(n.words, left, 8 * sizeof *left);
    memcpy(n.words + 8, right, 8 * sizeof *right);
    return n;
}

static void blake3_chunk_begin(struct blake3 *b)
{
    memcpy(b->cv, iv, sizeof b->cv);
    b->n_block = b->n_blocks = 0;
}

/* A whole chunk: each 1 bit at the end of the number of chunks is a subtree that is whole now. */
static void blake3_chunk_end(struct blake3 *b)
{
    struct node n = block_node(b, CHUNK_END);
    uint32_t cv[8];

    compress(&n, cv);
    b->n_chunks++;
    for (uint64_t total = b->n_chunks; (total & 1) == 0; total >>= 1) {
        n = parent_node(b->stack[--b->n_stack], cv);
        compress(&n, cv);
    }
    memcpy(b->stack[b->n_stack++], cv, sizeof cv);
    blake3_chunk_begin(b);
}

void blake3_init(struct blake3 *b)
{
    memset(b, 0, sizeof *b);
    blake3_chunk_begin(b);
}

/* Only called when another byte follows. */
static void block_end(struct blake3 *b)
{
    struct node n;

    if ((b->n_blocks + 1) * BLAKE3_BLOCK_NBYTES == BLAKE3_CHUNK_NBYTES) {
        blake3_chunk_end(b);
        return;
    }
    n = block_node(b, 0);
    compress(&n, b->cv);
    b->n_blocks++;
    b->n_block = 0;
}

void blake3_add(struct blake3 *b, const void *data, size_t nbytes)
{
    const uint8_t *from = data;

    while (nbytes > 0) {
        size_t n;

        if (b->n_block == BLAKE3_BLOCK_NBYTES)
            block_end(b);
        n = BLAKE3_BLOCK_NBYTES - b->n_block;
        n = n < nbytes ? n : nbytes;
        memcpy(b->block + b->n_block, from, n);
        b->n_block += (uint32_t)n;
        from += n;
        nbytes -= n;
    }
}

void blake3_digest(const struct blake3 *b, uint8_t out[BLAKE3_NBYTES])
{
    struct node n = block_node(b, CHUNK_END);
    uint32_t cv[8];

    for (uint32_t i = b->n_stack; i > 0; i--) {
        compress(&n, cv);
        n = parent_node(b->stack[i - 1], cv);
    }
    n.flags |= ROOT;
    compress(&n, cv);
    for (int i = 0; i < 8; i++) {
        uint32_t word = htole32(cv[i]);

        memcpy(out + sizeof word * (size_t)i, &word, sizeof word);
    }
}
