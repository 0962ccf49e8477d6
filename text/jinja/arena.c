/* Chunks that double, so that a small render takes one and a big one takes few. */
#include "text/jinja/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_CHUNK_MIN = 16384, ARENA_CHUNK_MAX = 4 << 20, ARENA_ALIGN = 16 };

struct arena_chunk {
    _Alignas(ARENA_ALIGN) struct arena_chunk *next;
};

void arena_fini(struct arena *a)
{
    while (a->chunks != NULL) {
        struct arena_chunk *next = a->chunks->next;

        free(a->chunks);
        a->chunks = next;
    }
    *a = (struct arena){.nbytes_max = a->nbytes_max};
}

static bool grow(struct arena *a, size_t nbytes)
{
    size_t chunk = a->nbytes < ARENA_CHUNK_MIN ? ARENA_CHUNK_MIN : a->nbytes;
    struct arena_chunk *c;

    if (chunk > ARENA_CHUNK_MAX)
        chunk = ARENA_CHUNK_MAX;
    if (nbytes > a->nbytes_max || a->nbytes > a->nbytes_max - nbytes) {
        a->full = true;
        return false;
    }
    if (chunk < nbytes)
        chunk = nbytes;
    if (chunk > a->nbytes_max - a->nbytes)
        chunk = a->nbytes_max - a->nbytes;
    c = malloc(sizeof *c + chunk);
    if (c == NULL)
        return false;
    c->next = a->chunks;
    a->chunks = c;
    a->at = (char *)(c + 1);
    a->end = a->at + chunk;
    a->nbytes += chunk;
    return true;
}

char *arena_bytes(struct arena *a, size_t nbytes)
{
    char *p;

    if (nbytes == 0)
        nbytes = 1;
    if ((a->at == NULL || (size_t)(a->end - a->at) < nbytes) && !grow(a, nbytes))
        return NULL;
    p = a->at;
    a->at += nbytes;
    return p;
}

void *arena_alloc(struct arena *a, size_t nbytes)
{
    size_t pad = (ARENA_ALIGN - (uintptr_t)a->at % ARENA_ALIGN) % ARENA_ALIGN;
    void *p;

    if (nbytes > SIZE_MAX - ARENA_ALIGN) {
        a->full = true;
        return NULL;
    }
    if (a->at != NULL && (size_t)(a->end - a->at) > pad && (size_t)(a->end - a->at) - pad >= nbytes)
        a->at += pad;
    else if (!grow(a, nbytes + ARENA_ALIGN)) /* a chunk begins aligned */
        return NULL;
    p = arena_bytes(a, nbytes);
    if (p != NULL)
        memset(p, 0, nbytes);
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t nbytes)
{
    if (n > 0 && nbytes > SIZE_MAX / 2 / n) {
        a->full = true;
        return NULL;
    }
    return arena_alloc(a, n * nbytes);
}

bool arena_extend(struct arena *a, const char *p, size_t len, size_t more)
{
    if (len == 0 || p + len != a->at || (size_t)(a->end - a->at) < more)
        return false;
    a->at += more;
    return true;
}
