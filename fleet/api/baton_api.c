/* A baton as an upstream: our own operations, with the update id and the rank of this upstream. */
#include "fleet/api/upstream_api_priv.h"

#include "base/json_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* requests */

/* The body of a request that no client sent. New; NULL: no memory. */
static json_t *own_body(const struct api_draft *d)
{
    const struct api_args *a = d->args;
    const struct api_pause *pause = a->pause;
    bool resets = a->running || a->external;

    return json_pack("{s:o*, s:s*, s:s*, s:s*, s:s*, s:s*, s:o*, s:o*, s:s*, s:o*}", "tags",
                     api_tags(d), "mode", pause != NULL ? lifecycle_pause_name(pause->mode) : NULL,
                     "new_requests", pause != NULL && pause->reject ? "reject" : NULL, "owner",
                     pause != NULL ? pause->owner : NULL, "weight_version", a->label, "lora_name",
                     a->name, "external", resets ? json_boolean(a->external) : NULL, "running",
                     resets ? json_boolean(a->running) : NULL, "reason", a->reason, "all",
                     a->all ? json_true() : NULL);
}

/* Adds what is the fleet's to a body. Steals it; NULL: no memory. */
static json_t *with_ours(json_t *body, const struct api_draft *d, const char *update_id)
{
    const struct api_args *a = d->args;

    if (a->convert)
        body = api_with(body, "convert", json_true());
    if (a->lease_s > 0)
        body = api_with(body, "lease_s", json_integer((json_int_t)a->lease_s));
    if (a->tensors != NULL)
        body = api_with_text(body, "chunk_id", a->tensors->chunk_id);
    return api_with_rank(api_with_text(body, "update_id", update_id), d->ctx);
}

/* A body that names tensors is big: it is made text once for all batons, and ours go behind it.
 * {"a":1} and {"b":2}: the last and the first byte become a comma. */
static int set_spliced(const struct api_draft *d, const json_t *ours)
{
    struct api_object *native = d->args->native;
    struct api_request *out = d->out;
    char *end = json_dumps(ours, JSON_COMPACT);
    size_t n;

    if (native->text == NULL)
        native->text = json_dumps(d->own, JSON_COMPACT | JSON_REAL_PRECISION(17));
    n = native->text != NULL ? strlen(native->text) - 1 : 0;
    out->body = n > 0 && end != NULL ? malloc(n + strlen(end) + 1) : NULL;
    if (out->body != NULL) {
        memcpy(out->body, native->text, n);
        memcpy(out->body + n, end, strlen(end) + 1);
        out->body[n] = ',';
        out->body_len = n + strlen(end);
    }
    free(end);
    return out->body != NULL ? 0 : api_no_memory(d->e);
}

static int set_own_body(const struct api_draft *d, const char *update_id)
{
    json_auto_t *body = with_ours(d->own != NULL ? json_copy_all(d->own) : own_body(d), d,
                                  update_id);
    json_auto_t *ours = with_ours(json_object(), d, update_id);
    size_t n = json_object_size(d->own), n_ours = json_object_size(ours);

    if (d->args->tensors == NULL || n == 0 || n_ours == 0 ||
        json_object_size(body) != n + n_ours) /* nothing to splice, or ours replace theirs */
        return api_set_body(d, json_incref(body));
    return set_spliced(d, ours);
}

static int baton_body(const struct api_draft *d)
{
    return set_own_body(d, NULL);
}

/* A step of an update names the update that is open at this upstream. */
static int baton_step(const struct api_draft *d)
{
    return set_own_body(d, d->ctx->update_id);
}

static int baton_seed(const struct api_draft *d)
{
    json_t *peers = json_array();

    for (size_t i = 0; i < d->args->n_ids; i++)
        peers = json_list_append(peers, json_string(d->args->ids[i]));
    return api_set_body(d, json_object_with(json_object_with(json_object(), "peers", peers),
                                            "if_serial",
                                            json_integer((json_int_t)d->args->if_serial)));
}

/* replies */

/* Only reasons that last. A moment without load is left out: the fleet would keep the upstream out
 * of rotation until the next probe, although it has ended. So are a pause and a sleep, which mostly
 * are this server's own (read_held). */
static void read_not_ready(struct upstream_report *out, const json_t *status)
{
    static const char *const codes[] = {"starting", "draining", "no_weights", "non_finite_logits",
                                        "no_engine"};
    const char *code = json_string_value(api_at(status, "/reason/code"));

    if (!json_is_false(json_object_get(status, "ready")) || code == NULL)
        return;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strcmp(codes[i], code) == 0)
            (void)snprintf(out->not_ready, sizeof out->not_ready, "%s", code);
}

static void read_held(struct upstream_report *out, const json_t *status)
{
    const json_t *pause = json_object_get(status, "pause");

    out->held_by_fence = strcmp(api_text(pause, "owner", ""), API_FENCE_OWNER) == 0;
    if (json_is_object(pause))
        out->held = "paused";
    else if (json_is_true(api_at(status, "/sleep/asleep")))
        out->held = "asleep";
}

static bool copy_update_id(char out[API_UPDATE_ID_MAX + 1], const json_t *from)
{
    const char *id = json_string_value(json_object_get(from, "update_id"));

    if (id == NULL || id[0] == '\0' || strlen(id) > API_UPDATE_ID_MAX)
        return false;
    (void)snprintf(out, API_UPDATE_ID_MAX + 1, "%s", id);
    return true;
}

static void read_seed(struct upstream_report *out, const json_t *status)
{
    const json_t *seed = json_object_get(status, "seed");
    int64_t serial = json_integer_value(api_at(status, "/weights/serial"));

    out->takes_seeds = json_is_object(seed);
    out->passes_seeds = json_is_true(json_object_get(seed, "passes"));
    out->seed_failures = (uint64_t)json_integer_value(json_object_get(seed, "failures"));
    out->serial = serial > 0 ? (uint64_t)serial : 0;
    api_copy_text(out->digest, api_at(status, "/weights/digest"));
    if (strcmp(api_text(seed, "state", ""), "seeding") == 0)
        api_copy_text(out->seeding_from, json_object_get(seed, "peer"));
}

static void baton_read_status(struct upstream_report *out, const char *text, size_t len)
{
    json_auto_t *status = json_loadb(text, len, 0, NULL);

    api_copy_text(out->process, json_object_get(status, "boot_id"));
    memcpy(out->identity, out->process, sizeof out->identity);
    api_copy_text(out->label, api_at(status, baton_api.version_at));
    (void)copy_update_id(out->update_id, json_object_get(status, "weights"));
    read_seed(out, status);
    out->dropped = strcmp(api_text(json_object_get(status, "weights"), "state", ""), "dropped") ==
                   0;
    read_not_ready(out, status);
    read_held(out, status);
}

static int64_t baton_n_ranks(const json_t *reply)
{
    const json_t *ranks = api_at(reply, "/cuda/ranks");

    return json_is_array(ranks) ? (int64_t)json_array_size(ranks) : -1;
}

int api_read_start(char update_id[API_UPDATE_ID_MAX + 1], char process[FLEET_LABEL_MAX + 1],
                   const char *text, size_t len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    process[0] = '\0';
    api_copy_text(process, json_object_get(reply, "boot_id"));
    return copy_update_id(update_id, reply)
               ? 0
               : err_set(e, ERR_UNREADABLE, "", "its reply to start has no update_id");
}

bool api_is_committed(const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return strcmp(api_text(api_at(reply, "/error/details"), "phase", ""), "committed") == 0;
}

bool api_read_open_update(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return copy_update_id(out, json_object_get(reply, "update"));
}

/* is it done? */

static int is_bool(const json_t *reply, const char *member, bool expected, struct err *e)
{
    const json_t *value = json_object_get(reply, member);
    const char *is = json_is_true(value) ? "true" : json_is_false(value) ? "false" : "";
    const char *wanted = expected ? "true" : "false";

    return strcmp(is, wanted) == 0 ? 0 : api_is_not(e, member, is, wanted);
}

static int is_this_update(const json_t *reply, const struct api_context *ctx, struct err *e)
{
    return ctx->update_id != NULL ? api_is_text(reply, "update_id", ctx->update_id, e) : 0;
}

static int is_open(const json_t *reply, const struct api_context *ctx, struct err *e)
{
    const char *phase = api_text(reply, "phase", "");

    if (is_this_update(reply, ctx, e) != 0)
        return -1;
    if (strcmp(phase, "committed") != 0 && strcmp(phase, "aborted") != 0)
        return 0;
    return api_is_not(e, "phase", phase, "receiving");
}

static int is_in_phase(const json_t *reply, const struct api_context *ctx, const char *phase,
                       struct err *e)
{
    return is_this_update(reply, ctx, e) == 0 ? api_is_text(reply, "phase", phase, e) : -1;
}

static int baton_check_done(enum api_op op, const struct api_args *args,
                            const struct api_context *ctx, const json_t *reply, struct err *e)
{
    switch (op) {
    case API_INIT_TRANSFER:
        return args->join->by_handles ? 0 : api_is_text(reply, "state", "joined", e);
    case API_UPDATE_WEIGHTS:
    case API_RENEW_UPDATE:
        return is_open(reply, ctx, e);
    case API_VERIFY_UPDATE:
        return is_in_phase(reply, ctx, "verified", e);
    case API_FINISH_UPDATE:
        return is_in_phase(reply, ctx, "committed", e) == 0
                   ? api_is_version(reply, args, "weight_version", e)
                   : -1;
    case API_ABORT_UPDATE:
        return is_in_phase(reply, ctx, "aborted", e);
    case API_PAUSE:
        return is_bool(reply, "paused", true, e);
    case API_RESUME:
        return is_bool(reply, "paused", false, e);
    case API_SET_VERSION:
        return api_is_version(reply, args, "weight_version", e);
    default:
        return 0;
    }
}

/* It needs no reset of its other caches: their keys contain the weights. */
const struct upstream_api baton_api = {
    .name = "baton",
    .wrong_kind_hint = "; if it is not a baton, configure it as URL,vllm or URL,sglang",
    .caps = {.two_phase = true,
             .status_names_process = true,
             .reply_names_process = true,
             .reply_has_spans = true,
             .forbids_by_key_only = true,
             .replaces_adapters = true,
             .makes_rollouts = true},
    .ops =
        {
            [API_INIT_TRANSFER] = {"POST", "/v1/weight_transfer/init", baton_body},
            [API_SHUTDOWN_TRANSFER] = {"DELETE", "/v1/weight_transfer"},
            [API_START_UPDATE] = {"POST", "/v1/update_weights/start", baton_body},
            [API_UPDATE_WEIGHTS] = {"POST", "/v1/update_weights", baton_step},
            [API_VERIFY_UPDATE] = {"POST", "/v1/update_weights/verify", baton_step},
            [API_FINISH_UPDATE] = {"POST", "/v1/update_weights/finish", baton_step},
            [API_ABORT_UPDATE] = {"POST", "/v1/update_weights/abort", baton_step},
            [API_RENEW_UPDATE] = {"POST", "/v1/update_weights/renew", baton_step},
            [API_PAUSE] = {"POST", "/v1/pause", baton_body},
            [API_RESUME] = {"POST", "/v1/resume"},
            [API_SLEEP] = {"POST", "/v1/sleep", baton_body},
            [API_WAKE] = {"POST", "/v1/wake", baton_body},
            [API_RESET_PREFIX_CACHE] = {"POST", "/v1/reset_cache", baton_body},
            [API_ABORT_REQUESTS] = {"POST", "/v1/abort_requests", baton_body},
            [API_LOAD_ADAPTER] = {"POST", "/v1/load_lora_adapter", baton_body},
            [API_UNLOAD_ADAPTER] = {"POST", "/v1/unload_lora_adapter", baton_body},
            [API_PUT_TENSOR_LIST] = {"POST", "/v1/weights/plans", baton_body},
            [API_SET_VERSION] = {"POST", "/v1/weights/label", baton_body},
            [API_SEED] = {"POST", "/v1/weights/seed", baton_seed},
        },
    .queries =
        {
            [API_GET_STATUS] = {"GET", "/v1/status"},
            [API_GET_VERSION] = {"GET", "/v1/status"},
            [API_GET_RANKS] = {"GET", "/v1/status"},
            [API_GENERATE_TOKEN] = {"POST", "/v1/completions", .body = API_ONE_TOKEN},
            [API_GET_CONFIG] = {"GET", "/server_info?config_format=json"},
        },
    .read_status = baton_read_status,
    .version_at = "/weights/weight_version",
    .n_ranks = baton_n_ranks,
    .config = api_vllm_config,
    .model_at = "/vllm_config/model_config/model",
    .check_done = baton_check_done,
};
