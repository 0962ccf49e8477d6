/* Routes of other servers that are not supported. translate_request of the row refuses them with a
 * reason, which is more help than a 404. */
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/route.h"

int handle_unsupported(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    json_t *body = NULL;

    (void)app;
    if (body_parse(&body, x, route, e) != 0)
        return -1;
    json_decref(body);
    return err_set(e, ERR_BAD_REQUEST, "", "%s is not supported", route->pattern);
}
