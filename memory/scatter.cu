/* Copies tensors, changes few units of each, and sums the result, in one pass: the GPU's part of a
 * delta.
 *
 * Every bound is checked here, so bytes from outside cannot make a block write beyond its piece:
 * what is out of range is not written, and the piece is marked as refused. What was written of such
 * a piece means nothing.
 *
 * A tile is staged in shared memory: the base comes in and the result goes out at the speed of
 * memory, and the changes between the two cost no access to memory but that to the parts
 * themselves. A run's positions are staged too: they are read by neighbours next to each other,
 * while the prefix sum wants neighbours in one thread. */
#include "memory/copy_sum.h"
#include "memory/scatter.h"

#include <cuda_pipeline_primitives.h>

namespace scatter
{

enum { EACH = SCATTER_RUN / SCATTER_THREADS, LANES = 32, WARPS = SCATTER_THREADS / LANES };
static_assert(static_cast<int>(SCATTER_THREADS) == static_cast<int>(COPY_SUM_THREADS),
              "the same sum over a block");

/* A run's entries in shared memory. A thread's own are 17 words from its neighbour's: in other
 * banks. */
enum { SLOTS = SCATTER_RUN + SCATTER_THREADS };
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

/* The counts of the run's entries from `first` on, [n], become what comes before each. */
__device__ __forceinline__ void scan_run(const scatter_piece &p, uint64_t first, uint32_t n,
                                         uint32_t *slots)
{
    uint32_t mine[EACH], sum = 0, before, all;

    for (uint32_t k = threadIdx.x; k < SCATTER_RUN; k += SCATTER_THREADS)
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

/* The entries of this block's run. */
__device__ __forceinline__ uint32_t entries_of(const scatter_piece &p, uint64_t *first)
{
    uint64_t rest;

    *first = static_cast<uint64_t>(blockIdx.x - p.first_run) * SCATTER_RUN;
    rest = scatter_entries(&p) - *first;
    return static_cast<uint32_t>(rest < SCATTER_RUN ? rest : SCATTER_RUN);
}

/* The units that an entry reaches over: from the end of the one before it to `end`. */
struct reach {
    uint64_t begin, end;
    bool bad;
};

/* @before  what the entries before entry k count */
__device__ __forceinline__ reach reach_of(const scatter_piece &p, uint64_t k, uint64_t before)
{
    const uint64_t n_units = p.copy.nbytes / p.unit;
    reach r;

    if (p.kind == SCATTER_GAP) {
        r = {before, before + count_of(p, k), false};
        r.bad = r.end > n_units;
    } else if (p.kind == SCATTER_BITMAP) {
        r = {8 * k, 8 * k + 8, false};
        r.bad = r.end > n_units && load<uint8_t>(p.positions + k) >> (n_units - r.begin) != 0;
    } else {
        r = {k == 0 ? 0 : position_of(p, k - 1) + 1, position_of(p, k) + 1, false};
        r.bad = r.end <= r.begin || r.end > n_units;
    }
    return r;
}

/* The first tile that begins at or after unit `i` of a piece; any number if there is none. */
__device__ __forceinline__ uint64_t tile_from(const scatter_piece &p, uint64_t i)
{
    return i == 0 ? 0 : (p.copy.dst % COPY_SUM_ALIGN + (i - 1) * p.unit) / SCATTER_TILE_NBYTES + 1;
}

/* The bytes of a tile that come and go 16 at a time, in the destination. */
struct bulk {
    uint64_t lo, hi;
};

__device__ __forceinline__ bulk bulk_of(const tile &t)
{
    bulk b = {(t.lo + 15) / 16 * 16, t.hi / 16 * 16};

    if (b.lo >= b.hi)
        b.lo = b.hi = t.hi;
    return b;
}

/* Brings the base of a tile; the block has to wait for it. */
template <typename T>
__device__ __forceinline__ void load_tile(const tile &t, const bulk &b, uint8_t *bytes)
{
    const uint64_t shift = t.src - t.dst;

    if (shift % 16 != 0) {
        for (uint64_t at = t.lo + threadIdx.x * sizeof(T); at < t.hi;
             at += SCATTER_THREADS * sizeof(T))
            *reinterpret_cast<T *>(bytes + (at - t.base)) = load<T>(at + shift);
        return;
    }
    for (uint64_t at = b.lo + 16 * threadIdx.x; at < b.hi; at += 16 * SCATTER_THREADS)
        __pipeline_memcpy_async(bytes + (at - t.base), reinterpret_cast<const void *>(at + shift),
                                16);
    for (uint64_t at = t.lo + threadIdx.x; at < b.lo; at += SCATTER_THREADS)
        bytes[at - t.base] = *reinterpret_cast<const uint8_t *>(at + shift);
    for (uint64_t at = b.hi + threadIdx.x; at < t.hi; at += SCATTER_THREADS)
        bytes[at - t.base] = *reinterpret_cast<const uint8_t *>(at + shift);
}

/* A tile's units [first, end) in shared memory. */
template <typename T> struct units {
    T *at; /* unit 0 would be here */
    uint64_t first, end;

    __device__ __forceinline__ bool has(uint64_t i) const
    {
        return i >= first && i < end;
    }
};

template <typename T> __device__ __forceinline__ T value_at(const scatter_piece &p, uint64_t k)
{
    return load<T>(p.values + k * sizeof(T));
}

template <typename T>
__device__ __forceinline__ void change_gaps(const scatter_piece &p, const units<T> &u,
                                            scatter_mark m)
{
    uint32_t all;

    for (; m.entry < p.n_values && m.before < u.end; m.entry += SCATTER_THREADS) {
        const uint64_t k = m.entry + threadIdx.x;
        const bool mine = k < p.n_values;
        const uint32_t count = mine ? count_of(p, k) : 0;
        const T value = mine ? value_at<T>(p, k) : 0;
        const uint64_t i = m.before + sum_before<uint32_t>(count, &all) + count - 1;

        if (mine && u.has(i))
            u.at[i] ^= value;
        m.before += all;
    }
}

template <typename T>
__device__ __forceinline__ void change_bitmap(const scatter_piece &p, const units<T> &u,
                                              scatter_mark m)
{
    const uint64_t n = scatter_entries(&p);
    uint32_t all;

    for (; m.entry < n && 8 * m.entry < u.end; m.entry += SCATTER_THREADS) {
        const uint64_t k = m.entry + threadIdx.x;
        uint32_t bits = k < n ? load<uint8_t>(p.positions + k) : 0;
        uint64_t value = m.before + sum_before<uint32_t>(__popc(bits), &all);

        for (; bits != 0; bits &= bits - 1, value++) {
            const uint64_t i = 8 * k + static_cast<uint32_t>(__ffs(bits) - 1);

            if (u.has(i) && value < p.n_values)
                u.at[i] ^= value_at<T>(p, value);
        }
        m.before += all;
    }
}

template <typename T>
__device__ __forceinline__ void change_index(const scatter_piece &p, const units<T> &u,
                                             scatter_mark m)
{
    for (uint64_t k = m.entry + threadIdx.x; k < p.n_values; k += SCATTER_THREADS) {
        const uint64_t i = position_of(p, k);

        if (i >= u.end)
            break;
        if (u.has(i))
            u.at[i] = value_at<T>(p, k);
    }
}

/* @m  where there are entries */
template <typename T>
__device__ __forceinline__ void change_tile(const scatter_piece &p, const tile &t, uint8_t *bytes,
                                            const scatter_mark &m)
{
    const units<T> u = {reinterpret_cast<T *>(bytes + (t.lo - t.base)) - (t.lo - t.dst) / sizeof(T),
                        (t.lo - t.dst) / sizeof(T), (t.hi - t.dst) / sizeof(T)};

    if (p.kind == SCATTER_ALL)
        for (uint64_t i = u.first + threadIdx.x; i < u.end; i += SCATTER_THREADS)
            u.at[i] ^= value_at<T>(p, i);
    else if (p.kind == SCATTER_GAP)
        change_gaps<T>(p, u, m);
    else if (p.kind == SCATTER_BITMAP)
        change_bitmap<T>(p, u, m);
    else
        change_index<T>(p, u, m);
}

/* @t  from shared memory */
template <make MAKE>
__device__ __forceinline__ void store_tile(const tile &t, const bulk &b, sum &s)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(t.src + (b.lo - t.dst));
    uint4 *to = reinterpret_cast<uint4 *>(b.lo);
    const uint32_t n = static_cast<uint32_t>((b.hi - b.lo) / 16);
    const uint32_t place = static_cast<uint32_t>((b.lo - t.base) / 4) + 1;

    for (uint32_t i = threadIdx.x; i < n; i += SCATTER_THREADS) {
        const uint4 v = from[i];

        __stcs(to + i, v);
        add_words<MAKE>(s, v, place + 4 * i, t);
    }
    move_edge<MAKE>(t, t.lo, b.lo, threadIdx.x, s);
    if (b.lo < b.hi)
        move_edge<MAKE>(t, b.hi, t.hi, SCATTER_THREADS - 1 - threadIdx.x, s);
}

template <typename T>
__device__ __forceinline__ void apply_tile(const scatter_piece &p, tile t, uint8_t *bytes,
                                           const scatter_mark *mark, sum &s)
{
    const bulk b = bulk_of(t);
    scatter_mark m = {0, 0};

    load_tile<T>(t, b, bytes);
    __pipeline_commit();
    if (scatter_entries(&p) > 0)
        m = *mark;
    __pipeline_wait_prior(0);
    __syncthreads();
    change_tile<T>(p, t, bytes, m);
    __syncthreads();
    t.src = reinterpret_cast<uint64_t>(bytes) + (t.dst - t.base);
    t.copied = true;
    if (t.mask != 0)
        store_tile<SUM_AND_LOOK>(t, b, s);
    else
        store_tile<SUM>(t, b, s);
}

} /* namespace scatter */

/* @pieces     none writes where another writes, or what another reads
 * @run_piece  [gridDim.x] the piece of each run
 * @sums       [gridDim.x] */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_sum(const scatter_piece *pieces, const uint32_t *run_piece,
                      unsigned long long *sums)
{
    const scatter_piece p = pieces[run_piece[blockIdx.x]];
    uint64_t first;
    const uint32_t n = scatter::entries_of(p, &first);
    uint32_t sum = 0, all; /* at most 2^28 */

    if (p.kind == SCATTER_INDEX)
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
    for (uint32_t first = 0; first < p.n_runs; first += SCATTER_THREADS) {
        const uint32_t run = first + threadIdx.x;
        unsigned long long value = run < p.n_runs ? sums[p.first_run + run] : 0, all;
        const unsigned long long before = scatter::sum_before<unsigned long long>(value, &all);

        if (run < p.n_runs)
            sums[p.first_run + run] = done + before;
        done += all;
    }
    if (p.kind == SCATTER_BITMAP && done != p.n_values && threadIdx.x == 0)
        made[blockIdx.x].found |= SCATTER_REFUSED;
}

/* @sums   as `scan` left them; not read for INDEX
 * @marks  of each tile of a piece with entries; all are written, unless the piece is refused */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_mark(const scatter_piece *pieces, const uint32_t *run_piece,
                       const unsigned long long *sums, scatter_mark *marks, copy_sum_made *made)
{
    __shared__ uint32_t slots[scatter::SLOTS];
    __shared__ uint64_t tail; /* where the run's last entry ends */
    const uint32_t i = run_piece[blockIdx.x];
    const scatter_piece p = pieces[i];
    const bool counts = p.kind != SCATTER_INDEX;
    uint64_t first;
    const uint32_t n = scatter::entries_of(p, &first);
    bool bad = false;

    if (counts)
        scatter::scan_run(p, first, n, slots);
    for (uint32_t k = threadIdx.x; k < n; k += SCATTER_THREADS) {
        const uint64_t before = counts ? sums[blockIdx.x] + slots[scatter::slot(k)] : 0;
        const scatter::reach r = scatter::reach_of(p, first + k, before);
        const uint64_t end = scatter::tile_from(p, r.end);

        for (uint64_t t = scatter::tile_from(p, r.begin); t < end && t < p.n_tiles; t++)
            marks[p.copy.first_tile + t] = {first + k, before};
        bad = bad || r.bad;
        if (k == n - 1)
            tail = r.end;
    }
    if (__syncthreads_or(bad) != 0 && threadIdx.x == 0)
        atomicOr(reinterpret_cast<unsigned long long *>(&made[i].found), SCATTER_REFUSED);
    if (first + n == scatter_entries(&p))
        for (uint64_t t = scatter::tile_from(p, tail) + threadIdx.x; t < p.n_tiles;
             t += SCATTER_THREADS)
            marks[p.copy.first_tile + t] = {first + n, 0};
}

/* @tile_piece  [gridDim.x] the piece of each tile
 * @marks       as `mark` left them */
extern "C" __global__ void __launch_bounds__(SCATTER_THREADS)
    baton_scatter_apply(const scatter_piece *pieces, const uint32_t *tile_piece,
                        const scatter_mark *marks, copy_sum_made *made)
{
    __shared__ __align__(16) uint8_t bytes[SCATTER_TILE_NBYTES];
    const uint32_t i = tile_piece[blockIdx.x];
    const scatter_piece p = pieces[i];
    const tile t = tile_of<SCATTER_TILE_NBYTES>(p.copy, blockIdx.x - p.copy.first_tile);
    sum s = {0, 0, 0};

    if (p.unit == 1)
        scatter::apply_tile<uint8_t>(p, t, bytes, &marks[blockIdx.x], s);
    else if (p.unit == 2)
        scatter::apply_tile<uint16_t>(p, t, bytes, &marks[blockIdx.x], s);
    else if (p.unit == 4)
        scatter::apply_tile<uint32_t>(p, t, bytes, &marks[blockIdx.x], s);
    else
        scatter::apply_tile<unsigned long long>(p, t, bytes, &marks[blockIdx.x], s);
    sum_tile(s, t, p.copy, &made[i]);
}
