/* Requests that end an auto-commit update, or give the served weights another version. */
#include "fleet/fleet_control.h"
#include "fleet/fleet_locks.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/update_members.h"

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

/* The engines that serve the fleet's version; only they can get its new name. Before the first
 * update that is not known of an engine that is not ready. */
static size_t to_name(struct app *app, const json_t *body, struct fleet_target *targets)
{
    struct fleet_target alive[FLEET_MAX];
    size_t n = fleet_reachable(app->fleet->control, body, alive), n_targets = 0;
    struct upstream_info info;

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(app->fleet->control), alive[i].upstream, &info);
        if (info.synced && !info.fenced && (info.serial > 0 || info.report.not_ready[0] == '\0'))
            targets[n_targets++] = alive[i];
    }
    return n_targets;
}

static int check_serial(struct app *app, const struct label_req *req, struct err *e)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(app->fleet->control), &stats);
    if (req->if_serial == 0 || req->if_serial == stats.serial)
        return 0;
    return err_set(e, ERR_CONFLICT, "/if_serial", "serial %llu is served, not %llu",
                   (unsigned long long)stats.serial, (unsigned long long)req->if_serial);
}

static int check_any(struct app *app, size_t n, struct err *e)
{
    if (n > 0)
        return 0;
    if (fleet_version_undecided(fleet_of(app->fleet->control), e))
        return -1;
    return err_set(e, ERR_UNSYNCED, "", "no upstream serves a version that could be named");
}

static int name_all(struct app *app, struct http_request *x, const struct label_req *req,
                    struct err *e)
{
    json_t *body = json_pack("{s:s}", "weight_version", req->label);
    bool named[FLEET_MAX] = {false};
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    size_t n = to_name(app, body, targets), n_named = 0;
    uint64_t serial;

    if (body == NULL || check_any(app, n, e) != 0 || check_serial(app, req, e) != 0) {
        json_decref(body);
        return e->code != ERR_NONE ? -1 : err_set(e, ERR_NO_MEMORY, "", "no memory for a name");
    }
    fleet_set_updating(fleet_of(app->fleet->control), true);
    if (fleet_request(app->fleet->control, API_SET_VERSION, targets, n,
                      fleet_step_us(app->fleet->control), &results, e) != 0) {
        fleet_set_updating(fleet_of(app->fleet->control), false);
        json_decref(body);
        return -1;
    }
    json_decref(body);
    for (size_t i = 0; i < n; i++) {
        named[results[i].upstream] = result_ok(&results[i]);
        n_named += named[results[i].upstream];
    }
    serial = n_named > 0 ? fleet_set_label(fleet_of(app->fleet->control), req->label, named) : 0;
    if (n_named == 0)
        fleet_set_updating(fleet_of(app->fleet->control), false);
    if (fleet_results_ok(results, n, e)) {
        fleet_reply(
            app, x,
            json_pack("{s:s, s:I}", "weight_version", req->label, "serial", (json_int_t)serial),
            results, n);
    } else {
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

static void abort_all(struct app *app)
{
    json_t *all = json_pack("{s:b}", "all", 1);
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    size_t n = fleet_reachable(app->fleet->control, all, targets);

    if (all != NULL && fleet_request(app->fleet->control, API_ABORT_REQUESTS, targets, n,
                                     FLEET_CACHE_US, &results, &ignored) == 0)
        fleet_results_free(results, n);
    json_decref(all);
}

/* Where no engine counts tensors, naming the version means that all tensors were sent. */
static bool ends_open(struct app *app)
{
    struct fleet_session *s = fleet_open_session(app->fleet->control);
    bool ends = s != NULL && s->auto_commit && fleet_session_overwrites(s);

    fleet_unref(app->fleet->control, s);
    return ends;
}

static int end_open(struct app *app, struct http_request *x, const char *label, struct err *e)
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

static int label_parsed(struct app *app, struct http_request *x, const json_t *body, struct err *e)
{
    struct label_req req = {0};
    int rc;

    if (label_parse(&req, body, e) != 0)
        return -1;
    if (ends_open(app))
        return end_open(app, x, req.label, e);
    if (fleet_step_lock(app->fleet->control, x, "another name", e) != 0)
        return -1;
    rc = fleet_check_no_update(app->fleet->control, true, e);
    if (rc == 0 && req.abort_requests)
        abort_all(app);
    if (rc == 0)
        rc = name_all(app, x, &req, e);
    fleet_op_unlock(app->fleet->control);
    return rc;
}

int handle_fleet_weights_label(struct app *app, struct http_request *x, struct err *e)
{
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = label_parsed(app, x, body, e);
    json_decref(body);
    return rc;
}
