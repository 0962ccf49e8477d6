/* The one table of routes. openapi/baton.yaml describes the same rows; a test compares them. */
#include "handlers/route.h"

#include "base/closest_match.h"
#include "handlers/body_scan.h"
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/compat/prime_rl/dialect_prime_rl.h"
#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/compat/skyrl/dialect_skyrl.h"
#include "handlers/compat/vllm/dialect_vllm.h"
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/proxied.h"

#include <stdio.h>
#include <string.h>

enum {
    ROUTE_NO_BODY_MAX = 65536,   /* what a bodyless route reads and drops */
    ROUTE_SMALL_MAX = 1 << 20,   /* control members */
    ROUTE_FINISH_MAX = 16 << 20, /* checksums by name */
    ROUTE_DATA_MAX = 16 << 20,   /* prompts */
    ROUTE_PATH_MAX = 200         /* for a longer one no other is suggested */
};

#define GET_HEAD (METHOD_GET | METHOD_HEAD)

/* Rows of one shape, so that the table stays readable. */
#define HEALTH(methods, path, id, op)                                                              \
    {                                                                                              \
        methods, path, id, EXECUTOR_LOOP, ROLE_HEALTH, BODY_NONE, true, false, FORM_NATIVE,        \
            ROUTE_NO_BODY_MAX, NULL, NULL, .operation = op                                         \
    }
#define PAGE(path, id, op)                                                                         \
    {                                                                                              \
        GET_HEAD, path, id, EXECUTOR_LOOP, ROLE_PAGE, BODY_NONE, true, false, FORM_NATIVE,         \
            ROUTE_NO_BODY_MAX, NULL, NULL, .operation = op                                         \
    }
#define READY(path, id)                                                                            \
    {                                                                                              \
        GET_HEAD, path, id, EXECUTOR_LOOP, ROLE_HEALTH, BODY_NONE, true, false, FORM_NATIVE,       \
            ROUTE_NO_BODY_MAX, NULL, ready_query, .operation = OPERATION_READY                     \
    }
#define VIEWER(executor, path, id, op)                                                             \
    {                                                                                              \
        GET_HEAD, path, id, executor, ROLE_VIEWER, BODY_NONE, true, false, FORM_NATIVE,            \
            ROUTE_NO_BODY_MAX, NULL, NULL, .operation = op                                         \
    }
#define CONTROL_GET(executor, path, id, query, op)                                                 \
    {                                                                                              \
        GET_HEAD, path, id, executor, ROLE_CONTROL, BODY_NONE, true, true, FORM_NATIVE,            \
            ROUTE_NO_BODY_MAX, NULL, query, .operation = op                                        \
    }
#define CONTROL(path, id, optional, max, members, op)                                              \
    {                                                                                              \
        METHOD_POST, path, id, EXECUTOR_CONTROL, ROLE_CONTROL, BODY_JSON, optional, true,          \
            FORM_NATIVE, max, members, NULL, .operation = op                                       \
    }
#define WEIGHTS(path, id, optional, members, op)                                                   \
    {                                                                                              \
        METHOD_POST, path, id, EXECUTOR_CONTROL, ROLE_WEIGHTS, BODY_JSON, optional, true,          \
            FORM_NATIVE, ROUTE_SMALL_MAX, members, NULL, .operation = op                           \
    }
#define DATA(path, id, executor, strict, form, members, op)                                        \
    {                                                                                              \
        METHOD_POST, path, id, executor, ROLE_GENERATE, BODY_JSON, false, strict, form,            \
            ROUTE_DATA_MAX, members, NULL, .operation = op                                         \
    }

const struct route routes[] = {
    HEALTH(GET_HEAD, "/health", "health", OPERATION_LIVE),
    HEALTH(GET_HEAD | METHOD_POST, "/ping", "ping", OPERATION_LIVE),
    HEALTH(GET_HEAD, "/health/live", "healthLive", OPERATION_LIVE),
    HEALTH(GET_HEAD, "/livez", "livez", OPERATION_LIVE),
    HEALTH(GET_HEAD, "/v2/health/live", "v2HealthLive", OPERATION_LIVE),
    READY("/health/ready", "healthReady"),
    READY("/readyz", "readyz"),
    READY("/v2/health/ready", "v2HealthReady"),
    PAGE("/", "page", OPERATION_PAGE),
    PAGE("/docs", "docs", OPERATION_DOCS),
    PAGE("/openapi.json", "openapi", OPERATION_OPENAPI),
    VIEWER(EXECUTOR_LOOP, "/version", "version", OPERATION_VERSION),
    VIEWER(EXECUTOR_LOOP, "/v1/status", "status", OPERATION_STATUS),
    {METHOD_GET, "/v1/events", "events", EXECUTOR_LOOP, ROLE_VIEWER, BODY_NONE, true, true,
     FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, events_query, .operation = OPERATION_EVENTS},
    VIEWER(EXECUTOR_CONTROL, "/v1/generations", "generations", OPERATION_GENERATIONS),
    VIEWER(EXECUTOR_CONTROL, "/metrics", "metrics", OPERATION_METRICS),
    {GET_HEAD, "/v1/models", "models", EXECUTOR_LOOP, ROLE_GENERATE, BODY_NONE, true, false,
     FORM_OPENAI, ROUTE_NO_BODY_MAX, NULL, NULL, .operation = OPERATION_MODELS},
    {GET_HEAD, "/v1/models/{id}", "model", EXECUTOR_LOOP, ROLE_GENERATE, BODY_NONE, true, false,
     FORM_OPENAI, ROUTE_NO_BODY_MAX, NULL, NULL, .operation = OPERATION_MODEL},

    VIEWER(EXECUTOR_LOOP, "/v1/upstreams", "upstreams", OPERATION_UPSTREAMS),
    {GET_HEAD, "/v1/upstreams/ready", "upstreamsReady", EXECUTOR_LOOP, ROLE_VIEWER, BODY_NONE, true,
     true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, upstream_ready_query,
     .operation = OPERATION_UPSTREAM_READY},
    CONTROL("/v1/upstreams", "upstreamsAdd", false, ROUTE_SMALL_MAX, upstream_members,
            OPERATION_UPSTREAM_ADD),
    CONTROL("/v1/upstreams/remove", "upstreamsRemove", false, ROUTE_SMALL_MAX, upstream_members,
            OPERATION_UPSTREAM_REMOVE),
    CONTROL("/v1/upstreams/prove", "upstreamsProve", false, ROUTE_SMALL_MAX,
            upstreams_prove_members, OPERATION_UPSTREAMS_PROVE),
    CONTROL("/v1/upstreams/resync", "upstreamsResync", false, ROUTE_SMALL_MAX, upstream_members,
            OPERATION_RESYNC),

    CONTROL("/v1/update_weights/start", "updateStart", true, ROUTE_SMALL_MAX, update_start_members,
            OPERATION_UPDATE_START),
    {METHOD_POST, "/v1/update_weights", "update", EXECUTOR_CONTROL, ROLE_CONTROL, BODY_TENSORS,
     false, true, FORM_NATIVE, ROUTE_BODY_CONFIG, update_members, update_members,
     .operation = OPERATION_UPDATE},
    CONTROL("/v1/update_weights/verify", "updateVerify", false, ROUTE_FINISH_MAX,
            update_verify_members, OPERATION_UPDATE_VERIFY),
    CONTROL("/v1/update_weights/finish", "updateFinish", false, ROUTE_FINISH_MAX,
            update_finish_members, OPERATION_UPDATE_FINISH),
    CONTROL("/v1/update_weights/abort", "updateAbort", false, ROUTE_SMALL_MAX, update_abort_members,
            OPERATION_UPDATE_ABORT),
    CONTROL("/v1/update_weights/renew", "updateRenew", false, ROUTE_SMALL_MAX, update_renew_members,
            OPERATION_UPDATE_RENEW),
    CONTROL_GET(EXECUTOR_LOOP, "/v1/update_weights/{id}", "updateGet", NULL, OPERATION_UPDATE_GET),
    {METHOD_DELETE, "/v1/update_weights/{id}", "updateDelete", EXECUTOR_CONTROL, ROLE_CONTROL,
     BODY_NONE, true, true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, NULL,
     .operation = OPERATION_UPDATE_DELETE},
    CONTROL("/v1/weights/plans", "planPut", false, ROUTE_BODY_CONFIG, tensor_list_members,
            OPERATION_TENSOR_LIST_PUT),
    CONTROL_GET(EXECUTOR_CONTROL, "/v1/weights", "weightsList", weights_list_query,
                OPERATION_WEIGHTS_LIST),
    CONTROL_GET(EXECUTOR_CONTROL, "/v1/weights/diff", "weightsDiff", weights_diff_query,
                OPERATION_WEIGHTS_DIFF),
    CONTROL_GET(EXECUTOR_CONTROL, "/v1/weights/{name}", "weightsGet", NULL, OPERATION_WEIGHTS_GET),
    CONTROL("/v1/weights/label", "weightsLabel", false, ROUTE_SMALL_MAX, weights_label_members,
            OPERATION_WEIGHTS_LABEL),
    CONTROL("/v1/weights/check", "weightsCheck", false, ROUTE_FINISH_MAX, weights_check_members,
            OPERATION_WEIGHTS_CHECK),
    {GET_HEAD, "/v1/weights/handles", "handlesGet", EXECUTOR_CONTROL, ROLE_CONTROL, BODY_NONE, true,
     true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, handles_query, .get_has_effects = true,
     .operation = OPERATION_HANDLES_GET},
    CONTROL("/v1/weights/handles/renew", "handlesRenew", false, ROUTE_SMALL_MAX,
            handles_renew_members, OPERATION_HANDLES_RENEW),
    {METHOD_DELETE, "/v1/weights/handles/{lease_id}", "handlesDelete", EXECUTOR_CONTROL,
     ROLE_CONTROL, BODY_NONE, true, true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, NULL,
     .operation = OPERATION_HANDLES_DELETE},
    WEIGHTS("/v1/weights/leases", "leasesOpen", true, leases_members, OPERATION_LEASES_OPEN),
    WEIGHTS("/v1/weights/leases/renew", "leasesRenew", false, handles_renew_members,
            OPERATION_LEASES_RENEW),
    {METHOD_DELETE, "/v1/weights/leases/{lease_id}", "leasesDelete", EXECUTOR_CONTROL, ROLE_WEIGHTS,
     BODY_NONE, true, true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, NULL,
     .operation = OPERATION_LEASES_DELETE},
    {GET_HEAD, "/v1/weights/file", "weightsFile", EXECUTOR_CONTROL, ROLE_WEIGHTS, BODY_NONE, true,
     true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, weights_file_query,
     .operation = OPERATION_WEIGHTS_FILE},
    CONTROL("/v1/weights/seed", "weightsSeed", true, ROUTE_SMALL_MAX, weights_seed_members,
            OPERATION_WEIGHTS_SEED),
    CONTROL("/v1/preflight", "preflight", false, ROUTE_BODY_CONFIG, preflight_members,
            OPERATION_PREFLIGHT),
    CONTROL("/v1/weight_transfer/init", "transferInit", false, ROUTE_SMALL_MAX,
            transfer_init_members, OPERATION_TRANSFER_INIT),
    CONTROL_GET(EXECUTOR_LOOP, "/v1/weight_transfer", "transferGet", NULL, OPERATION_TRANSFER_GET),
    {METHOD_DELETE, "/v1/weight_transfer", "transferDelete", EXECUTOR_CONTROL, ROLE_CONTROL,
     BODY_NONE, true, true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, NULL,
     .operation = OPERATION_TRANSFER_DELETE},

    CONTROL("/v1/pause", "pause", true, ROUTE_SMALL_MAX, pause_members, OPERATION_PAUSE),
    {METHOD_POST, "/v1/resume", "resume", EXECUTOR_CONTROL, ROLE_CONTROL, BODY_NONE, true, true,
     FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, NULL, .operation = OPERATION_RESUME},
    CONTROL("/v1/sleep", "sleep", true, ROUTE_SMALL_MAX, sleep_members, OPERATION_SLEEP),
    CONTROL("/v1/wake", "wake", true, ROUTE_SMALL_MAX, wake_members, OPERATION_WAKE),
    CONTROL("/v1/reset_cache", "resetCache", true, ROUTE_SMALL_MAX, reset_cache_members,
            OPERATION_RESET_CACHE),
    CONTROL("/v1/abort_requests", "abortRequests", false, ROUTE_DATA_MAX, abort_requests_members,
            OPERATION_ABORT_REQUESTS),

    {METHOD_POST, "/v1/load_lora_adapter", "loraLoad", EXECUTOR_CONTROL, ROLE_CONTROL, BODY_TENSORS,
     false, true, FORM_NATIVE, ROUTE_BODY_CONFIG, lora_load_members, lora_load_members,
     .operation = OPERATION_LORA_LOAD},
    CONTROL("/v1/unload_lora_adapter", "loraUnload", false, ROUTE_SMALL_MAX, lora_unload_members,
            OPERATION_LORA_UNLOAD),
    CONTROL_GET(EXECUTOR_LOOP, "/v1/lora_adapters", "loraList", NULL, OPERATION_LORA_LIST),
    {GET_HEAD, "/v1/lora_adapters/{name}", "loraFile", EXECUTOR_CONTROL, ROLE_WEIGHTS, BODY_NONE,
     true, true, FORM_NATIVE, ROUTE_NO_BODY_MAX, NULL, lora_file_query,
     .operation = OPERATION_LORA_FILE},

    {METHOD_POST, "/v1/generate", "generate", EXECUTOR_GENERATE, ROLE_GENERATE, BODY_JSON, false,
     true, FORM_NATIVE, ROUTE_DATA_MAX, generate_members, NULL, .hint = generate_hint,
     .operation = OPERATION_GENERATE},
    {METHOD_POST, "/v1/rollouts", "rollouts", EXECUTOR_GENERATE, ROLE_GENERATE, BODY_JSON, false,
     true, FORM_NATIVE, ROUTE_DATA_MAX, rollouts_members, NULL, .hint = rollouts_hint,
     .operation = OPERATION_ROLLOUTS},
    DATA("/inference/v1/generate", "inferenceGenerate", EXECUTOR_GENERATE, false, FORM_OPENAI,
         generate_members, OPERATION_GENERATE),
    DATA("/v1/completions", "completions", EXECUTOR_GENERATE, false, FORM_OPENAI,
         completions_members, OPERATION_COMPLETIONS),
    DATA("/v1/chat/completions", "chatCompletions", EXECUTOR_GENERATE, false, FORM_OPENAI,
         chat_members, OPERATION_CHAT),
    DATA("/v1/chat/completions/render", "chatRender", EXECUTOR_TEXT, false, FORM_OPENAI,
         chat_members, OPERATION_CHAT_RENDER),
    DATA("/tokenize", "tokenize", EXECUTOR_TEXT, false, FORM_OPENAI, tokenize_members,
         OPERATION_TOKENIZE),
    DATA("/detokenize", "detokenize", EXECUTOR_TEXT, false, FORM_OPENAI, detokenize_members,
         OPERATION_DETOKENIZE),

    PROXIED_ROUTES DIALECT_VLLM_ROUTES DIALECT_SKYRL_ROUTES DIALECT_SGLANG_ROUTES
        DIALECT_PRIME_RL_ROUTES DIALECT_AREAL_ROUTES};
const size_t n_routes = sizeof routes / sizeof routes[0];

/* Does the path match the pattern? *arg = where the variable begins in the path. */
static bool pattern_matches(const char *pattern, const char *path, bool variable, size_t *arg)
{
    const char *brace = strchr(pattern, '{');
    size_t len;

    if ((brace != NULL) != variable)
        return false;
    if (brace == NULL) {
        *arg = strlen(path);
        return strcmp(pattern, path) == 0;
    }
    len = (size_t)(brace - pattern);
    *arg = len;
    return strncmp(pattern, path, len) == 0 && path[len] != '\0';
}

enum { METHODS_CAP = 64 };

static void list_methods(unsigned methods, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (unsigned m = METHOD_GET; m < METHOD_OTHER; m <<= 1) {
        if ((methods & m) != 0 && len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len > 0 ? ", " : "",
                                    http_request_method_name((enum http_request_method)m));
    }
}

static bool routes_is_path(const char *path, unsigned dialects)
{
    size_t at;

    for (size_t i = 0; i < n_routes; i++)
        if ((dialects & 1U << routes[i].dialect) != 0 &&
            (pattern_matches(routes[i].pattern, path, false, &at) ||
             pattern_matches(routes[i].pattern, path, true, &at)))
            return true;
    return false;
}

static const char *closest_path(const char *path, unsigned dialects)
{
    const char *patterns[sizeof routes / sizeof routes[0] + 1];
    size_t n = 0;

    for (size_t i = 0; i < n_routes; i++)
        if ((dialects & 1U << routes[i].dialect) != 0 && strchr(routes[i].pattern, '{') == NULL)
            patterns[n++] = routes[i].pattern;
    patterns[n] = NULL;
    return closest_match(path, patterns);
}

/* Suggests the path without trailing slashes, with /v1 in front, or the closest one. */
static void refuse_path(const char *path, unsigned dialects, struct err *e)
{
    static const char version[] = "/v1";
    char meant[ROUTE_PATH_MAX + sizeof version];
    const char *near = NULL;
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len <= ROUTE_PATH_MAX) {
        (void)snprintf(meant, sizeof meant, "%s%.*s", version, (int)len, path);
        near = routes_is_path(meant + sizeof version - 1, dialects) ? meant + sizeof version - 1
               : routes_is_path(meant, dialects)                    ? meant
                                                                    : closest_path(path, dialects);
    }
    (void)err_set(e, ERR_NOT_FOUND, "", "there is no route %.200s%s%s%s", path,
                  near == NULL ? "" : ", did you mean ", near == NULL ? "" : near,
                  near == NULL ? "" : "?");
}

/* The row, or NULL and the methods that the path allows. */
static const struct route *route_look_up(const char *path, unsigned method, unsigned dialects,
                                         size_t *arg, unsigned *allowed)
{
    size_t at;

    *allowed = 0;
    /* A fixed path takes precedence over a variable, even if its method does not match. */
    for (int variable = 0; variable <= 1 && *allowed == 0; variable++) {
        for (size_t i = 0; i < n_routes; i++) {
            if ((dialects & 1U << routes[i].dialect) == 0 ||
                !pattern_matches(routes[i].pattern, path, variable != 0, &at))
                continue;
            if ((routes[i].methods & method) != 0) {
                *arg = at;
                return &routes[i];
            }
            *allowed |= routes[i].methods;
        }
    }
    return NULL;
}

const struct route *route_find(const char *path, enum http_request_method method, unsigned dialects,
                               size_t *arg, struct err *e)
{
    unsigned allowed;
    const struct route *route = route_look_up(path, method, dialects, arg, &allowed);
    char list[METHODS_CAP];

    if (route != NULL)
        return route;
    list_methods(allowed, list, sizeof list);
    if (allowed == 0)
        refuse_path(path, dialects, e);
    else
        (void)err_set(e, ERR_BAD_METHOD, "", "%.200s takes %s", path, list);
    return NULL;
}

void route_add_allow(struct http_reply *out, const struct http_request *x, unsigned dialects,
                     const struct err *e)
{
    char list[METHODS_CAP];
    unsigned allowed;
    size_t at;

    if (e->code != ERR_BAD_METHOD)
        return;
    (void)route_look_up(x->path, 0, dialects, &at, &allowed);
    list_methods(allowed, list, sizeof list);
    http_reply_header(out, "Allow", "%s", list);
}

/* The next row of the same path after `r`, or NULL. */
static const struct route *next_of_path(const struct route *r, enum http_request_method method,
                                        unsigned dialects)
{
    const char *pattern = r->pattern;

    while (++r < routes + n_routes)
        if ((dialects & 1U << r->dialect) != 0 && (r->methods & (unsigned)method) != 0 &&
            strcmp(r->pattern, pattern) == 0)
            return r;
    return NULL;
}

static bool has_inner(const struct scan_member *m, const char *name)
{
    struct scan_member inner = {0};

    while (scan_next_member(m->value, m->value_len, &inner))
        if (scan_equals(inner.name, inner.name_len, name))
            return true;
    return false;
}

static bool body_matches(const struct route_body_match *c, const struct scan_member *m)
{
    return c->member != NULL && scan_equals(m->name, m->name_len, c->member) &&
           (c->value == NULL || scan_equals(m->value, m->value_len, c->value)) &&
           (c->inner == NULL || has_inner(m, c->inner));
}

/* The row of this path whose body match is the member, or NULL. */
static const struct route *body_match_find(const struct route *first,
                                           enum http_request_method method, unsigned dialects,
                                           const struct scan_member *m)
{
    const struct route *found = NULL;

    for (const struct route *r = first; r != NULL; r = next_of_path(r, method, dialects)) {
        if (!body_matches(&r->body_match, m))
            continue;
        if (r->body_match.inner != NULL)
            return r;
        found = found != NULL ? found : r;
    }
    return found;
}

static const struct route *body_match_default(const struct route *first,
                                              enum http_request_method method, unsigned dialects)
{
    for (const struct route *r = first; r != NULL; r = next_of_path(r, method, dialects))
        if (r->body_match.member == NULL)
            return r;
    return first;
}

const struct route *route_match_body(const struct route *first, enum http_request_method method,
                                     unsigned dialects, const char *body, size_t len)
{
    struct scan_member m = {0};

    if (first->body_match.member == NULL && next_of_path(first, method, dialects) == NULL)
        return first;
    while (scan_next_member(body, len, &m)) {
        const struct route *r = body_match_find(first, method, dialects, &m);

        if (r != NULL)
            return r;
    }
    return body_match_default(first, method, dialects);
}
