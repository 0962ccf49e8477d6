/* The operations of the API, the same for all dialects: a row of the route table names one, and
 * server/operations.c has its handlers. */
#ifndef BATON_HANDLERS_OPERATION_H
#define BATON_HANDLERS_OPERATION_H

/* Columns: the operation; the call (control/lifecycle.h) by whose rules it is refused while the
 * server starts or drains. */
#define OPERATIONS(X)                                                                              \
    X(OPERATION_LIVE, CALL_GENERATE)                                                               \
    X(OPERATION_READY, CALL_GENERATE)                                                              \
    X(OPERATION_PAGE, CALL_GENERATE)                                                               \
    X(OPERATION_DOCS, CALL_GENERATE)                                                               \
    X(OPERATION_OPENAPI, CALL_GENERATE)                                                            \
    X(OPERATION_VERSION, CALL_GENERATE)                                                            \
    X(OPERATION_STATUS, CALL_GENERATE)                                                             \
    X(OPERATION_EVENTS, CALL_GENERATE)                                                             \
    X(OPERATION_GENERATIONS, CALL_GENERATE)                                                        \
    X(OPERATION_RANKS, CALL_GENERATE) /* the status, and how many ranks make tokens */             \
    X(OPERATION_METRICS, CALL_GENERATE)                                                            \
    X(OPERATION_MODELS, CALL_GENERATE)                                                             \
    X(OPERATION_MODEL, CALL_GENERATE)                                                              \
    X(OPERATION_UPSTREAMS, CALL_GENERATE)                                                          \
    X(OPERATION_UPSTREAM_READY, CALL_GENERATE)                                                     \
    X(OPERATION_UPSTREAM_ADD, CALL_GENERATE)                                                       \
    X(OPERATION_UPSTREAM_REMOVE, CALL_GENERATE)                                                    \
    X(OPERATION_UPSTREAMS_PROVE, CALL_GENERATE)                                                    \
    X(OPERATION_RESYNC, CALL_GENERATE)                                                             \
    X(OPERATION_UPDATE_START, CALL_GENERATE)                                                       \
    X(OPERATION_UPDATE, CALL_UPDATE_RECEIVE)                                                       \
    X(OPERATION_UPDATE_VERIFY, CALL_UPDATE_FINISH)                                                 \
    X(OPERATION_UPDATE_FINISH, CALL_UPDATE_FINISH)                                                 \
    X(OPERATION_UPDATE_ABORT, CALL_UPDATE_ABORT)                                                   \
    X(OPERATION_UPDATE_RENEW, CALL_UPDATE_RECEIVE)                                                 \
    X(OPERATION_UPDATE_GET, CALL_UPDATE_RECEIVE)                                                   \
    X(OPERATION_UPDATE_DELETE, CALL_UPDATE_ABORT)                                                  \
    X(OPERATION_UPDATE_ZMQ, CALL_GENERATE)                                                         \
    X(OPERATION_PULL, CALL_UPDATE_RECEIVE)                                                         \
    X(OPERATION_PULL_COMMIT, CALL_UPDATE_FINISH)                                                   \
    X(OPERATION_COMMIT_RESUME, CALL_RESUME)                                                        \
    X(OPERATION_TENSOR_LIST_PUT, CALL_GENERATE)                                                    \
    X(OPERATION_WEIGHTS_LIST, CALL_GENERATE)                                                       \
    X(OPERATION_WEIGHTS_DIFF, CALL_GENERATE)                                                       \
    X(OPERATION_WEIGHTS_GET, CALL_GENERATE)                                                        \
    X(OPERATION_WEIGHTS_LABEL, CALL_GENERATE)                                                      \
    X(OPERATION_WEIGHTS_CHECK, CALL_GENERATE)                                                      \
    X(OPERATION_WEIGHT_VALUES, CALL_GENERATE)                                                      \
    X(OPERATION_HANDLES_GET, CALL_GENERATE)                                                        \
    X(OPERATION_HANDLES_RENEW, CALL_GENERATE)                                                      \
    X(OPERATION_HANDLES_DELETE, CALL_GENERATE)                                                     \
    X(OPERATION_LEASES_OPEN, CALL_GENERATE)                                                        \
    X(OPERATION_LEASES_RENEW, CALL_GENERATE)                                                       \
    X(OPERATION_LEASES_DELETE, CALL_GENERATE)                                                      \
    X(OPERATION_WEIGHTS_FILE, CALL_GENERATE)                                                       \
    X(OPERATION_WEIGHTS_SEED, CALL_UPDATE_START)                                                   \
    X(OPERATION_PREFLIGHT, CALL_GENERATE)                                                          \
    X(OPERATION_TRANSFER_INIT, CALL_GENERATE)                                                      \
    X(OPERATION_TRANSFER_GET, CALL_GENERATE)                                                       \
    X(OPERATION_TRANSFER_DELETE, CALL_GENERATE)                                                    \
    X(OPERATION_PAUSE, CALL_GENERATE)                                                              \
    X(OPERATION_RESUME, CALL_RESUME)                                                               \
    X(OPERATION_SLEEP, CALL_GENERATE)                                                              \
    X(OPERATION_WAKE, CALL_GENERATE)                                                               \
    X(OPERATION_RESET_CACHE, CALL_GENERATE)                                                        \
    X(OPERATION_FLUSH_CACHE, CALL_GENERATE)                                                        \
    X(OPERATION_ABORT_REQUESTS, CALL_ABORT_REQUESTS)                                               \
    X(OPERATION_LORA_LOAD, CALL_GENERATE)                                                          \
    X(OPERATION_LORA_UNLOAD, CALL_GENERATE)                                                        \
    X(OPERATION_LORA_LIST, CALL_GENERATE)                                                          \
    X(OPERATION_LORA_FILE, CALL_GENERATE)                                                          \
    X(OPERATION_GENERATE, CALL_GENERATE)                                                           \
    X(OPERATION_ROLLOUTS, CALL_GENERATE)                                                           \
    X(OPERATION_COMPLETIONS, CALL_GENERATE)                                                        \
    X(OPERATION_CHAT, CALL_GENERATE)                                                               \
    X(OPERATION_CHAT_RENDER, CALL_GENERATE)                                                        \
    X(OPERATION_SGLANG_GENERATE, CALL_GENERATE)                                                    \
    X(OPERATION_TOKENIZE, CALL_GENERATE)                                                           \
    X(OPERATION_DETOKENIZE, CALL_GENERATE)                                                         \
    X(OPERATION_PROXIED, CALL_GENERATE) /* routes that only upstream engines have */               \
    X(OPERATION_AREAL_META, CALL_GENERATE)                                                         \
    X(OPERATION_AREAL_LORA_META, CALL_GENERATE)                                                    \
    X(OPERATION_SESSION_FINISH, CALL_GENERATE)                                                     \
    X(OPERATION_UNSUPPORTED, CALL_GENERATE) /* refused by name, for a reason */

enum operation {
    OPERATION_NONE, /* a row without an operation, which is a bug */
#define X(operation, call) operation,
    OPERATIONS(X)
#undef X
        OPERATION_COUNT
};

#endif
