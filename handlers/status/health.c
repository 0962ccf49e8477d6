/* GET of liveness, readiness and version (handlers/app_health.c). */
#include "control/life.h"
#include "fleet/proof/fleet_proof.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

#include <string.h>

int handle_live(struct app *app, struct http_request *x, struct err *e)
{
    if (!app_live(app, e))
        return -1;
    if (strcmp(x->path, "/health") == 0 || strcmp(x->path, "/ping") == 0)
        reply_empty(x, 200); /* as vLLM: its pollers read only the status */
    else
        reply_json(x, 200, json_pack("{s:b}", "live", 1));
    return 0;
}

int ready_is_for_control(bool *out, const struct http_request *x, struct err *e)
{
    struct ready_request req = {0};
    int rc = member_read_query(&req, ready_query, x, e);

    *out = req.what == 1;
    return rc;
}

/* A fleet may serve weights that differ, of which nobody knows the right ones. */
static json_t *ready_json(const struct app *app)
{
    struct err differ = {0};
    bool warns = app->fleet != NULL && fleet_proof_warning(app->fleet->control, &differ);

    return json_pack("{s:b, s:s?}", "ready", 1, "warning", warns ? differ.msg : NULL);
}

int handle_ready(struct app *app, struct http_request *x, struct err *e)
{
    struct err why = {0};
    bool control;

    if (ready_is_for_control(&control, x, e) != 0)
        return -1;
    if (control ? app_control_ready(app, &why) : app_ready(app, &why)) {
        reply_json(x, 200, ready_json(app));
        return 0;
    }
    http_request_note_error(x, &why);
    reply_json(x, 503,
               json_pack("{s:b, s:s, s:s}", "ready", 0, "reason", err_wire_name(why.code),
                         "message", why.msg));
    return 0;
}

int handle_version(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200,
               json_pack("{s:s, s:s}", "version", BATON_VERSION, "boot_id", app->life->boot_id));
    return 0;
}
