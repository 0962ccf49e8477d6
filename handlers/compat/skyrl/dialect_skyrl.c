/* Today's SkyRL: methods of /collective_rpc, adapters, generation. */
#include "handlers/compat/skyrl/dialect_skyrl.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/rows/update_request.h"
#include "handlers/update_members.h"
#include "memory/checksum.h"

#include <stdio.h>
#include <string.h>

enum {
    LORA_ID_BITS = 48, /* exact in every JSON parser */
    METHOD_SHOWN_MAX = 64,
    RPC_TIMEOUT_MS_MAX = 86400000
};

#define INFO_AT "/kwargs/update_info"

/* /collective_rpc */

/* Gets the arguments of a method. @out  borrowed; NULL: none */
static int kwargs_of(const json_t **out, const json_t *body, struct err *e)
{
    const json_t *args = NULL, *kwargs = NULL;

    if (body_array(&args, body, "", "args", e) != 0 ||
        body_object(&kwargs, body, "", "kwargs", e) != 0)
        return -1;
    if (json_array_size(args) > 0)
        return err_set(e, ERR_BAD_REQUEST, "/args",
                       "%zu arguments by position; send named ones in kwargs",
                       json_array_size(args));
    *out = kwargs;
    return 0;
}

static int update_info_of(const json_t **out, const json_t *body, struct err *e)
{
    const json_t *kwargs = NULL, *info = NULL;

    if (kwargs_of(&kwargs, body, e) != 0)
        return -1;
    if (kwargs == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/kwargs",
                       "'kwargs' is required, with 'update_info' in it");
    if (body_required(kwargs, "/kwargs", "update_info", e) != 0 ||
        body_object(&info, kwargs, "/kwargs", "update_info", e) != 0)
        return -1;
    *out = info;
    return 0;
}

/* Tensors in an engine's internal layout (is_checkpoint_format false) cannot be read here. */
int skyrl_rpc_start_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *kwargs = NULL;
    bool checkpoint = true;

    (void)x;
    if (kwargs_of(&kwargs, *body, e) != 0 ||
        (kwargs != NULL &&
         body_bool(&checkpoint, kwargs, "/kwargs", "is_checkpoint_format", e) != 0))
        return -1;
    if (!checkpoint)
        return err_set(e, ERR_BAD_REQUEST, "/kwargs/is_checkpoint_format",
                       "is_checkpoint_format is false; only tensors as a checkpoint has them are "
                       "taken");
    (void)json_object_clear(*body);
    return dialect_set(*body, "lease_s", json_integer(UPDATE_ANONYMOUS_LEASE_S), e);
}

int skyrl_rpc_ipc_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *info = NULL;

    (void)x;
    return update_info_of(&info, *body, e) != 0
               ? -1
               : dialect_translate(body, info, skyrl_info_rows, WITH_HANDLES, e);
}

/* NCCL transfers no metadata about packing: members that the request leaves out have vLLM's
 * defaults, which the native route applies. */
int skyrl_rpc_nccl_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *info = NULL;
    bool packed = false;

    (void)x;
    if (update_info_of(&info, *body, e) != 0 ||
        body_bool(&packed, info, INFO_AT, "packed", e) != 0 ||
        dialect_translate(body, info, skyrl_info_rows, WITH_GROUP, e) != 0)
        return -1;
    if (!packed)
        (void)json_object_del(*body, "packed_buffer_size_bytes");
    return dialect_set(*body, "transport", json_string("nccl"), e);
}

int skyrl_rpc_finish_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *kwargs = NULL;

    (void)x;
    return kwargs_of(&kwargs, *body, e) != 0
               ? -1
               : dialect_translate(body, kwargs, skyrl_finish_rows, 0, e);
}

/* The caller has frozen the running requests. The KV cache is in host memory already, so offload_kv
 * keeps it; otherwise it is dropped, and recomputed when generation continues. */
int skyrl_rpc_sleep_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *kwargs = NULL;
    bool offload = false;
    json_t *made;

    (void)x;
    if (kwargs_of(&kwargs, *body, e) != 0 ||
        (kwargs != NULL && body_bool(&offload, kwargs, "/kwargs", "offload_kv", e) != 0))
        return -1;
    made = offload ? json_pack("{s:i, s:[s]}", "level", 2, "tags", "weights")
                   : json_pack("{s:i, s:[s, s]}", "level", 2, "tags", "weights", "kv_cache");
    return dialect_replace(body, made) == 0
               ? 0
               : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

int skyrl_rpc_wake_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *kwargs = NULL;

    (void)x;
    return kwargs_of(&kwargs, *body, e) != 0
               ? -1
               : dialect_translate(body, kwargs, skyrl_wake_rows, 0, e);
}

/* vLLM passes args to the method of checkpoint-engine's worker. Its only argument, zmq_handles,
 * comes by position or by name. timeout, in seconds, is for the whole call. */
int skyrl_rpc_zmq_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *args = NULL, *kwargs = NULL, *handles, *timeout = body_given(*body, "timeout");
    double ms = timeout != NULL ? json_number_value(timeout) * 1000 : 0;
    json_t *made;

    (void)x;
    if (body_array(&args, *body, "", "args", e) != 0 ||
        body_object(&kwargs, *body, "", "kwargs", e) != 0)
        return -1;
    handles = kwargs != NULL ? body_given(kwargs, "zmq_handles") : NULL;
    if (json_array_size(args) + (handles != NULL) != 1)
        return err_set(e, ERR_BAD_REQUEST, "/args",
                       "update_weights_from_ipc takes one argument, an object of GPU UUIDs and "
                       "socket addresses; there are %zu by position, and %s by name",
                       json_array_size(args), handles != NULL ? "one" : "none");
    if (timeout != NULL && !(json_is_number(timeout) && ms >= 1 && ms <= RPC_TIMEOUT_MS_MAX))
        return err_set(e, ERR_BAD_REQUEST, "/timeout",
                       "timeout is not a number of seconds, above 0 and up to a day");
    made = json_object();
    if (dialect_set(made, "zmq_handles",
                    json_incref(json_mutable(handles != NULL ? handles : json_array_get(args, 0))),
                    e) != 0 ||
        (timeout != NULL &&
         dialect_set(made, "timeout_ms", json_integer((json_int_t)ms), e) != 0)) {
        json_decref(made);
        return -1;
    }
    json_decref(*body);
    *body = made;
    return 0;
}

int skyrl_rpc_refuse(json_t **body, const struct http_request *x, struct err *e)
{
    const char *method = NULL;

    (void)x;
    if (body_required(*body, "", "method", e) != 0 ||
        body_str(&method, *body, "", "method", e) != 0)
        return -1;
    return err_set(e, ERR_BAD_REQUEST, "/method",
                   "there is no method '%.*s' here; there are skyrl_start_weight_update, "
                   "update_weights_ipc, update_weights_nccl, skyrl_finish_weight_update, "
                   "skyrl_sleep_for_weight_sync, skyrl_wake_for_weight_sync and "
                   "update_weights_from_ipc",
                   METHOD_SHOWN_MAX, method);
}

int skyrl_results_response(json_t **reply, const struct http_request *x)
{
    const struct app *app = x->app;
    uint32_t n_ranks = app_n_devices(app) > 0 ? app_n_devices(app) : 1;
    json_t *results = json_array();

    for (uint32_t r = 0; r < n_ranks; r++) {
        if (json_array_append_new(results, json_null()) != 0) {
            json_decref(results);
            return -1;
        }
    }
    return dialect_replace(reply, json_pack("{s:o}", "results", results));
}

/* Adapters */

int skyrl_lora_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_required(*body, "", "lora_name", e) != 0 ||
        body_required(*body, "", "lora_path", e) != 0 || dialect_request_plain(body, x, e) != 0)
        return -1;
    return dialect_set(*body, "load_inplace", json_true(), e);
}

/* lora_int_id: a number derived from the name, the same on every server and after a restart.
 * Clients expect one, but requests name adapters only by name. */
static json_int_t lora_id_of(const char *name)
{
    struct checksum sum = checksum_of(name, strlen(name));
    uint64_t mixed = (sum.a ^ sum.b * 0x9e3779b97f4a7c15U) * 0xbf58476d1ce4e5b9U;

    return (json_int_t)((mixed >> (64 - LORA_ID_BITS)) | 1); /* never 0, which is no adapter */
}

int skyrl_lora_response(json_t **reply, const struct http_request *x)
{
    const char *name = json_string_value(json_object_get(*reply, "lora_name"));

    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:s, s:I}", "status", "ok", "lora_name", name,
                                            "lora_int_id", lora_id_of(name)));
}

/* Generation */

/* The reply has one choice, so n > 1 is refused instead of dropping choices silently. */
static int check_n(const json_t *body, struct err *e)
{
    const json_t *sampling = NULL;
    uint64_t n = 1;

    if (body_object(&sampling, body, "", "sampling_params", e) != 0 ||
        (sampling != NULL &&
         body_u64(&n, sampling, "/sampling_params", "n", 1, UINT32_MAX, e) != 0))
        return -1;
    if (n == 1)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/sampling_params/n",
                   "n is %llu, and this route answers exactly one choice; /inference/v1/generate "
                   "answers all",
                   (unsigned long long)n);
}

/* SkyRL's client sends its requests here, and not to /inference/v1/generate, if it wants routed
 * experts. `model` is checked, although SkyRL's own server ignores it: a request for an adapter
 * must not get the base model's tokens. */
int skyrl_generate_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (check_n(*body, e) != 0 || dialect_request_plain(body, x, e) != 0 ||
        dialect_set(*body, "return_routed_experts", json_true(), e) != 0)
        return -1;
    if (json_object_get(*body, "sampling_params") != NULL)
        return 0;
    return dialect_set(*body, "sampling_params", json_object(), e);
}

/* Deltas of checkpoints */

int skyrl_deltas_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)x;
    return dialect_translate(body, json_object_get(*body, "init_info"), skyrl_deltas_rows, 0, e) !=
                       0 ||
                   dialect_set(*body, "form", json_string("skyrl"), e) != 0
               ? -1
               : dialect_set(*body, "version", json_integer(0), e);
}

int skyrl_deltas_response(json_t **reply, const struct http_request *x)
{
    json_t *base = json_object_get(*reply, "base");
    const char *what = "base_model_path is what is served";

    (void)x;
    if (strcmp(json_string_value(base), "unchecked") == 0)
        what = "the base is unchecked: neither base_model_path nor a model of the server's start "
               "can be read here";
    else if (json_is_false(json_object_get(*reply, "base_read")))
        what = "base_model_path cannot be read here, and what the server started with is served";
    return dialect_replace(reply, json_pack("{s:o, s:O}", "message",
                                            json_sprintf("Weight transfer initialized: %s", what),
                                            "base", base));
}

static size_t without_slashes(const char *path)
{
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    return len;
}

/* The directory of all versions. Its trainer also names that of the target, which must be one of
 * them.
 * @out  new, for json_decref */
static int sync_dir_of(json_t **out, const json_t *info, const char *at, uint64_t version,
                       struct err *e)
{
    const char *dir = NULL, *uri = NULL;
    char field[ERR_FIELD_MAX], name[32];
    size_t len, end;

    if (body_str(&dir, info, at, "sync_dir", e) != 0 || body_str(&uri, info, at, "uri", e) != 0)
        return -1;
    if (dir == NULL && uri == NULL) {
        (void)snprintf(field, sizeof field, "%s/sync_dir", at);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "neither sync_dir nor uri says where the deltas are");
    }
    (void)snprintf(name, sizeof name, "/delta-%08llu", (unsigned long long)version);
    end = uri != NULL ? without_slashes(uri) : 0;
    len = dir != NULL ? without_slashes(dir) : end > strlen(name) ? end - strlen(name) : 0;
    if (uri != NULL && (end != len + strlen(name) || memcmp(uri + len, name, strlen(name)) != 0 ||
                        (dir != NULL && memcmp(uri, dir, len) != 0))) {
        (void)snprintf(field, sizeof field, "%s/uri", at);
        return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' is not '%s' in sync_dir", uri,
                       name + 1);
    }
    *out = json_stringn(dir != NULL ? dir : uri, len);
    return *out != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

/* SkyRL's receiver patches files in local_checkpoint_dir here, and loads them later. */
int skyrl_fetch_request(json_t **body, const struct http_request *x, struct err *e)
{
    uint64_t version = 0;
    json_t *dir;

    if (body_required(*body, "", "target_version", e) != 0 ||
        body_u64(&version, *body, "", "target_version", 1, INT64_MAX, e) != 0 ||
        sync_dir_of(&dir, *body, "", version, e) != 0)
        return -1;
    if (dialect_request_plain(body, x, e) != 0 ||
        dialect_set(*body, "name", json_incref(dir), e) != 0 ||
        dialect_set(*body, "source", json_incref(dir), e) != 0 ||
        dialect_set(*body, "form", json_string("skyrl"), e) != 0) {
        json_decref(dir);
        return -1;
    }
    json_decref(dir);
    return 0;
}

/* One result for each rank, as its workers answer. */
int skyrl_fetch_response(json_t **reply, const struct http_request *x)
{
    const struct app *app = x->app;
    uint32_t n_ranks = app_n_devices(app) > 0 ? app_n_devices(app) : 1;
    double total_s = json_real_value(json_object_get(*reply, "total_s"));
    double fetch_s = json_real_value(json_object_get(*reply, "fetch_s"));
    json_t *results = json_array(), *version = json_object_get(*reply, "version");
    json_t *base = json_object_get(*reply, "base");

    for (uint32_t r = 0; r < n_ranks; r++)
        if (json_array_append_new(results,
                                  json_pack("{s:s, s:O, s:{s:f, s:f, s:f, s:f}}", "status", "ok",
                                            "target_version", version, "stats", "fetch_s", fetch_s,
                                            "apply_s", total_s - fetch_s, "reset_s", 0.0, "total_s",
                                            total_s)) != 0) {
            json_decref(results);
            return -1;
        }
    return dialect_replace(
        reply, json_pack("{s:s, s:O, s:o}", "status", "ok", "base", base, "result", results));
}

int skyrl_reload_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *info = NULL;
    json_t *dir, *made;
    uint64_t version = 0;

    (void)x;
    if (body_object(&info, *body, "", "update_info", e) != 0 ||
        body_u64(&version, info, "/update_info", "target_version", 0, INT64_MAX, e) != 0 ||
        sync_dir_of(&dir, info, "/update_info", version, e) != 0)
        return -1;
    made = json_pack("{s:o, s:I}", "name", dir, "version", (json_int_t)version);
    return dialect_replace(body, made) == 0
               ? 0
               : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

int skyrl_reload_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "message", "Weights updated"));
}
