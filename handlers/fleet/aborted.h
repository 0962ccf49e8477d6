/* The reply to a generate request that was aborted before an engine had it. */
#ifndef BATON_HANDLERS_FLEET_ABORTED_H
#define BATON_HANDLERS_FLEET_ABORTED_H

#include "http/http_request.h"

#include <stdbool.h>

/* aborted_reply_make - make what the embedded engine and the engines reply to a request that is
 * aborted before its first token: each sequence without tokens, and with finish_reason "abort".
 * What only an engine knows, as the number of tokens of a text, is null or left out.
 * Threads: the request's loop's. Blocks: no; parses the request's body.
 * Returns: false, with *out untouched: replies of this route have no such form, the body is not
 * what the route takes, or there is no memory. */
bool aborted_reply_make(const struct http_request *x, struct http_reply *out);

#endif
