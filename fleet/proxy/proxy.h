/* The data plane in front of upstream engines: a request is forwarded as it came, and the reply is
 * returned as it is, byte for byte.
 *
 * All of it happens on the HTTP server's loops: each has its own clients of the upstreams and its
 * own list of forwarded requests. A request holds one permit of the fleet from its grant to its
 * end. It is retried at another upstream only while nothing of it was sent; after that the client
 * gets an error which says that it may have been processed or, in mid-stream, an aborted reply.
 * Bodies are not parsed, except for the version in the reply of an upstream which names it there
 * (upstream_caps.reply_names_version), and replies whose clients ask for `weight_versions`
 * (fleet/proxy/reply_versions.h), the one thing that is ever added to a reply. Each reply to a
 * generate has the version at its grant in a header. */
#ifndef BATON_FLEET_PROXY_PROXY_H
#define BATON_FLEET_PROXY_PROXY_H

#include "base/err.h"
#include "base/loop.h"
#include "fleet/members/fleet.h"
#include "http/http_request.h"

struct proxy;
struct upstreams;

enum {
    PROXY_CONNECT_MS = 5 * 1000,
    /* Of a text request, from its connection on. A generation has no timeout: it ends when its
     * client disconnects, or when its upstream leaves rotation. */
    PROXY_TEXT_MS = 60 * 1000,
    PROXY_WHOLE_NBYTES_MAX = 64 << 10, /* a longer reply is streamed */
    /* Unsent bytes of a stream at which its upstream is paused; at half of them it is resumed. What
     * has been read by then may come on top: up to HTTP_PIECE_NBYTES. */
    PROXY_AHEAD_NBYTES = 24 << 10,
    PROXY_LOOP_NFDS = 160,            /* descriptors of a loop's clients, without connections */
    PROXY_BODY_NBYTES_KEPT = 16 << 10 /* a longer request body is freed as soon as it was sent */
};

/* proxy_new - Errors: ERR_NO_MEMORY.
 * @u  borrowed until proxy_free, not yet started; upstreams_on_left_rotation is used here */
int proxy_new(struct proxy **out, struct upstreams *u, struct err *e);

/* proxy_stop - answer every forwarded request with ERR_DRAINING, or abort its stream. Call before
 * the HTTP servers are freed. Accepts NULL. Threads: main's. Blocks: no. */
void proxy_stop(struct proxy *proxy);

/* proxy_free - Accepts NULL. Call after the HTTP servers are freed, before the upstreams are. */
void proxy_free(struct proxy *proxy);

/* proxy_loop_begin, proxy_loop_end - as struct http_server_app's. */
int proxy_loop_begin(struct proxy *proxy, struct loop *l, void **out, struct err *e);
void proxy_loop_end(void *loop_app);

/* Makes the reply to a request that got none from an upstream. Threads: the loop's. Blocks: no. */
typedef void proxy_error_fn(const struct http_request *x, const struct err *e,
                            struct http_reply *out);

/* One generate has been answered in full. @serial  of the fleet's version at its grant */
typedef void proxy_made_fn(const struct http_request *x, uint64_t serial);

/* What a forwarded request needs of the application. */
struct proxy_hooks {
    proxy_error_fn *error_reply;
    proxy_made_fn *made; /* NULL: of no interest */
};

/* proxy_forward - forward a request to an upstream. `hooks` are static. On success the request is
 * answered later; after an error it is still the caller's. Threads: the loop's. Blocks: no. Errors:
 * ERR_UNSYNCED, ERR_UPSTREAM_KEY, ERR_OVERLOADED, ERR_DRAINING (fleet_permit_acquire);
 *         ERR_NOT_FOUND, ERR_BAD_REQUEST: its path; ERR_NO_MEMORY. */
int proxy_forward(struct http_request *x, enum fleet_queue queue, const struct proxy_hooks *hooks,
                  struct err *e);

#endif
