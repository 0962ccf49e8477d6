/* Request members that all generate routes share. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_PARSE_H
#define BATON_HANDLERS_GENERATE_GENERATION_PARSE_H

#include "handlers/generate/generation.h"
#include "handlers/rows/generate_request.h"

#include <jansson.h>
#include <stdbool.h>

/* generation_read - read the members that the routes of generation share: those of `rows`, then
 * model (the base model or a loaded adapter), request_id (or rid, where a route has it),
 * cache_salt, on_update and return_routed_experts are checked, and go into `g`.
 * @r           out
 * @request_id  on success a copy of the body's member, or else of the HTTP request's id; the caller
 *              owns it
 * @routed      what return_routed_experts is if the request does not say it
 * Errors: ERR_NOT_FOUND at /model, ERR_BAD_REQUEST, ERR_NO_MEMORY. */
int generation_read(struct generate_request *r, char **request_id, struct generation *g,
                    const struct member *rows, const json_t *body, bool routed, struct err *e);

/* generation_salt - KV is shared with requests of the same text only. */
void generation_salt(struct generation *g, const char *text);

/* generation_read_stream - check stream and stream_options. Options without a stream are refused.
 * @strict  refuse unknown members of stream_options */
int generation_read_stream(struct generation_stream *out, const struct generate_request *r,
                           bool strict, struct err *e);

#endif
