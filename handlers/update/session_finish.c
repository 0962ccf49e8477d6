/* A client whose router sends all requests of a trajectory to one server reports its end. This
 * server keeps nothing for a trajectory, so there is nothing to free. */
#include "handlers/control_plane.h"
#include "handlers/reply.h"

int handle_session_finish(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)e;
    reply_json(x, 200, json_object());
    return 0;
}
