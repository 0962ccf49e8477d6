/* Two tables, indexed by operation. Each is written as a list macro, so that its rows can be
 * counted: a missing row fails the assertion below it, a duplicate one -Woverride-init. */
#include "server/operations.h"

#include "handlers/app.h"
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "handlers/proxied.h"
#include "handlers/source/source_json.h"
#include "handlers/update/commit_resume.h"
#include "handlers/update/pull.h"
#include "handlers/update/zmq_request.h"

#include <assert.h>

/* Columns: operation; handler; function to call when a request is refused unread, or NULL. */
#define EMBEDDED_OPERATIONS(X)                                                                     \
    X(OPERATION_LIVE, handle_live, NULL)                                                           \
    X(OPERATION_READY, handle_ready, NULL)                                                         \
    X(OPERATION_PAGE, handle_page, NULL)                                                           \
    X(OPERATION_DOCS, handle_docs, NULL)                                                           \
    X(OPERATION_OPENAPI, handle_openapi, NULL)                                                     \
    X(OPERATION_VERSION, handle_version, NULL)                                                     \
    X(OPERATION_STATUS, handle_status, NULL)                                                       \
    X(OPERATION_EVENTS, handle_events, NULL)                                                       \
    X(OPERATION_GENERATIONS, handle_generations, NULL)                                             \
    X(OPERATION_RANKS, handle_status, NULL)                                                        \
    X(OPERATION_METRICS, handle_metrics, NULL)                                                     \
    X(OPERATION_MODELS, handle_models, NULL)                                                       \
    X(OPERATION_MODEL, handle_model, NULL)                                                         \
    X(OPERATION_UPSTREAMS, handle_upstreams, NULL)                                                 \
    X(OPERATION_UPSTREAM_READY, handle_upstreams, NULL)                                            \
    X(OPERATION_UPSTREAM_ADD, handle_upstreams, NULL)                                              \
    X(OPERATION_UPSTREAM_REMOVE, handle_upstreams, NULL)                                           \
    X(OPERATION_UPSTREAMS_PROVE, handle_upstreams, NULL)                                           \
    X(OPERATION_RESYNC, handle_upstreams, NULL)                                                    \
    X(OPERATION_UPDATE_START, handle_update_start, NULL)                                           \
    X(OPERATION_UPDATE, handle_update, update_refused_unread)                                      \
    X(OPERATION_UPDATE_VERIFY, handle_update_verify, NULL)                                         \
    X(OPERATION_UPDATE_FINISH, handle_update_finish, NULL)                                         \
    X(OPERATION_UPDATE_ABORT, handle_update_abort, NULL)                                           \
    X(OPERATION_UPDATE_RENEW, handle_update_renew, NULL)                                           \
    X(OPERATION_UPDATE_GET, handle_update_get, NULL)                                               \
    X(OPERATION_UPDATE_DELETE, handle_update_delete, NULL)                                         \
    X(OPERATION_UPDATE_ZMQ, handle_update_zmq, NULL)                                               \
    X(OPERATION_PULL, handle_pull, NULL)                                                           \
    X(OPERATION_PULL_COMMIT, handle_pull_commit, NULL)                                             \
    X(OPERATION_COMMIT_RESUME, handle_commit_resume, NULL)                                         \
    X(OPERATION_TENSOR_LIST_PUT, handle_tensor_list_put, NULL)                                     \
    X(OPERATION_WEIGHTS_LIST, handle_weights_list, NULL)                                           \
    X(OPERATION_WEIGHTS_DIFF, handle_weights_diff, NULL)                                           \
    X(OPERATION_WEIGHTS_GET, handle_weights_get, NULL)                                             \
    X(OPERATION_WEIGHTS_LABEL, handle_weights_label, NULL)                                         \
    X(OPERATION_WEIGHTS_CHECK, handle_weights_check, NULL)                                         \
    X(OPERATION_WEIGHT_VALUES, handle_weight_values, NULL)                                         \
    X(OPERATION_HANDLES_GET, handle_handles_get, NULL)                                             \
    X(OPERATION_HANDLES_RENEW, handle_handles_renew, NULL)                                         \
    X(OPERATION_HANDLES_DELETE, handle_handles_delete, NULL)                                       \
    X(OPERATION_LEASES_OPEN, handle_leases_open, NULL)                                             \
    X(OPERATION_LEASES_RENEW, handle_leases_renew, NULL)                                           \
    X(OPERATION_LEASES_DELETE, handle_leases_delete, NULL)                                         \
    X(OPERATION_WEIGHTS_FILE, handle_weights_file, NULL)                                           \
    X(OPERATION_WEIGHTS_SEED, handle_weights_seed, NULL)                                           \
    X(OPERATION_PREFLIGHT, handle_preflight, NULL)                                                 \
    X(OPERATION_TRANSFER_INIT, handle_transfer_init, NULL)                                         \
    X(OPERATION_TRANSFER_GET, handle_transfer_get, NULL)                                           \
    X(OPERATION_TRANSFER_DELETE, handle_transfer_delete, NULL)                                     \
    X(OPERATION_PAUSE, handle_pause, NULL)                                                         \
    X(OPERATION_RESUME, handle_resume, NULL)                                                       \
    X(OPERATION_SLEEP, handle_sleep, NULL)                                                         \
    X(OPERATION_WAKE, handle_wake, NULL)                                                           \
    X(OPERATION_RESET_CACHE, handle_reset_cache, NULL)                                             \
    X(OPERATION_FLUSH_CACHE, handle_flush_cache, NULL)                                             \
    X(OPERATION_ABORT_REQUESTS, handle_abort_requests, NULL)                                       \
    X(OPERATION_LORA_LOAD, handle_lora_load, update_refused_unread)                                \
    X(OPERATION_LORA_UNLOAD, handle_lora_unload, NULL)                                             \
    X(OPERATION_LORA_LIST, handle_lora_list, NULL)                                                 \
    X(OPERATION_LORA_FILE, handle_lora_file, NULL)                                                 \
    X(OPERATION_GENERATE, handle_generate, NULL)                                                   \
    X(OPERATION_ROLLOUTS, handle_rollouts, NULL)                                                   \
    X(OPERATION_COMPLETIONS, handle_completions, NULL)                                             \
    X(OPERATION_CHAT, handle_chat, NULL)                                                           \
    X(OPERATION_CHAT_RENDER, handle_chat_render, NULL)                                             \
    X(OPERATION_SGLANG_GENERATE, handle_sglang_generate, NULL)                                     \
    X(OPERATION_TOKENIZE, handle_tokenize, NULL)                                                   \
    X(OPERATION_DETOKENIZE, handle_detokenize, NULL)                                               \
    X(OPERATION_PROXIED, handle_proxied, NULL)                                                     \
    X(OPERATION_AREAL_META, handle_areal_meta, NULL)                                               \
    X(OPERATION_AREAL_LORA_META, handle_areal_lora_meta, NULL)                                     \
    X(OPERATION_SESSION_FINISH, handle_session_finish, NULL)                                       \
    X(OPERATION_UNSUPPORTED, handle_unsupported, NULL)

/* Columns: operation; executor; handler; is the request passed on unchanged?
 *
 * Requests that wait, for the operation lock or for engines, never keep a pause, a resume, an abort
 * or the renewal of a lease waiting, however many they are: they hold no thread. What blocks on a
 * disk runs on other threads than they. The steps of an open update (tensors, proof) run on the
 * generate executor, which has no generations in front of a fleet. */
#define FLEET_OPERATIONS(X)                                                                        \
    X(OPERATION_LIVE, EXECUTOR_LOOP, handle_live, false)                                           \
    X(OPERATION_READY, EXECUTOR_LOOP, handle_ready, false)                                         \
    X(OPERATION_PAGE, EXECUTOR_LOOP, handle_page, false)                                           \
    X(OPERATION_DOCS, EXECUTOR_LOOP, handle_docs, false)                                           \
    X(OPERATION_OPENAPI, EXECUTOR_LOOP, handle_openapi, false)                                     \
    X(OPERATION_VERSION, EXECUTOR_LOOP, handle_version, false)                                     \
    X(OPERATION_STATUS, EXECUTOR_LOOP, handle_fleet_status, false)                                 \
    X(OPERATION_EVENTS, EXECUTOR_LOOP, handle_events, false)                                       \
    X(OPERATION_GENERATIONS, EXECUTOR_LOOP, fleet_not_answered, false)                             \
    X(OPERATION_RANKS, EXECUTOR_FLEET, handle_fleet_ranks,                                         \
      false) /* one request to each upstream */                                                    \
    X(OPERATION_METRICS, EXECUTOR_CONTROL, handle_metrics, false)                                  \
    X(OPERATION_MODELS, EXECUTOR_LOOP, handle_fleet_proxy, true)                                   \
    X(OPERATION_MODEL, EXECUTOR_LOOP, handle_fleet_proxy, true)                                    \
    X(OPERATION_UPSTREAMS, EXECUTOR_LOOP, handle_fleet_upstreams, false)                           \
    X(OPERATION_UPSTREAM_READY, EXECUTOR_LOOP, handle_fleet_upstream_ready, false)                 \
    X(OPERATION_UPSTREAM_ADD, EXECUTOR_CONTROL, handle_fleet_upstream_add, false)                  \
    X(OPERATION_UPSTREAM_REMOVE, EXECUTOR_CONTROL, handle_fleet_upstream_remove, false)            \
    X(OPERATION_UPSTREAMS_PROVE, EXECUTOR_FLEET, handle_fleet_prove, false)                        \
    X(OPERATION_RESYNC, EXECUTOR_FLEET, handle_fleet_resync, false)                                \
    X(OPERATION_UPDATE_START, EXECUTOR_FLEET, handle_fleet_update_start, false)                    \
    X(OPERATION_UPDATE, EXECUTOR_GENERATE, handle_fleet_update, false)                             \
    X(OPERATION_UPDATE_VERIFY, EXECUTOR_GENERATE, handle_fleet_update_finish, false)               \
    X(OPERATION_UPDATE_FINISH, EXECUTOR_GENERATE, handle_fleet_update_finish, false)               \
    X(OPERATION_UPDATE_ABORT, EXECUTOR_URGENT, handle_fleet_update_abort, false)                   \
    X(OPERATION_UPDATE_RENEW, EXECUTOR_URGENT, handle_fleet_update_renew, false)                   \
    X(OPERATION_UPDATE_GET, EXECUTOR_LOOP, handle_fleet_update_get, false)                         \
    X(OPERATION_UPDATE_DELETE, EXECUTOR_URGENT, handle_fleet_update_delete, false)                 \
    X(OPERATION_UPDATE_ZMQ, EXECUTOR_FLEET, fleet_update_zmq, false)                               \
    X(OPERATION_PULL, EXECUTOR_LOOP, fleet_not_answered, false)                                    \
    X(OPERATION_PULL_COMMIT, EXECUTOR_LOOP, fleet_not_answered, false)                             \
    X(OPERATION_COMMIT_RESUME, EXECUTOR_URGENT, handle_fleet_commit_resume, false)                 \
    X(OPERATION_TENSOR_LIST_PUT, EXECUTOR_GENERATE, handle_fleet_tensor_list_put, false)           \
    X(OPERATION_WEIGHTS_LIST, EXECUTOR_LOOP, fleet_not_answered, false)                            \
    X(OPERATION_WEIGHTS_DIFF, EXECUTOR_LOOP, fleet_not_answered, false)                            \
    X(OPERATION_WEIGHTS_GET, EXECUTOR_LOOP, fleet_not_answered, false)                             \
    X(OPERATION_WEIGHTS_LABEL, EXECUTOR_FLEET, handle_fleet_weights_label, false)                  \
    X(OPERATION_WEIGHTS_CHECK, EXECUTOR_LOOP, fleet_not_answered, false)                           \
    X(OPERATION_WEIGHT_VALUES, EXECUTOR_LOOP, fleet_not_answered, false)                           \
    X(OPERATION_HANDLES_GET, EXECUTOR_LOOP, fleet_not_answered, false)                             \
    X(OPERATION_HANDLES_RENEW, EXECUTOR_LOOP, fleet_not_answered, false)                           \
    X(OPERATION_HANDLES_DELETE, EXECUTOR_LOOP, fleet_not_answered, false)                          \
    X(OPERATION_LEASES_OPEN, EXECUTOR_LOOP, fleet_not_answered, false)                             \
    X(OPERATION_LEASES_RENEW, EXECUTOR_LOOP, fleet_not_answered, false)                            \
    X(OPERATION_LEASES_DELETE, EXECUTOR_LOOP, fleet_not_answered, false)                           \
    X(OPERATION_WEIGHTS_FILE, EXECUTOR_LOOP, fleet_not_answered, false)                            \
    X(OPERATION_WEIGHTS_SEED, EXECUTOR_LOOP, fleet_not_answered, false)                            \
    X(OPERATION_PREFLIGHT, EXECUTOR_LOOP, fleet_not_answered, false)                               \
    X(OPERATION_TRANSFER_INIT, EXECUTOR_FLEET, handle_fleet_transfer_init, false)                  \
    X(OPERATION_TRANSFER_GET, EXECUTOR_LOOP, handle_fleet_transfer_get, false)                     \
    X(OPERATION_TRANSFER_DELETE, EXECUTOR_FLEET, handle_fleet_transfer_delete, false)              \
    X(OPERATION_PAUSE, EXECUTOR_URGENT, handle_fleet_pause, false)                                 \
    X(OPERATION_RESUME, EXECUTOR_URGENT, handle_fleet_resume, false)                               \
    X(OPERATION_SLEEP, EXECUTOR_FLEET, handle_fleet_sleep, false)                                  \
    X(OPERATION_WAKE, EXECUTOR_FLEET, handle_fleet_wake, false)                                    \
    X(OPERATION_RESET_CACHE, EXECUTOR_FLEET, handle_fleet_reset_cache, false)                      \
    X(OPERATION_FLUSH_CACHE, EXECUTOR_FLEET, handle_fleet_flush_cache, false)                      \
    X(OPERATION_ABORT_REQUESTS, EXECUTOR_URGENT, handle_fleet_abort_requests, false)               \
    X(OPERATION_LORA_LOAD, EXECUTOR_FLEET, handle_fleet_lora_load, false)                          \
    X(OPERATION_LORA_UNLOAD, EXECUTOR_FLEET, handle_fleet_lora_unload, false)                      \
    X(OPERATION_LORA_LIST, EXECUTOR_LOOP, handle_fleet_lora_list, false)                           \
    X(OPERATION_LORA_FILE, EXECUTOR_LOOP, fleet_not_answered, false)                               \
    X(OPERATION_GENERATE, EXECUTOR_LOOP, handle_fleet_proxy, true)                                 \
    X(OPERATION_ROLLOUTS, EXECUTOR_LOOP, handle_fleet_rollouts, true)                              \
    X(OPERATION_COMPLETIONS, EXECUTOR_LOOP, handle_fleet_proxy, true)                              \
    X(OPERATION_CHAT, EXECUTOR_LOOP, handle_fleet_proxy, true)                                     \
    X(OPERATION_CHAT_RENDER, EXECUTOR_LOOP, handle_fleet_proxy, true)                              \
    X(OPERATION_SGLANG_GENERATE, EXECUTOR_LOOP, handle_fleet_proxy, true)                          \
    X(OPERATION_TOKENIZE, EXECUTOR_LOOP, handle_fleet_proxy, true)                                 \
    X(OPERATION_DETOKENIZE, EXECUTOR_LOOP, handle_fleet_proxy, true)                               \
    X(OPERATION_PROXIED, EXECUTOR_LOOP, handle_fleet_proxy, true)                                  \
    X(OPERATION_AREAL_META, EXECUTOR_CONTROL, handle_areal_meta, false)                            \
    X(OPERATION_AREAL_LORA_META, EXECUTOR_CONTROL, handle_areal_lora_meta, false)                  \
    X(OPERATION_SESSION_FINISH, EXECUTOR_LOOP, handle_session_finish, false)                       \
    X(OPERATION_UNSUPPORTED, EXECUTOR_CONTROL, handle_unsupported, false)

#define COUNT_ROW(...) +1
_Static_assert(1 EMBEDDED_OPERATIONS(COUNT_ROW) == OPERATION_COUNT,
               "EMBEDDED_OPERATIONS has a row for each operation");
_Static_assert(1 FLEET_OPERATIONS(COUNT_ROW) == OPERATION_COUNT,
               "FLEET_OPERATIONS has a row for each operation");

static const struct embedded_operation embedded[OPERATION_COUNT] = {
#define X(operation, handler, unread) [operation] = {handler, unread},
    EMBEDDED_OPERATIONS(X)
#undef X
};

static const struct fleet_operation fleet[OPERATION_COUNT] = {
#define X(operation, executor, handler, passed_on) [operation] = {executor, handler, passed_on},
    FLEET_OPERATIONS(X)
#undef X
};

static const enum lifecycle_call calls[OPERATION_COUNT] = {
#define X(operation, call) [operation] = call,
    OPERATIONS(X)
#undef X
};

/* Operations on the weights that this server received for its upstreams. */
static const bool staged[OPERATION_COUNT] = {
    [OPERATION_RANKS] = true,
    [OPERATION_UPDATE_START] = true,
    [OPERATION_UPDATE] = true,
    [OPERATION_UPDATE_VERIFY] = true,
    [OPERATION_UPDATE_FINISH] = true,
    [OPERATION_UPDATE_ABORT] = true,
    [OPERATION_UPDATE_RENEW] = true,
    [OPERATION_UPDATE_GET] = true,
    [OPERATION_UPDATE_DELETE] = true,
    [OPERATION_UPDATE_ZMQ] = true,
    [OPERATION_PULL] = true,
    [OPERATION_PULL_COMMIT] = true,
    [OPERATION_COMMIT_RESUME] = true,
    [OPERATION_TENSOR_LIST_PUT] = true,
    [OPERATION_WEIGHTS_LIST] = true,
    [OPERATION_WEIGHTS_DIFF] = true,
    [OPERATION_WEIGHTS_GET] = true,
    [OPERATION_WEIGHTS_CHECK] = true,
    [OPERATION_WEIGHT_VALUES] = true,
    [OPERATION_HANDLES_GET] = true,
    [OPERATION_HANDLES_RENEW] = true,
    [OPERATION_HANDLES_DELETE] = true,
    [OPERATION_LEASES_OPEN] = true,
    [OPERATION_LEASES_RENEW] = true,
    [OPERATION_LEASES_DELETE] = true,
    [OPERATION_WEIGHTS_FILE] = true,
    [OPERATION_WEIGHTS_SEED] = true,
    [OPERATION_PREFLIGHT] = true,
    [OPERATION_TRANSFER_INIT] = true,
    [OPERATION_TRANSFER_GET] = true,
    [OPERATION_TRANSFER_DELETE] = true,
};

bool operation_is_embedded(const struct app *app, enum operation op)
{
    assert(op > OPERATION_NONE && op < OPERATION_COUNT);
    return app->fleet == NULL || (app->weights != NULL && staged[op]);
}

const struct embedded_operation *operation_embedded(enum operation op)
{
    assert(op > OPERATION_NONE && op < OPERATION_COUNT);
    return &embedded[op];
}

const struct fleet_operation *operation_fleet(enum operation op)
{
    assert(op > OPERATION_NONE && op < OPERATION_COUNT);
    return &fleet[op];
}

bool operation_is_brief(enum operation op)
{
    return op == OPERATION_ABORT_REQUESTS || op == OPERATION_UPDATE_RENEW ||
           op == OPERATION_HANDLES_RENEW || op == OPERATION_LEASES_RENEW;
}

enum lifecycle_call operation_call(enum operation op)
{
    assert(op > OPERATION_NONE && op < OPERATION_COUNT);
    return calls[op];
}

int fleet_not_answered(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    const char *member = route->body_match.inner;

    (void)app;
    return err_set(e, ERR_HAS_UPSTREAMS, "",
                   "%.200s%s%s%s is not supported in front of upstream engines%s send it to an "
                   "engine",
                   x->path, member != NULL ? " with '" : "", member != NULL ? member : "",
                   member != NULL ? "'" : "",
                   staged[route->operation] ? " without --stage: start this server with it, or"
                                            : ";");
}
