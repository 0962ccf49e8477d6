/* Which handler does an operation: one table for the engine of our own, one for work in front of
 * upstream engines. Both are complete, or the program does not compile. */
#ifndef BATON_SERVER_OPERATIONS_H
#define BATON_SERVER_OPERATIONS_H

#include "base/err.h"
#include "control/lifecycle.h"
#include "handlers/operation.h"
#include "handlers/route.h"
#include "http/http_request.h"

#include <stdbool.h>

struct app;

/* Owns one reference of x when called. 0: it answered, or somebody will. -1: nobody was answered;
 * dispatch answers with e. */
typedef int operation_handler(struct app *app, struct http_request *x, struct err *e);

/* Without upstreams. The threads are those of the route's lane. */
struct embedded_operation {
    operation_handler *handle;
    /* Of a request that was refused before its handler saw it; NULL: nobody needs to know. Threads:
     * any. Blocks: no. */
    void (*unread)(struct app *app, const struct http_request *x);
};

/* In front of upstream engines. */
struct fleet_operation {
    enum route_executor executor; /* of the rows of one path the first one's counts */
    operation_handler *handle;
    bool passed_on; /* as it comes: no body is looked into */
};

/* operation_embedded, operation_fleet - of what a row of the route table names. Threads: any. */
const struct embedded_operation *operation_embedded(enum operation op);
const struct fleet_operation *operation_fleet(enum operation op);

/* operation_call - handlers/operation.h, second column. Threads: any. */
enum lifecycle_call operation_call(enum operation op);

/* fleet_not_answered - the handler of what has nothing to work on in front of upstream engines.
 * Errors: ERR_HAS_UPSTREAMS. */
int fleet_not_answered(struct app *app, struct http_request *x, struct err *e);

#endif
