/* Routes of the data plane that upstream engines have and the embedded one does not: they go on as
 * they came (fleet/proxy/proxy.h), and are 404 where there is no upstream.
 *
 * Paths: vLLM 0.32 (vllm/entrypoints), SGLang 0.5.23 (srt/entrypoints/http_server.py). What makes
 * tokens or vectors takes a permit of generation, and waits while its engine stands still; what
 * only reads or makes text takes one of text. */
#ifndef BATON_HANDLERS_RELAYED_H
#define BATON_HANDLERS_RELAYED_H

#include "base/err.h"
#include "http/http_request.h"

struct app;

/* handle_relayed - where there is no upstream. Errors: ERR_NOT_FOUND. */
int handle_relayed(struct app *app, struct http_request *x, struct err *e);

/* No body is looked into, whatever its type. */
#define RELAYED(executor_, methods_, path, id)                                                     \
    {                                                                                              \
        .methods = methods_, .pattern = path, .operation_id = id, .executor = executor_,           \
        .role = ROLE_GENERATE, .body = BODY_NONE, .json_optional = true, .form = FORM_OPENAI,      \
        .body_max = ROUTE_BODY_CONFIG, .operation = OPERATION_RELAYED                              \
    }
#define RELAYED_MODEL(path, id) RELAYED(EXECUTOR_GENERATE, METHOD_POST, path, id)
#define RELAYED_TEXT(path, id)  RELAYED(EXECUTOR_TEXT, METHOD_POST, path, id)

/* Rows of the route table. */
#define RELAYED_ROUTES                                                                             \
    RELAYED_MODEL("/v1/responses", "responses"), RELAYED_MODEL("/v1/messages", "messages"),        \
        RELAYED_MODEL("/v1/chat/completions/batch", "chatBatch"),                                  \
        RELAYED_MODEL("/v1/systemone", "systemone"),                                               \
        RELAYED_MODEL("/cohere/v2/chat", "cohereChat"),                                            \
        RELAYED_MODEL("/invocations", "invocations"),                                              \
        RELAYED_MODEL("/generative_scoring", "generativeScoring"),                                 \
        RELAYED_MODEL("/v1/score", "v1Score"), RELAYED_MODEL("/score", "score"),                   \
        RELAYED_MODEL("/v1/rerank", "v1Rerank"), RELAYED_MODEL("/v2/rerank", "v2Rerank"),          \
        RELAYED_MODEL("/rerank", "rerank"), RELAYED_MODEL("/v1/classify", "v1Classify"),           \
        RELAYED_MODEL("/classify", "classify"), RELAYED_MODEL("/v1/embeddings", "embeddings"),     \
        RELAYED_MODEL("/v2/embed", "v2Embed"), RELAYED_MODEL("/encode", "encode"),                 \
        RELAYED_MODEL("/pooling", "pooling"),                                                      \
        RELAYED_MODEL("/v1/audio/transcriptions", "audioTranscriptions"),                          \
        RELAYED_MODEL("/v1/audio/translations", "audioTranslations"),                              \
        RELAYED_TEXT("/v1/completions/render", "completionsRender"),                               \
        RELAYED_TEXT("/v1/completions/derender", "completionsDerender"),                           \
        RELAYED_TEXT("/v1/chat/completions/derender", "chatDerender"),                             \
        RELAYED_TEXT("/v1/responses/render", "responsesRender"),                                   \
        RELAYED_TEXT("/v1/messages/render", "messagesRender"),                                     \
        RELAYED_TEXT("/v1/messages/count_tokens", "messagesCountTokens"),                          \
        RELAYED_TEXT("/cohere/v2/chat/render", "cohereChatRender"),                                \
        RELAYED_TEXT("/v1/tokenize", "v1Tokenize"),                                                \
        RELAYED_TEXT("/v1/detokenize", "v1Detokenize"),                                            \
        RELAYED_TEXT("/parse_function_call", "parseFunctionCall"),                                 \
        RELAYED_TEXT("/separate_reasoning", "separateReasoning"),                                  \
        RELAYED(EXECUTOR_TEXT, METHOD_GET | METHOD_HEAD, "/tokenizer_info", "tokenizerInfo"),      \
        RELAYED(EXECUTOR_TEXT, METHOD_GET | METHOD_HEAD | METHOD_POST,                             \
                "/v1/responses/{response_id}", "responsesGet"),

#endif
