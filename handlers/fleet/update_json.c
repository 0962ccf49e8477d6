/* An update of the fleet as JSON: the members of a baton's own update, as one of the engines
 * reports them, with the fleet's members put over them, and each engine's result. */
#include "base/clock.h"
#include "base/json_parse.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"

#include "control/life.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"

#include <stdlib.h>
#include <string.h>

static json_t *part_json(const struct fleet_session *s, const struct fleet_part *p,
                         const char *name)
{
    bool ok = !p->out && (part_has_finished(p) ? part_serves(p) : fleet_session_is_open(s));
    const char *error = p->why.code != ERR_NONE ? p->why.msg : NULL;
    char cache_error[ERR_MSG_MAX];

    (void)snprintf(cache_error, sizeof cache_error,
                   "it gets no requests until its caches are empty: %.350s", p->cache_error.msg);
    if (ok && error == NULL && p->cache_error.code != ERR_NONE)
        error = cache_error;
    if (!ok && error == NULL)
        error = "it did not finish the update";
    return fleet_result_json(name, ok, p->status, error);
}

static const struct fleet_part *part_of(const struct fleet_session *s,
                                        const struct upstream *upstream)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].number == upstream_number(upstream))
            return &s->parts[i];
    return NULL;
}

/* Why an engine takes no part. Of the engines that answer, a partial update takes those that serve
 * the version that it changes. */
static const char *absence_reason(const struct fleet_session *s)
{
    return s->partial
               ? "it takes no part: when the update began it did not answer, or did not serve "
                 "the fleet's version, and a partial update cannot bring it there"
               : "it takes no part: it did not answer when the update began";
}

static json_t *parts_json(const struct app *app, const struct fleet_session *s)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    json_t *list = json_array();

    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_part *p = part_of(s, all->items[i]);
        const char *name = upstream_name(all->items[i]);

        if (p != NULL)
            list = json_list_append(list, part_json(s, p, name));
        else if (!upstream_is_removed(all->items[i]))
            list = json_list_append(list, fleet_result_json(name, false, 0, absence_reason(s)));
    }
    return list;
}

/* For a fleet in which no engine counts tensors. */
static int put_defaults(json_t *reply)
{
    return json_object_update_missing_new(
        reply, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:[]}", "staging_nbytes", 0, "nbytes_done",
                         0, "nbytes_total", 0, "n_tensors_done", 0, "n_tensors_total", 0,
                         "n_missing", 0, "missing"));
}

static json_t *session_json(const struct app *app, const struct fleet_session *s)
{
    json_t *reply = s->report != NULL ? json_deep_copy_all(api_object_json(s->report))
                                      : json_object();
    double left_s = fleet_session_is_open(s) ? (double)lease_timer_left_us(&s->lease) / 1e6 : 0;
    json_t *own = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:f, s:f, s:s, s:o, s:o}", "update_id", s->id, "phase",
        s->starting ? "starting" : update_phase_name(s->phase), "coverage", fleet_coverage_name(s),
        "placement", s->sharded ? "sharded" : "replicated", "partial", (int)s->partial,
        "weight_version", s->label[0] != '\0' ? json_string(s->label) : json_null(), "serial",
        s->serial > 0 ? json_integer((json_int_t)s->serial) : json_null(), "lease_left_s", left_s,
        "deadline_left_s", left_s, "boot_id", app->life->boot_id, "error", error_json(&s->error),
        "upstreams", parts_json(app, s));

    if (reply == NULL || own == NULL || json_object_update(reply, own) != 0 ||
        put_defaults(reply) != 0) {
        json_decref(reply);
        reply = NULL;
    }
    /* Reports are kept from before the commit; what it changed is known to each engine. */
    if (reply != NULL)
        (void)json_object_del(reply, "changes");
    json_decref(own);
    return reply;
}

json_t *fleet_session_json(const struct app *app, struct fleet_session *s)
{
    struct fleet_session *copy = fleet_update_copy(app->fleet->control, s);
    json_t *reply;

    if (copy == NULL)
        return NULL;
    reply = session_json(app, copy);
    fleet_unref(app->fleet->control, copy);
    return reply;
}

json_t *fleet_session_details(const struct app *app, struct fleet_session *s)
{
    struct fleet_session *copy = fleet_update_copy(app->fleet->control, s);
    json_t *details;

    if (copy == NULL)
        return NULL;
    details = json_pack(
        "{s:s, s:s, s:o, s:o*, s:o*}", "update_id", copy->id, "phase",
        update_phase_name(copy->phase), "upstreams", parts_json(app, copy), "n_missing",
        json_deep_copy_all(json_object_get(api_object_json(copy->report), "n_missing")), "missing",
        json_deep_copy_all(json_object_get(api_object_json(copy->report), "missing")));
    fleet_unref(app->fleet->control, copy);
    return details;
}

json_t *fleet_update_json(const struct app *app)
{
    struct fleet_session *s = fleet_shown_session(app->fleet->control);
    json_t *update;

    if (s == NULL)
        return json_null();
    update = fleet_session_json(app, s);
    fleet_unref(app->fleet->control, s);
    return update;
}
