/* Start, verify, finish, abort, renew and get of an update session. */
#include "base/json_parse.h"
#include "base/utf8.h"
#include "control/life.h"
#include "control/pause_controller.h"
#include "handlers/body.h"
#include "handlers/body_scan.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"
#include "handlers/update/pull.h"
#include "handlers/update/update_delta.h"
#include "handlers/update/update_params.h"
#include "handlers/update/update_requester.h"
#include "handlers/update/update_session.h"
#include "handlers/update_json.h"
#include "handlers/update_members.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_MAX = 200 };

static int update_start_parse(struct update_start *req, const struct app *app, const json_t *body,
                              struct err *e)
{
    struct update_start_request r = {0};
    struct delta_members m;

    if (member_read(&r, update_start_members, body, "", e) != 0)
        return -1;
    m = (struct delta_members){r.delta, r.convert, r.partial_given && !r.partial, r.base_version,
                               r.base_update_id};
    if (delta_members_check(&m, e) != 0 ||
        (r.base_version != NULL && update_base_find(app->weights->store, r.base_version,
                                                    r.base_update_id, &req->base, e) != 0))
        return -1;
    req->base.delta = r.delta;
    (void)snprintf(req->label, sizeof req->label, "%s", r.label != NULL ? r.label : "");
    req->partial = r.partial || r.delta;
    req->convert = r.convert;
    req->sharded = r.placement == PLACEMENT_SHARDED;
    req->lease_s = r.lease_s;
    req->trainer_ranks = r.trainer_ranks;
    return 0;
}

/* Bytes that staging needs and that are available, for each place (new, or NULL). */
static json_t *staging_json(const struct app_weights *weights, const struct update_info *info)
{
    struct update_room rooms[STORE_PLACES_MAX];
    uint32_t n = updates_room(weights->updates, info, rooms);

    return member_write_list(rooms, n, sizeof rooms[0], staging_reply);
}

/* The reply to a start: the update, the model spec's digest, the boot id, and memory. NULL
 * without memory. */
static json_t *started_json(const struct app *app, const struct update_info *info)
{
    const struct model_spec *m = store_model_spec(app->weights->store);
    json_t *reply = update_json(info);

    if (reply != NULL &&
        (json_object_set_new(reply, "plan_digest", json_string(m->tensor_list->digest)) != 0 ||
         json_object_set_new(reply, "boot_id", json_string(app->life->boot_id)) != 0 ||
         json_object_set_new(reply, "staging", staging_json(app->weights, info)) != 0)) {
        json_decref(reply);
        return NULL;
    }
    return reply;
}

/* If the session's id cannot be sent to the client, the session would block all others until its
 * lease ends. */
static int abort_unreported(const struct app_weights *weights, const struct update_info *info,
                            struct err *e)
{
    struct update_info ended;
    struct err ignored = {0}; /* it may have ended already */

    (void)updates_abort(weights->updates, info->id, "no memory to answer its start", &ended,
                        &ignored);
    return err_set(e, ERR_NO_MEMORY, "", "no memory to answer");
}

/* If a client whose requests name no update starts one although one from the same host is open that
 * has received nothing, it is the same client again, or its successor: the open one ends. After
 * tensors it does not, nor for another host: those of two trainers that both live would be mixed.
 * Errors: those of updates_start. */
static int start_update_session(struct app *app, const struct update_start *req,
                                struct update_info *info, struct err *e)
{
    if (updates_start(app->weights->updates, req, info, e) == 0)
        return 0;
    if (e->code != ERR_CONFLICT || !req->anonymous ||
        !updates_abort_unused(app->weights->updates, &req->actor,
                              "it received nothing, and another start came"))
        return -1;
    err_clear(e);
    return updates_start(app->weights->updates, req, info, e);
}

int handle_update_start(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    struct update_start req = {0};
    struct http_reply reply;
    struct update_info info;
    json_t *body;
    int rc;

    if (body_parse(&body, x, route, e) != 0)
        return -1;
    rc = update_start_parse(&req, app, body, e);
    json_decref(body);
    req.anonymous = route->session != SESSION_NAMED;
    req.actor = x->actor;
    if (rc == 0 && route->of_pull && pull_session_start(app)) {
        reply_json(x, 200, json_object());
        return 0;
    }
    if (rc != 0 || pause_controller_allows(app->pause_controller, CALL_UPDATE_START, e) != 0 ||
        start_update_session(app, &req, &info, e) != 0)
        return -1;
    if (!reply_json_make(x, 200, started_json(app, &info), &reply))
        return abort_unreported(app->weights, &info, e);
    http_reply(x, &reply);
    return 0;
}

int request_session_find(char id[UPDATE_ID_MAX + 1], struct app *app, const struct route *route,
                         struct err *e)
{
    struct update_info info;

    if (route->session == SESSION_NAMED)
        return 0;
    updates_current(app->weights->updates, &info);
    if (info.phase == UPDATE_NONE && route->session == SESSION_AUTO_COMMIT)
        return 0;
    if (info.phase == UPDATE_NONE)
        return err_set(e, ERR_CONFLICT, "", "no weight update is open: start one first");
    if (!info.anonymous)
        return err_set(
            e, ERR_CONFLICT, "",
            "update %s is open, and its owner names it in each request; this request names none",
            info.id);
    memcpy(id, info.id, sizeof info.id);
    return 0;
}

int request_session_start(char id[UPDATE_ID_MAX + 1], struct app *app, const struct http_request *x,
                          struct err *e)
{
    struct update_start req = {
        .auto_commit = true, .lease_s = UPDATE_ANONYMOUS_LEASE_S, .actor = x->actor};
    struct update_info info;

    if (pause_controller_allows(app->pause_controller, CALL_UPDATE_START, e) != 0)
        return -1;
    if (updates_start(app->weights->updates, &req, &info, e) == 0) {
        memcpy(id, info.id, sizeof info.id);
        return 0;
    }
    if (e->code != ERR_CONFLICT || request_session_find(id, app, x->route, e) != 0)
        return -1;
    return id[0] != '\0'
               ? 0
               : err_set(e, ERR_CONFLICT, "", "the update has just ended: send the request again");
}

void request_session_abort(struct app *app, bool begun, const char *why)
{
    struct err ignored = {0}; /* it may have ended, or be finishing */
    struct update_info info;

    updates_current(app->weights->updates, &info);
    if (begun ? info.anonymous && info.phase != UPDATE_NONE
              : info.auto_commit && info.phase == UPDATE_OPEN)
        (void)updates_abort(app->weights->updates, info.id, why, &info, &ignored);
}

/* @out malloc'ed, names borrowed from the body. @object  {name: hex}, or NULL */
static int checksums_parse(struct update_checksum **out, uint32_t *n, const json_t *object,
                           struct err *e)
{
    const json_t *value;
    struct update_checksum *sums;
    const char *name;
    char field[ERR_FIELD_MAX];
    uint32_t i = 0;

    if (object == NULL || json_object_size(object) == 0)
        return 0;
    sums = calloc(json_object_size(object), sizeof *sums);
    if (sums == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
    json_object_foreach(json_mutable(object), name, value)
    {
        sums[i].name = name;
        if (!json_is_string(value) || !checksum_parse(&sums[i].sum, json_string_value(value))) {
            free(sums);
            (void)snprintf(field, sizeof field, "/checksums");
            scan_escape(field, sizeof field, name, strlen(name));
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the checksum of '%.160s' is not %d hex digits", name, CHECKSUM_LEN);
        }
        i++;
    }
    *out = sums;
    *n = i;
    return 0;
}

/* @commit  false: only verify */
static int finish_update(struct app *app, struct http_request *x, const json_t *body, bool commit,
                         struct err *e)
{
    const struct member *rows = commit ? update_finish_members : update_verify_members;
    struct update_end_request r = {.label = ""};
    struct update_checksum *sums = NULL;
    struct update_requester *asker = NULL;
    char open[UPDATE_ID_MAX + 1] = "";
    uint32_t n_sums = 0;
    int rc;

    if (request_session_find(open, app, x->route, e) != 0 ||
        member_read(&r, open[0] != '\0' ? update_end_rows : rows, body, "", e) != 0)
        return -1;
    if (open[0] != '\0')
        r.update_id = open;
    if (pause_controller_allows(app->pause_controller, CALL_UPDATE_FINISH, e) != 0 ||
        delta_request_proves(app->weights, r.update_id, e) != 0 ||
        checksums_parse(&sums, &n_sums, r.checksums, e) != 0)
        return -1;
    rc = update_requester_new(&asker, app, x, NULL, e);
    if (rc == 0)
        rc = commit ? updates_finish(app->weights->updates, r.update_id, r.label, sums, n_sums,
                                     update_reply_done, asker, e)
                    : updates_verify(app->weights->updates, r.update_id, sums, n_sums,
                                     update_reply_done, asker, e);
    if (rc != 0)
        update_requester_free(asker);
    free(sums);
    return rc;
}

static int parse_and_finish(struct app *app, struct http_request *x, bool commit, struct err *e)
{
    const struct route *route = x->route;
    bool pulled = false;
    json_t *body;
    int rc = 0;

    if (body_parse(&body, x, route, e) != 0)
        return -1;
    if (route->of_pull)
        rc = pull_session_finish(&pulled, app, e);
    if (rc == 0 && pulled)
        reply_json(x, 200, json_object());
    else if (rc == 0)
        rc = finish_update(app, x, body, commit, e);
    json_decref(body);
    return rc;
}

int handle_update_finish(struct app *app, struct http_request *x, struct err *e)
{
    return parse_and_finish(app, x, true, e);
}

int handle_update_verify(struct app *app, struct http_request *x, struct err *e)
{
    return parse_and_finish(app, x, false, e);
}

static int abort_update(struct app *app, const json_t *body, struct update_info *info,
                        struct err *e)
{
    struct update_end_request r = {0};
    char text[REASON_MAX + 1];

    if (member_read(&r, update_abort_members, body, "", e) != 0)
        return -1;
    (void)snprintf(text, sizeof text, "%.*s", utf8_cut(r.reason, REASON_MAX), r.reason);
    return updates_abort(app->weights->updates, r.update_id, text, info, e);
}

static int renew_update(struct app *app, const json_t *body, struct update_info *info,
                        struct err *e)
{
    struct update_end_request r = {0};

    return member_read(&r, update_renew_members, body, "", e) != 0
               ? -1
               : updates_renew(app->weights->updates, r.update_id, r.lease_s, info, e);
}

/* Runs an immediate action on the session that the body names, and replies with its state. */
static int run_on_session(struct app *app, struct http_request *x,
                          int (*act)(struct app *, const json_t *, struct update_info *,
                                     struct err *),
                          struct err *e)
{
    struct update_info info;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = act(app, body, &info, e);
    json_decref(body);
    if (rc == 0)
        reply_json(x, 200, update_json(&info));
    return rc;
}

int handle_update_abort(struct app *app, struct http_request *x, struct err *e)
{
    return run_on_session(app, x, abort_update, e);
}

int handle_update_renew(struct app *app, struct http_request *x, struct err *e)
{
    return run_on_session(app, x, renew_update, e);
}

int handle_update_get(struct app *app, struct http_request *x, struct err *e)
{
    struct update_info info;

    if (updates_get(app->weights->updates, x->path_arg, &info, e) != 0)
        return -1;
    reply_json(x, 200, update_json(&info));
    return 0;
}

int handle_update_delete(struct app *app, struct http_request *x, struct err *e)
{
    struct update_info info;

    if (updates_abort(app->weights->updates, x->path_arg, "aborted by DELETE", &info, e) != 0)
        return -1;
    reply_json(x, 200, update_json(&info));
    return 0;
}
