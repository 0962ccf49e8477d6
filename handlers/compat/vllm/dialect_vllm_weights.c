/* vLLM's control routes: weights, in the forms of all its releases. Members that only some releases
 * have are optional. No request names its update: each means the one that is open. */
#include "handlers/compat/vllm/dialect_vllm.h"

#include "base/json_parse.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/rows/update_request.h"
#include "handlers/update_members.h"
#include "weights/tensor_list.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int vllm_put_message(json_t **reply, const char *message)
{
    return dialect_replace(reply, json_pack("{s:s}", "message", message));
}

/* One rank for each GPU that holds the weights; a server without GPUs has one. */
int vllm_world_size_response(json_t **reply, const struct http_request *x)
{
    const json_t *ranks = json_object_get(json_object_get(*reply, "cuda"), "ranks");
    size_t n = json_array_size(ranks);

    (void)x;
    return dialect_replace(reply, json_pack("{s:I}", "world_size", (json_int_t)(n > 0 ? n : 1)));
}

/* Gets the required object `member` of the body.
 * @ours  the native route: the client may have left out its /v1 */
static int require_info(const json_t **out, const json_t *body, const char *member,
                        const char *ours, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (body_given(body, member) != NULL)
        return body_object(out, body, "", member, e);
    (void)snprintf(field, sizeof field, "/%s", member);
    return err_set(
        e, ERR_BAD_REQUEST, field,
        "%s is missing, it is required: this route takes vLLM's form; POST this server's "
        "own to %s",
        member, ours);
}

/* Refuses members of an object that have no row, or that belong to the other backend, by name: they
 * may change what is sent. Those without a native place are ignored.
 * @other  the flag of the other backend's rows */
static int check_known(const json_t *info, const char *at, const struct member *rows,
                       unsigned other, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(info), name, value)
    {
        const struct member *m = member_find(rows, name, 0);

        if ((m != NULL && (m->flags & other) == 0) || json_is_null(value))
            continue;
        (void)snprintf(field, sizeof field, "%s/%.64s", at, name);
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "unknown member '%.64s' of %s, which may change what is sent: this server takes "
            "vLLM's backends nccl, sparse_nccl and ipc, no deltas or shards of its other ones",
            name, at + 1);
    }
    return 0;
}

/* vLLM's trainers send the buffer sizes of packed broadcasts even if they do not pack. */
static int drop_buffers(json_t *body, const char *at, bool group, struct err *e)
{
    bool packed = false;

    if (body_bool(&packed, body, at, "packed", e) != 0)
        return -1;
    if (!packed || !group) {
        (void)json_object_del(body, "packed_buffer_size_bytes");
        (void)json_object_del(body, "packed_num_buffers");
    }
    return 0;
}

/* Since vLLM 0.28 the packing of tensors is given here, and not in updates. */
int vllm_init_request(json_t **body, const struct http_request *x, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const json_t *info = NULL;
    json_t *held;
    bool group;
    int rc;

    (void)x;
    if (require_info(&info, *body, "init_info", "/v1/weight_transfer/init", e) != 0)
        return -1;
    held = json_incref(json_mutable(info));
    /* Only a group has an address and ranks. */
    group = member_given(field, vllm_init_info_rows, WITH_GROUP, info, "") != NULL;
    rc = check_known(info, "/init_info", vllm_init_info_rows, 0, e);
    if (rc == 0)
        rc = dialect_translate(body, info, vllm_init_info_rows, 0, e);
    if (rc == 0)
        rc = drop_buffers(*body, "/init_info", group, e);
    json_decref(held);
    return rc != 0 ? -1 : dialect_set(*body, "transport", json_string(group ? "nccl" : "ipc"), e);
}

int vllm_init_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return vllm_put_message(reply, "Weight transfer initialized");
}

int vllm_shutdown_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return vllm_put_message(reply, "Weight transfer shut down");
}

/* An engine in front of which this server stands may have one. */
static int refuse_draft(const struct http_request *x, const char *field, struct err *e)
{
    const struct app *app = x->app;

    if (app != NULL && app->fleet != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a drafter's weights cannot be sent through this server: the engines behind "
                       "it keep the drafters that they were started with; update the model alone");
    return err_set(e, ERR_BAD_REQUEST, field,
                   "there is no drafter whose weights could be updated: this server's engine does "
                   "not decode speculatively");
}

/* is_checkpoint_format is ignored: names and shapes show the layout, and they are checked. */
int vllm_start_request(json_t **body, const struct http_request *x, struct err *e)
{
    bool draft = false, format = true;

    if (body_bool(&draft, *body, "", "include_draft", e) != 0 ||
        body_bool(&format, *body, "", "is_checkpoint_format", e) != 0)
        return -1;
    if (draft)
        return refuse_draft(x, "/include_draft", e);
    (void)json_object_clear(*body);
    return dialect_set(*body, "lease_s", json_integer(UPDATE_ANONYMOUS_LEASE_S), e);
}

int vllm_start_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return vllm_put_message(reply, "Weight update started");
}

int vllm_draft_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)body;
    return refuse_draft(x, "", e);
}

static int check_dense_update(const json_t *info, const char *at, struct err *e)
{
    const char *kind = "dense";
    char field[ERR_FIELD_MAX];

    if (body_str(&kind, info, at, "update_kind", e) != 0)
        return -1;
    (void)snprintf(field, sizeof field, "%.64s/update_kind", at);
    return strcmp(kind, "dense") == 0
               ? 0
               : err_set(e, ERR_BAD_REQUEST, field,
                         "update_kind '%.32s' is not dense: sparse patches are taken from vLLM "
                         "0.29 or later",
                         kind);
}

static bool info_has_handles(const json_t *info)
{
    return body_given(info, "ipc_handles") != NULL ||
           body_given(info, "ipc_handles_pickled") != NULL;
}

/* Since 0.33 three empty lists mean those of the update before. An empty column is never left in
 * the text (handlers/body_columns.h). */
static bool repeats_list(const json_t *info)
{
    const char *names[MEMBER_NAMES_MAX];

    member_names(names, vllm_update_info_rows, OF_LIST);
    for (const char **name = names; *name != NULL; name++) {
        const json_t *column = body_given(info, *name);

        if (column != NULL && !(json_is_array(column) && json_array_size(column) == 0))
            return false;
    }
    return true;
}

static int set_broadcast(json_t *body, const json_t *info, struct err *e)
{
    if (body_given(info, "num_updates_list") == NULL && repeats_list(info)) {
        (void)json_object_del(body, "names");
        (void)json_object_del(body, "dtype_names");
        (void)json_object_del(body, "shapes");
        if (dialect_set(body, "plan_id", json_string(TENSOR_LIST_ID_LAST), e) != 0)
            return -1;
    }
    return dialect_set(body, "transport", json_string("nccl"), e);
}

static int translate_update(json_t **body, const json_t *info, struct err *e)
{
    bool handles = info_has_handles(info);

    if (check_known(info, "/update_info", vllm_update_info_rows,
                    handles ? OF_PATCHES : WITH_HANDLES, e) != 0 ||
        check_dense_update(info, "/update_info", e) != 0 ||
        dialect_translate(body, info, vllm_update_info_rows, 0, e) != 0)
        return -1;
    if (handles) {
        (void)json_object_del(*body, "packed_buffer_size_bytes");
        return 0;
    }
    if (drop_buffers(*body, "/update_info", true, e) != 0)
        return -1;
    return set_broadcast(*body, info, e);
}

/* Entry i of a list in vLLM's form, as the bucket of rank i. An entry without names is for a rank
 * that gets nothing.
 * @out    new
 * @names  the entry's, as the client sent them */
static int entry_to_bucket(json_t **out, const json_t *entry, const json_t *names, size_t i,
                           struct err *e)
{
    char at[ERR_FIELD_MAX];

    *out = NULL;
    (void)snprintf(at, sizeof at, "/update_info/%zu", i);
    if (!json_is_object(entry))
        return err_set(e, ERR_BAD_REQUEST, at, "%s, expected an object", body_type_name(entry));
    if (check_known(entry, at, vllm_update_info_rows, OF_PATCHES, e) != 0 ||
        check_dense_update(entry, at, e) != 0)
        return -1;
    if (json_is_array(names) && json_array_size(names) == 0) {
        *out = json_null();
        return 0;
    }
    if (!info_has_handles(entry))
        return err_set(e, ERR_BAD_REQUEST, at,
                       "entry %zu has no ipc_handles_pickled, and differs from another entry: all "
                       "ranks receive the same broadcasts, so only handles can differ",
                       i);
    if (dialect_translate(out, entry, vllm_update_info_rows, 0, e) != 0)
        return -1;
    (void)json_object_del(*out, "packed_buffer_size_bytes");
    return dialect_set(*out, "rank", json_integer((json_int_t)i), e);
}

/* Makes `buckets` of a list whose entries differ.
 * @sent  the same list, with its long columns */
static int entries_to_buckets(json_t **body, const json_t *list, const json_t *sent, struct err *e)
{
    json_t *buckets = json_array(), *bucket = NULL;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *names = json_object_get(json_array_get(sent, i), "names");

        if (entry_to_bucket(&bucket, json_array_get(list, i), names, i, e) != 0) {
            json_decref(bucket);
            json_decref(buckets);
            return -1;
        }
        (void)json_array_append_new(buckets, bucket); /* without memory, dialect_set refuses */
    }
    if (json_array_size(buckets) != json_array_size(list)) {
        json_decref(buckets);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    (void)json_object_clear(*body);
    return dialect_set(*body, "buckets", buckets, e);
}

/* As many entries as this server has ranks? In front of a fleet, its engines count theirs. */
static int check_n_entries(size_t n, const struct app *app, struct err *e)
{
    uint32_t n_ranks = app != NULL && app_n_devices(app) > 0 ? app_n_devices(app) : 1;

    if (n > 0 && (app == NULL || app->weights == NULL || n == n_ranks))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/update_info",
                   "update_info has %zu entries; a list has one for each rank, and this server has "
                   "%u: send that many, or one object",
                   n, (unsigned)n_ranks);
}

/* update_info may be a list: rank i takes entry i. Equal entries are one object. */
static int translate_list(json_t **body, const json_t *list, const struct http_request *x,
                          struct err *e)
{
    const struct app *app = x->app;
    json_t *whole = json_loadb(x->body, x->body_len, 0, NULL); /* with its long columns */
    const json_t *sent = json_object_get(whole, "update_info"), *first = json_array_get(list, 0);
    size_t n = json_array_size(list), i = 1;
    int rc = check_n_entries(n, app, e);

    while (i < n && json_equal(json_array_get(sent, i), json_array_get(sent, 0)))
        i++;
    if (rc == 0 && i < n && app != NULL && app->weights == NULL)
        rc = err_set(e, ERR_BAD_REQUEST, "/update_info",
                     "entry %zu differs from entry 0, and the engines behind this server count "
                     "their ranks each by itself; send one object, whose handles name each GPU, "
                     "and metadata_by_gpu where GPUs hold different tensors",
                     i);
    else if (rc == 0 && i < n)
        rc = entries_to_buckets(body, list, sent, e);
    else if (rc == 0 && !json_is_object(first))
        rc = err_set(e, ERR_BAD_REQUEST, "/update_info/0", "%s, expected an object",
                     body_type_name(first));
    else if (rc == 0)
        rc = translate_update(body, first, e);
    json_decref(whole);
    return rc;
}

int vllm_update_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *given = body_given(*body, "update_info"), *info = NULL;
    json_t *held;
    int rc;

    if (!json_is_array(given) &&
        require_info(&info, *body, "update_info", "/v1/update_weights", e) != 0)
        return -1;
    held = json_incref(json_mutable(given));
    rc = json_is_array(given) ? translate_list(body, held, x, e) : translate_update(body, held, e);
    json_decref(held);
    return rc;
}

/* Its clients read no member. */
static int put_update(json_t **reply, const char *message)
{
    json_t *base = json_incref(json_object_get(*reply, "base"));
    int rc = vllm_put_message(reply, message);

    if (rc == 0 && json_is_string(base))
        rc = json_object_set(*reply, "base", base);
    json_decref(base);
    return rc;
}

int vllm_update_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return put_update(reply, "Weights updated");
}

int vllm_finish_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return put_update(reply, "Weight update finished");
}

int vllm_label_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:b, s:O}", "success", 1, "new_version",
                                            json_object_get(*reply, "weight_version")));
}

/* null: no weights have been committed, or they were dropped. */
int vllm_info_response(json_t **reply, const struct http_request *x)
{
    json_t *label = json_object_get(json_object_get(*reply, "weights"), "weight_version");

    (void)x;
    return dialect_replace(reply, label == NULL ? json_pack("{s:n}", "weight_version")
                                                : json_pack("{s:O}", "weight_version", label));
}

/* Some clients send "baseline": null with other actions than compare. */
int vllm_checker_request(json_t **body, const struct http_request *x, struct err *e)
{
    const char *action = NULL;

    if (body_str(&action, *body, "", "action", e) != 0 || dialect_request_plain(body, x, e) != 0)
        return -1;
    if (action != NULL && dialect_check_action(action, "reset", e) != 0)
        return -1;
    if (action != NULL && strcmp(action, "compare") != 0)
        (void)json_object_del(*body, "baseline");
    return 0;
}

/* vLLM overwrites the weights with noise, so that a later compare proves that all tensors were
 * sent. Here the weights are dropped, which proves the same, and noise is never served. */
int vllm_reset_weights_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)x;
    (void)json_object_clear(*body);
    if (dialect_set(*body, "level", json_integer(2), e) != 0)
        return -1;
    return dialect_set(*body, "tags", json_pack("[s]", "weights"), e);
}

int vllm_reset_weights_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "reset"));
}
