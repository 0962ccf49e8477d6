/* The `ipc_handles` and `ipc_handles_pickled` members: CUDA IPC handles, read and held against the
 * columns. This version opens none: a request without fault is answered with that. */
#include "handlers/body.h"
#include "handlers/update_parts.h"
#include "transport/torch_handle.h"

#include <stdio.h>
#include <string.h>

static const char *member_of(const json_t *body)
{
    const json_t *plain = json_object_get(body, "ipc_handles");

    return plain != NULL && !json_is_null(plain) ? "ipc_handles" : "ipc_handles_pickled";
}

static int read_handles(struct ipc_handles *h, const json_t *body, const char *field, struct err *e)
{
    const json_t *value = json_object_get(body, field + 1);

    if (strcmp(field, "/ipc_handles") == 0)
        return ipc_handles_from_json(h, value, field, e);
    if (!json_is_string(value))
        return err_set(e, ERR_BAD_REQUEST, field, "ipc_handles_pickled is %s; it is base64",
                       body_type_name(value));
    return torch_handles_read(h, json_string_value(value), json_string_length(value), field, e);
}

/* `packed` may be left out; given, it must say what the handles say. */
static int check_packed(const json_t *body, const struct ipc_handles *h, struct err *e)
{
    bool packed = h->packed;

    if (body_bool(&packed, body, "", "packed", e) != 0)
        return -1;
    if (packed == h->packed)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/packed",
                   packed ? "packed is true, but there is one handle for each tensor"
                          : "packed is false, but there is one handle for all tensors");
}

/* vLLM's `tensor_sizes` are bytes, where `sizes` are elements. */
static int check_tensor_sizes(const json_t *body, const struct plan *plan, struct err *e)
{
    const json_t *list = NULL;

    if (body_array(&list, body, "", "tensor_sizes", e) != 0 || list == NULL)
        return e->code != ERR_NONE ? -1 : 0;
    if (json_array_size(list) != plan->n_tensors)
        return err_set(e, ERR_BAD_REQUEST, "/tensor_sizes",
                       "tensor_sizes has %zu entries for %u tensors", json_array_size(list),
                       plan->n_tensors);
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const struct tensor_spec *t = &plan->tensors[i];
        const json_t *value = json_array_get(list, i);
        char field[ERR_FIELD_MAX];

        if (json_is_integer(value) && json_integer_value(value) == (json_int_t)t->nbytes)
            continue;
        (void)snprintf(field, sizeof field, "/tensor_sizes/%u", (unsigned)i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the size in bytes of '%.*s' is not the %llu that its dtype and shape make",
                       plan_name_cut(t->name), t->name, (unsigned long long)t->nbytes);
    }
    return 0;
}

/* A bucket of bytes from torch has a capacity and may be longer than what this request puts there;
 * every other bucket holds these tensors and no more. */
static int check_bucket(const struct ipc_gpu *gpu, const struct plan *plan, const char *field,
                        bool exact, struct err *e)
{
    const struct ipc_handle *h = &gpu->handles[0];

    for (uint32_t i = 0; h->dtype != DTYPE_U8 && i < plan->n_tensors; i++) {
        const struct tensor_spec *t = &plan->tensors[i];

        if (t->dtype != h->dtype)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "GPU %s: the bucket is of %s, tensor '%.*s' of %s", gpu->uuid,
                           dtype_name(h->dtype), plan_name_cut(t->name), t->name,
                           dtype_name(t->dtype));
    }
    if (plan->nbytes > h->nbytes)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s: the bucket has %llu bytes, names, dtypes and shapes make %llu",
                       gpu->uuid, (unsigned long long)h->nbytes, (unsigned long long)plan->nbytes);
    if (plan->nbytes < h->nbytes && (exact || h->dtype != DTYPE_U8))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s: the bucket has %llu bytes, names, dtypes and shapes make only %llu",
                       gpu->uuid, (unsigned long long)h->nbytes, (unsigned long long)plan->nbytes);
    return 0;
}

static int check_tensor(const struct ipc_gpu *gpu, uint32_t i, const struct tensor_spec *t,
                        const char *field, struct err *e)
{
    const struct ipc_handle *h = &gpu->handles[i];
    bool same_shape = h->ndim == t->ndim;

    for (uint32_t k = 0; k < t->ndim && same_shape; k++)
        same_shape = h->shape[k] == t->shape[k];
    if (h->dtype != t->dtype)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s, handle %u: a tensor of %s, but '%.*s' is of %s", gpu->uuid,
                       (unsigned)i, dtype_name(h->dtype), plan_name_cut(t->name), t->name,
                       dtype_name(t->dtype));
    if (!same_shape)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "GPU %s, handle %u: a tensor of %llu bytes in %u dimensions, which is not "
                       "the shape of '%.*s'",
                       gpu->uuid, (unsigned)i, (unsigned long long)h->nbytes, (unsigned)h->ndim,
                       plan_name_cut(t->name), t->name);
    return 0;
}

static int check_gpu(const struct ipc_handles *h, const struct ipc_gpu *gpu,
                     const struct plan *plan, const char *field, struct err *e)
{
    bool exact = strcmp(field, "/ipc_handles") == 0;

    if (h->packed)
        return check_bucket(gpu, plan, field, exact, e);
    for (uint32_t i = 0; i < h->n_handles; i++)
        if (check_tensor(gpu, i, &plan->tensors[i], field, e) != 0)
            return -1;
    return 0;
}

static int check_handles(const struct ipc_handles *h, const json_t *body, const struct plan *plan,
                         const char *field, struct err *e)
{
    if (check_packed(body, h, e) != 0 || check_tensor_sizes(body, plan, e) != 0)
        return -1;
    if (!h->packed && h->n_handles != plan->n_tensors)
        return err_set(e, ERR_BAD_REQUEST, field, "there are %u handles for %u tensors",
                       h->n_handles, plan->n_tensors);
    for (uint32_t i = 0; i < h->n_gpus; i++)
        if (check_gpu(h, &h->gpus[i], plan, field, e) != 0)
            return -1;
    return 0;
}

int ipc_from_body(const json_t *body, const struct plan *plan, struct err *e)
{
    struct ipc_handles h = {0};
    char field[ERR_FIELD_MAX];
    int rc;

    (void)snprintf(field, sizeof field, "/%s", member_of(body));
    if (read_handles(&h, body, field, e) != 0)
        return -1;
    rc = check_handles(&h, body, plan, field, e);
    if (rc == 0)
        rc = err_set(e, ERR_NO_GPU, field,
                     "the handles are well formed, but this version opens none on a GPU; "
                     "they name %u, %s first; send the tensors by shm, path or as the body",
                     (unsigned)h.n_gpus, h.gpus[0].uuid);
    ipc_handles_fini(&h);
    return rc;
}
