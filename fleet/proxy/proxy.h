/* The data plane in front of upstream engines: a request goes on as it came, and the answer comes
 * back as it is, byte for byte.
 *
 * All of it happens on the HTTP server's loops: each has its own client of upstreams and its own
 * list of relays. A relay holds one permit of the fleet from its grant to its end. It goes to
 * another upstream only while nothing of it was sent; after that the client is told that it may
 * have been processed, or, in mid-stream, finds its answer cut. Bodies are not looked into, but for
 * the version that an SGLang's answer names: it does not name its process, as a baton does. */
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
    /* Of a tokenization, from its connection on. A generation has none: it takes as long as it
     * takes, and ends when its client goes, or when its upstream leaves rotation. */
    PROXY_TEXT_MS = 60 * 1000,
    PROXY_WHOLE_NBYTES_MAX = 64 << 10, /* a longer answer is passed on as a stream */
    /* Unsent bytes of a stream that hold its upstream; when half of them are gone it goes on. What
     * has been read by then may come on top: up to HTTP_PIECE_NBYTES. */
    PROXY_AHEAD_NBYTES = 24 << 10,
    PROXY_LOOP_NFDS = 160,            /* descriptors of a loop's clients, without connections */
    PROXY_BODY_NBYTES_KEPT = 16 << 10 /* a longer request is given up as soon as it was sent */
};

/* proxy_new - Errors: ERR_NO_MEMORY.
 * @u  borrowed until proxy_free, not yet started: its upstreams_on_left_rotation is taken */
int proxy_new(struct proxy **out, struct upstreams *u, struct err *e);

/* proxy_stop - every relay that is under way is answered now: that the server ends. Before the
 * HTTP servers are freed. Accepts NULL. Threads: main's. Blocks: no. */
void proxy_stop(struct proxy *rs);

/* proxy_free - Accepts NULL. After the HTTP servers, before the upstreams. */
void proxy_free(struct proxy *rs);

/* proxy_loop_begin, proxy_loop_end - as struct http_server_app's. */
int proxy_loop_begin(struct proxy *rs, struct loop *l, void **out, struct err *e);
void proxy_loop_end(void *loop_app);

/* Makes the answer to what no upstream has answered. Threads: the loop's. Blocks: no. */
typedef void proxy_error_fn(const struct http_request *x, const struct err *e,
                            struct http_reply *out);

/* proxy_forward - pass a request on to an upstream; on the loop. On success the request is answered
 * later; after an error it is still the caller's.
 * Errors: ERR_UNSYNCED, ERR_OVERLOADED, ERR_DRAINING (fleet_permit_acquire), ERR_NOT_FOUND,
 * ERR_NO_MEMORY.
 */
int proxy_forward(struct http_request *x, enum fleet_queue queue, proxy_error_fn *error_reply,
                  struct err *e);

#endif
