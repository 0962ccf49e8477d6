/* One operation of ours to several upstreams at the same time, and what came of it at each. */
#ifndef BATON_FLEET_FLEET_ASK_H
#define BATON_FLEET_FLEET_ASK_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;
struct upstream_answer;

enum fleet_end {
    FLEET_SKIPPED, /* nothing had to be sent, or nobody wanted to */
    FLEET_GOOD,
    FLEET_REFUSED, /* it answered with an error */
    FLEET_LOST,    /* it knows nothing of the update that it had begun: it was restarted */
    FLEET_UNSENT,  /* it was not reached: nothing has changed there */
    FLEET_UNKNOWN  /* it was sent, and no answer came: it may have been done, or be done yet */
};

struct fleet_said {
    size_t upstream;
    enum fleet_end end;
    int status;     /* 0: it did not answer */
    struct err why; /* clean unless it failed; ours: names the upstream */
    char *text;     /* owned; of its answer; NULL: none */
    size_t text_len;
};
void fleet_said_free(struct fleet_said *said, size_t n); /* accepts NULL */

/* One of those asked. */
struct fleet_to {
    size_t upstream;
    const json_t *body; /* borrowed; NULL: an empty one */
    struct api_context about;
    bool until_down; /* it is not waited for once it is down: FLEET_UNKNOWN, ERR_UNSYNCED */
};

/* fleet_ask - ask, and wait for the last answer.
 * @to    [n], n <= FLEET_MAX
 * @said  [n], in the order of `to`; written on success; to be freed with fleet_said_free
 * Threads: control's. Blocks: up to timeout_us.
 * Errors: api_make_request's (its dialect has no words for it): nobody was asked; ERR_NO_MEMORY: so
 * too; ERR_DRAINING: what became of it is not known. */
int fleet_ask(struct fleet_control *fc, enum api_op op, const struct fleet_to *to, size_t n,
              uint64_t timeout_us, struct fleet_said **said, struct err *e);

/* fleet_ask_about - the same with a question about itself. */
int fleet_ask_about(struct fleet_control *fc, enum api_query q, const struct fleet_to *to, size_t n,
                    uint64_t timeout_us, struct fleet_said **said, struct err *e);

/* fleet_words - has each of them words for it? Errors: api_make_request's. */
int fleet_words(struct fleet_control *fc, enum api_op op, const struct fleet_to *to, size_t n,
                struct err *e);

/* fleet_read - what an upstream's answer means to our client.
 * @said  upstream is set; the text is moved out of `a` */
void fleet_read(struct fleet_said *said, const char *name, struct upstream_answer *a);

/* fleet_read_lost - was the part of an upstream in an update refused because there is no such
 * update? FLEET_LOST then.
 * @said  of fleet_read */
bool fleet_read_lost(struct fleet_said *said, const struct api_context *about, const char *name);

/* fleet_worked - may it have begun to work on it? Not if its door refused it. */
bool fleet_worked(const struct fleet_said *said);

/* fleet_cause - the failure that a client is told of first: a refusal, which says why, before
 * silence. NULL: none failed. */
const struct fleet_said *fleet_cause(const struct fleet_said *said, size_t n);

/* fleet_sum_of - of a member of what the good ones said. */
uint64_t fleet_sum_of(const struct fleet_said *said, size_t n, const char *member);

/* fleet_got_there - did all of them do it? @e  set if not */
bool fleet_got_there(const struct fleet_said *said, size_t n, struct err *e);

/* fleet_wire_code - the error of that name in our own error bodies; ERR_NONE: there is none. */
enum err_code fleet_wire_code(const char *name);

#endif
