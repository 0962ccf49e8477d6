/* What the relay's files share. All of it belongs to the thread of one loop unless a line says
 * otherwise. */
#ifndef BATON_FLEET_PROXY_PROXY_PRIV_H
#define BATON_FLEET_PROXY_PROXY_PRIV_H

#include "base/mtx.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstreams.h"
#include "fleet/members/version_scan.h"
#include "fleet/proxy/proxy.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>

enum { PROXY_CLIENTS = 64 }; /* of a loop */
_Static_assert(2 * (PROXY_CLIENTS + 1) <= PROXY_LOOP_NFDS, "libcurl makes a pair for each client");

struct proxy {
    struct mtx lock; /* rank MTX_PROXY; guards down to the blank line */
    struct cnd told; /* a relay's `told` */
    struct proxy_loop *loops;

    struct upstreams *upstreams; /* borrowed; immutable */
    struct fleet *fleet;         /* borrowed; immutable */
};

/* What one loop has. */
struct proxy_loop {
    struct proxy *all;
    struct proxy_loop *next;    /* all->lock */
    bool has_left[FLEET_MAX];   /* all->lock: upstreams whose relays are to be cut */
    struct loop *loop;          /* immutable */
    struct loop_item left, end; /* posted by any thread */
    struct proxy_request *requests;
    /* libcurl looks through all connections of a client to one server for one that it may use
     * again, or that has ended: texts do not look through those of thousands of generations, and
     * these take turns among several clients. */
    struct http_client *text, *generate[PROXY_CLIENTS];
    size_t turn;
};

enum proxy_stage {
    PROXY_QUEUED,     /* for a permit; all that follow but PROXY_ANSWERED have one */
    PROXY_SENT,       /* nothing has come yet */
    PROXY_COLLECTING, /* an answer is being collected */
    PROXY_STREAMING,  /* an answer is being passed on */
    PROXY_ANSWERED    /* answered, but for a permit that is on its way here */
};

/* One request. Freed by the end of its call, or by whatever ends it first. */
struct proxy_request {
    struct proxy_loop *loop;
    struct proxy_request *next, **prev_next; /* of the loop's */
    struct http_request *x;                  /* our reference; NULL when answered */
    enum proxy_stage stage;
    enum fleet_queue queue;
    proxy_error_fn *error_reply;
    struct fleet_ticket ticket;
    bool entering; /* in fleet_permit_acquire: a grant is taken at once */
    bool has_permit;
    bool held; /* by a client that is behind */
    bool told; /* all->lock: a later grant has been posted */
    size_t n_tries;
    struct upstream_endpoint at; /* where it is asked, or was */
    uint64_t epoch;              /* of the fleet, when it was asked */
    struct version_scan scan;    /* of an SGLang's answer */
    struct http_call *call;
    struct loop_item granted, gone, drained;
    struct http_head head; /* of the answer */
    char *body;            /* owned [head.content_length]; NULL: none */
    size_t len;
    size_t ahead; /* of a stream: what its client has not taken, at most */
};

/* ---- relay.c ---- */

/* proxy_admit - take a permit now, and ask, or queue for one. Errors: as fleet_permit_acquire's; r
 * is as before. */
int proxy_admit(struct proxy_request *r, struct err *e);

/* proxy_fail - answer with e, or cut what was begun, and end. */
void proxy_fail(struct proxy_request *r, const struct err *e);

/* proxy_drop - end without a word: nobody listens any more. Not on a thread that may still be told
 * of a grant (PROXY_ANSWERED). */
void proxy_drop(struct proxy_request *r);

/* proxy_evict - what it was granted cannot be relied on any more. */
void proxy_evict(struct proxy_request *r, const struct err *why);

/* proxy_request_free - give the permit back and free it. Its call has ended, its request is
 * answered. */
void proxy_request_free(struct proxy_request *r);

/* proxy_auth_failed - the upstream did not take our key, and none of the request. */
void proxy_auth_failed(struct proxy_request *r);

/* proxy_call_failed - its call ended without a whole answer. */
void proxy_call_failed(struct proxy_request *r, const struct http_end *end);

/* proxy_upstream_failed - the upstream is at fault: it is counted, and the client is told. */
void proxy_upstream_failed(struct proxy_request *r, bool unreachable, const struct err *e);

/* ---- relay_answer.c ---- */

struct http_events proxy_events(struct proxy_request *r);
void proxy_resume_stream(void *arg); /* of struct proxy_request: its client has read on */
void proxy_name_upstream(const struct proxy_request *r, struct http_reply *out);

#endif
