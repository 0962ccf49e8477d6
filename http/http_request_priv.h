/* The HTTP server's half of a request. Private to http/http_request.c, the HTTP server, and their
 * tests.
 *
 * The HTTP server has one reference (http_request_new), the handler that the request was dispatched
 * to has another (http_request_ref). The HTTP server calls http_request_detach before it drops its
 * own: from then on the request does not use the HTTP server any more. */
#ifndef BATON_HTTP_HTTP_REQUEST_PRIV_H
#define BATON_HTTP_HTTP_REQUEST_PRIV_H

#include "base/err.h"
#include "base/mtx.h"
#include "http/http_request.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in the HTTP server's request. */
struct http_request_http_server {
    /* The request has something new: an answer, stream bytes, or a reader of the body.
     * Threads: any, MTX_HTTP_REQUEST held. Must not block. */
    void (*wake)(struct http_request_http_server *http_server);
};

enum http_request_answer { ANSWER_NONE, ANSWER_REPLY, ANSWER_STREAM };

/* A posted read; on the reader's stack, registered under the lock. */
struct http_request_reader {
    char *dst;
    uint64_t left;
    bool to_end;  /* waits for the end of the body, not for bytes */
    bool surplus; /* bytes came where the end was expected */
};

struct http_request_private {
    struct mtx lock; /* rank MTX_HTTP_REQUEST; guards down to the blank line */
    struct http_request_http_server *http_server; /* borrowed; NULL once detached */
    enum http_request_answer answer;
    bool gone;
    bool detached; /* by the HTTP server: nothing of it is sent or logged any more */
    bool paused;   /* the HTTP server waits for stream bytes or for a reader */
    void (*on_gone)(void *arg);
    void *on_gone_arg;
    void (*on_drained)(void *arg); /* when at most drained_most bytes are unsent */
    void *on_drained_arg;
    size_t drained_most;
    bool reply_held; /* the HTTP server has not taken the reply yet */
    char *unsent;    /* owned; bytes [unsent_head, unsent_end) wait to be sent */
    size_t unsent_head, unsent_end, unsent_cap;
    size_t unsent_kept; /* taken by the HTTP server, not yet by the socket */
    bool stream_closed, stream_complete, stream_failed;
    struct cnd body_moved;
    struct http_request_reader *reader;
    bool body_ended;
    uint64_t body_moved_us;  /* when the reader got its last byte, or began */
    uint64_t body_taken;     /* bytes given to readers */
    struct http_reply reply; /* of a stream: its head; immutable then */

    void *strings; /* owned: the block that holds path, query and headers; set by the HTTP server
                      before dispatch */
    atomic_uint n_refs;
};

/* http_request_new - an empty request with one reference; every string is "".
 * @http_server  borrowed until http_request_detach; may be NULL
 * Errors: ERR_NO_MEMORY. */
int http_request_new(struct http_request **out, struct http_request_http_server *http_server,
                     struct err *e);
struct http_request *http_request_ref(struct http_request *x);
void http_request_unref(
    struct http_request *x); /* accepts NULL; releases a reply that was never taken */

/* http_request_mark_disconnected - the client has disconnected: run on_gone, wake readers.
 * Repeating is harmless. */
void http_request_mark_disconnected(struct http_request *x);

/* http_request_detach - the HTTP server has finished with the request. Marks it as disconnected
 * unless the whole answer was sent. */
void http_request_detach(struct http_request *x, bool sent);

enum http_request_answer http_request_answered(struct http_request *x);

/* http_request_refuse - the HTTP server itself answers a request that it has not dispatched.
 * @r  moved in */
void http_request_refuse(struct http_request *x, const struct http_reply *r);

/* http_reply_take - move the reply out; the caller releases its data. Asserts that there is one. */
void http_reply_take(struct http_request *x, struct http_reply *out);

/* What a stream has to send. */
enum http_request_stream_state { STREAM_BYTES, STREAM_EMPTY, STREAM_END, STREAM_CUT };

/* http_request_stream_take - move up to `cap` bytes out. On STREAM_EMPTY the request is paused, and
 * the next write wakes the HTTP server. */
enum http_request_stream_state http_request_stream_take(struct http_request *x, char *out,
                                                        size_t cap, size_t *n);

/* http_request_stream_kept - of the bytes taken, n have not been sent yet. */
void http_request_stream_kept(struct http_request *x, size_t n);

/* http_request_body_receive - receive up to n > 0 body bytes from a socket into the memory of the
 * reader, without a wait. Returns how many; 0: none are there, none is wanted, or the socket is
 * broken. The lock of the request is held meanwhile. */
size_t http_request_body_receive(struct http_request *x, int fd, size_t n);

/* http_request_body_feed - offer n > 0 body bytes to the reader. Returns how many it took. If fewer
 * than n, the request is paused, and the next reader (or the answer) wakes the HTTP server. */
size_t http_request_body_feed(struct http_request *x, const void *data, size_t n);
void http_request_body_over(struct http_request *x); /* the body has ended as framed */

#endif
