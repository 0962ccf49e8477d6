/* vLLM's control routes in development mode. An update overwrites the served weights while it is
 * received. Also the routes that all three engines have: health, models. */
#include "tests/fakes/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void reply_empty(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply(c, 200, NULL, "", 0);
}

static void models(struct conn *c, const json_t *body)
{
    const struct engine *e = c->e;
    json_t *data = json_array();

    (void)body;
    (void)json_array_append_new(data, json_pack("{s:s, s:s, s:s, s:n}", "id", e->o.model, "object",
                                                "model", "owned_by", e->o.dialect_name, "parent"));
    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        if (e->adapters[i].loaded)
            (void)json_array_append_new(data, json_pack("{s:s, s:s, s:s, s:s, s:s}", "id",
                                                        e->adapters[i].name, "object", "model",
                                                        "owned_by", e->o.dialect_name, "root",
                                                        e->adapters[i].path, "parent", e->o.model));
    conn_reply_json(c, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static void metrics(struct conn *c, const json_t *body)
{
    const struct engine *e = c->e;
    char text[2048];

    (void)body;
    (void)snprintf(text, sizeof text,
                   "# HELP process_start_time_seconds Start time of the process since unix epoch "
                   "in seconds.\n"
                   "# TYPE process_start_time_seconds gauge\n"
                   "process_start_time_seconds %.2f\n"
                   "# TYPE vllm:num_preemptions_created gauge\n"
                   "vllm:num_preemptions_created{engine=\"0\",model_name=\"%.128s\"} %.6f%07d\n"
                   "# TYPE vllm:num_requests_running gauge\n"
                   "vllm:num_requests_running{engine=\"0\",model_name=\"%.128s\"} %zu.0\n"
                   "# TYPE vllm:num_requests_waiting gauge\n"
                   "vllm:num_requests_waiting{engine=\"0\",model_name=\"%.128s\"} %zu.0\n"
                   "%s",
                   e->started_s, e->o.model, e->started_s, (int)getpid() /* one a µs too */,
                   e->o.model, e->n_running, e->o.model, state_waiting(e),
                   e->o.lora ? "# HELP vllm:lora_requests_info Running stats on lora requests.\n"
                               "# TYPE vllm:lora_requests_info gauge\n"
                             : "");
    conn_reply_text(c, 200, text);
}

static void world_size(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200, json_pack("{s:i}", "world_size", (int)c->e->o.world_size));
}

/* updates */

static void reply_message(struct conn *c, const char *message)
{
    conn_reply_json(c, 200, json_pack("{s:s}", "message", message));
}

static void version(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200, json_pack("{s:s}", "version", c->e->o.vllm_version));
}

/* Of a release, and a mode, that has the route. */
static void server_info(struct conn *c, const json_t *body)
{
    char format[8] = "text";
    json_t *config = json_string("model='double'");

    (void)body;
    (void)request_query(&c->req, "config_format", format, sizeof format);
    if (strcmp(format, "json") == 0) {
        json_decref(config);
        config = must(json_loads(c->e->o.vllm_config, 0, NULL));
    }
    conn_reply_json(
        c, 200, json_pack("{s:o, s:{}, s:{}}", "vllm_config", config, "vllm_env", "system_env"));
}

static bool is_at_least(const struct conn *c, unsigned minor)
{
    unsigned major = 0, of = 0;

    (void)sscanf(c->e->o.vllm_version, "%u.%u", &major, &of);
    return of >= minor;
}

static void not_found(struct conn *c)
{
    conn_refuse(c, 404, "not_found", "Not Found");
}

/* A member of one of vLLM's dataclasses, and the releases 0.`from` to 0.`to` that have it. */
struct keyword {
    const char *name;
    unsigned from, to;
};
enum { EVER = 999 };

/* As a Python dataclass refuses unknown members. */
static bool takes(struct conn *c, const json_t *info, const char *what, const char *kind,
                  const struct keyword *keywords)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)info, name, value)
    {
        const struct keyword *k = keywords;

        while (k->name != NULL && (strcmp(k->name, name) != 0 || !is_at_least(c, k->from) ||
                                   (k->to != EVER && is_at_least(c, k->to + 1))))
            k++;
        if (k->name != NULL)
            continue;
        conn_refuse(
            c, 500, "internal_error",
            "Call to collective_rpc method failed: Worker failed with error 'Invalid %s for "
            "%sWeightTransferEngine: %sWeightTransfer%s.__init__() got an unexpected "
            "keyword argument '%s'', please check the stack trace above for the root cause",
            what, kind, kind, strcmp(what, "init_info") == 0 ? "InitInfo" : "UpdateInfo", name);
        return false;
    }
    return true;
}

static const struct keyword group_init[] = {{"master_address", 0, EVER},
                                            {"master_port", 0, EVER},
                                            {"rank_offset", 0, EVER},
                                            {"world_size", 0, EVER},
                                            {"packed", 28, EVER},
                                            {"packed_buffer_size_bytes", 28, EVER},
                                            {"packed_num_buffers", 28, EVER},
                                            {"nccl_unique_id_b64", 30, EVER},
                                            {0}};
static const struct keyword handles_init[] = {{"packed", 27, EVER}, {0}};
static const struct keyword group_update[] = {{"names", 0, EVER},
                                              {"dtype_names", 0, EVER},
                                              {"shapes", 0, EVER},
                                              {"packed", 0, 27},
                                              {"packed_buffer_size_bytes", 0, 27},
                                              {"packed_num_buffers", 0, 27},
                                              {0}};
static const struct keyword handles_update[] = {{"names", 0, EVER},
                                                {"dtype_names", 0, EVER},
                                                {"shapes", 0, EVER},
                                                {"ipc_handles_pickled", 0, EVER},
                                                {"tensor_sizes", 0, EVER},
                                                {"packed", 0, 26},
                                                {0}};

/* Its backend is that of the last init: without a world size it is IPC, which needs no group. */
static void init(struct conn *c, const json_t *body)
{
    const json_t *info = json_object_get(body, "init_info");
    bool group = json_object_get(info, "world_size") != NULL;

    if (!json_is_object(info)) {
        conn_refuse(c, 400, "bad_request", "init_info is missing");
        return;
    }
    if (!takes(c, info, "init_info", group ? "NCCL" : "IPC", group ? group_init : handles_init) ||
        (group && !state_init(c, info, false)))
        return;
    if (!group)
        c->e->packed = json_is_true(json_object_get(info, "packed"));
    reply_message(c, "Weight transfer initialized");
}

/* Refused while an update is open: it would remove its source. */
static void shut_down(struct conn *c, const json_t *body)
{
    (void)body;
    if (!is_at_least(c, 32)) {
        not_found(c);
        return;
    }
    if (c->e->phase == UPDATE_OPEN) {
        conn_refuse(c, 500, "internal_error",
                    "Cannot release a trainer connection during a weight update");
        return;
    }
    json_decref(c->e->group);
    c->e->group = NULL;
    reply_message(c, "Weight transfer shut down");
}

static void start(struct conn *c, const json_t *body)
{
    (void)body;
    if (c->e->phase == UPDATE_OPEN) {
        conn_refuse(c, 500, "internal_error", "a weight update is active already");
        return;
    }
    c->e->phase = UPDATE_OPEN;
    c->e->n_received = 0;
    reply_message(c, "Weight update started");
}

static bool is_open(struct conn *c)
{
    if (c->e->phase != UPDATE_OPEN)
        conn_refuse(c, 500, "internal_error", "no weight update is active");
    return c->e->phase == UPDATE_OPEN;
}

static bool receives_handles(struct conn *c, const json_t *info)
{
    bool said = is_at_least(c, 27) ? c->e->packed : true_member(info, "packed");
    bool sized = json_is_array(json_object_get(info, "tensor_sizes"));

    if (!takes(c, info, "update_info", "IPC", handles_update))
        return false;
    if (said && !sized)
        conn_refuse(c, 500, "internal_error", "`tensor_sizes` is required when packed=True");
    else if (!said && sized)
        conn_refuse(c, 500, "internal_error", "AssertionError");
    return said == sized;
}

static bool receives(struct conn *c, const json_t *info)
{
    if (json_object_get(info, "ipc_handles_pickled") != NULL)
        return receives_handles(c, info);
    if (!takes(c, info, "update_info", "NCCL", group_update))
        return false;
    if (c->e->group == NULL)
        conn_refuse(c, 500, "internal_error", "the NCCL group is not initialized");
    return c->e->group != NULL;
}

/* Since 0.33 empty lists are those of the update before: of none in a process that was restarted.
 */
static bool loads_nothing(const struct conn *c, const json_t *info)
{
    return is_at_least(c, 33) && json_object_get(info, "ipc_handles_pickled") == NULL &&
           json_array_size(json_object_get(info, "names")) == 0;
}

/* With --enable-lora the parameters of these layers are called ".base_layer.weight" in its model of
 * a Qwen3. Until 0.28 it looks for the names that it gets; since then the wrapper of the layer
 * takes what a checkpoint calls them, and nothing else. */
static bool is_wrapped(const char *name)
{
    static const char *const layers[] = {"q_proj",  "k_proj",    "v_proj",    "o_proj",
                                         "up_proj", "gate_proj", "down_proj", "embed_tokens"};

    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        if (strstr(name, layers[i]) != NULL)
            return true;
    return false;
}

static bool loads_names(struct conn *c, const json_t *names)
{
    bool by_parameter = c->e->o.lora && !is_at_least(c, 28);
    const json_t *item;
    size_t i;

    json_array_foreach(names, i, item)
    {
        const char *name = json_string_value(item);
        bool inner = strstr(name, ".base_layer.") != NULL;

        if (inner == (by_parameter && is_wrapped(name)))
            continue;
        conn_refuse(c, 500, "internal_error",
                    "Call to collective_rpc method failed: Worker failed with error 'KeyError: %s'",
                    name);
        c->e->torn = true;
        return false;
    }
    return true;
}

static void update(struct conn *c, const json_t *body)
{
    const json_t *info = json_object_get(body, "update_info");

    if (!json_is_object(info)) {
        conn_refuse(c, 400, "bad_request", "update_info is missing");
        return;
    }
    if (!is_open(c))
        return;
    if (loads_nothing(c, info)) {
        reply_message(c, "Weights updated");
        return;
    }
    if (!state_columns(c, info, "names", "dtype_names"))
        return;
    if (!receives(c, info) || !loads_names(c, json_object_get(info, "names"))) {
        c->e->phase = UPDATE_NONE; /* in vLLM a failure ends the update */
        return;
    }
    c->e->n_received++;
    state_weights_changed(c->e);
    state_touch(c->e);
    reply_message(c, "Weights updated");
}

static void finish(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;
    const char *was = e->has_label ? e->label : NULL;
    const char *label = e->o.plain_finish ? was : text_member(body, "weight_version", was);
    char kept[LABEL_MAX + 1] = "";

    if (!is_open(c))
        return;
    if (label != NULL)
        (void)snprintf(kept, sizeof kept, "%s", label);
    e->phase = UPDATE_COMMITTED;
    if (e->n_received > 0)
        state_commit(e, label != NULL ? kept : NULL);
    else if (label != NULL)
        state_set_label(e, kept);
    reply_message(c, "Weight update finished");
}

static void relabel(struct conn *c, const json_t *body)
{
    const char *label = text_member(body, "new_version", NULL);

    if (label == NULL) {
        conn_refuse(c, 400, "bad_request", "new_version is missing");
        return;
    }
    state_set_label(c->e, label);
    conn_reply_json(c, 200, json_pack("{s:b, s:s}", "success", 1, "new_version", label));
}

static void weight_info(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200,
                    json_pack("{s:o}", "weight_version",
                              c->e->has_label ? json_string(c->e->label) : json_null()));
}

/* control */

static void pause_it(struct conn *c, const json_t *body)
{
    char mode[16] = "abort";

    (void)body;
    (void)request_query(&c->req, "mode", mode, sizeof mode);
    if (strcmp(mode, "keep") == 0)
        state_pause(c, PAUSE_KEEP);
    else if (strcmp(mode, "wait") == 0)
        state_pause(c, PAUSE_WAIT);
    else if (strcmp(mode, "abort") == 0)
        state_pause(c, PAUSE_ABORT);
    else
        conn_refuse(c, 400, "bad_request", "mode '%s' is none of abort, wait, keep", mode);
}

static void resume(struct conn *c, const json_t *body)
{
    (void)body;
    state_resume(c->e);
    conn_reply_json(c, 200, json_pack("{s:s}", "status", "resumed"));
}

static void is_paused(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200,
                    json_pack("{s:b}", "is_paused", c->e->pause != PAUSE_NONE || c->e->asleep));
}

static void is_sleeping(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200, json_pack("{s:b}", "is_sleeping", c->e->asleep != 0));
}

static void go_to_sleep(struct conn *c, const json_t *body)
{
    char level[4] = "1";

    (void)request_query(&c->req, "level", level, sizeof level);
    (void)state_abort(c->e, NULL, false);
    state_sleep(c->e, SLEEP_ALL);
    if (strcmp(level, "2") == 0)
        state_weights_changed(c->e);
    if (strcmp(level, "2") == 0)
        state_touch(c->e);    /* dropped: only an update makes them a version's again */
    if (c->e->o.silent_reset) /* a release this old does not report it here either */
        reply_empty(c, body);
    else
        conn_reply_json(c, 200,
                        json_pack("{s:s, s:i}", "status", "sleeping", "level",
                                  strcmp(level, "2") == 0 ? 2 : 1));
}

/* Of a completed pause only. */
static void release_kv(struct conn *c, const json_t *body)
{
    (void)body;
    if (!is_at_least(c, 31)) {
        not_found(c);
    } else if (c->e->pause == PAUSE_NONE) {
        conn_refuse(c, 500, "internal_error",
                    "release_kv_cache_memory() requires a completed pause first");
    } else {
        cache_reset(&c->e->cache);
        state_sleep(c->e, SLEEP_KV);
        conn_reply_json(c, 200, json_pack("{s:s}", "status", "kv_cache_released"));
    }
}

static void wake(struct conn *c, const json_t *body)
{
    const char *query = c->req.query;
    unsigned what = query[0] == '\0' ? SLEEP_ALL : 0;

    what |= strstr(query, "tags=weights") != NULL ? SLEEP_WEIGHTS : 0;
    what |= strstr(query, "tags=kv_cache") != NULL ? SLEEP_KV : 0;
    state_wake(c->e, what);
    if (c->e->o.silent_reset)
        reply_empty(c, body);
    else
        conn_reply_json(c, 200,
                        json_pack("{s:s, s:o}", "status", "awake", "tags",
                                  what == SLEEP_ALL ? json_null() : json_array()));
}

static bool query_is_true(const struct conn *c, const char *member)
{
    char value[8] = "false";

    (void)request_query(&c->req, member, value, sizeof value);
    return strcmp(value, "true") == 0;
}

/* Refused while a request holds KV, unless it says to preempt running requests. */
static void reset_cache(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;
    bool done;

    if (query_is_true(c, "reset_running_requests"))
        state_preempt(e);
    done = !state_holds_kv(e, false);
    if (done)
        cache_reset(&e->cache);
    if (e->o.silent_reset)
        reply_empty(c, body);
    else
        conn_reply_json(c, 200, json_pack("{s:b}", "success", (int)done));
}

static void abort_requests(struct conn *c, const json_t *body)
{
    const json_t *ids = json_object_get(body, "request_ids");

    conn_reply_json(
        c, 200,
        json_pack("{s:s, s:I}", "status", "aborted", "aborted",
                  (json_int_t)state_abort(c->e, json_array_size(ids) > 0 ? ids : NULL, true)));
}

/* adapters */

static void lora_load(struct conn *c, const json_t *body)
{
    const char *name = text_member(body, "lora_name", ""),
               *path = text_member(body, "lora_path", "");
    char text[LABEL_MAX + 64];

    if (name[0] == '\0' || strlen(name) > LABEL_MAX || path[0] == '\0')
        conn_refuse(c, 400, "bad_request", "both lora_name and lora_path must be provided");
    else if (state_adapter(c->e, name) != NULL && !true_member(body, "load_inplace"))
        conn_refuse(c, 400, "bad_request", "adapter '%s' is loaded already", name);
    else if (access(path, R_OK) != 0)
        conn_refuse(c, 404, "not_found", "there is no adapter at %.256s", path);
    else if (state_adapter_load(c->e, name, path) == NULL)
        conn_refuse(c, 500, "internal_error", "there are %d adapters", ADAPTERS_MAX);
    else {
        (void)snprintf(text, sizeof text, "Success: LoRA adapter '%s' added successfully.", name);
        conn_reply_text(c, 200, text);
    }
}

static void lora_unload(struct conn *c, const json_t *body)
{
    const char *name = text_member(body, "lora_name", "");
    struct adapter *a = state_adapter(c->e, name);
    char text[LABEL_MAX + 64];

    if (a == NULL) {
        conn_refuse(c, 404, "not_found", "there is no adapter '%.128s'", name);
        return;
    }
    a->loaded = false;
    (void)snprintf(text, sizeof text, "Success: LoRA adapter '%s' removed successfully.", name);
    conn_reply_text(c, 200, text);
}

/* Each key begins with the rank's place. */
static void check_weights(struct conn *c, const json_t *body)
{
    if (!is_at_least(c, 32))
        not_found(c);
    else if (strcmp(text_member(body, "action", ""), "checksum") != 0)
        conn_refuse(c, 400, "bad_request", "Input should be 'checksum', 'reset' or 'compare'");
    else
        conn_reply_json(
            c, 200, json_pack("{s:o}", "checksums", state_checksums(c->e, "dp0:pp0:pcp0:tp0:")));
}

const struct route vllm_routes[] = {
    {ALL, "GET", "/health", "health", reply_empty, false},
    {ALL, "GET", "/ping", "health", reply_empty, false},
    {ALL, "GET", "/v1/models", "models", models, false},
    {VLLM, "GET", "/metrics", "who", metrics, false},
    {VLLM, "GET", "/version", "version", version, false},
    {VLLM | BATON, "GET", "/server_info", "config", server_info, false},
    {VLLM, "GET", "/get_world_size", "ranks", world_size, false},
    {VLLM, "POST", "/init_weight_transfer_engine", "init", init, false},
    {VLLM, "POST", "/shutdown_weight_transfer_engine", "leave", shut_down, false},
    {VLLM, "POST", "/release_kv_cache_memory", "release_kv", release_kv, false},
    {VLLM, "POST", "/start_weight_update", "start", start, false},
    {VLLM, "POST", "/update_weights", "update", update, false},
    {VLLM, "POST", "/finish_weight_update", "finish", finish, false},
    {VLLM, "POST", "/update_weight_version", "relabel", relabel, false},
    {VLLM, "GET", "/weight_info", "weight_info", weight_info, false},
    {VLLM, "POST", "/pause", "pause", pause_it, false},
    {VLLM, "POST", "/resume", "resume", resume, false},
    {VLLM, "GET", "/is_paused", "is_paused", is_paused, false},
    {VLLM, "POST", "/sleep", "sleep", go_to_sleep, false},
    {VLLM, "POST", "/wake_up", "wake", wake, false},
    {VLLM, "GET", "/is_sleeping", "is_sleeping", is_sleeping, false},
    {VLLM, "POST", "/reset_prefix_cache", "reset_cache", reset_cache, false},
    {VLLM, "POST", "/reset_encoder_cache", "reset_encoder", reply_empty, false},
    {VLLM, "POST", "/weight_checker", "checksums", check_weights, false},
    {VLLM, "POST", "/abort_requests", "abort_requests", abort_requests, false},
    {VLLM, "POST", "/v1/load_lora_adapter", "lora_load", lora_load, false},
    {VLLM, "POST", "/v1/unload_lora_adapter", "lora_unload", lora_unload, false},
    {0},
};
