/* A baton's own routes: updates in two phases. */
#include "tests/fakes/engine.h"

#include <stdio.h>
#include <string.h>

static json_t *label_json(const struct engine *e)
{
    return e->has_label ? json_string(e->label) : json_null();
}

static const char *const phase_names[] = {"none", "open", "verified", "committed", "aborted"};

static json_t *update_json(const struct engine *e)
{
    json_t *label = e->update_label[0] != '\0' ? json_string(e->update_label) : json_null();

    if (e->phase == UPDATE_COMMITTED) {
        json_decref(label);
        label = label_json(e);
    }
    return json_pack(
        "{s:s, s:s, s:b, s:o, s:o, s:I, s:s}", "update_id", e->update_id, "phase",
        e->phase == UPDATE_OPEN && e->n_received > 0 ? "receiving" : phase_names[e->phase],
        "partial", e->update_partial, "weight_version", label, "serial",
        e->phase == UPDATE_COMMITTED ? json_integer((json_int_t)e->serial) : json_null(),
        "n_tensors_done", (json_int_t)e->n_received, "coverage", "whole");
}

json_t *baton_pause_json(const struct engine *e)
{
    static const char *const modes[] = {"none", "keep", "wait", "abort"};

    return json_pack("{s:b, s:s, s:s, s:b, s:I, s:I}", "paused", e->pause != PAUSE_NONE, "owner",
                     e->pause_owner, "mode", modes[e->pause], "acknowledged", 1, "running",
                     (json_int_t)e->n_running, "waiting", (json_int_t)state_waiting(e));
}

static json_t *sleep_json(const struct engine *e)
{
    return json_pack("{s:b, s:s, s:s}", "asleep", e->asleep != 0, "weights",
                     e->torn                            ? "dropped"
                     : (e->asleep & SLEEP_WEIGHTS) != 0 ? "asleep"
                                                        : "ready",
                     "kv_cache", (e->asleep & SLEEP_KV) != 0 ? "released" : "present");
}

static json_t *ranks_json(const struct engine *e)
{
    json_t *ranks = json_array();

    for (unsigned i = 0; i < e->o.world_size; i++)
        (void)json_array_append_new(ranks,
                                    json_pack("{s:i, s:i}", "rank", (int)i, "device", (int)i));
    return ranks;
}

static bool is_ready(const struct engine *e)
{
    return e->pause == PAUSE_NONE && e->asleep == 0 && !e->torn;
}

static void status(struct conn *c, const json_t *body)
{
    const struct engine *e = c->e;
    bool open = e->phase == UPDATE_OPEN || e->phase == UPDATE_VERIFIED;

    (void)body;
    conn_reply_json(
        c, 200,
        json_pack("{s:s, s:s, s:b, s:b, s:{s:s, s:I, s:o}, s:o, s:{s:{s:I, s:I}}, s:{s:b, s:o}, "
                  "s:o, s:o}",
                  "boot_id", e->boot_id, "life", "serving", "live", 1, "ready", is_ready(e),
                  "weights", "state", "ready", "serial", (json_int_t)e->serial, "weight_version",
                  label_json(e), "update", open ? update_json(e) : json_null(), "admission",
                  "generate", "running", (json_int_t)e->n_running, "waiting",
                  (json_int_t)state_waiting(e), "cuda", "available", 1, "ranks", ranks_json(e),
                  "pause", e->pause != PAUSE_NONE ? baton_pause_json(e) : json_null(), "sleep",
                  sleep_json(e)));
}

static void ready(struct conn *c, const json_t *body)
{
    bool is = is_ready(c->e);

    (void)body;
    conn_reply_json(c, is ? 200 : 503, json_pack("{s:b}", "ready", is));
}

/* the group */

static json_t *group_json(const struct engine *e)
{
    return json_pack("{s:s, s:o, s:o}", "state", e->group != NULL ? "joined" : "none", "world_size",
                     json_integer((json_int_t)int_member(e->group, "world_size", 0)), "rank_offset",
                     json_integer((json_int_t)int_member(e->group, "rank_offset", 0)));
}

static void init(struct conn *c, const json_t *body)
{
    if (strcmp(text_member(body, "transport", ""), "ipc") != 0 && !state_init(c, body, false))
        return;
    conn_reply_json(c, 200, group_json(c->e));
}

static void group(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200, group_json(c->e));
}

static void leave(struct conn *c, const json_t *body)
{
    json_decref(c->e->group);
    c->e->group = NULL;
    group(c, body);
}

/* updates */

static void open_update(struct engine *e, const json_t *body)
{
    char id[ID_LEN + 1];

    id_make(id);
    (void)snprintf(e->update_id, sizeof e->update_id, "upd-%s", id);
    e->phase = UPDATE_OPEN;
    e->n_received = 0;
    e->update_partial = true_member(body, "partial");
    (void)snprintf(e->update_label, sizeof e->update_label, "%s",
                   text_member(body, "weight_version", ""));
}

static void start(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;
    json_t *reply;

    if (e->phase == UPDATE_OPEN || e->phase == UPDATE_VERIFIED) {
        conn_refuse(c, 409, "conflict", "update %s is %s: finish or abort it first", e->update_id,
                    phase_names[e->phase]);
        return;
    }
    open_update(e, body);
    reply = update_json(e);
    (void)json_object_set_new(reply, "boot_id", json_string(e->boot_id));
    conn_reply_json(c, 200, reply);
}

/* False: refused; the body names another update than the one that there is. */
static bool is_ours(struct conn *c, const char *id)
{
    const struct engine *e = c->e;

    if (id != NULL && e->update_id[0] != '\0' && strcmp(id, e->update_id) == 0)
        return true;
    conn_refuse_at(c, 404, "not_found", "/update_id", "there is no update '%.64s'",
                   id != NULL ? id : "");
    return false;
}

static bool is_in(struct conn *c, enum phase phase, enum phase or_phase)
{
    const struct engine *e = c->e;

    if (e->phase == phase || e->phase == or_phase)
        return true;
    conn_refuse(c, 409, e->phase >= UPDATE_COMMITTED ? "update_closed" : "conflict",
                "update %s is %s", e->update_id, phase_names[e->phase]);
    return false;
}

static void commit(struct engine *e, const char *label)
{
    label = label != NULL ? label : e->update_label;
    state_commit(e, label[0] != '\0' ? label : NULL);
    e->phase = UPDATE_COMMITTED;
}

/* Tensors by columns, a file, or the body itself. */
static void update(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;
    bool tensors = true_member(body, "is_tensors");
    char in_query[64] = "";
    const char *id = text_member(body, "update_id", NULL);

    if (tensors && request_query(&c->req, "update_id", in_query, sizeof in_query))
        id = in_query;
    if (id != NULL && (!is_ours(c, id) || !is_in(c, UPDATE_OPEN, UPDATE_OPEN)))
        return;
    if (!tensors && json_object_get(body, "path") == NULL &&
        !state_columns(c, body, "names",
                       json_object_get(body, "dtypes") != NULL ? "dtypes" : "dtype_names"))
        return;
    if (strcmp(text_member(body, "transport", ""), "nccl") == 0 && e->group == NULL) {
        conn_refuse(c, 409, "conflict", "there is no group");
        return;
    }
    if (id == NULL && (e->phase == UPDATE_OPEN || e->phase == UPDATE_VERIFIED)) {
        conn_refuse(c, 409, "conflict", "update %s is open", e->update_id);
        return;
    }
    if (id == NULL)
        open_update(e, body);
    e->n_received++;
    if (id == NULL)
        commit(e, NULL);
    conn_reply_json(c, 200, update_json(e));
}

static void verify(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;

    if (!is_ours(c, text_member(body, "update_id", NULL)) ||
        !is_in(c, UPDATE_OPEN, UPDATE_VERIFIED))
        return;
    if (e->n_received == 0) {
        e->phase = UPDATE_ABORTED;
        conn_refuse(c, 422, "incomplete_update", "no tensor of the model arrived in this update");
        return;
    }
    e->phase = UPDATE_VERIFIED;
    conn_reply_json(c, 200, update_json(e));
}

static void finish(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;

    if (!is_ours(c, text_member(body, "update_id", NULL)))
        return;
    if (e->phase == UPDATE_COMMITTED) {
        conn_reply_json(c, 200, update_json(e));
        return;
    }
    if (!is_in(c, UPDATE_OPEN, UPDATE_VERIFIED))
        return;
    if (e->n_received == 0) {
        e->phase = UPDATE_ABORTED;
        conn_refuse(c, 422, "incomplete_update", "no tensor of the model arrived in this update");
        return;
    }
    commit(e, text_member(body, "weight_version", NULL));
    conn_reply_json(c, 200, update_json(e));
}

static void abort_update(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;

    if (!is_ours(c, text_member(body, "update_id", NULL)) ||
        (e->phase != UPDATE_ABORTED && !is_in(c, UPDATE_OPEN, UPDATE_VERIFIED)))
        return;
    e->phase = UPDATE_ABORTED;
    conn_reply_json(c, 200, update_json(e));
}

static void renew(struct conn *c, const json_t *body)
{
    if (is_ours(c, text_member(body, "update_id", NULL)) && is_in(c, UPDATE_OPEN, UPDATE_VERIFIED))
        conn_reply_json(c, 200, update_json(c->e));
}

/* A new label for the same weights: only tokens show it. */
static void relabel(struct conn *c, const json_t *body)
{
    const char *label = text_member(body, "weight_version", "");
    struct engine *e = c->e;

    if (label[0] == '\0') {
        conn_refuse(c, 400, "bad_request", "weight_version is missing");
        return;
    }
    e->has_label = true;
    (void)snprintf(e->label, sizeof e->label, "%s", label);
    conn_reply_json(
        c, 200, json_pack("{s:s, s:I}", "weight_version", label, "serial", (json_int_t)e->serial));
}

/* The id contains the number of its tensors. */
static void tensor_list(struct conn *c, const json_t *body)
{
    size_t n = json_array_size(json_object_get(body, "names"));

    if (!state_columns(c, body, "names",
                       json_object_get(body, "dtypes") != NULL ? "dtypes" : "dtype_names"))
        return;
    conn_reply_json(c, 200,
                    json_pack("{s:o, s:I, s:I, s:b, s:I, s:[]}", "plan_id",
                              json_sprintf("plan-of-%zu", n), "n_tensors", (json_int_t)n, "nbytes",
                              (json_int_t)0, "covers_manifest", 1, "n_missing", (json_int_t)0,
                              "missing"));
}

/* control */

static void pause_it(struct conn *c, const json_t *body)
{
    const char *mode = text_member(body, "mode", "keep");

    (void)snprintf(c->e->pause_owner, sizeof c->e->pause_owner, "%s",
                   text_member(body, "owner", "a client"));
    if (strcmp(mode, "keep") == 0)
        state_pause(c, PAUSE_KEEP);
    else if (strcmp(mode, "wait") == 0)
        state_pause(c, PAUSE_WAIT);
    else if (strcmp(mode, "abort") == 0)
        state_pause(c, PAUSE_ABORT);
    else
        conn_refuse(c, 400, "bad_request", "mode '%.32s' is none of keep, wait, abort", mode);
}

static void resume(struct conn *c, const json_t *body)
{
    bool was = c->e->pause != PAUSE_NONE;

    (void)body;
    state_resume(c->e);
    conn_reply_json(c, 200, json_pack("{s:b, s:b}", "paused", 0, "was_paused", was));
}

static void go_to_sleep(struct conn *c, const json_t *body)
{
    struct engine *e = c->e;

    if (e->phase == UPDATE_OPEN || e->phase == UPDATE_VERIFIED) {
        conn_refuse(c, 409, "conflict", "update %s is open", e->update_id);
        return;
    }
    if (e->pause != PAUSE_KEEP)
        (void)state_abort(e, NULL, false);
    state_sleep(e, state_tags(body));
    if (int_member(body, "level", 1) == 2 && (e->asleep & SLEEP_WEIGHTS) != 0)
        state_touch(e); /* dropped */
    conn_reply_json(c, 200, sleep_json(e));
}

static void wake(struct conn *c, const json_t *body)
{
    state_wake(c->e, state_tags(body));
    conn_reply_json(c, 200, sleep_json(c->e));
}

static void reset_cache(struct conn *c, const json_t *body)
{
    (void)body;
    conn_reply_json(c, 200, json_pack("{s:b, s:i}", "reset", 1, "entries_dropped", 0));
}

static void abort_requests(struct conn *c, const json_t *body)
{
    const json_t *ids = json_object_get(body, "request_ids");

    if (!json_is_array(ids) && !true_member(body, "all")) {
        conn_refuse(c, 400, "bad_request", "neither request_ids nor all");
        return;
    }
    conn_reply_json(c, 200,
                    json_pack("{s:I}", "aborted", (json_int_t)state_abort(c->e, ids, true)));
}

/* adapters */

static void lora_load(struct conn *c, const json_t *body)
{
    const char *name = text_member(body, "lora_name", "");
    const struct adapter *a;

    if (name[0] == '\0' || strlen(name) > LABEL_MAX) {
        conn_refuse(c, 400, "bad_request", "lora_name is missing or too long");
        return;
    }
    a = state_adapter_load(c->e, name, text_member(body, "lora_path", ""));
    if (a == NULL)
        conn_refuse(c, 409, "conflict", "there are %d adapters", ADAPTERS_MAX);
    else
        conn_reply_json(c, 200,
                        json_pack("{s:s, s:s, s:i}", "status", "ok", "lora_name", name, "revision",
                                  (int)a->n_loads));
}

static void lora_unload(struct conn *c, const json_t *body)
{
    const char *name = text_member(body, "lora_name", "");
    struct adapter *a = state_adapter(c->e, name);

    if (a == NULL) {
        conn_refuse_at(c, 404, "not_found", "/lora_name", "there is no adapter '%.128s'", name);
        return;
    }
    a->loaded = false;
    conn_reply_json(c, 200,
                    json_pack("{s:s, s:s, s:i}", "status", "ok", "lora_name", name, "revision",
                              (int)a->n_loads));
}

static void lora_list(struct conn *c, const json_t *body)
{
    json_t *list = json_array();

    (void)body;
    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        if (c->e->adapters[i].loaded)
            (void)json_array_append_new(list, json_pack("{s:s, s:s, s:i}", "lora_name",
                                                        c->e->adapters[i].name, "path",
                                                        c->e->adapters[i].path, "revision",
                                                        (int)c->e->adapters[i].n_loads));
    conn_reply_json(c, 200, json_pack("{s:o}", "adapters", list));
}

const struct route baton_routes[] = {
    {BATON, "GET", "/v1/status", "who", status, false},
    {BATON, "GET", "/health/ready", "ready", ready, false},
    {BATON, "POST", "/v1/weight_transfer/init", "init", init, false},
    {BATON, "GET", "/v1/weight_transfer", "group", group, false},
    {BATON, "DELETE", "/v1/weight_transfer", "leave", leave, false},
    {BATON, "POST", "/v1/update_weights/start", "start", start, false},
    {BATON, "POST", "/v1/update_weights", "update", update, false},
    {BATON, "POST", "/v1/update_weights/verify", "verify", verify, false},
    {BATON, "POST", "/v1/update_weights/finish", "finish", finish, false},
    {BATON, "POST", "/v1/update_weights/abort", "abort", abort_update, false},
    {BATON, "POST", "/v1/update_weights/renew", "renew", renew, false},
    {BATON, "POST", "/v1/weights/label", "relabel", relabel, false},
    {BATON, "POST", "/v1/weights/plans", "plan", tensor_list, false},
    {BATON, "POST", "/v1/pause", "pause", pause_it, false},
    {BATON, "POST", "/v1/resume", "resume", resume, false},
    {BATON, "POST", "/v1/sleep", "sleep", go_to_sleep, false},
    {BATON, "POST", "/v1/wake", "wake", wake, false},
    {BATON, "POST", "/v1/reset_cache", "reset_cache", reset_cache, false},
    {BATON, "POST", "/v1/abort_requests", "abort_requests", abort_requests, false},
    {BATON, "POST", "/v1/load_lora_adapter", "lora_load", lora_load, false},
    {BATON, "POST", "/v1/unload_lora_adapter", "lora_unload", lora_unload, false},
    {BATON, "GET", "/v1/lora_adapters", "lora_list", lora_list, false},
    {0},
};
