/* The HTTP server: takes connections, delivers requests. The only user of libmicrohttpd.
 *
 * Each shard is one loop thread with an epoll of its own that holds libmicrohttpd in external mode
 * (a daemon for each hundred or so connections, see http_server_daemon.c), the listening socket, a
 * wake-up eventfd, and a hang-up watch on every accepted socket. A loop never waits for anything
 * but its epoll. Rejected: libmicrohttpd's own epoll thread, which stalls when one wake-up returns
 * a multiple of 128 events, and its poll thread, whose cost grows with idle connections. */
#ifndef BATON_HTTP_SERVER_HTTP_SERVER_H
#define BATON_HTTP_SERVER_HTTP_SERVER_H

#include "base/err.h"
#include "base/loop.h"
#include "http/http_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct http_server;
struct origin_rules;

enum http_server_body {
    HTTP_SERVER_BODY_WHOLE, /* collected, bounded by body_max, then dispatched */
    HTTP_SERVER_BODY_STREAM /* head collected (head_nbytes), dispatched, then read by
                             * http_request_body_read
                             */
};

/* How to serve a request whose headers have come; set by the application. */
struct http_server_route {
    enum http_server_body body;
    uint64_t body_max;    /* bytes; over it ERR_TOO_LARGE, early if Content-Length shows it */
    bool of_get;          /* the body of a GET is read too, not dropped */
    bool get_has_effects; /* a GET changes something: it must pass origin_check_act */
    bool reserved;        /* served even when others are refused for the number of connections */
    /* For HTTP_SERVER_BODY_STREAM, as safetensors_head_nbytes. Returns 0 with *out = length of the
     * head once it is known, 0 with *out = 0 while more bytes are needed, -1 when the head is
     * refused. */
    int (*head_nbytes)(const void *data, size_t have, uint64_t *out, struct err *e);
};

/* How one request ended, for the log line and the counters. */
struct http_server_outcome {
    int status; /* sent, or 499 when the client disconnected first */
    bool gone;
    uint64_t nbytes_in, nbytes_out;
    uint64_t duration_us; /* from the first header to the end of the answer */
    const char *log_code; /* of the reply, or NULL */
};

/* Called on a loop thread, except the last two. None may block. */
struct http_server_app {
    /* The headers have come. On -1 `reject` is called at once with the same e. Afterwards
     * x->authorization is wiped. */
    int (*route)(void *app, struct http_request *x, struct http_server_route *out, struct err *e);
    /* The body (or its head) has come: the callee now owns one reference and must answer. */
    void (*dispatch)(void *app, struct http_request *x);
    /* Build the error answer for e in the form of x->route (which may be NULL). Must not fail: a
     * static 500 is its last resort. */
    void (*reject)(void *app, struct http_request *x, const struct err *e, struct http_reply *out);
    /* Called exactly once for each request that `route` saw, after the last byte or the
     * disconnect. */
    void (*done)(void *app, const struct http_request *x, const struct http_server_outcome *o);
    /* Set both or neither. loop_begin is called before a loop's thread starts and makes the
     * application's own data for that loop, which becomes loop_app of all its requests; on -1 the
     * HTTP server does not start. loop_end is called when the thread has ended: no request is
     * attached to this HTTP server any more, but the application may still hold some. */
    int (*loop_begin)(void *app, struct loop *l, void **out, struct err *e);
    void (*loop_end)(void *loop_app);
};

struct http_server_cfg {
    const char *name;      /* of its threads; NULL: "http" */
    const char *address;   /* numeric IPv4 or [IPv6] */
    uint16_t port;         /* 0: any free one */
    const char *unix_path; /* a unix socket instead: for its owner, and for its group if the umask
                              lets the group write; NULL: address and port */
    size_t n_shards;       /* loop threads; each has a listening socket of its own (SO_REUSEPORT),
                              but all share one unix socket */
    size_t n_connections_max;
    /* Cut the oldest connections for new ones before requests have to be refused, so that no client
     * can occupy this HTTP server. For an app that answers within `dispatch`. */
    bool oldest_gives_way;
    uint64_t header_timeout_us, body_timeout_us, idle_timeout_us, drop_timeout_us;
    const char *boot_id; /* borrowed; X-Baton-Boot-Id of every answer without one; may be NULL */
    /* PEM texts, both or neither: TLS 1.2 and 1.3. Read by http_server_new only; later by
     * http_server_tls_replace. */
    const char *tls_cert, *tls_key;
    /* Called once for each accepted socket; sets http_request.peer_trusted. May be NULL. */
    bool (*trusts)(const void *arg, const struct sockaddr *peer);
    const void *trusts_arg;
    const struct origin_rules *origins; /* borrowed; which web pages are served; NULL: all */
    const struct http_server_app *app;
    void *app_arg;
};

/* http_server_new - bind, listen, start the loops. A stale unix socket, on which no process listens
 * any more, is replaced. http_server_quiesce or http_server_free removes the socket.
 * Errors: ERR_INTERNAL naming the address and the reason (in use, not permitted). */
int http_server_new(struct http_server **out, const struct http_server_cfg *cfg, struct err *e);

enum http_server_place {
    HTTP_SERVER_FREE,
    HTTP_SERVER_IN_USE,
    HTTP_SERVER_LEFT_OVER /* a stale unix socket, which http_server_new would replace */
};

/* http_server_try - could an HTTP server listen there now? Binds without listening, then closes the
 * socket. An existing unix socket is left as it is.
 * @unix_path  NULL: address and port
 * Errors: ERR_INTERNAL, as http_server_new. */
int http_server_try(const char *address, uint16_t port, const char *unix_path,
                    enum http_server_place *out, struct err *e);

uint16_t http_server_port(const struct http_server *f); /* the bound one; 0 of a unix socket */

/* A certificate with its chain and its key; counted. */
struct tls_identity;

/* tls_identity_new - read PEM texts. Errors: ERR_BAD_REQUEST with the message of GnuTLS, no field;
 * ERR_NO_MEMORY. */
int tls_identity_new(struct tls_identity **out, const char *cert, const char *key, struct err *e);
void tls_identity_unref(struct tls_identity *t); /* accepts NULL */

/* tls_identity_expires_s - the earliest end of the certificate and its chain, in seconds since the
 * Unix epoch. tls_identity_same - is it the same certificate and chain? */
int64_t tls_identity_expires_s(const struct tls_identity *t);
bool tls_identity_same(const struct tls_identity *a, const struct tls_identity *b);

/* http_server_tls_replace - use `t` (borrowed) for connections that are accepted from now on.
 * http_server_tls_identity - a reference to the one in use; NULL without TLS. Threads: any. */
void http_server_tls_replace(struct http_server *f, struct tls_identity *t);
struct tls_identity *http_server_tls_identity(struct http_server *f);

/* http_server_beat_us - ask every loop to record that it runs. Returns the oldest time that a loop
 * has recorded so far. Threads: any. Blocks: no. */
uint64_t http_server_beat_us(struct http_server *f);

struct http_server_stats {
    uint64_t n_connections, n_accepted, n_requests, n_rejected, n_gone, n_timeouts;
    uint64_t lag_us_max; /* longest turn of a loop in the last 30 to 60 s */
};
void http_server_stats(struct http_server *f, struct http_server_stats *out);

/* http_server_quiesce - stop accepting. Kept-alive connections get Connection: close with their
 * next answer; the path of a unix socket is free for a successor. Threads: main's. */
void http_server_quiesce(struct http_server *f);

/* http_server_wait_idle - wait until no request is open, or until the deadline. Returns: is it
 * idle? */
bool http_server_wait_idle(struct http_server *f, uint64_t deadline_us);

/* http_server_stop - close every connection. The app is not called any more; it may still read this
 * HTTP server's statistics and beat. Repeating is harmless; accepts NULL. Threads: main's.
 * http_server_free - stop, and join the loops. Requests that are still held elsewhere stay valid;
 * answering them does nothing. Accepts NULL. */
void http_server_stop(struct http_server *f);
void http_server_free(struct http_server *f);

#endif
