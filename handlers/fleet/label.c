/* Requests that end an auto-commit update, or give the served weights another version. With --stage
 * the name is recorded here first, where a commit may come in between and refuse it, and then given
 * to the upstreams: one that does not get it is out of step, and is repaired with it. */
#include "fleet/api/api_json.h"
#include "fleet/ask/fleet_label.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/handoff/handoff.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/update_members.h"
#include "weights/store/store.h"

/* Another name for the version that this server keeps for its upstreams. */
struct staged_label {
    struct app *app;
    const struct label_req *req;
    uint64_t serial; /* of the version */
};

/* The upstreams have to serve it: else the name would be another version's there. */
static int read_staged(struct staged_label *l, struct err *e)
{
    const struct version *v;
    struct handoff_info info;
    int rc = 0;

    if (store_pin(l->app->weights->store, &v, e) != 0)
        return -1;
    l->serial = v->serial;
    handoff_info_get(l->app->fleet->handoff, &info);
    if (l->req->if_serial != 0 && l->req->if_serial != v->serial)
        rc = err_set(e, ERR_PRECONDITION, "/if_serial", "serial %llu is served, not %llu",
                     (unsigned long long)v->serial, (unsigned long long)l->req->if_serial);
    else if (info.done != v->serial)
        rc = err_set(e, ERR_CONFLICT, "",
                     "version '%.128s' is not handed over to the upstreams yet: try again when "
                     "handed_serial of the status is %llu",
                     v->label, (unsigned long long)v->serial);
    store_unpin(l->app->weights->store, v);
    return rc;
}

/* Meanwhile another version may have been committed. It cannot be handed over before this ends. */
static int record_staged(void *arg, struct err *e)
{
    struct staged_label *l = arg;
    uint64_t serial;

    while (read_staged(l, e) == 0) {
        if (store_set_label(l->app->weights->store, l->req->label, l->serial, &serial, e) == 0)
            return 0;
        if (e->code != ERR_PRECONDITION || l->req->if_serial != 0)
            return -1;
        err_clear(e);
    }
    return -1;
}

/* An upstream did not take a name that is recorded here. */
static void explain_recorded(const char *label, struct err *e)
{
    struct err why = *e;

    err_clear(e);
    (void)err_set(e, err_http_status(why.code) < 500 ? ERR_UPSTREAM : why.code, "",
                  "'%.100s' is the name of the version here now, and an upstream that did not take "
                  "it is repaired with it: %.300s",
                  label, why.msg);
}

static int label_all(struct app *app, const struct label_req *req, struct fleet_results *results,
                     uint64_t *serial, struct err *e)
{
    struct staged_label l = {.app = app, .req = req};
    bool staged = app->fleet->handoff != NULL;
    struct fleet_label_request all = {.label = req->label,
                                      .if_serial = staged ? 0 : req->if_serial,
                                      .abort_requests = req->abort_requests,
                                      .record = staged ? record_staged : NULL,
                                      .arg = &l};
    int rc;

    if (staged && read_staged(&l, e) != 0)
        return -1;
    rc = fleet_label_all(app->fleet->control, &all, results, serial, e);
    if (staged && *serial > 0) {
        *serial = l.serial;
        if (rc != 0)
            explain_recorded(req->label, e);
    }
    return rc;
}

/* @serial  of the version that has the name now; 0: none has */
static int label_locked(struct app *app, struct http_request *x, const struct label_req *req,
                        struct fleet_results *results, uint64_t *serial, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    int rc = app->fleet->handoff != NULL /* it is waited for */
                 ? fleet_op_lock(fc, x, "another name", e)
                 : fleet_step_lock(fc, x, "another name", e);

    *serial = 0;
    if (rc != 0)
        return -1;
    rc = fleet_check_no_update(fc, true, e);
    if (rc == 0)
        rc = label_all(app, req, results, serial, e);
    fleet_op_unlock(fc);
    return rc;
}

void fleet_rename(struct app *app, struct http_request *x, const struct label_req *req,
                  json_t *reply, void (*named)(void *arg, bool recorded), void *arg)
{
    fleet_results_auto results = {0};
    struct err e = {0};
    uint64_t serial;

    (void)label_locked(app, x, req, &results, &serial, &e);
    named(arg, serial != 0);
    if (fleet_reply(app, x, reply, &results, &e) != 0)
        reply_error(x, &e, NULL);
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

int handle_fleet_weights_label(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    fleet_results_auto results = {0};
    struct label_req req = {0};
    uint64_t serial;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&req, weights_label_members, body.json, "", e) != 0)
        return -1;
    if (label_commits_open(app))
        return commit_open(app, x, req.label, e);
    if (label_locked(app, x, &req, &results, &serial, e) != 0 && results.list == NULL)
        return -1;
    return fleet_reply(
        app, x, json_pack("{s:s, s:I}", "weight_version", req.label, "serial", (json_int_t)serial),
        &results, e);
}
