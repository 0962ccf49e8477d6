/* Sleep and wake of the whole fleet. Neither can be undone everywhere (dropped weights are lost),
 * so an engine on which it failed is fenced. */
#include "fleet/fleet_control.h"
#include "fleet/fleet_locks.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"

#include <string.h>

struct sleep_req {
    uint64_t level;
    bool weights, kv;
};

static int tags_parse(struct sleep_req *req, const json_t *body, struct err *e)
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

static void fence_failed(struct app *app, const struct fleet_result *results, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!result_ok(&results[i]))
            fleet_fence(fleet_of(app->fleet->control), results[i].upstream, &results[i].why);
}

/* An engine that was down is in another state than the others when it is back, until a resync. */
static void fence_absent(struct app *app, const struct fleet_target *targets, size_t n, bool asleep)
{
    bool asked[FLEET_MAX] = {false};
    size_t n_all = upstreams_n(app->fleet->upstreams);
    struct upstream_endpoint at;

    for (size_t i = 0; i < n; i++)
        asked[targets[i].upstream] = true;
    for (size_t i = 0; i < n_all; i++) {
        upstreams_get(app->fleet->upstreams, i, &at);
        if (!asked[i] && !at.removed)
            fleet_fence_missed(fleet_of(app->fleet->control), i,
                               asleep ? FLEET_FENCE_SLEEP : FLEET_FENCE_WAKE);
    }
}

static void note_told(struct app *app, const struct fleet_result *results, size_t n, bool asleep)
{
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i]))
            fleet_note_sleep(fleet_of(app->fleet->control), results[i].upstream, asleep);
}

/* An engine that slept at level 2 has lost its weights, and cannot serve when it is woken. */
static void fence_dropped(struct app *app, const struct fleet_result *results, size_t n)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UNSYNCED, "", "its weights were dropped (sleep at level 2)");
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i]))
            fleet_fence(fleet_of(app->fleet->control), results[i].upstream, &why);
}

/* The caller owns the operation lock. If all engines refused, nothing changes. */
static int tell(struct app *app, struct http_request *x, const struct sleep_req *req,
                const json_t *body, bool asleep, struct err *e)
{
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    json_t *reply;
    size_t n, n_changed = 0;

    if (fleet_reachable_quorum(app->fleet->control, body, targets, &n, e) != 0)
        return -1;
    if (fleet_request(app->fleet->control, asleep ? API_SLEEP : API_WAKE, targets, n,
                      FLEET_SLEEP_US, &results, e) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        n_changed += results[i].outcome == FLEET_OK || results[i].outcome == FLEET_UNKNOWN;
    if (n_changed > 0) {
        fence_failed(app, results, n);
        fence_absent(app, targets, n, asleep);
        note_told(app, results, n, asleep);
        if (asleep && req->weights && req->level == 2)
            fence_dropped(app, results, n);
        fleet_set_sleep(app->fleet->control, req->weights, req->kv, asleep ? (int)req->level : 0);
    }
    reply = state_json(app->fleet->control);
    if (fleet_results_ok(results, n, e)) {
        if (reply != NULL && asleep)
            (void)fleet_json_set(reply, "level", json_integer((json_int_t)req->level));
        fleet_reply(app, x, reply, results, n);
    } else {
        json_decref(reply);
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_sleep(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct sleep_req req = {.level = 1};
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = body_u64(&req.level, body, "", "level", 1, 2, e);
    if (rc == 0)
        rc = tags_parse(&req, body, e);
    if (rc == 0)
        rc = fleet_op_lock(fc, x, "a sleep", e);
    if (rc == 0) {
        rc = fleet_check_no_update(fc, false, e);
        if (rc == 0) {
            fleet_suspend_generation_probes(fc, true);
            rc = tell(app, x, &req, body, true, e);
            fleet_suspend_generation_probes(fc, false);
        }
        fleet_op_unlock(fc);
    }
    json_decref(body);
    return rc;
}

/* A trainer that wakes the KV cache is about to generate, so an open auto-commit update is
 * complete. */
int handle_fleet_wake(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_session *s = NULL;
    struct sleep_req req = {0};
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = tags_parse(&req, body, e);
    if (rc == 0 && req.kv) {
        rc = fleet_commit_open_update(fc, "", &s, e);
        fleet_unref(fc, s);
    }
    if (rc == 0)
        rc = fleet_op_lock(fc, x, "a wake", e);
    if (rc == 0) {
        rc = req.kv ? fleet_check_no_update(fc, true, e) : 0;
        if (rc == 0)
            rc = tell(app, x, &req, body, false, e);
        fleet_op_unlock(fc);
    }
    json_decref(body);
    return rc;
}
