/* One request to each of several upstreams at the same time, and what each of them answered.
 *
 * A fan-out ends when the last has answered or run out of time; one that hangs costs its own
 * deadline, and takes nothing from the answers of the others. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_FANOUT_H
#define BATON_FLEET_MEMBERS_UPSTREAM_FANOUT_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of an answer; what is longer is no answer of theirs. */
enum { UPSTREAM_REPLY_TEXT_MAX = 1 << 20 };

/* One of those asked. */
struct upstream_call {
    const struct http_target *target; /* outlives the fan-out */
    struct api_request request;       /* moved in; method NULL: it is not asked, and is content */
    uint64_t timeout_us;
    bool until_down; /* upstreams_call: not waited for once `upstream` is down */
    size_t upstream; /* then: its index */
};

struct upstream_reply {
    bool requested;
    bool good;                    /* it answered, with a status below 300; or was not asked */
    bool sent;                    /* may it have begun to work on it? */
    bool unreachable;             /* nobody listens there */
    int status;                   /* 0: it did not answer */
    char process[HTTP_VALUE_MAX]; /* of a baton: which answered; "": it does not say */
    char *text; /* of its body; NUL behind it; NULL: nothing came; owned by the fan-out, unless
                   taken */
    size_t text_len;
    struct err why; /* clean if good: ERR_TIMEOUT, ERR_ENGINE, with what was said,
                       ERR_UNSYNCED: upstream_fanout_give_up, or
                       ERR_NO_MEMORY: of ours, which says nothing of it */
};

struct upstream_fanout;

void upstream_reply_fini(
    struct upstream_reply *a); /* of one that was taken over; accepts a zeroed one */

/* Called once, on the loop's thread; the answers are in the order of the parts. They end when it
 * returns; who moves a text out leaves NULL in its place. */
typedef void upstream_fanout_done_fn(void *arg, struct upstream_reply *replies, size_t n);

/* upstream_fanout_start - Threads: the client's loop's. Blocks: no.
 * @parts  [n]; their requests are the fan-out's from here on, also after an error
 * @out    until `done` is called; NULL if that was before this returns: nobody had to be asked
 * Errors: ERR_NO_MEMORY: nobody was asked. */
int upstream_fanout_start(struct upstream_fanout **out, struct http_client *c,
                          struct upstream_call *parts, size_t n, upstream_fanout_done_fn *done,
                          void *arg, struct err *e);

/* upstream_fanout_give_up - wait no more for those of which `is_gone` is true. It may end with
 * that. Threads: as upstream_fanout_start. */
void upstream_fanout_give_up(struct upstream_fanout *f,
                             bool (*is_down)(void *arg, const struct upstream_call *part),
                             void *arg);

/* upstream_fanout_cancel - ask no more, tell nobody. Threads: as upstream_fanout_start. */
void upstream_fanout_cancel(struct upstream_fanout *f);

#endif
