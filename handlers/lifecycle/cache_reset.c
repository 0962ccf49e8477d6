/* reset_cache: no later request reads KV that is there now; on request, generations that run or are
 * frozen drop theirs too. */
#include "control/engine.h"
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

int handle_reset_cache_of(struct app *app, struct http_request *x, bool running, struct err *e)
{
    struct reset_cache_request req = {0}; /* only upstreams may have an external cache */
    json_auto_t *body = NULL;
    uint64_t n = 0;

    if (pause_controller_allows(app->pause_controller, CALL_RESET_CACHE, e) != 0 ||
        body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, reset_cache_members, body, "", e) != 0)
        return -1;
    if (app->generate->engine != NULL)
        n = app->generate->engine->ops->kv_forget(app->generate->engine, running || req.running);
    reply_json(x, 200,
               json_pack("{s:b, s:n, s:I, s:s}", "reset", 1, "prefix_cache", "entries_dropped",
                         (json_int_t)n, "message",
                         "no later request reads the KV of an earlier one; entries are tokens"));
    return 0;
}

int handle_reset_cache(struct app *app, struct http_request *x, struct err *e)
{
    return handle_reset_cache_of(app, x, false, e);
}
