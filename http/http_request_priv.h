/* The HTTP server's half of a request. Private to http/http_call_request.c, the HTTP server, and
 * their tests.
 *
 * An request has one reference of the HTTP server (http_request_new) and one of whoever it was
 * dispatched to (http_request_ref). The HTTP server detaches before it lets go: from then on nobody
 * touches the HTTP server. */
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
    /* There is something new to look at: an answer, stream bytes, a reader of the body.
     * Any thread, MTX_HTTP_REQUEST held; must not block. */
    void (*wake)(struct http_request_http_server *http_server);
};

enum http_request_answer { ANSWER_NONE, ANSWER_REPLY, ANSWER_STREAM };

/* A posted read; on the reader's stack, registered under the lock. */
struct http_request_reader {
    char *dst;
    uint64_t left;
    bool to_end;  /* wants no bytes, only the end */
    bool surplus; /* bytes came where the end was wanted */
};

struct http_request_private {
    struct mtx lock; /* rank MTX_HTTP_REQUEST; guards down to the blank line */
    struct http_request_http_server *http_server; /* borrowed; NULL once detached */
    enum http_request_answer answer;
    bool gone;
    bool paused; /* the HTTP server waits for stream bytes or for a reader */
    void (*on_gone)(void *arg);
    void *on_gone_arg;
    void (*on_drained)(void *arg); /* when at most drained_most bytes are unsent */
    void *on_drained_arg;
    size_t drained_most;
    bool reply_held; /* reply has not been taken by the HTTP server */
    char *unsent;    /* owned; bytes [unsent_head, unsent_end) wait to be sent */
    size_t unsent_head, unsent_end, unsent_cap;
    size_t unsent_kept; /* taken by the HTTP server, and not by the socket */
    bool stream_closed, stream_complete, stream_failed;
    struct cnd body_moved;
    struct http_request_reader *reader;
    bool body_ended;
    uint64_t body_moved_us;  /* last byte handed to the reader, or its start */
    uint64_t body_taken;     /* bytes handed to readers */
    struct http_reply reply; /* of a stream: its head; immutable then */

    void *strings; /* owned: the block that path, query and headers lie in; HTTP server, before
                      dispatch */
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

/* http_request_mark_disconnected - the peer went: runs on_gone, wakes readers. Repeating it is
 * harmless. */
void http_request_mark_disconnected(struct http_request *x);

/* http_request_detach - the HTTP server is done with it. Marks it gone unless the answer was sent
 * whole. */
void http_request_detach(struct http_request *x, bool sent);

enum http_request_answer http_request_answered(struct http_request *x);

/* http_request_refuse - the HTTP server answers for itself, before it dispatched. @r moved in. */
void http_request_refuse(struct http_request *x, const struct http_reply *r);

/* http_reply_take - move the reply out; the caller releases its data. Asserts that it is there.
 */
void http_reply_take(struct http_request *x, struct http_reply *out);

/* What a stream has to send. */
enum http_request_stream_state { STREAM_BYTES, STREAM_EMPTY, STREAM_END, STREAM_CUT };

/* http_request_stream_take - move up to `cap` bytes out; on STREAM_EMPTY the request is paused: the
 * next write wakes the HTTP server. */
enum http_request_stream_state http_request_stream_take(struct http_request *x, char *out,
                                                        size_t cap, size_t *n);

/* http_request_stream_kept - of what was taken, so much has not been sent yet. */
void http_request_stream_kept(struct http_request *x, size_t n);

/* http_request_body_feed - offer n > 0 body bytes to the reader. Returns how many it took; when
 * fewer than n, the request is paused: the next reader (or the answer) wakes the HTTP server. */
size_t http_request_body_feed(struct http_request *x, const void *data, size_t n);
void http_request_body_over(struct http_request *x); /* the body has ended as framed */

#endif
