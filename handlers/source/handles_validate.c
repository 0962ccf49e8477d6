/* Checks of handles against the tensors of the request. Pure. */
#include "base/utf8.h"
#include "handlers/body_columns.h"
#include "handlers/source/ipc_request.h"

#include <stdio.h>
#include <string.h>

/* The tensors of a bucket: [first, first + n) of a tensor list. */
struct tensor_run {
    const struct tensor_spec *tensors; /* [n] */
    uint32_t n;
    uint64_t nbytes;
};

static struct tensor_run tensor_run_of(const struct ipc_request *q, const struct ipc_bucket *b,
                                       uint32_t rank)
{
    const struct tensor_list *tensor_list = q->tensor_lists[q->ranks_equal ? 0 : rank].tensor_list;
    uint32_t first = b->first[rank], end = first + b->n_tensors[rank];
    uint64_t from = tensor_list->tensors[first].offset;
    uint64_t to = end < tensor_list->n_tensors ? tensor_list->tensors[end].offset
                                               : tensor_list->nbytes;

    return (struct tensor_run){&tensor_list->tensors[first], b->n_tensors[rank], to - from};
}

/* `packed` is optional; if given, it must agree with the handles. */
static int check_handles_packed(const struct ipc_bucket_json *p, const struct ipc_handles *h,
                                struct err *e)
{
    bool packed = h->packed;
    char field[ERR_FIELD_MAX];

    if (body_bool(&packed, p->object, p->at, "packed", e) != 0)
        return -1;
    if (packed == h->packed)
        return 0;
    (void)snprintf(field, sizeof field, "%s/packed", p->at);
    return err_set(e, ERR_BAD_REQUEST, field,
                   packed ? "packed is true, but there is one handle for each tensor"
                          : "packed is false, but there is one handle for all tensors");
}

/* vLLM's `tensor_sizes` are bytes, where `sizes` are elements. */
static int check_tensor_sizes(const struct ipc_bucket_json *p, const struct body_columns *text,
                              const struct tensor_run *run, struct err *e)
{
    struct column list;
    char field[ERR_FIELD_MAX];

    if (column_open(&list, text, p->object, p->at, "tensor_sizes", e) != 0)
        return -1;
    (void)snprintf(field, sizeof field, "%s/tensor_sizes", p->at);
    if (list.given && list.n != run->n)
        return err_set(e, ERR_BAD_REQUEST, field, "tensor_sizes has %zu entries for %u tensors",
                       list.n, (unsigned)run->n);
    for (uint32_t i = 0; list.given && i < run->n; i++) {
        const struct tensor_spec *t = &run->tensors[i];
        uint64_t nbytes;

        if (column_next_u64(&list, &nbytes) == COLUMN_INTEGER && nbytes == t->nbytes)
            continue;
        (void)snprintf(field, sizeof field, "%s/tensor_sizes/%u", p->at, (unsigned)i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the size in bytes of '%.*s' is not %llu, which its dtype and shape give",
                       utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes);
    }
    return 0;
}

/* If there are several GPUs and one list, the usual reason is that ranks hold different tensors. */
static const char *per_gpu_hint(const struct ipc_bucket_json *p, const struct ipc_handles *h)
{
    return p->per_gpu == NULL && h->n_gpus > 1
               ? "; if the GPUs hold different tensors, list them in per_gpu"
               : "";
}

/* A bucket of bytes from torch may be longer than its tensors, because it has a fixed capacity.
 * Every other bucket must have exactly their length; so must buckets with a list for each GPU,
 * because their lengths reveal swapped lists. */
static int check_bucket(const struct ipc_bucket_json *p, const struct ipc_handles *all,
                        const struct ipc_gpu *gpu, const struct tensor_run *run, struct err *e)
{
    const struct ipc_handle *h = &gpu->handles[0];
    bool exact = body_given(p->object, "ipc_handles") != NULL || h->dtype != DTYPE_U8 ||
                 p->per_gpu != NULL;

    for (uint32_t i = 0; h->dtype != DTYPE_U8 && i < run->n; i++) {
        const struct tensor_spec *t = &run->tensors[i];

        if (t->dtype != h->dtype)
            return err_set(e, ERR_BAD_REQUEST, p->field,
                           "GPU %s: the bucket is of %s, tensor '%.*s' of %s%s", gpu->uuid,
                           dtype_name(h->dtype), utf8_cut_name(t->name), t->name,
                           dtype_name(t->dtype), per_gpu_hint(p, all));
    }
    if (run->nbytes > h->nbytes || (exact && run->nbytes < h->nbytes))
        return err_set(e, ERR_BAD_REQUEST, p->field,
                       "GPU %s: the bucket has %llu bytes, names, dtypes and shapes make %s%llu%s",
                       gpu->uuid, (unsigned long long)h->nbytes,
                       run->nbytes < h->nbytes ? "only " : "", (unsigned long long)run->nbytes,
                       per_gpu_hint(p, all));
    return 0;
}

static int check_tensor(const struct ipc_gpu *gpu, uint32_t i, const struct tensor_spec *t,
                        const char *field, struct err *e)
{
    const struct ipc_handle *h = &gpu->handles[i];

    if (h->dtype != t->dtype)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s, handle %u: a tensor of %s, but '%.*s' is of %s", gpu->uuid,
                       (unsigned)i, dtype_name(h->dtype), utf8_cut_name(t->name), t->name,
                       dtype_name(t->dtype));
    if (h->ndim != t->ndim || memcmp(h->shape, t->shape, t->ndim * sizeof t->shape[0]) != 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s, handle %u: a tensor of %llu bytes in %u dimensions, which is not "
                       "the shape of '%.*s'",
                       gpu->uuid, (unsigned)i, (unsigned long long)h->nbytes, (unsigned)h->ndim,
                       utf8_cut_name(t->name), t->name);
    return 0;
}

static int check_gpu(const struct ipc_bucket_json *p, const struct ipc_handles *h,
                     const struct ipc_gpu *gpu, const struct tensor_run *run, struct err *e)
{
    if (h->packed)
        return check_bucket(p, h, gpu, run, e);
    if (h->n_handles != run->n)
        return err_set(e, ERR_BAD_REQUEST, p->field, "there are %u handles for %u tensors%s",
                       (unsigned)h->n_handles, (unsigned)run->n, per_gpu_hint(p, h));
    for (uint32_t i = 0; i < run->n; i++)
        if (check_tensor(gpu, i, &run->tensors[i], p->field, e) != 0)
            return -1;
    return 0;
}

static int validate_bucket(const struct ipc_request *q, uint32_t part, struct err *e)
{
    const struct ipc_bucket_json *p = &q->parts[part];
    const struct ipc_bucket *b = &q->buckets[part];
    const struct ipc_gpu *last = NULL; /* ranks that share a bucket and its list are checked once */

    if (check_handles_packed(p, &b->handles, e) != 0)
        return -1;
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        const struct ipc_gpu *gpu = b->ranks[r].gpu;
        struct tensor_run run;

        if (gpu == NULL || gpu == last)
            continue;
        run = tensor_run_of(q, b, r);
        if ((last == NULL && check_tensor_sizes(p, q->text, &run, e) != 0) ||
            check_gpu(p, &b->handles, gpu, &run, e) != 0)
            return -1;
        last = gpu;
    }
    return 0;
}

int ipc_request_validate(const struct ipc_request *q, struct err *e)
{
    for (uint32_t i = 0; i < q->n_buckets; i++)
        if (validate_bucket(q, i, e) != 0)
            return -1;
    return 0;
}
