/* POST /v1/preflight: would this trainer's CUDA IPC handles work here, and if not, why? One
 * handle is opened on each rank and closed again. Nothing is copied and no counter is
 * decremented: the trainer may send the same handles in an update afterwards.
 *
 * A failed check is a result, not an error. Each check has a message; for a check that was
 * skipped, the message has the reason. Only a malformed body is refused. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/update/preflight_checks.h"
#include "transport/ipc/torch_handle.h"

#include <stdio.h>

static bool is_given(const json_t *body, const char *member)
{
    const json_t *value = json_object_get(body, member);

    return value != NULL && !json_is_null(value);
}

static int read_pickled(struct preflight_req *out, const json_t *body, struct err *e)
{
    const json_t *value = json_object_get(body, "ipc_handles_pickled");

    out->pickled = true;
    if (!json_is_string(value))
        return err_set(e, ERR_BAD_REQUEST, "/ipc_handles_pickled",
                       "ipc_handles_pickled is %s; expected base64", body_type_name(value));
    if (torch_handles_check(&out->handles, json_string_value(value), json_string_length(value),
                            "/ipc_handles_pickled", &out->expandable, e) == 0)
        return 0;
    if (!out->expandable)
        return -1;
    (void)snprintf(out->why, sizeof out->why, "%s", e->msg);
    err_clear(e);
    return 0;
}

static int preflight_parse(struct preflight_req *out, const json_t *body, struct err *e)
{
    bool plain = is_given(body, "ipc_handles"), pickled = is_given(body, "ipc_handles_pickled");

    if (plain == pickled)
        return err_set(e, ERR_BAD_REQUEST, "", "%s; send either ipc_handles or ipc_handles_pickled",
                       plain ? "both are given" : "neither is given");
    if (pickled)
        return read_pickled(out, body, e);
    return ipc_handles_from_json(&out->handles, json_object_get(body, "ipc_handles"),
                                 "/ipc_handles", e);
}

static json_t *report_json(const struct app *app, const struct preflight_req *req)
{
    struct preflight_report r = {.checks = json_array()};

    preflight_check_host(&r, app);
    preflight_check_allocator(&r, req);
    if (req->expandable || app->weights->n_devices == 0)
        preflight_check_without_gpu(&r, req);
    else
        for (uint32_t rank = 0; rank < app->weights->n_devices; rank++)
            preflight_check_rank(&r, app, &req->handles, rank);
    if (r.no_memory) {
        json_decref(r.checks);
        return NULL;
    }
    return json_pack("{s:b, s:o}", "ok", (int)!r.failed, "checks", r.checks);
}

int handle_preflight(struct app *app, struct http_request *x, struct err *e)
{
    struct preflight_req req = {0};
    json_t *body, *report;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = preflight_parse(&req, body, e);
    json_decref(body);
    if (rc != 0)
        return -1;
    report = report_json(app, &req);
    ipc_handles_fini(&req.handles);
    reply_json(x, 200, report);
    return 0;
}
