/* Merges the lists of several buckets into one tensor list for each rank, which is what the
 * worker copies. The place of each list in the request is kept for later errors. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/source/ipc_request.h"
#include "handlers/tensor_list_json.h"
#include "weights/update/list_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Do all ranks receive all buckets, with the same lists? */
static bool have_ranks_equal_buckets(const struct ipc_request *q)
{
    for (uint32_t i = 0; i < q->n_buckets; i++)
        for (uint32_t r = 0; r < q->n_ranks; r++)
            if (ipc_rank_list(q, i, r) == NULL || ipc_rank_list(q, i, r) != ipc_rank_list(q, i, 0))
                return false;
    return true;
}

static void set_run(struct ipc_request *q, uint32_t rank, uint32_t part, uint32_t first, uint32_t n)
{
    struct ipc_bucket *b = &q->buckets[part];

    for (uint32_t r = 0; r < q->n_ranks; r++) {
        if (r != rank && !q->ranks_equal)
            continue;
        b->first[r] = first;
        b->n_tensors[r] = n;
    }
}

static void add_bucket_origin(struct ipc_request *q, uint32_t rank, uint32_t first, const char *at)
{
    struct chunk_origin *o = &q->origins[q->n_origins++];

    *o = (struct chunk_origin){.rank = rank, .first = first};
    memcpy(o->at, at, sizeof o->at);
}

static void lists_free(struct tensor_list **rank_lists, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tensor_list_unref(rank_lists[i]);
    free(rank_lists);
}

/* The tensor lists of a rank. @rank_lists  [n_buckets]; receives *n references */
static int lists_of_rank(struct tensor_list **rank_lists, uint32_t *n, const struct ipc_request *q,
                         uint32_t rank, struct err *e)
{
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        const struct ipc_list *list = ipc_rank_list(q, i, rank);

        if (list == NULL)
            continue;
        if (tensor_list_resolve(&rank_lists[*n], q->weights, list->object, q->text, list->at, false,
                                e) != 0)
            return -1;
        ++*n;
    }
    return 0;
}

/* Records where each list begins, in the merged list and in the request. */
static void set_runs(struct ipc_request *q, uint32_t rank, struct tensor_list *const *rank_lists)
{
    uint32_t n_tensors = 0, k = 0;

    for (uint32_t i = 0; i < q->n_buckets; i++) {
        const struct ipc_list *list = ipc_rank_list(q, i, rank);

        if (list == NULL)
            continue;
        add_bucket_origin(q, rank, n_tensors, list->at);
        set_run(q, rank, i, n_tensors, rank_lists[k]->n_tensors);
        n_tensors += rank_lists[k++]->n_tensors;
    }
}

static int build_merged(struct tensor_list **out, struct tensor_list *const *rank_lists, uint32_t n,
                        const struct chunk_origin *origins, struct err *e)
{
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (tensor_list_append(b, rank_lists[i], origins, i + 1, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    return tensor_list_builder_finish(b, out, e);
}

/* A single list needs no merge. @origins  [n] */
static int merge_lists(struct tensor_list **out, struct list_cache *lists,
                       struct tensor_list *const *rank_lists, uint32_t n,
                       const struct chunk_origin *origins, struct err *e)
{
    struct list_key key = {.kind = LIST_BY_PARTS};
    char *ids;
    int rc = 0;

    if (n == 1) {
        *out = tensor_list_ref(rank_lists[0]);
        return 0;
    }
    ids = malloc((size_t)n * TENSOR_LIST_DIGEST_LEN);
    if (ids == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)n);
    for (uint32_t i = 0; i < n; i++)
        memcpy(ids + (size_t)i * TENSOR_LIST_DIGEST_LEN, rank_lists[i]->digest,
               TENSOR_LIST_DIGEST_LEN);
    key.text[0] = (struct list_text){ids, (size_t)n * TENSOR_LIST_DIGEST_LEN};
    *out = list_cache_get(lists, &key);
    if (*out == NULL) {
        rc = build_merged(out, rank_lists, n, origins, e);
        if (rc == 0)
            (void)list_cache_put(lists, &key, out);
    }
    free(ids);
    return rc;
}

static int tensor_list_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    const struct chunk_origin *origins = &q->origins[q->n_origins];
    struct tensor_list **rank_lists = calloc(q->n_buckets, sizeof(struct tensor_list *));
    uint32_t n = 0;
    int rc;

    if (rank_lists == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_buckets);
    rc = lists_of_rank(rank_lists, &n, q, rank, e);
    if (rc == 0 && n > 0) {
        set_runs(q, rank, rank_lists);
        rc = merge_lists(&q->tensor_lists[rank].tensor_list, q->weights->lists, rank_lists, n,
                         origins, e);
    }
    lists_free(rank_lists, n);
    return rc;
}

static int checksums_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    struct chunk_rank *r = &q->tensor_lists[rank];

    for (uint32_t i = 0; i < q->n_buckets; i++) {
        const struct ipc_list *list = ipc_rank_list(q, i, rank);
        const struct ipc_bucket *b = &q->buckets[i];

        if (list != NULL &&
            checksums_add(&r->checksums, &r->has_checksum, list->object, list->at, r->tensor_list,
                          b->first[rank], b->n_tensors[rank], e) != 0)
            return -1;
    }
    return 0;
}

int ipc_request_merge(struct ipc_request *q, struct err *e)
{
    uint32_t n_tensor_lists;

    q->ranks_equal = have_ranks_equal_buckets(q);
    n_tensor_lists = q->ranks_equal ? 1 : q->n_ranks;
    q->origins = calloc((size_t)q->n_buckets * n_tensor_lists, sizeof q->origins[0]);
    if (q->origins == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_buckets);
    for (uint32_t r = 0; r < n_tensor_lists; r++)
        if (tensor_list_of_rank(q, r, e) != 0 || checksums_of_rank(q, r, e) != 0)
            return -1;
    return 0;
}
