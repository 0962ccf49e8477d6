/* SkyRL until March 2026: three forms; none of them starts or finishes an update. */
#include "handlers/compat/skyrl/dialect_skyrl.h"

#include "handlers/body.h"
#include "handlers/compat/sglang/dialect_sglang.h"
#include "http/server/http_server.h"

#include <stdio.h>
#include <string.h>

const char *const skyrl_join_members[] = {"master_address",
                                          "master_addr",
                                          "master_port",
                                          "rank_offset",
                                          "world_size",
                                          "group_name",
                                          "backend",
                                          "model_dtype_str",
                                          "override_existing",
                                          "override_existing_receiver",
                                          NULL};
const char *const skyrl_destroy_members[] = {"group_name", NULL};
const char *const skyrl_one_tensor_members[] = {"name", "dtype", "shape", NULL};
const char *const skyrl_list_members[] = {
    "names", "dtypes", "shapes", "sizes", "ipc_handles", "ipc_handles_pickled", "packed", NULL};
const char *const skyrl_pause_members[] = {"wait_for_inflight_request", NULL};

/* A torch process group: its name is part of the store's key for the unique id, so it is required.
 */
int skyrl_join_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const struct dialect_member members[] = {{"master_address", "master_address"},
                                                    {"master_addr", "master_address"},
                                                    {"master_port", "master_port"},
                                                    {"rank_offset", "rank_offset"},
                                                    {"world_size", "world_size"},
                                                    {"group_name", "group_name"},
                                                    {NULL, NULL}};
    const char *backend = "nccl";

    (void)x;
    if (body_str(&backend, *body, "", "backend", e) != 0 ||
        body_required(*body, "", "group_name", e) != 0)
        return -1;
    if (strcmp(backend, "nccl") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/backend", "backend '%.32s' is not nccl", backend);
    if (dialect_select_members(body, *body, members, e) != 0)
        return -1;
    return dialect_set(*body, "transport", json_string("nccl"), e);
}

/* IPC handles need no group: there is nothing to set up. */
int skyrl_join_ipc_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const struct dialect_member none[] = {{NULL, NULL}};
    bool ignored = false;

    (void)x;
    if (body_bool(&ignored, *body, "", "override_existing_receiver", e) != 0)
        return -1;
    if (body_given(*body, "model_dtype_str") == NULL &&
        body_given(*body, "override_existing_receiver") == NULL)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "neither a group to join (master_addr, master_port, rank_offset, "
                       "world_size, group_name) nor CUDA IPC (model_dtype_str)");
    if (dialect_select_members(body, *body, none, e) != 0)
        return -1;
    return dialect_set(*body, "transport", json_string("ipc"), e);
}

int skyrl_destroy_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const struct dialect_member members[] = {{"group_name", "group_name"}, {NULL, NULL}};

    (void)x;
    return dialect_select_members(body, *body, members, e);
}

const struct dialect_member skyrl_one_tensor_pairs[] = {
    {"name", "names/0"}, {"dtype", "dtypes/0"}, {"shape", "shapes/0"}, {NULL, NULL}};

/* One tensor per request, in one broadcast. */
int skyrl_one_tensor_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const char *const members[] = {"name", "dtype", "shape", NULL};
    const char *name = NULL, *dtype = NULL;
    const json_t *shape = NULL;
    json_t *made;

    (void)x;
    for (size_t i = 0; members[i] != NULL; i++)
        if (body_required(*body, "", members[i], e) != 0)
            return -1;
    if (body_str(&name, *body, "", "name", e) != 0 ||
        body_str(&dtype, *body, "", "dtype", e) != 0 ||
        body_array(&shape, *body, "", "shape", e) != 0)
        return -1;
    made = json_pack("{s:[s], s:[s], s:[O], s:s}", "names", name, "dtypes", dtype, "shapes", shape,
                     "transport", "nccl");
    return dialect_replace(body, made) == 0
               ? 0
               : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

static int translate_handles(json_t **body, struct err *e)
{
    static const struct dialect_member members[] = {{"names", "names"},
                                                    {"dtypes", "dtypes"},
                                                    {"shapes", "shapes"},
                                                    {"sizes", "sizes"},
                                                    {"ipc_handles", "ipc_handles_pickled"},
                                                    {"ipc_handles_pickled", "ipc_handles_pickled"},
                                                    {NULL, NULL}};

    return dialect_select_members(body, *body, members, e);
}

/* Unless `packed` is given: with `sizes` all tensors are one broadcast, without it each is one. */
static int is_packed(bool *out, const json_t *body, struct err *e)
{
    bool sized = body_given(body, "sizes") != NULL;

    *out = sized;
    if (body_bool(out, body, "", "packed", e) != 0)
        return -1;
    if (*out && !sized)
        return err_set(e, ERR_BAD_REQUEST, "/sizes",
                       "packed is true, and a packed broadcast comes with sizes");
    return 0;
}

static int translate_broadcast(json_t **body, struct err *e)
{
    static const struct dialect_member members[] = {{"names", "names"},
                                                    {"dtypes", "dtypes"},
                                                    {"shapes", "shapes"},
                                                    {"sizes", "sizes"},
                                                    {NULL, NULL}};
    bool packed = false;

    if (is_packed(&packed, *body, e) != 0 || dialect_select_members(body, *body, members, e) != 0 ||
        dialect_set(*body, "transport", json_string("nccl"), e) != 0)
        return -1;
    return packed ? dialect_set(*body, "packed", json_true(), e) : 0;
}

int skyrl_list_request(json_t **body, const struct http_request *x, struct err *e)
{
    bool handles = body_given(*body, "ipc_handles") != NULL ||
                   body_given(*body, "ipc_handles_pickled") != NULL;

    (void)x;
    return handles ? translate_handles(body, e) : translate_broadcast(body, e);
}

int skyrl_pause_request(json_t **body, const struct http_request *x, struct err *e)
{
    bool wait = false;

    (void)x;
    if (body_bool(&wait, *body, "", "wait_for_inflight_request", e) != 0)
        return -1;
    return dialect_replace(body, json_pack("{s:s}", "mode", wait ? "wait" : "abort")) == 0
               ? 0
               : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

int skyrl_paused_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "paused"));
}

/* The address of the listener; null if a client cannot connect to it (a wildcard, a unix socket).
 * New. */
static json_t *address_json(const char *listen)
{
    static const char *const everywhere[] = {"0.0.0.0", "[::]", "", NULL};
    const char *colon = strrchr(listen, ':');
    size_t len = colon != NULL ? (size_t)(colon - listen) : 0;

    for (size_t i = 0; everywhere[i] != NULL; i++)
        if (strlen(everywhere[i]) == len && strncmp(everywhere[i], listen, len) == 0)
            return json_null();
    if (strncmp(listen, "unix:", 5) == 0)
        return json_null();
    return json_stringn(listen, len);
}

/* 0: a unix socket, or the server does not listen yet. */
static unsigned port_of(const struct app *app)
{
    const struct http_server *http_server = app->http_server;

    return http_server != NULL ? http_server_port(http_server) : 0;
}

static json_t *url_json(const struct app *app, const json_t *address)
{
    if (!json_is_string(address) || port_of(app) == 0)
        return json_null();
    return json_sprintf("%s://%s:%u", app->settings.has_tls ? "https" : "http",
                        json_string_value(address), port_of(app));
}

/* SGLang's clients use the same path, so the reply has the members of both. `world_size` is in
 * SGLang's part. */
int skyrl_info_response(json_t **reply, const struct http_request *x)
{
    const struct app *app = x->app;
    json_t *address, *own;
    int rc;

    if (sglang_server_response(reply, x) != 0)
        return -1;
    address = address_json(app->settings.listen);
    own = json_pack("{s:o, s:i, s:o, s:i}", "ip", address, "port", (int)port_of(app), "url",
                    url_json(app, address), "server_idx", 0);
    rc = own != NULL ? json_object_update(*reply, own) : -1;
    json_decref(own);
    return rc;
}
