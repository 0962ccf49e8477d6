/* The pause controller: whether generation runs, which owner paused it and until when, and what
 * sleeps.
 *
 * Every handler that changes something calls pause_controller_allows first, which collects the
 * state and looks the call up in the one table (control/lifecycle.h). Pause, resume, sleep and wake
 * run one after the other; each of their waits has a deadline.
 *
 * A pause closes admission before anything else. A request that was read before it belongs to it,
 * wherever it is: `keep` freezes those that run between two tokens, and the others wait as new ones
 * do; `wait` gives those without a permit theirs, and is acknowledged when all have ended; `abort`
 * ends them all, those without a permit without tokens, and is acknowledged when nothing runs any
 * more. What comes later is held, or refused. A pause that takes the place of another one counts
 * from the first, but one with abort from itself, unless it repeats one. A pause that is never
 * acknowledged, because its deadline passed or its client disconnected, is undone, unless an
 * earlier pause was acknowledged or another one is still waiting. Generation then stays paused, and
 * if the new pause has no lease, the lease of the other one applies. A pause that remains only
 * because others wait for it ends when the last of them gives up. A pause with a lease ends by
 * itself.
 *
 * Sleep does not pause. Generations that are frozen by a pause with `keep` stay, and recompute
 * their KV if it was released; so does what a pause holds. All others are aborted first, in
 * whichever queue they are. While anything sleeps, new generations are refused, or queue if a pause
 * queues them. */
#ifndef BATON_CONTROL_PAUSE_CONTROLLER_H
#define BATON_CONTROL_PAUSE_CONTROLLER_H

#include "base/err.h"
#include "control/lifecycle.h"
#include "control/pause_state.h"
#include "weights/store/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct admission;
struct engine;
struct pause_controller;
struct generations;
struct handle_leases;
struct life;
struct updates;

/* The objects that a pause controller works on. All are borrowed and outlive it. */
struct pause_controller_cfg {
    const struct life *life;
    struct store *store;
    struct updates *updates;      /* NULL: none */
    struct handle_leases *leases; /* NULL: none */
    struct engine *engine;        /* NULL: none */
    struct admission *generate;
    struct generations *generations;
    uint64_t sleep_timeout_us; /* how long sleep and wake wait for readers of the weights */
};

/* pause_controller_new - start the thread that ends leases and answers waiting pauses.
 * @cfg  copied
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL (the thread). */
int pause_controller_new(struct pause_controller **out, const struct pause_controller_cfg *cfg,
                         struct err *e);

/* pause_controller_drain - the process ends: lift the pause, so that frozen generations can end,
 * and answer waiting pauses with ERR_DRAINING. Repeating is harmless. Threads: any. */
void pause_controller_drain(struct pause_controller *g);
void pause_controller_stop(
    struct pause_controller *g); /* drains, and joins the thread; repeating is harmless */
void pause_controller_free(struct pause_controller *g); /* stops first; accepts NULL */

/* pause_controller_state - the current state, of all its parts. */
void pause_controller_state(struct pause_controller *g, struct lifecycle_state *out);

/* pause_controller_allows - lifecycle_check of the current state, but that admission alone refuses
 * generates because of a pause: it knows when they came. Threads: any; takes locks up to
 * MTX_ENGINE, one after the other. Does not check whether another update is open: updates_start
 * does, and names it. */
int pause_controller_allows(struct pause_controller *g, enum lifecycle_call call, struct err *e);

struct pause_controller_info {
    struct pause pause;          /* paused_us with the current pause */
    size_t n_running, n_waiting; /* generations, at that moment */
    bool acknowledged;           /* the pause is in effect: all is frozen, or nothing runs */
};
void pause_controller_info(struct pause_controller *g, struct pause_controller_info *out);

/* pause_controller_pause_by - the pause alone. Blocks: until the deadline at most. Errors: of
 * mtx_lock_by. */
int pause_controller_pause_by(struct pause_controller *g, uint64_t deadline_us, struct pause *out,
                              struct err *e);

/* One request that waits for a pause to be acknowledged. */
struct pause_controller_wait {
    struct pause_controller *pause_controller;
    atomic_bool gone; /* relaxed; the client has disconnected. Set, then pause_controller_wake_up */
    /* Called once, on the pause controller's thread or on the one that ends the wait, no lock held.
     * `e` is clean on success, else ERR_TIMEOUT, ERR_GONE, ERR_DRAINING, or ERR_CONFLICT (resumed,
     * or replaced by another pause). May free the wait. */
    void (*done)(struct pause_controller_wait *w, const struct pause_controller_info *info,
                 const struct err *e);

    /* Of the pause controller. */
    struct pause_controller_wait *next;
    uint64_t deadline_us;
    struct err error;
};

/* pause_controller_pause - pause generation, as described above. Replaces an earlier pause and its
 * lease.
 * @w  its done is called later if this returns 1; untouched otherwise
 * Returns: 0 acknowledged, with the state in *out; 1 not yet acknowledged; -1 failed.
 * Threads: any that may block. Blocks: until operations under way have ended and, with keep, for
 * one step of the engine.
 * Errors: lifecycle_check's; ERR_TIMEOUT (keep: the step did not end). Nothing has changed then. */
int pause_controller_pause(struct pause_controller *g, const struct pause_request *req,
                           struct pause_controller_wait *w, struct pause_controller_info *out,
                           struct err *e);
void pause_controller_wake_up(
    struct pause_controller *g); /* check the waits again; takes a leaf lock. Threads: any */

/* pause_controller_resume - let generation run; cannot fail. Returns: was it paused?
 * Blocks: until operations under way have ended. */
bool pause_controller_resume(struct pause_controller *g, struct pause_controller_info *out);

enum pause_controller_tag { PAUSE_WEIGHTS = 1, PAUSE_KV = 2 };

struct pause_controller_slept {
    struct store_slept weights;
    uint64_t nbytes_kv;
    uint32_t n_aborted;
};

/* pause_controller_sleep - @level 1 or 2, @tags of enum pause_controller_tag.
 * Errors: lifecycle_check's, ERR_CONFLICT (a lease holds the weights; names it), store_sleep's,
 * ERR_TIMEOUT. Aborted generations stay aborted. If the weights sleep already and the KV cache
 * could not be released, the weights stay asleep. All else is as before.
 * Blocks: as pause_controller_pause, and for store_sleep. */
int pause_controller_sleep(struct pause_controller *g, int level, unsigned tags,
                           struct pause_controller_slept *out, struct err *e);

/* pause_controller_wake - @nbytes  taken on GPUs. Errors: lifecycle_check's, store_wake's,
 * ERR_TIMEOUT. */
int pause_controller_wake(struct pause_controller *g, unsigned tags, uint64_t *nbytes,
                          struct err *e);

#endif
