/* What an answer must contain to be the success of a route: docs/protocol.md and the OpenAPI file.
 * A status of 200 alone is not one: a proxy's login page has it too. */
#ifndef BATON_CLI_SUCCESS_H
#define BATON_CLI_SUCCESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* success_check - is this answer of a 2xx what the route answers when it has done its work?
 * @method, @path  of the request; the path may have a query. The table has a row for each route
 * that a command calls: a route without one is a fault of ours, and ends the process
 * @sent           the members of the request that an answer repeats (borrowed; NULL: there are
 * none)
 * @answer         borrowed; NULL: it is no JSON
 * @why            [@why_size]: set when it is not
 *
 * Threads: any. Blocks: no. */
bool success_check(const char *method, const char *path, const json_t *sent, const json_t *answer,
                   char *why, size_t why_size);

#endif
