/* SGLang's weight updates: the group, its broadcasts, files. */
#include "handlers/compat/sglang/dialect_sglang.h"

#include "handlers/body.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/update_members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_DIGITS_MAX = 5, LOAD_FORMAT_SHOWN_MAX = 32 };

/* Some trainers send the port as a string of digits. The native route refuses any other string. */
static int port_to_number(json_t *body, struct err *e)
{
    const char *text = json_string_value(json_object_get(body, "master_port"));
    size_t len = text != NULL ? strlen(text) : 0;

    if (len == 0 || len > PORT_DIGITS_MAX || strspn(text, "0123456789") != len)
        return 0;
    return dialect_set(body, "master_port", json_integer(strtol(text, NULL, 10)), e);
}

int sglang_group_request(json_t **body, const struct http_request *x, struct err *e)
{
    const char *backend = "nccl";

    if (body_str(&backend, *body, "", "backend", e) != 0)
        return -1;
    if (strcmp(backend, "nccl") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/backend", "backend '%.32s' is not nccl", backend);
    if (dialect_request_plain(body, x, e) != 0 || port_to_number(*body, e) != 0)
        return -1;
    if (json_object_get(*body, "group_name") == NULL &&
        dialect_set(*body, "group_name", json_string("weight_update_group"), e) != 0)
        return -1;
    return dialect_set(*body, "transport", json_string("nccl"), e);
}

/* The reply {success: true, message}. */
static int sglang_put_message(json_t **reply, json_t *message)
{
    return dialect_replace(reply, json_pack("{s:b, s:o}", "success", 1, "message", message));
}

/* As in SGLang, the reply is sent before any rank has joined: a torch group is complete with its
 * first broadcast. */
int sglang_group_response(json_t **reply, const struct http_request *x)
{
    const json_t *name = json_object_get(*reply, "group_name");
    const json_t *world = json_object_get(*reply, "world_size");

    (void)x;
    return sglang_put_message(reply,
                              json_sprintf("group '%s' of %lld ranks: %s", json_string_value(name),
                                           (long long)json_integer_value(world),
                                           json_string_value(json_object_get(*reply, "state"))));
}

int sglang_leave_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return sglang_put_message(reply, json_string("no group is joined"));
}

int sglang_begin_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (dialect_request_plain(body, x, e) != 0)
        return -1;
    return dialect_set(*body, "lease_s", json_integer(UPDATE_ANONYMOUS_LEASE_S), e);
}

int sglang_begin_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return sglang_put_message(reply, json_string("the update has begun"));
}

int sglang_end_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)x;
    (void)e;
    (void)json_object_clear(*body);
    return 0;
}

/* Without load_format each tensor is one broadcast; flattened_bucket sends all of them back to
 * back. */
static int set_packing(json_t *body, const char *load_format, struct err *e)
{
    if (load_format == NULL)
        return 0;
    if (strcmp(load_format, "flattened_bucket") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/load_format",
                       "load_format '%.32s' is not flattened_bucket, nor left out", load_format);
    if (dialect_set(body, "packed", json_true(), e) != 0)
        return -1;
    return dialect_set(body, "bucket_nbytes", json_integer(INT64_MAX), e);
}

int sglang_distributed_request(json_t **body, const struct http_request *x, struct err *e)
{
    char load_format[LOAD_FORMAT_SHOWN_MAX + 1];
    const char *given = NULL;

    if (body_str(&given, *body, "", "load_format", e) != 0)
        return -1;
    (void)snprintf(load_format, sizeof load_format, "%s", given != NULL ? given : "");
    if (dialect_request_plain(body, x, e) != 0 ||
        set_packing(*body, given != NULL ? load_format : NULL, e) != 0)
        return -1;
    return dialect_set(*body, "transport", json_string("nccl"), e);
}

static json_t *update_message(const json_t *update)
{
    const char *phase = json_string_value(json_object_get(update, "phase"));
    const char *label = json_string_value(json_object_get(update, "weight_version"));
    long long done = json_integer_value(json_object_get(update, "n_tensors_done"));
    long long total = json_integer_value(json_object_get(update, "n_tensors_total"));

    if (phase != NULL && strcmp(phase, "committed") == 0)
        return json_sprintf("the weights are served. Weight version updated to %s.",
                            label != NULL ? label : "what was sent");
    if (json_object_get(update, "upstreams") != NULL) /* no engine tells when it has all */
        return json_sprintf("received: %lld tensors, which are served once the update ends "
                            "(/end_weight_update) or generation is continued "
                            "(/continue_generation); new requests wait until then",
                            done);
    return json_sprintf("received: %lld of %lld tensors, which are served once all are received or "
                        "generation is continued",
                        done, total);
}

int sglang_update_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return sglang_put_message(reply, update_message(*reply));
}

static int check_disk(const json_t *body, struct err *e)
{
    const char *load_format = "auto";

    if (body_required(body, "", "model_path", e) != 0 ||
        body_str(&load_format, body, "", "load_format", e) != 0)
        return -1;
    if (strcmp(load_format, "auto") != 0 && strcmp(load_format, "safetensors") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/load_format",
                       "load_format '%.32s' is not one of auto, safetensors", load_format);
    if (body_given(body, "manifest") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/manifest",
                       "a manifest is not read here; checksums are read from the file's metadata");
    return 0;
}

int sglang_disk_request(json_t **body, const struct http_request *x, struct err *e)
{
    return check_disk(*body, e) != 0 ? -1 : dialect_request_plain(body, x, e);
}

/* An update never pauses requests here: generation continues while the bytes are received. */
int sglang_disk_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:b, s:o, s:i}", "success", 1, "message",
                                            update_message(*reply), "num_paused_requests", 0));
}

/* slime's and Miles' patch of SGLang. Nothing is written to local_checkpoint_dir: it is the name by
 * which /update_weights_from_disk commits what is pulled. */
int sglang_pull_request(json_t **body, const struct http_request *x, struct err *e)
{
    return dialect_request_plain(body, x, e) != 0
               ? -1
               : dialect_set(*body, "form", json_string("slime"), e);
}

/* Its clients read `success` alone. */
int sglang_pull_response(json_t **reply, const struct http_request *x)
{
    long long n = json_integer_value(json_object_get(*reply, "n_tensors"));
    long long version = json_integer_value(json_object_get(*reply, "version"));
    const json_t *served = json_object_get(*reply, "served");
    const char *base = json_string_value(json_object_get(*reply, "base"));
    bool unchecked = base != NULL && strcmp(base, "unchecked") == 0;
    const char *but = unchecked ? " The base is unchecked: the server started without weights, so "
                                  "what it served was taken for version 0."
                                : "";

    (void)x;
    if (json_integer_value(served) == version && json_is_integer(served))
        return sglang_put_message(reply,
                                  json_sprintf("Success. Version %lld is served.%s", version, but));
    return sglang_put_message(reply,
                              json_sprintf("Success. Version %lld is proven, %lld tensors change; "
                                           "/update_weights_from_disk serves it.%s",
                                           version, n, but));
}

int sglang_checker_request(json_t **body, const struct http_request *x, struct err *e)
{
    struct selector_request selector = {0};
    const char *action;

    if (member_read(&selector, selector_rows, *body, "", e) != 0 ||
        dialect_request_plain(body, x, e) != 0)
        return -1;
    if (json_object_get(*body, "action") == NULL &&
        dialect_set(*body, "action", json_string("checksum"), e) != 0)
        return -1;
    action = json_string_value(json_object_get(*body, "action"));
    if (action != NULL && dialect_check_action(action, "reset_tensors", e) != 0)
        return -1;
    return dialect_set(*body, "must_match", json_true(), e);
}

int sglang_checker_response(json_t **reply, const struct http_request *x)
{
    const char *message = "checksums of the served weights";
    json_t *payload = json_incref(*reply);

    (void)x;
    if (json_object_get(payload, "match") != NULL)
        message = "the served weights match the snapshot";
    else if (json_object_get(payload, "n_tensors") != NULL)
        message = "the checksums are stored for compare";
    return dialect_replace(
        reply, json_pack("{s:b, s:s, s:o}", "success", 1, "message", message, "payload", payload));
}

/* SGLang overwrites the weights with noise, so that a compare after the next update proves that
 * each tensor was sent. Here versions never change: all weights are dropped, which proves the same,
 * because nothing is served until a whole update is committed. Noise is never served. */
int sglang_reset_request(json_t **body, const struct http_request *x, struct err *e)
{
    struct selector_request selector = {0};

    (void)x;
    if (member_read(&selector, selector_rows, *body, "", e) != 0)
        return -1;
    (void)json_object_clear(*body);
    if (dialect_set(*body, "level", json_integer(2), e) != 0)
        return -1;
    return dialect_set(*body, "tags", json_pack("[s]", "weights"), e);
}

int sglang_reset_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return sglang_put_message(reply, json_string("the weights are dropped: send a whole update"));
}

int sglang_label_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_required(*body, "", "new_version", e) != 0 || dialect_request_plain(body, x, e) != 0)
        return -1;
    if (json_object_get(*body, "abort_requests") != NULL)
        return 0;
    return dialect_set(*body, "abort_requests", json_true(), e);
}

int sglang_label_response(json_t **reply, const struct http_request *x)
{
    json_t *label = json_object_get(*reply, "weight_version");

    (void)x;
    return dialect_replace(reply,
                           json_pack("{s:b, s:s, s:O}", "success", 1, "message",
                                     "the served weights have that version", "new_version", label));
}
