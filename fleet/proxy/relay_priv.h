/* What the relay's files share. All of it belongs to the thread of one loop unless a line says
 * otherwise. */
#ifndef BATON_FLEET_PROXY_RELAY_PRIV_H
#define BATON_FLEET_PROXY_RELAY_PRIV_H

#include "base/mtx.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstreams.h"
#include "fleet/members/version_scan.h"
#include "fleet/proxy/relay.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>

enum { RELAY_CLIENTS = 64 }; /* of a loop */
_Static_assert(2 * (RELAY_CLIENTS + 1) <= RELAY_LOOP_NFDS, "libcurl makes a pair for each client");

struct relays {
    struct mtx lock; /* rank MTX_RELAYS; guards down to the blank line */
    struct cnd told; /* a relay's `told` */
    struct relay_loop *loops;

    struct upstreams *upstreams; /* borrowed; immutable */
    struct fleet *fleet;         /* borrowed; immutable */
};

/* What one loop has. */
struct relay_loop {
    struct relays *all;
    struct relay_loop *next;    /* all->lock */
    bool has_left[FLEET_MAX];   /* all->lock: upstreams whose relays are to be cut */
    struct loop *loop;          /* immutable */
    struct loop_item left, end; /* posted by any thread */
    struct relay *relays;
    /* libcurl looks through all connections of a client to one server for one that it may use
     * again, or that has ended: texts do not look through those of thousands of generations, and
     * these take turns among several clients. */
    struct http_client *text, *generate[RELAY_CLIENTS];
    size_t turn;
};

enum relay_stage {
    RELAY_QUEUED, /* for a permit; all that follow but RELAY_OVER have one */
    RELAY_ASKED,  /* nothing has come yet */
    RELAY_WHOLE,  /* an answer is being collected */
    RELAY_STREAM, /* an answer is being passed on */
    RELAY_OVER    /* answered, but for a permit that is on its way here */
};

/* One request. Freed by the end of its call, or by whatever ends it first. */
struct relay {
    struct relay_loop *loop;
    struct relay *next, **prev_next; /* of the loop's */
    struct http_request *x;          /* our reference; NULL when answered */
    enum relay_stage stage;
    enum fleet_lane lane;
    relay_error_fn *error_reply;
    struct fleet_ticket ticket;
    bool entering; /* in fleet_enter: a grant is taken at once */
    bool has_permit;
    bool held; /* by a client that is behind */
    bool told; /* all->lock: a later grant has been posted */
    size_t n_tries;
    struct upstream_at at;    /* where it is asked, or was */
    uint64_t epoch;           /* of the fleet, when it was asked */
    struct version_scan scan; /* of an SGLang's answer */
    struct http_call *call;
    struct loop_item granted, gone, drained;
    struct http_head head; /* of the answer */
    char *body;            /* owned [head.content_length]; NULL: none */
    size_t len;
    size_t ahead; /* of a stream: what its client has not taken, at most */
};

/* ---- relay.c ---- */

/* relay_enter - take a permit now, and ask, or queue for one. Errors: as fleet_enter's; r is as
 * before. */
int relay_enter(struct relay *r, struct err *e);

/* relay_fail - answer with e, or cut what was begun, and end. */
void relay_fail(struct relay *r, const struct err *e);

/* relay_drop - end without a word: nobody listens any more. Not on a thread that may still be told
 * of a grant (RELAY_OVER). */
void relay_drop(struct relay *r);

/* relay_cut - what it was granted cannot be relied on any more. */
void relay_cut(struct relay *r, const struct err *why);

/* relay_end - give the permit back and free it. Its call has ended, its request is answered. */
void relay_end(struct relay *r);

/* relay_refused - the upstream did not take our key, and none of the request. */
void relay_refused(struct relay *r);

/* relay_break - its call ended without a whole answer. */
void relay_break(struct relay *r, const struct http_end *end);

/* relay_missed - the upstream is at fault: it is counted, and the client is told. */
void relay_missed(struct relay *r, bool unreachable, const struct err *e);

/* ---- relay_answer.c ---- */

struct http_events relay_events(struct relay *r);
void relay_drained(void *arg); /* of struct relay: its client has read on */
void relay_name_upstream(const struct relay *r, struct http_reply *out);

#endif
