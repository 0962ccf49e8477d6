/* What the kernel (memory/copy_sum.cu) and its callers agree on. Read by both compilers.
 *
 * A launch has one block for each tile. The tiles of a piece follow one another, from its
 * `first_tile`; all but the first begin at a multiple of COPY_SUM_ALIGN in the destination, so that
 * a piece which begins elsewhere has a shorter first tile. */
#ifndef BATON_MEMORY_COPY_SUM_H
#define BATON_MEMORY_COPY_SUM_H

#include <stddef.h>
#include <stdint.h>

#define COPY_SUM_KERNEL "baton_copy_sum"

enum { COPY_SUM_TILE_NBYTES = 64 << 10, COPY_SUM_ALIGN = 128, COPY_SUM_THREADS = 256 };

struct copy_sum_piece {
    uint64_t src, dst; /* any alignment; equal: only summed */
    uint64_t nbytes;
    uint32_t first_tile;
    uint32_t mask, step, top, keep; /* memory/non_finite.h's, of aligned words in the destination;
                                       mask 0: it is not looked at */
    uint32_t reserved;
};

/* What is made of a piece; zeroed before, or `found` set: then it stays so. */
struct copy_sum_made {
    uint64_t a, b;
    uint64_t found; /* not 0: there is a number that is not finite */
};

/* copy_sum_tiles - how many tiles a piece has. @nbytes at most 2^63 */
static inline uint64_t copy_sum_tiles(uint64_t dst, uint64_t nbytes)
{
    return nbytes == 0 ? 0 : (dst % COPY_SUM_ALIGN + nbytes - 1) / COPY_SUM_TILE_NBYTES + 1;
}

/* What cuModuleLoadData is given; empty where no kernel was compiled (memory/copy_sum_image.c). */
#ifndef __CUDACC__
extern const unsigned char copy_sum_image[];
extern const size_t copy_sum_image_nbytes;
#endif

#endif
