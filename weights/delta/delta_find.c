/* One pass over both versions, so that memory is read once however much changed: a chunk is
 * compared, and the xors are taken while it is in the cache. Without branches that depend on what
 * changed: where 1 % did, a wrong guess of the CPU for each would take longer than the reading. */
#include "weights/delta/delta_find.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    AHEAD_NBYTES = 2048 /* fetched into the cache: between chunks the CPU does not foresee it */
};

/* The places of the bits that are set, ascending. Several are written at once, whether there are
 * so many or not: the number in one word cannot be foreseen, and a wrong guess of the CPU costs
 * more than they do. @to has room for DELTA_PLACES_AT_ONCE more than there are. Returns its new
 * end. */
static inline __attribute__((always_inline)) uint32_t *places_append(uint32_t *to, uint64_t bits,
                                                                     uint32_t first)
{
    uint32_t *end = to + __builtin_popcountll(bits);

    do {
        for (int i = 0; i < DELTA_PLACES_AT_ONCE; i++) {
            to[i] = first + (uint32_t)__builtin_ctzll(bits | (uint64_t)1 << 63);
            bits &= bits - 1;
        }
        to += DELTA_PLACES_AT_ONCE;
    } while (bits != 0);
    return end;
}
/* The words of the bitmap for n_words * DELTA_WORD_BITS elements, and the places of those that
 * changed.
 * @differing  a bit for each element of step_nbytes bytes
 * Inlined for each unit and each instruction set. Returns the end of @places. */
static inline __attribute__((always_inline)) uint32_t *
words_compare(uint64_t *words, uint32_t *places, const uint8_t *a, const uint8_t *b,
              uint64_t n_words, uint64_t unit, uint64_t step_nbytes,
              uint64_t (*differing)(const uint8_t *a, const uint8_t *b, uint64_t unit))
{
    for (uint64_t k = 0; k < n_words; k++) {
        uint64_t word = 0;

        for (uint64_t i = 0; i < DELTA_WORD_BITS; i += step_nbytes / unit) {
            __builtin_prefetch((const void *)((uintptr_t)a + AHEAD_NBYTES));
            __builtin_prefetch((const void *)((uintptr_t)b + AHEAD_NBYTES));
            word |= differing(a, b, unit) << i;
            a += step_nbytes;
            b += step_nbytes;
        }
        words[k] = htole64(word);
        places = places_append(places, word, (uint32_t)(k * DELTA_WORD_BITS));
    }
    return places;
}

typedef uint32_t *compare_fn(uint64_t *words, uint32_t *places, const uint8_t *a, const uint8_t *b,
                             uint64_t n_words, uint64_t unit);

static inline __attribute__((always_inline)) uint64_t
differing_plain(const uint8_t *a, const uint8_t *b, uint64_t unit)
{
    uint64_t x, y, bits = 0;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x = le64toh(x ^ y);
    for (uint64_t i = 0; x != 0; i++, x = unit == 8 ? 0 : x >> (8 * unit % 64))
        bits |= (uint64_t)((x & (UINT64_MAX >> (64 - 8 * unit))) != 0) << i;
    return bits;
}

static uint32_t *compare_plain(uint64_t *words, uint32_t *places, const uint8_t *a,
                               const uint8_t *b, uint64_t n_words, uint64_t unit)
{
    return words_compare(words, places, a, b, n_words, unit, 8, differing_plain);
}

#ifdef __x86_64__
#define WITH_AVX2 __attribute__((target("avx2,bmi,popcnt")))

/* All bits of each element that is equal. */
WITH_AVX2 static inline __m256i equal_avx2(const uint8_t *a, const uint8_t *b, uint64_t unit)
{
    __m256i x = _mm256_loadu_si256((const __m256i_u *)a);
    __m256i y = _mm256_loadu_si256((const __m256i_u *)b);

    return unit == 1   ? _mm256_cmpeq_epi8(x, y)
           : unit == 2 ? _mm256_cmpeq_epi16(x, y)
           : unit == 4 ? _mm256_cmpeq_epi32(x, y)
                       : _mm256_cmpeq_epi64(x, y);
}

WITH_AVX2 static inline uint64_t differing_avx2(const uint8_t *a, const uint8_t *b, uint64_t unit)
{
    __m256i equal = equal_avx2(a, b, unit), more;

    if (unit == 8)
        return 0xf ^ (uint64_t)(unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(equal));
    if (unit == 4)
        return 0xff ^ (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(equal));
    if (unit == 2) { /* packs half by half, which 0xd8 puts into order */
        more = equal_avx2(a + sizeof more, b + sizeof more, unit);
        equal = _mm256_permute4x64_epi64(_mm256_packs_epi16(equal, more), 0xd8);
    }
    return 0xffffffff ^ (uint64_t)(unsigned)_mm256_movemask_epi8(equal);
}

WITH_AVX2 static uint32_t *compare_avx2(uint64_t *words, uint32_t *places, const uint8_t *a,
                                        const uint8_t *b, uint64_t n_words, uint64_t unit)
{
    switch (unit) {
    case 1:
        return words_compare(words, places, a, b, n_words, 1, 32, differing_avx2);
    case 2:
        return words_compare(words, places, a, b, n_words, 2, 64, differing_avx2);
    case 4:
        return words_compare(words, places, a, b, n_words, 4, 32, differing_avx2);
    default:
        return words_compare(words, places, a, b, n_words, 8, 32, differing_avx2);
    }
}
#endif

static inline __attribute__((always_inline)) void unit_xor(uint8_t *to, const uint8_t *a,
                                                           const uint8_t *b, uint64_t unit)
{
    uint64_t x = 0, y = 0;

    memcpy(&x, a, unit);
    memcpy(&y, b, unit);
    x ^= y;
    memcpy(to, &x, unit);
}

/* Appends the xors of the elements at `places`. Inlined for each unit, whose copies are then single
 * instructions. Returns the new end. */
static inline __attribute__((always_inline)) uint8_t *
xors_append(uint8_t *to, const uint8_t *a, const uint8_t *b, const uint32_t *places,
            const uint32_t *end, uint64_t unit)
{
    for (; places < end; places++, to += unit)
        unit_xor(to, a + *places * unit, b + *places * unit, unit);
    return to;
}

static uint8_t *xors_of_unit(uint8_t *to, const uint8_t *a, const uint8_t *b,
                             const uint32_t *places, const uint32_t *end, uint64_t unit)
{
    switch (unit) {
    case 1:
        return xors_append(to, a, b, places, end, 1);
    case 2:
        return xors_append(to, a, b, places, end, 2);
    case 4:
        return xors_append(to, a, b, places, end, 4);
    default:
        return xors_append(to, a, b, places, end, 8);
    }
}

static compare_fn *compare_best(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("popcnt"))
        return compare_avx2;
#endif
    return compare_plain;
}

/* The elements behind the last whole word. */
static uint64_t rest_compare(const struct delta_difference *d, uint64_t first)
{
    uint64_t word = 0;

    for (uint64_t i = first; i < d->numel; i++)
        word |= (uint64_t)(memcmp(d->base + i * d->unit, d->bytes + i * d->unit, d->unit) != 0)
                << (i - first);
    return htole64(word);
}

int delta_room_reserve(struct delta_room *r, uint64_t nbytes, struct err *e)
{
    void *data;

    if (nbytes <= r->cap)
        return 0;
    data = malloc(nbytes);
    if (data == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the difference of a tensor");
    free(r->data);
    *r = (struct delta_room){data, nbytes};
    return 0;
}

int delta_find(struct delta_difference *d, struct delta_room *bitmap_room,
               struct delta_room *xors_room, struct err *e)
{
    compare_fn *compare = compare_best();
    uint32_t places[DELTA_PLACES_MAX];
    uint64_t whole = d->numel / DELTA_WORD_BITS; /* words */
    uint8_t *to;

    d->n_words = whole + 1;
    if (delta_room_reserve(bitmap_room, d->n_words * sizeof *d->bitmap, e) != 0 ||
        delta_room_reserve(xors_room, d->numel * d->unit + 1, e) != 0)
        return -1;
    d->bitmap = bitmap_room->data;
    to = d->xors = xors_room->data;
    for (uint64_t word = 0, n; word < d->n_words; word += n) {
        const uint8_t *a = d->base + word * DELTA_WORD_BITS * d->unit;
        const uint8_t *b = d->bytes + word * DELTA_WORD_BITS * d->unit;
        const uint32_t *end;

        n = whole - word < DELTA_CHUNK_WORDS ? whole - word : DELTA_CHUNK_WORDS;
        if (n > 0) {
            end = compare(d->bitmap + word, places, a, b, n, d->unit);
        } else {
            n = 1;
            d->bitmap[word] = rest_compare(d, word * DELTA_WORD_BITS);
            end = places_append(places, le64toh(d->bitmap[word]), 0);
        }
        to = xors_of_unit(to, a, b, places, end, d->unit);
    }
    d->n = (uint64_t)(to - d->xors) / d->unit;
    return 0;
}

const uint32_t *delta_places(uint32_t *places, const struct delta_difference *d, uint64_t word)
{
    uint64_t n = d->n_words - word;

    for (uint64_t k = 0; k < n && k < DELTA_CHUNK_WORDS; k++)
        places = places_append(places, le64toh(d->bitmap[word + k]),
                               (uint32_t)(k * DELTA_WORD_BITS));
    return places;
}
