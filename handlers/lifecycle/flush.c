/* Flush the cache, for clients that call this before an update to make sure that the server is
 * idle: refused while generations run or wait. While generation is paused, no waiting generation
 * starts, and frozen ones compute their KV again, so then it is allowed. */
#include "control/generations.h"
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"

int handle_flush_cache(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_controller_info info;
    size_t n;

    pause_controller_info(app->pause_controller, &info);
    n = generations_n(app->generate->generations);
    n = n > info.n_running ? n - info.n_running : 0;
    if (info.pause.state == PAUSE_OFF && info.n_running + n > 0)
        return err_set(e, ERR_CONFLICT, "",
                       "%zu generations run and %zu wait; pause first, or retry when they have "
                       "ended",
                       info.n_running, n);
    return handle_reset_cache_of(app, x, true, e);
}
