/* prime-rl's routes, with the translation of their requests and replies. Pauses are as in vLLM,
 * adapters as in SGLang. */
#ifndef BATON_HANDLERS_COMPAT_PRIME_RL_DIALECT_PRIME_RL_H
#define BATON_HANDLERS_COMPAT_PRIME_RL_DIALECT_PRIME_RL_H

#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/compat/vllm/dialect_vllm.h"
#include "handlers/control_plane.h"
#include "handlers/dialect.h"

extern const struct member prime_rl_update_members[];
extern const struct member prime_rl_broadcaster_members[];
int prime_rl_update_request(json_t **body, const struct http_request *x, struct err *e);
int prime_rl_broadcaster_request(json_t **body, const struct http_request *x, struct err *e);

/* Columns: methods, body and its maximum length, executor, role; path, operationId, operation; then
 * other members of the row. */
#define PRIME_RL_ROW(verbs, kind, max, runs_on, needs_role, path, id, op, ...)                     \
    {                                                                                              \
        .methods = verbs, .pattern = path, .operation_id = id, .executor = runs_on,                \
        .role = needs_role, .body = kind, .json_optional = true, .form = FORM_OPENAI,              \
        .body_max = max, .dialect = DIALECT_PRIME_RL, .operation = op, __VA_ARGS__                 \
    }
#define PRIME_RL_CONTROL(path, id, op, ...)                                                        \
    PRIME_RL_ROW(METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX, EXECUTOR_CONTROL, ROLE_CONTROL, path,    \
                 id, op, __VA_ARGS__)

/* Rows of the route table. */
#define DIALECT_PRIME_RL_ROUTES                                                                    \
    PRIME_RL_ROW(                                                                                  \
        METHOD_POST, BODY_JSON, ROUTE_BODY_CONFIG, EXECUTOR_CONTROL, ROLE_CONTROL,                 \
        "/update_weights", "primeRlUpdate", OPERATION_UPDATE, .body_match = {"weight_dir", NULL},  \
        .members = prime_rl_update_members, .translated_members = update_members,                  \
        .translate_request = prime_rl_update_request, .translate_response = dialect_reply_status), \
        PRIME_RL_CONTROL("/init_broadcaster", "primeRlInitBroadcaster", OPERATION_UNSUPPORTED,     \
                         .members = prime_rl_broadcaster_members,                                  \
                         .translated_members = no_members,                                         \
                         .translate_request = prime_rl_broadcaster_request),                       \
        PRIME_RL_CONTROL("/pause", "primeRlPause", OPERATION_PAUSE, .query = vllm_pause_query,     \
                         .translated_members = pause_members,                                      \
                         .translate_request = vllm_pause_request,                                  \
                         .translate_response = vllm_pause_response),                               \
        PRIME_RL_ROW(METHOD_POST, BODY_NONE, ROUTE_NO_BODY_MAX, EXECUTOR_CONTROL, ROLE_CONTROL,    \
                     "/resume", "primeRlResume", OPERATION_COMMIT_RESUME,                          \
                     .translate_response = vllm_resume_response),                                  \
        PRIME_RL_ROW(METHOD_GET | METHOD_HEAD, BODY_NONE, ROUTE_NO_BODY_MAX, EXECUTOR_LOOP,        \
                     ROLE_HEALTH, "/liveness", "primeRlLiveness", OPERATION_LIVE,                  \
                     .translate_response = dialect_reply_status),                                  \
        SGLANG_LORA(DIALECT_PRIME_RL, "primeRlLoadLora", "primeRlUnloadLora"),

#endif
