/* Who may tell upstreams something now. Three things are held apart: a turn (what changes them),
 * the end of an update that is given up, and the flow (what stops them, or lets them go on).
 *
 * Rejected: one turn for all of it. A sleep or an end that hangs at one upstream kept a trainer's
 * pause, and its abort, waiting for as long. */
#include "fleet/fleet_priv.h"

#include <assert.h>
#include <inttypes.h>

static int refuse_busy(const char *busy, uint64_t since_us, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "", "%s is under way at the upstreams, for %" PRIu64 " s now",
                   busy, (clock_now_us() - since_us) / 1000000);
}

/* Those who wait for a thread have waited too. */
static uint64_t request_began_us(const struct http_request *x)
{
    return x != NULL ? x->began_us : clock_now_us();
}

static bool is_disconnected(struct http_request *x)
{
    return x != NULL && http_request_disconnected(x);
}

/* False: it is late, or nobody waits for it any more. */
static bool wait_locked(struct fleet_control *fc, struct http_request *x, uint64_t deadline_us)
{
    uint64_t now_us = clock_now_us(), poll_us = now_us + FLEET_DISCONNECT_POLL_US;

    if (now_us >= deadline_us || is_disconnected(x))
        return false;
    (void)cnd_wait(&fc->changed, &fc->lock,
                   x != NULL && poll_us < deadline_us ? poll_us : deadline_us);
    return true;
}

static int refuse_disconnected(struct err *e)
{
    return err_set(e, ERR_GONE, "", "the client went away before its turn");
}

static int take_op_lock(struct fleet_control *fc, struct http_request *x, const char *what,
                        bool steps, struct err *e)
{
    uint64_t deadline_us = request_began_us(x) + FLEET_OP_WAIT_US, since_us;
    const char *busy;
    bool disconnected;

    mtx_lock(&fc->lock);
    while ((fc->busy != NULL || fc->ending != NULL) && wait_locked(fc, x, deadline_us))
        continue;
    disconnected = is_disconnected(x);
    busy = fc->busy != NULL ? fc->busy : fc->ending;
    since_us = fc->busy != NULL ? fc->busy_us : fc->ending_us;
    if (busy == NULL && !disconnected) {
        fc->busy = what;
        fc->busy_us = clock_now_us();
        fc->busy_by = pthread_self();
        fc->steps = steps;
    }
    mtx_unlock(&fc->lock);
    if (disconnected)
        return refuse_disconnected(e);
    return busy == NULL ? 0 : refuse_busy(busy, since_us, e);
}

int fleet_op_lock(struct fleet_control *fc, struct http_request *x, const char *what, struct err *e)
{
    return take_op_lock(fc, x, what, false, e);
}

int fleet_step_lock(struct fleet_control *fc, struct http_request *x, const char *what,
                    struct err *e)
{
    return take_op_lock(fc, x, what, true, e);
}

void fleet_op_unlock(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    assert(fc->busy != NULL && pthread_equal(fc->busy_by, pthread_self()));
    fc->busy = NULL;
    fc->steps = false;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

static int take_abort_lock(struct fleet_control *fc, const char *what, uint64_t wait_us,
                           struct err *e)
{
    uint64_t deadline_us = clock_after_us(wait_us), since_us;
    const char *busy;

    mtx_lock(&fc->lock);
    while (((fc->busy != NULL && fc->steps) || fc->ending != NULL) &&
           cnd_wait(&fc->changed, &fc->lock, deadline_us))
        continue;
    busy = fc->busy != NULL && fc->steps ? fc->busy : fc->ending;
    since_us = fc->busy != NULL && fc->steps ? fc->busy_us : fc->ending_us;
    if (busy == NULL) {
        fc->ending = what;
        fc->ending_us = clock_now_us();
        fc->ending_by = pthread_self();
    }
    mtx_unlock(&fc->lock);
    return busy == NULL ? 0 : refuse_busy(busy, since_us, e);
}

int fleet_abort_lock(struct fleet_control *fc, const char *what, struct err *e)
{
    return take_abort_lock(fc, what, FLEET_ABORT_WAIT_US, e);
}

int fleet_expiry_lock(struct fleet_control *fc, const char *what, struct err *e)
{
    return take_abort_lock(fc, what, FLEET_OP_WAIT_US, e);
}

void fleet_abort_unlock(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    assert(fc->ending != NULL && pthread_equal(fc->ending_by, pthread_self()));
    fc->ending = NULL;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

bool fleet_owns_update_lock(struct fleet_control *fc)
{
    bool mine;

    mtx_lock(&fc->lock);
    mine = (fc->busy != NULL && fc->steps && pthread_equal(fc->busy_by, pthread_self())) ||
           (fc->ending != NULL && pthread_equal(fc->ending_by, pthread_self()));
    mtx_unlock(&fc->lock);
    return mine;
}

/* Whom a pause waits for may wait for what runs; our own steps are over soon, or hang. */
static uint64_t pause_lock_deadline_us(const struct fleet_control *fc, const char *what,
                                       uint64_t begun_us)
{
    uint64_t since_us = fc->flow_us > begun_us ? fc->flow_us : begun_us;

    if (what != fleet_trainer_pause || fc->flow == NULL || fc->flow == fleet_trainer_pause)
        return begun_us + FLEET_OP_WAIT_US;
    return since_us + FLEET_ABORT_WAIT_US;
}

int fleet_pause_lock(struct fleet_control *fc, struct http_request *x, const char *what,
                     struct err *e)
{
    uint64_t begun_us = request_began_us(x), since_us;
    const char *busy;
    bool disconnected;

    mtx_lock(&fc->lock);
    while ((fc->flow != NULL || fc->n_resuming > 0) &&
           wait_locked(fc, x, pause_lock_deadline_us(fc, what, begun_us)))
        continue;
    disconnected = is_disconnected(x);
    busy = fc->flow != NULL ? fc->flow : fc->n_resuming > 0 ? "a resume" : NULL;
    since_us = fc->flow != NULL ? fc->flow_us : fc->resuming_us;
    if (busy == NULL && !disconnected) {
        fc->flow = what;
        fc->flow_us = clock_now_us();
        fc->overtaken = false;
    }
    mtx_unlock(&fc->lock);
    if (disconnected)
        return refuse_disconnected(e);
    return busy == NULL ? 0 : refuse_busy(busy, since_us, e);
}

bool fleet_pause_lock_unless_pausing(struct fleet_control *fc, const char *what)
{
    uint64_t deadline_us = clock_after_us(FLEET_OP_WAIT_US);
    bool mine;

    mtx_lock(&fc->lock);
    while (((fc->flow != NULL && fc->flow != fleet_trainer_pause) || fc->n_resuming > 0) &&
           cnd_wait(&fc->changed, &fc->lock, deadline_us))
        continue;
    mine = fc->flow == NULL && fc->n_resuming == 0;
    if (mine) {
        fc->flow = what;
        fc->flow_us = clock_now_us();
        fc->overtaken = false;
    }
    mtx_unlock(&fc->lock);
    return mine;
}

void fleet_pause_unlock(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    fc->flow = NULL;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}
