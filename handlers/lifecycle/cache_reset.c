/* reset_cache: there is no cache of ended generations; on request, also drops the KV of
 * generations that run or are frozen. */
#include "control/engine.h"
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

int handle_reset_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct reset_cache_request req = {0}; /* only upstreams may have an external cache */
    json_auto_t *body = NULL;

    if (pause_controller_allows(app->pause_controller, CALL_RESET_CACHE, e) != 0 ||
        body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, reset_cache_members, body, "", e) != 0)
        return -1;
    if (req.running && app->generate->engine != NULL)
        app->generate->engine->ops->kv_forget(app->generate->engine);
    reply_json(x, 200,
               json_pack("{s:b, s:n, s:i, s:s}", "reset", 1, "prefix_cache", "entries_dropped", 0,
                         "message", "there is no prefix cache: nothing is kept between requests"));
    return 0;
}
