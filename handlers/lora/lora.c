/* POST /v1/unload_lora_adapter, GET /v1/lora_adapters. */
#include "base/log.h"
#include "control/pause_controller.h"
#include "engine/lora/adapters.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/lora/lora_json.h"
#include "handlers/reply.h"
#include "handlers/rows/lora_request.h"

static int need_engine(const struct app_generate *generate, struct err *e)
{
    if (generate->adapters == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it has no adapters");
    return 0;
}

int handle_lora_list(struct app *app, struct http_request *x, struct err *e)
{
    if (need_engine(app->generate, e) != 0)
        return -1;
    reply_json(x, 200,
               json_pack("{s:o, s:o}", "adapters", lora_list_json(app->generate), "totals",
                         lora_gauges_json(app->generate)));
    return 0;
}

static void log_unloaded(const char *name, const struct adapters_unloaded *done)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "lora.unloaded");
    log_str(&r, "lora_name", name);
    log_u64(&r, "revision", done->revision);
    log_event(&r);
}

int handle_lora_unload(struct app *app, struct http_request *x, struct err *e)
{
    struct lora_unload_request req = {0};
    struct adapters_unloaded done;
    json_auto_t *body = NULL;

    if (pause_controller_allows(app->pause_controller, CALL_LORA_UNLOAD, e) != 0 ||
        need_engine(app->generate, e) != 0 || body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, lora_unload_members, body, "", e) != 0)
        return -1;
    if (*req.name == '\0')
        return err_set(e, ERR_BAD_REQUEST, "/lora_name", "the name is empty");
    if (adapters_unload(app->generate->adapters, req.name, &done, e) != 0)
        return -1;
    log_unloaded(req.name, &done);
    reply_json(x, 200,
               json_pack("{s:s, s:s, s:I, s:I, s:o}", "status", "ok", "lora_name", req.name,
                         "revision", (json_int_t)done.revision, "n_users", (json_int_t)done.n_users,
                         "loaded_adapters", lora_loaded_json(app->generate)));
    return 0;
}
