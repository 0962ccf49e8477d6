/* Engines that join and leave the fleet by a request. */
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "fleet/want/fleet_reconcile.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/status.h"
#include "handlers/reply.h"

const char *const upstream_members[] = {"upstream", NULL};

/* @out  the member "upstream"; borrowed from *body, which the caller decrefs in any case */
static int parse(json_t **body, const char **out, struct http_request *x, struct err *e)
{
    *body = NULL;
    if (body_parse(body, x, x->route, e) != 0 || body_required(*body, "", "upstream", e) != 0)
        return -1;
    return body_str(out, *body, "", "upstream", e);
}

/* It gets requests only after a probe, and by then it is known which adapters it lacks. */
int handle_fleet_upstream_add(struct app *app, struct http_request *x, struct err *e)
{
    const char *entry = NULL;
    struct upstream *it;
    json_t *body;
    int rc = parse(&body, &entry, x, e);

    if (rc == 0)
        rc = upstreams_add(app->fleet->upstreams, entry, &it, e);
    json_decref(body);
    if (rc != 0)
        return -1;
    fleet_reconcile_start(app->fleet->control);
    reply_json(x, 200, fleet_upstream_json(app, it));
    upstream_unref(it);
    return 0;
}

int handle_fleet_upstream_remove(struct app *app, struct http_request *x, struct err *e)
{
    const char *name = NULL;
    struct upstream *it;
    json_t *body;
    int rc = parse(&body, &name, x, e);

    if (rc == 0)
        rc = upstreams_remove(app->fleet->upstreams, name, &it, e);
    json_decref(body);
    if (rc != 0)
        return -1;
    reply_json(x, 200, fleet_removed_json(app, it));
    upstream_unref(it);
    return 0;
}
