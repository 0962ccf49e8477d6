/* What the log says of a request when it has ended, and what the history keeps of its error.
 *
 * A request has at most one line. The line of a failed update, of a refused key and of a change of
 * health does not depend on --access-log. */
#ifndef BATON_SERVER_REQUEST_LOG_H
#define BATON_SERVER_REQUEST_LOG_H

#include "base/err.h"
#include "http/http_request.h"
#include "http/server/http_server.h"

struct history;
struct request_log;

/* request_log_new - @access   "off", "errors" or "all": which requests have a line
 *                   @history  borrowed
 * Errors: ERR_NO_MEMORY. */
int request_log_new(struct request_log **out, const char *access, struct history *history,
                    struct err *e);
void request_log_free(struct request_log *l); /* accepts NULL */

/* request_log_done - a request has ended. Threads: a loop's. Blocks: no. */
void request_log_done(struct request_log *l, const struct http_request *x,
                      const struct http_server_outcome *o);

#endif
