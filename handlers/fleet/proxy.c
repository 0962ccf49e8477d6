/* Requests that are passed on to an engine unchanged. */
#include "fleet/proxy/proxy.h"

#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"

static void error_reply(const struct http_request *x, const struct err *e, struct http_reply *out)
{
    reply_error_make(x->route, e, NULL, out);
}

int handle_fleet_proxy(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;

    (void)app;
    return proxy_forward(x, route->executor == EXECUTOR_GENERATE ? FLEET_GENERATE : FLEET_TEXT,
                         error_reply, e);
}
