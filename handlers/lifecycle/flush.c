/* Flush the cache, for clients that call this before an update to make sure that the server is
 * idle: refused while generations run or wait. While generation is paused, no waiting generation
 * starts, and frozen ones compute their KV again, so then it is allowed. */
#include "control/admission.h"
#include "control/pause_controller.h"
#include "engine/engine.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"

int handle_flush_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct admission_stats s;
    struct pause_controller_info info;

    pause_controller_info(app->pause_controller, &info);
    admission_stats(app->generate->admission, &s);
    if (info.pause.state == PAUSE_OFF && s.n_running + s.n_waiting > 0)
        return err_set(
            e, ERR_CONFLICT, "",
            "%llu generations run and %llu wait; pause first, or retry when they have ended",
            (unsigned long long)s.n_running, (unsigned long long)s.n_waiting);
    if (pause_controller_allows(app->pause_controller, CALL_RESET_CACHE, e) != 0)
        return -1;
    if (app->generate->engine != NULL)
        app->generate->engine->ops->kv_forget(app->generate->engine);
    return handle_reset_cache(app, x, e);
}
