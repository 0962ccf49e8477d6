/* The session that a request belongs to, if requests of its route do not name it. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_SESSION_H
#define BATON_HANDLERS_UPDATE_UPDATE_SESSION_H

#include "base/err.h"
#include "handlers/route.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app;

/* request_session_find - find the open session, if requests of the route do not name theirs.
 * @id  unchanged if they do, or if there is no session yet and the first request opens it
 *      (request_session_start)
 * Errors: ERR_CONFLICT: no session is open and requests of this route open none; or the open
 *         session was started by a client that names it. */
int request_session_find(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                         struct err *e);

/* request_session_start - open an auto-commit session, or find the one that another request has
 * just opened. Errors: ERR_CONFLICT; those of updates_start. */
int request_session_start(char id[UPDATE_ID_MAX + 1], struct app *app, const struct http_request *x,
                          struct err *e);

/* request_session_abort - abort the open update, if its requests do not name it.
 * @begun  true: also if it has received tensors, and if it was opened by a start; false: only an
 *         auto-commit update that has received nothing */
void request_session_abort(struct app *app, bool begun, const char *why);

#endif
