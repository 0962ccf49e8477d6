/* Members that generate and completions share. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_PARSE_H
#define BATON_HANDLERS_GENERATE_GENERATION_PARSE_H

#include "handlers/generate/generation.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    GENERATION_REQUEST_ID_MAX = 256, /* bytes */
    GENERATION_CACHE_SALT_MAX = 1024 /* characters, as in vLLM */
};

struct generation_stream {
    bool on;
    bool usage_last; /* an event with the usage before the end */
    bool usage_each; /* and the usage so far in every event */
};

/* generation_parse_names - model (the base's name, or that of a loaded adapter), request_id,
 * cache_salt, session_id.
 * @request_id  on success a copy of the body's, or of the request's; the caller's
 * A cache salt is checked and has no effect: this server shares no prompt cache among requests.
 * Errors: ERR_NOT_FOUND at /model, ERR_BAD_REQUEST, ERR_NO_MEMORY. */
int generation_parse_names(char **request_id, struct generation *g, const json_t *body,
                           struct err *e);

/* generation_parse_stream - stream and stream_options; options without a stream are refused. */
int generation_parse_stream(struct generation_stream *out, const json_t *body, bool strict,
                            struct err *e);

#endif
