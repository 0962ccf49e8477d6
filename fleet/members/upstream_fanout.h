/* One request to each of several engines at the same time, and the reply of each.
 *
 * A fan-out ends when each engine has replied or reached its timeout. An engine that hangs delays
 * the end by its own timeout and does not affect the replies of the others. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_FANOUT_H
#define BATON_FLEET_MEMBERS_UPSTREAM_FANOUT_H

#include "base/err.h"
#include "base/net/trace.h"
#include "fleet/api/upstream_api.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a reply; a longer one is an error. */
enum { UPSTREAM_REPLY_TEXT_MAX = 1 << 20 };

/* A request to one engine. */
struct upstream_call {
    const struct http_target *target; /* outlives the fan-out */
    struct api_request request;       /* moved in; method NULL: send nothing; the reply is good */
    uint64_t timeout_us;
    size_t text_max;                   /* bytes of the reply; 0: UPSTREAM_REPLY_TEXT_MAX */
    const struct trace_context *trace; /* outlives the fan-out; NULL: none */
    bool until_down; /* upstreams_call: stop waiting when the engine is not alive any more */
    struct upstream *upstream; /* borrowed; read only if until_down */
    const bool
        *given_up;    /* atomic, outlives the fan-out: stop waiting once it is true; NULL: never */
    uint64_t late_us; /* stop waiting so long after good replies to n_enough others; 0: never */
    uint64_t given_up_us; /* given_up counts so long after the start only */
    size_t n_enough;
};

struct upstream_reply {
    bool requested;
    bool came, answered; /* of upstreams_call: it is here, or will never be; and that was told */
    bool good;           /* a whole reply with a status below 300; or nothing was sent */
    bool sent;           /* the engine may have begun to process the request */
    bool unreachable;    /* no connection */
    int status;          /* 0: no whole reply */
    char process[HTTP_VALUE_MAX]; /* a baton's process that replied; "": it does not report one */
    char *text; /* the body, NUL-terminated; NULL: none. Owned by the fan-out unless moved out */
    size_t text_len;
    struct err why; /* clean if good; else ERR_UPSTREAM_TIMEOUT, ERR_UPSTREAM (with the engine's
                       message), ERR_UNSYNCED (upstream_fanout_give_up), or
                       ERR_NO_MEMORY: this server's fault, which proves nothing about the engine */
};

struct upstream_fanout;

/* upstream_reply_fini - frees the text of a reply that was moved out. Accepts a zeroed one. */
void upstream_reply_fini(struct upstream_reply *a);

/* Called once, on the loop's thread; the replies have the order of the calls. They are freed when
 * it returns; to move a text out, set it to NULL. */
typedef void upstream_fanout_done_fn(void *arg, struct upstream_reply *replies, size_t n);

/* upstream_fanout_start - send the requests.
 * @parts  [n]; their requests are moved in, also on an error
 * @out    valid until `done` is called; NULL if it was called already, since there was nothing to
 *         send
 * Threads: that of the client's loop. Blocks: no.
 * Errors:  ERR_NO_MEMORY: `done` is not called. */
int upstream_fanout_start(struct upstream_fanout **out, struct http_client *c,
                          struct upstream_call *parts, size_t n, upstream_fanout_done_fn *done,
                          void *arg, struct err *e);

/* upstream_fanout_on_reply - call fn for each reply that comes, before the last one ends it. The
 * text may be moved out. Threads: as upstream_fanout_start, right after it. */
typedef void upstream_fanout_reply_fn(void *arg, size_t at, struct upstream_reply *reply);
void upstream_fanout_on_reply(struct upstream_fanout *f, upstream_fanout_reply_fn *fn);

/* upstream_fanout_keep - it is about this engine, which may leave the list while it is asked, but
 * is there until the end.
 * @at     where the caller has it; NULL again once `done` has returned, or after a cancel
 * @first  of all that are kept there, to cancel them
 * Threads: as upstream_fanout_start. */
void upstream_fanout_keep(struct upstream_fanout **at, struct upstream_fanout **first,
                          struct upstream *upstream);

/* upstream_fanout_give_up - stop waiting for the engines for which `is_down` returns true, and for
 * those that are late (late_us). This may end the fan-out. Threads: as upstream_fanout_start. */
void upstream_fanout_give_up(struct upstream_fanout *f,
                             bool (*is_down)(void *arg, const struct upstream_call *part),
                             void *arg);

/* upstream_fanout_cancel - end it without calling `done`. Threads: as upstream_fanout_start. */
void upstream_fanout_cancel(struct upstream_fanout *f);

#endif
