/* The state behind fleet/fleet_control.h, and what its handlers share. */
#ifndef BATON_FLEET_FLEET_PRIV_H
#define BATON_FLEET_FLEET_PRIV_H

#include "base/clock.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "base/workers.h"
#include "control/pause_controller.h"
#include "fleet/fleet_adapters.h"
#include "fleet/fleet_control.h"
#include "fleet/fleet_locks.h"
#include "fleet/fleet_reconcile.h"
#include "fleet/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_coverage.h"
#include "fleet/update/fleet_session.h"
#include "http/http_request.h"

enum {
    FLEET_STEP_US = 30000000,   /* for a pause, a resume, a start of our own, at one upstream */
    FLEET_ABORT_US = 10000000,  /* for its update to be given up */
    FLEET_QUERY_US = 10000000,  /* for a question about itself */
    FLEET_CACHE_US = 60000000,  /* for its caches to be dropped, and for requests to be aborted */
    FLEET_SLEEP_US = 300000000, /* weights to or from host memory */
    FLEET_GRACE_US = 2000000,   /* beyond what the upstream itself was given */
    FLEET_ENDED_SESSIONS_MAX = 16, /* updates that can still be asked about */
    FLEET_MISSED_PAUSE_RETRY_US =
        500000,                /* until who missed a pause or a resume is looked for again */
    FLEET_GROUPS_MAX = 64,     /* of one trainer: one for each of its pipeline stages */
    FLEET_GROUP_NAME_MAX = 256 /* bytes */
};

struct fleet_group { /* with the trainer */
    struct api_packing packing;
    uint64_t world_size, rank_offset, began_us;
    char name[FLEET_GROUP_NAME_MAX + 1]; /* "": it was joined without one */
    bool joined[FLEET_MAX];
    uint64_t offset[FLEET_MAX], n_ranks[FLEET_MAX];
};

struct fleet_control {
    struct mtx lock; /* rank MTX_UPDATES; guards down to the blank line */
    struct cnd changed;
    struct fleet_locks locks;
    unsigned n_adapters_replacing; /* loads of adapters that may replace one under its name */
    unsigned n_probe_suspensions;  /* who does not want upstreams to be asked for tokens */
    uint64_t quiesce_order;        /* how often the fleet was told who stands still */
    struct fleet_session *session; /* one reference; NULL: none is open */
    struct fleet_session *ended[FLEET_ENDED_SESSIONS_MAX]; /* one reference each; the last first */
    struct pause pause;                                    /* the trainer's */
    struct fleet_incarnation
        paused[FLEET_MAX]; /* while `pause` is held: of those that `paused_by_trainer` it */
    bool paused_by_trainer[FLEET_MAX];
    bool missed_pause[FLEET_MAX]; /* it did not answer when the others were paused, or resumed */
    uint64_t missed_pause_due_us; /* CLOCK_NEVER: nobody is */
    struct fleet_spec *spec;      /* one reference; NULL: nothing is known of the model */
    const char *coverage;         /* static: of the last update that was committed; NULL: none */
    bool weights_asleep, kv_asleep;
    int sleep_level;
    struct fleet_group groups[FLEET_GROUPS_MAX]; /* the latest last; several of SGLangs only */
    size_t n_groups;
    struct fleet_handles { /* of a trainer that set up nothing else */
        bool set;          /* upstreams were told that handles will come */
        bool on, packed;   /* on: it was said whether they are packed */
    } handles;
    struct fleet_adapters adapters;
    struct fleet_reconciler reconcilers[FLEET_MAX];
    unsigned n_reconciling;
    bool reconciling; /* who lacks adapters is looked for */

    /* owned by the holder of the operation lock; no lock */
    bool update_in_doubt[FLEET_MAX]; /* a baton may have an update open that nobody here knows */

    struct fleet_control_cfg cfg; /* immutable, and so is the next one */
    struct upstreams *upstreams;  /* cfg's */

    struct loop_item reschedule;     /* of the room's loop */
    struct loop_timer expiry_timer;  /* of the room's loop */
    struct job expiry;               /* posted by it, one at a time */
    struct loop_item reconcile_item; /* of the room's loop, and so is the next one */
    struct loop_timer reconcile_timer;
    bool expiring; /* guarded by lock: it is */
};

/* fleet_group_locked - the group that is meant, or NULL. One that was joined without a name has the
 * one that SGLang gives it.
 * @name  NULL: the latest */
struct fleet_group *fleet_group_locked(struct fleet_control *fc, const char *name);

/* Who the upstreams are. */
static inline struct fleet *fleet_of(const struct fleet_control *fc)
{
    return upstreams_fleet(fc->upstreams);
}

/* fleet_adapter_replacing - an adapter is being loaded, maybe in the place of another: until the
 * other call new generates for upstreams that know an adapter by its name wait here. */
void fleet_adapter_replacing(struct fleet_control *fc, bool on);

/* fleet_suspend_generation_probes - upstreams are not asked for tokens, until the other call. */
void fleet_suspend_generation_probes(struct fleet_control *fc, bool on);

/* fleet_reachable - all that are configured and answer.
 * @targets  [FLEET_MAX], each with `body`. Returns: how many. */
size_t fleet_reachable(struct fleet_control *fc, const json_t *body, struct fleet_target *targets);

/* fleet_reachable_quorum - the same; fewer than --min-ready are ERR_UNSYNCED, which names the
 * others.
 */
int fleet_reachable_quorum(struct fleet_control *fc, const json_t *body,
                           struct fleet_target *targets, size_t *n, struct err *e);

size_t fleet_min_ready(struct fleet_control *fc);

/* fleet_incarnation_of - what an upstream's process is known by now.
 * fleet_is_other_incarnation - is it another by now? One that does not name itself is, if it was
 * away. */
void fleet_incarnation_of(struct fleet_control *fc, size_t upstream, struct fleet_incarnation *out);
bool fleet_is_other_incarnation(struct fleet_control *fc, size_t upstream,
                                const struct fleet_incarnation *incarnation);

/* fleet_engine_is_paused_locked - did it take the trainer's pause, and is the same process? */
bool fleet_engine_is_paused_locked(struct fleet_control *fc, size_t upstream);

/* fleet_note_pause_results - a pause or a resume reached those, and no others. What comes back
 * later is told then (fleet_send_missed_pauses). */
void fleet_note_pause_results(struct fleet_control *fc, const struct fleet_result *results,
                              size_t n, bool paused);
void fleet_send_missed_pauses(struct fleet_control *fc);

/* fleet_note_missed_pause - those are told later what the others were: to stand still, or to go on.
 */
void fleet_note_missed_pause(struct fleet_control *fc, const struct fleet_target *targets,
                             size_t n);

/* fleet_results_json - [{"upstream", "ok", "status", "error"}] (new), of every configured upstream;
 * those that were not asked with why. NULL: no memory. */
json_t *fleet_results_json(struct fleet_control *fc, const struct fleet_result *results, size_t n);
json_t *fleet_result_json(const char *name, bool ok, int status, const char *error);

/* fleet_update_us - what one upstream has for a step of an update. */
uint64_t fleet_update_us(const struct fleet_control *fc);

/* fleet_reschedule - the leases have changed. Threads: any. */
void fleet_reschedule(struct fleet_control *fc);

/* fleet_apply_quiesce - may upstreams be asked for tokens, and must who was away wait? By what
 * stands still now. No lock held. */
void fleet_apply_quiesce(struct fleet_control *fc);

/* fleet_send_packing - tells those vLLM that take it only when their transfer is set up whether the
 * handles of `body` are packed; whom that fails at is dropped. Blocks. */
int fleet_send_packing(struct fleet_control *fc, struct fleet_session *s, const json_t *body,
                       struct err *e);

/* fleet_json_set - reply[member] = value (stolen; NULL: no memory). Returns 0 or -1. */
int fleet_json_set(json_t *reply, const char *member, json_t *value);

/* updates (fleet/update/) */

struct fleet_update_request {
    struct http_request *x; /* whose client waits; or NULL */
    const char *label;      /* "" = none */
    const json_t *start;    /* of the native start, without its label */
    const char *selector;   /* static, or NULL */
    bool auto_commit, anonymous, partial, sharded;
    uint32_t lease_s;
};

/* fleet_start_update - open the fleet's update. @out  one reference
 * Errors: ERR_CONFLICT (one is open), ERR_UNSYNCED, an upstream's. *details may be set (new). */
int fleet_start_update(struct fleet_control *fc, const struct fleet_update_request *req,
                       struct fleet_session **out, json_t **details, struct err *e);

/* fleet_send_tensors - tensors to all that take part.
 * @body      without update_id, weight_version, chunk_id, abort_requests
 * @chunk_id  NULL: none
 * Errors: an upstream's, ERR_CONFLICT, ERR_ENDED. The update may have been ended by that. */
struct fleet_tensors {
    const json_t *body;
    const char *chunk_id;
    bool by_group, abort_requests;
};
int fleet_send_tensors(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_tensors *t, struct err *e);

/* fleet_finish_update - prove, and commit if asked. @body  of the native finish: its checksums
 * Errors: an upstream's, ERR_CONFLICT, ERR_ENDED, ERR_INCOMPLETE; the update is aborted unless it
 * could not be begun to end. */
int fleet_finish_update(struct fleet_control *fc, struct fleet_session *s, const char *label,
                        const json_t *body, bool commit, struct err *e);

/* fleet_abort_update_wait - abort. Errors: ERR_ENDED (committed), ERR_CONFLICT (being committed).
 */
int fleet_abort_update_wait(struct fleet_control *fc, struct fleet_session *s,
                            const struct err *why, struct err *e);

/* fleet_abort_update - the same, for its trainer, who is told at once of what is under way. */
int fleet_abort_update(struct fleet_control *fc, struct fleet_session *s, const struct err *why,
                       struct err *e);

/* fleet_expire_update - abort, if its lease is over when it is its turn. */
void fleet_expire_update(struct fleet_control *fc, struct fleet_session *s);
bool fleet_lease_expired_locked(const struct fleet_session *s);

/* fleet_find_update - a reference to the session of that id, open or ended. Errors: ERR_NOT_FOUND.
 */
int fleet_find_update(struct fleet_control *fc, const char *id, struct fleet_session **out,
                      struct err *e);
/* fleet_open_session - a reference to the open one, or NULL. */
struct fleet_session *fleet_open_session(struct fleet_control *fc);
void fleet_unref(struct fleet_control *fc, struct fleet_session *s); /* takes the lock */

/* fleet_pause_all - tells all that answer to stand still. In the pause lock (fleet_pause_lock).
 * Where one of them fails, or a resume comes meanwhile, those that took it go on.
 * @body  what they are told, as the request has it
 * @results  [n], also on failure; to be freed with fleet_results_free; NULL: nobody was asked
 * Blocks: up to the request's timeout; one that goes down meanwhile is not waited for, and is told
 * when it is back. Errors: fleet_reachable_quorum's, fleet_request's, an upstream's;
 * ERR_CONFLICT: it was resumed. */
int fleet_pause_all(struct fleet_control *fc, const struct pause_request *req, const json_t *body,
                    struct fleet_result **results, size_t *n, struct err *e);

/* fleet_resume_all - RESUME to all alive but those that an open update holds and those that are
 * fenced in the middle of one. What fails is fenced. @results as fleet_request's
 * @lapsed  only if the pause's lease is over when it is its turn; ERR_CONFLICT else */
int fleet_resume_all(struct fleet_control *fc, bool lapsed, struct fleet_result **results,
                     size_t *n, bool *was, struct err *e);

/* fleet_commit_open_update - end the auto-commit update that is open, if any, as its trainer's last
 * word. Returns 0 when there is none or it was committed: *out is a reference to it then, or NULL.
 */
int fleet_commit_open_update(struct fleet_control *fc, const char *label,
                             struct fleet_session **out, struct err *e);

/* fleet_engine_is_held_locked - does the open update need this upstream to stand still? */
bool fleet_engine_is_held_locked(const struct fleet_control *fc, size_t upstream);

/* fleet_has_no_adapter - was an unload refused because there is none of that name? */
bool fleet_has_no_adapter(struct fleet_control *fc, const struct fleet_result *results,
                          const char *name);

/* fleet_pause_expired_locked - has the lease of the trainer's pause ended? */
bool fleet_pause_expired_locked(const struct fleet_control *fc);

/* fleet_pause_body - what tells an upstream of a pause that the others have (new). NULL: no memory.
 */
json_t *fleet_pause_body(const struct pause *p);

#endif
