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
static uint64_t begun_us_of(const struct http_request *x)
{
    return x != NULL ? x->began_us : clock_now_us();
}

static bool is_gone(struct http_request *x)
{
    return x != NULL && http_request_disconnected(x);
}

/* False: it is late, or nobody waits for it any more. */
static bool wait_locked(struct fleet_control *fc, struct http_request *x, uint64_t deadline_us)
{
    uint64_t now_us = clock_now_us(), look_us = now_us + FLEET_GONE_US;

    if (now_us >= deadline_us || is_gone(x))
        return false;
    (void)cnd_wait(&fc->changed, &fc->lock,
                   x != NULL && look_us < deadline_us ? look_us : deadline_us);
    return true;
}

static int refuse_gone(struct err *e)
{
    return err_set(e, ERR_GONE, "", "the client went away before its turn");
}

static int take_turn(struct fleet_control *fc, struct http_request *x, const char *what, bool steps,
                     struct err *e)
{
    uint64_t deadline_us = begun_us_of(x) + FLEET_TURN_US, since_us;
    const char *busy;
    bool gone;

    mtx_lock(&fc->lock);
    while ((fc->busy != NULL || fc->ending != NULL) && wait_locked(fc, x, deadline_us))
        continue;
    gone = is_gone(x);
    busy = fc->busy != NULL ? fc->busy : fc->ending;
    since_us = fc->busy != NULL ? fc->busy_us : fc->ending_us;
    if (busy == NULL && !gone) {
        fc->busy = what;
        fc->busy_us = clock_now_us();
        fc->busy_by = pthread_self();
        fc->steps = steps;
    }
    mtx_unlock(&fc->lock);
    if (gone)
        return refuse_gone(e);
    return busy == NULL ? 0 : refuse_busy(busy, since_us, e);
}

int fleet_turn(struct fleet_control *fc, struct http_request *x, const char *what, struct err *e)
{
    return take_turn(fc, x, what, false, e);
}

int fleet_step(struct fleet_control *fc, struct http_request *x, const char *what, struct err *e)
{
    return take_turn(fc, x, what, true, e);
}

void fleet_turn_end(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    assert(fc->busy != NULL && pthread_equal(fc->busy_by, pthread_self()));
    fc->busy = NULL;
    fc->steps = false;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_tokens(fc);
}

static int take_ending(struct fleet_control *fc, const char *what, uint64_t wait_us, struct err *e)
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

int fleet_ending(struct fleet_control *fc, const char *what, struct err *e)
{
    return take_ending(fc, what, FLEET_BUSY_US, e);
}

int fleet_lapsing(struct fleet_control *fc, const char *what, struct err *e)
{
    return take_ending(fc, what, FLEET_TURN_US, e);
}

void fleet_ending_end(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    assert(fc->ending != NULL && pthread_equal(fc->ending_by, pthread_self()));
    fc->ending = NULL;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_tokens(fc);
}

bool fleet_has_op(struct fleet_control *fc)
{
    bool mine;

    mtx_lock(&fc->lock);
    mine = (fc->busy != NULL && fc->steps && pthread_equal(fc->busy_by, pthread_self())) ||
           (fc->ending != NULL && pthread_equal(fc->ending_by, pthread_self()));
    mtx_unlock(&fc->lock);
    return mine;
}

/* Whom a pause waits for may wait for what runs; our own steps are over soon, or hang. */
static uint64_t flow_deadline(const struct fleet_control *fc, const char *what, uint64_t begun_us)
{
    uint64_t since_us = fc->flow_us > begun_us ? fc->flow_us : begun_us;

    if (what != fleet_pausing || fc->flow == NULL || fc->flow == fleet_pausing)
        return begun_us + FLEET_TURN_US;
    return since_us + FLEET_BUSY_US;
}

int fleet_flow(struct fleet_control *fc, struct http_request *x, const char *what, struct err *e)
{
    uint64_t begun_us = begun_us_of(x), since_us;
    const char *busy;
    bool gone;

    mtx_lock(&fc->lock);
    while ((fc->flow != NULL || fc->n_resuming > 0) &&
           wait_locked(fc, x, flow_deadline(fc, what, begun_us)))
        continue;
    gone = is_gone(x);
    busy = fc->flow != NULL ? fc->flow : fc->n_resuming > 0 ? "a resume" : NULL;
    since_us = fc->flow != NULL ? fc->flow_us : fc->resuming_us;
    if (busy == NULL && !gone) {
        fc->flow = what;
        fc->flow_us = clock_now_us();
        fc->overtaken = false;
    }
    mtx_unlock(&fc->lock);
    if (gone)
        return refuse_gone(e);
    return busy == NULL ? 0 : refuse_busy(busy, since_us, e);
}

bool fleet_flow_soon(struct fleet_control *fc, const char *what)
{
    uint64_t deadline_us = clock_after_us(FLEET_TURN_US);
    bool mine;

    mtx_lock(&fc->lock);
    while (((fc->flow != NULL && fc->flow != fleet_pausing) || fc->n_resuming > 0) &&
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

void fleet_flow_end(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    fc->flow = NULL;
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_tokens(fc);
}
