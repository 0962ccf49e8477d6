/* Several buckets, one tensor list for each rank: what the worker copies is one list of tensors,
 * and where each of them stood in the request is remembered for the errors that come later. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update/update_ipc.h"
#include "weights/update/list_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Do all ranks get everything, by the same lists? */
static bool is_alike(const struct ipc_request *q)
{
    for (uint32_t i = 0; i < q->n_parts; i++)
        for (uint32_t r = 0; r < q->n_ranks; r++)
            if (list_of(q, i, r) == NULL || list_of(q, i, r) != list_of(q, i, 0))
                return false;
    return true;
}

static void place(struct ipc_request *q, uint32_t rank, uint32_t part, uint32_t first, uint32_t n)
{
    struct ipc_bucket *b = &q->buckets[part];

    for (uint32_t r = 0; r < q->n_ranks; r++) {
        if (r != rank && !q->alike)
            continue;
        b->first[r] = first;
        b->n_tensors[r] = n;
    }
}

static void add_origin(struct ipc_request *q, uint32_t rank, uint32_t first, const char *at)
{
    struct chunk_origin *o = &q->origins[q->n_origins++];

    *o = (struct chunk_origin){.rank = rank, .first = first};
    memcpy(o->at, at, sizeof o->at);
}

static void parts_free(struct tensor_list **parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tensor_list_unref(parts[i]);
    free(parts);
}

/* The tensor lists of a rank's lists. @parts  [n_parts]; @n  so many of them, one reference each */
static int parts_of_rank(struct tensor_list **parts, uint32_t *n, const struct ipc_request *q,
                         uint32_t rank, struct err *e)
{
    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);

        if (list == NULL)
            continue;
        if (tensor_list_named(&parts[*n], q->app, list->object, q->text, list->at, false, e) != 0)
            return -1;
        ++*n;
    }
    return 0;
}

/* Where each list begins, in the tensor list and in the request. */
static void place_parts(struct ipc_request *q, uint32_t rank, struct tensor_list *const *parts)
{
    uint32_t n_tensors = 0, k = 0;

    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);

        if (list == NULL)
            continue;
        add_origin(q, rank, n_tensors, list->at);
        place(q, rank, i, n_tensors, parts[k]->n_tensors);
        n_tensors += parts[k++]->n_tensors;
    }
}

static int build_merged(struct tensor_list **out, struct tensor_list *const *parts, uint32_t n,
                        const struct chunk_origin *origins, struct err *e)
{
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (specs_add(b, parts[i], origins, i + 1, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    return tensor_list_builder_finish(b, out, e);
}

/* One list is the tensor list: nothing is built then. @origins  [n] */
static int merge_parts(struct tensor_list **out, struct list_cache *lists,
                       struct tensor_list *const *parts, uint32_t n,
                       const struct chunk_origin *origins, struct err *e)
{
    struct list_key key = {.kind = LIST_BY_PARTS};
    char *ids;
    int rc = 0;

    if (n == 1) {
        *out = tensor_list_ref(parts[0]);
        return 0;
    }
    ids = malloc((size_t)n * TENSOR_LIST_DIGEST_LEN);
    if (ids == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)n);
    for (uint32_t i = 0; i < n; i++)
        memcpy(ids + (size_t)i * TENSOR_LIST_DIGEST_LEN, parts[i]->digest, TENSOR_LIST_DIGEST_LEN);
    key.text[0] = (struct list_text){ids, (size_t)n * TENSOR_LIST_DIGEST_LEN};
    *out = list_cache_get(lists, &key);
    if (*out == NULL) {
        rc = build_merged(out, parts, n, origins, e);
        if (rc == 0)
            (void)list_cache_put(lists, &key, out);
    }
    free(ids);
    return rc;
}

static int tensor_list_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    const struct chunk_origin *origins = &q->origins[q->n_origins];
    struct tensor_list **parts = calloc(q->n_parts, sizeof(struct tensor_list *));
    uint32_t n = 0;
    int rc;

    if (parts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_parts);
    rc = parts_of_rank(parts, &n, q, rank, e);
    if (rc == 0 && n > 0) {
        place_parts(q, rank, parts);
        rc = merge_parts(&q->tensor_lists[rank].tensor_list, q->app->weights->lists, parts, n,
                         origins, e);
    }
    parts_free(parts, n);
    return rc;
}

static int sums_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    struct chunk_rank *r = &q->tensor_lists[rank];

    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);
        const struct ipc_bucket *b = &q->buckets[i];

        if (list != NULL &&
            checksums_add(&r->checksums, &r->has_checksum, list->object, list->at, r->tensor_list,
                          b->first[rank], b->n_tensors[rank], e) != 0)
            return -1;
    }
    return 0;
}

int ipc_request_join(struct ipc_request *q, struct err *e)
{
    uint32_t n_tensor_lists;

    q->alike = is_alike(q);
    n_tensor_lists = q->alike ? 1 : q->n_ranks;
    q->origins = calloc((size_t)q->n_parts * n_tensor_lists, sizeof q->origins[0]);
    if (q->origins == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_parts);
    for (uint32_t r = 0; r < n_tensor_lists; r++)
        if (tensor_list_of_rank(q, r, e) != 0 || sums_of_rank(q, r, e) != 0)
            return -1;
    return 0;
}
