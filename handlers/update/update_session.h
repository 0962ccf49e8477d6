/* The session that a request belongs to, where its route does not name it. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_SESSION_H
#define BATON_HANDLERS_UPDATE_UPDATE_SESSION_H

#include "base/err.h"
#include "handlers/route.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app;

/* request_session_find - the open session, if the route's requests do not name theirs.
 * @id  "" when there is none yet and the first request opens it (request_session_start)
 * Errors: ERR_CONFLICT: none is open and this route opens none; or it was started by somebody who
 *         names it. */
int request_session_find(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                         struct err *e);

/* request_session_start - open an auto-commit one, or find the one that another request just
 * opened. */
int request_session_start(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                          struct err *e);

/* request_session_abort - end the open update, if its requests do not name it.
 * @begun  whatever has come of it, and whoever started it; else only an auto-commit one of which
 *         nothing has been received */
void request_session_abort(struct app *app, bool begun, const char *why);

#endif
