/* Reconciling: an engine that lacks an adapter of the fleet, or still has one that was unloaded, or
 * whose caches may hold entries of other weights, or that has not taken the last name of its
 * version, is brought in line with the others before it gets requests. Each engine has a job of its
 * own, so that one that hangs does not delay the others. */
#ifndef BATON_FLEET_WANT_FLEET_RECONCILE_H
#define BATON_FLEET_WANT_FLEET_RECONCILE_H

struct fleet_control;

/* fleet_reconcile_init - part of fleet_control_new. */
void fleet_reconcile_init(struct fleet_control *fc);

/* fleet_reconcile_start - at the start, and when other upstreams are configured: from now on
 * engines get what they need before they get requests, and those that are here again the pause or
 * resume that they may have missed. Threads: main's; no lock held. */
void fleet_reconcile_start(struct fleet_control *fc);

#endif
