/* The gate as JSON, for replies and the status. */
#ifndef BATON_HANDLERS_GATE_JSON_H
#define BATON_HANDLERS_GATE_JSON_H

#include "control/gate.h"

#include <jansson.h>

/* gate_pause_json - a pause that stands, all of it at one moment (new, or NULL without memory). */
json_t *gate_pause_json(const struct gate_info *info);

/* gate_sleep_json - what sleeps: {asleep, weights, kv_cache} (new, or NULL without memory). */
json_t *gate_sleep_json(struct gate *g);

#endif
