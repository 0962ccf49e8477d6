/* The routes of sleep and wake in front of upstream engines. */
#include "fleet/api/api_json.h"
#include "fleet/ask/fleet_sleep.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/update.h"
#include "handlers/pause_controller_json.h"
#include "handlers/rows/life_request.h"

static json_t *state_json(struct fleet_control *fc)
{
    struct lifecycle_state now = {.weights = WEIGHTS_SERVED};
    struct fleet_sleep s;

    fleet_get_sleep(fc, &s);
    if (s.weights)
        now.weights = s.level == 2 ? WEIGHTS_DROPPED : WEIGHTS_ASLEEP;
    now.kv_released = s.kv;
    return member_write(&now, sleep_reply);
}

json_t *fleet_sleep_json(const struct app *app)
{
    return state_json(app->fleet->control);
}

int handle_fleet_sleep(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct fleet_control *fc = app->fleet->control;
    struct sleep_request asked = {0};
    struct fleet_sleep_request req;
    fleet_results_auto results = {0};
    json_t *reply;
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 || sleep_parse(&asked, body.json, e) != 0 ||
        fleet_op_lock(fc, x, "a sleep", e) != 0)
        return -1;
    req = (struct fleet_sleep_request){
        .level = (int)asked.level, .weights = asked.what.weights, .kv = asked.what.kv};
    fleet_begin_push(fc);
    (void)fleet_sleep_all(fc, &req, &body, &results, e);
    reply = state_json(fc);
    (void)json_object_set_new(reply, "level", json_integer(req.level));
    rc = fleet_reply(app, x, reply, &results, e);
    fleet_op_unlock(fc);
    return rc;
}

/* A trainer that wakes the KV cache is about to generate, so an open auto-commit update is
 * complete. */
int handle_fleet_wake(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct fleet_control *fc = app->fleet->control;
    struct wake_request asked = {0};
    struct fleet_sleep_request req;
    fleet_results_auto results = {0};
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 || wake_parse(&asked, body.json, e) != 0)
        return -1;
    req = (struct fleet_sleep_request){.weights = asked.weights, .kv = asked.kv};
    if (req.kv && fleet_update_commit_open(app, e) != 0)
        return -1;
    if (fleet_op_lock(fc, x, "a wake", e) != 0)
        return -1;
    fleet_begin_push(fc);
    (void)fleet_wake_all(fc, &req, &body, &results, e);
    rc = fleet_reply(app, x, state_json(fc), &results, e);
    fleet_op_unlock(fc);
    return rc;
}
