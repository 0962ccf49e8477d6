/* A body that comes in chunks [RFC 9112 7.1], freed of its framing as it comes, in pieces of any
 * size. Extensions and trailers are thrown away. */
#ifndef BATON_ENGINE_UPSTREAM_CHUNKS_H
#define BATON_ENGINE_UPSTREAM_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CHUNKS_LINE_NBYTES_MAX = 4 << 10,    /* a size with its extensions */
    CHUNKS_TRAILER_NBYTES_MAX = 64 << 10 /* behind the last chunk */
};

enum chunks_at {
    CHUNKS_SIZE,
    CHUNKS_EXTENSION,
    CHUNKS_DATA,
    CHUNKS_DATA_END,
    CHUNKS_TRAILER,
    CHUNKS_OVER, /* the body is whole; what follows is none of it */
    CHUNKS_BAD   /* this is no chunk */
};

/* Zeroed: nothing has come. */
struct chunks {
    enum chunks_at at;
    uint64_t left;      /* of the chunk; of CHUNKS_SIZE: as far as it has been read */
    size_t line_nbytes; /* of the line that is being read */
    size_t trailer_nbytes;
};

/* chunks_take - the bytes of the body that lie in the next `len` bytes.
 * @out  [len], another place or `data` itself
 * Returns how many went there. Reads no further once c->at is CHUNKS_OVER or CHUNKS_BAD. */
size_t chunks_take(struct chunks *c, const char *data, size_t len, char *out);

#endif
