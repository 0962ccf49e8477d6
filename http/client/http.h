/* Requests to other servers, on an event loop: libcurl's multi interface, driven by our epoll.
 *
 * Each loop has one client. All of it runs on that loop's thread, and nothing waits. Bodies come
 * with back-pressure: a receiver that cannot take more holds the call, and the TCP window closes.
 *
 * libcurl sends a request again by itself when a connection that was used before dies under it,
 * whatever the method [lib/transfer.c of 7.88.1, Curl_retry_request]. What must not run twice
 * therefore never gets such a connection: `fresh`. Redirects are not followed. Proxies, cookies and
 * netrc of the environment are ignored: only the configuration decides where to connect. */
#ifndef BATON_HTTP_CLIENT_HTTP_H
#define BATON_HTTP_CLIENT_HTTP_H

#include "base/err.h"
#include "base/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    HTTP_HEAD_NBYTES_MAX = 64 << 10, /* of one answer's headers */
    HTTP_VALUE_MAX = 400,            /* of a header that is kept */
    HTTP_WHY_MAX = 256,
    HTTP_PIECE_NBYTES = 16 << 10,  /* most bytes of a body in one event: libcurl's limit */
    HTTP_IDLE_CONNECTIONS_MAX = 64 /* kept open, for requests that may be sent twice */
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

/* The address of a server. Immutable; must outlive every call to it. */
struct http_target {
    const char *url;           /* "http://host:port", "https://…", "unix:/path"; without a path */
    const char *authorization; /* value of the header, or NULL */
    const char *ca_file;       /* PEM, for https: only these are trusted; NULL: the system's, which
                                  are all read for each connection */
    const char *connect_to;    /* "10.0.0.3:8443": connect there; the URL's host is then only what
                                  the certificate and the Host header name; NULL: to that host */
};

/* http_target_check - is the URL one of those? Errors: ERR_BAD_REQUEST at `field`. */
int http_target_check(const char *url, const char *field, struct err *e);

/* http_target_port_meant - the default port of a valid URL that names no port; 0: the URL names
 * one, or has none (a unix socket). */
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
    /* May this address be connected to? It is that of the socket, whatever the name was; NULL: any
     * may. */
    bool (*allowed)(const void *arg, const struct sockaddr *addr);
    const void *allowed_arg;
};

/* The parts of an answer's head that are kept. */
struct http_head {
    int status;
    int64_t content_length; /* -1: not given */
    /* Without control characters. */
    char content_type[HTTP_VALUE_MAX], content_encoding[HTTP_VALUE_MAX];
    char retry_after[HTTP_VALUE_MAX], boot_id[HTTP_VALUE_MAX], weight_version[HTTP_VALUE_MAX];
    char etag[HTTP_VALUE_MAX], content_range[HTTP_VALUE_MAX];
};

enum http_outcome {
    HTTP_WHOLE,       /* the whole answer came */
    HTTP_UNREACHABLE, /* no connection */
    HTTP_UNRESOLVED,  /* its name has no address, or could not be resolved */
    HTTP_TIMED_OUT,
    HTTP_BROKEN,   /* the connection ended early, or the answer is not HTTP or exceeds a limit */
    HTTP_NO_MEMORY /* this process lacks memory, a descriptor or a port: no fault of the server */
};

/* http_is_answer - may an answer with this status be passed on? Not a redirect, nor a status that
 * HTTP does not define. */
bool http_is_answer(int status);

struct http_end {
    enum http_outcome outcome;
    bool sent;              /* may the server have begun to process the request? */
    bool no_tls;            /* it listens, but speaks no TLS, or its certificate is not trusted */
    char why[HTTP_WHY_MAX]; /* what happened, "" for HTTP_WHOLE */
};

/* Called on the loop's thread. Each may start calls and end calls, including this one. */
struct http_events {
    void (*head)(void *arg, const struct http_head *head); /* NULL: of no interest */
    /* False: cannot take them now; the same bytes come again after http_resume. */
    bool (*data)(void *arg, const void *data, size_t len);
    void (*done)(void *arg, const struct http_end *end); /* exactly once, and last */
    void *arg;
};

/* http_start - begin a call.
 * @out  valid until `done` is called or http_cancel returns
 * Errors: ERR_NO_MEMORY: no event comes. Threads: the loop's. Blocks: no. */
int http_start(struct http_call **out, struct http_client *c, const struct http_call_request *req,
               const struct http_events *events, struct err *e);

/* http_sent - may the server have begun to process the request? */
bool http_sent(const struct http_call *call);

/* http_body_sent - the whole request was sent: its body is not read any more. */
bool http_body_sent(const struct http_call *call);

/* http_body_nbytes_sent - bytes of the body that were handed to the system so far. */
uint64_t http_body_nbytes_sent(const struct http_call *call);

/* http_hold - stop reading the connection of the call; what is being read still comes. Cheaper than
 * returning false from `data`; both may be used. */
void http_hold(struct http_call *call);

/* http_resume - read again after http_hold, or after `data` returned false. What has come already
 * is delivered before this returns, which may end the call. Must not be called from within an
 * event. Does nothing for a call that is not held. */
void http_resume(struct http_call *call);

/* http_cancel - end a call: close its connection; no event follows. */
void http_cancel(struct http_call *call);

#endif
