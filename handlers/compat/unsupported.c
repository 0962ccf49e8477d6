/* What other servers do and this one does not: it is refused by name, for a reason that the row's
 * way in gives. A path that is not there would say less. */
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
