/* Reconciling: an engine that lacks an adapter of the fleet, or still has one that was unloaded, or
 * whose caches may hold entries of other weights, is brought in line with the others before it gets
 * requests. Each engine has a job of its own, so that one that hangs does not delay the others. */
#ifndef BATON_FLEET_WANT_FLEET_RECONCILE_H
#define BATON_FLEET_WANT_FLEET_RECONCILE_H

#include "base/err.h"
#include "fleet/calls/fleet_adapters.h"
#include "fleet/calls/fleet_request.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;

/* fleet_reconcile_init - part of fleet_control_new. */
void fleet_reconcile_init(struct fleet_control *fc);

/* fleet_reconcile_start - at the start, and when other upstreams are configured: engines that
 * overwrite what they serve get no request before their caches were reset, and those that are here
 * again the pause or resume that they may have missed. Threads: main's; no lock
 * held. */
void fleet_reconcile_start(struct fleet_control *fc);

/* fleet_reconcile_watch - begin to check each restarted engine. Before the first engine is asked to
 * load an adapter. Threads: any; no lock held. */
void fleet_reconcile_watch(struct fleet_control *fc);

/* fleet_reconcile_all - the adapters have changed, or which engines have them. When this returns,
 * engines that lack some are out of rotation, and no others for that reason. Threads: any; no lock
 * held. Blocks: no. */
void fleet_reconcile_all(struct fleet_control *fc);

/* fleet_reconcile_set_stale - the caches of an engine may hold entries of other weights than it
 * serves: it is out of rotation until they were reset, which is retried.
 * @why  why they could not be reset; clean: they were. Threads: any; no lock held. Blocks: no. */
void fleet_reconcile_set_stale(struct fleet_control *fc, struct upstream *upstream,
                               const struct err *why);

/* fleet_reconcile_is_stale - by the last fleet_reconcile_set_stale. Threads: any; no lock held. */
bool fleet_reconcile_is_stale(struct fleet_control *fc, struct upstream *upstream);

/* fleet_reconcile_check_incarnation_locked - if the engine was restarted: what the process before
 * had is lost. */
void fleet_reconcile_check_incarnation_locked(struct fleet_control *fc, struct upstream *upstream);

/* fleet_missing_adapters - names of the fleet's adapters that an engine lacks.
 * @names  [return value], the caller's to free; NULL: none, or no memory
 * Threads: any; no lock held. Returns: how many. */
size_t fleet_missing_adapters(struct fleet_control *fc, struct upstream *upstream,
                              char (**names)[FLEET_ADAPTER_NAME_MAX + 1]);

/* fleet_has_no_adapter - was an unload refused because the engine has no adapter of that name? */
bool fleet_has_no_adapter(const struct fleet_result *result, const char *name);

#endif
