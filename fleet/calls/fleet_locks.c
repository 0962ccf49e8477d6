/* One function takes each of the locks: it differs in what it waits for, and for how long. */
#include "fleet/calls/fleet_locks.h"

#include "fleet/calls/fleet_priv.h"

#include <assert.h>
#include <inttypes.h>

/* A lock to be taken. */
struct lock_request {
    enum fleet_lock_kind kind;
    const char *operation;
    struct http_request *x; /* or NULL */
    uint64_t wait_us;
};

static bool is_owned(const struct fleet_lock *l)
{
    return l->operation != NULL;
}

static bool is_mine(const struct fleet_lock *l)
{
    return is_owned(l) && l->owner == workers_self();
}

static struct fleet_lock *lock_of(struct fleet_control *fc, enum fleet_lock_kind kind)
{
    switch (kind) {
    case FLEET_LOCK_OPERATION:
    case FLEET_LOCK_STEP:
        return &fc->locks.op;
    case FLEET_LOCK_ABORT:
        return &fc->locks.abort;
    default:
        return &fc->locks.pause;
    }
}

/* An operation waits for a hand-off, which no client can end; not between its steps. */
static struct fleet_lock handoff_locked(const struct fleet_control *fc)
{
    const struct fleet_session *s = fc->session;

    if (s == NULL || !s->handoff)
        return (struct fleet_lock){0};
    return (struct fleet_lock){.operation = "a hand-off of this server's version",
                               .kind = FLEET_LOCK_STEP,
                               .since_us = s->began_us};
}

/* The lock that a request for `kind` has to wait for; it has no owner if there is none. */
static struct fleet_lock blocker_locked(const struct fleet_control *fc, enum fleet_lock_kind kind)
{
    const struct fleet_locks *l = &fc->locks;

    switch (kind) {
    case FLEET_LOCK_OPERATION:
        if (!is_owned(&l->op) && !is_owned(&l->abort))
            return handoff_locked(fc);
        return is_owned(&l->op) ? l->op : l->abort;
    case FLEET_LOCK_STEP:
        return is_owned(&l->op) ? l->op : l->abort;
    case FLEET_LOCK_ABORT:
        return is_owned(&l->op) && l->op.kind == FLEET_LOCK_STEP ? l->op : l->abort;
    default:
        if (!is_owned(&l->pause) && l->n_resumes > 0)
            return (struct fleet_lock){.operation = "a resume", .since_us = l->resumes_since_us};
        return l->pause;
    }
}

/* A trainer's pause waits for a step of an update only a moment. */
static uint64_t deadline_locked(const struct fleet_control *fc, const struct lock_request *r,
                                uint64_t began_us)
{
    const struct fleet_lock *pause = &fc->locks.pause;
    uint64_t since_us = pause->since_us > began_us ? pause->since_us : began_us;
    uint64_t deadline_us = began_us + r->wait_us;

    if (r->kind != FLEET_LOCK_TRAINER_PAUSE || !is_owned(pause) ||
        pause->kind == FLEET_LOCK_TRAINER_PAUSE || since_us + FLEET_ABORT_WAIT_US > deadline_us)
        return deadline_us;
    return since_us + FLEET_ABORT_WAIT_US;
}

static bool is_disconnected(struct http_request *x)
{
    return x != NULL && http_request_disconnected(x);
}

/* False: the deadline is over, or the client disconnected. */
static bool wait_locked(struct fleet_control *fc, struct http_request *x, uint64_t deadline_us)
{
    uint64_t now_us = clock_now_us(), poll_us = now_us + FLEET_DISCONNECT_POLL_US;

    if (now_us >= deadline_us || is_disconnected(x))
        return false;
    (void)cnd_wait(&fc->changed, &fc->lock,
                   x != NULL && poll_us < deadline_us ? poll_us : deadline_us);
    return true;
}

static void own_locked(struct fleet_control *fc, enum fleet_lock_kind kind, const char *operation)
{
    struct fleet_lock *l = lock_of(fc, kind);

    assert(!is_owned(l));
    *l = (struct fleet_lock){
        .operation = operation, .kind = kind, .since_us = clock_now_us(), .owner = workers_self()};
}

static int refuse_busy(const struct fleet_lock *blocker, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "", "%s is under way at the upstreams, for %" PRIu64 " s now",
                   blocker->operation, (clock_now_us() - blocker->since_us) / 1000000);
}

/* A trainer's pause that a resume is about to end is waited for. */
static bool waits_locked(const struct fleet_control *fc, const struct lock_request *r,
                         const struct fleet_lock *blocker)
{
    bool until_resume = r->kind == FLEET_LOCK_PAUSE_LATER &&
                        blocker->kind == FLEET_LOCK_TRAINER_PAUSE && fc->locks.n_resumes == 0;

    return is_owned(blocker) && r->wait_us > 0 && !until_resume;
}

/* The time that the request waited for a thread counts. */
static int fleet_lock_take(struct fleet_control *fc, const struct lock_request *r, struct err *e)
{
    uint64_t began_us = r->x != NULL ? r->x->began_us : clock_now_us();
    struct fleet_lock blocker;
    bool disconnected;

    mtx_lock(&fc->lock);
    blocker = blocker_locked(fc, r->kind);
    while (waits_locked(fc, r, &blocker)) {
        if (is_owned(&fc->locks.op) && r->kind == FLEET_LOCK_STEP)
            __atomic_store_n(&fc->locks.op_wanted, true, __ATOMIC_RELEASE);
        if (!wait_locked(fc, r->x, deadline_locked(fc, r, began_us)))
            break;
        blocker = blocker_locked(fc, r->kind);
    }
    disconnected = is_disconnected(r->x);
    if (!is_owned(&blocker) && !disconnected)
        own_locked(fc, r->kind, r->operation);
    mtx_unlock(&fc->lock);
    if (disconnected)
        return err_set(e, ERR_GONE, "", "the client disconnected before the operation began");
    return is_owned(&blocker) ? refuse_busy(&blocker, e) : 0;
}

static void fleet_locks_release(struct fleet_control *fc, struct fleet_lock *l)
{
    mtx_lock(&fc->lock);
    assert(is_mine(l));
    l->operation = NULL;
    if (l == &fc->locks.op)
        __atomic_store_n(&fc->locks.op_wanted, false, __ATOMIC_RELEASE);
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

/* operation and abort */

int fleet_op_lock(struct fleet_control *fc, struct http_request *x, const char *operation,
                  struct err *e)
{
    return fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_OPERATION, operation, x, FLEET_OP_WAIT_US}, e);
}

int fleet_step_lock(struct fleet_control *fc, struct http_request *x, const char *operation,
                    struct err *e)
{
    return fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_STEP, operation, x, FLEET_OP_WAIT_US}, e);
}

bool fleet_lock_if_free(struct fleet_control *fc, enum fleet_lock_kind kind, const char *operation)
{
    struct err busy = {0};

    return fleet_lock_take(fc, &(struct lock_request){kind, operation, NULL, 0}, &busy) == 0;
}

void fleet_op_unlock(struct fleet_control *fc)
{
    fleet_locks_release(fc, &fc->locks.op);
}

static void fleet_locks_cut(struct fleet_control *fc, int more)
{
    mtx_lock(&fc->lock);
    fc->locks.n_aborts += (unsigned)more;
    __atomic_store_n(&fc->locks.cuts, fc->locks.n_aborts > 0, __ATOMIC_RELEASE);
    mtx_unlock(&fc->lock);
}

int fleet_abort_lock(struct fleet_control *fc, const char *operation, struct err *e)
{
    int rc;

    fleet_locks_cut(fc, 1);
    rc = fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_ABORT, operation, NULL, FLEET_ABORT_WAIT_US}, e);
    fleet_locks_cut(fc, -1);
    return rc;
}

int fleet_expiry_lock(struct fleet_control *fc, const char *operation, struct err *e)
{
    return fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_ABORT, operation, NULL, FLEET_OP_WAIT_US}, e);
}

void fleet_abort_unlock(struct fleet_control *fc)
{
    fleet_locks_release(fc, &fc->locks.abort);
}

static bool owns(struct fleet_control *fc, const struct fleet_lock *l)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return is_mine(l);
}

bool fleet_owns_op_lock(struct fleet_control *fc)
{
    return owns(fc, &fc->locks.op);
}

bool fleet_owns_pause_lock(struct fleet_control *fc)
{
    return owns(fc, &fc->locks.pause);
}

bool fleet_owns_update_lock(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return (is_mine(&fc->locks.op) && fc->locks.op.kind == FLEET_LOCK_STEP) ||
           is_mine(&fc->locks.abort);
}

/* pause and resume */

int fleet_pause_lock(struct fleet_control *fc, const char *operation, struct err *e)
{
    return fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_PAUSE, operation, NULL, FLEET_OP_WAIT_US}, e);
}

int fleet_trainer_pause_lock(struct fleet_control *fc, struct http_request *x, uint64_t timeout_us,
                             struct err *e)
{
    uint64_t wait_us = timeout_us < FLEET_OP_WAIT_US ? timeout_us : FLEET_OP_WAIT_US;

    return fleet_lock_take(
        fc, &(struct lock_request){FLEET_LOCK_TRAINER_PAUSE, "a pause", x, wait_us}, e);
}

bool fleet_pause_lock_unless_pausing(struct fleet_control *fc, const char *operation)
{
    struct err busy = {0};

    return fleet_lock_take(
               fc,
               &(struct lock_request){FLEET_LOCK_PAUSE_LATER, operation, NULL, FLEET_OP_WAIT_US},
               &busy) == 0;
}

void fleet_pause_unlock(struct fleet_control *fc)
{
    fleet_locks_release(fc, &fc->locks.pause);
}

static bool blocks_resume_locked(const struct fleet_control *fc, bool expired)
{
    const struct fleet_lock *pause = &fc->locks.pause;

    return is_owned(pause) && (expired || pause->kind != FLEET_LOCK_TRAINER_PAUSE);
}

int fleet_resume_lock(struct fleet_control *fc, bool expired, struct err *e)
{
    uint64_t deadline_us = clock_after_us(FLEET_OP_WAIT_US);
    const char *busy;
    bool renewed;

    mtx_lock(&fc->lock);
    while (blocks_resume_locked(fc, expired) && wait_locked(fc, NULL, deadline_us))
        continue;
    busy = blocks_resume_locked(fc, expired) ? fc->locks.pause.operation : NULL;
    renewed = expired && !fleet_pause_expired_locked(fc);
    if (busy == NULL && !renewed) {
        pause_begin_resume(&fc->pause);
        if (fc->locks.n_resumes++ == 0)
            fc->locks.resumes_since_us = clock_now_us();
    }
    mtx_unlock(&fc->lock);
    if (busy != NULL)
        return err_set(e, ERR_CONFLICT, "", "%s is under way at the upstreams", busy);
    return renewed ? err_set(e, ERR_CONFLICT, "", "the pause was renewed") : 0;
}

void fleet_resume_unlock(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    assert(fc->locks.n_resumes > 0);
    fc->locks.n_resumes--;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

/* one-shot updates */

int fleet_one_shot_lock(struct fleet_control *fc, struct err *e)
{
    uint64_t deadline_us = clock_after_us(fleet_update_us(fc));
    bool mine;

    mtx_lock(&fc->lock);
    while (fc->locks.one_shot && wait_locked(fc, NULL, deadline_us))
        continue;
    mine = !fc->locks.one_shot;
    fc->locks.one_shot = true;
    mtx_unlock(&fc->lock);
    return mine ? 0 : err_set(e, ERR_CONFLICT, "", "another update is under way");
}

void fleet_one_shot_unlock(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    fc->locks.one_shot = false;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
}
