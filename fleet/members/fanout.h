/* One request to each of several upstreams at the same time, and what each of them answered.
 *
 * A fan ends when the last has answered or run out of time; one that hangs costs its own deadline,
 * and takes nothing from the answers of the others. */
#ifndef BATON_FLEET_MEMBERS_FANOUT_H
#define BATON_FLEET_MEMBERS_FANOUT_H

#include "base/err.h"
#include "fleet/api/wire.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAN_TEXT_MAX = 1 << 20 /* bytes of an answer; what is longer is no answer of theirs */ };

/* One of those asked. */
struct fanout_part {
    const struct http_target *target; /* longer than the fan */
    struct wire_request request;      /* moved in; method NULL: it is not asked, and is content */
    uint64_t timeout_us;
    bool until_down; /* upstreams_ask: not waited for once `upstream` is down */
    size_t upstream; /* then: its index */
};

struct fanout_answer {
    bool asked;
    bool good;                    /* it answered, with a status below 300; or was not asked */
    bool sent;                    /* may it have begun to work on it? */
    bool unreachable;             /* nobody listens there */
    int status;                   /* 0: it did not answer */
    char process[HTTP_VALUE_MAX]; /* of a baton: which answered; "": it does not say */
    char *text; /* of its body; NUL behind it; NULL: nothing came; owned by the fan, unless taken */
    size_t text_len;
    struct err why; /* clean if good: ERR_TIMEOUT, ERR_ENGINE, with what was said,
                       ERR_UNSYNCED: fanout_give_up, or
                       ERR_NO_MEMORY: of ours, which says nothing of it */
};

struct fanout;

void fanout_answer_fini(
    struct fanout_answer *a); /* of one that was taken over; accepts a zeroed one */

/* Called once, on the loop's thread; the answers are in the order of the parts. They end when it
 * returns; who moves a text out leaves NULL in its place. */
typedef void fanout_done_fn(void *arg, struct fanout_answer *answers, size_t n);

/* fanout_start - Threads: the client's loop's. Blocks: no.
 * @parts  [n]; their requests are the fan's from here on, also after an error
 * @out    until `done` is called; NULL if that was before this returns: nobody had to be asked
 * Errors: ERR_NO_MEMORY: nobody was asked. */
int fanout_start(struct fanout **out, struct http_client *c, struct fanout_part *parts, size_t n,
                 fanout_done_fn *done, void *arg, struct err *e);

/* fanout_give_up - wait no more for those of which `is_gone` is true. It may end with that.
 * Threads: as fanout_start. */
void fanout_give_up(struct fanout *f, bool (*is_gone)(void *arg, const struct fanout_part *part),
                    void *arg);

/* fanout_cancel - ask no more, tell nobody. Threads: as fanout_start. */
void fanout_cancel(struct fanout *f);

#endif
