/* A set of strings, each with the number of its arrival (0, 1, ...), found in O(1).
 *
 * The strings are of untrusted origin, so the hash is keyed (SipHash-1-3, a random key for each
 * set): a client cannot choose names that collide. Strings never move once added. */
#ifndef BATON_BASE_NAMES_H
#define BATON_BASE_NAMES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct names_block;
struct names_slot;

enum { NAMES_NONE = UINT32_MAX, NAMES_MAX = 1 << 24 };

struct names {
    const char **items; /* [n], owned by the set; NUL-terminated */
    uint32_t n;

    uint32_t cap;               /* of items */
    uint32_t n_slots;           /* a power of two, or 0 */
    struct names_slot *slots;   /* owned; open addressing, at most half full */
    struct names_block *blocks; /* owned; the text */
    uint64_t key[2];
};

void names_init(struct names *s);
void names_fini(struct names *s); /* accepts a zeroed one */

/* A text and its hash in one set: a caller that finds and then adds a text hashes it once. */
struct names_key {
    const char *text; /* borrowed; NUL-terminated */
    size_t len;
    uint32_t hash;
};
struct names_key names_key(const struct names *s, const char *text, size_t len);

/* names_find - the number of `text`, or NAMES_NONE. Threads: any, while no thread adds. */
uint32_t names_find(const struct names *s, const char *text);
uint32_t names_find_key(const struct names *s, const struct names_key *key);

/* names_reserve - allocate slots for `n` more, so that adding them moves nothing.
 * Errors: ERR_NO_MEMORY; the set is as it was. */
int names_reserve(struct names *s, uint32_t n, struct err *e);

/* names_add - append `text` (copied), which is not in the set yet; its number is the old s->n.
 * Errors: ERR_TOO_LARGE (NAMES_MAX), ERR_NO_MEMORY; the set is then as it was. */
int names_add(struct names *s, const char *text, struct err *e);
int names_add_key(struct names *s, const struct names_key *key, struct err *e);

#endif
