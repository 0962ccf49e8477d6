/* Requests to other servers, on an event loop: libcurl's multi interface, driven by our epoll.
 *
 * One client for each loop; all of it runs on that loop's thread, and nothing waits. Bodies come
 * with back-pressure: who cannot take more holds the call, and the peer's window closes.
 *
 * libcurl sends a request again by itself when a connection that was used before dies under it,
 * whatever the method [lib/transfer.c of 7.88.1, Curl_retry_request]. What must not run twice
 * therefore never gets such a connection: `fresh`. Redirects are not followed, no proxy, cookie or
 * netrc of the environment is heeded, and where to connect is the configuration's to say. */
#ifndef BATON_HTTP_CLIENT_HTTP_H
#define BATON_HTTP_CLIENT_HTTP_H

#include "base/err.h"
#include "base/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_HEAD_NBYTES_MAX = 64 << 10, /* of one answer's headers */
    HTTP_VALUE_MAX = 256,            /* of a header that is kept */
    HTTP_WHY_MAX = 256,
    HTTP_PIECE_NBYTES = 16 << 10,  /* of a body, that come at once at most: libcurl's limit */
    HTTP_IDLE_CONNECTIONS_MAX = 64 /* kept for requests that may be sent twice */
};

struct http_client;
struct http_call;

/* http_init - once, on main's thread, before any client. Errors: ERR_INTERNAL. */
int http_init(struct err *e);

/* http_client_new - Threads: the loop's, or any before loop_start. The loop outlives the client.
 * Errors: ERR_NO_MEMORY. */
int http_client_new(struct http_client **out, struct loop *loop, struct err *e);

/* http_client_free - ends every call without an event. Accepts NULL. Threads: the loop's, or any
 * when it has stopped. */
void http_client_free(struct http_client *c);

/* Where a server is. Immutable and longer than every call to it. */
struct http_target {
    const char *url;           /* "http://host:port", "https://…", "unix:/path"; no path behind */
    const char *authorization; /* value of the header, or NULL */
    const char *ca_file;       /* PEM, for https, and no other is trusted; NULL: the system's, all
                                  of which are read for each connection */
};

/* http_target_check - is the URL one of those? Errors: ERR_BAD_REQUEST at `field`. */
int http_target_check(const char *url, const char *field, struct err *e);

/* http_target_port_meant - the port of a good URL that names none; 0: it does, or has none. */
unsigned http_target_port_meant(const char *url);

struct http_header {
    const char *name, *value;
};

struct http_call_request {
    const struct http_target *target;
    const char *method; /* static */
    const char *path;   /* with its query; begins with '/' */
    const void *body;   /* borrowed until the end; NULL: none */
    size_t body_len;
    const struct http_header *headers; /* [n_headers]; borrowed for the call of http_start */
    size_t n_headers;
    uint64_t connect_timeout_us; /* > 0 */
    uint64_t timeout_us;         /* of the whole; 0: the caller ends it */
    bool fresh;                  /* must not run twice */
};

/* What is kept of an answer's head. */
struct http_head {
    int status;
    int64_t content_length; /* -1: not said */
    /* Without control characters. */
    char content_type[HTTP_VALUE_MAX], content_encoding[HTTP_VALUE_MAX];
    char retry_after[HTTP_VALUE_MAX], boot_id[HTTP_VALUE_MAX];
};

enum http_outcome {
    HTTP_WHOLE,       /* the whole answer came */
    HTTP_UNREACHABLE, /* no connection */
    HTTP_UNRESOLVED,  /* its name has no address, or nobody says which */
    HTTP_TIMED_OUT,
    HTTP_BROKEN,   /* the connection ended early, or what came is no HTTP, or over our limits */
    HTTP_NO_MEMORY /* ours, or no descriptor or port: says nothing of the server */
};

/* http_is_answer - is it the status of an answer that may be passed on? No redirect, nothing that
 * HTTP does not know. */
bool http_is_answer(int status);

struct http_end {
    enum http_outcome outcome;
    bool sent;              /* may the server have begun to work on it? */
    char why[HTTP_WHY_MAX]; /* what happened, "" for HTTP_WHOLE */
};

/* Called on the loop's thread. Each may start and end calls, this one too. */
struct http_events {
    void (*head)(void *arg, const struct http_head *head); /* NULL: of no interest */
    /* False: not now; the same bytes come again after http_resume. */
    bool (*data)(void *arg, const void *data, size_t len);
    void (*done)(void *arg, const struct http_end *end); /* exactly once; the call is over then */
    void *arg;
};

/* http_start - begin a call.
 * @out  valid until `done` is called or http_cancel returns
 * Errors: ERR_NO_MEMORY: no event comes. Threads: the loop's. Blocks: no. */
int http_start(struct http_call **out, struct http_client *c, const struct http_call_request *req,
               const struct http_events *events, struct err *e);

/* http_sent - may the server have begun to work on it? */
bool http_sent(const struct http_call *call);

/* http_body_sent - the request has left: its body is not read any more. */
bool http_body_sent(const struct http_call *call);

/* http_hold - read no more of its connection; what is being read still comes. Cheaper than to say
 * no in `data`, which may be said as well. */
void http_hold(struct http_call *call);

/* http_resume - after http_hold, or after `data` said no: let it come, what is there at once, which
 * may be the end of the call. Not from within an event. Nothing for a call that is not held. */
void http_resume(struct http_call *call);

/* http_cancel - end a call: its connection is closed, and no event comes any more. */
void http_cancel(struct http_call *call);

#endif
