/* Requests that are passed on to an engine unchanged. */
#include "fleet/proxy/proxy.h"

#include "control/metrics.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/aborted.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"

static void error_reply(const struct http_request *x, const struct err *e, struct http_reply *out)
{
    if (e->code != ERR_ABORTED || !aborted_reply_make(x, out))
        reply_error_make(x->route, e, NULL, out);
}

static void count_token_age(const struct http_request *x, uint64_t serial)
{
    const struct app *app = x->app;

    metrics_token_age(app->metrics, serial);
}

int handle_fleet_proxy(struct app *app, struct http_request *x, struct err *e)
{
    static const struct proxy_hooks hooks = {.error_reply = error_reply, .made = count_token_age};
    const struct route *route = x->route;

    (void)app;
    return proxy_forward(x, route->executor == EXECUTOR_GENERATE ? FLEET_GENERATE : FLEET_TEXT,
                         &hooks, e);
}

/* Which engine gets the request is not known before it has a permit, so all must have the route. */
int handle_fleet_rollouts(struct app *app, struct http_request *x, struct err *e)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);

    for (size_t i = 0; i < all->n; i++)
        if (!upstream_is_removed(all->items[i]) && !upstream_caps_of(all->items[i])->makes_rollouts)
            return err_set(e, ERR_HAS_UPSTREAMS, "",
                           "%.200s is of kind %s and makes no batches: generate each prompt by "
                           "itself, and put the replies together by assemble_rollouts() of the "
                           "Python client",
                           upstream_name(all->items[i]),
                           upstream_kind_name(upstream_kind(all->items[i])));
    return handle_fleet_proxy(app, x, e);
}
