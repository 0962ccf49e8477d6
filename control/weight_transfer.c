/* /v1/weight_transfer: join a trainer's NCCL group, look at it, leave it.
 *
 * There is one group at a time. The next one is only begun when the last has been left: it takes
 * the last along and waits for its end on a thread of its own, so no request waits here. */
#include "control/weight_transfer.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/compat/vllm/packed_words.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/update/update_json.h"
#include "handlers/update/update_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TIMEOUT_S_MAX = 86400,
    FIRST_COLLECTIVE_S = 86400 /* a torch group's first collective is its trainer's first update;
                                  until then only the store tells that the trainer lives */
};

const char *const transfer_init_members[] = {
    "transport",
    "world_size",
    "rank_offset",
    "nccl_unique_id",
    "master_address",
    "master_port",
    "group_name",
    "timeout_s",
    "warm_up",
    "packed",
    "bucket_nbytes",
    "packed_buffer_size_bytes",
    "packed_num_buffers",
    NULL,
};
const char *const transfer_delete_members[] = {"group_name", NULL}; /* of dialects */

struct weight_transfer {
    struct mtx lock;             /* rank MTX_TRANSFER; guards down to the blank line */
    struct nccl_join *current;   /* owned; also one that has failed, so that it can be told why */
    struct nccl_join *leaving;   /* owned; was left by request; then there is no current one */
    struct nccl_packing packing; /* of the current one */
    struct err stuck;            /* clean unless an abort did not come back */
    bool stopped;

    struct weight_transfer_cfg cfg; /* immutable */
    struct nccl_join_stats stats;
};

/* Who is to be answered when a join is so far, or gone. */
struct waiter {
    struct weight_transfer *transfer;
    struct exchange *x;
};

int weight_transfer_new(struct weight_transfer **out, const struct weight_transfer_cfg *cfg,
                        struct err *e)
{
    struct weight_transfer *t = calloc(1, sizeof *t);

    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the weight transfer");
    mtx_init(&t->lock, MTX_TRANSFER);
    t->cfg = *cfg;
    *out = t;
    return 0;
}

static struct waiter *waiter_new(struct weight_transfer *t, struct exchange *x, struct err *e)
{
    struct waiter *w = malloc(sizeof *w);

    if (w == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    *w = (struct waiter){t, x};
    return w;
}

void weight_transfer_stop(struct weight_transfer *t)
{
    struct nccl_join *current, *leaving;
    struct err why = {0};

    (void)err_set(&why, ERR_DRAINING, "", "the server is stopping");
    mtx_lock(&t->lock);
    t->stopped = true;
    current = t->current;
    leaving = t->leaving;
    t->current = NULL;
    t->leaving = NULL;
    mtx_unlock(&t->lock);
    if (current != NULL)
        (void)nccl_join_leave(current, &why, NULL, NULL);
    nccl_join_free(current);
    nccl_join_free(leaving);
}

void weight_transfer_free(struct weight_transfer *t)
{
    if (t == NULL)
        return;
    weight_transfer_stop(t);
    mtx_fini(&t->lock);
    free(t);
}

bool weight_transfer_live(struct weight_transfer *t, struct err *why)
{
    bool live;

    mtx_lock(&t->lock);
    live = t->stuck.code == ERR_NONE;
    if (!live)
        *why = t->stuck;
    mtx_unlock(&t->lock);
    return live;
}

/* Is there a group, and how is it? */
static bool look(struct weight_transfer *t, struct nccl_join_info *info)
{
    bool some;

    mtx_lock(&t->lock);
    some = t->current != NULL;
    if (some)
        nccl_join_info(t->current, info);
    mtx_unlock(&t->lock);
    return some;
}

const char *weight_transfer_state(struct weight_transfer *t)
{
    struct nccl_join_info info;

    return look(t, &info) ? nccl_group_state_name(info.state) : "none";
}

const struct nccl_join_stats *weight_transfer_stats(const struct weight_transfer *t)
{
    return &t->stats;
}

/* What neither a GPU nor a library can be had for is refused the same way everywhere. */
static int check_able(const struct weight_transfer *t, struct err *e)
{
    if (t->cfg.n_devices == 0)
        return err_set(e, ERR_NO_GPU, "",
                       "the weights of this server lie in host memory, and NCCL needs GPUs: start "
                       "it with --device cuda:0");
    if (!t->cfg.nccl->available)
        return err_set(e, ERR_NO_NCCL, "",
                       "this server has no NCCL: %.300s; --nccl-library names the file, best the "
                       "trainer's own",
                       t->cfg.nccl->reason);
    return 0;
}

static int refuse_stopped(struct err *e)
{
    return err_set(e, ERR_DRAINING, "", "the server is stopping");
}

/* Whose broadcast comes first nobody could tell: nothing on NCCL's wire says what it is. */
static int check_alone_locked(struct weight_transfer *t, struct err *e)
{
    struct nccl_join_info info;

    nccl_join_info(t->current, &info);
    if (info.n_users == 0 || info.error.code != ERR_NONE)
        return 0;
    return err_set(e, ERR_CONFLICT, "/transport",
                   "another request is receiving by the group: send the next one when that has "
                   "been answered");
}

/* Of two groups, bytes of the one under names of the other would do worse than fail. */
static int check_name_locked(struct weight_transfer *t, const char *name, struct err *e)
{
    struct nccl_join_info info;

    if (name == NULL)
        return 0;
    nccl_join_info(t->current, &info);
    if (strcmp(info.group_name, name) == 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "/group_name",
                   "the group that was joined is '%.64s', and this is for '%.64s': there is one "
                   "at a time, and the last that was asked for replaces it",
                   info.group_name, name);
}

void weight_transfer_doubt(struct weight_transfer *t, const char *group_name)
{
    struct err other = {0};

    mtx_lock(&t->lock);
    if (t->current != NULL && check_name_locked(t, group_name, &other) == 0)
        nccl_join_doubt(t->current);
    mtx_unlock(&t->lock);
}

void weight_transfer_packing(struct weight_transfer *t, struct nccl_packing *out)
{
    mtx_lock(&t->lock);
    *out = t->current != NULL ? t->packing : (struct nccl_packing){0};
    mtx_unlock(&t->lock);
}

/* Cut as another group's were, bytes would come under wrong names. */
static int check_packing_locked(const struct weight_transfer *t, const struct nccl_packing *p,
                                struct err *e)
{
    if (p == NULL ||
        (p->packed == t->packing.packed && p->bucket_nbytes == t->packing.bucket_nbytes))
        return 0;
    return err_set(e, ERR_CONFLICT, "/transport",
                   "another group was joined while this request was read: send it again");
}

static int source_locked(struct weight_transfer *t, struct source **out, struct plan *plan,
                         struct packed_chunks *chunks, const char *name,
                         const struct nccl_packing *packing, bool sure, struct err *e)
{
    if (t->current != NULL && check_name_locked(t, name, e) == 0 &&
        check_packing_locked(t, packing, e) == 0 && check_alone_locked(t, e) == 0)
        return nccl_join_source_new(out, t->current, plan, chunks, sure, e);
    packed_chunks_fini(chunks);
    if (t->current != NULL)
        return -1;
    return t->stopped ? refuse_stopped(e)
                      : err_set(e, ERR_CONFLICT, "/transport",
                                "there is no group to receive from; POST "
                                "/v1/weight_transfer/init joins one");
}

int weight_transfer_source(struct weight_transfer *t, struct source **out, struct plan *plan,
                           struct packed_chunks *chunks, const char *group_name,
                           const struct nccl_packing *packing, bool sure, struct err *e)
{
    int rc = check_able(t, e);

    if (rc != 0) {
        packed_chunks_fini(chunks);
        return -1;
    }
    mtx_lock(&t->lock);
    rc = source_locked(t, out, plan, chunks, group_name, packing, sure, e);
    mtx_unlock(&t->lock);
    return rc;
}

/* JSON */

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *ranks_json(const struct weight_transfer *t, uint32_t rank_offset)
{
    json_t *ranks = json_array();

    for (uint32_t i = 0; i < t->cfg.n_devices; i++) {
        const struct device *d = t->cfg.devices[i];

        (void)json_array_append_new(
            ranks, json_pack("{s:I, s:s, s:s}", "rank", (json_int_t)(rank_offset + i), "place",
                             device_name(d), "uuid", device_about(d)->uuid));
    }
    return ranks;
}

/* @info  NULL: there is no group */
static json_t *group_json(const struct weight_transfer *t, const struct nccl_join_info *info)
{
    static const struct nccl_join_info none = {0};
    const struct nccl_join_info *i = info != NULL ? info : &none;
    char trainer[NCCL_VERSION_TEXT_MAX];
    bool some = info != NULL;

    nccl_version_text(trainer, i->trainer_version);
    return json_pack(
        "{s:s, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "state",
        some ? nccl_group_state_name(i->state) : "none", "transport", some ? "nccl" : NULL,
        "world_size", some ? json_integer(i->world_size) : json_null(), "rank_offset",
        some ? json_integer(i->rank_offset) : json_null(), "ranks",
        some ? ranks_json(t, i->rank_offset) : json_array(), "nccl_version",
        text_or_null(t->cfg.nccl->version), "nccl_library", text_or_null(t->cfg.nccl->path),
        "trainer_nccl_version", text_or_null(trainer), "bootstrap", text_or_null(i->bootstrap),
        "master", text_or_null(i->master), "group_name", text_or_null(i->group_name), "error",
        error_json(&i->error), "nbytes_received", (json_int_t)i->nbytes_received, "n_broadcasts",
        (json_int_t)i->n_broadcasts, "age_s",
        some ? json_real((double)(clock_now_us() - i->begun_us) / 1e6) : json_null());
}

json_t *weight_transfer_json(struct weight_transfer *t)
{
    struct nccl_join_info info;

    return group_json(t, look(t, &info) ? &info : NULL);
}

/* init */

struct init_req {
    uint32_t world_size, rank_offset;
    enum nccl_form form;
    uint8_t id[NCCL_ID_NBYTES];
    const char *host, *group_name; /* borrowed from the body */
    uint16_t port;
    bool warm_up;
    struct nccl_packing packing;
    uint64_t timeout_us, first_collective_us;
};

static int parse_id(struct init_req *req, const char *text, const json_t *body, struct err *e)
{
    static const char *const others[] = {"master_address", "master_port", "group_name"};
    char field[32];

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (body_given(body, others[i]) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%s", others[i]);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s says where to find an id, and nccl_unique_id came too: send one of them",
                       others[i]);
    }
    req->form = NCCL_FORM_ID;
    return nccl_id_from_base64(req->id, text, strlen(text), "/nccl_unique_id", e);
}

static int check_name(const char *text, size_t len_max, const char *field, struct err *e)
{
    size_t len = strlen(text);

    if (len == 0 || len > len_max)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is 1 to %zu bytes long; this has %zu",
                       field + 1, len_max, len);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, field, "byte %zu of %s is a control character", i,
                           field + 1);
    return 0;
}

static int parse_store(struct init_req *req, const json_t *body, struct err *e)
{
    uint64_t port = 0;

    if (body_str(&req->host, body, "", "master_address", e) != 0 ||
        body_u64(&port, body, "", "master_port", 1, UINT16_MAX, e) != 0 ||
        body_str(&req->group_name, body, "", "group_name", e) != 0)
        return -1;
    if (req->host == NULL && port == 0)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the group's id is needed, or where it is found: nccl_unique_id, or "
                       "master_address and master_port");
    if (req->host == NULL || port == 0)
        return err_set(e, ERR_BAD_REQUEST, req->host == NULL ? "/master_address" : "/master_port",
                       "master_address and master_port go together");
    if (check_name(req->host, NCCL_JOIN_HOST_MAX, "/master_address", e) != 0 ||
        (req->group_name != NULL &&
         check_name(req->group_name, NCCL_JOIN_GROUP_NAME_MAX, "/group_name", e) != 0))
        return -1;
    req->port = (uint16_t)port;
    req->form = req->group_name != NULL ? NCCL_FORM_TORCH : NCCL_FORM_STORE;
    return 0;
}

static int parse_transport(const json_t *body, struct err *e)
{
    const char *transport = NULL;

    if (body_required(body, "", "transport", e) != 0 ||
        body_str(&transport, body, "", "transport", e) != 0)
        return -1;
    if (strcmp(transport, "nccl") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/transport",
                       "transport '%.32s' is not nccl or ipc; the others need no group", transport);
    return 0;
}

/* Trainers that send handles announce themselves too: there is nothing to join, nor to leave. */
static bool needs_no_group(const json_t *body)
{
    const char *transport = json_string_value(json_object_get(body, "transport"));

    return transport != NULL && strcmp(transport, "ipc") == 0;
}

static int check_no_group(const json_t *body, struct err *e)
{
    bool packed = false; /* the handles say it themselves */
    char field[32];

    for (size_t i = 0; transfer_init_members[i] != NULL; i++) {
        const char *member = transfer_init_members[i];

        if (strcmp(member, "transport") == 0 || strcmp(member, "packed") == 0 ||
            body_given(body, member) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%s", member);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s speaks of a group, and transport ipc has none", member);
    }
    return body_bool(&packed, body, "", "packed", e);
}

static int parse_time(struct init_req *req, const json_t *body, uint64_t default_us, struct err *e)
{
    uint64_t timeout_s = 0;

    if (body_u64(&timeout_s, body, "", "timeout_s", 1, TIMEOUT_S_MAX, e) != 0)
        return -1;
    req->timeout_us = timeout_s > 0 ? timeout_s * 1000000 : default_us;
    req->first_collective_us = timeout_s > 0 ? req->timeout_us
                                             : (uint64_t)FIRST_COLLECTIVE_S * 1000000;
    return 0;
}

static int init_parse(struct init_req *req, const struct weight_transfer *t, const json_t *body,
                      struct err *e)
{
    const char *id = NULL;
    uint64_t world_size = 0, rank_offset = 1;
    struct packed_words words;

    if (parse_transport(body, e) != 0 || body_required(body, "", "world_size", e) != 0 ||
        body_u64(&world_size, body, "", "world_size", 2, NCCL_WORLD_MAX, e) != 0 ||
        body_u64(&rank_offset, body, "", "rank_offset", 1, NCCL_WORLD_MAX - 1, e) != 0 ||
        body_str(&id, body, "", "nccl_unique_id", e) != 0 ||
        (id != NULL ? parse_id(req, id, body, e) : parse_store(req, body, e)) != 0 ||
        parse_time(req, body, t->cfg.join_timeout_us, e) != 0 ||
        packed_parse_join(&words, body, e) != 0)
        return -1;
    req->packing = (struct nccl_packing){words.packed, words.bucket_nbytes};
    req->world_size = (uint32_t)world_size;
    req->rank_offset = (uint32_t)rank_offset;
    req->warm_up = req->form != NCCL_FORM_TORCH;
    return body_bool(&req->warm_up, body, "", "warm_up", e);
}

/* A server without GPUs would be one rank at least. */
static int init_validate(const struct init_req *req, const struct weight_transfer *t, struct err *e)
{
    uint32_t n_ranks = t->cfg.n_devices > 0 ? t->cfg.n_devices : 1;
    const struct cidr_list *allow = t->cfg.allow;

    if (n_ranks >= req->world_size || req->rank_offset > req->world_size - n_ranks)
        return err_set(e, ERR_BAD_REQUEST,
                       n_ranks >= req->world_size ? "/world_size" : "/rank_offset",
                       "this server is ranks %u to %u, and a world of %u has ranks 0 to %u, of "
                       "which 0 is the trainer",
                       (unsigned)req->rank_offset, (unsigned)(req->rank_offset + n_ranks - 1),
                       (unsigned)req->world_size, (unsigned)(req->world_size - 1));
    if (req->form == NCCL_FORM_ID && allow->n > 0)
        return nccl_id_allow(req->id, cidr_list_match, allow, "/nccl_unique_id", e);
    return 0;
}

static void init_answered(void *arg, const struct nccl_join_info *info, const struct err *e)
{
    struct waiter *w = arg;

    if (e->code != ERR_NONE)
        reply_error(w->x, e, NULL);
    else
        reply_json(w->x, 200, group_json(w->transfer, info));
    free(w);
}

static void got_stuck(void *arg, const struct err *why)
{
    struct weight_transfer *t = arg;

    mtx_lock(&t->lock);
    t->stuck = *why;
    mtx_unlock(&t->lock);
}

/* May another group take the place of the one there is? */
static int check_replaceable_locked(struct weight_transfer *t, struct err *e)
{
    struct nccl_join_info info;

    if (t->stopped)
        return refuse_stopped(e);
    if (t->stuck.code != ERR_NONE) {
        *e = t->stuck;
        return -1;
    }
    if (t->current == NULL)
        return 0;
    nccl_join_info(t->current, &info);
    if (info.n_users == 0 || info.error.code != ERR_NONE)
        return 0;
    return err_set(e, ERR_CONFLICT, "",
                   "an update is receiving by the group that there is; let it end, or leave the "
                   "group by DELETE /v1/weight_transfer");
}

static int begin_locked(struct weight_transfer *t, const struct nccl_join_cfg *given, struct err *e)
{
    struct nccl_join_cfg cfg = *given;
    struct nccl_join *j;

    if (check_replaceable_locked(t, e) != 0)
        return -1;
    cfg.previous = t->current != NULL ? t->current : t->leaving;
    if (nccl_join_new(&j, &cfg, e) != 0)
        return -1;
    t->current = j;
    t->leaving = NULL;
    return 0;
}

static int begin(struct weight_transfer *t, const struct init_req *req, struct exchange *x,
                 struct err *e)
{
    struct waiter *w = waiter_new(t, x, e);
    struct nccl_join_cfg cfg = {
        .group = {.nccl = &t->cfg.nccl->api,
                  .devices = t->cfg.devices,
                  .n_ranks = t->cfg.n_devices,
                  .world_size = req->world_size,
                  .rank_offset = req->rank_offset,
                  .warm_up = req->warm_up},
        .version = t->cfg.nccl->version_code,
        .form = req->form,
        .host = req->host,
        .port = req->port,
        .group_name = req->group_name,
        .allow = t->cfg.allow,
        .timeout_us = req->timeout_us,
        .first_collective_us = req->first_collective_us,
        .stats = &t->stats,
        .answer = init_answered,
        .answer_arg = w,
        .x = x,
        .stuck = got_stuck,
        .stuck_arg = t,
    };
    int rc;

    if (w == NULL)
        return -1;
    memcpy(cfg.id, req->id, sizeof cfg.id);
    mtx_lock(&t->lock);
    rc = begin_locked(t, &cfg, e);
    if (rc == 0)
        t->packing = req->packing;
    mtx_unlock(&t->lock);
    if (rc != 0)
        free(w);
    return rc;
}

/* What the trainer before has left half sent must not become one model with what this one sends. */
static void give_up_last(struct app *app, const struct route *route)
{
    if (route->session == SESSION_IMPLICIT)
        session_give_up(app, true, "its trainer asks for a new group");
}

static int join_group(struct app *app, struct exchange *x, const json_t *body, struct err *e)
{
    struct init_req req = {0};

    if (init_parse(&req, app->transfer, body, e) != 0 ||
        init_validate(&req, app->transfer, e) != 0 || check_able(app->transfer, e) != 0)
        return -1;
    give_up_last(app, x->route);
    return begin(app->transfer, &req, x, e);
}

int handle_transfer_init(struct app *app, struct exchange *x, struct err *e)
{
    const struct route *route = x->route;
    bool no_group;
    json_t *body;
    int rc;

    if (body_parse(&body, x, route, e) != 0)
        return -1;
    no_group = needs_no_group(body);
    rc = no_group ? check_no_group(body, e) : join_group(app, x, body, e);
    json_decref(body);
    if (rc == 0 && no_group) {
        give_up_last(app, route);
        reply_json(x, 200, weight_transfer_json(app->transfer));
    }
    return rc;
}

int handle_transfer_get(struct app *app, struct exchange *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, weight_transfer_json(app->transfer));
    return 0;
}

/* Nothing of the group is left. */
static void left(void *arg)
{
    struct waiter *w = arg;

    reply_json(w->x, 200, group_json(w->transfer, NULL));
    free(w);
}

/* @name  NULL: whichever there is. *waits: w is answered later. */
static int leave_locked(struct weight_transfer *t, struct waiter *w, const char *name, bool *waits,
                        struct err *e)
{
    struct err why = {0};

    if (t->current == NULL)
        return 0;
    if (check_name_locked(t, name, e) != 0)
        return -1;
    (void)err_set(&why, ERR_CONFLICT, "", "the group was left, as was asked");
    t->leaving = t->current;
    t->current = NULL;
    *waits = nccl_join_leave(t->leaving, &why, left, w);
    return 0;
}

static int leave(struct weight_transfer *t, struct exchange *x, const char *name, struct err *e)
{
    struct waiter *w = waiter_new(t, x, e);
    bool waits = false;
    int rc;

    if (w == NULL)
        return -1;
    mtx_lock(&t->lock);
    rc = leave_locked(t, w, name, &waits, e);
    mtx_unlock(&t->lock);
    if (rc != 0)
        free(w);
    else if (!waits)
        left(w);
    return rc;
}

/* A dialect's request may name the group in its body. */
int handle_transfer_delete(struct app *app, struct exchange *x, struct err *e)
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
        rc = leave(app->transfer, x, name, e);
    json_decref(body);
    return rc;
}
