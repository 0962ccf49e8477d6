/* The member `serialized_named_tensors`: pickles with the tensors of one GPU each, and their
 * names. The trainer wrote one for each of the server's ranks. A string belongs to the rank of
 * its GPU; only strings that name no GPU are assigned by order. */
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/ipc_request.h"
#include "handlers/source/source_json.h"
#include "memory/device.h"
#include "transport/ipc/cuda_ipc.h"
#include "transport/ipc/torch_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRINGS_MAX = TENSORS_RANKS_MAX, RANKS_MAX = STORE_DEVICES_MAX };
_Static_assert((int)RANKS_MAX <= (int)IPC_GPUS_MAX, "gpu_match has room for as many");

struct request {
    const struct app_weights *weights; /* borrowed */
    struct torch_tensors *strings;     /* owned; [n] */
    uint32_t n;
    uint32_t n_ranks;
    char uuids[RANKS_MAX][IPC_UUID_LEN + 1]; /* of the ranks */
    uint32_t rank_gpus[RANKS_MAX];           /* string of each rank, or NO_STRING */
};

enum { NO_STRING = UINT32_MAX };

static void string_field(char field[ERR_FIELD_MAX], uint32_t i)
{
    (void)snprintf(field, ERR_FIELD_MAX, "/serialized_named_tensors/%u", i);
}

static void request_fini(struct request *q)
{
    for (uint32_t i = 0; q->strings != NULL && i < q->n; i++)
        torch_tensors_fini(&q->strings[i]);
    free(q->strings);
}

static int read_strings(struct request *q, const json_t *list, struct err *e)
{
    char field[ERR_FIELD_MAX];

    for (uint32_t i = 0; i < q->n; i++) {
        const json_t *text = json_array_get(list, i);

        string_field(field, i);
        if (!json_is_string(text))
            return err_set(e, ERR_BAD_REQUEST, field,
                           "string %u of the tensors is %s; expected base64", i,
                           body_type_name(text));
        if (torch_tensors_read(&q->strings[i], json_string_value(text), json_string_length(text), i,
                               field, e) != 0)
            return -1;
    }
    return 0;
}

static int request_read(struct request *q, const struct app_weights *weights, const json_t *body,
                        struct err *e)
{
    const json_t *list = NULL;
    size_t n;

    *q = (struct request){.weights = weights};
    if (body_array(&list, body, "", "serialized_named_tensors", e) != 0)
        return -1;
    n = json_array_size(list);
    if (n == 0 || n > STRINGS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/serialized_named_tensors",
                       "there are %zu strings of tensors, expected 1 to %d, one for each rank", n,
                       STRINGS_MAX);
    q->strings = calloc(n, sizeof q->strings[0]);
    if (q->strings == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    q->n = (uint32_t)n;
    return read_strings(q, list, e);
}

static void named_ranks_of_server(struct request *q)
{
    q->n_ranks = ipc_own_uuids(q->uuids, q->weights);
    for (uint32_t r = 0; r < q->n_ranks; r++)
        q->rank_gpus[r] = NO_STRING;
}

static bool is_empty_string(const struct request *q, uint32_t i)
{
    return q->strings[i].tensor_list == NULL;
}

/* Non-empty strings that do not name their GPU belong to the ranks in order, as in SGLang; if
 * there is not one string for each rank, they are refused. */
static int assign_gpus(struct request *q, struct err *e)
{
    char field[ERR_FIELD_MAX];

    for (uint32_t i = 0; i < q->n; i++) {
        struct torch_tensors *t = &q->strings[i];

        if (is_empty_string(q, i) || t->uuid[0] != '\0')
            continue;
        string_field(field, i);
        if (q->n != q->n_ranks)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the tensors name their GPU by the sender's index, which means nothing "
                           "here, and %u strings are not one for each of the server's %u GPUs; "
                           "call SGLang's monkey_patch_torch_reductions in the trainer, which "
                           "sends UUIDs",
                           q->n, q->n_ranks);
        memcpy(t->uuid, q->uuids[i], sizeof t->uuid);
        memcpy(t->handles.gpus[0].uuid, q->uuids[i], sizeof t->uuid);
    }
    return 0;
}

/* The string with the tensors of a GPU; if there are several, the one at the rank's position. */
static uint32_t find_string(const struct request *q, uint32_t rank, const char *uuid)
{
    if (rank < q->n && !is_empty_string(q, rank) && strcmp(q->strings[rank].uuid, uuid) == 0)
        return rank;
    for (uint32_t i = 0; i < q->n; i++)
        if (!is_empty_string(q, i) && strcmp(q->strings[i].uuid, uuid) == 0)
            return i;
    return NO_STRING;
}

/* If no string is empty, each rank gets one, as gpu_match assigns handles. */
static int match_by_gpu(struct request *q, bool sharded, struct err *e)
{
    const struct ipc_gpu *rank_gpus[RANKS_MAX];
    const char *uuids[RANKS_MAX];
    struct gpu_match_ranks ranks = {.n = q->n_ranks,
                                    .uuids = uuids,
                                    .reach = ipc_gpu_reach,
                                    .arg = (void *)(uintptr_t)q->weights};
    struct ipc_handles set = {0};

    for (uint32_t r = 0; r < q->n_ranks; r++)
        uuids[r] = q->uuids[r];
    for (uint32_t i = 0; i < q->n; i++) {
        uint32_t g = 0;

        while (g < set.n_gpus && strcmp(set.gpus[g].uuid, q->strings[i].uuid) != 0)
            g++;
        if (g == set.n_gpus)
            memcpy(set.gpus[set.n_gpus++].uuid, q->strings[i].uuid, sizeof set.gpus[0].uuid);
    }
    if (gpu_match(rank_gpus, &ranks, &set, sharded, "/serialized_named_tensors", e) != 0)
        return -1;
    for (uint32_t r = 0; r < q->n_ranks; r++)
        if (rank_gpus[r] != NULL)
            q->rank_gpus[r] = find_string(q, r, rank_gpus[r]->uuid);
    return 0;
}

/* Trainers pad with empty strings: ranks without tensors of their own get nothing. */
static int match_strings(struct request *q, bool sharded, struct err *e)
{
    uint32_t n_empty = 0;

    if (assign_gpus(q, e) != 0)
        return -1;
    for (uint32_t i = 0; i < q->n; i++)
        n_empty += is_empty_string(q, i);
    if (n_empty == 0)
        return match_by_gpu(q, sharded, e);
    for (uint32_t r = 0; r < q->n_ranks; r++)
        q->rank_gpus[r] = find_string(q, r, q->uuids[r]);
    return 0;
}

static int named_refuse_no_gpu(const struct app_weights *weights, struct err *e)
{
    if (!weights->cuda->available)
        return err_set(e, ERR_NO_GPU, "/serialized_named_tensors",
                       "the tensors are well formed, but this server has no CUDA: %.200s; send "
                       "them by shm, path or as the body",
                       weights->cuda->reason);
    return err_set(e, ERR_NO_GPU, "/serialized_named_tensors",
                   "the tensors are well formed, but this server was started with --device cpu, "
                   "which keeps its weights in host memory; start it with --device cuda:0 (it has "
                   "%s there), or send them by shm, path or as the body",
                   weights->cuda->devices[0].uuid);
}

/* Does every rank receive the same tensors in the same order? Their addresses may differ. */
static bool have_ranks_equal_tensors(const struct request *q)
{
    for (uint32_t r = 0; r < q->n_ranks; r++)
        if (q->rank_gpus[r] == NO_STRING ||
            strcmp(q->strings[q->rank_gpus[r]].tensor_list->digest,
                   q->strings[q->rank_gpus[0]].tensor_list->digest) != 0)
            return false;
    return true;
}

/* Makes one string a bucket: its handles are moved, and its ranks read all of it. */
static int make_named_bucket(struct ipc_bucket *b, struct request *q, uint32_t string,
                             struct err *e)
{
    struct torch_tensors *t = &q->strings[string];

    b->ranks = calloc(q->n_ranks, sizeof b->ranks[0]);
    b->first = calloc(q->n_ranks, sizeof b->first[0]);
    b->n_tensors = calloc(q->n_ranks, sizeof b->n_tensors[0]);
    if (b->ranks == NULL || b->first == NULL || b->n_tensors == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    b->handles = t->handles;
    t->handles = (struct ipc_handles){0};
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        if (q->rank_gpus[r] != string)
            continue;
        b->ranks[r].gpu = &b->handles.gpus[0];
        b->n_tensors[r] = t->tensor_list->n_tensors;
    }
    return 0;
}

static bool is_used(const struct request *q, uint32_t string)
{
    for (uint32_t r = 0; r < q->n_ranks; r++)
        if (q->rank_gpus[r] == string)
            return true;
    return false;
}

static int make_buckets(struct ipc_bucket **out, uint32_t *n, struct request *q, struct err *e)
{
    struct ipc_bucket *buckets = calloc(q->n, sizeof *buckets);

    *n = 0;
    if (buckets == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    for (uint32_t i = 0; i < q->n; i++) {
        if (!is_used(q, i))
            continue;
        if (make_named_bucket(&buckets[(*n)++], q, i, e) != 0)
            goto free_buckets;
    }
    *out = buckets;
    return 0;

free_buckets:
    for (uint32_t i = 0; i < *n; i++)
        ipc_bucket_fini(&buckets[i]);
    free(buckets);
    return -1;
}

static int open_named_source(struct source **out, struct request *q, struct err *e)
{
    struct tensor_list *tensor_lists[RANKS_MAX] = {NULL};
    struct cuda_ipc_cfg cfg = {.devices = q->weights->devices,
                               .n_ranks = q->n_ranks,
                               .tensor_lists = tensor_lists,
                               .stats = q->weights->ipc_stats};

    for (uint32_t r = 0; r < q->n_ranks; r++)
        if (q->rank_gpus[r] != NO_STRING)
            tensor_lists[r] =
                q->strings[q->rank_gpus[have_ranks_equal_tensors(q) ? 0 : r]].tensor_list;
    if (make_buckets(&cfg.buckets, &cfg.n_buckets, q, e) != 0)
        return -1;
    return cuda_ipc_source_new(out, &cfg, e);
}

static void add_named_origin(struct update_chunk *c, uint32_t rank, uint32_t string)
{
    struct chunk_origin *o = &c->origins[c->n_origins++];

    o->rank = rank;
    (void)snprintf(o->at, sizeof o->at, "/serialized_named_tensors/%u", string);
}

/* Sets what each rank receives, and its place in the request. */
static int move_tensor_lists(struct update_chunk *c, const struct request *q, struct err *e)
{
    bool ranks_equal = have_ranks_equal_tensors(q);

    c->origins = calloc(q->n_ranks, sizeof c->origins[0]);
    if (!ranks_equal)
        c->ranks = calloc(q->n_ranks, sizeof c->ranks[0]);
    if (c->origins == NULL || (!ranks_equal && c->ranks == NULL))
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    c->n_ranks = ranks_equal ? 0 : q->n_ranks;
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        if (q->rank_gpus[r] == NO_STRING)
            continue;
        if (c->tensor_list == NULL)
            c->tensor_list = tensor_list_ref(q->strings[q->rank_gpus[r]].tensor_list);
        if (!ranks_equal)
            c->ranks[r].tensor_list = tensor_list_ref(q->strings[q->rank_gpus[r]].tensor_list);
        if (!ranks_equal || r == 0)
            add_named_origin(c, r, q->rank_gpus[r]);
    }
    return 0;
}

static bool has_no_matched_rank(const struct request *q)
{
    for (uint32_t r = 0; r < q->n_ranks; r++)
        if (q->rank_gpus[r] != NO_STRING)
            return false;
    return true;
}

/* If all strings are empty it is no error that this server receives nothing. If there are
 * tensors and all are on other servers' GPUs, the request was sent to the wrong server: a
 * success would make the trainer believe that they are served. */
static int check_unmatched(const struct request *q, struct err *e)
{
    char field[ERR_FIELD_MAX];

    for (uint32_t i = 0; i < q->n; i++) {
        if (is_empty_string(q, i))
            continue;
        string_field(field, i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the tensors are on GPU %s, and no string has tensors on a GPU of this "
                       "server, the first of which is %s",
                       q->strings[i].uuid, q->uuids[0]);
    }
    return 0;
}

int named_tensors_from_body(struct update_chunk *c, const struct app_weights *weights,
                            const json_t *body, bool sharded, struct err *e)
{
    struct request q;
    int rc = -1;

    if (request_read(&q, weights, body, e) != 0)
        goto fini;
    if (weights->n_devices == 0) {
        rc = named_refuse_no_gpu(weights, e);
        goto fini;
    }
    named_ranks_of_server(&q);
    rc = match_strings(&q, sharded, e);
    if (rc == 0)
        rc = has_no_matched_rank(&q) ? check_unmatched(&q, e)
                                     : open_named_source(&c->source, &q, e);
    if (rc == 0 && c->source != NULL)
        rc = move_tensor_lists(c, &q, e);

fini:
    request_fini(&q);
    return rc;
}
