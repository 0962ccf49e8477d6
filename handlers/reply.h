/* Answers: JSON with Content-Length, and error bodies in the form of the route. */
#ifndef BATON_HANDLERS_REPLY_H
#define BATON_HANDLERS_REPLY_H

#include "base/buf.h"
#include "base/err.h"
#include "handlers/route.h"
#include "http/http_request.h"

#include <jansson.h>

/* How JSON is written: compact; 9 digits carry every float32 exactly. */
#define REPLY_JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

/* reply_json - answer with `body` (stolen; NULL means that building it failed for memory: then a
 * 503 is sent instead), in the form of x's route. Gives up the caller's reference. Always answers.
 */
void reply_json(struct http_request *x, int status, json_t *body);

/* reply_text - the same of text that was written with json_put.h, emptied; `failed`: for memory. */
void reply_text(struct http_request *x, int status, struct buf *body);

/* reply_append_json - append the text of `body` (borrowed) to out; NULL, or no memory, makes
 * out->failed. Not json_dumps: jansson 2.14 goes on when its buffer fails to grow at an object's
 * key, and would hand back a text without that key. A struct buf remembers. */
void reply_append_json(struct buf *out, const json_t *body);

/* reply_json_make - the reply that reply_json would send, for a handler that must undo what it did
 * when there is no memory to tell of it. Steals body. Returns false without memory: *out is
 * untouched.
 * @x  whose route's way out is gone; NULL: as it is */
bool reply_json_make(const struct http_request *x, int status, json_t *body,
                     struct http_reply *out);

/* reply_empty - answer with no body. */
void reply_empty(struct http_request *x, int status);

/* reply_error - answer with e in the form of x->route.
 * @details  stolen, or NULL: becomes error.details on native routes */
void reply_error(struct http_request *x, const struct err *e, json_t *details);

/* reply_error_make - the same into a reply that somebody else sends (the HTTP server's reject). */
void reply_error_make(const struct route *route, const struct err *e, json_t *details,
                      struct http_reply *out);

/* error_json - {code, message, param, retryable} (new), or JSON null for a clean one. */
json_t *error_json(const struct err *cause);

/* reply_error_json - the error body alone (new), for a stream's last event; NULL for lack of
 * memory. Bytes of a message that are not UTF-8 (a client's, or cut ones) become '?'. */
json_t *reply_error_json(enum route_form form, const struct err *e, json_t *details);

#endif
