/* The session that a request belongs to, where its route does not name it. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_SESSION_H
#define BATON_HANDLERS_UPDATE_UPDATE_SESSION_H

#include "base/err.h"
#include "handlers/route.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app;

/* session_find - the open session, if the route's requests do not name theirs.
 * @id  "" when there is none yet and the first request opens it (session_begin)
 * Errors: ERR_CONFLICT: none is open and this route opens none; or it was started by somebody who
 *         names it. */
int session_find(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                 struct err *e);

/* session_begin - open an auto-commit one, or find the one that another request just opened. */
int session_begin(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                  struct err *e);

/* session_give_up - end the open update, if its requests do not name it.
 * @begun  whatever has come of it, and whoever started it; else only an auto-commit one of which
 *         nothing has been received */
void session_give_up(struct app *app, bool begun, const char *why);

#endif
