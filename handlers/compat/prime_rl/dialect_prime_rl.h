/* What prime-rl's clients send: its paths, ways in and out. Pauses are vLLM's, adapters SGLang's.
 */
#ifndef BATON_HANDLERS_COMPAT_PRIME_RL_DIALECT_PRIME_RL_H
#define BATON_HANDLERS_COMPAT_PRIME_RL_DIALECT_PRIME_RL_H

#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/compat/vllm/dialect_vllm.h"
#include "handlers/control_plane.h"
#include "handlers/dialect.h"

extern const char *const prime_rl_update_members[], *const prime_rl_update_into[];
extern const char *const prime_rl_broadcaster_members[];
int prime_rl_update_in(json_t **body, const struct exchange *x, struct err *e);
int prime_rl_broadcaster_in(json_t **body, const struct exchange *x, struct err *e);

/* Columns: methods, body and how long it may be, lane, role; path, operationId, operation; then
 * what differs. */
#define PRIME_RL_ROW(verbs, kind, max, where, who, path, id, op, ...)                              \
    {                                                                                              \
        .methods = verbs, .pattern = path, .operation_id = id, .lane = where, .role = who,         \
        .body = kind, .json_optional = true, .form = FORM_OPENAI, .body_max = max,                 \
        .dialect = DIALECT_PRIME_RL, .operation = op, __VA_ARGS__                                  \
    }
#define PRIME_RL_CONTROL(path, id, op, ...)                                                        \
    PRIME_RL_ROW(METHOD_POST, BODY_JSON, ROUTE_SMALL_MAX, LANE_CONTROL, ROLE_CONTROL, path, id,    \
                 op, __VA_ARGS__)

/* Rows of the route table. */
#define DIALECT_PRIME_RL_ROUTES                                                                    \
    PRIME_RL_ROW(METHOD_POST, BODY_JSON, ROUTE_BODY_CONFIG, LANE_CONTROL, ROLE_CONTROL,            \
                 "/update_weights", "primeRlUpdate", OPERATION_UPDATE,                             \
                 .claim = {"weight_dir", NULL}, .members = prime_rl_update_members,                \
                 .into = prime_rl_update_into, .in = prime_rl_update_in,                           \
                 .out = dialect_out_status),                                                       \
        PRIME_RL_CONTROL("/init_broadcaster", "primeRlInitBroadcaster", OPERATION_UNSUPPORTED,     \
                         .members = prime_rl_broadcaster_members, .into = sglang_nothing,          \
                         .in = prime_rl_broadcaster_in),                                           \
        PRIME_RL_CONTROL("/pause", "primeRlPause", OPERATION_PAUSE, .query = vllm_pause_query,     \
                         .into = pause_members, .in = vllm_pause_in, .out = vllm_pause_out),       \
        PRIME_RL_ROW(METHOD_POST, BODY_NONE, ROUTE_NO_BODY_MAX, LANE_CONTROL, ROLE_CONTROL,        \
                     "/resume", "primeRlResume", OPERATION_COMMIT_RESUME, .out = vllm_resume_out), \
        PRIME_RL_ROW(METHOD_GET | METHOD_HEAD, BODY_NONE, ROUTE_NO_BODY_MAX, LANE_LOOP,            \
                     ROLE_HEALTH, "/liveness", "primeRlLiveness", OPERATION_LIVE,                  \
                     .out = dialect_out_status),                                                   \
        SGLANG_LORA(DIALECT_PRIME_RL, "primeRlLoadLora", "primeRlUnloadLora"),

#endif
