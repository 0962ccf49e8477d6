/* Upstreams that lack adapters of the fleet, or have too many, or something in their caches that
 * other weights made, are made as the others are: before they get traffic. */
#ifndef BATON_FLEET_FLEET_RECONCILE_H
#define BATON_FLEET_FLEET_RECONCILE_H

#include "base/err.h"
#include "base/loop.h"
#include "base/workers.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

/* Of one upstream; guarded by the control's lock. */
struct fleet_reconciler {
    struct fleet_control *fc; /* immutable, and so is the next one */
    size_t upstream;
    struct job job; /* of the generate pool; posted while `running` */
    bool running;
    uint64_t due_us, wait_us; /* not before; after the next failure */
    struct err why;           /* of the last failure */
    struct err stale;         /* why its caches could not be emptied; clean: they are not stale */
    bool unasked;             /* they may be: nobody here has asked its process yet */
    uint64_t n_stale;         /* grows each time that `stale` is said anew */
};

/* fleet_reconcile_init - before anything else here. */
void fleet_reconcile_init(struct fleet_control *fc);

/* fleet_reconcile_watch - adapters may come: from now on, whoever restarts is looked after. Before
 * the first upstream is asked for one. Threads: any. */
void fleet_reconcile_watch(struct fleet_control *fc);

/* fleet_reconcile_start - at the start, and when other upstreams are configured: those that
 * overwrite what they serve get no request before they have been asked to empty their caches.
 * Threads: main's. No lock held. */
void fleet_reconcile_start(struct fleet_control *fc);

/* fleet_reconcile_all - the adapters have changed, or who has them: who lacks some is out of
 * rotation when this returns, who does not is in it. Threads: any. Blocks: no. No lock held. */
void fleet_reconcile_all(struct fleet_control *fc);

/* fleet_reconcile_set_stale - its caches may have entries of other weights than it serves, and it
 * is asked to empty them before it gets traffic; or they do not any more.
 * @why  clean: they are empty. Threads: any. Blocks: no. No lock held. */
void fleet_reconcile_set_stale(struct fleet_control *fc, size_t upstream, const struct err *why);

/* fleet_reconcile_is_stale - by what was said last. Threads: any. No lock held. */
bool fleet_reconcile_is_stale(struct fleet_control *fc, size_t upstream);

/* fleet_reconcile_check_incarnation_locked - notes which processes there are now: what those before
 * had is lost. */
void fleet_reconcile_check_incarnation_locked(struct fleet_control *fc, size_t upstream);

/* fleet_missing_adapters_json - names of the fleet's adapters that an upstream lacks (new; NULL: no
 * memory). Threads: any. */
json_t *fleet_missing_adapters_json(struct fleet_control *fc, size_t upstream);

#endif
