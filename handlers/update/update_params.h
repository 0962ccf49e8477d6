/* The members of an update request besides its tensors, the same in JSON and in the query. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_PARAMS_H
#define BATON_HANDLERS_UPDATE_UPDATE_PARAMS_H

#include "base/err.h"
#include "handlers/rows/update_request.h"
#include "http/http_request.h"
#include "weights/update/update.h"

#include <jansson.h>

/* update_params_from_body, update_params_from_query - read and check them.
 * @w  zeroed
 * Errors: ERR_BAD_REQUEST at the member. */
int update_params_from_body(struct update_request *w, const json_t *body, struct err *e);
int update_params_from_query(struct update_request *w, const struct http_request *x, struct err *e);

/* What a start or a whole update says of a delta. NULL: not given. */
struct delta_members {
    bool delta, convert;
    bool whole; /* "partial": false was given */
    const char *base_version, *base_update_id;
};

/* delta_members_check - can they go together?
 * Errors: ERR_BAD_REQUEST at /delta, /base_update_id, /partial, /convert. */
int delta_members_check(const struct delta_members *m, struct err *e);

/* update_params_apply - copy them into a chunk. */
void update_params_apply(struct update_chunk *c, const struct update_request *w,
                         const struct http_request *x);

#endif
