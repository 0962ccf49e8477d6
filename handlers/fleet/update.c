/* The routes that start an update in front of upstream engines, and send its tensors. */
#include "handlers/fleet/update.h"

#include "base/json_parse.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "fleet/want/fleet_group_join.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update_members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An update that this request ended has been reported with the request's error. */
static void reply_failed(struct app *app, struct http_request *x, struct fleet_session *s,
                         const struct err *e)
{
    x->error_reported = e->code != ERR_ENDED && !fleet_update_is_open(app->fleet->control, s);
    reply_error(x, e, fleet_session_details(app, s));
}

int fleet_update_answer(struct app *app, struct http_request *x, struct fleet_session *s, int rc,
                        struct err *e)
{
    if (rc == 0)
        reply_json(x, 200, fleet_session_json(app, s));
    else
        reply_failed(app, x, s, e);
    fleet_unref(app->fleet->control, s);
    return 0;
}

int fleet_update_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
}

/* Engines get whole tensors, and the fleet keeps no bytes to make them from. */
static int refuse_delta(const char *base_version, const char *base_update_id, bool delta,
                        struct err *e)
{
    const char *field = delta                    ? "/delta"
                        : base_version != NULL   ? "/base_version"
                        : base_update_id != NULL ? "/base_update_id"
                                                 : NULL;

    if (field == NULL)
        return 0;
    return err_set(e, ERR_HAS_UPSTREAMS, field,
                   "%s needs weights to build on, and this server keeps none: start it with "
                   "--stage, or send whole tensors",
                   field + 1);
}

/* Patches are no less, and an engine may take their names for those of whole tensors. */
static int refuse_patches(const json_t *n_updates, struct err *e)
{
    return n_updates == NULL
               ? 0
               : err_set(e, ERR_HAS_UPSTREAMS, "/num_updates_list",
                         "sparse patches need weights to build on, and this server keeps none: "
                         "start it with --stage, or send whole tensors");
}

/* start */

/* @out  borrows from `body` */
static int fleet_start_parse(struct fleet_update_request *out, const json_t *body, struct err *e)
{
    struct update_start_request r = {0};

    if (member_read(&r, update_start_members, body, "", e) != 0)
        return -1;
    if (refuse_delta(r.base_version, r.base_update_id, r.delta, e) != 0)
        return -1;
    out->label = r.label != NULL ? r.label : "";
    out->partial = r.partial;
    out->sharded = r.placement == PLACEMENT_SHARDED;
    out->selector = r.selector.selector;
    out->lease_s = r.lease_s;
    return 0;
}

/* As of a server with weights (handlers/update/update_control.c). */
static int start_fleet_session(struct app *app, const struct fleet_update_request *req,
                               struct fleet_session **out, struct fleet_results *replies,
                               struct err *e)
{
    if (fleet_start_update(app->fleet->control, req, out, replies, e) == 0)
        return 0;
    if (e->code != ERR_CONFLICT || !req->anonymous ||
        !fleet_abort_unused_update(app->fleet->control, &req->actor))
        return -1;
    err_clear(e);
    fleet_results_fini(replies);
    return fleet_start_update(app->fleet->control, req, out, replies, e);
}

static int refuse_start(struct app *app, struct http_request *x,
                        const struct fleet_results *replies, struct err *e)
{
    if (fleet_reply(app, x, NULL, replies, e) != 0)
        reply_error(x, e, NULL);
    return 0;
}

int handle_fleet_update_start(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    fleet_body_auto body = {0};
    struct fleet_update_request req = {.x = x,
                                       .actor = x->actor,
                                       .native = &body,
                                       .anonymous = route->session != SESSION_NAMED,
                                       .convert = route_converts(route)};
    fleet_results_auto replies = {0};
    struct fleet_session *s;
    int rc;

    if (fleet_body_parse(&body, x, e) != 0)
        return -1;
    rc = fleet_start_parse(&req, body.json, e);
    if (rc == 0 && req.anonymous)
        fleet_begin_push(app->fleet->control);
    if (rc == 0)
        rc = start_fleet_session(app, &req, &s, &replies, e);
    return rc == 0 ? fleet_update_answer(app, x, s, 0, e) : refuse_start(app, x, &replies, e);
}

/* tensors */

struct tensors_request {
    struct update_request r;
    const char *source;        /* static, for the log */
    const struct actor *actor; /* borrowed from the request */
    bool chunk_named, by_group, convert;
};

static int refuse_start_members(const json_t *body, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name = member_given(field, update_members, AT_START, body, "");

    return name == NULL ? 0
                        : err_set(e, ERR_BAD_REQUEST, field,
                                  "%s belongs into /v1/update_weights/start only", name);
}

/* As a server with weights names its sources. */
static const char *source_name(const char *member)
{
    if (strcmp(member, "transport") == 0)
        return "nccl";
    return strcmp(member, "path") == 0 || strcmp(member, "shm") == 0 ? member : "ipc_handles";
}

static int check_source(const char **name, const json_t *body, struct err *e)
{
    const char *source;

    if (update_source_of(&source, body, e) != 0)
        return -1;
    *name = source_name(source);
    if (body_reads_nixl(body))
        return err_set(e, ERR_HAS_UPSTREAMS, "/transport",
                       "transport nixl needs a server with weights of its own, or --stage");
    if (body_given(body, "names") == NULL)
        return 0;
    return tensor_columns_check(body, NULL, "", e);
}

static int update_parse(struct tensors_request *w, const struct http_request *x, const json_t *body,
                        struct err *e)
{
    const struct route *route = x->route;

    if (route->strict && x->n_query > 0)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "query member '%.60s': with a JSON body, members belong into the body",
                       x->query[0].name);
    if (member_read(&w->r, update_members, body, "", e) != 0 ||
        (w->r.update_id != NULL && refuse_start_members(body, e) != 0) ||
        refuse_delta(w->r.base_version, w->r.base_update_id, w->r.delta, e) != 0 ||
        refuse_patches(w->r.n_updates, e) != 0 || check_source(&w->source, body, e) != 0)
        return -1;
    w->actor = &x->actor;
    w->chunk_named = w->r.chunk_id != NULL;
    if (w->r.chunk_id == NULL && x->request_id_given && w->r.update_id != NULL)
        w->r.chunk_id = x->actor.request_id;
    w->by_group = body_given(body, "transport") != NULL;
    w->convert = route_converts(route);
    return 0;
}

/* The body for the engines (new): without what only the fleet uses, and without what belongs into
 * the start, which is moved to `start`. */
static json_t *engine_body(const json_t *body, json_t *start)
{
    static const char *const fleets[] = {"update_id", "weight_version", "chunk_id",
                                         "abort_requests"};
    const char *names[MEMBER_NAMES_MAX];
    json_t *bare = json_copy_all(body);

    for (size_t i = 0; bare != NULL && i < sizeof fleets / sizeof fleets[0]; i++)
        (void)json_object_del(bare, fleets[i]);
    member_names(names, update_members, AT_START);
    for (const char **name = names; bare != NULL && *name != NULL; name++) {
        json_t *value = json_object_get(bare, *name);

        if (value != NULL && start != NULL && json_object_set(start, *name, value) != 0) {
            json_decref(bare);
            return NULL;
        }
        (void)json_object_del(bare, *name);
    }
    return bare;
}

/* An engine that overwrites what it serves cannot tell a repeated chunk from a new one. */
static int check_chunk(const struct fleet_session *s, const struct tensors_request *w,
                       struct err *e)
{
    if (!w->chunk_named || !fleet_session_overwrites(s))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/chunk_id",
                   "vllm and sglang upstreams do not support chunk_id: they would load a repeated "
                   "chunk twice; leave chunk_id out");
}

/* The texts of a list, NULL for what is no text. NULL: it is no list, or there is no memory. */
static const char **texts_of(const json_t *strings, size_t *n)
{
    const char **entries = json_is_array(strings)
                               ? calloc(json_array_size(strings) + 1, sizeof *entries)
                               : NULL;

    *n = json_array_size(strings);
    for (size_t i = 0; entries != NULL && i < *n; i++)
        entries[i] = json_string_value(json_array_get(strings, i));
    return entries;
}

/* @body  whatever is wrong in it; or NULL */
static void note_missing(struct app *app, struct fleet_session *s, const json_t *body,
                         const struct err *why)
{
    const json_t *info = json_object_get(body, "update_info");
    size_t n;
    const char **texts = texts_of(json_object_get(info != NULL ? info : body, "names"), &n);
    struct fleet_names names;

    fleet_names_of_refused(&names, texts, n);
    free((void *)(uintptr_t)texts);
    fleet_coverage_refuse(app->fleet->control, s, &names, why);
    fleet_names_fini(&names);
}

static int note_request(struct app *app, struct fleet_session *s, const struct tensors_request *w,
                        const json_t *bare, struct err *e)
{
    if (check_chunk(s, w, e) == 0 &&
        fleet_update_set_label(app->fleet->control, s, w->r.label, e) == 0 &&
        fleet_update_set_selector(app->fleet->control, s, w->r.selector.selector, e) == 0)
        return 0;
    note_missing(app, s, bare, e);
    return -1;
}

/* What the fleet looks at (tensors_fini). An error in the list of names is reported when it gets to
 * them. */
static void tensors_read(struct api_tensors *out, struct err *list_error,
                         const struct tensors_request *w, const json_t *body)
{
    const json_t *strings = body_given(body, "serialized_named_tensors");

    *out = (struct api_tensors){
        .group = json_string_value(body_given(body, "group_name")),
        .chunk_id = w->r.chunk_id,
        .by_path = body_given(body, "path") != NULL,
        .by_handles = body_given(body, "ipc_handles_pickled") != NULL ||
                      body_given(body, "ipc_handles") != NULL,
        .packed = json_is_true(json_object_get(body, "packed")),
        .serialized = strings != NULL,
    };
    if (strings != NULL)
        out->entries = texts_of(strings, &out->n_entries);
    if (body_given(body, "names") != NULL)
        (void)tensor_list_from_body(&out->list, body, NULL, list_error);
}

static void tensors_fini(struct api_tensors *t)
{
    free((void *)(uintptr_t)t->entries);
    tensor_list_unref(t->list);
}

static int send_tensors(struct app *app, struct fleet_session *s, const struct tensors_request *w,
                        const json_t *bare, struct err *e)
{
    struct api_object native = {.json = bare};
    struct api_tensors tensors = {0};
    struct fleet_tensors t = {.args = {.native = &native, .tensors = &tensors},
                              .source = w->source,
                              .by_group = w->by_group,
                              .abort_requests = w->r.abort_requests};
    int rc = note_request(app, s, w, bare, e);

    if (rc == 0) {
        tensors_read(&tensors, &t.list_error, w, bare);
        rc = fleet_send_tensors(app->fleet->control, s, &t, e);
    }
    tensors_fini(&tensors);
    api_object_fini(&native);
    if (rc != 0 || !fleet_update_is_covered(app->fleet->control, s))
        return rc;
    return fleet_finish_update(app->fleet->control, s, "", NULL, true, e);
}

static int one_shot_run(struct app *app, const struct tensors_request *w, const json_t *bare,
                        json_t *start, struct fleet_session **out, struct fleet_results *replies,
                        struct err *e)
{
    struct api_object native = {.json = start};
    struct fleet_update_request req = {.native = &native};
    struct fleet_session *s;
    struct err ignored = {0};
    int rc;

    if (fleet_start_parse(&req, start, e) != 0)
        return -1;
    req.label = w->r.label != NULL ? w->r.label : "";
    req.actor = *w->actor;
    req.convert = w->convert;
    req.lease_s = UPDATE_ANONYMOUS_LEASE_S;
    rc = fleet_start_update(app->fleet->control, &req, &s, replies, e);
    api_object_fini(&native);
    if (rc != 0)
        return -1;
    *out = s;
    rc = send_tensors(app, s, w, bare, e);
    if (rc == 0)
        rc = fleet_finish_update(app->fleet->control, s, "", NULL, true, e);
    if (rc != 0)
        (void)fleet_abort_update_wait(app->fleet->control, s, e, &ignored);
    return rc;
}

static int one_shot_update(struct app *app, struct http_request *x, const struct tensors_request *w,
                           const json_t *body, struct err *e)
{
    json_auto_t *start = json_object(), *bare = engine_body(body, start);
    fleet_results_auto replies = {0};
    struct fleet_session *s = NULL;
    int rc = -1;

    if (start == NULL || bare == NULL) {
        (void)fleet_update_no_memory(e);
    } else if (fleet_inherit_packing(app->fleet->control, bare, e) == 0 &&
               fleet_one_shot_lock(app->fleet->control, e) == 0) {
        rc = one_shot_run(app, w, bare, start, &s, &replies, e);
        fleet_one_shot_unlock(app->fleet->control);
    }
    return s != NULL ? fleet_update_answer(app, x, s, rc, e) : refuse_start(app, x, &replies, e);
}

/* sessions that requests do not name */

/* A reference to the open anonymous session; *out NULL: no session is open. */
static int find_anonymous(struct app *app, struct fleet_session **out, struct err *e)
{
    struct fleet_session *s = fleet_open_session(app->fleet->control);

    *out = NULL;
    if (s != NULL && !s->anonymous) {
        (void)err_set(e, ERR_CONFLICT, "",
                      "update %s is open, and its requests must have its update_id; this one has "
                      "none",
                      s->id);
        fleet_unref(app->fleet->control, s);
        return -1;
    }
    *out = s;
    return 0;
}

int fleet_update_find_open(struct app *app, struct fleet_session **out, struct err *e)
{
    if (find_anonymous(app, out, e) != 0)
        return -1;
    return *out != NULL ? 0
                        : err_set(e, ERR_CONFLICT, "", "no weight update is open: start one first");
}

int fleet_update_commit_open(struct app *app, struct err *e)
{
    struct fleet_session *ended;
    int rc = fleet_commit_open_update(app->fleet->control, "", &ended, e);

    fleet_unref(app->fleet->control, ended);
    if (rc != 0 && e->code != ERR_NOT_HANDED_OVER)
        return -1;
    err_clear(e);
    return 0;
}

/* Where no engine counts tensors, the first tensors of the next version mean that this one is
 * whole. */
static int commit_previous(struct app *app, struct fleet_session **s, const char *label,
                           struct err *e)
{
    if (!fleet_update_is_other_version(app->fleet->control, *s, label))
        return 0;
    fleet_unref(app->fleet->control, *s);
    *s = NULL;
    return fleet_update_commit_open(app, e);
}

static int start_auto_commit(struct app *app, const struct tensors_request *w,
                             struct fleet_session **out, struct err *e)
{
    fleet_results_auto replies = {0};
    struct fleet_update_request req = {.label = w->r.label != NULL ? w->r.label : "",
                                       .actor = *w->actor,
                                       .auto_commit = true,
                                       .convert = w->convert,
                                       .lease_s = UPDATE_ANONYMOUS_LEASE_S};
    int rc = fleet_start_update(app->fleet->control, &req, out, &replies, e);

    if (rc == 0 || e->code != ERR_CONFLICT)
        return rc;
    /* another request may have just opened it */
    if (find_anonymous(app, out, &(struct err){0}) != 0 || *out == NULL)
        return -1;
    err_clear(e);
    return 0;
}

static int find_session(struct app *app, const struct route *route, const struct tensors_request *w,
                        struct fleet_session **out, struct err *e)
{
    if (w->r.update_id != NULL)
        return fleet_find_update(app->fleet->control, w->r.update_id, out, e);
    if (route->session == SESSION_OPEN)
        return fleet_update_find_open(app, out, e);
    if (find_anonymous(app, out, e) != 0 ||
        (*out != NULL && commit_previous(app, out, w->r.label, e) != 0))
        return -1;
    return *out != NULL ? 0 : start_auto_commit(app, w, out, e);
}

static int update_with_body(struct app *app, struct http_request *x, const json_t *body,
                            struct err *e)
{
    const struct route *route = x->route;
    struct fleet_session *s;
    struct err ignored = {0};
    struct tensors_request w = {0};
    json_auto_t *bare = NULL;
    int rc;

    if (update_parse(&w, x, body, e) != 0)
        return -1;
    if (w.r.update_id == NULL && route->session == SESSION_NAMED)
        return one_shot_update(app, x, &w, body, e);
    bare = engine_body(body, NULL);
    if (bare == NULL)
        return fleet_update_no_memory(e);
    if (fleet_inherit_packing(app->fleet->control, bare, e) != 0 ||
        find_session(app, route, &w, &s, e) != 0)
        return -1;
    rc = send_tensors(app, s, &w, bare, e);
    if (rc != 0 && w.by_group)
        fleet_group_leave_refused(
            app->fleet->control, json_string_value(body_given(body, "group_name")), x->began_us, e);
    if (rc != 0 && fleet_update_is_empty(app->fleet->control, s))
        (void)fleet_abort_update_wait(app->fleet->control, s, e, &ignored);
    return fleet_update_answer(app, x, s, rc, e);
}

/* requests that no session got to see */

/* Its tensors are missing in the update that it belongs to, if that is known. */
static void note_refused(struct app *app, const struct http_request *x, const json_t *body,
                         const struct err *why)
{
    const char *id = body != NULL ? json_string_value(body_given(body, "update_id")) : NULL;
    struct fleet_control *fc = app->fleet->control;
    struct fleet_session *s = NULL;

    if (id != NULL)
        (void)fleet_find_update(fc, id, &s, &(struct err){0});
    else if (((const struct route *)x->route)->session != SESSION_NAMED)
        (void)find_anonymous(app, &s, &(struct err){0});
    if (s == NULL)
        return;
    if (fleet_update_is_open(fc, s))
        note_missing(app, s, body, why);
    fleet_unref(fc, s);
}

/* May a request that cannot be translated be for broadcasts? The trainer of baton's own routes
 * waits for the answer. */
static bool may_be_fleet_broadcast(const struct http_request *x)
{
    static const char *const others[] = {"\"ipc_handles", "\"metadata_by_gpu\"",
                                         "\"serialized_named_tensors\""};
    const struct route *route = x->route;
    bool may = route->dialect != DIALECT_NATIVE && route_accepts_nccl(x);

    for (size_t i = 0; x->body_len > 0 && i < sizeof others / sizeof others[0]; i++)
        may = may && memmem(x->body, x->body_len, others[i], strlen(others[i])) == NULL;
    return may;
}

static void note_untranslated(struct app *app, const struct http_request *x, struct err *e)
{
    json_auto_t *body = x->body_len > 0 ? json_loadb(x->body, x->body_len, 0, NULL) : NULL;

    note_refused(app, x, body, e);
    if (may_be_fleet_broadcast(x))
        fleet_group_leave_refused(app->fleet->control,
                                  json_string_value(json_object_get(body, "group_name")),
                                  x->began_us, e);
}

int handle_fleet_update(struct app *app, struct http_request *x, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    json_auto_t *body = NULL;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0) {
        note_untranslated(app, x, e);
        return -1;
    }
    rc = fleet_inherit_list(fc, body, e);
    if (rc == 0)
        rc = update_with_body(app, x, body, e);
    if (rc != 0)
        note_refused(app, x, body, e);
    if (rc != 0 && body_given(body, "transport") != NULL)
        fleet_group_leave_refused(fc, json_string_value(body_given(body, "group_name")),
                                  x->began_us, e);
    return rc;
}
