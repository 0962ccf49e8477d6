/* A byte buffer that grows. Running out of memory sets `failed` and makes every later append a
 * no-op, so a writer checks once, at the end. */
#ifndef BATON_BASE_BUF_H
#define BATON_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* owned; NUL-terminated whenever len > 0 or data != NULL */
    size_t len;
    size_t cap;
    bool failed; /* an allocation failed */
};

/* A zeroed struct buf is an empty buffer. */
void buf_fini(struct buf *b); /* frees and zeroes; accepts a zeroed buffer */
void buf_append(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *text);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *fmt, ...);

/* buf_take - the bytes, now the caller's (free()); the buffer is empty again.
 * Returns: NULL if `failed`, else a NUL-terminated block even when len is 0 and memory allows. */
char *buf_take(struct buf *b, size_t *len);

#endif
