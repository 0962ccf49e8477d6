/* The interface between the kernels that copy tensors and change few elements of each
 * (memory/scatter.cu) and their callers. Both compilers read it.
 *
 * A position is the number of a unit of `unit` bytes. How a piece says its positions:
 *
 *   SCATTER_ALL     it does not: values[k] is xored into unit k
 *   SCATTER_GAP     u16: how many units lie between a changed one and the one before it; the value
 *                   is xored
 *   SCATTER_BITMAP  a bit for each unit, lowest first; the values of those that are set are xored
 *   SCATTER_INDEX   u32 or u64, ascending; the value is stored. Without values: a copy
 *
 * Positions come as entries: bytes of a bitmap, else one for each value. Four launches: `sum` and
 * `mark` have a block for each run of SCATTER_RUN entries, `scan` one for each piece, `apply` one
 * for each tile of what is written. `sum` adds up what a run's entries count (units of GAP, values
 * of BITMAP), `scan` makes of these what comes before each run, `mark` looks for wrong entries and
 * finds the first entry of each tile, and `apply` copies a tile, changes and sums it. The first two
 * are needed for GAP and BITMAP alone, the third for those and INDEX. */
#ifndef BATON_MEMORY_SCATTER_H
#define BATON_MEMORY_SCATTER_H

#include "memory/copy_sum.h"

#define SCATTER_SUM_KERNEL   "baton_scatter_sum"
#define SCATTER_SCAN_KERNEL  "baton_scatter_scan"
#define SCATTER_MARK_KERNEL  "baton_scatter_mark"
#define SCATTER_APPLY_KERNEL "baton_scatter_apply"

enum { SCATTER_RUN = 4096, SCATTER_THREADS = 256, SCATTER_TILE_NBYTES = 32 << 10 };
enum { SCATTER_ALL, SCATTER_GAP, SCATTER_BITMAP, SCATTER_INDEX };

struct scatter_piece {
    struct copy_sum_piece copy; /* dst aligned to `unit`; equal: changed in place */
    uint64_t positions, values; /* any alignment */
    uint64_t n_values;          /* ALL: one for each unit */
    uint32_t n_tiles, first_run, n_runs;
    uint8_t kind, unit, position_nbytes;
    uint8_t dtype; /* of the elements, to be checked as in device_batch_copy; the host's alone */
};

/* Where the changes of a tile begin: the first entry that reaches into it, and what the entries
 * before that one count. */
struct scatter_mark {
    uint64_t entry, before;
};

/* Bits of `found` in what is made of a piece. */
enum { SCATTER_NOT_FINITE = 1, SCATTER_REFUSED = 2 };

#ifdef __CUDACC__
__device__
#endif
    static inline uint64_t
    scatter_entries(const struct scatter_piece *p)
{
    uint64_t n_units = p->copy.nbytes / p->unit;

    if (p->kind == SCATTER_BITMAP)
        return n_units / 8 + (n_units % 8 != 0);
    return p->kind == SCATTER_ALL ? 0 : p->n_values;
}

#endif
