/* Requests that end an auto-commit update, or give the served weights another version. With --stage
 * the upstreams get the name first, then this server's own copy: one that does not get it is out of
 * step, and is repaired with the new name. */
#include "fleet/fleet_control.h"
#include "fleet/fleet_label.h"
#include "fleet/fleet_locks.h"
#include "fleet/handoff/handoff.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/update_members.h"
#include "weights/store/store.h"

#include <stdio.h>
#include <stdlib.h>

int handle_fleet_commit_open(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_session *s = NULL;
    int rc = fleet_commit_open_update(app->fleet->control, "", &s, e);

    if (rc != 0)
        reply_error(x, e, s != NULL ? fleet_session_details(app, s) : NULL);
    else
        reply_json(x, 200,
                   json_pack("{s:b, s:o, s:o}", "committed", s != NULL, "weight_version",
                             s != NULL ? json_string(s->label) : json_null(), "serial",
                             s != NULL ? json_integer((json_int_t)s->serial) : json_null()));
    fleet_unref(app->fleet->control, s);
    return 0;
}

/* A version that this server keeps for its upstreams. */
struct staged_version {
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
};

/* The upstreams have to serve it: else the name would be another version's there. */
static int read_staged(struct staged_version *out, struct app *app, uint64_t if_serial,
                       struct err *e)
{
    const struct version *v;
    struct handoff_info info;

    if (store_pin(app->weights->store, &v, e) != 0)
        return -1;
    out->serial = v->serial;
    (void)snprintf(out->label, sizeof out->label, "%s", v->label);
    store_unpin(app->weights->store, v);
    handoff_info_get(app->fleet->handoff, &info);
    if (if_serial != 0 && if_serial != out->serial)
        return err_set(e, ERR_PRECONDITION, "/if_serial", "serial %llu is served, not %llu",
                       (unsigned long long)out->serial, (unsigned long long)if_serial);
    if (info.done != out->serial)
        return err_set(e, ERR_CONFLICT, "",
                       "version '%.128s' is not handed over to the upstreams yet: try again when "
                       "handed_serial of the status is %llu",
                       out->label, (unsigned long long)out->serial);
    return 0;
}

/* The upstreams have the name. If it cannot be recorded here, they get the old one again: an
 * upstream is repaired with the name that the version has here. */
static int label_staged(struct app *app, const struct staged_version *was, const char *label,
                        struct err *e)
{
    struct fleet_result *results;
    struct err ignored = {0};
    uint64_t serial;
    size_t n;

    if (store_set_label(app->weights->store, label, was->serial, &serial, e) == 0)
        return 0;
    (void)fleet_label_all(app->fleet->control, was->label, 0, &results, &n, &serial, &ignored);
    fleet_results_free(results, n);
    return -1;
}

static int label_all(struct app *app, struct http_request *x, const struct label_req *req,
                     struct err *e)
{
    bool staged = app->fleet->handoff != NULL;
    struct staged_version was = {0};
    struct fleet_result *results;
    struct err ignored = {0};
    uint64_t serial = 0;
    size_t n;
    int rc;

    if (staged && read_staged(&was, app, req->if_serial, e) != 0)
        return -1;
    rc = fleet_label_all(app->fleet->control, req->label, staged ? 0 : req->if_serial, &results, &n,
                         &serial, e);
    if (results == NULL)
        return -1;
    if (staged && serial > 0 && label_staged(app, &was, req->label, rc == 0 ? e : &ignored) != 0)
        rc = -1;
    if (staged)
        serial = was.serial;
    if (rc == 0)
        fleet_reply(
            app, x,
            json_pack("{s:s, s:I}", "weight_version", req->label, "serial", (json_int_t)serial),
            results, n);
    else
        fleet_reply_error(app, x, e, results, n);
    fleet_results_free(results, n);
    return 0;
}

/* Where no engine counts tensors, naming the version means that all tensors were sent. */
static bool label_commits_open(struct app *app)
{
    struct fleet_session *s = fleet_open_session(app->fleet->control);
    bool ends = s != NULL && s->auto_commit && fleet_session_overwrites(s);

    fleet_unref(app->fleet->control, s);
    return ends;
}

static int commit_open(struct app *app, struct http_request *x, const char *label, struct err *e)
{
    struct fleet_session *s = NULL;
    int rc = fleet_commit_open_update(app->fleet->control, label, &s, e);

    if (rc != 0 || s == NULL)
        reply_error(x, e, s != NULL ? fleet_session_details(app, s) : NULL);
    else
        reply_json(
            x, 200,
            json_pack("{s:s, s:I}", "weight_version", s->label, "serial", (json_int_t)s->serial));
    fleet_unref(app->fleet->control, s);
    return 0;
}

static int label_with_body(struct app *app, struct http_request *x, const json_t *body,
                           struct err *e)
{
    struct label_req req = {0};
    int rc;

    if (label_parse(&req, body, e) != 0)
        return -1;
    if (label_commits_open(app))
        return commit_open(app, x, req.label, e);
    rc = app->fleet->handoff != NULL /* it is waited for */
             ? fleet_op_lock(app->fleet->control, x, "another name", e)
             : fleet_step_lock(app->fleet->control, x, "another name", e);
    if (rc != 0)
        return -1;
    rc = fleet_check_no_update(app->fleet->control, true, e);
    if (rc == 0 && req.abort_requests)
        fleet_abort_all_requests(app->fleet->control);
    if (rc == 0)
        rc = label_all(app, x, &req, e);
    fleet_op_unlock(app->fleet->control);
    return rc;
}

int handle_fleet_weights_label(struct app *app, struct http_request *x, struct err *e)
{
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = label_with_body(app, x, body, e);
    json_decref(body);
    return rc;
}
