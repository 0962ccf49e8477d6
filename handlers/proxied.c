#include "handlers/proxied.h"

#include "handlers/route.h"

int handle_proxied(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;

    (void)app;
    return err_set(e, ERR_NOT_FOUND, "",
                   "%s is passed on to engines that have it (--upstream); the embedded engine does "
                   "not",
                   route->pattern);
}
