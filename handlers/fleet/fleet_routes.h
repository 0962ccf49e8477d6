/* What is answered in front of upstream engines: for each handler of the route table, the one that
 * does its work there, and on which threads. A handler without a row has nothing to work on then.
 */
#ifndef BATON_HANDLERS_FLEET_FLEET_ROUTES_H
#define BATON_HANDLERS_FLEET_FLEET_ROUTES_H

#include "base/err.h"
#include "handlers/route.h"
#include "http/exchange.h"

struct app;

typedef int handle_fn(struct app *app, struct exchange *x, struct err *e);

struct fleet_row {
    handle_fn *native;    /* of struct route */
    enum route_lane lane; /* of the rows of one path the first one's counts */
    handle_fn *handle;
};

/* fleet_row_of - of the route's operation, where that has a row of its own, or else of its handler;
 * or NULL. */
const struct fleet_row *fleet_row_of(const struct route *route);

#endif
