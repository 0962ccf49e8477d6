/* The handler of each operation: one table for a server with weights of its own, one for a server
 * in front of a fleet. Both are complete, or the program does not compile. */
#ifndef BATON_SERVER_OPERATIONS_H
#define BATON_SERVER_OPERATIONS_H

#include "base/err.h"
#include "control/lifecycle.h"
#include "handlers/operation.h"
#include "handlers/route.h"
#include "http/http_request.h"

#include <stdbool.h>

struct app;

/* Owns one reference of x. Returns 0 if it has answered or another thread will; -1 if it has not:
 * dispatch then answers with e. */
typedef int operation_handler(struct app *app, struct http_request *x, struct err *e);

/* With weights of its own. Runs on the route's executor, or as operation_is_brief() says. */
struct embedded_operation {
    operation_handler *handle;
    /* Called when a request is refused before its handler has run; NULL: not needed. Threads: any.
     * Blocks: no. */
    void (*unread)(struct app *app, const struct http_request *x, struct err *e);
};

/* In front of a fleet. */
struct fleet_operation {
    enum route_executor executor; /* if a path has several rows, that of the first */
    operation_handler *handle;
    bool passed_on; /* unchanged: its body is not read */
};

/* operation_is_embedded - which table has the row of an operation for this server? With --stage
 * those of updates and weights are of the first, all others of the second. Threads: any. */
bool operation_is_embedded(const struct app *app, enum operation op);

/* operation_embedded, operation_fleet - the row of an operation. Threads: any. */
const struct embedded_operation *operation_embedded(enum operation op);
const struct fleet_operation *operation_fleet(enum operation op);

/* operation_is_brief - does an embedded operation only read its body and take short locks? If the
 * body is short it runs on the event loop. Threads: any. */
bool operation_is_brief(enum operation op);

/* operation_call - the call that it is for the life cycle: second column in handlers/operation.h.
 * Threads: any. */
enum lifecycle_call operation_call(enum operation op);

/* fleet_not_answered - the handler of operations that need weights or an engine of this server.
 * Errors: ERR_HAS_UPSTREAMS. */
int fleet_not_answered(struct app *app, struct http_request *x, struct err *e);

#endif
