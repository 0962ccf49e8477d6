/* How the tensors that the trainer's group broadcasts are packed. NCCL transfers no such
 * information, so both sides must split the tensors in the same way: the request describes what
 * the trainer does. */
#include "control/weight_transfer.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/packing_json.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "transport/nccl/packed_chunks.h"
#include "weights/delta/delta.h"
#include "weights/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The members of a request. */
struct nccl_req {
    struct broadcast_request r;
    bool has_sizes;
};

/* Members that the request does not have are those of the request that joined the group.
 * @inherited  set if that makes a difference */
static void packing_inherit(struct nccl_req *req, const struct nccl_packing *group, bool *inherited)
{
    struct packing_request *p = &req->r.packing;

    *inherited = !p->packed_given;
    if (!p->packed_given)
        p->packed = group->packed;
    if (!p->packed || p->bucket_nbytes != 0 || (p->packed_given && req->has_sizes))
        return;
    p->bucket_nbytes = group->bucket_nbytes;
    p->field = "/sizes";
    *inherited = true;
}

static int nccl_parse(struct nccl_req *req, const json_t *body, struct err *e)
{
    req->has_sizes = body_given(body, "sizes") != NULL;
    if (member_read(&req->r, broadcast_rows, body, "", e) != 0)
        return -1;
    return packing_settle(&req->r.packing, e);
}

static int nccl_validate(const struct nccl_req *req, struct err *e)
{
    const struct packing_request *p = &req->r.packing;

    if (p->packed && !p->packed_given && req->has_sizes)
        return err_set(e, ERR_BAD_REQUEST, "/sizes",
                       "the group was joined with packed, which is many broadcasts, and packed "
                       "with sizes is one broadcast: send packed here too, or leave sizes out");
    if (p->bucket_nbytes == 0)
        return 0;
    if (!p->packed)
        return err_set(e, ERR_BAD_REQUEST, p->field,
                       "%s is for packed broadcasts: send \"packed\": true, or leave it out for "
                       "one broadcast of each tensor",
                       p->field + 1);
    if (req->has_sizes)
        return err_set(e, ERR_BAD_REQUEST, "/sizes",
                       "packed with sizes is one broadcast, with %s many: send one of them",
                       p->field + 1);
    return 0;
}

static int check_digest(const struct nccl_req *req, const struct tensor_list *tensor_list,
                        struct err *e)
{
    if (req->r.digest == NULL || strcasecmp(req->r.digest, tensor_list->digest) == 0)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/expected_digest",
                   "the trainer's tensor list has digest %s, but the received names, dtypes and "
                   "shapes have %s: nothing is received",
                   req->r.digest, tensor_list->digest);
}

static int split_chunks(struct packed_chunks *out, const struct nccl_req *req,
                        const struct tensor_list *tensor_list, struct err *e)
{
    uint64_t bucket_nbytes = PACKED_BUCKET_NBYTES_DEFAULT;

    if (!req->r.packing.packed)
        return packed_chunks_each(out, tensor_list, e);
    if (req->has_sizes)
        bucket_nbytes = UINT64_MAX;
    else if (req->r.packing.bucket_nbytes != 0)
        bucket_nbytes = req->r.packing.bucket_nbytes;
    return packed_chunks_init(out, tensor_list, bucket_nbytes, "", e);
}

/* The list of the request, or of the update before it. */
static int find_broadcast_list(struct tensor_list **out, const struct nccl_req *req,
                               const struct app_weights *weights, const json_t *body,
                               const struct body_columns *text, struct err *e)
{
    const char *plan_id = json_string_value(body_given(body, "plan_id"));
    char field[ERR_FIELD_MAX];

    if (plan_id != NULL && strcmp(plan_id, TENSOR_LIST_ID_LAST) == 0 &&
        member_given(field, tensor_list_rows, 0, body, "") == NULL)
        return weight_transfer_list(weights->transfer, out, req->r.group_name, e);
    return tensor_list_resolve(out, weights, body, text, "", false, e);
}

/* @out  malloc'ed, [n] */
static int read_counts(uint64_t **out, const json_t *list, uint32_t n, struct err *e)
{
    char field[ERR_FIELD_MAX];
    uint64_t *counts;

    if (json_array_size(list) != n)
        return err_set(e, ERR_BAD_REQUEST, "/num_updates_list",
                       "num_updates_list has %zu entries for %u tensors", json_array_size(list),
                       (unsigned)n);
    counts = calloc(n, sizeof *counts);
    if (counts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for patches of %u tensors", (unsigned)n);
    for (uint32_t i = 0; i < n; i++) {
        json_int_t count = json_integer_value(json_array_get(list, i));

        if (!json_is_integer(json_array_get(list, i)) || count < 0) {
            free(counts);
            (void)snprintf(field, sizeof field, "/num_updates_list/%u", (unsigned)i);
            return err_set(e, ERR_BAD_REQUEST, field,
                           "a number of updates is an integer from 0 on");
        }
        counts[i] = (uint64_t)count;
    }
    *out = counts;
    return 0;
}

/* Its values come unpacked, each tensor's behind its positions: parts of a delta. */
static int read_patches(struct update_chunk *c, struct delta **patches, const struct nccl_req *req,
                        const struct model_spec *m, const json_t *body, struct err *e)
{
    struct tensor_list *parts = NULL;
    uint64_t *counts = NULL;
    int rc;

    if (req->r.packing.packed_given && req->r.packing.packed)
        return err_set(e, ERR_BAD_REQUEST, "/packed", "patches are not packed");
    if (req->r.packing.bucket_nbytes != 0)
        return err_set(e, ERR_BAD_REQUEST, req->r.packing.field,
                       "%s does not go with num_updates_list: patches are not packed",
                       req->r.packing.field + 1);
    if (body_given(body, "checksums") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/checksums",
                       "checksums are of whole tensors: send those of the new ones at the finish");
    if (read_counts(&counts, body_given(body, "num_updates_list"), c->tensor_list->n_tensors, e) !=
        0)
        return -1;
    rc = delta_of_patches(patches, &parts, m, c->tensor_list, counts, e);
    free(counts);
    if (rc != 0)
        return -1;
    tensor_list_unref(c->tensor_list);
    c->tensor_list = parts;
    return 0;
}

static int patches_from_body(struct update_chunk *c, struct delta **patches,
                             const struct nccl_req *req, const struct app_weights *weights,
                             const json_t *body, const struct body_columns *text, struct err *e)
{
    struct packed_chunks chunks = {0};

    if (find_broadcast_list(&c->tensor_list, req, weights, body, text, e) != 0 ||
        check_digest(req, c->tensor_list, e) != 0 ||
        read_patches(c, patches, req, store_model_spec(weights->store), body, e) != 0 ||
        packed_chunks_each(&chunks, c->tensor_list, e) != 0)
        return -1;
    return weight_transfer_source(weights->transfer, &c->source, c->tensor_list, &chunks,
                                  req->r.group_name, NULL, req->r.digest != NULL, e);
}

int nccl_from_body(struct update_chunk *c, struct delta **patches,
                   const struct app_weights *weights, const json_t *body,
                   const struct body_columns *text, struct err *e)
{
    struct packed_chunks chunks = {0};
    struct nccl_packing group;
    struct nccl_req req = {0};
    bool inherited;

    weight_transfer_packing(weights->transfer, &group);
    if (nccl_parse(&req, body, e) != 0)
        return -1;
    if (patches != NULL && body_given(body, "num_updates_list") != NULL)
        return patches_from_body(c, patches, &req, weights, body, text, e);
    packing_inherit(&req, &group, &inherited);
    if (nccl_validate(&req, e) != 0 ||
        find_broadcast_list(&c->tensor_list, &req, weights, body, text, e) != 0 ||
        checksums_add(&c->checksums, &c->has_checksum, body, "", c->tensor_list, 0,
                      c->tensor_list->n_tensors, e) != 0 ||
        check_digest(&req, c->tensor_list, e) != 0 ||
        split_chunks(&chunks, &req, c->tensor_list, e) != 0)
        return -1;
    return weight_transfer_source(weights->transfer, &c->source, c->tensor_list, &chunks,
                                  req.r.group_name, inherited ? &group : NULL, req.r.digest != NULL,
                                  e);
}

bool route_accepts_nccl(const struct http_request *x)
{
    const struct route *route = x->route;

    return route->translate_request == NULL || route->broadcasts;
}

void update_refused(struct app *app, const struct http_request *x, const json_t *body,
                    struct err *e)
{
    if (app->weights->transfer != NULL && body != NULL && body_given(body, "transport") != NULL &&
        !body_reads_nixl(body))
        weight_transfer_doubt(app->weights->transfer,
                              json_string_value(body_given(body, "group_name")), x->began_us, e);
}

/* A group that would be left has to have a reason: the request has the form of its trainer's. In
 * the middle of an update too, or the next request would take the broadcast of this one for its
 * own. */
static bool may_be_group_broadcast(const struct http_request *x, const struct nccl_join_info *group)
{
    const struct route *route = x->route;

    return group->ends_if_refused ? route->broadcasts : route_accepts_nccl(x);
}

void update_refused_unread(struct app *app, const struct http_request *x, struct err *e)
{
    struct weight_transfer *transfer = app->weights->transfer;
    struct nccl_join_info group;

    if (transfer != NULL && !body_is_tensors(x) && weight_transfer_info(transfer, &group) &&
        may_be_group_broadcast(x, &group))
        weight_transfer_doubt(transfer, NULL, x->began_us, e);
}
