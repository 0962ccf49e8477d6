/* Request members that all generate routes share. */
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
    bool usage_last; /* send an event with the usage before the end */
    bool usage_each; /* and put the usage so far into each event */
};

/* generation_parse_names - parse model (the base model or a loaded adapter), request_id (or rid,
 * where a route has it), cache_salt, session_id. A cache salt is checked and has no effect:
 * requests share no prompt cache here.
 * @request_id  on success a copy of the body's member, or else of the HTTP request's id; the caller
 *              owns it
 * Errors: ERR_NOT_FOUND at /model, ERR_BAD_REQUEST, ERR_NO_MEMORY. */
int generation_parse_names(char **request_id, struct generation *g, const json_t *body,
                           struct err *e);

/* generation_parse_on_update - parse on_update. Errors: ERR_BAD_REQUEST. */
int generation_parse_on_update(struct generation *g, const json_t *body, struct err *e);

/* generation_parse_stream - parse stream and stream_options. Options without a stream are refused.
 * @strict  refuse unknown members of stream_options */
int generation_parse_stream(struct generation_stream *out, const json_t *body, bool strict,
                            struct err *e);

#endif
