/* The state of a fleet's control plane. Included by fleet/ and its folders only; handlers use
 * fleet/calls/fleet_control.h and the headers beside it. */
#ifndef BATON_FLEET_CALLS_FLEET_PRIV_H
#define BATON_FLEET_CALLS_FLEET_PRIV_H

#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/calls/fleet_transfer.h"
#include "fleet/handoff/window_readers.h"
#include "fleet/members/fleet_adapters.h"
#include "fleet/members/retry.h"
#include "fleet/members/upstreams.h"
#include "fleet/proof/fleet_proof.h"
#include "fleet/update/fleet_coverage.h"
#include "fleet/update/fleet_session.h"
#include "fleet/update/fleet_update.h"
#include "fleet/want/fleet_pause.h"
#include "fleet/want/fleet_reconcile.h"
#include "http/http_request.h"

enum { FLEET_ENDED_SESSIONS_MAX = 16 }; /* updates that ended and can still be queried */

/* Why engines are quiesced, besides a pause and a sleep. */
struct fleet_quiesce {
    unsigned
        n_adapters_replacing;     /* loads under way that may replace an adapter of the same name */
    unsigned n_probe_suspensions; /* fleet_suspend_generation_probes */
    uint64_t order;               /* of the last decision; grows with each */
};

/* The pause of one engine (fleet/want/fleet_gate.c). */
struct fleet_gate {
    bool suspended; /* it must run for a resync */
    bool for_fence; /* it was paused because it is fenced, which was logged */
};

/* From which other one an engine reads the fleet's version (fleet/want/fleet_seed.c). */
struct fleet_seed {
    const struct upstream *from; /* asked first; only compared; NULL: none */
    uint64_t until_us;           /* it counts as busy with that, whatever it says */
    uint64_t n_failures;         /* as it reported when it was told */
};

/* What the engines joined for transfers (fleet/calls/fleet_transfer.h). */
struct fleet_transfer {
    struct fleet_group groups[FLEET_GROUPS_MAX]; /* the latest last */
    size_t n_groups;
    struct fleet_handles handles;
};

/* What is known of one upstream beside its state in rotation; a part of it. Guarded by the
 * control's lock, but for what a line says. */
struct fleet_engine {
    struct fleet_gate gate;
    struct retry retry[ASPECTS_OF_ALL]; /* fleet_aspect_tried_locked */
    struct fleet_task task;             /* what it needs besides (fleet/want/fleet_reconcile.h) */
    struct fleet_prover proof;
    struct fleet_seed seed;

    struct retry repair;         /* of the hand-off (struct handoff), and so is the next one */
    struct window_reader window; /* of an SGLang */
};

static inline struct fleet_engine *fleet_engine(const struct upstream *upstream)
{
    return upstream_control(upstream);
}

struct fleet_control {
    struct mtx lock;    /* rank MTX_UPDATES; guards down to the blank line */
    struct cnd changed; /* a lock was released, or a session changed */
    struct fleet_locks locks;
    struct fleet_quiesce quiesce;
    struct fleet_session *session;   /* one reference; NULL: none is open */
    struct fleet_session *releasing; /* borrowed: it has ended, and its engines are put back to what
                                        they were; NULL: none */
    struct fleet_session *starting;  /* one reference; a copy of it, as it began; NULL: none */
    struct fleet_session *ended[FLEET_ENDED_SESSIONS_MAX]; /* one reference each; the last first */
    struct pause pause;                                    /* the trainer's */
    struct fleet_sleep sleep;
    struct fleet_spec *spec;       /* one reference; NULL: the model's tensors are not known */
    const char *coverage;          /* static: of the last committed update; NULL: there was none */
    struct fleet_session *cut_off; /* of `ended`: a push that requests cannot name, aborted before
                                      its trainer ended it; NULL: none, or fleet_begin_push came */
    struct fleet_transfer transfer;
    struct fleet_provers proof;

    struct fleet_control_cfg cfg; /* immutable, and so is the next one */
    struct upstreams *upstreams;  /* cfg's */

    struct fleet_task tasks[ASPECTS_OF_ALL], expiry; /* of the loop's thread, but for `running`,
                                                        and so are the next two */
    struct loop_item item;
    struct loop_timer timer; /* of the next look at all engines and leases (fleet/fleet_root.c) */
};

/* fleet_group_locked - a group by its name, as fleet_get_group. @name  NULL: the latest
 * fleet_any_group_locked - the same, also one that was left after a refusal.
 * fleet_group_since_locked - the group that began then. NULL: it is forgotten */
void fleet_transfer_clear(struct fleet_transfer *t); /* under the lock, or at shutdown */
struct fleet_group *fleet_any_group_locked(struct fleet_control *fc, const char *name);
int fleet_require_group_locked(struct fleet_control *fc, const char *name, struct fleet_group **out,
                               struct err *e); /* fleet_require_group */
struct fleet_group *fleet_group_since_locked(struct fleet_control *fc, uint64_t began_us);
struct fleet_group *fleet_group_locked(struct fleet_control *fc, const char *name);

/* ---- processes behind an upstream ---- */

/* fleet_incarnation_of - what identifies an engine's process now.
 * fleet_is_other_incarnation - has the process changed since? One that does not name itself counts
 * as changed if it was away.
 * fleet_may_be_other - may it have, though nothing has shown it yet: is it down, or has a request
 * to one that names itself failed since? Then it is asked. */
void fleet_incarnation_of(struct fleet_control *fc, struct upstream *upstream,
                          struct fleet_incarnation *out);
bool fleet_is_other_incarnation(struct fleet_control *fc, struct upstream *upstream,
                                const struct fleet_incarnation *before);
bool fleet_may_be_other(struct fleet_control *fc, struct upstream *upstream,
                        const struct fleet_incarnation *before);

/* ---- pauses ---- */

/* fleet_engine_is_held_locked - does the open update, or the end of one, keep this engine paused?
 */
bool fleet_engine_is_held_locked(const struct fleet_control *fc, struct upstream *upstream);

/* fleet_gate_is_kept - must a resume for all engines leave this one out? One that is fenced may
 * have part of an update. With --pause-fenced it counts as paused for its fence. */
bool fleet_gate_is_kept(struct fleet_control *fc, struct upstream *upstream);

/* fleet_lacks_wake - does this refusal of a wake mean that the engine has no route for it? It may
 * be of something on the way: of a kind that has the route always, and of an engine that has shown
 * that it has one and may sleep (have_may_lack_wake), it says nothing. */
bool fleet_lacks_wake(struct fleet_control *fc, const struct fleet_result *result);

/* fleet_gate_suspend - on: resume an engine that is paused for its fence, and let it run, since a
 * resync makes it generate, unless the fleet is paused by now; off: the resync has ended. Blocks:
 * for the pause lock, then up to 2 s. No lock held. */
void fleet_gate_suspend(struct fleet_control *fc, struct upstream *upstream, bool on);

/* fleet_close_own_updates - ask batons whether they have an update open, and abort it. The caller
 * owns the update lock. Blocks: up to the time of a step and FLEET_ABORT_US. */
void fleet_close_own_updates(struct fleet_control *fc, struct upstream *const *batons, size_t n);

/* fleet_pause_expired_locked - has the lease of the trainer's pause ended? */
bool fleet_pause_expired_locked(const struct fleet_control *fc);

/* ---- quiesce and leases ---- */

/* fleet_apply_quiesce - from the state as it is now: do engines get probes that generate a token,
 * are engines that missed a pause out of rotation, do new generates wait here? No lock held. */
void fleet_apply_quiesce(struct fleet_control *fc);

/* fleet_expire_update - abort, if its lease has still expired when the lock is taken. Blocks. */
void fleet_expire_update(struct fleet_control *fc, struct fleet_session *s);

/* fleet_send_packing - tell those vLLM whose releases take it only when a transfer is set up
 * whether the handles of `tensors` are packed. An engine that fails is dropped from the update.
 * Blocks. */
int fleet_send_packing(struct fleet_control *fc, struct fleet_session *s,
                       const struct api_tensors *tensors, struct err *e);

#endif
