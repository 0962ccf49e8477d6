/* What each engine replied, for the replies of operations on all of them. */
#include "fleet/calls/fleet_result.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"

#include <stdio.h>

json_t *fleet_result_json(const char *name, bool ok, int status, const char *error)
{
    return json_pack("{s:s, s:b, s:o, s:s?}", "upstream", name, "ok", (int)ok, "status",
                     status > 0 ? json_integer(status) : json_null(), "error", error);
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

json_t *fleet_results_json(const struct app *app, const struct fleet_result *results, size_t n)
{
    struct upstream_list *all = upstreams_list(app->fleet->upstreams);
    json_t *list = json_array();

    for (size_t i = 0; i < all->n && list != NULL; i++) {
        struct upstream *it = all->items[i];
        const struct fleet_result *s = NULL;
        json_t *one;

        for (size_t k = 0; k < n; k++)
            if (results[k].upstream == it)
                s = &results[k];
        if (s == NULL && upstream_is_removed(it))
            continue;
        one = s == NULL ? no_result_json(app, it)
                        : fleet_result_json(upstream_name(it),
                                            s->outcome == FLEET_OK || s->outcome == FLEET_SKIPPED,
                                            s->status, s->why.code != ERR_NONE ? s->why.msg : NULL);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    upstream_list_unref(all);
    return list;
}
