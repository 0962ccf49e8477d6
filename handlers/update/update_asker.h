/* Who asked for an update, until it has ended. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_ASKER_H
#define BATON_HANDLERS_UPDATE_UPDATE_ASKER_H

#include "base/err.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app;
struct http_request;

/* Who is told how an update ended. */
struct update_asker;

/* update_asker_new - @x  the reference is update_answered's from then on, not yet here
 * Errors: ERR_NO_MEMORY. */
int update_asker_new(struct update_asker **out, const struct app *app, struct http_request *x,
                     struct err *e);
void update_asker_free(struct update_asker *a); /* for one that is not told; accepts NULL */

/* update_asker_gone - a struct update_chunk's `gone`, for the asker: has its client gone away? */
bool update_asker_gone(void *asker);

/* update_answered - an update_done_fn; arg is a struct update_asker, which is freed: answers its
 * request with either. A commit's answer says too which adapters stay valid. */
void update_answered(void *arg, const struct update_info *info, const struct err *e);

#endif
