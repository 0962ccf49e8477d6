/* GET /v1/weights/diff: what the last commit changed, tensor by tensor. It is made of checksums, so
 * it works while the weights sleep, and says nothing about values. */
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "handlers/update_json.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <string.h>

static bool wanted(const struct weights_diff_request *req, const struct tensor_change *t)
{
    if (strcmp(req->change, "equal_to_another") == 0)
        return t->other != TENSOR_LIST_NO_TENSOR;
    return strcmp(req->change, "all") == 0 ||
           strcmp(req->change, change_name((enum change)t->change)) == 0;
}

/* New, or NULL. */
static json_t *changed_tensor_json(const struct tensor_list *list, uint32_t i,
                                   const struct tensor_change *t)
{
    json_t *equal = json_null();

    if (t->other != TENSOR_LIST_NO_TENSOR)
        equal = json_pack("{s:s, s:s}", "name", list->tensors[t->other].name, "in",
                          t->other_before ? "version_before" : "this_version");
    return json_pack("{s:s, s:s, s:b, s:o}", "name", list->tensors[i].name, "change",
                     change_name((enum change)t->change), "newly_unchanged",
                     (int)t->newly_unchanged, "equal_to", equal);
}

/* The page of wanted tensors (new), or NULL. @n  all that are wanted */
static json_t *page_json(const struct weights_diff_request *req, const struct tensor_list *list,
                         const struct change_report *r, uint64_t *n)
{
    json_t *page = json_array();

    *n = 0;
    for (uint32_t i = 0; page != NULL && i < r->n_tensors; i++) {
        if (!wanted(req, &r->tensors[i]))
            continue;
        if (*n >= req->offset && *n - req->offset < req->limit &&
            json_array_append_new(page, changed_tensor_json(list, i, &r->tensors[i])) != 0) {
            json_decref(page);
            page = NULL;
        }
        ++*n;
    }
    return page;
}

/* New, or NULL. @r  NULL: no version was before the served one */
static json_t *diff_json(const struct weights_diff_request *req, const struct tensor_list *list,
                         const struct change_report *r)
{
    uint64_t n = 0;
    json_t *page = r != NULL ? page_json(req, list, r, &n) : json_array();
    bool more = n > req->limit && n - req->limit > req->offset;

    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o}", "weight_version",
                     r != NULL ? json_string(r->label) : json_null(), "serial",
                     r != NULL ? json_integer((json_int_t)r->serial) : json_null(), "changes",
                     r != NULL ? changes_json(&r->counts) : json_null(), "n_tensors", (json_int_t)n,
                     "tensors", page, "next_offset",
                     more ? json_integer((json_int_t)(req->offset + req->limit)) : json_null());
}

int handle_weights_diff(struct app *app, struct http_request *x, struct err *e)
{
    const struct change_report *r;
    struct weights_diff_request req = {0};
    json_t *reply;

    if (member_read_query(&req, weights_diff_query, x, e) != 0)
        return -1;
    r = updates_changes(app->weights->updates);
    reply = diff_json(&req, store_model_spec(app->weights->store)->tensor_list, r);
    updates_changes_unref(app->weights->updates, r);
    if (reply == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    reply_json(x, 200, reply);
    return 0;
}
