/* One request that may be answered later, from any thread.
 *
 * The HTTP server fills in the request and dispatches it; it does not wait for the answer. The code
 * that receives the request answers it exactly once, by http_reply or by a stream, and with that
 * gives up its reference. The HTTP server watches the client: when it disconnects first, the one
 * registered callback runs (under the request's lock, so that it can never run after http_reply has
 * returned). */
#ifndef BATON_HTTP_HTTP_REQUEST_H
#define BATON_HTTP_HTTP_REQUEST_H

#include "base/err.h"
#include "base/net/actor.h"
#include "base/net/trace.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_REQUEST_REQUEST_ID_MAX = ACTOR_REQUEST_ID_MAX,
    HTTP_REQUEST_HEADERS_MAX = 8,
    HTTP_REQUEST_STREAM_NBYTES_MAX = 4 << 20 /* unsent bytes of one stream; the next fails */
};

enum http_request_method {
    METHOD_GET = 1,
    METHOD_HEAD = 2,
    METHOD_POST = 4,
    METHOD_PUT = 8,
    METHOD_DELETE = 16,
    METHOD_OTHER = 32
};
const char *http_request_method_name(enum http_request_method m);

struct http_request_param {
    char *name, *value; /* percent-decoded; of the request; value "" when absent */
};

struct http_request_private;

struct http_request {
    /* Immutable once dispatched; owned by the request. */
    struct actor actor;    /* request_id: the client's, or made; key: set by the application's route
                                 call */
    bool request_id_given; /* by the client */
    struct trace_context trace;
    enum http_request_method method;
    char *path;                       /* percent-decoded, no query, no NUL */
    char *target;                     /* path and query as they came */
    struct http_request_param *query; /* [n_query], in order */
    size_t n_query;
    char *content_type;      /* "" when absent */
    char *accept;            /* Accept, "" when absent */
    char *authorization;     /* "" when absent; wiped when the application has routed */
    char *session_id;        /* X-Session-ID, "" when absent */
    char *last_event_id;     /* Last-Event-ID, "" when absent */
    char *range, *if_range;  /* Range and If-Range, "" when absent */
    char *host;              /* Host as it came, "" when absent */
    bool wants_versions;     /* X-Baton-Weight-Versions: 1 */
    uint64_t content_length; /* UINT64_MAX when chunked */
    char *body;              /* whole body, NUL after it; of a streamed body: its head */
    size_t body_len;
    uint64_t began_us;           /* first header byte handled */
    bool peer_trusted;           /* this address needs no key: http_server_cfg.trusts */
    bool admitted;               /* its key or address may use the route; set by the application */
    bool needs_key;              /* of a page: its data would need a key; set as admitted is */
    _Atomic(const void *) route; /* set by the application's route call; the handler's thread may
                                    choose another of the same path */
    uint64_t arrival; /* its number among those that generate, 0: none; set by the application when
                         it is dispatched */
    void *app;        /* borrowed; set by the application's route call, or NULL */
    void *loop_app;   /* borrowed; from the application's loop_begin for this loop; or NULL */
    char *path_arg;   /* the text that matched "{name}" of the route's pattern, or "" */

    struct err *error; /* owned: what it is answered with, for the log; or NULL. Changes no more
                          once the request is detached. http_request_note_error */
    atomic_bool error_reported; /* an event in the log has it already; set before the answer */
    atomic_bool committed; /* although there is an error: its update is; set before the answer */

    struct http_request_private *priv; /* of http/http_request.c and the HTTP server */
};

/* http_request_drop_body - free a whole body that has been read: a request may wait for minutes.
 * Threads: the handler's, once dispatched. */
void http_request_drop_body(struct http_request *x);

/* http_request_note_error - keep a copy of the error that the request is going to be answered with;
 * the first one is kept. Without memory none is, and none once its connection has done with the
 * request: it has been logged then. Threads: the one that answers. Takes MTX_HTTP_REQUEST. */
void http_request_note_error(struct http_request *x, const struct err *e);

/* http_request_query - first value of a query member, or NULL. */
const char *http_request_query(const struct http_request *x, const char *name);

enum { HTTP_REQUEST_HEADER_VALUE_MAX = 400 }; /* a label of 128 bytes, each as %XX, fits */

struct http_request_header {
    const char *name; /* static */
    char value[HTTP_REQUEST_HEADER_VALUE_MAX + 1];
};

/* An answer. `data` must stay valid until `release` is called: on any thread, exactly once, also
 * after the client has disconnected. NULL release means that data is static. */
struct http_reply {
    int status;
    const char *content_type; /* static; NULL with an empty body */
    const void *data;
    size_t len;
    void (*release)(void *arg);
    void *release_arg;
    struct http_request_header headers[HTTP_REQUEST_HEADERS_MAX];
    size_t n_headers;
    const char *log_code; /* static: wire name of the error, for the log line; NULL on success */
};

/* http_reply_header - add a header; cut at HTTP_REQUEST_HEADER_VALUE_MAX. Asserts that it fits. */
__attribute__((format(printf, 3, 4))) void http_reply_header(struct http_reply *r, const char *name,
                                                             const char *fmt, ...);

/* http_reply_header_text - add a header with any text: a space, '%', a control byte and each byte
 * outside of ASCII become %XX. */
void http_reply_header_text(struct http_reply *r, const char *name, const char *text);

/* http_reply - answer, with Content-Length, and give up the caller's reference.
 * @r  moved in: its data is released by the request
 * Threads: any; takes MTX_HTTP_REQUEST, then wakes the HTTP server. Blocks: no. Asserts first
 * answer. */
void http_reply(struct http_request *x, const struct http_reply *r);

/* http_request_stream_open - begin an answer of unknown length (chunked). Keeps the reference. */
void http_request_stream_open(struct http_request *x, int status, const char *content_type);

/* http_request_stream_open_as - the same with the head of a reply: its status, type and headers.
 * @head  copied; without data */
void http_request_stream_open_as(struct http_request *x, const struct http_reply *head);

/* http_request_stream_write - queue bytes (copied). Returns -1 when the client has disconnected,
 * when more than HTTP_REQUEST_STREAM_NBYTES_MAX bytes would be unsent, or without memory. Nothing
 * more is sent then, and the caller still has to close the stream.
 * Threads: any, one at a time. Blocks: no. */
int http_request_stream_write(struct http_request *x, const void *data, size_t len);

/* http_request_stream_unsent - bytes that the client has not taken yet.
 * Threads: any. Blocks: no. */
size_t http_request_stream_unsent(struct http_request *x);

/* http_request_on_drained - call `fn(arg)` once when at most `most` bytes of the stream are unsent.
 * The callback runs on the HTTP server's thread, or before this returns; MTX_HTTP_REQUEST is held,
 * so it may take higher ranks and must not block or write. It does not run after a disconnect.
 * NULL fn removes the callback; after that returns, as after http_request_stream_close, it does not
 * run any more. */
void http_request_on_drained(struct http_request *x, size_t most, void (*fn)(void *arg), void *arg);

/* http_request_stream_close - end the answer and give up the reference.
 * @complete  false: cut the connection without the final chunk: the client sees that the answer is
 *            not complete */
void http_request_stream_close(struct http_request *x, bool complete);

/* http_request_disconnected - has the client disconnected, or has the HTTP server given up on it?
 * A hint. */
bool http_request_disconnected(struct http_request *x);

/* http_request_on_disconnect - call `fn(arg)` once if the client disconnects before the answer is
 * complete. The callback runs on the HTTP server's thread, or before this returns if the client has
 * disconnected already. MTX_HTTP_REQUEST is held, so it may take higher ranks and must not block or
 * answer. NULL fn removes the callback; after that returns (as after http_reply or
 * http_request_stream_close) it does not run any more. */
void http_request_on_disconnect(struct http_request *x, void (*fn)(void *arg), void *arg);

/* http_request_body_read - read the next nbytes of a streamed body into dst.
 * @stall_us     longest wait for the next byte
 * @deadline_us  absolute end of the whole read
 * @stop         may be NULL; polled every 100 ms at least; true fails the read with ERR_CONFLICT
 * Threads: one reader at a time, no lock held. Blocks: until all bytes have come.
 * Errors: ERR_GONE (the client disconnected), ERR_UNREADABLE (the body ended early; the message has
 *         the number of missing bytes), ERR_TIMEOUT (stalled or past the deadline). The content of
 *         dst is then undefined. */
int http_request_body_read(struct http_request *x, void *dst, uint64_t nbytes, uint64_t stall_us,
                           uint64_t deadline_us, bool (*stop)(void *arg), void *stop_arg,
                           struct err *e);

/* http_request_body_end - wait until the streamed body has ended; more bytes are ERR_UNREADABLE. */
int http_request_body_end(struct http_request *x, uint64_t stall_us, uint64_t deadline_us,
                          struct err *e);

/* http_request_body_taken - bytes of the streamed body (after its head) given to readers so far,
 * including those of a read that failed later. Threads: any. */
uint64_t http_request_body_taken(struct http_request *x);

#endif
