/* What the proxy's files share. All of it belongs to the thread of one loop unless a line says
 * otherwise. */
#ifndef BATON_FLEET_PROXY_PROXY_PRIV_H
#define BATON_FLEET_PROXY_PROXY_PRIV_H

#include "base/mtx.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"
#include "fleet/members/version_scan.h"
#include "fleet/proxy/proxy.h"
#include "fleet/proxy/reply_versions.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>

enum { PROXY_CLIENTS = 64 }; /* of a loop */
_Static_assert(2 * (PROXY_CLIENTS + 1) <= PROXY_LOOP_NFDS, "libcurl makes a pair for each client");

struct proxy {
    struct mtx lock;         /* rank MTX_PROXY; guards down to the blank line */
    struct cnd grant_posted; /* a request's `grant_posted` has been set */
    struct proxy_loop *loops;

    struct upstreams *upstreams; /* borrowed; immutable */
    struct fleet *fleet;         /* borrowed; immutable */
};

/* What one loop has. */
struct proxy_loop {
    struct proxy *proxy;
    struct proxy_loop *next;                 /* proxy->lock */
    struct loop *loop;                       /* immutable */
    struct loop_item left_rotation, stopped; /* posted by any thread */
    struct proxy_request *requests;
    /* To find a connection that can be used again, or that has ended, libcurl looks through all
     * connections of a client to one server. Text requests therefore have a client of their own,
     * without the thousands of connections of generations, and generations are spread over
     * several clients in turn. */
    struct http_client *text, *generate[PROXY_CLIENTS];
    size_t next_client;
};

enum proxy_stage {
    PROXY_QUEUED,     /* for a permit; in all stages below it has one, except in PROXY_ANSWERED */
    PROXY_SENT,       /* no reply yet */
    PROXY_COLLECTING, /* a short reply is collected, to be sent as a whole */
    PROXY_STREAMING,  /* a long reply is forwarded as it comes */
    PROXY_ANSWERED    /* the client was answered, and a late grant must still be given back */
};

/* One forwarded request. Freed when its call ends, or by whatever ends it first. */
struct proxy_request {
    struct proxy_loop *loop;
    struct proxy_request *next, **prev_next; /* in loop->requests */
    struct http_request *x;                  /* our reference; NULL once it is answered */
    enum proxy_stage stage;
    enum fleet_queue queue;
    const struct proxy_hooks *hooks; /* static */
    struct fleet_ticket ticket;
    bool acquiring; /* in fleet_permit_acquire: a grant is taken at once */
    bool has_permit;
    bool is_paused;    /* reading the reply is paused: the client is slow */
    bool grant_posted; /* proxy->lock: a later grant was posted to the loop */
    size_t n_attempts;
    const struct upstream_config *at; /* of the last attempt; NULL: there was none */
    uint64_t epoch;                   /* fleet_weights_epoch at the last attempt */
    struct version_scan scan;         /* of the versions in its reply */
    struct reply_versions *versions;  /* owned; NULL: the reply passes unchanged */
    struct http_call *call;           /* NULL: none is under way */
    struct loop_item granted, disconnected, drained;
    struct http_head head; /* of the reply */
    char *body;            /* owned [head.content_length]; NULL: none */
    size_t len;
    size_t ahead; /* of a stream: upper bound of the bytes that its client has not taken */
};

/* ---- proxy.c ---- */

/* proxy_readmit - take a permit once more and send the request, or queue for a permit, or fail.
 * @why  the error to report if no other upstream is in rotation; NULL: fleet_permit_acquire's */
void proxy_readmit(struct proxy_request *r, const struct err *why);

/* proxy_fail - answer with e, or abort a stream that has begun, and end the request. */
void proxy_fail(struct proxy_request *r, const struct err *e);

/* PROXY_FAIL - proxy_fail with a code and a formatted message. */
#define PROXY_FAIL(r, code, ...)                                                                   \
    do {                                                                                           \
        struct err e_ = {0};                                                                       \
        (void)err_set(&e_, (code), "", __VA_ARGS__);                                               \
        proxy_fail((r), &e_);                                                                      \
    } while (0)

/* proxy_drop - end the request without an answer: its client has disconnected. It may still wait
 * for a late grant after that (PROXY_ANSWERED). */
void proxy_drop(struct proxy_request *r);

/* proxy_evict - its upstream has left rotation: retry elsewhere if nothing was sent, or fail.
 * @why  of the upstream */
void proxy_evict(struct proxy_request *r, const struct err *why);

/* proxy_abort - answer the request if it was aborted (fleet_is_aborted) and no engine is known to
 * have it; else nothing. It may still wait for a late grant, and is answered then. */
void proxy_abort(struct proxy_request *r);

/* proxy_request_free - give the permit back and free it. Its call has ended, its request is
 * answered. */
void proxy_request_free(struct proxy_request *r);

/* proxy_auth_failed - the upstream refused our key (api_is_auth_error), so it processed nothing:
 * retry elsewhere, or fail. */
void proxy_auth_failed(struct proxy_request *r);

/* proxy_call_failed - the call ended without a complete reply. */
void proxy_call_failed(struct proxy_request *r, const struct http_end *end);

/* proxy_upstream_failed - count a failure of the upstream, and fail.
 * @unreachable  nothing listens there */
void proxy_upstream_failed(struct proxy_request *r, bool unreachable, const struct err *e);

/* proxy_cancel_call - end the call, if there is one; no event of it follows. */
void proxy_cancel_call(struct proxy_request *r);

/* ---- proxy_reply.c ---- */

/* proxy_events - the events of a call of this request. */
struct http_events proxy_events(struct proxy_request *r);

/* proxy_resume_reading - the client has taken enough: read on. @arg  a struct proxy_request */
void proxy_resume_reading(void *arg);

/* proxy_name_upstream - add the header X-Baton-Upstream, if there was an attempt. */
void proxy_name_upstream(const struct proxy_request *r, struct http_reply *out);

#endif
