/* Adapters of the whole fleet: loaded everywhere or nowhere.
 *
 * A load that failed somewhere is taken back where it was new. One that replaced an adapter cannot
 * be: the upstreams that did not follow are fenced then, since they answer with the one before. */
#include "handlers/fleet_run.h"

#include "handlers/body.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LORA_S_DEFAULT = 120, LORA_S_MAX = 3600 };

/* the adapters that were loaded through here; in a turn, and under the lock for who only looks */

static struct fleet_adapter *find(const struct fleet_control *fc, const char *name)
{
    for (size_t i = 0; i < fc->n_adapters; i++)
        if (strcmp(fc->adapters[i].name, name) == 0)
            return &fc->adapters[i];
    return NULL;
}

/* Room for one more, before anybody is asked. */
static int make_room(struct fleet_control *fc, const char *name, struct err *e)
{
    struct fleet_adapter *grown = NULL;
    bool full, known;

    mtx_lock(&fc->lock);
    known = find(fc, name) != NULL;
    full = fc->n_adapters >= FLEET_ADAPTERS_MAX;
    if (!known && !full)
        grown = realloc(fc->adapters, (fc->n_adapters + 1) * sizeof *grown);
    if (grown != NULL)
        fc->adapters = grown;
    mtx_unlock(&fc->lock);
    if (!known && full)
        return err_set(e, ERR_CONFLICT, "", "there are %d adapters, which is as many as may be",
                       FLEET_ADAPTERS_MAX);
    if (!known && grown == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for another adapter");
    return 0;
}

/* Steals path. Returns: its revision. */
static uint64_t put(struct fleet_control *fc, const char *name, char *path)
{
    struct fleet_adapter *a;
    uint64_t revision;

    mtx_lock(&fc->lock);
    a = find(fc, name);
    if (a == NULL) {
        a = &fc->adapters[fc->n_adapters++];
        memset(a, 0, sizeof *a);
        (void)snprintf(a->name, sizeof a->name, "%s", name);
    }
    free(a->path);
    a->path = path;
    revision = ++a->revision;
    mtx_unlock(&fc->lock);
    return revision;
}

static uint64_t drop(struct fleet_control *fc, const char *name)
{
    struct fleet_adapter *a;
    uint64_t revision = 0;

    mtx_lock(&fc->lock);
    a = find(fc, name);
    if (a != NULL) {
        revision = a->revision;
        free(a->path);
        *a = fc->adapters[--fc->n_adapters];
    }
    mtx_unlock(&fc->lock);
    return revision;
}

/* A copy, for what is built without the lock; to be freed with its paths. */
static struct fleet_adapter *copy_all(struct fleet_control *fc, size_t *n)
{
    struct fleet_adapter *copy;

    mtx_lock(&fc->lock);
    *n = fc->n_adapters;
    copy = calloc(*n + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < *n; i++) {
        copy[i] = fc->adapters[i];
        copy[i].path = copy[i].path != NULL ? strdup(copy[i].path) : NULL;
    }
    mtx_unlock(&fc->lock);
    return copy;
}

static void free_all(struct fleet_adapter *copy, size_t n)
{
    for (size_t i = 0; copy != NULL && i < n; i++)
        free(copy[i].path);
    free(copy);
}

/* {name: path} */
static json_t *loaded_json(struct fleet_control *fc)
{
    size_t n;
    struct fleet_adapter *all = copy_all(fc, &n);
    json_t *loaded = all != NULL ? json_object() : NULL;

    for (size_t i = 0; loaded != NULL && i < n; i++)
        (void)fleet_put(loaded, all[i].name,
                        all[i].path != NULL ? json_string(all[i].path) : json_null());
    free_all(all, n);
    return loaded;
}

int fleet_lora_list(struct app *app, struct exchange *x, struct err *e)
{
    size_t n;
    struct fleet_adapter *all = copy_all(app->fleet_control, &n);
    json_t *list = all != NULL ? json_array() : NULL;

    (void)e;
    for (size_t i = 0; list != NULL && i < n; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:s?, s:I}", "lora_name", all[i].name,
                                                    "path", all[i].path, "revision",
                                                    (json_int_t)all[i].revision));
    free_all(all, n);
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
    return body_u64(&req->timeout_s, body, "", "timeout_s", 0, LORA_S_MAX, e);
}

/* One that cannot replace an adapter gives it up first. @without  [FLEET_MAX], by upstream: those
 * that have none now, whatever comes */
static void unload_first(struct app *app, const struct fleet_to *to, size_t n, const json_t *body,
                         bool *without)
{
    struct fleet_to few[FLEET_MAX];
    struct fleet_said *said = NULL;
    struct err ignored = {0};
    struct upstream_at at;
    size_t n_few = 0;

    for (size_t i = 0; i < n; i++) {
        upstreams_at(app->upstreams, to[i].upstream, &at);
        if (at.dialect == WIRE_SGLANG)
            few[n_few++] = (struct fleet_to){.upstream = to[i].upstream, .body = body};
    }
    if (fleet_ask(app, WIRE_LORA_UNLOAD, few, n_few, FLEET_STEP_US, &said, &ignored) != 0)
        return;
    for (size_t i = 0; i < n_few; i++)
        without[said[i].upstream] = fleet_worked(&said[i]);
    fleet_said_free(said, n_few);
}

/* Where it is, or may be, it is taken away again; who does not let go of it is fenced. One that has
 * none after all says so. One that refused may have one from before this server: it would be the
 * only one with that, so it lets go of it too. Where all refused nothing has changed. */
static void take_back(struct app *app, const struct fleet_said *said, size_t n, const char *name)
{
    json_t *body = json_pack("{s:s}", "lora_name", name);
    struct fleet_to to[FLEET_MAX];
    struct fleet_said *gone = NULL;
    struct err ignored = {0};
    bool sure[FLEET_MAX];
    size_t n_to = 0, n_took = 0;

    for (size_t i = 0; i < n; i++)
        n_took += said[i].end == FLEET_GOOD || said[i].end == FLEET_UNKNOWN;
    for (size_t i = 0; n_took > 0 && i < n; i++) {
        if (said[i].end == FLEET_UNSENT)
            continue;
        sure[n_to] = said[i].end == FLEET_GOOD;
        to[n_to++] = (struct fleet_to){.upstream = said[i].upstream, .body = body};
    }
    if (body != NULL &&
        fleet_ask(app, WIRE_LORA_UNLOAD, to, n_to, FLEET_STEP_US, &gone, &ignored) == 0) {
        for (size_t i = 0; i < n_to; i++)
            if (!said_good(&gone[i]) && (sure[i] || gone[i].end != FLEET_REFUSED))
                fleet_fence(fleet_of(app), gone[i].upstream, &gone[i].why);
        fleet_said_free(gone, n_to);
    }
    json_decref(body);
}

static void fence_failed(struct app *app, const struct fleet_said *said, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!said_good(&said[i]))
            fleet_fence(fleet_of(app), said[i].upstream, &said[i].why);
}

static json_t *first_answer(const struct fleet_said *said, size_t n)
{
    json_t *answer = NULL;

    for (size_t i = 0; answer == NULL && i < n; i++)
        if (said[i].text_len > 0 && said[i].text[0] == '{')
            answer = json_loadb(said[i].text, said[i].text_len, 0, NULL);
    return json_is_object(answer) ? answer : json_object();
}

static json_t *reply_json_of(struct fleet_control *fc, const char *name, uint64_t revision,
                             const struct fleet_said *said, size_t n)
{
    json_t *reply = first_answer(said, n);
    json_t *own = json_pack("{s:s, s:s, s:I, s:o}", "status", "ok", "lora_name", name, "revision",
                            (json_int_t)revision, "loaded_adapters", loaded_json(fc));

    if (reply == NULL || own == NULL || json_object_update(reply, own) != 0) {
        json_decref(reply);
        reply = NULL;
    }
    json_decref(own);
    return reply;
}

static size_t n_good(const struct fleet_said *said, size_t n)
{
    size_t good = 0;

    for (size_t i = 0; i < n; i++)
        good += said_good(&said[i]);
    return good;
}

/* What is not there is the adapter, whatever words an upstream has for it. */
static void tell_cause(const struct fleet_said *cause, struct err *e)
{
    *e = cause->why;
    if (cause->status == 404)
        e->code = ERR_NOT_FOUND;
}

/* Nobody took another in place of the one before. Where that had to be given up first it is gone:
 * those are not as the others are, unless there are no others. */
static void fence_without(struct app *app, const char *name, const bool *without,
                          const struct fleet_said *said, size_t n)
{
    size_t n_without = 0;

    for (size_t i = 0; i < n; i++)
        n_without += without[said[i].upstream];
    for (size_t i = 0; n_without < n && i < n; i++)
        if (without[said[i].upstream])
            fleet_fence(fleet_of(app), said[i].upstream, &said[i].why);
    if (n_without == n)
        (void)drop(app->fleet_control, name);
}

/* Steals path if it returns 0. @without  NULL: it is new */
static int judge_load(struct app *app, const struct lora_req *req, const bool *without, char *path,
                      const struct fleet_said *said, size_t n, uint64_t *revision, struct err *e)
{
    const struct fleet_said *cause = fleet_cause(said, n);

    if (cause == NULL) {
        *revision = put(app->fleet_control, req->name, path);
        return 0;
    }
    tell_cause(cause, e);
    if (without == NULL)
        take_back(app, said, n, req->name);
    else if (n_good(said, n) > 0)
        fence_failed(app, said, n);
    else
        fence_without(app, req->name, without, said, n);
    return -1;
}

static int load_turn(struct app *app, struct exchange *x, const struct lora_req *req,
                     const json_t *body, char *path, struct err *e)
{
    struct fleet_control *fc = app->fleet_control;
    uint64_t timeout_s = req->timeout_s > 0 ? req->timeout_s : LORA_S_DEFAULT, revision = 0;
    struct fleet_to to[FLEET_MAX];
    struct fleet_said *said = NULL;
    bool known = find(fc, req->name) != NULL, without[FLEET_MAX] = {false};
    size_t n;
    int rc;

    if (known && !req->in_place)
        return err_set(e, ERR_CONFLICT, "/lora_name",
                       "there is an adapter '%.128s', and load_inplace is false", req->name);
    if (make_room(fc, req->name, e) != 0 || fleet_alive_enough(app, body, to, &n, e) != 0 ||
        fleet_words(app, WIRE_LORA_LOAD, to, n, e) != 0)
        return -1;
    if (known)
        unload_first(app, to, n, body, without);
    if (fleet_ask(app, WIRE_LORA_LOAD, to, n, timeout_s * 1000000 + FLEET_LATE_US, &said, e) != 0)
        return -1;
    rc = judge_load(app, req, known ? without : NULL, path, said, n, &revision, e);
    if (rc == 0)
        fleet_reply(app, x, reply_json_of(fc, req->name, revision, said, n), said, n);
    else
        fleet_reply_error(app, x, e, said, n);
    fleet_said_free(said, n);
    return rc == 0 ? 0 : 1;
}

int fleet_lora_load(struct app *app, struct exchange *x, struct err *e)
{
    struct lora_req req = {0};
    char *path = NULL;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = load_parse(&req, body, e);
    if (rc == 0 && req.path != NULL) {
        path = strdup(req.path);
        if (path == NULL)
            rc = err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    }
    if (rc == 0)
        rc = fleet_turn(app->fleet_control, "the load of an adapter", e);
    if (rc == 0) {
        rc = load_turn(app, x, &req, body, path, e);
        fleet_turn_end(app->fleet_control);
    }
    if (rc != 0)
        free(path);
    json_decref(body);
    return rc > 0 ? 0 : rc;
}

/* unload */

static int unload_turn(struct app *app, struct exchange *x, const char *name, const json_t *body,
                       struct err *e)
{
    struct fleet_control *fc = app->fleet_control;
    struct fleet_to to[FLEET_MAX];
    struct fleet_said *said = NULL;
    uint64_t revision = 0;
    size_t n;

    if (fleet_alive_enough(app, body, to, &n, e) != 0 ||
        fleet_ask(app, WIRE_LORA_UNLOAD, to, n, FLEET_CACHE_US, &said, e) != 0)
        return -1;
    if (n_good(said, n) > 0) {
        fence_failed(app, said, n);
        revision = drop(fc, name);
    }
    if (fleet_cause(said, n) == NULL) {
        fleet_reply(app, x, reply_json_of(fc, name, revision, said, n), said, n);
    } else {
        tell_cause(fleet_cause(said, n), e);
        fleet_reply_error(app, x, e, said, n);
    }
    fleet_said_free(said, n);
    return 0;
}

int fleet_lora_unload(struct app *app, struct exchange *x, struct err *e)
{
    const char *name = NULL;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = name_parse(&name, body, e);
    if (rc == 0)
        rc = fleet_turn(app->fleet_control, "the unload of an adapter", e);
    if (rc == 0) {
        rc = unload_turn(app, x, name, body, e);
        fleet_turn_end(app->fleet_control);
    }
    json_decref(body);
    return rc;
}
