/* POST /v1/weights/seed, and what the status says of seeds. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "handlers/status_json.h"
#include "transport/peer/seeder.h"

int handle_weights_seed(struct app *app, struct http_request *x, struct err *e)
{
    struct weights_seed_request req = {0};
    const char *peers[SEED_PEERS_MAX];
    json_auto_t *body = NULL;
    size_t n;

    if (body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, weights_seed_members, body, "", e) != 0)
        return -1;
    if (app->weights->seeder == NULL)
        return err_set(e, ERR_FORBIDDEN, "/peers",
                       "the server was started with neither --seed nor --seed-cidr, which say what "
                       "peers it may ask");
    n = json_array_size(req.peers);
    for (size_t i = 0; i < n; i++)
        peers[i] = json_string_value(json_array_get(req.peers, i));
    if (seeder_begin(app->weights->seeder, req.peers != NULL ? peers : NULL, n,
                     req.if_serial_given ? &req.if_serial : NULL, e) != 0)
        return -1;
    reply_json(x, 202, status_seed_json(app));
    return 0;
}
