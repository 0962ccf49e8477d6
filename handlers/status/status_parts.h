/* Parts of the status that any server has, of whatever engine. Each is new, or NULL without memory.
 */
#ifndef BATON_HANDLERS_STATUS_STATUS_PARTS_H
#define BATON_HANDLERS_STATUS_STATUS_PARTS_H

#include "handlers/app.h"

#include <jansson.h>

/* status_head_json - boot_id, version, uptime_s, life, live, ready, reason. */
json_t *status_head_json(const struct app *app);

/* status_http_json - of all listeners. */
json_t *status_http_json(const struct app *app);

#endif
