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

const char *const upstream_members[] = {"upstream", NULL};

static int parse(const char **out, const struct api_object *body, struct err *e)
{
    return body_required(body->json, "", "upstream", e) == 0
               ? body_str(out, body->json, "", "upstream", e)
               : -1;
}

/* It gets requests only after a probe, and by then it is known which adapters it lacks. */
static int add(struct app *app, struct http_request *x, struct api_object *body, struct err *e)
{
    const char *entry = NULL;
    struct upstream *it;

    if (parse(&entry, body, e) != 0 || upstreams_add(app->fleet->upstreams, entry, &it, e) != 0)
        return -1;
    fleet_control_watch(app->fleet->control);
    reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_upstream_add(struct app *app, struct http_request *x, struct err *e)
{
    return fleet_with_body(app, x, add, e);
}

static int take_out(struct app *app, struct http_request *x, struct api_object *body, struct err *e)
{
    const char *name = NULL;
    struct upstream *it;

    if (parse(&name, body, e) != 0 || upstreams_remove(app->fleet->upstreams, name, &it, e) != 0)
        return -1;
    reply_json(x, 200, fleet_removed_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_upstream_remove(struct app *app, struct http_request *x, struct err *e)
{
    return fleet_with_body(app, x, take_out, e);
}

static int resync(struct app *app, struct http_request *x, struct api_object *body, struct err *e)
{
    struct upstream *it = NULL;
    const char *name = NULL;
    int rc = -1;

    if (parse(&name, body, e) == 0)
        rc = fleet_resync_one(app->fleet->control, x, name, &it, e);
    if (rc == 0)
        reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it); /* which a refused resync has too */
    return rc;
}

int handle_fleet_resync(struct app *app, struct http_request *x, struct err *e)
{
    return fleet_with_body(app, x, resync, e);
}
