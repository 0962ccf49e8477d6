/* The gate as JSON, for replies and the status. */
#ifndef BATON_HANDLERS_GATE_JSON_H
#define BATON_HANDLERS_GATE_JSON_H

#include "handlers/app.h"
#include "handlers/gate.h"

#include <jansson.h>

/* gate_pause_json - a pause that stands (new, or NULL without memory). */
json_t *gate_pause_json(const struct app *app, const struct gate_info *info);

/* gate_sleep_json - what sleeps: {asleep, weights, kv_cache} (new, or NULL without memory). */
json_t *gate_sleep_json(struct gate *g);

#endif
