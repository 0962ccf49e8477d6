/* Replies: JSON with Content-Length, and error bodies in the form of the route. */
#ifndef BATON_HANDLERS_REPLY_H
#define BATON_HANDLERS_REPLY_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json_parse.h"
#include "handlers/route.h"
#include "http/http_request.h"

#include <jansson.h>

/* The value of WWW-Authenticate. */
#define REPLY_CHALLENGE "Bearer realm=\"baton\""

/* How JSON is written: compact; 9 digits represent every float32 exactly. */
#define REPLY_JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

/* reply_json - answer with `body`, translated for x's route. Consumes the caller's reference to
 * x. Always answers.
 * @body  stolen; NULL: there was no memory to build it, and a 503 is sent instead */
void reply_json(struct http_request *x, int status, json_t *body);

/* reply_append_json - append the text of `body` (borrowed) to out. NULL, or a lack of memory,
 * sets out->failed. json_dumps is not used: if its buffer cannot grow at an object's key,
 * jansson 2.14 continues and returns a text without that key. */
void reply_append_json(struct buf *out, const json_t *body);

/* reply_json_make - make the reply that reply_json would send, for a handler that must undo its
 * work if there is no memory for the reply. Returns false without memory, with *out untouched.
 * @x     its route's translate_response is applied; NULL: none is
 * @body  stolen */
bool reply_json_make(const struct http_request *x, int status, json_t *body,
                     struct http_reply *out);

/* reply_empty - answer with no body. */
void reply_empty(struct http_request *x, int status);

/* reply_error - answer with e in the form of x->route.
 * @details  stolen, or NULL: becomes error.details on native routes */
void reply_error(struct http_request *x, const struct err *e, json_t *details);

/* reply_error_make - make that reply for a caller that sends it itself (the HTTP server's
 * reject). */
void reply_error_make(const struct route *route, const struct err *e, json_t *details,
                      struct http_reply *out);

/* error_json - the rows of an error (new); JSON null for ERR_NONE.
 * @cause  a struct err; for .make of rows */
extern const struct member cause_reply[];
extern const struct member native_error_reply[]; /* of struct err */
json_t *error_json(const void *cause);

/* reply_error_json - only the error body (new), for a stream's last event; NULL without memory.
 * Bytes of a message that are not UTF-8 (a client's, or a cut character) become '?'. */
json_t *reply_error_json(enum route_form form, const struct err *e, json_t *details);

#endif
