/* Dispatch of requests from the HTTP server to handlers: finds the route, posts the request to its
 * executor, and counts it at its end (its log: server/request_log.c).
 *
 * An event loop finds the route and posts; parsing and work happen on the executor, unless they
 * cost less than to wake one of its threads and to be woken (operation_is_brief()). Requests on the
 * text executor take a permit of text_admission first, so that many of them wait for each other and
 * delay nothing else. */
#include "handlers/app.h"

#include "base/net/trace.h"
#include "control/admission.h"
#include "control/auth.h"
#include "control/generations.h"
#include "control/life.h"
#include "control/lifecycle.h"
#include "control/metrics.h"
#include "fleet/ask/adapter_dir.h"
#include "fleet/proxy/proxy.h"
#include "handlers/body.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "server/operations.h"
#include "server/request_log.h"
#include "weights/safetensors.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BRIEF_BODY_NBYTES_MAX = 4 << 10 /* read on a loop: some ten microseconds */ };

/* A dispatched request that waits for a thread. The job that runs last frees it. */
struct dispatch_job {
    struct job job;       /* of the executor */
    struct ticket ticket; /* of text_admission; only on the text executor */
    struct app *app;
    struct http_request *x;
};

/* Health and status are answered in every state. For other routes this checks, before the body is
 * read, what depends on the life cycle alone; each handler checks the whole state again. */
static int check_life(const struct app *app, const struct route *route, struct err *e)
{
    struct lifecycle_state s = {.life = life_state(app->life), .weights = WEIGHTS_SERVED};
    uint64_t left_us;

    if (s.life == LIFE_DRAINING && app_update_lease(app, &left_us))
        s.update = UPDATE_IS_OPEN;
    return route->role <= ROLE_VIEWER ? 0
                                      : lifecycle_check(&s, operation_call(route->operation), e);
}

/* Checks listener, role and key. All rows of a path have the same role, so the body is not needed.
 */
static int listener_check(const struct listener_ctx *listener_ctx, struct http_request *x,
                          const struct route *route, struct err *e)
{
    static const enum auth_role needs[] = {
        [ROLE_HEALTH] = AUTH_ANYONE,   [ROLE_PAGE] = AUTH_ANYONE,
        [ROLE_VIEWER] = AUTH_VIEWER,   [ROLE_GENERATE] = AUTH_GENERATE,
        [ROLE_CONTROL] = AUTH_CONTROL, [ROLE_WEIGHTS] = AUTH_WEIGHTS,
    };
    struct err why = {0};

    if ((listener_ctx->roles & 1U << route->role) == 0)
        return err_set(e, ERR_NOT_FOUND, "",
                       "%.200s is not answered on this listener, use that of %s", x->path,
                       route->role == ROLE_GENERATE ? "--listen" : "--control-listen");
    if (route->role == ROLE_PAGE)
        x->needs_key = auth_check(listener_ctx->auth, "", x->peer_trusted, AUTH_VIEWER,
                                  x->actor.key, &why) != 0 &&
                       why.code == ERR_UNAUTHORIZED;
    return auth_check(listener_ctx->auth, x->authorization, x->peer_trusted, needs[route->role],
                      x->actor.key, e);
}

/* To upstreams only JSON is sent. An adapter goes to them as files, so it is read whole, before it
 * takes a thread. */
static int route_tensors(const struct app *app, const struct route *route,
                         struct http_server_route *out, struct err *e)
{
    if (operation_is_embedded(app, route->operation)) {
        out->body = HTTP_SERVER_BODY_STREAM;
        out->body_max = UINT64_MAX; /* its header says how long it must be, before any byte moves */
        out->head_nbytes = safetensors_head_nbytes;
        return 0;
    }
    if (route->operation != OPERATION_LORA_LOAD)
        return err_set(
            e, ERR_HAS_UPSTREAMS, "",
            "a body of tensors is not supported in front of upstream engines; use NCCL, or in "
            "JSON path, shm or ipc_handles for baton, ipc_handles_pickled for vLLM, path "
            "or serialized_named_tensors for SGLang");
    if (app->fleet->adapter_dir == NULL)
        return err_set(e, ERR_HAS_UPSTREAMS, "",
                       "a body of tensors in front of upstream engines needs --adapter-dir, a "
                       "directory that they can read; or send lora_path");
    out->body_max = adapter_dir_nbytes_max(app->fleet->adapter_dir);
    return 0;
}

static int app_route(void *arg, struct http_request *x, struct http_server_route *out,
                     struct err *e)
{
    const struct listener_ctx *listener_ctx = arg;
    struct app *app = listener_ctx->app;
    const struct route *route;
    size_t at = 0;

    route = route_find(x->path, x->method, app->settings.dialects, &at, e);
    if (route == NULL)
        return -1;
    x->app = app;
    x->route = route;
    x->path_arg = x->path + at;
    if (listener_check(listener_ctx, x, route, e) != 0)
        return -1;
    x->admitted = true;
    if (check_life(app, route, e) != 0)
        return -1;
    if (route->strict && body_query_only(x, route, e) != 0)
        return -1;
    out->body = HTTP_SERVER_BODY_WHOLE;
    out->body_max = route->body_max == ROUTE_BODY_CONFIG ? app->settings.json_body_max
                                                         : route->body_max;
    out->of_get = route->body == BODY_JSON;
    out->get_has_effects = route->get_has_effects;
    out->reserved = route->role != ROLE_GENERATE;
    return route->body == BODY_TENSORS && body_is_tensors(x) ? route_tensors(app, route, out, e)
                                                             : 0;
}

/* Notifies the operation of a request that is refused before its handler has run. */
static void notify_unread(struct app *app, const struct http_request *x, struct err *e)
{
    const struct route *route = x->route;

    if (route == NULL || !operation_is_embedded(app, route->operation))
        return;
    if (operation_embedded(route->operation)->unread != NULL)
        operation_embedded(route->operation)->unread(app, x, e);
}

static int route_handle(struct app *app, struct http_request *x, const struct route *route,
                        struct err *e)
{
    struct trace_context trace;
    int rc;

    if (operation_is_embedded(app, route->operation))
        return operation_embedded(route->operation)->handle(app, x, e);
    trace = x->trace; /* the request may be gone before the handler returns */
    trace_enter(&trace);
    rc = operation_fleet(route->operation)->handle(app, x, e);
    trace_leave();
    return rc;
}

static enum route_executor executor_of(const struct app *app, const struct http_request *x)
{
    const struct route *route = x->route;

    if (!operation_is_embedded(app, route->operation))
        return operation_fleet(route->operation)->executor;
    return operation_is_brief(route->operation) && x->body_len <= BRIEF_BODY_NBYTES_MAX
               ? EXECUTOR_LOOP
               : route->executor;
}

/* Several rows may have one path: the body decides. The body of a request that is passed on
 * unchanged is not read. */
static const struct route *route_by_body(const struct app *app, const struct http_request *x)
{
    const struct route *first = x->route;

    if (!operation_is_embedded(app, first->operation) &&
        operation_fleet(first->operation)->passed_on)
        return first;
    return route_match_body(first, x->method, app->settings.dialects, x->body, x->body_len);
}

static void run_handler(struct app *app, struct http_request *x)
{
    const struct route *route = route_by_body(app, x);
    struct err e = {0};

    assert(route->role == ((const struct route *)x->route)->role); /* the listener checked it */
    x->route = route;
    if (http_request_disconnected(x)) {
        (void)err_set(&e, ERR_GONE, "", "the client disconnected while its request was queued");
        notify_unread(app, x, &e);
    } else if (route_handle(app, x, route, &e) == 0) {
        return;
    }
    reply_error(x, &e, NULL);
}

static void dispatch_job_run(void *arg)
{
    struct dispatch_job *d = arg;
    struct app *app = d->app;
    struct http_request *x = d->x;
    uint64_t arrival = x->arrival;

    free(d);
    run_handler(app, x);
    if (arrival != 0)
        generations_parsed(app->generate->generations, arrival);
}

static void text_run(void *arg)
{
    struct dispatch_job *d = arg;

    http_request_on_disconnect(d->x, NULL, NULL);
    run_handler(d->app, d->x);
    admission_leave(d->app->generate->text_admission, &d->ticket);
    free(d);
}

/* The client disconnected while queued: its ticket has left the queue already. */
static void text_drop(void *arg)
{
    struct dispatch_job *d = arg;
    struct err e = {0};

    (void)err_set(&e, ERR_GONE, "", "the client disconnected while its request was queued");
    reply_error(d->x, &e, NULL);
    free(d);
}

/* Runs under the request's lock: it only cancels the ticket; another thread answers. */
static void text_disconnected(void *arg)
{
    struct dispatch_job *d = arg;
    struct err ignored = {0};

    if (!admission_cancel(d->app->generate->text_admission, &d->ticket))
        return;
    d->job = (struct job){.run = text_drop, .arg = d};
    (void)workers_post(d->app->text_executor, &d->job, WORKERS_URGENT, &ignored);
}

/* There are as many threads as permits, so the job runs at once. If the executor has stopped, it
 * runs here. */
static void text_granted(void *arg)
{
    struct dispatch_job *d = arg;
    struct err ignored = {0};

    d->job = (struct job){.run = text_run, .arg = d};
    if (workers_post(d->app->text_executor, &d->job, WORKERS_URGENT, &ignored) != 0)
        text_run(d);
}

static int enter_text(struct app *app, struct dispatch_job *d, struct err *e)
{
    struct http_request *x = d->x;

    d->ticket = (struct ticket){.granted = text_granted, .arg = d};
    http_request_on_disconnect(x, text_disconnected, d);
    if (admission_enter(app->generate->text_admission, &d->ticket, e) == 0)
        return 0;
    http_request_on_disconnect(x, NULL, NULL);
    return -1;
}

static struct workers *workers_of(const struct app *app, enum route_executor executor)
{
    switch (executor) {
    case EXECUTOR_CONTROL:
        return app->control_executor;
    case EXECUTOR_FLEET:
    case EXECUTOR_URGENT:
        return app->fleet->executor;
    case EXECUTOR_GENERATE:
    case EXECUTOR_TEXT:
    case EXECUTOR_LOOP:
        break;
    }
    return app->generate_executor;
}

static int dispatch_post(struct app *app, struct dispatch_job *d, enum route_executor executor,
                         struct err *e)
{
    const struct route *route = d->x->route;

    if (executor == EXECUTOR_TEXT)
        return enter_text(app, d, e);
    if (executor == EXECUTOR_GENERATE && operation_is_embedded(app, route->operation))
        d->x->arrival = generations_arrive(app->generate->generations);
    d->job = (struct job){.run = dispatch_job_run, .arg = d};
    if (workers_post(workers_of(app, executor), &d->job,
                     executor == EXECUTOR_URGENT ? WORKERS_PRIOR : WORKERS_NORMAL, e) == 0)
        return 0;
    if (d->x->arrival != 0)
        generations_parsed(app->generate->generations, d->x->arrival);
    return -1;
}

static void app_dispatch(void *arg, struct http_request *x)
{
    struct app *app = ((const struct listener_ctx *)arg)->app;
    enum route_executor executor = executor_of(app, x);
    struct err e = {0};
    struct dispatch_job *d;

    if (executor == EXECUTOR_LOOP) {
        run_handler(app, x);
        return;
    }
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory for the request");
        notify_unread(app, x, &e);
        reply_error(x, &e, NULL);
        return;
    }
    d->app = app;
    d->x = x;
    if (dispatch_post(app, d, executor, &e) != 0) {
        free(d);
        notify_unread(app, x, &e);
        reply_error(x, &e, NULL);
    }
}

/* Did the listener refuse it: key, role or path? Such a request is no evidence about a trainer: a
 * client without a key must not bring a trainer's group in doubt. */
static bool refused_by_listener(const struct err *e)
{
    return e->code == ERR_UNAUTHORIZED || e->code == ERR_FORBIDDEN || e->code == ERR_NOT_FOUND;
}

static void app_reject(void *arg, struct http_request *x, const struct err *e,
                       struct http_reply *out)
{
    struct app *app = ((const struct listener_ctx *)arg)->app;
    struct err told = *e;

    if (!refused_by_listener(e))
        notify_unread(app, x, &told);
    http_request_note_error(x, &told);
    reply_error_make(x->route, &told, NULL, out);
    route_add_allow(out, x, app->settings.dialects, &told);
}

static void app_done(void *arg, const struct http_request *x, const struct http_server_outcome *o)
{
    const struct app *app = ((const struct listener_ctx *)arg)->app;
    const struct route *route = x->route;

    metrics_request(app->metrics, route != NULL ? (size_t)(route - routes) : n_routes, o->status,
                    o->duration_us, o->nbytes_in, o->nbytes_out);
    request_log_done(app->request_log, x, o);
}

static int app_loop_begin(void *arg, struct loop *l, void **out, struct err *e)
{
    struct app *app = ((const struct listener_ctx *)arg)->app;

    return app->fleet != NULL ? proxy_loop_begin(app->fleet->proxy, l, out, e) : 0;
}

static void app_loop_end(void *loop_app)
{
    if (loop_app != NULL)
        proxy_loop_end(loop_app);
}

const struct http_server_app app_http_server = {
    .route = app_route,
    .dispatch = app_dispatch,
    .reject = app_reject,
    .done = app_done,
    .loop_begin = app_loop_begin,
    .loop_end = app_loop_end,
};
