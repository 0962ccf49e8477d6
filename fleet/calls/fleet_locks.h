/* The locks of the operations on a fleet. Each is owned for as long as engines process requests, so
 * none is a mutex: a thread waits for one with a deadline, and its error names the operation that
 * owns it.
 *
 * The operation lock is for whatever changes engines: a sleep, a load of an adapter, a step of an
 * update. The abort lock is for the abort of an update: it waits for the steps of an update, and
 * for no other operation, so that an engine that hangs in a sleep does not delay an abort. The
 * pause lock is for whatever pauses or resumes engines; it is taken after the operation lock, never
 * before it, and only until the engines have replied. The one-shot lock is for an update that is
 * one request, from its start to its end.
 *
 * A step of an update and an abort exclude each other: the owner of either has the update lock.
 * Each lock is released by the thread that took it, which is asserted.
 *
 * Rejected: one lock for all. A sleep or a finish that hung at one engine kept a trainer's pause,
 * and its abort, waiting for as long. */
#ifndef BATON_FLEET_CALLS_FLEET_LOCKS_H
#define BATON_FLEET_CALLS_FLEET_LOCKS_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct fleet_control;
struct http_request;

enum {
    FLEET_OP_WAIT_US = 60000000,      /* an operation waits this long for its lock */
    FLEET_ABORT_WAIT_US = 3000000,    /* a trainer's abort waits this long for its lock; a trainer's
                                         pause for a step of an update in the pause lock */
    FLEET_DISCONNECT_POLL_US = 200000 /* a waiting thread checks this often for its client */
};

enum fleet_lock_kind {
    FLEET_LOCK_OPERATION,     /* operation lock: an abort does not wait for it */
    FLEET_LOCK_STEP,          /* operation lock: a step of an update */
    FLEET_LOCK_ABORT,         /* abort lock */
    FLEET_LOCK_TRAINER_PAUSE, /* pause lock: a pause by a trainer; a resume does not wait for it */
    FLEET_LOCK_PAUSE,      /* pause lock: a step of an update, or a pause that an engine missed */
    FLEET_LOCK_PAUSE_LATER /* the same, of what can be done later: not while a trainer pauses */
};

/* Guarded by the lock of the fleet's control, as struct fleet_locks is. */
struct fleet_lock {
    const char *operation; /* static: what its owner does, for messages; NULL: it is free */
    enum fleet_lock_kind kind;
    uint64_t since_us;
    const void *owner; /* workers_self, while it is not free */
};

struct fleet_locks {
    struct fleet_lock op, abort, pause;
    unsigned n_resumes;        /* resumes under way; the pause lock is not taken meanwhile */
    uint64_t resumes_since_us; /* when the first of them began */
    bool one_shot;             /* the one-shot lock is taken */
    unsigned n_aborts; /* aborts that wait; their step's requests before the first byte end then: */
    bool op_wanted;    /* atomic: a step of an update waits for `op` */
    bool cuts;         /* atomic: n_aborts > 0 */
};

/* fleet_op_lock - wait until no other operation, no abort, and no hand-off of this server is under
 * way; take the operation lock. fleet_step_lock - the same for a step of an update, for which an
 * abort waits.
 * @x          the request whose client waits, from its arrival on; NULL: no client does
 * @operation  static: for the messages of others
 * Threads: those that may wait for engines; no lock held. Blocks: up to FLEET_OP_WAIT_US.
 * Errors: ERR_CONFLICT: what is under way, and for how long; ERR_GONE: the client disconnected. */
int fleet_op_lock(struct fleet_control *fc, struct http_request *x, const char *operation,
                  struct err *e);
int fleet_step_lock(struct fleet_control *fc, struct http_request *x, const char *operation,
                    struct err *e);
void fleet_op_unlock(struct fleet_control *fc); /* of either */

/* fleet_lock_if_free - take the operation lock for work that can be done later:
 * FLEET_LOCK_OPERATION or FLEET_LOCK_STEP, as fleet_op_lock or fleet_step_lock. Blocks: no.
 * Returns: was it free? */
bool fleet_lock_if_free(struct fleet_control *fc, enum fleet_lock_kind kind, const char *operation);

/* fleet_abort_lock - wait until no step of an update and no other abort is under way; take the
 * abort lock, for the trainer. A step that has sent no tensors does not wait for engines meanwhile.
 * fleet_expiry_lock - the same for a lease that ended, which has more
 * time. Blocks: up to FLEET_ABORT_WAIT_US; FLEET_OP_WAIT_US. Errors: ERR_CONFLICT, as above. */
int fleet_abort_lock(struct fleet_control *fc, const char *operation, struct err *e);
int fleet_expiry_lock(struct fleet_control *fc, const char *operation, struct err *e);
void fleet_abort_unlock(struct fleet_control *fc);

/* fleet_owns_op_lock, fleet_owns_pause_lock - does this thread own that lock, of any kind?
 * fleet_owns_update_lock - does this thread own the operation lock for a step of an update, or the
 * abort lock? For assertions. Threads: any; no lock held. */
bool fleet_owns_op_lock(struct fleet_control *fc);
bool fleet_owns_pause_lock(struct fleet_control *fc);
bool fleet_owns_update_lock(struct fleet_control *fc);

/* fleet_pause_lock - take the pause lock, for anything but a trainer's pause.
 * fleet_trainer_pause_lock - the same for a trainer's pause. It waits for another trainer's pause
 * as long as for any operation, because that may wait for running generations; for a step of an
 * update only FLEET_ABORT_WAIT_US, because that is short unless an engine hangs; for either no
 * longer than timeout_us, from the begin of the request on. Blocks: up to FLEET_OP_WAIT_US. Errors:
 * as fleet_op_lock's. */
int fleet_pause_lock(struct fleet_control *fc, const char *operation, struct err *e);
int fleet_trainer_pause_lock(struct fleet_control *fc, struct http_request *x, uint64_t timeout_us,
                             struct err *e);
void fleet_pause_unlock(struct fleet_control *fc);

/* fleet_pause_lock_unless_pausing - fleet_pause_lock for work that can be done later.
 * Returns: false at once while a trainer's pause owns the lock; false after FLEET_OP_WAIT_US. */
bool fleet_pause_lock_unless_pausing(struct fleet_control *fc, const char *operation);

/* fleet_resume_lock - begin a resume. A trainer's resume does not wait for a trainer's pause: it
 * ends the pending pause in the record (control/pause_state.h), which then undoes itself. Any
 * number of resumes may be under way.
 * @expired  the lease of the pause ended: waits for a trainer's pause too
 * Blocks: up to FLEET_OP_WAIT_US. Errors: ERR_CONFLICT: what is under way; @expired, and the pause
 * was renewed or is over. */
int fleet_resume_lock(struct fleet_control *fc, bool expired, struct err *e);
void fleet_resume_unlock(struct fleet_control *fc);

/* fleet_one_shot_lock - wait until no other one-shot update is under way.
 * Blocks: up to the time of one step of an update. Errors: ERR_CONFLICT. */
int fleet_one_shot_lock(struct fleet_control *fc, struct err *e);
void fleet_one_shot_unlock(struct fleet_control *fc);

#endif
