/* Routes of the data plane that upstream engines have and the embedded engine does not. In front of
 * a fleet they are forwarded as they come (fleet/proxy/proxy.h); without upstreams they are 404.
 *
 * Paths: vLLM 0.32 (vllm/entrypoints), SGLang 0.5.23 (srt/entrypoints/http_server.py). What makes
 * tokens or vectors takes a generation permit, and waits while its engine is paused; what only
 * reads or makes text takes a text permit. */
#ifndef BATON_HANDLERS_PROXIED_H
#define BATON_HANDLERS_PROXIED_H

#include "base/err.h"
#include "http/http_request.h"

struct app;

/* handle_proxied - the handler without upstreams. Errors: ERR_NOT_FOUND, always. */
int handle_proxied(struct app *app, struct http_request *x, struct err *e);

/* Bodies are not parsed, whatever their type. */
#define PROXIED(executor_, methods_, path, id)                                                     \
    {                                                                                              \
        .methods = methods_, .pattern = path, .operation_id = id, .executor = executor_,           \
        .role = ROLE_GENERATE, .body = BODY_NONE, .json_optional = true, .form = FORM_OPENAI,      \
        .body_max = ROUTE_BODY_CONFIG, .operation = OPERATION_PROXIED                              \
    }
#define PROXIED_MODEL(path, id) PROXIED(EXECUTOR_GENERATE, METHOD_POST, path, id)
#define PROXIED_TEXT(path, id)  PROXIED(EXECUTOR_TEXT, METHOD_POST, path, id)

/* Rows of the route table. */
#define PROXIED_ROUTES                                                                             \
    PROXIED_MODEL("/v1/responses", "responses"), PROXIED_MODEL("/v1/messages", "messages"),        \
        PROXIED_MODEL("/v1/chat/completions/batch", "chatBatch"),                                  \
        PROXIED_MODEL("/v1/systemone", "systemone"),                                               \
        PROXIED_MODEL("/cohere/v2/chat", "cohereChat"),                                            \
        PROXIED_MODEL("/invocations", "invocations"),                                              \
        PROXIED_MODEL("/generative_scoring", "generativeScoring"),                                 \
        PROXIED_MODEL("/v1/score", "v1Score"), PROXIED_MODEL("/score", "score"),                   \
        PROXIED_MODEL("/v1/rerank", "v1Rerank"), PROXIED_MODEL("/v2/rerank", "v2Rerank"),          \
        PROXIED_MODEL("/rerank", "rerank"), PROXIED_MODEL("/v1/classify", "v1Classify"),           \
        PROXIED_MODEL("/classify", "classify"), PROXIED_MODEL("/v1/embeddings", "embeddings"),     \
        PROXIED_MODEL("/v2/embed", "v2Embed"), PROXIED_MODEL("/encode", "encode"),                 \
        PROXIED_MODEL("/pooling", "pooling"),                                                      \
        PROXIED_MODEL("/v1/audio/transcriptions", "audioTranscriptions"),                          \
        PROXIED_MODEL("/v1/audio/translations", "audioTranslations"),                              \
        PROXIED_TEXT("/v1/completions/render", "completionsRender"),                               \
        PROXIED_TEXT("/v1/completions/derender", "completionsDerender"),                           \
        PROXIED_TEXT("/v1/chat/completions/derender", "chatDerender"),                             \
        PROXIED_TEXT("/v1/responses/render", "responsesRender"),                                   \
        PROXIED_TEXT("/v1/messages/render", "messagesRender"),                                     \
        PROXIED_TEXT("/v1/messages/count_tokens", "messagesCountTokens"),                          \
        PROXIED_TEXT("/cohere/v2/chat/render", "cohereChatRender"),                                \
        PROXIED_TEXT("/v1/tokenize", "v1Tokenize"),                                                \
        PROXIED_TEXT("/v1/detokenize", "v1Detokenize"),                                            \
        PROXIED_TEXT("/parse_function_call", "parseFunctionCall"),                                 \
        PROXIED_TEXT("/separate_reasoning", "separateReasoning"),                                  \
        PROXIED(EXECUTOR_TEXT, METHOD_GET | METHOD_HEAD, "/tokenizer_info", "tokenizerInfo"),      \
        PROXIED(EXECUTOR_TEXT, METHOD_GET | METHOD_HEAD | METHOD_POST,                             \
                "/v1/responses/{response_id}", "responsesGet"),

#endif
