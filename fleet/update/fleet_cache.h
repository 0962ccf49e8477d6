/* The caches of engines that overwrite the weights that they serve. */
#ifndef BATON_FLEET_UPDATE_FLEET_CACHE_H
#define BATON_FLEET_UPDATE_FLEET_CACHE_H

#include "base/err.h"
#include "fleet/fleet_request.h"
#include "fleet/update/fleet_session.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

/* One engine whose caches are to be emptied. */
struct fleet_cache_reset {
    size_t upstream;
    bool paused;         /* its requests do not run on when they give up their KV */
    bool route_optional; /* an engine without a route for it counts as one with empty caches */
    bool preempt;        /* requests that hold KV give it up, and compute it again */
};

/* fleet_recomputes_kv - are running requests preempted by an update (--on-update)? */
bool fleet_recomputes_kv(struct fleet_control *fc);

/* fleet_reset_caches - empty the engines' caches of prompts and images.
 * @list  [n], n <= FLEET_MAX
 * @why   [n]; clean; set where the engine refuses, or does not answer, or its answer proves nothing
 * Threads: those that may wait for engines; no lock held. Blocks: up to three steps
 * (fleet_step_us), or five if an SGLang retracts requests. */
void fleet_reset_caches(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                        struct err *why);

/* fleet_reset_part_caches - of the engines that take part in an update and overwrite their weights,
 * before the finish call is sent. An engine on which it fails is out of rotation and asked again
 * until it works (fleet/fleet_reconcile.h). The caller owns the operation lock. Blocks: as
 * fleet_reset_caches. */
void fleet_reset_part_caches(struct fleet_control *fc, struct fleet_session *s);

/* fleet_reset_adapter_caches - of the engines that were asked to replace or unload an adapter, and
 * whose cache entries are keyed by its name. Failures as in fleet_reset_part_caches. No lock held.
 * @results  [n], of that request */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_result *results,
                                size_t n);

/* fleet_reset_caches_of - of one engine whose weights another client changed. Failures as in
 * fleet_reset_part_caches. No lock held. */
void fleet_reset_caches_of(struct fleet_control *fc, size_t upstream);

#endif
