/* The caches of upstreams that overwrite what they serve. */
#ifndef BATON_FLEET_UPDATE_FLEET_CACHE_H
#define BATON_FLEET_UPDATE_FLEET_CACHE_H

#include "base/err.h"
#include "fleet/fleet_request.h"
#include "fleet/update/fleet_session.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

/* One whose caches are to be emptied. */
struct fleet_cache_reset {
    size_t upstream;
    bool paused;         /* it is paused: what it holds does not run on when it gives its KV up */
    bool route_optional; /* a process without a route for it is taken for one with empty caches */
    bool preempt;        /* requests that hold KV give it up, and make it again */
};

/* fleet_recomputes_kv - is what is held made to give its KV up (--on-update)? */
bool fleet_recomputes_kv(struct fleet_control *fc);

/* fleet_reset_caches - drop what each has cached of prompts and images.
 * @list  [n], n <= FLEET_MAX
 * @why   [n]; clean, then set where that is not proven: it refuses, or does not answer
 * Threads: those that may wait for upstreams; no lock held. Blocks: up to four steps
 * (fleet_step_us). */
void fleet_reset_caches(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                        struct err *why);

/* fleet_reset_part_caches - of those that take part in an update and overwrite what they serve,
 * before they are told to finish. Where it fails the upstream is out of rotation until it has
 * worked, for which it is asked again and again (fleet/fleet_reconcile.h). In a turn. Blocks. */
void fleet_reset_part_caches(struct fleet_control *fc, struct fleet_session *s);

/* fleet_reset_adapter_caches - of those that were asked to replace or unload an adapter, and that
 * key by its name what they cached with it. As fleet_reset_part_caches where it fails. No lock
 * held.
 * @results  [n], of that */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_result *results,
                                size_t n);

/* fleet_reset_caches_of - of one whose weights were changed by somebody else. As
 * fleet_reset_part_caches where it fails. No lock held. */
void fleet_reset_caches_of(struct fleet_control *fc, size_t upstream);

#endif
