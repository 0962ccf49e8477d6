/* What a trainer tells the whole fleet: the update that is open, the pause, the sleep, the group,
 * the adapters. Handlers of control routes in front of upstream engines work with it.
 *
 * No lock is held while upstreams are asked. What may not overlap takes its turn (a sleep and the
 * end of an update); a pause, and an abort, have turns of their own, so that neither waits for one
 * that hangs in something else. Tensors of one update come beside each other, and beside a pause.
 */
#ifndef BATON_FLEET_FLEET_CONTROL_H
#define BATON_FLEET_FLEET_CONTROL_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_request;
struct fleet_control;
struct tensor_list;
struct upstreams;
struct workers;

/* What it works with; all borrowed until fleet_control_free. */
struct fleet_control_cfg {
    struct upstreams *upstreams;
    struct workers *abort;     /* runs what ends by itself: leases */
    struct workers *reconcile; /* asks upstreams for adapters, and to empty their caches */
    uint64_t update_us;        /* what one upstream has for a step of an update */
    bool recomputes;           /* generations make their KV again with the weights of an update */
    /* Reads the tensors that a request lists (one reference). Errors: ERR_BAD_REQUEST at the
     * member; ERR_NO_MEMORY. Threads: any. */
    int (*tensor_list_of)(struct tensor_list **out, const json_t *body, struct err *e);
};

/* fleet_control_new - after upstreams_new. Errors: ERR_NO_MEMORY. */
int fleet_control_new(struct fleet_control **out, const struct fleet_control_cfg *cfg,
                      struct err *e);

/* fleet_control_free - after upstreams_stop, when the control pool has ended. Accepts NULL. */
void fleet_control_free(struct fleet_control *fc);

/* fleet_is_paused - has a trainer paused the fleet? Threads: any. */
bool fleet_is_paused(struct fleet_control *fc);

/* fleet_resync_one - ask an upstream what it serves now, and put it into step by that.
 * @x    whose client waits for its turn
 * @out  its index
 * Blocks: FLEET_QUERY_US for each of two questions. Errors: ERR_NOT_FOUND; ERR_CONFLICT: as
 * fleet_resync's, or it gave no answer. */
int fleet_resync_one(struct fleet_control *fc, struct http_request *x, const char *name,
                     size_t *out, struct err *e);

/* fleet_vllm_config_json - of a vLLM's configuration what its clients act upon: the value that all
 * upstreams say that answer, or null, and then `unknown` has the reason by the member's name.
 * Blocks: up to 30 s. New. Errors: ERR_NO_MEMORY; ERR_DRAINING. */
json_t *fleet_vllm_config_json(struct fleet_control *fc, struct err *e);

#endif
