/* Changes few units of many tensors: the GPU's part of a delta.
 *
 * Every bound is checked here, so bytes from outside cannot make a block write beyond its piece:
 * what is out of range is not written, and the piece is marked. What was written of a marked piece
 * means nothing.
 *
 * A tile's positions are staged in shared memory: they are read, and the units are changed, by
 * neighbours next to each other, while the prefix sum wants neighbours in one thread. The units lie
 * apart, so each costs a sector of memory to read and to write, and all else is small beside
 * that. */
#include "memory/copy_sum.h"
#include "memory/scatter.h"

namespace scatter
{

enum { EACH = SCATTER_TILE / SCATTER_THREADS, LANES = 32, WARPS = SCATTER_THREADS / LANES };

/* A tile's entries in shared memory. A thread's own are 17 words from its neighbour's: in other
 * banks. */
enum { SLOTS = SCATTER_TILE + SCATTER_THREADS };
__device__ __forceinline__ uint32_t slot(uint32_t k)
{
    return k + k / EACH;
}

/* Whole if it is aligned, which is the same for all values of a piece. */
template <typename T> __device__ __forceinline__ T load(uint64_t at)
{
    uint64_t v = 0;

    if (at % sizeof(T) == 0)
        return *reinterpret_cast<const T *>(at);
    for (uint32_t i = 0; i < sizeof(T); i++)
        v |= static_cast<uint64_t>(*reinterpret_cast<const uint8_t *>(at + i)) << (8 * i);
    return static_cast<T>(v);
}

/* What entry k counts: units up to and with its own, or values. */
__device__ __forceinline__ uint32_t count_of(const scatter_piece &p, uint64_t k)
{
    if (p.kind == SCATTER_GAP)
        return load<uint16_t>(p.positions + 2 * k) + 1U;
    return __popc(load<uint8_t>(p.positions + k));
}

__device__ __forceinline__ uint64_t position_of(const scatter_piece &p, uint64_t k)
{
    return p.position_nbytes == 8 ? load<uint64_t>(p.positions + 8 * k)
                                  : load<uint32_t>(p.positions + 4 * k);
}

/* The sum of what comes before this thread's value; *all: of the block's. Every thread of the block
 * comes here. */
template <typename T> __device__ __forceinline__ T sum_before(T value, T *all)
{
    __shared__ T warps[WARPS];
    const uint32_t lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    T upto = value, before = 0, sum = 0;

#pragma unroll
    for (uint32_t by = 1; by < LANES; by *= 2) {
        const T other = __shfl_up_sync(0xffffffffU, upto, by);

        if (lane >= by)
            upto += other;
    }
    __syncthreads(); /* a call before has read `warps` */
    if (lane == LANES - 1)
        warps[warp] = upto;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        before += w < warp ? warps[w] : 0;
        sum += warps[w];
    }
    *all = sum;
    return before + upto - value;
}

/* The counts of the tile's entries from `first` on, [n], become what comes before each. */
__device__ __forceinline__ void scan_tile(const scatter_piece &p, uint64_t first, uint32_t n,
                                          uint32_t *slots)
{
    uint32_t mine[EACH], sum = 0, before, all;

    for (uint32_t k = threadIdx.x; k < SCATTER_TILE; k += SCATTER_THREADS)
        slots[slot(k)] = k < n ? count_of(p, first + k) : 0;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        mine[i] = slots[slot(EACH * threadIdx.x + i)];
        sum += mine[i];
    }
    before = sum_before<uint32_t>(sum, &all);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        slots[slot(EACH * threadIdx.x + i)] = before;
        before += mine[i];
    }
    __syncthreads();
}

template <typename T> __device__ __forceinline__ T *unit_at(const scatter_piece &p, uint64_t i)
{
    return reinterpret_cast<T *>(p.dst) + i;
}

template <typename T> __device__ __forceinline__ T value_at(const scatter_piece &p, uint64_t k)
{
    return load<T>(p.values + k * sizeof(T));
}

/* @start  units before the tile */
template <typename T>
__device__ __forceinline__ bool apply_gaps(const scatter_piece &p, uint64_t first, uint32_t n,
                                           uint64_t start, uint32_t *slots)
{
    bool bad = false;

    scan_tile(p, first, n, slots);
    for (uint32_t k = threadIdx.x; k < n; k += SCATTER_THREADS) {
        const uint64_t at = start + slots[slot(k)] + count_of(p, first + k) - 1;

        if (at < p.n_units)
            *unit_at<T>(p, at) ^= value_at<T>(p, first + k);
        else
            bad = true;
    }
    return bad;
}

/* @start  values before the tile */
template <typename T>
__device__ __forceinline__ bool apply_bitmap(const scatter_piece &p, uint64_t first, uint32_t n,
                                             uint64_t start, uint32_t *slots)
{
    bool bad = false;

    scan_tile(p, first, n, slots);
    for (uint32_t k = threadIdx.x; k < n; k += SCATTER_THREADS) {
        uint64_t value = start + slots[slot(k)];

        for (uint32_t bits = load<uint8_t>(p.positions + first + k); bits != 0; bits &= bits - 1) {
            const uint64_t at = (first + k) * 8 + static_cast<uint32_t>(__ffs(bits) - 1);

            if (at < p.n_units && value < p.n_values)
                *unit_at<T>(p, at) ^= value_at<T>(p, value);
            else
                bad = true;
            value++;
        }
    }
    return bad;
}

template <typename T>
__device__ __forceinline__ bool apply_index(const scatter_piece &p, uint64_t first, uint32_t n)
{
    bool bad = false;

    for (uint32_t i = threadIdx.x; i < n; i += SCATTER_THREADS) {
        const uint64_t k = first + i, at = position_of(p, k);

        if (at < p.n_units && (k == 0 || position_of(p, k - 1) < at))
            *unit_at<T>(p, at) = value_at<T>(p, k);
        else
            bad = true;
    }
    return bad;
}

template <typename T>
__device__ __forceinline__ bool apply_all(const scatter_piece &p, uint64_t first, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += SCATTER_THREADS)
        *unit_at<T>(p, first + i) ^= value_at<T>(p, first + i);
    return false;
}

template <typename T>
__device__ __forceinline__ bool apply_tile(const scatter_piece &p, uint64_t first, uint32_t n,
                                           uint64_t start, uint32_t *slots)
{
    switch (p.kind) {
    case SCATTER_ALL:
        return apply_all<T>(p, first, n);
    case SCATTER_GAP:
        return apply_gaps<T>(p, first, n, start, slots);
    case SCATTER_BITMAP:
        return apply_bitmap<T>(p, first, n, start, slots);
    default:
        return apply_index<T>(p, first, n);
    }
}

/* The entries of this block's tile. */
__device__ __forceinline__ uint32_t entries_of(const scatter_piece &p, uint64_t *first)
{
    uint64_t rest;

    *first = static_cast<uint64_t>(blockIdx.x - p.first_tile) * SCATTER_TILE;
    rest = scatter_entries(&p) - *first;
    return static_cast<uint32_t>(rest < SCATTER_TILE ? rest : SCATTER_TILE);
}

} /* namespace scatter */

/* @pieces      none writes where another writes, or what another reads
 * @tile_piece  [gridDim.x] the piece of each tile
 * @sums        [gridDim.x] */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_sum(const scatter_piece *pieces, const uint32_t *tile_piece,
                      unsigned long long *sums)
{
    const scatter_piece p = pieces[tile_piece[blockIdx.x]];
    uint64_t first;
    const uint32_t n = scatter::entries_of(p, &first);
    uint32_t sum = 0, all; /* at most 2^28 */

    if (p.kind != SCATTER_GAP && p.kind != SCATTER_BITMAP)
        return;
    for (uint32_t k = threadIdx.x; k < n; k += SCATTER_THREADS)
        sum += scatter::count_of(p, first + k);
    (void)scatter::sum_before<uint32_t>(sum, &all);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = all;
}

/* @made  [gridDim.x] */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_scan(const scatter_piece *pieces, unsigned long long *sums, copy_sum_made *made)
{
    const scatter_piece p = pieces[blockIdx.x];
    unsigned long long done = 0;

    if (p.kind != SCATTER_GAP && p.kind != SCATTER_BITMAP)
        return;
    for (uint32_t first = 0; first < p.n_tiles; first += SCATTER_THREADS) {
        const uint32_t tile = first + threadIdx.x;
        unsigned long long value = tile < p.n_tiles ? sums[p.first_tile + tile] : 0, all;
        const unsigned long long before = scatter::sum_before<unsigned long long>(value, &all);

        if (tile < p.n_tiles)
            sums[p.first_tile + tile] = done + before;
        done += all;
    }
    if (p.kind == SCATTER_BITMAP && done != p.n_values && threadIdx.x == 0)
        made[blockIdx.x].found = 1;
}

/* @sums  as `scan` left them; not read for pieces of other kinds than GAP and BITMAP */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_apply(const scatter_piece *pieces, const uint32_t *tile_piece,
                        const unsigned long long *sums, copy_sum_made *made)
{
    __shared__ uint32_t slots[scatter::SLOTS];
    const uint32_t i = tile_piece[blockIdx.x];
    const scatter_piece p = pieces[i];
    uint64_t first, start = 0;
    const uint32_t n = scatter::entries_of(p, &first);
    bool bad;

    if (p.kind == SCATTER_GAP || p.kind == SCATTER_BITMAP)
        start = sums[blockIdx.x];
    if (p.unit == 1)
        bad = scatter::apply_tile<uint8_t>(p, first, n, start, slots);
    else if (p.unit == 2)
        bad = scatter::apply_tile<uint16_t>(p, first, n, start, slots);
    else if (p.unit == 4)
        bad = scatter::apply_tile<uint32_t>(p, first, n, start, slots);
    else
        bad = scatter::apply_tile<unsigned long long>(p, first, n, start, slots);
    if (bad)
        made[i].found = 1;
}
