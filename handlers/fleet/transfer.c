/* The routes of a trainer's group in front of upstream engines. */
#include "base/clock.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "fleet/want/fleet_group_join.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/packing_json.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/update_request.h"

#include <string.h>

struct init_req {
    struct fleet_join_request join;
    struct fleet_handles handles; /* join.handles points here, or it is unused */
};

static int fleet_init_parse(struct init_req *req, const struct app *app, const json_t *body,
                            struct err *e)
{
    struct transfer_request r = {0};

    if (member_read(&r, transfer_init_members, body, "", e) != 0 ||
        packing_settle_join(&r.packing, e) != 0)
        return -1;
    req->join.group_name = r.group_name;
    req->join.timeout_us = r.timeout_s > 0 ? (uint64_t)r.timeout_s * 1000000
                                           : app->settings.join_timeout_ms * 1000;
    if (strcmp(r.transport, "ipc") == 0) {
        req->handles = (struct fleet_handles){
            .set = true, .on = r.packing.packed_given, .packed = r.packing.packed};
        req->join.handles = &req->handles;
        return 0;
    }
    req->join.packing = (struct api_packing){r.packing.packed, r.packing.bucket_nbytes};
    req->join.rank_offset = r.rank_offset;
    req->join.offset_given = r.rank_offset_given;
    req->join.world_size = r.world_size;
    return body_required(body, "", "world_size", e);
}

static json_t *fleet_ranks_json(struct app *app, struct fleet_group *g)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    json_t *ranks = json_array();

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        const struct fleet_group_member *m = fleet_group_member_of(g, it);

        for (uint64_t r = 0;
             m != NULL && r < m->n_ranks && fleet_group_has(app->fleet->control, g, it); r++)
            ranks = json_list_append(ranks,
                                     json_pack("{s:I, s:s}", "rank", (json_int_t)(m->offset + r),
                                               "upstream", upstream_name(it)));
    }
    return ranks;
}

/* The latest group, with the members of a group of a server's own engine. */
static json_t *group_json(struct app *app)
{
    struct fleet_group g;
    bool on = fleet_get_group(app->fleet->control, NULL, &g);

    return json_pack("{s:s, s:s?, s:o, s:o, s:o, s:o, s:n, s:o}", "state", on ? "joined" : "none",
                     "transport", on ? "nccl" : NULL, "world_size",
                     on ? json_integer((json_int_t)g.world_size) : json_null(), "rank_offset",
                     on ? json_integer((json_int_t)g.rank_offset) : json_null(), "ranks",
                     fleet_ranks_json(app, &g), "group_name",
                     g.name[0] != '\0' ? json_string(g.name) : json_null(), "error", "age_s",
                     on ? json_real((double)(clock_now_us() - g.began_us) / 1e6) : json_null());
}

/* The tensors of an earlier trainer must not be mixed with those of this one: an open update that
 * requests cannot name is aborted. */
static void abort_previous(struct app *app, const struct route *route)
{
    struct fleet_session *s;
    struct err why = {0}, ignored = {0};

    if (route->session != SESSION_AUTO_COMMIT)
        return;
    s = fleet_open_session(app->fleet->control);
    (void)err_set(&why, ERR_CONFLICT, "", "its trainer asks for a new group");
    if (s != NULL && s->anonymous)
        (void)fleet_abort_update_wait(app->fleet->control, s, &why, &ignored);
    fleet_unref(app->fleet->control, s);
}

int handle_fleet_transfer_init(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    struct fleet_control *fc = app->fleet->control;
    fleet_results_auto reply = {0};
    struct init_req req = {0};
    int rc;

    if (fleet_body_parse(&body, x, e) != 0 || fleet_init_parse(&req, app, body.json, e) != 0)
        return -1;
    req.join.ends_if_refused = ((const struct route *)x->route)->dialect != DIALECT_NATIVE;
    abort_previous(app, x->route);
    fleet_begin_push(fc);
    if (fleet_op_lock(fc, x, "the start of a group", e) != 0)
        return -1;
    (void)fleet_group_join(fc, &req.join, &body, &reply, e);
    rc = fleet_reply(app, x, group_json(app), &reply, e);
    fleet_op_unlock(fc);
    return rc;
}

int handle_fleet_transfer_get(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, group_json(app));
    return 0;
}

int handle_fleet_transfer_delete(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    fleet_results_auto reply = {0};
    const char *name = NULL;
    int rc;

    if (((const struct route *)x->route)->body == BODY_JSON &&
        (fleet_body_parse(&body, x, e) != 0 ||
         body_str(&name, body.json, "", "group_name", e) != 0))
        return -1;
    if (fleet_op_lock(app->fleet->control, x, "the end of a group", e) != 0)
        return -1;
    (void)fleet_group_leave(app->fleet->control, name, &reply, e);
    rc = fleet_reply(app, x, group_json(app), &reply, e);
    fleet_op_unlock(app->fleet->control);
    return rc;
}
