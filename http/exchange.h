/* One request that may be answered later, from any thread.
 *
 * The front fills the request half, dispatches, and forgets; whoever gets the exchange answers it
 * exactly once, by exchange_reply or by a stream, and with that gives up its reference. The front
 * watches the peer: when it goes away first, the one registered callback runs (under the
 * exchange's lock, so that it can never run after exchange_reply has returned). */
#ifndef BATON_HTTP_EXCHANGE_H
#define BATON_HTTP_EXCHANGE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EXCHANGE_REQUEST_ID_MAX = 64,
    EXCHANGE_HEADERS_MAX = 8,
    EXCHANGE_STREAM_NBYTES_MAX = 4 << 20 /* unsent bytes of one stream; the next fails */
};

enum exchange_method {
    METHOD_GET = 1,
    METHOD_HEAD = 2,
    METHOD_POST = 4,
    METHOD_PUT = 8,
    METHOD_DELETE = 16,
    METHOD_OTHER = 32
};
const char *exchange_method_name(enum exchange_method m);

struct exchange_param {
    char *name, *value; /* percent-decoded; of the exchange; value "" when absent */
};

struct exchange_private;

struct exchange {
    /* Immutable once dispatched; owned by the exchange. */
    char request_id[EXCHANGE_REQUEST_ID_MAX + 1]; /* the client's, or made */
    bool request_id_given;          /* by the client */
    enum exchange_method method;
    char *path;                     /* percent-decoded, no query, no NUL */
    char *target;                   /* path and query as they came */
    struct exchange_param *query;   /* [n_query], in order */
    size_t n_query;
    char *content_type;             /* "" when absent */
    char *authorization;            /* "" when absent; wiped when the application has routed */
    char *session_id;               /* X-Session-ID, "" when absent */
    uint64_t content_length;        /* UINT64_MAX when chunked */
    char *body;                     /* whole body, NUL after it; of a streamed body: its head */
    size_t body_len;
    uint64_t began_us;              /* first header byte handled */
    bool peer_trusted;              /* the front was told that this address needs no key */
    _Atomic(const void *) route;    /* set by the application's route call; the handler's thread may
                                       choose another of the same path */
    void *app;                      /* borrowed; set by the application's route call, or NULL */
    void *loop_app;                 /* borrowed; the application's, of the front's loop; or NULL */
    char *path_arg;                 /* what stood for "{name}" in the route's pattern, or "" */

    struct exchange_private *priv;  /* of http/exchange.c and the front */
};

/* exchange_drop_body - free a whole body that has been read: a request may wait for minutes.
 * Threads: the handler's, once dispatched. */
void exchange_drop_body(struct exchange *x);

/* exchange_query - first value of a query member, or NULL. */
const char *exchange_query(const struct exchange *x, const char *name);

enum { EXCHANGE_HEADER_VALUE_MAX = 256 };

struct exchange_header {
    const char *name; /* static */
    char value[EXCHANGE_HEADER_VALUE_MAX + 1];
};

/* What is sent back. `data` stays valid until `release` is called, on any thread, exactly once,
 * also when the peer is gone; NULL release means that data is static. */
struct exchange_reply {
    int status;
    const char *content_type; /* static; NULL with an empty body */
    const void *data;
    size_t len;
    void (*release)(void *arg);
    void *release_arg;
    struct exchange_header headers[EXCHANGE_HEADERS_MAX];
    size_t n_headers;
    const char *log_code; /* static: wire name of the error, for the log line; NULL on success */
};

/* exchange_reply_header - add a header; cut at EXCHANGE_HEADER_VALUE_MAX. Asserts that it fits. */
__attribute__((format(printf, 3, 4))) void exchange_reply_header(struct exchange_reply *r,
                                                                 const char *name, const char *fmt,
                                                                 ...);

/* exchange_reply - answer, with Content-Length, and give up the caller's reference.
 * @r  moved in: its data is released by the exchange
 * Threads: any; takes MTX_EXCHANGE, then wakes the front. Blocks: no. Asserts first answer. */
void exchange_reply(struct exchange *x, const struct exchange_reply *r);

/* exchange_stream_open - begin an answer of unknown length (chunked). Keeps the reference. */
void exchange_stream_open(struct exchange *x, int status, const char *content_type);

/* exchange_stream_open_as - the same with the head of a reply: its status, type and headers.
 * @head  copied; without data */
void exchange_stream_open_as(struct exchange *x, const struct exchange_reply *head);

/* exchange_stream_write - queue bytes (copied). Returns -1 when the peer is gone, the reader is
 * EXCHANGE_STREAM_NBYTES_MAX behind already, or memory ran out: nothing more will be sent then, and
 * the caller still has to close. Threads: any one at a time. Blocks: no. */
int exchange_stream_write(struct exchange *x, const void *data, size_t len);

/* exchange_stream_unsent - bytes that the reader has not taken yet. Threads: any. Blocks: no. */
size_t exchange_stream_unsent(struct exchange *x);

/* exchange_on_drained - call `fn(arg)` once when at most `most` bytes of the stream are unsent: on
 * the front's thread, or here and now, with MTX_EXCHANGE held: it may take higher ranks and must
 * not block or write. Not when the peer has gone. NULL fn takes the callback back; after that
 * returns, as after exchange_stream_close, it does not run any more. */
void exchange_on_drained(struct exchange *x, size_t most, void (*fn)(void *arg), void *arg);

/* exchange_stream_close - end the answer and give up the reference.
 * @complete  false: cut the connection without the final chunk, so that the client can tell */
void exchange_stream_close(struct exchange *x, bool complete);

/* exchange_gone - has the peer gone away (or has the front given up on it)? A hint. */
bool exchange_gone(struct exchange *x);

/* exchange_on_gone - call `fn(arg)` once if the peer goes before the answer is complete.
 * Runs on the front's thread, or here and now when it is gone already, with MTX_EXCHANGE held:
 * it may take higher ranks and must not block or answer. NULL fn takes the callback back; after
 * that returns (as after exchange_reply or exchange_stream_close) it does not run any more. */
void exchange_on_gone(struct exchange *x, void (*fn)(void *arg), void *arg);

/* exchange_body_read - the next nbytes of a streamed body, straight into dst.
 * @stall_us     longest wait for a next byte
 * @deadline_us  absolute end of the whole read
 * @stop         may be NULL; polled every 100 ms at least; true fails the read with ERR_CONFLICT
 * Threads: one reader at a time, no lock held. Blocks: until all are there.
 * Errors: ERR_GONE (the peer went), ERR_UNREADABLE (the body ended early: how many bytes were
 *         missing), ERR_TIMEOUT (stalled or past the deadline). dst is then undefined. */
int exchange_body_read(struct exchange *x, void *dst, uint64_t nbytes, uint64_t stall_us,
                       uint64_t deadline_us, bool (*stop)(void *arg), void *stop_arg,
                       struct err *e);

/* exchange_body_end - wait until the streamed body has ended; more bytes are ERR_UNREADABLE. */
int exchange_body_end(struct exchange *x, uint64_t stall_us, uint64_t deadline_us, struct err *e);

/* exchange_body_taken - bytes of the streamed body (after its head) handed to readers so far, also
 * those of a read that then failed. Threads: any. */
uint64_t exchange_body_taken(struct exchange *x);

#endif
