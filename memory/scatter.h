/* The interface between the kernels that change few elements of many tensors (memory/scatter.cu)
 * and their callers. Both compilers read it.
 *
 * A position is the number of a unit of `unit` bytes. How a piece says its positions:
 *
 *   SCATTER_ALL     it does not: values[k] is xored into unit k
 *   SCATTER_GAP     u16: how many units lie between a changed one and the one before it; the value
 *                   is xored
 *   SCATTER_BITMAP  a bit for each unit, lowest first; the values of those that are set are xored
 *   SCATTER_INDEX   u32 or u64, ascending; the value is stored
 *
 * Three launches: `sum` and `apply` have a block for each tile of a piece, `scan` one for each
 * piece. `sum` adds up what a tile's positions count (units of GAP, values of BITMAP), `scan` makes
 * of these what comes before each tile, and `apply` changes the units. The first two are needed for
 * GAP and BITMAP alone. */
#ifndef BATON_MEMORY_SCATTER_H
#define BATON_MEMORY_SCATTER_H

#include <stdint.h>

#define SCATTER_SUM_KERNEL   "baton_scatter_sum"
#define SCATTER_SCAN_KERNEL  "baton_scatter_scan"
#define SCATTER_APPLY_KERNEL "baton_scatter_apply"

enum { SCATTER_TILE = 4096, SCATTER_THREADS = 256 };
enum { SCATTER_ALL, SCATTER_GAP, SCATTER_BITMAP, SCATTER_INDEX };

struct scatter_piece {
    uint64_t dst;               /* aligned to `unit` */
    uint64_t positions, values; /* any alignment */
    uint64_t n_units, n_values; /* of dst; ALL: as many */
    uint32_t first_tile, n_tiles;
    uint8_t kind, unit, position_nbytes, reserved[5];
};

/* scatter_entries - how many entries the tiles of a piece share, SCATTER_TILE each: bytes of a
 * bitmap, else values. */
#ifdef __CUDACC__
__device__
#endif
    static inline uint64_t
    scatter_entries(const struct scatter_piece *p)
{
    return p->kind == SCATTER_BITMAP ? p->n_units / 8 + (p->n_units % 8 != 0) : p->n_values;
}

#endif
