/* The caches of engines that overwrite the weights that they serve. */
#ifndef BATON_FLEET_WANT_FLEET_CACHE_H
#define BATON_FLEET_WANT_FLEET_CACHE_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/update/fleet_session.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

/* One engine whose caches are to be emptied. */
struct fleet_cache_reset {
    struct upstream *upstream;
    bool paused;          /* its requests do not run on when they give up their KV */
    bool route_optional;  /* an engine without a route for it counts as one with empty caches */
    bool preempt;         /* requests that hold KV give it up, and compute it again */
    const bool *given_up; /* of struct fleet_target */
};

/* fleet_recomputes_kv - are running requests preempted by an update (--on-update)? */
bool fleet_recomputes_kv(struct fleet_control *fc);

/* Caches that are being emptied, in two steps: the caller sends `targets`, alone or with other
 * requests (fleet_requests), and hands in the results, twice. */
struct fleet_resets {
    size_t n_targets; /* of this step */
    struct fleet_target targets[2 * FLEET_MAX];
    size_t of[2 * FLEET_MAX]; /* of each target: an index of `list` */

    struct fleet_control *fc;
    size_t n;
    struct fleet_cache_reset list[FLEET_MAX];
    struct err why[FLEET_MAX]; /* of `list`: why the caches could not be emptied; clean: they were,
                                  or the engine has not answered yet */
    bool failed[FLEET_MAX];    /* by another cause than that the engine cannot while it holds
                                  requests */
};

/* fleet_resets_begin - the requests of the first step. @list  [n], copied
 * fleet_resets_apply - the replies to them; engines that refuse because they hold requests retract
 * those, and are asked again; then the requests of the second step.
 * fleet_resets_end - the replies to those; r->why says what failed.
 * @results  of r->targets; NULL: none was sent, because of `e` if there were any
 * Threads: those that may wait for engines; no lock held. Blocks: fleet_resets_apply, up to two
 * steps (fleet_step_us); the others do not. */
void fleet_resets_begin(struct fleet_resets *r, struct fleet_control *fc,
                        const struct fleet_cache_reset *list, size_t n);
void fleet_resets_apply(struct fleet_resets *r, const struct fleet_result *results,
                        const struct err *e);
void fleet_resets_end(struct fleet_resets *r, const struct fleet_result *results,
                      const struct err *e);

/* fleet_reset_caches - all of that: empty the engines' caches of prompts and images.
 * @list  [n], n <= FLEET_MAX
 * @why   [n]; set where the engine refuses, or does not answer, or its answer proves nothing; else
 *        clean
 * Threads: those that may wait for engines; no lock held. Blocks: up to two steps
 * (fleet_step_us), or four if an SGLang retracts requests. */
void fleet_reset_caches(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                        struct err *why);

/* fleet_reset_parts_begin - fleet_resets_begin for the engines that take part in an update and
 * overwrite their weights: with the finish call, while they are paused.
 * fleet_reset_parts_end - fleet_resets_end for them. An engine on which it failed is out of
 * rotation and asked again until it works (fleet/want/fleet_reconcile.h). Requests that it holds,
 * and whose KV it should have dropped, are aborted before it is resumed. The caller owns the
 * operation lock. Blocks: up to the time of a step. */
void fleet_reset_parts_begin(struct fleet_resets *r, struct fleet_control *fc,
                             struct fleet_session *s);
void fleet_reset_parts_end(struct fleet_resets *r, struct fleet_session *s,
                           const struct fleet_result *results, const struct err *e);

/* fleet_reset_adapter_caches - of the engines that were asked to replace or unload an adapter, and
 * whose cache entries are keyed by its name. Failures as in fleet_reset_parts_end. No lock held.
 * @results  [n], of that request */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_result *results,
                                size_t n);

/* fleet_reset_caches_of - of one engine whose weights another client changed. Failures as in
 * fleet_reset_parts_end. No lock held. */
void fleet_reset_caches_of(struct fleet_control *fc, struct upstream *upstream);

#endif
