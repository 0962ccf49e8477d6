/* POST /v1/weights/plans: registers a tensor list; later requests name its plan_id. */
#include "handlers/body_columns.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update_json.h"
#include "weights/update/coverage.h"
#include "weights/update/list_cache.h"
#include "weights/update/update.h"

/* @tensor_list  one reference; replaced by one to an equal list if that is cached */
static int register_list(const struct app_weights *weights, struct http_request *x,
                         struct tensor_list **tensor_list, bool convert, struct err *e)
{
    struct list_key key = {LIST_BY_ID, {{(*tensor_list)->digest, TENSOR_LIST_DIGEST_LEN}}};
    const char *missing[UPDATE_MISSING_MAX];
    uint32_t n_missing;

    if (tensor_list_coverage(store_model_spec(weights->store), *tensor_list, convert, missing,
                             UPDATE_MISSING_MAX, &n_missing, e) != 0)
        return -1;
    if (!list_cache_put(weights->lists, &key, tensor_list))
        return err_set(e, ERR_NO_MEMORY, "", "no memory to keep a list of %u tensors",
                       (unsigned)(*tensor_list)->n_tensors);
    reply_json(x, 200,
               json_pack("{s:s, s:I, s:I, s:b, s:I, s:o}", "plan_id", (*tensor_list)->digest,
                         "n_tensors", (json_int_t)(*tensor_list)->n_tensors, "nbytes",
                         (json_int_t)(*tensor_list)->nbytes, "covers_manifest",
                         (int)(n_missing == 0), "n_missing", (json_int_t)n_missing, "missing",
                         names_json(missing, n_missing)));
    return 0;
}

int handle_tensor_list_put(struct app *app, struct http_request *x, struct err *e)
{
    struct tensor_list *tensor_list = NULL;
    bool convert = false;
    struct body_columns text;
    json_t *body;
    int rc;

    if (body_parse_columns(&body, &text, x, x->route, app->weights->lists, e) != 0)
        return -1;
    rc = body_bool(&convert, body, "", "convert", e);
    if (rc == 0)
        rc = tensor_list_from_body(&tensor_list, body, &text, e);
    json_decref(body);
    body_columns_fini(&text);
    if (rc == 0)
        rc = register_list(app->weights, x, &tensor_list, convert, e);
    tensor_list_unref(tensor_list);
    return rc;
}
