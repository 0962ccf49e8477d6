/* The gate as JSON: what a request for a pause says, and what replies and the status tell. */
#ifndef BATON_HANDLERS_GATE_JSON_H
#define BATON_HANDLERS_GATE_JSON_H

#include "control/gate.h"
#include "http/exchange.h"

#include <jansson.h>

/* gate_pause_json - a pause that stands, all of it at one moment (new, or NULL without memory). */
json_t *gate_pause_json(const struct gate_info *info);

/* gate_sleep_json - what sleeps: {asleep, weights, kv_cache} (new, or NULL without memory). */
json_t *gate_sleep_json(struct gate *g);

/* pause_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int pause_parse(struct gate_pause *req, const struct exchange *x, const json_t *body,
                struct err *e);

#endif
