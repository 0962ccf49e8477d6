/* Random pieces of a copy between two blocks, and a model of it in host memory: for the tests of
 * weights/device on the fake and on a GPU. */
#ifndef BATON_TESTS_UNIT_DEVICE_PIECES_H
#define BATON_TESTS_UNIT_DEVICE_PIECES_H

#include "memory/device.h"
#include "memory/non_finite.h"

#include <stdint.h>
#include <string.h>

/* The blocks as the device has them, and the same bytes in host memory. */
struct pieces_world {
    uint64_t src, dst, nbytes; /* each of nbytes */
    unsigned char *host_src, *host_dst;
    uint64_t seed; /* not 0 */
};

static inline uint64_t pieces_random(struct pieces_world *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed >> 3;
}

static inline void pieces_fill(struct pieces_world *w, unsigned char *bytes, uint64_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)pieces_random(w);
}

/* Lengths around what the kernel treats differently: words, stores, steps, tiles. */
static inline uint64_t pieces_length(struct pieces_world *w, uint64_t nbytes_max)
{
    static const uint64_t around[] = {16, 64, 4096, 16384, 65536, 131072};
    uint64_t kind = pieces_random(w) % 8, nbytes;

    if (kind < 3)
        nbytes = pieces_random(w) % 80;
    else if (kind < 6)
        nbytes = around[pieces_random(w) % 6] - 8 + pieces_random(w) % 17;
    else
        nbytes = pieces_random(w) % 300000;
    return nbytes < nbytes_max ? nbytes : nbytes_max;
}

/* Bytes of which no element is NaN or infinity, of whatever dtype and wherever it begins; and here
 * and there two more, which are the upper bytes of one, or not. */
static inline void pieces_fill_finite(struct pieces_world *w, unsigned char *bytes, uint64_t nbytes,
                                      uint64_t n_bad)
{
    for (uint64_t i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)(pieces_random(w) % 0x70);
    for (; n_bad > 0; n_bad--)
        memset(bytes + pieces_random(w) % (nbytes - 1), 0xff, 2);
}

/* Does each element lie whole in an aligned word of 32 bits, once it is copied? */
static inline bool pieces_by_words(const struct device_piece *p)
{
    uint64_t size = p->dtype == DTYPE_C64 ? 4 : dtype_nbytes(p->dtype);

    return size <= 4 && p->dst % size == 0;
}

/* pieces_suspect - what is to be said of a piece; a kernel says so too of what it could not see. */
static inline bool pieces_suspect(const struct pieces_world *w, const struct device_piece *p,
                                  bool kernel)
{
    return non_finite_in(w->host_dst + (p->dst - w->dst), p->nbytes, p->dtype) ||
           (kernel && non_finite_bits(p->dtype).top != 0 && !pieces_by_words(p));
}

/* One dtype in four is none; half of the others come to lie as their elements want it. */
static inline enum dtype pieces_dtype(struct pieces_world *w, uint64_t *at)
{
    enum dtype d = pieces_random(w) % 4 == 0
                       ? DTYPE_NONE
                       : (enum dtype)(1 + pieces_random(w) % (DTYPE_COUNT - 1));

    if (d != DTYPE_NONE && pieces_random(w) % 2 == 0)
        *at += (dtype_nbytes(d) - (w->dst + *at) % dtype_nbytes(d)) % dtype_nbytes(d);
    return d;
}

/* pieces_make - up to `max` pieces that write apart from each other; returns how many fit. Some
 * have both sides aligned alike, some are only summed. The model's dst is brought up to date. */
static inline uint32_t pieces_make(struct pieces_world *w, struct device_piece *out, uint32_t max)
{
    uint64_t at = pieces_random(w) % 64;
    uint32_t n = 0;

    while (n < max && at < w->nbytes) {
        enum dtype dtype = pieces_dtype(w, &at);
        uint64_t nbytes = pieces_length(w, at < w->nbytes ? w->nbytes - at : 0), from;

        if (dtype != DTYPE_NONE)
            nbytes -= nbytes % dtype_nbytes(dtype);
        from = pieces_random(w) % (w->nbytes - nbytes + 1);

        if (pieces_random(w) % 3 == 0 && from + 16 + nbytes <= w->nbytes)
            from += ((w->dst + at) - (w->src + from)) % 16;
        out[n] = (struct device_piece){w->src + from, w->dst + at, nbytes, dtype};
        if (pieces_random(w) % 8 == 0)
            out[n].src = out[n].dst;
        else
            memcpy(w->host_dst + at, w->host_src + from, nbytes);
        at += nbytes + pieces_random(w) % 40;
        n++;
    }
    return n;
}

static inline struct checksum pieces_sum(const struct pieces_world *w, const struct device_piece *p)
{
    return checksum_of(w->host_dst + (p->dst - w->dst), p->nbytes);
}

#endif
