/* Adapters of the whole fleet: loaded everywhere or nowhere.
 *
 * A load that failed somewhere is taken back where it was new. One that replaced an adapter cannot
 * be: the upstreams that did not follow get it again then, and no requests before they have it. */
#include "fleet/fleet_control.h"
#include "fleet/fleet_locks.h"
#include "fleet/fleet_lora.h"
#include "fleet/fleet_reconcile.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_cache.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LORA_S_DEFAULT = 120, LORA_S_MAX = 3600 };

/* {name: path} */
static json_t *loaded_json(struct fleet_control *fc)
{
    size_t n;
    struct fleet_lora_entry *all = fleet_lora_list(fc, &n);
    json_t *loaded = all != NULL ? json_object() : NULL;

    for (size_t i = 0; loaded != NULL && i < n; i++)
        (void)fleet_json_set(loaded, all[i].name,
                             all[i].path != NULL ? json_string(all[i].path) : json_null());
    fleet_lora_list_free(all, n);
    return loaded;
}

int handle_fleet_lora_list(struct app *app, struct http_request *x, struct err *e)
{
    size_t n;
    struct fleet_lora_entry *all = fleet_lora_list(app->fleet->control, &n);
    json_t *list = all != NULL ? json_array() : NULL;

    (void)e;
    for (size_t i = 0; list != NULL && i < n; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:s?, s:I}", "lora_name", all[i].name,
                                                    "path", all[i].path, "revision",
                                                    (json_int_t)all[i].revision));
    fleet_lora_list_free(all, n);
    reply_json(x, 200, list != NULL ? json_pack("{s:o}", "adapters", list) : NULL);
    return 0;
}

/* load */

struct lora_req {
    const char *name, *path; /* borrowed; path NULL: by tensors */
    bool in_place;
    uint64_t timeout_s;
};

static int name_parse(const char **name, const json_t *body, struct err *e)
{
    if (body_required(body, "", "lora_name", e) != 0 ||
        body_str(name, body, "", "lora_name", e) != 0)
        return -1;
    if (**name == '\0' || strlen(*name) > FLEET_ADAPTER_NAME_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name", "a name is 1 to %d bytes long",
                       FLEET_ADAPTER_NAME_MAX);
    return 0;
}

static int load_parse(struct lora_req *req, const json_t *body, struct err *e)
{
    req->in_place = true;
    if (name_parse(&req->name, body, e) != 0 ||
        body_str(&req->path, body, "", "lora_path", e) != 0 ||
        body_bool(&req->in_place, body, "", "load_inplace", e) != 0)
        return -1;
    if (body_u64(&req->timeout_s, body, "", "timeout_s", 0, LORA_S_MAX, e) != 0)
        return -1;
    if (req->timeout_s == 0)
        req->timeout_s = LORA_S_DEFAULT;
    return 0;
}

/* One that cannot replace an adapter gives it up first. */
static void unload_first(struct app *app, const struct fleet_target *targets, size_t n,
                         const json_t *body, struct fleet_lora *h)
{
    struct fleet_target few[FLEET_MAX];
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    struct upstream_endpoint at;
    size_t n_few = 0;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(app->fleet->upstreams, targets[i].upstream, &at);
        if (!upstream_caps(at.kind)->replaces_adapters)
            few[n_few++] = (struct fleet_target){.upstream = targets[i].upstream, .body = body};
    }
    if (fleet_request(app->fleet->control, API_UNLOAD_ADAPTER, few, n_few, FLEET_STEP_US, &results,
                      &ignored) != 0)
        return;
    for (size_t i = 0; i < n_few; i++)
        if (fleet_result_may_have_run(&results[i]))
            h->has[results[i].upstream] = FLEET_HAS_NONE;
    fleet_results_free(results, n_few);
}

/* Where it is, or may be, it is taken away again; who does not let go of it is asked again, out of
 * rotation. One that has none after all says so. One that refused may have one from before this
 * server: it would be the only one with that, so it lets go of it too. Where all refused nothing
 * has changed. */
static void take_back(struct app *app, const struct fleet_result *results, size_t n,
                      const char *name, struct fleet_lora *h)
{
    json_t *body = json_pack("{s:s}", "lora_name", name);
    struct fleet_control *fc = app->fleet->control;
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *gone = NULL;
    struct err ignored = {0};
    size_t n_targets = 0, n_took = 0;

    for (size_t i = 0; i < n; i++)
        n_took += results[i].outcome == FLEET_OK || results[i].outcome == FLEET_UNKNOWN;
    for (size_t i = 0; n_took > 0 && i < n; i++)
        if (results[i].outcome != FLEET_UNSENT)
            targets[n_targets++] = (struct fleet_target){.upstream = results[i].upstream,
                                                         .body = body};
    if (body != NULL && fleet_request(fc, API_UNLOAD_ADAPTER, targets, n_targets, FLEET_STEP_US,
                                      &gone, &ignored) == 0) {
        for (size_t i = 0; i < n_targets; i++) {
            uint8_t *has = &h->has[gone[i].upstream];

            if (result_ok(&gone[i]) ||
                (gone[i].outcome == FLEET_REFUSED && *has != FLEET_HAS_THIS) ||
                fleet_has_no_adapter(fc, &gone[i], name))
                *has = FLEET_HAS_NONE;
        }
        fleet_results_free(gone, n_targets);
    }
    json_decref(body);
    (void)fleet_lora_remove(fc, name, h);
}

static json_t *first_answer(const struct fleet_result *results, size_t n)
{
    json_t *answer = NULL;

    for (size_t i = 0; answer == NULL && i < n; i++)
        if (results[i].text_len > 0 && results[i].text[0] == '{')
            answer = json_loadb(results[i].text, results[i].text_len, 0, NULL);
    return json_is_object(answer) ? answer : json_object();
}

static json_t *reply_json_of(struct fleet_control *fc, const char *name, uint64_t revision,
                             const struct fleet_result *results, size_t n)
{
    json_t *reply = first_answer(results, n);
    json_t *own = json_pack("{s:s, s:s, s:I, s:o}", "status", "ok", "lora_name", name, "revision",
                            (json_int_t)revision, "loaded_adapters", loaded_json(fc));

    if (reply == NULL || own == NULL || json_object_update(reply, own) != 0) {
        json_decref(reply);
        reply = NULL;
    }
    json_decref(own);
    return reply;
}

static size_t n_good(const struct fleet_result *results, size_t n)
{
    size_t good = 0;

    for (size_t i = 0; i < n; i++)
        good += result_ok(&results[i]);
    return good;
}

/* What is not there is the adapter, whatever words an upstream has for it. */
static void tell_cause(const struct fleet_result *cause, struct err *e)
{
    *e = cause->why;
    if (cause->status == 404)
        e->code = ERR_NOT_FOUND;
}

/* By what each said to a load: those that did not take it have what they had, by now of another
 * revision. */
static void have_after(const struct fleet_result *results, size_t n, struct fleet_lora *h)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t *has = &h->has[results[i].upstream];

        if (result_ok(&results[i]))
            *has = FLEET_HAS_THIS;
        else if (results[i].outcome == FLEET_UNKNOWN)
            *has = FLEET_HAS_OTHER;
    }
}

static void outdate(struct fleet_lora *h)
{
    for (size_t i = 0; i < FLEET_MAX; i++)
        if (h->has[i] != FLEET_HAS_NONE)
            h->has[i] = FLEET_HAS_OTHER;
}

/* The request as it can be sent again, or NULL: what it names is with its sender only, or it is
 * too long to be kept. */
static char *request_again(const json_t *body)
{
    json_t *again = body_given(body, "lora_path") != NULL ? json_copy((json_t *)(uintptr_t)body)
                                                          : NULL;
    char *text = NULL;

    (void)json_object_del(again, "if_revision");
    if (again != NULL && json_object_set_new(again, "load_inplace", json_true()) == 0)
        text = json_dumps(again, JSON_COMPACT);
    json_decref(again);
    if (text == NULL || strlen(text) <= FLEET_ADAPTER_LOAD_MAX)
        return text;
    free(text);
    return NULL;
}

/* Of what was loaded, by the first that tells it (new, or NULL). */
static json_t *digest_of(const struct fleet_result *results, size_t n)
{
    json_t *digest = NULL;

    for (size_t i = 0; digest == NULL && i < n; i++) {
        json_t *answer = results[i].outcome == FLEET_OK && results[i].text != NULL
                             ? json_loadb(results[i].text, results[i].text_len, 0, NULL)
                             : NULL;

        digest = json_incref(json_object_get(answer, "digest"));
        json_decref(answer);
    }
    return digest;
}

/* It is the fleet's: who did not take it gets it again, or stays away. */
static uint64_t put(struct app *app, const struct lora_req *req, const json_t *body,
                    const struct fleet_result *results, size_t n, struct fleet_lora *h)
{
    struct fleet_control *fc = app->fleet->control;
    json_t *digest = digest_of(results, n);
    struct fleet_adapter_source from = {.name = req->name,
                                        .digest = json_string_value(digest),
                                        .path = req->path != NULL ? strdup(req->path) : NULL,
                                        .load = request_again(body),
                                        .timeout_us = req->timeout_s * 1000000};
    uint64_t revision;

    revision = fleet_lora_put(fc, &from, h);
    json_decref(digest);
    return revision;
}

static int judge_load(struct app *app, const struct lora_req *req, const json_t *body, bool known,
                      const struct fleet_result *results, size_t n, struct fleet_lora *h,
                      uint64_t *revision, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results, n);
    bool changes = cause == NULL || (known && n_good(results, n) > 0);

    if (changes)
        outdate(h);
    have_after(results, n, h);
    if (changes)
        *revision = put(app, req, body, results, n, h);
    else if (known)
        fleet_lora_keep(app->fleet->control, req->name, h);
    else
        take_back(app, results, n, req->name, h);
    fleet_reconcile_all(app->fleet->control);
    if (cause == NULL)
        return 0;
    tell_cause(cause, e);
    return -1;
}

/* A server before this one may have loaded that name, too. Until all caches are empty nobody gets a
 * new request: it would read, with the new adapter, what was cached with the one before. */
static int ask_load(struct app *app, const struct lora_req *req, const struct fleet_target *targets,
                    size_t n, struct fleet_result **results, struct err *e)
{
    uint64_t timeout_us = req->timeout_s * 1000000 + FLEET_GRACE_US;
    int rc;

    fleet_adapter_replacing(app->fleet->control, true);
    rc = fleet_request(app->fleet->control, API_LOAD_ADAPTER, targets, n, timeout_us, results, e);
    if (rc == 0)
        fleet_reset_adapter_caches(app->fleet->control, *results, n);
    fleet_adapter_replacing(app->fleet->control, false);
    return rc;
}

static int load_turn(struct app *app, struct http_request *x, const struct lora_req *req,
                     const json_t *body, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    uint64_t revision = 0;
    struct fleet_lora h;
    bool known;
    size_t n;
    int rc;

    known = fleet_lora_exists(fc, req->name);
    rc = fleet_lora_reserve(fc, req->name, e);
    if (rc != 0)
        return -1;
    if (known && !req->in_place)
        return err_set(e, ERR_CONFLICT, "/lora_name",
                       "there is an adapter '%.128s', and load_inplace is false", req->name);
    if (fleet_reachable_quorum(fc, body, targets, &n, e) != 0 ||
        fleet_validate(fc, API_LOAD_ADAPTER, targets, n, e) != 0)
        return -1;
    fleet_reconcile_watch(fc);
    fleet_lora_read(fc, req->name, &h);
    if (known)
        unload_first(app, targets, n, body, &h);
    if (ask_load(app, req, targets, n, &results, e) != 0) {
        if (known)
            fleet_lora_keep(fc, req->name, &h);
        fleet_reconcile_all(fc);
        return -1;
    }
    rc = judge_load(app, req, body, known, results, n, &h, &revision, e);
    if (rc == 0)
        fleet_reply(app, x, reply_json_of(fc, req->name, revision, results, n), results, n);
    else
        fleet_reply_error(app, x, e, results, n);
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_lora_load(struct app *app, struct http_request *x, struct err *e)
{
    struct lora_req req = {0};
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = load_parse(&req, body, e);
    if (rc == 0)
        rc = fleet_op_lock(app->fleet->control, x, "the load of an adapter", e);
    if (rc == 0) {
        rc = load_turn(app, x, &req, body, e);
        fleet_op_unlock(app->fleet->control);
    }
    json_decref(body);
    return rc;
}

/* unload */

/* One that has none has what is asked for; returns how many said so. */
static size_t accept_absent(struct app *app, struct fleet_result *results, size_t n,
                            const char *name)
{
    size_t n_absent = 0;

    for (size_t i = 0; i < n; i++) {
        if (!fleet_has_no_adapter(app->fleet->control, &results[i], name))
            continue;
        results[i].outcome = FLEET_SKIPPED;
        err_clear(&results[i].why);
        n_absent++;
    }
    return n_absent;
}

static void left_after(const struct fleet_result *results, size_t n, struct fleet_lora *h)
{
    outdate(h);
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i]))
            h->has[results[i].upstream] = FLEET_HAS_NONE;
        else if (results[i].outcome != FLEET_UNSENT)
            h->has[results[i].upstream] = FLEET_HAS_OTHER;
}

/* Who did not let go of it is asked again, out of rotation; unless nobody did. */
static uint64_t judge_unload(struct app *app, const char *name, const struct fleet_result *results,
                             size_t n, struct fleet_lora *h)
{
    struct fleet_control *fc = app->fleet->control;
    uint64_t revision = 0;

    if (n_good(results, n) > 0) {
        left_after(results, n, h);
        revision = fleet_lora_remove(fc, name, h);
    } else {
        have_after(results, n, h);
        fleet_lora_set_has(fc, name, h);
    }
    fleet_reconcile_all(fc);
    return revision;
}

static int none_has_it(const char *name, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/lora_name", "no upstream has an adapter '%.128s'", name);
}

static int unload_turn(struct app *app, struct http_request *x, const char *name,
                       const json_t *body, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *results = NULL;
    uint64_t revision;
    struct fleet_lora h;
    bool known;
    size_t n;

    if (fleet_reachable_quorum(fc, body, targets, &n, e) != 0)
        return -1;
    fleet_reconcile_watch(fc);
    fleet_lora_read(fc, name, &h);
    if (fleet_request(fc, API_UNLOAD_ADAPTER, targets, n, FLEET_CACHE_US, &results, e) != 0)
        return -1;
    known = fleet_lora_exists(fc, name);
    if (accept_absent(app, results, n, name) == n && !known) {
        fleet_results_free(results, n);
        return none_has_it(name, e);
    }
    fleet_reset_adapter_caches(fc, results, n);
    revision = judge_unload(app, name, results, n, &h);
    if (fleet_results_cause(results, n) == NULL) {
        fleet_reply(app, x, reply_json_of(fc, name, revision, results, n), results, n);
    } else {
        tell_cause(fleet_results_cause(results, n), e);
        fleet_reply_error(app, x, e, results, n);
    }
    fleet_results_free(results, n);
    return 0;
}

int handle_fleet_lora_unload(struct app *app, struct http_request *x, struct err *e)
{
    const char *name = NULL;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = name_parse(&name, body, e);
    if (rc == 0)
        rc = fleet_op_lock(app->fleet->control, x, "the unload of an adapter", e);
    if (rc == 0) {
        rc = unload_turn(app, x, name, body, e);
        fleet_op_unlock(app->fleet->control);
    }
    json_decref(body);
    return rc;
}
