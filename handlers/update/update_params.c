/* The members of an update request besides its tensors. */
#include "handlers/update/update_params.h"

#include "handlers/control_plane.h"
#include "handlers/route.h"

#include <stdio.h>

int delta_members_check(const struct delta_members *m, struct err *e)
{
    if (m->delta && m->base_version == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/delta",
                       "a delta needs base_version: the version that it builds on");
    if (m->base_update_id != NULL && m->base_version == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/base_update_id",
                       "base_update_id goes with base_version, the label of what that update made");
    if (m->delta && m->whole)
        return err_set(e, ERR_BAD_REQUEST, "/partial",
                       "partial is false, and delta is true: the tensors that a delta does not "
                       "name keep their bytes");
    if (m->delta && m->convert)
        return err_set(e, ERR_BAD_REQUEST, "/convert",
                       "a delta changes the served bytes: its values have the model's dtypes, and "
                       "nothing is converted");
    return 0;
}

/* Options of a session are given at its start; its chunks must not repeat them. */
static int params_check(const struct update_request *w, struct err *e)
{
    const char *at_start = w->partial_given            ? "/partial"
                           : w->convert_given          ? "/convert"
                           : w->placement_given        ? "/placement"
                           : w->delta_given            ? "/delta"
                           : w->base_version != NULL   ? "/base_version"
                           : w->base_update_id != NULL ? "/base_update_id"
                                                       : NULL;

    if (w->update_id != NULL && at_start != NULL)
        return err_set(e, ERR_BAD_REQUEST, at_start,
                       "%s may only be set at /v1/update_weights/start", at_start + 1);
    if (w->update_id == NULL && w->trainer_rank_given)
        return err_set(e, ERR_BAD_REQUEST, "/trainer_rank",
                       "trainer_rank is for a session, in which each rank of the trainer sends its "
                       "part: start one, and name its update_id");
    return delta_members_check(&(struct delta_members){.delta = w->delta,
                                                       .convert = w->convert,
                                                       .whole = w->partial_given && !w->partial,
                                                       .base_version = w->base_version,
                                                       .base_update_id = w->base_update_id},
                               e);
}

/* Within a session, a client's X-Request-Id is the chunk's id. Not for a whole update: a trainer
 * that sends the same id at every step would get an old reply for new weights. */
void update_params_apply(struct update_chunk *c, const struct update_request *w,
                         const struct http_request *x)
{
    if (w->update_id != NULL)
        (void)snprintf(c->update_id, sizeof c->update_id, "%s", w->update_id);
    if (w->chunk_id != NULL)
        (void)snprintf(c->chunk_id, sizeof c->chunk_id, "%s", w->chunk_id);
    else if (x->request_id_given && w->update_id != NULL)
        (void)snprintf(c->chunk_id, sizeof c->chunk_id, "%s", x->actor.request_id);
    if (w->label != NULL)
        (void)snprintf(c->label, sizeof c->label, "%s", w->label);
    c->partial = w->partial || w->delta;
    c->convert = w->convert || route_converts(x->route);
    c->sharded = w->placement == PLACEMENT_SHARDED;
    c->has_trainer_rank = w->trainer_rank_given;
    c->trainer_rank = w->trainer_rank;
    c->actor = x->actor;
}

int update_params_from_body(struct update_request *w, const json_t *body, struct err *e)
{
    return member_read(w, update_members, body, "", e) != 0 ? -1 : params_check(w, e);
}

int update_params_from_query(struct update_request *w, const struct http_request *x, struct err *e)
{
    return member_read_query(w, update_members, x, e) != 0 ? -1 : params_check(w, e);
}
