/* SkyRL's routes, with the translation of their requests and replies. Routes that vLLM has too are
 * in vLLM's table. Its client starts and finishes each update by /collective_rpc. */
#ifndef BATON_HANDLERS_COMPAT_SKYRL_DIALECT_SKYRL_H
#define BATON_HANDLERS_COMPAT_SKYRL_DIALECT_SKYRL_H

#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/dialect.h"

extern const struct member skyrl_rpc_members[];
extern const struct member skyrl_info_rows[], skyrl_finish_rows[], skyrl_wake_rows[];
extern const struct member skyrl_lora_members[];
extern const struct member skyrl_generate_members[];
extern const struct member skyrl_fetch_members[], skyrl_session_query[];
extern const struct member skyrl_deltas_members[], skyrl_deltas_rows[];
extern const struct member skyrl_reload_members[], skyrl_reload_rows[];

/* Requests: methods of /collective_rpc. */
int skyrl_rpc_start_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_ipc_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_nccl_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_finish_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_sleep_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_wake_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_zmq_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_rpc_refuse(json_t **body, const struct http_request *x, struct err *e);

/* Requests: SkyRL's own routes. */
int skyrl_lora_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_generate_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_deltas_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_fetch_request(json_t **body, const struct http_request *x, struct err *e);
int skyrl_reload_request(json_t **body, const struct http_request *x, struct err *e);

/* Replies: one null for each rank; {status, lora_name, lora_int_id}; exactly one choice. */
int skyrl_results_response(json_t **reply, const struct http_request *x);
int skyrl_lora_response(json_t **reply, const struct http_request *x);
int skyrl_deltas_response(json_t **reply, const struct http_request *x);
int skyrl_fetch_response(json_t **reply, const struct http_request *x);
int skyrl_reload_response(json_t **reply, const struct http_request *x);

/* Columns: path, operationId, operation; then other members of the row. */
#define SKYRL_POST(path, id, op, ...)                                                              \
    {                                                                                              \
        .methods = METHOD_POST, .pattern = path, .operation_id = id, .executor = EXECUTOR_CONTROL, \
        .role = ROLE_CONTROL, .body = BODY_JSON, .form = FORM_OPENAI, .dialect = DIALECT_SKYRL,    \
        .operation = op, __VA_ARGS__                                                               \
    }
#define SKYRL_SMALL(path, id, op, ...)                                                             \
    SKYRL_POST(path, id, op, .body_max = ROUTE_SMALL_MAX, __VA_ARGS__)

/* Columns: operationId, method, operation; then other members of the row. */
#define SKYRL_RPC(id, name, op, ...)                                                               \
    SKYRL_POST("/collective_rpc", id, op, .body_max = ROUTE_BODY_CONFIG,                           \
               .members = skyrl_rpc_members, .body_match = {"method", name},                       \
               .session = SESSION_OPEN, .translate_response = skyrl_results_response, __VA_ARGS__)

/* Rows of the route table. */
#define DIALECT_SKYRL_ROUTES                                                                       \
    SKYRL_RPC("skyrlRpcStart", "skyrl_start_weight_update", OPERATION_UPDATE_START,                \
              .of_pull = true, .translated_members = update_start_members,                         \
              .translate_request = skyrl_rpc_start_request),                                       \
        SKYRL_RPC("skyrlRpcIpc", "update_weights_ipc", OPERATION_UPDATE,                           \
                  .translated_members = update_members, .error_members = skyrl_info_rows,          \
                  .error_at = "/kwargs/update_info", .translate_request = skyrl_rpc_ipc_request),  \
        SKYRL_RPC("skyrlRpcNccl", "update_weights_nccl", OPERATION_UPDATE, .broadcasts = true,     \
                  .translated_members = update_members, .error_members = skyrl_info_rows,          \
                  .error_at = "/kwargs/update_info", .translate_request = skyrl_rpc_nccl_request), \
        SKYRL_RPC("skyrlRpcFinish", "skyrl_finish_weight_update", OPERATION_UPDATE_FINISH,         \
                  .of_pull = true, .translated_members = update_finish_members,                    \
                  .error_members = skyrl_finish_rows, .error_at = "/kwargs",                       \
                  .translate_request = skyrl_rpc_finish_request),                                  \
        SKYRL_RPC("skyrlRpcSleep", "skyrl_sleep_for_weight_sync", OPERATION_SLEEP,                 \
                  .translated_members = sleep_members,                                             \
                  .translate_request = skyrl_rpc_sleep_request),                                   \
        SKYRL_RPC("skyrlRpcWake", "skyrl_wake_for_weight_sync", OPERATION_WAKE,                    \
                  .translated_members = wake_members, .error_members = skyrl_wake_rows,            \
                  .error_at = "/kwargs", .translate_request = skyrl_rpc_wake_request),             \
        SKYRL_RPC("checkpointEngineRpc", "update_weights_from_ipc", OPERATION_UPDATE_ZMQ,          \
                  .translated_members = update_zmq_members,                                        \
                  .translate_request = skyrl_rpc_zmq_request),                                     \
        SKYRL_POST("/collective_rpc", "skyrlRpc", OPERATION_UNSUPPORTED,                           \
                   .body_max = ROUTE_BODY_CONFIG, .members = skyrl_rpc_members,                    \
                   .translated_members = no_members, .translate_request = skyrl_rpc_refuse),       \
        SKYRL_SMALL("/skyrl/v1/load_lora_adapter", "skyrlLoraLoad", OPERATION_LORA_LOAD,           \
                    .members = skyrl_lora_members, .translated_members = lora_load_members,        \
                    .translate_request = skyrl_lora_request,                                       \
                    .translate_response = skyrl_lora_response),                                    \
        {.methods = METHOD_POST,                                                                   \
         .pattern = "/skyrl/v1/generate",                                                          \
         .operation_id = "skyrlGenerate",                                                          \
         .executor = EXECUTOR_GENERATE,                                                            \
         .role = ROLE_GENERATE,                                                                    \
         .body = BODY_JSON,                                                                        \
         .form = FORM_OPENAI,                                                                      \
         .body_max = ROUTE_DATA_MAX,                                                               \
         .members = skyrl_generate_members,                                                        \
         .dialect = DIALECT_SKYRL,                                                                 \
         .routed_array = true,                                                                     \
         .translated_members = generate_members,                                                   \
         .translate_request = skyrl_generate_request,                                              \
         .operation = OPERATION_GENERATE},                                                         \
        {.methods = METHOD_POST,                                                                   \
         .pattern = "/finish_session",                                                             \
         .operation_id = "skyrlFinishSession",                                                     \
         .executor = EXECUTOR_LOOP,                                                                \
         .role = ROLE_GENERATE,                                                                    \
         .body = BODY_NONE,                                                                        \
         .json_optional = true,                                                                    \
         .form = FORM_OPENAI,                                                                      \
         .body_max = ROUTE_NO_BODY_MAX,                                                            \
         .query = skyrl_session_query,                                                             \
         .dialect = DIALECT_SKYRL,                                                                 \
         .translate_response = dialect_reply_status,                                               \
         .operation = OPERATION_SESSION_FINISH},                                                   \
        SKYRL_SMALL("/fetch_weights", "skyrlFetchWeights", OPERATION_PULL,                         \
                    .members = skyrl_fetch_members, .translated_members = pull_members,            \
                    .translate_request = skyrl_fetch_request,                                      \
                    .translate_response = skyrl_fetch_response),                                   \
        SKYRL_SMALL("/init_weight_transfer_engine", "skyrlInitDeltas", OPERATION_PULL,             \
                    .members = skyrl_deltas_members,                                               \
                    .body_match = {"init_info", NULL, "base_model_path"},                          \
                    .translated_members = pull_members, .error_members = skyrl_deltas_rows,        \
                    .error_at = "/init_info", .translate_request = skyrl_deltas_request,           \
                    .translate_response = skyrl_deltas_response),                                  \
        SKYRL_POST("/update_weights", "skyrlReload", OPERATION_PULL_COMMIT,                        \
                   .body_max = ROUTE_BODY_CONFIG, .members = skyrl_reload_members,                 \
                   .body_match = {"update_info", NULL, "target_version"},                          \
                   .translated_members = pull_commit_members, .error_members = skyrl_reload_rows,  \
                   .error_at = "/update_info", .translate_request = skyrl_reload_request,          \
                   .translate_response = skyrl_reload_response),

#endif
