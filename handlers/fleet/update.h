/* What the routes of updates in front of upstream engines share. */
#ifndef BATON_HANDLERS_FLEET_UPDATE_H
#define BATON_HANDLERS_FLEET_UPDATE_H

#include "base/err.h"
#include "http/http_request.h"

struct app;
struct fleet_session;

/* fleet_update_answer - reply with the update, or with the error and each engine's result.
 * @s   one reference, which is released
 * @rc  0, or -1 with e set. Returns: 0. */
int fleet_update_answer(struct app *app, struct http_request *x, struct fleet_session *s, int rc,
                        struct err *e);

/* fleet_update_find_open - a reference to the open anonymous session.
 * Errors: ERR_CONFLICT: there is none, or requests have to name it. */
int fleet_update_find_open(struct app *app, struct fleet_session **out, struct err *e);

/* fleet_update_commit_open - commit the open update that requests cannot name, if there is one,
 * before what follows it. One that is committed, and not handed over yet, is no error. Blocks and
 * errors otherwise as fleet_commit_open_update. */
int fleet_update_commit_open(struct app *app, struct err *e);

int fleet_update_no_memory(struct err *e);

#endif
