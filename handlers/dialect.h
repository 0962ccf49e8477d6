/* Other servers' wire forms of our operations (vLLM, SkyRL, SGLang, prime-rl, AReaL).
 *
 * A dialect is rows of the route table that name an operation of ours and what stands around it:
 *   in    turns the request (its body, and its query) into the body that the native route takes;
 *   out   turns the native reply into the one that the dialect's clients read;
 *   form  is how errors look; their statuses and messages are ours.
 * It holds no state and decides nothing: what it cannot say in a native request it refuses by name.
 * Where two callers claim one path, the row's claim decides by the body (handlers/route.h).
 *
 * These APIs grow, so unknown members are ignored, and counted. What `in` makes is held against
 * the native members all the same: a translation that says what nobody reads is our bug. */
#ifndef BATON_HANDLERS_DIALECT_H
#define BATON_HANDLERS_DIALECT_H

#include "base/err.h"
#include "handlers/route.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdint.h>

/* dialects_parse - "vllm,skyrl", "none", "all" -> bits of route_find; the native one is always in,
 * and vLLM's with SkyRL's and AReaL's, whose clients use both.
 * Errors: ERR_BAD_REQUEST at `field`. */
int dialects_parse(unsigned *out, const char *text, const char *field, struct err *e);

/* dialect_name - "native", "vllm", "skyrl", "sglang", "prime-rl", "areal". */
const char *dialect_name(enum route_dialect d);

/* dialect_request - a parsed body on its way in: counts unknown members of body and query, and lets
 * the row translate.
 * @route  of a dialect
 * @body  in, out; owned by the caller, also after an error
 * Errors: `in`'s; ERR_INTERNAL when it made a member that the native route does not take. */
int dialect_request(json_t **body, const struct http_request *x, const struct route *route,
                    struct err *e);

/* dialect_n_unknown - members that were ignored so far, since the start of the process. */
uint64_t dialect_n_unknown(enum route_dialect d);

/* What several tables say in `in` and `out`. All are for memory's lack too: -1 with e set, or
 * without an e just -1. */

/* dialect_set - body[member] = value (stolen, NULL: no memory). */
int dialect_set(json_t *body, const char *member, json_t *value, struct err *e);

/* dialect_select_members - a new object with those members of `body` (by reference), in place of
 * *body.
 * @members  pairs {theirs, ours}, ended by {NULL, NULL}; null values are left out */
struct dialect_member {
    const char *theirs, *ours;
};
int dialect_select_members(json_t **body, const json_t *from, const struct dialect_member *members,
                           struct err *e);

/* dialect_error - change an error of the native handler so that it names the member which the
 * client sent: "/path: path is ..." becomes "/model_path: model_path is ...". The field is "" for a
 * member that only the translation made.
 * @route  of a native row: nothing changes */
void dialect_error(struct err *e, const struct route *route);

/* dialect_flag - a query member as Python's clients and servers spell it: true, True, 1, yes, on
 * @out  unchanged when absent
 * Errors: ERR_BAD_REQUEST at /<member>. */
int dialect_flag(bool *out, const struct http_request *x, const char *member, struct err *e);

/* dialect_check_action - of the routes that check weights: the native actions, or the dialect's own
 * for a reset, which another row takes.
 * Errors: ERR_BAD_REQUEST at /action. */
int dialect_check_action(const char *action, const char *reset, struct err *e);

/* dialect_replace - *reply = `value` (stolen; NULL: no memory, *reply stays). For `out`. */
int dialect_replace(json_t **reply, json_t *value);

/* Outs. */
int dialect_reply_empty(json_t **reply, const struct http_request *x);  /* no body */
int dialect_reply_null(json_t **reply, const struct http_request *x);   /* null */
int dialect_reply_status(json_t **reply, const struct http_request *x); /* {"status":"ok"} */

#endif
