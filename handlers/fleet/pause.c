/* Pause and resume of the whole fleet, and its caches.
 *
 * A resume does not wait for a pause that still waits for running requests: a trainer that gave up
 * on the pause must be able to resume. The pause then undoes itself. */
#include "fleet/want/fleet_pause.h"

#include "base/clock.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/proof/fleet_proof.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* pause */

static json_t *pause_json(struct fleet_control *fc, const struct pause *p)
{
    struct pause_controller_info info = {.pause = *p};
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    info.acknowledged = pause_is_held(&info.pause) && !pause_is_pending(&info.pause);
    info.n_running = stats.n_running[FLEET_GENERATE];
    info.n_waiting = stats.n_waiting[FLEET_GENERATE];
    return pause_controller_pause_json(&info);
}

json_t *fleet_pause_json(const struct app *app)
{
    struct fleet_control *fc = app->fleet->control;
    struct pause now;

    fleet_get_pause(fc, &now);
    return now.state != PAUSE_OFF ? pause_json(fc, &now) : json_null();
}

/* Adds each engine's result. Steals reply. */
void fleet_reply(struct app *app, struct http_request *x, json_t *reply,
                 const struct fleet_result *result, size_t n)
{
    if (reply != NULL &&
        json_object_set_new(reply, "upstreams", fleet_results_json(app, result, n)) != 0) {
        json_decref(reply);
        reply = NULL;
    }
    reply_json(x, 200, reply);
}

void fleet_reply_error(struct app *app, struct http_request *x, const struct err *e,
                       const struct fleet_result *results, size_t n)
{
    reply_error(x, e, json_pack("{s:o}", "upstreams", fleet_results_json(app, results, n)));
}

static int pause_with_lock(struct app *app, struct http_request *x, const struct pause_request *req,
                           const json_t *body, struct err *e)
{
    struct api_object native = {.json = body};
    struct fleet_control *fc = app->fleet->control;
    struct fleet_result *results;
    struct pause now;
    size_t n;
    uint64_t deadline_us = x->began_us + (uint64_t)req->timeout_s * 1000000;
    int rc = fleet_pause_all(fc, req, deadline_us, &native, &results, &n, e);

    api_object_fini(&native);
    if (results == NULL)
        return -1;
    fleet_get_pause(fc, &now);
    if (rc == 0)
        fleet_reply(app, x, pause_json(fc, &now), results, n);
    else
        fleet_reply_error(app, x, e, results, n);
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_pause(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_request req = {0};
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = pause_parse(&req, x, body, e);
    if (rc == 0)
        rc = fleet_trainer_pause_lock(app->fleet->control, x, (uint64_t)req.timeout_s * 1000000, e);
    if (rc == 0) {
        fleet_begin_push(app->fleet->control);
        rc = pause_with_lock(app, x, &req, body, e);
        fleet_pause_unlock(app->fleet->control);
    }
    json_decref(body);
    return rc;
}

/* resume */

int handle_fleet_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_result *results = NULL;
    struct pause now;
    bool was;
    size_t n;

    fleet_begin_push(fc);
    if (fleet_resume_all(fc, false, &results, &n, &was, e) != 0)
        return -1;
    fleet_get_pause(fc, &now);
    if (fleet_results_done(results, n, e))
        fleet_reply(app, x,
                    json_pack("{s:b, s:b, s:I}", "paused", 0, "was_paused", (int)was, "epoch",
                              (json_int_t)now.epoch),
                    results, n);
    else
        fleet_reply_error(app, x, e, results, n);
    fleet_results_free(results, n);
    return 0;
}

/* Generation is resumed also if the update could not be committed; the reply says why it could
 * not. */
int handle_fleet_commit_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_session *s = NULL;
    struct fleet_result *results = NULL;
    struct err why = {0}, ignored = {0};
    size_t n = 0;
    bool was;

    if (fleet_commit_open_update(app->fleet->control, "", &s, &why) == 0) {
        fleet_unref(app->fleet->control, s);
        return handle_fleet_resume(app, x, e);
    }
    fleet_begin_push(app->fleet->control);
    if (fleet_resume_all(app->fleet->control, false, &results, &n, &was, &ignored) == 0)
        fleet_results_free(results, n);
    (void)err_set(e, why.code, why.field,
                  "generation was resumed, but the open update could not be committed on all "
                  "upstreams: %.350s",
                  why.msg);
    reply_error(x, e, s != NULL ? fleet_session_details(app, s) : NULL);
    fleet_unref(app->fleet->control, s);
    return 0;
}

/* caches */

/* The same request to every engine, for operations that no engine can be out of step with. */
static int request_all(struct app *app, struct http_request *x, enum api_op op,
                       const struct api_args *args, const char *counted, json_t *reply,
                       struct err *e)
{
    struct fleet_result *results = NULL;
    size_t n = 0;

    if (reply == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    if (fleet_request_all(app->fleet->control, op, args, FLEET_CACHE_US, &results, &n, e) != 0) {
        json_decref(reply);
        return -1;
    }
    if (!fleet_results_done(results, n, e)) {
        json_decref(reply);
        fleet_reply_error(app, x, e, results, n);
    } else {
        if (counted != NULL)
            (void)json_object_set_new(
                reply, counted, json_integer((json_int_t)fleet_results_sum(results, n, counted)));
        fleet_reply(app, x, reply, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_reset_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct api_object native = {0};
    struct api_args args = {.native = &native};
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    native.json = body;
    args.running = json_is_true(json_object_get(body, "running"));
    args.external = json_is_true(json_object_get(body, "external"));
    if (args.running) {
        fleet_proof_hold(fc, NULL);
        fleet_proof_await(fc);
    }
    rc = request_all(app, x, API_RESET_PREFIX_CACHE, &args, "entries_dropped",
                     json_pack("{s:b, s:n, s:i, s:s}", "reset", 1, "prefix_cache",
                               "entries_dropped", 0, "message",
                               "every upstream was asked to reset its prefix cache"),
                     e);
    if (args.running)
        fleet_proof_release(fc, NULL);
    api_object_fini(&native);
    json_decref(body);
    return rc;
}

int handle_fleet_flush_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_stats stats;
    size_t n_busy;

    fleet_stats(fleet_of(fc), &stats);
    n_busy = stats.n_running[FLEET_GENERATE] + stats.n_waiting[FLEET_GENERATE];
    if (!fleet_is_paused(fc) && n_busy > 0)
        return err_set(e, ERR_CONFLICT, "",
                       "%zu generations run or wait; pause first, or try again when they have "
                       "ended",
                       n_busy);
    return handle_fleet_reset_cache(app, x, e);
}
