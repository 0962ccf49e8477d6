/* Making a tensor's new bytes from its old ones and the parts of a delta: one pass, a block that
 * stays in the cache at a time. A block of the base is copied, and what changed in it is merged in;
 * frames are decompressed a block ahead of that. */
#include "weights/delta/delta.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

enum {
    GAP_NBYTES = 2,
    RANGE_NBYTES = 16, /* u64 first, u64 count */
    WORD_BITS = 64
};

/* The content of a part, in order. */
struct part_stream {
    const char *at;  /* bytes that can be used now */
    uint64_t n;      /* so many */
    uint64_t n_more; /* of the content, after those */
    uint32_t i;      /* in the transfer's list, or TENSOR_LIST_NO_TENSOR */

    bool zstd, ended; /* ended: the frame's end was seen */
    ZSTD_inBuffer in;
    ZSTD_DCtx *ctx; /* owned; NULL until the first frame */
    char block[DELTA_BLOCK_NBYTES];
};

struct delta_merge {
    const struct tensor_spec *t;
    enum delta_kind kind;
    uint32_t unit, position_nbytes;
    uint64_t n_units;                     /* of the tensor */
    uint64_t made;                        /* units that were made */
    uint64_t at;                          /* the lowest unit that the next position may name */
    uint64_t n_positions, n_values;       /* that were used: for messages */
    uint64_t range_left;                  /* RANGE: units from `at` on that are of the last pair */
    struct part_stream positions, values; /* content of what the kind has not: no bytes */
};

static const char *const kind_names[DELTA_KIND_COUNT] = {"whole",  "xor",   "gap",
                                                         "bitmap", "index", "range"};

int delta_merge_new(struct delta_merge **out, struct err *e)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory to apply a delta");
}

void delta_merge_free(struct delta_merge *m)
{
    if (m == NULL)
        return;
    (void)ZSTD_freeDCtx(m->positions.ctx);
    (void)ZSTD_freeDCtx(m->values.ctx);
    free(m);
}

/* @s  the part that is wrong */
__attribute__((format(printf, 4, 5))) static int refuse(const struct delta_merge *m,
                                                        const struct part_stream *s, struct err *e,
                                                        const char *fmt, ...)
{
    char field[ERR_FIELD_MAX] = "", text[ERR_MSG_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (s->i != TENSOR_LIST_NO_TENSOR)
        (void)snprintf(field, sizeof field, "/names/%u", (unsigned)s->i);
    return err_set(e, ERR_BAD_REQUEST, field, "delta of tensor '%.*s' (%s): %s",
                   utf8_cut_name(m->t->name), m->t->name, kind_names[m->kind], text);
}

/* ---- parts ---- */

/* "positions", "values" */
static const char *stream_name(const struct delta_merge *m, const struct part_stream *s)
{
    return s == &m->values ? "values" : "positions";
}

static int stream_begin_frame(const struct delta_merge *m, struct part_stream *s, struct err *e)
{
    unsigned long long content = ZSTD_getFrameContentSize(s->in.src, s->in.size);
    uint32_t magic = ZSTD_MAGICNUMBER; /* no skippable frame, no format of the past */

    if (content == ZSTD_CONTENTSIZE_UNKNOWN)
        return refuse(m, s, e, "the zstd frame of its %s does not state the size of its content",
                      stream_name(m, s));
    if (content == ZSTD_CONTENTSIZE_ERROR || s->in.size < sizeof magic ||
        memcmp(s->in.src, &magic, sizeof magic) != 0 ||
        ZSTD_getDictID_fromFrame(s->in.src, s->in.size) != 0)
        return refuse(m, s, e,
                      "its %s (%zu bytes) do not begin with a zstd frame without dictionary",
                      stream_name(m, s), s->in.size);
    if (s->ctx == NULL)
        s->ctx = ZSTD_createDCtx();
    if (s->ctx == NULL || ZSTD_isError(ZSTD_DCtx_reset(s->ctx, ZSTD_reset_session_only)) ||
        ZSTD_isError(ZSTD_DCtx_setParameter(s->ctx, ZSTD_d_windowLogMax, DELTA_WINDOW_LOG_MAX)))
        return err_set(e, ERR_NO_MEMORY, "", "no memory to decompress a zstd frame");
    s->n_more = content;
    return 0;
}

static int stream_begin(const struct delta_merge *m, struct part_stream *s,
                        const struct delta_part *part, struct delta_bytes bytes, struct err *e)
{
    s->i = part->i;
    s->zstd = part->zstd;
    s->ended = !part->zstd;
    s->at = bytes.data;
    s->n = part->zstd ? 0 : bytes.nbytes;
    s->n_more = 0;
    s->in = (ZSTD_inBuffer){.src = bytes.data, .size = part->zstd ? bytes.nbytes : 0};
    return part->zstd ? stream_begin_frame(m, s, e) : 0;
}

static int stream_damaged(const struct delta_merge *m, const struct part_stream *s, size_t rc,
                          struct err *e)
{
    if (ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to decompress a zstd frame");
    if (ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge)
        return refuse(m, s, e, "the zstd frame of its %s needs a window of more than 2^%d bytes",
                      stream_name(m, s), (int)DELTA_WINDOW_LOG_MAX);
    return refuse(m, s, e, "the zstd frame of its %s is damaged at byte %zu of %zu: %s",
                  stream_name(m, s), s->in.pos, s->in.size, ZSTD_getErrorName(rc));
}

/* Decompresses until the block is full or the frame has ended. */
static int stream_decompress(const struct delta_merge *m, struct part_stream *s, struct err *e)
{
    ZSTD_outBuffer out = {.dst = s->block, .size = sizeof s->block, .pos = s->n};

    memmove(s->block, s->at, s->n);
    while (out.pos < out.size && !s->ended) {
        size_t rc = ZSTD_decompressStream(s->ctx, &out, &s->in);

        if (ZSTD_isError(rc))
            return stream_damaged(m, s, rc, e);
        s->ended = rc == 0;
        if (!s->ended && out.pos < out.size && s->in.pos == s->in.size)
            return refuse(m, s, e, "the zstd frame of its %s is cut after %zu bytes",
                          stream_name(m, s), s->in.size);
    }
    if (out.pos - s->n > s->n_more || (s->ended && out.pos - s->n < s->n_more))
        return refuse(m, s, e, "the zstd frame of its %s has not the size that it states",
                      stream_name(m, s));
    s->n_more -= out.pos - s->n;
    s->n = out.pos;
    s->at = s->block;
    return 0;
}

/* Makes `nbytes` (less than a block) usable, or what is left. */
static int stream_want(const struct delta_merge *m, struct part_stream *s, uint64_t nbytes,
                       struct err *e)
{
    return s->n >= nbytes || s->n_more == 0 ? 0 : stream_decompress(m, s, e);
}

static void stream_use(struct part_stream *s, uint64_t nbytes)
{
    s->at += nbytes;
    s->n -= nbytes;
}

static int stream_end(const struct delta_merge *m, struct part_stream *s, struct err *e)
{
    if (!s->ended && stream_decompress(m, s, e) != 0)
        return -1;
    if (s->zstd && s->in.pos != s->in.size)
        return refuse(m, s, e, "%zu bytes follow the zstd frame of its %s", s->in.size - s->in.pos,
                      stream_name(m, s));
    return 0;
}

/* ---- the runs: changes that lie in one block, of one width each ---- */

/* Part of a block. */
struct run {
    char *out;           /* the block's bytes */
    uint64_t first, end; /* its units */
};

ALWAYS_INLINE void xor_unit(char *out, const char *value, uint32_t unit)
{
    uint64_t a = 0, b = 0;

    memcpy(&a, out, unit);
    memcpy(&b, value, unit);
    a ^= b;
    memcpy(out, &a, unit);
}

/* Returns how many of `n` changes lie in the block. */
ALWAYS_INLINE uint64_t gap_run(struct delta_merge *m, struct run r, uint64_t n, uint32_t unit)
{
    const char *gaps = m->positions.at, *values = m->values.at;
    uint64_t at = m->at, k;

    for (k = 0; k < n; k++) {
        uint16_t gap;

        memcpy(&gap, gaps + k * GAP_NBYTES, GAP_NBYTES);
        if (at + gap >= r.end)
            break;
        at += gap;
        xor_unit(r.out + (at - r.first) * unit, values + k * unit, unit);
        at++;
    }
    m->at = at;
    return k;
}

/* What the next position says. */
static uint64_t position_of(const struct delta_merge *m)
{
    uint64_t position = 0;

    memcpy(&position, m->positions.at, m->position_nbytes);
    return m->kind == DELTA_GAP ? m->at + position : position;
}

/* The same; ends at a position that is lower than it may be. */
ALWAYS_INLINE uint64_t index_run(struct delta_merge *m, struct run r, uint64_t n, uint32_t unit,
                                 uint32_t width)
{
    const char *positions = m->positions.at, *values = m->values.at;
    uint64_t at = m->at, k;

    for (k = 0; k < n; k++) {
        uint64_t position = 0;

        memcpy(&position, positions + k * width, width);
        if (position < at || position >= r.end)
            break;
        memcpy(r.out + (position - r.first) * unit, values + k * unit, unit);
        at = position + 1;
    }
    m->at = at;
    return k;
}

/* Takes whole words of bits, as long as their values are there. Returns how many values it took;
 * at a bit beyond the tensor it stops. */
ALWAYS_INLINE uint64_t bitmap_run(struct delta_merge *m, struct run r, uint32_t unit)
{
    const char *values = m->values.at;
    uint64_t n = m->values.n / unit, k = 0;

    while (m->at < r.end) {
        uint64_t bits = r.end - m->at < WORD_BITS ? r.end - m->at : WORD_BITS, word = 0;
        uint64_t nbytes = (bits + 7) / 8;

        if (nbytes > m->positions.n)
            break;
        memcpy(&word, m->positions.at, nbytes);
        if ((bits < WORD_BITS && word >> bits != 0) || (uint64_t)__builtin_popcountll(word) > n - k)
            break;
        for (; word != 0; word &= word - 1, k++)
            xor_unit(r.out + (m->at - r.first + (uint64_t)__builtin_ctzll(word)) * unit,
                     values + k * unit, unit);
        m->at += bits;
        stream_use(&m->positions, nbytes);
    }
    return k;
}

ALWAYS_INLINE uint64_t run_of_unit(struct delta_merge *m, struct run r, uint64_t n, uint32_t unit)
{
    if (m->kind == DELTA_GAP)
        return gap_run(m, r, n, unit);
    if (m->kind == DELTA_BITMAP)
        return bitmap_run(m, r, unit);
    return m->position_nbytes == 8 ? index_run(m, r, n, unit, 8) : index_run(m, r, n, unit, 4);
}

static uint64_t run_of(struct delta_merge *m, struct run r, uint64_t n)
{
    switch (m->unit) {
    case 1:
        return run_of_unit(m, r, n, 1);
    case 2:
        return run_of_unit(m, r, n, 2);
    case 4:
        return run_of_unit(m, r, n, 4);
    default:
        assert(m->unit == 8);
        return run_of_unit(m, r, n, 8);
    }
}

/* ---- one block ---- */

/* Positions one by one, each with a value: as many of both. */
static int merge_positions(struct delta_merge *m, struct run r, struct err *e)
{
    uint64_t n, k;

    do {
        if (stream_want(m, &m->positions, m->position_nbytes, e) != 0 ||
            stream_want(m, &m->values, m->unit, e) != 0)
            return -1;
        n = m->positions.n / m->position_nbytes;
        if (m->values.n / m->unit < n)
            n = m->values.n / m->unit;
        k = run_of(m, r, n);
        stream_use(&m->positions, k * m->position_nbytes);
        stream_use(&m->values, k * m->unit);
        m->n_positions += k;
    } while (k == n && n > 0);
    if (n > 0 && m->kind == DELTA_INDEX && position_of(m) < m->at)
        return refuse(m, &m->positions, e,
                      "position %llu is %llu, not above the one before it (%llu)",
                      (unsigned long long)m->n_positions, (unsigned long long)position_of(m),
                      (unsigned long long)m->at - 1);
    return 0;
}

static int merge_bitmap(struct delta_merge *m, struct run r, struct err *e)
{
    while (m->at < r.end) {
        uint64_t before = m->at, k;

        if (stream_want(m, &m->positions, WORD_BITS / 8, e) != 0 ||
            stream_want(m, &m->values, (uint64_t)WORD_BITS * m->unit, e) != 0)
            return -1;
        k = run_of(m, r, 0);
        stream_use(&m->values, k * m->unit);
        m->n_values += k;
        if (m->at > before)
            continue;
        return refuse(m, &m->positions, e,
                      "near unit %llu it has bits beyond the tensor's %llu, or more than there are "
                      "values (%llu)",
                      (unsigned long long)m->at, (unsigned long long)m->n_units,
                      (unsigned long long)(m->n_values + m->values.n / m->unit));
    }
    return 0;
}

/* The next pair begins at `at`. */
static int range_begin(struct delta_merge *m, struct err *e)
{
    uint64_t pair[2];

    memcpy(pair, m->positions.at, sizeof pair);
    if (pair[0] < m->at || pair[1] == 0 || pair[0] > m->n_units || pair[1] > m->n_units - pair[0])
        return refuse(m, &m->positions, e,
                      "range %llu (%llu units from %llu on) is empty, overlaps the one before it, "
                      "or ends beyond the tensor's %llu",
                      (unsigned long long)m->n_positions, (unsigned long long)pair[1],
                      (unsigned long long)pair[0], (unsigned long long)m->n_units);
    stream_use(&m->positions, sizeof pair);
    m->n_positions++;
    m->at = pair[0];
    m->range_left = pair[1];
    return 0;
}

static int merge_ranges(struct delta_merge *m, struct run r, struct err *e)
{
    while (true) {
        uint64_t n;

        if (m->range_left == 0) {
            if (stream_want(m, &m->positions, RANGE_NBYTES, e) != 0)
                return -1;
            if (m->positions.n < RANGE_NBYTES)
                return 0;
            if (range_begin(m, e) != 0)
                return -1;
        }
        if (m->at >= r.end)
            return 0;
        if (stream_want(m, &m->values, m->unit, e) != 0)
            return -1;
        n = m->range_left < r.end - m->at ? m->range_left : r.end - m->at;
        if (m->values.n / m->unit < n)
            n = m->values.n / m->unit;
        if (n == 0)
            return refuse(m, &m->values, e, "its values end within range %llu",
                          (unsigned long long)m->n_positions - 1);
        memcpy(r.out + (m->at - r.first) * m->unit, m->values.at, n * m->unit);
        stream_use(&m->values, n * m->unit);
        m->at += n;
        m->range_left -= n;
    }
}

static void xor_bytes(char *out, const char *base, const char *values, uint64_t n)
{
    uint64_t a, b, i = 0;

    for (; i + sizeof a <= n; i += sizeof a) {
        memcpy(&a, base + i, sizeof a);
        memcpy(&b, values + i, sizeof b);
        a ^= b;
        memcpy(out + i, &a, sizeof a);
    }
    for (; i < n; i++)
        out[i] = (char)(base[i] ^ values[i]);
}

/* Every byte comes: whole, xor. */
static int merge_all(struct delta_merge *m, char *out, const char *base, uint64_t nbytes,
                     struct err *e)
{
    for (uint64_t n; nbytes > 0; nbytes -= n) {
        if (stream_want(m, &m->values, 1, e) != 0)
            return -1;
        n = m->values.n < nbytes ? m->values.n : nbytes;
        assert(n > 0);
        if (m->kind == DELTA_WHOLE) {
            memcpy(out, m->values.at, n);
        } else {
            xor_bytes(out, base, m->values.at, n);
            base += n;
        }
        stream_use(&m->values, n);
        out += n;
    }
    return 0;
}

static int merge_block(struct delta_merge *m, char *out, const char *base, uint64_t nbytes,
                       struct err *e)
{
    struct run r = {.out = out, .first = m->made, .end = m->made + nbytes / m->unit};

    m->made = r.end;
    if (m->kind == DELTA_WHOLE || m->kind == DELTA_XOR)
        return merge_all(m, out, base, nbytes, e);
    if (out != base)
        memcpy(out, base, nbytes);
    if (m->kind == DELTA_BITMAP)
        return merge_bitmap(m, r, e);
    return m->kind == DELTA_RANGE ? merge_ranges(m, r, e) : merge_positions(m, r, e);
}

/* ---- a tensor ---- */

/* Do both parts have sizes that belong together? @n  values */
static bool sizes_fit(struct delta_merge *m, uint64_t nbytes_positions, uint64_t n)
{
    switch (m->kind) {
    case DELTA_GAP:
        m->position_nbytes = GAP_NBYTES;
        return nbytes_positions == n * GAP_NBYTES;
    case DELTA_BITMAP:
        return nbytes_positions == (m->n_units + 7) / 8;
    case DELTA_INDEX:
        if (m->position_nbytes == 0)
            m->position_nbytes = nbytes_positions == n * 4 ? 4 : 8;
        return nbytes_positions == n * m->position_nbytes;
    case DELTA_RANGE:
        return nbytes_positions % RANGE_NBYTES == 0 && nbytes_positions / RANGE_NBYTES <= n;
    default: /* all bytes */
        return n == m->n_units;
    }
}

int delta_merge_begin(struct delta_merge *m, const struct tensor_spec *t,
                      const struct delta_tensor *d, struct delta_bytes positions,
                      struct delta_bytes values, struct err *e)
{
    static const struct delta_part none = {.i = TENSOR_LIST_NO_TENSOR};
    bool has_positions = d->kind != DELTA_WHOLE && d->kind != DELTA_XOR;
    uint64_t nbytes_positions, nbytes_values;

    assert(d->unit > 0 && t->nbytes % d->unit == 0);
    m->t = t;
    m->kind = d->kind;
    m->unit = d->unit;
    m->position_nbytes = d->position_nbytes;
    m->n_units = t->nbytes / d->unit;
    m->made = m->at = m->n_positions = m->n_values = m->range_left = 0;
    if (stream_begin(m, &m->positions, has_positions ? &d->positions : &none,
                     has_positions ? positions : (struct delta_bytes){"", 0}, e) != 0 ||
        stream_begin(m, &m->values, &d->values, values, e) != 0)
        return -1;
    if (d->patch) { /* for the field of errors: one name for both parts */
        m->positions.i /= 2;
        m->values.i /= 2;
    }
    nbytes_positions = m->positions.n + m->positions.n_more;
    nbytes_values = m->values.n + m->values.n_more;
    if (nbytes_values % m->unit != 0 || nbytes_values > t->nbytes ||
        !sizes_fit(m, nbytes_positions, nbytes_values / m->unit))
        return refuse(m, &m->values, e,
                      "%llu bytes of positions and %llu of values in units of %u do not fit each "
                      "other and a tensor of %llu bytes",
                      (unsigned long long)nbytes_positions, (unsigned long long)nbytes_values,
                      (unsigned)m->unit, (unsigned long long)t->nbytes);
    return 0;
}

void delta_merge_sizes(const struct delta_merge *m, uint64_t *positions, uint64_t *values)
{
    *positions = m->positions.n + m->positions.n_more;
    *values = m->values.n + m->values.n_more;
}

static int stream_expand(const struct delta_merge *m, struct part_stream *s, char *out,
                         struct err *e)
{
    while (s->n + s->n_more > 0) {
        if (stream_want(m, s, 1, e) != 0)
            return -1;
        memcpy(out, s->at, s->n);
        out += s->n;
        stream_use(s, s->n);
    }
    return stream_end(m, s, e);
}

int delta_merge_expand(struct delta_merge *m, void *positions, void *values, struct err *e)
{
    return stream_expand(m, &m->positions, positions, e) == 0
               ? stream_expand(m, &m->values, values, e)
               : -1;
}

int delta_merge_next(struct delta_merge *m, void *out, const void *base, uint64_t nbytes,
                     struct err *e)
{
    const char *from = base;
    char *to = out;

    assert(nbytes / m->unit <= m->n_units - m->made);
    for (uint64_t n; nbytes > 0; nbytes -= n) {
        n = nbytes < DELTA_BLOCK_NBYTES ? nbytes : DELTA_BLOCK_NBYTES;
        if (merge_block(m, to, from, n, e) != 0)
            return -1;
        to += n;
        from = from != NULL ? from + n : NULL;
    }
    return 0;
}

int delta_merge_end(struct delta_merge *m, struct err *e)
{
    assert(m->made == m->n_units);
    if (stream_want(m, &m->positions, 1, e) != 0 || stream_want(m, &m->values, 1, e) != 0)
        return -1;
    if (m->positions.n > 0)
        return refuse(m, &m->positions, e, "position %llu is %llu, beyond the tensor's %llu units",
                      (unsigned long long)m->n_positions, (unsigned long long)position_of(m),
                      (unsigned long long)m->n_units);
    if (m->values.n > 0)
        return refuse(m, &m->values, e, "%llu values have no position",
                      (unsigned long long)((m->values.n + m->values.n_more) / m->unit));
    return stream_end(m, &m->positions, e) == 0 ? stream_end(m, &m->values, e) : -1;
}

int delta_apply(struct delta_merge *m, void *out, const struct tensor_spec *t,
                const struct delta_tensor *d, const void *base, struct delta_bytes positions,
                struct delta_bytes values, struct err *e)
{
    if (delta_merge_begin(m, t, d, positions, values, e) != 0 ||
        delta_merge_next(m, out, base, t->nbytes, e) != 0)
        return -1;
    return delta_merge_end(m, e);
}
