/* The reply to a request whose update has ended. */
#include "handlers/update/update_requester.h"

#include "control/generations.h"
#include "control/weight_transfer.h"
#include "fleet/calls/fleet_request.h"
#include "handlers/app.h"
#include "handlers/reply.h"
#include "handlers/update_json.h"
#include "http/http_request.h"

#include <stdlib.h>

struct update_requester {
    struct app *app; /* borrowed */
    struct http_request *x;
    uint64_t group; /* source_group */
};

int update_requester_new(struct update_requester **out, struct app *app, struct http_request *x,
                         const struct source *source, struct err *e)
{
    struct update_requester *a = malloc(sizeof *a);

    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    *a = (struct update_requester){.app = app, .x = x, .group = source_group(source)};
    *out = a;
    return 0;
}

void update_requester_free(struct update_requester *a)
{
    free(a);
}

bool update_requester_disconnected(void *asker)
{
    return http_request_disconnected(((struct update_requester *)asker)->x);
}

void update_abort_generations(struct app *app)
{
    if (app->fleet != NULL)
        fleet_abort_all_requests(app->fleet->control);
    else
        (void)generations_abort(app->generate->generations, NULL, 0);
}

/* Adds which upstreams have the committed version (--stage); NULL is returned for lack of memory.
 * @object  may be NULL */
static json_t *with_handed(json_t *object, const struct app *app, const struct update_info *info)
{
    if (object == NULL || app->fleet == NULL || info->phase != UPDATE_COMMITTED ||
        json_object_set_new(object, "upstreams", app->fleet->handed(app, info->serial)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *requester_adapters_json(const struct app_generate *generate)
{
    return generate->lora != NULL ? generate->lora->valid(generate) : json_array();
}

/* A commit is reported even if there is no memory for the full reply: a 503 would mean that
 * nothing has changed. */
static json_t *committed_json(const struct app *app, const struct update_info *info)
{
    json_t *reply = with_handed(update_json(info), app, info);

    if (reply != NULL &&
        json_object_set_new(reply, "adapters", requester_adapters_json(app->generate)) != 0) {
        json_decref(reply);
        return NULL;
    }
    return reply;
}

static void answer_committed(const struct app *app, struct http_request *x,
                             const struct update_info *info)
{
    static const char bare[] = "{\"phase\":\"committed\"}";
    struct http_reply r;

    if (!reply_json_make(x, 200, committed_json(app, info), &r))
        r = (struct http_reply){.status = 200,
                                .content_type = "application/json",
                                .data = bare,
                                .len = sizeof bare - 1};
    http_reply(x, &r);
}

void update_note_end(struct http_request *x, const struct update_info *info, const struct err *e)
{
    x->error_reported = info->phase == UPDATE_ABORTED; /* by the end of the update */
    x->committed = info->phase == UPDATE_COMMITTED && e->code != ERR_ENDED;
}

void update_reply_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct update_requester a = *(struct update_requester *)arg;
    struct update_info ended;
    struct err told = *e, ignored = {0}; /* it may have ended already */

    update_requester_free(arg);
    /* What follows in an update of patches would build on what was refused. */
    if (e->code != ERR_NONE && info->base.unchecked &&
        updates_fail(a.app->weights->updates, info->id, e, &ended, &ignored) == 0)
        info = &ended;
    update_note_end(a.x, info, e);
    if (e->code != ERR_NONE && a.group != 0)
        weight_transfer_tell(a.app->weights->transfer, a.group, &told);
    if (e->code != ERR_NONE)
        reply_error(a.x, &told, with_handed(update_details(info), a.app, info));
    else if (info->phase == UPDATE_COMMITTED)
        answer_committed(a.app, a.x, info);
    else
        reply_json(a.x, 200, update_json(info));
}
