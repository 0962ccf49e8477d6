/* SGLang's control routes. Each update overwrites the served weights, and only weight_version shows
 * which was the last. Since 0.5.21 tensors are accepted only between begin and end, files at any
 * time. */
#include "tests/fakes/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The first release, as 0.5.N, that has the newer names of what it says of itself; that begins and
 * ends updates; whose retracted requests keep no cache. */
enum { NEW_NAMES = 6, BEGINS = 21, RETRACTS = 23 };

/* False: this release has no such route; answers 404 as SGLang does. */
static bool has_route(struct conn *c, unsigned since)
{
    if (c->e->o.sglang >= since)
        return true;
    if (c->entry != NULL)
        c->entry->executed = false;
    conn_reply_json(c, 404, json_pack("{s:s}", "detail", "Not Found"));
    return false;
}

static void refuse(struct conn *c, const char *message)
{
    if (c->entry != NULL)
        c->entry->executed = false;
    conn_reply_json(c, 400, json_pack("{s:b, s:s}", "success", 0, "message", message));
}

static void reply_message(struct conn *c, const char *message)
{
    conn_reply_json(c, 200, json_pack("{s:b, s:s}", "success", 1, "message", message));
}

static void reply_null(struct conn *c)
{
    conn_reply(c, 200, "application/json", "null", 4);
}

static void model_info(struct conn *c, const json_t *body)
{
    const struct engine *e = c->e;

    (void)body;
    conn_reply_json(c, 200,
                    json_pack("{s:s, s:s, s:b, s:n, s:s}", "model_path", e->o.model,
                              "tokenizer_path", e->o.model, "is_generation", 1,
                              "preferred_sampling_params", "weight_version", e->label));
}

static void model_info_new(struct conn *c, const json_t *body)
{
    if (has_route(c, NEW_NAMES))
        model_info(c, body);
}

/* Its releases of 2026 have the route, and no answer. */
static void weight_version(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 404,
                    json_pack("{s:s}", "detail",
                              "Endpoint '/get_weight_version' or '/weight_version' is deprecated. "
                              "Please use '/model_info' instead."));
}

static void server_info(struct conn *c, const json_t *body)
{
    const struct engine *e = c->e;
    json_t *info, *own = must(json_loads(e->o.sglang_config, 0, NULL));
    char version[16];

    (void)body;
    (void)snprintf(version, sizeof version, "0.5.%u", e->o.sglang);
    info = must(json_pack(
        "{s:s, s:b, s:b, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:i, s:s, "
        "s:s, s:[{s:I}], s:n, s:n, s:s, s:s, s:s, s:s, s:n}",
        "model_path", e->o.model, "enable_memory_saver", 1, "enable_return_routed_experts",
        e->o.experts != NULL, "dtype", "auto", "tp_size", (int)e->o.world_size, "pp_size", 1,
        "dp_size", 1, "ep_size", 2, "nnodes", 1, "base_gpu_id", 4, "gpu_id_step", 1, "enable_lora",
        1, "max_lora_rank", 16, "max_loras_per_batch", 8, "weight_version", e->label, "version",
        version, "internal_states", "num_running_reqs", (json_int_t)e->n_running, "quantization",
        "modelopt_quant", "device", "cuda", "load_format", "auto", "model_impl", "auto",
        "json_model_override_args", "{}", "speculative_algorithm"));
    (void)json_object_update(info, own);
    json_decref(own);
    conn_reply_json(c, 200, info);
}

static void server_info_new(struct conn *c, const json_t *body)
{
    if (has_route(c, NEW_NAMES))
        server_info(c, body);
}

static void load(struct conn *c, const json_t *body)
{
    size_t running = c->e->n_running, waiting = state_waiting(c->e);

    (void)body;
    conn_reply_json(c, 200,
                    json_pack("[{s:i, s:I, s:I}]", "dp_rank", 0, "num_reqs",
                              (json_int_t)(running + waiting), "num_waiting_reqs",
                              (json_int_t)waiting));
}

/* the cache */

/* Refused while a request holds KV; also one that waits, unless it is paused: what came since waits
 * before its door, and what was retracted has none, though a version before 0.5.23 counts it. */
static bool may_flush(const struct engine *e)
{
    if (state_holds_kv(e, e->o.sglang < RETRACTS))
        return false;
    return e->pause != PAUSE_NONE || state_waiting(e) == 0;
}

/* By default, as its engine does. An older one does not survive a flush that is refused. */
static bool flush_after(struct conn *c, const json_t *body)
{
    static const char refused[] = "Weights were updated, but the cache was not flushed because "
                                  "requests are still running or queued.";
    const json_t *wish = json_object_get(body, "flush_cache");

    if (wish != NULL && !json_is_true(wish))
        return true;
    if (may_flush(c->e)) {
        cache_reset(&c->e->cache);
        return true;
    }
    if (c->e->o.sglang < RETRACTS)
        engine_restart(c->e, 200);
    else
        conn_reply_json(c, 400, json_pack("{s:b, s:s}", "success", 0, "message", refused));
    return false;
}

/* updates */

/* The default name of a trainer's group. */
static const char *group_of(const json_t *body)
{
    return text_member(body, "group_name", "weight_update_group");
}

static bool has_group(const struct conn *c, const json_t *body)
{
    return json_object_get(c->e->groups, group_of(body)) != NULL;
}

static void init(struct conn *c, const json_t *body)
{
    if (!state_init(c, body, true))
        return;
    if (c->e->groups == NULL)
        c->e->groups = json_object();
    (void)json_object_set(c->e->groups, group_of(body), c->e->group);
    reply_message(c, "Succeeded to initialize the group.");
}

static void leave(struct conn *c, const json_t *body)
{
    if (!has_group(c, body)) {
        refuse(c, "The group to be destroyed does not exist.");
        return;
    }
    (void)json_object_del(c->e->groups, group_of(body));
    if (json_object_size(c->e->groups) == 0) {
        json_decref(c->e->group);
        c->e->group = NULL;
    }
    reply_message(c, "Succeeded to destroy the group.");
}

/* False: it has answered already. */
static bool received(struct conn *c, const json_t *body)
{
    const char *label = text_member(body, "weight_version", NULL);

    c->e->n_received++;
    state_weights_changed(c->e);
    if (true_member(body, "abort_all_requests"))
        (void)state_abort(c->e, NULL, true);
    if (label != NULL && is_unfinished(label))
        state_set_label(c->e, label);
    if (label != NULL && !is_unfinished(label))
        state_commit(c->e, label);
    else
        state_touch(c->e);
    return flush_after(c, body);
}

static void updated(struct conn *c, const json_t *body)
{
    if (received(c, body))
        reply_message(c, "Succeeded to update the weights.");
}

static void begin(struct conn *c, const json_t *body)
{
    static const char *const selectors[] = {"target", "draft", "all"};
    const char *selector = text_member(body, "selector", "all");
    bool known = false;

    if (!has_route(c, BEGINS))
        return;
    for (size_t i = 0; i < sizeof selectors / sizeof selectors[0]; i++)
        known = known || strcmp(selectors[i], selector) == 0;
    if (!known) {
        conn_refuse(c, 422, "bad_request", "selector '%.32s'", selector);
    } else if (c->e->phase == UPDATE_OPEN) {
        refuse(c, "a weight-update session is already open; call end_weight_update() first");
    } else {
        c->e->phase = UPDATE_OPEN;
        reply_message(c, "Success");
    }
}

static void end(struct conn *c, const json_t *body)
{
    (void)body;
    if (!has_route(c, BEGINS))
        return;
    if (c->e->phase != UPDATE_OPEN) {
        refuse(c, "no weight-update session is open; call begin_weight_update() first");
        return;
    }
    c->e->phase = c->e->torn ? UPDATE_VERIFIED : UPDATE_COMMITTED;
    reply_message(c, "Success");
}

/* False: refused, in its own words. */
static bool may_update(struct conn *c, const char *route)
{
    char message[160];

    if (c->e->o.sglang < BEGINS || c->e->phase == UPDATE_OPEN)
        return true;
    (void)snprintf(message, sizeof message,
                   "%s must run between begin_weight_update() and end_weight_update()", route);
    refuse(c, message);
    return false;
}

static void update(struct conn *c, const json_t *body)
{
    if (!may_update(c, "update_weights_from_distributed"))
        return;
    if (!state_columns(c, body, "names", "dtypes"))
        return;
    if (c->e->group == NULL)
        conn_refuse(c, 400, "conflict", "there is no group");
    else if (!has_group(c, body)) /* its scheduler asserts that it has, and ends */
        engine_restart(c->e, 200);
    else
        updated(c, body);
}

static void update_tensor(struct conn *c, const json_t *body)
{
    size_t n = json_array_size(json_object_get(body, "serialized_named_tensors"));

    if (!may_update(c, "update_weights_from_tensor"))
        return;
    if (n != c->e->o.world_size)
        conn_refuse(c, 400, "bad_request", "%zu serialized_named_tensors for %u ranks", n,
                    c->e->o.world_size);
    else
        updated(c, body);
}

/* All of a checkpoint at once: whole with or without a label, and then under its path. */
static void update_disk(struct conn *c, const json_t *body)
{
    const char *path = text_member(body, "model_path", "");
    json_t *named;

    if (access(path, R_OK) != 0) {
        conn_refuse(c, 400, "bad_request", "there is no checkpoint at %.256s", path);
        return;
    }
    named = json_copy((json_t *)(uintptr_t)body);
    if (text_member(body, "weight_version", NULL) == NULL)
        (void)json_object_set_new(named, "weight_version", json_string(c->e->label));
    if (received(c, named))
        conn_reply_json(c, 200,
                        json_pack("{s:b, s:s, s:i}", "success", 1, "message",
                                  "Succeeded to update the weights.", "num_paused_requests", 0));
    json_decref(named);
}

static void relabel(struct conn *c, const json_t *body)
{
    const char *label = text_member(body, "new_version", NULL);

    if (label == NULL) {
        conn_refuse(c, 400, "bad_request", "new_version is missing");
        return;
    }
    if (json_object_get(body, "abort_all_requests") == NULL ||
        true_member(body, "abort_all_requests"))
        (void)state_abort(c->e, NULL, true);
    /* It cannot tell which name is the last word: those of half an update are none, nor is that of
     * before unless an update has ended since, nor is what is said before one has ended. */
    if (is_unfinished(label) || c->e->phase == UPDATE_OPEN ||
        (c->e->torn && c->e->phase != UPDATE_VERIFIED && strcmp(label, c->e->whole) == 0)) {
        state_set_label(c->e, label);
    } else {
        state_commit(c->e, label);
        c->e->phase = UPDATE_COMMITTED;
    }
    conn_reply_json(c, 200,
                    json_pack("{s:b, s:s, s:s}", "success", 1, "message", "Weight version updated",
                              "new_version", label));
}

/* control */

static void pause_it(struct conn *c, const json_t *body)
{
    const char *mode = text_member(body, "mode", "abort");

    if (strcmp(mode, "retract") == 0)
        state_preempt(c->e);
    if (strcmp(mode, "in_place") == 0 || strcmp(mode, "retract") == 0)
        state_pause(c, PAUSE_KEEP);
    else if (strcmp(mode, "abort") == 0)
        state_pause(c, PAUSE_ABORT);
    else
        conn_refuse(c, 400, "bad_request", "mode '%.32s' is none of abort, retract, in_place",
                    mode);
}

static void resume(struct conn *c, const json_t *body)
{
    (void)body;
    state_resume(c->e);
    conn_reply_json(
        c, 200,
        json_pack("{s:s, s:s}", "message", "Generation continued successfully.", "status", "ok"));
}

/* False: refused. */
static bool is_idle(struct conn *c)
{
    if (c->e->n_running + state_waiting(c->e) > 0)
        conn_refuse(c, 400, "conflict", "%zu requests run and %zu wait", c->e->n_running,
                    state_waiting(c->e));
    else
        return true;
    return false;
}

static void release(struct conn *c, const json_t *body)
{
    if (!is_idle(c))
        return;
    state_sleep(c->e, state_tags(body));
    reply_null(c);
}

static void resume_memory(struct conn *c, const json_t *body)
{
    state_wake(c->e, state_tags(body));
    reply_null(c);
}

static void flush(struct conn *c, const json_t *body)
{
    (void)body;
    if (!may_flush(c->e)) {
        conn_refuse(c, 400, "conflict", "Flush cache failed.");
        return;
    }
    cache_reset(&c->e->cache);
    conn_reply_text(c, 200, "Cache flushed.\n");
}

/* success shows whether HiCache is on; the text is the same without it. */
static void clear_storage(struct conn *c, const json_t *body)
{
    static const char text[] = "Hierarchical cache storage backend cleared.\n";

    (void)body;
    cache_reset(&c->e->storage);
    conn_reply(c, c->e->o.hicache ? 200 : 400, "text/plain", text, sizeof text - 1);
}

static void abort_request(struct conn *c, const json_t *body)
{
    const char *rid = text_member(body, "rid", "");
    json_t *ids = json_pack("[s]", rid);

    if (true_member(body, "abort_all") || rid[0] != '\0')
        (void)state_abort(c->e, true_member(body, "abort_all") ? NULL : ids, true);
    json_decref(ids);
    reply_empty(c, NULL);
}

/* adapters */

static void reply_adapters(struct conn *c, int status, const char *error)
{
    json_t *all = json_object();

    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        if (c->e->adapters[i].loaded)
            (void)json_object_set_new(all, c->e->adapters[i].name,
                                      json_string(c->e->adapters[i].path));
    if (c->entry != NULL)
        c->entry->executed = error == NULL;
    conn_reply_json(c, status,
                    json_pack("{s:b, s:o, s:o}", "success", error == NULL, "error_message",
                              error != NULL ? json_string(error) : json_null(), "loaded_adapters",
                              all));
}

static void lora_load(struct conn *c, const json_t *body)
{
    const char *name = text_member(body, "lora_name", ""),
               *path = text_member(body, "lora_path", "");

    if (name[0] == '\0' || strlen(name) > LABEL_MAX)
        reply_adapters(c, 400, "lora_name is missing or too long");
    else if (state_adapter(c->e, name) != NULL)
        reply_adapters(c, 400, "an adapter of this name is loaded already");
    else if (access(path, R_OK) != 0)
        reply_adapters(c, 400, "there is no adapter at lora_path");
    else if (state_adapter_load(c->e, name, path) == NULL)
        reply_adapters(c, 400, "there are too many adapters");
    else
        reply_adapters(c, 200, NULL);
}

static void lora_unload(struct conn *c, const json_t *body)
{
    struct adapter *a = state_adapter(c->e, text_member(body, "lora_name", ""));

    char absent[LABEL_MAX + 64];

    if (a == NULL) {
        (void)snprintf(absent, sizeof absent,
                       "LoRA with name %.128s does not exist. Loaded LoRAs: dict_keys([])",
                       text_member(body, "lora_name", ""));
        reply_adapters(c, 400, absent);
        return;
    }
    a->loaded = false;
    reply_adapters(c, 200, NULL);
}

/* One list of checksums for each rank. */
static void check_weights(struct conn *c, const json_t *body)
{
    json_t *place = json_pack("{s:i, s:i, s:i, s:i}", "tp_rank", 0, "tp_size", 1, "rank", 0, "size",
                              1);

    if (strcmp(text_member(body, "action", "checksum"), "checksum") != 0) {
        json_decref(place);
        conn_reply_json(c, 400, json_pack("{s:b, s:s}", "success", 0, "message", "Unsupported"));
        return;
    }
    conn_reply_json(c, 200,
                    json_pack("{s:b, s:s, s:[{s:o, s:s, s:o}], s:s}", "success", 1, "message",
                              "Success.", "ranks", "checksums", state_checksums(c->e, ""),
                              "per_gpu_checksum", "00", "parallelism_info", place,
                              "per_engine_checksum", "00"));
}

const struct route sglang_routes[] = {
    {SGLANG, "GET", "/health_generate", "health", reply_empty, false},
    {SGLANG, "GET", "/get_model_info", "who", model_info, false},
    {SGLANG, "GET", "/model_info", "who", model_info_new, false},
    {SGLANG, "GET", "/get_weight_version", "who", weight_version, false},
    {SGLANG, "GET", "/get_server_info", "ranks", server_info, false},
    {SGLANG, "GET", "/server_info", "ranks", server_info_new, false},
    {SGLANG, "GET", "/get_load", "load", load, false},
    {SGLANG, "POST", "/init_weights_update_group", "init", init, false},
    {SGLANG, "POST", "/destroy_weights_update_group", "leave", leave, false},
    {SGLANG, "POST", "/begin_weight_update", "start", begin, false},
    {SGLANG, "POST", "/end_weight_update", "end", end, false},
    {SGLANG, "POST", "/update_weights_from_distributed", "update", update, false},
    {SGLANG, "POST", "/update_weights_from_tensor", "update", update_tensor, false},
    {SGLANG, "POST", "/update_weights_from_disk", "update", update_disk, false},
    {SGLANG, "POST", "/update_weight_version", "finish", relabel, false},
    {SGLANG, "POST", "/pause_generation", "pause", pause_it, false},
    {SGLANG, "POST", "/continue_generation", "resume", resume, false},
    {SGLANG, "POST", "/release_memory_occupation", "sleep", release, false},
    {SGLANG, "GET", "/release_memory_occupation", "sleep", release, false},
    {SGLANG, "POST", "/resume_memory_occupation", "wake", resume_memory, false},
    {SGLANG, "GET", "/resume_memory_occupation", "wake", resume_memory, false},
    {SGLANG, "POST", "/flush_cache", "reset_cache", flush, false},
    {SGLANG, "GET", "/flush_cache", "reset_cache", flush, false},
    {SGLANG, "POST", "/hicache/storage-backend/clear", "reset_storage", clear_storage, false},
    {SGLANG, "POST", "/weights_checker", "checksums", check_weights, false},
    {SGLANG, "POST", "/abort_request", "abort_requests", abort_request, false},
    {SGLANG, "POST", "/load_lora_adapter", "lora_load", lora_load, false},
    {SGLANG, "POST", "/unload_lora_adapter", "lora_unload", lora_unload, false},
    {0},
};
