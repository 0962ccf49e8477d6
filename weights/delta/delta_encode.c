/* The sizes of all encodings are known before one is made. Only what zstd makes of them is not: the
 * choice there is by density, as measured with random positions. */
#include "weights/delta/delta_encode.h"

#include "weights/delta/delta_find.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum {
    GAP_MAX = UINT16_MAX,
    ZSTD_LEVEL = 1 /* higher ones gain nothing here, and take several times longer */
};

/* With zstd, fractions of the elements from which one encoding is smaller than the other: a bitmap
 * than gaps, a dense xor than a bitmap. Without, sizes are compared. */
static const double BITMAP_FROM = 0.047, XOR_FROM = 0.875;

struct delta_encoder {
    ZSTD_CCtx *zstd; /* owned; NULL: parts are not compressed */
    struct delta_room bitmap, xors, positions, packed_values, packed_positions;
};

int delta_encoder_new(struct delta_encoder **out, bool zstd, struct err *e)
{
    struct delta_encoder *c = calloc(1, sizeof *c);

    if (c != NULL && zstd) {
        c->zstd = ZSTD_createCCtx();
        if (c->zstd == NULL) {
            free(c);
            c = NULL;
        } else {
            (void)ZSTD_CCtx_setParameter(c->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        }
    }
    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the encoder of a delta");
    *out = c;
    return 0;
}

void delta_encoder_free(struct delta_encoder *c)
{
    if (c == NULL)
        return;
    (void)ZSTD_freeCCtx(c->zstd);
    free(c->bitmap.data);
    free(c->xors.data);
    free(c->positions.data);
    free(c->packed_values.data);
    free(c->packed_positions.data);
    free(c);
}

/* How many elements gaps take more than changed, to bridge what is longer than a gap can be. */
static uint64_t bridges_count(const struct delta_difference *d)
{
    uint64_t next = 0, n = 0;

    for (uint64_t k = 0; k < d->n_words; k++) {
        uint64_t bits = le64toh(d->bitmap[k]);

        if (bits == 0)
            continue;
        n += (k * DELTA_WORD_BITS + (uint64_t)__builtin_ctzll(bits) - next) / (GAP_MAX + 1);
        next = k * DELTA_WORD_BITS + DELTA_WORD_BITS - (uint64_t)__builtin_clzll(bits);
    }
    return n;
}

static uint64_t position_nbytes(const struct delta_difference *d)
{
    return d->numel <= UINT32_MAX ? 4 : 8;
}

/* The kind that takes the fewest bytes, or is worth to be compared with the whole. */
static enum delta_kind kind_choose(const struct delta_difference *d, uint64_t n_bridges, bool zstd)
{
    double density = (double)d->n / (double)d->numel;
    uint64_t nbytes[DELTA_KIND_COUNT] = {
        [DELTA_WHOLE] = d->numel * d->unit,
        [DELTA_XOR] = d->numel * d->unit,
        [DELTA_GAP] = (d->n + n_bridges) * (sizeof(uint16_t) + d->unit),
        [DELTA_BITMAP] = (d->numel + 7) / 8 + d->n * d->unit,
        [DELTA_INDEX] = d->n * (position_nbytes(d) + d->unit),
        [DELTA_RANGE] = UINT64_MAX, /* never the shortest for single elements */
    };
    enum delta_kind best = DELTA_WHOLE;

    if (zstd && density >= BITMAP_FROM)
        return density >= XOR_FROM ? DELTA_XOR : DELTA_BITMAP;
    for (int k = 0; k < DELTA_KIND_COUNT; k++)
        if (nbytes[k] < nbytes[best] && !(zstd && k == DELTA_BITMAP))
            best = (enum delta_kind)k;
    return best;
}

static enum dtype unsigned_of(uint64_t unit)
{
    return unit == 1 ? DTYPE_U8 : unit == 2 ? DTYPE_U16 : unit == 4 ? DTYPE_U32 : DTYPE_U64;
}

static void part_put(struct delta_encoding *out, const char *suffix, enum dtype dtype, uint64_t n,
                     const void *data)
{
    out->parts[out->n_parts++] = (struct delta_encoding_part){.suffix = suffix,
                                                              .dtype = dtype,
                                                              .ndim = 1,
                                                              .shape = {n},
                                                              .data = data,
                                                              .nbytes = n * dtype_nbytes(dtype)};
}

/* A part with the shape of the tensor. */
static void part_put_shaped(struct delta_encoding *out, const char *suffix, enum dtype dtype,
                            const struct tensor_spec *t, const void *data)
{
    part_put(out, suffix, dtype, t->numel, data);
    out->parts[0].ndim = t->ndim;
    memcpy(out->parts[0].shape, t->shape, sizeof t->shape);
}

/* @values  the xors, with a 0 for each bridge */
static void gaps_fill(const struct delta_difference *d, uint16_t *gaps, uint8_t *values)
{
    uint32_t places[DELTA_PLACES_MAX];
    const uint8_t *xors = d->xors;
    uint64_t next = 0; /* where a gap of 0 leads */

    for (uint64_t word = 0; word < d->n_words; word += DELTA_CHUNK_WORDS) {
        const uint32_t *end = delta_places(places, d, word);

        for (const uint32_t *place = places; place < end; place++) {
            uint64_t at = word * DELTA_WORD_BITS + *place;

            for (; at - next > GAP_MAX; next += GAP_MAX + 1) {
                *gaps++ = GAP_MAX;
                memset(values, 0, d->unit);
                values += d->unit;
            }
            *gaps++ = htole16((uint16_t)(at - next));
            next = at + 1;
            memcpy(values, xors, d->unit);
            values += d->unit;
            xors += d->unit;
        }
    }
}

static int gaps_put(struct delta_encoding *out, struct delta_encoder *c,
                    const struct delta_difference *d, struct err *e)
{
    uint64_t n = d->n + bridges_count(d);
    uint16_t *gaps;

    if (delta_room_reserve(&c->positions, n * (sizeof *gaps + d->unit), e) != 0)
        return -1;
    gaps = c->positions.data;
    gaps_fill(d, gaps, (uint8_t *)(gaps + n));
    part_put(out, "#gap", DTYPE_U16, n, gaps);
    part_put(out, "#xor", unsigned_of(d->unit), n, gaps + n);
    return 0;
}

static void index_fill(const struct delta_difference *d, uint8_t *index, uint64_t width,
                       uint8_t *values)
{
    uint32_t places[DELTA_PLACES_MAX];

    for (uint64_t word = 0; word < d->n_words; word += DELTA_CHUNK_WORDS) {
        const uint32_t *end = delta_places(places, d, word);

        for (const uint32_t *place = places; place < end; place++) {
            uint64_t at = word * DELTA_WORD_BITS + *place, position = htole64(at);

            memcpy(index, &position, width); /* its low bytes come first */
            memcpy(values, d->bytes + at * d->unit, d->unit);
            index += width;
            values += d->unit;
        }
    }
}

static int index_put(struct delta_encoding *out, struct delta_encoder *c,
                     const struct delta_difference *d, enum dtype dtype, struct err *e)
{
    uint64_t width = position_nbytes(d);
    uint8_t *index;

    if (delta_room_reserve(&c->positions, d->n * (width + d->unit), e) != 0)
        return -1;
    index = c->positions.data;
    index_fill(d, index, width, index + d->n * width);
    part_put(out, "#index", width == 4 ? DTYPE_U32 : DTYPE_U64, d->n, index);
    part_put(out, "#value", dtype, d->n, index + d->n * width);
    return 0;
}

static void dense_xor(uint8_t *to, const uint8_t *a, const uint8_t *b, uint64_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        to[i] = a[i] ^ b[i];
}

static int parts_put(struct delta_encoding *out, struct delta_encoder *c,
                     const struct delta_difference *d, const struct tensor_spec *t, struct err *e)
{
    switch (out->kind) {
    case DELTA_GAP:
        return gaps_put(out, c, d, e);
    case DELTA_INDEX:
        return index_put(out, c, d, t->dtype, e);
    case DELTA_BITMAP:
        part_put(out, "#bitmap", DTYPE_U8, (d->numel + 7) / 8, d->bitmap);
        part_put(out, "#xor", unsigned_of(d->unit), d->n, d->xors);
        return 0;
    case DELTA_XOR:
        dense_xor(d->xors, d->base, d->bytes, t->nbytes);
        part_put_shaped(out, "#xor", unsigned_of(d->unit), t, d->xors);
        return 0;
    default:
        part_put_shaped(out, "", t->dtype, t, d->bytes);
        return 0;
    }
}

static const char *zstd_suffix(const char *suffix)
{
    static const char *const pairs[][2] = {
        {"#gap", "#gap.zst"},     {"#bitmap", "#bitmap.zst"}, {"#index", "#index.zst"},
        {"#value", "#value.zst"}, {"#xor", "#xor.zst"},
    };
    size_t i = 0;

    while (strcmp(pairs[i][0], suffix) != 0)
        i++;
    return pairs[i][1];
}

/* Compresses a part if that makes it smaller. */
static int part_pack(struct delta_encoding_part *p, struct delta_encoder *c, struct delta_room *to,
                     struct err *e)
{
    size_t n;

    if (delta_room_reserve(to, ZSTD_compressBound((size_t)p->nbytes), e) != 0)
        return -1;
    n = ZSTD_compress2(c->zstd, to->data, (size_t)to->cap, p->data, (size_t)p->nbytes);
    if (ZSTD_isError(n))
        return err_set(e, ERR_NO_MEMORY, "", "zstd: %s", ZSTD_getErrorName(n));
    if (n >= p->nbytes)
        return 0;
    *p = (struct delta_encoding_part){.suffix = zstd_suffix(p->suffix),
                                      .dtype = DTYPE_U8,
                                      .ndim = 1,
                                      .shape = {n},
                                      .data = to->data,
                                      .nbytes = n};
    return 0;
}

static int parts_make(struct delta_encoding *out, struct delta_encoder *c,
                      const struct delta_difference *d, const struct tensor_spec *t, struct err *e)
{
    struct delta_room *const rooms[] = {&c->packed_values, &c->packed_positions};

    if (parts_put(out, c, d, t, e) != 0)
        return -1;
    for (uint32_t i = 0; i < out->n_parts && c->zstd != NULL && out->kind != DELTA_WHOLE; i++)
        if (part_pack(&out->parts[i], c, rooms[i], e) != 0)
            return -1;
    return 0;
}

static uint64_t parts_nbytes(const struct delta_encoding *x, const struct tensor_spec *t)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < x->n_parts; i++)
        n += DELTA_PART_NBYTES_HEAD + strlen(t->name) + x->parts[i].nbytes;
    return n;
}

/* The longest name of a part. A tensor whose name leaves no room for it is sent whole, as it is. */
static bool name_has_room(const struct tensor_spec *t)
{
    return strlen(t->name) + strlen("#bitmap.zst") <= TENSOR_LIST_NAME_LEN_MAX;
}

int delta_encode(struct delta_encoding *out, struct delta_encoder *c, const struct tensor_spec *t,
                 const void *base, const void *bytes, struct err *e)
{
    struct delta_difference d = {
        .base = base, .bytes = bytes, .numel = t->numel, .unit = dtype_nbytes(t->dtype)};
    struct delta_encoding part = {0}, whole = {.kind = DELTA_WHOLE};

    if (delta_find(&d, &c->bitmap, &c->xors, e) != 0)
        return -1;
    part.n_changed = whole.n_changed = d.n;
    if (d.n == 0) {
        *out = part;
        return 0;
    }
    part_put_shaped(&whole, "", t->dtype, t, bytes);
    if (!name_has_room(t)) {
        *out = whole;
        return 0;
    }
    part.kind = kind_choose(&d, bridges_count(&d), c->zstd != NULL);
    if (parts_make(&part, c, &d, t, e) != 0)
        return -1;
    if (parts_nbytes(&part, t) < parts_nbytes(&whole, t))
        whole = part;
    *out = whole;
    return 0;
}
