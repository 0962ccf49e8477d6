/* Other servers' APIs for baton's operations (vLLM, SkyRL, SGLang, prime-rl, AReaL).
 *
 * A dialect is a set of rows of the route table. Each names an operation of baton, and:
 *   translate_request   turns the request (body and query) into the body of the native route;
 *   translate_response  turns the native reply into the one that the dialect's clients expect;
 *   form                is the form of error bodies; statuses and messages are baton's.
 * A dialect has no state and decides nothing: what a native request cannot express is refused by
 * name. If two dialects use one path, the row's body_match chooses (handlers/route.h).
 *
 * These APIs grow, so unknown members are ignored, counted, and logged when they come first. So are
 * those of native routes in OpenAI's form. The result of translate_request
 * is checked against the native members: a member that no handler reads is a bug of the
 * translation. */
#ifndef BATON_HANDLERS_DIALECT_H
#define BATON_HANDLERS_DIALECT_H

#include "base/err.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdint.h>

/* dialects_parse - "vllm,skyrl", "none", "all" -> bits of route_find. Native is always included;
 * SkyRL and AReaL include vLLM, because their clients use both.
 * Errors: ERR_BAD_REQUEST at `field`. */
int dialects_parse(unsigned *out, const char *text, const char *field, struct err *e);

/* dialect_name - "native", "vllm", "skyrl", "sglang", "prime-rl", "areal". */
const char *dialect_name(enum route_dialect d);

/* dialect_note_unknown - count the members of an object that its route ignores, and log each name
 * once.
 * @at     "sampling_params": where the object is; "": it is the body
 * @known  rows; NULL: none
 * @flags  that a known row must have
 * @route  that is not strict
 * Threads: any. */
void dialect_note_unknown(const json_t *object, const char *at, const struct member *known,
                          unsigned flags, const struct http_request *x, const struct route *route);

/* dialect_request - note unknown members of the query, and translate the body.
 * @route  of a dialect
 * @body   in, out; owned by the caller, also after an error
 * Errors: those of translate_request; ERR_INTERNAL if it made a member that the native route
 *         does not accept. */
int dialect_request(json_t **body, const struct http_request *x, const struct route *route,
                    struct err *e);

/* dialect_n_unknown - members that were ignored since the start of the process; native: those of
 * routes in OpenAI's form. */
uint64_t dialect_n_unknown(enum route_dialect d);

/* Helpers of the translations. Without memory they return -1, with e set if there is one. */

/* dialect_set - put a value (stolen, NULL: no memory) into the body.
 * @place  a name, or a place in an array or an object, which is made if it is not there: "list/0",
 *         "config/r" */
int dialect_set(json_t *body, const char *place, json_t *value, struct err *e);

/* dialect_translate - replace *body by a new object with the members of `from` that have a native
 * place (`ours` of their rows), there (by reference). null is left out.
 * @flags  which rows; 0: all
 * Errors: ERR_NO_MEMORY: *body is unchanged. What is required, the native route checks. */
int dialect_translate(json_t **body, const json_t *from, const struct member *rows, unsigned flags,
                      struct err *e);

/* dialect_request_plain - a translate_request: dialect_translate by the route's rows. */
int dialect_request_plain(json_t **body, const struct http_request *x, struct err *e);

/* dialect_error - change an error of the native handler so that it names the member which the
 * client sent: "/path: path is ..." becomes "/model_path: model_path is ...". The field is "" for a
 * member that only the translation made.
 * @route  of a native row: nothing changes */
void dialect_error(struct err *e, const struct route *route);

/* dialect_flag - a boolean query member as Python's clients and servers spell it: true, True, 1,
 * yes, on
 * @out  unchanged if absent
 * Errors: ERR_BAD_REQUEST at /<member>. */
int dialect_flag(bool *out, const struct http_request *x, const char *member, struct err *e);

/* dialect_check_action - check the action of a route that checks weights: one of the native
 * actions. `reset` is the dialect's own action for a reset, which another row handles; it is
 * named in the message.
 * Errors: ERR_BAD_REQUEST at /action. */
int dialect_check_action(const char *action, const char *reset, struct err *e);

/* dialect_replace - replace *reply by `value` (stolen; NULL: no memory, *reply is unchanged). */
int dialect_replace(json_t **reply, json_t *value);

/* For translate_response. */
int dialect_reply_empty(json_t **reply, const struct http_request *x);  /* no body */
int dialect_reply_null(json_t **reply, const struct http_request *x);   /* null */
int dialect_reply_status(json_t **reply, const struct http_request *x); /* {"status":"ok"} */

#endif
