/* The members of the status that every server has, with weights of its own or in front of a fleet.
 * Each function returns a new object, or NULL without memory. Threads: any. Blocks: on short locks
 * only. */
#ifndef BATON_HANDLERS_STATUS_JSON_H
#define BATON_HANDLERS_STATUS_JSON_H

#include <jansson.h>

struct app;

/* status_head_json - boot_id, version, uptime_s, life, live, ready, reason, server_args. */
json_t *status_head_json(const struct app *app);

/* status_http_json - connections and requests of all listeners of routes. */
json_t *status_http_json(const struct app *app);

#endif
