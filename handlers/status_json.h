/* The members of the status that every server has, with weights of its own or in front of a fleet.
 * Each function returns a new object, or NULL without memory. Threads: any. Blocks: on short locks
 * only. */
#ifndef BATON_HANDLERS_STATUS_JSON_H
#define BATON_HANDLERS_STATUS_JSON_H

#include <jansson.h>

struct app;
struct store_info;

/* status_head_json - boot_id, version, uptime_s, life, live, ready, reason, server_args. */
json_t *status_head_json(const struct app *app);

/* status_http_json - connections and requests of all listeners of routes. */
json_t *status_http_json(const struct app *app);

/* Of a server with a store: status_update_json - the update that it receives, or null.
 * status_update_id_json - the update that made the served weights; null while there are none.
 * status_cuda_json, status_nccl_json - GPUs and ranks; the NCCL library and the trainer's group.
 * status_nixl_json - NIXL's library, and the process that reads by it; null without it.
 * status_state_json - what --state-dir remembers; null without it. */
json_t *status_update_json(const struct app *app);
json_t *status_update_id_json(const struct store_info *info);
json_t *status_cuda_json(const struct app *app);
json_t *status_nccl_json(const struct app *app);
json_t *status_nixl_json(const struct app *app);
json_t *status_state_json(const struct app *app);
json_t *status_seed_json(const struct app *app); /* null if no peer may be asked */

#endif
