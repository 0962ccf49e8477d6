#include "tests/unit/fleet/sim/engine.h"

#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/stage.h"
#include "tests/unit/fleet/sim/world.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void engine_start(struct engine *g)
{
    struct engine was = *g;

    *g = (struct engine){.kind = was.kind,
                         .knows_start = was.knows_start,
                         .up = true,
                         .process = was.process + 1,
                         .seen = was.seen,
                         .seen_us = was.seen_us,
                         .n_own = was.n_own,
                         .n_queries = was.n_queries,
                         .n_resyncs = was.n_resyncs,
                         .changes = was.changes,
                         .gates = was.gates,
                         .unreported = was.n_queries > 0,
                         .caches = {NO_ENTRY, NO_ENTRY, NO_ENTRY},
                         .held_kv = NO_ENTRY};
    (void)snprintf(g->label, sizeof g->label, "v0");
}

bool engine_overwrites(const struct engine *g)
{
    return g->kind != UPSTREAM_BATON;
}

static bool is_asleep(const struct engine *g)
{
    return g->weights_asleep || g->kv_asleep;
}

bool engine_runs(const struct engine *g)
{
    return g->up && !g->paused && !is_asleep(g);
}

/* No wake ends that. */
static bool lacks_weights(const struct engine *g)
{
    return g->dropped && !engine_overwrites(g);
}

static bool has_all(const struct engine *g)
{
    unsigned accepted = check_accepted(g->target);

    return accepted != 0 && (g->chunks & accepted) == accepted;
}

/* A part is no version but on the one that it was made for. */
static bool is_whole(const struct engine *g)
{
    return has_all(g) &&
           (!world.parts[g->target].is_part || g->weights == world.parts[g->target].base);
}

int engine_version(const struct engine *g)
{
    if (g->chunks == 0 || !engine_overwrites(g))
        return g->weights;
    return !g->open && is_whole(g) ? g->target : TORN;
}

void engine_name(const struct engine *g, unsigned process, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%u.%zu", process, check_index_of(g));
}

/* ---- tokens ---- */

/* The version, and the adapter. */
static int made_with(const struct engine *g)
{
    return 100 * (engine_version(g) + 1) + g->adapter;
}

/* An entry of a request without an adapter is beside those of one. */
static void use_cache(struct engine *g, int *cache, const char *what)
{
    int now = made_with(g), was = *cache == NO_ENTRY ? now : *cache;
    bool other_adapter = was % 100 != 0 && now % 100 != 0 && was % 100 != now % 100;

    if (was / 100 != now / 100 || other_adapter)
        check_stale(g, what);
    *cache = now % 100 != 0 ? now : now + was % 100;
}

void engine_token(struct engine *g, bool of_client)
{
    if (is_asleep(g) && g->kind == UPSTREAM_SGLANG) { /* it has no memory: that ends it */
        check_crash(g, of_client ? "I4: a request of a client while it sleeps" : NULL);
        return;
    }
    if (!engine_runs(g)) {
        g->n_held += of_client;
        return;
    }
    if (!of_client)
        return; /* one token of nothing: no entry is as short */
    if (engine_overwrites(g)) {
        use_cache(g, &g->caches.prefix, "prefix cache");
        if (g->kind == UPSTREAM_VLLM)
            use_cache(g, &g->caches.encoder, "encoder cache");
        else
            use_cache(g, &g->caches.storage, "storage");
    }
    check_token(g, false);
}

/* What was held came before whatever has changed meanwhile, and may read what is cached. It goes on
 * with the KV that it has, which is cached then, unless that was given up. */
static void go_on(struct engine *g)
{
    if (g->n_held == 0 || !engine_runs(g))
        return;
    if (g->held_kv != NO_ENTRY)
        g->caches.prefix = g->held_kv;
    else if (g->caches.prefix == NO_ENTRY)
        g->caches.prefix = made_with(g);
    g->n_held = 0;
    g->held_kv = NO_ENTRY;
    check_token(g, true);
}

/* A request may run when it is paused, and is held. */
static void hold(struct engine *g)
{
    if (engine_runs(g) && check_runs_request(g)) {
        g->n_held++;
        g->held_kv = made_with(g);
    }
    g->paused = true;
}

/* ---- operations ---- */

static json_t *member(const json_t *body, const char *name)
{
    return json_object_get(body, name);
}

static const char *text_of(const json_t *body, const char *name)
{
    const char *text = json_string_value(member(body, name));

    return text != NULL ? text : "";
}

static int answer(struct reply *r, int status, const char *text)
{
    r->status = status;
    (void)snprintf(r->text, sizeof r->text, "%s", text);
    return status;
}

static void refuse(struct reply *r, int status)
{
    (void)answer(r, status, "{\"message\":\"no\"}");
}

static void lose(struct reply *r)
{
    (void)answer(
        r, 404, "{\"error\":{\"code\":\"not_found\",\"param\":\"/update_id\",\"message\":\"no\"}}");
}

static void done(const struct engine *g, struct reply *r, const char *phase)
{
    char name[32];

    engine_name(g, g->process, name, sizeof name);
    r->status = 200;
    (void)snprintf(r->text, sizeof r->text,
                   "{\"success\":true,\"update_id\":\"%s\",\"phase\":\"%s\",\"boot_id\":\"%s\","
                   "\"weight_version\":\"%s\",\"paused\":%s}",
                   g->own_id, phase, name, g->label, g->paused ? "true" : "false");
}

static void start_update(struct engine *g, struct reply *r)
{
    if (!g->knows_start) {
        refuse(r, 404);
        return;
    }
    if (g->open || (!engine_overwrites(g) && g->weights_asleep && !g->dropped)) {
        refuse(r, engine_overwrites(g) ? 400 : 409);
        return;
    }
    g->open = true;
    g->marked_at = check_turn();
    if (!engine_overwrites(g)) {
        g->chunks = 0;
        (void)snprintf(g->own_id, sizeof g->own_id, "own-%u", ++g->n_own);
    }
    done(g, r, "open");
}

/* "VERSION/CHUNK", wherever the kind has it. */
static const char *bytes_of(const json_t *body)
{
    const json_t *list = member(body, "serialized_named_tensors");
    const char *vllm = text_of(member(body, "update_info"), "ipc_handles_pickled");
    const char *baton = text_of(body, "ipc_handles_pickled");

    if (json_is_array(list))
        return json_string_value(json_array_get(list, 0));
    return vllm[0] != '\0' ? vllm : baton[0] != '\0' ? baton : text_of(body, "path");
}

/* Another attempt to hand a version over is another update. */
static void begin_attempt(struct engine *g, unsigned attempt)
{
    if (g->attempt == attempt)
        return;
    g->attempt = attempt;
    g->last_target = g->lost_target = 0;
    if (g->chunks != 0 && engine_overwrites(g))
        engine_take_part(g);
}

void engine_take(struct engine *g, int target, unsigned attempt, unsigned chunk)
{
    begin_attempt(g, attempt);
    if (g->last_target != target) {
        g->last_target = target;
        g->last_sent = 0;
    }
    if (engine_overwrites(g) && (g->last_sent & (1u << chunk)) != 0)
        check_repeat(g, target, chunk);
    g->last_sent |= 1u << chunk;
    if (g->target != target && g->chunks != 0 && engine_overwrites(g))
        g->weights = engine_version(g); /* half of one update below another, until that is whole */
    if (g->target != target)
        g->chunks = 0;
    g->target = target;
    g->chunks |= 1u << chunk;
    if (is_whole(g))
        world.got[target] |= 1u << check_index_of(g);
}

/* What one that was removed sleeps is not remembered; and a fenced SGLang that was left paused can
 * show nothing (fleet_wake_parts). A trainer does not push then, as world.c has it. */
static bool hides_sleep(const struct engine *g)
{
    return world.cfg.stage != STAGE_NOT &&
           (g->was_removed || (g->kind == UPSTREAM_SGLANG && check_is_fenced(g)));
}

static void update_weights(struct engine *g, const json_t *body, struct reply *r)
{
    struct stage_bytes staged;
    int target = 0;
    unsigned chunk = 0;

    if (stage_find(&staged, bytes_of(body), body)) {
        target = staged.version;
    } else if (sscanf(bytes_of(body), "/%d/%u", &target, &chunk) != 2) {
        check_fail("tensors that were not sent");
        return;
    }
    if (!engine_overwrites(g) && (!g->open || strcmp(text_of(body, "update_id"), g->own_id) != 0)) {
        lose(r);
        return;
    }
    check_tensors(g, target);
    if (engine_overwrites(g) && g->knows_start && !g->open) {
        refuse(r, 400);
        return;
    }
    if (engine_overwrites(g) && g->weights_asleep) { /* it has no memory to write them to */
        check_crash(g, check_is_open(target) && !hides_sleep(g) ? "I7: tensors while it sleeps"
                                                                : NULL);
        return;
    }
    if (staged.at != NULL)
        stage_read(g, &staged);
    else
        engine_take(g, target, 0, chunk);
    done(g, r, "receiving");
}

void engine_take_part(struct engine *g)
{
    if (!engine_overwrites(g) || g->weights_asleep)
        return;
    check_stray(g);
    g->weights = TORN;
    g->chunks = 0;
}

static void commit(struct engine *g)
{
    if (g->chunks != 0)
        g->weights = is_whole(g) ? g->target : TORN;
    g->weights_asleep = g->weights_asleep && !lacks_weights(g);
    g->dropped = g->dropped && g->weights == TORN;
    g->chunks = 0;
    g->open = false;
}

static void finish_baton(struct engine *g, const json_t *body, struct reply *r)
{
    const char *id = text_of(body, "update_id");

    if (!g->open || strcmp(id, g->own_id) != 0) {
        if (g->committed_id[0] != '\0' && strcmp(id, g->committed_id) == 0)
            done(g, r, "committed");
        else
            lose(r);
        return;
    }
    if (g->chunks == 0 || !has_all(g)) {
        refuse(r, 422);
        return;
    }
    commit(g);
    (void)snprintf(g->label, sizeof g->label, "%s", text_of(body, "weight_version"));
    memcpy(g->committed_id, g->own_id, sizeof g->committed_id);
    done(g, r, "committed");
    go_on(g);
}

static void finish(struct engine *g, const json_t *body, struct reply *r)
{
    const char *label = text_of(body, "weight_version");

    if (!engine_overwrites(g)) {
        finish_baton(g, body, r);
        return;
    }
    if (g->kind == UPSTREAM_SGLANG && !g->open) {
        refuse(r, 400);
        return;
    }
    check_stray(g);
    check_finish(g, label[0] != '\0' || g->kind == UPSTREAM_SGLANG);
    commit(g);
    if (label[0] != '\0')
        (void)snprintf(g->label, sizeof g->label, "%s", label);
    done(g, r, "committed");
}

static void verify_or_abort(struct engine *g, enum api_op op, const json_t *body, struct reply *r)
{
    if (!g->open || strcmp(text_of(body, "update_id"), g->own_id) != 0) {
        lose(r);
    } else if (op == API_VERIFY_UPDATE && !has_all(g)) {
        refuse(r, 422);
    } else if (op == API_VERIFY_UPDATE) {
        done(g, r, "verified");
    } else {
        g->chunks = 0;
        g->open = false;
        done(g, r, "aborted");
    }
}

static void set_version(struct engine *g, const json_t *body, struct reply *r)
{
    const char *label = text_of(body, engine_overwrites(g) ? "new_version" : "weight_version");

    if (!engine_overwrites(g) && g->weights_asleep) {
        refuse(r, 409);
        return;
    }
    check_stray(g);
    (void)snprintf(g->label, sizeof g->label, "%s", label);
    g->marked_at = check_turn();
    done(g, r, "");
}

static void pause_engine(struct engine *g, const json_t *body, struct reply *r)
{
    hold(g);
    g->released = false;
    (void)snprintf(g->pause_owner, sizeof g->pause_owner, "%s", text_of(body, "owner"));
    done(g, r, "");
}

static void resume_engine(struct engine *g, struct reply *r)
{
    check_resume(g);
    g->paused = false;
    g->released = check_is_removed(g) || world.asked_removed;
    done(g, r, "");
    go_on(g);
}

/* ---- sleep ---- */

/* Which parts the request names; none: both. */
static void tags_of(const char *path, const json_t *body, bool *weights, bool *kv)
{
    const json_t *tags = member(body, "tags"), *tag;
    size_t i;

    *weights = strstr(path, "tags=weights") != NULL;
    *kv = strstr(path, "tags=kv_cache") != NULL;
    json_array_foreach(tags, i, tag)
    {
        *weights = *weights || strcmp(json_string_value(tag), "weights") == 0;
        *kv = *kv || strcmp(json_string_value(tag), "kv_cache") == 0;
    }
    if (!*weights && !*kv)
        *weights = *kv = true;
}

/* Of a sleep: a baton reports that it has no version. */
static void drop_weights(struct engine *g)
{
    g->weights = TORN;
    g->dropped = true;
    g->chunks = 0;
    if (!engine_overwrites(g))
        g->label[0] = g->committed_id[0] = '\0';
}

static bool is_of_level_2(const char *path, const json_t *body)
{
    return strstr(path, "level=2") != NULL || json_integer_value(member(body, "level")) == 2;
}

static void sleep_engine(struct engine *g, const char *path, const json_t *body, struct reply *r)
{
    bool weights, kv;

    tags_of(path, body, &weights, &kv);
    if (!engine_overwrites(g) && g->open && weights) {
        refuse(r, 409);
        return;
    }
    if (engine_runs(g) && check_runs_request(g)) {
        g->n_held++;
        g->held_kv = NO_ENTRY;
    }
    g->weights_asleep |= weights;
    g->kv_asleep |= kv;
    if (kv)
        g->caches.prefix = g->held_kv = NO_ENTRY;
    if (weights && is_of_level_2(path, body))
        drop_weights(g);
    done(g, r, "");
}

static void wake_engine(struct engine *g, const char *path, const json_t *body, struct reply *r)
{
    bool weights, kv;

    tags_of(path, body, &weights, &kv);
    if (g->kind == UPSTREAM_SGLANG && ((weights && !g->weights_asleep) || (kv && !g->kv_asleep))) {
        check_crash(g, world.n_wakes > 0 ? NULL : "I7: a wake while it is awake");
        return;
    }
    g->weights_asleep = g->weights_asleep && (!weights || lacks_weights(g));
    g->kv_asleep = g->kv_asleep && !kv;
    done(g, r, "");
    go_on(g);
}

/* ---- caches, adapters ---- */

static void reset_prefix(struct engine *g, const char *path, struct reply *r)
{
    bool vllm = g->kind == UPSTREAM_VLLM;
    bool running = strstr(path, "reset_running_requests=true") != NULL;
    bool holds = g->n_held > 0 && g->held_kv != NO_ENTRY;

    if (holds && !(vllm && running)) {
        (void)answer(r, vllm ? 200 : 400, "{\"success\":false}");
        return;
    }
    g->held_kv = NO_ENTRY;
    g->caches.prefix = NO_ENTRY;
    done(g, r, "");
}

static void load_adapter(struct engine *g, const json_t *body, struct reply *r)
{
    int revision = 0;

    (void)sscanf(text_of(body, "lora_path"), "/adapters/%d", &revision);
    if (g->adapter != 0 && g->kind == UPSTREAM_SGLANG) {
        refuse(r, 400);
        return;
    }
    g->adapter = revision;
    if (g->kind == UPSTREAM_SGLANG) { /* its entries are known by another id, and so is held KV */
        g->caches = (struct caches){NO_ENTRY, NO_ENTRY, NO_ENTRY};
        g->held_kv = NO_ENTRY;
    }
    done(g, r, "");
}

static void unload_adapter(struct engine *g, const json_t *body, struct reply *r)
{
    if (g->adapter == 0) {
        r->status = g->kind == UPSTREAM_SGLANG ? 400 : 404;
        (void)snprintf(r->text, sizeof r->text,
                       "{\"error_message\":\"LoRA with name %s does not exist\"}",
                       text_of(body, "lora_name"));
        return;
    }
    g->adapter = 0;
    done(g, r, "");
}

/* ---- what is asked ---- */

static const struct route {
    const char *path; /* its begin */
    enum api_op op;
} routes[UPSTREAM_KINDS][24] = {
    [UPSTREAM_VLLM] = {{"/start_weight_update", API_START_UPDATE},
                       {"/update_weights", API_UPDATE_WEIGHTS},
                       {"/finish_weight_update", API_FINISH_UPDATE},
                       {"/pause", API_PAUSE},
                       {"/resume", API_RESUME},
                       {"/sleep", API_SLEEP},
                       {"/wake_up", API_WAKE},
                       {"/reset_prefix_cache", API_RESET_PREFIX_CACHE},
                       {"/reset_encoder_cache", API_RESET_ENCODER_CACHE},
                       {"/abort_requests", API_ABORT_REQUESTS},
                       {"/v1/load_lora_adapter", API_LOAD_ADAPTER},
                       {"/v1/unload_lora_adapter", API_UNLOAD_ADAPTER},
                       {"/init_weight_transfer_engine", API_INIT_TRANSFER},
                       {"/update_weight_version", API_SET_VERSION}},
    [UPSTREAM_SGLANG] = {{"/begin_weight_update", API_START_UPDATE},
                         {"/update_weights_from_tensor", API_UPDATE_WEIGHTS},
                         {"/end_weight_update", API_FINISH_UPDATE},
                         {"/pause_generation", API_PAUSE},
                         {"/continue_generation", API_RESUME},
                         {"/release_memory_occupation", API_SLEEP},
                         {"/resume_memory_occupation", API_WAKE},
                         {"/flush_cache", API_RESET_PREFIX_CACHE},
                         {"/hicache/storage-backend/clear", API_RESET_STORAGE_CACHE},
                         {"/abort_request", API_ABORT_REQUESTS},
                         {"/load_lora_adapter", API_LOAD_ADAPTER},
                         {"/unload_lora_adapter", API_UNLOAD_ADAPTER},
                         {"/update_weight_version", API_SET_VERSION}},
    [UPSTREAM_BATON] = {{"/v1/update_weights/start", API_START_UPDATE},
                        {"/v1/update_weights/verify", API_VERIFY_UPDATE},
                        {"/v1/update_weights/finish", API_FINISH_UPDATE},
                        {"/v1/update_weights/abort", API_ABORT_UPDATE},
                        {"/v1/update_weights/renew", API_RENEW_UPDATE},
                        {"/v1/update_weights", API_UPDATE_WEIGHTS},
                        {"/v1/pause", API_PAUSE},
                        {"/v1/resume", API_RESUME},
                        {"/v1/sleep", API_SLEEP},
                        {"/v1/wake", API_WAKE},
                        {"/v1/reset_cache", API_RESET_PREFIX_CACHE},
                        {"/v1/abort_requests", API_ABORT_REQUESTS},
                        {"/v1/load_lora_adapter", API_LOAD_ADAPTER},
                        {"/v1/unload_lora_adapter", API_UNLOAD_ADAPTER},
                        {"/v1/weights/label", API_SET_VERSION}},
};

/* A path with more behind it is another one, but for its query. */
static bool is_path(const char *path, const char *begin)
{
    size_t len = strlen(begin);

    return strncmp(path, begin, len) == 0 && (path[len] == '\0' || path[len] == '?');
}

enum api_op engine_operation(const struct engine *g, const char *path)
{
    for (const struct route *r = routes[g->kind]; r->path != NULL; r++)
        if (is_path(path, r->path))
            return r->op;
    return API_OPS;
}

static void say_status(const struct engine *g, struct reply *r)
{
    const char *held = is_asleep(g) ? "true" : "false";
    char name[32], pause[100] = "null", update[100] = "null";

    engine_name(g, g->process, name, sizeof name);
    if (g->paused)
        (void)snprintf(pause, sizeof pause, "{\"owner\":\"%s\"}", g->pause_owner);
    if (g->open)
        (void)snprintf(update, sizeof update, "{\"update_id\":\"%s\"}", g->own_id);
    (void)snprintf(r->text, sizeof r->text,
                   "{\"boot_id\":\"%s\",\"ready\":true,\"weights\":{\"weight_version\":\"%s\","
                   "\"update_id\":\"%s\",\"state\":\"%s\"},\"pause\":%s,\"sleep\":{\"asleep\":%s},"
                   "\"update\":%s}",
                   name, g->label, g->committed_id, g->dropped ? "dropped" : "", pause, held,
                   update);
}

/* All queries but the token. */
static void say(struct engine *g, const char *path, struct reply *r)
{
    r->status = 200;
    if (is_path(path, "/metrics"))
        (void)snprintf(r->text, sizeof r->text,
                       "\nprocess_start_time_seconds %u.5\nvllm:num_preemptions_created{} "
                       "%u.%zu\nvllm:lora_requests_info 1\n",
                       g->process, g->process, check_index_of(g));
    else if (is_path(path, "/v1/status"))
        say_status(g, r);
    else if (is_path(path, "/is_paused"))
        (void)snprintf(r->text, sizeof r->text, "{\"is_paused\":%s}",
                       g->paused || is_asleep(g) ? "true" : "false");
    else if (is_path(path, "/is_sleeping"))
        (void)snprintf(r->text, sizeof r->text, "{\"is_sleeping\":%s}",
                       is_asleep(g) ? "true" : "false");
    else if (is_path(path, "/version"))
        (void)answer(r, 200, "{\"version\":\"0.32.0\"}");
    else if (is_path(path, "/v1/completions"))
        engine_token(g, false), (void)answer(r, 200, "{\"choices\":[{\"text\":\"a\"}]}");
    else if (is_path(path, "/server_info"))
        (void)answer(r, 200, "{\"version\":\"0.5.16\",\"tp_size\":1}");
    else
        (void)snprintf(r->text, sizeof r->text, "{\"weight_version\":\"%s\",\"tp_size\":1}",
                       g->label);
}

static void abort_requests(struct engine *g, struct reply *r)
{
    g->n_held = 0;
    g->held_kv = NO_ENTRY;
    done(g, r, "");
}

static void do_simple(struct engine *g, enum api_op op, const char *path, struct reply *r)
{
    if (op == API_RESET_PREFIX_CACHE) {
        reset_prefix(g, path, r);
        return;
    }
    if (op == API_ABORT_REQUESTS) {
        abort_requests(g, r);
        return;
    }
    if (op == API_RESET_ENCODER_CACHE)
        g->caches.encoder = NO_ENTRY;
    if (op == API_RESET_STORAGE_CACHE)
        g->caches.storage = NO_ENTRY;
    done(g, r, "");
}

static void operate(struct engine *g, enum api_op op, const char *path, const json_t *body,
                    struct reply *r)
{
    if (op == API_START_UPDATE)
        start_update(g, r);
    else if (op == API_UPDATE_WEIGHTS)
        update_weights(g, body, r);
    else if (op == API_FINISH_UPDATE)
        finish(g, body, r);
    else if (op == API_VERIFY_UPDATE || op == API_ABORT_UPDATE)
        verify_or_abort(g, op, body, r);
    else if (op == API_SET_VERSION)
        set_version(g, body, r);
    else if (op == API_PAUSE && strcmp(text_of(body, "mode"), "retract") == 0)
        g->held_kv = NO_ENTRY, done(g, r, "");
    else if (op == API_PAUSE)
        pause_engine(g, body, r);
    else if (op == API_RESUME)
        resume_engine(g, r);
    else if (op == API_SLEEP)
        sleep_engine(g, path, body, r);
    else if (op == API_WAKE)
        wake_engine(g, path, body, r);
    else if (op == API_LOAD_ADAPTER)
        load_adapter(g, body, r);
    else if (op == API_UNLOAD_ADAPTER)
        unload_adapter(g, body, r);
    else
        do_simple(g, op, path, r);
}

void engine_ask(struct engine *g, const char *path, const char *body, struct reply *out)
{
    enum api_op op = engine_operation(g, path);
    json_t *json = body != NULL && op != API_OPS ? json_loads(body, 0, NULL) : NULL;

    *out = (struct reply){.status = 0};
    if (op == API_OPS)
        say(g, path, out);
    else
        operate(g, op, path, json, out);
    json_decref(json);
}
