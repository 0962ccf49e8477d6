/* The members of an update request besides its tensors. */
#include "handlers/update/update_params.h"

#include "handlers/body.h"
#include "handlers/route.h"
#include "handlers/update_members.h"

#include <stdio.h>

/* Options of a session are given at its start; its chunks must not repeat them. */
static int params_check(const struct update_params *w, struct err *e)
{
    if (w->update_id != NULL && update_id_check(w->update_id, UPDATE_ID_MAX, "/update_id", e) != 0)
        return -1;
    if (w->chunk_id != NULL &&
        update_id_check(w->chunk_id, UPDATE_CHUNK_ID_MAX, "/chunk_id", e) != 0)
        return -1;
    if (w->label != NULL && label_check(w->label, "/weight_version", e) != 0)
        return -1;
    if (w->update_id != NULL && w->partial_given)
        return err_set(e, ERR_BAD_REQUEST, "/partial",
                       "partial may only be set at /v1/update_weights/start");
    if (w->update_id != NULL && w->convert_given)
        return err_set(e, ERR_BAD_REQUEST, "/convert",
                       "convert may only be set at /v1/update_weights/start");
    if (w->update_id != NULL && w->placement_given)
        return err_set(e, ERR_BAD_REQUEST, "/placement",
                       "placement may only be set at /v1/update_weights/start");
    if (w->update_id == NULL && w->trainer_rank_given)
        return err_set(e, ERR_BAD_REQUEST, "/trainer_rank",
                       "trainer_rank is for a session, in which each rank of the trainer sends its "
                       "part: start one, and name its update_id");
    return 0;
}

/* Within a session, a client's X-Request-Id is the chunk's id. Not for a whole update: a trainer
 * that sends the same id at every step would get an old reply for new weights. */
void update_params_apply(struct update_chunk *c, const struct update_params *w,
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
    c->partial = w->partial;
    c->convert = w->convert || route_converts(x->route);
    c->sharded = w->sharded;
    c->has_trainer_rank = w->trainer_rank_given;
    c->trainer_rank = (uint32_t)w->trainer_rank;
    c->actor = x->actor;
}

int update_params_from_body(struct update_params *w, const json_t *body, struct err *e)
{
    const char *selector = NULL;

    if (body_str(&w->update_id, body, "", "update_id", e) != 0 ||
        body_str(&w->chunk_id, body, "", "chunk_id", e) != 0 ||
        body_str(&w->label, body, "", "weight_version", e) != 0 ||
        body_bool(&w->partial, body, "", "partial", e) != 0 ||
        body_bool(&w->convert, body, "", "convert", e) != 0 ||
        body_bool(&w->abort_requests, body, "", "abort_requests", e) != 0 ||
        placement_from_body(&w->sharded, body, e) != 0 ||
        body_u64(&w->trainer_rank, body, "", "trainer_rank", 0, UPDATE_TRAINER_RANKS_MAX - 1, e) !=
            0 ||
        selector_from_body(&selector, body, e) != 0)
        return -1;
    w->partial_given = body_given(body, "partial") != NULL;
    w->convert_given = body_given(body, "convert") != NULL;
    w->placement_given = body_given(body, "placement") != NULL;
    w->trainer_rank_given = body_given(body, "trainer_rank") != NULL;
    return params_check(w, e);
}

int update_params_from_query(struct update_params *w, const struct http_request *x, struct err *e)
{
    w->update_id = http_request_query(x, "update_id");
    w->chunk_id = http_request_query(x, "chunk_id");
    w->label = http_request_query(x, "weight_version");
    w->partial_given = http_request_query(x, "partial") != NULL;
    w->convert_given = http_request_query(x, "convert") != NULL;
    w->trainer_rank_given = http_request_query(x, "trainer_rank") != NULL;
    if (query_bool(&w->partial, x, "partial", e) != 0 ||
        query_bool(&w->convert, x, "convert", e) != 0 ||
        query_u64(&w->trainer_rank, x, "trainer_rank", 0, UPDATE_TRAINER_RANKS_MAX - 1, e) != 0)
        return -1;
    return params_check(w, e);
}
