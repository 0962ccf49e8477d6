/* Several buckets, one plan for each rank: what the worker copies is one list of tensors, and where
 * each of them stood in the request is remembered for the errors that come later. */
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update/update_ipc.h"

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

/* The lists of a rank: how many, and the first of them. */
static uint32_t count_lists(const struct ipc_request *q, uint32_t rank,
                            const struct ipc_list **only)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->n_parts; i++) {
        if (list_of(q, i, rank) == NULL)
            continue;
        if (n++ == 0)
            *only = list_of(q, i, rank);
    }
    return n;
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

/* Appends the tensors of one list; its origin is the last of those of this rank. */
static int add_list(struct plan_builder *b, const struct ipc_request *q,
                    const struct ipc_list *list, const struct chunk_origin *origins,
                    uint32_t n_origins, uint32_t *n, struct err *e)
{
    struct plan *plan;
    int rc;

    if (body_given(list->object, "plan_id") == NULL)
        return columns_add(b, list->object, q->text, origins, n_origins, n, e);
    if (plan_of_list(&plan, q->app, list->object, q->text, list->at, false, e) != 0)
        return -1;
    *n = plan->n_tensors;
    rc = specs_add(b, plan, origins, n_origins, e);
    plan_unref(plan);
    return rc;
}

static void add_origin(struct ipc_request *q, uint32_t rank, uint32_t first, const char *at)
{
    struct chunk_origin *o = &q->origins[q->n_origins++];

    *o = (struct chunk_origin){.rank = rank, .first = first};
    memcpy(o->at, at, sizeof o->at);
}

static int add_lists(struct plan_builder *b, struct ipc_request *q, uint32_t rank, struct err *e)
{
    uint32_t begin = q->n_origins, n_tensors = 0, n;

    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);

        if (list == NULL)
            continue;
        add_origin(q, rank, n_tensors, list->at);
        if (add_list(b, q, list, &q->origins[begin], q->n_origins - begin, &n, e) != 0)
            return -1;
        place(q, rank, i, n_tensors, n);
        n_tensors += n;
    }
    return 0;
}

/* One list is the plan, and may be one that was registered: nothing is built then. */
static int plan_of_one(struct ipc_request *q, uint32_t rank, const struct ipc_list *list,
                       struct plan **out, struct err *e)
{
    if (plan_of_list(out, q->app, list->object, q->text, list->at, false, e) != 0)
        return -1;
    add_origin(q, rank, 0, list->at);
    for (uint32_t i = 0; i < q->n_parts; i++)
        if (list_of(q, i, rank) == list)
            place(q, rank, i, 0, (*out)->n_tensors);
    return 0;
}

static void parts_free(struct plan **parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        plan_unref(parts[i]);
    free(parts);
}

/* Is the list one that can be known again, by its plan's id or by its words? */
static bool is_known_by(const struct ipc_request *q, const struct ipc_list *list)
{
    return body_given(list->object, "plan_id") != NULL || (q->text != NULL && q->text->n > 0);
}

/* The plans of a rank's lists, if each of them can be known again; else *out is NULL.
 * @out  [*n], one reference each */
static int parts_of_rank(const struct ipc_request *q, uint32_t rank, struct plan ***out,
                         uint32_t *n, struct err *e)
{
    struct plan **parts = calloc(q->n_parts, sizeof(struct plan *));

    *n = 0;
    *out = NULL;
    if (parts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_parts);
    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);

        if (list == NULL)
            continue;
        if (!is_known_by(q, list)) {
            parts_free(parts, *n);
            return 0;
        }
        if (plan_of_list(&parts[*n], q->app, list->object, q->text, list->at, false, e) != 0) {
            parts_free(parts, *n);
            return -1;
        }
        ++*n;
    }
    *out = parts;
    return 0;
}

/* A plan that the same ones made before; they are as they were. */
static void place_joined(struct ipc_request *q, uint32_t rank, struct plan *const *parts)
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

static int build_plan(struct ipc_request *q, uint32_t rank, struct plan **out, struct err *e)
{
    struct plan_builder *b;

    if (plan_builder_new(&b, e) != 0)
        return -1;
    if (add_lists(b, q, rank, e) == 0)
        return plan_builder_finish(b, out, e);
    plan_builder_free(b);
    return -1;
}

static int plan_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    const struct ipc_list *only = NULL;
    uint32_t n_lists = count_lists(q, rank, &only), n;
    struct plan **out = &q->plans[rank].plan, **parts;
    bool known;
    int rc = 0;

    if (n_lists == 0)
        return 0;
    if (n_lists == 1)
        return plan_of_one(q, rank, only, out, e);
    if (parts_of_rank(q, rank, &parts, &n, e) != 0)
        return -1;
    if (parts == NULL)
        return build_plan(q, rank, out, e);
    *out = updates_joined_get(q->app->updates, parts, n);
    known = *out != NULL;
    if (known)
        place_joined(q, rank, parts);
    else
        rc = build_plan(q, rank, out, e);
    if (rc == 0 && !known)
        updates_joined_put(q->app->updates, parts, n, *out);
    parts_free(parts, n);
    return rc;
}

static int sums_of_rank(struct ipc_request *q, uint32_t rank, struct err *e)
{
    struct chunk_rank *r = &q->plans[rank];

    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct ipc_list *list = list_of(q, i, rank);
        const struct ipc_bucket *b = &q->buckets[i];

        if (list != NULL && checksums_add(&r->checksums, &r->has_checksum, list->object, list->at,
                                          r->plan, b->first[rank], b->n_tensors[rank], e) != 0)
            return -1;
    }
    return 0;
}

int ipc_request_join(struct ipc_request *q, struct err *e)
{
    uint32_t n_plans;

    q->alike = is_alike(q);
    n_plans = q->alike ? 1 : q->n_ranks;
    q->origins = calloc((size_t)q->n_parts * n_plans, sizeof q->origins[0]);
    if (q->origins == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u buckets", (unsigned)q->n_parts);
    for (uint32_t r = 0; r < n_plans; r++)
        if (plan_of_rank(q, r, e) != 0 || sums_of_rank(q, r, e) != 0)
            return -1;
    return 0;
}
