/* SGLang's control routes, with the translation of their requests and replies. /generate has a
 * handler of its own (handlers/generate/sglang_generate.c).
 *
 * Differences from SGLang:
 *   retract   in SGLang running requests go back into the queue; here they are frozen, as with
 * in_place: their KV stays in use, and is recomputed if the weights require it release   of the
 * weights keeps no copy, as in SGLang by default: nothing is generated until a whole update is
 * committed; /v1/sleep at level 1 keeps a copy update    a received bucket is served once the model
 * is complete or generation continues group     there is one at a time; a newer one replaces it */
#ifndef BATON_HANDLERS_COMPAT_SGLANG_DIALECT_SGLANG_H
#define BATON_HANDLERS_COMPAT_SGLANG_DIALECT_SGLANG_H

#include "handlers/compat/sglang/sglang_tensor.h"
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/dialect.h"

typedef int sglang_request(json_t **body, const struct http_request *x, struct err *e);
typedef int sglang_response(json_t **reply, const struct http_request *x);

/* dialect_sglang.c: weights and the group that brings them */
extern const struct member sglang_group_members[], sglang_leave_members[];
extern const struct member sglang_distributed_members[];
extern const struct member sglang_disk_members[], sglang_pull_members[];
extern const struct member sglang_ipc_members[];
extern const struct member sglang_begin_members[];
extern const struct member sglang_checker_members[], sglang_label_members[];
sglang_request sglang_group_request, sglang_distributed_request, sglang_disk_request,
    sglang_pull_request;
sglang_request sglang_begin_request, sglang_end_request, sglang_checker_request,
    sglang_label_request;
sglang_request sglang_reset_request;
sglang_response sglang_group_response, sglang_leave_response, sglang_begin_response,
    sglang_update_response, sglang_disk_response, sglang_pull_response;
sglang_response sglang_checker_response, sglang_label_response, sglang_reset_response;

/* dialect_sglang_life.c: pause, memory, requests, adapters */
extern const struct member sglang_pause_members[], sglang_continue_members[];
extern const struct member sglang_memory_members[], sglang_abort_members[];
extern const struct member sglang_lora_members[], sglang_lora_unload_members[];
extern const struct member sglang_lora_tensors_members[];
sglang_request sglang_pause_request, sglang_release_request, sglang_abort_request;
sglang_request sglang_lora_request, sglang_lora_tensors_request, sglang_refused_request;
sglang_response sglang_pause_response, sglang_continue_response, sglang_flush_response,
    sglang_lora_response;

/* dialect_sglang_view.c: information about the server */
extern const struct member sglang_info_query[], sglang_loads_query[];
sglang_response sglang_model_response, sglang_server_response, sglang_version_response,
    sglang_load_response;
sglang_response sglang_loads_response;

/* Columns: dialect, form of errors, methods, body and its maximum length; path, operationId,
 * operation; then other members of the row. */
#define SGLANG_ROW(of_dialect, errors, verbs, kind, max, path, id, op, ...)                        \
    {                                                                                              \
        .methods = verbs, .pattern = path, .operation_id = id, .executor = EXECUTOR_CONTROL,       \
        .role = ROLE_CONTROL, .body = kind, .json_optional = true, .form = errors,                 \
        .body_max = max, .dialect = of_dialect, .operation = op, __VA_ARGS__                       \
    }
#define SGLANG_CONTROL(path, id, op, ...)                                                          \
    SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG, METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX, path, id, op, \
               __VA_ARGS__)
#define SGLANG_LONG(path, id, op, ...)                                                             \
    SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG, METHOD_POST, BODY_JSON, ROUTE_BODY_CONFIG, path, id,   \
               op, __VA_ARGS__)
#define SGLANG_BOTH(path, id, op, ...)                                                             \
    SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG, METHOD_GET | METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX,  \
               path, id, op, __VA_ARGS__)
#define SGLANG_VIEW(needs_role, path, id, op, ...)                                                 \
    {                                                                                              \
        .methods = METHOD_GET | METHOD_HEAD, .pattern = path, .operation_id = id,                  \
        .executor = EXECUTOR_LOOP, .role = needs_role, .body = BODY_NONE, .json_optional = true,   \
        .form = FORM_SGLANG, .body_max = ROUTE_NO_BODY_MAX, .dialect = DIALECT_SGLANG,             \
        .operation = op, __VA_ARGS__                                                               \
    }

/* The begin and the end of an update. Trainers for SGLang before 0.5.21 send neither. */
#define SGLANG_SESSION                                                                             \
    SGLANG_CONTROL(                                                                                \
        "/begin_weight_update", "sglangBegin", OPERATION_UPDATE_START, .session = SESSION_OPEN,    \
        .members = sglang_begin_members, .translated_members = update_start_members,               \
        .translate_request = sglang_begin_request, .translate_response = sglang_begin_response),   \
        SGLANG_CONTROL("/end_weight_update", "sglangEnd", OPERATION_UPDATE_FINISH,                 \
                       .session = SESSION_OPEN, .translated_members = update_finish_members,       \
                       .translate_request = sglang_end_request,                                    \
                       .translate_response = sglang_update_response)

/* Tensors by the group: they belong to the session that is open. */
#define SGLANG_BUCKETS                                                                             \
    SGLANG_LONG("/update_weights_from_distributed", "sglangUpdate", OPERATION_UPDATE,              \
                .session = SESSION_AUTO_COMMIT, .broadcasts = true,                                \
                .members = sglang_distributed_members, .translated_members = update_members,       \
                .translate_request = sglang_distributed_request,                                   \
                .translate_response = sglang_update_response)

#define SGLANG_WEIGHTS                                                                             \
    SGLANG_CONTROL("/init_weights_update_group", "sglangInitGroup", OPERATION_TRANSFER_INIT,       \
                   .session = SESSION_AUTO_COMMIT, .members = sglang_group_members,                \
                   .translated_members = transfer_init_members,                                    \
                   .translate_request = sglang_group_request,                                      \
                   .translate_response = sglang_group_response),                                   \
        SGLANG_CONTROL("/destroy_weights_update_group", "sglangDestroyGroup",                      \
                       OPERATION_TRANSFER_DELETE, .members = sglang_leave_members,                 \
                       .translated_members = transfer_delete_members,                              \
                       .translate_request = dialect_request_plain,                                 \
                       .translate_response = sglang_leave_response),                               \
        SGLANG_SESSION, SGLANG_BUCKETS,                                                            \
        SGLANG_CONTROL("/update_weights_from_disk", "sglangUpdateDisk", OPERATION_UPDATE,          \
                       .members = sglang_disk_members, .translated_members = update_members,       \
                       .translate_request = sglang_disk_request,                                   \
                       .translate_response = sglang_disk_response),                                \
        SGLANG_CONTROL("/pull_weights", "sglangPull", OPERATION_PULL,                              \
                       .members = sglang_pull_members, .translated_members = pull_members,         \
                       .translate_request = sglang_pull_request,                                   \
                       .translate_response = sglang_pull_response),                                \
        SGLANG_CONTROL("/update_weights_from_ipc", "sglangUpdateIpc", OPERATION_UPDATE_ZMQ,        \
                       .members = sglang_ipc_members, .translated_members = update_zmq_members,    \
                       .translate_request = dialect_request_plain,                                 \
                       .translate_response = sglang_update_response),                              \
        SGLANG_BOTH("/get_weights_by_name", "sglangWeights", OPERATION_WEIGHT_VALUES,              \
                    .members = weight_values_members),                                             \
        SGLANG_CONTROL("/weights_checker", "sglangChecker", OPERATION_WEIGHTS_CHECK,               \
                       .members = sglang_checker_members,                                          \
                       .translated_members = weights_check_members,                                \
                       .translate_request = sglang_checker_request,                                \
                       .translate_response = sglang_checker_response),                             \
        SGLANG_CONTROL(                                                                            \
            "/weights_checker", "sglangCheckerReset", OPERATION_SLEEP,                             \
            .members = sglang_checker_members, .body_match = {"action", "reset_tensors"},          \
            .translated_members = sleep_members, .translate_request = sglang_reset_request,        \
            .translate_response = sglang_reset_response),                                          \
        SGLANG_CONTROL("/update_weight_version", "sglangUpdateVersion", OPERATION_WEIGHTS_LABEL,   \
                       .body_match = {"abort_all_requests", NULL},                                 \
                       .members = sglang_label_members,                                            \
                       .translated_members = weights_label_members,                                \
                       .translate_request = sglang_label_request,                                  \
                       .translate_response = sglang_label_response)

#define SGLANG_LIFE                                                                                \
    SGLANG_CONTROL("/pause_generation", "sglangPause", OPERATION_PAUSE,                            \
                   .members = sglang_pause_members, .translated_members = pause_members,           \
                   .translate_request = sglang_pause_request,                                      \
                   .translate_response = sglang_pause_response),                                   \
        SGLANG_CONTROL("/continue_generation", "sglangContinue", OPERATION_COMMIT_RESUME,          \
                       .members = sglang_continue_members,                                         \
                       .translate_response = sglang_continue_response),                            \
        SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG, METHOD_GET | METHOD_POST, BODY_NONE,               \
                   ROUTE_NO_BODY_MAX, "/flush_cache", "sglangFlush", OPERATION_FLUSH_CACHE,        \
                   .get_has_effects = true, .translate_response = sglang_flush_response),          \
        SGLANG_BOTH("/release_memory_occupation", "sglangRelease", OPERATION_SLEEP,                \
                    .get_has_effects = true, .members = sglang_memory_members,                     \
                    .translated_members = sleep_members,                                           \
                    .translate_request = sglang_release_request,                                   \
                    .translate_response = dialect_reply_null),                                     \
        SGLANG_BOTH(                                                                               \
            "/resume_memory_occupation", "sglangResume", OPERATION_WAKE, .get_has_effects = true,  \
            .members = sglang_memory_members, .translated_members = wake_members,                  \
            .translate_request = dialect_request_plain, .translate_response = dialect_reply_null), \
        SGLANG_CONTROL(                                                                            \
            "/abort_request", "sglangAbort", OPERATION_ABORT_REQUESTS,                             \
            .members = sglang_abort_members, .translated_members = abort_requests_members,         \
            .translate_request = sglang_abort_request, .translate_response = dialect_reply_null)

/* Refused with a reason, which is more help than a 404. */
#define SGLANG_REFUSED(path, id)                                                                   \
    SGLANG_CONTROL(path, id, OPERATION_UNSUPPORTED, .translate_request = sglang_refused_request,   \
                   .translated_members = no_members)
#define SGLANG_REFUSALS                                                                            \
    SGLANG_REFUSED("/slow_down", "sglangSlowDown"),                                                \
        SGLANG_REFUSED("/set_internal_state", "sglangSetState"),                                   \
        SGLANG_REFUSED("/start_profile", "sglangStartProfile"),                                    \
        SGLANG_REFUSED("/stop_profile", "sglangStopProfile"),                                      \
        SGLANG_REFUSED("/post_process_weights", "sglangPostProcess")

/* Shared with prime-rl, whose clients decide by the status code whether to retry. */
#define SGLANG_LORA(of_dialect, load, unload)                                                      \
    SGLANG_ROW(of_dialect, FORM_SGLANG_LORA, METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX,              \
               "/load_lora_adapter", load, OPERATION_LORA_LOAD, .members = sglang_lora_members,    \
               .translated_members = lora_load_members, .translate_request = sglang_lora_request,  \
               .translate_response = sglang_lora_response),                                        \
        SGLANG_ROW(of_dialect, FORM_SGLANG_LORA, METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX,          \
                   "/unload_lora_adapter", unload, OPERATION_LORA_UNLOAD,                          \
                   .members = sglang_lora_unload_members,                                          \
                   .translated_members = lora_unload_members,                                      \
                   .translate_request = dialect_request_plain,                                     \
                   .translate_response = sglang_lora_response)

#define SGLANG_VIEWS                                                                               \
    SGLANG_VIEW(ROLE_HEALTH, "/health_generate", "sglangHealth", OPERATION_READY,                  \
                .translate_response = dialect_reply_empty),                                        \
        SGLANG_VIEW(ROLE_VIEWER, "/get_model_info", "sglangModelInfo", OPERATION_STATUS,           \
                    .translate_response = sglang_model_response),                                  \
        SGLANG_VIEW(ROLE_VIEWER, "/model_info", "sglangModelInfoNew", OPERATION_STATUS,            \
                    .translate_response = sglang_model_response),                                  \
        SGLANG_VIEW(ROLE_VIEWER, "/get_server_info", "sglangServerInfo", OPERATION_RANKS,          \
                    .translate_response = sglang_server_response),                                 \
        SGLANG_VIEW(ROLE_VIEWER, "/server_info", "sglangServerInfoNew", OPERATION_RANKS,           \
                    .query = sglang_info_query, .translate_response = sglang_server_response),     \
        SGLANG_VIEW(ROLE_VIEWER, "/get_weight_version", "sglangWeightVersion", OPERATION_STATUS,   \
                    .translate_response = sglang_version_response),                                \
        SGLANG_VIEW(ROLE_VIEWER, "/get_load", "sglangLoad", OPERATION_STATUS,                      \
                    .translate_response = sglang_load_response),                                   \
        SGLANG_VIEW(ROLE_VIEWER, "/v1/loads", "sglangLoads", OPERATION_STATUS,                     \
                    .query = sglang_loads_query, .translate_response = sglang_loads_response)

#define SGLANG_GENERATE                                                                            \
    {                                                                                              \
        .methods = METHOD_POST | METHOD_PUT, .pattern = "/generate",                               \
        .operation_id = "sglangGenerate", .executor = EXECUTOR_GENERATE, .role = ROLE_GENERATE,    \
        .body = BODY_JSON, .form = FORM_SGLANG, .body_max = ROUTE_DATA_MAX,                        \
        .members = sglang_generate_members, .dialect = DIALECT_SGLANG,                             \
        .operation = OPERATION_SGLANG_GENERATE                                                     \
    }

/* Rows of the route table. */
#define DIALECT_SGLANG_ROUTES                                                                      \
    SGLANG_WEIGHTS, SGLANG_TENSOR, SGLANG_LIFE, SGLANG_REFUSALS,                                   \
        SGLANG_LORA(DIALECT_SGLANG, "sglangLoadLora", "sglangUnloadLora"),                         \
        SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG_LORA, METHOD_POST, BODY_JSON, ROUTE_BODY_CONFIG,    \
                   "/load_lora_adapter_from_tensors", "sglangLoadLoraTensors",                     \
                   OPERATION_UNSUPPORTED, .members = sglang_lora_tensors_members,                  \
                   .translated_members = no_members,                                               \
                   .translate_request = sglang_lora_tensors_request),                              \
        SGLANG_VIEWS, SGLANG_GENERATE,

#endif
