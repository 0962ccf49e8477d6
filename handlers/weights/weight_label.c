/* POST /v1/weights/label: rename the served version. Bytes and serial stay the same, so
 * generations continue. A running generation reports the new name, in a span of its own, from
 * its next token on; downloads and leases that began before keep the old name. */
#include "base/log.h"
#include "control/generations.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/update_members.h"
#include "weights/store/store.h"

static void log_labelled(const char *label, uint64_t serial)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "weights.labelled");
    log_str(&r, "weight_version", label);
    log_u64(&r, "serial", serial);
    log_event(&r);
}

static int set_label(json_t **reply, struct app *app, const json_t *body, struct err *e)
{
    struct label_req req = {0};
    uint64_t serial;

    if (member_read(&req, weights_label_members, body, "", e) != 0 ||
        store_set_label(app->weights->store, req.label, req.if_serial, &serial, e) != 0)
        return -1;
    if (req.abort_requests)
        (void)generations_abort(app->generate->generations, NULL, 0);
    log_labelled(req.label, serial);
    *reply = json_pack("{s:s, s:I}", "weight_version", req.label, "serial", (json_int_t)serial);
    return 0;
}

int handle_weights_label(struct app *app, struct http_request *x, struct err *e)
{
    json_auto_t *body = NULL;
    json_t *reply;

    if (body_parse(&body, x, x->route, e) != 0 || set_label(&reply, app, body, e) != 0)
        return -1;
    reply_json(x, 200, reply);
    return 0;
}
