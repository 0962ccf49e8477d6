/* Writes deltas: what changed between two versions of a tensor's bytes, as every kind. */
#ifndef BATON_TESTS_DELTA_FIXTURE_H
#define BATON_TESTS_DELTA_FIXTURE_H

#include "weights/delta/delta.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

struct part_bytes {
    char *data; /* owned */
    uint64_t nbytes, cap;
};

static inline void part_put(struct part_bytes *p, const void *data, uint64_t nbytes)
{
    if (p->cap < p->nbytes + nbytes + 1) {
        p->cap = (p->nbytes + nbytes + 1) * 2;
        p->data = realloc(p->data, p->cap);
        assert_non_null(p->data);
    }
    if (nbytes > 0)
        memcpy(p->data + p->nbytes, data, nbytes);
    p->nbytes += nbytes;
}

static inline void part_put_uint(struct part_bytes *p, uint64_t value, uint32_t nbytes)
{
    part_put(p, &value, nbytes);
}

static inline void part_compress(struct part_bytes *p)
{
    size_t cap = ZSTD_compressBound(p->nbytes), n;
    char *frame = malloc(cap);

    assert_non_null(frame);
    n = ZSTD_compress(frame, cap, p->data, p->nbytes, 1);
    assert_false(ZSTD_isError(n));
    free(p->data);
    *p = (struct part_bytes){frame, n, cap};
}

/* A delta of one tensor, as one kind. */
struct written {
    struct delta_tensor d;
    struct part_bytes positions, values;
};

static inline uint64_t unit_at(const char *bytes, uint64_t i, uint32_t unit)
{
    uint64_t value = 0;

    memcpy(&value, bytes + i * unit, unit);
    return value;
}

static inline void write_changed(struct written *w, uint64_t i, uint64_t before, const char *old,
                                 const char *new)
{
    uint32_t unit = w->d.unit;
    uint64_t gap = i - before, x = unit_at(old, i, unit) ^ unit_at(new, i, unit);

    switch (w->d.kind) {
    case DELTA_GAP:
        for (; gap >= UINT16_MAX; gap -= UINT16_MAX + 1) {
            part_put_uint(&w->positions, UINT16_MAX, 2);
            part_put_uint(&w->values, gap == UINT16_MAX ? x : 0, unit);
            if (gap == UINT16_MAX)
                return;
        }
        part_put_uint(&w->positions, gap, 2);
        part_put_uint(&w->values, x, unit);
        return;
    case DELTA_BITMAP:
        w->positions.data[i / 8] |= (char)(1 << i % 8);
        part_put_uint(&w->values, x, unit);
        return;
    case DELTA_INDEX:
        part_put_uint(&w->positions, i, w->d.position_nbytes);
        part_put(&w->values, new + i *unit, unit);
        return;
    default:
        assert_int_equal(w->d.kind, DELTA_RANGE);
        if (gap == 0 && w->positions.nbytes > 0) {
            uint64_t count = unit_at(w->positions.data, w->positions.nbytes / 8 - 1, 8) + 1;

            memcpy(w->positions.data + w->positions.nbytes - 8, &count, 8);
        } else {
            part_put_uint(&w->positions, i, 8);
            part_put_uint(&w->positions, 1, 8);
        }
        part_put(&w->values, new + i *unit, unit);
    }
}

/* @unit  of the tensor's elements, or 1 */
static inline struct written write_delta(enum delta_kind kind, uint32_t unit,
                                         uint32_t position_nbytes, const char *old, const char *new,
                                         uint64_t nbytes)
{
    struct written w = {.d = {.kind = kind, .unit = unit, .position_nbytes = position_nbytes}};
    uint64_t before = 0;

    w.d.positions.i = w.d.values.i = TENSOR_LIST_NO_TENSOR;
    part_put(&w.positions, NULL, 0);
    part_put(&w.values, NULL, 0);
    if (kind == DELTA_BITMAP)
        for (uint64_t i = 0; i < (nbytes / unit + 7) / 8; i++)
            part_put_uint(&w.positions, 0, 1);
    if (kind == DELTA_WHOLE)
        part_put(&w.values, new, nbytes);
    for (uint64_t i = 0; kind == DELTA_XOR && i < nbytes; i++)
        part_put_uint(&w.values, (unsigned char)(old[i] ^ new[i]), 1);
    for (uint64_t i = 0; kind != DELTA_WHOLE && kind != DELTA_XOR && i < nbytes / unit; i++) {
        if (unit_at(old, i, unit) == unit_at(new, i, unit))
            continue;
        write_changed(&w, i, before, old, new);
        before = i + 1;
    }
    return w;
}

static inline void written_compress(struct written *w, bool positions, bool values)
{
    w->d.positions.zstd = positions;
    w->d.values.zstd = values;
    if (positions)
        part_compress(&w->positions);
    if (values)
        part_compress(&w->values);
}

static inline void written_free(struct written *w)
{
    free(w->positions.data);
    free(w->values.data);
    *w = (struct written){0};
}

static inline struct delta_bytes bytes_of(const struct part_bytes *p)
{
    return (struct delta_bytes){p->data, p->nbytes};
}

static inline int apply_written(struct delta_merge *m, const struct written *w,
                                const struct tensor_spec *t, void *out, const void *base,
                                struct err *e)
{
    return delta_apply(m, out, t, &w->d, base, bytes_of(&w->positions), bytes_of(&w->values), e);
}

#endif
