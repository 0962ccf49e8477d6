/* pause, resume, abort_requests. */
#include "base/clock.h"
#include "control/generations.h"
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_ID_LEN_MAX = 256 };

/* A pause request that waits for its acknowledgement. */
struct pending_pause {
    struct pause_controller_wait wait; /* first */
    struct http_request *x;
};

static void pending_pause_done(struct pause_controller_wait *w,
                               const struct pause_controller_info *info, const struct err *e)
{
    struct pending_pause *p = (struct pending_pause *)(void *)w;

    if (e->code != ERR_NONE)
        reply_error(p->x, e, NULL);
    else
        reply_json(p->x, 200, pause_controller_pause_json(info));
    free(p);
}

/* Called under the request's lock. */
static void pending_pause_disconnected(void *arg)
{
    struct pending_pause *p = arg;

    atomic_store_explicit(&p->wait.gone, true, memory_order_relaxed);
    pause_controller_wake_up(p->wait.pause_controller);
}

/* The disconnect callback must be set before the pause controller can answer, and removed before
 * the wait is freed. */
static int do_pause(struct app *app, struct http_request *x, const struct pause_request *req,
                    struct err *e)
{
    struct pending_pause *p = calloc(1, sizeof *p);
    struct pause_controller_info info;
    int rc;

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to wait for the pause");
    p->wait.pause_controller = app->pause_controller;
    p->wait.done = pending_pause_done;
    p->x = x;
    http_request_on_disconnect(x, pending_pause_disconnected, p);
    rc = pause_controller_pause(app->pause_controller, req, &p->wait, &info, e);
    if (rc == 1)
        return 0;
    http_request_on_disconnect(x, NULL, NULL);
    free(p);
    if (rc == 0)
        reply_json(x, 200, pause_controller_pause_json(&info));
    return rc;
}

int handle_pause(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_request req = {0};
    json_auto_t *body = NULL;

    if (body_parse(&body, x, x->route, e) != 0 || pause_parse(&req, x, body, e) != 0)
        return -1;
    return do_pause(app, x, &req, e);
}

int handle_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_controller_info info;
    bool was = pause_controller_resume(app->pause_controller, &info);

    (void)e;
    reply_json(x, 200,
               json_pack("{s:b, s:b, s:I}", "paused", 0, "was_paused", (int)was, "epoch",
                         (json_int_t)info.pause.epoch));
    return 0;
}

static int ids_parse(const char ***out, size_t *n, const json_t *list, struct err *e)
{
    size_t n_ids = json_array_size(list);
    const char **ids;

    if (n_ids > ABORT_IDS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/request_ids", "%zu ids; at most %d are allowed", n_ids,
                       ABORT_IDS_MAX);
    ids = calloc(n_ids > 0 ? n_ids : 1, sizeof *ids);
    if (ids == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu ids", n_ids);
    for (size_t i = 0; i < n_ids; i++) {
        char field[ERR_FIELD_MAX];

        ids[i] = json_string_value(json_array_get(list, i));
        if (ids[i] != NULL && strlen(ids[i]) <= REQUEST_ID_LEN_MAX)
            continue;
        free(ids);
        (void)snprintf(field, sizeof field, "/request_ids/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "an id is a string of up to %d bytes",
                       REQUEST_ID_LEN_MAX);
    }
    *out = ids;
    *n = n_ids;
    return 0;
}

int handle_abort_requests(struct app *app, struct http_request *x, struct err *e)
{
    struct abort_request req = {0};
    json_auto_t *body = NULL;
    const char **ids = NULL;
    size_t n_ids = 0;
    uint32_t n;

    if (pause_controller_allows(app->pause_controller, CALL_ABORT_REQUESTS, e) != 0 ||
        body_parse(&body, x, x->route, e) != 0 || abort_parse(&req, body, e) != 0 ||
        (!req.all && ids_parse(&ids, &n_ids, req.ids, e) != 0))
        return -1;
    n = generations_abort(app->generate->generations, ids, n_ids);
    free(ids);
    reply_json(x, 200, json_pack("{s:I}", "aborted", (json_int_t)n));
    return 0;
}
