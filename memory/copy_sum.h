/* The interface between the kernel (memory/copy_sum.cu) and its callers. Both compilers read it.
 *
 * A launch has one block for each tile. The tiles of a piece are numbered in order, from its
 * `first_tile`. All but the first begin at a multiple of COPY_SUM_ALIGN in the destination, so a
 * piece that begins elsewhere has a shorter first tile. */
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
    uint32_t mask, step, top, keep; /* as in memory/non_finite.h, for aligned words in the
                                       destination; mask 0: not checked */
    uint32_t reserved;
};

/* The result for a piece. Zeroed before the launch, except that a `found` set before stays set. */
struct copy_sum_made {
    uint64_t a, b;
    uint64_t found; /* 1: a number is not finite; memory/scatter.h has another bit */
};

/* copy_sum_tiles - how many tiles a piece has. @nbytes at most 2^63. @tile_nbytes of one */
static inline uint64_t copy_sum_tiles(uint64_t dst, uint64_t nbytes, uint64_t tile_nbytes)
{
    return nbytes == 0 ? 0 : (dst % COPY_SUM_ALIGN + nbytes - 1) / tile_nbytes + 1;
}

/* The image of all kernels (memory/kernels.cu) for cuModuleLoadData; empty if none was compiled
 * (memory/copy_sum_image.c). */
#ifndef __CUDACC__
extern const unsigned char copy_sum_image[];
extern const size_t copy_sum_image_nbytes;
#endif

#endif
