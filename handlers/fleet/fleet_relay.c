/* What is passed on to an upstream as it came. */
#include "fleet/proxy/relay.h"

#include "handlers/fleet/fleet_handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"

static void error_reply(const struct exchange *x, const struct err *e, struct exchange_reply *out)
{
    reply_error_make(x->route, e, NULL, out);
}

int handle_relay(struct app *app, struct exchange *x, struct err *e)
{
    const struct route *route = x->route;

    (void)app;
    return relay_begin(x, route->lane == LANE_GENERATE ? FLEET_GENERATE : FLEET_TEXT, error_reply,
                       e);
}
