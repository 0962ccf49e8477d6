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
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

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

int handle_fleet_pause(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct fleet_control *fc = app->fleet->control;
    struct pause_request req = {0};
    fleet_results_auto results = {0};
    struct pause now;
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 || pause_parse(&req, x, body.json, e) != 0 ||
        fleet_trainer_pause_lock(fc, x, (uint64_t)req.timeout_s * 1000000, e) != 0)
        return -1;
    fleet_begin_push(fc);
    (void)fleet_pause_all(fc, &req, x->began_us + (uint64_t)req.timeout_s * 1000000, &body,
                          &results, e);
    fleet_get_pause(fc, &now);
    rc = fleet_reply(app, x, pause_json(fc, &now), &results, e);
    fleet_pause_unlock(fc);
    return rc;
}

/* resume */

int handle_fleet_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    fleet_results_auto results = {0};
    struct pause now;
    bool was;

    fleet_begin_push(fc);
    if (fleet_resume_all(fc, false, &results, &was, e) != 0)
        return -1;
    fleet_get_pause(fc, &now);
    (void)fleet_results_done(&results, e);
    return fleet_reply(app, x,
                       json_pack("{s:b, s:b, s:I}", "paused", 0, "was_paused", (int)was, "epoch",
                                 (json_int_t)now.epoch),
                       &results, e);
}

/* Generation is resumed also if the update could not be committed; the reply says why it could
 * not. */
int handle_fleet_commit_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_session *s = NULL;
    fleet_results_auto results = {0};
    struct err why = {0}, ignored = {0};
    bool was;

    if (fleet_commit_open_update(app->fleet->control, "", &s, &why) == 0) {
        fleet_unref(app->fleet->control, s);
        return handle_fleet_resume(app, x, e);
    }
    fleet_begin_push(app->fleet->control);
    (void)fleet_resume_all(app->fleet->control, false, &results, &was, &ignored);
    (void)err_set(e, why.code, why.field,
                  "generation was resumed, but the open update could not be committed on all "
                  "upstreams: %.350s",
                  why.msg);
    reply_error(x, e, s != NULL ? fleet_session_details(app, s) : NULL);
    fleet_unref(app->fleet->control, s);
    return 0;
}

/* caches */

int handle_fleet_reset_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    fleet_body_auto body = {0};
    struct reset_cache_request req = {0};
    struct api_args args = {.native = &body};
    fleet_results_auto results = {0};
    uint64_t n_dropped = 0;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&req, reset_cache_members, body.json, "", e) != 0)
        return -1;
    args.running = req.running;
    args.external = req.external;
    if (args.running) {
        fleet_proof_hold(fc, NULL);
        fleet_proof_await(fc);
    }
    if (fleet_request_all(fc, API_RESET_PREFIX_CACHE, &args, FLEET_CACHE_US, &results, e) == 0 &&
        fleet_results_done(&results, e))
        n_dropped = fleet_results_sum(&results, "entries_dropped");
    if (args.running)
        fleet_proof_release(fc, NULL);
    return fleet_reply(app, x,
                       json_pack("{s:b, s:n, s:I, s:s}", "reset", 1, "prefix_cache",
                                 "entries_dropped", (json_int_t)n_dropped, "message",
                                 "every upstream was asked to reset its prefix cache"),
                       &results, e);
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
