/* The members of the status that every server has. */
#include "handlers/status_json.h"

#include "base/clock.h"
#include "control/life.h"
#include "handlers/app.h"
#include "handlers/history_json.h"

json_t *status_head_json(const struct app *app)
{
    struct err live_why = {0}, why = {0}, control_why = {0};
    bool live = app_live(app, &live_why);
    bool ready = app_ready(app, &why);
    bool control = app_control_ready(app, &control_why);
    json_t *reason = ready ? json_null()
                           : json_pack("{s:s, s:s}", "code", err_wire_name(why.code), "message",
                                       why.msg);

    return json_pack(
        "{s:s, s:s, s:f, s:s, s:b, s:b, s:b, s:o, s:{s:b, s:b}, s:o, s:o}", "boot_id",
        app->life->boot_id, "version", BATON_VERSION, "uptime_s",
        (double)(clock_now_us() - app->life->started_us) / 1e6, "life",
        life_state_name(life_state(app->life)), "live", (int)live, "ready", (int)ready,
        "control_ready", (int)control, "reason", reason, "server_args", "enable_memory_saver",
        (int)app->settings.sglang_memory_saver, "enable_return_routed_experts",
        app->generate != NULL && app->generate->info.n_route_layers > 0, "recent_updates",
        recent_updates_json(app->history), "recent_errors", recent_errors_json(app->history));
}

json_t *status_http_json(const struct app *app)
{
    struct http_server_stats s = {0};

    app_http_server_stats(app, &s);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "connections",
                     (json_int_t)s.n_connections, "accepted", (json_int_t)s.n_accepted, "requests",
                     (json_int_t)s.n_requests, "rejected", (json_int_t)s.n_rejected, "gone",
                     (json_int_t)s.n_gone, "timeouts", (json_int_t)s.n_timeouts, "loop_lag_ms_max",
                     (double)s.lag_us_max / 1e3);
}
