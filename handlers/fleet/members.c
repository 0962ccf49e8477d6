/* Engines that join or leave the fleet, or are looked at again, by a request. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/fleet_root.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

/* @body  out, too */
static int parse(struct upstream_request *out, struct api_object *body,
                 const struct http_request *x, struct err *e)
{
    if (fleet_body_parse(body, x, e) != 0)
        return -1;
    return member_read(out, upstream_members, body->json, "", e);
}

/* It gets requests only after a probe, and by then it is known which adapters it lacks. */
int handle_fleet_upstream_add(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct upstream_request req = {0};
    struct upstream *it;

    if (parse(&req, &body, x, e) != 0 ||
        upstreams_add(app->fleet->upstreams, req.upstream, &it, e) != 0)
        return -1;
    fleet_control_watch(app->fleet->control);
    reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_upstream_remove(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct upstream_request req = {0};
    struct upstream *it;

    if (parse(&req, &body, x, e) != 0 ||
        upstreams_remove(app->fleet->upstreams, req.upstream, &it, e) != 0)
        return -1;
    reply_json(x, 200, fleet_removed_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_resync(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct upstream *it = NULL;
    struct upstream_request req = {0};
    int rc;

    if (parse(&req, &body, x, e) != 0)
        return -1;
    rc = fleet_resync_one(app->fleet->control, x, req.upstream, &it, e);
    if (rc == 0)
        reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it); /* which a refused resync has too */
    return rc;
}
