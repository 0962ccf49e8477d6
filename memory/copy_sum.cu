/* Copies pieces of memory and sums what they bring, in the same pass.
 *
 * Memory bound: every thread has several 16-byte loads on their way before it uses the first. The
 * stores are 16 bytes wide and aligned, whatever the alignment of the source: where the two sides
 * differ, two aligned loads of the source are shifted into one store; the second comes from the
 * cache. Nothing outside a piece is read or written: what an aligned access could not reach, a few
 * bytes at either end, goes byte by byte.
 *
 * The sum is memory/checksum.h's, of words that begin where the piece begins, made from words
 * that are aligned in the destination. With k = dst mod 4, aligned word v_j holds the upper bytes
 * of word j - 1 and the lower bytes of word j. Rotated right by 8k bits it is r_j, in which each
 * byte has the weight that it has in its own word, so A is the sum of r_j; and B is the sum of
 * (j + 1) r_j, less once what belongs to the word before: the k low bytes of v_j, which r_j has on
 * top. Bytes beyond the piece are zero.
 *
 * Numbers that are not finite are looked for in the v_j too, as in memory/non_finite.c: whoever
 * launches has seen that no element lies across two of them. */
#include "memory/copy_sum.h"

namespace
{

enum { UNROLL = 4, WARP = 32, SAME_ALIGNMENT = -1 };

struct sum {
    unsigned long long a, b;
    uint32_t found; /* top bits of elements that are not finite; other bits mean nothing */
};

/* What is made of the bytes beside the copy. */
enum make { NOTHING, SUM, SUM_AND_LOOK };

/* One block's part of a piece: what is stored in [lo, hi). */
struct tile {
    uint64_t src, dst; /* where the piece begins */
    uint64_t end;      /* of the piece's source */
    uint64_t base;     /* aligned; words are counted from here */
    uint64_t lo, hi;
    uint32_t rotate; /* 8k */
    bool copied;
    uint32_t mask, step, keep; /* the piece's */
};

/* The bytes of the tile that 16-byte accesses reach. */
struct middle {
    uint64_t lo, hi;  /* in the destination; aligned */
    const uint4 *src; /* aligned; holds the first byte */
    uint32_t shift;   /* in bytes from there to the first byte */
};

/* @place  the word's index from the tile's base, plus one */
template <make MAKE>
__device__ __forceinline__ void add_word(sum &s, uint32_t v, uint32_t place, const tile &t)
{
    const uint32_t rotate = t.rotate, r = __funnelshift_r(v, v, rotate);

    if (MAKE == SUM_AND_LOOK)
        s.found |= ((v & t.mask) + t.step) & (v | t.keep);
    s.a += r;
    s.b += static_cast<unsigned long long>(place) * r;
    s.b -= __funnelshift_r(0, v, rotate); /* v << (32 - rotate), and 0 for 0 */
}

template <make MAKE>
__device__ __forceinline__ void add_words(sum &s, uint4 v, uint32_t place, const tile &t)
{
    add_word<MAKE>(s, v.x, place, t);
    add_word<MAKE>(s, v.y, place + 1, t);
    add_word<MAKE>(s, v.z, place + 2, t);
    add_word<MAKE>(s, v.w, place + 3, t);
}

/* 16 bytes that begin WORDS whole words and `bits` bits after lo's first. */
template <int WORDS> __device__ __forceinline__ uint4 joined(uint4 lo, uint4 hi, uint32_t bits)
{
    const uint32_t in[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};

    return make_uint4(__funnelshift_r(in[WORDS], in[WORDS + 1], bits),
                      __funnelshift_r(in[WORDS + 1], in[WORDS + 2], bits),
                      __funnelshift_r(in[WORDS + 2], in[WORDS + 3], bits),
                      __funnelshift_r(in[WORDS + 3], in[WORDS + 4], bits));
}

/* UNROLL stores of each thread, from index `first` on; BOUNDED: of them those below `n`. All loads
 * come before the first store. */
template <int WORDS, bool COPIED, make MAKE, bool BOUNDED>
__device__ __forceinline__ void move_step(const tile &t, const middle &m, uint32_t first,
                                          uint32_t n, uint32_t place, sum &s)
{
    constexpr bool same = WORDS == SAME_ALIGNMENT;
    uint4 v[UNROLL], next[UNROLL];

#pragma unroll
    for (uint32_t u = 0; u < UNROLL; u++) {
        const uint32_t i = first + u * COPY_SUM_THREADS;

        v[u] = next[u] = make_uint4(0, 0, 0, 0);
        if (!BOUNDED || i < n) {
            v[u] = same ? __ldcs(m.src + i) : __ldg(m.src + i);
            if (!same)
                next[u] = __ldg(m.src + i + 1);
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; u++) {
        const uint32_t i = first + u * COPY_SUM_THREADS;

        if (!same)
            v[u] = joined < same ? 0 : WORDS > (v[u], next[u], m.shift % 4 * 8);
        if (COPIED && (!BOUNDED || i < n))
            __stcs(reinterpret_cast<uint4 *>(m.lo) + i, v[u]);
        if (MAKE != NOTHING) /* what was not loaded is zero, and adds nothing */
            add_words<MAKE>(s, v[u], place + 4 * i, t);
    }
}

template <int WORDS, bool COPIED, make MAKE>
__device__ __forceinline__ void move_middle(const tile &t, const middle &m, sum &s)
{
    const uint32_t n = static_cast<uint32_t>((m.hi - m.lo) / 16);
    const uint32_t place = static_cast<uint32_t>((m.lo - t.base) / 4) + 1;
    const uint32_t step = UNROLL * COPY_SUM_THREADS;
    uint32_t done = 0;

    for (; done + step <= n; done += step)
        move_step<WORDS, COPIED, MAKE, false>(t, m, done + threadIdx.x, n, place, s);
    if (done < n)
        move_step<WORDS, COPIED, MAKE, true>(t, m, done + threadIdx.x, n, place, s);
}

/* The bytes that are stored in [from, to), word by word. @thread  0 takes the first word */
template <make MAKE>
__device__ __forceinline__ void move_edge(const tile &t, uint64_t from, uint64_t to,
                                          uint32_t thread, sum &s)
{
    for (uint64_t at = from / 4 * 4 + 4 * thread; at < to; at += 4 * COPY_SUM_THREADS) {
        uint32_t v = 0;

        for (uint32_t i = 0; i < 4; i++) {
            if (at + i >= from && at + i < to) {
                const uint8_t byte = *reinterpret_cast<const uint8_t *>(t.src + (at + i - t.dst));

                if (t.copied)
                    *reinterpret_cast<uint8_t *>(at + i) = byte;
                v |= static_cast<uint32_t>(byte) << (8 * i);
            }
        }
        add_word<MAKE>(s, v, static_cast<uint32_t>((at - t.base) / 4) + 1, t);
    }
}

/* Loads reach 16 bytes from `src + i`, and where the alignments differ 32: less one store at
 * either end they stay in the piece. */
__device__ __forceinline__ middle middle_of(const tile &t)
{
    middle m;
    uint64_t from;

    m.lo = (t.lo + 15) / 16 * 16;
    m.hi = t.hi / 16 * 16;
    m.shift = static_cast<uint32_t>((t.src - t.dst) % 16);
    if (m.shift != 0) {
        if (t.src + (m.lo - t.dst) - m.shift < t.src)
            m.lo += 16;
        if (t.src + (m.hi - t.dst) - m.shift + 16 > t.end)
            m.hi -= 16;
    }
    if (m.lo >= m.hi)
        m.lo = m.hi = t.hi; /* all edge */
    from = t.src + (m.lo - t.dst);
    m.src = reinterpret_cast<const uint4 *>(from - m.shift);
    return m;
}

template <bool COPIED, make MAKE>
__device__ __forceinline__ void move_tile(const tile &t, const middle &m, sum &s)
{
    if (m.shift == 0)
        move_middle<SAME_ALIGNMENT, COPIED, MAKE>(t, m, s);
    else if (m.shift < 4)
        move_middle<0, COPIED, MAKE>(t, m, s);
    else if (m.shift < 8)
        move_middle<1, COPIED, MAKE>(t, m, s);
    else if (m.shift < 12)
        move_middle<2, COPIED, MAKE>(t, m, s);
    else
        move_middle<3, COPIED, MAKE>(t, m, s);
    move_edge<MAKE>(t, t.lo, m.lo, threadIdx.x, s);
    if (m.lo < m.hi) /* by the other end of the block, meanwhile */
        move_edge<MAKE>(t, m.hi, t.hi, COPY_SUM_THREADS - 1 - threadIdx.x, s);
}

__device__ __forceinline__ void add_over_warp(sum &s)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        s.a += __shfl_down_sync(0xffffffffU, s.a, lanes);
        s.b += __shfl_down_sync(0xffffffffU, s.b, lanes);
    }
}

/* Every thread of the block comes here. @top  of the piece */
__device__ __forceinline__ void add_over_block(sum s, uint32_t top, unsigned long long *out)
{
    __shared__ sum warps[COPY_SUM_THREADS / WARP];
    bool found;

    add_over_warp(s);
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = s;
    found = __syncthreads_or((s.found & top) != 0) != 0;
    if (threadIdx.x >= WARP)
        return;
    s.a = threadIdx.x < COPY_SUM_THREADS / WARP ? warps[threadIdx.x].a : 0;
    s.b = threadIdx.x < COPY_SUM_THREADS / WARP ? warps[threadIdx.x].b : 0;
    add_over_warp(s);
    if (threadIdx.x == 0) {
        atomicAdd(&out[0], s.a);
        atomicAdd(&out[1], s.b);
        if (found)
            atomicOr(&out[2], 1ULL);
    }
}

template <uint32_t NBYTES>
__device__ __forceinline__ tile tile_of(const copy_sum_piece &p, uint32_t index)
{
    const uint64_t end = p.dst + p.nbytes;
    tile t;

    t.src = p.src;
    t.dst = p.dst;
    t.end = p.src + p.nbytes;
    t.base = p.dst / COPY_SUM_ALIGN * COPY_SUM_ALIGN + static_cast<uint64_t>(index) * NBYTES;
    t.lo = t.base > p.dst ? t.base : p.dst;
    t.hi = t.base + NBYTES < end ? t.base + NBYTES : end;
    t.rotate = static_cast<uint32_t>(p.dst % 4 * 8);
    t.copied = p.src != p.dst;
    t.mask = p.mask;
    t.step = p.step;
    t.keep = p.keep;
    return t;
}

template <make MAKE> __device__ __forceinline__ void make_of(const tile &t, const middle &m, sum &s)
{
    if (t.copied)
        move_tile<true, MAKE>(t, m, s);
    else if (MAKE != NOTHING)
        move_tile<false, MAKE>(t, m, s);
}

/* Adds what a tile's words made to what is made of the piece. Every thread of the block comes here.
 */
__device__ __forceinline__ void sum_tile(sum s, const tile &t, const copy_sum_piece &p,
                                         copy_sum_made *made)
{
    /* From the tile's base to the piece's first word; before it, for a piece's first tile. */
    s.b += static_cast<unsigned long long>(static_cast<long long>(t.base - p.dst / 4 * 4) / 4) *
           s.a;
    add_over_block(s, p.top, reinterpret_cast<unsigned long long *>(made));
}

} /* namespace */

/* @pieces      no two overlap in what they write, and none reads what another writes
 * @tile_piece  [gridDim.x] the piece of each tile
 * @made        [copy_sum_made] one for each piece; or NULL */
extern "C" __global__ void __launch_bounds__(COPY_SUM_THREADS, 4)
    baton_copy_sum(const copy_sum_piece *pieces, const uint32_t *tile_piece, copy_sum_made *made)
{
    const uint32_t i = tile_piece[blockIdx.x];
    const copy_sum_piece p = pieces[i];
    const tile t = tile_of<COPY_SUM_TILE_NBYTES>(p, blockIdx.x - p.first_tile);
    const middle m = middle_of(t);
    sum s = {0, 0, 0};

    if (made == nullptr) {
        make_of<NOTHING>(t, m, s);
        return;
    }
    if (p.mask != 0)
        make_of<SUM_AND_LOOK>(t, m, s);
    else
        make_of<SUM>(t, m, s);
    sum_tile(s, t, p, &made[i]);
}
