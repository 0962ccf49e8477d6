/* Random changes of tensors, good ones and damaged ones, made by device_batch_scatter and by
 * delta_apply: for the tests on the fake and on a GPU. */
#ifndef BATON_TESTS_UNIT_SCATTER_CASES_H
#define BATON_TESTS_UNIT_SCATTER_CASES_H

#include "base/clock.h"
#include "memory/device.h"
#include "memory/non_finite.h"
#include "weights/delta/delta.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCATTER_CASES = 150, /* of one call */
    SCATTER_GAP_LONG = 65536,
    SCATTER_GUARD = 40 /* bytes around each that nothing may write */
};

struct scatter_world {
    struct device *d;
    struct slab *slab;         /* of `nbytes`: all tensors and parts */
    unsigned char *host, *got; /* [nbytes] the model of the slab; what is read back */
    uint64_t nbytes, at, seed;
    uint64_t part_max;   /* bytes of a tensor, its positions and its values each */
    uint64_t *positions; /* [part_max / 8] */
    struct delta_merge *merge;
    uint32_t n_good, n_bad; /* pieces that both took, or both refused */
    char why[256];          /* what differed */
};

struct scatter_case {
    struct delta_tensor d;
    struct tensor_spec t;
    uint64_t src, dst, positions, values; /* offsets; mostly src is elsewhere */
    uint64_t nbytes_positions, nbytes_values;
    bool refused; /* by delta_apply */
};

static inline uint64_t scatter_random(struct scatter_world *w, uint64_t below)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return below == 0 ? 0 : (w->seed >> 3) % below;
}

/* A place with random bytes. */
static inline uint64_t scatter_place(struct scatter_world *w, uint64_t nbytes, uint64_t align)
{
    uint64_t at = w->at + SCATTER_GUARD;

    if (align > 0)
        at = (w->slab->addr + at + align - 1) / align * align - w->slab->addr;
    for (uint64_t i = 0; i < nbytes; i++)
        w->host[at + i] = (unsigned char)scatter_random(w, 256);
    w->at = at + nbytes;
    return at;
}

/* Ascending positions. Returns how many; *end: after the last. */
static inline uint64_t scatter_positions(struct scatter_world *w, uint64_t *out, uint64_t cap,
                                         uint64_t n_units_max, uint64_t *end)
{
    static const uint64_t counts[] = {0, 1, 7, 255, 256, 257, 4095, 4096, 4097, 8192, 12289};
    static const uint64_t gaps[] = {1, 3, 40, 300, SCATTER_GAP_LONG};
    uint64_t n = scatter_random(w, 3) > 0 ? counts[scatter_random(w, 11)] : scatter_random(w, cap);
    uint64_t gap = gaps[scatter_random(w, 5)], at = 0, k;

    for (k = 0; k < n && k < cap; k++) {
        uint64_t next = at + scatter_random(w, gap);

        if (next >= n_units_max)
            break;
        out[k] = next;
        at = next + 1;
    }
    *end = at;
    return k;
}

static inline void scatter_encode(struct scatter_world *w, struct scatter_case *c,
                                  const uint64_t *positions, uint64_t n)
{
    unsigned char *out = w->host + c->positions;
    uint64_t at = 0;

    memset(out, 0, c->nbytes_positions);
    for (uint64_t k = 0; c->d.kind != DELTA_XOR && k < n; k++) {
        uint64_t gap = positions[k] - at;

        if (c->d.kind == DELTA_GAP)
            memcpy(out + 2 * k, &gap, 2);
        else if (c->d.kind == DELTA_BITMAP)
            out[positions[k] / 8] |= (unsigned char)(1U << positions[k] % 8);
        else if (c->d.kind == DELTA_INDEX)
            memcpy(out + k * c->d.position_nbytes, &positions[k], c->d.position_nbytes);
        at = positions[k] + 1;
    }
}

/* One byte, or two positions that are alike. */
static inline void scatter_damage(struct scatter_world *w, const struct scatter_case *c)
{
    uint64_t width = c->d.position_nbytes;
    unsigned char *out = w->host + c->positions;

    if (c->nbytes_positions == 0)
        return;
    if (c->d.kind == DELTA_INDEX && c->nbytes_positions > width && scatter_random(w, 2) == 0) {
        uint64_t k = 1 + scatter_random(w, c->nbytes_positions / width - 1);

        memcpy(out + k * width, out + (k - 1) * width, width);
        return;
    }
    out[scatter_random(w, c->nbytes_positions)] ^= (unsigned char)(1 + scatter_random(w, 255));
}

/* Sizes always fit: delta_merge_begin checks them before a GPU gets to see a tensor. */
static inline struct scatter_case scatter_make(struct scatter_world *w)
{
    static const enum delta_kind kinds[] = {DELTA_XOR, DELTA_GAP, DELTA_BITMAP, DELTA_INDEX};
    struct scatter_case c = {.d = {.kind = kinds[scatter_random(w, 4)],
                                   .unit = 1U << scatter_random(w, 4),
                                   .position_nbytes = 4U << scatter_random(w, 2)},
                             .t = {.name = "t"}};
    static const enum dtype dtypes[] = {
        [1] = DTYPE_F8_E5M2, [2] = DTYPE_BF16, [4] = DTYPE_F32, [8] = DTYPE_NONE};
    uint64_t *positions = w->positions, n_units;
    uint64_t n = scatter_positions(w, positions, w->part_max / 8, w->part_max / c.d.unit, &n_units);
    bool damaged = scatter_random(w, 3) == 0;

    c.t.dtype = scatter_random(w, 2) > 0 ? dtypes[c.d.unit] : DTYPE_NONE;
    c.d.positions.i = c.d.values.i = TENSOR_LIST_NO_TENSOR;
    if (damaged && n > 0 && scatter_random(w, 4) == 0)
        n_units--; /* the last position is beyond the tensor */
    else
        n_units += scatter_random(w, 2) * scatter_random(w, 70);
    if (c.d.kind == DELTA_XOR)
        n = n_units;
    c.nbytes_positions = c.d.kind == DELTA_GAP      ? 2 * n
                         : c.d.kind == DELTA_BITMAP ? (n_units + 7) / 8
                         : c.d.kind == DELTA_INDEX  ? c.d.position_nbytes * n
                                                    : 0;
    c.t.nbytes = n_units * c.d.unit;
    c.dst = c.src = scatter_place(w, c.t.nbytes, c.d.unit);
    if (scatter_random(w, 4) > 0)
        c.src = scatter_place(w, c.t.nbytes, scatter_random(w, 2) * 16);
    c.positions = scatter_place(w, c.nbytes_positions + 8, scatter_random(w, 2) * 8);
    scatter_encode(w, &c, positions,
                   c.d.kind == DELTA_BITMAP && n > 0 && positions[n - 1] / 8 >= c.nbytes_positions
                       ? n - 1
                       : n);
    if (damaged && scatter_random(w, 4) > 0)
        scatter_damage(w, &c);
    if (damaged && c.d.kind == DELTA_BITMAP && scatter_random(w, 3) == 0)
        n += n > 0 ? scatter_random(w, 2) - 1 : 0; /* one value less */
    if (n > n_units)
        n = n_units;
    if (c.d.kind == DELTA_GAP || c.d.kind == DELTA_INDEX)
        c.nbytes_positions = n * (c.d.kind == DELTA_GAP ? 2 : c.d.position_nbytes);
    c.nbytes_values = n * c.d.unit;
    c.values = scatter_place(w, c.nbytes_values, scatter_random(w, 2) * 8);
    return c;
}

static inline struct scatter_piece scatter_piece_of(const struct scatter_world *w,
                                                    const struct scatter_case *c)
{
    static const uint8_t kinds[DELTA_KIND_COUNT] = {[DELTA_XOR] = SCATTER_ALL,
                                                    [DELTA_GAP] = SCATTER_GAP,
                                                    [DELTA_BITMAP] = SCATTER_BITMAP,
                                                    [DELTA_INDEX] = SCATTER_INDEX};

    return (struct scatter_piece){.copy = {.src = w->slab->addr + c->src,
                                           .dst = w->slab->addr + c->dst,
                                           .nbytes = c->t.nbytes},
                                  .positions = w->slab->addr + c->positions,
                                  .values = w->slab->addr + c->values,
                                  .n_values = c->nbytes_values / c->d.unit,
                                  .kind = kinds[c->d.kind],
                                  .unit = (uint8_t)c->d.unit,
                                  .position_nbytes = (uint8_t)c->d.position_nbytes,
                                  .dtype = (uint8_t)c->t.dtype};
}

/* What delta_apply makes of it; in the model too, unless it refuses. */
static inline void scatter_expect(struct scatter_world *w, struct scatter_case *c)
{
    struct delta_bytes positions = {w->host + c->positions, c->nbytes_positions};
    struct delta_bytes values = {w->host + c->values, c->nbytes_values};
    unsigned char *out = malloc(c->t.nbytes + 1);
    struct err e = {0};

    c->refused = out == NULL || delta_apply(w->merge, out, &c->t, &c->d, w->host + c->src,
                                            positions, values, &e) != 0;
    if (!c->refused)
        memcpy(w->host + c->dst, out, c->t.nbytes);
    free(out);
}

static inline int scatter_differs(struct scatter_world *w, const struct scatter_case *c,
                                  const char *what)
{
    (void)snprintf(w->why, sizeof w->why,
                   "kind %d of unit %u, %llu units, %llu values, parts at %% 8 = %d and %d: %s",
                   (int)c->d.kind, c->d.unit, (unsigned long long)(c->t.nbytes / c->d.unit),
                   (unsigned long long)(c->nbytes_values / c->d.unit), (int)(c->positions % 8),
                   (int)(c->values % 8), what);
    return -1;
}

/* Every byte of the slab, except those of refused tensors. */
static inline int scatter_compare(struct scatter_world *w, const struct scatter_case *cases,
                                  const struct device_made *made, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct scatter_case *c = &cases[i];

        struct checksum sum = checksum_of(w->host + c->dst, c->t.nbytes);

        if (made[i].refused != c->refused)
            return scatter_differs(w, c, c->refused ? "not refused" : "refused");
        if (c->refused)
            memcpy(w->got + c->dst, w->host + c->dst, c->t.nbytes);
        else if (memcmp(w->got + c->dst, w->host + c->dst, c->t.nbytes) != 0)
            return scatter_differs(w, c, "other bytes");
        else if (!checksum_equal(made[i].sum, sum))
            return scatter_differs(w, c, "another sum");
        else if (made[i].suspect != non_finite_in(w->host + c->dst, c->t.nbytes, c->t.dtype))
            return scatter_differs(w, c, "a number that is not finite");
        w->n_bad += c->refused;
        w->n_good += !c->refused;
    }
    if (memcmp(w->got, w->host, w->nbytes) == 0)
        return 0;
    (void)snprintf(w->why, sizeof w->why, "bytes beside the tensors were written");
    return -1;
}

static inline int scatter_run(struct scatter_world *w, struct scatter_piece *pieces,
                              struct device_made *made, uint32_t n, struct err *e)
{
    struct progress p = {.deadline_us = clock_after_us(60 * 1000000ULL)};
    struct device_batch *b;
    int rc;

    if (device_batch_new(w->d, &b, e) != 0)
        return -1;
    rc = device_batch_scatter(b, pieces, n, made, e);
    if (rc == 0)
        rc = device_batch_wait(b, &p, e);
    device_batch_free(b);
    return rc == 0 ? device_read(w->d, w->got, w->slab->addr, w->nbytes, e) : -1;
}

/* scatter_round - many pieces in one call. Returns -1 with `why` or e->msg. */
static inline int scatter_round(struct scatter_world *w, struct err *e)
{
    static struct scatter_case cases[SCATTER_CASES];
    static struct scatter_piece pieces[SCATTER_CASES];
    static struct device_made made[SCATTER_CASES];
    uint32_t n = 0;

    memset(made, 0x55, sizeof made);
    for (w->at = 0; n < SCATTER_CASES && w->at + 5 * w->part_max < w->nbytes; n++)
        cases[n] = scatter_make(w);
    if (device_write(w->d, w->slab->addr, w->host, w->nbytes, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        pieces[i] = scatter_piece_of(w, &cases[i]);
        scatter_expect(w, &cases[i]);
    }
    return scatter_run(w, pieces, made, n, e) == 0 ? scatter_compare(w, cases, made, n) : -1;
}

/* scatter_world_open, scatter_world_close - Errors: -1 with e. */
static inline int scatter_world_open(struct scatter_world *w, struct device *d,
                                     struct slab_pool *pool, uint64_t nbytes, uint64_t part_max,
                                     struct err *e)
{
    *w = (struct scatter_world){.d = d, .nbytes = nbytes, .part_max = part_max, .seed = 11};
    w->positions = calloc(part_max / 8, sizeof *w->positions);
    w->host = calloc(1, nbytes);
    w->got = malloc(nbytes);
    return w->host == NULL || w->got == NULL || w->positions == NULL ||
                   delta_merge_new(&w->merge, e) != 0 || slab_new(&w->slab, pool, nbytes, e) != 0
               ? -1
               : 0;
}

static inline void scatter_world_close(struct scatter_world *w)
{
    slab_unref(w->slab);
    delta_merge_free(w->merge);
    free(w->positions);
    free(w->host);
    free(w->got);
}

#endif
