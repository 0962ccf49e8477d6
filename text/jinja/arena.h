/* Memory with one lifetime: taken in pieces, given back at once, bounded as a whole. */
#ifndef BATON_TEXT_JINJA_ARENA_H
#define BATON_TEXT_JINJA_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* owned; the newest first */
    char *at, *end;             /* of the newest: what is free */
    size_t nbytes, nbytes_max;  /* taken from malloc; allowed */
    bool full;                  /* nbytes_max would have been passed */
};

/* A zeroed arena with nbytes_max set is empty. */
void arena_fini(struct arena *a);

/* arena_alloc - zeroed memory, aligned for any type. NULL when memory or the bound ran out; `full`
 * tells the two apart. */
void *arena_alloc(struct arena *a, size_t nbytes);
void *arena_array(struct arena *a, size_t n, size_t nbytes);

/* arena_bytes - memory for text: not zeroed, not aligned. */
char *arena_bytes(struct arena *a, size_t nbytes);

/* arena_extend - make the block of `len` bytes at `p` longer by `more` where it lies. False when it
 * is not the newest block or its chunk has no room. */
bool arena_extend(struct arena *a, const char *p, size_t len, size_t more);

#endif
