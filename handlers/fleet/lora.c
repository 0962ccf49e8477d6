/* The routes of adapters in front of upstream engines. */
#include "base/json_parse.h"
#include "base/log.h"
#include "fleet/api/api_json.h"
#include "fleet/ask/adapter_dir.h"
#include "fleet/ask/fleet_lora_load.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/members/fleet_adapters.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/rows/lora_request.h"
#include "weights/model/adapter_method.h"
#include "weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { LORA_S_DEFAULT = 120 };

/* {name: path} */
static json_t *fleet_adapters_json(struct fleet_control *fc)
{
    size_t n;
    struct fleet_adapter_entry *all = fleet_adapter_list(fleet_of(fc), NULL, &n);
    json_t *loaded = all != NULL ? json_object() : NULL;

    for (size_t i = 0; loaded != NULL && i < n; i++)
        (void)json_object_set_new(loaded, all[i].name,
                                  all[i].path != NULL ? json_string(all[i].path) : json_null());
    fleet_adapter_list_free(all, n);
    return loaded;
}

int handle_fleet_lora_list(struct app *app, struct http_request *x, struct err *e)
{
    size_t n;
    struct fleet_adapter_entry *all = fleet_adapter_list(fleet_of(app->fleet->control), NULL, &n);
    json_t *list = all != NULL ? json_array() : NULL;

    (void)e;
    for (size_t i = 0; list != NULL && i < n; i++)
        list = json_list_append(list,
                                json_pack("{s:s, s:s?, s:I}", "lora_name", all[i].name, "path",
                                          all[i].path, "revision", (json_int_t)all[i].revision));
    fleet_adapter_list_free(all, n);
    reply_json(x, 200, list != NULL ? json_pack("{s:o}", "adapters", list) : NULL);
    return 0;
}

static int check_lora_name(const char *name, struct err *e)
{
    if (*name == '\0' || strlen(name) > FLEET_ADAPTER_NAME_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name", "a name is 1 to %d bytes long",
                       FLEET_ADAPTER_NAME_MAX);
    return 0;
}

/* Engines number revisions in ways of their own, and this server has no bytes to build on. */
static int refuse_adapter_delta(const char *field, struct err *e)
{
    return err_set(e, ERR_HAS_UPSTREAMS, field,
                   "adapters are loaded whole in front of upstream engines: leave delta and "
                   "if_digest out, and send all tensors");
}

/* an adapter whose tensors are the request's body, and whose members are in the query */

/* Must be a whole file: an engine would find only later that it is not. */
static int check_tensors(const struct http_request *x, struct err *e)
{
    struct safetensors head = {0};
    uint64_t nbytes = 0;

    if (safetensors_head_nbytes(x->body, x->body_len, &nbytes, e) != 0)
        return -1;
    if (nbytes == 0 || nbytes > x->body_len)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the body has %zu bytes, and the header of a .safetensors file has more: "
                       "send the whole file",
                       x->body_len);
    if (safetensors_parse(&head, x->body, nbytes, x->body_len, e) != 0)
        return -1;
    if (head.delta_base != NULL)
        (void)refuse_adapter_delta("/__metadata__/format", e);
    safetensors_fini(&head);
    return e->code == ERR_NONE ? 0 : -1;
}

/* The engines that get it do not look. */
static void fleet_warn_base_changed(const json_t *config, const char *name)
{
    struct log_rec r;

    if (!adapter_method_changes_base(
            json_string_value(json_object_get(config, "init_lora_weights"))))
        return;
    log_begin(&r, LOG_WARN, "lora.base_changed");
    log_str(&r, "lora_name", name != NULL ? name : "");
    log_str(&r, "why", ADAPTER_BASE_CHANGED);
    log_event(&r);
}

static int check_config(const char *text, const char *name, struct err *e)
{
    json_error_t why;
    bool starved = false;
    json_t *config;

    if (text == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "'adapter_config' is required, in the query when the body is tensors");
    config = json_parse_file(text, strlen(text), JSON_REJECT_DUPLICATES, &why, &starved);
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the adapter's config");
    if (!json_is_object(config)) {
        json_decref(config);
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "it is not the JSON object of adapter_config.json: %.200s",
                       config != NULL ? "another value" : why.text);
    }
    fleet_warn_base_changed(config, name);
    json_decref(config);
    return 0;
}

/* The members of the query as those of a request in JSON, without its source; @out  new, also on an
 * error. */
static int members_of(json_t **out, const struct http_request *x, struct err *e)
{
    json_t *body = json_object();
    int rc = 0;

    for (size_t i = 0; i < x->n_query; i++) {
        const char *text = x->query[i].value;
        const struct member *m = member_find(lora_load_members, x->query[i].name, M_QUERY);

        if (m != NULL && m->type == M_STRING)
            rc |= json_object_set_new(body, m->name, json_string(text));
        else if (m != NULL && m->type == M_BOOL)
            rc |= json_object_set_new(body, m->name, json_boolean(text[0] == 't'));
        else if (m != NULL && m->type == M_INT)
            rc |= json_object_set_new(body, m->name,
                                      json_integer((json_int_t)strtoull(text, NULL, 10)));
    }
    *out = body;
    return rc == 0 ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for the members of the request");
}

/* @out   borrows from the request
 * @body  as of members_of; NULL: there is none */
static int sent_parse(struct adapter_content *out, struct lora_load_request *req, json_t **body,
                      const struct http_request *x, struct err *e)
{
    *out = (struct adapter_content){.name = http_request_query(x, "lora_name"),
                                    .config = http_request_query(x, "adapter_config"),
                                    .tensors = x->body,
                                    .nbytes = x->body_len};
    if (check_config(out->config, out->name, e) != 0 ||
        member_read_query(req, lora_load_members, x, e) != 0 || members_of(body, x, e) != 0)
        return -1;
    return check_tensors(x, e);
}

static int load_parse(struct lora_load_request *req, json_t **body, const struct http_request *x,
                      struct err *e)
{
    if (body_parse(body, x, x->route, e) != 0)
        return -1;
    return member_read(req, lora_load_members, *body, "", e);
}

/* Lets `body` load it from a directory (lora_path). Frees the tensors, since the engines may take
 * minutes. @path  for free(); NULL on an error */
static int sent_write(const struct adapter_content *sent, struct app *app, struct http_request *x,
                      json_t *body, char **path, struct err *e)
{
    int rc = adapter_dir_write(app->fleet->adapter_dir, sent, path, e);

    http_request_drop_body(x);
    if (rc != 0)
        return -1;
    if (json_object_set_new(body, "lora_path", json_string(*path)) == 0)
        return 0;
    free(*path);
    *path = NULL;
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the path of an adapter");
}

/* requests */

static json_t *first_reply(const struct fleet_results *results)
{
    json_t *answer = NULL;

    for (size_t i = 0; answer == NULL && i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];

        if (r->text_len > 0 && r->text[0] == '{')
            answer = json_loadb(r->text, r->text_len, 0, NULL);
    }
    return json_is_object(answer) ? answer : json_object();
}

static json_t *reply_json_of(struct fleet_control *fc, const char *name,
                             const struct fleet_lora_reply *of)
{
    json_t *reply = first_reply(&of->results);
    json_t *own = json_pack("{s:s, s:s, s:I, s:o}", "status", "ok", "lora_name", name, "revision",
                            (json_int_t)of->revision, "loaded_adapters", fleet_adapters_json(fc));

    if (reply == NULL || own == NULL || json_object_update(reply, own) != 0) {
        json_decref(reply);
        reply = NULL;
    }
    json_decref(own);
    return reply;
}

/* As a server with an engine of its own logs them. */
static void log_adapter(const char *event, const char *name, uint64_t revision,
                        const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              why->code == ERR_NONE ? event : "lora.failed");
    log_str(&r, "lora_name", name);
    if (why->code == ERR_NONE)
        log_u64(&r, "revision", revision);
    else
        log_err(&r, why);
    log_event(&r);
}

/* Also on an error. Frees the results. */
static int lora_reply(struct app *app, struct http_request *x, const char *event, const char *name,
                      struct fleet_lora_reply *reply, struct err *e)
{
    json_t *body = NULL;
    int rc;

    log_adapter(event, name, reply->revision, e);
    if (e->code == ERR_NONE)
        body = reply_json_of(app->fleet->control, name, reply);
    rc = fleet_reply(app, x, body, &reply->results, e);
    fleet_results_fini(&reply->results);
    return rc;
}

static bool any_took_it(const struct fleet_results *results)
{
    for (size_t i = 0; i < results->n; i++)
        if (result_ok(&results->list[i]) || results->list[i].outcome == FLEET_UNKNOWN)
            return true;
    return false;
}

/* After a load or an unload: files of an adapter that the fleet does not have, or has another
 * revision of. Those of an earlier server stay while its adapter may be at the engines: until one
 * took this, or none has an adapter of that name. The caller owns the operation lock. Without
 * memory they stay until the next load or unload.
 * @known  the fleet had the adapter before
 * @added  just written; NULL: none */
static void remove_old_files(struct app *app, const char *name, bool known, const char *added,
                             const struct fleet_lora_reply *reply, const struct err *e)
{
    const struct adapter_dir *dir = app->fleet->adapter_dir;
    bool none_has_it = reply->results.list == NULL && e->code == ERR_NOT_FOUND;
    char *path;

    if (dir == NULL)
        return;
    if (!known && !any_took_it(&reply->results) && !none_has_it) {
        if (added != NULL && e->code != ERR_DRAINING) /* then engines may be reading it */
            adapter_dir_remove(dir, name, added);
    } else if (fleet_adapter_path(fleet_of(app->fleet->control), name, &path) == 0) {
        adapter_dir_keep_only(dir, name, path);
        free(path);
    }
}

/* Tensors that came with the request become files first, which the engines load, now and again. The
 * caller owns the operation lock.
 * @sent  without tensors: the request is JSON */
static void load_on_all(struct app *app, struct http_request *x, struct fleet_lora_request *req,
                        struct api_object *body, const struct adapter_content *sent,
                        struct fleet_lora_reply *reply, struct err *e)
{
    bool known = fleet_adapter_exists(fleet_of(app->fleet->control), req->name);
    char *path = NULL;
    int rc = 0;

    if (sent->tensors != NULL)
        rc = sent_write(sent, app, x, body->owned, &path, e);
    if (path != NULL)
        req->path = path;
    if (rc == 0)
        (void)fleet_lora_load(app->fleet->control, req, body, reply, e);
    remove_old_files(app, req->name, known, path, reply, e);
    free(path);
}

int handle_fleet_lora_load(struct app *app, struct http_request *x, struct err *e)
{
    struct lora_load_request given = {0};
    struct fleet_lora_request req;
    struct fleet_lora_reply reply = {0};
    struct adapter_content sent = {0};
    fleet_body_auto body = {0};
    int rc;

    if ((body_is_tensors(x) ? sent_parse(&sent, &given, &body.owned, x, e)
                            : load_parse(&given, &body.owned, x, e)) != 0 ||
        ((given.delta || given.if_digest != NULL) &&
         refuse_adapter_delta(given.delta ? "/delta" : "/if_digest", e) != 0) ||
        fleet_op_lock(app->fleet->control, x, "the load of an adapter", e) != 0)
        return -1;
    body.json = body.owned;
    req = (struct fleet_lora_request){.name = given.name,
                                      .path = given.path,
                                      .in_place = given.in_place,
                                      .timeout_us = UINT64_C(1000000) *
                                                    (given.timeout_given && given.timeout_s > 0
                                                         ? given.timeout_s
                                                         : LORA_S_DEFAULT)};
    load_on_all(app, x, &req, &body, &sent, &reply, e);
    rc = lora_reply(app, x, "lora.loaded", req.name, &reply, e);
    fleet_op_unlock(app->fleet->control);
    return rc;
}

int handle_fleet_lora_unload(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct fleet_control *fc = app->fleet->control;
    struct fleet_lora_reply reply = {0};
    struct lora_unload_request req = {0};
    bool known;
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&req, lora_unload_members, body.json, "", e) != 0 ||
        check_lora_name(req.name, e) != 0 ||
        fleet_op_lock(fc, x, "the unload of an adapter", e) != 0)
        return -1;
    known = fleet_adapter_exists(fleet_of(fc), req.name);
    (void)fleet_lora_unload(fc, req.name, &body, &reply, e);
    remove_old_files(app, req.name, known, NULL, &reply, e);
    rc = lora_reply(app, x, "lora.unloaded", req.name, &reply, e);
    fleet_op_unlock(fc);
    return rc;
}
