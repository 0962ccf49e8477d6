/* The routes of sleep and wake in front of upstream engines. */
#include "fleet/api/api_json.h"
#include "fleet/ask/fleet_sleep.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"

#include <string.h>

static int tags_parse(struct fleet_sleep_request *req, const json_t *body, struct err *e)
{
    const json_t *list = NULL;

    if (body_array(&list, body, "", "tags", e) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *tag = json_string_value(json_array_get(list, i));

        if (tag == NULL || (strcmp(tag, "weights") != 0 && strcmp(tag, "kv_cache") != 0 &&
                            strcmp(tag, "cuda_graph") != 0))
            return err_set(e, ERR_BAD_REQUEST, "/tags",
                           "'%.32s' is not one of weights, kv_cache, cuda_graph",
                           tag != NULL ? tag : "");
        req->weights = req->weights || strcmp(tag, "weights") == 0;
        req->kv = req->kv || strcmp(tag, "kv_cache") == 0;
    }
    if (json_array_size(list) == 0)
        req->weights = req->kv = true;
    return 0;
}

static json_t *state_json(struct fleet_control *fc)
{
    struct fleet_sleep s;

    fleet_get_sleep(fc, &s);
    return json_pack("{s:b, s:s, s:s}", "asleep", (int)(s.weights || s.kv), "weights",
                     !s.weights     ? "ready"
                     : s.level == 2 ? "dropped"
                                    : "asleep",
                     "kv_cache", s.kv ? "released" : "present");
}

json_t *fleet_sleep_json(const struct app *app)
{
    return state_json(app->fleet->control);
}

/* @rc  of the operation, with e set if it failed. Frees the results. */
static int sleep_reply(struct app *app, struct http_request *x, int rc, int level,
                       struct fleet_result *results, size_t n, struct err *e)
{
    json_t *reply;

    if (results == NULL)
        return -1;
    if (rc == 0) {
        reply = state_json(app->fleet->control);
        if (reply != NULL && level > 0)
            (void)json_object_set_new(reply, "level", json_integer(level));
        fleet_reply(app, x, reply, results, n);
    } else {
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_sleep(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_sleep_request req = {0};
    struct api_object native = {0};
    struct fleet_result *results;
    uint64_t level = 1;
    json_t *body;
    size_t n = 0;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    native.json = body;
    rc = body_u64(&level, body, "", "level", 1, 2, e);
    req.level = (int)level;
    if (rc == 0)
        rc = tags_parse(&req, body, e);
    if (rc == 0)
        rc = fleet_op_lock(fc, x, "a sleep", e);
    if (rc == 0) {
        fleet_begin_push(fc);
        rc = fleet_sleep_all(fc, &req, &native, &results, &n, e);
        rc = sleep_reply(app, x, rc, req.level, results, n, e);
        fleet_op_unlock(fc);
    }
    api_object_fini(&native);
    json_decref(body);
    return rc;
}

/* A trainer that wakes the KV cache is about to generate, so an open auto-commit update is
 * complete. */
int handle_fleet_wake(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_session *s = NULL;
    struct fleet_sleep_request req = {0};
    struct api_object native = {0};
    struct fleet_result *results;
    json_t *body;
    size_t n = 0;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    native.json = body;
    rc = tags_parse(&req, body, e);
    if (rc == 0 && req.kv) {
        rc = fleet_commit_open_update(fc, "", &s, e);
        fleet_unref(fc, s);
        if (rc != 0 && e->code == ERR_NOT_HANDED_OVER) { /* it is committed: they may wake */
            err_clear(e);
            rc = 0;
        }
    }
    if (rc == 0)
        rc = fleet_op_lock(fc, x, "a wake", e);
    if (rc == 0) {
        fleet_begin_push(fc);
        rc = fleet_wake_all(fc, &req, &native, &results, &n, e);
        rc = sleep_reply(app, x, rc, 0, results, n, e);
        fleet_op_unlock(fc);
    }
    api_object_fini(&native);
    json_decref(body);
    return rc;
}
