/* What vLLM's clients send: its paths, ways in and out.
 *
 * Where we differ from vLLM on purpose. An update that is already open, or none, is a 409 that says
 * so instead of a 500. Replies that are empty in vLLM are {"status":"ok"}: its clients read only
 * their status, SkyRL's older ones the JSON. A sleep does not pause, so the last wake_up alone lets
 * generation go on; what was paused before by /pause stays so until /resume. */
#ifndef BATON_HANDLERS_COMPAT_VLLM_DIALECT_VLLM_H
#define BATON_HANDLERS_COMPAT_VLLM_DIALECT_VLLM_H

#include "handlers/control_plane.h"
#include "handlers/dialect.h"

extern const char *const vllm_pause_query[], *const vllm_sleep_query[], *const vllm_wake_query[];
extern const char *const vllm_reset_query[], *const vllm_world_query[];
extern const char *const vllm_init_members[], *const vllm_start_members[];
extern const char *const vllm_update_members[], *const vllm_finish_members[];
extern const char *const vllm_label_members[], *const vllm_checker_members[];
extern const char *const vllm_sleep_members[], *const vllm_wake_members[];
extern const char *const vllm_reset_members[], *const vllm_abort_members[];

/* dialect_vllm.c: generation */
int vllm_pause_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_pause_out(json_t **reply, const struct exchange *x);
int vllm_resume_out(json_t **reply, const struct exchange *x);
int vllm_is_paused_out(json_t **reply, const struct exchange *x);
int vllm_sleep_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_sleep_out(json_t **reply, const struct exchange *x);
int vllm_wake_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_wake_out(json_t **reply, const struct exchange *x);
int vllm_release_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_release_out(json_t **reply, const struct exchange *x);
int vllm_is_sleeping_out(json_t **reply, const struct exchange *x);
int vllm_reset_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_reset_out(json_t **reply, const struct exchange *x);
int vllm_abort_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_abort_some_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_abort_out(json_t **reply, const struct exchange *x);
int vllm_load_out(json_t **reply, const struct exchange *x);

/* dialect_vllm_weights.c: weights */
int vllm_world_size_out(json_t **reply, const struct exchange *x);
int vllm_init_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_init_out(json_t **reply, const struct exchange *x);
int vllm_shutdown_out(json_t **reply, const struct exchange *x);
int vllm_start_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_start_out(json_t **reply, const struct exchange *x);
int vllm_draft_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_update_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_update_out(json_t **reply, const struct exchange *x);
int vllm_finish_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_finish_out(json_t **reply, const struct exchange *x);
int vllm_label_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_label_out(json_t **reply, const struct exchange *x);
int vllm_info_out(json_t **reply, const struct exchange *x);
int vllm_checker_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_reset_weights_in(json_t **body, const struct exchange *x, struct err *e);
int vllm_reset_weights_out(json_t **reply, const struct exchange *x);

/* Columns: path, operationId, operation; then what differs. */
#define VLLM_POST(kind, max, path, id, op, ...)                                                    \
    {                                                                                              \
        .methods = METHOD_POST, .pattern = path, .operation_id = id, .lane = LANE_CONTROL,         \
        .role = ROLE_CONTROL, .body = kind, .json_optional = true, .form = FORM_OPENAI,            \
        .body_max = max, .dialect = DIALECT_VLLM, .operation = op, __VA_ARGS__                     \
    }
#define VLLM_CONTROL(path, id, op, ...)                                                            \
    VLLM_POST(BODY_JSON, ROUTE_SMALL_MAX, path, id, op, __VA_ARGS__)
/* Whatever comes as a body is dropped. */
#define VLLM_NO_BODY(path, id, op, ...)                                                            \
    VLLM_POST(BODY_NONE, ROUTE_NO_BODY_MAX, path, id, op, __VA_ARGS__)
#define VLLM_VIEW(path, id, op, ...)                                                               \
    {                                                                                              \
        .methods = METHOD_GET | METHOD_HEAD, .pattern = path, .operation_id = id,                  \
        .lane = LANE_LOOP, .role = ROLE_VIEWER, .body = BODY_NONE, .json_optional = true,          \
        .form = FORM_OPENAI, .body_max = ROUTE_NO_BODY_MAX, .dialect = DIALECT_VLLM,               \
        .operation = op, __VA_ARGS__                                                               \
    }

#define VLLM_GENERATION_ROUTES                                                                     \
    VLLM_CONTROL("/pause", "vllmPause", OPERATION_PAUSE, .query = vllm_pause_query,                \
                 .into = pause_members, .in = vllm_pause_in, .out = vllm_pause_out),               \
        VLLM_NO_BODY("/resume", "vllmResume", OPERATION_COMMIT_RESUME, .out = vllm_resume_out),    \
        VLLM_VIEW("/is_paused", "vllmIsPaused", OPERATION_STATUS, .out = vllm_is_paused_out),      \
        VLLM_CONTROL("/sleep", "vllmSleep", OPERATION_SLEEP, .members = vllm_sleep_members,        \
                     .query = vllm_sleep_query, .into = sleep_members, .in = vllm_sleep_in,        \
                     .out = vllm_sleep_out),                                                       \
        VLLM_CONTROL("/wake_up", "vllmWakeUp", OPERATION_WAKE, .members = vllm_wake_members,       \
                     .query = vllm_wake_query, .into = wake_members, .in = vllm_wake_in,           \
                     .out = vllm_wake_out),                                                        \
        VLLM_CONTROL("/release_kv_cache_memory", "vllmReleaseKvCache", OPERATION_SLEEP,            \
                     .into = sleep_members, .in = vllm_release_in, .out = vllm_release_out),       \
        VLLM_VIEW("/is_sleeping", "vllmIsSleeping", OPERATION_STATUS,                              \
                  .out = vllm_is_sleeping_out),                                                    \
        VLLM_NO_BODY("/reset_prefix_cache", "vllmResetPrefixCache", OPERATION_RESET_CACHE,         \
                     .members = vllm_reset_members, .query = vllm_reset_query,                     \
                     .into = reset_cache_members, .in = vllm_reset_in, .out = vllm_reset_out),     \
        VLLM_POST(BODY_JSON, ROUTE_NO_BODY_MAX, "/reset_prefix_cache", "vllmResetRunning",         \
                  OPERATION_RESET_CACHE, .members = vllm_reset_members, .query = vllm_reset_query, \
                  .claim = {"reset_running_requests", NULL}, .into = reset_cache_members,          \
                  .in = vllm_reset_in, .out = vllm_reset_out),                                     \
        VLLM_POST(BODY_JSON, ROUTE_NO_BODY_MAX, "/reset_prefix_cache", "vllmResetExternal",        \
                  OPERATION_RESET_CACHE, .members = vllm_reset_members, .query = vllm_reset_query, \
                  .claim = {"reset_external", NULL}, .into = reset_cache_members,                  \
                  .in = vllm_reset_in, .out = vllm_reset_out),                                     \
        VLLM_NO_BODY("/reset_mm_cache", "vllmResetMmCache", OPERATION_RESET_CACHE,                 \
                     .out = dialect_out_status),                                                   \
        VLLM_NO_BODY("/reset_encoder_cache", "vllmResetEncoderCache", OPERATION_RESET_CACHE,       \
                     .out = dialect_out_status),                                                   \
        VLLM_POST(BODY_JSON, ROUTE_DATA_MAX, "/abort_requests", "vllmAbortRequests",               \
                  OPERATION_ABORT_REQUESTS, .members = vllm_abort_members,                         \
                  .into = abort_requests_members, .in = vllm_abort_in, .out = vllm_abort_out),     \
        VLLM_POST(BODY_JSON, ROUTE_DATA_MAX, "/inference/v1/abort_requests",                       \
                  "vllmInferenceAbortRequests", OPERATION_ABORT_REQUESTS,                          \
                  .members = vllm_abort_members, .into = abort_requests_members,                   \
                  .in = vllm_abort_some_in, .out = dialect_out_empty),                             \
        VLLM_VIEW("/load", "vllmLoad", OPERATION_STATUS, .out = vllm_load_out),

/* init joins; start opens a session that update and finish do not name. Before 0.22 there was
 * neither: the first update opens one that is committed when the model is covered. */
#define VLLM_WEIGHTS_ROUTES                                                                        \
    VLLM_VIEW("/get_world_size", "vllmGetWorldSize", OPERATION_RANKS, .query = vllm_world_query,   \
              .out = vllm_world_size_out),                                                         \
        VLLM_CONTROL("/init_weight_transfer_engine", "vllmInitWeightTransferEngine",               \
                     OPERATION_TRANSFER_INIT, .session = SESSION_IMPLICIT,                         \
                     .members = vllm_init_members, .into = transfer_init_members,                  \
                     .in = vllm_init_in, .out = vllm_init_out),                                    \
        VLLM_CONTROL("/shutdown_weight_transfer_engine", "vllmShutdownWeightTransferEngine",       \
                     OPERATION_TRANSFER_DELETE, .out = vllm_shutdown_out),                         \
        VLLM_CONTROL("/start_weight_update", "vllmStartWeightUpdate", OPERATION_UPDATE_START,      \
                     .session = SESSION_OPEN, .members = vllm_start_members,                       \
                     .into = update_start_members, .in = vllm_start_in, .out = vllm_start_out),    \
        VLLM_CONTROL("/start_draft_weight_update", "vllmStartDraftWeightUpdate",                   \
                     OPERATION_UPDATE_START, .session = SESSION_OPEN,                              \
                     .into = update_start_members, .in = vllm_draft_in),                           \
        VLLM_POST(BODY_JSON, ROUTE_BODY_CONFIG, "/update_weights", "vllmUpdateWeights",            \
                  OPERATION_UPDATE, .session = SESSION_IMPLICIT, .members = vllm_update_members,   \
                  .claim = {"update_info", NULL}, .into = update_members, .in = vllm_update_in,    \
                  .out = vllm_update_out),                                                         \
        VLLM_CONTROL("/finish_weight_update", "vllmFinishWeightUpdate", OPERATION_UPDATE_FINISH,   \
                     .session = SESSION_OPEN, .members = vllm_finish_members,                      \
                     .into = update_finish_members, .in = vllm_finish_in, .out = vllm_finish_out), \
        VLLM_CONTROL("/update_weight_version", "vllmUpdateWeightVersion", OPERATION_WEIGHTS_LABEL, \
                     .members = vllm_label_members, .into = weights_label_members,                 \
                     .in = vllm_label_in, .out = vllm_label_out),                                  \
        VLLM_VIEW("/weight_info", "vllmWeightInfo", OPERATION_STATUS, .out = vllm_info_out),       \
        VLLM_POST(BODY_JSON, ROUTE_FINISH_MAX, "/weight_checker", "vllmWeightChecker",             \
                  OPERATION_WEIGHTS_CHECK, .members = vllm_checker_members,                        \
                  .into = weights_check_members, .in = vllm_checker_in),                           \
        VLLM_POST(BODY_JSON, ROUTE_FINISH_MAX, "/weight_checker", "vllmWeightCheckerReset",        \
                  OPERATION_SLEEP, .members = vllm_checker_members, .claim = {"action", "reset"},  \
                  .into = sleep_members, .in = vllm_reset_weights_in,                              \
                  .out = vllm_reset_weights_out),

/* Rows of the route table. */
#define DIALECT_VLLM_ROUTES VLLM_GENERATION_ROUTES VLLM_WEIGHTS_ROUTES

#endif
