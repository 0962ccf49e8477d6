/* GET /metrics. */
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/status/metrics_text.h"

#include <stdlib.h>

int handle_metrics(struct app *app, struct http_request *x, struct err *e)
{
    struct http_reply r = {
        .status = 200,
        .content_type = "text/plain; version=0.0.4; charset=utf-8",
        .release = free,
    };
    struct buf text = {0};
    char *data;

    metrics_text(app->metrics, app, &text);
    data = buf_take(&text, &r.len);
    if (data == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the metrics");
    r.data = data;
    r.release_arg = data;
    http_reply(x, &r);
    return 0;
}
