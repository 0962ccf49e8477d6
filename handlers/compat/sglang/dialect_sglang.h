/* What SGLang's clients send: its paths, ways in and out. /generate has a handler of its own
 * (handlers/generate/sglang_generate.c).
 *
 * Where SGLang means something that is not so here:
 *   retract   pushes what runs back into its queue; here it is frozen, as with in_place: KV that is
 *             kept may be used on, and is made again where the weights ask for it
 *   release   of the weights keeps no copy, as SGLang's does by default: nothing is generated until
 *             a whole update has come; /v1/sleep at level 1 keeps one
 *   update    a bucket is received, and served when the model is whole, or generation continues
 *   group     there is one at a time; the last that was asked for replaces it */
#ifndef BATON_HANDLERS_COMPAT_SGLANG_DIALECT_SGLANG_H
#define BATON_HANDLERS_COMPAT_SGLANG_DIALECT_SGLANG_H

#include "handlers/compat/sglang/sglang_tensor.h"
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/dialect.h"

typedef int sglang_in(json_t **body, const struct exchange *x, struct err *e);
typedef int sglang_out(json_t **reply, const struct exchange *x);

/* dialect_sglang.c: weights and the group that brings them */
extern const char *const sglang_group_members[], *const sglang_leave_members[];
extern const char *const sglang_distributed_members[], *const sglang_one_members[];
extern const char *const sglang_disk_members[], *const sglang_disk_into[];
extern const char *const sglang_ipc_members[], *const sglang_nothing[];
extern const char *const sglang_begin_members[];
extern const char *const sglang_checker_members[], *const sglang_label_members[];
sglang_in sglang_group_in, sglang_distributed_in, sglang_one_in, sglang_disk_in, sglang_ipc_in;
sglang_in sglang_leave_in, sglang_begin_in, sglang_end_in, sglang_checker_in, sglang_label_in;
sglang_in sglang_reset_in;
sglang_out sglang_group_out, sglang_leave_out, sglang_begin_out, sglang_update_out, sglang_disk_out;
sglang_out sglang_checker_out, sglang_label_out, sglang_reset_out;

/* dialect_sglang_life.c: pause, memory, requests, adapters */
extern const char *const sglang_pause_members[], *const sglang_continue_members[];
extern const char *const sglang_memory_members[], *const sglang_abort_members[];
extern const char *const sglang_lora_members[], *const sglang_unlora_members[];
extern const char *const sglang_lora_tensors_members[];
sglang_in sglang_pause_in, sglang_release_in, sglang_memory_in, sglang_abort_in;
sglang_in sglang_lora_in, sglang_unlora_in, sglang_lora_tensors_in, sglang_refused_in;
sglang_out sglang_pause_out, sglang_continue_out, sglang_flush_out, sglang_lora_out;

/* dialect_sglang_view.c: what the server says of itself */
extern const char *const sglang_info_query[], *const sglang_loads_query[];
sglang_out sglang_model_out, sglang_server_out, sglang_version_out, sglang_load_out;
sglang_out sglang_loads_out;

/* Columns: dialect, form of errors, methods, body and how long it may be; path, operationId,
 * operation; then what differs. */
#define SGLANG_ROW(whose, errors, verbs, kind, max, path, id, op, ...)                             \
    {                                                                                              \
        .methods = verbs, .pattern = path, .operation_id = id, .lane = LANE_CONTROL,               \
        .role = ROLE_CONTROL, .body = kind, .json_optional = true, .form = errors,                 \
        .body_max = max, .dialect = whose, .operation = op, __VA_ARGS__                            \
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
#define SGLANG_VIEW(who, path, id, op, ...)                                                        \
    {                                                                                              \
        .methods = METHOD_GET | METHOD_HEAD, .pattern = path, .operation_id = id,                  \
        .lane = LANE_LOOP, .role = who, .body = BODY_NONE, .json_optional = true,                  \
        .form = FORM_SGLANG, .body_max = ROUTE_NO_BODY_MAX, .dialect = DIALECT_SGLANG,             \
        .operation = op, __VA_ARGS__                                                               \
    }

/* An update whose beginning and end are said. Trainers of before 0.5.18 say neither. */
#define SGLANG_SESSION                                                                             \
    SGLANG_CONTROL("/begin_weight_update", "sglangBegin", OPERATION_UPDATE_START,                  \
                   .session = SESSION_OPEN, .members = sglang_begin_members,                       \
                   .into = update_start_members, .in = sglang_begin_in, .out = sglang_begin_out),  \
        SGLANG_CONTROL("/end_weight_update", "sglangEnd", OPERATION_UPDATE_FINISH,                 \
                       .session = SESSION_OPEN, .into = update_finish_members,                     \
                       .in = sglang_end_in, .out = sglang_update_out)

/* A part of a model, by the group: the session is whichever is open. */
#define SGLANG_BUCKETS                                                                             \
    SGLANG_LONG("/update_weights_from_distributed", "sglangUpdateOne", OPERATION_UPDATE,           \
                .session = SESSION_IMPLICIT, .claim = {"name", NULL},                              \
                .members = sglang_one_members, .whole = true, .into = update_members,              \
                .in = sglang_one_in, .out = sglang_update_out),                                    \
        SGLANG_LONG("/update_weights_from_distributed", "sglangUpdate", OPERATION_UPDATE,          \
                    .session = SESSION_IMPLICIT, .members = sglang_distributed_members,            \
                    .into = update_members, .in = sglang_distributed_in, .out = sglang_update_out)

#define SGLANG_WEIGHTS                                                                             \
    SGLANG_CONTROL("/init_weights_update_group", "sglangInitGroup", OPERATION_TRANSFER_INIT,       \
                   .session = SESSION_IMPLICIT, .members = sglang_group_members,                   \
                   .into = transfer_init_members, .in = sglang_group_in, .out = sglang_group_out), \
        SGLANG_CONTROL("/destroy_weights_update_group", "sglangDestroyGroup",                      \
                       OPERATION_TRANSFER_DELETE, .members = sglang_leave_members,                 \
                       .claim = {"group_name", NULL}, .into = transfer_delete_members,             \
                       .in = sglang_leave_in, .out = sglang_leave_out),                            \
        SGLANG_SESSION, SGLANG_BUCKETS,                                                            \
        SGLANG_CONTROL("/update_weights_from_disk", "sglangUpdateDisk", OPERATION_UPDATE,          \
                       .members = sglang_disk_members, .into = sglang_disk_into,                   \
                       .in = sglang_disk_in, .out = sglang_disk_out),                              \
        SGLANG_CONTROL("/update_weights_from_ipc", "sglangUpdateIpc", OPERATION_UPDATE_ZMQ,        \
                       .members = sglang_ipc_members, .into = update_zmq_members,                  \
                       .in = sglang_ipc_in, .out = sglang_update_out),                             \
        SGLANG_BOTH("/get_weights_by_name", "sglangWeights", OPERATION_WEIGHT_VALUES,              \
                    .members = weight_values_members),                                             \
        SGLANG_CONTROL("/weights_checker", "sglangChecker", OPERATION_WEIGHTS_CHECK,               \
                       .members = sglang_checker_members, .into = weights_check_members,           \
                       .in = sglang_checker_in, .out = sglang_checker_out),                        \
        SGLANG_CONTROL("/weights_checker", "sglangCheckerReset", OPERATION_SLEEP,                  \
                       .members = sglang_checker_members, .claim = {"action", "reset_tensors"},    \
                       .into = sleep_members, .in = sglang_reset_in, .out = sglang_reset_out),     \
        SGLANG_CONTROL("/update_weight_version", "sglangUpdateVersion", OPERATION_WEIGHTS_LABEL,   \
                       .claim = {"abort_all_requests", NULL}, .members = sglang_label_members,     \
                       .into = weights_label_members, .in = sglang_label_in,                       \
                       .out = sglang_label_out)

#define SGLANG_LIFE                                                                                \
    SGLANG_CONTROL("/pause_generation", "sglangPause", OPERATION_PAUSE,                            \
                   .members = sglang_pause_members, .into = pause_members, .in = sglang_pause_in,  \
                   .out = sglang_pause_out),                                                       \
        SGLANG_CONTROL("/continue_generation", "sglangContinue", OPERATION_COMMIT_RESUME,          \
                       .members = sglang_continue_members, .out = sglang_continue_out),            \
        SGLANG_ROW(DIALECT_SGLANG, FORM_SGLANG, METHOD_GET | METHOD_POST, BODY_NONE,               \
                   ROUTE_NO_BODY_MAX, "/flush_cache", "sglangFlush", OPERATION_FLUSH_CACHE,        \
                   .get_acts = true, .out = sglang_flush_out),                                     \
        SGLANG_BOTH("/release_memory_occupation", "sglangRelease", OPERATION_SLEEP,                \
                    .get_acts = true, .members = sglang_memory_members, .into = sleep_members,     \
                    .in = sglang_release_in, .out = dialect_out_null),                             \
        SGLANG_BOTH("/resume_memory_occupation", "sglangResume", OPERATION_WAKE, .get_acts = true, \
                    .members = sglang_memory_members, .into = wake_members,                        \
                    .in = sglang_memory_in, .out = dialect_out_null),                              \
        SGLANG_CONTROL("/abort_request", "sglangAbort", OPERATION_ABORT_REQUESTS,                  \
                       .members = sglang_abort_members, .into = abort_requests_members,            \
                       .in = sglang_abort_in, .out = dialect_out_null)

/* Said by name, for a path that is not there would say less. */
#define SGLANG_REFUSED(path, id)                                                                   \
    SGLANG_CONTROL(path, id, OPERATION_UNSUPPORTED, .in = sglang_refused_in, .into = sglang_nothing)
#define SGLANG_REFUSALS                                                                            \
    SGLANG_REFUSED("/slow_down", "sglangSlowDown"),                                                \
        SGLANG_REFUSED("/set_internal_state", "sglangSetState"),                                   \
        SGLANG_REFUSED("/start_profile", "sglangStartProfile"),                                    \
        SGLANG_REFUSED("/stop_profile", "sglangStopProfile"),                                      \
        SGLANG_REFUSED("/post_process_weights", "sglangPostProcess"),                              \
        SGLANG_REFUSED("/pull_weights", "sglangPull")

/* Shared with prime-rl, whose clients retry by the status. */
#define SGLANG_LORA(whose, load, unload)                                                           \
    SGLANG_ROW(whose, FORM_SGLANG_LORA, METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX,                   \
               "/load_lora_adapter", load, OPERATION_LORA_LOAD, .members = sglang_lora_members,    \
               .into = lora_load_members, .in = sglang_lora_in, .out = sglang_lora_out),           \
        SGLANG_ROW(whose, FORM_SGLANG_LORA, METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX,               \
                   "/unload_lora_adapter", unload, OPERATION_LORA_UNLOAD,                          \
                   .members = sglang_unlora_members, .into = lora_unload_members,                  \
                   .in = sglang_unlora_in, .out = sglang_lora_out)

#define SGLANG_VIEWS                                                                               \
    SGLANG_VIEW(ROLE_HEALTH, "/health_generate", "sglangHealth", OPERATION_READY,                  \
                .out = dialect_out_empty),                                                         \
        SGLANG_VIEW(ROLE_VIEWER, "/get_model_info", "sglangModelInfo", OPERATION_STATUS,           \
                    .out = sglang_model_out),                                                      \
        SGLANG_VIEW(ROLE_VIEWER, "/model_info", "sglangModelInfoNew", OPERATION_STATUS,            \
                    .out = sglang_model_out),                                                      \
        SGLANG_VIEW(ROLE_VIEWER, "/get_server_info", "sglangServerInfo", OPERATION_RANKS,          \
                    .out = sglang_server_out),                                                     \
        SGLANG_VIEW(ROLE_VIEWER, "/server_info", "sglangServerInfoNew", OPERATION_RANKS,           \
                    .query = sglang_info_query, .out = sglang_server_out),                         \
        SGLANG_VIEW(ROLE_VIEWER, "/get_weight_version", "sglangWeightVersion", OPERATION_STATUS,   \
                    .out = sglang_version_out),                                                    \
        SGLANG_VIEW(ROLE_VIEWER, "/get_load", "sglangLoad", OPERATION_STATUS,                      \
                    .out = sglang_load_out),                                                       \
        SGLANG_VIEW(ROLE_VIEWER, "/v1/loads", "sglangLoads", OPERATION_STATUS,                     \
                    .query = sglang_loads_query, .out = sglang_loads_out)

#define SGLANG_GENERATE                                                                            \
    {                                                                                              \
        .methods = METHOD_POST | METHOD_PUT, .pattern = "/generate",                               \
        .operation_id = "sglangGenerate", .lane = LANE_GENERATE, .role = ROLE_GENERATE,            \
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
                   .into = sglang_nothing, .in = sglang_lora_tensors_in),                          \
        SGLANG_VIEWS, SGLANG_GENERATE,

#endif
