/* Engines that join or leave the fleet, or are looked at again, by a request. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/fleet_root.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "handlers/reply.h"


/* @body  out, too */
static int parse(const char **out, struct api_object *body, const struct http_request *x,
                 struct err *e)
{
    if (fleet_body_parse(body, x, e) != 0 || body_required(body->json, "", "upstream", e) != 0)
        return -1;
    return body_str(out, body->json, "", "upstream", e);
}

/* It gets requests only after a probe, and by then it is known which adapters it lacks. */
int handle_fleet_upstream_add(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    const char *entry = NULL;
    struct upstream *it;

    if (parse(&entry, &body, x, e) != 0 || upstreams_add(app->fleet->upstreams, entry, &it, e) != 0)
        return -1;
    fleet_control_watch(app->fleet->control);
    reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_upstream_remove(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    const char *name = NULL;
    struct upstream *it;

    if (parse(&name, &body, x, e) != 0 ||
        upstreams_remove(app->fleet->upstreams, name, &it, e) != 0)
        return -1;
    reply_json(x, 200, fleet_removed_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_resync(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct upstream *it = NULL;
    const char *name = NULL;
    int rc;

    if (parse(&name, &body, x, e) != 0)
        return -1;
    rc = fleet_resync_one(app->fleet->control, x, name, &it, e);
    if (rc == 0)
        reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it); /* which a refused resync has too */
    return rc;
}
