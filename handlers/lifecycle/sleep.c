/* sleep and wake. */
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

static unsigned tags_of(const struct wake_request *what)
{
    return (what->weights ? PAUSE_WEIGHTS : 0U) | (what->kv ? PAUSE_KV : 0U);
}

/* Replies with the sleep state and `more` (stolen). */
static void reply_sleep(struct app *app, struct http_request *x, json_t *more)
{
    json_t *reply = pause_controller_sleep_json(app->pause_controller);

    if (reply != NULL && (more == NULL || json_object_update(reply, more) != 0)) {
        json_decref(reply);
        reply = NULL;
    }
    json_decref(more);
    reply_json(x, 200, reply);
}

int handle_sleep(struct app *app, struct http_request *x, struct err *e)
{
    struct sleep_request req = {0};
    json_auto_t *body = NULL;
    struct slept slept = {0};
    unsigned tags;

    if (body_parse(&body, x, x->route, e) != 0 || sleep_parse(&req, body, e) != 0)
        return -1;
    slept.level = req.level;
    tags = tags_of(&req.what);
    if (tags != 0 &&
        pause_controller_sleep(app->pause_controller, (int)req.level, tags, &slept.what, e) != 0)
        return -1;
    reply_sleep(app, x, member_write(&slept, slept_reply));
    return 0;
}

int handle_wake(struct app *app, struct http_request *x, struct err *e)
{
    struct wake_request req = {0};
    json_auto_t *body = NULL;
    uint64_t nbytes = 0;
    unsigned tags;

    if (body_parse(&body, x, x->route, e) != 0 || wake_parse(&req, body, e) != 0)
        return -1;
    tags = tags_of(&req);
    if (tags != 0 && pause_controller_wake(app->pause_controller, tags, &nbytes, e) != 0)
        return -1;
    reply_sleep(app, x, json_pack("{s:I}", "restored", (json_int_t)nbytes));
    return 0;
}
