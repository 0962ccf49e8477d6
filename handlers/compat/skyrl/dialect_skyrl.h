/* What SkyRL's clients send: its paths, ways in and out. What it shares with vLLM is in vLLM's
 * table.
 *
 * Today's client opens and closes each update by /collective_rpc. The forms before that (until
 * March 2026) have neither start nor finish: their first request opens an update, which is
 * committed when the model is covered, or by /finalize_weight_update or /resume. */
#ifndef BATON_HANDLERS_COMPAT_SKYRL_DIALECT_SKYRL_H
#define BATON_HANDLERS_COMPAT_SKYRL_DIALECT_SKYRL_H

#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/dialect.h"

extern const char *const skyrl_rpc_members[], *const skyrl_nothing[];
extern const char *const skyrl_lora_members[], *const skyrl_lora_into[];
extern const char *const skyrl_generate_members[], *const skyrl_generate_into[];
extern const char *const skyrl_fetch_members[], *const skyrl_session_query[];
extern const char *const skyrl_join_members[], *const skyrl_destroy_members[];
extern const char *const skyrl_one_members[], *const skyrl_list_members[];
extern const char *const skyrl_pause_members[];

/* Ways in, of methods of /collective_rpc. */
int skyrl_rpc_start_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_ipc_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_nccl_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_finish_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_sleep_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_wake_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_zmq_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_rpc_refuse(json_t **body, const struct exchange *x, struct err *e);

/* Of routes of its own. */
int skyrl_lora_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_generate_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_fetch_refuse(json_t **body, const struct exchange *x, struct err *e);

/* Of the older forms. */
int skyrl_join_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_join_ipc_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_destroy_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_one_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_list_in(json_t **body, const struct exchange *x, struct err *e);
int skyrl_pause_in(json_t **body, const struct exchange *x, struct err *e);

/* Ways out: one null for each rank; {status, lora_name, lora_int_id}; exactly one choice. */
int skyrl_results_out(json_t **reply, const struct exchange *x);
int skyrl_lora_out(json_t **reply, const struct exchange *x);
int skyrl_generate_out(json_t **reply, const struct exchange *x);
int skyrl_info_out(json_t **reply, const struct exchange *x);
int skyrl_paused_out(json_t **reply, const struct exchange *x);

/* Columns: path, operationId, operation; then what differs. */
#define SKYRL_POST(path, id, op, ...)                                                              \
    {                                                                                              \
        .methods = METHOD_POST, .pattern = path, .operation_id = id, .lane = LANE_CONTROL,         \
        .role = ROLE_CONTROL, .body = BODY_JSON, .form = FORM_OPENAI, .dialect = DIALECT_SKYRL,    \
        .operation = op, __VA_ARGS__                                                               \
    }
#define SKYRL_SMALL(path, id, op, ...)                                                             \
    SKYRL_POST(path, id, op, .body_max = ROUTE_SMALL_MAX, __VA_ARGS__)

/* Columns: operationId, method, operation; then what differs. */
#define SKYRL_RPC(id, name, op, ...)                                                               \
    SKYRL_POST("/collective_rpc", id, op, .body_max = ROUTE_BODY_CONFIG,                           \
               .members = skyrl_rpc_members, .claim = {"method", name}, .session = SESSION_OPEN,   \
               .out = skyrl_results_out, __VA_ARGS__)

/* Columns: path, operationId; then what differs. */
#define SKYRL_UPDATE(path, id, ...)                                                                \
    SKYRL_POST(path, id, OPERATION_UPDATE, .body_max = ROUTE_BODY_CONFIG,                          \
               .session = SESSION_IMPLICIT, .into = update_members, .out = dialect_out_status,     \
               __VA_ARGS__)

/* Rows of the route table. */
#define SKYRL_NOW_ROUTES                                                                           \
    SKYRL_RPC("skyrlRpcStart", "skyrl_start_weight_update", OPERATION_UPDATE_START,                \
              .into = update_start_members, .in = skyrl_rpc_start_in),                             \
        SKYRL_RPC("skyrlRpcIpc", "update_weights_ipc", OPERATION_UPDATE, .into = update_members,   \
                  .in = skyrl_rpc_ipc_in),                                                         \
        SKYRL_RPC("skyrlRpcNccl", "update_weights_nccl", OPERATION_UPDATE, .into = update_members, \
                  .in = skyrl_rpc_nccl_in),                                                        \
        SKYRL_RPC("skyrlRpcFinish", "skyrl_finish_weight_update", OPERATION_UPDATE_FINISH,         \
                  .into = update_finish_members, .in = skyrl_rpc_finish_in),                       \
        SKYRL_RPC("skyrlRpcSleep", "skyrl_sleep_for_weight_sync", OPERATION_SLEEP,                 \
                  .into = sleep_members, .in = skyrl_rpc_sleep_in),                                \
        SKYRL_RPC("skyrlRpcWake", "skyrl_wake_for_weight_sync", OPERATION_WAKE,                    \
                  .into = wake_members, .in = skyrl_rpc_wake_in),                                  \
        SKYRL_RPC("checkpointEngineRpc", "update_weights_from_ipc", OPERATION_UPDATE_ZMQ,          \
                  .into = update_zmq_members, .in = skyrl_rpc_zmq_in),                             \
        SKYRL_POST("/collective_rpc", "skyrlRpc", OPERATION_UNSUPPORTED,                           \
                   .body_max = ROUTE_BODY_CONFIG, .members = skyrl_rpc_members,                    \
                   .into = skyrl_nothing, .in = skyrl_rpc_refuse),                                 \
        SKYRL_SMALL("/skyrl/v1/load_lora_adapter", "skyrlLoraLoad", OPERATION_LORA_LOAD,           \
                    .members = skyrl_lora_members, .into = skyrl_lora_into, .in = skyrl_lora_in,   \
                    .out = skyrl_lora_out),                                                        \
        {.methods = METHOD_POST,                                                                   \
         .pattern = "/skyrl/v1/generate",                                                          \
         .operation_id = "skyrlGenerate",                                                          \
         .lane = LANE_GENERATE,                                                                    \
         .role = ROLE_GENERATE,                                                                    \
         .body = BODY_JSON,                                                                        \
         .form = FORM_OPENAI,                                                                      \
         .body_max = ROUTE_DATA_MAX,                                                               \
         .members = skyrl_generate_members,                                                        \
         .dialect = DIALECT_SKYRL,                                                                 \
         .into = skyrl_generate_into,                                                              \
         .in = skyrl_generate_in,                                                                  \
         .out = skyrl_generate_out,                                                                \
         .operation = OPERATION_GENERATE},                                                         \
        {.methods = METHOD_POST,                                                                   \
         .pattern = "/finish_session",                                                             \
         .operation_id = "skyrlFinishSession",                                                     \
         .lane = LANE_LOOP,                                                                        \
         .role = ROLE_GENERATE,                                                                    \
         .body = BODY_NONE,                                                                        \
         .json_optional = true,                                                                    \
         .form = FORM_OPENAI,                                                                      \
         .body_max = ROUTE_NO_BODY_MAX,                                                            \
         .query = skyrl_session_query,                                                             \
         .dialect = DIALECT_SKYRL,                                                                 \
         .out = dialect_out_status,                                                                \
         .operation = OPERATION_SESSION_FINISH},                                                   \
        SKYRL_SMALL("/fetch_weights", "skyrlFetchWeights", OPERATION_UNSUPPORTED,                  \
                    .members = skyrl_fetch_members, .into = skyrl_nothing,                         \
                    .in = skyrl_fetch_refuse),

#define SKYRL_OLD_ROUTES                                                                           \
    SKYRL_SMALL("/init_weight_update_communicator", "skyrlInitCommunicator",                       \
                OPERATION_TRANSFER_INIT, .session = SESSION_IMPLICIT,                              \
                .members = skyrl_join_members, .into = transfer_init_members, .in = skyrl_join_in, \
                .out = dialect_out_status),                                                        \
        SKYRL_SMALL("/init_weight_transfer", "skyrlInitTransfer", OPERATION_TRANSFER_INIT,         \
                    .session = SESSION_IMPLICIT, .members = skyrl_join_members,                    \
                    .claim = {"master_addr", NULL}, .into = transfer_init_members,                 \
                    .in = skyrl_join_in, .out = dialect_out_status),                               \
        SKYRL_SMALL("/init_weight_transfer", "skyrlInitTransferIpc", OPERATION_TRANSFER_INIT,      \
                    .session = SESSION_IMPLICIT, .members = skyrl_join_members,                    \
                    .into = transfer_init_members, .in = skyrl_join_ipc_in,                        \
                    .out = dialect_out_status),                                                    \
        SKYRL_UPDATE("/update_weights", "skyrlUpdateOne", .members = skyrl_one_members,            \
                     .claim = {"name", NULL}, .whole = true, .in = skyrl_one_in),                  \
        SKYRL_UPDATE("/update_weights", "skyrlUpdateList", .members = skyrl_list_members,          \
                     .claim = {"names", NULL}, .in = skyrl_list_in),                               \
        SKYRL_UPDATE("/update_weights_skyrl", "skyrlUpdate", .members = skyrl_list_members,        \
                     .in = skyrl_list_in),                                                         \
        SKYRL_SMALL("/finalize_weight_update", "skyrlFinalize", OPERATION_COMMIT_IMPLICIT,         \
                    .json_optional = true, .out = dialect_out_status),                             \
        SKYRL_SMALL("/destroy_weights_update_group", "skyrlDestroyGroup",                          \
                    OPERATION_TRANSFER_DELETE, .json_optional = true,                              \
                    .members = skyrl_destroy_members, .into = transfer_delete_members,             \
                    .in = skyrl_destroy_in, .out = dialect_out_status),                            \
        SKYRL_SMALL("/pause", "skyrlPause", OPERATION_PAUSE, .members = skyrl_pause_members,       \
                    .claim = {"wait_for_inflight_request", NULL}, .into = pause_members,           \
                    .in = skyrl_pause_in, .out = skyrl_paused_out),                                \
        {.methods = METHOD_GET | METHOD_HEAD,                                                      \
         .pattern = "/get_server_info",                                                            \
         .operation_id = "skyrlServerInfo",                                                        \
         .lane = LANE_LOOP,                                                                        \
         .role = ROLE_VIEWER,                                                                      \
         .body = BODY_NONE,                                                                        \
         .json_optional = true,                                                                    \
         .form = FORM_OPENAI,                                                                      \
         .body_max = ROUTE_NO_BODY_MAX,                                                            \
         .dialect = DIALECT_SKYRL,                                                                 \
         .out = skyrl_info_out,                                                                    \
         .operation = OPERATION_RANKS},

#define DIALECT_SKYRL_ROUTES SKYRL_NOW_ROUTES SKYRL_OLD_ROUTES

#endif
