/* vLLM's control routes, with the translation of their requests and replies.
 *
 * Differences from vLLM on purpose. If an update is already open, or none is, the error is a 409
 * with a reason instead of a 500. Replies that are empty in vLLM are {"status":"ok"}:
 * clients read only the status code. A sleep does not pause, so generation continues after the last
 * wake_up; a pause by an earlier /pause lasts until /resume. */
#ifndef BATON_HANDLERS_COMPAT_VLLM_DIALECT_VLLM_H
#define BATON_HANDLERS_COMPAT_VLLM_DIALECT_VLLM_H

#include "handlers/control_plane.h"
#include "handlers/dialect.h"

extern const struct member vllm_pause_query[], vllm_sleep_query[], vllm_wake_query[];
extern const struct member vllm_reset_query[], vllm_world_query[];
extern const struct member vllm_init_info_rows[], vllm_update_info_rows[];
extern const struct member vllm_init_members[], vllm_start_members[];
extern const struct member vllm_update_members[], vllm_finish_members[];
extern const struct member vllm_label_members[], vllm_checker_members[];
/* Errors name these members instead of the native ones. */
extern const struct member vllm_sleep_members[], vllm_wake_members[];
extern const struct member vllm_reset_members[], vllm_abort_members[];

/* dialect_vllm.c: generation */
int vllm_pause_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_pause_response(json_t **reply, const struct http_request *x);
int vllm_resume_response(json_t **reply, const struct http_request *x);
int vllm_is_paused_response(json_t **reply, const struct http_request *x);
int vllm_sleep_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_sleep_response(json_t **reply, const struct http_request *x);
int vllm_wake_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_wake_response(json_t **reply, const struct http_request *x);
int vllm_release_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_release_response(json_t **reply, const struct http_request *x);
int vllm_is_sleeping_response(json_t **reply, const struct http_request *x);
int vllm_reset_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_reset_response(json_t **reply, const struct http_request *x);
int vllm_abort_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_abort_some_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_abort_response(json_t **reply, const struct http_request *x);
int vllm_load_response(json_t **reply, const struct http_request *x);

/* dialect_vllm_weights.c: weights */
int vllm_world_size_response(json_t **reply, const struct http_request *x);
int vllm_init_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_init_response(json_t **reply, const struct http_request *x);
int vllm_shutdown_response(json_t **reply, const struct http_request *x);
int vllm_start_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_start_response(json_t **reply, const struct http_request *x);
int vllm_draft_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_update_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_update_response(json_t **reply, const struct http_request *x);
int vllm_finish_response(json_t **reply, const struct http_request *x);
int vllm_label_response(json_t **reply, const struct http_request *x);
int vllm_info_response(json_t **reply, const struct http_request *x);
int vllm_checker_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_reset_weights_request(json_t **body, const struct http_request *x, struct err *e);
int vllm_reset_weights_response(json_t **reply, const struct http_request *x);

/* Columns: path, operationId, operation; then other members of the row. */
#define VLLM_POST(kind, max, path, id, op, ...)                                                    \
    {                                                                                              \
        .methods = METHOD_POST, .pattern = path, .operation_id = id, .executor = EXECUTOR_CONTROL, \
        .role = ROLE_CONTROL, .body = kind, .json_optional = true, .form = FORM_OPENAI,            \
        .body_max = max, .dialect = DIALECT_VLLM, .operation = op, __VA_ARGS__                     \
    }
#define VLLM_CONTROL(path, id, op, ...)                                                            \
    VLLM_POST(BODY_JSON, ROUTE_SMALL_MAX, path, id, op, __VA_ARGS__)
/* A body is ignored. */
#define VLLM_NO_BODY(path, id, op, ...)                                                            \
    VLLM_POST(BODY_NONE, ROUTE_NO_BODY_MAX, path, id, op, __VA_ARGS__)
#define VLLM_VIEW(path, id, op, ...)                                                               \
    {                                                                                              \
        .methods = METHOD_GET | METHOD_HEAD, .pattern = path, .operation_id = id,                  \
        .executor = EXECUTOR_LOOP, .role = ROLE_VIEWER, .body = BODY_NONE, .json_optional = true,  \
        .form = FORM_OPENAI, .body_max = ROUTE_NO_BODY_MAX, .dialect = DIALECT_VLLM,               \
        .operation = op, __VA_ARGS__                                                               \
    }

#define VLLM_GENERATION_ROUTES                                                                     \
    VLLM_CONTROL("/pause", "vllmPause", OPERATION_PAUSE, .query = vllm_pause_query,                \
                 .translated_members = pause_members, .translate_request = vllm_pause_request,     \
                 .translate_response = vllm_pause_response),                                       \
        VLLM_NO_BODY("/resume", "vllmResume", OPERATION_COMMIT_RESUME,                             \
                     .translate_response = vllm_resume_response),                                  \
        VLLM_VIEW("/is_paused", "vllmIsPaused", OPERATION_STATUS,                                  \
                  .translate_response = vllm_is_paused_response),                                  \
        VLLM_CONTROL("/sleep", "vllmSleep", OPERATION_SLEEP, .members = vllm_sleep_members,        \
                     .query = vllm_sleep_query, .translated_members = sleep_members,               \
                     .translate_request = vllm_sleep_request,                                      \
                     .translate_response = vllm_sleep_response),                                   \
        VLLM_CONTROL("/wake_up", "vllmWakeUp", OPERATION_WAKE, .members = vllm_wake_members,       \
                     .query = vllm_wake_query, .translated_members = wake_members,                 \
                     .translate_request = vllm_wake_request,                                       \
                     .translate_response = vllm_wake_response),                                    \
        VLLM_CONTROL("/release_kv_cache_memory", "vllmReleaseKvCache", OPERATION_SLEEP,            \
                     .translated_members = sleep_members,                                          \
                     .translate_request = vllm_release_request,                                    \
                     .translate_response = vllm_release_response),                                 \
        VLLM_VIEW("/is_sleeping", "vllmIsSleeping", OPERATION_STATUS,                              \
                  .translate_response = vllm_is_sleeping_response),                                \
        VLLM_NO_BODY("/reset_prefix_cache", "vllmResetPrefixCache", OPERATION_RESET_CACHE,         \
                     .members = vllm_reset_members, .query = vllm_reset_query,                     \
                     .translated_members = reset_cache_members,                                    \
                     .translate_request = vllm_reset_request,                                      \
                     .translate_response = vllm_reset_response),                                   \
        VLLM_POST(BODY_JSON, ROUTE_NO_BODY_MAX, "/reset_prefix_cache", "vllmResetRunning",         \
                  OPERATION_RESET_CACHE, .members = vllm_reset_members, .query = vllm_reset_query, \
                  .body_match = {"reset_running_requests", NULL},                                  \
                  .translated_members = reset_cache_members,                                       \
                  .translate_request = vllm_reset_request,                                         \
                  .translate_response = vllm_reset_response),                                      \
        VLLM_POST(                                                                                 \
            BODY_JSON, ROUTE_NO_BODY_MAX, "/reset_prefix_cache", "vllmResetExternal",              \
            OPERATION_RESET_CACHE, .members = vllm_reset_members, .query = vllm_reset_query,       \
            .body_match = {"reset_external", NULL}, .translated_members = reset_cache_members,     \
            .translate_request = vllm_reset_request, .translate_response = vllm_reset_response),   \
        VLLM_NO_BODY("/reset_mm_cache", "vllmResetMmCache", OPERATION_RESET_CACHE,                 \
                     .translate_response = dialect_reply_status),                                  \
        VLLM_NO_BODY("/reset_encoder_cache", "vllmResetEncoderCache", OPERATION_RESET_CACHE,       \
                     .translate_response = dialect_reply_status),                                  \
        VLLM_POST(BODY_JSON, ROUTE_DATA_MAX, "/abort_requests", "vllmAbortRequests",               \
                  OPERATION_ABORT_REQUESTS, .members = vllm_abort_members,                         \
                  .translated_members = abort_requests_members,                                    \
                  .translate_request = vllm_abort_request,                                         \
                  .translate_response = vllm_abort_response),                                      \
        VLLM_POST(BODY_JSON, ROUTE_DATA_MAX, "/inference/v1/abort_requests",                       \
                  "vllmInferenceAbortRequests", OPERATION_ABORT_REQUESTS,                          \
                  .members = vllm_abort_members, .translated_members = abort_requests_members,     \
                  .translate_request = vllm_abort_some_request,                                    \
                  .translate_response = dialect_reply_empty),                                      \
        VLLM_VIEW("/load", "vllmLoad", OPERATION_STATUS,                                           \
                  .translate_response = vllm_load_response),

/* init joins the group; start opens a session, and update and finish do not name it. vLLM before
 * 0.22 has neither: the first update opens a session, which is committed when it covers the model.
 */
#define VLLM_WEIGHTS_ROUTES                                                                        \
    VLLM_VIEW("/get_world_size", "vllmGetWorldSize", OPERATION_RANKS, .query = vllm_world_query,   \
              .translate_response = vllm_world_size_response),                                     \
        VLLM_CONTROL("/init_weight_transfer_engine", "vllmInitWeightTransferEngine",               \
                     OPERATION_TRANSFER_INIT, .session = SESSION_AUTO_COMMIT,                      \
                     .members = vllm_init_members, .translated_members = transfer_init_members,    \
                     .error_members = vllm_init_info_rows, .error_at = "/init_info",               \
                     .translate_request = vllm_init_request,                                       \
                     .translate_response = vllm_init_response),                                    \
        VLLM_CONTROL("/shutdown_weight_transfer_engine", "vllmShutdownWeightTransferEngine",       \
                     OPERATION_TRANSFER_DELETE, .translate_response = vllm_shutdown_response),     \
        VLLM_CONTROL("/start_weight_update", "vllmStartWeightUpdate", OPERATION_UPDATE_START,      \
                     .session = SESSION_OPEN, .members = vllm_start_members,                       \
                     .translated_members = update_start_members,                                   \
                     .translate_request = vllm_start_request,                                      \
                     .translate_response = vllm_start_response),                                   \
        VLLM_CONTROL("/start_draft_weight_update", "vllmStartDraftWeightUpdate",                   \
                     OPERATION_UPDATE_START, .session = SESSION_OPEN,                              \
                     .translated_members = update_start_members,                                   \
                     .translate_request = vllm_draft_request),                                     \
        VLLM_POST(BODY_JSON, ROUTE_BODY_CONFIG, "/update_weights", "vllmUpdateWeights",            \
                  OPERATION_UPDATE, .session = SESSION_AUTO_COMMIT, .broadcasts = true,            \
                  .members = vllm_update_members, .body_match = {"update_info", NULL},             \
                  .translated_members = update_members, .error_members = vllm_update_info_rows,    \
                  .error_at = "/update_info", .translate_request = vllm_update_request,            \
                  .translate_response = vllm_update_response),                                     \
        VLLM_CONTROL("/finish_weight_update", "vllmFinishWeightUpdate", OPERATION_UPDATE_FINISH,   \
                     .session = SESSION_OPEN, .members = vllm_finish_members,                      \
                     .translated_members = update_finish_members,                                  \
                     .translate_request = dialect_request_plain,                                   \
                     .translate_response = vllm_finish_response),                                  \
        VLLM_CONTROL("/update_weight_version", "vllmUpdateWeightVersion", OPERATION_WEIGHTS_LABEL, \
                     .members = vllm_label_members, .translated_members = weights_label_members,   \
                     .translate_request = dialect_request_plain,                                   \
                     .translate_response = vllm_label_response),                                   \
        VLLM_VIEW("/weight_info", "vllmWeightInfo", OPERATION_STATUS,                              \
                  .translate_response = vllm_info_response),                                       \
        VLLM_POST(BODY_JSON, ROUTE_FINISH_MAX, "/weight_checker", "vllmWeightChecker",             \
                  OPERATION_WEIGHTS_CHECK, .members = vllm_checker_members,                        \
                  .translated_members = weights_check_members,                                     \
                  .translate_request = vllm_checker_request),                                      \
        VLLM_POST(BODY_JSON, ROUTE_FINISH_MAX, "/weight_checker", "vllmWeightCheckerReset",        \
                  OPERATION_SLEEP, .members = vllm_checker_members,                                \
                  .body_match = {"action", "reset"}, .translated_members = sleep_members,          \
                  .translate_request = vllm_reset_weights_request,                                 \
                  .translate_response = vllm_reset_weights_response),

/* Rows of the route table. */
#define DIALECT_VLLM_ROUTES VLLM_GENERATION_ROUTES VLLM_WEIGHTS_ROUTES

#endif
