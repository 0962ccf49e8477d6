/* What changed between two versions of a tensor, before it is encoded: a bitmap of the elements
 * that changed and the xor of each. Every encoding follows from these two. Pure. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_FIND_H
#define BATON_WEIGHTS_DELTA_DELTA_FIND_H

#include "base/err.h"

#include <stdint.h>

enum {
    DELTA_WORD_BITS = 64,     /* of the bitmap: elements */
    DELTA_CHUNK_WORDS = 64,   /* found, then read again while they are in the cache */
    DELTA_PLACES_AT_ONCE = 4, /* written, see delta_places() */
    DELTA_PLACES_MAX = DELTA_CHUNK_WORDS * DELTA_WORD_BITS + DELTA_PLACES_AT_ONCE
};

/* Memory that grows and keeps nothing. */
struct delta_room {
    void *data; /* owned; free() */
    uint64_t cap;
};

/* delta_room_reserve - at least `nbytes`; what was in it is lost. Errors: ERR_NO_MEMORY. */
int delta_room_reserve(struct delta_room *r, uint64_t nbytes, struct err *e);

struct delta_difference {
    const uint8_t *base, *bytes; /* borrowed; [numel * unit], unaligned */
    uint64_t numel, unit;        /* unit: bytes of an element, 1, 2, 4 or 8 */

    uint64_t n;       /* elements that changed */
    uint64_t n_words; /* of the bitmap */
    uint64_t *bitmap; /* [n_words]; lowest bit first, little-endian; of `bitmap_room` */
    uint8_t *xors;    /* [n * unit], and room for numel * unit; of `xors_room` */
};

/* delta_find - fill the last four members of @d; the first four are given.
 * @bitmap_room, @xors_room  keep the result, until they are next used
 * Threads: one at a time for each room. Blocks: no; one pass over both versions, at memory speed
 *          where little changed. Errors: ERR_NO_MEMORY. */
int delta_find(struct delta_difference *d, struct delta_room *bitmap_room,
               struct delta_room *xors_room, struct err *e);

/* delta_places - the elements that changed among DELTA_CHUNK_WORDS words of the bitmap from `word`
 * on, ascending, counted from the first of these words.
 * @places  [DELTA_PLACES_MAX]. Returns where they end. */
const uint32_t *delta_places(uint32_t *places, const struct delta_difference *d, uint64_t word);

#endif
