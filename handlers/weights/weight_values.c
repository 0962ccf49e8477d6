/* The first rows of a tensor as numbers, for a trainer that compares a few with its own. GET
 * /v1/weights/{name} returns a whole tensor as bytes. */
#include "base/utf8.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "handlers/weights/weights_find.h"
#include "weights/store/store.h"

#include <math.h>
#include <stdlib.h>

enum { VALUES_MAX = 1 << 20 };

/* Counts the numbers and lists of the first rows. Returns false if there are more than
 * VALUES_MAX. */
static bool count_values(const struct tensor_spec *t, uint64_t n_rows, uint64_t *out)
{
    uint64_t n = 1;

    for (uint32_t k = 0; k < t->ndim; k++) {
        uint64_t dim = k == 0 && n_rows < t->shape[0] ? n_rows : t->shape[k];

        if (dim > VALUES_MAX || n * (dim > 0 ? dim : 1) > VALUES_MAX)
            return false;
        n *= dim > 0 ? dim : 1;
    }
    *out = n;
    return true;
}

static int values_check(const struct tensor_spec *t, uint64_t n_rows, struct err *e)
{
    uint64_t n;

    if (!dtype_convertible(t->dtype, DTYPE_F32))
        return err_set(e, ERR_BAD_REQUEST, "/name",
                       "'%.*s' is %s, which cannot be shown as numbers; GET /v1/weights/{name} "
                       "returns its bytes",
                       utf8_cut_name(t->name), t->name, dtype_name(t->dtype));
    if (!count_values(t, n_rows, &n))
        return err_set(e, ERR_BAD_REQUEST, "/truncate_size",
                       "%llu rows of '%.*s' are more than %d values; ask for fewer, or GET "
                       "/v1/weights/{name}",
                       (unsigned long long)n_rows, utf8_cut_name(t->name), t->name, VALUES_MAX);
    return 0;
}

/* A row-major block that is converted to nested lists. */
struct block {
    const float *next;
    const uint64_t *shape;
    uint32_t ndim;
};

/* New, or NULL; no deeper than TENSOR_LIST_NDIM_MAX. NaN and infinity become null. */
static json_t *nested_json(struct block *b, uint32_t k)
{
    json_t *list;

    if (k == b->ndim) {
        double value = *b->next++;

        return isfinite(value) ? json_real(value) : json_null();
    }
    list = json_array();
    for (uint64_t i = 0; i < b->shape[k] && list != NULL; i++) {
        if (json_array_append_new(list, nested_json(b, k + 1)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static int values_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the values");
}

/* @raw, @values  memory for `numel` elements of either type, and not empty */
static int read_values(const struct app_weights *weights, const struct version *v, uint32_t index,
                       uint64_t numel, void *raw, float *values, struct err *e)
{
    const struct tensor_spec *t = &store_model_spec(weights->store)->tensor_list->tensors[index];
    uint64_t nbytes = numel * dtype_nbytes(t->dtype);

    if (nbytes > 0 && store_read(weights->store, v, index, 0, nbytes, raw, e) != 0)
        return -1;
    dtype_convert(values, DTYPE_F32, raw, t->dtype, numel);
    return 0;
}

/* New, or NULL with e set. */
static json_t *values_json(const struct app_weights *weights, const struct version *v,
                           uint32_t index, uint64_t n_rows, struct err *e)
{
    const struct tensor_spec *t = &store_model_spec(weights->store)->tensor_list->tensors[index];
    uint64_t shape[TENSOR_LIST_NDIM_MAX], numel = 1;
    struct block b = {.shape = shape, .ndim = t->ndim};
    json_t *list = NULL;
    float *values;
    void *raw;

    for (uint32_t k = 0; k < t->ndim; k++) {
        shape[k] = k == 0 && n_rows < t->shape[0] ? n_rows : t->shape[k];
        numel *= shape[k];
    }
    raw = malloc((numel + 1) * dtype_nbytes(t->dtype));
    values = malloc((numel + 1) * sizeof *values);
    b.next = values;
    if (raw == NULL || values == NULL)
        (void)values_no_memory(e);
    else if (read_values(weights, v, index, numel, raw, values, e) == 0 &&
             (list = nested_json(&b, 0)) == NULL)
        (void)values_no_memory(e);
    free(raw);
    free(values);
    return list;
}

static int reply_values(const struct app_weights *weights, struct http_request *x,
                        const struct weight_values_request *req, struct err *e)
{
    const struct model_spec *m = store_model_spec(weights->store);
    const struct version *v;
    uint32_t index;
    json_t *list;

    if (weights_find(m, req->name, &index, e) != 0 ||
        values_check(&m->tensor_list->tensors[index], req->n_rows, e) != 0 ||
        store_pin(weights->store, &v, e) != 0)
        return -1;
    list = values_json(weights, v, index, req->n_rows, e);
    store_unpin(weights->store, v);
    if (list == NULL)
        return -1;
    reply_json(x, 200, list);
    return 0;
}

int handle_weight_values(struct app *app, struct http_request *x, struct err *e)
{
    struct weight_values_request req = {0};
    json_auto_t *body = NULL;

    if (body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, weight_values_members, body, "", e) != 0)
        return -1;
    return reply_values(app->weights, x, &req, e);
}
