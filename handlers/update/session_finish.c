/* A trajectory is over, says a client whose router kept its requests on one server. Here no session
 * holds anything, so there is nothing to give back. */
#include "handlers/control_plane.h"
#include "handlers/reply.h"

int handle_session_finish(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)e;
    reply_json(x, 200, json_object());
    return 0;
}
