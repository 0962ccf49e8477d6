/* Reconciling: what an engine should have, and does not, it is given. A table has a row for each
 * aspect, in the order in which an engine gets it: does an engine differ there from what is wanted
 * of it, and may it be asked now; and what is done about it. One look at all engines, again and
 * again (fleet/fleet_root.c), starts the jobs for what differs. So it does not matter what came
 * between: an engine that was away, was restarted or added since, or whose answer was lost, is
 * brought in line with the others, and nothing is remembered for it.
 *
 * Where the requests need a lock of the fleet, as those of a pause, one job asks all engines that
 * differ at the same time; and one asks one after the other to read the version, where each next
 * one may read from those before. For the rest each engine has a job of its own, so that one that
 * hangs does not delay the others. */
#ifndef BATON_FLEET_WANT_FLEET_RECONCILE_H
#define BATON_FLEET_WANT_FLEET_RECONCILE_H

#include "base/jobs/workers.h"
#include "fleet/members/retry.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;
struct upstream;
struct upstream_info;

/* The rows. The first ones have a job for all engines, and a retry here (struct fleet_engine). */
enum aspect {
    ASPECT_PAUSE,
    ASPECT_SLEEP,
    ASPECT_OWN_UPDATE,
    ASPECT_VERSION,
    ASPECTS_OF_ALL,
    ASPECT_CACHES = ASPECTS_OF_ALL,
    ASPECT_ADAPTERS,
    ASPECT_NAME,
    ASPECTS
};

enum {
    FLEET_ASPECT_RETRY_US = 500000,      /* after the first request to one engine that failed ... */
    FLEET_ASPECT_RETRY_MAX_US = 10000000 /* ... and at most; of the first rows */
};

/* Work that waits for engines: a job of cfg.executor. Zeroed but for the first three members. */
struct fleet_task {
    struct fleet_control *fc;
    struct upstream *upstream; /* it drives its aspects; counted while `running`. NULL: `work` */
    void (*work)(struct fleet_control *fc);

    struct job job; /* posted while `running` */
    bool running;   /* guarded by the control's lock */
};

/* fleet_task_start - begin it, unless it is under way. Only a server that stops refuses it.
 * fleet_reconcile_init - part of fleet_control_new.
 * fleet_reconcile_look - begin what is to be done now. Threads: the loop's. Blocks: no. */
void fleet_task_start(struct fleet_task *task);
void fleet_reconcile_init(struct fleet_control *fc);
void fleet_reconcile_look(struct fleet_control *fc);

/* fleet_aspect_tried_locked - an engine was asked. @retry  of a first row, in struct fleet_engine
 */
static inline void fleet_aspect_tried_locked(struct retry *retry, bool ok)
{
    if (ok)
        retry_clear(retry);
    else
        retry_failed(retry, FLEET_ASPECT_RETRY_US, FLEET_ASPECT_RETRY_MAX_US);
}

/* fleet_<aspect>_differs_locked - does the engine differ, and may it be asked now?
 * @info  of fleet_info, just now
 * fleet_<aspect>_drive - ask all that differ. Threads: those that may wait for engines; no lock
 * held. Blocks: for the lock, and up to the time of its requests. Of the pause: for the pause lock,
 * then up to three times 2 s; of the sleep: not for the operation lock, then up to twice
 * FLEET_STEP_US; of own updates: for the abort lock, then as fleet_close_own_updates;
 * of the version: for 2 s an engine. */
typedef bool fleet_differs_fn(struct fleet_control *fc, struct upstream *upstream,
                              const struct upstream_info *info);
fleet_differs_fn fleet_pause_differs_locked, fleet_sleep_differs_locked,
    fleet_own_update_differs_locked, fleet_seed_differs_locked;
void fleet_pause_drive(struct fleet_control *fc);
void fleet_sleep_drive(struct fleet_control *fc);
void fleet_own_updates_drive(struct fleet_control *fc);
void fleet_seed_drive(struct fleet_control *fc);

/* fleet_give_<aspect> - give it to this engine. They take no operation lock: a trainer's load may
 * come at any moment, and is newer than what they do; where the two overlap, what the engine has is
 * unknown (fleet/members/have.h). Threads and blocking: as above, up to the time of their requests.
 * Returns: false: it failed, and is due later; or nothing was to be done. */
bool fleet_give_caches(struct fleet_control *fc, struct upstream *upstream);
bool fleet_give_adapter(struct fleet_control *fc, struct upstream *upstream);
bool fleet_give_name(struct fleet_control *fc, struct upstream *upstream);

#endif
