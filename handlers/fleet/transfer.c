/* The group with the trainer: each upstream is asked how many ranks it is, and gets those behind
 * the one before. All join, or those that did leave again, where their dialect has a word for it.
 */
#include "base/clock.h"
#include "fleet/fleet_control.h"
#include "fleet/fleet_locks.h"
#include "fleet/fleet_transfer.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/packing_json.h"
#include "handlers/reply.h"
#include "handlers/route.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRANSFER_S_MAX = 3600, TRANSFER_WORLD_MAX = 65536, TRANSFER_LEAVE_US = 30000000 };

struct init_req {
    uint64_t world_size, rank_offset, timeout_us;
    const char *group_name; /* borrowed, or NULL */
    struct packing_params packed;
    bool offset_given, by_handles;
};

static int init_parse(struct init_req *req, const struct app *app, const json_t *body,
                      struct err *e)
{
    const char *transport = NULL;
    uint64_t timeout_s = 0;

    if (body_required(body, "", "transport", e) != 0 ||
        body_str(&transport, body, "", "transport", e) != 0 ||
        body_str(&req->group_name, body, "", "group_name", e) != 0 ||
        body_u64(&timeout_s, body, "", "timeout_s", 1, TRANSFER_S_MAX, e) != 0 ||
        packing_parse_join(&req->packed, body, e) != 0)
        return -1;
    if (req->group_name != NULL && strlen(req->group_name) > FLEET_GROUP_NAME_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/group_name", "%zu bytes, %d are allowed",
                       strlen(req->group_name), FLEET_GROUP_NAME_MAX);
    req->timeout_us = timeout_s > 0 ? timeout_s * 1000000 : app->settings.join_timeout_ms * 1000;
    req->by_handles = strcmp(transport, "ipc") == 0;
    if (req->by_handles)
        return 0;
    if (strcmp(transport, "nccl") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/transport",
                       "transport '%.32s' is not nccl or ipc; the others need no group", transport);
    req->rank_offset = 1;
    req->offset_given = body_given(body, "rank_offset") != NULL;
    if (body_required(body, "", "world_size", e) != 0 ||
        body_u64(&req->world_size, body, "", "world_size", 2, TRANSFER_WORLD_MAX, e) != 0 ||
        body_u64(&req->rank_offset, body, "", "rank_offset", 1, TRANSFER_WORLD_MAX - 1, e) != 0)
        return -1;
    return 0;
}

static int read_ranks(uint64_t *out, const struct upstream_endpoint *at,
                      const struct fleet_result *result, struct err *e)
{
    if (api_read_ranks(out, at->kind, result->text != NULL ? result->text : "", result->text_len,
                       e) != 0)
        return -1;
    return *out < TRANSFER_WORLD_MAX
               ? 0
               : err_set(e, ERR_UPSTREAM, "", "it says that it has %" PRIu64 " ranks", *out);
}

/* @n_ranks  [FLEET_MAX], by upstream */
static int ask_ranks(struct app *app, const struct fleet_target *targets, size_t n,
                     uint64_t *n_ranks, json_t **details, struct err *e)
{
    struct fleet_result *results = NULL;
    const struct fleet_result *cause;
    struct upstream_endpoint at;

    if (fleet_query(app->fleet->control, API_GET_RANKS, targets, n,
                    fleet_step_us(app->fleet->control), &results, e) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct err why = {0};

        upstreams_get(app->fleet->upstreams, results[i].upstream, &at);
        if (results[i].outcome != FLEET_OK ||
            read_ranks(&n_ranks[results[i].upstream], &at, &results[i], &why) == 0)
            continue;
        results[i].outcome = FLEET_REFUSED;
        (void)err_set(&results[i].why, ERR_UPSTREAM, "", "%.100s: %.300s", at.name, why.msg);
    }
    cause = fleet_results_cause(results, n);
    if (cause != NULL) {
        *e = cause->why;
        *details = json_pack("{s:o}", "upstreams",
                             fleet_results_json(app->fleet->control, results, n));
    }
    fleet_results_free(results, n);
    return cause == NULL ? 0 : -1;
}

/* One behind the other. */
static int ranks_place(const struct init_req *req, struct fleet_target *targets, size_t n,
                       const uint64_t *n_ranks, struct err *e)
{
    uint64_t next = req->rank_offset;

    for (size_t i = 0; i < n; i++) {
        targets[i].about.has_rank_offset = true;
        targets[i].about.rank_offset = next;
        next += n_ranks[targets[i].upstream];
    }
    if (next <= req->world_size && (req->offset_given || next == req->world_size))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/world_size",
                   "the %zu upstreams are ranks %" PRIu64 " to %" PRIu64
                   ", which with the trainer's before them make a world of %" PRIu64
                   ", not of %" PRIu64,
                   n, req->rank_offset, next - 1, next, req->world_size);
}

static void leave_again(struct app *app, const struct init_req *req,
                        const struct fleet_result *results, size_t n)
{
    struct api_context about = {.group_name = req->group_name != NULL ? req->group_name : ""};
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *left = NULL;
    struct err ignored = {0};
    size_t n_targets = 0;

    for (size_t i = 0; i < n; i++)
        if (results[i].outcome == FLEET_OK || results[i].outcome == FLEET_UNKNOWN)
            targets[n_targets++] = (struct fleet_target){.upstream = results[i].upstream,
                                                         .about = about};
    if (fleet_request(app->fleet->control, API_SHUTDOWN_TRANSFER, targets, n_targets,
                      TRANSFER_LEAVE_US, &left, &ignored) == 0)
        fleet_results_free(left, n_targets);
}

/* An SGLang is in as many as it has joined; the last one of any other replaces the one before. */
static bool keeps_groups(struct app *app, const struct fleet_target *targets, size_t n)
{
    struct upstream_endpoint at;
    bool keeps = true;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(app->fleet->upstreams, targets[i].upstream, &at);
        keeps = keeps && upstream_caps(at.kind)->joins_many_groups;
    }
    return keeps;
}

/* A join replaces the group before, also a join that failed: engines left that one first. */
static void forget_replaced(struct app *app, const struct init_req *req,
                            const struct fleet_target *targets, size_t n)
{
    struct fleet_control *fc = app->fleet->control;

    if (!keeps_groups(app, targets, n))
        fleet_forget_groups(fc);
    (void)fleet_forget_group(fc, req->group_name != NULL ? req->group_name : SGLANG_GROUP_NAME);
}

static void note_group(struct app *app, const struct init_req *req,
                       const struct fleet_target *targets, size_t n, const uint64_t *n_ranks)
{
    struct fleet_group g = {.packing = {req->packed.packed, req->packed.bucket_nbytes},
                            .world_size = req->world_size,
                            .rank_offset = req->rank_offset,
                            .began_us = clock_now_us()};

    forget_replaced(app, req, targets, n);
    if (req->group_name != NULL)
        (void)snprintf(g.name, sizeof g.name, "%s", req->group_name);
    for (size_t i = 0; i < n; i++) {
        g.joined[targets[i].upstream] = true;
        g.offset[targets[i].upstream] = targets[i].about.rank_offset;
        g.n_ranks[targets[i].upstream] = n_ranks[targets[i].upstream];
    }
    fleet_add_group(app->fleet->control, &g);
}

static json_t *ranks_json(struct app *app, const struct fleet_group *g)
{
    size_t n = upstreams_n(app->fleet->upstreams);
    json_t *ranks = json_array();
    struct upstream_endpoint at;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(app->fleet->upstreams, i, &at);
        for (uint64_t r = 0; g->joined[i] && r < g->n_ranks[i]; r++)
            (void)json_array_append_new(ranks, json_pack("{s:I, s:s}", "rank",
                                                         (json_int_t)(g->offset[i] + r), "upstream",
                                                         at.name));
    }
    return ranks;
}

/* The members of a server's own group, as far as they are known here: of the latest one. */
static json_t *group_json(struct app *app)
{
    struct fleet_group g;
    bool on = fleet_get_group(app->fleet->control, NULL, &g);

    return json_pack("{s:s, s:s?, s:o, s:o, s:o, s:o, s:n, s:o}", "state", on ? "joined" : "none",
                     "transport", on ? "nccl" : NULL, "world_size",
                     on ? json_integer((json_int_t)g.world_size) : json_null(), "rank_offset",
                     on ? json_integer((json_int_t)g.rank_offset) : json_null(), "ranks",
                     ranks_json(app, &g), "group_name",
                     g.name[0] != '\0' ? json_string(g.name) : json_null(), "error", "age_s",
                     on ? json_real((double)(clock_now_us() - g.began_us) / 1e6) : json_null());
}

/* What the trainer before has left half sent must not become one model with what this one sends. */
static void give_up_last(struct app *app, const struct route *route)
{
    struct fleet_session *s;
    struct err why = {0}, ignored = {0};

    if (route->session != SESSION_AUTO_COMMIT)
        return;
    s = fleet_open_session(app->fleet->control);
    (void)err_set(&why, ERR_CONFLICT, "", "its trainer asks for a new group");
    if (s != NULL && s->anonymous)
        (void)fleet_abort_update_wait(app->fleet->control, s, &why, &ignored);
    fleet_unref(app->fleet->control, s);
}

static int group_join(struct app *app, struct http_request *x, const struct init_req *req,
                      const json_t *body, json_t **details, struct err *e)
{
    uint64_t n_ranks[FLEET_MAX] = {0};
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    const struct fleet_result *cause;
    size_t n;

    if (fleet_reachable_quorum(app->fleet->control, body, targets, &n, e) != 0 ||
        (!req->by_handles && (ask_ranks(app, targets, n, n_ranks, details, e) != 0 ||
                              ranks_place(req, targets, n, n_ranks, e) != 0)) ||
        fleet_request(app->fleet->control, API_INIT_TRANSFER, targets, n,
                      req->timeout_us + FLEET_GRACE_US, &results, e) != 0)
        return -1;
    cause = fleet_results_cause(results, n);
    if (cause == NULL) {
        if (req->by_handles)
            fleet_set_handles(app->fleet->control,
                              &(struct fleet_handles){.set = true,
                                                      .on = req->packed.packed_given,
                                                      .packed = req->packed.packed});
        else
            note_group(app, req, targets, n, n_ranks);
        fleet_reply(app, x, group_json(app), results, n);
    } else {
        *e = cause->why;
        if (!req->by_handles) {
            leave_again(app, req, results, n);
            forget_replaced(app, req, targets, n);
        }
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_transfer_init(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct init_req req = {0};
    json_t *body, *details = NULL;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = init_parse(&req, app, body, e);
    if (rc == 0)
        give_up_last(app, x->route);
    if (rc == 0)
        rc = fleet_op_lock(fc, x, "the start of a group", e);
    if (rc == 0) {
        rc = group_join(app, x, &req, body, &details, e);
        fleet_op_unlock(fc);
    }
    json_decref(body);
    if (rc == 0 || details == NULL)
        return rc;
    reply_error(x, e, details);
    return 0;
}

int handle_fleet_transfer_get(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, group_json(app));
    return 0;
}

/* leave */

/* Of handles only a vLLM holds anything. */
static bool is_set_up(struct app *app, const struct fleet_group *g, bool handles, size_t upstream)
{
    struct upstream_endpoint at;

    upstreams_get(app->fleet->upstreams, upstream, &at);
    return g->joined[upstream] || (handles && upstream_caps(at.kind)->keeps_handle_setup);
}

/* Those that are in it. @name  then: of the group  Returns how many. */
static size_t to_leave(struct app *app, const char *meant, const json_t *body,
                       struct fleet_target *targets, char name[FLEET_GROUP_NAME_MAX + 1])
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_target alive[FLEET_MAX];
    size_t n = fleet_reachable(fc, body, alive), n_targets = 0;
    struct fleet_handles handles;
    struct fleet_group g;

    (void)fleet_get_group(fc, meant, &g);
    fleet_get_handles(fc, &handles);
    (void)snprintf(name, FLEET_GROUP_NAME_MAX + 1, "%s", g.name);
    for (size_t i = 0; i < n; i++)
        if (is_set_up(app, &g, handles.set, alive[i].upstream)) {
            targets[n_targets] = alive[i];
            targets[n_targets++].about.group_name = name;
        }
    return n_targets;
}

/* Whatever engines replied: one that is down has left. Returns true while there are others. */
static bool group_forget(struct fleet_control *fc, const char *name)
{
    fleet_set_handles(fc, NULL);
    return fleet_forget_group(fc, name[0] != '\0' ? name : SGLANG_GROUP_NAME);
}

/* @name  NULL: each that there is */
static int group_leave(struct app *app, struct http_request *x, const char *name,
                       const json_t *body, struct err *e)
{
    char left[FLEET_GROUP_NAME_MAX + 1];
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    const struct fleet_result *cause;
    bool more = true;
    size_t n = 0;

    do {
        fleet_results_free(results, n);
        n = to_leave(app, name, body, targets, left);
        if (fleet_request(app->fleet->control, API_SHUTDOWN_TRANSFER, targets, n, TRANSFER_LEAVE_US,
                          &results, e) != 0)
            return -1;
        cause = fleet_results_cause(results, n);
        more = group_forget(app->fleet->control, left) && name == NULL;
    } while (more && cause == NULL);
    if (cause == NULL) {
        fleet_reply(app, x, group_json(app), results, n);
    } else {
        *e = cause->why;
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_transfer_delete(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    const char *name = NULL;
    json_t *body = NULL;
    int rc = 0;

    if (route->body == BODY_JSON && body_parse(&body, x, route, e) != 0)
        return -1;
    if (body != NULL)
        rc = body_str(&name, body, "", "group_name", e);
    if (rc == 0)
        rc = fleet_op_lock(app->fleet->control, x, "the end of a group", e);
    if (rc == 0) {
        rc = fleet_check_group_name(app->fleet->control, name, e);
        if (rc == 0)
            rc = group_leave(app, x, name, body, e);
        fleet_op_unlock(app->fleet->control);
    }
    json_decref(body);
    return rc;
}
