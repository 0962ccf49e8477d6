/* The answers of a server, one after another, as they come in pieces: heads, chunks, ends. */
#ifndef BATON_TESTS_BENCH_PROXY_REPLY_H
#define BATON_TESTS_BENCH_PROXY_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ANSWER_LINE_MAX = 512 };

enum answer_at {
    AT_STATUS,
    AT_HEADER,
    AT_LENGTH,     /* bytes of a body of known length */
    AT_UNTIL_GONE, /* a body that ends with the connection */
    AT_CHUNK_SIZE,
    AT_CHUNK,
    AT_CHUNK_END,
    AT_TRAILER,
    AT_WHOLE, /* the next byte is the next answer's */
    AT_NO_HTTP
};

struct answer {
    enum answer_at at;
    int status;
    bool chunked, sized, closes;
    uint64_t left;    /* of the body or the chunk */
    uint64_t n_bytes; /* of the body, so far */
    size_t line_len;
    char line[ANSWER_LINE_MAX];
};

/* answer_eat - reads on, to the end of an answer at most.
 * @payload  called for each piece of the body; may be NULL
 * Returns: bytes read. Zeroed is the beginning. */
size_t answer_eat(struct answer *a, const char *data, size_t len,
                  void (*payload)(void *arg, const char *data, size_t len), void *arg);

/* answer_gone - the connection ended. Returns: does that make the answer whole? */
bool answer_gone(struct answer *a);

#endif
