/* POST /v1/update_weights: a bucket of a session, or a whole update. The bytes come from GPUs,
 * from shared memory, from files, or are the body itself. */
#include "weights/update/update.h"
#include "base/utf8.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/ipc_request.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update/pull.h"
#include "handlers/update/update_delta.h"
#include "handlers/update/update_params.h"
#include "handlers/update/update_requester.h"
#include "handlers/update/update_session.h"
#include "handlers/update_json.h"
#include "handlers/update_members.h"
#include "transport/body.h"
#include "transport/file.h"
#include "weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The missing tensors of a whole update (new), or NULL. */
static json_t *missing_tensors_json(const struct update_chunk *c, const struct err *e)
{
    if (e->code != ERR_INCOMPLETE || c->n_missing == 0)
        return NULL;
    return json_pack("{s:I, s:o}", "n_missing", (json_int_t)c->n_missing, "missing",
                     names_json(c->missing, c->n_missing));
}

/* No member of the request contains a missing tensor, so the error points at the member that
 * lists the tensors sent.
 * @body  NULL if the tensors are the body */
static void set_missing_field(const json_t *body, struct err *e)
{
    static const char *const lists[] = {"/buckets", "/serialized_named_tensors",
                                        "/per_gpu", "/metadata_by_gpu",
                                        "/plan_id", "/names",
                                        "/path",    "/shard_table"};
    const char *found = "";

    for (size_t i = 0; body != NULL && i < sizeof lists / sizeof lists[0] && *found == '\0'; i++)
        found = body_given(body, lists[i] + 1) != NULL ? lists[i] : "";
    (void)snprintf(e->field, sizeof e->field, "%s", found);
}

/* Submits the chunk to the worker; then update_reply_done answers. The source is closed before
 * the answer, because it may read from the request. @body  as for set_missing_field */
static int submit_chunk(struct app *app, struct http_request *x, struct update_chunk *c,
                        const json_t *body, struct err *e)
{
    const struct route *route = x->route;
    struct update_requester *asker;
    json_t *details;

    if (update_requester_new(&asker, app, x, c->source, e) != 0) {
        update_chunk_free(c);
        return -1;
    }
    c->done = update_reply_done;
    c->done_arg = asker;
    c->gone = update_requester_disconnected;
    if (updates_submit(app->weights->updates, c, e) == 0)
        return 0;
    update_requester_free(asker);
    if (route->session ==
        SESSION_AUTO_COMMIT) /* no later request would end a session that received nothing */
        request_session_abort(app, false, "its first bucket was refused");
    details = missing_tensors_json(c, e);
    update_chunk_free(c);
    if (e->code == ERR_INCOMPLETE)
        set_missing_field(body, e);
    update_refused(app, x, body, e);
    reply_error(x, e, details);
    return 0;
}

static struct update_chunk *update_chunk_new(struct err *e)
{
    struct update_chunk *c = calloc(1, sizeof *c);

    if (c == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    return c;
}

/* The label of a file or a header is used unless the request or the start of its update has one. */
static int use_source_label(struct update_chunk *c, const char *label, struct err *e)
{
    if (c->label[0] != '\0' || label == NULL)
        return 0;
    if (label_check(label, "/__metadata__/baton.weight_version", e) != 0)
        return -1;
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    c->label_of_file = true;
    return 0;
}

static void use_file_metadata(struct update_chunk *c, struct file_weights *w)
{
    if (c->tensor_list == NULL)
        c->tensor_list = tensor_list_ref(w->tensor_list);
    if (c->checksums == NULL) {
        c->checksums = w->checksums;
        c->has_checksum = w->has_checksum;
        w->checksums = NULL;
        w->has_checksum = NULL;
    }
}

static int open_path(const struct app *app, struct update_chunk *c, const char *path,
                     struct delta_request *delta, struct err *e)
{
    const struct settings *s = &app->settings;
    struct file_weights w = {0};
    int rc;

    if (file_source_open(&c->source, &w, s->allow_path, s->n_allow_path, path, c->tensor_list, e) !=
        0)
        return -1;
    use_file_metadata(c, &w);
    rc = use_source_label(c, w.weight_version, e);
    delta->from_path = true;
    delta->file_base = w.delta_base;
    w.delta_base = NULL;
    delta->made = w.made;
    w.made = (struct made_sums){0};
    file_weights_fini(&w);
    return rc;
}

/* In a session, its placement counts, not the request's. */
static int open_ipc(struct app *app, struct update_chunk *c, const json_t *body,
                    const struct body_columns *text, struct err *e)
{
    struct update_info info = {.sharded = c->sharded};

    if (c->update_id[0] != '\0' && updates_get(app->weights->updates, c->update_id, &info, e) != 0)
        return -1;
    if (body_given(body, "serialized_named_tensors") != NULL)
        return named_tensors_from_body(c, app->weights, body, info.sharded, e);
    return ipc_from_body(c, app->weights, body, text, info.sharded, e);
}

/* @source  update_source_of
 * @path    of the request, or NULL */
static int open_chunk_source(struct app *app, struct update_chunk *c, const char *source,
                             const char *path, struct delta_request *delta, const json_t *body,
                             const struct body_columns *text, struct err *e)
{
    if (body_reads_nixl(body))
        return nixl_from_body(c, app->weights, body, text, e);
    if (strcmp(source, "transport") == 0)
        return nccl_from_body(c, &delta->patches, app->weights, body, text, e);
    if (strcmp(source, "shm") != 0 && strcmp(source, "path") != 0)
        return open_ipc(app, c, body, text, e);
    if (tensor_list_resolve(&c->tensor_list, app->weights, body, text, "", path != NULL, e) != 0)
        return -1;
    if (c->tensor_list == NULL && body_given(body, "checksums") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/checksums",
                       "checksums need names, and there are none; the checksums of a file are in "
                       "its metadata");
    if (c->tensor_list != NULL &&
        checksums_add(&c->checksums, &c->has_checksum, body, "", c->tensor_list, 0,
                      c->tensor_list->n_tensors, e) != 0)
        return -1;
    return path != NULL ? open_path(app, c, path, delta, e)
                        : shm_from_body(&c->source, body, c->tensor_list, e);
}

/* A trainer's pickles may contain nothing for this server: the reply is the state of the update. */
static int reply_no_tensors(const struct app_weights *weights, struct http_request *x,
                            struct update_chunk *c, struct err *e)
{
    struct update_info info;
    int rc = 0;

    if (c->update_id[0] != '\0')
        rc = updates_get(weights->updates, c->update_id, &info, e);
    else
        updates_current(weights->updates, &info);
    update_chunk_free(c);
    if (rc == 0)
        reply_json(x, 200, update_json(&info));
    return rc;
}

/* What was pulled has its tensors, its base and its proof: nothing else may be said of them. */
static int check_names_pulled(const json_t *body, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(body), name, value)
    {
        if (json_is_null(value) || member_find(update_members, name, WITH_PULLED) != NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%.*s", utf8_cut(name, 64), name);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "path names what was pulled, which is committed as it is: only "
                       "weight_version and abort_requests go with it");
    }
    return 0;
}

static int update_from_json(struct app *app, struct http_request *x, const json_t *body,
                            const struct body_columns *text, struct err *e)
{
    const struct route *route = x->route;
    char id[UPDATE_ID_MAX + 1] = "";
    struct delta_request delta = {0};
    struct update_request w = {0};
    struct update_chunk *c;
    const char *source;
    int rc;

    if (update_params_from_body(&w, body, e) != 0 || request_session_find(id, app, route, e) != 0)
        return -1;
    if (w.path != NULL && pull_is_named(app, w.path))
        return check_names_pulled(body, e) != 0 ? -1
                                                : pull_commit(app, x, w.label, w.abort_requests, e);
    if (id[0] != '\0')
        w.update_id = id;
    if (update_source_of(&source, body, e) != 0)
        return -1;
    c = update_chunk_new(e);
    if (c == NULL)
        return -1;
    update_params_apply(c, &w, x);
    rc = delta_request_begin(&delta, c, app->weights, &w, e);
    if (rc == 0)
        rc = open_chunk_source(app, c, source, w.path, &delta, body, text, e);
    if (rc == 0)
        rc = delta_request_apply(&delta, c, app->weights, e);
    delta_request_fini(&delta);
    if (rc != 0 ||
        (c->source != NULL && route->session == SESSION_AUTO_COMMIT && c->update_id[0] == '\0' &&
         request_session_start(c->update_id, app, x, e) != 0)) {
        update_chunk_free(c);
        return -1;
    }
    if (w.abort_requests)
        update_abort_generations(app);
    if (c->source == NULL)
        return reply_no_tensors(app->weights, x, c, e);
    return submit_chunk(app, x, c, body, e);
}

static int use_stream_header(struct update_chunk *c, struct safetensors *head, struct err *e)
{
    c->tensor_list = tensor_list_ref(head->tensor_list);
    c->checksums = head->checksums;
    c->has_checksum = head->has_checksum;
    head->checksums = NULL;
    head->has_checksum = NULL;
    return use_source_label(c, head->weight_version, e);
}

/* The body's head has been read; the worker will read its tensors directly into staging. */
static int update_from_stream(struct app *app, struct http_request *x, struct err *e)
{
    struct update_request w = {0};
    struct safetensors head = {0};
    struct delta_request delta = {0};
    struct update_chunk *c;
    int rc;

    if (update_params_from_query(&w, x, e) != 0)
        return -1;
    c = update_chunk_new(e);
    if (c == NULL)
        return -1;
    update_params_apply(c, &w, x);
    rc = delta_request_begin(&delta, c, app->weights, &w, e);
    if (rc == 0)
        rc = safetensors_parse(&head, x->body, x->body_len, x->content_length, e);
    if (rc == 0)
        rc = use_stream_header(c, &head, e);
    delta.file_base = head.delta_base;
    head.delta_base = NULL;
    delta.made = head.made;
    head.made = (struct made_sums){0};
    safetensors_fini(&head);
    if (rc == 0)
        rc = body_source_new(&c->source, x, app->settings.body_stall_timeout_ms * 1000, e);
    if (rc == 0)
        rc = delta_request_apply(&delta, c, app->weights, e);
    delta_request_fini(&delta);
    if (rc == 0)
        return submit_chunk(app, x, c, NULL, e);
    update_chunk_free(c);
    return -1;
}

static int refuse_update_query(const struct http_request *x, struct err *e)
{
    if (x->content_type[0] == '\0')
        return err_set(
            e, ERR_MEDIA_TYPE, "",
            "there is no Content-Type; a body of tensors needs application/vnd.safetensors");
    return err_set(e, ERR_BAD_REQUEST, "",
                   "query member '%.60s': with a JSON body, send members in the body",
                   x->query[0].name);
}

/* A trainer may broadcast without waiting for the answer, so a refusal puts the group in doubt. */
int handle_update(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    struct body_columns text;
    bool streams = route->body == BODY_TENSORS && body_is_tensors(x);
    json_t *body = NULL;
    int rc;

    if (streams && pause_controller_allows(app->pause_controller, CALL_UPDATE_RECEIVE, e) != 0)
        return -1;
    if (streams)
        return update_from_stream(app, x, e);
    if (pause_controller_allows(app->pause_controller, CALL_UPDATE_RECEIVE, e) != 0 ||
        (route->strict && x->n_query > 0 && refuse_update_query(x, e) != 0) ||
        body_parse_columns(&body, &text, x, route, app->weights->lists, e) != 0) {
        update_refused_unread(app, x, e);
        return -1;
    }
    rc = update_from_json(app, x, body, &text, e);
    if (rc != 0)
        update_refused(app, x, body, e);
    json_decref(body);
    body_columns_fini(&text);
    return rc;
}
