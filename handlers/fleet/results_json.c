/* What each engine replied, for the replies of operations on all of them. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_result.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"

#include <stdio.h>

json_t *fleet_result_json(const char *name, bool ok, int status, const char *error)
{
    struct engine_result r = {.upstream = name, .ok = ok, .status = status, .error = error};

    return member_write(&r, result_reply);
}

/* For an engine to which nothing was sent. */
static json_t *no_result_json(const struct app *app, struct upstream *it)
{
    struct upstream_info info;
    char why[ERR_MSG_MAX + 32];

    fleet_info(upstreams_fleet(app->fleet->upstreams), it, &info);
    (void)snprintf(why, sizeof why, "it is %s%s%s",
                   upstream_info_is_probed(&info) ? upstream_state_name(info.state)
                                                  : "not yet probed",
                   info.error.why.code != ERR_NONE ? ": " : "", info.error.why.msg);
    return fleet_result_json(upstream_name(it), false, 0,
                             info.alive ? "no request was sent to it" : why);
}

/* One for each configured engine; for one without a result, `error` says why there is none (new).
 * NULL: no memory. */
static json_t *fleet_results_json(const struct app *app, const struct fleet_results *results)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    json_t *list = json_array();

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        const struct fleet_result *s = fleet_result_of(results, it);

        if (s != NULL)
            list = json_list_append(list,
                                    fleet_result_json(upstream_name(it), result_ok(s), s->status,
                                                      s->why.code != ERR_NONE ? s->why.msg : NULL));
        else if (!upstream_is_removed(it))
            list = json_list_append(list, no_result_json(app, it));
    }
    return list;
}

int fleet_reply(struct app *app, struct http_request *x, json_t *reply,
                const struct fleet_results *results, struct err *e)
{
    json_t *list;

    if (results->list == NULL || e->code != ERR_NONE) {
        json_decref(reply);
        reply = NULL;
    }
    if (results->list == NULL)
        return -1;
    list = fleet_results_json(app, results);
    if (e->code != ERR_NONE) {
        reply_error(x, e, json_pack("{s:o}", "upstreams", list));
    } else {
        if (json_object_set_new(reply, "upstreams", list) != 0) {
            json_decref(reply);
            reply = NULL;
        }
        reply_json(x, 200, reply);
    }
    return 0;
}

int fleet_body_parse(struct api_object *out, const struct http_request *x, struct err *e)
{
    if (body_parse(&out->owned, x, x->route, e) != 0)
        return -1;
    out->json = out->owned;
    return 0;
}

void fleet_body_fini(struct api_object *body)
{
    api_object_fini(body);
    json_decref(body->owned);
}
