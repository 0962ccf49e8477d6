/* Reading buckets from JSON, and choosing the bucket and the list of each rank. */
#include "base/json_parse.h"
#include "base/utf8.h"
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/ipc_request.h"
#include "handlers/tensor_list_json.h"
#include "memory/device.h"
#include "transport/ipc/torch_handle.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)IPC_RANKS_MAX <= (int)IPC_GPUS_MAX, "gpu_match has room for as many");

enum { LIST_TEXT_MAX = 200 };

void ipc_request_fini(struct ipc_request *q)
{
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        if (q->parts != NULL)
            free(q->parts[i].lists);
        if (q->buckets != NULL)
            ipc_bucket_fini(&q->buckets[i]);
    }
    for (uint32_t r = 0; q->tensor_lists != NULL && r < q->n_ranks; r++) {
        tensor_list_unref(q->tensor_lists[r].tensor_list);
        free(q->tensor_lists[r].checksums);
        free(q->tensor_lists[r].has_checksum);
    }
    free(q->parts);
    free(q->buckets);
    free(q->lists);
    free(q->tensor_lists);
    free(q->origins);
}

static int read_handles(struct ipc_handles *h, const struct ipc_bucket_json *p, struct err *e)
{
    const json_t *value = body_given(p->object, "ipc_handles");

    if (value != NULL)
        return ipc_handles_from_json(h, value, p->field, e);
    value = body_given(p->object, "ipc_handles_pickled");
    if (!json_is_string(value))
        return err_set(e, ERR_BAD_REQUEST, p->field, "ipc_handles_pickled is %s; expected base64",
                       body_type_name(value));
    return torch_handles_read(h, json_string_value(value), json_string_length(value), p->field, e);
}

/* Exactly one of the two members is needed. (For a body without `buckets`, update_source_of has
 * checked that.) */
static int find_handles(struct ipc_bucket_json *p, struct err *e)
{
    bool plain = body_given(p->object, "ipc_handles") != NULL;
    bool pickled = body_given(p->object, "ipc_handles_pickled") != NULL;

    if (plain == pickled)
        return err_set(e, ERR_BAD_REQUEST, p->at,
                       "a bucket has either ipc_handles or "
                       "ipc_handles_pickled; this has %s",
                       plain ? "both" : "neither");
    (void)snprintf(p->field, sizeof p->field, "%s/%s", p->at,
                   plain ? "ipc_handles" : "ipc_handles_pickled");
    return 0;
}

static int read_list(struct ipc_bucket_json *p, const char *key, const json_t *object,
                     struct err *e)
{
    struct ipc_list *list = &p->lists[p->n_lists];
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", p->at, p->per_gpu);
    if (!ipc_uuid_parse(list->uuid, key, strlen(key)))
        return err_set(e, ERR_BAD_REQUEST, field, "'%.*s' is not the UUID of a GPU",
                       utf8_cut_name(key), key);
    (void)snprintf(list->at, sizeof list->at, "%s/%s/%.40s", p->at, p->per_gpu, key);
    for (uint32_t i = 0; i < p->n_lists; i++)
        if (strcmp(p->lists[i].uuid, list->uuid) == 0)
            return err_set(e, ERR_BAD_REQUEST, list->at, "GPU %s is named twice", list->uuid);
    if (!json_is_object(object))
        return err_set(
            e, ERR_BAD_REQUEST, list->at,
            "the list of a GPU must be an object {names, dtypes, shapes, sizes?, checksums?}");
    list->object = object;
    p->n_lists++;
    return body_only(object, list->at, per_gpu_rows, e);
}

/* Next to lists for each GPU there may be columns for all (SkyRL sends those of rank 0). They
 * are never applied to any GPU's bytes; members that would be applied to them are refused. */
static int check_per_gpu_members(const struct ipc_bucket_json *p, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name = member_given(field, handles_rows, OF_ONE_LIST, p->object, p->at);

    return name == NULL ? 0
                        : err_set(e, ERR_BAD_REQUEST, field,
                                  "%s is for one list of tensors, but %s has one for each GPU",
                                  name, p->per_gpu);
}

static int read_per_gpu(struct ipc_bucket_json *p, const json_t *object, struct err *e)
{
    size_t n = json_object_size(object);
    char field[ERR_FIELD_MAX];
    const char *key;
    json_t *value;

    (void)snprintf(field, sizeof field, "%s/%s", p->at, p->per_gpu);
    if (!json_is_object(object) || n == 0 || n > IPC_GPUS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s is an object {\"<gpu uuid>\": {names, dtypes, shapes, sizes?, "
                       "checksums?}} of 1 to %d GPUs",
                       p->per_gpu, (int)IPC_GPUS_MAX);
    p->lists = calloc(n, sizeof p->lists[0]);
    if (p->lists == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the lists of %zu GPUs", n);
    json_object_foreach(json_mutable(object), key, value)
    {
        if (read_list(p, key, value, e) != 0)
            return -1;
    }
    return check_per_gpu_members(p, e);
}

static int read_lists(struct ipc_bucket_json *p, struct err *e)
{
    const json_t *native = body_given(p->object, "per_gpu");
    const json_t *skyrl = body_given(p->object, "metadata_by_gpu");
    char field[ERR_FIELD_MAX];

    if (native != NULL && skyrl != NULL) {
        (void)snprintf(field, sizeof field, "%s/metadata_by_gpu", p->at);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "per_gpu and metadata_by_gpu are one member; send one of them");
    }
    if (native != NULL || skyrl != NULL) {
        p->per_gpu = native != NULL ? "per_gpu" : "metadata_by_gpu";
        return read_per_gpu(p, native != NULL ? native : skyrl, e);
    }
    p->lists = calloc(1, sizeof p->lists[0]);
    if (p->lists == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a bucket");
    p->lists[0].object = p->object;
    (void)snprintf(p->lists[0].at, sizeof p->lists[0].at, "%s", p->at);
    p->n_lists = 1;
    return 0;
}

static int read_bucket(struct ipc_bucket_json *p, struct ipc_bucket *b, struct err *e)
{
    uint64_t rank = IPC_ANY_RANK;

    if (body_u64(&rank, p->object, p->at, "rank", 0, IPC_RANKS_MAX - 1, e) != 0 ||
        find_handles(p, e) != 0 || read_lists(p, e) != 0)
        return -1;
    p->rank = (uint32_t)rank;
    return read_handles(&b->handles, p, e);
}

/* Members of a bucket are refused next to `buckets`, where they would belong to no bucket. */
static int check_outer_members(const json_t *body, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name = member_given(field, bucket_rows, 0, body, "");

    return name == NULL
               ? 0
               : err_set(e, ERR_BAD_REQUEST, field, "with buckets, send %s in each of them", name);
}

/* A bucket that is null is skipped: those after it keep their places. */
static int read_buckets(struct ipc_request *q, const json_t *buckets, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        struct ipc_bucket_json *p = &q->parts[q->n_buckets];

        p->object = json_array_get(buckets, i);
        if (json_is_null(p->object))
            continue;
        (void)snprintf(p->at, sizeof p->at, "/buckets/%u", (unsigned)(i % IPC_BUCKETS_MAX));
        if (!json_is_object(p->object))
            return err_set(e, ERR_BAD_REQUEST, p->at,
                           "a bucket is an object {names, dtypes, shapes, ipc_handles or "
                           "ipc_handles_pickled, ...}");
        q->n_buckets++; /* counted before it is read: ipc_request_fini frees what it has */
        if (body_only(p->object, p->at, bucket_rows, e) != 0 ||
            read_bucket(p, &q->buckets[q->n_buckets - 1], e) != 0)
            return -1;
    }
    return q->n_buckets > 0
               ? 0
               : err_set(e, ERR_BAD_REQUEST, "/buckets", "all %zu buckets are null", n);
}

/* The GPUs that the handles name, at most as many as there can be ranks. */
static void ranks_of_handles(struct ipc_request *q)
{
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        const struct ipc_handles *h = &q->buckets[i].handles;

        for (uint32_t g = 0; g < h->n_gpus && q->n_ranks < IPC_RANKS_MAX; g++) {
            uint32_t r = 0;

            while (r < q->n_ranks && strcmp(q->uuids[r], h->gpus[g].uuid) != 0)
                r++;
            if (r == q->n_ranks)
                memcpy(q->uuids[q->n_ranks++], h->gpus[g].uuid, sizeof q->uuids[0]);
        }
    }
}

uint32_t ipc_own_uuids(char uuids[][IPC_UUID_LEN + 1], const struct app_weights *weights)
{
    for (uint32_t r = 0; r < weights->n_devices; r++) {
        const char *text = device_about(weights->devices[r])->uuid;
        bool is_uuid = ipc_uuid_parse(uuids[r], text, strlen(text));

        assert(is_uuid);
        (void)is_uuid;
    }
    return weights->n_devices;
}

/* Allocates the arrays of each bucket with one element for each rank. */
static int ranks_alloc(struct ipc_request *q, struct err *e)
{
    uint32_t n = q->n_ranks;

    q->lists = calloc((size_t)q->n_buckets * n, sizeof q->lists[0]);
    q->tensor_lists = calloc(n, sizeof q->tensor_lists[0]);
    if (q->lists == NULL || q->tensor_lists == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_buckets);
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        struct ipc_bucket *b = &q->buckets[i];

        b->ranks = calloc(n, sizeof b->ranks[0]);
        b->first = calloc(n, sizeof b->first[0]);
        b->n_tensors = calloc(n, sizeof b->n_tensors[0]);
        if (b->ranks == NULL || b->first == NULL || b->n_tensors == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets",
                           (unsigned)q->n_buckets);
    }
    return 0;
}

int ipc_request_read(struct ipc_request *q, const struct app_weights *weights, const json_t *body,
                     const struct body_columns *text, bool sharded, struct err *e)
{
    const json_t *buckets = NULL;
    size_t n = 1;

    *q = (struct ipc_request){.weights = weights, .text = text, .sharded = sharded};
    if (body_array(&buckets, body, "", "buckets", e) != 0)
        return -1;
    if (buckets != NULL)
        n = json_array_size(buckets);
    if (n == 0 || n > IPC_BUCKETS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/buckets", "there are %zu buckets, expected 1 to %d", n,
                       (int)IPC_BUCKETS_MAX);
    if (buckets != NULL && check_outer_members(body, e) != 0)
        return -1;
    q->parts = calloc(n, sizeof q->parts[0]);
    q->buckets = calloc(n, sizeof q->buckets[0]);
    if (q->parts == NULL || q->buckets == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu buckets", n);
    if (buckets == NULL) {
        q->n_buckets = 1;
        q->parts[0].object = body;
        if (read_bucket(&q->parts[0], &q->buckets[0], e) != 0)
            return -1;
    } else if (read_buckets(q, buckets, n, e) != 0) {
        return -1;
    }
    if (weights->n_devices > 0)
        q->n_ranks = ipc_own_uuids(q->uuids, q->weights);
    else
        ranks_of_handles(q);
    return ranks_alloc(q, e);
}

enum gpu_reach ipc_gpu_reach(void *arg, uint32_t rank, const char *uuid)
{
    const struct app_weights *weights = arg;
    char shown[IPC_UUID_LEN + 1];

    for (size_t i = 0; i < weights->cuda->n_devices; i++) {
        const struct cuda_device *d = &weights->cuda->devices[i];

        if (ipc_uuid_parse(shown, d->uuid, strlen(d->uuid)) && strcmp(shown, uuid) == 0)
            return device_can_reach(weights->devices[rank], d) ? GPU_REACHABLE : GPU_NO_PEER_ACCESS;
    }
    return GPU_NOT_VISIBLE;
}

/* For gpu_match_ranks.reach, when a bucket is for one rank only. It never reads memory of another
 * rank's GPU: that is another rank's bucket. */
struct one_rank {
    const struct app_weights *weights;
    const struct gpu_match_ranks *ranks;
    uint32_t rank;
};

static enum gpu_reach one_rank_reach(void *arg, uint32_t first, const char *uuid)
{
    const struct one_rank *one = arg;

    return gpu_match_is_rank(one->ranks, uuid)
               ? GPU_NOT_VISIBLE
               : ipc_gpu_reach((void *)(uintptr_t)one->weights, one->rank + first, uuid);
}

/* The list that describes a GPU's bucket, or NULL. No other list is ever used for it. */
static struct ipc_list *find_gpu_list(const struct ipc_bucket_json *p, const struct ipc_gpu *gpu)
{
    for (uint32_t i = 0; i < p->n_lists; i++)
        if (p->per_gpu == NULL || strcmp(p->lists[i].uuid, gpu->uuid) == 0)
            return &p->lists[i];
    return NULL;
}

/* For a server without GPUs: every GPU in the request that has a list is checked. */
static void match_without_gpus(const struct ipc_gpu **rank_gpus, const struct ipc_request *q,
                               const struct ipc_bucket_json *p, const struct ipc_handles *h)
{
    bool any = false;

    for (uint32_t r = 0; r < q->n_ranks; r++) {
        rank_gpus[r] = NULL;
        for (uint32_t g = 0; g < h->n_gpus; g++)
            if (strcmp(q->uuids[r], h->gpus[g].uuid) == 0 && find_gpu_list(p, &h->gpus[g]) != NULL)
                rank_gpus[r] = &h->gpus[g];
        any = any || rank_gpus[r] != NULL;
    }
    if (!any)
        rank_gpus[0] = &h->gpus[0]; /* use_list then reports that it has no list */
}

static const char *list_uuid(const void *arg, uint32_t i)
{
    return ((const struct ipc_bucket_json *)arg)->lists[i].uuid;
}

static int use_list(const struct ipc_list **out, const struct ipc_bucket_json *p,
                    const struct ipc_gpu *gpu, struct err *e)
{
    struct ipc_list *list = find_gpu_list(p, gpu);
    char field[ERR_FIELD_MAX], text[LIST_TEXT_MAX];

    if (list != NULL) {
        list->used = true;
        *out = list;
        return 0;
    }
    (void)snprintf(field, sizeof field, "%s/%s", p->at, p->per_gpu);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "GPU %s is in the handles, but %s has no list for it; it has lists for %s",
                   gpu->uuid, p->per_gpu,
                   gpu_list_text(text, sizeof text, p->n_lists, list_uuid, p));
}

/* Refuses a list for a GPU of this server without a handle: it is not clear whose bytes it
 * describes. */
static int check_lists_without_handle(const struct ipc_bucket_json *p,
                                      const struct gpu_match_ranks *ranks,
                                      const struct ipc_handles *h, struct err *e)
{
    for (uint32_t i = 0; p->per_gpu != NULL && i < p->n_lists; i++) {
        const struct ipc_list *list = &p->lists[i];
        bool has_handle = false;

        for (uint32_t g = 0; g < h->n_gpus; g++)
            has_handle = has_handle || strcmp(h->gpus[g].uuid, list->uuid) == 0;
        if (!has_handle && gpu_match_is_rank(ranks, list->uuid))
            return err_set(e, ERR_BAD_REQUEST, list->at,
                           "%s has a list for GPU %s, but there is no handle for that GPU",
                           p->per_gpu, list->uuid);
    }
    return 0;
}

/* Chooses the handle of a bucket that is for one rank. */
static int match_one_rank(const struct ipc_gpu **rank_gpus, const struct ipc_request *q,
                          const struct ipc_bucket_json *p, const struct gpu_match_ranks *all,
                          const struct ipc_handles *h, struct err *e)
{
    struct one_rank one = {q->weights, all, p->rank};
    const char *uuid = q->uuids[p->rank < q->n_ranks ? p->rank : 0];
    struct gpu_match_ranks ranks = {.n = 1, .uuids = &uuid, .reach = one_rank_reach, .arg = &one};
    char field[ERR_FIELD_MAX];

    if (p->rank >= q->n_ranks) {
        (void)snprintf(field, sizeof field, "%s/rank", p->at);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "rank %u is not a rank of this server, which has %u, the first of which is "
                       "0",
                       (unsigned)p->rank, (unsigned)q->n_ranks);
    }
    for (uint32_t r = 0; r < q->n_ranks; r++)
        rank_gpus[r] = NULL;
    return gpu_match(&rank_gpus[p->rank], &ranks, h, false, p->field, e);
}

static int match_bucket(struct ipc_request *q, uint32_t i, const struct gpu_match_ranks *ranks,
                        struct err *e)
{
    const struct ipc_gpu *rank_gpus[IPC_RANKS_MAX];
    struct ipc_bucket *b = &q->buckets[i];
    struct ipc_bucket_json *p = &q->parts[i];
    int rc = 0;

    if (q->weights->n_devices == 0)
        match_without_gpus(rank_gpus, q, p, &b->handles);
    else if (p->rank != IPC_ANY_RANK)
        rc = match_one_rank(rank_gpus, q, p, ranks, &b->handles, e);
    else
        rc = gpu_match(rank_gpus, ranks, &b->handles, q->sharded, p->field, e);
    if (rc != 0 || (q->weights->n_devices > 0 && p->rank == IPC_ANY_RANK &&
                    check_lists_without_handle(p, ranks, &b->handles, e) != 0))
        return -1;
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        b->ranks[r].gpu = rank_gpus[r];
        if (rank_gpus[r] != NULL &&
            use_list(&q->lists[(size_t)i * q->n_ranks + r], p, rank_gpus[r], e) != 0)
            return -1;
    }
    return 0;
}

/* Lists for other servers' GPUs are not matched with buckets, but they must be well formed. */
static int check_unused(const struct ipc_request *q, struct err *e)
{
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        const struct ipc_bucket_json *p = &q->parts[i];

        for (uint32_t k = 0; k < p->n_lists; k++)
            if (!p->lists[k].used &&
                tensor_columns_check(p->lists[k].object, q->text, p->lists[k].at, e) != 0)
                return -1;
    }
    return 0;
}

int ipc_request_match(struct ipc_request *q, struct err *e)
{
    const char *uuids[IPC_RANKS_MAX];
    struct gpu_match_ranks ranks = {.n = q->n_ranks,
                                    .uuids = uuids,
                                    .reach = ipc_gpu_reach,
                                    .arg = (void *)(uintptr_t)q->weights};

    for (uint32_t r = 0; r < q->n_ranks; r++)
        uuids[r] = q->uuids[r];
    for (uint32_t i = 0; i < q->n_buckets; i++)
        if (match_bucket(q, i, &ranks, e) != 0)
            return -1;
    return check_unused(q, e);
}
