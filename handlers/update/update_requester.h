/* The request that waits for the end of an update. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_REQUESTER_H
#define BATON_HANDLERS_UPDATE_UPDATE_REQUESTER_H

#include "base/err.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app;
struct http_request;

struct update_requester;

/* update_requester_new
 * @x       borrowed; update_reply_done consumes the reference
 * @source  of the request's tensors; NULL: it has none
 * Errors: ERR_NO_MEMORY. */
int update_requester_new(struct update_requester **out, struct app *app, struct http_request *x,
                         const struct source *source, struct err *e);
void update_requester_free(struct update_requester *a); /* without an answer; accepts NULL */

/* update_requester_disconnected - has its client disconnected? For update_chunk.gone; the
 * argument is a struct update_requester. */
bool update_requester_disconnected(void *asker);

/* update_abort_generations - end all generations, here or at the engines, before what the request
 * brings is submitted: those that are sent after its reply must not be aborted.
 * Threads: those that may wait for engines. Blocks: in front of engines as
 * fleet_abort_all_requests, whose failures are ignored. */
void update_abort_generations(struct app *app);

/* update_note_end - note for the log how the update of a request ended, before it is answered.
 * @e  its answer, which may be an error of what follows a commit */
void update_note_end(struct http_request *x, const struct update_info *info, const struct err *e);

/* update_reply_done - an update_done_fn: answers the request with the update or its error, and
 * frees `arg`, a struct update_requester. An error says also if its group was left, and ends an
 * update of patches. The reply to a commit also lists which adapters stay valid, and with --stage
 * which upstreams have the version, as does the error of its hand-off. */
void update_reply_done(void *arg, const struct update_info *info, const struct err *e);

#endif
