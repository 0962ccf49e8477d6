/* SGLang's routes for pauses, memory, aborts and adapters. */
#include "handlers/compat/sglang/dialect_sglang.h"

#include "handlers/body.h"

#include <string.h>

int sglang_pause_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const struct {
        const char *theirs, *ours;
    } modes[] = {{"abort", "abort"}, {"retract", "keep"}, {"in_place", "keep"}};
    const char *mode = "abort", *ours = NULL;

    (void)x;
    if (body_str(&mode, *body, "", "mode", e) != 0)
        return -1;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(modes[i].theirs, mode) == 0)
            ours = modes[i].ours;
    if (ours == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/mode",
                       "mode '%.32s' is not one of abort, retract, in_place", mode);
    (void)json_object_clear(*body);
    return dialect_set(*body, "mode", json_string(ours), e);
}

int sglang_pause_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:s}", "message",
                                            "Generation paused successfully.", "status", "ok"));
}

int sglang_continue_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:s}", "message",
                                            "Generation continued successfully.", "status", "ok"));
}

int sglang_flush_response(json_t **reply, const struct http_request *x)
{
    json_t *message = json_object_get(*reply, "message");

    (void)x;
    return dialect_replace(reply, json_pack("{s:b, s:O}", "success", 1, "message", message));
}

/* No copy in host memory is kept: SGLang's clients push weights before they generate again. */
int sglang_release_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (dialect_request_plain(body, x, e) != 0)
        return -1;
    return dialect_set(*body, "level", json_integer(2), e);
}

int sglang_abort_request(json_t **body, const struct http_request *x, struct err *e)
{
    const char *rid = "";
    bool all = false;

    if (body_str(&rid, *body, "", "rid", e) != 0 || body_bool(&all, *body, "", "abort_all", e) != 0)
        return -1;
    if (!all && *rid == '\0')
        return err_set(e, ERR_BAD_REQUEST, "/rid",
                       "rid is missing: send the id of a request, or \"abort_all\": true");
    if (all)
        (void)json_object_del(*body, "rid");
    return dialect_request_plain(body, x, e);
}

/* Routes of SGLang that are not supported, each with its reason. */
int sglang_refused_request(json_t **body, const struct http_request *x, struct err *e)
{
    static const struct {
        const char *path, *why;
    } rows[] = {
        {"/slow_down", "this server cannot slow its steps down"},
        {"/set_internal_state", "arguments are not changed while the server runs: restart it with "
                                "others"},
        {"/start_profile", "this server has no profiler of torch's; ask the engine, or run perf on "
                           "the process"},
        {"/stop_profile", "no profile can have been started"},
        {"/post_process_weights", "weights are served as they are sent: nothing is packed or "
                                  "quantized here; send them between /begin_weight_update and "
                                  "/end_weight_update, which engines do it at"},
    };
    const struct route *route = x->route;

    (void)body;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].path, route->pattern) == 0)
            return err_set(e, ERR_BAD_REQUEST, "", "%s is not supported: %s", rows[i].path,
                           rows[i].why);
    return 0;
}

/* A load replaces an adapter of the same name: some clients reload one name with a new path at each
 * step; the others use a new name each time. */
int sglang_lora_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_required(*body, "", "lora_path", e) != 0 || dialect_request_plain(body, x, e) != 0)
        return -1;
    return dialect_set(*body, "load_inplace", json_true(), e);
}

/* The reply has the members of SGLang's and of vLLM's. */
int sglang_lora_response(json_t **reply, const struct http_request *x)
{
    json_t *loaded = json_object_get(*reply, "loaded_adapters");

    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:b, s:n, s:O}", "status", "ok", "success", 1,
                                            "error_message", "loaded_adapters", loaded));
}

int sglang_lora_tensors_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)body;
    (void)x;
    return err_set(e, ERR_BAD_REQUEST, "",
                   "adapters are not read from pickled tensors; POST /load_lora_adapter with a "
                   "path, or the file itself to /v1/load_lora_adapter");
}
