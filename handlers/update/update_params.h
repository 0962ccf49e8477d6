/* The members of an update request besides its tensors, the same in JSON and in the query. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_PARAMS_H
#define BATON_HANDLERS_UPDATE_UPDATE_PARAMS_H

#include "base/err.h"
#include "http/http_request.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>

struct update_params {
    const char *update_id, *chunk_id, *label;
    bool partial, convert, sharded, abort_requests;
    bool partial_given, convert_given, placement_given, trainer_rank_given;
    uint64_t trainer_rank;
};

/* update_params_from_body, update_params_from_query - read and check them.
 * @w  zeroed; strings are borrowed from the body or the request
 * Errors: ERR_BAD_REQUEST at the member. */
int update_params_from_body(struct update_params *w, const json_t *body, struct err *e);
int update_params_from_query(struct update_params *w, const struct http_request *x, struct err *e);

/* update_params_apply - copy them into a chunk. */
void update_params_apply(struct update_chunk *c, const struct update_params *w,
                         const struct http_request *x);

#endif
