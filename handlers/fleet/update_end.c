/* The routes that finish or abort an update in front of upstream engines, describe it, or extend
 * its lease. */
#include "handlers/fleet/update.h"

#include "fleet/api/api_json.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"

enum { REASON_MAX = 200 };

/* Also verifies it without the end. */
int handle_fleet_update_finish(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    const struct route *route = x->route;
    bool commit = route->operation == OPERATION_UPDATE_FINISH;
    struct fleet_session *s;
    const struct member *rows = commit ? update_finish_members : update_verify_members;
    struct update_end_request r = {.label = ""};
    struct api_object native = {0};
    json_auto_t *proof = NULL;
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&r, route->session == SESSION_NAMED ? rows : update_end_rows, body.json, "",
                    e) != 0 ||
        (route->session == SESSION_NAMED
             ? fleet_find_update(app->fleet->control, r.update_id, &s, e)
             : fleet_update_find_open(app, &s, e)) != 0)
        return -1;
    proof = r.checksums != NULL ? json_pack("{s:O}", "checksums", r.checksums) : json_object();
    native.json = proof;
    rc = proof != NULL ? fleet_finish_update(app->fleet->control, s, r.label, &native, commit, e)
                       : fleet_update_no_memory(e);
    api_object_fini(&native);
    return fleet_update_answer(app, x, s, rc, e);
}

/* One that failed to start is not kept. */
static int find_to_abort(struct app *app, const char *id, struct fleet_session **out, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_session *ended;
    int rc;

    if (fleet_abort_start(fc, id, &ended, e) != 0)
        return -1;
    rc = fleet_find_update(fc, id, out, e);
    if (rc == 0 || ended == NULL) {
        fleet_unref(fc, ended);
        return rc;
    }
    err_clear(e);
    *out = ended;
    return 0;
}

static int abort_fleet_update(struct app *app, struct http_request *x, struct fleet_session *s,
                              const char *reason, struct err *e)
{
    struct err why = {0};

    if (!fleet_update_was_refused(app->fleet->control, s, &why))
        (void)err_set(&why, ERR_CONFLICT, "", "%.*s", REASON_MAX, reason);
    return fleet_update_answer(app, x, s, fleet_abort_update(app->fleet->control, s, &why, e), e);
}

int handle_fleet_update_abort(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct update_end_request r = {0};
    struct fleet_session *s;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&r, update_abort_members, body.json, "", e) != 0 ||
        find_to_abort(app, r.update_id, &s, e) != 0)
        return -1;
    return abort_fleet_update(app, x, s, r.reason, e);
}

int handle_fleet_update_delete(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_session *s;

    if (find_to_abort(app, x->path_arg, &s, e) != 0)
        return -1;
    return abort_fleet_update(app, x, s, "aborted by DELETE", e);
}

int handle_fleet_update_get(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_session *s;

    if (fleet_find_update(app->fleet->control, x->path_arg, &s, e) != 0)
        return -1;
    return fleet_update_answer(app, x, s, 0, e);
}

int handle_fleet_update_renew(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct update_end_request r = {0};
    struct fleet_session *s;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&r, update_renew_members, body.json, "", e) != 0 ||
        fleet_find_update(app->fleet->control, r.update_id, &s, e) != 0)
        return -1;
    return fleet_update_answer(app, x, s, fleet_renew_update(app->fleet->control, s, r.lease_s, e),
                               e);
}
