/* Hand-off: engines of this host that keep their own copy of the weights get each version that this
 * server's store commits (--stage). The update of the store touches no engine; what follows is an
 * update of the fleet (fleet/update/) whose bytes are the committed ones, mapped by CUDA IPC, so
 * that engines are quiesced for one device copy only.
 *
 * A job of the fleet's executor does it, one at a time, begun by a look of the upstreams' loop each
 * 250 ms, or at once when there is something to do. What blocks on a GPU runs where jobs keep their
 * threads (fleet_control_cfg.blocking). A hand-off that fails is repeated from the committed bytes.
 * An engine that answers without the fleet's version, because it was restarted, joined or was
 * fenced, gets it by a repair: an update of this engine alone, while the others serve. The next try
 * of each engine is due by its own failures. A repair that hangs ends when its engine goes down,
 * when a new version waits for it, or with the time of a step; others behind are repaired after it.
 */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_H
#define BATON_FLEET_HANDOFF_HANDOFF_H

#include "base/err.h"
#include "driver/cuda_info.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct fleet_control;
struct handoff;

/* All borrowed until handoff_free. */
struct handoff_cfg {
    struct fleet_control *control;
    struct store *store; /* on GPUs, or in host memory with one GPU (--stage host) */
    const struct cuda_info *cuda;
    uint64_t window_nbytes; /* in host memory: window_nbytes_choose's; else 0 */
};

/* handoff_new - take the memory of the windows, if there are any. Looks begin with upstreams_start.
 * Errors: ERR_NO_MEMORY; handoff_windows_new's. */
int handoff_new(struct handoff **out, const struct handoff_cfg *cfg, struct err *e);

/* handoff_stop - end every wait of handoff_version. After upstreams_stop: no job begins any more,
 * and the one that runs does not last. Accepts NULL; repeating is harmless.
 * handoff_free - when the executor has stopped, and the loop is freed. Accepts NULL. */
void handoff_stop(struct handoff *h);
void handoff_free(struct handoff *h);

/* handoff_version - the store has committed version `serial`: hand it over, and wait until that was
 * tried once.
 * Threads: any but the hand-off's job; no lock held.
 * Blocks: up to HANDOFF_WAIT_STEPS times the time of a step of an update.
 * Errors: ERR_NOT_HANDED_OVER: fewer than --min-ready engines have the version, and it is tried
 *         again, until a stop; the message has the first failure. The version stays committed. */
enum { HANDOFF_WAIT_STEPS = 8 };
int handoff_version(struct handoff *h, uint64_t serial, struct err *e);

/* handoff_want - the same, without waiting. Threads: any. Blocks: no. */
void handoff_want(struct handoff *h, uint64_t serial);

struct handoff_info {
    uint64_t wanted, done; /* serials of the store: committed; handed to enough engines. 0: none */
    uint64_t n_handoffs, n_repairs, n_failed;
    uint64_t last_us;       /* how long the last hand-off that succeeded took; 0: none */
    struct err why;         /* why the last try failed; clean: it did not */
    uint64_t retry_due_us;  /* when it is repeated at the earliest; 0: it did not fail */
    uint64_t window_nbytes; /* as configured; 0: a version is not sent by windows */
};

/* handoff_info_get - Threads: any. Blocks: no. */
void handoff_info_get(struct handoff *h, struct handoff_info *out);

#endif
