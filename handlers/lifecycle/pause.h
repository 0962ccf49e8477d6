/* What a request for a pause says. */
#ifndef BATON_HANDLERS_LIFECYCLE_PAUSE_H
#define BATON_HANDLERS_LIFECYCLE_PAUSE_H

#include "base/err.h"
#include "control/gate.h"
#include "http/exchange.h"

#include <jansson.h>

/* pause_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int pause_parse(struct gate_pause *req, const struct exchange *x, const json_t *body,
                struct err *e);

#endif
