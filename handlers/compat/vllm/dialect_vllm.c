/* vLLM's control routes of its development mode: generation. */
#include "handlers/compat/vllm/dialect_vllm.h"

#include "handlers/body.h"

#include <string.h>

/* vLLM's default is abort. clear_cache has no effect: caches are keyed by the weights here. */
int vllm_pause_request(json_t **body, const struct http_request *x, struct err *e)
{
    const char *mode = http_request_query(x, "mode");
    bool wait = false;

    if (dialect_flag(&wait, x, "wait_for_inflight_requests", e) != 0)
        return -1;
    if (mode == NULL)
        mode = wait ? "wait" : "abort";
    (void)json_object_clear(*body);
    return dialect_set(*body, "mode", json_string(mode), e);
}

/* vLLM has these members in the query, SkyRL's client sends them in the body. */
int vllm_reset_request(json_t **body, const struct http_request *x, struct err *e)
{
    bool running = false, external = false;

    if (body_bool(&running, *body, "", "reset_running_requests", e) != 0 ||
        dialect_flag(&running, x, "reset_running_requests", e) != 0 ||
        body_bool(&external, *body, "", "reset_external", e) != 0 ||
        dialect_flag(&external, x, "reset_external", e) != 0)
        return -1;
    (void)json_object_clear(*body);
    if (external && dialect_set(*body, "external", json_true(), e) != 0)
        return -1;
    return dialect_set(*body, "running", json_boolean(running), e);
}

int vllm_pause_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "paused"));
}

int vllm_resume_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "resumed"));
}

/* Weights that were dropped (level 2) are not "asleep": in vLLM as here, a wake-up does not restore
 * them, and the awake server waits for an update. A client that polls until it is awake must not
 * wait for ever. */
static bool is_asleep(const json_t *sleep)
{
    const char *weights = json_string_value(json_object_get(sleep, "weights"));
    const char *kv = json_string_value(json_object_get(sleep, "kv_cache"));

    return (weights != NULL && strcmp(weights, "asleep") == 0) ||
           (kv != NULL && strcmp(kv, "released") == 0);
}

/* As in vLLM, a sleeping server counts as paused: it schedules nothing. */
int vllm_is_paused_response(json_t **reply, const struct http_request *x)
{
    bool paused = json_is_object(json_object_get(*reply, "pause"));

    (void)x;
    return dialect_replace(reply, json_pack("{s:b}", "is_paused",
                                            paused || is_asleep(json_object_get(*reply, "sleep"))));
}

int vllm_is_sleeping_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(
        reply, json_pack("{s:b}", "is_sleeping", is_asleep(json_object_get(*reply, "sleep"))));
}

/* All values of a repeated query member; NULL if there is no memory. */
static json_t *query_list(const struct http_request *x, const char *member)
{
    json_t *list = json_array();

    for (size_t i = 0; i < x->n_query && list != NULL; i++) {
        if (strcmp(x->query[i].name, member) != 0 ||
            json_array_append_new(list, json_string(x->query[i].value)) == 0)
            continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* Tags are in the query or in the body: a list, one string, or 1, which means all. The native route
 * refuses anything else. */
static int translate_tags(json_t *made, const json_t *body, const struct http_request *x,
                          struct err *e)
{
    json_t *tags = json_object_get(body, "tags");

    if (http_request_query(x, "tags") != NULL)
        return dialect_set(made, "tags", query_list(x, "tags"), e);
    if (tags == NULL || json_is_integer(tags))
        return 0;
    if (json_is_string(tags))
        return dialect_set(made, "tags", json_pack("[O]", tags), e);
    return dialect_set(made, "tags", json_incref(tags), e);
}

static int translate_level(json_t *made, const json_t *body, const struct http_request *x,
                           struct err *e)
{
    uint64_t level = 1;

    if (query_u64(&level, x, "level", 0, 2, e) != 0 ||
        body_u64(&level, body, "", "level", 0, 2, e) != 0)
        return -1;
    if (level == 0)
        return err_set(e, ERR_BAD_REQUEST, "/level",
                       "level 0 only stops scheduling, which is what /pause does; a sleep has "
                       "level 1 or 2");
    return dialect_set(made, "level", json_integer((json_int_t)level), e);
}

/* A sleep aborts what runs, unless an earlier pause froze it: only mode abort is supported. */
static int check_sleep_mode(const struct http_request *x, struct err *e)
{
    const char *mode = http_request_query(x, "mode");

    if (mode == NULL || strcmp(mode, "abort") == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/mode",
                   "mode '%.32s' is not abort: to keep what runs, or to wait for it, POST "
                   "/pause?mode=keep or wait first; a sleep leaves what is frozen",
                   mode);
}

/* Replaces the body by `made` (stolen), unless `rc` is an error. */
static int replace_body(json_t **body, json_t *made, int rc)
{
    if (rc != 0) {
        json_decref(made);
        return -1;
    }
    json_decref(*body);
    *body = made;
    return 0;
}

static int vllm_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

int vllm_sleep_request(json_t **body, const struct http_request *x, struct err *e)
{
    json_t *made;
    int rc;

    if (check_sleep_mode(x, e) != 0)
        return -1;
    made = json_object();
    if (made == NULL)
        return vllm_no_memory(e);
    rc = translate_level(made, *body, x, e);
    if (rc == 0)
        rc = translate_tags(made, *body, x, e);
    return replace_body(body, made, rc);
}

int vllm_wake_request(json_t **body, const struct http_request *x, struct err *e)
{
    json_t *made = json_object();

    if (made == NULL)
        return vllm_no_memory(e);
    return replace_body(body, made, translate_tags(made, *body, x, e));
}

int vllm_sleep_response(json_t **reply, const struct http_request *x)
{
    json_t *level = json_object_get(*reply, "level");

    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:O?}", "status", "sleeping", "level", level));
}

/* The reply has the requested tags; null: all. */
int vllm_wake_response(json_t **reply, const struct http_request *x)
{
    bool some = http_request_query(x, "tags") != NULL;

    return dialect_replace(reply, json_pack("{s:s, s:o}", "status",
                                            is_asleep(*reply) ? "sleeping" : "awake", "tags",
                                            some ? query_list(x, "tags") : json_null()));
}

/* Since vLLM 0.32: releases the KV cache only. */
int vllm_release_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)x;
    (void)json_object_clear(*body);
    return dialect_set(*body, "tags", json_pack("[s]", "kv_cache"), e);
}

int vllm_release_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "kv_cache_released"));
}

/* As vLLM's server answers, and SkyRL's own. */
int vllm_reset_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:b, s:s}", "success", 1, "status", "ok"));
}

/* No ids, or an empty list, means all requests. */
int vllm_abort_request(json_t **body, const struct http_request *x, struct err *e)
{
    const json_t *ids = json_object_get(*body, "request_ids");

    if (ids != NULL && !json_is_null(ids) && !(json_is_array(ids) && json_array_size(ids) == 0))
        return dialect_request_plain(body, x, e);
    (void)json_object_clear(*body);
    return dialect_set(*body, "all", json_true(), e);
}

/* Since vLLM 0.32, next to /inference/v1/generate: aborts the given ids; the list may be empty. */
int vllm_abort_some_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_required(*body, "", "request_ids", e) != 0)
        return -1;
    return dialect_request_plain(body, x, e);
}

int vllm_abort_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s, s:O}", "status", "aborted", "aborted",
                                            json_object_get(*reply, "aborted")));
}

/* The number of generations that run or wait. */
int vllm_load_response(json_t **reply, const struct http_request *x)
{
    const json_t *queue = json_object_get(json_object_get(*reply, "admission"), "generate");

    (void)x;
    return dialect_replace(reply,
                           json_pack("{s:I}", "server_load",
                                     json_integer_value(json_object_get(queue, "running")) +
                                         json_integer_value(json_object_get(queue, "waiting"))));
}
