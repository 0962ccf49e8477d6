/* The pause controller as JSON, in replies and the status. */
#ifndef BATON_HANDLERS_PAUSE_CONTROLLER_JSON_H
#define BATON_HANDLERS_PAUSE_CONTROLLER_JSON_H

#include "control/pause_controller.h"
#include "handlers/rows/member.h"

#include <jansson.h>

extern const struct member pause_reply[]; /* of struct pause_controller_info */
extern const struct member sleep_reply[]; /* of struct lifecycle_state */

/* What a sleep did. */
struct slept {
    uint32_t level;
    struct pause_controller_slept what;
};
extern const struct member slept_reply[]; /* of struct slept, but for the rows of sleep_reply */
extern const struct member woken_reply[], resumed_reply[];

/* pause_controller_pause_json - a pause as replies and the status show it, of one server or of a
 * fleet (new, or NULL without memory). */
json_t *pause_controller_pause_json(const struct pause_controller_info *info);

/* pause_controller_sleep_json - the sleep state: {asleep, weights, kv_cache} (new, or NULL
 * without memory). */
json_t *pause_controller_sleep_json(struct pause_controller *g);

#endif
