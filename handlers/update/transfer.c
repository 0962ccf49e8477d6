/* /v1/weight_transfer: join a trainer's NCCL group, show it, leave it. The group itself belongs
 * to control/weight_transfer.h. */
#include "control/weight_transfer.h"

#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/packing_json.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/transfer_json.h"
#include "handlers/update/update_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_COLLECTIVE_S =
        86400 /* in a torch group the first collective is the trainer's first update; until then
                 only the store shows whether the trainer is alive */
};

/* A request to be answered when the join or the leave is done. */
struct join_waiter {
    struct weight_transfer *transfer;
    struct http_request *x;
};

static struct join_waiter *join_waiter_new(struct weight_transfer *t, struct http_request *x,
                                           struct err *e)
{
    struct join_waiter *w = malloc(sizeof *w);

    if (w == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    *w = (struct join_waiter){t, x};
    return w;
}

struct init_req {
    struct transfer_request r;
    enum nccl_form form;
    uint8_t id[NCCL_ID_NBYTES];
    uint64_t timeout_us, first_collective_us;
};

static int parse_id(struct init_req *req, struct err *e)
{
    const struct transfer_request *r = &req->r;
    const char *other = r->host != NULL         ? "/master_address"
                        : r->port != 0          ? "/master_port"
                        : r->group_name != NULL ? "/group_name"
                                                : NULL;

    if (other != NULL)
        return err_set(e, ERR_BAD_REQUEST, other,
                       "%s is for finding an id, and nccl_unique_id was sent too: send one of them",
                       other + 1);
    req->form = NCCL_FORM_ID;
    return nccl_id_from_base64(req->id, r->id, strlen(r->id), "/nccl_unique_id", e);
}

static int check_store(struct init_req *req, struct err *e)
{
    const struct transfer_request *r = &req->r;

    if (r->host == NULL && r->port == 0)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the group's id, or the place to find it, is required: nccl_unique_id, or "
                       "master_address and master_port");
    if (r->host == NULL || r->port == 0)
        return err_set(e, ERR_BAD_REQUEST, r->host == NULL ? "/master_address" : "/master_port",
                       "master_address and master_port are required together");
    req->form = r->group_name != NULL ? NCCL_FORM_TORCH : NCCL_FORM_STORE;
    return 0;
}

/* Trainers that send CUDA IPC handles also send an init: there is no group to join or leave. */
static bool is_ipc(const json_t *body)
{
    const char *transport = json_string_value(json_object_get(body, "transport"));

    return transport != NULL && strcmp(transport, "ipc") == 0;
}

static int check_ipc_members(const json_t *body, struct err *e)
{
    const char *names[MEMBER_NAMES_MAX], **name = names;
    bool packed = false; /* ignored: visible in the handles */
    char field[32];

    member_names(names, transfer_init_members, 0);
    for (; *name != NULL; name++) {
        if (strcmp(*name, "transport") == 0 || strcmp(*name, "packed") == 0 ||
            body_given(body, *name) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%s", *name);
        return err_set(e, ERR_BAD_REQUEST, field, "%s is for a group, and transport ipc has none",
                       *name);
    }
    return body_bool(&packed, body, "", "packed", e);
}

static int transfer_init_parse(struct init_req *req, uint64_t join_timeout_us, const json_t *body,
                               struct err *e)
{
    struct transfer_request *r = &req->r;

    if (body_u32(&r->world_size, body, "", "world_size", 2, NCCL_WORLD_MAX, e) != 0 ||
        member_read(r, transfer_init_members, body, "", e) != 0 ||
        body_required(body, "", "world_size", e) != 0 ||
        (r->id != NULL ? parse_id(req, e) : check_store(req, e)) != 0 ||
        packing_settle_join(&r->packing, e) != 0)
        return -1;
    req->timeout_us = r->timeout_s > 0 ? (uint64_t)r->timeout_s * 1000000 : join_timeout_us;
    req->first_collective_us = r->timeout_s > 0 ? req->timeout_us
                                                : (uint64_t)FIRST_COLLECTIVE_S * 1000000;
    if (!r->warm_up_given)
        r->warm_up = req->form != NCCL_FORM_TORCH;
    return 0;
}

/* A server without GPUs counts as one rank. */
static int init_validate(const struct init_req *req, const struct weight_transfer_cfg *cfg,
                         struct err *e)
{
    uint32_t n_ranks = cfg->n_devices > 0 ? cfg->n_devices : 1;
    const struct cidr_list *allow = cfg->allow;

    if (n_ranks >= req->r.world_size || req->r.rank_offset > req->r.world_size - n_ranks)
        return err_set(e, ERR_BAD_REQUEST,
                       n_ranks >= req->r.world_size ? "/world_size" : "/rank_offset",
                       "this server is ranks %u to %u, and a world of %u has ranks 0 to %u, of "
                       "which 0 is the trainer",
                       (unsigned)req->r.rank_offset, (unsigned)(req->r.rank_offset + n_ranks - 1),
                       (unsigned)req->r.world_size, (unsigned)(req->r.world_size - 1));
    if (req->form == NCCL_FORM_ID && allow->n > 0)
        return nccl_id_allow(req->id, cidr_list_match, allow, "/nccl_unique_id", e);
    return 0;
}

static void reply_joined(void *arg, const struct nccl_join_info *info, const struct err *e)
{
    struct join_waiter *w = arg;

    if (e->code != ERR_NONE)
        reply_error(w->x, e, NULL);
    else
        reply_json(w->x, 200, transfer_json_of(w->transfer, info));
    free(w);
}

static int start_join(const struct app_weights *weights, const struct init_req *req,
                      struct http_request *x, struct err *e)
{
    struct weight_transfer *t = weights->transfer;
    struct store_info served;
    struct join_waiter *w = join_waiter_new(t, x, e);
    struct nccl_packing packing = {req->r.packing.packed, req->r.packing.bucket_nbytes};
    struct nccl_join_cfg invitation = {
        .group = {.world_size = req->r.world_size,
                  .rank_offset = req->r.rank_offset,
                  .warm_up = req->r.warm_up},
        .form = req->form,
        .host = req->r.host,
        .port = (uint16_t)req->r.port,
        .group_name = req->r.group_name,
        .timeout_us = req->timeout_us,
        .first_collective_us = req->first_collective_us,
        .ends_if_refused = ((const struct route *)x->route)->dialect != DIALECT_NATIVE,
        .answer = reply_joined,
        .answer_arg = w,
        .x = x,
    };

    if (w == NULL)
        return -1;
    memcpy(invitation.id, req->id, sizeof invitation.id);
    store_info(weights->store, &served);
    if (weight_transfer_join(t, &invitation, &packing, served.serial, e) == 0)
        return 0;
    free(w);
    return -1;
}

/* Tensors of an unfinished update of the previous trainer must not be mixed with this one's. */
static void abort_open_update(struct app *app, const struct route *route)
{
    if (route->session == SESSION_AUTO_COMMIT)
        request_session_abort(app, true, "its trainer initialized a new group");
}

static int join_group(struct app *app, struct http_request *x, const json_t *body, struct err *e)
{
    const struct weight_transfer_cfg *cfg = weight_transfer_config(app->weights->transfer);
    struct init_req req = {0};

    if (transfer_init_parse(&req, cfg->join_timeout_us, body, e) != 0 ||
        init_validate(&req, cfg, e) != 0 || weight_transfer_able(app->weights->transfer, e) != 0)
        return -1;
    abort_open_update(app, x->route);
    return start_join(app->weights, &req, x, e);
}

int handle_transfer_init(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    bool no_group;
    json_t *body;
    int rc;

    if (body_parse(&body, x, route, e) != 0)
        return -1;
    no_group = is_ipc(body);
    rc = no_group ? check_ipc_members(body, e) : join_group(app, x, body, e);
    json_decref(body);
    if (rc == 0 && no_group) {
        abort_open_update(app, route);
        reply_json(x, 200, transfer_json(app->weights->transfer));
    }
    return rc;
}

int handle_transfer_get(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, transfer_json(app->weights->transfer));
    return 0;
}

/* The group has been left completely. */
static void reply_left(void *arg)
{
    struct join_waiter *w = arg;

    reply_json(w->x, 200, transfer_json_of(w->transfer, NULL));
    free(w);
}

static int leave_group(struct weight_transfer *t, struct http_request *x, const char *name,
                       struct err *e)
{
    struct join_waiter *w = join_waiter_new(t, x, e);
    int rc;

    if (w == NULL)
        return -1;
    rc = weight_transfer_leave(t, name, reply_left, w, e);
    if (rc < 0)
        free(w);
    else if (rc == 0)
        reply_left(w);
    return rc < 0 ? -1 : 0;
}

/* A dialect's request may contain the group's name. */
int handle_transfer_delete(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    const char *name = NULL;
    json_t *body = NULL;
    int rc = 0;

    if (route->body == BODY_JSON && body_parse(&body, x, route, e) != 0)
        return -1;
    if (body != NULL)
        rc = body_str(&name, body, "", "group_name", e);
    if (rc == 0)
        rc = leave_group(app->weights->transfer, x, name, e);
    json_decref(body);
    return rc;
}
