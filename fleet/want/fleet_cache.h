/* The caches of engines that overwrite the weights that they serve. */
#ifndef BATON_FLEET_WANT_FLEET_CACHE_H
#define BATON_FLEET_WANT_FLEET_CACHE_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/update/fleet_session.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

/* One engine whose caches are emptied. */
struct fleet_reset {
    struct upstream *upstream;
    enum cache_change change; /* why */
    bool paused;              /* its requests do not run on when they give up their KV */
    bool preempt;             /* requests that hold KV give it up, and compute it again */
    const bool *given_up;     /* of struct fleet_target */

    /* How it goes. */
    uint64_t number;     /* of fleet_caches_begin */
    bool may_lack_route; /* of that, too */
    bool not_retracted;  /* its requests could not be */
    bool failed;         /* by another cause than that the engine cannot while it holds requests */
    struct err why;      /* the caches could not be emptied; clean: they were, as far as it went */
};

/* Caches that are being emptied, in two steps: the caller sends `targets`, alone or with other
 * requests (fleet_requests), and hands in the results, twice. */
struct fleet_resets {
    struct fleet_control *fc;
    size_t n, n_targets;
    struct fleet_target *targets; /* of this step; room for two of each engine */
    struct fleet_reset *list;     /* [n] */
};

/* fleet_reset_caches - empty those of one engine: they may be stale, or another client changed its
 * weights. Those of a two-phase engine are its own business. An engine on which it fails is out of
 * rotation and asked again until it works (fleet/want/fleet_reconcile.h).
 * @why  clean; set where the engine refuses, or does not answer, or its answer proves nothing
 * Threads: those that may wait for engines; no lock held. Blocks: up to two steps (fleet_step_us),
 * or four if an SGLang retracts requests. */
void fleet_reset_caches(struct fleet_control *fc, struct upstream *upstream,
                        enum cache_change change, struct err *why);

/* fleet_reset_parts_begin - the requests of the first step, for the engines that take part in an
 * update and overwrite their weights: with the finish call, while they are paused.
 * fleet_resets_apply - the replies to them; engines that refuse because they hold requests retract
 * those, and are asked again; then the requests of the second step.
 * fleet_reset_parts_end - the replies to those. Requests that an engine holds on which it failed,
 * and whose KV it should have dropped, are aborted before it is resumed. The caller owns the
 * operation lock.
 * @r        written by the first of them; fleet_reset_parts_end frees what it has. Without memory
 *           no cache is emptied, and all are as where it fails
 * @results  of r->targets; none: nothing was sent, because of `e` if there were any
 * Blocks: fleet_resets_apply, up to two steps; fleet_reset_parts_end, up to one. */
void fleet_reset_parts_begin(struct fleet_resets *r, struct fleet_control *fc,
                             struct fleet_session *s);
void fleet_resets_apply(struct fleet_resets *r, const struct fleet_results *results,
                        const struct err *e);
void fleet_reset_parts_end(struct fleet_resets *r, struct fleet_session *s,
                           const struct fleet_results *results, const struct err *e);

/* fleet_reset_adapter_caches - of the engines that were asked to replace or unload an adapter, and
 * whose cache entries are keyed by its name. Otherwise as fleet_reset_caches.
 * @results  of that request */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_results *results);

#endif
