/* Who asked for an update, until it has ended. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_REQUESTER_H
#define BATON_HANDLERS_UPDATE_UPDATE_REQUESTER_H

#include "base/err.h"
#include "weights/update/update.h"

#include <stdbool.h>

struct app_generate;
struct http_request;

/* Who is told how an update ended. */
struct update_requester;

/* update_requester_new - @x  the reference is update_reply_done's from then on, not yet here
 * Errors: ERR_NO_MEMORY. */
int update_requester_new(struct update_requester **out, const struct app_generate *generate,
                         struct http_request *x, struct err *e);
void update_requester_free(struct update_requester *a); /* for one that is not told; accepts NULL */

/* update_requester_disconnected - a struct update_chunk's `gone`, for the asker: has its client
 * gone away? */
bool update_requester_disconnected(void *asker);

/* update_reply_done - an update_done_fn; arg is a struct update_requester, which is freed: answers
 * its request with either. A commit's answer says too which adapters stay valid. */
void update_reply_done(void *arg, const struct update_info *info, const struct err *e);

#endif
